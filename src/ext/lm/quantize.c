/*
 * quantize.c - Linear layers become layers with a weight of bytes, and back.
 *
 * All new layers are made before the first is put in its place, and the old ones are kept until the
 * last is: what fails leaves the model as it was.
 */
#include <tenon/quantize.h>

#include <float.h>

#include "ext/lm/names.h"
#include "nn/module.h"
#include <tenon/tenon.h>

/* ---- the layer ------------------------------------------------------------------------------- */

typedef struct int8_linear {
    tn_module base;
    tn_tensor *q, *scales, *bias; /* [out, in], [out, groups], [out] or absent */
} int8_linear;

static tn_tensor *int8_forward(tn_module *self, tn_tensor *x)
{
    int8_linear *m = (int8_linear *)self;
    return tn_linear_int8(x, m->q, m->scales, m->bias);
}

static void int8_describe(const tn_module *self, char *text, size_t size)
{
    const int8_linear *m = (const int8_linear *)self;
    snprintf(text, size, "%" PRId64 ", %" PRId64 "%s", tn_size(m->q, 1), tn_size(m->q, 0),
             tn_is_none(m->bias) ? ", no bias" : "");
}

static const tn_module_type int8_type = { .name = "Int8Linear",
                                          .size = sizeof(int8_linear),
                                          .forward = int8_forward,
                                          .describe = int8_describe };

static tn_module *int8_new(tn_tensor *q, tn_tensor *scales, tn_tensor *bias)
{
    int8_linear *m = tn_module_new(&int8_type);
    if (!m) return NULL;
    tn_register_buffer(&m->base, "qweight", &m->q, q, TN_CONSTANT);
    tn_register_buffer(&m->base, "scales", &m->scales, scales, TN_CONSTANT);
    tn_register_frozen(&m->base, "bias", &m->bias, tn_is_none(bias) ? bias : tn_detach(bias));
    return tn_module_done(&m->base);
}

static bool is_linear(const tn_module *m)
{
    return strcmp(m->type->name, "Linear") == 0;
}

/* ---- layers in the place of others ----------------------------------------------------------- */

typedef struct site {
    tn_module *parent, *old, *made; /* a reference to the last two */
    const char *name;               /* the parent's */
    char *path;
} site;

/* What is replaced, and by what. */
typedef struct job {
    const char *function;
    bool (*chosen)(const struct job *j, tn_module *m, const char *path, const char *name);
    tn_module *(*made)(const struct job *j, tn_module *m, const char *path);
    const char *patterns; /* of tn_quantize_int8 */
    int64_t group;        /* of it */
    const tn_list *list;  /* of its NULL: the parameters; of tn_load_int8: the state */
    tn_dtype dtype;       /* of tn_dequantize */
    site *at;
    size_t n, capacity;
} job;

static tn_status find(const char *path, tn_module *m, void *user)
{
    job *j = user;
    for (int i = 0; i < tn_module_children(m); i++) {
        tn_module *child = tn_module_child(m, i);
        const char *name = tn_module_child_name(m, i);
        if (child == TN_NO_MODULE) continue;
        if (!tni_room(&j->at, &j->capacity, j->n, 1, sizeof *j->at)) return TN_E_NOMEM;
        char *full = tni_name_new("", path, name);
        if (!full) return TN_E_NOMEM;
        if (j->chosen(j, child, full, name))
            j->at[j->n++] = (site){ m, tn_module_keep(child), NULL, name, full };
        else
            tni_name_free(full);
    }
    return TN_OK;
}

/* A layer that several parents share is made once. */
static tn_status make_all(job *j)
{
    for (size_t i = 0; i < j->n; i++) {
        site *s = &j->at[i];
        for (size_t k = 0; k < i && !s->made; k++)
            if (j->at[k].old == s->old) s->made = tn_module_keep(j->at[k].made);
        if (s->made) continue;
        TN_SCOPE s->made = j->made(j, s->old, s->path);
        if (!s->made) return tni_pending();
        if (!tn_training(s->old) && tn_eval(s->made) != TN_OK) return tni_pending();
    }
    return TN_OK;
}

static void take_back(job *j, size_t n)
{
    tni_saved_error first;
    tni_error_save(&first);
    while (n-- > 0)
        tni_disregard(
            tn_register_module(j->at[n].parent, j->at[n].name, NULL, tn_module_keep(j->at[n].old)));
    tni_error_restore(&first);
}

static tn_status put_all(job *j)
{
    for (size_t i = 0; i < j->n; i++) {
        site *s = &j->at[i];
        tn_status status = tn_register_module(s->parent, s->name, NULL, tn_module_keep(s->made));
        if (status == TN_OK) continue;
        take_back(j, i);
        return status;
    }
    return TN_OK;
}

static void job_free(job *j)
{
    for (size_t i = 0; i < j->n; i++) {
        tn_module_drop(j->at[i].old);
        tn_module_drop(j->at[i].made);
        tni_name_free(j->at[i].path);
    }
    tni_room_free(&j->at, &j->capacity, sizeof *j->at);
    j->n = 0;
}

/* The job is to be freed, whatever becomes of it. */
static tn_status replace(job *j, tn_module *m)
{
    tn_status status = tni_module_check(j->function, m);
    if (status == TN_OK && tni_calling())
        status =
            tni_error(TN_E_STATE, "%s: inside a forward: want it before or after", j->function);
    if (status == TN_OK) status = tn_named_modules(m, find, j);
    if (status == TN_OK) status = make_all(j);
    return status == TN_OK ? put_all(j) : status;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* One group of n numbers. False: one of them, *at, is not finite. */
static bool pack(const float *w, int64_t n, uint8_t *q, float *scale, int64_t *at)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(w[i])) return *at = i, false;
        most = fmaxf(most, fabsf(w[i]));
    }
    *scale = most / 127;
    if (*scale < FLT_MIN) *scale = 0;
    for (int64_t i = 0; i < n; i++) {
        float quotient = *scale > 0 ? w[i] / *scale : 0;
        q[i] = (uint8_t)(int8_t)lrintf(quotient);
    }
    return true;
}

static tn_status pack_all(const job *j, const char *path, tn_tensor *w, tn_tensor *q,
                          tn_tensor *scales)
{
    const float *from = tn_data(w);
    uint8_t *to = tn_data_mut(q);
    float *scale = tn_data_mut(scales);
    int64_t out = tn_size(w, 0), in = tn_size(w, 1), groups = tn_size(scales, 1), bad = 0;
    if (!from || !to || !scale) return tni_pending();
    for (int64_t o = 0; o < out; o++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t i = g * j->group, n = in - i < j->group ? in - i : j->group;
            if (!pack(from + o * in + i, n, to + o * in + i, &scale[o * groups + g], &bad))
                return tni_error(TN_E_INVALID,
                                 "%s: %s.weight has %g at [%" PRId64 ",%" PRId64
                                 "]: want finite numbers",
                                 j->function, path, (double)from[o * in + i + bad], o, i + bad);
        }
    return TN_OK;
}

/* ---- tn_quantize_int8 ------------------------------------------------------------------------ */

static bool is_tied(const tn_list *parameters, tn_module *m)
{
    const tn_tensor *w = tn_get_parameter(m, "weight");
    for (int i = 0; i < parameters->n; i++)
        if (parameters->entry[i].tensor == w && parameters->entry[i].owner != m) return true;
    return false;
}

static bool fits(const job *j, tn_module *m, const char *path, const char *name)
{
    if (!is_linear(m)) return false;
    if (j->patterns) return tni_name_fits(j->patterns, path);
    return strcmp(name, "lm_head") != 0 && !is_tied(j->list, m);
}

static tn_module *packed(const job *j, tn_module *m, const char *path)
{
    tn_tensor *w = tn_get_parameter(m, "weight"), *bias = tn_get_parameter(m, "bias");
    tn_device device = tn_device_of(w);
    int64_t out = tn_size(w, 0), groups = (tn_size(w, 1) - 1) / j->group + 1;
    w = tn_contiguous(tn_to(tn_to_dtype(tn_detach(w), TN_F32), tn_cpu()));
    if (!bias || !w) return NULL;
    tn_tensor *q = tn_empty_as(tn_shape_get(w), TN_U8, tn_cpu());
    tn_tensor *scales = tn_empty_as(TN_SHAPE(out, groups), TN_F32, tn_cpu());
    if (!q || !scales || pack_all(j, path, w, q, scales) != TN_OK) return NULL;
    return int8_new(tn_to(q, device), tn_to(scales, device), bias);
}

tn_status tn_quantize_int8(tn_module *m, const char *patterns, tn_quantize_options o)
{
    job j = { .function = "tn_quantize_int8", .chosen = fits, .made = packed };
    j.patterns = patterns, j.group = o.group;
    if (!m) return tni_poison(j.function, "m");
    if (j.group == 0) j.group = 64;
    if (j.group != 32 && j.group != 64 && j.group != 128)
        return tni_error(TN_E_INVALID, "%s: group %" PRId64 ": want 32, 64 or 128", j.function,
                         o.group);
    tn_status status = TN_OK;
    TN_SCOPE
    {
        tn_walk_options all = { .keep_duplicates = true };
        if (!patterns && !(j.list = tn_parameters_with(m, all))) status = tni_pending();
        if (status == TN_OK) status = replace(&j, m);
    }
    if (status == TN_OK && j.n == 0)
        status = tni_error(TN_E_NAME, "%s: no Linear below %s%s%s%s", j.function, m->type->name,
                           patterns ? " fits \"" : " is free", patterns ? patterns : "",
                           patterns ? "\"" : "");
    job_free(&j);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The tensor of that state under NAME.what; NULL, and no message: there is none. */
static tn_tensor *state_of(const tn_list *state, const char *path, const char *what)
{
    char name[1024];
    int n = snprintf(name, sizeof name, "%s.%s", path, what);
    return n < (int)sizeof name && tn_list_has(state, name) ? tn_list_get(state, name) : NULL;
}

static bool in_state(const job *j, tn_module *m, const char *path, const char *name)
{
    (void)name;
    return is_linear(m) && state_of(j->list, path, "qweight");
}

/* An Int8Linear of zeros, if tn_linear_int8 takes such a weight and scales. */
static tn_module *as_in_state(const job *j, tn_module *m, const char *path)
{
    tn_tensor *w = tn_get_parameter(m, "weight"), *bias = tn_get_parameter(m, "bias");
    const tn_tensor *q = state_of(j->list, path, "qweight");
    const tn_tensor *scales = state_of(j->list, path, "scales");
    tn_device device = tn_device_of(w);
    if (!scales || tn_rank(q) != 2 || tn_size(q, 0) != tn_size(w, 0) ||
        tn_size(q, 1) != tn_size(w, 1)) {
        tn_shape from = tn_shape_get(q), want = tn_shape_get(w);
        tni_error(TN_E_SHAPE, "%s: %s.qweight %s %s scales: want those of a weight %s", j->function,
                  path, tni_shape_text(&from), scales ? "with" : "without", tni_shape_text(&want));
        return NULL;
    }
    tn_tensor *zeros = tn_full_as(tn_shape_get(q), 0, tn_dtype_of(q), device);
    tn_tensor *none = tn_full_as(tn_shape_get(scales), 0, tn_dtype_of(scales), device);
    tn_tensor *x = tn_full_as(TN_SHAPE(1, tn_size(w, 1)), 0, TN_F32, device), *y = NULL;
    TN_NO_GRAD y = tn_linear_int8(x, zeros, none, TN_NONE);
    return y ? int8_new(zeros, none, bias) : NULL;
}

tn_status tn_load_int8(tn_module *m, const char *path)
{
    job j = { .function = "tn_load_int8", .chosen = in_state, .made = as_in_state };
    tn_status status = TN_OK;
    if (!m) return tni_poison(j.function, "m");
    TN_SCOPE
    {
        j.list = tn_load_tensors(path, NULL);
        status = j.list ? replace(&j, m) : tni_pending();
        if (status == TN_OK) {
            status = tn_load_state_dict(m, j.list, (tn_load_options){ 0 }, NULL);
            if (status != TN_OK) take_back(&j, j.n);
        }
    }
    job_free(&j);
    return status;
}

/* ---- and back -------------------------------------------------------------------------------- */

static bool is_packed(const job *j, tn_module *m, const char *path, const char *name)
{
    (void)j, (void)path, (void)name;
    return m->type == &int8_type;
}

/* scale q, in `wide`. */
static tn_tensor *product(const int8_linear *m, tn_dtype wide)
{
    int64_t in = tn_size(m->q, 1), groups = tn_size(m->scales, 1), group = 16;
    while ((in - 1) / group + 1 > groups) group *= 2;
    tn_tensor *q = tn_to_dtype(m->q, wide), *negative = tn_to_dtype(tn_ge_scalar(q, 128), wide);
    tn_tensor *scale = tn_repeat_interleave(tn_to_dtype(m->scales, wide), group, 1);
    return tn_mul(tn_sub(q, tn_mul_scalar(negative, 256)), tn_narrow(scale, 1, 0, in));
}

static tn_module *unpacked(const job *j, tn_module *m, const char *path)
{
    const int8_linear *from = (const int8_linear *)m;
    unsigned char random[TN_GENERATOR_STATE_SIZE];
    bool no_bias = tn_is_none(from->bias);
    tn_module *to;
    (void)path;
    tn_tensor *w = tn_to_dtype(product(from, j->dtype == TN_F64 ? TN_F64 : TN_F32), j->dtype);
    if (!w) return NULL;
    tn_generator_get_state(tn_default_generator(), random); /* a new layer draws numbers */
    to = tn_linear_new(tn_size(w, 1), tn_size(w, 0), (tn_linear_options){ .no_bias = no_bias });
    tni_disregard(tn_generator_set_state(tn_default_generator(), random));
    if (!to) return NULL;
    tn_tensor *bias = no_bias ? TN_NONE : tn_to_dtype(tn_detach(from->bias), j->dtype);
    if (tn_register_frozen(to, "weight", NULL, w) == TN_OK &&
        tn_register_frozen(to, "bias", NULL, bias) == TN_OK)
        return to;
    tn_module_drop(to);
    return NULL;
}

tn_status tn_dequantize(tn_module *m, tn_dtype dtype)
{
    job j = { .function = "tn_dequantize", .chosen = is_packed, .made = unpacked, .dtype = dtype };
    if (!m) return tni_poison(j.function, "m");
    if (!tn_dtype_is_float(dtype))
        return tni_error(TN_E_DTYPE, "%s: %s: want a floating dtype", j.function,
                         tn_dtype_name(dtype));
    tn_status status = replace(&j, m);
    job_free(&j);
    return status;
}
