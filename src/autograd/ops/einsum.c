/*
 * einsum.c - sums of products by subscripts, as "bij,bjk->bik".
 *
 * Axes are known by labels. In each operand a label that stands twice becomes the diagonal, and one
 * that nothing else needs is summed. Then two operands at a time become one, as a batch of matrix
 * products: labels of both that are still needed are the batch, labels of both that are not are
 * summed, the others are rows and columns. The next two are those with the smallest result, their
 * own sizes taken off.
 */
#include "autograd/ops/shared.h"

/* A-Z, a-z, and the axes of "...", counted from the last one. */
enum { LETTERS = 52, LABELS = LETTERS + TN_MAX_RANK, OPERANDS = 32, MOST = 3 * TN_MAX_RANK };

static const char f[] = "tn_einsum";

typedef struct operand {
    tn_tensor *t;
    int n, label[MOST]; /* of its axes */
} operand;

typedef struct einsum {
    const char *equation;
    int64_t size[LABELS];
    int times[LABELS]; /* a label stands in the operands */
    int uses[LABELS];  /* operands that have it, and the result */
    int dots;          /* axes of "...", at most */
    operand in[OPERANDS];
    int n;
} einsum;

/* ---- subscripts ------------------------------------------------------------------------------ */

static int letter_of(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1;
}

/* More than MOST are too many anyway. */
static void append(operand *o, int label)
{
    if (o->n < MOST) o->label[o->n++] = label;
}

static int place_of(const operand *o, int label)
{
    for (int i = 0; i < o->n; i++)
        if (o->label[i] == label) return i;
    return -1;
}

/* Reads up to a comma, an arrow or the end; "..." stands for so many axes that there are rank in
 * all, or, with rank -1, for e->dots. */
static tn_status read_labels(const einsum *e, const char **text, int rank, operand *o)
{
    const char *end = *text + strcspn(*text, ",-");
    int dots = rank < 0 ? e->dots : rank;
    for (const char *p = *text; rank >= 0 && p < end; p++) dots -= letter_of(*p) >= 0;
    for (bool seen = false; *text < end; ++*text) {
        if (letter_of(**text) >= 0) {
            append(o, letter_of(**text));
        } else if (!seen && !strncmp(*text, "...", 3)) {
            while (--dots >= 0) append(o, LETTERS + dots);
            *text += 2;
            seen = true;
        } else if (**text != ' ') {
            return tni_error(TN_E_INVALID,
                             "%s: \"%s\": '%c': want letters, commas, at most one -> and one ... "
                             "in each",
                             f, e->equation, **text);
        }
    }
    return TN_OK;
}

static tn_status read_operand(einsum *e, const char **text, tn_tensor *x)
{
    operand *o = &e->in[e->n];
    if (!tni_present(f, "x", x)) return tni_pending();
    TNI_TRY(read_labels(e, text, x->shape.rank, o));
    if (o->n != x->shape.rank)
        return tni_error(TN_E_SHAPE, "%s: \"%s\": x[%d] is %s: want %d axes", f, e->equation, e->n,
                         tni_text(x), o->n);
    for (int i = 0; i < o->n; i++) {
        const int l = o->label[i];
        const int64_t size = x->shape.size[i];
        if (e->times[l] && size != 1 && e->size[l] != 1 && size != e->size[l])
            return tni_error(TN_E_SHAPE,
                             "%s: \"%s\": axis %d of x[%d] %s: want %" PRId64 ", as before, or 1",
                             f, e->equation, i, e->n, tni_text(x), e->size[l]);
        if (!e->times[l]++ || size != 1) e->size[l] = size;
        e->uses[l] += place_of(o, l) == i;
        e->dots = TNI_MAX(e->dots, l - LETTERS + 1);
    }
    o->t = x;
    e->n++;
    return TN_OK;
}

/* What follows the operands. Without an arrow: "...", and what stands once, by alphabet. */
static tn_status read_result(einsum *e, const char *text, operand *result)
{
    const bool arrow = !strncmp(text, "->", 2);
    if (arrow) text += 2;
    if (arrow && read_labels(e, &text, -1, result) != TN_OK) return tni_pending();
    if (*text)
        return tni_error(
            TN_E_INVALID,
            "%s: \"%s\": \"%s\": want an operand for each tensor, then -> and the result's letters",
            f, e->equation, text);
    for (int l = e->dots - 1; !arrow && l >= 0; l--) append(result, LETTERS + l);
    for (int l = 0; !arrow && l < LETTERS; l++)
        if (e->times[l] == 1) append(result, l);
    for (int i = 0; i < result->n; i++) {
        const int l = result->label[i];
        if (!e->times[l] || place_of(result, l) != i || i == TN_MAX_RANK)
            return tni_error(TN_E_INVALID,
                             "%s: \"%s\": the result's letter %d: want one of the operands', once, "
                             "and at most %d axes",
                             f, e->equation, i + 1, TN_MAX_RANK);
        e->uses[l]++;
    }
    return TN_OK;
}

/* ---- one operand, and two -------------------------------------------------------------------- */

static operand joined(const operand *x, const operand *y, const operand *z)
{
    operand all = *x;
    for (int i = 0; i < y->n; i++) append(&all, y->label[i]);
    for (int i = 0; i < z->n; i++) append(&all, z->label[i]);
    return all;
}

static double size_of(const einsum *e, const operand *o)
{
    double size = 1;
    for (int i = 0; i < o->n; i++) size *= (double)e->size[o->label[i]];
    return size;
}

static tn_shape shape_of(const einsum *e, const operand *o)
{
    tn_shape shape = { .rank = o->n };
    for (int i = 0; i < o->n; i++) shape.size[i] = e->size[o->label[i]];
    return shape;
}

static void remove_label(operand *o, int at)
{
    memmove(&o->label[at], &o->label[at + 1], (size_t)(--o->n - at) * sizeof *o->label);
}

/* Sizes as elsewhere, each label once, and none that nothing else needs. */
static void reduce_operand(const einsum *e, operand *o)
{
    o->t = tn_expand(o->t, shape_of(e, o));
    for (int i = 1; i < o->n; i++) {
        const int l = o->label[i], first = place_of(o, l);
        if (first == i) continue;
        o->t = tn_diagonal(o->t, 0, first, i); /* is the last axis */
        remove_label(o, i);
        remove_label(o, first);
        append(o, l);
        i = 0;
    }
    for (int i = o->n - 1; i >= 0; i--) {
        if (e->uses[o->label[i]] > 1) continue;
        o->t = tn_sum(o->t, &i, 1, false);
        remove_label(o, i);
    }
}

/* o with its axes in the order of these labels. */
static tn_tensor *in_order(const operand *o, const operand *labels)
{
    int axes[TN_MAX_RANK];
    for (int i = 0; i < labels->n; i++) axes[i] = place_of(o, labels->label[i]);
    return tn_permute(o->t, axes, labels->n);
}

/* o as a tensor of three axes, of which each is a list of labels. */
static tn_tensor *in_three(const einsum *e, const operand *o, const operand *x, const operand *y,
                           const operand *z)
{
    const operand order = joined(x, y, z);
    return tn_reshape(in_order(o, &order), TN_SHAPE((int64_t)size_of(e, x), (int64_t)size_of(e, y),
                                                    (int64_t)size_of(e, z)));
}

/* What becomes of two operands' labels. */
typedef struct pair {
    operand batch, rows, sums, columns;
} pair;

static pair pair_of(const einsum *e, const operand *a, const operand *b)
{
    pair p = { 0 };
    for (int i = 0; i < a->n; i++) {
        const int l = a->label[i];
        append(place_of(b, l) < 0 ? &p.rows : e->uses[l] > 2 ? &p.batch : &p.sums, l);
    }
    for (int i = 0; i < b->n; i++)
        if (place_of(a, b->label[i]) < 0) append(&p.columns, b->label[i]);
    return p;
}

/* Makes one of a and b, in a. */
static tn_status contract(einsum *e, operand *a, const operand *b)
{
    const pair p = pair_of(e, a, b);
    operand y = joined(&p.batch, &p.rows, &p.columns);
    if (y.n > TN_MAX_RANK)
        return tni_error(TN_E_SHAPE, "%s: \"%s\": want at most %d axes in between", f, e->equation,
                         TN_MAX_RANK);
    tn_tensor *left = in_three(e, a, &p.batch, &p.rows, &p.sums);
    tn_tensor *right = in_three(e, b, &p.batch, &p.sums, &p.columns);
    if (p.sums.n == 0)
        y.t = tn_mul(left, right);
    else if (!left || tn_dtype_is_float(left->dtype))
        y.t = tn_matmul(left, right);
    else
        y.t = tn_to_dtype(
            tn_sum(tn_mul(tn_unsqueeze(left, 3), tn_unsqueeze(right, 1)), TN_AXES(2), false),
            left->dtype);
    y.t = tn_reshape(y.t, shape_of(e, &y));
    for (int i = 0; i < p.batch.n; i++) e->uses[p.batch.label[i]]--;
    *a = y;
    return y.t ? TN_OK : tni_pending();
}

/* What the result of two has more than they have. */
static double growth(const einsum *e, const operand *a, const operand *b)
{
    const pair p = pair_of(e, a, b);
    const operand y = joined(&p.batch, &p.rows, &p.columns);
    return size_of(e, &y) - size_of(e, a) - size_of(e, b);
}

static tn_status contract_smallest(einsum *e)
{
    operand *first = &e->in[0], *second = &e->in[1];
    for (int j = 2; j < e->n; j++)
        for (int i = 0; i < j; i++)
            if (growth(e, &e->in[i], &e->in[j]) < growth(e, first, second))
                first = &e->in[i], second = &e->in[j];
    const tn_status status = contract(e, first, second);
    *second = e->in[--e->n];
    return status;
}

static tn_tensor *result_of(einsum *e, int n, tn_tensor *const *x)
{
    operand result = { 0 };
    const char *text = e->equation;
    for (int i = 0; i < n; i++) {
        if (read_operand(e, &text, x[i]) != TN_OK) return NULL;
        text += *text == ',' && i < n - 1;
    }
    if (read_result(e, text, &result) != TN_OK) return NULL;
    for (int i = 0; i < n; i++) reduce_operand(e, &e->in[i]);
    while (e->n > 1)
        if (contract_smallest(e) != TN_OK) return NULL;
    return in_order(&e->in[0], &result);
}

tn_tensor *tn_einsum(const char *equation, int n, tn_tensor *const *x)
{
    einsum e = { .equation = equation };
    if (!equation || !x || n < 1 || n > OPERANDS)
        return tni_fail(TN_E_INVALID, "%s: %d tensors%s: want 1 to %d, and an equation", f, n,
                        equation && x ? "" : ", or NULL", OPERANDS);
    tn_scope scope = tn_scope_begin();
    return tni_scope_return(f, scope, result_of(&e, n, x));
}
