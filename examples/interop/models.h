/*
 * models.h - the models that are sent to PyTorch and back; models.py has the same ones in PyTorch,
 * under the same names.
 */
#pragma once

#include <tenon/tenon.h>

typedef enum interop_input {
    REAL, /* one tensor of reals, in the model's dtype */
    IDS,  /* one tensor of whole numbers below `high` */
    QKV,  /* query, key and value of an attention */
    NONE  /* the state is compared, nothing is computed */
} interop_input;

typedef struct interop_model {
    const char *name;
    tn_module *(*make)(void);
    interop_input input;
    tn_shape shape;
    int64_t high;
    /* some steps of training; NULL: all state is set to random values */
    tn_status (*train)(tn_module *m);
} interop_model;

extern const interop_model interop_models[];
extern const int interop_count;

/* Random inputs of a model: n of them, in the current scope. */
int interop_inputs(const interop_model *model, tn_dtype dtype, tn_tensor **x);
/* The model's output for them. */
tn_tensor *interop_forward(const interop_model *model, tn_module *m, tn_tensor *const *x);
