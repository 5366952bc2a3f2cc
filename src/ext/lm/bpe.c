/*
 * bpe.c - the ids of a word: byte pair encoding.
 *
 * Of all neighbours the pair with the lowest rank becomes one token, the leftmost if there are
 * several, until no pair has a rank. Short words are searched, long ones use a heap: n log n.
 *
 * Source: Sennrich et al., Neural Machine Translation of Rare Words with Subword Units (2016).
 */
#include "ext/lm/tokenizer.h"

/* ---- short words ----------------------------------------------------------------------------- */

enum { SHORT = 48, NEVER = INT32_MAX };

static int32_t rank_of(const tn_tokenizer *t, int32_t left, int32_t right, int32_t *id)
{
    const uint64_t key = tni_merge_key(left, right);
    const tni_merge *pair = tni_merge_at(t->pair, t->pair_capacity, t->seed, key);
    *id = pair->id;
    return pair->key == key ? pair->rank : NEVER;
}

/* Merges n symbols in place; returns how many are left. */
static size_t merge_short(const tn_tokenizer *t, int32_t *symbol, size_t n)
{
    int32_t rank[SHORT + 1], id[SHORT + 1]; /* of a symbol with the next one */
    for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(t, symbol[i], symbol[i + 1], &id[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NEVER) break;
        symbol[best] = id[best];
        n--;
        for (size_t i = best + 1; i < n; i++) symbol[i] = symbol[i + 1];
        for (size_t i = best + 1; i + 1 < n; i++) rank[i] = rank[i + 1], id[i] = id[i + 1];
        if (best + 1 < n) rank[best] = rank_of(t, symbol[best], symbol[best + 1], &id[best]);
        if (best > 0) rank[best - 1] = rank_of(t, symbol[best - 1], symbol[best], &id[best - 1]);
    }
    return n;
}

/* ---- long words ------------------------------------------------------------------------------ */

/* Symbols in a chain, a heap of rank << 32 | place; stale: the place has another rank by now. */
typedef struct chain {
    const tn_tokenizer *t;
    int32_t *symbol, *next, *before, *rank, *id;
    uint64_t *heap;
    size_t n_heap;
} chain;

#define LESS(a, b) ((a) < (b))
TNI_HEAP(uint64_t, LESS)

/* The rank of place with what follows it, into the heap if there is one. */
static void rate(chain *c, int32_t place)
{
    c->rank[place] = c->next[place] < 0 ? NEVER
                                        : rank_of(c->t, c->symbol[place], c->symbol[c->next[place]],
                                                  &c->id[place]);
    if (c->rank[place] == NEVER) return;
    push(c->heap, &c->n_heap, (uint64_t)(uint32_t)c->rank[place] << 32 | (uint32_t)place);
}

/* A rank is set at most once for each symbol and twice for each merge: 3 n entries. */
static bool merge_long(tni_work *w, size_t *n)
{
    size_t most = w->symbol_capacity / 5, count = *n;
    int32_t *s = w->symbol;
    if (!tni_room(&w->heap, &w->heap_capacity, 0, 3 * count, sizeof *w->heap)) return false;
    chain c = { w->t, s, s + most, s + 2 * most, s + 3 * most, s + 4 * most, w->heap, 0 };
    for (size_t i = 0; i < count; i++) {
        c.next[i] = i + 1 < count ? (int32_t)i + 1 : -1;
        c.before[i] = (int32_t)i - 1;
    }
    for (size_t i = 0; i < count; i++) rate(&c, (int32_t)i);
    while (c.n_heap) {
        const uint64_t entry = pop(c.heap, &c.n_heap);
        int32_t place = (int32_t)(entry & UINT32_MAX), rank = (int32_t)(entry >> 32);
        if (c.rank[place] != rank) continue;
        int32_t gone = c.next[place], after = c.next[gone];
        c.symbol[place] = c.id[place];
        c.next[place] = after;
        c.rank[gone] = NEVER;
        if (after >= 0) c.before[after] = place;
        rate(&c, place);
        if (c.before[place] >= 0) rate(&c, c.before[place]);
    }
    size_t left = 0;
    for (int32_t i = 0; i >= 0; i = c.next[i]) c.symbol[left++] = c.symbol[i];
    *n = left;
    return true;
}

/* ---- words, and those seen before ------------------------------------------------------------ */

static bool merge_word(tni_work *w, const char *word, size_t n)
{
    const tn_tokenizer *t = w->t;
    if (t->pieces) return tni_pieces(w, word, n);
    const int32_t id = !t->whole   ? TNI_NO_ID
                       : t->marked ? tni_marked_token(t, word, n)
                                   : tni_find(t, &t->by_bytes, word, n);
    if (id >= 0 && !t->token[id].special) return tni_ids_add(w->out, &id, 1);
    if (n > INT32_MAX / 8)
        return tni_false(
            tni_error(TN_E_INVALID, "a word has %zu bytes: want at most %d", n, INT32_MAX / 8));
    if (!tni_room(&w->symbol, &w->symbol_capacity, 0, 5 * (n + 1), sizeof *w->symbol)) return false;
    size_t count = t->marked ? tni_marked_symbols(t, word, n, w->symbol) : 0;
    for (size_t i = 0; i < n && !t->marked; i++) /* a symbol for each byte that has a token */
        if ((w->symbol[count] = t->byte[(unsigned char)word[i]]) >= 0) count++;
    if (count <= SHORT)
        count = merge_short(t, w->symbol, count);
    else if (!merge_long(w, &count))
        return false;
    return tni_ids_add(w->out, w->symbol, count);
}

/* One place for each hash: a word takes the place of another one. */
bool tni_word_ids(tni_work *w, const char *word, size_t n)
{
    if (n > sizeof w->known->word) return merge_word(w, word, n);
    if (!w->known && !(w->known = tni_calloc_n(TNI_KNOWN, sizeof *w->known))) return false;
    tni_known *known = &w->known[tni_word_hash(w->t->seed, word, n) & (TNI_KNOWN - 1)];
    if (known->n == n && memcmp(known->word, word, n) == 0)
        return tni_ids_add(w->out, known->id, known->k);
    const int64_t before = w->out->n;
    if (!merge_word(w, word, n)) return false;
    const int64_t k = w->out->n - before;
    if (k > (int64_t)(sizeof known->id / sizeof *known->id)) return true;
    known->n = (unsigned char)n, known->k = (unsigned char)k;
    memcpy(known->word, word, n);
    for (int64_t i = 0; i < k; i++) known->id[i] = (int32_t)w->out->id[before + i];
    return true;
}
