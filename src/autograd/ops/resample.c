/*
 * resample.c - interpolation, and how ops map axes: y_o = sum over i of w_oi x_i along one or two.
 *
 * The few weights of each element (its taps) are listed here, on the host; the kernel sums by the
 * lists. The gradient is the same kernel with the lists turned round: for each i the o that it is
 * part of. So nothing is added in an order that depends on threads, and derivatives of any order
 * are one of the two.
 *
 * Weights of interpolation: the triangle 1 - |t| (linear), and Keys' cubic (1981, eq. 4). With
 * antialias they are stretched by the scale and divided by their sum, as PyTorch's.
 */
#include "autograd/ops/resample.h"

#include "autograd/ops/rows.h"

/* ---- taps ------------------------------------------------------------------------------------ */

/* The weight of an element t steps away: of the triangle (a = 0), or Keys' cubic. */
static double weight_at(double t, double a)
{
    t = fabs(t);
    if (a == 0) return TNI_MAX(1 - t, 0);
    if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
}

/* How far weights reach. */
static double reach_of(const tni_axis_map *m)
{
    return (m->mode == TN_CUBIC ? 2 : 1) * (m->antialias ? TNI_MAX(m->scale, 1) : 1);
}

static int64_t most_taps(const tni_axis_map *m)
{
    if (m->kind != TNI_PLACED || m->mode < TN_LINEAR) return 1;
    return m->antialias ? TNI_MIN(m->in, 2 * (int64_t)ceil(reach_of(m)) + 1)
                        : 2 * (int64_t)reach_of(m);
}

static int64_t padded(const tni_axis_map *m, int64_t o)
{
    int64_t i = o - m->before, end = m->in - 1, cut = TNI_MAX(-m->before, 0);
    if (m->mode == TN_PAD_REFLECT) return i < 0 ? -i : i > end ? 2 * end - i : i;
    if (m->mode == TN_PAD_REPLICATE) return TNI_MIN(TNI_MAX(i, 0), end);
    int64_t n = m->in - cut - TNI_MAX(-m->behind, 0); /* what is left goes round */
    return cut + ((o - TNI_MAX(m->before, 0)) % n + n) % n;
}

static int64_t placed(const tni_axis_map *m, bool f64, int64_t o, int64_t *at, double *weight)
{
    double s = m->scale, reach = reach_of(m), total = 0;
    double a = m->mode == TN_LINEAR ? 0 : m->antialias ? -0.5 : -0.75;
    int64_t end = m->in - 1, n = 0;
    weight[0] = 1;
    if (m->mode < TN_LINEAR) { /* PyTorch computes in x's dtype, and rounds down in f32 */
        double place = (f64 ? s : (float)s) * ((double)o + (m->mode == TN_NEAREST ? 0 : 0.5));
        at[0] = TNI_MIN((int64_t)floorf((float)place), end);
        return 1;
    }
    if (!m->antialias) {
        double place = m->align_corners ? s * (double)o : s * ((double)o + 0.5) - 0.5;
        for (double k = 1 - reach, low = floor(place); k <= reach; k++) {
            at[n] = (int64_t)TNI_MIN(TNI_MAX(low + k, 0), (double)end);
            weight[n++] = weight_at(place - low - k, a);
        }
        return n;
    }
    double middle = s * ((double)o + 0.5);
    for (int64_t i = TNI_MAX((int64_t)(middle - reach + 0.5), 0),
                 last = TNI_MIN((int64_t)(middle + reach + 0.5), m->in);
         i < last && n < most_taps(m); i++) {
        at[n] = i;
        weight[n] = weight_at(((double)i - middle + 0.5) / TNI_MAX(s, 1), a);
        total += weight[n++];
    }
    for (int64_t k = 0; k < n; k++) weight[k] /= total;
    return n;
}

/* The taps of element o; how many. */
static int64_t taps_of(const tni_axis_map *m, bool f64, int64_t o, int64_t *at, double *weight)
{
    if (m->kind == TNI_PLACED) return placed(m, f64, o, at, weight);
    weight[0] = 1;
    at[0] = m->kind == TNI_PADDED    ? padded(m, o)
            : m->kind == TNI_WINDOWS ? o % m->run * m->stride + o / m->run * m->dilation
                                     : o;
    return 1;
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
    table t = { m, back ? m->in : m->out, m->out * most_taps(m), 0, 0 };
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
            int64_t n = taps_of(m, f64, o, at, weight);
            int64_t here = m->kind == TNI_WINDOWS ? o / m->run * m->far + o % m->run : o;
            for (int64_t k = 0; k < n; k++) {
                int64_t to = back ? at[k] : o;
                if (!place) {
                    first[to + 1]++;
                    continue;
                }
                int32_t tap = first[to]++;
                list[tap] = (int32_t)(back ? here : at[k]);
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

tn_status tni_map_planes(const tni_call *c, int64_t planes, const tni_axis_map *rows,
                         const tni_axis_map *columns, int64_t step, bool back)
{
    const tn_tensor *x = c->in[0];
    table r = table_of(rows, back), s = table_of(columns, back);
    bool f64 = x->dtype == TN_F64, still = columns->kind == TNI_ITSELF;
    int64_t numel = tni_shape_numel(&x->shape), most = TNI_MAX(most_taps(rows), most_taps(columns));
    if (tni_shape_numel(&c->out[0]->shape) == 0) return TN_OK;
    if (TNI_MAX(r.n + r.taps, still ? 0 : TNI_MAX(s.n + s.taps, numel / planes)) > INT32_MAX)
        return tni_op_error(c, TN_E_UNSUPPORTED, "x %s: want planes of at most %d elements",
                            tni_text(x), INT32_MAX);
    if (still) s.bytes = 0;
    size_t nbytes = r.bytes + s.bytes + (size_t)most * (sizeof(int64_t) + sizeof(double));
    char *memory = tni_alloc(nbytes);
    if (!memory) return TN_E_NOMEM;
    double *weight = (double *)(memory + r.bytes + s.bytes);
    int64_t *at = (int64_t *)(weight + most);
    tni_resample a = { .y = rows_array(c->out[0], 3, planes, r.n, s.n),
                       .x = rows_array(x, 2, planes, numel / planes, 0),
                       .rows = fill(&r, memory, back, f64, at, weight),
                       .table = memory,
                       .table_bytes = r.bytes + s.bytes };
    a.rows.step = step;
    if (!still) a.columns = fill(&s, memory + r.bytes, back, f64, at, weight);
    tn_status status = tni_backend_of(x)->resample(&a);
    tni_free(memory, nbytes);
    return status;
}

/* ---- ops that map axes ----------------------------------------------------------------------- */

static tn_status mapped_shape(tni_call *c, bool back)
{
    const tni_mapped *a = c->args;
    tni_shape_like_first(c);
    tn_shape *y = &c->out_spec[0].shape;
    y->size[a->axis] = back ? a->rows.in : a->rows.out;
    if (a->columns.kind) y->size[a->axis + 1] = back ? a->columns.in : a->columns.out;
    return TN_OK;
}

static tn_status mapped_forward(tni_call *c, bool back)
{
    const tni_mapped *a = c->args;
    const tn_shape *x = &c->in[0]->shape;
    int64_t inner = rows_count(x, a->axis + 1, x->rank);
    tni_axis_map columns = a->columns;
    if (!columns.kind) columns.in = columns.out = inner;
    return tni_map_planes(c, rows_count(x, 0, a->axis), &a->rows, &columns, inner, back);
}

tn_status tni_mapped_shape(tni_call *c)
{
    return mapped_shape(c, false);
}
tn_status tni_mapped_forward(tni_call *c)
{
    return mapped_forward(c, false);
}
tn_status tni_unmapped_shape(tni_call *c)
{
    return mapped_shape(c, true);
}
tn_status tni_unmapped_forward(tni_call *c)
{
    return mapped_forward(c, true);
}

tn_tensor *tni_map_axes(const tn_op *op, tn_tensor *x, const tni_axis_map *map, int n)
{
    bool vector = x->shape.rank == 1, half = n > 2 && tni_is_half(x->dtype);
    tn_dtype dtype = x->dtype;
    if (vector) x = tn_unsqueeze(x, 0);
    if (half) x = tni_wide(x); /* several kernels round once */
    for (int k = 0; x && k < n; k += k ? 1 : 2) { /* the last two together */
        tni_mapped a = { .axis = x->shape.rank - 1 - TNI_MAX(k, 1) };
        int64_t rows = x->shape.size[a.axis];
        a.rows = k + (k == 0) < n ? map[k + (k == 0)] : (tni_axis_map){ .in = rows, .out = rows };
        if (k == 0) a.columns = map[0];
        x = tni_apply(op, &a, sizeof a, 1, &x);
    }
    if (half && x) x = tn_to_dtype(x, dtype);
    return vector ? tn_squeeze(x, 0) : x;
}

/* ---- interpolation --------------------------------------------------------------------------- */

TNI_MAPPED(op_interpolate, "interpolate", "sum of w_oi x_i over the i around o's place")

/* The map of an axis of `in` elements to `size`, or by `scale`; false + message. */
static bool place(const tn_tensor *x, const tn_interpolate_spec *s, int i, tni_axis_map *m)
{
    int64_t in = x->shape.size[2 + i], size = s->size[i] ? s->size[i] : s->size[0];
    double scale = s->scale[i] != 0 ? s->scale[i] : s->scale[0];
    double out = scale != 0 ? floor((double)in * scale) : (double)size;
    if (in < 1 || !(out >= 1 && out <= INT32_MAX))
        return tni_false(tni_error(TN_E_SHAPE,
                                   "tn_interpolate: axis %d of %s to size %g: want 1 to %d from at "
                                   "least 1",
                                   2 + i, tni_text(x), out, INT32_MAX));
    *m = (tni_axis_map){ .kind = TNI_PLACED, .mode = s->mode, .in = in, .out = (int64_t)out };
    m->align_corners = s->align_corners;
    m->antialias = s->antialias;
    m->scale = scale != 0 && !s->recompute_scale_factor ? 1 / scale : (double)in / out;
    /* as PyTorch: a size that stays leaves the axis as it is, but not in these two cases */
    bool moves = s->mode < TN_LINEAR ? x->shape.rank == 3 : s->mode == TN_CUBIC && !s->antialias;
    if (m->out == in && !moves) m->scale = 1;
    if (s->align_corners) m->scale = out > 1 ? (double)(in - 1) / (out - 1) : 0;
    return true;
}

tn_tensor *tn_interpolate(tn_tensor *x, tn_interpolate_spec spec)
{
    tni_axis_map map[3];
    if (!tni_present("tn_interpolate", "x", x)) return NULL;
    int n = x->shape.rank - 2;
    bool smooth = spec.mode >= TN_LINEAR, sizes = spec.size[0] != 0;
    if (n < 1 || n > 3)
        return tni_fail(TN_E_SHAPE, "tn_interpolate: x %s: want [N,C,L], [N,C,H,W] or [N,C,D,H,W]",
                        tni_text(x));
    if (spec.mode < TN_NEAREST || spec.mode > TN_CUBIC ||
        ((spec.mode == TN_CUBIC || spec.antialias) && n != 2) ||
        ((spec.align_corners || spec.antialias) && !smooth))
        return tni_fail(TN_E_INVALID,
                        "tn_interpolate: x %s, mode %d%s%s: want a tn_interpolate_mode; cubic and "
                        "antialias for [N,C,H,W] alone, align_corners and antialias with linear or "
                        "cubic",
                        tni_text(x), (int)spec.mode, spec.align_corners ? ", align_corners" : "",
                        spec.antialias ? ", antialias" : "");
    if (sizes == (spec.scale[0] != 0) || (sizes && spec.recompute_scale_factor))
        return tni_fail(TN_E_INVALID,
                        "tn_interpolate: size %" PRId64 ", scale %g%s: want one of the two, and "
                        "recompute_scale_factor with scale alone",
                        spec.size[0], spec.scale[0],
                        spec.recompute_scale_factor ? ", recompute_scale_factor" : "");
    for (int i = 0; i < n; i++)
        if (!place(x, &spec, i, &map[n - 1 - i])) return NULL;
    return tni_map_axes(&op_interpolate, x, map, n);
}
