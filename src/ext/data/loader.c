/*
 * loader.c - batches from a data set, in an order fixed by seed and epoch, and where it stands.
 *
 * The order of an epoch (sampler.c) comes from a generator seeded by (seed, epoch), random numbers
 * of a sample from one seeded by its number as well. Batches are made in batches.c.
 */
#include "ext/data/loader.h"
#include "io/io.h"

#define MAX_EPOCH (INT64_MAX / 2) /* never reached; one more does not overflow */
#define MAX_WORKERS 1024

/* ---- making and freeing ---------------------------------------------------------------------- */

void tn_loader_free(tn_loader *l)
{
    if (!l) return;
    tni_batches_free(l);
    tni_sampler_free(&l->sampler);
    for (int k = 0; k < TNI_LOADER_TENSORS; k++) tn_drop(l->tensor[k]);
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
    const int64_t least = o->drop_last ? o->batch_size : o->parts;
    if (rows >= 0 && rows < least)
        return tni_error(
            TN_E_INVALID,
            "%s: %" PRId64 " rows give no batch of %" PRId64 ": want at least %" PRId64 "%s", f,
            rows, o->batch_size, least, rows < o->parts ? "" : ", or drop_last off");
    return TN_OK;
}

static tn_status check_tensors(const char *f, tn_tensor *const *tensors, int n)
{
    if (!tensors) return tni_null(f, "tensors", "1 to 4 tensors");
    if (n < 1 || n > TNI_LOADER_TENSORS)
        return tni_error(TN_E_INVALID, "%s: %d tensors: want 1 to %d", f, n, TNI_LOADER_TENSORS);
    for (int k = 0; k < n; k++) {
        const tn_tensor *t = tensors[k];
        char name[24];
        snprintf(name, sizeof name, "tensors[%d]", k);
        if (!t) return tni_poison(f, name);
        if (tni_none(t) || t->shape.rank < 1)
            return tni_error(TN_E_SHAPE, "%s: tensor %d has no rows: want rank >= 1", f, k);
        if (t->storage->device.type != TN_CPU)
            return tni_error(TN_E_DEVICE, "%s: tensor %d is not on the CPU: want it there", f, k);
        if (t->shape.size[0] != tensors[0]->shape.size[0])
            return tni_error(TN_E_SHAPE,
                             "%s: tensor 0 has %" PRId64 " rows, tensor %d %" PRId64
                             ": want as many",
                             f, tensors[0]->shape.size[0], k, t->shape.size[0]);
    }
    return TN_OK;
}

static tn_status check_data(const char *f, const tn_dataset *d)
{
    if (!d->get || !d->fields || d->n_fields < 1 || d->length < -1)
        return tni_error(TN_E_INVALID,
                         "%s: length %" PRId64 ", %d fields%s: want 0 and up, or -1 for a stream, "
                         "1 or more fields, and get",
                         f, d->length, d->fields ? d->n_fields : 0, d->get ? "" : " and no get");
    for (int k = 0; k < d->n_fields; k++) {
        const tn_field *w = &d->fields[k];
        if (w->shape.rank < w->varies || w->shape.rank >= TN_MAX_RANK ||
            tni_shape_numel(&w->shape) < 0 || tn_dtype_size(w->dtype) == 0)
            return tni_error(TN_E_SHAPE, "%s: field %d (%s): want a dtype and %d to %d sizes", f, k,
                             w->name ? w->name : "unnamed", w->varies, TN_MAX_RANK - 1);
    }
    return TN_OK;
}

static tn_status check_options(const char *f, const tn_dataset *d, const tn_loader_options *o)
{
    if (o->workers < 0 || o->workers > MAX_WORKERS || o->ahead < 0 || o->ahead > MAX_WORKERS)
        return tni_error(TN_E_INVALID,
                         "%s: workers %" PRId64 ", ahead %" PRId64 ": want both 0 to %d", f,
                         o->workers, o->ahead, MAX_WORKERS);
    if (o->collate ? o->n_out < 1 : o->n_out != 0)
        return tni_error(TN_E_INVALID, "%s: n_out %d: want collate's, 1 and up, else 0", f,
                         o->n_out);
    const bool chosen = o->shuffle || o->parts != 1 || o->samples || o->weights || o->classes;
    if (d->length == -1 && (chosen || o->draws))
        return tni_error(TN_E_INVALID, "%s: a stream: want all samples, in order, in one part", f);
    return o->draws || o->samples ? TN_OK : check_sizes(f, d->length, o);
}

static int64_t batches_of(int64_t rows, const tn_loader_options *o)
{
    if (rows < 0) return INT64_MAX / o->batch_size; /* a stream: never reached */
    return rows / o->batch_size + (!o->drop_last && rows % o->batch_size >= o->parts);
}

static tn_status keep_tensor(tn_loader *l, int k, tn_tensor *t)
{
    TN_SCOPE TN_NO_GRAD
    {
        tn_tensor *dense = tni_dense(t);
        l->tensor[k] = dense ? tni_alias_raw(dense) : NULL;
    }
    l->field[k] = (tn_field){ .dtype = t->dtype, .shape.rank = t->shape.rank - 1 };
    for (int i = 1; i < t->shape.rank; i++) l->field[k].shape.size[i - 1] = t->shape.size[i];
    return l->tensor[k] ? TN_OK : tni_pending();
}

/* What is the same for tensors and a user's data; frees l on failure. */
static tn_loader *complete(const char *f, tn_loader *l, const tn_dataset *d, tn_loader_options o)
{
    TNI_HOLD_TRAPS;
    if (o.batch_size == 0) o.batch_size = 1;
    if (o.parts == 0) o.parts = 1;
    const bool moves = o.device.type != TN_CPU;
    if (o.ahead == 0) o.ahead = o.workers || moves ? 2 : 1;
    if ((o.prefetch || moves) && o.workers == 0) o.workers = 1;
    tn_status status = TN_OK;
    tn_tensor **given[] = { &o.samples, &o.weights, &o.classes };
    static const char *const names[] = { "samples", "weights", "classes" };
    for (int k = 0; k < 3 && status == TN_OK; k++) {
        if (d->get && !tni_option_tensor(f, names[k], *given[k])) status = tni_pending();
        if (*given[k] && tni_none(*given[k])) *given[k] = NULL;
    }
    l->data = d;
    l->o = o;
    l->o.samples = l->o.weights = l->o.classes = NULL; /* the sampler has their values */
    l->n_in = d->n_fields;
    for (int k = 0; k < d->n_fields; k++) l->n_in += d->fields[k].varies;
    l->n_out = o.collate ? o.n_out : l->n_in;
    if (status == TN_OK) status = check_options(f, d, &o);
    if (status == TN_OK) status = tni_sampler_make(f, &l->sampler, &o, d->length);
    l->rows = l->sampler.draws;
    if (status == TN_OK) status = check_sizes(f, l->rows, &o);
    if (status == TN_OK) l->batches = batches_of(l->rows, &o);
    if (status == TN_OK && !tni_backend_for(o.device)) status = tni_pending();
    if (status == TN_OK) l->graphs = tni_graphs_for(o.device);
    if (status == TN_OK) status = tni_batches_make(l);
    if (status == TN_OK) return l;
    tn_loader_free(l);
    return NULL;
}

tn_loader *tn_loader_new(tn_tensor *const *tensors, int n, tn_loader_options o)
{
    if (check_tensors(__func__, tensors, n) != TN_OK) return NULL;
    tn_loader *l = tni_calloc(sizeof *l);
    if (!l) return NULL;
    l->tensors =
        (tn_dataset){ .length = tensors[0]->shape.size[0], .fields = l->field, .n_fields = n };
    tn_status status = TN_OK;
    for (int k = 0; status == TN_OK && k < n; k++) status = keep_tensor(l, k, tensors[k]);
    if (status == TN_OK) return complete(__func__, l, &l->tensors, o);
    tn_loader_free(l);
    return NULL;
}

tn_loader *tn_loader_from(const tn_dataset *d, tn_loader_options o)
{
    if (!d) return tni_nothing(tni_null(__func__, "d", "a data set"));
    tn_loader *l = check_data(__func__, d) == TN_OK ? tni_calloc(sizeof *l) : NULL;
    return l ? complete(__func__, l, d, o) : NULL;
}

/* ---- using it -------------------------------------------------------------------------------- */

static tn_status hand_out(const tn_loader *l, const tni_batch *b, tn_tensor **out)
{
    tn_status status = TN_OK;
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD for (int k = 0; status == TN_OK && k < l->n_out; k++)
    {
        out[k] = l->graphs ? tn_to(b->out[k], l->o.device) : b->out[k];
        if (!out[k]) status = tni_pending();
    }
    return tni_scope_hand_over(scope, NULL, status, l->n_out, out);
}

/* Sends the next batch to the GPU, if it is made. What fails is tried again by the next call. */
static void look_ahead(tn_loader *l)
{
    const tni_batch *b = &l->batch[l->begin % l->n_batches];
    tni_saved_error error;
    tni_error_save(&error);
    pthread_mutex_lock(&l->lock);
    const bool ready = l->begin < l->end && b->ready && b->failed == b->n;
    pthread_mutex_unlock(&l->lock);
    for (int k = 0; ready && k < l->n_out && b->out[k]; k++)
        l->graphs->ahead(tni_data(b->out[k]), tni_bytes_of(b->out[k]));
    tni_error_restore(&error);
}

static int end_of_epoch(tn_loader *l)
{
    l->epoch++;
    l->position = 0;
    return 0;
}

int tn_loader_next(tn_loader *l, tn_tensor **out, int n)
{
    TNI_HOLD_TRAPS;
    if (!l) return tni_minus_one(tni_null(__func__, "loader", "a loader"));
    if (!out) return tni_minus_one(tni_null(__func__, "out", "room for the batch"));
    if (n != l->n_out)
        return tni_minus_one(tni_error(
            TN_E_INVALID, "%s: room for %d tensors: want %d, the loader's", __func__, n, l->n_out));
    if (tni_host_refused(__func__, "takes a batch", "it as an input of tn_capture_run")) return -1;
    if (l->position >= l->batches) return end_of_epoch(l);
    const size_t guarded = tni_scope_guard();
    const tni_batch *b = tni_batches_get(l);
    tni_scope_unguard(guarded);
    if (b && b->made < (l->o.drop_last ? b->n : 1)) return end_of_epoch(l); /* of a stream */
    if (!b || hand_out(l, b, out) != TN_OK) {
        tni_saved_error error;
        tni_error_save(&error);
        tni_batches_settle(l);
        tni_error_restore(&error);
        return -1;
    }
    tni_batches_next(l);
    l->position++;
    if (l->graphs) look_ahead(l);
    return 1;
}

#define ANSWERS(name, value)                                                                       \
    int64_t name(const tn_loader *l)                                                               \
    {                                                                                              \
        return l ? l->value : tni_minus_one(tni_null(#name, "loader", "a loader"));                \
    }
ANSWERS(tn_loader_batches, rows < 0 ? -1 : l->batches)
ANSWERS(tn_loader_rows, rows)
ANSWERS(tn_loader_batch_size, o.batch_size)
ANSWERS(tn_loader_epoch, epoch)
ANSWERS(tn_loader_position, position)

tn_status tn_loader_set_batch_size(tn_loader *l, int64_t batch_size)
{
    if (!l) return tni_null(__func__, "loader", "a loader");
    tn_loader_options o = l->o;
    o.batch_size = batch_size;
    TNI_TRY(check_sizes(__func__, l->rows, &o));
    if (l->position != 0)
        return tni_error(TN_E_STATE, "%s: batch %" PRId64 " of an epoch: want its beginning",
                         __func__, l->position);
    tni_batches_settle(l);
    l->o = o;
    l->batches = batches_of(l->rows, &o);
    return TN_OK;
}

static tn_status check_place(const char *f, tn_status wrong, int64_t epoch, int64_t position,
                             int64_t batches)
{
    if (epoch >= 0 && epoch <= MAX_EPOCH && position >= 0 && position <= batches) return TN_OK;
    return tni_error(wrong,
                     "%s: epoch %" PRId64 ", batch %" PRId64 ": an epoch has %" PRId64 " batches",
                     f, epoch, position, batches);
}

tn_status tn_loader_seek(tn_loader *l, int64_t epoch, int64_t position)
{
    if (!l) return tni_null(__func__, "loader", "a loader");
    TNI_TRY(check_place(__func__, TN_E_INDEX, epoch, position, l->batches));
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
    *state = (tni_loader_state){ l->epoch,      l->position,     (int64_t)l->o.seed,
                                 l->rows,       l->o.batch_size, (int64_t)l->sampler.kind,
                                 l->o.drop_last };
}

tn_status tni_loader_fits(const tn_loader *l, const tni_loader_state *state)
{
    static const char f[] = "loader";
    if (state->rows != l->rows || state->batch_size != l->o.batch_size ||
        state->shuffle != (int64_t)l->sampler.kind || (state->drop_last != 0) != l->o.drop_last)
        return tni_error(TN_E_INVALID,
                         "%s: %" PRId64 " rows in batches of %" PRId64
                         " (shuffle %d, drop_last %d) there, %" PRId64 " in "
                         "batches of %" PRId64 " (%d, %d) here: want equal ones",
                         f, state->rows, state->batch_size, (int)state->shuffle,
                         state->drop_last != 0, l->rows, l->o.batch_size, (int)l->sampler.kind,
                         l->o.drop_last);
    tn_loader_options whole = l->o; /* with several parts a short last batch may be dropped */
    whole.parts = 1;
    return check_place(f, TN_E_FORMAT, state->epoch, state->position, batches_of(l->rows, &whole));
}

void tni_loader_set(tn_loader *l, const tni_loader_state *state)
{
    tni_batches_settle(l); /* they may be of another seed */
    l->sampler.epoch = -1;
    l->o.seed = (uint64_t)state->seed;
    l->epoch = state->epoch;
    l->position = TNI_MIN(state->position, l->batches); /* saved with fewer parts: at the end */
}
