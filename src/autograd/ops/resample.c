/*
 * resample.c - interpolation and padding, y_o = sum over i of w_oi x_i. Pixels as channels, back.
 *
 * The few weights of each element (its taps) are listed here, on the host; the kernel sums by the
 * lists. The gradient is the same kernel with the lists turned round: for each i the o that it is
 * part of. So nothing is added in an order that depends on threads, and derivatives of any order
 * are one of the two.
 *
 * Weights of interpolation: the triangle 1 - |t| (linear), and Keys' cubic (1981, eq. 4). With
 * antialias they are stretched by the scale and divided by their sum, as PyTorch's.
 */
#include <limits.h>

#include "autograd/ops/shared.h"

/* What an op maps: `axis` and the last one, or (columns.out 0) `axis` alone. */
typedef struct mapped {
    int axis;  /* of the rows */
    bool back; /* transposed: gives each element of `in` all that it is part of */
    tni_axis_map rows, columns;
} mapped;

/* ---- taps ------------------------------------------------------------------------------------ */

/* The weight of an element t steps away: of the triangle (a = 0), or Keys' cubic. */
static double weight_at(double t, double a)
{
    t = fabs(t);
    if (a == 0) return TNI_MAX(1 - t, 0);
    if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
}

/* How far they reach. */
static double reach_of(const tni_axis_map *m)
{
    return (m->mode == TN_CUBIC ? 2 : 1) * (m->antialias ? TNI_MAX(m->scale, 1) : 1);
}

int64_t tni_most_taps(const tni_axis_map *m)
{
    if (!m->placed || m->mode < TN_LINEAR) return 1;
    return m->antialias ? TNI_MIN(m->in, 2 * (int64_t)ceil(reach_of(m)) + 1)
                        : 2 * (int64_t)reach_of(m);
}

static int64_t padded(const tni_axis_map *m, int64_t o)
{
    int64_t i = o - m->by[0], end = m->in - 1, cut = TNI_MAX(-m->by[0], 0);
    if (m->mode == TN_PAD_REFLECT) return i < 0 ? -i : i > end ? 2 * end - i : i;
    if (m->mode == TN_PAD_REPLICATE) return TNI_MIN(TNI_MAX(i, 0), end);
    int64_t n = m->in - cut - TNI_MAX(-m->by[1], 0); /* what is left goes round */
    return cut + ((o - TNI_MAX(m->by[0], 0)) % n + n) % n;
}

int64_t tni_taps_of(const tni_axis_map *m, bool f64, int64_t o, int64_t *at, double *weight)
{
    double s = m->scale, reach = reach_of(m), total = 0;
    double a = m->mode == TN_LINEAR ? 0 : m->antialias ? -0.5 : -0.75;
    int64_t end = m->in - 1, n = 0;
    weight[0] = 1;
    if (!m->placed) {
        at[0] = padded(m, o);
        return 1;
    }
    if (m->mode < TN_LINEAR) { /* PyTorch computes in x's dtype, and rounds down in f32 */
        double place = (f64 ? s : (float)s) * ((double)o + (m->mode == TN_NEAREST ? 0 : 0.5));
        at[0] = TNI_MIN((int64_t)floorf((float)place), end);
        return 1;
    }
    if (!m->antialias) {
        double place = m->align_corners ? s * (double)o : m->from + s * ((double)o + 0.5) - 0.5;
        for (double k = 1 - reach, low = floor(place); k <= reach; k++) {
            at[n] = (int64_t)TNI_MIN(TNI_MAX(low + k, 0), (double)end);
            weight[n++] = weight_at(place - low - k, a);
        }
        return n;
    }
    double middle = m->from + s * ((double)o + 0.5);
    for (int64_t i = TNI_MAX((int64_t)(middle - reach + 0.5), 0),
                 last = TNI_MIN((int64_t)(middle + reach + 0.5), m->in);
         i < last && n < tni_most_taps(m); i++) {
        at[n] = i;
        weight[n] = weight_at(((double)i - middle + 0.5) / TNI_MAX(s, 1), a);
        total += weight[n++];
    }
    for (int64_t k = 0; k < n; k++) weight[k] /= total;
    return n;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* A map's lists in `bytes` bytes of memory, which begin at `memory` once there is any. */
typedef struct table {
    const tni_axis_map *map;
    int64_t n, taps; /* elements; at most so many taps in all */
    size_t weights, bytes;
} table;

static table table_of(const tni_axis_map *m, bool back)
{
    table t = { m, back ? m->in : m->out, m->out * tni_most_taps(m), 0, 0 };
    t.weights = (size_t)(2 * t.n + t.taps + 2) / 2 * 8; /* behind three lists of int32_t */
    t.bytes = t.weights + (size_t)t.taps * sizeof(double);
    return t;
}

/* Counts the taps of each element, then puts each one in its place. */
static tni_taps fill(const table *t, char *memory, bool back, bool f64, int64_t *at, double *weight)
{
    const tni_axis_map *m = t->map;
    int32_t *first = (int32_t *)memory, *same = first + t->n + 1, *list = same + t->n;
    void *weights = memory + t->weights;
    memset(first, 0, (size_t)(t->n + 1) * sizeof *first);
    for (int place = 0; place < 2; place++) {
        for (int64_t o = 0; o < m->out; o++) {
            int64_t n = tni_taps_of(m, f64, o, at, weight);
            for (int64_t k = 0; k < n; k++) {
                int64_t to = back ? at[k] : o;
                if (!place) {
                    first[to + 1]++;
                    continue;
                }
                int32_t tap = first[to]++;
                list[tap] = (int32_t)(back ? o : at[k]);
                if (f64)
                    ((double *)weights)[tap] = weight[k];
                else
                    ((float *)weights)[tap] = (float)weight[k];
            }
        }
        for (int64_t i = 0; !place && i < t->n; i++) first[i + 1] += first[i];
    }
    memmove(first + 1, first, (size_t)t->n * sizeof *first);
    first[0] = 0;
    for (int64_t i = t->n - 1; i >= 0; i--) {
        bool more = i + 1 < t->n && first[i + 2] - first[i + 1] == first[i + 1] - first[i];
        same[i] = more ? same[i + 1] + 1 : 1;
    }
    return (tni_taps){ t->n, first, same, list, weights, 1 };
}

/* ---- ops that map axes ----------------------------------------------------------------------- */

static tn_status mapped_shape(tni_call *c)
{
    const mapped *a = c->args;
    tni_shape_like_first(c);
    int64_t *size = &c->out_spec[0].shape.size[a->axis];
    size[0] = a->back ? a->rows.in : a->rows.out;
    if (a->columns.out) size[1] = a->back ? a->columns.in : a->columns.out;
    return TN_OK;
}

static tn_status mapped_forward(tni_call *c)
{
    const mapped *a = c->args;
    const tn_tensor *x = c->in[0];
    int64_t planes = rows_count(&x->shape, 0, a->axis);
    int64_t inner = rows_count(&x->shape, a->axis + 1, x->shape.rank);
    int64_t numel = tni_shape_numel(&x->shape);
    table r = table_of(&a->rows, a->back), s = table_of(&a->columns, a->back);
    if (tni_shape_numel(&c->out[0]->shape) == 0) return TN_OK;
    if (TNI_MAX(r.n + r.taps, s.n ? TNI_MAX(s.n + s.taps, numel / planes) : 0) > INT32_MAX)
        return tni_op_error(c, TN_E_UNSUPPORTED, "x %s: want planes of at most %d elements",
                            tni_text(x), INT32_MAX);
    int64_t most = TNI_MAX(tni_most_taps(&a->rows), tni_most_taps(&a->columns));
    TNI_ITEMS(char, memory, r.bytes + s.bytes);
    TNI_ITEMS(double, weight, most);
    TNI_ITEMS(int64_t, at, most);
    if (!memory || !weight || !at) return TN_E_NOMEM;
    bool f64 = x->dtype == TN_F64;
    tni_resample k = { .y = rows_array(c->out[0], 3, planes, r.n, s.n ? s.n : inner),
                       .x = rows_array(x, 2, planes, numel / planes, 0),
                       .rows = fill(&r, memory, a->back, f64, at, weight),
                       .table = memory,
                       .table_bytes = r.bytes + s.bytes };
    k.rows.step = inner;
    if (s.n) k.columns = fill(&s, memory + r.bytes, a->back, f64, at, weight);
    return tni_backend_of(x)->resample(&k);
}

static tn_status mapped_backward(tni_grad *g)
{
    mapped a = *(const mapped *)g->args;
    a.back = !a.back;
    return tni_give_dx(g, tni_apply(g->op, &a, sizeof a, 1, &g->dy));
}

#define MAPPED(op_name, name_, formula_)                                                           \
    TNI_OP_AS(op_name, name_, 1, "y_o = " formula_,                                                \
              "dx_i = sum over o of w_oi dy_o; where w_oi is x_i's weight in y_o", mapped_shape,   \
              mapped_forward, mapped_backward, .autocast = TNI_CAST_KEEP, .dense = TNI_X(0))
MAPPED(op_interpolate, "interpolate", "sum of w_oi x_i over the i around o's place")
MAPPED(op_pad_own, "pad", "x_i; where i is o - before, brought into x by the mode")

/* The op on the last n axes, map[0] being the last one's. */
static tn_tensor *map_axes(const tn_op *op, tn_tensor *x, const tni_axis_map *map, int n)
{
    bool vector = x->shape.rank == 1, half = n > 2 && tni_is_half(x->dtype);
    tn_dtype dtype = x->dtype;
    if (vector) x = tn_unsqueeze(x, 0);
    if (half) x = tni_wide(x);                    /* several kernels round once */
    for (int k = 0; x && k < n; k += k ? 1 : 2) { /* the last two together */
        mapped a = { .axis = x->shape.rank - 1 - TNI_MAX(k, 1) };
        int64_t same = x->shape.size[a.axis];
        a.rows = k + (k == 0) < n
                     ? map[k + (k == 0)]
                     : (tni_axis_map){ .mode = TN_PAD_REPLICATE, .in = same, .out = same };
        if (k == 0) a.columns = map[0];
        x = tni_apply(op, &a, sizeof a, 1, &x);
    }
    if (half && x) x = tn_to_dtype(x, dtype);
    return vector ? tn_squeeze(x, 0) : x;
}

/* ---- interpolation --------------------------------------------------------------------------- */

/* The map of an axis of `in` elements to `size`, or by `scale`; false + message. */
static bool place(const tn_tensor *x, const tn_interpolate_spec *s, int i, tni_axis_map *m)
{
    int64_t in = x->shape.size[2 + i], size = s->size[i] ? s->size[i] : s->size[0];
    double scale = s->scale[i] != 0 ? s->scale[i] : s->scale[0];
    double out = scale != 0 ? floor((double)in * scale) : (double)size;
    if (in < 1 || !(out >= 1 && out <= INT32_MAX))
        return tni_false(tni_error(
            TN_E_SHAPE, "tn_interpolate: axis %d of %s to size %g: want 1 to %d from at least 1",
            2 + i, tni_text(x), out, INT32_MAX));
    *m = (tni_axis_map){ .placed = true, .mode = s->mode, .in = in, .out = (int64_t)out };
    m->align_corners = s->align_corners, m->antialias = s->antialias;
    bool flat = s->mode == TN_NEAREST && x->shape.rank == 4;
    bool stays = flat || s->mode == TN_LINEAR || s->antialias; /* as PyTorch, whatever the scale */
    bool sized = scale == 0 || (m->out == in && stays) || (m->out == 2 * in && flat);
    m->scale = sized ? (double)in / out : 1 / scale;
    if (s->align_corners) m->scale = out > 1 ? (double)(in - 1) / (out - 1) : 0;
    return true;
}

tn_tensor *tn_interpolate(tn_tensor *x, tn_interpolate_spec spec)
{
    TNI_HOLD_TRAPS;
    tni_axis_map map[3];
    if (!tni_present("tn_interpolate", "x", x)) return NULL;
    int n = x->shape.rank - 2;
    bool smooth = spec.mode >= TN_LINEAR, sizes = spec.size[0] != 0;
    if (n < 1 || n > 3)
        return tni_fail(TN_E_SHAPE, "tn_interpolate: x %s: want [N,C,L], [N,C,H,W] or [N,C,D,H,W]",
                        tni_text(x));
    if (spec.mode < TN_NEAREST || spec.mode > TN_CUBIC || sizes == (spec.scale[0] != 0) ||
        (sizes ? spec.scale[1] != 0 || spec.scale[2] != 0 : spec.size[1] || spec.size[2]) ||
        ((spec.mode == TN_CUBIC || spec.antialias) && n != 2) ||
        ((spec.align_corners || spec.antialias) && !smooth))
        return tni_fail(
            TN_E_INVALID,
            "tn_interpolate: x %s, size %" PRId64
            ", scale %g, mode %d%s%s: want size or scale, and a tn_interpolate_mode; cubic and "
            "antialias for [N,C,H,W] alone, align_corners and antialias with linear or cubic",
            tni_text(x), spec.size[0], spec.scale[0], (int)spec.mode,
            spec.align_corners ? ", align_corners" : "", spec.antialias ? ", antialias" : "");
    for (int i = 0; i < n; i++)
        if (!place(x, &spec, i, &map[n - 1 - i])) return NULL;
    return map_axes(&op_interpolate, x, map, n);
}

/* ---- padding --------------------------------------------------------------------------------- */
/*
 * With a value: each border is filled once, the rest is a copy; dx is dy padded by the negative
 * numbers. With x's own elements: maps of the axes.
 */

typedef struct pad_args {
    int64_t by[TN_MAX_RANK][2];
    tni_number value;
} pad_args;

static tn_status pad_shape(tni_call *c)
{
    const pad_args *a = c->args;
    tni_shape_like_first(c);
    tn_shape *y = &c->out_spec[0].shape;
    for (int d = 0; d < y->rank; d++) y->size[d] += a->by[d][0] + a->by[d][1];
    return TN_OK;
}

static tn_status pad_forward(tni_call *c)
{
    const pad_args *a = c->args;
    const tni_backend *backend = tni_backend_of(c->out[0]);
    tni_array y = tni_array_of(c->out[0]), x = tni_array_of(c->in[0]);
    for (int d = 0; d < y.rank; d++) {
        int64_t before = TNI_MAX(a->by[d][0], 0), behind = TNI_MAX(a->by[d][1], 0);
        int64_t kept = y.size[d] - before - behind;
        tni_array border[] = { rows_along(y, d, 0, before),
                               rows_along(y, d, before + kept, behind) };
        for (int i = 0; i < 2; i++)
            if (border[i].size[d] > 0)
                TNI_TRY(backend->fill(&(tni_fill){ .y = border[i], .value = a->value }));
        y = rows_along(y, d, before, kept);
        x = rows_along(x, d, TNI_MAX(-a->by[d][0], 0), kept);
    }
    return backend->copy(&(tni_copy){ .y = y, .x = x });
}

static tn_status pad_backward(tni_grad *g)
{
    pad_args a = *(const pad_args *)g->args;
    for (int i = 0; i < 2 * TN_MAX_RANK; i++) a.by[i / 2][i % 2] *= -1;
    a.value = (tni_number){ 0 };
    return tni_give_dx(g, tni_apply(g->op, &a, sizeof a, 1, &g->dy));
}

TNI_OP(pad, 1, "y_o = x_(o - before) where x has it, else value", "dx_i = dy_(i + before)",
       pad_shape, pad_forward, pad_backward, .dtypes = TNI_ANY_DTYPE)

/* Whether PyTorch takes these numbers; sets what the axis becomes. */
static bool fits(tni_axis_map *m)
{
    const int64_t most[] = { INT64_MAX, m->in - 1, INT64_MAX, m->in }, *by = m->by;
    int64_t least = m->mode != TN_PAD_CONSTANT;
    if (__builtin_add_overflow(m->in, by[0], &m->out) ||
        __builtin_add_overflow(m->out, by[1], &m->out) || TNI_MIN(by[0], by[1]) < -m->in)
        return false;
    int64_t kept = m->in + TNI_MIN(by[0], 0) + TNI_MIN(by[1], 0);
    return TNI_MAX(by[0], by[1]) <= most[m->mode] && TNI_MIN(m->in, m->out) >= least &&
           kept >= (m->mode == TN_PAD_CIRCULAR);
}

tn_tensor *tn_pad(tn_tensor *x, const int64_t *pads, int n, tn_pad_mode mode, double value)
{
    pad_args a = { .by = { { 0 } } };
    tni_axis_map map[TN_MAX_RANK];
    bool own = mode != TN_PAD_CONSTANT && n > 0;
    if (!tni_present("tn_pad", "x", x)) return NULL;
    if (!pads && n > 0) return tni_poisoned("tn_pad", "pads");
    if (n < 0 || n % 2 || n / 2 > x->shape.rank || (int)mode < 0 || mode > TN_PAD_CIRCULAR ||
        (own && value != 0))
        return tni_fail(TN_E_INVALID,
                        "tn_pad: x %s, %d numbers, mode %d, value %g: want two for each of the "
                        "last axes, a tn_pad_mode, a value with TN_PAD_CONSTANT alone",
                        tni_text(x), n, (int)mode, value);
    for (int k = 0; k < n / 2; k++) {
        int axis = x->shape.rank - 1 - k;
        tni_axis_map *m = &map[k];
        *m = (tni_axis_map){ .mode = mode,
                             .in = x->shape.size[axis],
                             .by = { pads[2 * k], pads[2 * k + 1] } };
        if (!fits(m))
            return tni_fail(TN_E_SHAPE,
                            "tn_pad: axis %d of %s by %" PRId64 " and %" PRId64
                            ": want not more cut off than there is, nor of reflect (circular) more "
                            "than the size - 1 (the size), nor nothing of the other modes",
                            axis, tni_text(x), m->by[0], m->by[1]);
        memcpy(a.by[axis], m->by, sizeof m->by);
    }
    if (own) return map_axes(&op_pad_own, x, map, n / 2);
    if (tni_number_in("tn_pad", value, x->dtype, &a.value) != TN_OK) return NULL;
    return tni_apply(&op_pad, &a, sizeof a, 1, &x);
}

/* ---- pixels ---------------------------------------------------------------------------------- */

/* The first of x's last three axes; -1: not what is wanted. */
static int pixels_at(const char *function, const tn_tensor *x, int64_t r, bool shuffle)
{
    if (!tni_present(function, "x", x)) return -1;
    int lead = x->shape.rank - 3;
    const int64_t *s = &x->shape.size[TNI_MAX(lead, 0)];
    if (lead >= 0 && lead + 5 <= TN_MAX_RANK && r >= 1 && r <= INT_MAX &&
        (shuffle ? s[0] % (r * r) == 0 : s[1] % r == 0 && s[2] % r == 0))
        return lead;
    tni_error(TN_E_SHAPE, "%s: x %s, r %" PRId64 ": want [..,C,H,W] of at most %d axes, %s",
              function, tni_text(x), r, TN_MAX_RANK - 2,
              shuffle ? "r r a divisor of C" : "r one of H and W");
    return -1;
}

/* x with its last five axes in that order. */
static tn_tensor *reordered(tn_tensor *x, int lead, const int *last)
{
    int order[TN_MAX_RANK];
    for (int d = 0; d < lead + 5; d++) order[d] = d < lead ? d : lead + last[d - lead];
    return tn_permute(x, order, lead + 5);
}

tn_tensor *tn_pixel_shuffle(tn_tensor *x, int64_t r)
{
    int lead = pixels_at("tn_pixel_shuffle", x, r, true);
    if (lead < 0) return NULL;
    tn_tensor *y = tn_unflatten(x, lead, TN_SHAPE(-1, r, r));
    y = tn_flatten(reordered(y, lead, (int[]){ 0, 3, 1, 4, 2 }), lead + 3, lead + 4);
    return tn_flatten(y, lead + 1, lead + 2);
}

tn_tensor *tn_pixel_unshuffle(tn_tensor *x, int64_t r)
{
    int lead = pixels_at("tn_pixel_unshuffle", x, r, false);
    if (lead < 0) return NULL;
    tn_tensor *y = tn_unflatten(x, lead + 2, TN_SHAPE(-1, r));
    y = tn_unflatten(y, lead + 1, TN_SHAPE(-1, r));
    return tn_flatten(reordered(y, lead, (int[]){ 0, 2, 4, 1, 3 }), lead, lead + 2);
}
