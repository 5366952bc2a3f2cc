/* op_table.c - the rows of op_rows_*.def and op_refusals.def as tables, and their golden cases. */
#include "op_table.h"

#include <stdlib.h>

#define AXES(...) (const int[]){ __VA_ARGS__ }, (int)(sizeof((int[]){ __VA_ARGS__ }) / sizeof(int))
#define ALL NULL, 0
#define AT(...)                                                                                    \
    (const int64_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* The pieces have different shapes: each is scaled by a factor of its own, then they are joined. */
static tn_tensor *joined(tn_tensor **part, int n, int axis)
{
    tn_tensor *scaled[8];
    for (int i = 0; i < n; i++) scaled[i] = tn_mul_scalar(part[i], i + 1);
    return n < 1 ? NULL : tn_cat(scaled, n, axis);
}

static tn_tensor *split_scaled(tn_tensor *x, int64_t size, int axis)
{
    tn_tensor *part[8] = { NULL };
    return joined(part, tn_split(x, size, axis, part, 8), axis);
}

static tn_tensor *chunk_scaled(tn_tensor *x, int n, int axis)
{
    tn_tensor *part[8] = { NULL };
    return joined(part, tn_chunk(x, n, axis, part, 8), axis);
}

static tn_tensor *unbind_scaled(tn_tensor *x, int axis)
{
    tn_tensor *part[8] = { NULL };
    return joined(part, tn_unbind(x, axis, part, 8), 0);
}

static tn_tensor *meshgrid_scaled(tn_tensor **x, int n, bool xy)
{
    tn_tensor *grid[8] = { NULL };
    return tn_meshgrid(x, n, xy, grid) == TN_OK ? joined(grid, n, 0) : NULL;
}

/* Gradients reach one output of several: the others are absent. */
static tn_tensor *split_second(tn_tensor *x)
{
    tn_tensor *part[8] = { NULL };
    return tn_split(x, 2, 0, part, 8) < 2 ? NULL : tn_mul_scalar(part[1], 3);
}

static tn_tensor *extreme_index(tn_tensor *x, bool largest)
{
    tn_tensor *index = NULL;
    return (largest ? tn_max(x, 1, false, &index) : tn_min(x, 1, false, &index)) ? index : NULL;
}

static tn_tensor *extreme_both(tn_tensor *x, bool largest)
{
    tn_tensor *index = NULL;
    tn_tensor *value = largest ? tn_max(x, 1, false, &index) : tn_min(x, 1, false, &index);
    return value ? tn_mul(value, index) : NULL;
}

static tn_tensor *sort_index(tn_tensor *x, int axis, bool descending)
{
    tn_tensor *index = NULL;
    return tn_sort(x, axis, descending, &index) ? index : NULL;
}

static tn_tensor *sort_both(tn_tensor *x)
{
    tn_tensor *index = NULL, *value = tn_sort(x, 1, false, &index);
    return value ? tn_mul(value, index) : NULL;
}

static tn_tensor *topk_index(tn_tensor *x, int64_t k, int axis, bool largest)
{
    tn_tensor *index = NULL;
    return tn_topk(x, k, axis, largest, &index) ? index : NULL;
}

static tn_tensor *median_index(tn_tensor *x, int axis, bool keepdim)
{
    tn_tensor *index = NULL;
    return tn_median(x, axis, keepdim, &index) ? index : NULL;
}

/* The values, the inverse or the counts. */
static tn_tensor *unique_part(tn_tensor *x, int part)
{
    tn_tensor *out[3] = { NULL };
    out[0] = tn_unique(x, &out[1], &out[2]);
    return out[part];
}

/* Maxima plus a hundredth of the places that the call beside it, which comes first, has written. */
static tn_tensor *index_of;
static tn_tensor *pooled(tn_tensor *y, tn_tensor *const *index)
{
    if (!y || tn_dtype_of(*index) != TN_I64) return NULL;
    return tn_add(y, tn_mul_scalar(tn_to_dtype(*index, tn_dtype_of(y)), 0.01));
}

/* The same mask at every call. */
static tn_tensor *dropout_seeded(tn_tensor *x)
{
    tn_manual_seed(7);
    return tn_dropout(x, 0.4, true);
}

static tn_tensor *attention_seeded(tn_tensor **x)
{
    tn_manual_seed(7);
    return tn_scaled_dot_product_attention_dropout(x[0], x[1], x[2], TN_NONE, true, 0, 0.4, true);
}

/* y and the running statistics after it, which are changed in place. */
static tn_tensor *batch_norm_running(tn_tensor **x)
{
    tn_tensor *mean = tn_clone(x[3]);
    tn_tensor *var = tn_clone(x[4]);
    tn_tensor *y = tn_batch_norm(x[0], x[1], x[2], mean, var, true, 0.3, 1e-5);
    return tn_cat((tn_tensor *[]){ tn_flatten(y, 0, -1), mean, var }, 3, 0);
}

/* y, and c after the last step below it. */
static tn_tensor *lstm_both(tn_tensor **x, tn_tensor *b_ih, tn_tensor *b_hh, bool reverse)
{
    tn_tensor *c;
    tn_tensor *y = tn_lstm(x[0], x[1], x[2], x[3], x[4], b_ih, b_hh, reverse, &c);
    return tn_cat((tn_tensor *[]){ tn_flatten(y, 0, 1), c }, 2, 0);
}

static tn_tensor *lstm_c(tn_tensor **x)
{
    tn_tensor *c;
    tn_lstm(x[0], x[1], x[2], x[3], x[4], x[5], x[6], false, &c);
    return c;
}

#define ROW(name, op, flags, call, ...)                                                            \
    static tn_tensor *row_##name(tn_tensor **x)                                                    \
    {                                                                                              \
        return call;                                                                               \
    }
#include "op_rows_elementwise.def"
#include "op_rows_layers.def"
#include "op_rows_losses.def"
#include "op_rows_movement.def"
#include "op_rows_products.def"
#include "op_rows_recurrent.def"
#include "op_rows_reductions.def"
#undef ROW

const op_row op_rows[] = {
#define ROW(name, op, flags, call, ...) { #name, #op, flags, row_##name },
#include "op_rows_elementwise.def"
#include "op_rows_layers.def"
#include "op_rows_losses.def"
#include "op_rows_movement.def"
#include "op_rows_products.def"
#include "op_rows_recurrent.def"
#include "op_rows_reductions.def"
#undef ROW
};
const int n_op_rows = sizeof op_rows / sizeof *op_rows;

#define zeros(...) tn_zeros(TN_SHAPE(__VA_ARGS__))
#define bools(...) tn_full_as(TN_SHAPE(__VA_ARGS__), 0, TN_BOOL, tn_cpu())
#define indices(...) tn_full_as(TN_SHAPE(__VA_ARGS__), 0, TN_I64, tn_cpu())
#define ids(value, ...) tn_full_as(TN_SHAPE(__VA_ARGS__), value, TN_I64, tn_cpu())
#define one_group                                                                                  \
    (tn_conv2d_spec)                                                                               \
    {                                                                                              \
        .groups = 1                                                                                \
    }
#define PASTE(a, b) a##b
#define LINE_NAME(line) PASTE(refused_, line)

#define REFUSED(op, status, text, ...)                                                             \
    static tn_tensor *LINE_NAME(__LINE__)(void)                                                    \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
#include "op_refusals.def"
#undef REFUSED

const op_refusal op_refusals[] = {
#define REFUSED(op, status, text, ...) { #op, status, text, LINE_NAME(__LINE__), #__VA_ARGS__ },
#include "op_refusals.def"
#undef REFUSED
};
const int n_op_refusals = sizeof op_refusals / sizeof *op_refusals;

/* ---- the golden file ------------------------------------------------------------------------- */

/* Its tensors, sorted by name, in plain memory: read once, before Check forks; none stays alive. */
typedef struct golden {
    char name[80];
    tn_shape shape;
    tn_dtype dtype;
    void *data;
} golden;

static golden *all_golden;
static int n_golden;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const golden *)a)->name, ((const golden *)b)->name);
}

void op_read_golden(void)
{
    tn_scope scope = tn_scope_begin();
    tn_list *list = tn_load_tensors(golden_path("ops.safetensors"), NULL);
    TN_CHECK_PTR(list);
    all_golden = calloc((size_t)list->n, sizeof *all_golden);
    for (n_golden = 0; n_golden < list->n; n_golden++) {
        golden *g = &all_golden[n_golden];
        tn_tensor *t = list->entry[n_golden].tensor;
        snprintf(g->name, sizeof g->name, "%s", list->entry[n_golden].name);
        g->shape = tn_shape_get(t);
        g->dtype = tn_dtype_of(t);
        size_t nbytes = (size_t)tn_numel(t) * tn_dtype_size(g->dtype);
        g->data = malloc(nbytes ? nbytes : 1);
        TN_CHECK(tn_copy_out(t, g->data, nbytes, g->dtype));
    }
    tn_scope_end(scope);
    qsort(all_golden, (size_t)n_golden, sizeof *all_golden, by_name);
}

int op_golden_count(void)
{
    return n_golden;
}

const char *op_golden_name(int i)
{
    return all_golden[i].name;
}

static tn_tensor *find(const char *row, const char *part, tn_dtype dtype)
{
    golden key;
    snprintf(key.name, sizeof key.name, "%s/%s", row, part);
    const golden *g = bsearch(&key, all_golden, (size_t)n_golden, sizeof key, by_name);
    if (!g) return NULL;
    tn_tensor *t = tn_from_data(g->data, g->shape, g->dtype);
    assert_made(t);
    return g->dtype == TN_F64 ? tn_to_dtype(t, dtype) : t;
}

op_case op_load(const op_row *row, tn_dtype dtype)
{
    op_case c = { 0 };
    for (; c.n < OP_MAX_IN; c.n++) {
        char part[16];
        snprintf(part, sizeof part, "in%d", c.n);
        c.in[c.n] = find(row->name, part, dtype);
        if (!c.in[c.n]) break;
        snprintf(part, sizeof part, "grad%d", c.n);
        c.grad[c.n] = find(row->name, part, dtype);
        c.differentiable[c.n] = c.grad[c.n] || (row->flags & ROW_NO_GOLDEN);
    }
    c.out = find(row->name, "out", TN_F64);
    c.seed = find(row->name, "seed", dtype);
    ck_assert_msg(c.n > 0, "%s: not in ops.safetensors: run tests/golden/make_ops.py", row->name);
    return c;
}

tn_tensor *op_leaf(tn_tensor *t, bool requires_grad)
{
    tn_tensor *leaf = tn_detach(t);
    assert_made(leaf);
    if (requires_grad) assert_ok(tn_set_requires_grad(leaf, true));
    return leaf;
}
