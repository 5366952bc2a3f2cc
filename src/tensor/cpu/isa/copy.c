/*
 * copy.c - copies between any dtypes and strides, and fills.
 *
 * Equal dtypes are copied as bytes: dense runs by memcpy; transpositions (y is dense along one
 * axis, x along another) in square tiles that fit the L1 cache; else element by element.
 */
#include "tensor/cpu/pointwise.h"
#include "tensor/walk.h"

enum { GRAIN = 32768, TILE = 64 };

typedef struct job {
    tni_walk walk; /* array 0: y, array 1: x */
    char *y;
    const char *x;
    int64_t y_item, x_item;
    tn_dtype y_dtype, x_dtype;
    tn_dtype type; /* conversions go through this type */
    int across;    /* transposition: the axis along which x is dense */
    int64_t across_tiles, last_tiles;
} job;

/*
 * A block of N x N elements is transposed in registers of 16 bytes: after log2(N) rounds of
 * interleaving rows i and i + N / 2 element (a, b) has moved to (b, a).
 * Source: the perfect shuffle of Stone, Parallel Processing with the Perfect Shuffle (1971).
 *
 * y[b][a] = x[a][b] for a tile of a x b. The L1 cache cannot hold its rows of x if they lie a
 * multiple of 1 KiB apart: they share a few of its sets. Then they pass through a buffer.
 */
#define FRONT_8 0, 2
#define BACK_8 1, 3
#define FRONT_4 0, 4, 1, 5
#define BACK_4 2, 6, 3, 7
#define FRONT_2 0, 8, 1, 9, 2, 10, 3, 11
#define BACK_2 4, 12, 5, 13, 6, 14, 7, 15
#define FRONT_1 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define BACK_1 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* For elements of SIZE bytes; also rows with any strides, or of one value. */
#define MOVES(T, SIZE)                                                                             \
    static void move_row_##T(int64_t n, void *yy, int64_t ys, const void *xx, int64_t xs)          \
    {                                                                                              \
        T *y = yy, v = *(const T *)xx;                                                             \
        const T *x = xx;                                                                           \
        if (ys != 1 || xs != 0)                                                                    \
            for (int64_t i = 0; i < n; i++) y[i * ys] = x[i * xs];                                 \
        else if (v == 0)                                                                           \
            memset(y, 0, (size_t)n * sizeof(T));                                                   \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) y[i] = v;                                              \
    }                                                                                              \
    static inline void move_block_##T(T *y, int64_t y_b, const T *x, int64_t x_a)                  \
    {                                                                                              \
        enum { N = 16 / SIZE };                                                                    \
        typedef T vector __attribute__((vector_size(16)));                                         \
        vector row[N], next[N];                                                                    \
        for (int i = 0; i < N; i++) memcpy(&row[i], x + i * x_a, 16);                              \
        for (int round = 1; round < N; round *= 2) {                                               \
            for (int i = 0; i < N / 2; i++) {                                                      \
                next[2 * i] = __builtin_shufflevector(row[i], row[i + N / 2], FRONT_##SIZE);       \
                next[2 * i + 1] = __builtin_shufflevector(row[i], row[i + N / 2], BACK_##SIZE);    \
            }                                                                                      \
            for (int i = 0; i < N; i++) row[i] = next[i];                                          \
        }                                                                                          \
        for (int i = 0; i < N; i++) memcpy(y + i * y_b, &row[i], 16);                              \
    }                                                                                              \
    static void move_tile_##T(int64_t na, int64_t nb, void *yy, int64_t y_b, const void *xx,       \
                              int64_t x_a)                                                         \
    {                                                                                              \
        T *y = yy;                                                                                 \
        const T *x = xx;                                                                           \
        enum { N = 16 / SIZE, ROW = TILE + N };                                                    \
        _Alignas(64) T tile[TILE * ROW];                                                           \
        if (x_a * SIZE % 1024 == 0) {                                                              \
            for (int64_t a = 0; a < na; a++)                                                       \
                for (int64_t b = 0; b < nb; b++) tile[a * ROW + b] = x[a * x_a + b];               \
            x = tile, x_a = ROW;                                                                   \
        }                                                                                          \
        int64_t b = 0;                                                                             \
        for (; b + N <= nb; b += N) {                                                              \
            int64_t a = 0;                                                                         \
            for (; a + N <= na; a += N)                                                            \
                move_block_##T(y + b * y_b + a, y_b, x + a * x_a + b, x_a);                        \
            for (; a < na; a++)                                                                    \
                for (int i = 0; i < N; i++) y[(b + i) * y_b + a] = x[a * x_a + b + i];             \
        }                                                                                          \
        for (; b < nb; b++)                                                                        \
            for (int64_t a = 0; a < na; a++) y[b * y_b + a] = x[a * x_a + b];                      \
    }
MOVES(uint8_t, 1)
MOVES(uint16_t, 2)
MOVES(uint32_t, 4)
MOVES(uint64_t, 8)

/* By the bytes of an element. */
static const struct {
    void (*row)(int64_t n, void *y, int64_t ys, const void *x, int64_t xs);
    void (*tile)(int64_t na, int64_t nb, void *y, int64_t y_b, const void *x, int64_t x_a);
} move[] = { [1] = { move_row_uint8_t, move_tile_uint8_t },
             [2] = { move_row_uint16_t, move_tile_uint16_t },
             [4] = { move_row_uint32_t, move_tile_uint32_t },
             [8] = { move_row_uint64_t, move_tile_uint64_t } };

static void convert_row(const job *j, int64_t n, char *y, int64_t ys, const char *x, int64_t xs)
{
    _Alignas(64) char buffer[TNI_BLOCK * sizeof(double)];
    if (j->x_dtype == j->type && xs == 1) {
        K(tni_store)(j->type, n, y, j->y_dtype, ys, x);
        return;
    }
    for (int64_t i = 0; i < n; i += TNI_BLOCK) {
        int64_t m = n - i < TNI_BLOCK ? n - i : TNI_BLOCK;
        K(tni_load)(j->type, m, buffer, x + i * xs * j->x_item, j->x_dtype, xs);
        K(tni_store)(j->type, m, y + i * ys * j->y_item, j->y_dtype, ys, buffer);
    }
}

static void copy_chunk(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    const tni_walk *w = &j->walk;
    int last = w->rank - 1;
    tni_cursor c;
    tni_cursor_seek(&c, w, begin);
    while (begin < end) {
        int64_t n = TNI_MIN(w->size[last] - c.index[last], end - begin);
        char *y = j->y + c.at[0] * j->y_item;
        const char *x = j->x + c.at[1] * j->x_item;
        if (j->x_dtype != j->y_dtype)
            convert_row(j, n, y, w->stride[last][0], x, w->stride[last][1]);
        else if (w->stride[last][0] == 1 && w->stride[last][1] == 1)
            memcpy(y, x, (size_t)(n * j->y_item));
        else
            move[j->y_item].row(n, y, w->stride[last][0], x, w->stride[last][1]);
        begin += n;
        if (begin < end) tni_cursor_step(&c, w, n);
    }
}

static void transpose_chunk(void *context, int64_t begin, int64_t end)
{
    const job *j = context;
    const tni_walk *w = &j->walk;
    int last = w->rank - 1;
    for (int64_t t = begin; t < end; t++) {
        int64_t a = t % j->last_tiles * TILE;
        int64_t b = t / j->last_tiles % j->across_tiles * TILE;
        int64_t outer = t / j->last_tiles / j->across_tiles;
        int64_t na = w->size[last] - a < TILE ? w->size[last] - a : TILE;
        int64_t nb = w->size[j->across] - b < TILE ? w->size[j->across] - b : TILE;
        int64_t y = a + b * w->stride[j->across][0], x = a * w->stride[last][1] + b;
        for (int d = last - 1; d >= 0; d--) {
            if (d == j->across) continue;
            y += outer % w->size[d] * w->stride[d][0];
            x += outer % w->size[d] * w->stride[d][1];
            outer /= w->size[d];
        }
        move[j->y_item].tile(na, nb, j->y + y * j->y_item, w->stride[j->across][0],
                             j->x + x * j->x_item, w->stride[last][1]);
    }
}

/* The axis along which x is dense if y is dense along the last one; else -1. */
static int transposed_axis(const tni_walk *w)
{
    int last = w->rank - 1;
    if (w->stride[last][0] != 1 || w->stride[last][1] <= 1 || w->size[last] < 4) return -1;
    for (int d = 0; d < last; d++)
        if (w->stride[d][1] == 1 && w->size[d] >= 4) return d;
    return -1;
}

/* Rows of a few elements would cost more than what is in them: the longer axis before goes last. */
static void longer_last(tni_walk *w)
{
    int last = w->rank - 1;
    if (last < 1 || w->size[last] >= 8 || w->size[last] >= w->size[last - 1]) return;
    tni_walk was = *w;
    w->size[last] = was.size[last - 1];
    w->size[last - 1] = was.size[last];
    memcpy(w->stride[last], was.stride[last - 1], sizeof *w->stride);
    memcpy(w->stride[last - 1], was.stride[last], sizeof *w->stride);
}

tn_status K(tni_copy)(const tni_copy *a)
{
    const tni_array *arrays[] = { &a->y, &a->x };
    job j;
    tni_walk_init(&j.walk, 2, arrays);
    if (j.walk.numel == 0) return TN_OK;
    j.y = a->y.data;
    j.x = a->x.data;
    j.y_dtype = a->y.dtype;
    j.x_dtype = a->x.dtype;
    j.y_item = (int64_t)tn_dtype_size(a->y.dtype);
    j.x_item = (int64_t)tn_dtype_size(a->x.dtype);
    j.type = TN_F32;
    if (a->y.dtype == TN_F64 || a->x.dtype == TN_F64)
        j.type = TN_F64;
    else if (!tn_dtype_is_float(a->y.dtype) && !tn_dtype_is_float(a->x.dtype))
        j.type = TN_I64;
    j.across = j.y_dtype == j.x_dtype ? transposed_axis(&j.walk) : -1;
    if (j.across >= 0) {
        int64_t across = j.walk.size[j.across], last = j.walk.size[j.walk.rank - 1];
        j.across_tiles = (across - 1) / TILE + 1;
        j.last_tiles = (last - 1) / TILE + 1;
        return tni_parallel_args(j.walk.numel / across / last * j.across_tiles * j.last_tiles,
                                 GRAIN / (TILE * TILE), transpose_chunk, &j);
    }
    longer_last(&j.walk);
    return tni_parallel_args(j.walk.numel, GRAIN, copy_chunk, &j);
}

/* A copy of one element. */
tn_status K(tni_fill)(const tni_fill *a)
{
    double f = a->value.f;
    bool truth = a->value.f != 0.0 || a->value.i != 0;
    int64_t i = a->y.dtype == TN_BOOL ? truth : a->value.i;
    uint64_t value = 0;
    tni_copy one = { .y = a->y, .x = a->y };
    one.x.data = &value;
    memset(one.x.stride, 0, sizeof one.x.stride);
    if (tn_dtype_is_float(a->y.dtype))
        K(tni_store)(TN_F64, 1, &value, a->y.dtype, 1, &f);
    else
        K(tni_store)(TN_I64, 1, &value, a->y.dtype, 1, &i);
    return K(tni_copy)(&one);
}
