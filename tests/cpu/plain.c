/* plain.c - the loops of plain.h. */
#include "plain.h"

int64_t draw_below(int64_t n)
{
    return (int64_t)number_in(0, (double)n);
}

double *draw_numbers(int64_t n)
{
    double *x = guarded(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (double)(draw_below(255) - 127) / 128;
    return x;
}

void spread_numbers(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = ldexp(x[i] / 3, (int)(i % 13) - 6);
}

void *numbers_as(const double *x, int64_t n, tn_dtype dtype)
{
    void *p = guarded(n, tn_dtype_size(dtype));
    if (!x) memset(p, 0xff, (size_t)n * tn_dtype_size(dtype));
    for (int64_t i = 0; x && i < n; i++) number_set(p, dtype, i, x[i]);
    return p;
}

sums sums_new(int64_t n)
{
    return (sums){ guarded(n, sizeof(double)), guarded(n, sizeof(double)), n };
}

/* What element `at` of x and a weight add to y's number i and to the gradients. */
static inline __attribute__((always_inline)) void add_all(plain *p, int64_t i, int64_t at,
                                                          int64_t tap)
{
    sums_add(&p->s[Y], i, p->x[at] * p->w[tap]);
    sums_add(&p->s[DX], at, p->dy[i] * p->w[tap]);
    sums_add(&p->s[DW], tap, p->dy[i] * p->x[at]);
}

plain plain_conv(const tni_conv2d_sizes *z, bool bias)
{
    int64_t x = z->n * z->c * z->h * z->w, y = z->n * z->o * z->oh * z->ow;
    int64_t cg = z->c / z->groups, taps = cg * z->kh * z->kw, w = z->o * taps;
    plain p = { .x = draw_numbers(x), .w = draw_numbers(w), .dy = draw_numbers(y) };
    if (bias) p.bias = draw_numbers(z->o);
    p.s[Y] = sums_new(y), p.s[DX] = sums_new(x), p.s[DW] = sums_new(w);
    for (int64_t i = 0; i < y; i++) {
        int64_t n = i / (z->o * z->oh * z->ow), o = i / (z->oh * z->ow) % z->o, tap = o * taps;
        int64_t row = i / z->ow % z->oh * z->stride[0] - z->padding[0];
        int64_t col = i % z->ow * z->stride[1] - z->padding[1];
        int64_t plane = n * z->c + o / (z->o / z->groups) * cg;
        if (bias) sums_add(&p.s[Y], i, p.bias[o]);
        for (int64_t c = plane; c < plane + cg; c++)
            for (int64_t r = row; r < row + z->kh * z->dilation[0]; r += z->dilation[0])
                for (int64_t q = col; q < col + z->kw * z->dilation[1]; q += z->dilation[1], tap++)
                    if (r >= 0 && r < z->h && q >= 0 && q < z->w)
                        add_all(&p, i, (c * z->h + r) * z->w + q, tap);
    }
    return p;
}
