/*
 * op_table.h - one row per op variant: how to call it, and its properties.
 *
 * The rows are in op_rows_*.def: ROW(name, op, flags, call, PyTorch's call, inputs). The first four
 * are C; the last two are Python, for golden/make_ops.py, which draws the inputs and writes them,
 * and what PyTorch makes of them, to golden/ops.safetensors under the row's name. x[k] is input k
 * to both. An input is differentiable exactly when it has a gradient there.
 */
#ifndef TENON_TESTS_OP_TABLE_H
#define TENON_TESTS_OP_TABLE_H

#include "common.h"

enum {
    ROW_POINTWISE =
        1, /* allocates the result's storage and nothing else, whatever the input's strides */
    ROW_REDUCES = 2,    /* allocates less than the input has: no copy of it */
    ROW_VIEW = 4,       /* shares the input's storage and allocates nothing */
    ROW_KINK = 8,       /* not smooth here, or rounds: golden numbers only, no finite differences */
    ROW_NO_GOLDEN = 16, /* random: inputs only */
    ROW_LOOSE =
        32, /* f32 inevitably loses digits here (large offsets, long sums): 100 times the bound */
    ROW_ONCE = 128, /* its gradient is not differentiable: an error */
    ROW_FIXED = 64, /* fixed in f64: no f32 run (casts inside) */
};

typedef struct op_row {
    const char *name;
    const char *op; /* tn_NAME of ops.h */
    unsigned flags;
    tn_tensor *(*build)(tn_tensor **x);
} op_row;

extern const op_row op_rows[];
extern const int n_op_rows;

/* A call that must fail: status, and the message after "tn_OP: ". */
typedef struct op_refusal {
    const char *op;
    tn_status status;
    const char *text;
    tn_tensor *(*build)(void);
    const char *source; /* the call as written */
} op_refusal;

extern const op_refusal op_refusals[];
extern const int n_op_refusals;

enum { OP_MAX_IN = 7 };

/* The golden file's tensors for a row, in the current scope; NULL if there are none. */
typedef struct op_case {
    int n;
    tn_tensor *in[OP_MAX_IN];
    bool differentiable[OP_MAX_IN];
    tn_tensor *out, *seed, *grad[OP_MAX_IN];
} op_case;

/* Reads the golden file; call it once, from test_suite(): it runs no kernel. */
void op_read_golden(void);
int op_golden_count(void);
const char *op_golden_name(int i);
/* A row's case; real tensors as dtype. Fails the test when the file has no such row. */
op_case op_load(const op_row *row, tn_dtype dtype);
/* A fresh leaf with t's values that requires grad if asked. */
tn_tensor *op_leaf(tn_tensor *t, bool requires_grad);
#endif
