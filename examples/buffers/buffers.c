/*
 * buffers - what a buffer is, in five notes; each runs a few lines and prints the results.
 *
 * A parameter is trained. A buffer is carried: saved, loaded, moved and cast with the model,
 * changed by forward where a layer says so, never seen by an optimizer. A plain field is neither.
 * The program ends with 1 if a claim does not hold.
 *
 * usage: buffers [--device cpu|cuda] [--html FILE]
 */
#include "../common.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static int wrong;
static tn_device device;
static const char *html; /* a page of the step in the fourth note */

/* A model moves to the device with its buffers; an input is moved separately. */
static tn_module *placed(tn_module *model)
{
    TN_CHECK_PTR(model);
    TN_CHECK(tn_module_to(model, device));
    return model;
}

static tn_tensor *on_device(tn_tensor *x)
{
    return tn_to(x, device);
}

static void heading(const char *text)
{
    printf("\n%s\n", text);
    for (size_t i = 0; i < strlen(text); i++) putchar('-');
    putchar('\n');
}

static void claim(bool holds, const char *text)
{
    printf("  %s %s\n", holds ? "[yes]" : "[NO] ", text);
    wrong += !holds;
}

/* For calls that must fail: prints what was tried and the message. */
static void refused(const char *tried, bool failed)
{
    printf("  %-46s %s\n", tried, failed ? tn_error() : "was accepted");
    wrong += !failed;
    tn_error_clear();
}

static void print_list(const char *title, const tn_list *list)
{
    TN_CHECK_PTR(list);
    printf("  %-12s", title);
    for (int i = 0; i < list->n; i++) printf("%s%s", i ? ", " : "", list->entry[i].name);
    printf("%s\n", list->n ? "" : "(none)");
}

static bool has(const tn_list *list, const char *name)
{
    for (int i = 0; list && i < list->n; i++)
        if (!strcmp(list->entry[i].name, name)) return true;
    return false;
}

/* ---- 1: a table ------------------------------------------------------------------------------ */

typedef struct lookup {
    tn_module base;
    tn_tensor *table; /* a buffer */
    tn_module *linear;
    tn_tensor *plain; /* not registered: the library does not know it */
} lookup;

static tn_tensor *lookup_forward(tn_module *self, tn_tensor *x)
{
    lookup *m = (lookup *)self;
    return tn_forward(m->linear, tn_add(x, m->table));
}

static void lookup_free(tn_module *self)
{
    tn_drop(((lookup *)self)->plain); /* slots and children are freed for us, this field is not */
}

static const tn_module_type lookup_type = {
    .name = "Lookup",
    .size = sizeof(lookup),
    .forward = lookup_forward,
    .free = lookup_free,
};

static tn_module *lookup_new(void)
{
    lookup *m = tn_module_new(&lookup_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "linear", &m->linear,
                       tn_linear_new(3, 2, (tn_linear_options){ 0 }));
    tn_register_buffer(&m->base, "table", &m->table, tn_ones(TN_SHAPE(3)), TN_PERSISTENT);
    m->plain = tn_keep(tn_ones(TN_SHAPE(3)));
    return tn_module_done(&m->base);
}

static void note_table(void)
{
    heading("1. A table: a buffer is saved and moved, a plain field is neither");
    tn_module *model = placed(lookup_new());
    lookup *m = (lookup *)model;
    tn_list *state = tn_state_dict(model, ""), *parameters = tn_parameters(model);
    print_list("state_dict", state);
    print_list("parameters", parameters);
    print_list("buffers", tn_buffers(model));
    claim(!strcmp(state->entry[0].name, "table"), "own members come before children's");
    claim(!has(parameters, "table"), "parameters() does not list the buffer");
    claim(!has(state, "plain"), "the plain field is not saved");
    TN_CHECK(tn_module_to_dtype(model, TN_F64));
    printf("  after tn_module_to_dtype(model, TN_F64): table %s, linear.weight %s, plain %s\n",
           tn_dtype_name(tn_dtype_of(m->table)),
           tn_dtype_name(tn_dtype_of(tn_get_parameter(model, "linear.weight"))),
           tn_dtype_name(tn_dtype_of(m->plain)));
    claim(tn_dtype_of(m->table) == TN_F64, "the buffer went along");
    claim(tn_dtype_of(m->plain) == TN_F32, "the plain field stayed behind");
    tn_module_drop(model);
}

/* ---- 2: frozen statistics, anchors ----------------------------------------------------------- */

typedef struct frozen_norm {
    tn_module base;
    tn_tensor *weight, *bias, *running_mean, *running_var, *anchors;
} frozen_norm;

/* y = x scale + shift, scale = weight / sqrt(running_var + eps): the same in training and eval. */
static tn_tensor *frozen_norm_forward(tn_module *self, tn_tensor *x)
{
    frozen_norm *m = (frozen_norm *)self;
    tn_tensor *scale = tn_mul(m->weight, tn_rsqrt(tn_add_scalar(m->running_var, 1e-5)));
    tn_tensor *shift = tn_sub(m->bias, tn_mul(m->running_mean, scale));
    tn_shape channel = TN_SHAPE(-1, 1, 1);
    return tn_add(tn_mul(x, tn_reshape(scale, channel)), tn_reshape(shift, channel));
}

static const tn_module_type frozen_norm_type = {
    .name = "FrozenBatchNorm",
    .size = sizeof(frozen_norm),
    .forward = frozen_norm_forward,
};

static tn_module *frozen_norm_new(int64_t n)
{
    frozen_norm *m = tn_module_new(&frozen_norm_type);
    if (!m) return NULL;
    tn_register_buffer(&m->base, "weight", &m->weight, tn_ones(TN_SHAPE(n)), TN_PERSISTENT);
    tn_register_buffer(&m->base, "bias", &m->bias, tn_zeros(TN_SHAPE(n)), TN_PERSISTENT);
    tn_register_buffer(&m->base, "running_mean", &m->running_mean, tn_zeros(TN_SHAPE(n)),
                       TN_PERSISTENT);
    tn_register_buffer(&m->base, "running_var", &m->running_var, tn_full(TN_SHAPE(n), 1 - 1e-5),
                       TN_PERSISTENT);
    /* Can be computed again: moved with the model, but not worth a place in its file. */
    tn_register_buffer(&m->base, "anchors", &m->anchors, tn_arange(0, 4, 1, TN_F32),
                       TN_NON_PERSISTENT);
    return tn_module_done(&m->base);
}

static void note_frozen(void)
{
    heading("2. Buffer or parameter: a BatchNorm whose weights are frozen for good");
    tn_module *model = placed(frozen_norm_new(2));
    print_list("state_dict", tn_state_dict(model, ""));
    print_list("parameters", tn_parameters(model));
    print_list("buffers", tn_buffers(model));
    claim(tn_parameters(model)->n == 0, "nothing here for an optimizer to train");
    claim(!has(tn_state_dict(model, ""), "anchors"), "a non-persistent buffer is not saved");
    claim(has(tn_buffers(model), "anchors"), "but it is listed, moved and cast as the others are");

    tn_tensor *x = on_device(tn_randn(TN_SHAPE(4, 2, 3, 3)));
    claim(tn_max_abs_diff(tn_forward(model, x), x) < 1e-6, "fresh, it is the identity");
    uint64_t before = tn_hash(tn_get_buffer(model, "running_mean"));
    TN_CHECK(tn_train(model, true));
    TN_CHECK_PTR(tn_forward(model, x));
    claim(tn_hash(tn_get_buffer(model, "running_mean")) == before, "training mode moves nothing");
    tn_module_drop(model);
}

/* ---- 3: registering -------------------------------------------------------------------------- */

static void note_registering(void)
{
    heading("3. Registering: what is refused, and in which order");
    tn_module *model = placed(lookup_new());
    tn_tensor *t = on_device(tn_ones(TN_SHAPE(3)));
    tn_tensor *result = tn_mul_scalar(tn_get_parameter(model, "linear.bias"), 2);
#define PARAMETER(name, t) tn_register_parameter(model, name, NULL, t) != TN_OK
#define BUFFER(name, t) tn_register_buffer(model, name, NULL, t, TN_PERSISTENT) != TN_OK
    refused("parameter NULL", PARAMETER(NULL, t));
    refused("parameter \"a.b\"", PARAMETER("a.b", t));
    refused("parameter \"\"", PARAMETER("", t));
    refused("parameter \"table\", a buffer's name", PARAMETER("table", t));
    refused("buffer \"linear\", a child's name", BUFFER("linear", t));
    refused("parameter \"double\", computed from another", PARAMETER("double", result));
    refused("parameter \"a.b\", computed as well", PARAMETER("a.b", result));

    TN_CHECK(tn_register_buffer(model, "second", NULL, tn_zeros(TN_SHAPE(1)), TN_PERSISTENT));
    TN_CHECK(tn_register_buffer(model, "table", &((lookup *)model)->table, tn_zeros(TN_SHAPE(1)),
                                TN_PERSISTENT));
    print_list("buffers", tn_buffers(model));
    claim(tn_numel(((lookup *)model)->table) == 1,
          "registering again replaces, and the field follows");
    claim(!strcmp(tn_buffers(model)->entry[0].name, "table"), "it keeps its place");
    TN_CHECK(tn_register_buffer(model, "none", NULL, TN_NONE, TN_PERSISTENT));
    claim(!has(tn_state_dict(model, ""), "none"), "an empty slot is not listed");
    tn_module_drop(model);
}

/* ---- 4: BatchNorm ---------------------------------------------------------------------------- */

static void note_batchnorm(void)
{
    heading("4. BatchNorm: running_mean, running_var, num_batches_tracked");
    tn_module *norm = placed(tn_batch_norm2d_new(3, (tn_batch_norm_options){ 0 }));
    print_list("parameters", tn_parameters(norm));
    print_list("buffers", tn_buffers(norm));
    tn_tensor *mean = tn_get_buffer(norm, "running_mean");
    tn_tensor *count = tn_get_buffer(norm, "num_batches_tracked");

    tn_tensor *x = on_device(tn_add_scalar(tn_randn(TN_SHAPE(1, 3, 50, 50)), 5));
    TN_CHECK_PTR(tn_forward(norm, x));
    printf("  one image of 50 x 50 pixels around 5: running_mean[0] 0 -> %.4f, batches %g\n",
           tn_at(mean, TN_INDEX(0)), tn_item(count));
    tn_tensor *average = tn_mean(x, (int[]){ 0, 2, 3 }, 3, false);
    claim(tn_max_abs_diff(mean, tn_mul_scalar(average, 0.1)) < 1e-6,
          "running_mean = 0.9 running_mean + 0.1 mean: 2,500 values a channel are enough");

    tn_optim *optimizer = tn_sgd(tn_parameters(norm), (tn_sgd_options){ .lr = 0.1 });
    TN_CHECK_PTR(optimizer);
    ex_page_begin(html, 1, norm, optimizer);
    TN_CHECK(tn_backward(tn_mean(tn_square(tn_forward(norm, x)), NULL, 0, false)));
    uint64_t before = tn_hash(mean), weight = tn_hash(tn_get_parameter(norm, "weight"));
    TN_CHECK(tn_optim_step(optimizer));
    ex_page_step(true);
    claim(tn_hash(tn_get_parameter(norm, "weight")) != weight, "a step moves the weight");
    claim(tn_hash(mean) == before, "and leaves the statistics: forward alone moves them");
    tn_optim_free(optimizer);

    TN_CHECK(tn_eval(norm));
    double seen = tn_item(count);
    TN_CHECK_PTR(tn_forward(norm, x));
    claim(tn_item(count) == seen && tn_hash(mean) == before, "in eval mode they are only read");
    tn_module_drop(norm);

    norm = placed(tn_batch_norm1d_new(3, (tn_batch_norm_options){ 0 }));
    x = on_device(tn_ones(TN_SHAPE(1, 3)));
    refused("a batch of 1 with one value a channel", tn_forward(norm, x) == NULL);
    claim(tn_item(tn_get_buffer(norm, "num_batches_tracked")) == 0, "which was not counted");
    TN_CHECK(tn_eval(norm));
    claim(tn_forward(norm, x) != NULL, "in eval mode a batch of 1 is fine");
    tn_module_drop(norm);
}

/* ---- 5: PositionalEncoding ------------------------------------------------------------------- */

static void note_positions(void)
{
    const tn_positional_encoding_options plain = { 0 };
    heading("5. PositionalEncoding: a table of sines, and what goes wrong around it");
    tn_module *m = placed(tn_positional_encoding_new(6, 10, plain));
    tn_tensor *pe = tn_get_buffer(m, "pe");
    TN_CHECK_PTR(pe);
    printf("  pe has shape [%" PRId64 ", %" PRId64 ", %" PRId64 "]; place 1 begins %.4f, %.4f\n",
           tn_size(pe, 0), tn_size(pe, 1), tn_size(pe, 2), tn_at(pe, TN_INDEX(0, 1, 0)),
           tn_at(pe, TN_INDEX(0, 1, 1)));
    claim(fabs(tn_at(pe, TN_INDEX(0, 1, 0)) - sin(1)) < 1e-6 &&
              fabs(tn_at(pe, TN_INDEX(0, 1, 1)) - cos(1)) < 1e-6,
          "even columns are sines, odd ones cosines");
    tn_tensor *x = on_device(tn_zeros(TN_SHAPE(2, 4, 6)));
    claim(tn_max_abs_diff(tn_select(tn_forward(m, x), 0, 1),
                          tn_narrow(tn_select(pe, 0, 0), 0, 0, 4)) == 0,
          "forward adds the first T rows to every sequence");
    tn_tensor *longer = on_device(tn_zeros(TN_SHAPE(2, 12, 6)));
    refused("12 places where 10 were made", tn_forward(m, longer) == NULL);
    refused("a parameter named \"pe\"", tn_register_parameter(m, "pe", NULL, tn_ones(TN_SHAPE(1))));

    tn_list *list = tn_list_new();
    TN_CHECK(tn_list_add(list, "pe", pe));
    refused("an optimizer for it", tn_sgd(list, (tn_sgd_options){ 0 }) == NULL);

    /* A buffer is an ordinary tensor: it may require a gradient and is still not a parameter. */
    TN_CHECK(tn_set_requires_grad(pe, true));
    TN_CHECK(tn_backward(tn_sum(tn_forward(m, x), NULL, 0, false)));
    claim(!tn_is_none(tn_grad(pe)) && tn_parameters(m)->n == 0,
          "it may have a gradient; parameters() is still empty");
    tn_module_drop(m);

    m = placed(tn_positional_encoding_new(5, 10, plain));
    claim(tn_forward(m, on_device(tn_zeros(TN_SHAPE(1, 4, 5)))) != NULL,
          "an odd width has one cosine less");
    tn_module_drop(m);
    m = placed(tn_positional_encoding_new(6, 1, plain));
    x = on_device(tn_zeros(TN_SHAPE(1, 3, 6)));
    refused("3 places where 1 was made", tn_forward(m, x) == NULL);
    tn_module_drop(m);
}

int main(int argc, char **argv)
{
    const char *name = "cpu";
    ex_option flags[] = {
        EX_TEXT("device", name, "NAME", 0, "cpu or cuda"),
        EX_TEXT("html", html, "FILE", EX_WRITTEN, "a page that plays the step of the fourth note"),
    };
    ex_parse("What a buffer is, in five notes.", flags, sizeof flags / sizeof *flags, 0, argc,
             argv);
    device = ex_device(name);
    tn_manual_seed(1);
    void (*const note[])(void) = { note_table, note_frozen, note_registering, note_batchnorm,
                                   note_positions };
    for (size_t i = 0; i < sizeof note / sizeof *note; i++) {
        tn_scope scope = tn_scope_begin();
        note[i]();
        tn_scope_end(scope);
    }
    printf("\n%s\n", wrong ? "some claims do not hold" : "all claims hold");
    return ex_end() || wrong > 0;
}
