/* others.c - options of ops, gradient checks, files, loaders and parallel training. */
#include <glob.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/options/options.h"

static uint64_t see_loader(const void *o)
{
    tn_tensor *data = random_f64(TN_SHAPE(7, 2), -1, 1, 3), *batch;
    tn_loader *loader = tn_loader_new(&data, 1, *(const tn_loader_options *)o);
    uint64_t h = loader ? 1 : 0;
    for (int epoch = 0; loader && epoch < 2; epoch++)
        while (tn_loader_next(loader, &batch, 1) > 0)
            h = mix(mix(h, (uint64_t)epoch), tn_hash(batch));
    tn_loader_free(loader);
    return h;
}

/* A new file, but for times and checksums. */
static uint64_t see_tensorboard(const void *o)
{
    tn_tensorboard *log = tn_tensorboard_new(in_folder("runs"), *(const tn_tensorboard_options *)o);
    uint64_t h = log ? 1 : 0;
    glob_t found;
    size_t n = 0;
    tn_tensorboard_free(log);
    ck_assert_int_eq(glob(in_folder("runs/*"), 0, NULL, &found), 0);
    const unsigned char *bytes = owned((unsigned char *)read_bytes(found.gl_pathv[0], &n));
    ck_assert_int_eq(unlink(found.gl_pathv[0]), 0);
    globfree(&found);
    for (size_t at = 0; at < n; at += 16 + bytes[at])
        for (size_t i = 9; i < bytes[at]; i++) h = mix(h, bytes[at + 12 + i]);
    return h;
}

SEE(see_loss, tn_cross_entropy_options,
    see_tensor(tn_cross_entropy_with(random_f64(TN_SHAPE(4, 3), -2, 2, 3),
                                     tn_from_ints((int64_t[]){ 0, 1, 2, 1 }, TN_SHAPE(4)), o)))
SEE(see_conv2d_spec, tn_conv2d_spec,
    see_tensor(tn_conv2d(input(TN_SHAPE(1, 4, 9, 9)),
                         input(TN_SHAPE(4, o.groups > 1 ? 4 / o.groups : 4, 3, 3)), TN_NONE, o)))

SEE(see_transpose, tn_conv_spec,
    see_tensor(tn_conv_transpose2d(input(TN_SHAPE(1, 4, 5, 5)), input(TN_SHAPE(4, 2, 3, 3)),
                                   TN_NONE, o)))

static uint64_t see_max_pool2d(const void *options)
{
    const tn_pool_spec *o = options;
    tn_tensor *y = tn_max_pool2d(input(TN_SHAPE(1, 2, 9, 9)), *o);
    if (!y) return 0;
    tn_module *m = owned(tn_max_pool2d_new(*o)); /* the layer takes the same */
    return mix(tn_hash(y), see_tensor(tn_forward(m, input(TN_SHAPE(1, 2, 9, 9)))));
}

SEE(see_avg_pool2d, tn_pool_spec, see_tensor(tn_avg_pool2d(input(TN_SHAPE(1, 2, 9, 9)), o)))

SEE(see_nan_to_num, tn_nan_to_num_options,
    see_tensor(tn_nan_to_num(tn_from_floats((float[]){ 1, NAN, INFINITY, -INFINITY }, TN_SHAPE(4)),
                             o)))
SEE(see_interpolate, tn_interpolate_spec,
    see_tensor(tn_interpolate(input(TN_SHAPE(1, 2, 7, 7)), o)))

/* What is counted of two rows; 0 for NULL. */
static uint64_t see_metric(tn_module *m)
{
    if (!m) return 0;
    tn_tensor *x = tn_from_floats((float[]){ 3, 2, 1, 3, 2, 1 }, TN_SHAPE(2, 3));
    tn_tensor *y = tn_from_ints((int64_t[]){ 0, 1 }, TN_SHAPE(2));
    bool counted = tn_metric_update(owned(m), x, y) == TN_OK;
    return counted ? tn_hash(tn_get_buffer(m, "sums")) : 0;
}
SEE(see_top, tn_metric_options, see_metric(tn_metric_new(TN_ACCURACY, o)))
SEE(see_confusion, tn_metric_options, see_metric(tn_metric_new(TN_CONFUSION, o)))

/* ---- fields that are not numbers ------------------------------------------------------------- */

#define assert_differs(see, a, b) ck_assert_uint_ne((see)(&(a)), (see)(&(b)))

/* A tie is stored once, or in full under both names; the reader gives both either way. */
static void save_every_key(void)
{
    const char *path = in_folder("options.safetensors");
    tn_module *m = owned(linear(20, 20));
    struct stat once, every;
    assert_ok(tn_register_parameter(m, "again", NULL, tn_get_parameter(m, "weight")));
    assert_ok(tn_save_with(m, path, (tn_save_options){ 0 }));
    ck_assert_int_eq(stat(path, &once), 0);
    ck_assert(tn_list_has(tn_load_tensors(path, NULL), "again"));
    assert_ok(tn_save_with(m, path, (tn_save_options){ .every_key = true }));
    ck_assert_int_eq(stat(path, &every), 0);
    ck_assert(tn_list_has(tn_load_tensors(path, NULL), "again"));
    ck_assert_int_ge(every.st_size - once.st_size, 20 * 20 * 4 - 256);
}

static void save_metadata(void)
{
    const char *path = in_folder("options.safetensors");
    tn_module *m = owned(linear(1, 1));
    tn_metadata read;
    const char *keys[] = { "epoch" }, *values[] = { "7" };
    const tn_metadata more = { 1, keys, values };
    for (int k = 0; k < 2; k++) {
        assert_ok(tn_save_with(m, path, (tn_save_options){ .metadata = k ? &more : NULL }));
        assert_made(tn_load_tensors(path, &read));
        ck_assert_int_eq(tn_metadata_get(&read, "epoch") != NULL, k);
        ck_assert_str_eq(tn_metadata_get(&read, "format"), "pt");
    }
}

static void limits(tn_file_limits low, tn_file_limits high, tn_file_limits bad, const char *text)
{
    const char *path = in_folder("options.safetensors");
    tn_module *m = owned(linear(2, 2));
    assert_ok(tn_save(m, path));
    assert_made(tn_load_tensors(path, NULL)); /* defaults */
    assert_ok(tn_set_file_limits(low));
    ck_assert_ptr_null(tn_load_tensors(path, NULL));
    assert_error(TN_E_FORMAT, text);
    assert_ok(tn_set_file_limits(high));
    assert_made(tn_load_tensors(path, NULL));
    assert_ok(tn_set_file_limits(low));
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 })); /* back */
    assert_made(tn_load_tensors(path, NULL));
    assert_fails(tn_set_file_limits(bad), TN_E_INVALID, "tn_set_file_limits");
}

static void limit_headers_and_tensors(void)
{
    limits((tn_file_limits){ .header_bytes = 20 }, (tn_file_limits){ .header_bytes = 4096 },
           (tn_file_limits){ .header_bytes = 100000001 }, "20");
    limits((tn_file_limits){ .tensors = 1 }, (tn_file_limits){ .tensors = 2 },
           (tn_file_limits){ .tensors = -1 }, "1");
}

static void limit_inflated(void)
{
    unsigned char idx[8 + 100] = { 0, 0, 8, 1, 0, 0, 0, 100 };
    size_t n;
    unsigned char *bytes = gzip(idx, sizeof idx, 9, &n);
    const char *path = write_bytes("options.gz", bytes, n);
    free(bytes);
    assert_made(tn_idx_load(path)); /* default */
    assert_ok(tn_set_file_limits((tn_file_limits){ .inflated_bytes = 99 }));
    assert_null(tn_idx_load(path), TN_E_FORMAT, "at most 99 bytes are made");
    assert_ok(tn_set_file_limits((tn_file_limits){ .inflated_bytes = 100 }));
    assert_made(tn_idx_load(path));
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 })); /* back */
    assert_fails(tn_set_file_limits((tn_file_limits){ .inflated_bytes = -1 }), TN_E_INVALID,
                 "tn_set_file_limits");
}

/* Reading ahead changes no value. */
static void loader_prefetch(void)
{
    tn_loader_options o = { .batch_size = 2, .shuffle = true, .seed = 3 };
    uint64_t h = see_loader(&o);
    o.prefetch = true;
    ck_assert_uint_eq(see_loader(&o), h);
}

/* Where the rows come from is seen in datasets (test_datasets.c); here that each field counts. */
static void loader_tensors(void)
{
    const int64_t five[] = { 6, 5, 4, 3, 2 }, ones[] = { 0, 0, 0, 0, 0, 1, 1 };
    const tn_loader_options plain = { .batch_size = 2 };
    tn_loader_options o[] = { plain, plain, plain };
    o[0].samples = tn_from_ints(five, TN_SHAPE(5));
    o[1].weights = tn_from_floats((float[]){ 1, 1, 1, 1, 1, 1, 9 }, TN_SHAPE(7));
    o[2].classes = tn_from_ints(ones, TN_SHAPE(7));
    for (int k = 0; k < 3; k++) assert_differs(see_loader, plain, o[k]);
    tn_loader_options once = o[1];
    once.without_replacement = true;
    assert_differs(see_loader, o[1], once);
}

/* Neither workers nor what they do ahead changes a value. */
static void loader_workers(void)
{
    tn_loader_options o = { .batch_size = 2, .shuffle = true, .seed = 3 };
    const uint64_t h = see_loader(&o);
    for (int k = 0; k < 4; k++) {
        o.workers = k, o.ahead = 3 * k;
        ck_assert_uint_eq(see_loader(&o), h);
    }
    tn_tensor *data = tn_ones(TN_SHAPE(4));
    o.workers = -1;
    assert_null(tn_loader_new(&data, 1, o), TN_E_INVALID, "workers -1");
}

static tn_status nothing_of_two(const tn_dataset *d, tn_sample *s)
{
    (void)d;
    s->size[0] = s->index;
    memset(s->to[0], 1, 2);
    return TN_OK;
}

static uint64_t see_pad(const void *o)
{
    static const tn_field field = { "v", TN_U8, { 1, { 2 } }, true };
    const tn_dataset d = { "d", 2, &field, 1, nothing_of_two, NULL };
    tn_loader_options both = *(const tn_loader_options *)o;
    both.batch_size = 2;
    tn_tensor *out[2];
    tn_loader *l = tn_loader_from(&d, both);
    const uint64_t h = tn_loader_next(l, out, 2) == 1 ? tn_hash(out[0]) : 0;
    tn_loader_free(l);
    return h;
}

static uint64_t see_csv(const void *o)
{
    const char text[] = "a,b\nNA,3\n1,\n";
    uint64_t h = 0;
    tn_csv *csv =
        tn_csv_load(write_bytes("o.csv", text, sizeof text - 1), *(const tn_csv_options *)o);
    for (int k = 0; csv && k < csv->n_columns; k++)
        h = mix(h, csv->column[k].values ? tn_hash(csv->column[k].values) : 1);
    tn_csv_free(csv);
    return h;
}

static void csv_fields(void)
{
    const tn_csv_options plain = { 0 };
    const tn_csv_options o[] = { { .separator = 'A' }, { .missing = "NA" }, { .types = "t-" } };
    for (int k = 0; k < 3; k++) assert_differs(see_csv, plain, o[k]);
}

/* What bucket_bytes and messages do is seen with several ranks (parallel/driver.c). */
static void parallel(void)
{
    tn_module *m = owned(linear(2, 2));
    assert_null(tn_data_parallel_new(m, (tn_data_parallel_options){ .bucket_bytes = -1 }),
                TN_E_INVALID, "bucket_bytes -1: want at least 0");
    for (int rule = TN_BUFFERS_FIRST; rule <= TN_BUFFERS_OWN; rule++) {
        tn_data_parallel_options o = { .buffers = (tn_buffer_rule)rule };
        tn_data_parallel *p = tn_data_parallel_new(m, o);
        assert_made(p);
        ck_assert_int_eq(tn_data_parallel_buffers(p, "x"), rule);
        tn_data_parallel_free(p);
    }
    static const tn_dtype dtype[] = { TN_F32, TN_BF16, TN_F16 };
    for (int i = 0; i < COUNT(dtype); i++) {
        tn_data_parallel_options o = { .messages = dtype[i] };
        tn_data_parallel *p = tn_data_parallel_new(m, o);
        ck_assert_int_eq(p != NULL, dtype[i] != TN_F16);
        tn_data_parallel_free(p);
    }
    assert_error(TN_E_DTYPE, "want TN_F32 or TN_BF16");
}

static void cross_entropy_weight(void)
{
    tn_cross_entropy_options none = { 0 }, absent = { .weight = TN_NONE }, given = { 0 };
    given.weight = from_f64((double[]){ 1, 2, 3 }, TN_SHAPE(3));
    ck_assert_uint_eq(see_loss(&none), see_loss(&absent));
    assert_differs(see_loss, none, given);
    given.weight = from_f64((double[]){ 1, 2 }, TN_SHAPE(2));
    ck_assert_uint_eq(see_loss(&given), 0);
    assert_error(TN_E_SHAPE, "weight");
}

static void cross_entropy_reduction(void)
{
    tn_cross_entropy_options o[4] = { { .reduction = TN_MEAN },
                                      { .reduction = TN_SUM },
                                      { .reduction = TN_NO_REDUCTION },
                                      { .reduction = (tn_reduction)7 } };
    ck_assert_int_eq(TN_MEAN, 0);
    assert_differs(see_loss, o[0], o[1]);
    assert_differs(see_loss, o[0], o[2]);
    ck_assert_uint_eq(see_loss(&o[3]), 0);
    assert_error(TN_E_INVALID, "reduction 7");
}

/* f(x) = x + error x with the error out of backward's sight */
static tn_tensor *wrong_by(tn_tensor **in, void *error)
{
    return tn_add(in[0], tn_mul_scalar(tn_detach(in[0]), *(const double *)error));
}

static tn_tensor *kink(tn_tensor **in, void *user)
{
    (void)user;
    return tn_relu(in[0]);
}

static tn_tensor *cut(tn_tensor *grad, void *user)
{
    (void)user;
    return tn_detach(grad);
}

/* x^3 with the right gradient, whose own gradient lacks what a hook cut off */
static tn_tensor *cut_gradient(tn_tensor **in, void *user)
{
    (void)user;
    tn_tensor *y = tn_square(in[0]);
    if (tn_requires_grad(y)) tn_register_hook(y, cut, NULL);
    return tn_mul(y, in[0]);
}

static tn_status grad_check(tn_function f, double value, double error, tn_gradcheck_options o)
{
    tn_tensor *x = with_grad(tn_full_as(TN_SHAPE(1, 1, 2, 2), value, TN_F64, tn_cpu()));
    return tn_gradcheck(f, &x, 1, &error, o);
}

#define CHECK(f, value, error, ...)                                                                \
    grad_check(f, value, error, (tn_gradcheck_options){ __VA_ARGS__ })

static void gradcheck(void)
{
    /* 5e-5 below the kink: differences over 1e-6 do not see it, over 1e-3 they do */
    assert_ok(CHECK(kink, -5e-5, 0, 0));
    assert_ok(CHECK(kink, -5e-5, 0, .eps = 1e-6));
    ck_assert_int_ne(CHECK(kink, -5e-5, 0, .eps = 1e-3), TN_OK);
    assert_fails(CHECK(kink, 1, 0, .eps = -1), TN_E_INVALID, "eps -1");
    assert_ok(CHECK(wrong_by, 1, 0.9e-3, 0)); /* within 1e-3 of 1 */
    ck_assert_int_ne(CHECK(wrong_by, 1, 2e-3, 0), TN_OK);
    assert_ok(CHECK(wrong_by, 1, 2e-3, .rtol = 1e-2));
    assert_fails(CHECK(kink, 1, 0, .rtol = -1), TN_E_INVALID, "rtol -1");
    ck_assert_int_ne(CHECK(wrong_by, 1, 1.2e-3, 0), TN_OK);
    assert_ok(CHECK(wrong_by, 1, 1.2e-3, .atol = 1e-3));
    assert_ok(CHECK(wrong_by, 1, 1.005e-3, 0)); /* 1e-5 more than rtol gives */
    ck_assert_int_ne(CHECK(wrong_by, 1, 1.005e-3, .atol = 1e-9), TN_OK);
    assert_fails(CHECK(kink, 1, 0, .atol = -1), TN_E_INVALID, "atol -1");
    assert_ok(CHECK(cut_gradient, 0.3, 0, 0));
    ck_assert_int_ne(CHECK(cut_gradient, 0.3, 0, .second = true), TN_OK);
    tn_error_clear();
}

/* What a loss of the one or six weights of a Linear is to be, and how often it was called. */
typedef struct bent {
    double error, kink; /* of it, w + error w, the latter out of backward's sight; and |w - kink| */
    int calls;
} bent;

static tn_tensor *bent_loss(tn_module *m, void *user)
{
    bent *b = user;
    tn_tensor *w = tn_list_get(tn_parameters(m), "weight");
    tn_tensor *y = tn_add(w, tn_mul_scalar(tn_detach(w), b->error));
    b->calls++;
    if (b->kink != 0) y = tn_abs(tn_add_scalar(w, -b->kink));
    return tn_sum_all(y);
}

static tn_status bent_check(int n, bent *b, tn_module_gradcheck_options o)
{
    tn_module *m = owned(tn_linear_new(n, 1, (tn_linear_options){ .no_bias = true }));
    TN_NO_GRAD assert_ok(tn_fill_(tn_list_get(tn_parameters(m), "weight"), 1));
    return tn_module_gradcheck(m, bent_loss, b, o);
}

#define BENT(error, kink, ...)                                                                     \
    bent_check(1, &(bent){ error, kink, 0 }, (tn_module_gradcheck_options){ __VA_ARGS__ })

static void module_gradcheck(void)
{
    bent every = { 0 }, fast = { 0 };
    /* 5e-9 from the kink: 1e-6 / 100 sees it, 1e-7 / 100 does not */
    assert_fails(BENT(0, 1 + 5e-9, 0), TN_E_INVALID, "backward gives");
    assert_fails(BENT(0, 1 + 5e-9, .eps = 1e-6), TN_E_INVALID, "backward gives");
    assert_ok(BENT(0, 1 + 5e-9, .eps = 1e-7));
    assert_fails(BENT(0, 0, .eps = -1), TN_E_INVALID, "eps -1");
    assert_ok(BENT(0.9e-5, 0, 0));
    assert_fails(BENT(2e-5, 0, 0), TN_E_INVALID, "backward gives");
    assert_ok(BENT(2e-5, 0, .rtol = 1e-4));
    assert_fails(BENT(0, 0, .rtol = -1), TN_E_INVALID, "rtol -1");
    assert_fails(BENT(1.1e-5, 0, 0), TN_E_INVALID, "backward gives");
    assert_ok(BENT(1.1e-5, 0, .atol = 1e-5));
    assert_fails(BENT(0, 0, .atol = -1), TN_E_INVALID, "atol -1");
    assert_ok(bent_check(6, &every, (tn_module_gradcheck_options){ 0 }));
    assert_ok(bent_check(6, &fast, (tn_module_gradcheck_options){ .fast = true }));
    ck_assert_int_eq(every.calls - fast.calls, 2 * (6 - 1));
}

/* ---- the rows -------------------------------------------------------------------------------- */

static const option_row rows[] = {
    REAL(tn_nan_to_num_options, nan, 0, 2, NAN, NULL, see_nan_to_num, 0),
    REAL(tn_nan_to_num_options, posinf, 0x1.fffffep127, 2, NAN, NULL, see_nan_to_num, 0),
    REAL(tn_nan_to_num_options, neginf, -0x1.fffffep127, 2, NAN, NULL, see_nan_to_num, 0),
    FLAG(tn_nan_to_num_options, use_posinf, see_nan_to_num, 0),
    FLAG(tn_nan_to_num_options, use_neginf, see_nan_to_num, 0),
    CUSTOM(tn_save_options, every_key, save_every_key),
    CUSTOM(tn_save_options, metadata, save_metadata),
    CUSTOM(tn_file_limits, header_bytes, limit_headers_and_tensors),
    CUSTOM(tn_file_limits, tensors, limit_headers_and_tensors),
    CUSTOM(tn_file_limits, inflated_bytes, limit_inflated),
    INT(tn_loader_options, batch_size, 1, 2, -1, "batch_size -1", see_loader, 0),
    FLAG(tn_loader_options, shuffle, see_loader, 0),
    FLAG(tn_loader_options, drop_last, see_loader, .batch_size = 3),
    INT(tn_loader_options, seed, 0, 5, NAN, NULL, see_loader, .shuffle = true),
    CUSTOM(tn_loader_options, prefetch, loader_prefetch),
    INT(tn_loader_options, parts, 1, 2, -1, "part 0 of -1", see_loader, .batch_size = 2),
    INT(tn_loader_options, part, 0, 1, 2, "part 2 of 2", see_loader, .batch_size = 2, .parts = 2),
    INT(tn_metric_options, top_k, 1, 2, -1, "top_k -1", see_top, 0),
    FLAG(tn_metric_options, use_ignore_index, see_top, .ignore_index = 1),
    INT(tn_metric_options, ignore_index, 0, 1, NAN, NULL, see_top, .use_ignore_index = true),
    INT(tn_metric_options, classes, NAN, 3, 1, "want 2 classes", see_confusion, 0),
    SHOWN_BY(tn_metric_options, rows, "metrics/test_metrics.c", "scores_that_have_no_area"),
    INT(tn_tensorboard_options, purge_step, 0, 5, NAN, NULL, see_tensorboard, 0),
    FLAG(tn_tensorboard_options, use_purge_step, see_tensorboard, 0),
    SHOWN_BY(tn_loader_options, device, "cuda/steps/test_cuda_loader.c", "same_batches"),
    CUSTOM(tn_loader_options, workers, loader_workers),
    CUSTOM(tn_loader_options, ahead, loader_workers),
    CUSTOM(tn_loader_options, samples, loader_tensors),
    CUSTOM(tn_loader_options, weights, loader_tensors),
    CUSTOM(tn_loader_options, without_replacement, loader_tensors),
    CUSTOM(tn_loader_options, classes, loader_tensors),
    INT(tn_loader_options, draws, 0, 5, 9, "draws 9 of 7", see_loader, .shuffle = true),
    SHOWN_BY(tn_loader_options, collate, "data/test_datasets.c", "batches_of_one_s_own"),
    SHOWN_BY(tn_loader_options, n_out, "data/test_datasets.c", "batches_of_one_s_own"),
    REAL(tn_loader_options, pad, 0, 5, NAN, NULL, see_pad, 0),
    FLAG(tn_csv_options, no_header, see_csv, .missing = "NA"),
    CUSTOM(tn_csv_options, separator, csv_fields),
    CUSTOM(tn_csv_options, missing, csv_fields),
    CUSTOM(tn_csv_options, types, csv_fields),
    CUSTOM(tn_data_parallel_options, bucket_bytes, parallel),
    CUSTOM(tn_data_parallel_options, buffers, parallel),
    CUSTOM(tn_data_parallel_options, messages, parallel),
    CUSTOM(tn_cross_entropy_options, weight, cross_entropy_weight),
    REAL(tn_cross_entropy_options, label_smoothing, 0, .2, 1.5, "label_smoothing 1.5", see_loss, 0),
    FLAG(tn_cross_entropy_options, use_ignore_index, see_loss, .ignore_index = 1),
    INT(tn_cross_entropy_options, ignore_index, 0, 1, NAN, NULL, see_loss,
        .use_ignore_index = true),
    CUSTOM(tn_cross_entropy_options, reduction, cross_entropy_reduction),
    INT(tn_conv_spec, stride, 1, 2, -1, "stride -1", see_conv2d_spec, .groups = 0),
    INT1(tn_conv_spec, stride, 1, 2, -1, "stride -1", see_conv2d_spec, .groups = 0),
    INT(tn_conv_spec, padding, 0, 1, -1, "padding -1", see_conv2d_spec, .groups = 0),
    INT1(tn_conv_spec, padding, 0, 1, -1, "padding -1", see_conv2d_spec, .groups = 0),
    INT(tn_conv_spec, dilation, 1, 2, -1, "dilation -1", see_conv2d_spec, .groups = 0),
    INT1(tn_conv_spec, dilation, 1, 2, -1, "dilation -1", see_conv2d_spec, .groups = 0),
    FLAG(tn_conv_spec, same, see_conv2d_spec, .groups = 0),
    INT(tn_conv_spec, groups, 1, 2, -1, "groups -1", see_conv2d_spec, .stride = { 1, 1 }),
    INT(tn_conv_spec, padding_end, 2, 1, -1, "padding -1", see_conv2d_spec, .padding = { 2 }),
    INT1(tn_conv_spec, padding_end, 2, 1, -1, "padding -1", see_conv2d_spec, .padding = { 0, 2 }),
    FLAG(tn_conv_spec, use_padding_end, see_conv2d_spec, .padding = { 1 }),
    SHOWN_BY(tn_conv_spec, padding_mode, "ops/test_ops.c", "golden_numbers"),
    INT(tn_conv_spec, output_padding, 0, 1, 2, "output_padding 2", see_transpose, .stride = { 2 }),
    INT1(tn_conv_spec, output_padding, 0, 1, 2, "output_padding 2", see_transpose,
         .stride = { 1, 2 }),
    INT(tn_pool_spec, kernel, NAN, 2, -1, "kernel", see_max_pool2d, .kernel = { 3, 3 }),
    INT1(tn_pool_spec, kernel, NAN, 2, -1, "kernel", see_max_pool2d, .kernel = { 3, 3 }),
    INT(tn_pool_spec, stride, 3, 2, -1, "stride -1", see_max_pool2d, .kernel = { 3, 2 }),
    INT1(tn_pool_spec, stride, 2, 3, -1, "stride -1", see_max_pool2d, .kernel = { 3, 2 }),
    INT(tn_pool_spec, padding, 0, 1, -1, "padding -1", see_max_pool2d, .kernel = { 3, 3 }),
    INT1(tn_pool_spec, padding, 0, 1, 2, "padding 2", see_avg_pool2d, .kernel = { 3, 3 }),
    INT(tn_pool_spec, dilation, 1, 2, -1, "dilation -1", see_max_pool2d, .kernel = { 3, 3 }),
    INT1(tn_pool_spec, dilation, 1, 2, -1, "dilation -1", see_max_pool2d, .kernel = { 3, 3 }),
    FLAG(tn_pool_spec, ceil_mode, see_avg_pool2d, .kernel = { 2, 2 }),
    FLAG(tn_pool_spec, exclude_padding, see_avg_pool2d, .kernel = { 3, 3 }, .padding = { 1, 1 }),
    INT(tn_pool_spec, divisor, 9, 4, -1, "divisor -1", see_avg_pool2d, .kernel = { 3, 3 }),
    INT(tn_interpolate_spec, size, NAN, 5, -1, "size", see_interpolate, .size = { 3, 4 }),
    INT1(tn_interpolate_spec, size, 3, 5, -1, "size -1", see_interpolate, .size = { 3, 4 }),
    REAL(tn_interpolate_spec, scale, NAN, 2, -1, "size", see_interpolate, .mode = TN_LINEAR),
    FLAG(tn_interpolate_spec, align_corners, see_interpolate, .size = { 9 }, .mode = TN_LINEAR),
    FLAG(tn_interpolate_spec, antialias, see_interpolate, .size = { 3 }, .mode = TN_LINEAR),
    SHOWN_BY(tn_interpolate_spec, mode, "ops/ops_values.c", "interpolation_rounds_as_pytorch"),
    SHOWN_BY(tn_image_options, mode, "data/test_images.c", "decoded_as_torchvision_does"),
    SHOWN_BY(tn_image_options, orient, "data/test_images.c", "decoded_as_torchvision_does"),
    SHOWN_BY(tn_image_options, damaged, "data/test_images.c",
             "a_jpeg_that_is_cut_off_is_taken_on_request"),
    SHOWN_BY(tn_image_resize_options, filter, "data/test_images.c", "resized_as_torchvision_does"),
    SHOWN_BY(tn_image_resize_options, no_antialias, "data/test_images.c",
             "resized_as_torchvision_does"),
    SHOWN_BY(tn_image_crop_options, scale, "data/test_images.c", "drawn_as_torchvision_does"),
    SHOWN_BY(tn_image_crop_options, ratio, "data/test_images.c", "drawn_as_torchvision_does"),
    SHOWN_BY(tn_image_crop_options, resize, "data/test_images.c", "transforms_refused"),
    SHOWN_BY(tn_image_rotate_options, linear, "data/test_images.c", "moved_as_torchvision_does"),
    SHOWN_BY(tn_image_rotate_options, expand, "data/test_images.c", "moved_as_torchvision_does"),
    SHOWN_BY(tn_image_rotate_options, fill, "data/test_images.c", "moved_as_torchvision_does"),
    SHOWN_BY(tn_image_jitter_options, brightness, "data/test_images.c",
             "drawn_as_torchvision_does"),
    SHOWN_BY(tn_image_jitter_options, contrast, "data/test_images.c", "drawn_as_torchvision_does"),
    SHOWN_BY(tn_image_jitter_options, saturation, "data/test_images.c",
             "drawn_as_torchvision_does"),
    SHOWN_BY(tn_image_jitter_options, hue, "data/test_images.c", "drawn_as_torchvision_does"),
    SHOWN_BY(tn_image_erase_options, scale, "data/test_images.c", "drawn_as_torchvision_does"),
    SHOWN_BY(tn_image_erase_options, ratio, "data/test_images.c", "drawn_as_torchvision_does"),
    SHOWN_BY(tn_image_erase_options, value, "data/test_images.c", "drawn_as_torchvision_does"),
    SHOWN_BY(tn_lora_options, name, "lm/test_lora.c", "adapters_are_switched_at_run_time"),
    SHOWN_BY(tn_lora_options, rank, "lm/test_lora.c", "one_call_freezes_all_but_the_adapter"),
    SHOWN_BY(tn_lora_options, alpha, "lm/test_lora.c", "the_sum_is_that_of_the_formula"),
    SHOWN_BY(tn_lora_options, dropout, "lm/test_lora.c", "dropout_acts_in_training_alone"),
    SHOWN_BY(tn_lora_options, rslora, "lm/test_lora.c", "the_sum_is_that_of_the_formula"),
    SHOWN_BY(tn_lm_options, use_dtype, "lm/test_models.c", "dtypes"),
    SHOWN_BY(tn_lm_options, dtype, "lm/test_models.c", "dtypes"),
    SHOWN_BY(tn_lm_options, non_strict, "lm/test_models.c", "wrong_names"),
    SHOWN_BY(tn_lm_options, report, "lm/test_models.c", "wrong_names"),
    SHOWN_BY(tn_encode_options, bare, "lm/test_tokenizer.c", "as_the_package"),
    SHOWN_BY(tn_encode_options, literal, "lm/test_tokenizer.c", "what_it_has"),
    SHOWN_BY(tn_tiktoken_options, encoding, "lm/tokenizer_layouts.c", "ranks_refused"),
    SHOWN_BY(tn_tiktoken_options, pattern, "lm/tokenizer_layouts.c", "ranks"),
    SHOWN_BY(tn_tiktoken_options, special, "lm/tokenizer_layouts.c", "ranks"),
    SHOWN_BY(tn_tiktoken_options, special_ids, "lm/tokenizer_layouts.c", "ranks"),
    SHOWN_BY(tn_tiktoken_options, n_special, "lm/tokenizer_layouts.c", "ranks"),
    SHOWN_BY(tn_bpe_options, vocab_size, "lm/tokenizer_layouts.c", "trained_as_asked"),
    SHOWN_BY(tn_bpe_options, min_frequency, "lm/tokenizer_layouts.c", "trained_as_asked"),
    SHOWN_BY(tn_bpe_options, pattern, "lm/tokenizer_layouts.c", "trained_as_asked"),
    SHOWN_BY(tn_bpe_options, special, "lm/tokenizer_layouts.c", "trained"),
    SHOWN_BY(tn_bpe_options, n_special, "lm/tokenizer_layouts.c", "trained"),
    SHOWN_BY(tn_decode_options, special, "lm/test_tokenizer.c", "with_and_without_what_is_around"),
    SHOWN_BY(tn_generate_options, max_new_tokens, "lm/test_generate.c", "several_rows_of_a_prompt"),
    SHOWN_BY(tn_generate_options, min_new_tokens, "lm/test_generate.c",
             "a_row_that_must_not_end_yet"),
    SHOWN_BY(tn_generate_options, per_prompt, "lm/test_generate.c", "several_rows_of_a_prompt"),
    SHOWN_BY(tn_generate_options, sampling, "lm/test_generate.c",
             "rows_are_those_of_a_loop_by_hand"),
    SHOWN_BY(tn_generate_options, eos, "lm/test_generate.c", "tokens_that_end_a_row"),
    SHOWN_BY(tn_generate_options, n_eos, "lm/test_generate.c", "tokens_that_end_a_row"),
    SHOWN_BY(tn_generate_options, tokenizer, "lm/test_generate.c", "what_is_certain_is_told"),
    SHOWN_BY(tn_generate_options, stop, "lm/test_generate.c", "what_is_certain_is_told"),
    SHOWN_BY(tn_generate_options, n_stop, "lm/test_generate.c", "what_is_refused"),
    SHOWN_BY(tn_generate_options, log_probs, "lm/test_generate.c", "log_probabilities"),
    SHOWN_BY(tn_generate_options, on_token, "lm/test_generate.c", "each_token_is_told"),
    SHOWN_BY(tn_generate_options, user, "lm/test_generate.c", "each_token_is_told"),
    SHOWN_BY(tn_sampling_options, repetition_penalty, "lm/test_sample.c",
             "logits_as_transformers_has_them"),
    SHOWN_BY(tn_sampling_options, frequency_penalty, "lm/test_sample.c",
             "what_was_generated_and_what_was_given"),
    SHOWN_BY(tn_sampling_options, presence_penalty, "lm/test_sample.c",
             "what_was_generated_and_what_was_given"),
    SHOWN_BY(tn_sampling_options, suppress, "lm/test_sample.c", "logits_as_transformers_has_them"),
    SHOWN_BY(tn_sampling_options, n_suppress, "lm/test_sample.c", "options_out_of_range"),
    SHOWN_BY(tn_sampling_options, temperature, "lm/test_sample.c",
             "logits_as_transformers_has_them"),
    SHOWN_BY(tn_sampling_options, top_k, "lm/test_sample.c", "logits_as_transformers_has_them"),
    SHOWN_BY(tn_sampling_options, top_p, "lm/test_sample.c", "logits_as_transformers_has_them"),
    SHOWN_BY(tn_sampling_options, min_p, "lm/test_sample.c", "logits_as_transformers_has_them"),
    SHOWN_BY(tn_sampling_options, seed, "lm/test_sample.c", "draws_depend_on_seed_row_and_step"),
    SHOWN_BY(tn_profile_options, steps, "trace/test_profile.c", "profile_refused"),
    SHOWN_BY(tn_profile_options, rows, "trace/test_profile.c", "rows_are_cut"),
    SHOWN_BY(tn_profile_options, file, "trace/test_profile.c", "calls_and_flops"),
    SHOWN_BY(tn_profile_options, events, "trace/test_profile.c", "calls_and_flops"),
    CUSTOM(tn_gradcheck_options, eps, gradcheck),
    CUSTOM(tn_gradcheck_options, atol, gradcheck),
    CUSTOM(tn_gradcheck_options, rtol, gradcheck),
    CUSTOM(tn_gradcheck_options, second, gradcheck),
    CUSTOM(tn_module_gradcheck_options, eps, module_gradcheck),
    CUSTOM(tn_module_gradcheck_options, atol, module_gradcheck),
    CUSTOM(tn_module_gradcheck_options, rtol, module_gradcheck),
    CUSTOM(tn_module_gradcheck_options, fast, module_gradcheck),
};
const option_rows options_of_others = { rows, COUNT(rows) };
