/*
 * test_tokenizer.c - ids and texts of tokenizers, and files that lie.
 *
 * Truth: golden/lm/tokenizer_*, by the packages tokenizers and tiktoken (make_lm_tokenizer.py); a
 * quadratic merge written here.
 *
 * Seen to fail: without the prefix of pieces, spaces around ideographs, or what is_removed() takes
 * out; with a word one character longer than the longest; with added tokens as pieces
 * (src/ext/lm/wordpiece.c); without clean_up(), or with a stream that does not begin again
 * (detokenize.c); with NFC in place of NFD (added.c); with a marked text cut where tokens go on, or
 * between two marks, with added tokens found as characters, or characters in their order
 * (metaspace.c). Other files and training: tokenizer_layouts.c.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "scarce.h"
#include "lm/tokenizers.h"

static tn_tokenizer *load_text(const char *json)
{
    return tn_tokenizer_load(write_bytes("t.json", json, strlen(json)));
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
    /* as the package: bytes first */
    assert_encoded(fused, "ax\u00e9\u00e9yza", o, 1, 3, 4, 3, 4, 0, 1);
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

static tn_status train_and_drop(void *user)
{
    tn_tokenizer *t = tn_tokenizer_train(user, -1, (tn_bpe_options){ .vocab_size = 270 });
    const tn_status status = t ? TN_OK : tn_error_status();
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
              bytes_that_are_no_text, pieces, marked, bytes_that_are_spelt, unknown_and_whole,
              marks_in_a_row, words_of_any_length, a_word_of_a_megabyte, refused,
              a_pattern_that_explodes, damaged_files, threads);
    tokenizer_layouts_cases(suite);
    add_tests(scarce_case(suite, "memory"), memory_runs_out);
    return suite;
}
