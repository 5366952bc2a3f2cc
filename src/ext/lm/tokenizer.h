/*
 * tokenizer.h - the inside of a tn_tokenizer.
 *
 * A text goes through: tokens found in it as they stand (added.c), normal forms (normal.c), tokens
 * found in the result, cuts into words (split.c), ids of a word (bpe.c, wordpiece.c), ids around
 * (tokenizer.c). Each part hands on what it made at once, so no list of words is kept.
 */
#ifndef TENON_EXT_LM_TOKENIZER_H
#define TENON_EXT_LM_TOKENIZER_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <tenon/tokenizer.h>

#include "ext/lm/json_tree.h"

enum { TNI_STAGES = 24, TNI_NO_ID = -1 };

typedef struct tni_token {
    uint32_t text, n_text;   /* in texts, as the vocabulary has it */
    uint32_t bytes, n_bytes; /* in texts, what it stands for */
    bool there;              /* false: no token has this id */
    bool word;               /* ByteLevel: its letters stand for bytes */
    bool special;
    bool left, right, single; /* added: takes white space with it; stands between no letters */
} tni_token;

/* Token ids, found by text: a hash table with free slots of -1. */
typedef struct tni_words {
    int32_t *slot;
    size_t capacity; /* 0 or a power of two */
} tni_words;

/* Two tokens that become one, `rank` in the order of merging; a hash table by both. */
typedef struct tni_pair {
    uint64_t key; /* left << 32 | right; UINT64_MAX: free */
    int32_t rank, id;
} tni_pair;

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

typedef struct tni_normal {
    enum {
        TNI_NFC,
        TNI_NFD,
        TNI_NFKC,
        TNI_NFKD,
        TNI_LOWER,
        TNI_NO_MARKS,   /* without category M */
        TNI_NO_ACCENTS, /* without Mn */
        TNI_CLEAN,      /* BERT's: no controls, white space is a space */
        TNI_CJK,        /* BERT's: spaces around ideographs */
        TNI_TRIM_LEFT,
        TNI_TRIM_RIGHT,
        TNI_REPLACE,
        TNI_PREPEND
    } kind;
    pcre2_code *pattern; /* of TNI_REPLACE */
    char *text;          /* of TNI_REPLACE and TNI_PREPEND */
} tni_normal;

typedef struct tni_split {
    enum { TNI_CUT, TNI_SPACE_BEFORE, TNI_METASPACE } kind;
    enum { TNI_ISOLATED, TNI_REMOVED, TNI_CONTIGUOUS, TNI_WITH_PREVIOUS, TNI_WITH_NEXT } behaviour;
    bool invert;
    pcre2_code *pattern; /* of TNI_CUT */
    char *text;          /* TNI_METASPACE: what stands for a space */
    enum { TNI_NEVER, TNI_FIRST, TNI_ALWAYS } prepend;
} tni_split;

typedef struct tni_undo {
    enum {
        TNI_UNDO_BYTES,    /* ByteLevel */
        TNI_UNDO_FALLBACK, /* <0x0A> */
        TNI_UNDO_PIECES,   /* WordPiece */
        TNI_UNDO_META,
        TNI_UNDO_REPLACE,
        TNI_UNDO_STRIP,
        TNI_UNDO_FUSE
    } kind;
    char *text, *by;
    int64_t start, stop; /* TNI_UNDO_STRIP: at most so many */
    bool flag;           /* WordPiece: cleanup; META: the first has no space */
} tni_undo;

typedef struct tni_work tni_work;

struct tn_tokenizer {
    tni_bytes texts;
    tni_token *token; /* by id */
    size_t n_token, token_capacity;
    tni_words by_text, by_bytes; /* all; those of the model */
    uint64_t seed;               /* of hashes */
    enum { TNI_BPE, TNI_WORDPIECE } model;
    bool byte_level;            /* bytes of texts differ from their letters */
    bool fallback, fuse, whole; /* byte_fallback, fuse_unk, ignore_merges */
    int32_t unk, byte[256];     /* ids, of a byte alone or of <0x0A>; -1: none */
    tni_pair *pair;             /* BPE */
    size_t pair_capacity;       /* 0 or a power of two */
    char *prefix;               /* WordPiece: of what continues a word */
    int64_t longest;            /* WordPiece: characters of a word */
    tni_trie raw, normalised;   /* added tokens, found in either */
    tni_normal normal[TNI_STAGES];
    tni_split split[TNI_STAGES];
    tni_undo undo[TNI_STAGES];
    size_t n_normal, n_split, n_undo;
    tn_ids before, after; /* around a text */
    int64_t bos, eos, pad, cls, sep, mask;
    char *file; /* the tokenizer.json that says all this */
    size_t n_file;
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
    tn_ids *out;
    bool literal;
    bool (*word)(tni_work *w, const char *word, size_t n); /* what is done with a word */
    void *user;                                            /* word's */
    tni_known *known;
    tni_bytes normal[2], scratch[TNI_STAGES];
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    int32_t *symbol; /* bpe.c: five arrays in one block */
    size_t symbol_capacity;
    uint64_t *heap;
    size_t heap_capacity;
    int32_t *character; /* normal.c */
    size_t character_capacity;
};

tni_work *tni_work_take(const tn_tokenizer *t);
void tni_work_give(tni_work *w);
void tni_work_free(tni_work *w);

/* ---- parts. Those that return a bool give false with a message ------------------------------- */

/* tokenizer.c */
uint64_t tni_word_hash(uint64_t seed, const char *text, size_t n);
int32_t tni_find(const tn_tokenizer *t, const tni_words *words, const char *text, size_t n);
bool tni_ids_add(tn_ids *ids, int64_t id);
char *tni_copy_text(const char *text); /* tni_strfree */
/* A tokenizer of a tokenizer.json, which it takes; name: for messages. */
tn_tokenizer *tni_tokenizer_read(const char *name, tni_bytes *json, bool by_id);
/* added.c */
bool tni_trie_add(tni_trie *trie, const char *text, size_t n, int32_t id);
void tni_trie_free(tni_trie *trie);
bool tni_text_ids(tni_work *w, const char *text, size_t n);
/* vocab_files.c: a tokenizer.json that says the same as other files */
bool tni_json_begin(tni_bytes *json, const char *pattern, bool whole);
bool tni_json_added(tni_bytes *json, int64_t id, const char *text, bool first);
void tni_json_letters(tni_bytes *json, const char *bytes, size_t n);
/* normal.c */
bool tni_normal_form(tni_work *w, const char **text, size_t *n);
/* split.c */
bool tni_split_words(tni_work *w, size_t stage, const char *text, size_t n, bool first);
pcre2_code *tni_pattern(const char *name, const char *regex);
pcre2_code *tni_pattern_of_text(const char *name, const char *text);
/* The next match in n bytes from `from` on: 1, 0 (none), -1 and a message. */
int tni_match(tni_work *w, const pcre2_code *pattern, const char *text, size_t n, size_t from,
              size_t *start, size_t *end);
const char *tni_known_pattern(const char *name);
/* bpe.c, wordpiece.c */
bool tni_word_ids(tni_work *w, const char *word, size_t n);
bool tni_bpe(tni_work *w, const char *word, size_t n);
bool tni_wordpiece(tni_work *w, const char *word, size_t n);
const tni_pair *tni_pair_find(const tn_tokenizer *t, int32_t left, int32_t right);
/* unicode.c */
size_t tni_next(const char *text, size_t n, int32_t *c); /* of valid UTF-8: bytes of a character */
bool tni_is_space(int32_t c);
bool tni_is_word(int32_t c);
int32_t tni_byte_letter(unsigned char byte); /* ByteLevel's letter for a byte */
/* What ByteLevel's letters stand for; false, and nothing added: there are others. */
bool tni_letters_to_bytes(tni_bytes *to, const char *text, size_t n);

#endif
