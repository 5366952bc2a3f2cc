/*
 * test_tokenizer.c - ids and texts of tokenizers, and files that lie.
 *
 * Truth: golden/lm/tokenizer_*, by the packages tokenizers and tiktoken (make_lm_tokenizer.py); a
 * quadratic merge written here.
 *
 * Seen to fail: without the prefix of pieces, spaces around ideographs, or what is_removed() takes
 * out; with a word one character longer than the longest; with added tokens as pieces
 * (src/ext/lm/wordpiece.c); without clean_up(), or with a stream that does not begin again
 * (detokenize.c); with NFC in place of NFD (added.c); without what ends cl100k_base's pattern, NFC
 * of Qwen 2, ids behind the vocabulary, or their order (layouts.c); with a marked text cut where
 * tokens go on, or between two marks, with added tokens found as characters (metaspace.c); with the
 * larger ids first among pairs that are as frequent, counts that are too old, or memmove for each
 * merge (train.c); with special tokens in ByteLevel's letters, or joined as words (layouts.c); with
 * characters in their order (metaspace.c).
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include <tenon/tokenizer.h>

#include "files.h"
#include "scarce.h"

static void free_tokenizer(void *t)
{
    tn_tokenizer_free(t);
}

static tn_tokenizer *kept(tn_tokenizer *t)
{
    assert_made(t);
    free_at_end(t, free_tokenizer);
    return t;
}

static const char *golden(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "lm/tokenizer_%s", name);
    return golden_path(file);
}

static tn_tokenizer *load(const char *name)
{
    return kept(tn_tokenizer_load(golden(name)));
}

static tn_tokenizer *load_text(const char *json)
{
    return tn_tokenizer_load(write_bytes("t.json", json, strlen(json)));
}

/* ---- golden files ---------------------------------------------------------------------------- */

typedef struct reader {
    char *data;
    size_t at, n;
} reader;

static reader open_golden(const char *name)
{
    reader r = { 0 };
    r.data = owned(read_bytes(golden(name), &r.n));
    return r;
}

/* A number of items of `size` bytes, and where they are. */
static const char *take(reader *r, size_t size, size_t *n)
{
    uint32_t count;
    ck_assert(r->at + 4 <= r->n);
    memcpy(&count, r->data + r->at, 4);
    const char *here = r->data + r->at + 4;
    r->at += 4 + count * size;
    ck_assert(r->at <= r->n);
    *n = count;
    return here;
}

static void same_ids(const char *what, const tn_ids *ids, const char *want, size_t n)
{
    ck_assert_msg(ids->n == (int64_t)n, "%s: %d ids, not %d", what, (int)ids->n, (int)n);
    for (size_t i = 0; i < n; i++) {
        int32_t id;
        memcpy(&id, want + 4 * i, 4);
        ck_assert_msg(ids->id[i] == id, "%s: id %d is %d, not %d", what, (int)i, (int)ids->id[i],
                      id);
    }
}

static void same_text(const char *what, const char *text, size_t n, const char *want, size_t m)
{
    ck_assert_msg(n == m && memcmp(text, want, n) == 0, "%s: \"%.*s\" is not \"%.*s\"", what,
                  (int)n, text, (int)m, want);
}

/* The same ids one at a time: parts of UTF-8, which together are the text. */
static void check_stream(const char *what, const tn_tokenizer *t, const tn_ids *ids,
                         const char *want, size_t m)
{
    tn_token_stream *s = tn_token_stream_new(t, (tn_decode_options){ 0 });
    char text[4096];
    assert_made(s);
    for (int round = 0; round < 2; round++) { /* the end is a new start */
        size_t n = 0;
        for (int64_t i = 0; i <= ids->n; i++) {
            const char *part =
                i < ids->n ? tn_token_stream_add(s, ids->id[i]) : tn_token_stream_end(s);
            assert_made(part);
            ck_assert(n + strlen(part) < sizeof text);
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
            ck_assert_msg(!*part || ((unsigned char)*part & 0xc0) != 0x80, "%s: half a character",
                          what);
        }
        same_text(what, text, n, want, m);
    }
    tn_token_stream_free(s);
}

static void check_golden(const char *name, const tn_tokenizer *t)
{
    reader r = open_golden(name);
    tn_ids ids = { 0 };
    tn_chars back = { 0 };
    for (int i = 0; r.at < r.n; i++) {
        char what[300];
        size_t n, k;
        const char *text = take(&r, 1, &n), *want;
        snprintf(what, sizeof what, "%s %d \"%.*s\"", name, i, (int)n, text);
        for (int bare = 1; bare >= 0; bare--) {
            ids.n = 0;
            assert_ok(tn_tokenizer_encode(t, text, (int64_t)n, (tn_encode_options){ .bare = bare },
                                          &ids));
            want = take(&r, 4, &k);
            same_ids(what, &ids, want, k);
        }
        back.n = 0;
        assert_ok(tn_tokenizer_decode(t, ids.id, ids.n, (tn_decode_options){ 0 }, &back));
        want = take(&r, 1, &k);
        same_text(what, back.text, (size_t)back.n, want, k);
        check_stream(what, t, &ids, want, k);
    }
    tn_ids_free(&ids);
    tn_chars_free(&back);
}

START_TEST(as_the_package)
{
    check_golden("byte.bin", load("byte.json"));
    check_golden("qwen.bin", load("qwen.json"));
    check_golden("smol.bin", load("smol.json"));
    check_golden("piece.bin", load("piece.json"));
    check_golden("cased.bin", load("cased.json"));
    tn_tokenizer *t = load("qwen.json");
    assert_ok(tn_tokenizer_save(t, in_folder("tokenizer.json")));
    check_golden("qwen.bin", kept(tn_tokenizer_load(folder)));
}
END_TEST

static void assert_ids(const tn_tokenizer *t, const char *text, tn_encode_options o, int n,
                       const int64_t *want)
{
    tn_ids ids = { 0 };
    assert_ok(tn_tokenizer_encode(t, text, -1, o, &ids));
    ck_assert_msg(ids.n == n, "\"%s\": %d ids, not %d", text, (int)ids.n, n);
    for (int i = 0; i < n; i++)
        ck_assert_msg(ids.id[i] == want[i], "\"%s\": id %d is %d, not %d", text, i, (int)ids.id[i],
                      (int)want[i]);
    tn_ids_free(&ids);
}
#define assert_encoded(t, text, o, ...)                                                            \
    assert_ids(t, text, o, sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t),                   \
               (int64_t[]){ __VA_ARGS__ })

/* ---- tokens, options ------------------------------------------------------------------------- */

START_TEST(what_it_has)
{
    const char *json =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true}, "
        "\"added_tokens\": [{\"id\": 7, \"content\": \"<s>\", \"special\": true, "
        "\"normalized\": false}], \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, "
        "\"\u0120\": 2, \"ab\": 3, \"\u0120ab\": 4}, \"merges\": [\"a b\", \"\u0120 ab\"]}}";
    const char *config = "{\"eos_token\": \"<s>\", \"bos_token\": {\"content\": \"ab\"}, "
                         "\"model_max_length\": 1000000000000000019884624838656}";
    write_bytes("tokenizer.json", json, strlen(json));
    write_bytes("tokenizer_config.json", config, strlen(config));
    tn_tokenizer *t = kept(tn_tokenizer_load(folder));
    assert_encoded(t, "ab abx b<s>", (tn_encode_options){ 0 }, 4, 4, 2, 1, 7); /* x is no token */
    assert_encoded(t, "a<s>", (tn_encode_options){ .literal = true }, 2, 0);
    tn_tokenizer_info info = tn_tokenizer_get_info(t);
    ck_assert_int_eq(info.vocab_size, 8);
    ck_assert_int_eq(info.eos, 7);
    ck_assert_int_eq(info.bos, 3);
    ck_assert_int_eq(info.pad, -1);
    ck_assert_str_eq(tn_tokenizer_token(t, 4), "\u0120ab");
    ck_assert_ptr_null(tn_tokenizer_token(t, 6));
    ck_assert_ptr_null(tn_tokenizer_token(t, -1));
    ck_assert_int_eq(tn_tokenizer_id(t, "\u0120ab"), 4);
    ck_assert_int_eq(tn_tokenizer_id(t, "none"), -1);
    write_bytes("tokenizer_config.json", "{", 1);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "tokenizer_config.json");
}
END_TEST

START_TEST(with_and_without_what_is_around)
{
    tn_tokenizer *t = load("qwen.json");
    const tn_encode_options o = { .bare = true };
    assert_encoded(t, "1234", (tn_encode_options){ 0 }, 0, 17, 18, 19, 20, 0);
    assert_encoded(t, "12", o, 17, 18);
    tn_tensor *ids = tn_tokenizer_tensor(t, "12", -1, (tn_encode_options){ 0 });
    assert_made(ids);
    ck_assert_int_eq(tn_size(ids, 0), 4);
    ck_assert_int_eq(tn_dtype_of(ids), TN_I64);
    tn_chars text = { 0 };
    int64_t some[] = { 0, 17, -1, 1 << 20, 18 };
    assert_ok(tn_tokenizer_decode(t, some, 5, (tn_decode_options){ .special = true }, &text));
    ck_assert_str_eq(text.text, "<|end|>12");
    assert_ok(tn_tokenizer_decode(t, some, 5, (tn_decode_options){ 0 }, &text));
    ck_assert_str_eq(text.text, "<|end|>1212");
    tn_chars_free(&text);
    tn_ids none = { 0 };
    assert_fails(tn_tokenizer_encode(t, "ab\xc3", -1, o, &none), TN_E_INVALID,
                 "byte 2 of the text");
    assert_fails(tn_tokenizer_encode(t, NULL, -1, o, &none), TN_E_INVALID, "text is NULL");
    assert_fails(tn_tokenizer_encode(NULL, "a", -1, o, &none), TN_E_INVALID, "t is NULL");
}
END_TEST

/* By ByteLevel's letters. */
static int64_t id_of_byte(const tn_tokenizer *t, unsigned char byte)
{
    char letter[4];
    int c = 0, next = 0x100;
    for (int b = 0; b <= byte; b++) {
        bool own = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad);
        c = own ? b : next++;
    }
    if (c < 0x80) letter[0] = (char)c, letter[1] = 0;
    if (c >= 0x80)
        letter[0] = (char)(0xc0 | c >> 6), letter[1] = (char)(0x80 | (c & 0x3f)), letter[2] = 0;
    return tn_tokenizer_id(t, letter);
}

START_TEST(bytes_that_are_no_text)
{
    tn_tokenizer *t = load("byte.json");
    /* one U+FFFD for each part of a character, not for each byte (Unicode 3.9) */
    const unsigned char bytes[] = {
        0xf0, 0x9f, 0x98, 'a', 0xe4, 0xb8, 0xad, 0xff, 0xc3, 0xc3, 0xa9
    };
    int64_t ids[11];
    for (int i = 0; i < 11; i++) ids[i] = id_of_byte(t, bytes[i]);
    tn_chars text = { 0 };
    assert_ok(tn_tokenizer_decode(t, ids, 11, (tn_decode_options){ 0 }, &text));
    ck_assert_str_eq(text.text, "\ufffda\u4e2d\ufffd\ufffd\u00e9");
    tn_chars_free(&text);
    tn_token_stream *s = tn_token_stream_new(t, (tn_decode_options){ 0 });
    const char *want[] = {
        "", "", "", "\ufffda", "", "", "\u4e2d", "\ufffd", "", "\ufffd", "\u00e9"
    };
    for (int i = 0; i < 11; i++) ck_assert_str_eq(tn_token_stream_add(s, ids[i]), want[i]);
    ck_assert_str_eq(tn_token_stream_add(s, id_of_byte(t, 0xe4)), "");
    ck_assert_str_eq(tn_token_stream_end(s), "\ufffd");
    tn_token_stream_free(s);
}
END_TEST

#define BYTES "\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, "
#define MODEL                                                                                      \
    BYTES "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "            \
          "\"merges\": "

#define BERT "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, "
#define UNDO "\"decoder\": {\"type\": \"WordPiece\"}, "
#define PIECES                                                                                     \
    "\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"[UNK]\": 0, \"a\": 1, \"##b\": 2}"
#define LONG "12345678901234567890123456789012"

START_TEST(pieces)
{
    tn_tokenizer *t = kept(load_text("{\"normalizer\": {\"type\": \"BertNormalizer\"}, " UNDO BERT
                                     "\"added_tokens\": [{\"id\": 3, \"content\": \"bb\", "
                                     "\"special\": true, \"normalized\": false}], " PIECES
                                     ", \"max_input_chars_per_word\": 4}}"));
    const tn_encode_options literal = { .literal = true };
    assert_encoded(t, "\u00c1BB  ab\u0301,", (tn_encode_options){ 0 }, 1, 2, 2, 1, 2, 0);
    assert_encoded(t, "abbb abbbb", literal, 1, 2, 2, 2, 0); /* 5 characters are too many */
    assert_encoded(t, "abb a", (tn_encode_options){ 0 }, 1, 3, 1);
    assert_encoded(t, "bb", literal, 0); /* an added token is no piece */
    char word[4000];
    for (int i = 0; i < 3000; i++) word[i] = "ab"[i % 2];
    word[3000] = '\0';
    assert_encoded(t, word, literal, 0);
    tn_chars text = { 0 };
    assert_ok(
        tn_tokenizer_decode(t, (int64_t[]){ 2, 2, 1, 0 }, 4, (tn_decode_options){ 0 }, &text));
    ck_assert_str_eq(text.text, "##bb a [UNK]");
    tn_chars_free(&text);
}
END_TEST

/* ---- other files than tokenizer.json --------------------------------------------------------- */

/* A tokenizer.json that was saved has the same ids. */
static void check_saved(const char *name, const tn_tokenizer *t)
{
    assert_ok(tn_tokenizer_save(t, in_folder("tokenizer.json")));
    check_golden(name, kept(tn_tokenizer_load(folder)));
}

static void copy_golden(const char *from, const char *to)
{
    size_t n;
    char *data = owned(read_bytes(golden(from), &n));
    write_bytes(to, data, n);
}

START_TEST(vocab_and_merges)
{
    tn_tokenizer *t = load("gpt2");
    check_golden("gpt2/ids.bin", t);
    tn_tokenizer_info info = tn_tokenizer_get_info(t);
    ck_assert_int_eq(info.vocab_size, 603);
    ck_assert_int_eq(info.eos, 600);
    ck_assert_int_eq(info.pad, 0);
    ck_assert_int_eq(info.bos, -1);
    check_saved("gpt2/ids.bin", t);
    size_t n;
    char *saved = owned(read_bytes(in_folder("tokenizer.json"), &n));
    saved[n - 1] = '\0'; /* by their ids: the package tokenizers counts them */
    ck_assert(strstr(saved, "<|im_end|>") < strstr(saved, "[M]"));
}
END_TEST

START_TEST(vocab_and_merges_of_qwen)
{
    reader r = open_golden("qwen.bin");
    const char *config =
        "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"pad_token\": \"<|end|>\", "
        "\"added_tokens_decoder\": {\"0\": {\"content\": \"<|end|>\", \"special\": true}, "
        "\"601\": {\"content\": \"[M]s\", \"normalized\": false}, \"602\": {\"content\": "
        "\"Caf\u00e9\"}, \"600\": {\"content\": \"[M]\", \"normalized\": false}}}";
    copy_golden("gpt2/vocab.json", "vocab.json");
    copy_golden("gpt2/merges.txt", "merges.txt");
    write_bytes("tokenizer_config.json", config, strlen(config));
    tn_tokenizer *t = kept(tn_tokenizer_load(in_folder("vocab.json")));
    tn_ids ids = { 0 };
    while (r.at < r.n) {
        size_t n, k;
        const char *text = take(&r, 1, &n), *want = take(&r, 4, &k);
        ids.n = 0;
        assert_ok(tn_tokenizer_encode(t, text, (int64_t)n, (tn_encode_options){ 0 }, &ids));
        same_ids("of Qwen", &ids, want, k);
        take(&r, 4, &k), take(&r, 1, &k);
    }
    tn_ids_free(&ids);
    ck_assert_int_eq(tn_tokenizer_get_info(t).pad, 0);
}
END_TEST

START_TEST(vocab_and_merges_of_gpt2)
{
    const char *vocab = "{\"a\": 0, \"b\": 1, \"\u0120\": 2, \"ab\": 3, \"<|endoftext|>\": 4}";
    const char *merges = "#version: 0.2\r\na b\r\n\n";
    write_bytes("vocab.json", vocab, strlen(vocab));
    write_bytes("merges.txt", merges, strlen(merges));
    tn_tokenizer *t = kept(tn_tokenizer_load(folder));
    assert_encoded(t, "ab<|endoftext|> a", (tn_encode_options){ 0 }, 3, 4, 2, 0);
    ck_assert_int_eq(tn_tokenizer_get_info(t).bos, 4);
    ck_assert_int_eq(tn_tokenizer_get_info(t).eos, 4);
    const char *config = "{\"add_prefix_space\": true, \"eos_token\": \"ab\"}";
    write_bytes("tokenizer_config.json", config, strlen(config));
    t = kept(tn_tokenizer_load(folder));
    assert_encoded(t, "ba", (tn_encode_options){ 0 }, 2, 1, 0);
    ck_assert_int_eq(tn_tokenizer_get_info(t).eos, 3);
    config = "{\"tokenizer_class\": \"RobertaTokenizer\"}";
    write_bytes("tokenizer_config.json", config, strlen(config));
    assert_null(tn_tokenizer_load(folder), TN_E_UNSUPPORTED,
                "the tokenizer_class RobertaTokenizer: want GPT2");
    write_bytes("tokenizer_config.json", "{}", 2);
    write_bytes("merges.txt", "a b c\n", 6);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "merges.txt, line 1, \"a\": want two");
    write_bytes("merges.txt", "a b\nb a", 7);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "merge 1, \"b\" and \"a\": what they make");
    write_bytes("merges.txt", "a \xff\n", 4);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "merges.txt, line 1");
    write_bytes("merges.txt", "a b\n\0", 5);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "a zero byte in");
    write_bytes("merges.txt", "#version\r\n\r\n\na b\r\n", 18);
    assert_encoded(kept(tn_tokenizer_load(folder)), "ab", (tn_encode_options){ 0 }, 3);
    write_bytes("merges.txt", "a b\r\n\r\n\na\n", 10);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "merges.txt, line 4, \"a\"");
    write_bytes("merges.txt", "a b\ra c\n", 8);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "merges.txt, line 1, \"a\"");
    write_bytes("merges.txt", "a b\n", 4);
    static const struct {
        const char *added, *error;
    } odd[] = {
        { "[{\"id\": 5, \"content\": \"c\"}]", "added_tokens_decoder is no object" },
        { "{\"-5\": {\"content\": \"c\"}}", "the id of the added token \"c\": want 0" },
        { "{\"5x\": {\"content\": \"c\"}}", "the id of the added token" },
        { "{\"\": {\"content\": \"c\"}}", "the id of the added token" },
        { "{\"9223372036854775807\": {\"content\": \"c\"}}", "the id of the added token" },
        { "{\"2147483647\": {\"content\": \"c\"}}", "the id of the added token" },
        { "{\"5\": \"c\"}", "without content" },
    };
    for (int i = 0; i < COUNT(odd); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"added_tokens_decoder\": %s}", odd[i].added);
        write_bytes("tokenizer_config.json", text, strlen(text));
        assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, odd[i].error);
    }
    write_bytes("tokenizer_config.json", "{}", 2);
    write_bytes("added_tokens.json", "{\"c\": 9223372036854775807}", 26);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "the id of the added token \"c\": want 0");
    write_bytes("added_tokens.json", "{\"c\": \"5\"}", 10);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "the id of the added token");
    write_bytes("added_tokens.json", "{\"c\": 0}", 8);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "\"c\" has the id 0 of \"a\"");
    write_bytes("vocab.json", "{\"a\":", 5);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "vocab.json: no JSON object at byte 5");
    ck_assert(!remove(in_folder("merges.txt")) && !remove(in_folder("vocab.json")));
    assert_null(tn_tokenizer_load(folder), TN_E_IO, "no tokenizer.json, vocab.json or");
}
END_TEST

static tn_tokenizer *load_ranks(const char *path)
{
    static const char *const special[] = { "<|end|>", "<pad>" };
    return tn_tokenizer_load_tiktoken(
        path,
        (tn_tiktoken_options){ .encoding = "cl100k_base", .special = special, .n_special = 2 });
}

START_TEST(ranks)
{
    tn_tokenizer *t = kept(load_ranks(golden("ranks/ranks.tiktoken")));
    check_golden("ranks/ids.bin", t);
    check_saved("ranks/ids.bin", t);
    const char *special[] = { "<a>" };
    t = kept(tn_tokenizer_load_tiktoken(golden("ranks/ranks.tiktoken"),
                                        (tn_tiktoken_options){ .pattern = "[a-z]+|[^a-z]",
                                                               .special = special,
                                                               .special_ids = (int64_t[]){ 777 },
                                                               .n_special = 1 }));
    assert_encoded(t, "<a>", (tn_encode_options){ 0 }, 777);
}
END_TEST

/* A file of n ranks: each byte, each two bytes, and as many of three as there is room for. */
static const char *many_ranks(const char *file, int n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = owned(malloc((size_t)n * 16)), *at = text;
    for (int rank = 0; rank < n; rank++) {
        const int k = rank < 256 ? 1 : rank < 256 + 65536 ? 2 : 3;
        const unsigned value = (unsigned)(rank - (k > 1 ? 256 : 0) - (k > 2 ? 65536 : 0));
        const unsigned bits = value << (8 * (3 - k));
        for (int i = 0; i < 4; i++) *at++ = i <= k ? digits[bits >> (18 - 6 * i) & 63] : '=';
        at += sprintf(at, " %d\n", rank);
    }
    return write_bytes(file, text, (size_t)(at - text));
}

/* By name: special tokens, and how words are cut, by the number of ids of three texts. */
START_TEST(encodings)
{
    static const struct {
        const char *file, *special;
        int n;
        int64_t id, bos, eos, upper, end, sign;
    } row[] = { { "gpt2.tiktoken", "<|endoftext|>", 50256, 50256, -1, 50256, 1, 2, 2 },
                { "cl100k_base.tiktoken", "<|endofprompt|>", 100256, 100276, -1, 100257, 1, 2, 1 },
                { "o200k_base.tiktoken", "<|endofprompt|>", 199998, 200018, -1, 199999, 2, 3, 1 },
                { "tokenizer.model", "<|reserved_special_token_245|>", 128000, 128255, 128000,
                  128001, 1, 3, 1 } };
    for (int i = 0; i < COUNT(row); i++) {
        tn_ids ids[3] = { { 0 } };
        tn_tokenizer *t = tn_tokenizer_load(many_ranks(row[i].file, row[i].n));
        assert_made(t);
        tn_tokenizer_info info = tn_tokenizer_get_info(t);
        ck_assert_int_eq(tn_tokenizer_id(t, row[i].special), row[i].id);
        ck_assert_int_eq(info.vocab_size, row[i].id + 1);
        ck_assert_int_eq(info.bos, row[i].bos);
        ck_assert_int_eq(info.eos, row[i].eos);
        for (int k = 0; k < 3; k++)
            assert_ok(tn_tokenizer_encode(t, (const char *[]){ "aB", "a\n ", "!\n" }[k], -1,
                                          (tn_encode_options){ 0 }, &ids[k]));
        ck_assert_msg(ids[0].n == row[i].upper && ids[1].n == row[i].end && ids[2].n == row[i].sign,
                      "%s: %d, %d, %d ids", row[i].file, (int)ids[0].n, (int)ids[1].n,
                      (int)ids[2].n);
        for (int k = 0; k < 3; k++) tn_ids_free(&ids[k]);
        tn_tokenizer_free(t);
    }
    tn_tokenizer *t = kept(tn_tokenizer_load(folder)); /* finds tokenizer.model */
    assert_ok(tn_tokenizer_save(t, in_folder("saved.json")));
    size_t n;
    char *saved = owned(read_bytes(in_folder("saved.json"), &n));
    saved[n - 1] = '\0';
    ck_assert_ptr_nonnull(strstr(saved, "\"<|eot_id|>\":128009"));
}
END_TEST

START_TEST(ranks_refused)
{
    static const struct {
        const char *text, *error;
    } bad[] = { { "\n\1", "of SentencePiece" },
                { "YQ== 0\nYg==\n", "line 2: want 1 to 512 bytes" },
                { "YQ== 0x", "line 1: want" },
                { "YQ== -1\n", "line 1: want" },
                { "YQ==  \t1\r\nYg==\n", "line 2: want" },
                { "YQ== 1\rYg== 2\n", "line 1: want" },
                { "YQ== 2147483647\n", "line 1: want" },
                { "YQ== 1\n\r\n\nYg==\n", "line 4: want" },
                { "Y?== 1\n", "line 1: want" },
                { " 1\n", "line 1: want" },
                { "YQ== 1\nYg== 1\n", "have the id 1" },
                { "YQ== 1\nYQ== 2\n", "is there twice" },
                { "YQ== 0\n", "no token for the byte 0x00 alone" },
                { "", "no token for the byte" } };
    for (int i = 0; i < COUNT(bad); i++)
        assert_null(load_ranks(write_bytes("t.tiktoken", bad[i].text, strlen(bad[i].text))),
                    TN_E_FORMAT, bad[i].error);
    const char *path = golden("ranks/ranks.tiktoken");
    assert_null(tn_tokenizer_load(path), TN_E_INVALID,
                "its name is no encoding's: want gpt2, cl100k");
    assert_null(tn_tokenizer_load_tiktoken(path, (tn_tiktoken_options){ .encoding = "p50k" }),
                TN_E_INVALID, "the encoding p50k: want gpt2");
    assert_null(tn_tokenizer_load_tiktoken(path, (tn_tiktoken_options){ .pattern = "(" }),
                TN_E_UNSUPPORTED, "cannot read the pattern");
    const char *special[] = { "\xff" };
    assert_null(
        tn_tokenizer_load_tiktoken(
            path, (tn_tiktoken_options){ .pattern = "a", .special = special, .n_special = 1 }),
        TN_E_FORMAT, "is not UTF-8");
    assert_null(tn_tokenizer_load_tiktoken(NULL, (tn_tiktoken_options){ 0 }), TN_E_INVALID, "path");
}
END_TEST

/* ---- U+2581 for spaces ----------------------------------------------------------------------- */

START_TEST(marked)
{
    check_golden("llama/tokenizer.bin", load("llama"));
    check_golden("meta/tokenizer.bin", load("meta"));
}
END_TEST

/* A run of bytes waits for its end; if it is no text, it is U+FFFD for each byte. */
START_TEST(bytes_that_are_spelt)
{
    tn_tokenizer *t = load("llama");
    const char *names[] = { "<0xE4>", "<0xB8>", "<0xAD>", "a", "<0xE4>", "<0x41>", "<0x20>" };
    const char *want[] = { "", "", "", "\u4e2da", "", "", "" };
    tn_token_stream *s = tn_token_stream_new(t, (tn_decode_options){ 0 });
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 7; i++)
            ck_assert_str_eq(tn_token_stream_add(s, tn_tokenizer_id(t, names[i])), want[i]);
        ck_assert_str_eq(tn_token_stream_end(s), "\ufffd\ufffd\ufffd");
    }
    ck_assert_str_eq(tn_token_stream_add(s, tn_tokenizer_id(t, "<0x20>")), "");
    ck_assert_str_eq(tn_token_stream_add(s, tn_tokenizer_id(t, "a")), "a"); /* without its space */
    tn_token_stream_free(s);
}
END_TEST

#define MARKED_BPE                                                                                 \
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"u\", \"fuse_unk\": %s, \"byte_fallback\": "   \
    "true, "                                                                                       \
    "\"ignore_merges\": %s, \"vocab\": {\"u\": 0, \"a\": 1, \"\u2581\": 2, \"<0xC3>\": 3, "        \
    "\"<0xA9>\": 4, "                                                                              \
    "\"aa\": 5}, \"merges\": []}}"
#define TO_MARKS                                                                                   \
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\u2581\"}"
#define FROM_MARKS                                                                                 \
    "\"decoder\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\u2581\"}, \"content\": \" " \
    "\"}, "

START_TEST(unknown_and_whole)
{
    char json[1000];
    const tn_encode_options o = { 0 };
    snprintf(json, sizeof json, "{\"normalizer\": " TO_MARKS ", " FROM_MARKS MARKED_BPE, "true",
             "false");
    tn_tokenizer *fused = kept(load_text(json));
    assert_encoded(fused, "aa \u00e9xyz", o, 1, 1, 2, 3, 4, 0);
    assert_encoded(fused, "ax\u00e9\u00e9yza", o, 1, 3, 4, 3, 4, 0,
                   1); /* as the package: bytes first */
    snprintf(json, sizeof json, "{\"normalizer\": " TO_MARKS ", " FROM_MARKS MARKED_BPE, "false",
             "true");
    tn_tokenizer *t = kept(load_text(json));
    assert_encoded(t, "aaxy", o, 1, 1, 0, 0);
    assert_encoded(t, "ax\u00e9\u00e9yza", o, 1, 3, 4, 3, 4, 0, 0, 0, 1);
    assert_encoded(t, "aa", o, 5);
    t = kept(load_text(
        "{\"normalizer\": " TO_MARKS ", " FROM_MARKS
        "\"added_tokens\": [{\"id\": 4, \"content\": \"b\", \"special\": true}], \"model\": "
        "{\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"\u2581\": 1, \"\u2581\u2581\": 2, "
        "\"\u2581a\": 3}, \"merges\": [\"\u2581 \u2581\", \"\u2581 a\"]}}"));
    assert_encoded(t, "a  ab a", o, 0, 2, 0, 4, 3);
    assert_encoded(t, "ab", (tn_encode_options){ .literal = true }, 0);
    static const struct {
        const char *head, *error;
    } bad[] = {
        { "{\"normalizer\": " TO_MARKS ", ", "without a decoder" },
        { "{\"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"\u2581\"}, " BYTES,
          "Prepend without Replace" },
        { "{\"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"_\"}, ",
          "the normalizer Prepend" },
        { "{\"normalizer\": " TO_MARKS ", " BYTES FROM_MARKS, "with other pre-tokenizers" },
        { "{\"normalizer\": " TO_MARKS ", \"decoder\": {\"type\": \"ByteLevel\"}, ",
          "the decoder ByteLevel, as it stands here" },
        { "{\"normalizer\": " TO_MARKS
          ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
          "\"ByteFallback\"}]}, ",
          "the decoder ByteFallback, as it" },
        { "{\"normalizer\": " TO_MARKS ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
          "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\u2581\"}, \"content\": \" \"}, "
          "{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}]}, ",
          "the decoder ByteFallback, as it" },
        { "{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\"}, " FROM_MARKS,
          "Metaspace with _" },
        { "{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\u2581\", "
          "\"prepend_scheme\": "
          "\"odd\"}, " FROM_MARKS,
          "odd" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        snprintf(json, sizeof json, "%s" MARKED_BPE, bad[i].head, "true", "true");
        assert_null(load_text(json), TN_E_UNSUPPORTED, bad[i].error);
    }
}
END_TEST

/* ---- training -------------------------------------------------------------------------------- */

static tn_tokenizer *train(int64_t vocab_size, int64_t min_frequency)
{
    static const char *const special[] = { "<|end|>", "<pad>" };
    size_t n;
    char *text = owned(read_bytes(golden("trained/text.txt"), &n));
    return tn_tokenizer_train(text, (int64_t)n,
                              (tn_bpe_options){ .vocab_size = vocab_size,
                                                .min_frequency = min_frequency,
                                                .special = special,
                                                .n_special = 2 });
}

START_TEST(trained)
{
    tn_tokenizer *t = kept(train(500, 0)), *want = load("trained");
    ck_assert_int_eq(tn_tokenizer_get_info(t).vocab_size, 500);
    for (int i = 0; i < 500; i++)
        ck_assert_str_eq(tn_tokenizer_token(t, i), tn_tokenizer_token(want, i));
    check_golden("trained/tokenizer.bin", t);
    check_saved("trained/tokenizer.bin", t);
}
END_TEST

/* A special token is its text, whatever bytes its letters would stand for. */
START_TEST(special_tokens_of_any_text)
{
    const char *special[] = { "<my end>", "\u00e9t\u00e9 \"1\"\\", "ab" };
    tn_tokenizer *t = kept(tn_tokenizer_train(
        "ab ab", -1, (tn_bpe_options){ .vocab_size = 261, .special = special, .n_special = 3 }));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(tn_tokenizer_id(t, special[i]), i);
            assert_encoded(t, special[i], (tn_encode_options){ 0 }, i);
        }
        assert_ok(tn_tokenizer_save(t, in_folder("tokenizer.json")));
        t = kept(tn_tokenizer_load(folder));
    }
    /* literally, no word and no merge is a special token */
    const int64_t a_id = tn_tokenizer_id(t, "a"), b_id = tn_tokenizer_id(t, "b");
    assert_encoded(t, "ab", (tn_encode_options){ .literal = true }, a_id, b_id);
    char *lines = owned(malloc(1 << 13)), *at = lines;
    for (int b = 0; b < 256; b++) {
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        at += sprintf(at, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
    }
    at += sprintf(at, "YWJj 256\n"); /* abc */
    t = kept(tn_tokenizer_load_tiktoken(
        write_bytes("t.tiktoken", lines, (size_t)(at - lines)),
        (tn_tiktoken_options){ .encoding = "gpt2", .special = &special[2], .n_special = 1 }));
    assert_encoded(t, "ab", (tn_encode_options){ 0 }, 257);
    assert_encoded(t, "ab abd", (tn_encode_options){ .literal = true }, 'a', 'b', ' ', 'a', 'b',
                   'd');
    assert_encoded(t, "abc abcd", (tn_encode_options){ .literal = true }, 256, ' ', 'a', 'b', 'c',
                   'd');
}
END_TEST

/* One word: a merge goes through it once. */
START_TEST(trained_on_megabytes_in_one_word)
{
    const size_t n = 1 << 21;
    char *text = owned(malloc(n));
    memset(text, 'a', n);
    clock_t begin = clock();
    tn_tokenizer *t = kept(tn_tokenizer_train(text, (int64_t)n, (tn_bpe_options){ 0 }));
    ck_assert_msg(clock() - begin < 20 * CLOCKS_PER_SEC, "a quadratic merge takes minutes");
    ck_assert_int_eq(tn_tokenizer_get_info(t).vocab_size, 256 + 21);
}
END_TEST

START_TEST(trained_as_asked)
{
    const char *text = "ab ab ab abc abc xyxy";
    const tn_encode_options o = { 0 };
    tn_tokenizer *t = kept(tn_tokenizer_train(text, -1, (tn_bpe_options){ .min_frequency = 3 }));
    ck_assert_int_eq(tn_tokenizer_get_info(t).vocab_size, 258); /* ab; a space and ab */
    ck_assert_int_eq(tn_tokenizer_id(t, "!"), 0);
    ck_assert_int_eq(tn_tokenizer_id(t, "ab"), 256);
    ck_assert_int_eq(tn_tokenizer_id(t, "\u0120ab"), 257);
    t = kept(tn_tokenizer_train(text, 2, (tn_bpe_options){ .vocab_size = 256 }));
    assert_encoded(t, "ab", o, 'a' - '!', 'b' - '!');
    t = kept(tn_tokenizer_train(text, -1, (tn_bpe_options){ .pattern = "[a-c ]+|." }));
    assert_made(tn_tokenizer_token(t, tn_tokenizer_id(t, "ab\u0120ab")));
    ck_assert_int_eq(
        tn_tokenizer_get_info(kept(tn_tokenizer_train("", 0, (tn_bpe_options){ 0 }))).vocab_size,
        256);
    const char *twice[] = { "<a>", "<a>" };
    const char *odd[] = { "\xff" };
    assert_null(tn_tokenizer_train(text, -1, (tn_bpe_options){ .special = twice, .n_special = 2 }),
                TN_E_FORMAT, "\"<a>\" is there twice");
    assert_null(tn_tokenizer_train(text, -1, (tn_bpe_options){ .special = odd, .n_special = 1 }),
                TN_E_FORMAT, "is not UTF-8");
    assert_null(tn_tokenizer_train(text, -1, (tn_bpe_options){ .vocab_size = 255 }), TN_E_INVALID,
                "vocab_size 255: want 256");
    assert_null(tn_tokenizer_train(text, -1, (tn_bpe_options){ .vocab_size = INT64_MIN }),
                TN_E_INVALID, "special tokens or more, at most 2^28");
    assert_null(tn_tokenizer_train(text, -1, (tn_bpe_options){ .pattern = "(" }), TN_E_UNSUPPORTED,
                "cannot read the pattern (");
    assert_null(tn_tokenizer_train("a\xff", -1, (tn_bpe_options){ 0 }), TN_E_INVALID,
                "byte 1 of the text, 0xFF");
    assert_null(tn_tokenizer_train(NULL, -1, (tn_bpe_options){ 0 }), TN_E_INVALID, "text is NULL");
}
END_TEST

static tn_status train_and_drop(void *user)
{
    tn_tokenizer *t = tn_tokenizer_train(user, -1, (tn_bpe_options){ .vocab_size = 270 });
    const tn_status status = t ? TN_OK : tn_error_status();
    tn_tokenizer_free(t);
    return status;
}

/* ---- long words ------------------------------------------------------------------------------ */

/* Merges in the order of their ranks: two tokens and what they make. */
static const char *const merges[][3] = {
    { "a", "b", "ab" },       { "a", "a", "aa" },     { "b", "a", "ba" },
    { "aa", "b", "aab" },     { "a", "ab", "aab" },   { "b", "b", "bb" },
    { "aa", "aa", "aaaa" },   { "ab", "ab", "abab" }, { "ba", "ab", "baab" },
    { "bb", "aab", "bbaab" },
};

/* The leftmost of the lowest ranks, searched anew each time: quadratic. */
static size_t slowly(const char **symbol, size_t n)
{
    for (;;) {
        size_t best = n, rank = COUNT(merges);
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < rank; k++)
                if (!strcmp(merges[k][0], symbol[i]) && !strcmp(merges[k][1], symbol[i + 1]))
                    best = i, rank = k;
        if (best == n) return n;
        symbol[best] = merges[rank][2];
        memmove(symbol + best + 1, symbol + best + 2, (n - best - 2) * sizeof *symbol);
        n--;
    }
}

START_TEST(marks_in_a_row)
{
    tn_tokenizer *t = load("qwen.json");
    char text[2 * 4200] = "a";
    tn_ids ids = { 0 };
    for (int i = 0; i < 4096; i++) strcpy(text + 1 + 2 * i, i % 2 ? "\u0301" : "\u0323");
    assert_ok(tn_tokenizer_encode(t, text, -1, (tn_encode_options){ 0 }, &ids));
    strcat(text, "\u0301");
    assert_fails(tn_tokenizer_encode(t, text, -1, (tn_encode_options){ 0 }, &ids), TN_E_INVALID,
                 "more than 4,096 marks");
    tn_ids_free(&ids);
}
END_TEST

START_TEST(words_of_any_length)
{
    char json[2000] = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "
                      "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, "
                      "\"aa\": 3, \"ba\": 4, \"aab\": 5, \"bb\": 6, \"aaaa\": 7, \"abab\": 8, "
                      "\"baab\": 9, \"bbaab\": 10}, \"merges\": [";
    for (int i = 0; i < COUNT(merges); i++)
        sprintf(json + strlen(json), "%s[\"%s\", \"%s\"]", i ? "," : "", merges[i][0],
                merges[i][1]);
    strcat(json, "]}}");
    tn_tokenizer *t = kept(load_text(json));
    uint32_t state = 1;
    for (int n = 2; n < 400; n += n < 100 ? 1 : 37) {
        char word[401] = "";
        const char *symbol[400];
        int64_t want[400];
        for (int i = 0; i < n; i++) {
            state = state * 1664525 + 1013904223;
            symbol[i] = state >> 24 & 3 ? "a" : "b";
            strcat(word, symbol[i]);
        }
        size_t k = slowly(symbol, (size_t)n);
        for (size_t i = 0; i < k; i++) want[i] = tn_tokenizer_id(t, symbol[i]);
        assert_ids(t, word, (tn_encode_options){ 0 }, (int)k, want);
    }
}
END_TEST

START_TEST(a_word_of_a_megabyte)
{
    tn_tokenizer *t = load("byte.json");
    size_t n = 1 << 20;
    char *word = owned(malloc(n + 1));
    tn_ids ids = { 0 };
    tn_chars back = { 0 };
    for (size_t i = 0; i < n; i++) word[i] = "theandofing"[i * i % 11];
    word[n] = 0;
    clock_t begin = clock();
    assert_ok(tn_tokenizer_encode(t, word, (int64_t)n, (tn_encode_options){ 0 }, &ids));
    ck_assert_msg(clock() - begin < 20 * CLOCKS_PER_SEC, "a quadratic merge takes hours");
    assert_ok(tn_tokenizer_decode(t, ids.id, ids.n, (tn_decode_options){ 0 }, &back));
    same_text("a megabyte", back.text, (size_t)back.n, word, n);
    tn_ids_free(&ids);
    tn_chars_free(&back);
}
END_TEST

/* ---- files that lie -------------------------------------------------------------------------- */

START_TEST(refused)
{
    static const struct {
        const char *json;
        tn_status status;
        const char *text;
    } bad[] = {
        { "", TN_E_FORMAT, "it is cut off" },
        { "[1]", TN_E_FORMAT, "no JSON object at byte 3: want {" },
        { "{}", TN_E_UNSUPPORTED, "the model without type" },
        { "{\"model\": {\"type\": \"Unigram\"}}", TN_E_UNSUPPORTED, "the model Unigram" },
        { "{" MODEL "[\"a c\"]}}", TN_E_FORMAT, "the second is no token" },
        { "{" MODEL "[\"b a\"]}}", TN_E_FORMAT, "what they make is no token" },
        { "{" MODEL "[\"ab\"]}}", TN_E_FORMAT, "merge 0 is not of two tokens" },
        { "{" MODEL "[[\"a\", \"b\", \"c\"]]}}", TN_E_FORMAT, "is not of two tokens" },
        { "{" MODEL "{}}}", TN_E_FORMAT, "model.merges is no list" },
        { "{" BYTES "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
          TN_E_FORMAT, "id is not an integer" },
        { "{" BYTES
          "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 4000000000}, \"merges\": []}}",
          TN_E_FORMAT, "id is not an integer from 0" },
        { "{" BYTES
          "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}}",
          TN_E_FORMAT, "\"a\" and \"b\" have the id 1" },
        { "{" BYTES
          "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"a\": 2}, \"merges\": []}}",
          TN_E_FORMAT, "\"a\" is there twice" },
        { "{" BYTES
          "\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {}, \"merges\": []}}",
          TN_E_UNSUPPORTED, "dropout" },
        { "{" BYTES
          "\"model\": {\"type\": \"BPE\", \"end_of_word_suffix\": \"</w>\", \"vocab\": {}}}",
          TN_E_UNSUPPORTED, "end_of_word_suffix" },
        { "{" BYTES "\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {}}}",
          TN_E_UNSUPPORTED, "byte_fallback" },
        { "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}", TN_E_UNSUPPORTED,
          "WordPiece with another pre-tokenizer" },
        { "{" BYTES PIECES "}}", TN_E_UNSUPPORTED, "WordPiece with another pre-tokenizer" },
        { "{" BERT PIECES "}}", TN_E_UNSUPPORTED, "WordPiece without its decoder" },
        { "{\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"@\"}, " BERT PIECES "}}",
          TN_E_UNSUPPORTED, "WordPiece without its decoder" },
        { "{" UNDO BERT PIECES ", \"unk_token\": \"[X]\"}}", TN_E_FORMAT,
          "unk_token \"[X]\" is no token" },
        { "{\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"" LONG "\"}, " BERT PIECES
          ", \"continuing_subword_prefix\": \"" LONG "\"}}",
          TN_E_UNSUPPORTED, "the prefix " LONG },
        { "{" UNDO MODEL "[]}}", TN_E_UNSUPPORTED, "BPE with a part of WordPiece's" },
        { "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, "
          "{\"type\": \"BertNormalizer\"}]}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "more than one normalizer" },
        { "{\"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 0], \"sep\": "
          "[\"z\", 26]}, " MODEL "[]}}",
          TN_E_FORMAT, "the post-processor's id 26 is no token" },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", TN_E_UNSUPPORTED,
          "a pre-tokenizer other than ByteLevel" },
        { "{\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"lstrip\": true}], " MODEL "[]}}",
          TN_E_UNSUPPORTED, "lstrip of the added token \"x\"" },
        { "{\"normalizer\": {\"type\": \"NFKC\"}, " MODEL "[]}}", TN_E_UNSUPPORTED,
          "the normalizer NFKC" },
        { "{\"added_tokens\": 4611686018427387904, " MODEL "[]}}", TN_E_FORMAT,
          "added_tokens is no list" },
        { "{" BYTES "\"model\": {\"type\": \"BPE\", \"unk_token\": \"a\", \"vocab\": {\"a\": 0}, "
          "\"merges\": []}}",
          TN_E_UNSUPPORTED, "model.unk_token" },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(*ACCEPT)b\"}, "
          "\"behavior\": \"Isolated\"}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "another meaning here" },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?m:a.)\"}, "
          "\"behavior\": \"Isolated\"}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "another meaning here" },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a{2}?\"}, "
          "\"behavior\": \"Isolated\"}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "another meaning here" },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a*\"}, "
          "\"behavior\": \"Isolated\"}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "finds empty words" },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, "
          "\"behavior\": \"Contiguous\"}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "the behavior Contiguous" },
        { "{\"added_tokens\": [{\"id\": 0, \"content\": \"x\"}], " MODEL "[]}}", TN_E_FORMAT,
          "has the id 0 of \"a\"" },
        { "{\"added_tokens\": [{\"id\": 1, \"content\": \"a\"}], " MODEL "[]}}", TN_E_FORMAT,
          "in the vocabulary 0" },
        { "{\"added_tokens\": [{\"id\": 9, \"content\": \"\"}], " MODEL "[]}}", TN_E_FORMAT,
          "without content" },
        { "{\"normalizer\": {\"type\": \"Precompiled\"}, " MODEL "[]}}", TN_E_UNSUPPORTED,
          "the normalizer Precompiled" },
        { "{\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}, " MODEL "[]}}", TN_E_UNSUPPORTED,
          "the pre-tokenizer UnicodeScripts" },
        { "{\"decoder\": {\"type\": \"CTC\"}, " MODEL "[]}}", TN_E_UNSUPPORTED, "the decoder CTC" },
        { "{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
          "{\"id\": \"c\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"c\": "
          "{\"ids\": "
          "[7]}}}, " MODEL "[]}}",
          TN_E_FORMAT, "the post-processor's id 7 is no token" },
        { "{\"post_processor\": {\"type\": \"BertProcessing\"}, " MODEL "[]}}", TN_E_FORMAT,
          "an id of \"cls\" is no integer" },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, "
          "\"behavior\": \"Isolated\"}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "PCRE2 cannot read the pattern (a" },
        { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": "
          "\"[a-z&&[^b]]\"}, \"behavior\": \"Isolated\"}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "another meaning here" },
        { "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
          "\"ByteLevel\"}, {\"type\": \"Digits\"}]}, " MODEL "[]}}",
          TN_E_UNSUPPORTED, "a pre-tokenizer after ByteLevel" },
    };
    for (int i = 0; i < COUNT(bad); i++)
        assert_null(load_text(bad[i].json), bad[i].status, bad[i].text);
    char deep[1000];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    assert_null(load_text(deep), TN_E_FORMAT, "nested too deeply");
    assert_null(tn_tokenizer_load(in_folder("none")), TN_E_IO, "none");
    assert_null(tn_tokenizer_load(NULL), TN_E_INVALID, "path");
}
END_TEST

START_TEST(a_pattern_that_explodes)
{
    tn_tokenizer *t = kept(load_text(
        "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
        "\"pattern\": {\"Regex\": \"(a|aa)+$\"}, \"behavior\": \"Isolated\"}, {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": false}]}, " MODEL "[]}}"));
    tn_ids ids = { 0 };
    assert_ok(tn_tokenizer_encode(t, "a", -1, (tn_encode_options){ 0 }, &ids));
    assert_fails(tn_tokenizer_encode(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
                                     -1, (tn_encode_options){ 0 }, &ids),
                 TN_E_INVALID, "takes too long");
    ck_assert_int_eq(ids.n, 1);
    tn_ids_free(&ids);
}
END_TEST

/* Every byte of a file in turn cut off, or another one: it loads or it does not. */
START_TEST(damaged_files)
{
    size_t n;
    char *json = owned(read_bytes(golden("qwen.json"), &n));
    tn_ids ids = { 0 };
    for (size_t i = 0; i < n; i += (size_t)full_or(1, 23)) {
        char was = json[i];
        json[i] = (char)"{}[]\",:0x\\"[i % 10];
        tn_tokenizer *t = tn_tokenizer_load(write_bytes("t.json", json, n));
        if (t)
            ck_assert_int_ne(
                tn_tokenizer_encode(t, "The world!", -1, (tn_encode_options){ 0 }, &ids),
                TN_E_NOMEM);
        tn_tokenizer_free(t);
        json[i] = was;
        tn_tokenizer_free(tn_tokenizer_load(write_bytes("t.json", json, i)));
        tn_error_clear();
    }
    tn_ids_free(&ids);
}
END_TEST

/* The same of the other files. */
START_TEST(damaged_layouts)
{
    enum { FILES = 5 };
    static const char *const file[FILES] = { "vocab.json", "merges.txt", "special_tokens_map.json",
                                             "added_tokens.json", "t.tiktoken" };
    static const char *const from[FILES] = { "gpt2/vocab.json", "gpt2/merges.txt",
                                             "gpt2/special_tokens_map.json",
                                             "gpt2/added_tokens.json", "ranks/ranks.tiktoken" };
    for (int k = 0; k < FILES; k++) copy_golden(from[k], file[k]);
    for (int k = 0; k < FILES; k++) {
        size_t n;
        char *text = owned(read_bytes(golden(from[k]), &n));
        for (size_t i = 0; i < n; i += (size_t)full_or(n < 1000 ? 1 : 13, n < 1000 ? 3 : 97)) {
            const char was = text[i];
            for (int how = 0; how < 2; how++) {
                if (how == 0) text[i] = "{}[]\",:0x\\\n =A/"[i % 15];
                const char *path = write_bytes(file[k], text, how ? i : n);
                tn_tokenizer *t = k == FILES - 1 ? load_ranks(path) : tn_tokenizer_load(folder);
                if (!t) ck_assert_msg(tn_error_status() != TN_E_NOMEM, "%s", tn_error());
                tn_tokenizer_free(t);
                tn_error_clear();
                text[i] = was;
            }
        }
        copy_golden(from[k], file[k]);
    }
}
END_TEST

/* ---- threads and memory ---------------------------------------------------------------------- */

static void *encode_golden(void *t)
{
    check_golden("qwen.bin", t);
    return NULL;
}

START_TEST(threads)
{
    if (!child_may_start_threads()) return;
    tn_tokenizer *t = load("qwen.json");
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) ck_assert(!pthread_create(&thread[i], NULL, encode_golden, t));
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
}
END_TEST

static tn_status load_and_use(void *user)
{
    tn_ids ids = { 0 };
    tn_chars text = { 0 };
    const bool ranks = strstr(user, ".tiktoken");
    tn_tokenizer *t = ranks ? load_ranks(golden(user)) : tn_tokenizer_load(golden(user));
    tn_status status = t ? TN_OK : tn_error_status();
    if (t)
        status = tn_tokenizer_encode(t, "He\u0301llo worl\u00e9d's 42 <|end|>", -1,
                                     (tn_encode_options){ 0 }, &ids);
    if (status == TN_OK)
        status = tn_tokenizer_decode(t, ids.id, ids.n, (tn_decode_options){ 0 }, &text);
    tn_ids_free(&ids);
    tn_chars_free(&text);
    tn_tokenizer_free(t);
    return status;
}

START_TEST(memory_runs_out)
{
    ck_assert_int_gt(scarce_sweep_warm(load_and_use, NULL, (void *)"smol.json"), 10);
    ck_assert_int_gt(scarce_sweep_warm(load_and_use, NULL, (void *)"qwen.json"), 10);
    ck_assert_int_gt(scarce_sweep_warm(load_and_use, NULL, (void *)"piece.json"), 10);
    ck_assert_int_gt(scarce_sweep_warm(load_and_use, NULL, (void *)"gpt2"), 10);
    ck_assert_int_gt(scarce_sweep_warm(load_and_use, NULL, (void *)"meta"), 10);
    ck_assert_int_gt(scarce_sweep_warm(train_and_drop, NULL, (void *)"ab ab abc abcabc banana"),
                     10);
    ck_assert_int_gt(scarce_sweep_warm(load_and_use, NULL, (void *)"ranks/ranks.tiktoken"), 10);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("tokenizer");
    TCase *t = file_case(suite, "tokenizer");
    add_tests(t, as_the_package, what_it_has, with_and_without_what_is_around,
              bytes_that_are_no_text, pieces, vocab_and_merges, vocab_and_merges_of_qwen,
              vocab_and_merges_of_gpt2, ranks, encodings, ranks_refused, marked,
              bytes_that_are_spelt, unknown_and_whole, trained, trained_as_asked,
              special_tokens_of_any_text, trained_on_megabytes_in_one_word, marks_in_a_row,
              words_of_any_length, a_word_of_a_megabyte, refused, a_pattern_that_explodes,
              damaged_files, damaged_layouts, threads);
    add_tests(scarce_case(suite, "memory"), memory_runs_out);
    return suite;
}
