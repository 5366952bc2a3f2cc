/*
 * scan.cu - along one axis: the first extreme with its index (a reduction, reduce.h), and running
 * sums.
 *
 * Running sums are double or int64_t and rounded once per element. Short lines, and lines adjacent
 * in memory, take a thread each; others a block, which works in pieces.
 */
#include "cuda/reduce.h"

/* ---- the first extreme ----------------------------------------------------------------------- */

template <class T> struct wide_of {
    typedef double type;
};
template <> struct wide_of<int64_t> {
    typedef int64_t type;
};

/* i < 0: nothing yet */
template <class V> struct found {
    V v;
    int64_t i;
};

/* Looks for the largest; for the smallest, of the numbers in reverse order. NaN beats numbers. */
template <class T> struct extreme {
    typedef T item;
    typedef typename wide_of<T>::type V;
    typedef found<V> all;
    typedef found<V> part;
    static constexpr int group = 1024;
    bool largest;

    __device__ __forceinline__ extreme at(int64_t) const { return *this; }
    __device__ __forceinline__ part start() const { return empty(); }
    __device__ __forceinline__ void add(part &a, T x, int64_t i) const
    {
        V v = turned(static_cast<V>(x));
        if (a.i < 0 || (a.v == a.v && (v > a.v || v != v))) a = { v, i };
    }
    __device__ __forceinline__ all widen(const part &a) const { return a; }
    static __device__ __forceinline__ all empty() { return { 0, -1 }; }
    static __device__ __forceinline__ all join(const all &a, const all &b)
    {
        if (a.i < 0 || b.i < 0) return a.i < 0 ? b : a;
        bool a_nan = a.v != a.v;
        bool b_nan = b.v != b.v;
        bool even = a_nan ? b_nan : a.v == b.v;
        if (even) return a.i < b.i ? a : b;
        return a_nan || (!b_nan && a.v > b.v) ? a : b;
    }
    __device__ __forceinline__ double turned(double v) const { return largest ? v : -v; }
    __device__ __forceinline__ int64_t turned(int64_t v) const { return largest ? v : ~v; }
};

template <class T> struct put_extreme {
    places<2> at; /* index, value */
    int64_t *index;
    void *value; /* NULL: not wanted */
    tn_dtype dtype;
    extreme<T> way;

    template <class A> __device__ __forceinline__ void put(int64_t o, const A &all) const
    {
        int64_t to[2];
        locate(at, o, to);
        index[to[0]] = all.i;
        if (value) kin<typename extreme<T>::V>::store(value, dtype, to[1], way.turned(all.v));
    }
};

template <class T>
static tn_status run_extreme(const reduce_axes &r, const places<2> &at, bool largest,
                             const tni_array *value, const tni_array *index)
{
    extreme<T> way = { largest };
    put_extreme<T> put = { at, static_cast<int64_t *>(index->data), value->data, value->dtype,
                           way };
    return reduce_run(r, way, put);
}

tn_status tni_cuda_arg_reduce(const tni_arg_reduce *a)
{
    reduce_axes r;
    places<2> at;

    /* the axis is not needed: index has size 1 there; a size of 1 gives index 0 anyway */
    if (!reduce_plan(&r, &at, &a->index, a->value.data ? &a->value : nullptr, &a->x)) return TN_OK;
    switch (computing_type(a->x.dtype)) {
    case TN_F32: return run_extreme<float>(r, at, a->largest, &a->value, &a->index);
    case TN_F64: return run_extreme<double>(r, at, a->largest, &a->value, &a->index);
    default: return run_extreme<int64_t>(r, at, a->largest, &a->value, &a->index);
    }
}

/* ---- running sums ---------------------------------------------------------------------------- */

enum {
    SCAN_THREADS = 256,
    SCAN_EACH = 4,
    SCAN_STRETCH = SCAN_THREADS * SCAN_EACH,
    SHORT_LINE = 64
};

struct scan_args {
    places<2> lines; /* of x, y: where lines start */
    const void *x;
    void *y;
    tn_dtype x_dtype, y_dtype;
    int64_t n, x_step, y_step; /* along a line, in the order of the sums */
};

/* The sum, or with P the product. */
template <bool P> static __device__ __forceinline__ double plus(double a, double b)
{
    return P ? a * b : a + b;
}
template <bool P> static __device__ __forceinline__ int64_t plus(int64_t a, int64_t b)
{
    uint64_t u = static_cast<uint64_t>(a), v = static_cast<uint64_t>(b);
    return static_cast<int64_t>(P ? u * v : u + v);
}

template <class A, bool P> __global__ void scan_threads(const __grid_constant__ scan_args s)
{
    for (int64_t step = grid_threads(), line = grid_thread(); line < s.lines.numel; line += step) {
        int64_t at[2];
        A sum = P;
        locate(s.lines, line, at);
        for (int64_t i = 0; i < s.n; i++) {
            sum = plus<P>(sum, kin<A>::load(s.x, s.x_dtype, at[0] + i * s.x_step));
            kin<A>::store(s.y, s.y_dtype, at[1] + i * s.y_step, sum);
        }
    }
}

/* What all lanes below give. */
template <class A, bool P> static __device__ __forceinline__ A sum_below(A own, A *all)
{
    int lane = threadIdx.x % 32;
    A sum = own;

    for (int apart = 1; apart < 32; apart *= 2) {
        A other = __shfl_up_sync(WARP_ALL, sum, apart);
        if (lane >= apart) sum = plus<P>(other, sum);
    }
    *all = __shfl_sync(WARP_ALL, sum, 31);
    A below = __shfl_up_sync(WARP_ALL, sum, 1);
    return lane > 0 ? below : static_cast<A>(P);
}

template <class A, bool P> __global__ void scan_blocks(const __grid_constant__ scan_args s)
{
    __shared__ A of_warp[SCAN_THREADS / 32];
    int warp = threadIdx.x / 32;

    for (int64_t line = blockIdx.x; line < s.lines.numel; line += gridDim.x) {
        int64_t at[2];
        A before = P; /* everything before this piece */

        locate(s.lines, line, at);
        for (int64_t from = 0; from < s.n; from += SCAN_STRETCH) {
            int64_t first = from + threadIdx.x * SCAN_EACH;
            A v[SCAN_EACH], own = P;

            TN_UNROLL
            for (int k = 0; k < SCAN_EACH; k++) {
                bool there = first + k < s.n;
                v[k] = there ? kin<A>::load(s.x, s.x_dtype, at[0] + (first + k) * s.x_step) : P;
                own = plus<P>(own, v[k]);
            }
            A of_all;
            A sum = sum_below<A, P>(own, &of_all);
            if (threadIdx.x % 32 == 0) of_warp[warp] = of_all;
            __syncthreads();
            A below = before;
            for (int k = 0; k < SCAN_THREADS / 32; k++) {
                if (k < warp) below = plus<P>(below, of_warp[k]);
                before = plus<P>(before, of_warp[k]);
            }
            sum = plus<P>(below, sum);
            TN_UNROLL
            for (int k = 0; k < SCAN_EACH; k++) {
                sum = plus<P>(sum, v[k]);
                if (first + k < s.n)
                    kin<A>::store(s.y, s.y_dtype, at[1] + (first + k) * s.y_step, sum);
            }
            __syncthreads();
        }
    }
}

template <class A, bool P> static tn_status run_scan(const scan_args &s, bool by_threads)
{
    int64_t most = 32LL * tni_cuda_multiprocessors();

    if (by_threads) {
        return TN_LAUNCH((scan_threads<A, P>), tni_cuda_blocks(s.lines.numel, SCAN_THREADS, most),
                         SCAN_THREADS, 0, s);
    }
    return TN_LAUNCH((scan_blocks<A, P>), tni_cuda_blocks(s.lines.numel, 1, most), SCAN_THREADS, 0,
                     s);
}

tn_status tni_cuda_cumsum(const tni_cumsum *a)
{
    tni_array x_lines = a->x;
    tni_array y_lines = a->y;
    const tni_array *arrays[] = { &x_lines, &y_lines };
    int64_t item_x = static_cast<int64_t>(item_size(a->x.dtype));
    int64_t item_y = static_cast<int64_t>(item_size(a->y.dtype));

    if (a->x.rank == 0) return copy_to(a->y, a->x);
    x_lines.size[a->axis] = y_lines.size[a->axis] = 1;
    scan_args s;
    s.lines = places_of<2>(arrays);
    s.n = a->x.size[a->axis];
    if (s.lines.numel == 0 || s.n == 0) return TN_OK;
    s.x_step = a->reverse ? -a->x.stride[a->axis] : a->x.stride[a->axis];
    s.y_step = a->reverse ? -a->y.stride[a->axis] : a->y.stride[a->axis];
    s.x = static_cast<const char *>(a->x.data) +
          (a->reverse ? (s.n - 1) * a->x.stride[a->axis] * item_x : 0);
    s.y = static_cast<char *>(a->y.data) +
          (a->reverse ? (s.n - 1) * a->y.stride[a->axis] * item_y : 0);
    s.x_dtype = a->x.dtype;
    s.y_dtype = a->y.dtype;
    bool by_threads =
        s.n <= SHORT_LINE || (s.lines.numel >= 1024 && s.lines.stride[0][0] < a->x.stride[a->axis]);
    if (a->product)
        return is_float(a->x.dtype) ? run_scan<double, true>(s, by_threads)
                                    : run_scan<int64_t, true>(s, by_threads);
    return is_float(a->x.dtype) ? run_scan<double, false>(s, by_threads)
                                : run_scan<int64_t, false>(s, by_threads);
}
