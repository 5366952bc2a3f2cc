/*
 * embed - finds the passages of a text that mean what a question means.
 *
 *     embed FOLDER FILE "a question" ["another" ...]
 *
 * FOLDER has a sentence encoder such as MiniLM, as Hugging Face lays it out. FILE has a passage on
 * each line; what stands before a tab names it. The first run computes a vector for each, and keeps
 * them in FILE.vectors.safetensors. A question's vector times theirs is the cosine of the angle
 * between them. docs/interop.md says where MiniLM's weights are.
 */
#include "../common.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <tenon/lm.h>
#include <tenon/tokenizer.h>
#include <unistd.h>

enum { BATCH = 32, LONGEST = 256, SHOWN = 5 }; /* LONGEST: tokens, as MiniLM's authors cut */

static tn_tokenizer *tokenizer;
static tn_module *model;
static char *text, **line; /* n_lines of them, in text */
static int64_t n_lines;

/* By length, so that a batch has little padding; then as in the file. */
static int by_length(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const size_t n = strlen(x), m = strlen(y);
    return n != m ? (n > m) - (n < m) : (x > y) - (x < y);
}

/* Returns a hash of the file. */
static uint64_t read_lines(const char *path)
{
    size_t size = 0, room = 0;
    FILE *file = fopen(path, "rb");
    if (!file || getdelim(&text, &size, '\0', file) <= 0)
        ex_refuse("%s: %s", path, file ? "it is empty" : strerror(errno));
    fclose(file);
    const uint64_t hash = tn_hash(tn_from_data(text, TN_SHAPE((int64_t)strlen(text)), TN_U8));
    for (char *rest = strtok(text, "\n"); rest; rest = strtok(NULL, "\n")) {
        if ((size_t)n_lines == room) line = realloc(line, (room = 2 * room + 1024) * sizeof *line);
        if (!line) ex_refuse("out of memory");
        line[n_lines++] = rest;
    }
    if (n_lines == 0) ex_refuse("%s: it has no lines", path);
    qsort(line, (size_t)n_lines, sizeof *line, by_length);
    return hash;
}

/* The vectors [n, H] of n texts: means over the hidden states of their tokens, of length 1. */
static tn_tensor *vectors_of(int64_t n, char *const *texts)
{
    int64_t id[BATCH][LONGEST] = { { 0 } }, longest = 0;
    float seen[BATCH][LONGEST] = { { 0 } }; /* 0: padding */
    tn_ids ids = { 0 };
    for (int64_t i = 0; i < n; i++, ids.n = 0) {
        const char *tab = strchr(texts[i], '\t'), *t = tab ? tab + 1 : texts[i];
        ex_check(tn_tokenizer_encode(tokenizer, t, -1, (tn_encode_options){ 0 }, &ids));
        const int64_t k = ids.n < LONGEST ? ids.n : LONGEST;
        for (int64_t j = 0; j < k; j++) id[i][j] = ids.id[j], seen[i][j] = 1;
        if (k) id[i][k - 1] = ids.id[ids.n - 1]; /* [SEP] also ends what is cut */
        if (k > longest) longest = k;
    }
    tn_ids_free(&ids);
    const tn_shape shape = TN_SHAPE(n, LONGEST);
    tn_tensor *mask = tn_narrow(tn_from_floats(&seen[0][0], shape), 1, 0, longest), *hidden;
    tn_tensor *in[] = { tn_narrow(tn_from_ints(&id[0][0], shape), 1, 0, longest), mask };
    ex_check(tn_call(model, 2, in, 1, &hidden));
    tn_tensor *sum = tn_sum(tn_mul(hidden, tn_unsqueeze(mask, -1)), TN_AXES(1), false);
    return tn_normalize(tn_div(sum, tn_sum(mask, TN_AXES(1), true)), 2, -1, 1e-12);
}

static tn_tensor *compute(int64_t size)
{
    tn_tensor *all = tn_empty(TN_SHAPE(n_lines, size));
    for (int64_t at = 0; at < n_lines; at += BATCH) TN_SCOPE
        {
            const int64_t n = n_lines - at < BATCH ? n_lines - at : BATCH;
            ex_check(tn_copy_(tn_narrow(all, 0, at, n), vectors_of(n, line + at)));
            if (at / BATCH % 100 == 0) fprintf(stderr, "%" PRId64 " of %" PRId64 "\n", at, n_lines);
        }
    return all;
}

/* The vectors of all passages: kept by an earlier run of the same text and model, or computed. */
static tn_tensor *passages(const char *path, uint64_t hash)
{
    char kept[PATH_MAX];
    snprintf(kept, sizeof kept, "%s.vectors.safetensors", path);
    tn_tensor *table = tn_get_parameter(model, "embeddings.word_embeddings.weight");
    ex_check_ptr(table);
    const int64_t hashes[] = { (int64_t)hash, (int64_t)tn_hash(table) };
    tn_tensor *of = tn_from_ints(hashes, TN_SHAPE(2));
    tn_list *list = access(kept, F_OK) == 0 ? tn_load_tensors(kept, NULL) : tn_list_new();
    ex_check_ptr(list);
    if (tn_list_has(list, "of") && tn_hash(tn_list_get(list, "of")) == tn_hash(of))
        return tn_list_get(list, "vectors");
    ex_check(tn_list_set(list, "vectors", compute(tn_size(table, 1))));
    ex_check(tn_list_set(list, "of", of));
    ex_check(tn_save_tensors(list, NULL, kept));
    return tn_list_get(list, "vectors");
}

static void answer(tn_tensor *vectors, char *question)
{
    const int64_t k = SHOWN < n_lines ? SHOWN : n_lines;
    tn_tensor *which, *cosine = tn_matmul(vectors, tn_select(vectors_of(1, &question), 0, 0));
    ex_check_ptr(cosine = tn_topk(cosine, k, 0, true, &which));
    printf("%s\n", question);
    for (int64_t i = 0; i < k; i++) {
        const int64_t at = (int64_t)tn_at(which, TN_INDEX(i));
        printf("  %.3f  %s\n", tn_at(cosine, TN_INDEX(i)), line[at]);
    }
}

int main(int argc, char **argv)
{
    const int at = ex_parse("Finds the passages of a text that mean what a question means:\n"
                            "embed FOLDER FILE QUESTION ...",
                            NULL, 0, argc, argc, argv);
    if (argc - at < 3) ex_refuse("want embed FOLDER FILE QUESTION ... (see --help)");
    tn_scope program = tn_scope_begin();
    ex_check_ptr(tokenizer = tn_tokenizer_load(argv[at]));
    ex_check_ptr(model = tn_lm_load(argv[at], (tn_lm_options){ 0 }));
    const uint64_t hash = read_lines(argv[at + 1]);
    TN_NO_GRAD
    {
        tn_tensor *vectors = passages(argv[at + 1], hash);
        for (int i = at + 2; i < argc; i++) TN_SCOPE answer(vectors, argv[i]);
    }
    free(line), free(text);
    tn_module_drop(model), tn_tokenizer_free(tokenizer), tn_scope_end(program);
    return ex_end();
}
