/*
 * page_driver.c - writes the pages that page_check.py reads: a few training steps each, told; and
 * the same accounts as JSON, as NAME.0.json, NAME.1.json, ...
 *
 * usage: page_driver FOLDER
 *   mlp.html          a net of two layers learns "one or the other, but not both", 3 steps
 *   cnn.html          the network of examples/batchnorm, 2 steps
 *   transformer.html  that of examples/transformer, small, 2 steps, gradients clipped
 *   modes.html        a net with batch norm, thrice: trained, in eval mode, partly frozen
 *   same.html         two traces of the same
 *   dead.html         a ReLU whose inputs are all negative
 *   reused.html       a module that reads its parameter and its input twice
 *   hooked.html       hooks change gradients on their way
 *   nonfinite.html    NaN, infinities, numbers that no f32 holds
 *   kinds.html        tensors of all dtypes, without elements, of one number, with many numbers
 *   pictures.html     large tensors of several ranks, whose elements are their own index
 *   symbols.html      formulas with numbers of their own
 *   names.html        names and formulas that would break a page
 *   apart.html        results that are the same but for being infinite, or not
 *   long.html         1,200 ops, twice
 *   nothing.html      a trace in which nothing happened
 *   deep.html         5,000 ops in modules in modules
 *   flat.html         5,000 ops, no module
 */
#include <math.h>
#include <stdlib.h>

#include <tenon/tenon.h>

#include "../../examples/batchnorm/net.h"
#include "../../examples/transformer/model.h"

static const char *folder;
static double clip; /* the norm that gradients are clipped to; 0: they are not */

static void write_page(const char *name, tn_trace *const *traces, int n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.html", folder, name);
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        exit(1);
    }
    TN_CHECK(tn_trace_html(file, traces, n));
    if (fclose(file) != 0) exit(1);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s.%d.json", folder, name, i);
        file = fopen(path, "w");
        if (!file) exit(1);
        TN_CHECK(tn_trace_json(file, traces[i]));
        if (fclose(file) != 0) exit(1);
    }
}

/* The steps of training, watched. Without opt backward runs, but nothing is moved. */
static tn_trace *watch(const char *title, tn_module *model, tn_optim *opt, tn_tensor *x,
                       tn_tensor *y, int steps)
{
    tn_trace *trace = tn_trace_begin(
        (tn_trace_options){ .model = model, .opt = opt, .title = title, .lines = true });
    TN_CHECK_PTR(trace);
    for (int i = 0; i < steps; i++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *loss = tn_cross_entropy(tn_forward(model, x), y);
        if (opt) TN_CHECK(tn_optim_zero_grad(opt));
        TN_CHECK(tn_backward(loss));
        if (clip > 0) tn_clip_grad_norm(tn_parameters(model), clip, 2, true);
        if (opt) TN_CHECK(tn_optim_step(opt));
        tn_scope_end(scope);
    }
    TN_CHECK(tn_trace_end(trace));
    return trace;
}

static void page(const char *name, tn_module *model, tn_tensor *x, tn_tensor *y, int steps)
{
    TN_CHECK_PTR(model);
    TN_CHECK(tn_set_name(x, "x"));
    TN_CHECK(tn_set_name(y, "y"));
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 0.1 });
    TN_CHECK_PTR(opt);
    tn_trace *trace = watch(NULL, model, opt, x, y, steps);
    write_page(name, &trace, 1);
    tn_trace_free(trace);
    tn_optim_free(opt);
    tn_module_drop(model);
}

/* ---- models ---------------------------------------------------------------------------------- */

static tn_module *linear(int64_t in, int64_t out)
{
    return tn_linear_new(in, out, (tn_linear_options){ 0 });
}

static const int64_t classes[] = { 0, 1, 1, 0 };

static tn_tensor *corners(void)
{
    return tn_from_floats((float[]){ 0, 0, 0, 1, 1, 0, 1, 1 }, TN_SHAPE(4, 2));
}

static void mlp(void)
{
    page("mlp", tn_sequential(linear(2, 8), tn_relu_new(), linear(8, 2)), corners(),
         tn_from_ints(classes, TN_SHAPE(4)), 3);
}

static void cnn(void)
{
    tn_tensor *x = tn_mul_scalar(tn_rand(TN_SHAPE(4, 1, 28, 28)), 255);
    page("cnn", net_new(127, 74, 0), x, tn_from_ints(classes, TN_SHAPE(4)), 2);
}

static void transformer(void)
{
    gpt_sizes sizes = { .vocab = 12, .context = 6, .layers = 2, .heads = 2, .d_model = 8 };
    tn_tensor *ids = tn_randint(0, 12, TN_SHAPE(1, 7));
    clip = 0.5;
    page("transformer", gpt_new(sizes), tn_narrow(ids, 1, 0, 6), tn_narrow(ids, 1, 1, 6), 2);
    clip = 0;
}

static void dead(void)
{
    tn_module *model = tn_sequential(linear(2, 3), tn_relu_new(), linear(3, 2));
    TN_CHECK_PTR(model);
    TN_NO_GRAD TN_CHECK(tn_fill_(tn_get_parameter(model, "0.bias"), -9));
    page("dead", model, corners(), tn_from_ints(classes, TN_SHAPE(4)), 1);
}

/* In the module's box, lines from the parameter and the input pass by the ops that come first. */
typedef struct reuse {
    tn_module base;
    tn_tensor *w;
} reuse;

static tn_tensor *reuse_forward(tn_module *self, tn_tensor *x)
{
    tn_tensor *w = ((reuse *)self)->w;
    return tn_add(tn_mul(tn_linear(x, w, TN_NONE), w), x);
}

static void reused(void)
{
    static const tn_module_type type = { .name = "Reuse",
                                         .size = sizeof(reuse),
                                         .forward = reuse_forward };
    reuse *m = tn_module_new(&type);
    TN_CHECK_PTR(m);
    tn_register_parameter(&m->base, "w", &m->w, tn_randn(TN_SHAPE(2, 2)));
    tn_module *made = tn_module_done(&m->base);
    page("reused", tn_sequential(linear(2, 2), made), tn_narrow(corners(), 0, 0, 2),
         tn_from_ints(classes, TN_SHAPE(2)), 1);
}

static tn_module *with_batchnorm(void)
{
    tn_manual_seed(2);
    tn_module *model =
        tn_sequential(linear(2, 4), tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 }),
                      tn_relu_new(), linear(4, 2));
    TN_CHECK_PTR(model);
    return model;
}

/* The same net and data: trained, in eval mode, with its first layer frozen, trained again. */
static void modes(void)
{
    static const char *const title[] = { "training", "eval", "first layer frozen", "again" };
    tn_tensor *x = corners(), *y = tn_from_ints(classes, TN_SHAPE(4));
    tn_trace *trace[4];
    for (int i = 0; i < 4; i++) {
        tn_module *model = with_batchnorm();
        if (i == 1) TN_CHECK(tn_eval(model));
        if (i == 2) {
            TN_CHECK(tn_set_requires_grad(tn_get_parameter(model, "0.weight"), false));
            TN_CHECK(tn_set_requires_grad(tn_get_parameter(model, "0.bias"), false));
        }
        tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 0.1 });
        TN_CHECK_PTR(opt);
        trace[i] = watch(title[i], model, i == 1 ? NULL : opt, x, y, i == 1 ? 1 : 2);
        tn_optim_free(opt);
        tn_module_drop(model);
    }
    write_page("modes", trace, 3);
    write_page("same", (tn_trace *[]){ trace[0], trace[3] }, 2);
    for (int i = 0; i < 4; i++) tn_trace_free(trace[i]);
}

static tn_tensor *times(tn_tensor *grad, void *factor)
{
    return tn_mul_scalar(grad, *(double *)factor);
}

static tn_tensor *as_it_is(tn_tensor *grad, void *user)
{
    (void)user;
    return grad;
}

/* Hooks on a result and on the leaf behind it. */
static void hooked(void)
{
    static double ten = 10;
    tn_tensor *w = tn_from_floats((float[]){ 1, -2, 3 }, TN_SHAPE(3));
    TN_CHECK(tn_set_name(w, "w"));
    TN_CHECK(tn_set_requires_grad(w, true));
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .title = "hooked" });
    TN_CHECK_PTR(trace);
    tn_tensor *y = tn_square(w);
    if (tn_register_hook(y, times, &ten) < 0 || tn_register_hook(y, as_it_is, NULL) < 0 ||
        tn_register_hook(w, times, &ten) < 0)
        exit(1);
    TN_CHECK(tn_backward(tn_sum(tn_mul(y, y), NULL, 0, false)));
    TN_CHECK(tn_trace_end(trace));
    write_page("hooked", &trace, 1);
    tn_trace_free(trace);
}

/* NaN and infinities; numbers that no f32 holds. */
static void nonfinite(void)
{
    tn_tensor *x = tn_from_floats((float[]){ 1, -1, 0, 4 }, TN_SHAPE(4));
    tn_tensor *z = tn_from_data((double[]){ 1e300, -2e-300, 3 }, TN_SHAPE(3), TN_F64);
    TN_CHECK(tn_set_requires_grad(x, true));
    TN_CHECK(tn_set_requires_grad(z, true));
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .title = "not finite" });
    TN_CHECK_PTR(trace);
    tn_tensor *y = tn_sum(tn_mul_scalar(z, 0.5), NULL, 0, false);
    TN_CHECK(tn_backward(tn_add(tn_sum(tn_log(x), NULL, 0, false), y)));
    TN_CHECK(tn_trace_end(trace));
    write_page("nonfinite", &trace, 1);
    tn_trace_free(trace);
}

/* Tensors of all dtypes, without elements, of one number, of more than are shown. */
static void kinds(void)
{
    static const tn_dtype dtypes[] = { TN_BF16, TN_F16, TN_F64 };
    tn_tensor *w = tn_from_floats((float[]){ 1, -0.0f, 3e-41f, -4, 70000, 6 }, TN_SHAPE(2, 3));
    tn_tensor *many = tn_randn(TN_SHAPE(40, 50)), *row = tn_from_ints(classes, TN_SHAPE(4));
    tn_tensor *model = tn_full(TN_SCALAR, 0.5);
    tn_tensor *leaf[] = { w, many, model };
    for (int i = 0; i < 3; i++) TN_CHECK(tn_set_requires_grad(leaf[i], true));
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .title = "kinds", .values = 3000 });
    TN_CHECK_PTR(trace);
    tn_tensor *sum = tn_sum(tn_mul(many, model), NULL, 0, false);
    for (int i = 0; i < 3; i++) {
        tn_tensor *half = tn_square(tn_to_dtype(w, dtypes[i]));
        sum = tn_add(sum, tn_sum(tn_to_dtype(half, TN_F32), NULL, 0, false));
    }
    tn_tensor *rows = tn_index_select(w, 0, row);
    tn_tensor *kept = tn_where(tn_gt(rows, tn_zeros_like(rows)), rows, tn_neg(rows));
    tn_tensor *none = tn_narrow(w, 0, 0, 0);
    tn_tensor *joined = tn_cat((tn_tensor *[]){ none, kept }, 2, 0);
    TN_CHECK(tn_backward(tn_add(sum, tn_sum(joined, NULL, 0, false))));
    TN_CHECK(tn_trace_end(trace));
    write_page("kinds", &trace, 1);
    tn_trace_free(trace);
}

/* Element number i is i: of an image, two rows of attention weights, a matrix, a vector. */
static void pictures(void)
{
    const tn_shape shape[] = { TN_SHAPE(2, 3, 40, 50), TN_SHAPE(1, 2, 30, 30), TN_SHAPE(100, 60),
                               TN_SHAPE(1200) };
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .title = "pictures" });
    TN_CHECK_PTR(trace);
    const double n[] = { 12000, 1800, 6000, 1200 };
    tn_tensor *loss = tn_full(TN_SCALAR, 0);
    for (int i = 0; i < 4; i++) {
        tn_tensor *x = tn_reshape(tn_arange(0, n[i], 1, TN_F32), shape[i]);
        TN_CHECK(tn_set_requires_grad(x, true));
        TN_CHECK(tn_set_name(x, (const char *[]){ "image", "attention", "matrix", "vector" }[i]));
        loss = tn_add(loss, tn_mean(tn_square(x), NULL, 0, false));
    }
    TN_CHECK(tn_backward(loss));
    TN_CHECK(tn_trace_end(trace));
    write_page("pictures", &trace, 1);
    tn_trace_free(trace);
}

static void symbols(void)
{
    tn_tensor *x = tn_from_floats((float[]){ 1, -2 }, TN_SHAPE(2));
    TN_CHECK(tn_set_requires_grad(x, true));
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .title = "symbols" });
    TN_CHECK_PTR(trace);
    tn_tensor *y = tn_leaky_relu(tn_clamp(tn_softplus(x, 1.5, 20), -3, 7), 0.125);
    tn_tensor *z = tn_pow_scalar(tn_mul_scalar(tn_elu(y, 0.75), 2.5), 3);
    TN_CHECK(tn_backward(tn_mean(z, NULL, 0, false)));
    TN_CHECK(tn_trace_end(trace));
    write_page("symbols", &trace, 1);
    tn_trace_free(trace);
}

static tn_status twice(tn_custom *c, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out)
{
    (void)c, (void)n_in, (void)n_out;
    out[0] = tn_mul_scalar(in[0], 2);
    return TN_OK;
}

static tn_status twice_back(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                            tn_tensor **din)
{
    (void)c, (void)n_out, (void)n_in;
    din[0] = tn_mul_scalar(dout[0], 2);
    return TN_OK;
}

/* What would end a script, an element, an attribute or a string; letters of two to four bytes, and
 * one that is cut. */
static void names(void)
{
    static const tn_custom_op op = { .name = "a\"<b>&amp;'\\",
                                     .formula = "y = </script><!-- \xc3\xbc \xf0\x9f\x99\x82",
                                     .forward = twice,
                                     .backward = twice_back,
                                     .gradient = "dx = <script> \"2\" dy" };
    tn_tensor *x = tn_full(TN_SHAPE(2), 1);
    TN_CHECK(tn_set_name(x, "w\" onclick='x()'>\xe6\xbc\xa2 \n\t\xe6\xbc"));
    TN_CHECK(tn_set_requires_grad(x, true));
    tn_module *model = tn_sequential_from(NULL, 0);
    TN_CHECK_PTR(model);
    tn_register_parameter(model, "<i>\"\xc3\xa4", NULL, tn_full(TN_SHAPE(2), 3));
    tn_trace *trace =
        tn_trace_begin((tn_trace_options){ .model = model, .title = "]]> <i>t</i>\xff &lt;" });
    TN_CHECK_PTR(trace);
    tn_tensor *p = tn_get_parameter(model, "<i>\"\xc3\xa4");
    TN_CHECK_PTR(p);
    TN_CHECK(tn_backward(tn_sum(tn_mul(tn_apply(&op, NULL, 1, &x), p), NULL, 0, false)));
    TN_CHECK(tn_trace_end(trace));
    write_page("names", &trace, 1);
    tn_trace_free(trace);
    tn_module_drop(model);
}

/* 0.5 log x + 1 at 1, 0, infinity, NaN, and at 1 again with rounding: 1.0000049 and 1.0000054. */
static void apart(void)
{
    static const float at[] = { 1, 0, INFINITY, NAN, 1 };
    static const char *const title[] = { "one", "zero", "infinity", "NaN", "one again" };
    tn_tensor *b = tn_full(TN_SCALAR, 2);
    tn_trace *trace[5];
    for (int i = 0; i < 5; i++) {
        tn_tensor *x = tn_full(TN_SCALAR, at[i]);
        TN_CHECK(tn_set_requires_grad(x, true));
        trace[i] = tn_trace_begin((tn_trace_options){ .title = title[i] });
        TN_CHECK_PTR(trace[i]);
        tn_tensor *y = tn_add(tn_log(x), b);
        TN_CHECK(tn_backward(tn_mul_scalar(y, i == 4 ? 0.5000027 : 0.50000245)));
        TN_CHECK(tn_trace_end(trace[i]));
    }
    write_page("apart", trace, 5);
    for (int i = 0; i < 5; i++) tn_trace_free(trace[i]);
}

static void nothing(void)
{
    tn_trace *trace =
        tn_trace_begin((tn_trace_options){ .title = "</script> & <b>\"nothing\"</b>" });
    TN_CHECK_PTR(trace);
    TN_CHECK(tn_trace_end(trace));
    write_page("nothing", &trace, 1);
    tn_trace_free(trace);
}

/* ---- large graphs ---------------------------------------------------------------------------- */

enum { WIDTH = 16, STAGES = 25, BLOCKS = 20, LAYERS = 5 };

/* 25 stages of 20 blocks of 5 layers of 2 ops: 5,000 ops. */
static void deep(void)
{
    tn_module *model = tn_sequential_from(NULL, 0);
    for (int i = 0; i < STAGES; i++) {
        tn_module *stage = tn_sequential_from(NULL, 0);
        for (int k = 0; k < BLOCKS; k++) {
            tn_module *block = tn_sequential_from(NULL, 0);
            for (int l = 0; l < LAYERS; l++) {
                TN_CHECK(tn_module_append(block, linear(WIDTH, WIDTH)));
                TN_CHECK(tn_module_append(block, tn_tanh_new()));
            }
            TN_CHECK(tn_module_append(stage, block));
        }
        TN_CHECK(tn_module_append(model, stage));
    }
    page("deep", model, tn_randn(TN_SHAPE(4, WIDTH)), tn_from_ints(classes, TN_SHAPE(4)), 1);
}

/* n times x = sin(x + w), with no module. */
static tn_trace *sines(const char *title, int n)
{
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .title = title });
    TN_CHECK_PTR(trace);
    tn_tensor *w = tn_full(TN_SHAPE(8), 0.5), *x = w;
    TN_CHECK(tn_set_name(w, "w"));
    TN_CHECK(tn_set_requires_grad(w, true));
    for (int i = 0; i < n; i++) x = tn_sin(tn_add(x, w));
    TN_CHECK(tn_backward(tn_mean(x, NULL, 0, false)));
    TN_CHECK(tn_trace_end(trace));
    return trace;
}

static void flat(void)
{
    tn_trace *trace = sines("5,000 ops", 2500);
    write_page("flat", &trace, 1);
    tn_trace_free(trace);
}

static void long_pair(void)
{
    tn_trace *trace[] = { sines("first", 600), sines("second", 601) };
    write_page("long", trace, 2);
    for (int i = 0; i < 2; i++) tn_trace_free(trace[i]);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: page_driver FOLDER\n");
        return 2;
    }
    folder = argv[1];
    static void (*const pages[])(void) = { reused,   mlp,       cnn,   transformer, modes,
                                           dead,     hooked,    kinds, names,       apart,
                                           nothing,  nonfinite, deep,  flat,        long_pair,
                                           pictures, symbols };
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        tn_scope scope = tn_scope_begin();
        tn_manual_seed(1);
        pages[i]();
        tn_scope_end(scope);
    }
    return 0;
}
