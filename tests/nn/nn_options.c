/*
 * nn_options.c - every field of every options struct of the public headers: what zero means, that
 * another value has an effect, that a bad one is refused and named. The rows are in options/;
 * the headers are read to see that no field lacks one.
 *
 * Seen to fail: beta2 left at 0 for a zero field in src/optim/optimizers.c: the row beta2 fails;
 * a field added to tn_linear_options: every_field_has_a_row fails, and a number zero_is_said;
 * tn_conv2d_new without its check of padding: the row padding fails; a loader that keeps its
 * slots when the batches grow: batch_size_of_a_loader, under AddressSanitizer.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>

#include "nn/options/options.h"
#include "scarce.h"

#define HEADERS "../../include/tenon"

/* ---- a real 0 -------------------------------------------------------------------------------- */

/* Numbers of options whose 0 is another number by default, beside those with a twin use_NAME (of
 * beta1 and beta2: use_betas). Their twin takes 0 as given; or why nobody can mean 0. A new one
 * that has neither fails zero_is_said. */
static const struct zero {
    const char *owner, *fields, *twin, *why;
} zeros[] = {
    { "tn_group_options", "dampening beta1 beta2 eps alpha lr_decay", "use_numbers", NULL },
    { "tn_one_cycle_options", "base_momentum max_momentum", "use_momentum", NULL },

    { "tn_group_options", "momentum", NULL, "whether there is any is the optimizer's" },
    { "tn_lora_options", "rank", NULL, "at least 1" },
    { "tn_lora_options", "alpha", NULL, "a scale of 0 would train nothing" },
    { "tn_conv_options", "stride dilation groups", NULL, "at least 1" },
    { "tn_conv_spec", "stride dilation groups", NULL, "at least 1" },
    { "tn_pool_spec", "kernel stride dilation divisor", NULL, "at least 1" },
    { "tn_interpolate_spec", "size", NULL, "at least 1" },
    { "tn_interpolate_spec", "scale", NULL, "above 0" },
    { "tn_multihead_attention_options", "kdim vdim", NULL, "at least 1" },
    { "tn_encoder_layer_options", "feedforward", NULL, "at least 1" },
    { "tn_recurrent_options", "layers proj_size", NULL, "at least 1" },
    { "tn_spectral_norm_options", "iterations", NULL, "at least 1" },
    { "tn_spectral_norm_options", "eps", NULL, "a norm of 0 is none to divide by" },
    { "tn_metric_options", "top_k classes rows", NULL, "at least 1, 2, 1" },
    { "tn_loader_options", "batch_size parts ahead draws", NULL, "at least 1" },
    { "tn_loader_options", "n_out", NULL, "as many as without collate" },
    { "tn_loader_options", "workers", NULL, "0 is none; the batches are the same" },
    { "tn_profile_options", "steps rows", NULL, "at least 1" },
    { "tn_data_parallel_options", "bucket_bytes", NULL, "a bucket holds at least one gradient" },
    { "tn_sampling_options", "repetition_penalty top_p", NULL, "above 0" },
    { "tn_generate_options", "max_new_tokens per_prompt", NULL, "at least 1" },
    { "tn_generate_options", "n_eos", NULL, "-1 is none" },
    { "tn_sampling_options", "top_k", NULL, "at least 1" },
    { "tn_file_limits", "header_bytes tensors inflated_bytes", NULL, "no file has so few" },
    { "tn_one_cycle_options", "total_steps", NULL, "at least 1" },
    { "tn_one_cycle_options", "max_lr pct_start div_factor final_div_factor", NULL, "above 0" },
    { "tn_plateau_options", "factor", NULL, "above 0" },
    { "tn_scaler_options", "init_scale backoff", NULL, "above 0" },
    { "tn_image_crop_options", "scale ratio", NULL, "above 0" },
    { "tn_image_erase_options", "scale ratio", NULL, "above 0" },
    { "tn_scaler_options", "growth interval", NULL, "above 1, at least 1" },
    { "tn_gradcheck_options", "eps atol rtol", NULL, "above 0" },
    { "tn_module_gradcheck_options", "eps atol rtol", NULL, "above 0" },
    { "tn_trace_options", "values", NULL, "-1 is none" },
    { "tn_explain_options", "values", NULL, "-1 is none" },
};

static const option_rows *const tables[] = { &options_of_layers, &options_of_optimizers,
                                             &options_of_others };

/* Row i of all tables; NULL beyond the last. */
static const option_row *row_at(int i)
{
    for (int k = 0; k < COUNT(tables); k++) {
        if (i < tables[k]->n) return &tables[k]->row[i];
        i -= tables[k]->n;
    }
    return NULL;
}

static const option_row *row_of(const char *owner, const char *field)
{
    const option_row *r;
    for (int i = 0; (r = row_at(i)) != NULL; i++)
        if (!strcmp(r->owner, owner) && !strcmp(r->field, field)) return r;
    return NULL;
}

/* Word k of words, separated by a space; false beyond the last. */
static bool word_at(const char *words, int k, char word[32])
{
    while (k-- > 0 && words) words = strchr(words, ' ') ? strchr(words, ' ') + 1 : NULL;
    if (words) snprintf(word, 32, "%.*s", (int)strcspn(words, " "), words);
    return words != NULL;
}

/* The flag that says that a field's 0 is given; NULL: there is none. */
static const option_row *twin_of(const char *owner, const char *field)
{
    char name[40];
    snprintf(name, sizeof name, "use_%s", strncmp(field, "beta", 4) ? field : "betas");
    return row_of(owner, name);
}

static const struct zero *zero_of(const char *owner, const char *field)
{
    char word[32];
    for (int i = 0; i < COUNT(zeros); i++)
        for (int k = 0; !strcmp(zeros[i].owner, owner) && word_at(zeros[i].fields, k, word); k++)
            if (!strcmp(word, field)) return &zeros[i];
    return NULL;
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* What the row's function shows with this value in its field, and its twin (NULL: none) set. */
static uint64_t shown_with(const option_row *r, double value, const option_row *twin)
{
    _Alignas(max_align_t) char options[256];
    int64_t whole = r->kind == 'i' ? (int64_t)value : 0;
    bool flag = value != 0;
    ck_assert_uint_le(r->size, sizeof options);
    memcpy(options, r->base, r->size);
    memcpy(options + r->at,
           r->kind == 'd'   ? (const void *)&value
           : r->kind == 'i' ? (const void *)&whole
                            : &flag,
           r->kind == 'b' ? sizeof flag : 8);
    if (twin) memcpy(options + twin->at, &(bool){ true }, sizeof flag);
    tn_manual_seed(5);
    return r->see(options);
}

static uint64_t shown(const option_row *r, double value)
{
    return shown_with(r, value, NULL);
}

static void refused(const option_row *r, double value)
{
    tn_error_clear();
    ck_assert_msg(shown(r, value) == 0, "%s.%s: %g was taken", r->owner, r->field, value);
    ck_assert_msg(strstr(tn_error(), r->refusal) != NULL, "%s.%s: \"%s\" lacks \"%s\"", r->owner,
                  r->field, tn_error(), r->refusal);
    tn_error_clear();
}

/* A file's text without comments; to be freed. */
static char *text_of(const char *in, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", in, name);
    FILE *file = fopen(golden_path(path), "r");
    ck_assert_msg(file != NULL, "%s cannot be read", golden_path(path));
    char *text = calloc(1, 1 << 20), *to = text;
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    ck_assert_uint_gt(n, 0);
    fclose(file);
    for (const char *c = text; *c; c++) {
        const char *end = strncmp(c, "/*", 2) == 0 ? strstr(c, "*/") : NULL;
        if (end)
            c = end + 1;
        else
            *to++ = *c;
    }
    *to = '\0';
    return text;
}

START_TEST(fields)
{
    const option_row *r = row_at(_i);
    if (r->custom) {
        r->custom();
        return;
    }
    if (r->test) {
        char *text = text_of("..", r->file);
        ck_assert_msg(strstr(text, r->test) != NULL, "%s has no %s", r->file, r->test);
        free(text);
        return;
    }
    uint64_t zero = 0;
    if (isnan(r->zero)) {
        refused(r, 0);
    } else {
        zero = shown(r, 0);
        ck_assert_msg(zero != 0, "%s.%s: zero was refused: %s", r->owner, r->field, tn_error());
        ck_assert_msg(zero == shown(r, r->zero), "%s.%s: zero is not %g", r->owner, r->field,
                      r->zero);
    }
    uint64_t other = shown(r, r->other);
    ck_assert_msg(other != 0, "%s.%s: %g was refused: %s", r->owner, r->field, r->other,
                  tn_error());
    ck_assert_msg(other != zero, "%s.%s: %g changes nothing", r->owner, r->field, r->other);
    if (r->refusal) refused(r, r->bad);
}
END_TEST

/* The name that ends at `end`: "x" of "double *x", "x[2]" and "bool (*x)(int)". */
static void declared(const char *start, const char *end, char *name, size_t size)
{
    const char *call = memchr(start, '(', (size_t)(end - start));
    const char *bracket = memchr(start, '[', (size_t)(end - start));
    if (call) {
        start = call + 2;
        end = memchr(start, ')', (size_t)(end - start));
    } else if (bracket) {
        end = bracket;
    }
    while (end > start && isspace((unsigned char)end[-1])) end--;
    const char *first = end;
    while (first > start && (isalnum((unsigned char)first[-1]) || first[-1] == '_')) first--;
    snprintf(name, size, "%.*s", (int)(end - first), first);
}

/* Called with every field of options in the public headers, and its declaration's first word. */
typedef void (*field_check)(const char *owner, const char *type, const char *field);

static void must_have_row(const char *owner, const char *type, const char *field)
{
    (void)type;
    /* of help's and the graph's options other suites show what they do */
    static const char *const elsewhere[] = { "tn_graph_options", "tn_trace_options",
                                             "tn_explain_options" };
    for (int i = 0; i < COUNT(elsewhere); i++)
        if (!strcmp(owner, elsewhere[i])) return;
    ck_assert_msg(row_of(owner, field) != NULL, "%s.%s has no row", owner, field);
}

/* A number's 0 is 0: what comes next to it does the same. Else it has its entry. */
static void must_say_zero(const char *owner, const char *type, const char *field)
{
    static const char *const numbers[] = { "double", "float", "int", "int64_t", "uint64_t" };
    bool is_number = false;
    for (int i = 0; i < COUNT(numbers); i++) is_number |= !strcmp(type, numbers[i]);
    const option_row *r = row_of(owner, field);
    if (!is_number || zero_of(owner, field) || (r && twin_of(owner, field))) return;
    ck_assert_msg(r && !r->custom && r->zero == 0,
                  "%s.%s: what can one who means 0 do? want an entry of zeros", owner, field);
    if (r->kind == 'd' && strcmp(field, "dropout") != 0) /* which takes another way, and rounds */
        ck_assert_msg(shown(r, 0) == shown(r, 1e-300), "%s.%s: 0 is not 0", owner, field);
}

/* Every declarator between start and end. Returns how many there are. */
static int check_fields(const char *owner, const char *start, const char *end, field_check check)
{
    char type[32] = "";
    int n = 0;
    int depth = 0; /* of parentheses: commas inside separate no fields */
    for (const char *c = start; c < end; c++) {
        depth += (*c == '(') - (*c == ')');
        if (depth || (*c != ',' && *c != ';')) continue;
        char name[64];
        declared(start, c, name, sizeof name);
        while (isspace((unsigned char)*start)) start++;
        if (!type[0]) snprintf(type, sizeof type, "%.*s", (int)strcspn(start, " "), start);
        check(owner, type, name);
        if (*c == ';') type[0] = '\0';
        start = c + 1;
        n++;
    }
    return n;
}

static bool is_options(const char *name)
{
    static const char *const endings[] = { "_options", "_spec", "_masks", "_limits" };
    bool yes = false;
    for (int k = 0; k < COUNT(endings); k++) {
        size_t length = strlen(name), of_ending = strlen(endings[k]);
        yes |= length > of_ending && strcmp(name + length - of_ending, endings[k]) == 0;
    }
    return yes;
}

static void every_field(field_check check)
{
    static const char opening[] = "typedef struct ";
    DIR *headers = opendir(golden_path(HEADERS));
    ck_assert_ptr_nonnull(headers);
    int n = 0;
    for (const struct dirent *header; (header = readdir(headers)) != NULL;) {
        if (!strstr(header->d_name, ".h")) continue;
        char *text = text_of(HEADERS, header->d_name);
        for (const char *at = text; (at = strstr(at, opening)) != NULL; at++) {
            const char *name = at + strlen(opening);
            char owner[64];
            snprintf(owner, sizeof owner, "%.*s", (int)strcspn(name, " ;\n"), name);
            const char *open = strchr(name, '{'), *close = open ? strchr(open, '}') : NULL;
            if (is_options(owner) && close) n += check_fields(owner, open + 1, close, check);
        }
        free(text);
    }
    closedir(headers);
    ck_assert_int_ge(n, 90); /* the headers were indeed read */
}

START_TEST(every_field_has_a_row)
{
    every_field(must_have_row);
}
END_TEST

START_TEST(zero_is_said)
{
    every_field(must_say_zero);
}
END_TEST

/* With its twin 0 is taken, and is not the default. */
static void assert_zero_is_taken(const option_row *r, const option_row *twin)
{
    ck_assert(r && r->kind != 'b' && r->zero != 0);
    uint64_t seen = shown_with(r, 0, twin);
    ck_assert_msg(seen != 0, "%s.%s: 0 was refused: %s", r->owner, r->field, tn_error());
    ck_assert_msg(seen != shown(r, 0), "%s.%s: 0 is the default", r->owner, r->field);
}

START_TEST(zero_with_a_twin)
{
    const option_row *r;
    for (int i = 0; (r = row_at(i)) != NULL; i++) {
        const option_row *twin = twin_of(r->owner, r->field);
        if (twin && r->zero != 0 && !zero_of(r->owner, r->field)) assert_zero_is_taken(r, twin);
    }
}
END_TEST

START_TEST(zero_is_a_number)
{
    const struct zero *z = &zeros[_i];
    const option_row *twin = z->twin ? row_of(z->owner, z->twin) : NULL;
    char field[32];
    ck_assert_msg(!z->twin == !twin, "%s.%s is not there", z->owner, z->twin);
    for (int k = 0; twin && word_at(z->fields, k, field); k++)
        assert_zero_is_taken(row_of(z->owner, field), twin);
}
END_TEST

/* ---- what can be set can be read, and takes effect ------------------------------------------- */

static double sum_of_epoch(tn_loader *l, int64_t rows, int batches)
{
    tn_tensor *batch;
    double sum = 0;
    for (int i = 0; i < batches; i++) {
        ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
        if (i + 1 < batches) ck_assert_int_eq(tn_size(batch, 0), rows);
        sum += tn_item(tn_sum_all(batch));
    }
    ck_assert_int_eq(tn_loader_next(l, &batch, 1), 0);
    return sum;
}

START_TEST(batch_size_of_a_loader)
{
    tn_tensor *x = tn_arange(0, 10, 1, TN_F32), *batch;
    tn_loader_options o = { .batch_size = 3, .shuffle = true, .prefetch = _i == 1 };
    tn_loader *l = tn_loader_new(&x, 1, o);
    ck_assert_int_eq(tn_loader_rows(l), 10);
    ck_assert_int_eq(tn_loader_batch_size(l), 3);
    ck_assert_double_eq(sum_of_epoch(l, 3, 4), 45);
    assert_ok(tn_loader_set_batch_size(l, 7));
    ck_assert_int_eq(tn_loader_batch_size(l), 7);
    ck_assert_int_eq(tn_loader_batches(l), 2);
    ck_assert_double_eq(sum_of_epoch(l, 7, 2), 45);
    ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
    assert_fails(tn_loader_set_batch_size(l, 2), TN_E_STATE, "batch 1 of an epoch");
    assert_fails(tn_loader_set_batch_size(l, 0), TN_E_INVALID, "batch_size 0");
    ck_assert_int_eq(tn_loader_batch_size(l), 7);
    tn_loader_free(l);
}
END_TEST

START_TEST(modes_and_limits)
{
    tn_file_limits was = tn_get_file_limits();
    ck_assert_int_eq(was.header_bytes, 16 << 20);
    ck_assert_int_eq(was.tensors, 65536);
    assert_ok(tn_set_file_limits((tn_file_limits){ .tensors = 12, .inflated_bytes = 34 }));
    ck_assert_int_eq(tn_get_file_limits().tensors, 12);
    ck_assert_int_eq(tn_get_file_limits().inflated_bytes, 34);
    assert_ok(tn_set_file_limits(was));
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_GRADIENTS), TN_ANOMALY_OFF);
    ck_assert_int_eq(tn_get_anomaly(), TN_ANOMALY_GRADIENTS);
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_OFF), TN_ANOMALY_GRADIENTS);
    if (!tn_cuda_available()) ck_assert(!tn_tf32());
    ck_assert(!tn_get_allocator().alloc);
    assert_ok(test_set_allocator(&scarce_allocator));
    ck_assert(tn_get_allocator().alloc == scarce_allocator.alloc);
    assert_ok(test_set_allocator(NULL));
    ck_assert(!tn_get_allocator().alloc);
}
END_TEST

/* Between integers and a NaN only "differs" holds. */
START_TEST(scalars_that_no_integer_has)
{
    tn_tensor *x = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2));
    ck_assert_double_eq(tn_item(tn_sum_all(tn_ne_scalar(x, NAN))), 2);
    ck_assert_double_eq(tn_item(tn_sum_all(tn_le_scalar(x, NAN))), 0);
    ck_assert_double_eq(tn_item(tn_sum_all(tn_ge_scalar(x, NAN))), 0);
    ck_assert_double_eq(tn_item(tn_sum(x, TN_AXES(0), false)), 1);
}
END_TEST

void nn_options_cases(Suite *suite)
{
    TCase *t = file_case(suite, "options");
    int n = options_of_layers.n + options_of_optimizers.n + options_of_others.n;
    tcase_add_loop_test(t, fields, 0, n);
    add_tests(t, every_field_has_a_row, zero_is_said, modes_and_limits,
              scalars_that_no_integer_has);
    tcase_add_loop_test(t, batch_size_of_a_loader, 0, 2);
    tcase_add_test(t, zero_with_a_twin);
    tcase_add_loop_test(t, zero_is_a_number, 0, COUNT(zeros));
}
