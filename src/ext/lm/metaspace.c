/*
 * metaspace.c - SentencePiece's way to write a text: U+2581 for a space. Its tokens are of
 * characters; those that have no token are spelt in tokens for bytes ("<0xE2>").
 *
 * Source: Kudo and Richardson, SentencePiece (2018); tokenizers, its BPE with byte_fallback.
 */
#include <ctype.h>

#include "ext/lm/tokenizer.h"

static bool is_mark(const char *text, size_t n)
{
    return n >= 3 && memcmp(text, TNI_MARK, 3) == 0;
}

bool tni_mark_spaces(tni_bytes *to, const char **text, size_t *n, bool prepend)
{
    to->n = 0;
    if (prepend) tni_bytes_add(to, TNI_MARK, 3);
    for (size_t at = 0, k; at < *n; at += k) {
        const char *space = memchr(*text + at, ' ', *n - at);
        k = space ? (size_t)(space - *text) - at : *n - at;
        tni_bytes_add(to, *text + at, k);
        if (space) tni_bytes_add(to, TNI_MARK, 3), k++;
    }
    *text = to->data, *n = to->n;
    return !to->failed || (to->failed = false);
}

/* Before a mark; where no token goes over the end of a word, words alone give the same. */
bool tni_marked_words(tni_work *w, const char *text, size_t n)
{
    const tn_tokenizer *t = w->t;
    const bool first = t->metaspace == TNI_ALWAYS || (t->metaspace == TNI_FIRST && w->first);
    if (t->metaspace &&
        !tni_mark_spaces(&w->scratch, &text, &n, first && *text != ' ' && !is_mark(text, n)))
        return false;
    size_t begin = 0;
    for (size_t at = 1; at < n && t->cut != TNI_WHOLE; at++) {
        if (!is_mark(text + at, n - at)) continue;
        if (t->cut == TNI_WORDS && at >= 3 && is_mark(text + at - 3, 3)) continue;
        if (!tni_word_ids(w, text + begin, at - begin)) return false;
        begin = at;
    }
    return tni_word_ids(w, text + begin, n - begin);
}

int32_t tni_marked_token(const tn_tokenizer *t, const char *text, size_t n)
{
    const int32_t id = tni_find(t, &t->by_text, text, n);
    return id >= 0 && t->token[id].word ? id : TNI_NO_ID;
}

/* As in the package an unknown character waits, and what is spelt in bytes goes in front of it. */
size_t tni_marked_symbols(const tn_tokenizer *t, const char *word, size_t n, int32_t *symbol)
{
    size_t count = 0;
    bool unknown = false; /* such a one waits */
    for (size_t at = 0, k; at < n; at += k) {
        for (k = 1; at + k < n && ((unsigned char)word[at + k] & 0xc0) == 0x80;) k++;
        const int32_t id = tni_marked_token(t, word + at, k);
        bool spelt = id < 0 && t->fallback;
        for (size_t i = 0; i < k && spelt; i++) spelt = t->byte[(unsigned char)word[at + i]] >= 0;
        for (size_t i = 0; i < k && spelt; i++)
            symbol[count++] = t->byte[(unsigned char)word[at + i]];
        if (spelt || (id < 0 && t->unknown < 0)) continue;
        if (unknown && (id >= 0 || !t->fuse)) symbol[count++] = t->unknown;
        if (id >= 0) symbol[count++] = id;
        unknown = id < 0;
    }
    if (unknown) symbol[count++] = t->unknown;
    return count;
}

bool tni_goes_on(const char *text)
{
    for (const char *at = text; (at = strstr(at, TNI_MARK)); at += 3)
        if (at > text && (at < text + 3 || !is_mark(at - 3, 3))) return true;
    return false;
}

void tni_marked_set(tn_tokenizer *t, tni_token *token, const char *text, size_t n)
{
    const size_t at = t->texts.n;
    token->spells = t->spells && n == 6 && !memcmp(text, "<0x", 3) && text[5] == '>' &&
                    isxdigit((unsigned char)text[3]) && isxdigit((unsigned char)text[4]);
    if (token->spells) tni_bytes_add(&t->texts, &(char){ (char)strtol(text + 1, NULL, 16) }, 1);
    for (size_t i = 0, k; i < n && !token->spells; i += k) {
        k = is_mark(text + i, n - i) ? 3 : 1;
        tni_bytes_add(&t->texts, k == 3 ? " " : text + i, 1);
    }
    token->bytes = (struct tni_span){ (uint32_t)at, (uint32_t)(t->texts.n - at) };
}
