/*
 * bpe_train.c - byte pair encoding learnt from texts.
 *
 * Words are counted, each with its symbols. A heap has the pairs by their counts, with the words
 * where they stand. A merge touches only these words, and changes the counts of their pairs; an
 * entry of the heap whose count has changed meanwhile is put back with the new one.
 *
 * Source: Sennrich et al. (2016), algorithm 1; tokenizers' BpeTrainer for ties, and for pairs that
 * make a token that is there already.
 */
#include <limits.h>

#include "ext/lm/tokenizer.h"

typedef struct word {
    size_t symbol; /* the first of n, in symbols */
    uint32_t n;
    int64_t count;
    size_t text, n_text; /* in texts */
} word;

/* A pair in the heap, with words in which it may stand. */
typedef struct candidate {
    uint64_t pair; /* left << 32 | right */
    int64_t count;
    uint32_t *word;
    size_t n, capacity;
} candidate;

typedef struct tally {
    uint64_t pair; /* UINT64_MAX: free */
    int64_t count;
    size_t fresh; /* 1 + place in fresh; 0: not there */
} tally;

typedef struct learnt {
    size_t text; /* its bytes in texts */
    uint32_t n;
} learnt;

typedef struct training {
    tni_bytes texts;
    word *word;
    size_t n_word, word_capacity;
    int32_t *symbol;
    size_t n_symbol, symbol_capacity;
    tally *tally;
    size_t n_tally, tally_capacity; /* 0 or a power of two */
    candidate *heap, *fresh;
    size_t n_heap, heap_capacity, n_fresh, fresh_capacity;
    learnt *token;
    size_t n_token, token_capacity;
    uint64_t *merge;
    size_t n_merge, merge_capacity;
    uint32_t *word_slot, *token_slot; /* 1 + place, by text; 0: free */
    size_t n_word_slot, n_token_slot;
    int64_t most_bytes, min_frequency;
    bool failed;
} training;

/* ---- tables by text -------------------------------------------------------------------------- */

static bool is_text(const training *t, size_t at, size_t n, const char *text, size_t n_text)
{
    return n == n_text && memcmp(t->texts.data + at, text, n) == 0;
}

static uint32_t *word_place(const training *t, const char *text, size_t n)
{
    size_t mask = t->n_word_slot - 1, i = tni_word_hash((uintptr_t)t, text, n) & mask;
    for (; t->word_slot[i]; i = (i + 1) & mask) {
        const word *w = &t->word[t->word_slot[i] - 1];
        if (is_text(t, w->text, w->n_text, text, n)) break;
    }
    return &t->word_slot[i];
}

static uint32_t *token_place(const training *t, const char *text, size_t n)
{
    size_t mask = t->n_token_slot - 1, i = tni_word_hash((uintptr_t)t, text, n) & mask;
    for (; t->token_slot[i]; i = (i + 1) & mask) {
        const learnt *l = &t->token[t->token_slot[i] - 1];
        if (is_text(t, l->text, l->n, text, n)) break;
    }
    return &t->token_slot[i];
}

static bool grow_words(training *t)
{
    if (2 * (t->n_word + 1) <= t->n_word_slot) return true;
    size_t old = t->n_word_slot, n = old ? 2 * old : 1024;
    uint32_t *slot = tni_calloc_n(n, sizeof *slot);
    if (!slot) return false;
    tni_free(t->word_slot, old * sizeof *slot);
    t->word_slot = slot, t->n_word_slot = n;
    for (size_t i = 0; i < t->n_word; i++)
        *word_place(t, t->texts.data + t->word[i].text, t->word[i].n_text) = (uint32_t)i + 1;
    return true;
}

/* ---- counting words -------------------------------------------------------------------------- */

/* A word of a text (tni_work.word). */
static bool count_word(tni_work *w, const char *text, size_t n)
{
    training *t = w->user;
    if (!grow_words(t)) return false;
    uint32_t *place = word_place(t, text, n);
    if (*place) return t->word[*place - 1].count++, true;
    if (t->n_word == UINT32_MAX - 1 || n > INT32_MAX)
        return tni_false(tni_error(TN_E_INVALID, "tn_tokenizer_train: 2^32 words or a word of 2 "
                                                 "GiB"));
    if (!tni_room(&t->word, &t->word_capacity, t->n_word, 1, sizeof *t->word)) return false;
    t->word[t->n_word] = (word){ .count = 1, .text = t->texts.n, .n_text = n };
    tni_bytes_add(&t->texts, text, n);
    *place = (uint32_t)++t->n_word;
    return !t->texts.failed;
}

static bool read_texts(training *t, const tn_tokenizer *letters, const char *const *texts,
                       int64_t n)
{
    tni_work *w = tni_work_take(letters);
    if (!w) return false;
    w->word = count_word;
    w->user = t;
    bool ok = true;
    for (int64_t i = 0; i < n && ok; i++) {
        size_t size = texts[i] ? strlen(texts[i]) : 0;
        if (!texts[i] || tni_utf8(texts[i], size) < size)
            ok = tni_false(tni_error(TN_E_INVALID, "tn_tokenizer_train: text %" PRId64 " %s", i,
                                     texts[i] ? "is not UTF-8" : "is NULL"));
        else
            ok = tni_split_words(w, 0, texts[i], size, true);
    }
    tni_work_give(w);
    return ok;
}

static bool make_symbols(training *t, const tn_tokenizer *letters)
{
    for (size_t i = 0; i < t->n_word; i++) {
        word *w = &t->word[i];
        if (!tni_room(&t->symbol, &t->symbol_capacity, t->n_symbol, w->n_text, sizeof *t->symbol))
            return false;
        w->symbol = t->n_symbol;
        w->n = (uint32_t)w->n_text;
        for (size_t k = 0; k < w->n_text; k++)
            t->symbol[t->n_symbol++] = letters->byte[(unsigned char)t->texts.data[w->text + k]];
    }
    return true;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static tally *tally_place(const training *t, uint64_t pair)
{
    uint64_t hash = pair * UINT64_C(0x9e3779b97f4a7c15);
    size_t mask = t->tally_capacity - 1, i = (hash ^ hash >> 32) & mask;
    while (t->tally[i].pair != UINT64_MAX && t->tally[i].pair != pair) i = (i + 1) & mask;
    return &t->tally[i];
}

static bool grow_tally(training *t)
{
    if (2 * (t->n_tally + 1) <= t->tally_capacity) return true;
    size_t old = t->tally_capacity, n = old ? 2 * old : 4096;
    tally *before = t->tally, *larger = tni_alloc(n * sizeof *larger);
    if (!larger) return false;
    for (size_t i = 0; i < n; i++) larger[i] = (tally){ .pair = UINT64_MAX };
    t->tally = larger, t->tally_capacity = n;
    for (size_t i = 0; i < old; i++)
        if (before[i].pair != UINT64_MAX) *tally_place(t, before[i].pair) = before[i];
    tni_free(before, old * sizeof *before);
    return true;
}

/* Counts a pair of a word `by` more; where it is new in the word, notes the word. */
static void change(training *t, int32_t left, int32_t right, int64_t by, size_t in)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (t->failed || !grow_tally(t)) {
        t->failed = true;
        return;
    }
    tally *of = tally_place(t, pair);
    if (of->pair == UINT64_MAX) of->pair = pair, t->n_tally++;
    of->count += by;
    if (by < 0) return;
    if (!of->fresh) {
        t->failed = !tni_room(&t->fresh, &t->fresh_capacity, t->n_fresh, 1, sizeof *t->fresh);
        if (t->failed) return;
        t->fresh[t->n_fresh++] = (candidate){ .pair = pair };
        of->fresh = t->n_fresh;
    }
    candidate *c = &t->fresh[of->fresh - 1];
    if (c->n && c->word[c->n - 1] == in) return;
    t->failed = !tni_room(&c->word, &c->capacity, c->n, 1, sizeof *c->word);
    if (!t->failed) c->word[c->n++] = (uint32_t)in;
}

static void count_pairs(training *t)
{
    for (size_t i = 0; i < t->n_word; i++) {
        const int32_t *s = t->symbol + t->word[i].symbol;
        for (uint32_t k = 0; k + 1 < t->word[i].n; k++)
            change(t, s[k], s[k + 1], t->word[i].count, i);
    }
}

/* ---- the heap -------------------------------------------------------------------------------- */

/* The larger count first, then the smaller ids. */
static bool before(const candidate *a, const candidate *b)
{
    return a->count != b->count ? a->count > b->count : a->pair < b->pair;
}

static void push(training *t, candidate c)
{
    if (!tni_room(&t->heap, &t->heap_capacity, t->n_heap, 1, sizeof c)) {
        t->failed = true;
        tni_room_free(&c.word, &c.capacity, sizeof *c.word);
        return;
    }
    size_t i = t->n_heap++;
    for (size_t up; i > 0 && before(&c, &t->heap[up = (i - 1) / 2]); i = up)
        t->heap[i] = t->heap[up];
    t->heap[i] = c;
}

static candidate pop(training *t)
{
    candidate first = t->heap[0], last = t->heap[--t->n_heap];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < t->n_heap; i = c) {
        if (c + 1 < t->n_heap && before(&t->heap[c + 1], &t->heap[c])) c++;
        if (!before(&t->heap[c], &last)) break;
        t->heap[i] = t->heap[c];
    }
    if (t->n_heap) t->heap[i] = last;
    return first;
}

static void push_fresh(training *t)
{
    for (size_t i = 0; i < t->n_fresh; i++) {
        tally *of = tally_place(t, t->fresh[i].pair);
        of->fresh = 0;
        t->fresh[i].count = of->count;
        if (of->count > 0)
            push(t, t->fresh[i]);
        else
            tni_room_free(&t->fresh[i].word, &t->fresh[i].capacity, sizeof *t->fresh[i].word);
    }
    t->n_fresh = 0;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* The token of n bytes at `text` in texts; where there is none, a new one. -1: no memory. */
static int32_t token_at(training *t, size_t text, size_t n)
{
    uint32_t *place = token_place(t, t->texts.data + text, n);
    if (*place) return (int32_t)*place - 1;
    if (!tni_room(&t->token, &t->token_capacity, t->n_token, 1, sizeof *t->token)) return -1;
    t->token[t->n_token] = (learnt){ text, (uint32_t)n };
    *place = (uint32_t)++t->n_token;
    return (int32_t)t->n_token - 1;
}

static int32_t joined(training *t, int32_t left, int32_t right)
{
    learnt a = t->token[left], b = t->token[right];
    size_t at = t->texts.n, n = (size_t)a.n + b.n;
    if (n > INT32_MAX || !tni_room(&t->texts.data, &t->texts.capacity, at, n, 1)) return -1;
    tni_bytes_add(&t->texts, t->texts.data + a.text, a.n); /* there is room: nothing moves */
    tni_bytes_add(&t->texts, t->texts.data + b.text, b.n);
    return token_at(t, at, n);
}

static void pair_up(training *t, int32_t left, int32_t right, int32_t made, int32_t other,
                    size_t in)
{
    int64_t n = (int64_t)t->token[made].n + t->token[other].n;
    if (n < t->most_bytes) change(t, left, right, t->word[in].count, in);
}

static void merge_in_word(training *t, size_t in, int32_t a, int32_t b, int32_t c)
{
    word *w = &t->word[in];
    int32_t *s = t->symbol + w->symbol;
    uint32_t out = 0;
    for (uint32_t i = 0; i < w->n; out++) {
        if (s[i] != a || i + 1 >= w->n || s[i + 1] != b) {
            s[out] = s[i++];
            continue;
        }
        if (out > 0) {
            change(t, s[out - 1], a, -w->count, in);
            pair_up(t, s[out - 1], c, c, s[out - 1], in);
        }
        s[out] = c;
        i += 2;
        if (i < w->n) {
            change(t, b, s[i], -w->count, in);
            pair_up(t, c, s[i], c, s[i], in);
        }
    }
    w->n = out;
}

static void merge(training *t, const candidate *top)
{
    int32_t a = (int32_t)(top->pair >> 32), b = (int32_t)(top->pair & UINT32_MAX);
    int32_t c = joined(t, a, b);
    t->failed = t->failed || c < 0 ||
                !tni_room(&t->merge, &t->merge_capacity, t->n_merge, 1, sizeof *t->merge);
    if (t->failed) return;
    t->merge[t->n_merge++] = top->pair;
    for (size_t i = 0; i < top->n; i++) merge_in_word(t, top->word[i], a, b, c);
    if (!t->failed) push_fresh(t);
}

static bool learn(training *t, int64_t vocab_size)
{
    count_pairs(t);
    if (!t->failed) push_fresh(t);
    while (!t->failed && t->n_heap && (int64_t)t->n_token < vocab_size) {
        candidate top = pop(t);
        int64_t now = tally_place(t, top.pair)->count;
        if (top.count != now) {
            top.count = now;
            push(t, top);
            continue;
        }
        bool enough = top.count >= TNI_MAX(t->min_frequency, 1);
        if (enough) merge(t, &top);
        tni_room_free(&top.word, &top.capacity, sizeof *top.word);
        if (!enough) break;
    }
    return !t->failed;
}

/* ---- the result ------------------------------------------------------------------------------ */

/* The bytes in the order of their letters. */
static void alphabet(unsigned char byte[256])
{
    int n = 0;
    for (int32_t letter = 0; letter < 0x144; letter++)
        for (int b = 0; b < 256; b++)
            if (tni_byte_letter((unsigned char)b) == letter) byte[n++] = (unsigned char)b;
}

static bool write_merges(tni_bytes *json, const training *t)
{
    tni_bytes_add(json, "},\"merges\":[", 12);
    for (size_t i = 0; i < t->n_merge; i++) {
        learnt a = t->token[t->merge[i] >> 32], b = t->token[t->merge[i] & UINT32_MAX];
        tni_bytes_printf(json, "%s[\"", i ? "," : "");
        tni_json_letters(json, t->texts.data + a.text, a.n);
        tni_bytes_add(json, "\",\"", 3);
        tni_json_letters(json, t->texts.data + b.text, b.n);
        tni_bytes_add(json, "\"]", 2);
    }
    tni_bytes_add(json, "]},\"added_tokens\":[", 19);
    return !json->failed;
}

/* The tokenizer so far as a tokenizer.json. */
static tn_tokenizer *make(const training *t, tn_tokenizer_options o)
{
    tni_bytes json = { 0 };
    bool ok = tni_json_begin(&json, o.pattern, false);
    tni_bytes_add(&json, "{", 1);
    for (int i = 0; i < o.n_special && ok; i++) {
        tni_bytes_add(&json, ",", i > 0);
        ok = tni_json_add(&json, o.special[i]);
        tni_bytes_printf(&json, ":%d", i);
    }
    for (size_t i = (size_t)o.n_special; i < t->n_token && ok; i++) {
        tni_bytes_printf(&json, "%s\"", i ? "," : "");
        tni_json_letters(&json, t->texts.data + t->token[i].text, t->token[i].n);
        tni_bytes_printf(&json, "\":%zu", i);
    }
    ok = ok && write_merges(&json, t);
    for (int i = 0; i < o.n_special && ok; i++) ok = tni_json_added(&json, i, o.special[i], i == 0);
    tni_bytes_add(&json, "]}", 2);
    tn_tokenizer *made =
        ok && !json.failed ? tni_tokenizer_read("tn_tokenizer_train", &json, false) : NULL;
    tni_bytes_free(&json);
    return made;
}

static bool plain(const char *text)
{
    while (*text > ' ' && *text < 0x7f) text++;
    return !*text;
}

/* The special tokens, then the letters. A special token that is letters can be made by merges. */
static bool begin(training *t, int64_t vocab_size, tn_tokenizer_options o)
{
    unsigned char byte[256];
    for (t->n_token_slot = 1024; t->n_token_slot < 2 * (size_t)vocab_size;) t->n_token_slot *= 2;
    t->token_slot = tni_calloc_n(t->n_token_slot, sizeof *t->token_slot);
    if (!t->token_slot) return false;
    for (int i = 0; i < o.n_special; i++) {
        size_t at = t->texts.n, n = strlen(o.special[i]);
        if (!tni_room(&t->token, &t->token_capacity, t->n_token, 1, sizeof *t->token)) return false;
        tni_bytes_add(&t->texts, o.special[i], n);
        if (t->texts.failed) return false;
        t->token[t->n_token++] = (learnt){ at, (uint32_t)n };
        if (plain(o.special[i])) *token_place(t, o.special[i], n) = (uint32_t)t->n_token;
    }
    alphabet(byte);
    for (int i = 0; i < 256; i++) {
        size_t at = t->texts.n;
        tni_bytes_add(&t->texts, &byte[i], 1);
        if (t->texts.failed || token_at(t, at, 1) < 0) return false;
    }
    return true;
}

static void free_candidates(candidate *c, size_t n)
{
    for (size_t i = 0; i < n; i++) tni_room_free(&c[i].word, &c[i].capacity, sizeof *c[i].word);
}

static void end(training *t)
{
    free_candidates(t->heap, t->n_heap);
    free_candidates(t->fresh, t->n_fresh);
    tni_bytes_free(&t->texts);
    tni_room_free(&t->word, &t->word_capacity, sizeof *t->word);
    tni_room_free(&t->symbol, &t->symbol_capacity, sizeof *t->symbol);
    tni_room_free(&t->heap, &t->heap_capacity, sizeof *t->heap);
    tni_room_free(&t->fresh, &t->fresh_capacity, sizeof *t->fresh);
    tni_room_free(&t->token, &t->token_capacity, sizeof *t->token);
    tni_room_free(&t->merge, &t->merge_capacity, sizeof *t->merge);
    tni_free(t->tally, t->tally_capacity * sizeof *t->tally);
    tni_free(t->word_slot, t->n_word_slot * sizeof *t->word_slot);
    if (t->token_slot) tni_free(t->token_slot, t->n_token_slot * sizeof *t->token_slot);
}

static bool check(const char *const *texts, int64_t n, int64_t vocab_size, tn_tokenizer_options o)
{
    const char *function = "tn_tokenizer_train";
    enum { MOST = 1 << 24 };
    if (n < 0 || (n > 0 && !texts)) return tni_false(tni_poison(function, "texts"));
    if (o.n_special < 0 || (o.n_special && !o.special))
        return tni_false(tni_poison(function, "special"));
    for (int i = 0; i < o.n_special; i++)
        if (!o.special[i] || !*o.special[i])
            return tni_false(
                tni_error(TN_E_INVALID, "%s: special token %d is NULL or empty", function, i));
    if (vocab_size < 256 + o.n_special || vocab_size > MOST)
        return tni_false(tni_error(TN_E_INVALID,
                                   "%s: vocab_size is %" PRId64 ": want from %d (256 and the "
                                   "special tokens) to %d",
                                   function, vocab_size, 256 + o.n_special, MOST));
    if (o.min_frequency >= 0 && o.max_token_bytes >= 0) return true;
    return tni_false(
        tni_error(TN_E_INVALID, "%s: min_frequency or max_token_bytes is below 0", function));
}

tn_tokenizer *tn_tokenizer_train(const char *const *texts, int64_t n, int64_t vocab_size,
                                 tn_tokenizer_options o)
{
    if (!check(texts, n, vocab_size, o)) return NULL;
    training t = { .most_bytes = o.max_token_bytes ? o.max_token_bytes : INT64_MAX,
                   .min_frequency = o.min_frequency };
    tn_tokenizer *letters = begin(&t, vocab_size, o) ? make(&t, o) : NULL, *made = NULL;
    if (letters && read_texts(&t, letters, texts, n) && make_symbols(&t, letters) &&
        learn(&t, vocab_size))
        made = make(&t, o);
    tn_tokenizer_free(letters);
    end(&t);
    return made;
}
