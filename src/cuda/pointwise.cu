/*
 * pointwise.cu - unary, binary and ternary functions over arrays of any strides and dtypes.
 *
 * The computing type follows the result (for predicates: the operands): float, double or int64_t.
 * If every array is contiguous along rows (or repeats one element, as a broadcast bias or scalar) a
 * thread takes several elements at a time; if all operands are f32, bf16 or f16, each function has
 * its own kernels, which move sixteen bytes at a time. Other dtypes by fours, and any strides one
 * by one, use kernels that choose the function at run time: all threads take the same branch.
 */
#include <type_traits>

#include "cuda/elements.h"
#include "cuda/mma.h"
#include "tensor/formulas.h"

#include "tensor/walk.c" /* the module does not link to tenon */

enum { POINTWISE_THREADS = 256 };

template <int ARITY, class T> struct pointwise_args {
    places<ARITY + 1> at; /* array 0: y */
    void *data[ARITY + 1];
    tn_dtype dtype[ARITY + 1];
    T p, q;
    int function;
    int left; /* elements after the last several */
};

/* ---- formulas: formula<arity, number, type>::of(x, y, z, p, q) ------------------------------- */

template <int ARITY, int F, class T> struct formula;

/* clang-format off */
#define FORMULA_1(T, S, name)                                                                      \
    template <> struct formula<1, TNI_U_##name, T> {                                               \
        static __device__ __forceinline__ T of(T x, T, T, T p, T q) { return tni_u_##name##_##S(x, p, q); } \
    };
#define FORMULA_2(T, S, name)                                                                      \
    template <> struct formula<2, TNI_B_##name, T> {                                               \
        static __device__ __forceinline__ T of(T x, T y, T, T p, T q)                              \
        {                                                                                          \
            return tni_b_##name##_##S(x, y, p, q);                                                 \
        }                                                                                          \
    };
#define FORMULA_3(T, S, name)                                                                      \
    template <> struct formula<3, TNI_T_##name, T> {                                               \
        static __device__ __forceinline__ T of(T x, T y, T z, T p, T q)                            \
        {                                                                                          \
            return tni_t_##name##_##S(x, y, z, p, q);                                              \
        }                                                                                          \
    };
#define REAL_1(name, parameters, cost, text) FORMULA_1(float, f32, name) FORMULA_1(double, f64, name)
#define REAL_2(name, parameters, cost, text) FORMULA_2(float, f32, name) FORMULA_2(double, f64, name)
#define REAL_3(name, parameters, cost, text) FORMULA_3(float, f32, name) FORMULA_3(double, f64, name)
#define WHOLE_1(name, parameters, cost, text) FORMULA_1(int64_t, i64, name)
#define WHOLE_2(name, parameters, cost, text) FORMULA_2(int64_t, i64, name)
#define WHOLE_3(name, parameters, cost, text) FORMULA_3(int64_t, i64, name)

TNI_UNARY_LIST(REAL_1)
TNI_UNARY_PREDICATE_LIST(REAL_1)
TNI_BINARY_LIST(REAL_2)
TNI_BINARY_PREDICATE_LIST(REAL_2)
TNI_TERNARY_LIST(REAL_3)
TNI_UNARY_INT_LIST(WHOLE_1)
TNI_UNARY_INT_PREDICATE_LIST(WHOLE_1)
TNI_BINARY_INT_LIST(WHOLE_2)
TNI_BINARY_PREDICATE_LIST(WHOLE_2)
TNI_TERNARY_INT_LIST(WHOLE_3)

/* The functions that a type has, by arity, for switches: ALL(CASE). */
#define CASE_1(name, parameters, cost, text) case TNI_U_##name: CALL(TNI_U_##name); break;
#define CASE_2(name, parameters, cost, text) case TNI_B_##name: CALL(TNI_B_##name); break;
#define CASE_3(name, parameters, cost, text) case TNI_T_##name: CALL(TNI_T_##name); break;
#define CASES_REAL_1 TNI_UNARY_LIST(CASE_1) TNI_UNARY_PREDICATE_LIST(CASE_1)
#define CASES_REAL_2 TNI_BINARY_LIST(CASE_2) TNI_BINARY_PREDICATE_LIST(CASE_2)
#define CASES_REAL_3 TNI_TERNARY_LIST(CASE_3)
#define CASES_INT_1 TNI_UNARY_INT_LIST(CASE_1) TNI_UNARY_INT_PREDICATE_LIST(CASE_1)
#define CASES_INT_2 TNI_BINARY_INT_LIST(CASE_2) TNI_BINARY_PREDICATE_LIST(CASE_2)
#define CASES_INT_3 TNI_TERNARY_INT_LIST(CASE_3)
/* clang-format on */

/* ---- kernels --------------------------------------------------------------------------------- */

/* Operands that a function does not have repeat the first one. */
template <int ARITY, class T> struct operands {
    T v[ARITY];
    __device__ __forceinline__ T y() const { return v[ARITY > 1 ? 1 : 0]; }
    __device__ __forceinline__ T z() const { return v[ARITY > 2 ? 2 : 0]; }
};

/* Sixteen bytes of each operand as they are: a use of single bf16 would wait for memory. */
template <int ARITY> struct sixteen {
    four<uint32_t> x[ARITY]; /* of a repeated element only the first word, which is its bits */
    int64_t y;
};

template <class X, int ARITY>
static __device__ __forceinline__ sixteen<ARITY> read_sixteen(const pointwise_args<ARITY, float> &a,
                                                              int64_t i)
{
    sixteen<ARITY> s;
    int64_t at[ARITY + 1];

    locate(a.at, i, at);
    s.y = at[0];
    TN_UNROLL
    for (int k = 0; k < ARITY; k++) {
        const X *from = static_cast<const X *>(a.data[k + 1]) + at[k + 1];
        if (a.at.stride[0][k + 1])
            s.x[k] = *reinterpret_cast<const four<uint32_t> *>(from);
        else if constexpr (element<X>::is_half)
            s.x[k].v[0] = from->bits;
        else
            s.x[k].v[0] = tn_bits_f32(*from);
    }
    return s;
}

template <int ARITY, int F, class X, int N>
static __device__ __forceinline__ float result_of(const pointwise_args<ARITY, float> &a,
                                                  const several<X, N> (&x)[ARITY], int j)
{
    operands<ARITY, float> o;

    TN_UNROLL
    for (int k = 0; k < ARITY; k++) o.v[k] = wide(x[k].v[j]);
    return formula<ARITY, F, float>::of(o.v[0], o.y(), o.z(), a.p, a.q);
}

/* y of the operands' dtype, or bool of a predicate. A round reads operands, then computes those of
 * the round before, so that memory has work all the time. */
template <int ARITY, int F, class X, class Y>
__global__ void pointwise_own(const __grid_constant__ pointwise_args<ARITY, float> a)
{
    constexpr int N = 16 / sizeof(X);
    int64_t step = grid_threads(), first = grid_thread();
    Y *y = static_cast<Y *>(a.data[0]);
    sixteen<ARITY> next = {};
    several<X, N> x[ARITY];

    for (int64_t i = first; i < a.at.numel + step; i += step) {
        sixteen<ARITY> now = next;

        if (i < a.at.numel) next = read_sixteen<X>(a, i);
        if (i == first) continue;
        TN_UNROLL
        for (int k = 0; k < ARITY; k++) {
            uint32_t one = now.x[k].v[0] * (element<X>::is_half ? 0x10001u : 1);
            TN_UNROLL
            for (int j = 0; j < 4; j++)
                if (!a.at.stride[0][k + 1]) now.x[k].v[j] = one;
            memcpy(&x[k], &now.x[k], 16);
        }
        if constexpr (element<Y>::is_half) {
            four<uint32_t> to;
            TN_UNROLL
            for (int j = 0; j < N; j += 2)
                to.v[j / 2] =
                    pack<Y>(result_of<ARITY, F>(a, x, j), result_of<ARITY, F>(a, x, j + 1));
            *reinterpret_cast<four<uint32_t> *>(y + now.y) = to;
        } else {
            several<Y, N> to;
            TN_UNROLL
            for (int j = 0; j < N; j++) to.v[j] = static_cast<Y>(result_of<ARITY, F>(a, x, j));
            *reinterpret_cast<several<Y, N> *>(y + now.y) = to;
        }
    }
    if (first < a.left) { /* one axis, of sixteens */
        int64_t i = N * a.at.numel + first;
        TN_UNROLL
        for (int k = 0; k < ARITY; k++)
            x[k].v[0] = static_cast<const X *>(a.data[k + 1])[a.at.stride[0][k + 1] ? i : 0];
        typedef typename element<Y>::computing computing;
        y[i] = element<Y>::rounded(static_cast<computing>(result_of<ARITY, F>(a, x, 0)));
    }
}

#define CALL(F) result = formula<ARITY, F, T>::of(x, y, z, p, q)
#define CHOOSE(ARITY_, T_, CASES)                                                                  \
    template <> struct chooser<ARITY_, T_> {                                                       \
        static constexpr int ARITY = ARITY_;                                                       \
        typedef T_ T;                                                                              \
        static __device__ TN_NOINLINE T of(int function, T x, T y, T z, T p, T q)                  \
        {                                                                                          \
            T result = 0;                                                                          \
            switch (function) {                                                                    \
                CASES                                                                              \
            }                                                                                      \
            return result;                                                                         \
        }                                                                                          \
    };
template <int ARITY, class T> struct chooser;
CHOOSE(1, float, CASES_REAL_1)
CHOOSE(2, float, CASES_REAL_2)
CHOOSE(3, float, CASES_REAL_3)
CHOOSE(1, double, CASES_REAL_1)
CHOOSE(2, double, CASES_REAL_2)
CHOOSE(3, double, CASES_REAL_3)
CHOOSE(1, int64_t, CASES_INT_1)
CHOOSE(2, int64_t, CASES_INT_2)
CHOOSE(3, int64_t, CASES_INT_3)
#undef CALL

/* Any dtypes: fours. */
template <int ARITY, class T>
__global__ void pointwise_mixed(const __grid_constant__ pointwise_args<ARITY, T> a)
{
    int64_t step = grid_threads(), first = grid_thread();

    for (int64_t i = first; i < a.at.numel; i += step) {
        int64_t at[ARITY + 1];

        locate(a.at, i, at);
        T x[ARITY][4];
        TN_UNROLL
        for (int k = 0; k < ARITY; k++) {
            if (a.at.stride[0][k + 1]) {
                load4(x[k], a.data[k + 1], a.dtype[k + 1], at[k + 1]);
            } else {
                T v = load<T>(a.data[k + 1], a.dtype[k + 1], at[k + 1]);
                TN_UNROLL
                for (int j = 0; j < 4; j++) x[k][j] = v;
            }
        }
        T y[4];
        TN_UNROLL
        for (int j = 0; j < 4; j++) {
            operands<ARITY, T> o;
            TN_UNROLL
            for (int k = 0; k < ARITY; k++) o.v[k] = x[k][j];
            y[j] = chooser<ARITY, T>::of(a.function, o.v[0], o.y(), o.z(), a.p, a.q);
        }
        store4(a.data[0], a.dtype[0], at[0], y);
    }
    if (first < a.left) {
        int64_t i = 4 * a.at.numel + first;
        operands<ARITY, T> o;
        TN_UNROLL
        for (int k = 0; k < ARITY; k++) {
            int64_t from = a.at.stride[0][k + 1] ? i : 0;
            o.v[k] = load<T>(a.data[k + 1], a.dtype[k + 1], from);
        }
        store(a.data[0], a.dtype[0], i,
              chooser<ARITY, T>::of(a.function, o.v[0], o.y(), o.z(), a.p, a.q));
    }
}

/* Any dtypes and strides. */
template <int ARITY, class T>
__global__ void pointwise_single(const __grid_constant__ pointwise_args<ARITY, T> a)
{
    for (int64_t step = grid_threads(), i = grid_thread(); i < a.at.numel; i += step) {
        int64_t at[ARITY + 1];
        operands<ARITY, T> o;

        locate(a.at, i, at);
        TN_UNROLL
        for (int k = 0; k < ARITY; k++) o.v[k] = load<T>(a.data[k + 1], a.dtype[k + 1], at[k + 1]);
        store(a.data[0], a.dtype[0], at[0],
              chooser<ARITY, T>::of(a.function, o.v[0], o.y(), o.z(), a.p, a.q));
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static unsigned blocks_for(int64_t n)
{
    return tni_cuda_blocks(n, POINTWISE_THREADS, 16LL * tni_cuda_multiprocessors());
}

template <int ARITY, int F, class X>
static tn_status launch_own(const pointwise_args<ARITY, float> &a)
{
    constexpr bool predicate =
        (ARITY == 1 && F >= TNI_U_PREDICATES) || (ARITY == 2 && F >= TNI_B_PREDICATES);
    typedef typename std::conditional<predicate, uint8_t, X>::type Y;
    return TN_LAUNCH((pointwise_own<ARITY, F, X, Y>), blocks_for(a.at.numel), POINTWISE_THREADS, 0,
                     a);
}

#define CALL(F)                                                                                    \
    status = a.dtype[1] == TN_F32    ? launch_own<ARITY, F, float>(a)                              \
             : a.dtype[1] == TN_BF16 ? launch_own<ARITY, F, bf16>(a)                               \
                                     : launch_own<ARITY, F, f16>(a)
#define OWN(ARITY_, CASES)                                                                         \
    static tn_status run_own(const pointwise_args<ARITY_, float> &a)                               \
    {                                                                                              \
        constexpr int ARITY = ARITY_;                                                              \
        tn_status status = TN_E_UNSUPPORTED;                                                       \
        switch (a.function) {                                                                      \
            CASES                                                                                  \
        }                                                                                          \
        return status;                                                                             \
    }
OWN(1, CASES_REAL_1)
OWN(2, CASES_REAL_2)
OWN(3, CASES_REAL_3)
#undef CALL

/* What a function is called, how many parameters it has, whether integers have it. */
typedef struct about {
    const char *name;
    int parameters;
} about;
#define ABOUT(name, parameters, cost, text) { #name, parameters },
static const about unary_about[] = { TNI_UNARY_LIST(ABOUT) TNI_UNARY_PREDICATE_LIST(ABOUT) };
static const about binary_about[] = { TNI_BINARY_LIST(ABOUT) TNI_BINARY_PREDICATE_LIST(ABOUT) };
static const about ternary_about[] = { TNI_TERNARY_LIST(ABOUT) };

#define CALL(F) has = true
static bool has_integers(int arity, int function)
{
    bool has = false;
    if (arity == 1) {
        switch (function) {
            CASES_INT_1
        }
    } else if (arity == 2) {
        switch (function) {
            CASES_INT_2
        }
    } else {
        switch (function) {
            CASES_INT_3
        }
    }
    return has;
}
#undef CALL

/* A parameter as an integer; clamp's absent bounds are infinite. */
static void set(int64_t *to, double p)
{
    *to = p >= 0x1p63 ? INT64_MAX : tn_int_of(p);
}

template <class R> static void set(R *to, double p)
{
    *to = static_cast<R>(p);
}

template <int ARITY, class T>
static tn_status run_as(int function, int parameters, bool predicate,
                        const tni_array *const *arrays, const double *p)
{
    pointwise_args<ARITY, T> a;
    tn_dtype dtype = arrays[1]->dtype;
    bool mixed = arrays[0]->dtype != (predicate ? TN_BOOL : dtype);

    a.at = places_of<ARITY + 1>(arrays);
    if (a.at.numel == 0) return TN_OK;
    a.function = function;
    a.left = 0;
    a.p = a.q = 0;
    if (parameters > 0) set(&a.p, p[0]);
    if (parameters > 1) set(&a.q, p[1]);
    for (int k = 0; k <= ARITY; k++) {
        a.data[k] = arrays[k]->data;
        a.dtype[k] = arrays[k]->dtype;
        mixed = mixed || (k > 0 && a.dtype[k] != dtype);
    }
    int64_t numel = a.at.numel;
    if constexpr (std::is_same<T, float>::value) {
        int n = static_cast<int>(16 / item_size(dtype));
        if (!mixed && places_by(n, &a.at, arrays)) {
            a.left = static_cast<int>(numel - n * a.at.numel);
            return run_own(a);
        }
    }
    if (!places_by(4, &a.at, arrays))
        return TN_LAUNCH((pointwise_single<ARITY, T>), blocks_for(numel), POINTWISE_THREADS, 0, a);
    a.left = static_cast<int>(numel - 4 * a.at.numel);
    return TN_LAUNCH((pointwise_mixed<ARITY, T>), blocks_for(a.at.numel + a.left),
                     POINTWISE_THREADS, 0, a);
}

template <int ARITY>
static tn_status run(int function, const about *about, bool predicate,
                     const tni_array *const *arrays, const double *p)
{
    tn_dtype type = computing_type(arrays[0]->dtype);
    int parameters = about->parameters;

    if (predicate) {
        type = TN_I64;
        for (int k = 1; k <= ARITY; k++) {
            tn_dtype t = computing_type(arrays[k]->dtype);
            if (t == TN_F64 || type == TN_I64) type = t;
        }
    }
    if (type == TN_F32) return run_as<ARITY, float>(function, parameters, predicate, arrays, p);
    if (type == TN_F64) return run_as<ARITY, double>(function, parameters, predicate, arrays, p);
    if (has_integers(ARITY, function))
        return run_as<ARITY, int64_t>(function, parameters, predicate, arrays, p);
    return tni_cuda_host->fail(TN_E_DTYPE, "%s: no such function on %s: want a floating dtype",
                               about->name, dtype_name(arrays[ARITY]->dtype));
}

tn_status tni_cuda_unary(const tni_unary *a)
{
    const tni_array *arrays[] = { &a->y, &a->x };
    return run<1>(a->function, &unary_about[a->function], a->function >= TNI_U_PREDICATES, arrays,
                  a->p);
}

tn_status tni_cuda_binary(const tni_binary *a)
{
    const tni_array *arrays[] = { &a->y, &a->a, &a->b };
    return run<2>(a->function, &binary_about[a->function], a->function >= TNI_B_PREDICATES, arrays,
                  a->p);
}

tn_status tni_cuda_ternary(const tni_ternary *a)
{
    const tni_array *arrays[] = { &a->y, &a->a, &a->b, &a->c };
    return run<3>(a->function, &ternary_about[a->function], false, arrays, a->p);
}
