/*
 * attention.c - softmax(scale q k^T + mask) v, a block of 64 queries by at most 512 keys at a time.
 *
 * Forward, for each row: m the largest score so far, l = sum of exp(s - m), y = sum of exp(s - m)
 * v; a new block of keys scales l and y by exp(m_old - m_new). At the end y /= l and lse = m + log
 * l. Backward recomputes the probabilities from lse: p = exp(s - lse), and with delta_t = sum_d
 * dy_td y_td
 *     dv = p^T dy     ds = p (dy v^T - delta)     dq = scale ds k     dk = scale ds^T q
 * Blocks in the causal future are skipped. Scratch is bounded for each thread, whatever T and S
 * are. Source: Dao et al., FlashAttention (2022), algorithms 1 and 4.
 */
#include <string.h>

#include "tensor/cpu/real/dense.h"
#include "tensor/cpu/real/rows.h"

enum { QUERIES = 64, KEYS = 512 };

/* A matrix [rows, D] of one (batch, head). */
typedef struct matrix {
    REAL *p;
    int64_t ld;
} matrix;

typedef struct attention {
    const tni_attention *a;
    const tni_attention_grad *grad;
    int64_t heads, t, s, d, dv_size; /* H, T, S, D, Dv */
    int64_t blocks;                  /* of queries */
    int64_t keys;                    /* of a block */
    REAL *scratch;
    int64_t lane_size;
} attention;

static matrix matrix_of(const attention *p, const tni_array *x, int64_t item)
{
    int64_t offset = item / p->heads * x->stride[0] + item % p->heads * x->stride[1];
    /* BLAS wants ld >= columns even for one row */
    int64_t ld = x->size[2] <= 1 ? TNI_MAX(x->size[3], 1) : x->stride[2];
    return (matrix){ (REAL *)x->data + offset, ld };
}

static void plan(attention *p, const tni_attention *a, int64_t matrices)
{
    *p = (attention){
        .a = a, .heads = a->q.size[1], .t = a->q.size[2], .s = a->k.size[2], .d = a->q.size[3]
    };
    p->dv_size = a->v.size[3];
    p->blocks = (p->t + QUERIES - 1) / QUERIES;
    p->keys = TNI_MAX(TNI_MIN(p->s, (int64_t)KEYS), 1);
    p->lane_size = QUERIES * (matrices * p->keys + 2);
}

/* Keys that any query of [r, r + n) sees. */
static int64_t visible(const attention *p, int64_t r, int64_t n)
{
    return p->a->causal ? TNI_MIN(p->s, r + n) : p->s;
}

/* How many of n keys from s0 query t sees. */
static int64_t seen(const attention *p, int64_t t, int64_t s0, int64_t n)
{
    return p->a->causal ? TNI_MAX(0, TNI_MIN(n, t + 1 - s0)) : n;
}

/* Scores [rows, n] of queries r.. and keys s0.., scaled and masked. */
static void scores(const attention *p, int64_t item, int64_t r, int64_t rows, int64_t s0, int64_t n,
                   REAL *s)
{
    const tni_array *mask = &p->a->mask;
    matrix q = matrix_of(p, &p->a->q, item);
    matrix k = matrix_of(p, &p->a->k, item);
    GEMM1(false, true, rows, n, p->d, (REAL)p->a->scale, q.p + r * q.ld, q.ld, k.p + s0 * k.ld,
          k.ld, 0, s, p->keys);
    if (!mask->data) return;
    int64_t step = mask->stride[3];
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = item / p->heads * mask->stride[0] + item % p->heads * mask->stride[1] +
                     (r + i) * mask->stride[2] + s0 * step;
        REAL *row = s + i * p->keys;
        if (mask->dtype == TN_BOOL) {
            const uint8_t *blocked = (const uint8_t *)mask->data + at;
            for (int64_t j = 0; j < n; j++) row[j] = blocked[j * step] ? -REAL_INFINITY : row[j];
        } else {
            const REAL *add = (const REAL *)mask->data + at;
            for (int64_t j = 0; j < n; j++) row[j] += add[j * step];
        }
    }
}

/* Replaces a row of scores by exp(s - max); updates top and sum. Returns the factor for earlier
 * blocks. While every key so far is masked (top is -inf) nothing is subtracted: exp(-inf) is 0. */
static REAL soften(REAL *s, int64_t seen_keys, int64_t n, REAL *top, REAL *sum)
{
    REAL before = *top;
    REAL high = row_max(s, seen_keys);
    *top = high > before ? high : before;
    REAL base = *top == -REAL_INFINITY ? 0 : *top;
    REAL total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < seen_keys; j++) {
        REAL e = REAL_EXP(s[j] - base);
        s[j] = e;
        total += e;
    }
    for (int64_t j = seen_keys; j < n; j++) s[j] = 0;
    REAL shrink = before == -REAL_INFINITY ? 0 : REAL_EXP(before - base);
    *sum = *sum * shrink + total;
    return shrink;
}

static void scale_row(REAL *y, int64_t n, REAL factor)
{
    for (int64_t j = 0; j < n; j++) y[j] *= factor;
}

/* One block of queries. */
static void forward_block(const attention *p, int64_t item, int64_t r)
{
    REAL *s = p->scratch + tni_lane() * p->lane_size;
    REAL *top = s + QUERIES * p->keys;
    REAL *sum = top + QUERIES;
    matrix v = matrix_of(p, &p->a->v, item);
    matrix y = matrix_of(p, &p->a->y, item);
    REAL *lse = p->a->lse.data ? (REAL *)p->a->lse.data + item * p->t + r : NULL;
    int64_t rows = TNI_MIN(QUERIES, p->t - r);
    int64_t limit = visible(p, r, rows);
    for (int64_t i = 0; i < rows; i++) {
        top[i] = -REAL_INFINITY;
        sum[i] = 0;
    }
    for (int64_t s0 = 0; s0 < limit; s0 += p->keys) {
        int64_t n = TNI_MIN(p->keys, limit - s0);
        scores(p, item, r, rows, s0, n, s);
        for (int64_t i = 0; i < rows; i++) {
            REAL shrink = soften(s + i * p->keys, seen(p, r + i, s0, n), n, top + i, sum + i);
            if (s0 > 0) scale_row(y.p + (r + i) * y.ld, p->dv_size, shrink);
        }
        GEMM1(false, false, rows, p->dv_size, n, 1, s, p->keys, v.p + s0 * v.ld, v.ld, s0 > 0,
              y.p + r * y.ld, y.ld);
    }
    for (int64_t i = 0; i < rows; i++) {
        REAL *row = y.p + (r + i) * y.ld;
        if (limit == 0)
            memset(row, 0, (size_t)p->dv_size * sizeof(REAL)); /* an empty sum */
        else
            scale_row(row, p->dv_size, 1 / sum[i]);
        if (lse) lse[i] = top[i] + REAL_LOG(sum[i]);
    }
}

/* Items: B x H x blocks of queries; short (early) and long (late) blocks of a causal head
 * alternate, so equal shares of items mean equal work. */
static void forward(void *context, int64_t begin, int64_t end)
{
    const attention *p = context;
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i % p->blocks;
        b = b % 2 ? p->blocks - 1 - b / 2 : b / 2;
        forward_block(p, i / p->blocks, b * QUERIES);
    }
}

static size_t scratch_size(const attention *p, int lanes)
{
    return (size_t)lanes * (size_t)p->lane_size * sizeof(REAL);
}

static tn_status run(attention *p, int64_t items, int64_t grain, tni_chunk f)
{
    int lanes = tni_lanes(items, grain);
    if (items == 0) return TN_OK;
    p->scratch = tni_alloc(scratch_size(p, lanes));
    if (!p->scratch) return TN_E_NOMEM;
    tni_parallel_lanes(lanes, items, grain, f, p);
    tni_free(p->scratch, scratch_size(p, lanes));
    return TN_OK;
}

tn_status K(tni_attention)(const tni_attention *a)
{
    attention p;
    plan(&p, a, 1);
    int64_t matrices = a->q.size[0] * p.heads;
    double work = (double)TNI_MIN(QUERIES, p.t) * (double)p.s * (double)(p.d + p.dv_size);
    return run(&p, matrices * p.blocks, TNI_MAX(grain_of(work), matrices >= 16 ? p.blocks : 1),
               forward);
}

static void zero_rows(matrix m, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) memset(m.p + i * m.ld, 0, (size_t)columns * sizeof(REAL));
}

/* One row: scores become probabilities, dp becomes ds = p (dp - delta) scale. */
static void row_grad(REAL *restrict s, REAL *restrict dp, int64_t seen_keys, int64_t n, REAL lse,
                     REAL delta, REAL scale)
{
#pragma omp simd
    for (int64_t j = 0; j < seen_keys; j++) {
        REAL e = REAL_EXP(s[j] - lse);
        s[j] = e;
        dp[j] = e * (dp[j] - delta) * scale;
    }
    for (int64_t j = seen_keys; j < n; j++) {
        s[j] = 0;
        dp[j] = 0;
    }
}

static void row_dots(const attention *p, matrix x, matrix y, int64_t r, int64_t rows, REAL *out)
{
    for (int64_t i = 0; i < rows; i++) {
        const REAL *a = x.p + (r + i) * x.ld;
        const REAL *b = y.p + (r + i) * y.ld;
        REAL sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < p->dv_size; j++) sum += a[j] * b[j];
        out[i] = sum;
    }
}

/* Items: B x H. dk and dv collect over the blocks of queries, in order. */
static void backward(void *context, int64_t begin, int64_t end)
{
    const attention *p = context;
    REAL *s = p->scratch + tni_lane() * p->lane_size;
    REAL *dp = s + QUERIES * p->keys;
    REAL *delta = dp + QUERIES * p->keys;
    REAL scale = (REAL)p->a->scale;
    for (int64_t item = begin; item < end; item++) {
        matrix q = matrix_of(p, &p->a->q, item);
        matrix k = matrix_of(p, &p->a->k, item);
        matrix v = matrix_of(p, &p->a->v, item);
        matrix dy = matrix_of(p, &p->grad->dy, item);
        matrix dq = matrix_of(p, &p->grad->dq, item);
        matrix dk = matrix_of(p, &p->grad->dk, item);
        matrix dv = matrix_of(p, &p->grad->dv, item);
        const REAL *lse = (const REAL *)p->a->lse.data + item * p->t;
        zero_rows(dk, p->s, p->d);
        zero_rows(dv, p->s, p->dv_size);
        for (int64_t r = 0; r < p->t; r += QUERIES) {
            int64_t rows = TNI_MIN(QUERIES, p->t - r);
            int64_t limit = visible(p, r, rows);
            row_dots(p, dy, matrix_of(p, &p->a->y, item), r, rows, delta);
            if (limit == 0) zero_rows((matrix){ dq.p + r * dq.ld, dq.ld }, rows, p->d);
            for (int64_t s0 = 0; s0 < limit; s0 += p->keys) {
                int64_t n = TNI_MIN(p->keys, limit - s0);
                scores(p, item, r, rows, s0, n, s);
                GEMM1(false, true, rows, n, p->dv_size, 1, dy.p + r * dy.ld, dy.ld, v.p + s0 * v.ld,
                      v.ld, 0, dp, p->keys);
                for (int64_t i = 0; i < rows; i++) {
                    row_grad(s + i * p->keys, dp + i * p->keys, seen(p, r + i, s0, n), n,
                             lse[r + i], delta[i], scale);
                }
                GEMM1(true, false, n, p->dv_size, rows, 1, s, p->keys, dy.p + r * dy.ld, dy.ld, 1,
                      dv.p + s0 * dv.ld, dv.ld);
                GEMM1(true, false, n, p->d, rows, 1, dp, p->keys, q.p + r * q.ld, q.ld, 1,
                      dk.p + s0 * dk.ld, dk.ld);
                GEMM1(false, false, rows, p->d, n, 1, dp, p->keys, k.p + s0 * k.ld, k.ld, s0 > 0,
                      dq.p + r * dq.ld, dq.ld);
            }
        }
    }
}

tn_status K(tni_attention_grad)(const tni_attention_grad *a)
{
    attention p;
    plan(&p, &a->of, 2);
    p.grad = a;
    double work = (double)p.t * (double)p.s * (double)(3 * p.d + 2 * p.dv_size);
    return run(&p, a->of.q.size[0] * p.heads, grain_of(work), backward);
}
