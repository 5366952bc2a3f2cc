/*
 * tokenizer_layouts.c - tokenizers of other files than a tokenizer.json, and of texts: GPT-2's
 * vocab.json and merges.txt, tiktoken's ranks, training.
 *
 * Truth: golden/lm/tokenizer_*, by the packages tokenizers, transformers and tiktoken
 * (make_lm_tokenizer.py).
 *
 * Seen to fail: without what ends cl100k_base's pattern, NFC of Qwen 2, ids behind the vocabulary,
 * or their order; with special tokens in ByteLevel's letters, or joined as words
 * (src/ext/lm/layouts.c); with the larger ids first among pairs that are as frequent, counts that
 * are too old, or memmove for each merge (train.c).
 */
#include <stdlib.h>
#include <time.h>

#include "scarce.h"
#include "lm/tokenizers.h"

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
    write_bytes("merges.txt", "#version\r\n\r\n\na b\r\n", 18);
    assert_encoded(kept(tn_tokenizer_load(folder)), "ab", (tn_encode_options){ 0 }, 3);
#define BAD(file, text, error)                                                                     \
    {                                                                                              \
        file, text, sizeof(text) - 1, error                                                        \
    }
#define ADDED(text) "{\"added_tokens_decoder\": " text "}"
    static const struct {
        const char *file, *text;
        size_t n;
        const char *error;
    } bad[] = {
        BAD("merges.txt", "a b c\n", "merges.txt, line 1, \"a\": want two"),
        BAD("merges.txt", "a b\nb a", "merge 1, \"b\" and \"a\": what they make"),
        BAD("merges.txt", "a \xff\n", "merges.txt, line 1"),
        BAD("merges.txt", "a b\n\0", "a zero byte in"),
        BAD("merges.txt", "a b\r\n\r\n\na\n", "merges.txt, line 4, \"a\""),
        BAD("merges.txt", "a b\ra c\n", "merges.txt, line 1, \"a\""),
        BAD("tokenizer_config.json", ADDED("[{\"id\": 5, \"content\": \"c\"}]"),
            "added_tokens_decoder is no object"),
        BAD("tokenizer_config.json", ADDED("{\"-5\": {\"content\": \"c\"}}"),
            "the id of the added token \"c\": want 0"),
        BAD("tokenizer_config.json", ADDED("{\"5x\": {\"content\": \"c\"}}"),
            "the id of the added token"),
        BAD("tokenizer_config.json", ADDED("{\"\": {\"content\": \"c\"}}"),
            "the id of the added token"),
        BAD("tokenizer_config.json", ADDED("{\"9223372036854775807\": {\"content\": \"c\"}}"),
            "the id of the added token"),
        BAD("tokenizer_config.json", ADDED("{\"2147483647\": {\"content\": \"c\"}}"),
            "the id of the added token"),
        BAD("tokenizer_config.json", ADDED("{\"5\": \"c\"}"), "without content"),
        BAD("added_tokens.json", "{\"c\": 9223372036854775807}",
            "the id of the added token \"c\": want 0"),
        BAD("added_tokens.json", "{\"c\": \"5\"}", "the id of the added token"),
        BAD("added_tokens.json", "{\"c\": 0}", "\"c\" has the id 0 of \"a\""),
    };
    for (int i = 0; i < COUNT(bad); i++) {
        write_bytes(bad[i].file, bad[i].text, bad[i].n);
        assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, bad[i].error);
        const char *good = strcmp(bad[i].file, "merges.txt") == 0 ? "a b\n" : "{}";
        write_bytes(bad[i].file, good, strlen(good));
        assert_encoded(kept(tn_tokenizer_load(folder)), "ab", (tn_encode_options){ 0 }, 3);
    }
    write_bytes("vocab.json", "{\"a\":", 5);
    assert_null(tn_tokenizer_load(folder), TN_E_FORMAT, "vocab.json: no JSON object at byte 5");
    ck_assert(!remove(in_folder("merges.txt")) && !remove(in_folder("vocab.json")));
    assert_null(tn_tokenizer_load(folder), TN_E_IO, "no tokenizer.json, vocab.json or");
}
END_TEST

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
    const char *path = many_ranks("t.tiktoken", 256);
    FILE *more = fopen(path, "a");
    ck_assert_ptr_nonnull(more);
    fputs("YWJj 256\n", more); /* abc */
    ck_assert(!fclose(more));
    t = kept(tn_tokenizer_load_tiktoken(
        path, (tn_tiktoken_options){ .encoding = "gpt2", .special = &special[2], .n_special = 1 }));
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

/* Bytes cut off, or other ones: it loads or it does not. */
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

void tokenizer_layouts_cases(Suite *suite)
{
    add_tests(file_case(suite, "layouts"), vocab_and_merges, vocab_and_merges_of_qwen,
              vocab_and_merges_of_gpt2, ranks, encodings, ranks_refused, trained, trained_as_asked,
              special_tokens_of_any_text, trained_on_megabytes_in_one_word, damaged_layouts);
}
