/* cell.c - one step of a recurrent layer for every sequence of a batch; formulas in cells.h. */
#include "tensor/cpu/real/rows.h"

#define REAL_OF(name) TNI_CAT2(name, TNI_REAL_NAME)
#include "tensor/cells.h"

/* A loop of its own for each kind, which is a constant there. */
#define KIND(k, element)                                                                           \
    case k: {                                                                                      \
        _Pragma("omp simd") for (int64_t j = 0; j < h; j++) element(a, k, i, j);                   \
        break;                                                                                     \
    }
#define KINDS(element)                                                                             \
    KIND(TNI_TANH_CELL, element)                                                                   \
    KIND(TNI_RELU_CELL, element)                                                                   \
    KIND(TNI_GRU_CELL, element)                                                                    \
    KIND(TNI_LSTM_CELL, element)

static void steps(void *context, int64_t begin, int64_t end)
{
    const tni_cell *a = context;
    int64_t h = a->y.size[1];
    for (int64_t i = begin; i < end; i++) switch (a->kind) {
            KINDS(REAL_OF(tni_cell_step))
        }
}

static void slopes(void *context, int64_t begin, int64_t end)
{
    const tni_cell_grad *a = context;
    int64_t h = a->dy.size[1];
    for (int64_t i = begin; i < end; i++) switch (a->kind) {
            KINDS(REAL_OF(tni_cell_slope))
        }
}

/* Gates cost about 16 copies an element of state. */
tn_status K(tni_cell)(const tni_cell *a)
{
    return tni_parallel_args(a->y.size[0], row_grain(a->y.size[1], 16), steps, a);
}

tn_status K(tni_cell_grad)(const tni_cell_grad *a)
{
    return tni_parallel_args(a->dy.size[0], row_grain(a->dy.size[1], 16), slopes, a);
}
