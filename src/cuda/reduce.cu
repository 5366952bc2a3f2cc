/*
 * reduce.cu - reductions over any axes of arrays of any strides (reduce.h).
 *
 * Sums of reals add at most 64 elements in their own type, then in double; products and squares are
 * double throughout; integers are int64_t and wrap around. Variance and logsumexp pass twice over
 * x: the second time with the mean or the maximum of each result. Squares of f64 and powers may
 * leave the range of double: for them a pass before finds the largest element, to bring it below 1.
 */
#include "cuda/reduce.h"
#include "tensor/formulas.h"

typedef enum pass {
    SUM,
    PROD,
    LARGEST, /* NaN wins */
    SMALLEST,
    LARGEST_ABS,
    ANY,
    ALL,
    SUM_WIDE,        /* in double throughout */
    SUM_ABS_POW,     /* sum |x|^p */
    SUM_SQUARE_DIFF, /* sum (x - center)^2 */
    SUM_EXP_DIFF     /* sum e^(x - center) */
} pass;

/* ---- ways ------------------------------------------------------------------------------------ */

static __device__ __forceinline__ float absolute(float x)
{
    return tn_abs_f32(x);
}
static __device__ __forceinline__ double absolute(double x)
{
    return tn_abs_f64(x);
}
static __device__ TN_NOINLINE float power(float x, float p)
{
    return tn_pow_f32(x, p);
}
static __device__ TN_NOINLINE double power(double x, double p)
{
    return tn_pow_f64(x, p);
}

/* An infinite center (a row of -inf, or one with +inf) would give inf - inf. */
static __device__ __forceinline__ double finite_part(double center)
{
    return center - center == 0.0 ? center : 0.0;
}

template <class A> static __device__ __forceinline__ A plus(A a, A b)
{
    return a + b;
}
static __device__ __forceinline__ double times(double a, double b)
{
    return a * b;
}
/* Integers wrap around. */
static __device__ __forceinline__ int64_t plus(int64_t a, int64_t b)
{
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
static __device__ __forceinline__ int64_t times(int64_t a, int64_t b)
{
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

template <class A> struct lowest {
    static __device__ __forceinline__ A value() { return static_cast<A>(-ROW_INFINITY); }
};
template <> struct lowest<int64_t> {
    static __device__ __forceinline__ int64_t value() { return INT64_MIN; }
};
template <class A> struct highest {
    static __device__ __forceinline__ A value() { return static_cast<A>(ROW_INFINITY); }
};
template <> struct highest<int64_t> {
    static __device__ __forceinline__ int64_t value() { return INT64_MAX; }
};

template <class A> static __device__ __forceinline__ A identity(pass pass)
{
    return pass == PROD || pass == ALL ? static_cast<A>(1)
           : pass == LARGEST           ? lowest<A>::value()
           : pass == SMALLEST          ? highest<A>::value()
                                       : static_cast<A>(0);
}

template <class A> static __device__ __forceinline__ A join_two(pass pass, A a, A b)
{
    if (pass == SUM) return plus(a, b);
    switch (pass) {
    case LARGEST:
    case LARGEST_ABS: return b > a || b != b ? b : a;
    case SMALLEST: return b < a || b != b ? b : a;
    case ANY: return static_cast<A>(a != 0 || b != 0);
    case ALL: return static_cast<A>(a != 0 && b != 0);
    default: return plus(a, b);
    }
}

/* SUMS: only SUM, so that its kernels need not check at each element. */
template <class T, bool SUMS = false> struct way {
    typedef T item;
    typedef double all;
    /* Products and squares of floats would leave their range where the whole one does not. */
    struct part {
        T own;
        double wide;
    };
    static constexpr int group = 64;
    pass of;
    T p;
    double c, s;
    const double *center, *scale; /* of each result, or NULL */

    __device__ __forceinline__ pass kind() const { return SUMS ? SUM : of; }

    __device__ __forceinline__ way at(int64_t o) const
    {
        way w = *this;
        if (center) w.c = kind() == SUM_SQUARE_DIFF ? center[o] : finite_part(center[o]);
        if (scale) w.s = scale[o];
        return w;
    }
    __device__ __forceinline__ bool wide() const
    {
        return kind() == PROD || kind() == SUM_WIDE || kind() == SUM_SQUARE_DIFF ||
               (kind() == SUM_ABS_POW && p == 2);
    }
    __device__ __forceinline__ part start() const
    {
        return { identity<T>(kind()), kind() == PROD ? 1.0 : 0.0 };
    }
    __device__ __forceinline__ T seen(T x) const
    {
        switch (kind()) {
        case LARGEST_ABS: return absolute(x);
        case SUM_ABS_POW:
            x = absolute(static_cast<T>(static_cast<double>(x) * s));
            return p == 1 ? x : power(x, p);
        case SUM_EXP_DIFF: return row_exp(x - static_cast<T>(c));
        default: return x;
        }
    }
    __device__ __forceinline__ void add(part &a, T x, int64_t) const
    {
        double d = wide() ? static_cast<double>(x) * s - c : 0.0;
        if (!wide())
            a.own = join_two(kind(), a.own, kind() == SUM ? x : seen(x));
        else if (kind() == PROD)
            a.wide *= d;
        else
            a.wide += kind() == SUM_WIDE ? d : d * d;
    }
    __device__ __forceinline__ double widen(part a) const
    {
        return wide() ? a.wide : static_cast<double>(a.own);
    }
    __device__ __forceinline__ double empty() const { return identity<double>(kind()); }
    __device__ __forceinline__ double join(double a, double b) const
    {
        return kind() == PROD ? times(a, b) : join_two(kind(), a, b);
    }
};

template <> struct way<int64_t> {
    typedef int64_t item;
    typedef int64_t all;
    typedef int64_t part;
    static constexpr int group = 64;
    pass kind;

    __device__ __forceinline__ way at(int64_t) const { return *this; }
    __device__ __forceinline__ int64_t start() const { return empty(); }
    __device__ __forceinline__ void add(int64_t &a, int64_t x, int64_t) const { a = join(a, x); }
    __device__ __forceinline__ int64_t widen(int64_t a) const { return a; }
    __device__ __forceinline__ int64_t empty() const { return identity<int64_t>(kind); }
    __device__ __forceinline__ int64_t join(int64_t a, int64_t b) const
    {
        return kind == PROD ? times(a, b) : join_two(kind, a, b);
    }
};

/* ---- results --------------------------------------------------------------------------------- */

/* How sums become results. */
struct put_result {
    places<2> at; /* array 0: y */
    void *y;
    tn_dtype dtype;
    double divisor; /* mean and variance, else 1 */
    bool root;
    const double *scale; /* what elements were multiplied by, or NULL */
    bool unit;           /* the result is what to multiply by */

    __device__ __forceinline__ double finish(double a, int64_t o) const
    {
        int e = 0;
        if (unit) {
            if (a > 0.0 && a < ROW_INFINITY) frexp(a, &e);
            return ldexp(1.0, -max(-1000, min(e, 1000)));
        }
        a /= divisor;
        double s = scale ? scale[o] : 1.0;
        return root ? sqrt(a) / s : a / s / s;
    }
    __device__ __forceinline__ int64_t finish(int64_t a, int64_t) const { return a; }
    template <class A> __device__ __forceinline__ void put(int64_t o, A all) const
    {
        int64_t to[2];
        locate(at, o, to);
        kin<A>::store(y, dtype, to[0], finish(all, o));
    }
};

/* Results that need a large function, in a separate kernel: norms of other orders (scale: as of
 * put_result), logsumexp and, unless it is NULL, its factor (kernels.h), where y is dense. */
__global__ void reduce_finish(const __grid_constant__ put_result put, const double *sum,
                              const double *center, const double *scale, double power, void *factor)
{
    for (int64_t step = grid_threads(), o = grid_thread(); o < put.at.numel; o += step) {
        double base = center ? finite_part(center[o]) : 0, rest = center ? log(sum[o]) : 0;
        put.put(o, center ? rest + base : pow(sum[o], power) / scale[o]);
        if (!factor) continue;
        int64_t to[2];
        locate(put.at, o, to);
        double y = kin<double>::load(put.y, put.dtype, to[0]);
        kin<double>::store(factor, put.dtype == TN_F64 ? TN_F64 : TN_F32, to[0],
                           y - y == 0 ? exp((y - base) - rest) : 1);
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

static pass pass_of(int function, double p)
{
    switch (function) {
    case TNI_R_prod: return PROD;
    case TNI_R_max: return LARGEST;
    case TNI_R_min: return SMALLEST;
    case TNI_R_max_abs: return LARGEST_ABS;
    case TNI_R_any: return ANY;
    case TNI_R_all: return ALL;
    case TNI_R_var:
    case TNI_R_std: return SUM_SQUARE_DIFF;
    case TNI_R_norm: return p == HUGE_VAL ? LARGEST_ABS : SUM_ABS_POW;
    case TNI_R_logsumexp: return SUM_EXP_DIFF;
    default: return SUM;
    }
}

/* p: the order of a norm; center, scale: of each result, f64, or NULL. */
typedef struct pass_options {
    double p;
    const double *center, *scale;
} pass_options;

template <class T>
static tn_status run_real(pass pass, const reduce_axes &r, const put_result &put, pass_options o)
{
    way<T> w = { pass, static_cast<T>(o.p), 0.0, 1.0, o.center, o.scale };

    if constexpr (std::is_same<T, float>::value) {
        if (pass == SUM)
            return reduce_run(r, way<float, true>{ SUM, 0, 0, 1, nullptr, nullptr }, put);
    }
    return reduce_run(r, w, put);
}

static tn_status run(pass pass, const reduce_axes &r, const put_result &put, pass_options o)
{
    switch (computing_type(r.dtype)) {
    case TN_F32: return run_real<float>(pass, r, put, o);
    case TN_F64: return run_real<double>(pass, r, put, o);
    default: return reduce_run(r, way<int64_t>{ pass }, put);
    }
}

/* Results as f64, one after the other. */
static put_result to_doubles(const reduce_axes &r, void *y)
{
    put_result put = {};

    put.at.rank = 1;
    put.at.size[0] = r.kept.numel;
    put.at.stride[0][0] = 1;
    places_finish(&put.at);
    put.y = y;
    put.dtype = TN_F64;
    put.divisor = 1.0;
    return put;
}

/* A pass whose results go to a block that it borrows. */
static tn_status run_aside(pass pass, const reduce_axes &r, pass_options o, tni_cuda_scratch &block,
                           double divisor = 1.0)
{
    size_t doubles = static_cast<size_t>(r.kept.numel) * sizeof(double);
    if (tn_status failed = block.borrow(doubles)) return failed;
    put_result put = to_doubles(r, block.at);
    put.divisor = divisor;
    put.unit = pass == LARGEST_ABS;
    return run(pass, r, put, o);
}

tn_status tni_cuda_reduce(const tni_reduce *a)
{
    reduce_axes r;
    put_result put = {};
    tni_cuda_scratch scale, center, sum;

    if (!reduce_plan(&r, &put.at, &a->y, nullptr, &a->x)) return TN_OK;
    put.y = a->y.data;
    put.dtype = a->y.dtype;
    pass_options o = { a->p ? a->p[0] : 0.0, nullptr, nullptr };
    pass pass = pass_of(a->function, o.p);
    bool spread = pass == SUM_SQUARE_DIFF, other = pass == SUM_ABS_POW && o.p != 1.0 && o.p != 2.0;
    bool squares = spread || (pass == SUM_ABS_POW && o.p == 2.0);
    double n = static_cast<double>(r.reduced.numel);
    put.divisor = a->function == TNI_R_mean ? n : spread ? (n > o.p ? n - o.p : 0.0) : 1.0;
    put.root = a->function == TNI_R_std || (a->function == TNI_R_norm && o.p == 2.0);
    if (other || (squares && r.dtype == TN_F64)) {
        if (tn_status failed = run_aside(LARGEST_ABS, r, o, scale)) return failed;
        o.scale = put.scale = scale.as<const double>();
    }
    if (spread || pass == SUM_EXP_DIFF) {
        if (tn_status failed =
                spread ? run_aside(SUM_WIDE, r, o, center, n) : run_aside(LARGEST, r, o, center))
            return failed;
        o.center = center.as<const double>();
    }
    if (!other && pass != SUM_EXP_DIFF) return run(pass, r, put, o);
    if (tn_status failed = run_aside(pass, r, o, sum)) return failed;
    put.scale = nullptr;
    return TN_LAUNCH((reduce_finish), tni_cuda_blocks(r.kept.numel, 256, 1024), 256, 0, put,
                     sum.as<const double>(), o.center, o.scale, 1.0 / o.p, a->factor.data);
}
