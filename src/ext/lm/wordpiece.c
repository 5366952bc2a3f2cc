/*
 * wordpiece.c - the ids of a word: the longest token at its beginning, then the longest one that
 * continues it ("##ing"), and so on; one unknown token where a part is none.
 *
 * Source: Wu et al., Google's Neural Machine Translation System (2016), sec. 4.1.
 */
#include "ext/lm/tokenizer.h"

/* Longest first. The prefix stands before the rest of the word in `text`. */
static int32_t longest(const tn_tokenizer *t, const char *text, size_t prefix, size_t n,
                       size_t *length)
{
    while (n > 0) {
        int32_t id = tni_find(t, &t->by_bytes, text, prefix + n);
        if (id >= 0) return *length = n, id;
        while (--n > 0 && ((unsigned char)text[prefix + n] & 0xc0) == 0x80)
            ;
    }
    return TNI_NO_ID;
}

static bool too_long(const char *word, size_t n, int64_t most)
{
    int64_t characters = 0;
    for (size_t i = 0; i < n && characters <= most; i++)
        characters += ((unsigned char)word[i] & 0xc0) != 0x80;
    return characters > most;
}

bool tni_wordpiece(tni_work *w, const char *word, size_t n)
{
    const tn_tokenizer *t = w->t;
    size_t prefix = strlen(t->prefix), length = 0;
    int64_t before = w->out->n;
    tni_bytes *text = &w->scratch[TNI_STAGES - 1];
    if (too_long(word, n, t->longest)) return tni_ids_add(w->out, t->unk);
    for (size_t at = 0; at < n; at += length) {
        text->n = 0;
        if (at) tni_bytes_add(text, t->prefix, prefix);
        tni_bytes_add(text, word + at, n - at);
        if (text->failed) return text->failed = false;
        int32_t id = longest(t, text->data, at ? prefix : 0, n - at, &length);
        if (id < 0) {
            w->out->n = before;
            return tni_ids_add(w->out, t->unk);
        }
        if (!tni_ids_add(w->out, id)) return false;
    }
    return true;
}
