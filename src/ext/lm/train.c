/*
 * train.c - byte-level BPE learnt from a text: of all neighbours in its words the two that stand
 * there most often become a token, and so on.
 *
 * Equal to BpeTrainer of tokenizers: of pairs that are as frequent the one with the smaller ids. A
 * pair waits in a heap with the words in which it appeared at one time, and is merged in those; it
 * can wait twice, where a token was made in a second way. A count in the heap may be too old: then
 * the pair goes back with the new one.
 *
 * Source: Sennrich et al. (2016), algorithm 1; tokenizers, models/bpe/trainer.rs.
 */
#include "ext/lm/tokenizer.h"

typedef struct word {
    const char *text;
    size_t n, at; /* bytes, then symbols; from symbol[at] on */
    int64_t count;
} word;

/* A pair, left << 32 | right: in a word; in the heap, with words that begin at place[at]. */
typedef struct found {
    uint64_t key;
    int32_t word;
} found;
typedef struct waiting {
    int64_t count;
    uint64_t key;
    size_t at, n;
} waiting;

typedef struct tni_training {
    word *word;
    int32_t *symbol, *place;
    found *found;
    waiting *heap;
    tni_merge *pair;
    size_t n_word, n_symbol, n_place, n_found, n_heap, n_pair;
    size_t words, symbols, places, founds, heaps, pairs; /* capacities */
    bool failed;
} training;

/* Room for n more; false: there was none, here or before. */
#define room(s, items, count, capacity, more)                                                      \
    (!((s)->failed = (s)->failed || !tni_room(&(s)->items, &(s)->capacity, (s)->count, more,       \
                                              sizeof *(s)->items)))

/* ---- words ----------------------------------------------------------------------------------- */

bool tni_train_word(tni_training *s, const char *text, size_t n)
{
    if (room(s, word, n_word, words, 1)) s->word[s->n_word++] = (word){ text, n, 0, 1 };
    return !s->failed;
}

static int by_text(const void *a, const void *b)
{
    const word *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? -1 : 1) : memcmp(x->text, y->text, x->n);
}

/* Each word once, as symbols. */
static bool to_symbols(training *s, const tn_tokenizer *t)
{
    size_t k = 0;
    tni_sort(s->word, s->n_word, sizeof *s->word, by_text);
    for (size_t i = 0; i < s->n_word; i++)
        if (k && by_text(&s->word[k - 1], &s->word[i]) == 0)
            s->word[k - 1].count++;
        else
            s->word[k++] = s->word[i];
    s->n_word = k;
    for (word *w = s->word; w && w < s->word + k; w++) {
        if (!room(s, symbol, n_symbol, symbols, w->n)) return false;
        w->at = s->n_symbol;
        for (size_t i = 0; i < w->n; i++)
            s->symbol[s->n_symbol++] = t->byte[(unsigned char)w->text[i]];
    }
    return k <= INT32_MAX || tni_false(tni_error(TN_E_INVALID, "tn_tokenizer_train: 2^31 words"));
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static void more_pairs(training *s)
{
    size_t capacity;
    tni_merge *all = tni_table(s->pairs, sizeof *all, &capacity);
    for (size_t i = 0; i < s->pairs && all; i++)
        if (s->pair[i].key != UINT64_MAX)
            *tni_merge_at(all, capacity, 0, s->pair[i].key) = s->pair[i];
    if ((s->failed = !all)) return;
    tni_free(s->pair, s->pairs * sizeof *s->pair);
    s->pair = all, s->pairs = capacity;
}

/* Two symbols are neighbours in a word, or are no longer. */
static void count(training *s, int32_t left, int32_t right, int32_t at, int sign)
{
    const uint64_t key = tni_merge_key(left, right);
    if (!s->failed && 2 * s->n_pair + 2 > s->pairs) more_pairs(s);
    if (!room(s, found, n_found, founds, 1)) return;
    tni_merge *pair = tni_merge_at(s->pair, s->pairs, 0, key);
    if (pair->key != key) *pair = (tni_merge){ .key = key }, s->n_pair++;
    pair->count += sign * s->word[at].count;
    if (sign > 0) s->found[s->n_found++] = (found){ key, at };
}

/* ---- the heap -------------------------------------------------------------------------------- */

#define BEFORE(a, b) ((a).count != (b).count ? (a).count > (b).count : (a).key < (b).key)
TNI_HEAP(waiting, BEFORE)

static int by_pair(const void *a, const void *b)
{
    const found *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->word - y->word;
}

/* Into the heap what was found, each pair with its words. */
static void push_found(training *s)
{
    tni_sort(s->found, s->n_found, sizeof *s->found, by_pair);
    const bool fits = room(s, place, n_place, places, s->n_found);
    for (size_t i = 0, n; i < s->n_found && fits && !s->failed; i += n) {
        const uint64_t key = s->found[i].key;
        const size_t at = s->n_place;
        for (n = 0; i + n < s->n_found && s->found[i + n].key == key; n++)
            if (s->n_place == at || s->place[s->n_place - 1] != s->found[i + n].word)
                s->place[s->n_place++] = s->found[i + n].word;
        const int64_t now = tni_merge_at(s->pair, s->pairs, 0, key)->count;
        if (now > 0 && room(s, heap, n_heap, heaps, 1))
            push(s->heap, &s->n_heap, (waiting){ now, key, at, s->n_place - at });
    }
    s->n_found = 0;
}

/* ---- merges ---------------------------------------------------------------------------------- */

static void merge(training *s, int32_t at, int32_t left, int32_t right, int32_t made)
{
    word *w = &s->word[at];
    int32_t *c = s->symbol + w->at;
    size_t k = 0;
    for (size_t i = 0; i < w->n; i++, k++) {
        c[k] = c[i];
        if (c[i] != left || i + 1 == w->n || c[i + 1] != right) continue;
        if (k > 0) count(s, c[k - 1], left, at, -1), count(s, c[k - 1], made, at, 1);
        c[k] = made;
        if (++i + 1 < w->n) count(s, right, c[i + 1], at, -1), count(s, made, c[i + 1], at, 1);
    }
    w->n = k;
}

/* The token of two, which may be there; -1 and a message. Both go into the file. */
static int32_t token_of(tn_tokenizer *t, int32_t left, int32_t right, tni_layout *l)
{
    const tni_token *a = &t->token[left], *b = &t->token[right];
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) both = { 0 };
    tni_layout_merge(&l->merges, t->texts.data + a->text.at, t->texts.data + b->text.at);
    tni_bytes_add(&both, t->texts.data + a->text.at, a->text.n);
    tni_bytes_add(&both, t->texts.data + b->text.at, b->text.n + 1);
    int32_t id = both.failed ? TNI_NO_ID : tni_find(t, &t->by_text, both.data, both.n - 1);
    tni_token *token = both.failed || id >= 0 ? NULL : tni_token_at(t, t->n_token);
    if (token && tni_token_set(t, token, both.data)) {
        tni_token_put(t, &t->by_text, id = (int32_t)(token - t->token));
        tni_layout_word(l, id, t->texts.data + token->bytes.at, token->bytes.n);
    }
    return id;
}

static bool learn(training *s, tn_tokenizer *t, const tn_bpe_options *o, tni_layout *l)
{
    for (size_t k = 0; k < s->n_word; k++) {
        const int32_t *c = s->symbol + s->word[k].at;
        for (size_t i = 0; i + 1 < s->word[k].n; i++) count(s, c[i], c[i + 1], (int32_t)k, 1);
    }
    push_found(s);
    while (!s->failed && s->n_heap && (int64_t)t->n_token < o->vocab_size) {
        waiting top = pop(s->heap, &s->n_heap);
        const int64_t now = tni_merge_at(s->pair, s->pairs, 0, top.key)->count;
        const bool old = now != top.count;
        top.count = now;
        if (old) push(s->heap, &s->n_heap, top); /* into its own place */
        if (old) continue;
        if (now < TNI_MAX(o->min_frequency, 1)) break;
        const int32_t left = (int32_t)(top.key >> 32), right = (int32_t)(top.key & UINT32_MAX);
        const int32_t made = token_of(t, left, right, l);
        if (made < 0) return false;
        for (size_t i = 0; i < top.n; i++) merge(s, s->place[top.at + i], left, right, made);
        push_found(s);
    }
    return !s->failed;
}

/* Special tokens, then ByteLevel's letters in the order of Unicode. */
static bool begin(tni_layout *l, const tn_bpe_options *o)
{
    int64_t id = 0;
    *l = (tni_layout){ .name = "tn_tokenizer_train", .pattern = o->pattern };
    for (; id < o->n_special; id++)
        if (!tni_layout_special(l, id, o->special[id])) return false;
    for (int32_t c = 0; c < 0x144; c++)
        if (tni_byte_of(c) >= 0) tni_layout_word(l, id++, &(char){ (char)tni_byte_of(c) }, 1);
    return true;
}

/* The words of the text, by a tokenizer without merges; then what it learns of them. */
static bool train(training *s, tn_tokenizer *t, tn_tokenizer *made, const char *text, size_t n,
                  const tn_bpe_options *o)
{
    tni_layout l;
    if (!t || !made || !tni_layout_read(t, &l, begin(&l, o))) return false;
    tni_work *w = tni_work_take(t);
    if (!w) return false;
    w->train = s;
    const bool split = tni_split_words(w, 0, text, n) && to_symbols(s, t);
    tni_work_give(w);
    return split && tni_tokens_index(t, TNI_MIN((size_t)o->vocab_size, n)) &&
           tni_layout_read(made, &l, begin(&l, o) && learn(s, t, o, &l));
}

tn_tokenizer *tn_tokenizer_train(const char *text, int64_t n, tn_bpe_options o)
{
    static const char f[] = "tn_tokenizer_train";
    size_t size;
    if (!tni_text_size(f, text, n, &size)) return NULL;
    if (!o.special) o.n_special = 0;
    if (o.vocab_size == 0) o.vocab_size = 30000;
    if (o.vocab_size < 256 || o.vocab_size > TNI_LARGEST || o.vocab_size - 256 < o.n_special)
        return tni_fail(TN_E_INVALID,
                        "%s: vocab_size %" PRId64 ": want 256 bytes, %" PRId64
                        " special tokens or more, at most 2^28",
                        f, o.vocab_size, o.n_special);
    training s = { 0 };
    tn_tokenizer *t = tni_tokenizer_new(), *made = tni_tokenizer_new();
    const bool ok = train(&s, t, made, text, size, &o);
    tni_room_free(&s.word, &s.words, sizeof *s.word);
    tni_room_free(&s.symbol, &s.symbols, sizeof *s.symbol);
    tni_room_free(&s.place, &s.places, sizeof *s.place);
    tni_room_free(&s.found, &s.founds, sizeof *s.found);
    tni_room_free(&s.heap, &s.heaps, sizeof *s.heap);
    tni_free(s.pair, s.pairs * sizeof *s.pair);
    tn_tokenizer_free(t);
    if (ok) return made;
    tn_tokenizer_free(made);
    return NULL;
}
