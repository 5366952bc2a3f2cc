/*
 * tokens.c - tokenizers for tokenizers.py to compare with their packages.
 *
 *     tokens encode TOKENIZER PATTERN IN OUT    the ids of each text of IN, and their text again
 *     tokens time TOKENIZER PATTERN IN ROUNDS   processor seconds to encode the texts, a line a round
 *     tokens train IN VOCAB_SIZE OUT            a tokenizer.json learnt from the texts
 *     tokens save TOKENIZER PATTERN OUT         a tokenizer.json
 *
 * Texts: number of bytes (u32, little-endian), bytes. OUT: for each text ids without those around
 * it, ids with them, each as number (u32) and ids (i32), and the decoded text. PATTERN "-": the
 * file's own.
 */
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <tenon/tokenizer.h>

#include "../common.h"

typedef struct texts {
    char **text;
    int64_t n;
    char *bytes;
} texts;

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) exit(2);
    *n = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(*n + 1);
    if (!bytes || fread(bytes, 1, *n, f) != *n) exit(2);
    fclose(f);
    return bytes;
}

/* The lengths before each text become a zero behind the one before it. */
static texts read_texts(const char *path)
{
    size_t size;
    texts t = { 0 };
    t.bytes = read_all(path, &size);
    t.text = malloc((size / 4 + 1) * sizeof *t.text);
    if (!t.text) exit(2);
    for (size_t at = 0; at + 4 <= size;) {
        uint32_t n;
        memcpy(&n, t.bytes + at, 4);
        t.bytes[at] = 0;
        t.text[t.n++] = t.bytes + at + 4;
        at += 4 + n;
    }
    t.bytes[size] = 0;
    return t;
}

static void write_ids(FILE *f, const tn_ids *ids)
{
    uint32_t n = (uint32_t)ids->n;
    fwrite(&n, 4, 1, f);
    for (int64_t i = 0; i < ids->n; i++) {
        int32_t id = (int32_t)ids->id[i];
        fwrite(&id, 4, 1, f);
    }
}

static void encode(const tn_tokenizer *t, const char *in, const char *out)
{
    texts all = read_texts(in);
    FILE *f = fopen(out, "wb");
    if (!f) exit(2);
    tn_ids ids = { 0 };
    tn_chars text = { 0 };
    for (int64_t i = 0; i < all.n; i++) {
        for (int bare = 1; bare >= 0; bare--) {
            ids.n = 0;
            TN_CHECK(
                tn_tokenizer_encode(t, all.text[i], -1, (tn_encode_options){ .bare = bare }, &ids));
            write_ids(f, &ids);
        }
        text.n = 0;
        TN_CHECK(tn_tokenizer_decode(t, ids.id, ids.n, (tn_decode_options){ 0 }, &text));
        uint32_t n = (uint32_t)text.n;
        fwrite(&n, 4, 1, f);
        fwrite(text.text, 1, n, f);
    }
    fclose(f);
    tn_ids_free(&ids);
    tn_chars_free(&text);
    free(all.text);
    free(all.bytes);
}

static void measure(const tn_tokenizer *t, const char *in, int rounds)
{
    texts all = read_texts(in);
    tn_ids ids = { 0 };
    for (int r = 0; r < rounds; r++) {
        struct timespec a, b;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        for (int64_t i = 0; i < all.n; i++) {
            ids.n = 0;
            TN_CHECK(tn_tokenizer_encode(t, all.text[i], -1, (tn_encode_options){ 0 }, &ids));
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        printf("%.6f\n", (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec));
    }
    tn_ids_free(&ids);
    free(all.text);
    free(all.bytes);
}

int main(int argc, char **argv)
{
    if (argc < 5) return fprintf(stderr, "usage: see the head of tokens.c\n"), 2;
    if (!strcmp(argv[1], "train")) {
        texts all = read_texts(argv[2]);
        static const char *const special[] = { "<|endoftext|>" };
        tn_tokenizer *t =
            tn_tokenizer_train((const char *const *)all.text, all.n, atoll(argv[3]),
                               (tn_tokenizer_options){ .special = special, .n_special = 1 });
        TN_CHECK_PTR(t);
        TN_CHECK(tn_tokenizer_save(t, argv[4]));
        tn_tokenizer_free(t);
        free(all.text);
        free(all.bytes);
        return 0;
    }
    tn_tokenizer *t = tn_tokenizer_load(
        argv[2], (tn_tokenizer_options){ .pattern = strcmp(argv[3], "-") ? argv[3] : NULL });
    TN_CHECK_PTR(t);
    if (!strcmp(argv[1], "encode") && argc > 5) encode(t, argv[4], argv[5]);
    if (!strcmp(argv[1], "time") && argc > 5) measure(t, argv[4], atoi(argv[5]));
    if (!strcmp(argv[1], "save")) TN_CHECK(tn_tokenizer_save(t, argv[4]));
    tn_tokenizer_free(t);
    return 0;
}
