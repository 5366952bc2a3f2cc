/*
 * tokenizers.h - golden files of tokenizers, and what suites ask of a tokenizer.
 */
#ifndef TENON_TESTS_TOKENIZERS_H
#define TENON_TESTS_TOKENIZERS_H

#include <tenon/tokenizer.h>

#include "files.h"

static inline void free_tokenizer(void *t)
{
    tn_tokenizer_free(t);
}

static inline tn_tokenizer *kept(tn_tokenizer *t)
{
    assert_made(t);
    free_at_end(t, free_tokenizer);
    return t;
}

static inline const char *golden(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "lm/tokenizer_%s", name);
    return golden_path(file);
}

static inline tn_tokenizer *load(const char *name)
{
    return kept(tn_tokenizer_load(golden(name)));
}

typedef struct reader {
    char *data;
    size_t at, n;
} reader;

static inline reader open_golden(const char *name)
{
    reader r = { 0 };
    r.data = owned(read_bytes(golden(name), &r.n));
    return r;
}

/* A number of items of `size` bytes, and where they are. */
static inline const char *take(reader *r, size_t size, size_t *n)
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

static inline void same_ids(const char *what, const tn_ids *ids, const char *want, size_t n)
{
    ck_assert_msg(ids->n == (int64_t)n, "%s: %d ids, not %d", what, (int)ids->n, (int)n);
    for (size_t i = 0; i < n; i++) {
        int32_t id;
        memcpy(&id, want + 4 * i, 4);
        ck_assert_msg(ids->id[i] == id, "%s: id %d is %d, not %d", what, (int)i, (int)ids->id[i],
                      id);
    }
}

static inline void same_text(const char *what, const char *text, size_t n, const char *want,
                             size_t m)
{
    ck_assert_msg(n == m && memcmp(text, want, n) == 0, "%s: \"%.*s\" is not \"%.*s\"", what,
                  (int)n, text, (int)m, want);
}

/* The same ids one at a time: parts of UTF-8, which together are the text. */
static inline void check_stream(const char *what, const tn_tokenizer *t, const tn_ids *ids,
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

static inline void check_golden(const char *name, const tn_tokenizer *t)
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

static inline void assert_ids(const tn_tokenizer *t, const char *text, tn_encode_options o, int n,
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

static inline tn_tokenizer *load_ranks(const char *path)
{
    static const char *const special[] = { "<|end|>", "<pad>" };
    return tn_tokenizer_load_tiktoken(
        path,
        (tn_tiktoken_options){ .encoding = "cl100k_base", .special = special, .n_special = 2 });
}

/* tokenizer_layouts.c */
void tokenizer_layouts_cases(Suite *suite);

#endif
