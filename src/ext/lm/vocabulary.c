/* vocabulary.c - tokens by their ids, their texts and their bytes. */
#include <utf8proc.h>

#include "ext/lm/tokenizer.h"

/* ---- found by text --------------------------------------------------------------------------- */

uint64_t tni_word_hash(uint64_t seed, const char *text, size_t n)
{
    const uint64_t odd = UINT64_C(0x9fb21c651e98df25);
    uint64_t hash = seed ^ n * odd, eight;
    for (; n >= 8; text += 8, n -= 8) {
        memcpy(&eight, text, 8);
        hash = (hash ^ eight) * odd;
        hash ^= hash >> 31;
    }
    for (eight = 0; n > 0; n--) eight = eight << 8 | (unsigned char)text[n - 1];
    hash = (hash ^ eight) * odd;
    return hash ^ hash >> 29;
}

static const struct tni_span *span_of(const tn_tokenizer *t, const tni_words *words, int32_t id)
{
    return words == &t->by_bytes ? &t->token[id].bytes : &t->token[id].text;
}

/* Where the id of a text is, or the free place for it. */
static int32_t *place_of(const tn_tokenizer *t, const tni_words *words, const char *text, size_t n)
{
    const size_t mask = words->capacity - 1;
    for (size_t i = tni_word_hash(t->seed, text, n) & mask;; i = (i + 1) & mask) {
        int32_t *id = &words->slot[i];
        if (*id < 0) return id;
        const struct tni_span *span = span_of(t, words, *id);
        if (span->n == n && memcmp(t->texts.data + span->at, text, n) == 0) return id;
    }
}

int32_t tni_find(const tn_tokenizer *t, const tni_words *words, const char *text, size_t n)
{
    return *place_of(t, words, text, n);
}

bool tni_token_put(tn_tokenizer *t, tni_words *words, int32_t id)
{
    const struct tni_span *span = span_of(t, words, id);
    int32_t *place = place_of(t, words, t->texts.data + span->at, span->n);
    if (*place >= 0) return false;
    *place = id;
    return true;
}

void *tni_table(size_t n, size_t size, size_t *capacity)
{
    for (*capacity = 16; *capacity < 2 * n + 2;) *capacity *= 2;
    void *table = tni_alloc(*capacity * size);
    return table ? memset(table, 0xff, *capacity * size) : NULL;
}

bool tni_tokens_index(tn_tokenizer *t, size_t more)
{
    tni_words *words[] = { &t->by_text, &t->by_bytes };
    for (int i = 0; i < 2; i++) {
        tni_free(words[i]->slot, words[i]->capacity * sizeof(int32_t));
        words[i]->slot = tni_table(t->n_token + more, sizeof(int32_t), &words[i]->capacity);
        if (!words[i]->slot) return false;
    }
    for (size_t i = 0; i < t->n_token; i++) {
        if (!t->token[i].there) continue;
        if (!tni_token_put(t, &t->by_text, (int32_t)i))
            return tni_false(tni_error(TN_E_FORMAT, "tokenizer: the token \"%.60s\" is there twice",
                                       t->texts.data + t->token[i].text.at));
        if (t->token[i].word && !t->marked) tni_token_put(t, &t->by_bytes, (int32_t)i);
    }
    for (int b = 0; b < 256; b++) t->byte[b] = tni_find(t, &t->by_bytes, &(char){ (char)b }, 1);
    return true;
}

/* ---- made ------------------------------------------------------------------------------------ */

tni_token *tni_token_at(tn_tokenizer *t, size_t id)
{
    if (id < t->n_token) return &t->token[id];
    size_t more = id + 1 - t->n_token;
    if (!tni_room(&t->token, &t->token_capacity, t->n_token, more, sizeof *t->token)) return NULL;
    memset(t->token + t->n_token, 0, more * sizeof *t->token);
    t->n_token = id + 1;
    return &t->token[id];
}

/* The byte of a letter: its own if printable in Latin 1, of the others from U+0100 on. -1: none. */
int tni_byte_of(int32_t c)
{
    if ((c > ' ' && c < 0x7f) || (c > 0xa0 && c < 0x100 && c != 0xad)) return c;
    if (c >= 0x100 && c <= 0x120) return c - 0x100;
    return c >= 0x121 && c <= 0x142 ? c - 0x121 + 0x7f : c == 0x143 ? 0xad : -1;
}

void tni_letters(tni_bytes *to, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t b = (unsigned char)bytes[i], c = b;
        while (tni_byte_of(c) != b) c = TNI_MAX(c + 1, 0x100);
        if (c == '"' || c == '\\') tni_bytes_add(to, "\\", 1);
        const char two[] = { (char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f)) };
        tni_bytes_add(to, c < 0x80 ? &(char){ (char)c } : two, c < 0x80 ? 1 : 2);
    }
}

/* What ByteLevel's letters stand for; false, and nothing added: there are others. */
static bool letters_to_bytes(tni_bytes *to, const char *text, size_t n)
{
    const size_t before = to->n;
    for (size_t at = 0; at < n;) {
        int32_t c = -1;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
        if (k <= 0 || tni_byte_of(c) < 0) return to->n = before, false;
        tni_bytes_add(to, &(char){ (char)tni_byte_of(c) }, 1);
        at += (size_t)k;
    }
    return true;
}

bool tni_token_set(tn_tokenizer *t, tni_token *token, const char *text)
{
    const uint32_t at = (uint32_t)t->texts.n, n = (uint32_t)strlen(text);
    token->text = token->bytes = (struct tni_span){ at, n };
    tni_bytes_add(&t->texts, text, n + 1);
    if (t->texts.n > UINT32_MAX / 2)
        return tni_false(tni_error(TN_E_FORMAT, "the tokens have more than 2 GiB"));
    token->there = true;
    if (t->marked) return tni_marked_set(t, token, text, n), token->word = !t->texts.failed;
    token->word = t->pieces || letters_to_bytes(&t->texts, text, n);
    const uint32_t begin = at + n + 1;
    if (token->word && !t->pieces)
        token->bytes = (struct tni_span){ begin, (uint32_t)t->texts.n - begin };
    return !t->texts.failed;
}
