/* vocabulary.c - tokens by their ids, their texts and their bytes; pairs that are merged. */
#include <utf8proc.h>

#include "ext/lm/tokenizer.h"

bool tni_token_text(tn_tokenizer *t, const char *text, size_t n, uint32_t *at)
{
    *at = (uint32_t)t->texts.n;
    tni_bytes_add(&t->texts, text, n);
    tni_bytes_add(&t->texts, "", 1);
    if (t->texts.n > UINT32_MAX / 2)
        return tni_false(tni_error(TN_E_FORMAT, "the tokens have more than 2 GiB"));
    return !t->texts.failed;
}

tni_token *tni_token_at(tn_tokenizer *t, size_t id)
{
    if (id < t->n_token) return &t->token[id];
    size_t more = id + 1 - t->n_token;
    if (!tni_room(&t->token, &t->token_capacity, t->n_token, more, sizeof *t->token)) return NULL;
    memset(t->token + t->n_token, 0, more * sizeof *t->token);
    t->n_token = id + 1;
    return &t->token[id];
}

static size_t capacity_for(size_t n)
{
    size_t capacity = 16;
    while (capacity < 2 * n + 2) capacity *= 2;
    return capacity;
}

static bool make_table(tni_words *words, size_t n)
{
    const size_t capacity = capacity_for(n);
    words->slot = tni_alloc(capacity * sizeof *words->slot);
    if (!words->slot) return false;
    memset(words->slot, 0xff, capacity * sizeof *words->slot);
    words->capacity = capacity;
    return true;
}

bool tni_token_put(tn_tokenizer *t, tni_words *words, int32_t id)
{
    const tni_token *token = &t->token[id];
    bool bytes = words == &t->by_bytes;
    const char *text = t->texts.data + (bytes ? token->bytes : token->text);
    size_t n = bytes ? token->n_bytes : token->n_text, mask = words->capacity - 1;
    if (tni_find(t, words, text, n) >= 0) return false;
    size_t i = tni_word_hash(t->seed, text, n) & mask;
    while (words->slot[i] >= 0) i = (i + 1) & mask;
    words->slot[i] = id;
    return true;
}

bool tni_tokens_index(tn_tokenizer *t, size_t more)
{
    if (!make_table(&t->by_text, t->n_token + more) || !make_table(&t->by_bytes, t->n_token))
        return false;
    for (size_t i = 0; i < t->n_token; i++) {
        if (!t->token[i].there) continue;
        if (!tni_token_put(t, &t->by_text, (int32_t)i))
            return tni_false(tni_error(TN_E_FORMAT, "tokenizer: the token \"%.60s\" is there twice",
                                       t->texts.data + t->token[i].text));
        if (t->token[i].word) tni_token_put(t, &t->by_bytes, (int32_t)i);
    }
    for (int b = 0; b < 256; b++) t->byte[b] = tni_find(t, &t->by_bytes, &(char){ (char)b }, 1);
    return true;
}

bool tni_pairs_begin(tn_tokenizer *t, size_t n)
{
    const size_t capacity = capacity_for(n);
    t->pair = tni_alloc(capacity * sizeof *t->pair);
    if (!t->pair) return false;
    t->pair_capacity = capacity;
    for (size_t i = 0; i < capacity; i++) t->pair[i] = (tni_pair){ UINT64_MAX, 0, 0 };
    return true;
}

/* The byte of a letter: those that are printable in Latin 1 are their own, the others follow from
 * U+0100 on. -1: it is none of them. */
static int byte_of(int32_t c)
{
    if ((c > ' ' && c < 0x7f) || (c > 0xa0 && c < 0x100 && c != 0xad)) return c;
    if (c >= 0x100 && c <= 0x120) return c - 0x100;
    if (c >= 0x121 && c <= 0x142) return c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

bool tni_letters_to_bytes(tni_bytes *to, const char *text, size_t n)
{
    const size_t before = to->n;
    for (size_t at = 0; at < n;) {
        int32_t c = -1;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
        if (k <= 0 || byte_of(c) < 0) return to->n = before, false;
        tni_bytes_add(to, &(char){ (char)byte_of(c) }, 1);
        at += (size_t)k;
    }
    return true;
}
