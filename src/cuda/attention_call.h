/* attention_call.h - the arguments of every attention kernel, for all types: operands, masks, the
 * work of each block; and how the host fills them in. */
#pragma once

#include "cuda/mma.h"
#include "cuda/rows.h"
#include "cuda/tile.h"

/* The type of sums of elements of a type. */
template <typename R> struct summed {
    typedef float type;
};
template <> struct summed<double> {
    typedef double type;
};
template <typename R> using sum_of = typename summed<R>::type;

/* ---- operands -------------------------------------------------------------------------------- */

/* [B, H, rows, columns], last stride 1. */
template <typename R> struct operand {
    R *data;
    int64_t batch, head, row; /* strides */
    bool quads;               /* every row starts on 16 bytes */
    int64_t shared;           /* by so many heads of q in a row */
};

/* One of its matrices. */
template <typename R> struct matrix {
    R *data;
    int64_t row;
    bool quads;
};

template <typename R> struct attention {
    operand<R> q, k, v, y, dy, dq, dk, dv;
    const void *mask;
    bool mask_bool, causal;
    int64_t mask_stride[4];
    sum_of<R> *top, *share, *delta; /* [B, H, T]; top: as kept, see attention_rows.h */
    int64_t items, heads;
    int t, s, d, dv_size;
    int tiles, slices; /* of this launch: along T or S, along the result's columns */
    sum_of<R> scale;
};

template <typename R>
static __device__ __forceinline__ matrix<R> matrix_of(const operand<R> &o, int64_t b, int64_t h)
{
    return matrix<R>{ o.data + b * o.batch + h / o.shared * o.head, o.row, o.quads };
}

/* ---- scores ---------------------------------------------------------------------------------- */

template <typename R>
static __device__ __forceinline__ bool sees(const attention<R> &a, int query, int key)
{
    return query < a.t && key < a.s && (!a.causal || key <= query);
}

/* A product q . k as a score: scaled and masked; -inf if the query does not see the key. */
template <typename R>
static __device__ __forceinline__ sum_of<R> score(const attention<R> &a, int64_t mask, int query,
                                                  int key, sum_of<R> product)
{
    if (!sees(a, query, key)) return -(sum_of<R>)INFINITY;
    sum_of<R> s = product * a.scale;
    if (!a.mask) return s;
    const int64_t at = mask + query * a.mask_stride[2] + key * a.mask_stride[3];
    if (a.mask_bool) return static_cast<const uint8_t *>(a.mask)[at] ? -(sum_of<R>)INFINITY : s;
    const sum_of<R> add = wide(static_cast<const R *>(a.mask)[at]);
    return add == -(sum_of<R>)INFINITY ? add : s + add; /* whatever s is */
}

/* The work of a block: batch and head, tile, slice of the result. */
struct work {
    int64_t item, b, h;
    int tile, slice;
};

/* Neighbours share keys and values; of a causal head the long tiles come first. */
template <typename R>
static __device__ __forceinline__ work work_of(const attention<R> &a, int64_t number,
                                               bool late_first)
{
    work w;
    w.slice = (int)(number % a.slices);
    number /= a.slices;
    w.item = number % a.items;
    w.tile = (int)(number / a.items);
    if (late_first) w.tile = a.tiles - 1 - w.tile;
    w.b = w.item / a.heads;
    w.h = w.item % a.heads;
    return w;
}

/* The same with the tiles of a head side by side: its keys and values stay in the cache. There are
 * fewer than 2^31 blocks (tiles_fit), so fewer items and heads as well. */
template <typename R>
static __device__ __forceinline__ work work_by_head(const attention<R> &a, unsigned number,
                                                    bool late_first)
{
    const unsigned item = number / (unsigned)a.tiles;
    work w;
    w.slice = 0; /* the one that its launches have */
    w.tile = (int)(number % (unsigned)a.tiles);
    if (late_first) w.tile = a.tiles - 1 - w.tile;
    w.item = item;
    w.b = item / (unsigned)a.heads;
    w.h = item % (unsigned)a.heads;
    return w;
}

template <typename R>
static __device__ __forceinline__ int64_t mask_of(const attention<R> &a, const work &w)
{
    return w.b * a.mask_stride[0] + w.h * a.mask_stride[1];
}

/* ---- host ------------------------------------------------------------------------------------ */

template <typename R> static operand<R> operand_of(const tni_array *x)
{
    const int many = sizeof(R) == 2 ? 8 : 4;
    bool quads = quads_fit(x->data, 0);
    for (int i = 0; i < 3; i++) quads = quads && (x->size[i] <= 1 || x->stride[i] % many == 0);
    return operand<R>{ (R *)x->data, x->stride[0], x->stride[1], x->stride[2], quads, 1 };
}

template <typename R> static attention<R> plan(const tni_attention *g)
{
    attention<R> a = {};
    a.q = operand_of<R>(&g->q);
    a.k = operand_of<R>(&g->k);
    a.v = operand_of<R>(&g->v);
    a.y = operand_of<R>(&g->y);
    a.mask = g->mask.data;
    a.mask_bool = g->mask.dtype == TN_BOOL;
    for (int i = 0; i < 4 && a.mask; i++) a.mask_stride[i] = g->mask.stride[i];
    a.causal = g->causal;
    a.scale = (sum_of<R>)g->scale;
    a.top = (sum_of<R> *)g->top.data;
    a.share = (sum_of<R> *)g->share.data;
    a.heads = g->q.size[1];
    if (g->k.size[1] > 0) a.k.shared = a.v.shared = a.heads / g->k.size[1];
    a.items = g->q.size[0] * a.heads;
    a.t = (int)g->q.size[2];
    a.s = (int)g->k.size[2];
    a.d = (int)g->q.size[3];
    a.dv_size = (int)g->v.size[3];
    return a;
}

/* The same for gradients, with memory for delta where there are rows. */
template <typename R>
static tn_status plan_grad(const tni_attention_grad *g, attention<R> *a, tni_cuda_scratch *delta)
{
    *a = plan<R>(&g->of);
    a->dy = operand_of<R>(&g->dy);
    a->dq = operand_of<R>(&g->dq);
    a->dk = operand_of<R>(&g->dk);
    a->dv = operand_of<R>(&g->dv);
    const size_t rows = (size_t)a->items * (size_t)a->t;
    if (rows > 0)
        if (tn_status failed = delta->borrow(rows * sizeof(sum_of<R>))) return failed;
    a->delta = delta->as<sum_of<R>>();
    return TN_OK;
}

static inline tn_status fits(const tni_attention *g)
{
    const int64_t most = INT32_MAX - 256; /* whole tiles beyond it can be counted */
    if (g->q.size[2] <= most && g->k.size[2] <= most && g->q.size[3] <= most &&
        g->v.size[3] <= most)
        return TN_OK;
    return tni_cuda_host->fail(TN_E_UNSUPPORTED,
                               "attention: %" PRId64 " queries of %" PRId64 ", %" PRId64
                               " keys, values of %" PRId64 ": want at "
                               "most %" PRId64 " each",
                               g->q.size[2], g->q.size[3], g->k.size[2], g->v.size[3], most);
}

/* Cuts rows (T or S) into tiles and columns of the result into slices of `width`; a block makes
 * one. */
template <typename R>
static inline tn_status cut(attention<R> *a, int rows, int tile, int columns, int width,
                            unsigned *blocks)
{
    a->tiles = (rows - 1) / tile + 1;
    a->slices = (columns - 1) / width + 1;
    return tiles_fit("attention", a->items * a->tiles * a->slices, blocks);
}

/* attention_half.cu, attention_half_grad.cu: bf16 and f16, D and Dv up to 128. */
tn_status tni_cuda_half_attention(const tni_attention *a);
tn_status tni_cuda_half_attention_grad(const tni_attention_grad *a);
static inline bool has_wide_heads(const tni_attention *a)
{
    return a->q.size[3] > 128 || a->v.size[3] > 128;
}
