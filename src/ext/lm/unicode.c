/* unicode.c - classes of characters, and ByteLevel's letters. */
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

/* White_Space of Unicode. */
bool tni_is_space(int32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* \w of Unicode's regular expressions (UTS 18): Alphabetic, marks, digits, connectors, joiners. */
bool tni_is_word(int32_t c)
{
    const unsigned classes =
        1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL | 1u << UTF8PROC_CATEGORY_LT |
        1u << UTF8PROC_CATEGORY_LM | 1u << UTF8PROC_CATEGORY_LO | 1u << UTF8PROC_CATEGORY_MN |
        1u << UTF8PROC_CATEGORY_MC | 1u << UTF8PROC_CATEGORY_ME | 1u << UTF8PROC_CATEGORY_ND |
        1u << UTF8PROC_CATEGORY_NL | 1u << UTF8PROC_CATEGORY_PC;
    if (classes >> utf8proc_category(c) & 1) return true;
    /* letters in circles and squares are signs, but Alphabetic */
    return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
           (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

/* Bytes that are printable in Latin 1 are their own letters, the others follow from U+0100 on. */
int32_t tni_byte_letter(unsigned char byte)
{
    if ((byte > ' ' && byte < 0x7f) || (byte > 0xa0 && byte != 0xad)) return byte;
    if (byte <= ' ') return 0x100 + byte;
    if (byte <= 0xa0) return 0x121 + byte - 0x7f;
    return 0x143;
}

/* The byte of a letter; -1: it is none of them. */
static int byte_of(int32_t c)
{
    if (c < 0x100) return tni_byte_letter((unsigned char)c) == c ? c : -1;
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
