/**
 * tenon/tokenizer.h - text to token ids and back, as Hugging Face's tokenizers and OpenAI's
 * tiktoken do it; chats as text; tokenizers trained from text.
 *
 *     tn_tokenizer *t = tn_tokenizer_load("model", (tn_tokenizer_options){ 0 });
 *     tn_ids ids = { 0 };
 *     TN_CHECK(tn_tokenizer_encode(t, "Hello, world!", -1, (tn_encode_options){ 0 }, &ids));
 *     tn_chars text = { 0 };
 *     TN_CHECK(tn_tokenizer_decode(t, ids.id, ids.n, (tn_decode_options){ 0 }, &text));
 *     tn_ids_free(&ids), tn_chars_free(&text), tn_tokenizer_free(t);
 *
 * Read      tokenizer.json with the models BPE (of bytes, with byte fallback, of characters) and
 *           WordPiece; vocab.json with merges.txt; ranks of tiktoken; vocab.txt of BERT. What a
 *           tokenizer.json asks for and this file does not name is an error that names it
 * Normal    NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend,
 *           BertNormalizer, Sequence
 * Split     ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer,
 *           Metaspace, Sequence; ByteLevel must be the last
 * Around    TemplateProcessing and BertProcessing, RobertaProcessing (of one text), ByteLevel,
 *           Sequence
 * Decode    ByteLevel, WordPiece, Metaspace, ByteFallback, Fuse, Replace, Strip, Sequence
 * Not       truncation and padding of a tokenizer.json are not applied, as transformers does not
 *           unless asked: see tn_encode_options.most
 * Unicode   Ids equal those of tokenizers 0.23 for text of characters up to Unicode 14. The
 *           patterns of Split know the classes of PCRE2 (14.0 in PCRE2 10.42), tokenizers those of
 *           Unicode 16: newer letters, digits and signs (as CJK extension H) are split from what
 *           stands before them. BertNormalizer and BertPreTokenizer know, here, marks and signs of
 *           punctuation that came after Unicode 8, and there none of them
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
    int64_t *id;
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

/** zero fields: GPT-2's pattern and no further tokens; for vocab.txt lower case without accents */
typedef struct tn_tokenizer_options {
    /** How text is split, for files that do not say: vocab.json, ranks of tiktoken, training.
     *  "gpt2", "cl100k", "llama3", "qwen2", "o200k", or a regular expression. */
    const char *pattern;
    /** Further tokens that are special, for ranks of tiktoken, vocab.json and training: ids after
     *  the ranks', or the vocabulary's own; in training the first ids. For "gpt2" and "llama3" NULL
     *  stands for those of these models. */
    const char *const *special;
    int n_special;         /* how many */
    bool cased;            /* vocab.txt: letters and accents stay as they are */
    int64_t min_frequency; /* training: pairs that are rarer are not merged. 0: none is too rare */
    int64_t max_token_bytes; /* training: tokens are shorter than that. 0: of any length */
} tn_tokenizer_options;

/**
 * Reads a tokenizer.
 *
 * path     a folder with tokenizer.json, or vocab.json and merges.txt, or tokenizer.model (ranks),
 *          or vocab.txt; or one of these files, known by how its name ends: .json (vocab.json goes
 *          with the merges.txt beside it), .txt, and anything else for ranks: lines of a token in
 *          base64 and its rank. A tokenizer_config.json beside it names bos, eos and so on
 * Ranks    "aab" is merged from any two tokens, as tiktoken does; a whole word of the vocabulary is
 *          one token
 * Errors   NULL: TN_E_IO; TN_E_FORMAT: not JSON, ids that are doubled or far beyond the number of
 *          tokens, a merge of tokens that are not there; TN_E_UNSUPPORTED names what is not done
 *          here: a model, a part, a dropout, SentencePiece's files, a regular expression that means
 *          something else in PCRE2; TN_E_NOMEM
 * Owner    yours: tn_tokenizer_free
 */
TN_API tn_tokenizer *tn_tokenizer_load(const char *path, tn_tokenizer_options options);

/**
 * Learns byte-level BPE from texts: the most frequent pair of tokens becomes a token, until there
 * are vocab_size; of pairs as frequent the one with the smallest ids. The ids are those of
 * tokenizers' BpeTrainer with ByteLevel's alphabet.
 *
 * texts        n of them, zero-terminated, UTF-8, each split by itself
 * vocab_size   at least 256 and the special tokens; the result has fewer where no pair is left
 * Errors       NULL: a text is NULL or not UTF-8, vocab_size is too small, TN_E_NOMEM
 * Owner        yours: tn_tokenizer_free
 * Source       Sennrich et al., Neural Machine Translation of Rare Words with Subword Units (2016),
 *              sec. 3.2
 */
TN_API tn_tokenizer *tn_tokenizer_train(const char *const *texts, int64_t n, int64_t vocab_size,
                                        tn_tokenizer_options options);

/** Frees it; NULL is ignored. No other thread may use it any more. */
TN_API void tn_tokenizer_free(tn_tokenizer *t);

/**
 * Writes tokenizer.json, which tokenizers reads, too: the file it was read from, or for other
 * tokenizers one that says the same.
 *
 * path     the file; replaced whole or not at all
 * Ranks    become merges in the order of their tokens: where one token is made of two pairs that
 *          overlap ("aaa" in "a aa a"), the file prefers one pair, tiktoken the left one
 * Errors   TN_E_IO, TN_E_NOMEM; t or path NULL
 */
TN_API TN_MUST_USE tn_status tn_tokenizer_save(const tn_tokenizer *t, const char *path);

/** What a tokenizer has. Ids are -1 where it has none. */
typedef struct tn_tokenizer_info {
    int64_t vocab_size; /* the largest id plus 1 */
    int64_t n_tokens;   /* ids that are used */
    int64_t bos, eos, pad, unk, cls, sep,
        mask; /* as tokenizer_config.json says; unk: the model's */
} tn_tokenizer_info;
TN_API tn_tokenizer_info tn_tokenizer_get_info(const tn_tokenizer *t); /* t NULL: zeros and -1 */

/** The token of an id as the vocabulary has it, byte-level with its letters for bytes ("\u0120the"
 *  for " the"). It lives as long as t. NULL without an error: no token has this id. */
TN_API const char *tn_tokenizer_token(const tn_tokenizer *t, int64_t id);
/** The id of such a text; -1: it is no token, or t or token is NULL. */
TN_API int64_t tn_tokenizer_id(const tn_tokenizer *t, const char *token);

/* ---- text to ids ----------------------------------------------------------------------------- */

/** zero fields: with the tokens that begin and end a text, special tokens in the text are found */
typedef struct tn_encode_options {
    bool bare;    /* without what the tokenizer adds around a text (BOS, [CLS], [SEP]) */
    bool literal; /* special tokens in the text are text: for what users write */
    int64_t most; /* at most so many ids, what is added around included; the end is cut. 0: all */
} tn_encode_options;

/**
 * Appends the ids of a text.
 *
 * text     n bytes of UTF-8; n < 0: up to its zero
 * Time     linear in n, or n log n in one word without a space
 * Errors   TN_E_INVALID: NULL, not UTF-8 (which byte); a regular expression that takes too long
 *          on this text; TN_E_NOMEM. ids has what it had
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
 * Appends the text of n ids. Bytes that are not UTF-8 become U+FFFD; ids that no token has give
 * nothing.
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

/* ---- chats ----------------------------------------------------------------------------------- */

/** What somebody said. */
typedef struct tn_chat_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8 */
} tn_chat_message;

/**
 * Appends the text of a chat, ready for tn_tokenizer_encode with options.bare.
 *
 * format   "chatml"    <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message
 *          "qwen2"     the same, after "You are a helpful assistant." as the system's message if
 *                      the chat does not begin with one
 *          "qwen2.5"   likewise, with "You are Qwen, created by Alibaba Cloud. You are a helpful
 *                      assistant."
 *          "smollm2"   likewise, with "You are a helpful AI assistant named SmolLM, trained by
 *                      Hugging Face"
 *          "llama3"    <|begin_of_text|>, then for each message
 *                      <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>; white space
 *                      around contents goes. Llama 3.1 and later put dates into the system's
 *                      message, which you write yourself
 * reply    ends with what begins the assistant's message
 * Source   the models' published formats. Files chat_template are not read: they are programs
 *          (Jinja)
 * Errors   TN_E_NAME: no such format; a role or content NULL; TN_E_NOMEM. chars has what it had
 */
TN_API TN_MUST_USE tn_status tn_chat_text(const char *format, const tn_chat_message *messages,
                                          int n, bool reply, tn_chars *chars);

TN_END_C_
#endif
