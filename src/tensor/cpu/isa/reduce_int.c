/* reduce_int.c - the inner loops of reductions over int64_t. Sums and products wrap around. */
#include "tensor/cpu/pointwise.h"

static tni_acc identity(tni_pass pass)
{
    switch (pass) {
    case TNI_PROD:
    case TNI_ALL: return (tni_acc){ .i = 1 };
    case TNI_LARGEST: return (tni_acc){ .i = INT64_MIN };
    case TNI_SMALLEST: return (tni_acc){ .i = INT64_MAX };
    default: return (tni_acc){ .i = 0 };
    }
}

static inline int64_t join(tni_pass pass, int64_t a, int64_t b)
{
    switch (pass) {
    case TNI_PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
    case TNI_LARGEST: return b > a ? b : a;
    case TNI_SMALLEST: return b < a ? b : a;
    case TNI_ANY: return a != 0 || b != 0;
    case TNI_ALL: return a != 0 && b != 0;
    default: return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

static void row(tni_pass pass, int64_t n, const void *xx, int64_t stride, tni_acc *acc,
                const tni_acc *center, double p)
{
    const int64_t *x = xx;
    (void)center;
    (void)p;
    if (pass == TNI_SUM && stride == 1) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < n; i++) sum += (uint64_t)x[i];
        acc->i = (int64_t)((uint64_t)acc->i + sum);
        return;
    }
    for (int64_t i = 0; i < n; i++) acc->i = join(pass, acc->i, x[i * stride]);
}

static void cols(tni_pass pass, int64_t rows, int64_t n, const void *xx, int64_t rs, int64_t cs,
                 tni_acc *acc, const tni_acc *center, double p)
{
    const int64_t *x = xx;
    (void)center;
    (void)p;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) acc[j].i = join(pass, acc[j].i, x[r * rs + j * cs]);
}

static void combine(tni_pass pass, int64_t n, tni_acc *acc, const tni_acc *other)
{
    for (int64_t j = 0; j < n; j++) acc[j].i = join(pass, acc[j].i, other[j].i);
}

const tni_reducer K(tni_reducer) = { identity, row, cols, combine, NULL };
