/*
 * sort.cu - sorted lines.
 *
 * All lines are sorted at once, by stable radix sorts of words (sort.h) that hold an element's
 * position in their low half: first by the low half of its key, then by the high half, then by the
 * number of its line. A key is an unsigned number that is ordered as the elements are, as on the
 * CPU (real/sort.c).
 */
#include "cuda/elements.h"
#include "cuda/sort.h"

enum { SORT_THREADS = 256, KEY_HALF = 32 };
/* Words that are sorted at once, if a line is no longer; in the shim few, so that tests see it. */
#ifdef __CUDACC__
enum { SORT_AT_ONCE = 1 << 26 };
#else
enum { SORT_AT_ONCE = 1 << 12 };
#endif

struct sort_key {
    tn_dtype dtype;
    int bits;
    uint64_t top, infinity, turn; /* the sign; infinity 0: not of reals; what descending inverts */
};

static sort_key sort_key_of(tn_dtype dtype, bool descending)
{
    sort_key k = { dtype, static_cast<int>(8 * item_size(dtype)), 0, 0, 0 };
    if (dtype != TN_U8 && dtype != TN_BOOL) k.top = UINT64_C(1) << (k.bits - 1);
    k.infinity = dtype == TN_F64    ? UINT64_C(0x7ff0000000000000)
                 : dtype == TN_F32  ? 0x7f800000u
                 : dtype == TN_BF16 ? 0x7f80u
                 : dtype == TN_F16  ? 0x7c00u
                                    : 0;
    if (descending) k.turn = ~UINT64_C(0) >> (64 - k.bits);
    return k;
}

static __device__ uint64_t key_at(const sort_key &k, const void *x, int64_t at)
{
    uint64_t u = k.bits == 64   ? static_cast<const uint64_t *>(x)[at]
                 : k.bits == 32 ? static_cast<const uint32_t *>(x)[at]
                 : k.bits == 16 ? static_cast<const uint16_t *>(x)[at]
                                : static_cast<const uint8_t *>(x)[at];
    if (k.infinity) {
        uint64_t size = u & (k.top - 1), all = k.top | (k.top - 1);
        u = size == 0 ? k.top : u & k.top ? ~u & all : u | k.top;
        if (size > k.infinity) u = all;
    } else if (k.dtype == TN_BOOL) {
        u = u != 0;
    } else {
        u ^= k.top;
    }
    return u ^ k.turn;
}

struct sort_job {
    places<2> lines; /* where they begin: index, x */
    int64_t *index;
    const void *x;
    sort_key key;
    int64_t n, k, x_step, index_step;
    int64_t before; /* lines sorted by earlier calls */
};

static __device__ int64_t place_of(const sort_job &job, int64_t position, int64_t (&at)[2])
{
    int64_t line = position / job.n;
    locate(job.lines, job.before + line, at);
    return at[1] + (position - line * job.n) * job.x_step;
}

enum { LOW_HALF, HIGH_HALF, LINE_NUMBER };

/* Words for the next sort, in the order of the one before. */
static __global__ void sort_fill(const __grid_constant__ sort_job job, uint64_t *word, int64_t n,
                                 int part)
{
    for (int64_t step = grid_threads(), i = grid_thread(); i < n; i += step) {
        int64_t at[2];
        uint64_t position = part == LOW_HALF ? static_cast<uint64_t>(i) : word[i] & 0xffffffffu;
        int64_t where = static_cast<int64_t>(position);
        uint64_t v = part == LINE_NUMBER ? static_cast<uint64_t>(where / job.n)
                                         : key_at(job.key, job.x, place_of(job, where, at));
        word[i] = (part == HIGH_HALF ? v >> KEY_HALF : v) << KEY_HALF | position;
    }
}

static __global__ void sort_put(const __grid_constant__ sort_job job, const uint64_t *word,
                                int64_t n)
{
    for (int64_t step = grid_threads(), e = grid_thread(); e < n; e += step) {
        int64_t line = e / job.k, r = e - line * job.k, at[2];
        int64_t position = static_cast<int64_t>(word[line * job.n + r] & 0xffffffffu);
        locate(job.lines, job.before + line, at);
        job.index[at[0] + r * job.index_step] = position - line * job.n;
    }
}

/* Some lines. words: room for two arrays and the sort's scratch. */
static tn_status sort_lines(const sort_job &job, int64_t lines, uint64_t *words)
{
    int64_t n = lines * job.n;
    sort_plan plan = sort_plan_of(n);
    uint64_t *word = words, *other = words + n, *scratch = words + 2 * n;
    unsigned grid = row_grid(n, SORT_THREADS);
    int line_bits = 0;
    while ((lines - 1) >> line_bits) line_bits++;
    int bits[] = { min(job.key.bits, static_cast<int>(KEY_HALF)), job.key.bits - KEY_HALF,
                   line_bits };
    for (int part = LOW_HALF; part <= LINE_NUMBER; part++) {
        if (bits[part] <= 0) continue;
        if (tn_status failed = TN_LAUNCH((sort_fill), grid, SORT_THREADS, 0, job, word, n, part))
            return failed;
        if (tn_status failed = sort_words(&word, &other, scratch, plan, KEY_HALF, bits[part]))
            return failed;
    }
    int64_t out = lines * job.k;
    return TN_LAUNCH((sort_put), row_grid(out, SORT_THREADS), SORT_THREADS, 0, job, word, out);
}

tn_status tni_cuda_order(const tni_order *a)
{
    int axis = a->axis;
    tni_array line[2] = { a->index, a->x };
    const tni_array *const lines[] = { &line[0], &line[1] };
    for (int i = 0; i < 2; i++) line[i].size[axis] = 1;
    sort_job job = { places_of<2>(lines),
                     static_cast<int64_t *>(a->index.data),
                     a->x.data,
                     sort_key_of(a->x.dtype, a->descending),
                     a->x.size[axis],
                     a->index.size[axis],
                     a->x.stride[axis],
                     a->index.stride[axis],
                     0 };
    int64_t all = job.lines.numel;
    if (all == 0 || job.k == 0) return TN_OK;
    if (job.n > UINT32_MAX)
        return tni_cuda_host->fail(
            TN_E_SHAPE, "cuda: lines of %" PRId64 " elements: want fewer than 2^32", job.n);
    int64_t at_once = min(all, max(SORT_AT_ONCE / job.n, INT64_C(1)));
    size_t words =
        2 * static_cast<size_t>(at_once * job.n) + sort_scratch(sort_plan_of(at_once * job.n));
    tni_cuda_scratch block;
    tn_status status = block.borrow(words * sizeof(uint64_t));
    for (; job.before < all && status == TN_OK; job.before += at_once)
        status = sort_lines(job, min(at_once, all - job.before), block.as<uint64_t>());
    return status;
}
