/* cell.c - one step of a recurrent layer for every sequence of a batch; formulas in cells.h. */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/real/rows.h"

#ifdef TNI_REAL_IS_f32
#define REAL_TANH(x) tn_tanh_f32(x)
#define REAL_SIGMOID(x) tn_sigmoid_f32(x)
#else
#define REAL_TANH(x) tn_tanh_f64(x)
#define REAL_SIGMOID(x) tn_sigmoid_f64(x)
#endif
#include "tensor/cells.h"

/* Row i of an array with n elements in each. */
static inline REAL *row(const tni_array *a, int64_t i, int64_t n)
{
    return (REAL *)a->data + i * n;
}

/* Calls step for every element of the row. */
#define ELEMENTS(step)                                                                             \
    {                                                                                              \
        _Pragma("omp simd") for (int64_t j = 0; j < h; j++) step;                                  \
        break;                                                                                     \
    }

static void steps(void *context, int64_t begin, int64_t end)
{
    const tni_cell *a = context;
    const REAL *bx = a->bias_x.data, *bs = a->bias_s.data;
    int64_t h = a->y.size[1];
    for (int64_t i = begin; i < end; i++) {
        REAL *y = row(&a->y, i, h);
        switch (a->kind) {
        case TNI_TANH_CELL: ELEMENTS(tni_rnn_step(y, row(&a->share, i, h), bx, bs, false, j))
        case TNI_RELU_CELL: ELEMENTS(tni_rnn_step(y, row(&a->share, i, h), bx, bs, true, j))
        case TNI_GRU_CELL:
            ELEMENTS(tni_gru_step(y, row(&a->gates, i, 4 * h), row(&a->share, i, 3 * h), bx, bs,
                                  row(&a->y_before, i, h), h, j))
        default:
            ELEMENTS(tni_lstm_step(y, row(&a->c, i, h), row(&a->gates, i, 4 * h),
                                   row(&a->share, i, 4 * h), bx, bs, row(&a->c_before, i, h), h, j))
        }
    }
}

static void grads(void *context, int64_t begin, int64_t end)
{
    const tni_cell_grad *a = context;
    int64_t h = a->dy.size[1];
    for (int64_t i = begin; i < end; i++) {
        const REAL *dy = row(&a->dy, i, h);
        REAL *later = row(&a->later, i, h);
        switch (a->kind) {
        case TNI_TANH_CELL:
            ELEMENTS(tni_rnn_grad(row(&a->dgates, i, h), dy, later, row(&a->y, i, h), false, j))
        case TNI_RELU_CELL:
            ELEMENTS(tni_rnn_grad(row(&a->dgates, i, h), dy, later, row(&a->y, i, h), true, j))
        case TNI_GRU_CELL:
            ELEMENTS(tni_gru_grad(row(&a->dgates, i, 3 * h), row(&a->dshare, i, 3 * h), later, dy,
                                  row(&a->gates, i, 4 * h), row(&a->y_before, i, h), h, j))
        default:
            ELEMENTS(tni_lstm_grad(row(&a->dgates, i, 4 * h), row(&a->dc, i, h), dy, later,
                                   row(&a->gates, i, 4 * h), row(&a->c, i, h),
                                   row(&a->c_before, i, h), h, j))
        }
    }
}

/* Gates cost about 16 copies an element of state. */
tn_status K(tni_cell)(const tni_cell *a)
{
    tni_parallel(a->y.size[0], row_grain(a->y.size[1], 16), steps, (void *)(uintptr_t)a);
    return TN_OK;
}

tn_status K(tni_cell_grad)(const tni_cell_grad *a)
{
    tni_parallel(a->dy.size[0], row_grain(a->dy.size[1], 16), grads, (void *)(uintptr_t)a);
    return TN_OK;
}
