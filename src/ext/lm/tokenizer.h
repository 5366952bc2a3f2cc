/*
 * tokenizer.h - the inside of a tn_tokenizer.
 *
 * A text goes through: tokens found in it as they stand (added.c), a normal form, tokens found in
 * the result, cuts into words (split.c), ids of a word (bpe.c), ids around (tokenizer.c); BERT's
 * form, cuts and ids are in wordpiece.c. Each part hands on at once: no list of words is kept.
 */
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <tenon/tokenizer.h>

#include "io/json_tree.h"

enum { TNI_STAGES = 24, TNI_NO_ID = -1, TNI_KNOWN = 1 << 15, TNI_LARGEST = 1 << 28 };

/* What is done to a text before it is cut, or-ed, in this order: control characters go and white
 * space becomes spaces; ideographs get spaces around; NFC; NFD without its marks; lower case. */
enum { TNI_CLEAN = 1, TNI_IDEOGRAPHS = 2, TNI_COMPOSE = 4, TNI_NO_ACCENTS = 8, TNI_LOWER = 16 };

/* Or, of SentencePiece: a mark in front, and in place of each space. */
#define TNI_MARK "\u2581"
enum { TNI_PREPEND = 32, TNI_SPACES = 64 };
/* The same by Metaspace, which puts a mark in front of nothing, the text, all between added tokens;
 * and where a marked text is cut: nowhere, before each word, before each mark. */
enum { TNI_NO_METASPACE, TNI_NEVER, TNI_FIRST, TNI_ALWAYS };
enum { TNI_WHOLE, TNI_WORDS, TNI_MARKS };

typedef struct tni_token {
    struct tni_span {
        uint32_t at, n; /* in texts */
    } text, bytes;      /* as the vocabulary has it; what it stands for */
    bool there;         /* false: no token has this id */
    bool word;          /* of the model: found in a text; its letters stand for bytes */
    bool spells;        /* a byte of a character, of a marked text */
    bool special;
} tni_token;

/* Token ids, found by text: a hash table with free slots of -1. */
typedef struct tni_words {
    int32_t *slot;
    size_t capacity; /* 0 or a power of two */
} tni_words;

/* Two tokens, left << 32 | right, that become one, `rank` in the order of merging; or, in a
 * training, how often they stand in words. A hash table by both; UINT64_MAX: free. */
typedef struct tni_merge {
    uint64_t key;
    union {
        struct {
            int32_t rank, id;
        };
        int64_t count;
    };
} tni_merge;
#define tni_merge_key(left, right) ((uint64_t)(uint32_t)(left) << 32 | (uint32_t)(right))
/* Where a pair is in a table, or the free place for it. */
static inline tni_merge *tni_merge_at(tni_merge *table, size_t capacity, uint64_t seed,
                                      uint64_t key)
{
    const uint64_t hash = (key ^ seed) * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (hash ^ hash >> 32) & (capacity - 1);
    while (table[i].key != UINT64_MAX && table[i].key != key) i = (i + 1) & (capacity - 1);
    return &table[i];
}

/* push and pop: of a heap of n items, whose first one no other comes before. There is room. */
#define TNI_HEAP(type, before)                                                                     \
    static void push(type *heap, size_t *n, type item)                                             \
    {                                                                                              \
        size_t i = (*n)++;                                                                         \
        for (size_t up; i > 0 && before(item, heap[up = (i - 1) / 2]); i = up) heap[i] = heap[up]; \
        heap[i] = item;                                                                            \
    }                                                                                              \
    static type pop(type *heap, size_t *n)                                                         \
    {                                                                                              \
        const type first = heap[0], moved = heap[--*n];                                            \
        size_t i = 0;                                                                              \
        for (size_t d; (d = 2 * i + 1) < *n; i = d) {                                              \
            if (d + 1 < *n && before(heap[d + 1], heap[d])) d++;                                   \
            if (!before(heap[d], moved)) break;                                                    \
            heap[i] = heap[d];                                                                     \
        }                                                                                          \
        heap[i] = moved;                                                                           \
        return first;                                                                              \
    }

/* Texts of added tokens by their bytes. Node 0 is none. */
typedef struct tni_trie_node {
    int32_t child, next, id;
    unsigned char byte;
} tni_trie_node;
typedef struct tni_trie {
    int32_t first[256];
    tni_trie_node *node;
    size_t n, capacity;
} tni_trie;

typedef struct tni_work tni_work;
typedef struct tni_training tni_training;

struct tn_tokenizer {
    tni_bytes texts;
    tni_token *token; /* by id */
    size_t n_token, token_capacity;
    tni_words by_text, by_bytes; /* all; those of the model */
    uint64_t seed;               /* of hashes */
    bool whole;                  /* ignore_merges */
    int32_t byte[256];           /* ids of bytes; -1: none */
    tni_merge *pair;
    size_t pair_capacity;          /* a power of two */
    tni_trie raw, normalised;      /* added tokens, found in either */
    unsigned normal;               /* TNI_CLEAN ... */
    pcre2_code *split[TNI_STAGES]; /* finds words; NULL: puts a space in front of a text */
    size_t n_split;
    bool marked, fallback, fuse, spells, strip; /* metaspace.c */
    int metaspace, cut;
    bool pieces;          /* BERT's: words and ids of wordpiece.c */
    bool cleanup;         /* of spaces in decoded text */
    char prefix[32];      /* of tokens that continue a word */
    int32_t unknown;      /* stands for a word */
    int64_t longest;      /* characters of a word that is not unknown */
    tn_ids before, after; /* around a text */
    int64_t bos, eos, pad;
    tni_bytes file; /* the tokenizer.json that says all this */
    pthread_mutex_t lock;
    tni_work *idle; /* not in use */
};

/* ---- working memory: one for each thread that encodes ---------------------------------------- */

/* A word that was encoded before. Large enough for most words, small enough for one cache line. */
typedef struct tni_known {
    unsigned char n, k; /* n 0: free; k ids */
    char word[30];
    int32_t id[8];
} tni_known;

struct tni_work {
    const tn_tokenizer *t;
    tni_work *next;
    tni_training *train; /* takes the words; NULL: their ids are wanted */
    tn_ids *out;
    bool literal, first; /* first: what comes is at the beginning of the text */
    tni_known *known;    /* TNI_KNOWN of them; NULL: none yet */
    tni_bytes normal, scratch;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    int32_t *symbol; /* bpe.c: five arrays in one block */
    size_t symbol_capacity;
    uint64_t *heap;
    size_t heap_capacity;
};

tni_work *tni_work_take(const tn_tokenizer *t);
void tni_work_give(tni_work *w);

/* ---- parts. Those that return a bool give false with a message ------------------------------- */

/* tokenizer.c */
tn_tokenizer *tni_tokenizer_new(void);
bool tni_ids_add(tn_ids *ids, const int32_t *id, size_t n);
/* Of a caller's text; false, too: it is not UTF-8. */
bool tni_text_size(const char *function, const char *text, int64_t n, size_t *size);
/* vocabulary.c */
uint64_t tni_word_hash(uint64_t seed, const char *text, size_t n);
int32_t tni_find(const tn_tokenizer *t, const tni_words *words, const char *text, size_t n);
tni_token *tni_token_at(tn_tokenizer *t, size_t id); /* made if it is not there */
bool tni_token_set(tn_tokenizer *t, tni_token *token, const char *text);
bool tni_token_put(tn_tokenizer *t, tni_words *words, int32_t id); /* false: its text is there */
bool tni_tokens_index(tn_tokenizer *t, size_t more); /* all; `more` will be added by text */
/* A hash table for n items of `size` bytes: all bits are set, which marks free places. */
void *tni_table(size_t n, size_t size, size_t *capacity);
/* A tokenizer.json of byte-level BPE that is made; name: for messages. */
typedef struct tni_layout {
    const char *name, *pattern;     /* of words; NULL: GPT-2's */
    bool compose, prefix, whole;    /* NFC; a space in front; ignore_merges */
    tni_bytes added, vocab, merges; /* without their brackets */
} tni_layout;
/* In the vocabulary, too: else the package tokenizers gives it the next id that is free. */
bool tni_layout_special(tni_layout *l, int64_t id, const char *text);
void tni_layout_word(tni_layout *l, int64_t id, const char *bytes, size_t n);
bool tni_layout_merge(tni_bytes *merges, const char *left,
                      const char *right); /* false: not UTF-8 */
bool tni_layout_read(tn_tokenizer *t, tni_layout *l,
                     bool ok); /* as a tokenizer, if ok; frees all */
/* tokenizer_read.c: a tokenizer.json, which is destroyed; name: for messages */
bool tni_tokenizer_read(tn_tokenizer *t, const char *name, tni_bytes *json);
void tni_letters(tni_bytes *to, const char *bytes, size_t n); /* in JSON */
int tni_byte_of(int32_t c);
/* train.c */
bool tni_train_word(tni_training *s, const char *text, size_t n);
/* layouts.c */
/* Of a vocab.json, and merges.txt and other files in its folder, n bytes of the path. */
bool tni_vocab_read(tn_tokenizer *t, const char *path, size_t n);
bool tni_ranks_read(tn_tokenizer *t, const char *path, const tn_tiktoken_options *o);
/* added.c */
bool tni_trie_add(tni_trie *trie, const char *text, size_t n, int32_t id);
bool tni_text_ids(tni_work *w, const char *text, size_t n);
bool tni_normal_form(tni_work *w, const char **text, size_t *n);
/* split.c */
bool tni_split_words(tni_work *w, size_t stage, const char *text, size_t n);
pcre2_code *tni_pattern(const char *name, const char *regex);
/* metaspace.c */
bool tni_mark_spaces(tni_bytes *to, const char **text, size_t *n, bool prepend);
bool tni_marked_words(tni_work *w, const char *text, size_t n);
int32_t tni_marked_token(const tn_tokenizer *t, const char *text, size_t n); /* of the model */
size_t tni_marked_symbols(const tn_tokenizer *t, const char *word, size_t n, int32_t *symbol);
void tni_marked_set(tn_tokenizer *t, tni_token *token, const char *text, size_t n); /* its bytes */
bool tni_goes_on(const char *token); /* over the end of a word */
/* wordpiece.c */
bool tni_fold(tni_work *w, const char **text, size_t *n, unsigned how); /* not to compose */
bool tni_bert_words(tni_work *w, const char *text, size_t n);
bool tni_pieces(tni_work *w, const char *word, size_t n); /* the ids of a word */
/* bpe.c */
bool tni_word_ids(tni_work *w, const char *word, size_t n);
