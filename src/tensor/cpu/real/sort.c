/*
 * sort.c - lines in order, or a part of that order, with where each element came from.
 *
 * An element becomes a key, an unsigned number that is ordered as the elements are: integers with
 * the sign bit turned; bits of reals, those of negative ones inverted, -0 as 0, NaN as the largest;
 * for a descending order all bits inverted. Equal keys keep the order of their elements. So there
 * is one right result, whatever the way to it:
 *   few keys        the place of each is how many are smaller, counted by whole vectors
 *   the first k     of the keys up to the k-th of the smallest of groups: k groups have such a key
 *   many            radix sort from the lowest digit, which leaves out digits that all share.
 *                   Knuth, The Art of Computer Programming, volume 3, section 5.2.5
 * Compiled for keys of 32 and of 64 bits; the 32 hold all dtypes but f64 and i64.
 */
#include "tensor/cpu/real/rows.h"
#include "tensor/walk.h"

#ifdef TNI_REAL_IS_f32
typedef uint32_t KEY;
#define KEY_INTEGER TN_I32
#define KEY_INFINITY 0x7f800000u
#else
typedef uint64_t KEY;
#define KEY_INTEGER TN_I64
#define KEY_INFINITY UINT64_C(0x7ff0000000000000)
#endif
typedef KEY key_alias __attribute__((may_alias));
typedef KEY vector __attribute__((vector_size(64), aligned(sizeof(KEY)), may_alias));

enum { LANES = 64 / sizeof(KEY), FEW = 1024 / sizeof(KEY), DIGITS = sizeof(KEY) };

typedef struct pair {
    KEY key, id;
} pair;

typedef struct sort_job {
    const tni_order *a;
    tni_walk walk; /* where lines begin: of index, x */
    int64_t n, k;
    tni_scratch scratch;
    size_t pairs_at[2];
} sort_job;

static int digit_of(KEY key, int shift)
{
    return (int)(key >> shift & 255);
}

static void load_keys(const tni_order *a, int64_t n, KEY *key, const void *x, int64_t stride)
{
    const KEY top = (KEY)1 << (8 * sizeof(KEY) - 1), turn = a->descending ? (KEY)-1 : 0;
    if (a->x.dtype == KEY_INTEGER) {
        const key_alias *from = x;
        for (int64_t j = 0; j < n; j++) key[j] = from[j * stride] ^ top ^ turn;
        return;
    }
    TNI_LOAD(REAL_DTYPE, n, key, x, a->x.dtype, stride);
    const key_alias *bits = key;
    for (int64_t j = 0; j < n; j++) {
        KEY u = bits[j], size = u & ~top;
        KEY ordered = size == 0 ? top : u & top ? ~u : u | top;
        key[j] = (size > KEY_INFINITY ? (KEY)-1 : ordered) ^ turn;
    }
}

/* order[r]: which of n <= FEW keys is number r. After the keys there is room for a vector. */
static void rank_keys(KEY *key, int64_t n, KEY *order)
{
    KEY place[FEW], equal[FEW] = { 0 };
    for (int64_t j = n; j % LANES; j++) key[j] = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        vector mine = *(const vector *)(key + i), smaller = { 0 };
        for (int64_t j = 0; j < n; j++) smaller -= (vector)((vector){ 0 } + key[j] < mine);
        *(vector *)(place + i) = smaller;
    }
    for (int64_t i = 0; i < n; i++) order[place[i] + equal[place[i]]++] = (KEY)i;
}

/* Keys of a group, so that there are at most FEW groups of whole vectors. */
static int64_t group_of(int64_t n)
{
    return (n / (FEW * LANES) + 1) * LANES;
}

/* The keys that the first k are among, as pairs; there are at least k groups. Returns how many. */
static int64_t first_of_groups(const KEY *key, int64_t n, int64_t k, pair *to)
{
    int64_t group = group_of(n), groups = 0, found = 0;
    KEY smallest[FEW], order[FEW];
    for (int64_t from = 0; from < n; from += group) {
        KEY least = key[from];
        for (int64_t j = from; j < TNI_MIN(from + group, n); j++)
            least = key[j] < least ? key[j] : least;
        smallest[groups++] = least;
    }
    rank_keys(smallest, groups, order);
    KEY limit = smallest[order[k - 1]];
    for (int64_t g = 0; g < groups; g++) {
        if (smallest[g] > limit) continue;
        for (int64_t j = g * group; j < TNI_MIN((g + 1) * group, n); j++) {
            to[found] = (pair){ key[j], (KEY)j };
            found += key[j] <= limit;
        }
    }
    return found;
}

/* In order; the result is in p or in other. */
static pair *radix_sort(pair *p, pair *other, int64_t n)
{
    KEY place[DIGITS][256] = { { 0 } };
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < DIGITS; d++) place[d][digit_of(p[i].key, 8 * d)]++;
    for (int d = 0; d < DIGITS; d++) {
        KEY *next = place[d], sum = 0;
        if ((int64_t)next[digit_of(p[0].key, 8 * d)] == n) continue;
        for (int v = 0; v < 256; v++) {
            KEY times = next[v];
            next[v] = sum;
            sum += times;
        }
        for (int64_t i = 0; i < n; i++) other[next[digit_of(p[i].key, 8 * d)]++] = p[i];
        pair *sorted = other;
        other = p;
        p = sorted;
    }
    return p;
}

/* Flags: where those come that are put first, then the others. */
static void sort_flags(const sort_job *job, int64_t *index, const uint8_t *x)
{
    const tni_order *a = job->a;
    const int64_t stride = a->x.stride[a->axis], index_step = a->index.stride[a->axis];
    int64_t r = 0;
    for (int other = 0; other < 2; other++) {
        for (int64_t j = 0; j < job->n && r < job->k; j++) {
            index[r * index_step] = j;
            r += (x[j * stride] != 0) == (a->descending != other);
        }
    }
}

static void sort_line(const sort_job *job, int64_t *index, const void *x)
{
    const tni_order *a = job->a;
    const int64_t stride = a->x.stride[a->axis], index_step = a->index.stride[a->axis];
    KEY *key = tni_scratch_own(&job->scratch, 0), order[FEW];
    pair *p = NULL, *other = tni_scratch_own(&job->scratch, job->pairs_at[1]);
    int64_t n = job->n, m = n, k = job->k;
    load_keys(a, n, key, x, stride);
    if (n > FEW) {
        p = tni_scratch_own(&job->scratch, job->pairs_at[0]);
        if (2 * k <= n / group_of(n))
            m = first_of_groups(key, n, k, p);
        else
            for (int64_t j = 0; j < n; j++) p[j] = (pair){ key[j], (KEY)j };
        if (m > FEW) p = radix_sort(p, other, m);
        for (int64_t j = 0; m <= FEW && j < m; j++) key[j] = p[j].key;
    }
    if (m <= FEW) rank_keys(key, m, order);
    for (int64_t r = 0; r < k; r++) {
        int64_t i = (int64_t)(m <= FEW ? order[r] : (KEY)r);
        index[r * index_step] = p ? (int64_t)p[i].id : i;
    }
}

static void sort_chunk(void *context, int64_t begin, int64_t end)
{
    const sort_job *job = context;
    const tni_order *a = job->a;
    size_t size = tn_dtype_size(a->x.dtype);
    tni_cursor c;
    tni_cursor_seek(&c, &job->walk, begin);
    for (int64_t line = begin; line < end; line++, tni_cursor_step(&c, &job->walk, 1)) {
        int64_t *index = (int64_t *)a->index.data + c.at[0];
        const char *x = (const char *)a->x.data + (size_t)c.at[1] * size;
        if (a->x.dtype == TN_BOOL)
            sort_flags(job, index, (const uint8_t *)x);
        else
            sort_line(job, index, x);
    }
}

tn_status K(tni_order_lines)(const tni_order *a)
{
    sort_job job = { .a = a, .n = a->x.size[a->axis], .k = a->index.size[a->axis] };
    tni_array line[2] = { a->index, a->x };
    for (int i = 0; i < 2; i++) line[i].size[a->axis] = 1; /* the others number the lines */
    tni_walk_init(&job.walk, 2, (const tni_array *const[]){ &line[0], &line[1] });
    if (job.walk.numel == 0 || job.k == 0) return TN_OK;
    size_t n = a->x.dtype == TN_BOOL ? 0 : (size_t)job.n;
    tni_scratch_add(&job.scratch, (n + LANES) * sizeof(KEY));
    for (int i = 0; i < 2 && job.n > FEW; i++)
        job.pairs_at[i] = tni_scratch_add(&job.scratch, n * sizeof(pair));
    return tni_parallel_scratch(&job.scratch, job.walk.numel, row_grain(job.n, 8), sort_chunk,
                                &job);
}
