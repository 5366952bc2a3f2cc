/**
 * tenon/tokenizer.h - text to token ids and back, as Hugging Face's tokenizers do it.
 *
 *     tn_tokenizer *t = tn_tokenizer_load("model");
 *     tn_ids ids = { 0 };
 *     TN_CHECK(tn_tokenizer_encode(t, "Hello, world!", -1, (tn_encode_options){ 0 }, &ids));
 *     tn_chars text = { 0 };
 *     TN_CHECK(tn_tokenizer_decode(t, ids.id, ids.n, (tn_decode_options){ 0 }, &text));
 *     tn_ids_free(&ids), tn_chars_free(&text), tn_tokenizer_free(t);
 *
 * Read      tokenizer.json of byte-level BPE: GPT-2, Llama 3, Qwen, SmolLM, DeepSeek; of WordPiece:
 *           BERT, MiniLM. What it asks for and this list does not name is an error that names it.
 *           vocab.json with merges.txt; tiktoken's files. BPE with byte fallback: Llama 2, Mistral
 * Normal    NFC, BertNormalizer; Prepend and Replace of spaces by U+2581
 * Split     Split by a Regex (Isolated), Digits, ByteLevel at the end, Sequence; BertPreTokenizer;
 *           Metaspace
 * Around    TemplateProcessing (of one text), BertProcessing, ByteLevel, Sequence
 * Decode    ByteLevel, also where the file says nothing; WordPiece; Replace, ByteFallback, Fuse and
 *           Strip. Bytes of a text that is none: one U+FFFD for each
 * Not       truncation and padding of a tokenizer.json are not applied, as transformers does not
 *           unless asked
 * Unicode   Ids equal those of tokenizers 0.23 for text of characters up to Unicode 14. The
 *           patterns of Split know the classes of PCRE2 (14.0 in PCRE2 10.42), tokenizers those of
 *           Unicode 16: newer letters, digits and signs (as CJK extension H) are split from what
 *           stands before them. NFC is that of Unicode 15 here, and of Unicode 9 there; so are
 *           BERT's accents and punctuation, of Unicode 8 there: 624 rare characters differ
 * Threads   A tokenizer does not change: threads may use one at the same time
 *
 * Programs that call these functions link libtenon-lm (pkg-config: tenon-lm).
 */
#ifndef TENON_TOKENIZER_H
#define TENON_TOKENIZER_H

#include <tenon/tensor.h>

TN_BEGIN_C_

/** A vocabulary with all that makes ids of text. */
typedef struct tn_tokenizer tn_tokenizer;

/** Ids, in an array that grows; zeroed it is empty. Yours: tn_ids_free. */
typedef struct tn_ids {
    int64_t *id;      /* n of them */
    int64_t n;        /* how many */
    int64_t capacity; /* the library's */
} tn_ids;
TN_API void tn_ids_free(tn_ids *ids); /* frees the array, which is empty then; NULL is ignored */

/** Text, in memory that grows; zeroed it is empty. Yours: tn_chars_free. */
typedef struct tn_chars {
    char *text;       /* n bytes and a zero; NULL while nothing was added */
    int64_t n;        /* bytes, without the zero at the end; zeros may be among them */
    int64_t capacity; /* the library's */
} tn_chars;
TN_API void tn_chars_free(tn_chars *chars); /* frees the text, which is empty then; NULL: ignored */

/* ---- making one ------------------------------------------------------------------------------ */

/**
 * Reads a tokenizer.
 *
 * path     a tokenizer.json; a vocab.json with its merges.txt (tokenizer_class GPT2Tokenizer or
 *          Qwen2Tokenizer, and the added tokens that added_tokens.json, special_tokens_map.json or
 *          tokenizer_config.json name); ranks of tiktoken as the next function has them, in a file
 *          NAME.tiktoken or tokenizer.model (Llama 3's); or a folder with tokenizer.json,
 *          vocab.json or tokenizer.model, the first one that is there. A tokenizer_config.json
 *          beside it names bos, eos and pad
 * Errors   NULL: TN_E_IO; TN_E_FORMAT: not JSON, above 256 MiB, ids that are doubled or far beyond
 *          the number of tokens, a merge of tokens that are not there; TN_E_UNSUPPORTED names what
 *          is not done here: a model, a part, a dropout, a regular expression that means something
 *          else in PCRE2; TN_E_INVALID: path NULL, ranks whose name is no encoding's; TN_E_NOMEM
 * Owner    yours: tn_tokenizer_free
 */
TN_API tn_tokenizer *tn_tokenizer_load(const char *path);

/** How words and special tokens of tiktoken's ranks are found. zero fields: as the name of the file
 *  says, NAME.tiktoken or Llama 3's tokenizer.model. */
typedef struct tn_tiktoken_options {
    const char *encoding;       /* gpt2, cl100k_base, o200k_base or llama3 */
    const char *pattern;        /* a regular expression in place of its */
    const char *const *special; /* special tokens in place of its */
    const int64_t *special_ids; /* and their ids; NULL: what follows the largest rank */
    int64_t n_special;          /* how many */
} tn_tiktoken_options;

/**
 * Reads a tokenizer of tiktoken, a file with a line for each token: its bytes in base64, a space
 * and its rank, which is its id. Saved, it is a tokenizer.json with merges.
 *
 * Errors   NULL: TN_E_INVALID: no such encoding; those of tn_tokenizer_load
 * Owner    yours: tn_tokenizer_free
 */
TN_API tn_tokenizer *tn_tokenizer_load_tiktoken(const char *path, tn_tiktoken_options options);

/** What a tokenizer learns. zero fields: 30,000 tokens, GPT-2's words, no special tokens. */
typedef struct tn_bpe_options {
    int64_t vocab_size;    /* special tokens, 256 bytes, and as many merges as there is room for */
    int64_t min_frequency; /* of a pair that is merged */
    const char *pattern;   /* a regular expression that finds words; NULL: GPT-2's */
    const char *const *special; /* special tokens, the first ids; in the text they are text */
    int64_t n_special;          /* how many */
} tn_bpe_options;

/**
 * Learns byte-level BPE from a text: n bytes of UTF-8; n < 0: up to its zero. Merges are those of
 * BpeTrainer of the package tokenizers, given the whole text at once and ByteLevel's alphabet.
 *
 * Time     10 MB and 8,000 tokens in seconds, on one thread; memory: 30 to 100 times the text
 * Errors   NULL: TN_E_INVALID: text NULL, not UTF-8; vocab_size too small for special tokens and
 *          bytes; TN_E_UNSUPPORTED: the pattern; TN_E_FORMAT: a special token twice, empty, above
 *          1,024 bytes, not UTF-8, a single byte's letter; TN_E_NOMEM
 * Owner    yours: tn_tokenizer_free
 */
TN_API tn_tokenizer *tn_tokenizer_train(const char *text, int64_t n, tn_bpe_options options);

/** Frees it; NULL is ignored. No other thread may use it any more. */
TN_API void tn_tokenizer_free(tn_tokenizer *t);

/** Writes the tokenizer.json that t was read from, or that says the same as the files that it was
 *  read from; the file is replaced whole or not at all. bos, eos and pad are not in it: they are
 *  tokenizer_config.json's.
 *  Errors: TN_E_IO; t or path NULL. */
TN_API TN_MUST_USE tn_status tn_tokenizer_save(const tn_tokenizer *t, const char *path);

/** What a tokenizer has. Ids are -1 where it has none. */
typedef struct tn_tokenizer_info {
    int64_t vocab_size;    /* the largest id plus 1 */
    int64_t bos, eos, pad; /* as tokenizer_config.json says */
} tn_tokenizer_info;
TN_API tn_tokenizer_info tn_tokenizer_get_info(const tn_tokenizer *t); /* t NULL: zeros and -1 */

/** The token of an id as the vocabulary has it, byte-level with its letters for bytes ("\u0120the"
 *  for " the"). It lives as long as t. NULL without an error: no token has this id. */
TN_API const char *tn_tokenizer_token(const tn_tokenizer *t, int64_t id);
/** The id of such a text; -1: it is no token, or t or token is NULL. */
TN_API int64_t tn_tokenizer_id(const tn_tokenizer *t, const char *token);

/* ---- text to ids ----------------------------------------------------------------------------- */

/** zero fields: with the tokens that begin and end a text; special tokens in the text are found */
typedef struct tn_encode_options {
    bool bare;    /* without what the tokenizer adds around a text (BOS, EOS) */
    bool literal; /* special tokens in the text are text: for what users write */
} tn_encode_options;

/**
 * Appends the ids of a text.
 *
 * text     n bytes of UTF-8; n < 0: up to its zero
 * Time     linear in n, or n log n in one word without a space
 * Errors   TN_E_INVALID: NULL, not UTF-8 (which byte); a regular expression that takes too long
 *          on this text; of NFC or accents more than 4,096 marks in a row; TN_E_NOMEM. ids has what
 *          it had
 */
TN_API TN_MUST_USE tn_status tn_tokenizer_encode(const tn_tokenizer *t, const char *text, int64_t n,
                                                 tn_encode_options options, tn_ids *ids);
/** The ids as a tensor i64 [number of ids], in the current scope. NULL: the same errors. */
TN_API tn_tensor *tn_tokenizer_tensor(const tn_tokenizer *t, const char *text, int64_t n,
                                      tn_encode_options options);

/* ---- ids to text ----------------------------------------------------------------------------- */

/** zero fields: special tokens are left out */
typedef struct tn_decode_options {
    bool special; /* special tokens are shown */
} tn_decode_options;

/**
 * Appends the text of n ids. Bytes that are not UTF-8 become U+FFFD; ids of no token give nothing.
 *
 * Errors   TN_E_NOMEM; t, ids (with n > 0) or chars NULL. chars has what it had
 */
TN_API TN_MUST_USE tn_status tn_tokenizer_decode(const tn_tokenizer *t, const int64_t *ids,
                                                 int64_t n, tn_decode_options options,
                                                 tn_chars *chars);

/** The text of ids that come one at a time. */
typedef struct tn_token_stream tn_token_stream;
/** A stream at its start. t must outlive it. NULL: t is NULL, TN_E_NOMEM. Yours:
 *  tn_token_stream_free. */
TN_API tn_token_stream *tn_token_stream_new(const tn_tokenizer *t, tn_decode_options options);
/** The text that id makes certain; bytes of a character that is not complete wait. All texts of a
 *  stream together are what tn_tokenizer_decode gives. It lives until the next call; "" if nothing
 *  is certain yet. Zeros in it cannot be seen: decode has them. NULL: stream NULL, TN_E_NOMEM. */
TN_API const char *tn_token_stream_add(tn_token_stream *stream, int64_t id);
/** The text that still waits, as U+FFFD where it is not complete; the stream is at its start again.
 *  NULL: as above. */
TN_API const char *tn_token_stream_end(tn_token_stream *stream);
TN_API void tn_token_stream_free(tn_token_stream *stream); /* frees it; NULL is ignored */

TN_END_C_
#endif
