/*
 * attention.c - softmax(scale q k^T + mask) v, a block of 64 queries by at most 512 keys at a time.
 *
 * Forward, for each row: m the largest score so far, l = sum of exp(s - m), y = sum of exp(s - m)
 * v; a new block of keys scales l and y by exp(m_old - m_new). At the end y /= l, or 0 where no key
 * is seen. Backward recomputes the probabilities from m and l, p = exp(s - m) / l (m + log l would
 * lose log l beside a large m), and with delta_t = sum_d dy_td y_td
 *     dv = p^T dy     ds = p (dy v^T - delta)     dq = scale ds k     dk = scale ds^T q
 * Blocks in the causal future are skipped. Source: Dao et al., FlashAttention (2022), algorithms 1
 * and 4.
 *
 * Products are faster on rows without gaps, and a head's rows have some when heads lie side by
 * side. So blocks are copied, and a block of keys stays while the queries pass.
 *
 * bf16: q k^T and dy v^T are products of bf16 with sums in f32. The others have an operand that is
 * not rounded, p or ds, so they are products of f32. With AMX, where bf16 is multiplied several
 * times as fast, they are two products of bf16 each: p and ds are split into an upper half and the
 * rounded rest, 16 bits of precision in all. Results are rounded once, at their end.
 *
 * A key that a query does not see adds nothing, not even 0 times its NaN: where a mask may hide
 * keys and results are not finite, products are computed again without the terms whose factor is 0.
 */
#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/real/rows.h"

/* Queries and keys of a block; queries of an item of forward. */
enum { QUERIES = 64, KEYS = 512, GROUP = 4 * QUERIES };

/* A thread's scratch memory: scores and their gradients; rows without gaps; the same as REAL; sums;
 * some of them rounded; numbers per query. */
/* clang-format off */
enum part {
    SCORES, GRADS, Q_ROWS, K_ROWS, V_ROWS, Y_ROWS, DY_ROWS, Q_WIDE, K_WIDE, V_WIDE, Y_WIDE, DY_WIDE,
    Y_SUM, DQ_SUM, DK_SUM, DV_SUM, ROUNDED, TOP, TOTAL, SCORES_HALVES, GRADS_HALVES, PARTS
};
/* clang-format on */

typedef struct attention {
    const tni_attention *a;
    const tni_attention_grad *grad;
    bool narrow;                     /* q, k and v are bf16 */
    bool split;                      /* so are probabilities and their gradients, in halves */
    int64_t heads, t, s, d, dv_size; /* H, T, S, D, Dv */
    int64_t groups;                  /* of queries */
    int64_t keys;                    /* of a block */
    int64_t share;                   /* of one query: heads of an item, which read the same keys */
    size_t at[PARTS];
    tni_scratch scratch;
    atomic_bool undone; /* there was no product of bf16 */
} attention;

/* Keys [first, first + n) of a head. */
typedef struct block {
    int64_t item, first, n;
    const void *k, *v;
    const REAL *wide; /* forward: v; backward: k */
    bool careful;     /* factors of 0 are left out */
} block;

/* ---- scratch memory -------------------------------------------------------------------------- */

static void *part(const attention *p, enum part which)
{
    return tni_scratch_own(&p->scratch, p->at[which]);
}

static void reserve(attention *p, enum part which, int64_t n, size_t item)
{
    p->at[which] = tni_scratch_add(&p->scratch, (size_t)n * item);
}

static bool gapless(const tni_array *x)
{
    return x->size[2] <= 1 || x->stride[2] == x->size[3];
}

/* Sums for rows of x are kept in x itself, unless it is bf16 or has gaps. */
static bool summed_apart(const tni_array *x)
{
    return x->dtype == TN_BF16 || !gapless(x);
}

/* Room for n rows of x without gaps, and as REAL if they are read so. */
static void reserve_rows(attention *p, enum part which, enum part wide, bool read, int64_t n,
                         const tni_array *x)
{
    reserve(p, which, gapless(x) ? 0 : n * x->size[3], tn_dtype_size(x->dtype));
    reserve(p, wide, p->narrow && read ? n * x->size[3] : 0, sizeof(REAL));
}

static void reserve_sums(attention *p, enum part which, const tni_array *x, int64_t n)
{
    reserve(p, which, summed_apart(x) ? n * x->size[3] : 0, sizeof(REAL));
}

static void plan(attention *p, const tni_attention *a, const tni_attention_grad *grad)
{
    *p = (attention){ .a = a,
                      .scratch.blas = true,
                      .grad = grad,
                      .narrow = a->q.dtype == TN_BF16,
                      .split = a->q.dtype == TN_BF16 && tni_has_amx(),
                      .heads = a->q.size[1],
                      .t = a->q.size[2],
                      .s = a->k.size[2],
                      .d = a->q.size[3],
                      .dv_size = a->v.size[3] };
    p->groups = (p->t + GROUP - 1) / GROUP;
    p->keys = TNI_MIN(p->s, (int64_t)KEYS);
    reserve(p, SCORES, QUERIES * p->keys, sizeof(REAL));
    reserve(p, SCORES_HALVES, p->split ? 2 * QUERIES * p->keys : 0, sizeof(uint16_t));
    reserve(p, ROUNDED, p->narrow ? QUERIES * TNI_MAX(p->d, p->dv_size) : 0, sizeof(uint16_t));
    reserve_rows(p, Q_ROWS, Q_WIDE, grad && !p->split, QUERIES, &a->q);
    reserve_rows(p, K_ROWS, K_WIDE, grad && !p->split, p->keys, &a->k);
    reserve_rows(p, V_ROWS, V_WIDE, !grad && !p->split, p->keys, &a->v);
}

/* ---- rows of a head -------------------------------------------------------------------------- */

/* Row r of the head that an item reads: x may have fewer than q, each for as many in a row. */
static char *row_of(const attention *p, const tni_array *x, int64_t item, int64_t r)
{
    int64_t head = item % p->heads * x->size[1] / p->heads;
    int64_t at = item / p->heads * x->stride[0] + head * x->stride[1] + r * x->stride[2];
    return (char *)x->data + at * (int64_t)tn_dtype_size(x->dtype);
}

typedef uint16_t __attribute__((may_alias)) unit; /* half of an f32, too */

/* Rows of n units: too short for calls of memcpy. */
static void copy_rows(unit *to, int64_t to_step, const unit *from, int64_t from_step, int64_t rows,
                      int64_t n)
{
    for (int64_t i = 0; i < rows; i++) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) to[i * to_step + j] = from[i * from_step + j];
    }
}

/* Rows [r, r + n) without gaps: where they are, or copied. */
static const void *rows_of(const attention *p, const tni_array *x, int64_t item, int64_t r,
                           int64_t n, enum part to)
{
    int64_t units = (int64_t)tn_dtype_size(x->dtype) / 2, row = x->size[3] * units;
    void *from = row_of(p, x, item, r);
    if (gapless(x)) return from;
    copy_rows(part(p, to), row, from, x->stride[2] * units, n, row);
    return part(p, to);
}

static const REAL *widened(const attention *p, const void *x, int64_t n, enum part to)
{
    return tni_get(x, p->a->q.dtype, 0, n, part(p, to));
}

/* What p or ds are multiplied by, as REAL; NULL: they are split, and it stays as it is. */
static const REAL *factor(const attention *p, const void *x, int64_t n, enum part to)
{
    return p->split ? NULL : widened(p, x, n, to);
}

/* Where rows of x from r on are summed up. */
static REAL *sums_of(const attention *p, const tni_array *x, int64_t item, int64_t r, enum part to)
{
    return summed_apart(x) ? part(p, to) : (void *)row_of(p, x, item, r);
}

/* Rows [r, r + n) of x from their sums. */
static void write_rows(const attention *p, const tni_array *x, int64_t item, int64_t r, int64_t n,
                       const REAL *sums)
{
    int64_t units = (int64_t)tn_dtype_size(x->dtype) / 2, row = x->size[3];
    for (int64_t i = 0; i < n && summed_apart(x); i += QUERIES) {
        int64_t rows = TNI_MIN(QUERIES, n - i);
        const void *from = sums + i * row;
        if (p->narrow) {
            TNI_STORE(TN_F32, rows * row, part(p, ROUNDED), TN_BF16, 1, from);
            from = part(p, ROUNDED);
        }
        copy_rows((void *)row_of(p, x, item, r + i), x->stride[2] * units, from, row * units, rows,
                  row * units);
    }
}

static block block_of(const attention *p, int64_t item, int64_t first, bool careful)
{
    int64_t n = TNI_MIN(p->keys, p->s - first);
    block b = { .item = item, .first = first, .n = n, .careful = careful };
    b.k = rows_of(p, &p->a->k, item, first, n, K_ROWS);
    b.v = rows_of(p, &p->a->v, item, first, n, V_ROWS);
    b.wide = p->grad ? factor(p, b.k, n * p->d, K_WIDE) : factor(p, b.v, n * p->dv_size, V_WIDE);
    return b;
}

/* ---- scores ---------------------------------------------------------------------------------- */

static bool undone(attention *p)
{
    return atomic_load_explicit(&p->undone, memory_order_relaxed);
}

/* C [m, n] (+)= op(A) op(B), all without gaps; A and B are of dtype in, C is of REAL. */
static void multiply(attention *p, tn_dtype in, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                     const void *a, const void *b, bool accumulate, REAL *c)
{
    tni_product product = { .m = m,
                            .n = n,
                            .k = k,
                            .lda = TNI_MAX(ta ? m : k, 1),
                            .ldb = TNI_MAX(tb ? k : n, 1),
                            .ldc = TNI_MAX(n, 1),
                            .in = in,
                            .out = REAL_DTYPE,
                            .ta = ta,
                            .tb = tb,
                            .accumulate = accumulate,
                            .a = a,
                            .b = b,
                            .c = c };
    if (!tni_product_one(&product)) atomic_store_explicit(&p->undone, true, memory_order_relaxed);
}

/* x as the sum of two bf16, if it is split: n upper halves, then n of what is left, rounded. */
static const uint16_t *halves(const attention *p, const REAL *restrict x, int64_t n, enum part to)
{
    if (!p->split) return NULL;
    uint16_t *restrict high = part(p, to), *restrict low = high + n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = tn_bits_f32((float)x[i]);
        float rest = (float)x[i] - tn_from_bits_f32(bits & 0xffff0000u);
        high[i] = (uint16_t)(bits >> 16);
        low[i] = (uint16_t)((tn_bits_f32(rest) + 0x8000u) >> 16);
    }
    return high;
}

static void fill(REAL *x, int64_t begin, int64_t end, REAL value)
{
    for (int64_t j = begin; j < end; j++) x[j] = value;
}

/* C [m, n] (+)= op(A) B, leaving out what is multiplied by 0. */
static void multiply_some(const attention *p, bool ta, int64_t m, int64_t n, int64_t k,
                          const REAL *a, const void *b, bool accumulate, REAL *c)
{
    for (int64_t i = 0; i < m; i++, c += n) {
        if (!accumulate) fill(c, 0, n, 0);
        for (int64_t l = 0; l < k; l++) {
            REAL factor = a[ta ? l * m + i : i * k + l];
            for (int64_t j = l * n; factor != 0 && j < (l + 1) * n; j++)
                c[j - l * n] += factor * (p->narrow ? (REAL)tn_from_bf16(((const uint16_t *)b)[j])
                                                    : ((const REAL *)b)[j]);
        }
    }
}

/* C [m, n] (+)= op(A) B, A of REAL or in halves, B as it is or widened. */
static void multiply_by(attention *p, bool careful, bool ta, int64_t m, int64_t n, int64_t k,
                        const REAL *a, const uint16_t *half, const void *b, const REAL *wide,
                        bool accumulate, REAL *c)
{
    if (careful) {
        multiply_some(p, ta, m, n, k, a, b, accumulate, c);
        return;
    }
    multiply(p, half ? TN_BF16 : REAL_DTYPE, ta, false, m, n, k, half ? (const void *)half : a,
             half ? b : wide, accumulate, c);
    if (half) multiply(p, TN_BF16, ta, false, m, n, k, half + m * k, b, true, c);
}

/* How many keys of the block any query of [r, r + rows) sees. */
static int64_t visible(const attention *p, const block *b, int64_t r, int64_t rows)
{
    return p->a->causal ? TNI_MAX(0, TNI_MIN(b->n, r + rows - b->first)) : b->n;
}

/* Scales and masks n scores of query t. */
static void mask_row(const attention *p, const block *b, int64_t t, int64_t n, REAL *s)
{
    const tni_array *mask = &p->a->mask;
    REAL scale = (REAL)p->a->scale;
    int64_t step = mask->stride[3];
    int64_t at = b->item / p->heads * mask->stride[0] + b->item % p->heads * mask->stride[1] +
                 t * mask->stride[2] + b->first * step;
    for (int64_t j = 0; j < n; j++) s[j] *= scale;
    if (!mask->data) return;
    if (mask->dtype == TN_BOOL) {
        const uint8_t *blocked = (const uint8_t *)mask->data + at;
        for (int64_t j = 0; j < n; j++) s[j] = blocked[j * step] ? -REAL_INFINITY : s[j];
    } else {
        const REAL *add = (const REAL *)mask->data + at;
        for (int64_t j = 0; j < n; j++)
            s[j] = add[j * step] == -REAL_INFINITY ? -REAL_INFINITY : s[j] + add[j * step];
    }
}

/* Scores [rows, n] of queries r.. and the block's first n keys, scaled and masked where seen. */
static REAL *scores(attention *p, const block *b, const void *q, int64_t r, int64_t rows, int64_t n)
{
    REAL *s = part(p, SCORES);
    multiply(p, p->a->q.dtype, false, true, rows, n, p->d, q, b->k, false, s);
    for (int64_t i = 0; i < rows; i++) mask_row(p, b, r + i, visible(p, b, r + i, 1), s + i * n);
    return s;
}

/* Fills the last vector of the seen scores with -inf, whose exp is 0, so that the loop over them
 * ends with a whole vector in most rows. Returns where, at most n. */
static int64_t pad(REAL *s, int64_t seen, int64_t n)
{
    enum { L = 64 / sizeof(REAL) };
    int64_t end = TNI_MIN((seen + L - 1) / L * L, n);
    for (int64_t j = seen; j < end; j++) s[j] = -REAL_INFINITY;
    return end;
}

static void scale_row(REAL *x, int64_t n, REAL factor)
{
    for (int64_t j = 0; j < n; j++) x[j] *= factor;
}

/* Whether some of n results are NaN or infinite, perhaps only by products with unseen keys. */
static bool spoilt(const attention *p, const REAL *x, int64_t n)
{
    REAL sum = 0;
    if (!p->a->causal && !p->a->mask.data) return false;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) sum += x[j] * 0;
    return sum != 0;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Replaces a row of scores by exp(s - max); updates top and total. Returns the factor for earlier
 * blocks. While every key so far is masked (top is -inf) nothing is subtracted: exp(-inf) is 0. */
static REAL soften(REAL *s, int64_t seen, int64_t n, REAL *top, REAL *total)
{
    REAL before = *top;
    REAL high = row_max(s, seen);
    *top = high > before ? high : before;
    REAL base = *top == -REAL_INFINITY ? 0 : *top;
    REAL sum = 0;
    int64_t end = pad(s, seen, n);
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < end; j++) {
        REAL e = REAL_EXP(s[j] - base);
        s[j] = e;
        sum += e;
    }
    fill(s, seen, n, 0);
    REAL shrink = before == -REAL_INFINITY ? 0 : REAL_EXP(before - base);
    *total = *total * shrink + sum;
    return shrink;
}

/* Adds what queries r.. get from the block's keys to y, their sums. */
static void forward_block(attention *p, const block *b, int64_t r, int64_t rows, REAL *y, REAL *top,
                          REAL *total)
{
    int64_t n = visible(p, b, r, rows);
    if (n == 0) return;
    REAL *s = scores(p, b, rows_of(p, &p->a->q, b->item, r, rows, Q_ROWS), r, rows, n);
    for (int64_t i = 0; i < rows; i++) {
        REAL shrink = soften(s + i * n, visible(p, b, r + i, 1), n, top + i, total + i);
        if (b->first > 0) scale_row(y + i * p->dv_size, p->dv_size, shrink);
    }
    const uint16_t *half = halves(p, s, rows * n, SCORES_HALVES);
    multiply_by(p, b->careful, false, rows, p->dv_size, n, s, half, b->v, b->wide, b->first > 0, y);
}

/* Sums of queries [begin, end) of a head. */
static void forward_sums(attention *p, int64_t item, int64_t begin, int64_t end, bool careful,
                         REAL *y)
{
    REAL *top = part(p, TOP), *total = part(p, TOTAL);
    fill(top, 0, end - begin, -REAL_INFINITY);
    fill(total, 0, end - begin, 0);
    for (int64_t first = 0; first < (p->a->causal ? TNI_MIN(p->s, end) : p->s); first += p->keys) {
        block b = block_of(p, item, first, careful);
        for (int64_t r = begin; r < end; r += QUERIES)
            forward_block(p, &b, r, TNI_MIN(QUERIES, end - r), y + (r - begin) * p->dv_size,
                          top + (r - begin), total + (r - begin));
    }
}

/* Divides sums by their totals, n queries from number `first` of all heads' on, and keeps these. */
static void divide_sums(const attention *p, int64_t first, int64_t n, REAL *y)
{
    const REAL *top = part(p, TOP), *total = part(p, TOTAL);
    for (int64_t i = 0; i < n; i++) {
        REAL *row = y + i * p->dv_size, share = total[i] == 0 ? 0 : 1 / total[i];
        if (total[i] == 0)
            fill(row, 0, p->dv_size, 0); /* no key is seen: an empty sum */
        else
            scale_row(row, p->dv_size, share);
        if (!p->a->top.data) continue;
        ((REAL *)p->a->top.data)[first + i] = top[i] == -REAL_INFINITY ? 0 : top[i];
        ((REAL *)p->a->share.data)[first + i] = share;
    }
}

static void forward_group(attention *p, int64_t item, int64_t begin, int64_t end)
{
    if (undone(p)) return;
    REAL *y = sums_of(p, &p->a->y, item, begin, Y_SUM);
    forward_sums(p, item, begin, end, false, y);
    if (p->s > 0 && spoilt(p, y, (end - begin) * p->dv_size))
        forward_sums(p, item, begin, end, true, y);
    divide_sums(p, item * p->t + begin, end - begin, y);
    write_rows(p, &p->a->y, item, begin, end - begin, y);
}

/* Items: B x H x groups of queries; short (early) and long (late) groups of a causal head
 * alternate, so equal shares of items mean equal work. */
static void forward(void *context, int64_t begin, int64_t end)
{
    attention *p = context;
    for (int64_t i = begin; i < end; i++) {
        int64_t g = i % p->groups;
        g = g % 2 ? p->groups - 1 - g / 2 : g / 2;
        forward_group(p, i / p->groups, g * GROUP, TNI_MIN((g + 1) * GROUP, p->t));
    }
}

static tn_status run_forward(attention *p, const tni_attention *a)
{
    plan(p, a, NULL);
    reserve_sums(p, Y_SUM, &a->y, GROUP);
    reserve(p, TOP, GROUP, sizeof(REAL));
    reserve(p, TOTAL, GROUP, sizeof(REAL));
    double work = (double)TNI_MIN(GROUP, p->t) * (double)p->s * (double)(p->d + p->dv_size);
    int64_t items = a->q.size[0] * p->heads * p->groups;
    return tni_parallel_scratch(&p->scratch, items, tni_grain_of(work), forward, p);
}

/* ---- one query: a language model's step ------------------------------------------------------ */

/* Such a step takes as long as reading keys and values. So they are read where they lie, once for
 * all heads of q that share them, and nothing is copied. */

/* Values of so many keys; fetched so many keys ahead. */
enum { AT_ONCE = 8, FETCHED = 32 };

/* y += the values of n keys, rows step apart, times their factors. */
TNI_INLINE void add_values(REAL *restrict y, const REAL *factor, const REAL *v, int64_t step,
                           int64_t size, int n)
{
#pragma omp simd
    for (int64_t j = 0; j < size; j++) {
        REAL sum = y[j];
        for (int i = 0; i < n; i++) sum += factor[i] * v[i * step + j];
        y[j] = sum;
    }
}

/* Rows at `from`, `apart` bytes from one to the next, which `ahead` bytes further are fetched into
 * the L2 cache; as REAL, and how far apart these are. */
static const REAL *values_of(const attention *p, const char *from, int64_t apart, int n,
                             int64_t ahead, int64_t *step)
{
    const int64_t size = p->dv_size, bytes = size * (int64_t)tn_dtype_size(p->a->v.dtype);
    REAL *room = part(p, V_WIDE);
    for (int i = 0; ahead && i < n; i++)
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(from + i * apart + ahead + at, 0, 2);
    *step = p->narrow ? size : apart / (int64_t)sizeof(REAL);
    if (!p->narrow) return (const REAL *)(const void *)from;
    if (apart == bytes) return tni_get(from, TN_BF16, 0, n * size, room);
    for (int i = 0; i < n; i++) tni_get(from + i * apart, TN_BF16, 0, size, room + i * size);
    return room;
}

/* Adds what the block's keys give to y; s: the heads' probabilities of them. */
static void add_block(const attention *p, const block *b, const REAL *s, REAL *y)
{
    const int64_t size = p->dv_size;
    const int64_t apart = p->a->v.stride[2] * (int64_t)tn_dtype_size(p->a->v.dtype);
    const char *from = row_of(p, &p->a->v, b->item, b->first);
    for (int64_t l = 0, n, step; l < b->n; l += n, from += n * apart) {
        n = b->careful || b->n - l < AT_ONCE ? 1 : AT_ONCE;
        const int64_t ahead = b->first + l + n + FETCHED <= p->s ? FETCHED * apart : 0;
        const REAL *v = values_of(p, from, apart, (int)n, ahead, &step);
        for (int64_t r = 0; r < p->share; r++) {
            const REAL *factor = s + r * b->n + l;
            if (n == AT_ONCE)
                add_values(y + r * size, factor, v, step, size, AT_ONCE);
            else if (!b->careful || *factor != 0)
                add_values(y + r * size, factor, v, step, size, 1);
        }
    }
}

/* Scores [share, n] of the heads' queries, without gaps at q, and the block's keys. */
static REAL *head_scores(attention *p, const block *b, const void *q)
{
    const tni_array *k = &p->a->k;
    REAL *s = part(p, SCORES);
    tni_product product = { .m = p->share,
                            .n = b->n,
                            .k = p->d,
                            .lda = p->d,
                            .ldb = b->n > 1 ? k->stride[2] : p->d,
                            .ldc = b->n,
                            .in = k->dtype,
                            .out = REAL_DTYPE,
                            .tb = true,
                            .a = q,
                            .b = row_of(p, k, b->item, b->first),
                            .c = s };
    bool few = REAL_DTYPE == TN_F32 && tni_has_tiles() && tni_few_product(&product);
    if (!few && !tni_product_one(&product))
        atomic_store_explicit(&p->undone, true, memory_order_relaxed);
    return s;
}

/* Sums of the heads from number `item` on. */
static void heads_sums(attention *p, int64_t item, bool careful, const void *q, REAL *y)
{
    REAL *top = part(p, TOP), *total = part(p, TOTAL);
    const int64_t seen = p->a->causal ? 1 : p->s;
    fill(top, 0, p->share, -REAL_INFINITY);
    fill(total, 0, p->share, 0);
    fill(y, 0, p->share * p->dv_size, 0);
    for (int64_t first = 0; first < seen; first += p->keys) {
        block b = { .item = item, .first = first, .n = TNI_MIN(p->keys, seen - first) };
        b.careful = careful;
        REAL *s = head_scores(p, &b, q);
        for (int64_t r = 0; r < p->share; r++, b.item++) {
            mask_row(p, &b, 0, b.n, s + r * b.n);
            REAL shrink = soften(s + r * b.n, b.n, b.n, top + r, total + r);
            if (first > 0) scale_row(y + r * p->dv_size, p->dv_size, shrink);
        }
        b.item = item;
        add_block(p, &b, s, y);
    }
}

/* Items: shares of heads. */
static void one_query(void *context, int64_t begin, int64_t end)
{
    attention *p = context;
    const tni_array *x = &p->a->q;
    const int64_t bytes = p->d * (int64_t)tn_dtype_size(x->dtype), size = p->dv_size;
    for (int64_t i = begin; i < end && !undone(p); i++) {
        const int64_t item = i * p->share;
        char *q = part(p, Q_ROWS);
        REAL *y = part(p, Y_SUM);
        for (int64_t r = 0; r < p->share; r++)
            memcpy(q + r * bytes, row_of(p, x, item + r, 0), (size_t)bytes);
        heads_sums(p, item, false, q, y);
        if (spoilt(p, y, p->share * size)) heads_sums(p, item, true, q, y);
        divide_sums(p, item, p->share, y);
        for (int64_t r = 0; r < p->share; r++) {
            void *to = row_of(p, &p->a->y, item + r, 0);
            if (p->narrow)
                tni_put(to, TN_BF16, 0, size, y + r * size);
            else
                memcpy(to, y + r * size, (size_t)size * sizeof(REAL));
        }
    }
}

static tn_status run_one_query(attention *p, const tni_attention *a)
{
    const int64_t readers = a->q.size[1] / a->k.size[1];
    plan(p, a, NULL);
    /* of few heads of keys each of q's is an item: there would be too few for the threads */
    p->share = a->q.size[0] * a->k.size[1] >= 4 ? readers : 1;
    p->scratch.each = 0;
    reserve(p, SCORES, p->share * p->keys, sizeof(REAL));
    reserve(p, Q_ROWS, p->share * p->d, tn_dtype_size(a->q.dtype));
    reserve(p, V_WIDE, p->narrow ? AT_ONCE * p->dv_size : 0, sizeof(REAL));
    reserve(p, Y_SUM, p->share * p->dv_size, sizeof(REAL));
    reserve(p, TOP, p->share, sizeof(REAL));
    reserve(p, TOTAL, p->share, sizeof(REAL));
    double work = (double)(p->share * p->s) * (double)(p->d + p->dv_size);
    return tni_parallel_scratch(&p->scratch, a->q.size[0] * p->heads / p->share, tni_grain_of(work),
                                one_query, p);
}

/* Not of nothing: then there is no product. */
static bool is_one_query(const tni_attention *a)
{
    return a->q.size[2] == 1 && a->k.size[2] > 0 && a->k.size[1] > 0 && a->q.size[3] > 0;
}

tn_status K(tni_attention)(const tni_attention *a)
{
    attention p;
    return is_one_query(a) ? run_one_query(&p, a) : run_forward(&p, a);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* One row: scores become probabilities, ds (dp) becomes p (dp - delta) scale; both 0 where the
 * query does not see the key. */
static void row_grad(REAL *restrict s, REAL *restrict ds, int64_t seen, int64_t n, REAL top,
                     REAL share, REAL delta, REAL scale, bool masked)
{
    REAL unseen = masked ? -REAL_INFINITY : (REAL)NAN; /* equal to no score */
    int64_t end = pad(s, seen, n);
#pragma omp simd
    for (int64_t j = 0; j < end; j++) {
        REAL e = REAL_EXP(s[j] - top) * share, d = e * (ds[j] - delta) * scale;
        ds[j] = s[j] == unseen ? 0 : d;
        s[j] = e;
    }
    fill(s, seen, n, 0);
    fill(ds, seen, n, 0);
}

static REAL dot(const REAL *x, const REAL *y, int64_t n)
{
    REAL sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) sum += x[j] * y[j];
    return sum;
}

/* Adds what queries r.. and the block's keys give to the sums for dq (of these queries), dk and dv
 * (of these keys). */
static void backward_block(attention *p, const block *b, int64_t r, int64_t rows, REAL *dq,
                           REAL *dk, REAL *dv)
{
    int64_t n = visible(p, b, r, rows), size = p->dv_size;
    const REAL *top = (const REAL *)p->a->top.data + b->item * p->t + r;
    const REAL *share = (const REAL *)p->a->share.data + b->item * p->t + r;
    if (n == 0) return;
    const void *q = rows_of(p, &p->a->q, b->item, r, rows, Q_ROWS);
    const void *y = rows_of(p, &p->a->y, b->item, r, rows, Y_ROWS);
    const void *dy = rows_of(p, &p->grad->dy, b->item, r, rows, DY_ROWS);
    const REAL *wide_q = factor(p, q, rows * p->d, Q_WIDE);
    const REAL *wide_y = widened(p, y, rows * size, Y_WIDE);
    const REAL *wide_dy = widened(p, dy, rows * size, DY_WIDE);
    REAL *s = scores(p, b, q, r, rows, n), *ds = part(p, GRADS);
    multiply(p, p->a->q.dtype, false, true, rows, n, size, dy, b->v, false, ds);
    for (int64_t i = 0; i < rows; i++)
        row_grad(s + i * n, ds + i * n, visible(p, b, r + i, 1), n, top[i], share[i],
                 dot(wide_dy + i * size, wide_y + i * size, size), (REAL)p->a->scale,
                 p->a->mask.data != NULL);
    const uint16_t *half = halves(p, s, rows * n, SCORES_HALVES);
    const uint16_t *half_ds = halves(p, ds, rows * n, GRADS_HALVES);
    bool careful = b->careful;
    multiply_by(p, careful, true, n, size, rows, s, half, dy, wide_dy, true, dv);
    multiply_by(p, careful, true, n, p->d, rows, ds, half_ds, q, wide_q, true, dk);
    multiply_by(p, careful, false, rows, p->d, n, ds, half_ds, b->k, b->wide, true, dq);
}

/* One head. Returns whether dq is to be computed again with care. */
static bool backward_head(attention *p, int64_t item, bool careful)
{
    const tni_attention_grad *g = p->grad;
    REAL *dq = sums_of(p, &g->dq, item, 0, DQ_SUM);
    fill(dq, 0, p->t * p->d, 0);
    for (int64_t first = 0; first < p->s; first += p->keys) {
        block b = block_of(p, item, first, careful);
        REAL *dk = sums_of(p, &g->dk, item, first, DK_SUM);
        REAL *dv = sums_of(p, &g->dv, item, first, DV_SUM);
        fill(dk, 0, b.n * p->d, 0);
        fill(dv, 0, b.n * p->dv_size, 0);
        for (int64_t r = 0; r < p->t; r += QUERIES)
            backward_block(p, &b, r, TNI_MIN(QUERIES, p->t - r), dq + r * p->d, dk, dv);
        write_rows(p, &g->dk, item, first, b.n, dk);
        write_rows(p, &g->dv, item, first, b.n, dv);
    }
    bool again = !careful && spoilt(p, dq, p->t * p->d);
    write_rows(p, &g->dq, item, 0, p->t, dq);
    return again;
}

/* Items: B x H. */
static void backward(void *context, int64_t begin, int64_t end)
{
    attention *p = context;
    for (int64_t item = begin; item < end && !undone(p); item++)
        if (backward_head(p, item, false)) backward_head(p, item, true);
}

static tn_status run_backward(attention *p, const tni_attention_grad *a)
{
    plan(p, &a->of, a);
    reserve(p, GRADS, QUERIES * p->keys, sizeof(REAL));
    reserve(p, GRADS_HALVES, p->split ? 2 * QUERIES * p->keys : 0, sizeof(uint16_t));
    reserve_rows(p, Y_ROWS, Y_WIDE, true, QUERIES, &a->of.y);
    reserve_rows(p, DY_ROWS, DY_WIDE, true, QUERIES, &a->dy);
    reserve_sums(p, DQ_SUM, &a->dq, p->t);
    reserve_sums(p, DK_SUM, &a->dk, p->keys);
    reserve_sums(p, DV_SUM, &a->dv, p->keys);
    double work = (double)p->t * (double)p->s * (double)(3 * p->d + 2 * p->dv_size);
    int64_t items = a->of.q.size[0] * p->heads;
    return tni_parallel_scratch(&p->scratch, items, tni_grain_of(work), backward, p);
}

tn_status K(tni_attention_grad)(const tni_attention_grad *a)
{
    attention p;
    return run_backward(&p, a);
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

#ifdef TNI_REAL_IS_f32
/* Not for small ones, or few queries. */
static bool worth_it(const tni_attention *a)
{
    double work = (double)a->q.size[2] * (double)a->k.size[2] * (double)a->q.size[3];
    bool added = a->mask.data && a->mask.dtype != TN_BOOL;
    return a->q.dtype == TN_BF16 && !added && a->q.size[2] >= 16 && work >= 0x1p15 &&
           a->v.size[3] > 0 && tni_product_bf16();
}

bool K(tni_attention_bf16)(const tni_attention *a, tn_status *status)
{
    attention p;
    const bool added = a->mask.data && a->mask.dtype != TN_BOOL;
    const bool one = a->q.dtype == TN_BF16 && is_one_query(a) && tni_has_tiles() && !added;
    if (!one && !worth_it(a)) return false;
    *status = one ? run_one_query(&p, a) : run_forward(&p, a);
    return !p.undone;
}

bool K(tni_attention_grad_bf16)(const tni_attention_grad *a, tn_status *status)
{
    attention p;
    if (!worth_it(&a->of)) return false;
    *status = run_backward(&p, a);
    return !p.undone;
}
#endif
