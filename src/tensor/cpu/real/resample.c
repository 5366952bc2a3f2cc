/*
 * resample.c - planes whose rows and columns are sums of others by taps (tni_resample):
 * interpolation, padding by x's own elements, fold, and the gradients of these.
 *
 * A piece is some rows by some columns of y. A row of x is first brought to y's columns, where a
 * ring keeps the last ones: neighbouring rows of y share theirs. Then y's row sums them.
 */
#include "tensor/cpu/real/rows.h"

enum { RING = 16, WIDTH = 256, PIECE = 16384 };

/* Sums of k taps each; k is a constant where it is small. */
TNI_INLINE void sums(int64_t k, int64_t n, REAL *restrict y, const REAL *restrict x,
                     const int32_t *restrict at, const REAL *restrict weight)
{
    for (int64_t j = 0; j < n; j++) {
        REAL sum = k ? weight[j * k] * x[at[j * k]] : 0;
        for (int64_t t = 1; t < k; t++) sum += weight[j * k + t] * x[at[j * k + t]];
        y[j] = sum;
    }
}

/* Columns [begin, end) of y from one row of x. */
static void across(const tni_taps *c, int64_t begin, int64_t end, REAL *y, const REAL *x)
{
    for (int64_t j = begin, n; j < end; j += n, y += n) {
        const int32_t *at = c->at + c->first[j];
        const REAL *weight = (const REAL *)c->weight + c->first[j];
        int64_t k = c->first[j + 1] - c->first[j];
        n = TNI_MIN(c->same[j], end - j);
        switch (k) {
        case 1: sums(1, n, y, x, at, weight); break;
        case 2: sums(2, n, y, x, at, weight); break;
        case 3: sums(3, n, y, x, at, weight); break;
        case 4: sums(4, n, y, x, at, weight); break;
        default: sums(k, n, y, x, at, weight);
        }
    }
}

/* Rows [top, bottom) and columns [left, right) of a plane. */
static void piece(const tni_resample *a, REAL *y, const REAL *x, int64_t top, int64_t bottom,
                  int64_t left, int64_t right)
{
    REAL ring[RING][WIDTH];
    int64_t held[RING], n = right - left, next = 0;
    const tni_taps *rows = &a->rows;
    for (int r = 0; r < RING; r++) held[r] = -1;
    for (int64_t i = top; i < bottom; i++) {
        REAL *restrict to = y + i * a->y.size[2] + left;
        int64_t first = rows->first[i], last = rows->first[i + 1];
        if (first == last) memset(to, 0, (size_t)n * sizeof(REAL));
        for (int64_t t = first; t < last; t++) {
            int64_t at = rows->at[t] * rows->step;
            const REAL *from = x + at + left, w = ((const REAL *)rows->weight)[t];
            if (a->columns.n) {
                int r = 0;
                while (r < RING && held[r] != at) r++;
                if (r == RING) {
                    r = (int)(next++ % RING);
                    held[r] = at;
                    across(&a->columns, left, right, ring[r], x + at);
                }
                from = ring[r];
            }
            if (t == first)
                for (int64_t j = 0; j < n; j++) to[j] = w * from[j];
            else
                for (int64_t j = 0; j < n; j++) to[j] += w * from[j];
        }
    }
}

typedef struct pieces {
    const tni_resample *a;
    int64_t height, down, side; /* rows of a piece; pieces below and beside each other */
} pieces;

static void run(void *context, int64_t begin, int64_t end)
{
    const pieces *p = context;
    const tni_resample *a = p->a;
    int64_t h = a->y.size[1], w = a->y.size[2];
    for (int64_t k = begin; k < end; k++) {
        int64_t plane = k / p->side / p->down, top = k / p->side % p->down * p->height;
        int64_t left = k % p->side * WIDTH;
        piece(a, (REAL *)a->y.data + plane * h * w, (const REAL *)a->x.data + plane * a->x.size[1],
              top, TNI_MIN(top + p->height, h), left, TNI_MIN(left + WIDTH, w));
    }
}

tn_status K(tni_resample)(const tni_resample *a)
{
    int64_t n = a->y.size[0], h = a->y.size[1], w = a->y.size[2];
    if (n * h * w == 0) return TN_OK;
    pieces p = { .a = a, .height = TNI_MAX(PIECE / TNI_MIN(w, WIDTH), 1) };
    p.down = (h - 1) / p.height + 1;
    p.side = (w - 1) / WIDTH + 1;
    int64_t each = TNI_MIN(p.height, h) * TNI_MIN(w, WIDTH);
    return tni_parallel_args(n * p.down * p.side, TNI_MAX(PIECE / each, 1), run, &p);
}
