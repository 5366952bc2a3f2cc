/*
 * embed - finds the lines of a text that mean what a question means.
 *
 *     embed FOLDER FILE "a question" ["another" ...]
 *
 * FOLDER has a sentence encoder as Hugging Face lays it out: config.json, model.safetensors and
 * tokenizer.json of a BERT such as MiniLM. FILE has a passage on each line. The first run computes a
 * vector for each line, which takes minutes, and keeps them in FILE.vectors.safetensors; later runs
 * read those. A question's vector times theirs is the cosine of the angle between them.
 */
#include "../common.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <tenon/lm.h>
#include <tenon/tokenizer.h>
#include <unistd.h>

enum { BATCH = 32, LONGEST = 256 }; /* passages at once; tokens of one */

static int most = 5;
static ex_option options[] = {
    EX_NUMBER("most", most, 1, 1000, 0, "lines to show for each question"),
};

static tn_tokenizer *tokenizer;
static tn_module *model;

static char **line; /* n_lines of them, within text */
static int64_t n_lines;
static char *text;
static tn_tensor *hash; /* of the text: i64 [1] */

static void read_lines(const char *path)
{
    int64_t room = 0;
    size_t size = 0;
    FILE *file = fopen(path, "rb");
    if (!file || getdelim(&text, &size, '\0', file) <= 0)
        ex_refuse("%s: %s", path, file ? "it is empty" : strerror(errno));
    fclose(file);
    int64_t bytes = (int64_t)strlen(text);
    int64_t number = (int64_t)tn_hash(tn_from_data(text, TN_SHAPE(bytes), TN_U8));
    ex_check_ptr(hash = tn_from_ints(&number, TN_SHAPE(1)));
    for (char *rest = text, *end; *rest; rest = end + 1) {
        if (n_lines == room) {
            room = 2 * room + 1024;
            line = realloc(line, (size_t)room * sizeof *line);
            if (!line) ex_refuse("out of memory");
        }
        end = rest + strcspn(rest, "\n");
        if (end > rest) line[n_lines++] = rest;
        if (*end == '\0') break;
        *end = '\0';
    }
}

/* The vectors [n, H] of n passages, padded to the longest. */
static tn_tensor *vectors_of(int64_t n, char *const *passage)
{
    tn_encode_options cut = { .most = LONGEST };
    tn_tensor *ids[BATCH];
    int64_t longest = 0;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = tn_tokenizer_tensor(tokenizer, passage[i], -1, cut);
        ex_check_ptr(ids[i]);
        if (tn_numel(ids[i]) > longest) longest = tn_numel(ids[i]);
    }
    tn_tensor *padded = tn_full_as(TN_SHAPE(n, longest), 0, TN_I64, tn_cpu());
    tn_tensor *mask = tn_full_as(TN_SHAPE(n, longest), 0, TN_I64, tn_cpu());
    for (int64_t i = 0; i < n; i++) {
        const int64_t length = tn_numel(ids[i]);
        ex_check(tn_copy_(tn_narrow(tn_select(padded, 0, i), 0, 0, length), ids[i]));
        ex_check(tn_fill_(tn_narrow(tn_select(mask, 0, i), 0, 0, length), 1));
    }
    tn_tensor *vectors = tn_lm_embed(model, padded, mask);
    ex_check_ptr(vectors);
    return vectors;
}

/* Lines by their length, so that a batch has little padding. */
static int by_length(const void *a, const void *b)
{
    size_t x = strlen(line[*(const int64_t *)a]), y = strlen(line[*(const int64_t *)b]);
    return (x > y) - (x < y);
}

static tn_tensor *compute(int64_t size)
{
    tn_tensor *all = tn_empty(TN_SHAPE(n_lines, size));
    int64_t *order = calloc((size_t)n_lines, sizeof *order);
    if (!all || !order) ex_refuse("out of memory");
    for (int64_t i = 0; i < n_lines; i++) order[i] = i;
    qsort(order, (size_t)n_lines, sizeof *order, by_length);
    for (int64_t at = 0; at < n_lines; at += BATCH) TN_SCOPE
        {
            char *passage[BATCH];
            const int64_t n = n_lines - at < BATCH ? n_lines - at : BATCH;
            for (int64_t i = 0; i < n; i++) passage[i] = line[order[at + i]];
            tn_tensor *vectors = vectors_of(n, passage);
            for (int64_t i = 0; i < n; i++)
                ex_check(tn_copy_(tn_select(all, 0, order[at + i]), tn_select(vectors, 0, i)));
            if (at % (100 * BATCH) != 0) continue;
            fprintf(stderr, "embed: %" PRId64 " of %" PRId64 " lines\n", at, n_lines);
        }
    free(order);
    return all;
}

/* The vectors of all lines: from the file that an earlier run kept, or computed and kept. */
static tn_tensor *line_vectors(const char *path)
{
    char kept[PATH_MAX];
    if (snprintf(kept, sizeof kept, "%s.vectors.safetensors", path) >= (int)sizeof kept)
        ex_refuse("%s: the name is too long", path);
    tn_lm_info info;
    ex_check(tn_lm_get_info(model, &info));
    if (access(kept, F_OK) == 0) {
        tn_list *list = tn_load_tensors(kept, NULL);
        tn_tensor *vectors = tn_list_get(list, "vectors"), *of = tn_list_get(list, "text");
        ex_check_ptr(vectors);
        if (tn_size(vectors, 1) == info.hidden_size && tn_hash(of) == tn_hash(hash)) return vectors;
        fprintf(stderr, "embed: %s is of another text or model: computed again\n", kept);
    }
    tn_tensor *vectors = compute(info.hidden_size);
    tn_list *list = tn_list_new();
    ex_check(tn_list_add(list, "vectors", vectors));
    ex_check(tn_list_add(list, "text", hash));
    ex_check(tn_save_tensors(list, NULL, kept));
    return vectors;
}

static void answer(tn_tensor *vectors, char *question)
{
    const int64_t k = most < n_lines ? most : n_lines;
    tn_tensor *asked = tn_reshape(vectors_of(1, &question), TN_SHAPE(-1, 1)), *which;
    tn_tensor *cosine = tn_topk(tn_reshape(tn_matmul(vectors, asked), TN_SHAPE(-1)), k, 0, true,
                                &which);
    ex_check_ptr(cosine);
    printf("%s\n", question);
    for (int64_t i = 0; i < k; i++)
        printf("  %.3f  %s\n", tn_at(cosine, TN_INDEX(i)), line[(int64_t)tn_at(which, TN_INDEX(i))]);
}

int main(int argc, char **argv)
{
    int at = ex_parse("Finds the lines of a text that mean what a question means:\n"
                      "embed FOLDER FILE QUESTION ...",
                      options, sizeof options / sizeof *options, argc, argc, argv);
    if (argc - at < 3) ex_refuse("want embed FOLDER FILE QUESTION ... (see --help)");
    tn_scope program = tn_scope_begin();
    ex_check_ptr(tokenizer = tn_tokenizer_load(argv[at], (tn_tokenizer_options){ 0 }));
    ex_check_ptr(model = tn_lm_load(argv[at], (tn_lm_options){ 0 }));
    read_lines(argv[at + 1]);
    TN_NO_GRAD
    {
        tn_tensor *vectors = line_vectors(argv[at + 1]);
        for (int i = at + 2; i < argc; i++) TN_SCOPE answer(vectors, argv[i]);
    }
    free(line), free(text);
    tn_module_drop(model), tn_tokenizer_free(tokenizer), tn_scope_end(program);
    return ex_end();
}
