/*
 * int8.c - weights of Linears as bytes (tenon/lm.h; ops/linear_int8.c reads them).
 *
 * All are checked first. Then each is packed and put in its place, so that only one is there twice.
 */
#include <float.h>

#include <tenon/lm.h>

#include "nn/layers/layer.h"

static const char function[] = "tn_quantize_int8";

typedef struct job {
    const char *patterns;
    int64_t group;
    bool packs; /* else it checks */
} job;

/* A row of w, as signed bytes and their scales. */
static void pack_row(const float *w, int64_t in, int64_t group, uint8_t *to)
{
    for (int64_t g = 0; g < in / group; g++, w += group) {
        float scale = 0;
        for (int64_t i = 0; i < group; i++) scale = fmaxf(scale, fabsf(w[i]));
        scale = fmaxf(scale / 127, FLT_MIN);
        for (int64_t i = 0; i < group; i++)
            to[g * group + i] = (uint8_t)(int8_t)lrintf(w[i] / scale);
        memcpy(to + in + 4 * g, &scale, sizeof scale);
    }
}

static tn_status pack(tn_module *linear, tn_tensor *w, int64_t group)
{
    const int64_t out = tn_size(w, 0), in = tn_size(w, 1), row = in + in / group * 4;
    tn_tensor *f = tn_contiguous(tn_to(tn_to_dtype(w, TN_F32), tn_cpu()));
    tn_tensor *q = tn_empty_as(TN_SHAPE(out, row), TN_U8, tn_cpu());
    const float *from = tn_data(f);
    uint8_t *to = tn_data_mut(q);
    for (int64_t o = 0; from && to && o < out; o++)
        pack_row(from + o * in, in, group, to + o * row);
    return from ? tn_register_frozen(linear, "weight", NULL, tn_to(q, tn_device_of(w)))
                : tni_pending();
}

static tn_status check(const char *name, tn_tensor *w, int64_t group)
{
    const tn_shape shape = tn_shape_get(w);
    if (tn_size(w, 1) % group)
        return tni_error(TN_E_SHAPE, "%s: %s %s: want rows that are groups of %" PRId64, function,
                         name, tni_shape_text(&shape), group);
    tn_tensor *finite = tn_all(tn_isfinite(tn_to_dtype(w, TN_F32)), NULL, 0, false);
    if (!finite || tn_item(finite) != 0) return tni_pending();
    return tni_error(TN_E_INVALID, "%s: %s has NaN or infinity: want finite numbers", function,
                     name);
}

static tn_status visit(tn_module *m, const char *path, void *user)
{
    job *j = user;
    char name[1024];
    snprintf(name, sizeof name, "%s.weight", path);
    const tn_entry e = { .name = name + !*path, .owner = m };
    if (!tni_linear_fits(j->patterns, &e)) return TN_OK;
    tn_tensor *w = ((tni_linear *)m)->weight;
    if (tn_is_none(w) || tn_dtype_of(w) == TN_U8) return TN_OK; /* of weight norm; packed */
    TNI_SCOPED;
    return j->packs ? pack(m, w, j->group) : check(e.name, w, j->group);
}

tn_status tn_quantize_int8(tn_module *m, const char *patterns, int64_t group)
{
    job j = { patterns, group ? group : 64, false };
    if (!patterns) return tni_poison(function, "patterns");
    if (j.group < 32 || j.group % 32)
        return tni_error(TN_E_INVALID, "%s: group %" PRId64 ": want 32, 64, 96 ...", function,
                         group);
    TNI_TRY(tni_module_check(function, m));
    {
        TNI_SCOPED; /* its list holds the weights */
        const tn_list *all = tn_parameters_with(m, (tn_walk_options){ .keep_duplicates = true });
        TNI_TRY(all ? tni_check_patterns(function, all, patterns) : tni_pending());
    }
    TNI_UNRECORDED;
    TNI_TRY(tni_walk(m, TNI_EVERY, visit, NULL, &j));
    j.packs = true;
    return tni_walk(m, TNI_EVERY, visit, NULL, &j);
}
