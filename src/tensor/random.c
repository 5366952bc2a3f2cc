/*
 * random.c - random numbers, drawn as PyTorch draws them on the CPU: same seed, same words, same
 * order.
 *
 *   uniform f32    low 24 bits of one word / 2^24; f64: low 53 bits of two words / 2^53, first word
 *                  high
 *   in a range     u * (high - low) + low in t's precision, rounded once (one fused multiply-add,
 *                  which is what PyTorch's AVX2 and AVX-512 builds compute)
 *   normal, n>=16  Box and Muller in blocks of 16: radius from u[j], angle from u[j + 8], cosines
 *                  first; the last n mod 16 values come from a block drawn anew over the last 16,
 *                  for which bf16 and f16 draw no numbers before
 *   normal, n<16   one at a time in f64: cosine now, the sine kept for the next call
 *   whole numbers  word mod range; two words from 2^28 values on (PyTorch 2; 1.13 changed over at
 *                  2^32)
 *   permutation    for i = 0..n-2 swap i with i + word mod (n - i); from UINT32_MAX / 20 on, for
 *                  i = 0..n-1 put i at a place of two words mod (i + 1), and what was there at i
 *
 * f16 and bf16 are drawn in f32 and rounded; a uniform number that rounding brings to the end of
 * its range becomes the beginning, as in PyTorch. Every draw below runs with its generator locked.
 *
 * Source   MT19937: mt19937.c. Box and Muller, Annals of Mathematical Statistics 29 (1958). Draw
 *          order: PyTorch's ATen/core/DistributionsHelper.h and
 *          ATen/native/cpu/DistributionTemplates.h
 */
#include "tensor/formulas.h"
#include "tensor/random.h"

#define TWO_PI 6.283185307179586

/* ---- draws ----------------------------------------------------------------------------------- */

static uint64_t draw_u64(tn_generator *g)
{
    uint64_t high = tni_mt_next(&g->now);
    return high << 32 | tni_mt_next(&g->now);
}

double tni_draw_f64(tn_generator *g)
{
    return (double)(draw_u64(g) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

uint64_t tni_draw_below(tn_generator *g, uint64_t range)
{
    return (range < UINT64_C(1) << 28 ? tni_mt_next(&g->now) : draw_u64(g)) % range;
}

/* Standard normal in f64. log1p(-u) keeps small u exact. */
static double draw_normal(tn_generator *g)
{
    if (g->now.has_normal) {
        g->now.has_normal = false;
        return g->now.normal;
    }
    double u1 = tni_draw_f64(g), u2 = tni_draw_f64(g);
    double r = sqrt(-2.0 * log1p(-u2));
    g->now.normal = r * sin(TWO_PI * u1);
    g->now.has_normal = true;
    return r * cos(TWO_PI * u1);
}

static void put(void *out, tn_dtype dtype, int64_t i, double value)
{
    if (dtype == TN_F32)
        ((float *)out)[i] = (float)value;
    else
        ((double *)out)[i] = value;
}

/* A draw of n values into out (f32 or f64). p: low and high, or mean and deviation; p[2] not 0: the
 * values become bf16 or f16. */
typedef void (*draw)(tn_generator *g, void *out, tn_dtype dtype, int64_t n, const double *p);

static void draw_uniforms(tn_generator *g, void *out, tn_dtype dtype, int64_t n, const double *p)
{
    if (dtype == TN_F32) {
        float *y = out;
        const float low = (float)p[0], width = (float)p[1] - low;
        for (int64_t i = 0; i < n; i++)
            y[i] = fmaf((float)(tni_mt_next(&g->now) & 0xffffffu) * 0x1p-24f, width, low);
    } else {
        double *y = out;
        for (int64_t i = 0; i < n; i++) y[i] = fma(tni_draw_f64(g), p[1] - p[0], p[0]);
    }
}

/* Sixteen uniforms in place to sixteen normals. 1 - u lies in (0, 1]: the logarithm is finite. L:
 * libm's letter. */
#define BOX_MULLER(R, S, L)                                                                        \
    static void box_muller_##S(R *y, R mean, R deviation)                                          \
    {                                                                                              \
        for (int j = 0; j < 8; j++) {                                                              \
            R r = sqrt##L((R)-2 * log##L((R)1 - y[j]));                                            \
            R angle = (R)TWO_PI * y[j + 8];                                                        \
            y[j] = fma##L(r * cos##L(angle), deviation, mean);                                     \
            y[j + 8] = fma##L(r * sin##L(angle), deviation, mean);                                 \
        }                                                                                          \
    }
BOX_MULLER(float, f32, f)
BOX_MULLER(double, f64, )

static void draw_normals(tn_generator *g, void *out, tn_dtype dtype, int64_t n, const double *p)
{
    static const double unit[] = { 0.0, 1.0 };
    size_t size = tn_dtype_size(dtype);
    if (n < 16) {
        for (int64_t i = 0; i < n; i++) put(out, dtype, i, fma(draw_normal(g), p[1], p[0]));
        return;
    }
    draw_uniforms(g, out, dtype, p[2] != 0.0 ? n - n % 16 : n, unit);
    for (int64_t i = 0; i < n; i += 16) {
        int64_t first = i;
        if (n - i < 16) { /* the tail: the last 16 are drawn again */
            first = n - 16;
            draw_uniforms(g, (char *)out + (size_t)first * size, dtype, 16, unit);
        }
        if (dtype == TN_F32)
            box_muller_f32((float *)out + first, (float)p[0], (float)p[1]);
        else
            box_muller_f64((double *)out + first, p[0], p[1]);
    }
}

static void draw_bernoulli(tn_generator *g, void *out, tn_dtype dtype, int64_t n, const double *p)
{
    for (int64_t i = 0; i < n; i++) put(out, dtype, i, tni_draw_f64(g) < p[0]);
}

static void draw_permutation(tn_generator *g, int64_t n, int64_t *perm)
{
    for (int64_t i = 0; i < n; i++) perm[i] = i;
    for (int64_t i = 0; i < n - 1; i++) {
        int64_t j = i + (int64_t)(tni_mt_next(&g->now) % (uint64_t)(n - i));
        int64_t kept = perm[i];
        perm[i] = perm[j];
        perm[j] = kept;
    }
}

/* Durstenfeld's order turned inside out. */
static void draw_long_permutation(tn_generator *g, int64_t n, int64_t *perm)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)(draw_u64(g) % (uint64_t)(i + 1));
        perm[i] = i;
        perm[i] = perm[j];
        perm[j] = i;
    }
}

/* ---- into tensors ---------------------------------------------------------------------------- */

/* bf16 and f16 in [low, high]: values rounded up to high, as t has it, become low. mask: scratch of
 * t's shape. */
static tn_status leave_out_the_end(tn_tensor *t, tn_tensor *mask, double low, double high)
{
    const tni_backend *backend = tni_backend_of(t);
    tni_array x = tni_array_of(t), m = tni_array_of(mask);
    high = tni_rounded(high, t->dtype);
    TNI_TRY(backend->unary(&(tni_unary){ TNI_U_lt_scalar, .y = m, .x = x, .p = &high }));
    TNI_TRY(backend->unary(&(tni_unary){ TNI_U_logical_not, .y = m, .x = m }));
    return backend->binary(&(tni_binary){ TNI_B_masked_fill, .y = x, .a = x, .b = m, .p = &low });
}

static tn_status fill(tn_tensor *t, draw draw, const double *p)
{
    int64_t n = tni_shape_numel(&t->shape);
    tn_dtype dtype = t->dtype == TN_F64 ? TN_F64 : TN_F32;
    bool direct = t->storage->device.type == TN_CPU && t->dtype == dtype && tni_is_dense(t);
    size_t nbytes = (size_t)n * tn_dtype_size(dtype); /* fits: any shape's do */
    if (n == 0) return TN_OK;
    if (tni_host_refused("random values", "are drawn on the host",
                         "them drawn into an input of tn_capture_run"))
        return TN_E_STATE;
    void *values = direct ? tni_data(t) : tni_alloc(nbytes);
    if (!values) return TN_E_NOMEM;
    tn_generator *g = tn_default_generator();
    tni_generator_lock(g);
    draw(g, values, dtype, n, p);
    tni_generator_unlock(g);
    if (direct) return TN_OK;
    tn_status status = tni_write_host(t, values, nbytes, dtype);
    tni_free(values, nbytes);
    return status;
}

tn_status tni_random_uniform(tn_tensor *t, double low, double high)
{
    double bounds[] = { low, high };
    if (!tni_is_half(t->dtype) || low >= high || tni_shape_numel(&t->shape) == 0)
        return fill(t, draw_uniforms, bounds);
    /* the mask first: if it does not fit, nothing is drawn */
    TNI_SCOPED;
    tn_tensor *mask = tni_new_dense(&t->shape, TN_BOOL, t->storage->device);
    TNI_TRY(mask ? fill(t, draw_uniforms, bounds) : tni_pending());
    return leave_out_the_end(t, mask, low, high);
}

tn_status tni_random_normal(tn_tensor *t, double mean, double deviation)
{
    return fill(t, draw_normals, (double[]){ mean, deviation, tni_is_half(t->dtype) });
}

tn_status tni_cpu_random(const tni_random *a)
{
    const tni_array *y = &a->y;
    const double unit[] = { 0.0, 1.0, a->becomes_half };
    tn_generator *g = tn_default_generator();
    tni_generator_lock(g);
    (a->normal ? draw_normals : draw_uniforms)(g, y->data, y->dtype, tni_array_numel(y), unit);
    tni_generator_unlock(g);
    return TN_OK;
}

static tn_status draw_into(tn_tensor *t, bool normal, bool becomes_half)
{
    tni_random a = { .y = tni_array_of(t), .normal = normal, .becomes_half = becomes_half };
    if (t->storage->device.type != TN_CPU) /* numbers / 2 counters are enough for any dtype */
        tni_philox_take((uint64_t)tni_shape_numel(&t->shape) / 2 + 1, &a.seed, &a.offset);
    return tni_backend_of(t)->random(&a);
}

/* bf16 and f16: drawn in t, of f32, then cast; all memory is allocated before the draw. */
static tn_tensor *draw_and_cast(tn_tensor *t, tn_tensor *cast, bool normal)
{
    const tni_backend *backend = tni_backend_of(t);
    tni_array drawn = tni_array_of(t), to = tni_array_of(cast);
    TNI_SCOPED;
    tn_tensor *mask = tni_new_dense(&t->shape, TN_BOOL, t->storage->device);
    tn_status status = mask ? draw_into(t, normal, true) : tni_pending();
    if (status == TN_OK) status = backend->copy(&(tni_copy){ .y = to, .x = drawn });
    if (status == TN_OK && !normal) status = leave_out_the_end(cast, mask, 0.0, 1.0);
    return status == TN_OK ? cast : NULL;
}

/* Drawn on the device, in f32 or f64, then cast. */
static tn_tensor *drawn(const char *f, tn_shape shape, bool normal, tn_dtype dtype,
                        tn_device device)
{
    TNI_HOLD_TRAPS;
    tn_dtype real = dtype == TN_F64 ? TN_F64 : TN_F32;
    if (!tn_dtype_is_float(dtype))
        return tni_fail(TN_E_DTYPE, "%s: %s: want a floating dtype", f, tn_dtype_name(dtype));
    tn_tensor *t = tni_create(f, shape, real, device);
    if (!t || tni_shape_numel(&shape) == 0) return t ? tni_create(f, shape, dtype, device) : NULL;
    if (dtype == real) return draw_into(t, normal, false) == TN_OK ? t : NULL;
    tn_tensor *cast = tni_create(f, shape, dtype, device);
    return cast ? draw_and_cast(t, cast, normal) : NULL;
}

static tn_tensor *filled(const char *f, tn_shape shape, draw draw, double a, double b)
{
    TNI_HOLD_TRAPS;
    tn_tensor *t = tni_create(f, shape, tn_default_dtype(), tn_cpu());
    return t && fill(t, draw, (double[]){ a, b, 0.0 }) == TN_OK ? t : NULL;
}

#define RANDOM(tn_name, tn_name_as, normal, draw)                                                  \
    tn_tensor *tn_name(tn_shape shape)                                                             \
    {                                                                                              \
        return filled(#tn_name, shape, draw, 0.0, 1.0);                                            \
    }                                                                                              \
    tn_tensor *tn_name_as(tn_shape shape, tn_dtype dtype, tn_device device)                        \
    {                                                                                              \
        return drawn(#tn_name_as, shape, normal, dtype, device);                                   \
    }
RANDOM(tn_rand, tn_rand_as, false, draw_uniforms)
RANDOM(tn_randn, tn_randn_as, true, draw_normals)

#define RANDOM_LIKE(tn_name, normal)                                                               \
    tn_tensor *tn_name(tn_tensor *t)                                                               \
    {                                                                                              \
        if (!tni_present(#tn_name, "t", t)) return NULL;                                           \
        return drawn(#tn_name, t->shape, normal, t->dtype, t->storage->device);                    \
    }
RANDOM_LIKE(tn_rand_like, false)
RANDOM_LIKE(tn_randn_like, true)

tn_tensor *tn_bernoulli(tn_shape shape, double p)
{
    if (!(p >= 0.0 && p <= 1.0))
        return tni_fail(TN_E_INVALID, "tn_bernoulli: p %g: want 0 to 1", p);
    return filled("tn_bernoulli", shape, draw_bernoulli, p, 0.0);
}

tn_tensor *tn_randint(int64_t low, int64_t high, tn_shape shape)
{
    if (low >= high)
        return tni_fail(TN_E_INVALID,
                        "tn_randint: from %" PRId64 " to %" PRId64 ": want low < high", low, high);
    tn_tensor *t = tni_create("tn_randint", shape, TN_I64, tn_cpu());
    if (!t) return NULL;
    int64_t n = tni_shape_numel(&shape);
    int64_t *y = tni_data(t);
    uint64_t range = (uint64_t)high - (uint64_t)low;
    tn_generator *g = tn_default_generator();
    tni_generator_lock(g);
    for (int64_t i = 0; i < n; i++) y[i] = (int64_t)((uint64_t)low + tni_draw_below(g, range));
    tni_generator_unlock(g);
    return t;
}

tn_tensor *tn_randint_like(tn_tensor *t, int64_t low, int64_t high)
{
    TNI_HOLD_TRAPS;
    if (!tni_present("tn_randint_like", "t", t)) return NULL;
    bool all = t->dtype == TN_I64;
    if (low >= high ||
        (!all && (!tni_fits((double)low, t->dtype) || !tni_fits((double)(high - 1), t->dtype))))
        return tni_fail(TN_E_INVALID,
                        "tn_randint_like: from %" PRId64 " to %" PRId64
                        ": want low < high, and numbers that %s can hold",
                        low, high, tn_dtype_name(t->dtype));
    tn_tensor *y = tn_empty_like(t);
    TNI_SCOPED;
    const tn_tensor *from = y ? tn_randint(low, high, t->shape) : NULL;
    size_t nbytes = (size_t)tni_shape_numel(&t->shape) * sizeof(int64_t);
    return from && tni_write_host(y, tni_data(from), nbytes, TN_I64) == TN_OK ? y : NULL;
}

tn_tensor *tn_randperm(int64_t n)
{
    if (n < 0) return tni_fail(TN_E_INVALID, "tn_randperm: size %" PRId64 ": want 0 or more", n);
    tn_tensor *t = tni_create("tn_randperm", TN_SHAPE(n), TN_I64, tn_cpu());
    if (t) tn_generator_permutation(tn_default_generator(), n, tni_data(t));
    return t;
}

void tn_generator_permutation(tn_generator *g, int64_t n, int64_t *perm)
{
    if (!g || (!perm && n > 0)) {
        tni_poison("tn_generator_permutation", g ? "perm" : "g");
        return;
    }
    tni_draw_permutation(g, n, perm, UINT32_MAX / 20);
}

void tni_draw_permutation(tn_generator *g, int64_t n, int64_t *perm, int64_t long_from)
{
    tni_generator_lock(g);
    (n < long_from ? draw_permutation : draw_long_permutation)(g, n, perm);
    tni_generator_unlock(g);
}
