/*
 * pointwise.c - unary, binary and ternary functions over arrays of any strides and dtypes.
 *
 * The computing type follows the result (for predicates: the operands): float, double or int64_t.
 * Operands of that type that the row has a loop for are read in place; others pass through buffers,
 * TNI_BLOCK elements at a time. Light functions of bf16 without gaps have rows of their own.
 */
#include "tensor/cpu/pointwise.h"
#include "tensor/walk.h"

/* Elements per chunk; chosen: 5 to 10 us of work. */
enum { GRAIN_LIGHT = 32768, GRAIN_HEAVY = 8192 };

typedef struct formula {
    const char *name;
    int cost;
} formula;

#define ENTRY_U(name, parameters, cost, formula) [TNI_U_##name] = { #name, TNI_##cost },
#define ENTRY_B(name, parameters, cost, formula) [TNI_B_##name] = { #name, TNI_##cost },
#define ENTRY_T(name, parameters, cost, formula) [TNI_T_##name] = { #name, TNI_##cost },
static const formula unary[] = { TNI_UNARY_LIST(ENTRY_U) TNI_UNARY_PREDICATE_LIST(ENTRY_U) };
static const formula binary[] = { TNI_BINARY_LIST(ENTRY_B) TNI_BINARY_PREDICATE_LIST(ENTRY_B) };
static const formula ternary[] = { TNI_TERNARY_LIST(ENTRY_T) };

typedef struct job {
    tni_walk walk;
    tni_row row;
    const double *p;
    int n;             /* arrays that the row reads or writes */
    tn_dtype type;     /* computing type */
    tn_dtype row_type; /* what the row writes: type, or TN_BOOL for predicates */
    bool convert;      /* by way of buffers */
    bool repeats;      /* the row takes the operands whose stride is 0 as they are */
    char *data[TNI_WALK_ARRAYS];
    int64_t item[TNI_WALK_ARRAYS]; /* bytes of an element */
    tn_dtype dtype[TNI_WALK_ARRAYS];
} job;

static char *place(const job *j, const tni_cursor *c, int k)
{
    return j->data[k] + c->at[k] * j->item[k];
}

/* Whether a formula's row has a loop (row_text.h) for arrays of these strides. */
static bool row_takes(const formula *f, int n, const int64_t *stride)
{
    int64_t repeated = 0, others = 0; /* a bit for each array */
    for (int k = 0; k < n; k++) repeated |= (stride[k] == 0) << k, others |= stride[k] & ~1;
    if (others) return false;
    if (n == 3 && f->cost == TNI_LIGHT) return repeated == 0 || repeated == 2 || repeated == 4;
    return repeated == 0 || (n == 4 && repeated == (2 | 8));
}

/* n elements along the last axis, from c on, by way of buffers. */
static void run_converting(const job *j, int64_t n, const tni_cursor *c, const int64_t *stride)
{
    /* not 4,096 bytes apart, where the processor would take them for one another */
    _Alignas(64) char buffer[TNI_WALK_ARRAYS][TNI_BLOCK * sizeof(double) + 256];
    const int64_t block = j->type == TN_F32 ? 2 * TNI_BLOCK : TNI_BLOCK;
    for (int64_t begin = 0; begin < n; begin += block) {
        int64_t m = n - begin < block ? n - begin : block;
        char *x[TNI_WALK_ARRAYS] = { NULL, NULL, NULL, NULL };
        int64_t s[TNI_WALK_ARRAYS] = { 0, 0, 0, 0 };
        bool store = j->dtype[0] != j->row_type || stride[0] != 1;
        for (int k = 0; k < j->n; k++) {
            x[k] = place(j, c, k) + begin * stride[k] * j->item[k];
            s[k] = stride[k] || !j->repeats;
            if (k > 0 && (j->dtype[k] != j->type || s[k] != stride[k])) {
                K(tni_load)(j->type, s[k] ? m : 1, buffer[k], x[k], j->dtype[k], stride[k]);
                x[k] = buffer[k];
            }
        }
        j->row(m, store ? buffer[0] : x[0], x[1], s[1], x[2], s[2], x[3], j->p);
        if (store && j->row_type == TN_BOOL)
            for (int64_t i = 0; i < m; i++) x[0][i * stride[0]] = buffer[0][i];
        else if (store)
            K(tni_store)(j->row_type, m, x[0], j->dtype[0], stride[0], buffer[0]);
    }
}

static void chunk(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    const tni_walk *w = &j->walk;
    int last = w->rank - 1;
    const int64_t *s = w->stride[last];
    tni_cursor c;
    tni_cursor_seek(&c, w, begin);
    while (begin < end) {
        int64_t n = TNI_MIN(w->size[last] - c.index[last], end - begin);
        if (j->convert)
            run_converting(j, n, &c, s);
        else
            j->row(n, place(j, &c, 0), place(j, &c, 1), s[1], place(j, &c, 2), s[2],
                   place(j, &c, 3), j->p);
        begin += n;
        if (begin < end) tni_cursor_step(&c, w, n);
    }
}

static tn_dtype type_of(tn_dtype dtype)
{
    if (dtype == TN_F32 || dtype == TN_F64) return dtype;
    return tn_dtype_is_float(dtype) ? TN_F32 : TN_I64;
}

static tn_dtype type_of_operands(int n, const tni_array *const *arrays)
{
    tn_dtype type = TN_I64;
    for (int k = 1; k < n; k++) {
        tn_dtype t = type_of(arrays[k]->dtype);
        if (t == TN_F64 || type == TN_I64) type = t;
    }
    return type;
}

/* The row function for a function and a computing type, from one of the three tables. */
#define PICK(table, function, type)                                                                \
    ((type) == TN_F32   ? K32(table)[function]                                                     \
     : (type) == TN_F64 ? K64(table)[function]                                                     \
                        : K(table)[function])

/* Whether every row of the walk is bf16 without gaps in all n arrays. */
static bool is_bf16(const tni_walk *w, int n, const tni_array *const *arrays)
{
    bool same = true;
    for (int k = 0; k < n; k++)
        same &= arrays[k]->dtype == TN_BF16 && w->stride[w->rank - 1][k] == 1;
    return same;
}

/* The number of elements if the arrays are row-major without gaps, and so one run each; else -1. */
static inline int64_t one_run(const tni_array *const *arrays)
{
    int64_t n = 1;
    for (int d = arrays[0]->rank - 1; d >= 0; d--) {
        for (int k = 0; k < TNI_WALK_ARRAYS; k++)
            if (arrays[k]->stride[d] != n) return -1;
        n *= arrays[0]->size[d];
    }
    return n;
}

static tn_status run_walk(const formula *f, tni_row row, tni_row pairs, tn_dtype type,
                          tn_dtype row_type, bool convert, int n, const tni_array *const *arrays,
                          const double *p)
{
    if (!row)
        return tni_error(TN_E_DTYPE, "%s: no such function on %s: want a floating dtype", f->name,
                         tn_dtype_name(arrays[n - 1]->dtype));
    job j;
    tni_walk_init(&j.walk, TNI_WALK_ARRAYS, arrays);
    if (j.walk.numel == 0) return TN_OK;
    j.n = n;
    bool by_pairs = pairs && is_bf16(&j.walk, n, arrays);
    j.row = by_pairs ? pairs : row;
    j.p = p;
    j.type = type;
    j.row_type = row_type;
    j.repeats = row_takes(f, n, j.walk.stride[j.walk.rank - 1]);
    j.convert = (convert || !j.repeats) && !by_pairs;
    for (int k = 0; k < TNI_WALK_ARRAYS; k++) {
        j.data[k] = arrays[k]->data;
        j.dtype[k] = arrays[k]->dtype;
        j.item[k] = k > 0 && arrays[k]->dtype == arrays[0]->dtype
                        ? j.item[0]
                        : (int64_t)tn_dtype_size(arrays[k]->dtype);
    }
    int64_t grain = f->cost == TNI_HEAVY ? GRAIN_HEAVY : GRAIN_LIGHT;
    return tni_parallel_args(j.walk.numel, grain, chunk, &j);
}

/* pairs: the row for bf16 (pointwise.h), or NULL. Of the four arrays n count; the others stand in
 * for what the row does not read. Few elements in one run need no walk: they are one call of the
 * row, as chunk would make it. */
static inline tn_status run(const formula *f, tni_row row, tni_row pairs, tn_dtype type,
                            bool predicate, int n, const tni_array *const *arrays, const double *p)
{
    int64_t elements = one_run(arrays);
    tn_dtype row_type = predicate ? TN_BOOL : type;
    bool convert = arrays[0]->dtype != row_type;
    for (int k = 1; k < n; k++) convert |= arrays[k]->dtype != type;
    if (convert || !row || elements < 0 || elements > GRAIN_HEAVY)
        return run_walk(f, row, pairs, type, row_type, convert, n, arrays, p);
    row(elements, arrays[0]->data, arrays[1]->data, 1, arrays[2]->data, 1, arrays[3]->data, p);
    return TN_OK;
}

tn_status K(tni_unary)(const tni_unary *a)
{
    const tni_array *arrays[] = { &a->y, &a->x, &a->y, &a->y };
    bool predicate = a->function >= TNI_U_PREDICATES;
    tn_dtype type = predicate ? type_of_operands(2, arrays) : type_of(a->y.dtype);
    tni_row row = PICK(tni_unary_rows, a->function, type);
    tni_row own = tni_is_half(a->y.dtype) ? K32(tni_half_unary)[a->function] : NULL;
    return run(&unary[a->function], own ? own : row, K32(tni_unary_pairs)[a->function], type,
               predicate, 2, arrays, a->p);
}

tn_status K(tni_binary)(const tni_binary *a)
{
    const tni_array *arrays[] = { &a->y, &a->a, &a->b, &a->y };
    bool predicate = a->function >= TNI_B_PREDICATES;
    tn_dtype type = predicate ? type_of_operands(3, arrays) : type_of(a->y.dtype);
    tni_row row = PICK(tni_binary_rows, a->function, type);
    tni_row own = tni_is_half(a->y.dtype) ? K32(tni_half_binary)[a->function] : NULL;
    return run(&binary[a->function], own ? own : row, K32(tni_binary_pairs)[a->function], type,
               predicate, 3, arrays, a->p);
}

tn_status K(tni_ternary)(const tni_ternary *a)
{
    const tni_array *arrays[] = { &a->y, &a->a, &a->b, &a->c };
    tn_dtype type = type_of(a->y.dtype);
    return run(&ternary[a->function], PICK(tni_ternary_rows, a->function, type), NULL, type, false,
               4, arrays, a->p);
}
