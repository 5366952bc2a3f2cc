/* unicode.c - characters of UTF-8, and ByteLevel's letters for bytes. */
#include <utf8proc.h>

#include "ext/lm/tokenizer.h"

size_t tni_next(const char *text, size_t n, int32_t *c)
{
    unsigned char first = (unsigned char)text[0];
    if (first < 0x80) return *c = first, 1;
    utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, c);
    if (k > 0) return (size_t)k;
    *c = 0xfffd;
    return 1;
}

/* Bytes that are printable in Latin 1 are their own letters, the others follow from U+0100 on. */
static int32_t byte_letter(unsigned char byte)
{
    if ((byte > ' ' && byte < 0x7f) || (byte > 0xa0 && byte != 0xad)) return byte;
    if (byte <= ' ') return 0x100 + byte;
    if (byte <= 0xa0) return 0x121 + byte - 0x7f;
    return 0x143;
}

/* The byte of a letter; -1: it is none of them. */
static int byte_of(int32_t c)
{
    if (c < 0x100) return byte_letter((unsigned char)c) == c ? c : -1;
    if (c <= 0x120) return c - 0x100;
    if (c <= 0x142) return c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

bool tni_letters_to_bytes(tni_bytes *to, const char *text, size_t n)
{
    size_t before = to->n;
    for (size_t at = 0; at < n;) {
        int32_t c;
        at += tni_next(text + at, n - at, &c);
        int byte = byte_of(c);
        if (byte < 0) return to->n = before, false;
        char one = (char)byte;
        tni_bytes_add(to, &one, 1);
    }
    return true;
}
