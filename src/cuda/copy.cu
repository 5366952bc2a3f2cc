/*
 * copy.cu - copies between any dtypes and strides, and fills.
 *
 * Equal dtypes are copied as bytes: dense arrays in one copy; transpositions (y is dense along one
 * axis, x along another) through square tiles of shared memory, so that reads and writes both
 * follow rows; others four or one element at a time. Unequal dtypes pass through f32, f64 or i64,
 * as on the CPU; the common casts of mixed precision, dense f32 to and from bf16 and f16, have
 * kernels of their own.
 */
#include <type_traits>

#include "cuda/elements.h"
#include "cuda/half.h"

enum { COPY_THREADS = 256, TILE = 32, TILE_STEP = COPY_THREADS / TILE };

template <class U> struct move_args {
    places<2> at; /* array 0: y */
    U *y;
    const U *x; /* NULL: value */
    U value;
    int left;
};

/* ---- bytes ----------------------------------------------------------------------------------- */

template <class U> __global__ void move_fours(const __grid_constant__ move_args<U> a)
{
    int64_t step = grid_threads(), first = grid_thread();

    for (int64_t i = first; i < a.at.numel; i += step) {
        int64_t at[2];

        locate(a.at, i, at);
        four<U> q;
        if (a.x && a.at.stride[0][1]) {
            q = fetch<U>(a.x, at[1]);
        } else {
            U v = a.x ? a.x[at[1]] : a.value;
            TN_UNROLL
            for (int k = 0; k < 4; k++) q.v[k] = v;
        }
        *reinterpret_cast<four<U> *>(a.y + at[0]) = q;
    }
    if (first < a.left) {
        int64_t i = 4 * a.at.numel + first;
        a.y[i] = a.x ? a.x[a.at.stride[0][1] ? i : 0] : a.value;
    }
}

template <class U> __global__ void move_single(const __grid_constant__ move_args<U> a)
{
    for (int64_t step = grid_threads(), i = grid_thread(); i < a.at.numel; i += step) {
        int64_t at[2];
        locate(a.at, i, at);
        a.y[at[0]] = a.x ? a.x[at[1]] : a.value;
    }
}

/* y[b][a] = x[a][b] over tiles: axis 0 is y's innermost (a), axis 1 is x's (b); the others number
 * the planes. */
template <class U> struct turn_args {
    places<2> outer;
    U *y;
    const U *x;
    int64_t a_size, b_size, a_tiles, b_tiles;
    int64_t y_b, x_a; /* strides; those of a in y and of b in x are 1 */
};

template <class U> __global__ void move_tiles(const __grid_constant__ turn_args<U> t)
{
    __shared__ U tile[TILE][TILE + 1]; /* one more, so columns are in different banks */
    int along = threadIdx.x % TILE;
    int across = threadIdx.x / TILE;
    int64_t tiles = t.a_tiles * t.b_tiles * t.outer.numel;

    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        int64_t a = i % t.a_tiles * TILE;
        int64_t b = i / t.a_tiles % t.b_tiles * TILE;
        int64_t at[2];

        locate(t.outer, i / t.a_tiles / t.b_tiles, at);
        for (int r = across; r < TILE; r += TILE_STEP)
            if (a + r < t.a_size && b + along < t.b_size)
                tile[r][along] = t.x[at[1] + (a + r) * t.x_a + b + along];
        __syncthreads();
        for (int r = across; r < TILE; r += TILE_STEP)
            if (b + r < t.b_size && a + along < t.a_size)
                t.y[at[0] + (b + r) * t.y_b + a + along] = tile[along][r];
        __syncthreads();
    }
}

static unsigned blocks_for(int64_t n)
{
    return tni_cuda_blocks(n, COPY_THREADS, 16LL * tni_cuda_multiprocessors());
}

/* The axis along which x is dense if y is dense along axis 0; else -1. */
static int turned_axis(const places<2> &w)
{
    if (w.stride[0][0] != 1 || w.stride[0][1] <= 1 || w.size[0] < 4) return -1;
    for (int d = 1; d < w.rank; d++)
        if (w.stride[d][1] == 1 && w.size[d] >= 4) return d;
    return -1;
}

template <class U> static tn_status turn(const places<2> &w, int axis, U *y, const U *x)
{
    turn_args<U> t;

    t.y = y;
    t.x = x;
    t.a_size = w.size[0];
    t.b_size = w.size[axis];
    t.a_tiles = (t.a_size + TILE - 1) / TILE;
    t.b_tiles = (t.b_size + TILE - 1) / TILE;
    t.y_b = w.stride[axis][0];
    t.x_a = w.stride[0][1];
    t.outer = places<2>();
    for (int d = 1; d < w.rank; d++) {
        if (d == axis) continue;
        t.outer.size[t.outer.rank] = w.size[d];
        for (int k = 0; k < 2; k++) t.outer.stride[t.outer.rank][k] = w.stride[d][k];
        t.outer.rank++;
    }
    if (t.outer.rank == 0) t.outer.size[t.outer.rank++] = 1;
    places_finish(&t.outer);
    return TN_LAUNCH((move_tiles<U>),
                     tni_cuda_blocks(t.a_tiles * t.b_tiles * t.outer.numel, 1,
                                     16LL * tni_cuda_multiprocessors()),
                     COPY_THREADS, 0, t);
}

/* x NULL: fills with the value, of which U's bytes count. */
template <class U> static tn_status move(const tni_array *y, const tni_array *x, uint64_t value)
{
    const tni_array *arrays[] = { y, x ? x : y };
    move_args<U> a;

    a.at = places_of<2>(arrays);
    a.y = static_cast<U *>(y->data);
    a.x = x ? static_cast<const U *>(x->data) : nullptr;
    a.value = static_cast<U>(value);
    a.left = 0;
    int64_t numel = a.at.numel;
    if (numel == 0) return TN_OK;
    if (a.at.rank == 1 && a.at.stride[0][0] == 1 && a.at.stride[0][1] == 1) {
        size_t bytes = static_cast<size_t>(numel) * sizeof(U);
        if (tn_status failed = tni_cuda_launching("copy")) return failed;
        if (x) {
            return TN_CUDA(
                cudaMemcpyAsync(a.y, a.x, bytes, cudaMemcpyDeviceToDevice, tni_cuda_stream));
        }
        if (value == 0) return TN_CUDA(cudaMemsetAsync(a.y, 0, bytes, tni_cuda_stream));
    }
    int axis = x ? turned_axis(a.at) : -1;
    if (axis >= 0) return turn<U>(a.at, axis, a.y, a.x);
    if (!places_by(4, &a.at, arrays))
        return TN_LAUNCH((move_single<U>), blocks_for(numel), COPY_THREADS, 0, a);
    a.left = static_cast<int>(numel - 4 * a.at.numel);
    return TN_LAUNCH((move_fours<U>), blocks_for(a.at.numel + a.left), COPY_THREADS, 0, a);
}

static tn_status move_items(const tni_array *y, const tni_array *x, uint64_t value)
{
    switch (item_size(y->dtype)) {
    case 1: return move<uint8_t>(y, x, value);
    case 2: return move<uint16_t>(y, x, value);
    case 4: return move<uint32_t>(y, x, value);
    default: return move<uint64_t>(y, x, value);
    }
}

/* ---- casts ----------------------------------------------------------------------------------- */

struct cast_args {
    places<2> at;
    void *y;
    const void *x;
    tn_dtype y_dtype, x_dtype;
    int left;
};

template <class T> __global__ void cast_fours(const __grid_constant__ cast_args a)
{
    int64_t step = grid_threads(), first = grid_thread();

    for (int64_t i = first; i < a.at.numel; i += step) {
        int64_t at[2];

        locate(a.at, i, at);
        T v[4];
        if (a.at.stride[0][1]) {
            load4(v, a.x, a.x_dtype, at[1]);
        } else {
            T one = load<T>(a.x, a.x_dtype, at[1]);
            TN_UNROLL
            for (int k = 0; k < 4; k++) v[k] = one;
        }
        store4(a.y, a.y_dtype, at[0], v);
    }
    if (first < a.left) {
        int64_t i = 4 * a.at.numel + first;
        store(a.y, a.y_dtype, i, load<T>(a.x, a.x_dtype, a.at.stride[0][1] ? i : 0));
    }
}

template <class T> __global__ void cast_single(const __grid_constant__ cast_args a)
{
    for (int64_t step = grid_threads(), i = grid_thread(); i < a.at.numel; i += step) {
        int64_t at[2];
        locate(a.at, i, at);
        store(a.y, a.y_dtype, at[0], load<T>(a.x, a.x_dtype, at[1]));
    }
}

/* As f32 and back, with every bit of a NaN: a GPU's own conversions (half.h) give only one NaN. */
template <class X> static __device__ __forceinline__ float widened(X x)
{
    if constexpr (std::is_same<X, bf16>::value)
        return tn_from_bf16(x.bits);
    else if constexpr (std::is_same<X, f16>::value)
        return tn_from_f16(x.bits);
    else
        return x;
}

template <class Y> static __device__ __forceinline__ Y narrowed(float x)
{
    if constexpr (std::is_same<Y, bf16>::value)
        return bf16{ tn_to_bf16(x) };
    else if constexpr (std::is_same<Y, f16>::value)
        return f16{ tn_to_f16(x) };
    else
        return x;
}

/* Dense elements: a thread takes CAST_FOURS fours, and reads all before it writes one; neighbouring
 * threads take neighbouring fours, so that warps read and write whole lines. The last n % 4 are
 * taken one by one. */
enum { CAST_FOURS = 4 };

template <class Y, class X>
static __global__ void __launch_bounds__(COPY_THREADS) cast_dense(Y *y, const X *x, int64_t n)
{
    int64_t block = static_cast<int64_t>(blockIdx.x) * CAST_FOURS * COPY_THREADS;
    int64_t step = static_cast<int64_t>(gridDim.x) * CAST_FOURS * COPY_THREADS;
    int64_t fours = n / 4;

    for (int64_t i = block + threadIdx.x; i < fours; i += step) {
        four<X> from[CAST_FOURS] = {};
        TN_UNROLL
        for (int u = 0; u < CAST_FOURS; u++)
            if (i + u * COPY_THREADS < fours) from[u] = fetch<X>(x, 4 * (i + u * COPY_THREADS));
        TN_UNROLL
        for (int u = 0; u < CAST_FOURS; u++) {
            four<Y> to;
            TN_UNROLL
            for (int k = 0; k < 4; k++) to.v[k] = narrowed<Y>(widened(from[u].v[k]));
            if (i + u * COPY_THREADS < fours)
                *reinterpret_cast<four<Y> *>(y + 4 * (i + u * COPY_THREADS)) = to;
        }
    }
    int64_t rest = 4 * fours + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) y[rest] = narrowed<Y>(widened(x[rest]));
}

template <class Y, class X>
static tn_status launch_dense(const tni_array *y, const tni_array *x, int64_t n)
{
    return TN_LAUNCH((cast_dense<Y, X>), blocks_for(n / 4 / CAST_FOURS + 1), COPY_THREADS, 0,
                     static_cast<Y *>(y->data), static_cast<const X *>(x->data), n);
}

/* Casts between f32 and a half-precision float, by fours: `done` is then set. */
static tn_status cast_neighbours(const tni_array *y, const tni_array *x, const places<2> *at,
                                 bool *done)
{
    bool dense = at->rank == 1 && at->stride[0][0] == 1 && at->stride[0][1] == 1;
    uintptr_t ends = reinterpret_cast<uintptr_t>(y->data) | reinterpret_cast<uintptr_t>(x->data);

    *done = dense && ends % 16 == 0 &&
            ((y->dtype == TN_F32 && tni_is_half(x->dtype)) ||
             (x->dtype == TN_F32 && tni_is_half(y->dtype)));
    if (!*done) return TN_OK;
    if (y->dtype == TN_BF16) return launch_dense<bf16, float>(y, x, at->numel);
    if (y->dtype == TN_F16) return launch_dense<f16, float>(y, x, at->numel);
    if (x->dtype == TN_BF16) return launch_dense<float, bf16>(y, x, at->numel);
    return launch_dense<float, f16>(y, x, at->numel);
}

template <class T> static tn_status cast(const tni_array *y, const tni_array *x)
{
    const tni_array *arrays[] = { y, x };
    cast_args a;

    a.at = places_of<2>(arrays);
    a.y = y->data;
    a.x = x->data;
    a.y_dtype = y->dtype;
    a.x_dtype = x->dtype;
    a.left = 0;
    int64_t numel = a.at.numel;
    if (numel == 0) return TN_OK;
    bool done;
    if (tn_status failed = cast_neighbours(y, x, &a.at, &done)) return failed;
    if (done) return TN_OK;
    if (!places_by(4, &a.at, arrays))
        return TN_LAUNCH((cast_single<T>), blocks_for(numel), COPY_THREADS, 0, a);
    a.left = static_cast<int>(numel - 4 * a.at.numel);
    return TN_LAUNCH((cast_fours<T>), blocks_for(a.at.numel + a.left), COPY_THREADS, 0, a);
}

/* ---- slots ----------------------------------------------------------------------------------- */

tn_status tni_cuda_copy(const tni_copy *a)
{
    if (a->y.dtype == a->x.dtype) return move_items(&a->y, &a->x, 0);
    if (a->y.dtype == TN_F64 || a->x.dtype == TN_F64) return cast<double>(&a->y, &a->x);
    if (is_float(a->y.dtype) || is_float(a->x.dtype)) return cast<float>(&a->y, &a->x);
    return cast<int64_t>(&a->y, &a->x);
}

tn_status tni_cuda_fill(const tni_fill *a)
{
    uint64_t bits = 0;
    float f = static_cast<float>(a->value.f);

    switch (a->y.dtype) {
    case TN_F32: bits = tn_bits_f32(f); break;
    case TN_F64: bits = tn_bits_f64(a->value.f); break;
    case TN_BF16: bits = tn_to_bf16(f); break;
    case TN_F16: bits = tn_to_f16(f); break;
    case TN_BOOL: bits = a->value.f != 0.0 || a->value.i != 0; break;
    default: bits = static_cast<uint64_t>(a->value.i); break; /* U's bytes count: wraps around */
    }
    return move_items(&a->y, nullptr, bits);
}
