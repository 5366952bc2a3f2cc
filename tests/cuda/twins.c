/* twins.c - arrays on both sides, filled, compared and freed. */
#include "twins.h"
#include "numbers.h"

const tni_backend *kernels[SIDES];
tn_dtype dtype;
twin none;
const int64_t sizes[SIZES] = { 0, 1, 7, 33, 257, 1025 };

static twin *twins[64]; /* of the running test, to be freed together */
static int n_twins;
/* Of bf16 and f16 the distance of neighbours: where f32 sums differ, so may their rounding. */
static double tolerance(tn_dtype of)
{
    return of == TN_F64 ? 1e-12 : of == TN_BF16 ? 0x1p-7 : of == TN_F16 ? 0x1p-10 : 1e-5;
}

void choose(int variant)
{
    dtype = variant % 2 ? TN_F64 : TN_F32;
    kernels[CPU] = tni_backend_for(tn_cpu());
    kernels[GPU] = tni_backend_for(tn_cuda(0));
    ck_assert_msg(kernels[GPU] != NULL, "%s", tn_error());
}

double uniform(void)
{
    return number_in(-2, 2);
}

int64_t count(const twin *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->at[CPU].rank; d++) n *= t->at[CPU].size[d];
    return n;
}

double value(const void *data, tn_dtype of, int64_t i)
{
    return number_get(data, of, i);
}

void set(void *data, tn_dtype of, int64_t i, double v)
{
    if (of == TN_U8 || of == TN_BOOL)
        ((uint8_t *)data)[i] = (uint8_t)(int)(v * 50);
    else
        number_set(data, of, i, v);
}

/* The CPU's bytes to the GPU. */
void upload(const twin *t)
{
    ck_assert_int_eq(kernels[GPU]->upload(t->block[GPU], t->block[CPU], t->nbytes), TN_OK);
}

/* rank sizes, row-major; filled with random numbers of [-2, 2). */
twin *make_as(tn_dtype of, int64_t lead, int rank, const int64_t *size)
{
    twin *t = calloc(1, sizeof *t);
    tni_array *a = &t->at[CPU];
    int64_t n = 1;
    a->dtype = of;
    a->rank = rank;
    for (int d = rank - 1; d >= 0; d--) {
        a->size[d] = size[d];
        a->stride[d] = n;
        n *= size[d];
    }
    size_t each = tn_dtype_size(of);
    t->nbytes = (size_t)(n + lead) * each;
    t->block[CPU] = malloc(t->nbytes + 1);
    void *block;
    ck_assert_int_eq(kernels[GPU]->alloc(t->nbytes, &block), TN_OK);
    t->block[GPU] = block;
    t->at[GPU] = t->at[CPU];
    for (int s = 0; s < SIDES; s++) t->at[s].data = t->block[s] + (size_t)lead * each;
    for (int64_t i = 0; i < n + lead; i++) set(t->block[CPU], of, i, uniform());
    upload(t);
    ck_assert_int_lt(n_twins, 64);
    twins[n_twins++] = t;
    return t;
}

twin *make_ids(int64_t below, int rank, const int64_t *size)
{
    twin *t = make_as(TN_I64, 0, rank, size);
    for (int64_t i = 0; i < count(t); i++)
        ((int64_t *)t->at[CPU].data)[i] = (int64_t)((uniform() + 2) / 4 * (double)below);
    upload(t);
    return t;
}

void free_twins(void)
{
    for (int i = 0; i < n_twins; i++) {
        kernels[GPU]->free(twins[i]->block[GPU], twins[i]->nbytes);
        free(twins[i]->block[CPU]);
        free(twins[i]);
    }
    n_twins = 0;
}

/* The GPU's bytes, in memory to be freed. */
char *held(const twin *t)
{
    char *bytes = malloc(t->nbytes + 1);
    ck_assert_int_eq(kernels[GPU]->download(bytes, t->block[GPU], t->nbytes), TN_OK);
    return bytes;
}

/* The GPU's within tolerance of the CPU's; scale: the size of a sum's terms. */
void check_near(const twin *t, double scale, const char *what)
{
    char *bytes = held(t);
    tn_dtype of = t->at[CPU].dtype;
    size_t lead = (size_t)((char *)t->at[CPU].data - t->block[CPU]);
    for (int64_t i = 0; i < count(t); i++) {
        double want = value(t->at[CPU].data, of, i);
        double got = value(bytes + lead, of, i);
        bool same = isnan(want) || isinf(want)
                        ? (isnan(want) ? isnan(got) : got == want)
                        : fabs(got - want) <= tolerance(of) * (fabs(want) + scale);
        if (!same) { /* an assertion that holds costs a system call */
            ck_abort_msg("%s[%" PRId64 "] is %.17g, not %.17g (%s, %" PRId64 " elements)", what, i,
                         got, want, tn_dtype_name(of), count(t));
        }
    }
    free(bytes);
}

void check_equal(const twin *t, const char *what)
{
    char *bytes = held(t);
    ck_assert_msg(!memcmp(bytes, t->block[CPU], t->nbytes),
                  "%s: other bits than the CPU's (%s, %" PRId64 " elements)", what,
                  tn_dtype_name(t->at[CPU].dtype), count(t));
    free(bytes);
}

int runs_of(const twin *t)
{
    return count(t) < 500 ? 10 : 3;
}
