/*
 * loader.c - batches of rows from tensors in memory, in an order fixed by seed and epoch.
 *
 * The order of an epoch is a permutation drawn from a generator seeded by (seed, epoch): any batch
 * of any epoch can be made without those before it, so seeking is free and a checkpoint needs only
 * a few numbers.
 *
 * With prefetch a thread copies the rows of the next batch while the caller trains. It runs no
 * tensor op (its own thread pool would take the caller's cores), touches no reference count, and
 * fills tensors made before it started: nothing it does can fail. Every batch has a thread of its
 * own, which the next call joins: the two share no lock, as the caller leaves alone what the thread
 * uses until then.
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "io/file.h"
#include "io/io.h"

#define MAX_TENSORS 4
#define MAX_EPOCH (INT64_MAX / 2) /* never reached; one more does not overflow */

struct tn_loader {
    int n_tensors;
    tn_tensor *tensor[MAX_TENSORS]; /* dense; our own handles: a module may cast or
                                       move the memory under the caller's */
    size_t row_bytes[MAX_TENSORS];
    int64_t rows, batches;
    tn_loader_options o;
    int64_t epoch, position;

    /* The order of one epoch. This and the rest is the thread's while it runs (settle). */
    tn_generator *generator;
    int64_t *order; /* rows of them; NULL without shuffle */
    int64_t order_epoch;

    tn_tensor *next[MAX_TENSORS]; /* a batch made in advance, one reference each; NULL */
    int64_t next_epoch, next_position;
    bool filling; /* there is a thread to be joined */
    pthread_t thread;
    pid_t pid; /* of the process that started it: a forked child has no such thread */
};

/* Steele et al., Fast splittable pseudorandom number generators (2014): neighbours become
 * strangers. */
static uint64_t mix(uint64_t seed, uint64_t epoch)
{
    uint64_t z = seed + (epoch + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The number of rows in our part of a batch; in an epoch's last batch some may be left over. */
static int64_t batch_rows(const tn_loader *l, int64_t position)
{
    return TNI_MIN(l->o.batch_size, l->rows - position * l->o.batch_size) / l->o.parts;
}

/* Makes the tensors of a batch, in the current scope. */
static tn_status make_batch(const tn_loader *l, int64_t position, tn_tensor **batch)
{
    for (int k = 0; k < l->n_tensors; k++) {
        tn_shape shape = l->tensor[k]->shape;
        shape.size[0] = batch_rows(l, position);
        batch[k] = tn_empty_as(shape, l->tensor[k]->dtype, tn_cpu());
        if (!batch[k]) return tni_pending();
    }
    return TN_OK;
}

/* Copies the rows of a batch to its tensors. Cannot fail. */
static void gather(tn_loader *l, int64_t epoch, int64_t position, tn_tensor *const *batch)
{
    if (l->order && l->order_epoch != epoch) {
        tn_generator_seed(l->generator, mix(l->o.seed, (uint64_t)epoch));
        tn_generator_permutation(l->generator, l->rows, l->order);
        l->order_epoch = epoch;
    }
    int64_t n = batch_rows(l, position);
    int64_t first = position * l->o.batch_size + l->o.part * n;
    for (int k = 0; k < l->n_tensors; k++) {
        const char *from = tni_data(l->tensor[k]);
        char *to = tni_data(batch[k]);
        size_t size = l->row_bytes[k];
        if (size == 0) continue;
        if (!l->order) {
            memcpy(to, from + (size_t)first * size, (size_t)n * size);
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            memcpy(to + (size_t)i * size, from + (size_t)l->order[first + i] * size, size);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *fill(void *argument)
{
    tn_loader *l = argument;
    gather(l, l->next_epoch, l->next_position, l->next);
    return NULL;
}

/* Drops the batch made in advance; no thread fills it. */
static void drop_next(tn_loader *l)
{
    for (int k = 0; k < l->n_tensors; k++) {
        tn_drop(l->next[k]);
        l->next[k] = NULL;
    }
    l->next_epoch = -1;
}

/* Returns when no thread works for the loader. */
static void settle(tn_loader *l)
{
    if (l->filling && l->pid == getpid()) {
        pthread_join(l->thread, NULL);
    } else if (l->filling) { /* in a forked child: the thread has stopped somewhere */
        drop_next(l);
        l->order_epoch = -1;
    }
    l->filling = false;
}

/* Makes the batch after the current one, and starts to fill it. */
static tn_status start_next(tn_loader *l)
{
    bool last = l->position + 1 == l->batches;
    tn_tensor *batch[MAX_TENSORS];
    drop_next(l);
    l->next_position = last ? 0 : l->position + 1;
    tn_scope scope = tn_scope_begin();
    tn_status status = make_batch(l, l->next_position, batch);
    for (int k = 0; k < l->n_tensors && status == TN_OK; k++) l->next[k] = tn_keep(batch[k]);
    tn_scope_end(scope);
    if (status != TN_OK) return status;
    l->next_epoch = l->epoch + last;
    l->pid = getpid();
    int error = tni_thread_start(&l->thread, fill, l);
    l->filling = !error;
    if (!error) return TN_OK;
    drop_next(l);
    return tni_error(TN_E_NOMEM, "tn_loader_next: no thread to prefetch with: %s", strerror(error));
}

/* The batch at the current position, in the current scope; the one made in advance if it fits. */
static tn_status take(tn_loader *l, tn_tensor **batch)
{
    tn_status status = TN_OK;
    if (l->next_epoch != l->epoch || l->next_position != l->position) {
        status = make_batch(l, l->position, batch);
        if (status == TN_OK) gather(l, l->epoch, l->position, batch);
        return status;
    }
    for (int k = 0; k < l->n_tensors; k++) {
        batch[k] = tn_scope_adopt(l->next[k]);
        l->next[k] = NULL;
        if (!batch[k]) status = tni_pending();
    }
    drop_next(l);
    return status;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

void tn_loader_free(tn_loader *l)
{
    if (!l) return;
    settle(l);
    drop_next(l);
    for (int k = 0; k < l->n_tensors; k++) tn_drop(l->tensor[k]);
    if (l->order) tni_free(l->order, (size_t)l->rows * sizeof *l->order);
    tn_generator_free(l->generator);
    tni_free(l, sizeof *l);
}

static tn_status check_sizes(const char *f, int64_t rows, const tn_loader_options *o)
{
    if (o->batch_size < 1)
        return tni_error(TN_E_INVALID, "%s: batch_size %" PRId64 ": want >= 1", f, o->batch_size);
    if (o->parts < 1 || o->part < 0 || o->part >= o->parts)
        return tni_error(TN_E_INVALID,
                         "%s: part %" PRId64 " of %" PRId64 ": want one of 0 to parts - 1", f,
                         o->part, o->parts);
    if (o->batch_size % o->parts != 0)
        return tni_error(TN_E_INVALID,
                         "%s: batches of %" PRId64 " in %" PRId64 " parts: want a multiple", f,
                         o->batch_size, o->parts);
    if (rows < o->parts || (o->drop_last && rows < o->batch_size))
        return tni_error(TN_E_INVALID, "%s: %" PRId64 " rows give no batch of %" PRId64, f, rows,
                         o->batch_size);
    return TN_OK;
}

static tn_status check(tn_tensor *const *tensors, int n, const tn_loader_options *o)
{
    static const char f[] = "tn_loader_new";
    if (n < 1 || n > MAX_TENSORS)
        return tni_error(TN_E_INVALID, "%s: %d tensors: want 1 to %d", f, n, MAX_TENSORS);
    for (int k = 0; k < n; k++) {
        const tn_tensor *t = tensors[k];
        char name[24];
        snprintf(name, sizeof name, "tensors[%d]", k);
        if (!t) return tni_poison(f, name);
        if (tni_none(t) || t->shape.rank < 1)
            return tni_error(TN_E_SHAPE, "%s: tensor %d has no rows: want rank >= 1", f, k);
        if (t->storage->device.type != TN_CPU)
            return tni_error(TN_E_DEVICE, "%s: tensor %d is not on the CPU: batches are made there",
                             f, k);
        if (t->shape.size[0] != tensors[0]->shape.size[0])
            return tni_error(TN_E_SHAPE,
                             "%s: tensor 0 has %" PRId64 " rows, tensor %d %" PRId64
                             ": want as many",
                             f, tensors[0]->shape.size[0], k, t->shape.size[0]);
    }
    return check_sizes(f, tensors[0]->shape.size[0], o);
}

static int64_t batches_of(int64_t rows, const tn_loader_options *o)
{
    return rows / o->batch_size + (!o->drop_last && rows % o->batch_size >= o->parts);
}

static tn_status keep_tensor(tn_loader *l, tn_tensor *t)
{
    int k = l->n_tensors;
    TN_SCOPE TN_NO_GRAD
    {
        tn_tensor *dense = tni_dense(t);
        l->tensor[k] = dense ? tni_alias_raw(dense) : NULL;
    }
    if (!l->tensor[k]) return tni_pending();
    l->n_tensors++;
    l->row_bytes[k] = (size_t)(tni_shape_numel(&t->shape) / l->rows) * tn_dtype_size(t->dtype);
    return TN_OK;
}

tn_loader *tn_loader_new(tn_tensor *const *tensors, int n, tn_loader_options o)
{
    if (!tensors) return tni_null("tn_loader_new", "tensors", "1 to 4 tensors"), NULL;
    if (o.batch_size == 0) o.batch_size = 1;
    if (o.parts == 0) o.parts = 1;
    if (check(tensors, n, &o) != TN_OK) return NULL;
    tn_loader *l = tni_calloc(sizeof *l);
    if (!l) return NULL;
    l->o = o;
    l->rows = tensors[0]->shape.size[0];
    l->batches = batches_of(l->rows, &o);
    l->order_epoch = l->next_epoch = -1;
    tn_status status = TN_OK;
    for (int k = 0; status == TN_OK && k < n; k++) status = keep_tensor(l, tensors[k]);
    if (status == TN_OK && o.shuffle) {
        l->generator = tn_generator_new(o.seed);
        if (l->generator) l->order = tni_alloc_n((size_t)l->rows, sizeof *l->order);
        if (!l->order) status = tni_pending();
    }
    if (status == TN_OK) return l;
    tn_loader_free(l);
    return NULL;
}

/* ---- using it -------------------------------------------------------------------------------- */

int tn_loader_next(tn_loader *l, tn_tensor **out, int n)
{
    static const char f[] = "tn_loader_next";
    if (!l) return tni_minus_one(tni_null(f, "loader", "a loader"));
    if (!out) return tni_minus_one(tni_null(f, "out", "room for the batch"));
    if (n != l->n_tensors)
        return tni_minus_one(tni_error(
            TN_E_INVALID, "%s: room for %d tensors: want %d, the loader's", f, n, l->n_tensors));
    if (l->position >= l->batches) {
        l->epoch++;
        l->position = 0;
        return 0;
    }
    settle(l);
    tn_tensor *batch[MAX_TENSORS];
    if (take(l, batch) != TN_OK) return -1;
    if (l->o.prefetch && start_next(l) != TN_OK) return -1;
    l->position++;
    memcpy(out, batch, (size_t)l->n_tensors * sizeof *out);
    return 1;
}

#define ANSWERS(name, value)                                                                       \
    int64_t name(const tn_loader *l)                                                               \
    {                                                                                              \
        return l ? l->value : tni_minus_one(tni_null(#name, "loader", "a loader"));                \
    }
ANSWERS(tn_loader_batches, batches)
ANSWERS(tn_loader_rows, rows)
ANSWERS(tn_loader_batch_size, o.batch_size)
ANSWERS(tn_loader_epoch, epoch)
ANSWERS(tn_loader_position, position)

tn_status tn_loader_set_batch_size(tn_loader *l, int64_t batch_size)
{
    static const char f[] = "tn_loader_set_batch_size";
    if (!l) return tni_null(f, "loader", "a loader");
    tn_loader_options o = l->o;
    o.batch_size = batch_size;
    tn_status status = check_sizes(f, l->rows, &o);
    if (status != TN_OK) return status;
    if (l->position != 0)
        return tni_error(TN_E_STATE, "%s: batch %" PRId64 " of an epoch: want its beginning", f,
                         l->position);
    settle(l);
    drop_next(l);
    l->o = o;
    l->batches = batches_of(l->rows, &o);
    return TN_OK;
}

tn_status tn_loader_seek(tn_loader *l, int64_t epoch, int64_t position)
{
    if (!l) return tni_null("tn_loader_seek", "loader", "a loader");
    if (epoch < 0 || epoch > MAX_EPOCH || position < 0 || position > l->batches)
        return tni_error(TN_E_INDEX,
                         "tn_loader_seek: epoch %" PRId64 ", batch %" PRId64
                         ": an epoch has %" PRId64 " batches",
                         epoch, position, l->batches);
    l->epoch = epoch;
    l->position = position;
    return TN_OK;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

const char *const tni_loader_names[TNI_LOADER_NUMBERS] = {
    "epoch", "position", "seed", "rows", "batch_size", "shuffle", "drop_last",
};

void tni_loader_get(const tn_loader *l, tni_loader_state *state)
{
    *state = (tni_loader_state){ l->epoch,        l->position,  (int64_t)l->o.seed, l->rows,
                                 l->o.batch_size, l->o.shuffle, l->o.drop_last };
}

/* The number of batches for any number of parts; with several, a short last one may be dropped. */
static int64_t most_batches(const tn_loader *l)
{
    tn_loader_options whole = l->o;
    whole.parts = 1;
    return batches_of(l->rows, &whole);
}

tn_status tni_loader_fits(const tn_loader *l, const tni_loader_state *state)
{
    static const char f[] = "loader";
    if (state->rows != l->rows || state->batch_size != l->o.batch_size ||
        (state->shuffle != 0) != l->o.shuffle || (state->drop_last != 0) != l->o.drop_last)
        return tni_error(TN_E_INVALID,
                         "%s: %" PRId64 " rows in batches of %" PRId64
                         " (shuffle %d, drop_last %d) there, %" PRId64 " in "
                         "batches of %" PRId64 " (%d, %d) here: want equal ones",
                         f, state->rows, state->batch_size, state->shuffle != 0,
                         state->drop_last != 0, l->rows, l->o.batch_size, l->o.shuffle,
                         l->o.drop_last);
    if (state->epoch < 0 || state->epoch > MAX_EPOCH || state->position < 0 ||
        state->position > most_batches(l))
        return tni_error(TN_E_FORMAT,
                         "%s: epoch %" PRId64 ", batch %" PRId64 ": an epoch has %" PRId64
                         " batches",
                         f, state->epoch, state->position, most_batches(l));
    return TN_OK;
}

void tni_loader_set(tn_loader *l, const tni_loader_state *state)
{
    settle(l);
    drop_next(l); /* it may be of another seed */
    l->order_epoch = -1;
    l->o.seed = (uint64_t)state->seed;
    l->epoch = state->epoch;
    l->position = TNI_MIN(state->position, l->batches); /* saved with fewer parts: at the end */
}
