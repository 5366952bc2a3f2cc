/*
 * linear_cross_entropy.c - cross entropy of a linear layer's logits, some rows at a time: only a
 * piece of a language model's logits [N, C] is ever in memory.
 *
 * Forward makes the logits of a piece, the loss of its rows, and, where gradients will be wanted,
 * writes the logits' gradient dl over them (beside them in bf16, whose logits are f32: rounded ones
 * would be the largest error of the loss) and adds its part to
 *     dx = dl W        dW = dl^T x        db = column sums of dl
 * so that backward only multiplies by the gradient of the loss: no product is computed twice. dW
 * and db are summed in f32 where x is bf16. scale is 1 / sum w[t] for the mean, 1 for the sum.
 *
 * With several orders of derivatives backward computes all logits again, with ops.
 */
#include "autograd/ops/products.h"
#include "autograd/ops/shared.h"
#include "tensor/formulas.h"

enum { X, W, B, TARGET, WEIGHT, SCALE, N_IN };

typedef struct lce_args {
    double smoothing;
    int64_t ignore;
    bool wanted[3]; /* x, W and b want a gradient, which forward then saves, in this order */
} lce_args;

/* ---- forward --------------------------------------------------------------------------------- */

/* The number of logits in a piece, 64 MiB in f32: with fewer, dW is added to more often. On a GPU,
 * the bytes of a piece, which has to keep it busy. */
enum { PIECE = 1 << 24, GPU_PIECE = 1 << 28 };

typedef struct job {
    const tni_backend *backend;
    const lce_args *args;
    tn_dtype dtype, wide;   /* of x and dl; of logits and sums */
    int64_t n, k, classes;  /* x [n, k], W [classes, k] */
    int64_t ld;             /* from a row of logits to the next */
    int64_t first, m;       /* the piece: rows [first, first + m) */
    tn_tensor *const *in;   /* x, W and b in dtype */
    tn_tensor *l, *dl;      /* [m, ld], one tensor unless dtype is bf16 */
    tn_tensor *loss, *norm; /* [2, n]: losses and their weights; rows' m and s */
    tn_tensor *part;        /* of db, in dtype */
    tn_tensor *grad[3];     /* of x, W and b; NULL: not wanted */
} job;

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n - 1) / unit * unit + unit;
}

/* The number of rows at a time. On a GPU rows are aligned to 128 bytes (cuBLAS is slow on rows not
 * aligned to 16), and their number fills its tiles. */
static void cut(job *j, bool on_gpu)
{
    int64_t size = (int64_t)tn_dtype_size(j->wide), piece = on_gpu ? GPU_PIECE / size : PIECE;
    j->ld = round_up(j->classes, on_gpu ? 128 / (int64_t)tn_dtype_size(j->dtype) : 1);
    int64_t most = TNI_MAX(piece / j->ld, j->k / 4); /* dl is no smaller than dW / 4 */
    int64_t tile = on_gpu && most >= 128 ? 128 : 1;
    most = TNI_MAX(most - most % tile, 1);
    int64_t pieces = (j->n - 1) / most + 1;
    j->m = TNI_MIN(round_up((j->n - 1) / pieces + 1, tile), j->n);
}

/* c = a b, or c += a b */
static tn_status multiply(const job *j, tni_array c, tni_array a, tni_array b, bool accumulate)
{
    tni_gemm g = tni_matrix_product(c, a, b);
    g.accumulate = accumulate;
    return j->backend->gemm(&g);
}

static tni_array piece_of_x(const job *j)
{
    return rows_part(j->in[X], j->first, j->m, j->k);
}
static tni_array all_of(const job *j, const tn_tensor *logits)
{
    tni_array l = rows_part(logits, 0, j->m, j->ld);
    l.size[1] = j->classes;
    return l;
}
static tni_array all_w(const job *j)
{
    return rows_part(j->in[W], 0, j->classes, j->k);
}

static tn_status add_db(const job *j)
{
    tni_array part = rows_part(j->part, 0, 1, j->classes);
    tni_array db = rows_part(j->grad[B], 0, 1, j->classes);
    tni_reduce r = { .function = TNI_R_sum, .y = part, .x = all_of(j, j->dl), .p = &(double){ 0 } };
    TNI_TRY(j->backend->reduce(&r));
    if (j->first == 0) return j->backend->copy(&(tni_copy){ db, part });
    return j->backend->binary(&(tni_binary){ TNI_B_add, db, db, part, NULL });
}

/* Elements [first, first + m) of row `row` of t [.., n], as [m, 1]. */
static tni_array column(const job *j, const tn_tensor *t, int64_t row)
{
    return rows_part(t, row * j->n + j->first, j->m, 1);
}

static tn_status make_logits(const job *j)
{
    tni_gemm g = tni_matrix_product(all_of(j, j->l), piece_of_x(j), tni_turned(all_w(j)));
    TNI_TRY(tni_product_bias(j->backend, &g, j->in[B]));
    return j->backend->gemm(&g);
}

static tn_status one_piece(const job *j, tn_tensor *const *in)
{
    tni_array x = { tni_data(j->l), j->wide, 3, { j->m, j->classes, 1 }, { j->ld, 1, 1 } };
    tni_array dx = x;
    dx.data = tni_data(j->dl);
    dx.dtype = j->dtype;
    tni_array target = column(j, in[TARGET], 0), top = column(j, j->norm, 0);
    tni_array sum = column(j, j->norm, 1);
    tni_array weight = rows_array(in[WEIGHT], 1, j->classes, 0, 0);
    tni_array scale = { tni_data(in[SCALE]), j->wide, 2, { j->m, 1 }, { 0, 0 } };
    tni_cross_entropy loss = {
        column(j, j->loss, 0), column(j, j->loss, 1), top,     sum, x, target, weight,
        j->args->smoothing,    j->args->ignore,       j->first
    };
    tni_cross_entropy_grad slope = {
        dx, scale, top, sum, x, target, weight, j->args->smoothing, j->args->ignore
    };
    TNI_TRY(make_logits(j));
    TNI_TRY(j->backend->cross_entropy(&loss));
    if (!j->grad[X] && !j->grad[W] && !j->grad[B]) return TN_OK;
    TNI_TRY(j->backend->cross_entropy_grad(&slope));
    if (j->grad[X])
        TNI_TRY(multiply(j, rows_part(j->grad[X], j->first, j->m, j->k), all_of(j, j->dl), all_w(j),
                         false));
    if (j->grad[W])
        TNI_TRY(multiply(j, rows_part(j->grad[W], 0, j->classes, j->k),
                         tni_turned(all_of(j, j->dl)), piece_of_x(j), j->first > 0));
    return j->grad[B] ? add_db(j) : TN_OK;
}

static bool make_room(job *j, tn_device device)
{
    bool wanted = j->dtype != j->wide && (j->grad[X] || j->grad[W] || j->grad[B]);
    return (j->l = tni_create("", TN_SHAPE(j->m, j->ld), j->wide, device)) &&
           (j->dl = wanted ? tni_create("", TN_SHAPE(j->m, j->ld), j->dtype, device) : j->l) &&
           (j->loss = tni_create("", TN_SHAPE(2, j->n), j->wide, device)) &&
           (j->norm = tni_create("", TN_SHAPE(2, j->n), j->wide, device)) &&
           (j->part = tni_create("", TN_SHAPE(j->grad[B] ? j->classes : 0), j->dtype, device));
}

static tn_status lce_shape(tni_call *c)
{
    const lce_args *args = c->args;
    for (int i = X; i <= B; i++) {
        const tn_tensor *t = c->in[i];
        if (args->wanted[i]) tni_saves(c, i == X ? t->dtype : tni_wide_dtype(t->dtype), &t->shape);
    }
    return tni_result(c, tni_wide_dtype(c->in[X]->dtype), &(tn_shape){ 0 });
}

static tn_status lce_forward(tni_call *c)
{
    const tn_tensor *x = c->in[X], *w = c->in[W];
    tn_tensor *in[N_IN];
    job j = { .backend = tni_backend_of(x),
              .args = c->args,
              .dtype = x->dtype,
              .wide = tni_wide_dtype(x->dtype),
              .n = x->shape.size[0],
              .k = x->shape.size[1],
              .classes = w->shape.size[0],
              .in = in };
    for (int i = 0, saved = 0; i < N_IN; i++) {
        tn_dtype dtype = i == WEIGHT ? j.wide : i <= B ? j.dtype : c->in[i]->dtype;
        bool kept = tni_none(c->in[i]) || c->in[i]->dtype == dtype;
        if (!(in[i] = kept ? c->in[i] : tni_copied(c->in[i], dtype))) return tni_pending();
        if (i <= B && j.args->wanted[i]) j.grad[i] = c->saved[saved++];
    }
    cut(&j, c->device.type != TN_CPU);
    int64_t step = j.m;
    if (!make_room(&j, c->device)) return tni_pending();
    for (; j.first < j.n; j.first += step) {
        j.m = TNI_MIN(step, j.n - j.first);
        TNI_TRY(one_piece(&j, in));
    }
    tni_array loss = rows_part(c->out[0], 0, 1, 1);
    tni_reduce sum = {
        .function = TNI_R_sum, .y = loss, .x = rows_part(j.loss, 0, 1, j.n), .p = &(double){ 0 }
    };
    tni_binary scaled = { TNI_B_mul, loss, loss, rows_part(in[SCALE], 0, 1, 1), NULL };
    TNI_TRY(j.backend->reduce(&sum));
    return j.backend->binary(&scaled);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* saved times the gradient of the loss; no copy if that is 1, as it usually is. */
static tn_tensor *times(tn_tensor *saved, tn_tensor *dy)
{
    if (saved->storage->device.type == TN_CPU &&
        (dy->dtype == TN_F64 ? *(double *)tni_data(dy) : *(float *)tni_data(dy)) == 1)
        return tn_scope_adopt(tni_alias_raw(saved));
    return tn_mul(tni_wide(saved), dy);
}

static tn_status lce_backward(tni_grad *g)
{
    const lce_args *args = g->args;
    if (!tni_composed()) {
        for (int i = X, saved = -1; i <= B; i++)
            if (args->wanted[i] && (saved++, g->need[i])) g->dx[i] = times(g->saved[saved], g->dy);
        return TN_OK;
    }
    tn_tensor *x = g->x[X], *w = tn_to_dtype(g->x[W], g->in[X].dtype);
    tn_tensor *b = g->in[B].absent ? TN_NONE : tn_to_dtype(g->x[B], g->in[X].dtype);
    tn_tensor *drow = tn_expand(tn_mul(tni_dy(g, 0), g->x[SCALE]), g->in[TARGET].shape);
    tn_tensor *l = tni_linear_wide(x, w, b), *weight = g->x[WEIGHT];
    if (!l) return tni_pending();
    if (!tni_absent(weight) && !(weight = tni_wide(weight))) return tni_pending();
    tn_tensor *dl = tn_to_dtype(
        tni_cross_entropy_slope(l, g->x[TARGET], weight, drow, 1, args->smoothing, args->ignore),
        g->in[X].dtype);
    if (g->need[X]) g->dx[X] = tn_matmul(dl, w);
    if (g->need[W]) g->dx[W] = tn_matmul(tn_transpose(dl, 0, 1), x);
    if (g->need[B]) g->dx[B] = tn_sum(dl, TN_AXES(0), false);
    return TN_OK;
}

enum {
    READS =
        TNI_X(X) | TNI_X(W) | TNI_X(B) | TNI_X(TARGET) | TNI_X(WEIGHT) | TNI_X(SCALE) | TNI_SAVED
};

TNI_OP(linear_cross_entropy, N_IN,
       "loss = scale sum_n w[t_n] (lse_n - l_n[t_n]), l = x W^T + b, lse = logsumexp(l)",
       "dx = dl W; dW = dl^T x; db = sum_n dl; where dl = dloss scale w[t] (softmax(l) - "
       "onehot(t)), as cross_entropy's",
       lce_shape, lce_forward, lce_backward, .optional = TNI_X(B) | TNI_X(WEIGHT),
       .dtypes = TNI_MIXED_FLOAT, .autocast = TNI_CAST_KEEP, .reads = { READS, READS, READS },
       .dense = TNI_ALL_X)

/* ---- the function ---------------------------------------------------------------------------- */

static const char function[] = "tn_linear_cross_entropy";

/* 1 / the sum of weights over the rows that count, or 1 for TN_SUM; without history. */
static tn_tensor *scale_of(tn_tensor *target, const tn_cross_entropy_options *o, int64_t classes,
                           tn_dtype dtype, tn_device device)
{
    if (o->reduction == TN_SUM) return tn_full_as(TN_SCALAR, 1, dtype, device);
    tn_tensor *ignored = tni_ignored_rows(target, rows_ignore(o)), *each;
    if (tni_none(o->weight)) {
        each = tn_full_as(target->shape, 1, dtype, device);
    } else { /* the kernel refuses a bad class */
        tn_tensor *safe = tn_clamp(target, 0, (double)(classes - 1));
        each = tn_to_dtype(tn_index_select(o->weight, 0, safe), dtype);
    }
    return tn_reciprocal(tn_sum(tn_masked_fill(each, ignored, 0), NULL, 0, false));
}

static tn_tensor *by_pieces(tn_tensor *x, tn_tensor *w, tn_tensor *b, tn_tensor *target,
                            const tn_cross_entropy_options *o)
{
    target = tni_ids_arg(function, "target", target);
    target = target ? tn_reshape(target, TN_SHAPE(tn_numel(target))) : NULL;
    x = target ? tn_reshape(x, TN_SHAPE(tn_numel(target), w->shape.size[1])) : NULL;
    if (!x) return NULL;
    tn_tensor *scale = NULL;
    TN_NO_GRAD
    scale = scale_of(target, o, w->shape.size[0], tni_wide_dtype(x->dtype), tn_device_of(x));
    tn_tensor *in[N_IN] = { x, w, b, target, o->weight, scale };
    lce_args args = { o->label_smoothing, rows_ignore(o), { false } };
    for (int i = X; i <= B; i++) args.wanted[i] = tn_grad_enabled() && in[i]->requires_grad;
    tn_tensor *loss = tni_apply(&op_linear_cross_entropy, &args, sizeof args, N_IN, in);
    return tni_autocasting == TN_F32 ? tn_to_dtype(loss, x->dtype) : loss;
}

static tn_status check_sizes(const tn_tensor *x, const tn_tensor *w, const tn_tensor *b,
                             const tn_tensor *target, const tn_tensor *class_weight)
{
    int last = x->shape.rank - 1;
    bool ids = !tn_dtype_is_float(target->dtype);
    if (last < 0 || w->shape.rank != 2 || w->shape.size[1] != x->shape.size[last])
        return tni_error(TN_E_SHAPE, "%s: x %s, weight %s: want x [..., in] and weight [C, in]",
                         function, tni_text(x), tni_text(w));
    int64_t classes = w->shape.size[0];
    if (!tni_none(b) && (b->shape.rank != 1 || b->shape.size[0] != classes))
        return tni_error(TN_E_SHAPE, "%s: weight %s, bias %s: want bias [%" PRId64 "]", function,
                         tni_text(w), tni_text(b), classes);
    if (!tni_none(class_weight) &&
        (class_weight->shape.rank != 1 || class_weight->shape.size[0] != classes))
        return tni_error(TN_E_SHAPE, "%s: weight %s, class weights %s: want them [%" PRId64 "]",
                         function, tni_text(w), tni_text(class_weight), classes);
    tn_shape want = x->shape;
    want.size[last] = classes;
    want.rank -= ids;
    if (!tni_shape_equal(&want, &target->shape))
        return tni_error(TN_E_SHAPE, "%s: x %s, weight %s, target %s of %s: want target %s, %s",
                         function, tni_text(x), tni_text(w), tni_text(target),
                         tn_dtype_name(target->dtype), tni_shape_text(&want),
                         ids ? "class ids" : "probabilities");
    return TN_OK;
}

/* in: x, w and b. In an autocast region x is cast here, w and b inside the op if they are f32.
 * Outside, or if one of them is f64, all three must have one dtype. */
static bool cast(tn_tensor *in[3])
{
    bool real = true, alike = true, low = tni_autocasting != TN_F32;
    for (int i = X; i <= B; i++) {
        if (tni_none(in[i])) continue;
        real = real && tn_dtype_is_float(in[i]->dtype);
        alike = alike && in[i]->dtype == in[X]->dtype;
        low = low && in[i]->dtype != TN_F64;
    }
    if (!real || (!low && !alike))
        return tni_false(
            tni_error(TN_E_DTYPE, "%s: x is %s, weight is %s, bias is %s: want one floating dtype",
                      function, tn_dtype_name(in[X]->dtype), tn_dtype_name(in[W]->dtype),
                      tni_none(in[B]) ? "absent" : tn_dtype_name(in[B]->dtype)));
    for (int i = X; i <= B && low; i++)
        if (!tni_none(in[i]) && (i == X || in[i]->dtype != TN_F32) &&
            !(in[i] = tn_to_dtype(in[i], tni_autocasting)))
            return false;
    return true;
}

/* All logits at once: for one loss per row, for probabilities as target, if one piece holds them
 * all, and in f16, where gradients that no scaler has scaled yet would be rounded to 0. */
static bool wants_all(const tn_tensor *x, const tn_tensor *w, const tn_tensor *target,
                      const tn_cross_entropy_options *o)
{
    return o->reduction == TN_NO_REDUCTION || tn_dtype_is_float(target->dtype) ||
           tn_numel(x) == 0 || tn_numel(w) == 0 || x->dtype == TN_F16;
}

static tn_tensor *at_once(tn_tensor *x, tn_tensor *w, tn_tensor *b, tn_tensor *target,
                          const tn_cross_entropy_options *o)
{
    tn_shape rows = target->shape;
    bool ids = !tn_dtype_is_float(target->dtype);
    rows.rank -= !ids;
    int64_t n = tni_shape_numel(&rows);
    tn_shape flat = ids ? TN_SHAPE(n) : TN_SHAPE(n, w->shape.size[0]);
    tn_cross_entropy_options own = *o;
    tn_tensor *logits = tni_linear_wide(tn_reshape(x, TN_SHAPE(n, w->shape.size[1])), w, b);
    own.weight = tni_wide(own.weight);
    tn_tensor *loss = tn_cross_entropy_with(logits, tni_wide(tn_reshape(target, flat)), own);
    if (tni_autocasting == TN_F32) loss = tn_to_dtype(loss, x->dtype);
    return o->reduction == TN_NO_REDUCTION ? tn_reshape(loss, rows) : loss;
}

tn_tensor *tn_linear_cross_entropy_with(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                        tn_tensor *target, tn_cross_entropy_options o)
{
    if (!tni_present(function, "x", x) || !tni_present(function, "weight", weight) ||
        !tni_present(function, "target", target))
        return NULL;
    if (!bias) return tni_poisoned_optional(function, "bias");
    if (!(o.weight = tni_option_tensor(function, "weight", o.weight))) return NULL;
    tn_tensor *in[] = { x, weight, bias }, *loss = NULL;
    tn_scope scope = tn_scope_begin();
    o.weight = tni_autocast_f32(o.weight);
    if (o.weight && check_sizes(x, weight, bias, target, o.weight) == TN_OK &&
        tni_check_class_options(function, &o, weight->shape.size[0], x) == TN_OK && cast(in))
        loss = (wants_all(in[X], weight, target, &o) ? at_once : by_pieces)(in[X], in[W], in[B],
                                                                            target, &o);
    return tni_scope_return(__func__, scope, loss);
}

tn_tensor *tn_linear_cross_entropy(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                   tn_tensor *target)
{
    return tn_linear_cross_entropy_with(x, weight, bias, target,
                                        (tn_cross_entropy_options){ .weight = TN_NONE });
}
