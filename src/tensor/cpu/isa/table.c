/*
 * table.c - the CPU backend's table, once per instruction set: for each kernel of TNI_KERNELS
 * (kernels.h) the function that serves all dtypes, or one made here that picks the variant of real/
 * by dtype. Memory, products and random numbers are the same for all instruction sets.
 */
#include "tensor/cpu/dense/dense.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/random.h"

/* ---- memory: the library's allocator; host and device are the same --------------------------- */

static tn_status alloc(size_t nbytes, void **block)
{
    *block = tni_alloc(nbytes);
    return *block ? TN_OK : TN_E_NOMEM;
}

static tn_status move(void *to, const void *from, size_t nbytes)
{
    if (nbytes > 0) memcpy(to, from, nbytes);
    return TN_OK;
}

/* ---- many tensors ---------------------------------------------------------------------------- */

static void lerp_span(const void *a, int k, int64_t begin, int64_t end)
{
    const tni_lerp_tensor *t = &((const tni_lerp_all *)a)->tensors[k];
    (t->dtype == TN_F32 ? K32(tni_lerp_span) : K64(tni_lerp_span))(t, begin, end);
}

tn_status K(tni_lerp_all)(const tni_lerp_all *a)
{
    return tni_parallel_tensors(a->n, &a->tensors->n, sizeof *a->tensors, lerp_span, a, NULL);
}

/* bf16 and f16: some elements at a time as f32, on the stack. */
static void half_precision_step(const tn_optim_type *type, const tni_optim_tensor *t, int64_t begin,
                                int64_t end)
{
    enum { FIELDS = 5, PIECE = 512 };
    float wide[FIELDS][PIECE];
    uint16_t *const narrow[FIELDS] = { t->p, t->s0, t->s1, t->s2, (uint16_t *)(uintptr_t)t->g };
    tni_optim_tensor piece = *t;
    piece.dtype = TN_F32;
    piece.p = wide[0];
    piece.s0 = t->s0 ? wide[1] : NULL;
    piece.s1 = t->s1 ? wide[2] : NULL;
    piece.s2 = t->s2 ? wide[3] : NULL;
    piece.g = wide[4];
    for (int64_t i = begin; i < end; i += PIECE) {
        int64_t n = TNI_MIN(PIECE, end - i);
        for (int f = 0; f < FIELDS; f++)
            if (narrow[f]) K(tni_load)(TN_F32, n, wide[f], narrow[f] + i, t->dtype, 1);
        K32(tni_optim_span)(type, &piece, 0, n);
        for (int f = 0; f < FIELDS - 1; f++)
            if (narrow[f]) K(tni_store)(TN_F32, n, narrow[f] + i, t->dtype, 1, wide[f]);
    }
}

static void step_span(const void *a, int k, int64_t begin, int64_t end)
{
    const tni_optim_step *s = a;
    const tni_optim_tensor *t = &s->tensors[k];
    if (tni_is_half(t->dtype))
        half_precision_step(s->type, t, begin, end);
    else
        (t->dtype == TN_F32 ? K32(tni_optim_span) : K64(tni_optim_span))(s->type, t, begin, end);
}

tn_status K(tni_optim_step)(const tni_optim_step *a)
{
    return tni_parallel_tensors(a->n, &a->tensors->n, sizeof *a->tensors, step_span, a, a->starts);
}

/* ---- which variant serves a dtype ------------------------------------------------------------ */

static tn_status refuse(const char *kernel, tn_dtype dtype)
{
    return tni_error(TN_E_DTYPE, "%s: %s on the CPU: want f32 or f64", kernel,
                     tn_dtype_name(dtype));
}

/* Kernels that are asked first; false: the general ones compute. */
static bool no_other(const void *a, tn_status *status)
{
    (void)a;
    (void)status;
    return false;
}
#define CONVOLVE(way, args, kind, x, y, w, bias)                                                   \
    static bool convolve_##way(const args *a, tn_status *status)                                   \
    {                                                                                              \
        return tni_convolve(&(tni_convolution){ kind, a->sizes, x, w, y, bias }, status);          \
    }
CONVOLVE(y, tni_conv2d, TNI_CONV_Y, a->x, a->y, a->w, a->bias)
CONVOLVE(dx, tni_conv2d_grad_input, TNI_CONV_DX, a->dx, a->dy, a->w, { 0 })
CONVOLVE(dw, tni_conv2d_grad_weight, TNI_CONV_DW, a->x, a->dy, a->dw, { 0 })
/* The kernel of f32 itself, where it takes these bf16 and f16: bf16 in windows of 2x2, logits by
 * rows, rows that are turned. */
#define ITS_OWN(name, condition)                                                                   \
    static bool own_##name(const tni_##name *a, tn_status *status)                                 \
    {                                                                                              \
        return (condition) && (*status = K32(tni_##name)(a), true);                                \
    }
#define BY_ROWS(x, weight)                                                                         \
    (tni_is_half((x).dtype) && (x).size[2] == 1 && (!(weight).data || (weight).dtype == TN_F32))
ITS_OWN(max_pool2d, a->x.dtype == TN_BF16 && tni_pool_halves(&a->sizes))
ITS_OWN(max_pool2d_grad, a->dy.dtype == TN_BF16 && tni_pool_halves(&a->sizes))
ITS_OWN(rotary, tni_is_half(a->x.dtype))
ITS_OWN(cross_entropy, BY_ROWS(a->x, a->weight))
ITS_OWN(cross_entropy_grad, BY_ROWS(a->x, a->weight) && a->drow.dtype == TN_F32)
#define BY_OTHER(a)                                                                                \
    _Generic((a),                                                                                  \
        const tni_conv2d *: convolve_y,                                                            \
        const tni_conv2d_grad_input *: convolve_dx,                                                \
        const tni_conv2d_grad_weight *: convolve_dw,                                               \
        const tni_attention *: K32(tni_attention_bf16),                                            \
        const tni_attention_grad *: K32(tni_attention_grad_bf16),                                  \
        const tni_rotary *: own_rotary,                                                            \
        const tni_max_pool2d *: own_max_pool2d,                                                    \
        const tni_max_pool2d_grad *: own_max_pool2d_grad,                                          \
        const tni_cross_entropy *: own_cross_entropy,                                              \
        const tni_cross_entropy_grad *: own_cross_entropy_grad,                                    \
        default: no_other)

/* For bf16 and f16: how many axes number the rows of kernels that get some rows at a time, and bits
 * of the arrays that a kernel takes as they are (half.c). */
#define LEAD(a)                                                                                    \
    _Generic((a), const tni_softmax * : 1, const tni_softmax_grad * : 1,                           \
             const tni_layer_norm * : 1, const tni_max_pool2d * : 2,                               \
             const tni_max_pool2d_grad * : 2, const tni_avg_pool2d * : 2,                          \
             const tni_avg_pool2d_grad * : 2, const tni_resample * : 1, default : 0)
#define BIT(type, field) (1u << offsetof(type, field) / sizeof(tni_array))
#define ITSELF(a)                                                                                  \
    _Generic((a),                                                                                  \
        const tni_batch_norm *: BIT(tni_batch_norm, y) | BIT(tni_batch_norm, x),                   \
        const tni_batch_norm_grad *: BIT(tni_batch_norm_grad, dx) |                                \
            BIT(tni_batch_norm_grad, dy) | BIT(tni_batch_norm_grad, x),                            \
        const tni_layer_norm_grad *: BIT(tni_layer_norm_grad, dx) |                                \
            BIT(tni_layer_norm_grad, dy) | BIT(tni_layer_norm_grad, x),                            \
        const tni_conv2d *: BIT(tni_conv2d, y),                                                    \
        const tni_conv2d_grad_weight *: BIT(tni_conv2d_grad_weight, dy),                           \
        default: 0)

#define NOTHING(name)
#define BY_REAL(name, array)                                                                       \
    static tn_status by_dtype_##name(const tni_##name *a)                                          \
    {                                                                                              \
        return a->array.dtype == TN_F32   ? K32(tni_##name)(a)                                     \
               : a->array.dtype == TN_F64 ? K64(tni_##name)(a)                                     \
                                          : refuse(#name, a->array.dtype);                         \
    }
/* The same, through f32 if that array is bf16 or f16. */
#define BY_FLOAT(name, array, n_out, n_in)                                                         \
    BY_REAL(name, array)                                                                           \
    static tn_status in_f32_##name(const void *a)                                                  \
    {                                                                                              \
        return K32(tni_##name)(a);                                                                 \
    }                                                                                              \
    static tn_status by_float_##name(const tni_##name *a)                                          \
    {                                                                                              \
        tn_status status;                                                                          \
        if (BY_OTHER(a)(a, &status)) return status;                                                \
        if (!tni_is_half(a->array.dtype)) return by_dtype_##name(a);                               \
        tni_##name f = *a;                                                                         \
        _Static_assert(sizeof f <= TNI_HALF_BYTES, "room in half.c");                              \
        return tni_half_run(&(tni_half){ in_f32_##name, &f, sizeof f, n_out, n_in, LEAD(a),        \
                                         ITSELF(a), false, K(tni_copy), K(tni_load),               \
                                         K(tni_store) });                                          \
    }
TNI_KERNELS(NOTHING, NOTHING, BY_REAL, BY_FLOAT, BY_FLOAT)

#define SLOT_ONCE(name) .name = tni_cpu_##name,
#define SLOT_ANY(name) .name = K(tni_##name),
#define SLOT_REAL(name, ...) .name = by_dtype_##name,
#define SLOT_FLOAT(name, ...) .name = by_float_##name,

const tni_backend K(tni_cpu_table) = { .name = "cpu",
                                       .alloc = alloc,
                                       .free = tni_free,
                                       .upload = move,
                                       .download = move,
                                       .pack = tni_cpu_gemm_pack,
                                       .few_bytes = tni_cpu_few_bytes,
                                       TNI_KERNELS(SLOT_ONCE, SLOT_ANY, SLOT_REAL, SLOT_FLOAT,
                                                   SLOT_FLOAT) };
