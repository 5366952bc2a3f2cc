/*
 * tensor_host.c - the library in its host: what it reports about itself, which of CUDA's libraries
 * and of AMX it uses, hosts that trap floating-point exceptions, locales with a decimal comma.
 *
 * Seen to fail: in select.c, no word about AMX that is not used.
 */
#include "files.h"
#include "tensor_cases.h"

#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

START_TEST(info)
{
    ck_assert_str_eq(tn_version_string(), TN_VERSION);
    const char *keys[] = { "version: " TN_VERSION "\n",
                           "compiler: ",
                           "build: ",
                           strstr(tn_info(), "BLAS: none") ? "plain loops" : "BLAS: OpenBLAS ",
                           "SIMD: ",
                           "threads: ",
                           "CUDA: " };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_msg(strstr(tn_info(), keys[i]) != NULL, "no \"%s\" in\n%s", keys[i], tn_info());
    ck_assert_ptr_eq(tn_info(), tn_info());
    ck_assert(tn_cuda_available() || strlen(tn_cuda_why()) > 0);
    if (!tn_cuda_available())
        assert_null(tn_empty_as(TN_SHAPE(1), TN_F32, tn_cuda(0)), TN_E_DEVICE, "cuda:0");
}
END_TEST

static bool file_has(const char *path, const char *text)
{
    char line[8192];
    bool found = false;
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof line, f)) found = strstr(line, text) != NULL;
    if (f) fclose(f);
    return found;
}

/* CUDA's libraries take 150 MiB, so without a driver they are not loaded. */
START_TEST(no_driver_no_cuda_libraries)
{
    if (tn_cuda_available() || getenv("TN_CUDA_MODULE")) return;
    if (file_has("/proc/self/maps", "/libcuda.so")) return; /* there is a driver */
    ck_assert_msg(strstr(tn_cuda_why(), "no NVIDIA driver") != NULL, "%s", tn_cuda_why());
    ck_assert(!file_has("/proc/self/maps", "libcublas"));
}
END_TEST

/* The kernel's list of the processor's features is the independent word on it. */
static bool cpuinfo_has(const char *feature)
{
    return file_has("/proc/cpuinfo", feature);
}

START_TEST(fast_bf16)
{
    bool processor = cpuinfo_has(" amx_bf16") ||
                     (cpuinfo_has(" avx512_bf16") && (cpuinfo_has("AMD") || getenv("TN_DOTS")));
    bool used = strstr(tn_info(), "bf16 by AMX") || strstr(tn_info(), "bf16 by AVX512-BF16");
    ck_assert_int_eq(tn_bf16_is_fast(tn_cpu()), processor && used);
    if (processor && strstr(tn_info(), "SIMD: avx512") && !getenv("TN_AMX") && !getenv("TN_DOTS"))
        ck_assert_msg(used, "%s", tn_info());
    ck_assert(!tn_bf16_is_fast(tn_cuda(tn_cuda_device_count())));
    ck_assert(!tn_bf16_is_fast(tn_cuda(-1)));
    ck_assert_int_eq(tn_error_status(), TN_OK);
}
END_TEST

/* These are of a process that has not used AMX. */
static bool amx_is_expected(void)
{
    return cpuinfo_has(" amx_bf16") && strstr(tn_info(), "SIMD: avx512") && !getenv("TN_AMX");
}

static int signal_stack_of(size_t bytes)
{
    static char room[1 << 16];
    ck_assert_uint_le(bytes, sizeof room);
    return sigaltstack(&(stack_t){ .ss_sp = room, .ss_size = bytes }, NULL);
}

START_TEST(amx_and_a_signal_stack_after_it)
{
    if (!amx_is_expected()) return;
    ck_assert_msg(strstr(tn_info(), "by AMX") != NULL, "%s", tn_info());
    ck_assert_int_eq(signal_stack_of(8192), -1);
    ck_assert_int_eq(signal_stack_of(getauxval(AT_MINSIGSTKSZ)), 0);
}
END_TEST

START_TEST(amx_refused_because_of_a_signal_stack)
{
    int status = signal_stack_of(8192);
    if (!amx_is_expected()) return;
    ck_assert_int_eq(status, 0);
    ck_assert_msg(strstr(tn_info(), "AMX is not used: a thread's signal stack (sigaltstack)") !=
                      NULL,
                  "%s", tn_info());
    ck_assert(strstr(tn_info(), "by AMX") == NULL);
}
END_TEST

START_TEST(amx_off)
{
    bool wished = getenv("TN_AMX") != NULL;
    ck_assert_int_eq(setenv("TN_AMX", "off", 1), 0);
    ck_assert(strstr(tn_info(), "by AMX") == NULL);
    if (wished || !cpuinfo_has(" amx_bf16") || !strstr(tn_info(), "SIMD: avx512")) return;
    ck_assert_msg(strstr(tn_info(), "AMX is not used: TN_AMX=off\n") != NULL, "%s", tn_info());
}
END_TEST

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__i386__))
static void train_a_little(bool f16)
{
    tn_module *m = tn_sequential(tn_conv2d_new(1, 4, 3, (tn_conv2d_options){ .padding = 1 }),
                                 tn_batch_norm2d_new(4, (tn_batch_norm_options){ 0 }),
                                 tn_relu_new(), tn_flatten_new(1, -1), tn_dropout_new(0.2),
                                 tn_linear_new(4 * 6 * 6, 3, (tn_linear_options){ 0 }));
    tn_list *list = tn_parameters(m);
    tn_optim *opt = tn_adamw(list, (tn_adamw_options){ .lr = 1e-2 });
    tn_scaler *scaler = tn_scaler_new((tn_scaler_options){ 0 });
    tn_scheduler *cosine = tn_cosine_lr(opt, 3, 0);
    assert_made(cosine);
    for (int step = 0; step < 3; step++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *x = tn_randn(TN_SHAPE(8, 1, 6, 6)), *y = tn_randint(0, 3, TN_SHAPE(8)),
                  *loss = NULL;
        TN_AUTOCAST(f16 ? TN_F16 : TN_F32) loss = tn_cross_entropy(tn_forward(m, x), y);
        assert_ok(tn_optim_zero_grad(opt));
        assert_ok(tn_backward(tn_scaler_scale(scaler, loss)));
        assert_ok(tn_scaler_unscale(scaler, opt));
        tn_clip_grad_norm(list, 1, 2, false);
        assert_ok(tn_scaler_step(scaler, opt));
        assert_ok(tn_scaler_update(scaler));
        assert_ok(tn_scheduler_step(cosine));
        ck_assert(tn_format(loss, NULL, 0) > 0);
        tn_scope_end(scope);
    }
    tn_scheduler_free(cosine);
    tn_scaler_free(scaler);
    tn_optim_free(opt);
    tn_module_drop(m);
}

/* Infinities, NaN and what makes them, in every way of computing there is. */
static void compute_the_exceptional(void)
{
    tn_tensor *x = tn_from_floats((float[]){ 0, -1, INFINITY, NAN, 3e38f }, TN_SHAPE(5)), *index;
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *all[] = { tn_log(x),
                         tn_sqrt(x),
                         tn_div(x, x),
                         tn_exp(x),
                         tn_reciprocal(x),
                         tn_mul(x, x),
                         tn_softmax(x, 0),
                         tn_div_scalar(x, 0),
                         tn_pow_scalar(x, -0.5),
                         tn_rsqrt(x),
                         tn_maximum(x, tn_neg(x)),
                         tn_cumsum(x, 0),
                         tn_to_dtype(x, TN_F16),
                         tn_gelu(x),
                         tn_max(x, 0, false, &index),
                         tn_logsumexp(x, NULL, 0, false),
                         tn_std(x, NULL, 0, 5, false),
                         tn_mean(tn_zeros(TN_SHAPE(0)), NULL, 0, false),
                         tn_clamp(x, 0, INFINITY) };
    for (int k = 0; k < COUNT(all); k++) {
        assert_made(all[k]);
        if (tn_requires_grad(all[k]))
            assert_ok(tn_backward(tn_sum(tn_to_dtype(all[k], TN_F32), NULL, 0, false)));
    }
    assert_made(tn_gt(x, tn_zeros(TN_SHAPE(5))));
    assert_made(tn_lt_scalar(x, NAN));
    assert_made(tn_full(TN_SHAPE(2), NAN));
    assert_made(tn_to_dtype(tn_full_as(TN_SHAPE(100), 1e300, TN_F64, tn_cpu()), TN_F32));
    assert_made(tn_linspace(-1e308, 1e308, 3));
    tn_tensor *t = tn_ones(TN_SHAPE(4));
    assert_ok(tn_fill_(t, INFINITY));
    assert_ok(tn_mul_scalar_(t, 0));
    assert_ok(tn_div_(t, tn_zeros(TN_SHAPE(4))));
    float out[5];
    assert_ok(
        tn_copy_out(tn_full_as(TN_SHAPE(5), 1e300, TN_F64, tn_cpu()), out, sizeof out, TN_F32));
    ck_assert(isnan(tn_item(tn_select(x, 0, 3))));
    ck_assert(tn_format(x, NULL, 0) > 0 && isnan(tn_max_abs_diff(x, t)));
    tn_tensor *q = tn_full(TN_SHAPE(1, 2, 4), INFINITY);
    assert_made(tn_scaled_dot_product_attention(
        q, q, q, tn_full_as(TN_SHAPE(2, 2), 1, TN_BOOL, tn_cpu()), false, 0));
    assert_made(tn_matmul(q, tn_transpose(q, 1, 2)));
    assert_ok(tn_init_truncated_normal(t, 0, 1, 3, INFINITY));
}

START_TEST(hosts_that_trap_survive)
{
    const int traps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
    tn_set_num_threads(1 + _i);
    feclearexcept(FE_ALL_EXCEPT);
    ck_assert_int_ne(feenableexcept(traps), -1);
    train_a_little(false);
    train_a_little(true);
    compute_the_exceptional();
    int still = fegetexcept(), raised = fetestexcept(traps);
    fedisableexcept(traps);
    ck_assert_int_eq(still & traps, traps);
    ck_assert_int_eq(raised, 0); /* the flags we raised do not reach the host */
}
END_TEST
#endif

#ifdef __GLIBC__
/* A locale with a decimal comma and nothing else, in glibc's format: magic number, six fields and
 * their offsets (decimal point, separator, grouping, the two as wide characters, character set). */
static bool use_a_comma(void)
{
    static const unsigned char numeric[] = {
        0x14, 0x11, 0x03, 0x20, 6, 0, 0, 0,    0x20, 0, 0,   0,    0x22, 0,   0,   0,   0x23,
        0,    0,    0,    0x24, 0, 0, 0, 0x28, 0,    0, 0,   0x2c, 0,    0,   0,   ',', 0,
        0,    0,    ',',  0,    0, 0, 0, 0,    0,    0, 'U', 'T',  'F',  '-', '8', 0,
    };
    char path[1024];
    snprintf(path, sizeof path, "%s", in_folder("comma"));
    mkdir(path, 0700);
    FILE *file = fopen(in_folder("comma/LC_NUMERIC"), "wb");
    ck_assert(file && fwrite(numeric, sizeof numeric, 1, file) == 1 && fclose(file) == 0);
    snprintf(path, sizeof path, "%s", in_folder(""));
    setenv("LOCPATH", path, 1);
    return setlocale(LC_NUMERIC, "comma") && localeconv()->decimal_point[0] == ',';
}

static char *text_of(const char *path)
{
    static char text[200000];
    FILE *file = fopen(path, "rb");
    ck_assert(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

/* A trace in every way it is told, and a graph, of a model whose layers say numbers. */
static void write_traced(FILE *file)
{
    tn_module *m = tn_sequential(
        tn_linear_new(2, 2, (tn_linear_options){ 0 }),
        tn_layer_norm_new(TN_SHAPE(2), (tn_layer_norm_options){ .eps = .5 }), tn_dropout_new(0.25));
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .model = m, .opt = opt });
    tn_tensor *loss = tn_mean_all(tn_forward(m, tn_full(TN_SHAPE(3, 2), .5)));
    assert_ok(tn_graph_dot(file, loss, (tn_graph_options){ .model = m }));
    assert_ok(tn_backward(loss));
    assert_ok(tn_optim_step(opt));
    assert_ok(tn_trace_end(trace));
    loss = tn_mean_all(tn_forward(m, tn_full(TN_SHAPE(3, 2), .5)));
    assert_ok(tn_explain(file, loss, (tn_explain_options){ .model = m }));
    assert_ok(tn_trace_text(file, trace));
    assert_ok(tn_trace_diff(file, trace, trace));
    assert_ok(tn_trace_html(file, &trace, 1));
    assert_ok(tn_trace_json(file, trace));
    tn_trace_free(trace);
    tn_optim_free(opt);
    tn_module_drop(m);
}

/* What is written in the comma's locale is what is written in C's. */
static void with_a_point(const char *name, void (*write)(FILE *file))
{
    char *text[2];
    for (int comma = 0; comma < 2; comma++) {
        setlocale(LC_NUMERIC, comma ? "comma" : "C");
        tn_manual_seed(1);
        FILE *file = fopen(in_folder(name), "w");
        ck_assert(file != NULL);
        write(file);
        fclose(file);
        text[comma] = strdup(text_of(in_folder(name)));
    }
    ck_assert_msg(strcmp(text[0], text[1]) == 0, "%s is not the same", name);
    for (int comma = 0; comma < 2; comma++) free(text[comma]);
}

START_TEST(numbers_have_a_point_in_every_locale)
{
    if (!use_a_comma()) return; /* a libc that does not take such a file */
    char text[200];
    snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, "0,5"); /* the host's own numbers keep its format */
    ck_assert(tn_format(tn_from_floats((float[]){ 0.5f, 1.25f }, TN_SHAPE(2)), text, sizeof text) >
              0);
    ck_assert_str_eq(text, "[0.5000, 1.2500]  f32 [2]");
    FILE *file = fopen(in_folder("print"), "w");
    assert_ok(tn_fprint(file, tn_full(TN_SHAPE(1), 2.5)));
    tn_module *dropout = tn_sequential(tn_dropout_new(0.25));
    assert_ok(tn_module_summary(file, dropout));
    tn_module_drop(dropout);
    fclose(file);
    const char *written = text_of(in_folder("print"));
    ck_assert_msg(strstr(written, "2.5000") && strstr(written, "0.25") && !strstr(written, "0,25"),
                  "%s", written);
    fflush(stdout);
    int was = dup(STDOUT_FILENO);
    ck_assert(freopen(in_folder("stdout"), "w", stdout) != NULL);
    assert_ok(tn_print(tn_full(TN_SHAPE(1), 2.5)));
    fflush(stdout);
    dup2(was, STDOUT_FILENO);
    close(was);
    ck_assert_str_eq(text_of(in_folder("stdout")), "[2.5000]  f32 [1]\n");
    with_a_point("traced", write_traced);
    assert_null(tn_bernoulli(TN_SHAPE(2), 1.5), TN_E_INVALID, "p 1.5");
    const double x[] = { 0, 0.25, 0.5 }, y[] = { 0.125, 2.5, 1.75 };
    const tn_curve curve = { "loss", 3, x, y };
    assert_ok(tn_plot_svg(in_folder("plot.svg"), "t", "x", "y", &curve, 1));
    written = text_of(in_folder("plot.svg"));
    for (const char *p = written; *p; p++)
        ck_assert_msg(!(p[0] == ',' && p > written && p[-1] >= '0' && p[-1] <= '9' && p[1] >= '0' &&
                        p[1] <= '9'),
                      "a decimal comma: %.40s", p - (p - written > 20 ? 20 : p - written));
    tn_csv *csv = tn_csv_load(write_bytes("t.csv", "a\n2.5\n", 6), (tn_csv_options){ 0 });
    ck_assert_double_eq(csv ? tn_item(csv->column->values) : 0, 2.5);
    tn_csv_free(csv);
    snprintf(text, sizeof text, "%.1f", 0.5);
    ck_assert_str_eq(text, "0,5");
    setlocale(LC_NUMERIC, "C");
}
END_TEST
#endif

TCase *tensor_host_case(Suite *suite)
{
    TCase *t = file_case(suite, "host");
    add_tests(t, info, no_driver_no_cuda_libraries, fast_bf16, amx_and_a_signal_stack_after_it,
              amx_refused_because_of_a_signal_stack, amx_off);
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__i386__))
    tcase_add_loop_test(t, hosts_that_trap_survive, 0, 2);
#endif
#ifdef __GLIBC__
    tcase_add_test(t, numbers_have_a_point_in_every_locale);
#endif
    return t;
}
