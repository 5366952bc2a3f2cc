/*
 * test_cuda_cudnn.c - when cuDNN is used, over its stand-in (dnn.cpp): for which calls, with which
 * plans, what is computed when it is absent, too old, refuses or fails, and in captured steps. The
 * numbers are checked by the suites of attention and products, which run through it, too.
 *
 * Then the stand-in itself: each mistake that a caller can make is found, by name.
 *
 * Seen to fail, each with a complaint of the stand-in or wrong numbers (here and in cuda_attention
 * through it): in cudnn_graph.cu a finalize left out, MATH_PREC not set, k not turned, one number
 * for two tensors, a stride of dense tensors, the axis of the keys' index, ds without the scale,
 * the note of other bits ignored.
 */
#include <stdlib.h>
#include <unistd.h>

#include "cuda/cudnn_api.h"
#include "faults.h"
#include "shim.h"

static const char *(*complaint)(void);

static void expect_used(long long runs, long long before)
{
    ck_assert_int_eq(host.calls_of("cudnnBackendExecute") - before, runs);
    ck_assert_str_eq(complaint(), "");
}

static long long runs_so_far(void)
{
    return host.calls_of("cudnnBackendExecute");
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct sizes {
    int64_t b, h, g, t, s, d;
    bool causal, padded;
    tn_dtype dtype;
} sizes;

static tn_tensor *drawn(tn_shape shape, tn_dtype dtype, bool grad)
{
    tn_tensor *x = tn_to(tn_to_dtype(tn_randn(shape), dtype), tn_cuda(0));
    assert_made(x);
    if (grad) assert_ok(tn_set_requires_grad(x, true));
    return x;
}

/* Attention and its gradients; their hash. */
static uint64_t attend(const void *of)
{
    const sizes *c = of;
    tn_manual_seed(3);
    tn_tensor *q = drawn(TN_SHAPE(c->b, c->h, c->t, c->d), c->dtype, true);
    tn_tensor *k = drawn(TN_SHAPE(c->b, c->g, c->s, c->d), c->dtype, true);
    tn_tensor *v = drawn(TN_SHAPE(c->b, c->g, c->s, c->d), c->dtype, true);
    tn_tensor *mask = TN_NONE;
    if (c->padded) mask = tn_to(tn_gt_scalar(tn_rand(TN_SHAPE(c->b, 1, 1, c->s)), 0.7), tn_cuda(0));
    tn_tensor *y = tn_scaled_dot_product_attention(q, k, v, mask, c->causal, 0);
    assert_made(y);
    assert_ok(tn_backward(tn_sum(tn_square(tn_to_dtype(y, TN_F32)), NULL, 0, false)));
    tn_tensor *all[] = { y, tn_grad(q), tn_grad(k), tn_grad(v) };
    uint64_t hash = 0;
    for (int i = 0; i < 4; i++) hash = hash * 31 + tn_hash(all[i]);
    return hash;
}

/* A call that takes so many runs of cuDNN; another one gives the same bits. */
static void assert_used(uint64_t (*call)(const void *of), const void *of, int runs)
{
    tn_scope s = tn_scope_begin();
    long long before = runs_so_far();
    uint64_t first = call(of);
    expect_used(runs, before);
    ck_assert(call(of) == first);
    tn_scope_end(s);
}

START_TEST(which_calls)
{
    static const struct {
        sizes c;
        int runs;
    } cases[] = {
        { { 1, 2, 2, 64, 64, 32, true, false, TN_BF16 }, 2 },
        { { 2, 2, 2, 70, 130, 64, false, false, TN_F16 }, 2 },
        { { 1, 4, 2, 64, 66, 40, true, true, TN_BF16 }, 2 }, /* heads that share k and v; a mask */
        { { 2, 2, 1, 65, 65, 128, true, false, TN_BF16 }, 2 },
        { { 1, 2, 2, 63, 64, 32, true, false, TN_BF16 }, 0 }, /* short */
        { { 1, 2, 2, 64, 64, 36, true, false, TN_BF16 }, 0 }, /* not eights */
        { { 1, 2, 2, 64, 64, 24, true, false, TN_BF16 }, 0 }, /* narrow */
        { { 1, 1, 1, 64, 64, 136, true, false, TN_BF16 }, 0 },
        { { 1, 2, 2, 64, 64, 32, true, false, TN_F32 }, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_used(attend, &cases[i].c, cases[i].runs);
}
END_TEST

/* A second call of a shape finalizes a pack for each run, and nothing else. */
START_TEST(plans_are_kept)
{
    const sizes c = { 1, 2, 2, 64, 72, 32, true, false, TN_BF16 };
    tn_scope s = tn_scope_begin();
    attend(&c);
    long long before = host.calls_of("cudnnBackendFinalize");
    attend(&c);
    ck_assert_int_eq(host.calls_of("cudnnBackendFinalize") - before, 2);
    tn_scope_end(s);
}
END_TEST

/* 97 rows: no plan; 98: refused when it runs, and not asked again. */
START_TEST(refusals)
{
    static const int64_t rows[] = { 97, 98 };
    for (int i = 0; i < 2; i++) {
        sizes c = { 1, 2, 2, rows[i], 70, 32, true, false, TN_BF16 };
        tn_scope s = tn_scope_begin();
        long long before = runs_so_far();
        uint64_t first = attend(&c);
        expect_used(i == 0 ? 0 : 2, before);
        before = runs_so_far();
        ck_assert(attend(&c) == first);
        expect_used(0, before);
        tn_scope_end(s);
    }
}
END_TEST

/* ---- convolution ----------------------------------------------------------------------------- */

typedef struct conv {
    int64_t n, c, o, size, kernel;
    tn_conv2d_spec how;
    tn_dtype dtype;
    bool bias;
} conv;

static uint64_t convolve(const void *of)
{
    const conv *c = of;
    tn_manual_seed(4);
    const int64_t inputs = c->c / (c->how.groups > 0 ? c->how.groups : 1);
    tn_tensor *x = drawn(TN_SHAPE(c->n, c->c, c->size, c->size), c->dtype, true);
    tn_tensor *w = drawn(TN_SHAPE(c->o, inputs, c->kernel, c->kernel), c->dtype, true);
    tn_tensor *b = c->bias ? drawn(TN_SHAPE(c->o), c->dtype, true) : TN_NONE;
    tn_tensor *y = tn_conv2d(x, w, b, c->how);
    assert_made(y);
    assert_ok(tn_backward(tn_sum(tn_square(tn_to_dtype(y, TN_F32)), NULL, 0, false)));
    return tn_hash(y) * 31 * 31 + tn_hash(tn_grad(x)) * 31 + tn_hash(tn_grad(w));
}

START_TEST(which_convolutions)
{
    static const struct {
        conv c;
        int runs;
    } cases[] = {
        { { 2, 16, 24, 9, 3, { .padding = { 1, 1 } }, TN_BF16, false }, 3 },
        { { 2, 16, 24, 9, 3, { .stride = { 2, 2 } }, TN_F16, true }, 3 },
        { { 4, 5, 7, 12, 3, { .dilation = { 2, 2 } }, TN_BF16, true },
          3 }, /* channels as they are */
        { { 2, 16, 32, 9, 3, { .groups = 2 }, TN_BF16, false }, 3 },
        { { 2, 16, 16, 12, 3, { .groups = 16 }, TN_BF16, false }, 0 }, /* depthwise */
        { { 2, 16, 24, 12, 1, { .groups = 1 }, TN_BF16, false }, 1 },  /* a product; dw by cuDNN */
        { { 2, 16, 24, 9, 3, { .groups = 1 }, TN_F32, false }, 0 },
        { { 2, 16, 24, 9, 3, { .groups = 1 }, TN_F64, false }, 0 },
        { { 1, 2, 2, 5, 3, { .groups = 1 }, TN_BF16, false }, 0 }, /* small */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_used(convolve, &cases[i].c, cases[i].runs);
}
END_TEST

START_TEST(convolutions_in_tf32)
{
    const conv c = { 2, 16, 24, 9, 3, { .groups = 1 }, TN_F32, true };
    tn_scope s = tn_scope_begin();
    assert_ok(tn_set_tf32(true));
    long long before = runs_so_far();
    convolve(&c);
    expect_used(3, before);
    assert_ok(tn_set_tf32(false));
    tn_scope_end(s);
}
END_TEST

/* ---- absent, or too old ---------------------------------------------------------------------- */

static const sizes small = { 1, 2, 2, 64, 64, 32, true, false, TN_BF16 };

static int without(void *user)
{
    const char *const *set = user;
    setenv(set[0], set[1], 1);
    tn_scope s = tn_scope_begin();
    attend(&small);
    tn_scope_end(s);
    if (!shim() || runs_so_far() != 0) return bad("%s=%s: cuDNN ran", set[0], set[1]);
    return GOOD;
}

START_TEST(left_out)
{
    static const char *const settings[][2] = {
        { "TN_CUDNN", "off" },
        { "TN_CUDNN", "/nowhere/libcudnn.so" },
        { "TN_CUDNN_VERSION", "91002" },
    };
    in_child(settings[_i][1], without, (void *)(uintptr_t)settings[_i]);
}
END_TEST

/* ---- captured -------------------------------------------------------------------------------- */

static tn_tensor *step(int n, tn_tensor *const *in, void *user)
{
    (void)user, (void)n;
    tn_tensor *y = tn_scaled_dot_product_attention(in[0], in[0], in[0], TN_NONE, true, 0);
    return y ? tn_sum(tn_to_dtype(y, TN_F32), NULL, 0, false) : NULL;
}

START_TEST(captured)
{
    tn_scope s = tn_scope_begin();
    tn_tensor *x = drawn(TN_SHAPE(1, 2, 80, 32), TN_BF16, false);
    tn_capture *c = tn_capture_new(step, NULL, tn_cuda(0));
    assert_made(c);
    double want = tn_item(step(1, &x, NULL));
    long long made = 0, packs = 0;
    for (int i = 0; i < 4; i++) {
        tn_tensor *y = tn_capture_run(c, 1, (tn_tensor *[]){ x });
        assert_made(y);
        ck_assert(tn_item(y) == want);
        if (i == 0) made = host.calls_of("cudnnBackendFinalize"), packs = runs_so_far();
    }
    /* the capture ran the plan once, with a pack; later runs are the graph's */
    ck_assert_int_eq(runs_so_far() - packs, 1);
    ck_assert_int_eq(host.calls_of("cudnnBackendFinalize") - made, 1);
    ck_assert_str_eq(complaint(), "");
    tn_capture_free(c);
    tn_scope_end(s);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

static tn_tensor *in[3];
static int64_t length;
static uint64_t result;

static bool make_inputs(void)
{
    result = 0;
    return true;
}

static tn_status run_attention(void)
{
    tn_tensor *x[3];
    uint64_t hash = 0;
    for (int i = 0; i < 3; i++)
        if (!(x[i] = tn_detach(in[i])) || tn_set_requires_grad(x[i], true) != TN_OK)
            return tn_error_status();
    tn_tensor *y = tn_scaled_dot_product_attention(x[0], x[1], x[2], TN_NONE, true, 0);
    tn_tensor *seed = y ? tn_ones_like(y) : NULL;
    if (!seed) return tn_error_status();
    tn_status status = tn_backward_from(y, seed, 0);
    for (int i = 0; i < 3 && status == TN_OK; i++) {
        uint64_t h = tn_hash(tn_grad(x[i]));
        if (!h) return tn_error_status();
        hash = hash * 31 + h;
    }
    if (status == TN_OK) result = hash;
    return status;
}

static uint64_t state(void)
{
    return result;
}

static void drop_nothing(void) {}

static void draw_inputs(int64_t n)
{
    tn_manual_seed(5);
    length = n;
    for (int i = 0; i < 3; i++) in[i] = drawn(TN_SHAPE(1, 2, length, 32), TN_BF16, false);
}

/* Each call of a run. */
START_TEST(failing_runs)
{
    const scenario s = {
        "attention by cuDNN", make_inputs, run_attention, state, drop_nothing, true
    };
    tn_scope scope = tn_scope_begin();
    draw_inputs(64);
    long long before = runs_so_far();
    sweep_failures(&s);
    ck_assert_int_gt(runs_so_far(), before);
    ck_assert_str_eq(complaint(), "");
    tn_scope_end(scope);
}
END_TEST

static tn_status run_convolution(void)
{
    tn_tensor *x = tn_detach(in[0]), *w = tn_detach(in[1]);
    if (!x || !w || tn_set_requires_grad(x, true) != TN_OK ||
        tn_set_requires_grad(w, true) != TN_OK)
        return tn_error_status();
    tn_tensor *y = tn_conv2d(x, w, in[2], (tn_conv2d_spec){ 0 });
    tn_tensor *seed = y ? tn_ones_like(y) : NULL;
    if (!seed) return tn_error_status();
    tn_status status = tn_backward_from(y, seed, 0);
    uint64_t hash = status == TN_OK ? tn_hash(y) : 0, dx = hash ? tn_hash(tn_grad(x)) : 0;
    uint64_t dw = dx ? tn_hash(tn_grad(w)) : 0;
    if (!dw) return tn_error_status();
    result = (hash * 31 + dx) * 31 + dw;
    return TN_OK;
}

/* Channels are copied inside. */
START_TEST(failing_convolutions)
{
    const scenario s = { "convolution by cuDNN", make_inputs, run_convolution, state,
                         drop_nothing,           true };
    tn_scope scope = tn_scope_begin();
    in[0] = drawn(TN_SHAPE(2, 16, 8, 8), TN_BF16, false);
    in[1] = drawn(TN_SHAPE(16, 16, 3, 3), TN_BF16, false);
    in[2] = drawn(TN_SHAPE(16), TN_BF16, false);
    long long before = runs_so_far();
    sweep_failures(&s);
    ck_assert_int_gt(runs_so_far(), before);
    ck_assert_str_eq(complaint(), "");
    tn_scope_end(scope);
}
END_TEST

/* Each fifth call while a plan is made: of a new length, since a plan is made once. */
START_TEST(failing_plans)
{
    for (int k = 1 + _i; k < 400; k += 40) {
        tn_scope s = tn_scope_begin();
        draw_inputs(100 + k / 5);
        host.fail_call(k);
        tn_status status = run_attention();
        char call[128], said[512];
        snprintf(call, sizeof call, "%s", host.failed());
        snprintf(said, sizeof said, "%s", tn_error());
        host.fail_call(0);
        if (status != TN_OK) ck_assert_msg(strstr(said, call) != NULL, "%s: %s", call, said);
        tn_error_clear();
        long long before = runs_so_far();
        assert_ok(run_attention());
        expect_used(2, before);
        tn_scope_end(s);
    }
}
END_TEST

/* ---- the stand-in ---------------------------------------------------------------------------- */

typedef int (*create_fn)(int, void **);
typedef int (*set_fn)(void *, int, int, int64_t, const void *);
typedef int (*finish_fn)(void *);
static create_fn create;
static set_fn set;
static finish_fn finish;

static void *made(int type)
{
    void *d = NULL;
    ck_assert_int_eq(create(type, &d), 0);
    return d;
}

static void *tensor(int64_t id, int64_t rows, int64_t columns, bool is_virtual)
{
    void *d = made(DNN_BACKEND_TENSOR_DESCRIPTOR);
    const int64_t size[4] = { 1, 1, rows, columns };
    const int64_t stride[4] = { rows * columns, rows * columns, columns, 1 }, sixteen = 16;
    const bool yes = true;
    const int type = DNN_DATA_FLOAT;
    set(d, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, 1, &type);
    set(d, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, size);
    set(d, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, stride);
    set(d, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, &id);
    set(d, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, &sixteen);
    if (is_virtual) set(d, DNN_ATTR_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &yes);
    finish(d);
    return d;
}

static void *product(void *a, void *b, void *c)
{
    const int type = DNN_DATA_FLOAT;
    void *how = made(DNN_BACKEND_MATMUL_DESCRIPTOR);
    set(how, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &type);
    finish(how);
    void *d = made(DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set(d, DNN_ATTR_OPERATION_MATMUL_DESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &how);
    set(d, DNN_ATTR_OPERATION_MATMUL_ADESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &a);
    set(d, DNN_ATTR_OPERATION_MATMUL_BDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &b);
    set(d, DNN_ATTR_OPERATION_MATMUL_CDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &c);
    finish(d);
    return d;
}

static int graph_of(int n, void **operations)
{
    void *d = made(DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), *handle = d;
    set(d, DNN_ATTR_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, n, operations);
    set(d, DNN_ATTR_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &handle);
    return finish(d);
}

static void complained(int status, const char *of)
{
    const char *said = complaint();
    ck_assert_int_eq(status, DNN_BAD_PARAM);
    ck_assert_msg(strstr(said, of) != NULL, "\"%s\" does not say \"%s\"", said, of);
}

START_TEST(mistakes)
{
    const int type = DNN_DATA_FLOAT;
    const int64_t size[4] = { 1, 1, 2, 3 }, zero[4] = { 0, 0, 0, 0 };
    void *d = made(DNN_BACKEND_TENSOR_DESCRIPTOR);
    complained(set(d, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_INT64, 1, size),
               "ATTR_TENSOR_DATA_TYPE is of TYPE_INT64: want TYPE_DATA_TYPE");
    complained(set(d, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 9, size),
               "ATTR_TENSOR_DIMENSIONS of 9 elements");
    complained(set(d, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &type),
               "BACKEND_TENSOR_DESCRIPTOR has no ATTR_MATMUL_COMP_TYPE");
    ck_assert_int_eq(set(d, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, 1, &type), 0);
    complained(finish(d), "BACKEND_TENSOR_DESCRIPTOR is finalized without ATTR_TENSOR_DIMENSIONS");
    set(d, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, size);
    set(d, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 3, size);
    set(d, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, size);
    set(d, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, size);
    complained(finish(d), "4 sizes and 3 strides");
    set(d, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, zero);
    complained(finish(d), "sizes and strides are positive");
    set(d, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, size);
    ck_assert_int_eq(finish(d), 0);
    complained(set(d, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, size),
               "ATTR_TENSOR_STRIDES is set after BACKEND_TENSOR_DESCRIPTOR was finalized");
    complained(finish(d), "finalized twice");
    void *open = made(DNN_BACKEND_TENSOR_DESCRIPTOR);
    void *op = made(DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    complained(set(op, DNN_ATTR_OPERATION_MATMUL_ADESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &open),
               "ATTR_OPERATION_MATMUL_ADESC is given BACKEND_TENSOR_DESCRIPTOR that is not");
}
END_TEST

START_TEST(wrong_graphs)
{
    void *a = tensor(1, 2, 3, false), *b = tensor(2, 3, 4, false), *c = tensor(3, 2, 4, false);
    void *turned = tensor(4, 4, 3, false), *inner = tensor(5, 2, 3, true);
    void *twice = tensor(1, 3, 4, false);
    ck_assert_int_eq(graph_of(1, (void *[]){ product(a, b, c) }), 0);
    complained(graph_of(1, (void *[]){ product(a, turned, c) }),
               "a product of tensors 1 [1,1,2,3] and 4 [1,1,4,3] does not give 3 [1,1,2,4]");
    complained(graph_of(1, (void *[]){ product(inner, b, c) }),
               "virtual tensor 5 [1,1,2,3] is read before an operation writes it");
    complained(graph_of(1, (void *[]){ product(a, twice, c) }), "two tensors have the unique id 1");
    complained(graph_of(2, (void *[]){ product(a, b, c), product(a, b, c) }), "is written twice");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_cudnn");
    TCase *t = tcase_create("cudnn");
    if (!shim_for("cuDNN's stand-in")) return suite;
    if (!module_function("cuda_host_dnn_complaint", &complaint) ||
        !module_function("cudnnBackendCreateDescriptor", &create) ||
        !module_function("cudnnBackendSetAttribute", &set) ||
        !module_function("cudnnBackendFinalize", &finish))
        return NULL;
    tcase_add_test(t, which_calls);
    tcase_add_test(t, plans_are_kept);
    tcase_add_test(t, refusals);
    tcase_add_test(t, which_convolutions);
    tcase_add_test(t, convolutions_in_tf32);
    tcase_add_loop_test(t, left_out, 0, 3);
    tcase_add_test(t, captured);
    tcase_add_test(t, failing_runs);
    tcase_add_test(t, failing_convolutions);
    tcase_add_loop_test(t, failing_plans, 0, 5);
    tcase_add_test(t, mistakes);
    tcase_add_test(t, wrong_graphs);
    suite_add_tcase(suite, t);
    return suite;
}
