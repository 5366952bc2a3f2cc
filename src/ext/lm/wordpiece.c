/*
 * wordpiece.c - BERT's way from a text to ids: its characters made plain; cuts at spaces and around
 * punctuation; of a word the longest token that it begins with, then the longest one that continues
 * it ("##ing"), and so on; one unknown token where a part is none.
 *
 * Source: Devlin et al., BERT (2019), its file tokenization.py; Wu et al., Google's Neural Machine
 * Translation System (2016), section 4.1.
 */
#include <ctype.h>
#include <utf8proc.h>

#include "ext/lm/tokenizer.h"

/* ---- characters ------------------------------------------------------------------------------ */

/* The character at a place of valid UTF-8, and its bytes. */
static size_t next(const char *text, size_t n, int32_t *c)
{
    if ((unsigned char)*text < 0x80) return *c = *text, 1;
    return (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, c);
}

/* Unicode's White_Space. */
static bool is_space(int32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Of ASCII all signs, others by their class. */
static bool is_punctuation(int32_t c)
{
    if (c < 0x80) return ispunct(c);
    const utf8proc_category_t class = utf8proc_category(c);
    return class >= UTF8PROC_CATEGORY_PC && class <= UTF8PROC_CATEGORY_PO;
}

static bool is_removed(int32_t c)
{
    if (c < 0x80) return (c < ' ' && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
    return c == 0xfffd || utf8proc_category(c) >= UTF8PROC_CATEGORY_CC; /* and Cf, Co */
}

/* As BERT has them: not all that Unicode has by now. */
static bool is_ideograph(int32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
           (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b81f) ||
           (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0x2f800 && c <= 0x2fa1f);
}

/* A character of 3 bytes becomes at most 5, between two spaces, one of 2 at most 3. */
bool tni_fold(tni_work *w, const char **text, size_t *n, unsigned how)
{
    tni_bytes *to = &w->normal;
    if (!tni_room(&to->data, &to->capacity, 0, 2 * *n + 4, 1)) return false;
    char *out = to->data;
    int32_t c;
    for (size_t at = 0; at < *n;) {
        at += next(*text + at, *n - at, &c);
        if (how & TNI_CLEAN && is_removed(c)) continue;
        if (how & TNI_CLEAN && is_space(c)) c = ' ';
        if (how & TNI_NO_ACCENTS && c >= 0x80 && utf8proc_category(c) == UTF8PROC_CATEGORY_MN)
            continue;
        const bool apart = how & TNI_IDEOGRAPHS && is_ideograph(c), lower = how & TNI_LOWER;
        if (apart) *out++ = ' ';
        out += utf8proc_encode_char(lower ? utf8proc_tolower(c) : c, (utf8proc_uint8_t *)out);
        if (lower && c == 0x130) out = stpcpy(out, "\u0307"); /* the one that becomes two */
        if (apart) *out++ = ' ';
    }
    *text = to->data;
    *n = (size_t)(out - to->data);
    return true;
}

/* ---- words ----------------------------------------------------------------------------------- */

bool tni_bert_words(tni_work *w, const char *text, size_t n)
{
    size_t begin = 0;
    int32_t c;
    for (size_t at = 0, k; at < n; at += k) {
        k = next(text + at, n - at, &c);
        const bool space = is_space(c);
        if (!space && !is_punctuation(c)) continue;
        if (at > begin && !tni_word_ids(w, text + begin, at - begin)) return false;
        if (!space && !tni_word_ids(w, text + at, k)) return false;
        begin = at + k;
    }
    return begin == n || tni_word_ids(w, text + begin, n - begin);
}

/* The prefix is written over what was read: it ends where the rest begins. */
bool tni_pieces(tni_work *w, const char *word, size_t n)
{
    const tn_tokenizer *t = w->t;
    const size_t prefix = strlen(t->prefix);
    const int64_t before = w->out->n;
    tni_bytes *text = &w->scratch;
    text->n = 0;
    tni_bytes_add(text, t->prefix, prefix);
    tni_bytes_add(text, word, n);
    if (text->failed) return text->failed = false;
    int64_t characters = 0;
    for (size_t i = 0; i < n; i++) characters += ((unsigned char)word[i] & 0xc0) != 0x80;
    int32_t id = characters > t->longest ? TNI_NO_ID : 0;
    for (size_t at = 0, k = n; at < n && id >= 0; at += k, k = n - at) {
        const char *from = text->data + (at ? at : prefix);
        if (at) memcpy(text->data + at, t->prefix, prefix);
        for (id = TNI_NO_ID; k && id < 0; k -= id < 0)
            id = tni_find(t, &t->by_bytes, from, (at ? prefix : 0) + k);
        if (id >= 0 && !tni_ids_add(w->out, &id, 1)) return false;
    }
    if (id >= 0) return true;
    w->out->n = before;
    return tni_ids_add(w->out, &t->unknown, 1);
}
