/*
 * sampler.c - which samples an epoch has, in which order.
 *
 * An order is drawn from a generator seeded by (seed, epoch): that of any epoch can be made without
 * those before it, so seeking is free and a checkpoint needs only a few numbers.
 *
 *   weighted   for each draw the first running sum of the weights above a uniform number below
 *              their total
 *   without    by keys -log(u) / weight, ascending, in logarithms: Efraimidis and Spirakis,
 *   replacing  Weighted random sampling with a reservoir (2006)
 *   classes    by keys (j + 1/2) / n for member j of the n of a class
 */
#include "ext/data/loader.h"
#include "tensor/random.h"

typedef struct tni_row_key {
    double key;
    int64_t class; /* among equal keys */
    int64_t place, row;
} row_key;

static int by_key(const void *a, const void *b)
{
    const row_key *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    if (x->class != y->class) return x->class < y->class ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* The values of an option, one for each row. NULL and a message otherwise. */
static void *values_of(const char *f, const char *what, const tn_tensor *t, int64_t rows,
                       tn_dtype dtype)
{
    const size_t nbytes = (size_t)rows * sizeof(int64_t); /* of an f64, too */
    if (t->shape.rank != 1 || t->shape.size[0] != rows ||
        tn_dtype_is_float(t->dtype) != tn_dtype_is_float(dtype))
        return tni_fail(TN_E_SHAPE, "%s: %s %s are %s: want %s, one for each of %" PRId64 " rows",
                        f, what, tni_text(t), tn_dtype_name(t->dtype),
                        tn_dtype_is_float(dtype) ? "floats" : "integers", rows);
    void *values = tni_alloc(nbytes);
    if (!values || tn_copy_out(t, values, nbytes, dtype) == TN_OK) return values;
    tni_free(values, nbytes);
    return NULL;
}

static tn_status check_weights(const char *f, tni_sampler *s)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        const double w = s->weight[i];
        if (!(w >= 0 && w < (double)INFINITY))
            return tni_error(TN_E_INVALID, "%s: weight %" PRId64 " is %g: want 0 or more", f, i, w);
        n += w > 0;
        sum += w;
        if (s->kind == TNI_WEIGHTED) s->weight[i] = sum;
    }
    const int64_t wanted = s->kind == TNI_WEIGHTED ? 1 : s->draws;
    if (n >= wanted && sum < (double)INFINITY) return TN_OK;
    return tni_error(TN_E_INVALID,
                     "%s: %" PRId64 " weights above 0, %g in all: want %" PRId64 ", finite in all",
                     f, n, sum, wanted);
}

tn_status tni_sampler_make(const char *f, tni_sampler *s, const tn_loader_options *o, int64_t size)
{
    const int64_t rows = o->samples ? tn_numel(o->samples) : size;
    *s = (tni_sampler){ .rows = rows, .draws = o->draws ? o->draws : rows, .epoch = -1 };
    s->kind = o->weights   ? (o->without_replacement ? TNI_WITHOUT : TNI_WEIGHTED)
              : o->classes ? (o->shuffle ? TNI_MIXED : TNI_CLASSES)
              : o->shuffle ? TNI_SHUFFLED
                           : TNI_IN_ORDER;
    if (o->weights && o->classes)
        return tni_error(TN_E_INVALID, "%s: weights and classes: want one of them", f);
    if (size >= 0 && (s->draws < 0 || (s->draws > rows && s->kind != TNI_WEIGHTED)))
        return tni_error(TN_E_INVALID, "%s: draws %" PRId64 " of %" PRId64 " rows: want as many", f,
                         s->draws, rows);
    if (o->samples) s->sample = values_of(f, "samples", o->samples, rows, TN_I64);
    if (o->classes) s->class = values_of(f, "classes", o->classes, rows, TN_I64);
    if (o->weights) s->weight = values_of(f, "weights", o->weights, rows, TN_F64);
    if (!s->sample != !o->samples || !s->class != !o->classes || !s->weight != !o->weights)
        return tni_pending();
    for (int64_t i = 0; s->sample && i < rows; i++)
        if (s->sample[i] < 0 || s->sample[i] >= size)
            return tni_error(TN_E_INDEX, "%s: samples has %" PRId64 ": want 0 to %" PRId64, f,
                             s->sample[i], size - 1);
    if (s->weight && check_weights(f, s) != TN_OK) return tni_pending();
    if (s->kind == TNI_IN_ORDER && !s->sample) return TN_OK;
    s->generator = tn_generator_new(0);
    if (s->generator) s->order = tni_alloc_n((size_t)TNI_MAX(s->draws, rows), sizeof *s->order);
    if (s->order && s->kind >= TNI_WITHOUT) s->key = tni_alloc_n((size_t)rows, sizeof *s->key);
    return s->order && (s->key || s->kind < TNI_WITHOUT) ? TN_OK : tni_pending();
}

void tni_sampler_free(tni_sampler *s)
{
    const size_t n = (size_t)s->rows;
    if (s->order) tni_free(s->order, (size_t)TNI_MAX(s->draws, s->rows) * sizeof *s->order);
    if (s->key) tni_free(s->key, n * sizeof *s->key);
    if (s->weight) tni_free(s->weight, n * sizeof *s->weight);
    if (s->class) tni_free(s->class, n * sizeof *s->class);
    if (s->sample) tni_free(s->sample, n * sizeof *s->sample);
    tn_generator_free(s->generator);
}

static void draw_weighted(tni_sampler *s)
{
    for (int64_t i = 0; i < s->draws; i++) {
        const double total = s->weight[s->rows - 1], u = tni_draw_f64(s->generator);
        const double x = TNI_MIN(u * total, nextafter(total, 0)); /* if it was rounded up */
        int64_t low = 0, high = s->rows - 1;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (s->weight[middle] > x)
                high = middle;
            else
                low = middle + 1;
        }
        s->order[i] = low;
    }
}

/* Keys of the rows as they lie in order, sorted. */
static void make_keys(tni_sampler *s)
{
    for (int64_t i = 0; i < s->rows; i++) {
        const int64_t row = s->kind == TNI_MIXED ? s->order[i] : i;
        s->key[i] = (row_key){ .class = s->class ? s->class[row] : 0, .place = i, .row = row };
        if (s->kind != TNI_WITHOUT) continue;
        const double u = tni_draw_f64(s->generator), w = s->weight[i];
        s->key[i].key = w > 0 ? log(-log1p(-u)) - log(w) : (double)INFINITY;
    }
    tni_sort(s->key, (size_t)s->rows, sizeof *s->key, by_key); /* those of classes by class */
    for (int64_t begin = 0, end = 0; s->class && begin < s->rows; begin = end) {
        while (end < s->rows && s->key[end].class == s->key[begin].class) end++;
        for (int64_t i = begin; i < end; i++)
            s->key[i].key = ((double)(i - begin) + 0.5) / (double)(end - begin);
    }
    if (s->class) tni_sort(s->key, (size_t)s->rows, sizeof *s->key, by_key);
}

const int64_t *tni_sampler_order(tni_sampler *s, uint64_t seed, int64_t epoch)
{
    if (!s->order || s->epoch == epoch) return s->order;
    tn_generator_seed(s->generator, seed);
    s->epoch = epoch;
    for (int64_t i = 0; s->kind == TNI_IN_ORDER && i < s->rows; i++) s->order[i] = i;
    if (s->kind == TNI_SHUFFLED || s->kind == TNI_MIXED)
        tn_generator_permutation(s->generator, s->rows, s->order);
    if (s->kind == TNI_WEIGHTED) draw_weighted(s);
    if (s->key) make_keys(s);
    for (int64_t i = 0; s->key && i < s->rows; i++) s->order[i] = s->key[i].row;
    for (int64_t i = 0; s->sample && i < s->draws; i++) s->order[i] = s->sample[s->order[i]];
    return s->order;
}
