/*
 * index_add.cu - writing and adding at indices: scatter, take_add.
 *
 * Every element gets its addends in index order, as on the CPU, so the bits are always the same. If
 * the other axes give enough parallel work, a thread walks the index; else the indices are sorted
 * (sort.h), and one thread, or row of threads, adds all values of one target. Every index is
 * checked first: if one is bad, nothing is changed.
 */
#include "cuda/ids.h"
#include "cuda/sort.h"

/* ---- sorted indices -------------------------------------------------------------------------- */

/* A word: a target's number, and below it, in position_bits, which addend it receives. Targets from
 * `none` on receive nothing. */
typedef struct sorted_ids {
    uint64_t *word;
    int64_t n, none;
    int position_bits;
} sorted_ids;

enum { FEW_IDS = 32 }; /* too few to sort */

static int bits_of(uint64_t largest)
{
    int bits = 0;
    while (bits < 64 && largest >> bits) bits++;
    return bits;
}

/* Whether a word holds n positions and targets 0..none. */
static bool words_suffice(int64_t n, int64_t none)
{
    return none >= 0 &&
           bits_of(static_cast<uint64_t>(n)) + bits_of(static_cast<uint64_t>(none)) <= 64;
}

/* Memory for n words: two arrays and a sort's scratch. s->word is to be filled, then sorted. */
static tn_status sorted_open(sorted_ids *s, tni_cuda_scratch *block, int64_t n, int64_t none)
{
    size_t words = 2 * static_cast<size_t>(n) + sort_scratch(sort_plan_of(n));
    if (tn_status failed = block->borrow(words * sizeof(uint64_t))) return failed;
    s->word = block->as<uint64_t>();
    s->n = n;
    s->none = none;
    s->position_bits = bits_of(static_cast<uint64_t>(n));
    return TN_OK;
}

static tn_status sorted_sort(sorted_ids *s)
{
    uint64_t *other = s->word + s->n;
    return sort_words(&s->word, &other, s->word + 2 * s->n, sort_plan_of(s->n), s->position_bits,
                      bits_of(static_cast<uint64_t>(s->none)));
}

/* The target of the words from number i on, or -1 when i is not the first of its target. */
static __device__ __forceinline__ int64_t target_at(const sorted_ids &s, int64_t i)
{
    uint64_t target = s.word[i] >> s.position_bits;
    if (target >= static_cast<uint64_t>(s.none)) return -1;
    if (i > 0 && s.word[i - 1] >> s.position_bits == target) return -1;
    return static_cast<int64_t>(target);
}

/* sum plus add(position), or what `how` makes of them, for all words of this target from number i
 * on, in order. */
template <typename R, typename F>
static __device__ __forceinline__ R add_in_order(const sorted_ids &s, int64_t i, int64_t target,
                                                 R sum, const F &add, tni_scattering how = TNI_ADD)
{
    enum { AT_ONCE = 4 };
    uint64_t mask = (1ull << s.position_bits) - 1;
    bool more = true;
    while (more) {
        R v[AT_ONCE];
        bool mine[AT_ONCE];
        TN_UNROLL
        for (int k = 0; k < AT_ONCE; k++) {
            uint64_t w = i + k < s.n ? s.word[i + k] : ~0ull;
            mine[k] = i + k < s.n && static_cast<int64_t>(w >> s.position_bits) == target;
            v[k] = mine[k] ? add(static_cast<int64_t>(w & mask)) : static_cast<R>(0);
        }
        TN_UNROLL
        for (int k = 0; k < AT_ONCE; k++) sum = mine[k] ? TNI_SCATTERED(how, sum, v[k]) : sum;
        more = mine[AT_ONCE - 1];
        i += AT_ONCE;
    }
    return sum;
}

/* ---- scatter: y[.., index[.., a, ..], ..] += source[.., a, ..] ------------------------------- */

/* A line: the positions along the axis with the other coordinates fixed. w walks a line's begin, in
 * index, y and source. */
template <typename R, typename D> struct scatter_job {
    R *y;
    const R *source;
    const int64_t *index;
    walk<D> w;
    int64_t lines, length, y_step, index_step, source_step;
    tni_scattering how;
    id_check check;
};

template <typename R, typename D> static __global__ void scatter_lines(scatter_job<R, D> job)
{
    if (fault_set(job.check.fault)) return;
    EACH(typename D::index, line, job.lines)
    {
        int64_t at[3];
        walk_to(job.w, line, at);
        for (int64_t a = 0; a < job.length; a++) {
            int64_t id = job.index[at[0] + a * job.index_step];
            R *y = &job.y[at[1] + id * job.y_step];
            const R v = job.source[at[2] + a * job.source_step];
            *y = TNI_SCATTERED(job.how, *y, v);
        }
    }
}

/* Target: line * limit + id. Position: line * length + a. */
template <typename R, typename D>
static __global__ void scatter_words(scatter_job<R, D> job, D length, sorted_ids s)
{
    EACH(typename D::index, e, s.n)
    {
        typename D::index line = length.divide(e);
        int64_t a = length.rest(e, line), at[3];
        walk_to(job.w, line, at);
        int64_t id = job.index[at[0] + a * job.index_step];
        int64_t target = static_cast<int64_t>(line) * job.check.limit + id;
        if (!id_good(job.check, id)) {
            id_report(job.check, id, static_cast<int64_t>(e));
            target = s.none;
        }
        s.word[e] = static_cast<uint64_t>(target) << s.position_bits | static_cast<uint64_t>(e);
    }
}

template <typename R, typename D>
static __global__ void scatter_sorted(scatter_job<R, D> job, sorted_ids s)
{
    if (fault_set(job.check.fault)) return;
    EACH(int64_t, i, s.n)
    {
        int64_t target = target_at(s, i);
        if (target < 0) continue;
        int64_t line = target / job.check.limit, id = target - line * job.check.limit;
        int64_t at[3];
        walk_to(job.w, static_cast<typename D::index>(line), at);
        R *y = job.y + at[1] + id * job.y_step;
        const R *from = job.source + at[2];
        int64_t before = line * job.length, step = job.source_step;
        *y = add_in_order(
            s, i, target, *y, [=](int64_t position) { return from[(position - before) * step]; },
            job.how);
    }
}

template <typename R, typename D> static tn_status scatter(const tni_scatter *a)
{
    const tni_array *y = &a->y, *index = &a->index, *source = &a->source;
    int axis = a->axis;
    int64_t n = tni_array_numel(index), length = index->size[axis];
    scatter_job<R, D> job = {};
    job.y = static_cast<R *>(y->data);
    job.source = static_cast<const R *>(source->data);
    job.index = static_cast<const int64_t *>(index->data);
    job.w = walk_of<D>(index, y, source, axis);
    job.w.size[axis] = D(1);
    job.lines = n / length;
    job.length = length;
    job.y_step = y->stride[axis];
    job.index_step = index->stride[axis];
    job.source_step = source->stride[axis];
    job.how = a->how;
    job.check = id_check_of(y->size[axis]);
    int64_t none;
    bool counts = !__builtin_mul_overflow(job.lines, job.check.limit, &none);
    int64_t enough = 64LL * tni_cuda_multiprocessors();
    if (length <= FEW_IDS || job.lines >= enough || !counts || !words_suffice(n, none)) {
        if (tn_status failed = tni_cuda_check_ids(index, job.check)) return failed;
        return TN_LAUNCH((scatter_lines<R, D>), row_grid(job.lines, THREADS), THREADS, 0, job);
    }
    tni_cuda_scratch block;
    sorted_ids s;
    if (tn_status failed = sorted_open(&s, &block, n, none)) return failed;
    if (tn_status failed =
            TN_LAUNCH((scatter_words<R, D>), row_grid(n, THREADS), THREADS, 0, job, D(length), s))
        return failed;
    if (tn_status failed = sorted_sort(&s)) return failed;
    return TN_LAUNCH((scatter_sorted<R, D>), row_grid(n, THREADS), THREADS, 0, job, s);
}

template <typename R> static tn_status run_scatter(const tni_scatter *a)
{
    return BY_DIVISOR(tni_array_numel(&a->index), (scatter<R, D>(a)));
}

tn_status tni_cuda_scatter(const tni_scatter *a)
{
    if (tni_array_numel(&a->index) == 0) return TN_OK;
    return TN_REAL(a->y.dtype, run_scatter<R>(a));
}

/* ---- take_add: x[o, index[r], :] += y[o, r, :] ----------------------------------------------- */

template <typename R> struct take_add_job {
    R *x;
    const R *y;
    const int64_t *index;
    int64_t outer, n, inner, skip;
    id_check check;
};

/* One thread per column walks the index. */
template <typename R> static __global__ void take_add_columns(take_add_job<R> job)
{
    if (fault_set(job.check.fault)) return;
    EACH(int64_t, column, job.outer * job.inner)
    {
        int64_t o = column / job.inner, j = column - o * job.inner;
        R *x = job.x + o * job.check.limit * job.inner + j;
        const R *y = job.y + o * job.n * job.inner + j;
        for (int64_t r = 0; r < job.n; r++) {
            int64_t id = job.index[r];
            if (id != job.skip) x[id * job.inner] += y[r * job.inner];
        }
    }
}

template <typename R> static __global__ void take_add_words(take_add_job<R> job, sorted_ids s)
{
    EACH(int64_t, r, s.n)
    {
        int64_t id = job.index[r];
        bool good = id_good(job.check, id);
        if (!good) id_report(job.check, id, r);
        s.word[r] = static_cast<uint64_t>(good && id != job.skip ? id : s.none) << s.position_bits |
                    static_cast<uint64_t>(r);
    }
}

/* threadIdx.y: one of the block's words; threadIdx.x: a column, and those a stride on. */
template <typename R> static __global__ void take_add_sorted(take_add_job<R> job, sorted_ids s)
{
    if (fault_set(job.check.fault)) return;
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; i < s.n;
         i += step) {
        int64_t id = target_at(s, i), inner = job.inner;
        if (id < 0) continue;
        for (int64_t o = 0; o < job.outer; o++)
            for (int64_t j = threadIdx.x; j < inner; j += blockDim.x) {
                R *x = job.x + (o * job.check.limit + id) * inner + j;
                const R *y = job.y + o * job.n * inner + j;
                *x = add_in_order(s, i, id, *x, [=](int64_t r) { return y[r * inner]; });
            }
    }
}

template <typename R> static tn_status take_add(const take_add_job<R> &job, const tni_array *index)
{
    int64_t columns = job.outer * job.inner;
    if (job.n <= FEW_IDS || columns >= 1 << 17 || !words_suffice(job.n, job.check.limit)) {
        if (tn_status failed = tni_cuda_check_ids(index, job.check)) return failed;
        return TN_LAUNCH((take_add_columns<R>), row_grid(columns, THREADS), THREADS, 0, job);
    }
    tni_cuda_scratch words;
    sorted_ids s;
    if (tn_status failed = sorted_open(&s, &words, job.n, job.check.limit)) return failed;
    unsigned wide = 1;
    while (wide < THREADS && wide < job.inner) wide *= 2;
    dim3 block(wide, THREADS / wide);
    if (tn_status failed =
            TN_LAUNCH((take_add_words<R>), row_grid(job.n, THREADS), THREADS, 0, job, s))
        return failed;
    if (tn_status failed = sorted_sort(&s)) return failed;
    return TN_LAUNCH((take_add_sorted<R>), row_grid(job.n, block.y), block, 0, job, s);
}

template <typename R> static tn_status run_take_add(const tni_take_add *a)
{
    take_add_job<R> job = {};
    job.x = static_cast<R *>(a->x.data);
    job.y = static_cast<const R *>(a->y.data);
    job.index = static_cast<const int64_t *>(a->index.data);
    job.outer = a->x.size[0];
    job.n = a->y.size[1];
    job.inner = a->x.size[2];
    job.skip = a->skip;
    job.check = id_check_of(a->x.size[1]);
    return take_add(job, &a->index);
}

tn_status tni_cuda_take_add(const tni_take_add *a)
{
    if (tni_array_numel(&a->index) == 0) return TN_OK;
    if (tni_array_numel(&a->y) == 0)
        return tni_cuda_check_ids(&a->index, id_check_of(a->x.size[1]));
    return TN_REAL(a->x.dtype, run_take_add<R>(a));
}
