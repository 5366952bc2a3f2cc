/*
 * lbfgs.c - L-BFGS: a type whose rule takes all parameters together, and calls the closure of
 * tn_optim_step_with again, at the points that it tries. A vector has the elements of all
 * parameters, and is a row of one matrix; bf16 and f16 count as f32.
 *
 * Source: Nocedal and Wright, Numerical optimization (2006), algorithms 7.4, 3.5 and 3.6, with the
 * constants and the order of PyTorch's.
 */
#include <math.h>

#include <tenon/autograd.h>
#include <tenon/ops.h>
#include <tenon/optimizers.h>

enum { MAX_ITER, MAX_EVAL, TOLERANCE_GRAD, TOLERANCE_CHANGE, HISTORY, LINE_SEARCH, CLIMB };
enum { VECTORS, SCALARS, PARAMETER, GRADIENT };       /* states, and what else a row stands for */
enum { ITERATIONS, PARTS, LEARNED, RATE, SCALE, RO }; /* scalars; from RO on 1 / y s of each pair */
/* Rows: the place, its gradient, the place before the step, one that is tried, gradients there.
 * From D on, kept: direction, gradient before, pairs: how gradients (y), parameters (s) changed. */
enum { X, G, START, TRIAL, ONE, TWO, THREE, D, LAST, FIRST, MOST_PAIRS = 1000 };

/* A call of tn_optim_step_with. */
typedef struct stepping {
    tn_closure closure;
    void *user;
    tn_dtype cast;   /* autocast around it */
    tn_tensor *loss; /* before the step */
} stepping;
static _Thread_local const stepping *running; /* NULL: none, or its closure runs */

typedef struct work {
    tn_optim_part *part;
    const double *number;
    double sign; /* -1: the loss is maximized */
    int n, evals;
    tn_tensor *rows;
    double scalar[RO + MOST_PAIRS];
    tn_status status;
} work;

/* A point along D: how far, loss and slope there, the row that has the gradient. */
typedef struct point {
    double t, loss, slope;
    int row;
} point;

/* ---- vectors --------------------------------------------------------------------------------- */

/* From what a row, or those from D on, stand for; or to it, which for states is new. */
static void copy(work *w, int row, int what, bool to)
{
    int64_t at = 0;
    for (tn_optim_part *part = w->part; part < w->part + w->n && w->status == TN_OK; part++) {
        const int64_t n = tn_numel(part->p), last = tn_size(w->rows, 0);
        tn_tensor *own = what ? tn_select(w->rows, 0, row) : tn_slice(w->rows, 0, row, last, 1);
        tn_tensor *other = what == GRADIENT ? tn_grad(part->p) : what ? part->p : part->state[0];
        if (what == GRADIENT && tn_is_none(other)) other = tn_zeros_like(part->p);
        if (what == GRADIENT && w->sign < 0) other = tn_neg(other);
        if (!what && to) other = part->new_state[VECTORS] = tn_empty_like(other);
        own = tn_reshape(tn_narrow(own, -1, at, n), tn_shape_get(other));
        w->status = to ? tn_copy_(other, own) : tn_copy_(own, other);
        at += n;
    }
}

/* to = keep to + factor from, keep 0 or 1 */
static void add(work *w, int to, int keep, double factor, int from)
{
    if (w->status != TN_OK) return;
    TN_SCOPE
    {
        tn_tensor *x = tn_select(w->rows, 0, to), *y = tn_select(w->rows, 0, from);
        y = tn_mul_scalar(y, factor);
        w->status = keep ? tn_add_(x, y) : tn_copy_(x, y);
    }
}

static double dot(const work *w, int a, int b)
{
    double value = NAN;
    TN_SCOPE value =
        tn_item(tn_sum_all(tn_mul(tn_select(w->rows, 0, a), tn_select(w->rows, 0, b))));
    return value;
}

static double norm(const work *w, int row, double p)
{
    double value = NAN;
    TN_SCOPE value = tn_item(tn_norm(tn_select(w->rows, 0, row), p, NULL, 0, false));
    return value;
}

/* ---- along a direction ----------------------------------------------------------------------- */

/* Calls the closure as its caller would. */
static tn_tensor *evaluate(const stepping *s)
{
    const stepping *outer = running;
    const tn_scope scope = tn_scope_begin();
    const tn_dtype cast = tn_set_autocast(s->cast);
    const bool was = tn_set_grad_enabled(true);
    running = NULL; /* a step in it is another one */
    tn_tensor *loss = s->closure(s->user);
    running = outer;
    tn_set_grad_enabled(was);
    tn_set_autocast(cast);
    if (!loss && tn_error_status() == TN_OK)
        tn_fail(TN_E_INVALID, "tn_optim_step_with: the closure returned NULL: want the loss");
    return tn_scope_return(scope, loss ? tn_detach(loss) : NULL);
}

static void move(work *w, double t)
{
    add(w, TRIAL, 0, 1, X);
    add(w, TRIAL, 1, t, D);
    copy(w, TRIAL, PARAMETER, true);
}

static point at(work *w, double t, int row)
{
    point now = { t, NAN, NAN, row };
    TN_SCOPE
    {
        move(w, t);
        tn_tensor *loss = w->status == TN_OK ? evaluate(running) : NULL;
        if (!loss && w->status == TN_OK) w->status = tn_error_status();
        if (loss) now.loss = w->sign * tn_item(loss);
        copy(w, row, GRADIENT, false);
    }
    now.slope = dot(w, row, D);
    w->evals++;
    return now;
}

/* The minimum, in [least, most], of the cubic with these losses and slopes at a and b. */
static double cubic(point a, point b, double least, double most)
{
    const point l = a.t <= b.t ? a : b, r = a.t <= b.t ? b : a;
    const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t);
    const double square = d1 * d1 - a.slope * b.slope, d2 = sqrt(square);
    if (!(square >= 0)) return (least + most) / 2;
    const double t = r.t - (r.t - l.t) * ((r.slope + d2 - d1) / (r.slope - l.slope + 2 * d2));
    return fmin(fmax(t, least), most);
}

/* A row for the next gradient that neither point has. */
static int unused(point a, point b)
{
    int row = ONE;
    while (row == a.row || row == b.row) row++;
    return row;
}

/* A point with the strong Wolfe conditions, or the lowest after so many evaluations. */
static point search(work *w, double t, double loss, double slope, int most)
{
    const double armijo = 1e-4 * slope, flat = -0.9 * slope, longest = norm(w, D, INFINITY);
    const point start = { 0, loss, slope, G };
    point last = start, now = at(w, t, ONE);
    int k = 0;
    for (; k < most && w->status == TN_OK; k++) {
        if (now.loss > loss + now.t * armijo || (k > 1 && now.loss >= last.loss)) break;
        if (fabs(now.slope) <= flat) return now;
        if (now.slope >= 0) break;
        t = cubic(last, now, now.t + 0.01 * (now.t - last.t), now.t * 10);
        const point next = at(w, t, unused(last, now));
        last = now;
        now = next;
    }
    point end[2] = { k == most ? start : last, now }; /* a minimum is between them */
    int low = end[0].loss <= end[1].loss ? 0 : 1;
    for (bool slow = false, done = false; !done && k < most && w->status == TN_OK; k++) {
        const double left = fmin(end[0].t, end[1].t), right = fmax(end[0].t, end[1].t);
        const double margin = 0.1 * (right - left);
        if ((right - left) * longest < 1e-9) break;
        t = cubic(end[0], end[1], left, right);
        const bool near = fmin(right - t, t - left) < margin;
        const bool moved = near && (slow || t >= right || t <= left);
        if (moved) t = right - t < t - left ? right - margin : left + margin;
        slow = near && !moved;
        now = at(w, t, unused(end[0], end[1]));
        if (now.loss > loss + t * armijo || now.loss >= end[low].loss) {
            end[!low] = now;
            low = end[0].loss <= end[1].loss ? 0 : 1;
            continue;
        }
        done = fabs(now.slope) <= flat;
        if (!done && now.slope * (end[!low].t - end[low].t) >= 0) end[!low] = end[low];
        end[low] = now;
    }
    return end[low];
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* D = - H G, H the inverse Hessian as the pairs tell it: first that of the last iteration, in place
 * of the oldest one if there are as many as may be. */
static void direct(work *w)
{
    double *c = w->scalar, al[MOST_PAIRS], ys = 0;
    if (c[ITERATIONS]++ == 0) {
        c[SCALE] = 1;
    } else {
        add(w, ONE, 0, 1, G);
        add(w, ONE, 1, -1, LAST);
        add(w, TWO, 0, c[RATE], D);
        ys = dot(w, ONE, TWO);
    }
    if (ys > 1e-10) {
        const int place = (int)fmod(c[LEARNED]++, w->number[HISTORY]), y = FIRST + 2 * place;
        add(w, y, 0, 1, ONE);
        add(w, y + 1, 0, 1, TWO);
        c[RO + place] = 1 / ys;
        c[SCALE] = ys / dot(w, y, y);
    }
    const int history = (int)w->number[HISTORY], end = (int)c[LEARNED];
    const int begin = end > history ? end - history : 0;
    add(w, D, 0, -1, G);
    for (int i = end - 1; i >= begin; i--) {
        const int k = i % history, y = FIRST + 2 * k;
        al[k] = dot(w, y + 1, D) * c[RO + k];
        add(w, D, 1, -al[k], y);
    }
    add(w, D, 0, c[SCALE], D);
    for (int i = begin; i < end; i++) {
        const int k = i % history, y = FIRST + 2 * k;
        add(w, D, 1, al[k] - dot(w, y, D) * c[RO + k], y + 1);
    }
    add(w, LAST, 0, 1, G);
}

static void iterate(work *w, double loss, double lr)
{
    const double *number = w->number, least = number[TOLERANCE_CHANGE];
    const double most = number[MAX_EVAL] != 0 ? number[MAX_EVAL] : floor(number[MAX_ITER] * 1.25);
    if (norm(w, G, INFINITY) <= number[TOLERANCE_GRAD]) return;
    for (int k = 1; k <= number[MAX_ITER] && w->status == TN_OK; k++) {
        direct(w);
        const double before = loss, slope = dot(w, G, D);
        double *t = &w->scalar[RATE];
        *t = w->scalar[ITERATIONS] == 1 ? fmin(1, 1 / norm(w, G, 1)) * lr : lr;
        if (slope > -least) return;
        if (number[LINE_SEARCH] != 0) {
            const point found = search(w, *t, loss, slope, (int)most - w->evals);
            *t = found.t;
            loss = found.loss;
            add(w, G, 0, 1, found.row);
        }
        move(w, *t);
        copy(w, X, PARAMETER, false); /* as rounded */
        if (number[LINE_SEARCH] == 0 && k < number[MAX_ITER]) loss = at(w, 0, G).loss;
        if (w->evals >= most || fabs(loss - before) < least ||
            norm(w, G, INFINITY) <= number[TOLERANCE_GRAD] ||
            fabs(*t) * norm(w, D, INFINITY) <= least)
            return;
    }
}

/* Makes the rows, with what the last step has left. */
static tn_status begin(work *w)
{
    const tn_optim_part *first = w->part;
    const size_t n = (size_t)tn_numel(first->state[SCALARS]);
    int64_t elements = 0;
    tn_dtype dtype = TN_F32;
    w->status = tn_copy_out(first->state[SCALARS], w->scalar, n * sizeof(double), TN_F64);
    for (int k = 0; k < w->n && w->status == TN_OK; k++) {
        const int64_t steps = w->part[k].numbers.step;
        elements += tn_numel(w->part[k].p);
        if (tn_dtype_of(w->part[k].p) == TN_F64) dtype = TN_F64;
        if (steps == first->numbers.step && (steps == 1 || w->scalar[PARTS] == w->n) &&
            w->scalar[LEARNED] >= 0 && w->scalar[LEARNED] < 1e9)
            continue;
        tn_fail(TN_E_STATE, "tn_lbfgs: %s: want gradients of the same parameters in each step, %s",
                w->part[k].name, "and scalars that are not damaged, else a new optimizer");
        return TN_E_STATE;
    }
    w->rows = tn_empty_as(TN_SHAPE(D + tn_size(first->state[VECTORS], 0), elements), dtype,
                          tn_device_of(first->p));
    copy(w, D, VECTORS, false);
    copy(w, START, PARAMETER, false);
    copy(w, X, PARAMETER, false);
    copy(w, G, GRADIENT, false);
    return w->status;
}

static tn_status lbfgs_update(tn_optim_part *part, int n)
{
    const tn_optim_numbers *o = &part->numbers;
    work w = { .part = part, .number = o->number, .n = n, .evals = 1 };
    w.sign = o->number[CLIMB] != 0 ? -1 : 1;
    const char *wanted = !running ? "tn_optim_step_with: its steps evaluate the loss"
                         : tn_numel(running->loss) != 1 ? "a loss of one element"
                         : o->weight_decay != 0         ? "no weight_decay: it is part of the loss"
                                                        : NULL;
    if (wanted) {
        tn_fail(TN_E_STATE, "tn_lbfgs: want %s", wanted);
        return TN_E_STATE;
    }
    if (begin(&w) != TN_OK) return w.status;
    iterate(&w, w.sign * tn_item(running->loss), o->lr);
    w.scalar[PARTS] = n;
    copy(&w, D, VECTORS, true);
    const tn_shape scalars = tn_shape_get(part->state[SCALARS]);
    for (int k = 0; k < n; k++) {
        tn_tensor *scalar = tn_from_data(w.scalar, scalars, TN_F64);
        part[k].new_state[SCALARS] = tn_to(scalar, tn_device_of(part->p));
        part[k].new_p = tn_clone(part[k].p);
    }
    const tn_status status = w.status;
    w.status = TN_OK;
    copy(&w, START, PARAMETER, true); /* tn_optim_step writes, when all has been made */
    return status == TN_OK ? w.status : status;
}

static bool vectors_form(const tn_tensor *p, const double *number, tn_shape *shape, tn_dtype *dtype)
{
    *shape = TN_SHAPE(FIRST - D + 2 * (int64_t)number[HISTORY], tn_numel(p));
    if (*dtype != TN_F64) *dtype = TN_F32;
    return true;
}

static bool scalars_form(const tn_tensor *p, const double *number, tn_shape *shape, tn_dtype *dtype)
{
    (void)p;
    *shape = TN_SHAPE(RO + (int64_t)number[HISTORY]);
    *dtype = TN_F64;
    return true;
}

static const char *lbfgs_agrees(const double *number)
{
    const bool whole = number[MAX_ITER] == floor(number[MAX_ITER]) &&
                       number[MAX_EVAL] == floor(number[MAX_EVAL]) &&
                       number[HISTORY] == floor(number[HISTORY]);
    return whole ? NULL : "want whole max_iter, max_eval, history_size";
}

tn_optim *tn_lbfgs(const tn_list *parameters, tn_optim_options o)
{
    static const tn_optim_type type = {
        .name = "lbfgs",
        .function = "tn_lbfgs",
        .lr = 1,
        .number = { { "max_iter", 20, .least = 1, .below = 1e9 },
                    { "max_eval", .below = 1e9 },
                    { "tolerance_grad", .initial = 1e-7 },
                    { "tolerance_change", .initial = 1e-9 },
                    { "history_size", 100, .least = 1, .below = MOST_PAIRS + 1, .settled = true },
                    { "line_search", .on_off = true },
                    { "maximize", .on_off = true } },
        .state = { { .name = "vectors", .form = vectors_form },
                   { .name = "scalars", .form = scalars_form } },
        .agree = lbfgs_agrees,
        .update = lbfgs_update,
        .together = true,
        .closure = true,
    };
    return tn_optim_new(&type, parameters, o);
}

tn_tensor *tn_optim_step_with(tn_optim *opt, tn_closure closure, void *user)
{
    const stepping *outer = running;
    stepping step = { closure, user, tn_autocast(), NULL };
    if ((!opt || !closure) && tn_error_status() == TN_OK)
        tn_fail(TN_E_INVALID, "tn_optim_step_with: %s is NULL", opt ? "closure" : "opt");
    if (!opt || !closure || !(step.loss = evaluate(&step))) return NULL;
    running = &step;
    const tn_status status = tn_optim_step(opt);
    running = outer;
    return status == TN_OK ? step.loss : NULL;
}
