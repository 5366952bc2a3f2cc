/*
 * batches.c - makes a loader's batches, in its owner's thread or by threads in advance.
 *
 * The owner opens a batch: it makes the tensors, and writes down which samples they hold. Threads
 * take samples of the open batches in order, a few at a time, and make them in that memory. The
 * owner waits for the first batch, and opens another one behind the last. So batches and errors are
 * the same for any number of threads, and nothing depends on which of them made what.
 *
 * Threads touch no reference count and no order; with tensors in memory they run nothing but
 * memcpy. One lock guards what is given out and done; a sample is made without it.
 */
#include "autograd/op.h"
#include "ext/data/loader.h"
#include "tensor/random.h"

#define MOST_TAKEN 64 /* samples that a thread takes at a time */

/* Some samples of a batch. */
typedef struct task {
    tni_batch *batch;
    int64_t first, n;
} task;

/* ---- opening and closing a batch ------------------------------------------------------------- */

static void close_batch(const tn_loader *l, const tni_batch *b)
{
    for (int k = 0; k < l->n_out; k++) {
        if (l->graphs && b->out[k]) l->graphs->forget(tni_data(b->out[k]));
        tn_drop(b->out[k]);
    }
    for (int k = 0; k < l->data->n_fields; k++) tn_drop(b->field[k]);
    tni_free(b->field, b->nbytes);
}

static tn_tensor *make_tensor(const tn_field *f, int64_t n)
{
    tn_shape shape = { f->shape.rank + 1, { n } };
    for (int i = 0; i < f->shape.rank; i++) shape.size[i + 1] = f->shape.size[i];
    return tn_empty_as(shape, f->dtype, tn_cpu());
}

static tn_status open_batch(tn_loader *l, tni_batch *b, int64_t epoch, int64_t position)
{
    const tn_dataset *d = l->data;
    const size_t n_fields = (size_t)d->n_fields, sizes = l->n_in > d->n_fields ? n_fields : 0;
    const size_t tensors = n_fields + (size_t)l->n_in + 2 * (size_t)l->n_out;
    const int64_t begin = position * l->o.batch_size;
    int64_t n = l->o.batch_size; /* some may be left over for no part at the end of an epoch */
    if (l->rows >= 0) n = TNI_MIN(n, l->rows - begin);
    n /= l->o.parts;
    *b = (tni_batch){ .epoch = epoch, .position = position, .n = n, .failed = n, .made = n };
    b->first = begin + l->o.part * n;
    if (!tni_mul_size((size_t)n, (1 + sizes) * sizeof *b->index, &b->nbytes) ||
        !tni_add_size(b->nbytes, tensors * sizeof *b->field, &b->nbytes))
        b->nbytes = SIZE_MAX;
    b->field = tni_calloc(b->nbytes);
    if (!b->field) return TN_E_NOMEM;
    b->out = b->field + n_fields;
    b->index = (int64_t *)(void *)(b->field + tensors);
    if (sizes) b->size = b->index + n;
    const uint64_t seed = tni_mix(l->o.seed, (uint64_t)epoch);
    const int64_t *order = tni_sampler_order(&l->sampler, seed, epoch);
    for (int64_t i = 0; i < n; i++) b->index[i] = order ? order[b->first + i] : b->first + i;
    TN_SCOPE TN_NO_GRAD for (int k = 0; k < d->n_fields; k++)
    {
        b->field[k] = tn_keep(make_tensor(&d->fields[k], n));
        if (!b->field[k]) return close_batch(l, b), tni_pending();
    }
    return TN_OK;
}

/* ---- making samples: what threads run -------------------------------------------------------- */

/* "NAME, sample 7: " and what went wrong in get or collate. */
static tn_status blame(const tn_dataset *d, const char *of, int64_t index, const char *function,
                       tn_status status, uint64_t errors)
{
    if (tni_error_count == errors)
        tni_error(status, "%s returned %s", function, tn_status_name(status));
    return tni_error_prefix("tn_loader_next: %s, %s %" PRId64 ": ",
                            d->name ? d->name : "a data set", of, index);
}

/* Makes sample `index` as the i-th of a batch. *end: the stream has none. */
static tn_status make_sample(const tn_loader *l, const tni_worker *w, const tni_batch *b, int64_t i,
                             int64_t index, bool *end)
{
    const tn_dataset *d = l->data;
    const int64_t number = l->sampler.kind == TNI_WEIGHTED ? b->first + i : index;
    tn_sample s = { .index = index, .epoch = b->epoch, .to = w->to, .generator = w->generator };
    if (b->size) s.size = b->size + i * d->n_fields;
    for (int k = 0; k < d->n_fields; k++) {
        const tn_field *f = &d->fields[k];
        w->to[k] = (char *)tni_data(b->field[k]) + (size_t)i * tni_field_bytes(f);
        if (b->size) s.size[k] = f->shape.rank ? f->shape.size[0] : 1;
    }
    const uint64_t errors = tni_error_count, seed = tni_mix(l->o.seed, (uint64_t)b->epoch);
    tn_generator_seed(w->generator, tni_mix(seed, (uint64_t)number));
    tn_status status = TN_OK;
    TN_SCOPE TN_NO_GRAD status = d->get(d, &s);
    *end = s.end && l->rows < 0;
    for (int k = 0; k < d->n_fields && status == TN_OK && !*end; k++) {
        const tn_field *f = &d->fields[k];
        if (f->varies && (s.size[k] < 0 || s.size[k] > f->shape.size[0]))
            status = tni_error(TN_E_SHAPE, "field %d of size %" PRId64 ": want 0 to %" PRId64, k,
                               s.size[k], f->shape.size[0]);
    }
    return status == TN_OK ? status : blame(d, "sample", index, "get", status, errors);
}

/* All of a stream's batch, after what lies before it. *i: where it ended. */
static tn_status make_stream(tn_loader *l, const tni_worker *w, const tni_batch *b, int64_t *i)
{
    tn_status status = TN_OK;
    if (l->stream_epoch != b->epoch || l->stream_at > b->first)
        l->stream_epoch = b->epoch, l->stream_at = 0, l->stream_over = false;
    while (!l->stream_over && *i < b->n) {
        status = make_sample(l, w, b, *i, l->stream_at, &l->stream_over);
        if (status != TN_OK || l->stream_over) break;
        *i += l->stream_at++ >= b->first;
    }
    if (status != TN_OK) l->stream_epoch = -1; /* begins anew */
    return status;
}

/* Copies rows of the loader's tensors; those that lie together at once. */
static void gather(const tn_loader *l, const tni_batch *b, int64_t first, int64_t n)
{
    const int64_t *index = b->index + first;
    bool together = true;
    for (int64_t i = 1; i < n && together; i++) together = index[i] == index[i - 1] + 1;
    for (int k = 0; k < l->data->n_fields; k++) {
        const size_t size = tni_field_bytes(&l->field[k]);
        const char *from = tni_data(l->tensor[k]);
        char *to = (char *)tni_data(b->field[k]) + (size_t)first * size;
        if (size == 0) continue;
        if (together) memcpy(to, from + (size_t)index[0] * size, (size_t)n * size);
        for (int64_t i = 0; i < n && !together; i++)
            memcpy(to + (size_t)i * size, from + (size_t)index[i] * size, size);
    }
}

/* Makes the samples of a task; the first that failed, or n of the batch, and its error. */
static int64_t run(tn_loader *l, const tni_worker *w, task t, tni_saved_error *error)
{
    tni_batch *b = t.batch;
    tn_status status = TN_OK;
    int64_t i = t.first;
    bool end;
    if (!l->data->get) {
        gather(l, b, t.first, t.n);
    } else if (l->rows < 0) {
        status = make_stream(l, w, b, &i);
        b->made = i;
    } else {
        for (; i < t.first + t.n; i++)
            if ((status = make_sample(l, w, b, i, b->index[i], &end)) != TN_OK) break;
    }
    if (status == TN_OK) return b->n;
    tni_error_save(error);
    tn_error_clear();
    return i;
}

/* ---- making the batch of its samples --------------------------------------------------------- */

/* Field k, which varies, up to its longest, and *sizes. */
static tn_tensor *padded(const tn_loader *l, const tni_batch *b, int k, tn_tensor **sizes)
{
    const tn_field *f = &l->data->fields[k];
    const size_t value = tn_dtype_size(f->dtype);
    int64_t longest = 0;
    *sizes = tn_empty_as(TN_SHAPE(b->n), TN_I64, tn_cpu());
    const tn_tensor *pad = tn_full_as(TN_SCALAR, l->o.pad, f->dtype, tn_cpu());
    if (!*sizes || !pad) return NULL;
    int64_t *size = tni_data(*sizes);
    for (int64_t i = 0; i < b->made; i++) {
        size[i] = b->size[i * l->data->n_fields + k];
        longest = TNI_MAX(longest, size[i]);
    }
    tn_tensor *t = tn_contiguous(tn_narrow(b->field[k], 1, 0, longest));
    char *at = t ? tni_data(t) : NULL;
    const size_t row = (size_t)longest * tni_field_bytes(f) / (size_t)TNI_MAX(f->shape.size[0], 1);
    for (int64_t i = 0; at && i < b->made; i++, at += row)
        for (size_t from = longest ? row / (size_t)longest * (size_t)size[i] : row; from < row;
             from += value)
            memcpy(at + from, tni_data(pad), value);
    return t;
}

/* The tensors of a batch: the fields', then sizes; of a stream's last batch as much as there is. */
static tn_status tensors_of(const tn_loader *l, const tni_batch *b, tn_tensor **out)
{
    int n = l->data->n_fields;
    for (int k = 0; k < l->data->n_fields; k++)
        out[k] = l->data->fields[k].varies ? padded(l, b, k, &out[n++]) : b->field[k];
    for (int k = 0; k < n; k++) {
        if (b->made < b->n) out[k] = tn_contiguous(tn_narrow(out[k], 0, 0, b->made));
        if (!out[k]) return tni_pending();
    }
    return TN_OK;
}

/* What is handed out of a batch whose samples are made: those tensors, or collate's of them. */
static tn_status hand_on(const tn_loader *l, const tni_batch *b)
{
    TNI_UNRECORDED;
    tn_tensor **in = b->out + l->n_out, **made = l->o.collate ? in + l->n_in : in;
    TNI_TRY(tensors_of(l, b, in));
    if (l->o.collate) TNI_TRY(l->o.collate(l->data, in, made));
    for (int k = 0; k < l->n_out; k++)
        if (!(b->out[k] = tn_keep(tn_contiguous(tn_to(made[k], tn_cpu()))))) return tni_pending();
    return TN_OK;
}

static tn_status finish(const tn_loader *l, tni_batch *b)
{
    if (b->made < (l->o.drop_last ? b->n : 1)) return TN_OK; /* the end of a stream: nothing */
    const uint64_t errors = tni_error_count;
    tn_status status = hand_on(l, b);
    for (int k = 0; k < l->data->n_fields; k++) {
        tn_tensor *done = b->field[k];
        b->field[k] = NULL; /* first: a forked child drops what it finds */
        tn_drop(done);
    }
    if (status == TN_OK || !l->o.collate) return status;
    return blame(l->data, "the batch from sample", b->index[0], "collate", status, errors);
}

/* Makes a task's samples, and with the last ones the batch; gives up the lock meanwhile. */
static void perform(tn_loader *l, const tni_worker *w, task t)
{
    tni_batch *b = t.batch;
    tni_saved_error error;
    pthread_mutex_unlock(&l->lock);
    const int64_t failed = run(l, w, t, &error);
    pthread_mutex_lock(&l->lock);
    b->done += t.n;
    if (failed < b->failed) b->failed = failed, b->error = error;
    if (b->done < b->n) return;
    if (b->failed == b->n) {
        pthread_mutex_unlock(&l->lock);
        const bool made = finish(l, b) == TN_OK;
        if (!made) tni_error_save(&error), tn_error_clear();
        pthread_mutex_lock(&l->lock);
        if (!made) b->failed = 0, b->error = error;
    }
    b->ready = true;
}

/* Samples to make next; under the lock. A stream's batch is made as a whole, after that before. */
static bool find_task(const tn_loader *l, task *t)
{
    if (l->rows < 0 && l->busy) return false;
    for (int64_t k = l->begin; k < l->end; k++) {
        tni_batch *b = &l->batch[k % l->n_batches];
        int64_t most = TNI_MAX(1, TNI_MIN(MOST_TAKEN, b->n / (4 * l->n_workers)));
        if (l->rows < 0 || l->n_workers == 1) most = b->n;
        *t = (task){ b, b->taken, TNI_MIN(most, b->n - b->taken) };
        b->taken += t->n;
        if (t->n > 0) return true;
    }
    return false;
}

static void *work(void *argument)
{
    const tni_worker *w = argument;
    tn_loader *l = w->loader;
    pthread_mutex_lock(&l->lock);
    while (!l->stopping) {
        task t;
        if (!find_task(l, &t)) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        l->busy++;
        perform(l, w, t);
        l->busy--;
        if (t.batch->ready || !l->busy) pthread_cond_signal(&l->ready);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- the owner's side ------------------------------------------------------------------------ */

static void make_locks(tn_loader *l)
{
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->ready, NULL);
}

tn_status tni_batches_make(tn_loader *l)
{
    const size_t n = (size_t)l->data->n_fields;
    l->n_batches = l->o.workers ? l->o.ahead + 1 : 1;
    l->n_workers = TNI_MAX(l->o.workers, 1);
    l->stream_epoch = -1;
    make_locks(l);
    l->batch = tni_calloc_n((size_t)l->n_batches, sizeof *l->batch);
    if (l->batch) l->worker = tni_calloc_n((size_t)l->n_workers, sizeof *l->worker);
    if (!l->worker) return TN_E_NOMEM;
    for (tni_worker *w = l->worker; w < l->worker + l->n_workers; w++) {
        w->loader = l;
        w->to = tni_calloc_n(n, sizeof *w->to);
        if (w->to) w->generator = tn_generator_new(0);
        if (!w->generator) return tni_pending();
    }
    return TN_OK;
}

void tni_batches_settle(tn_loader *l)
{
    if (l->n_threads && l->pid != getpid()) { /* a forked child: they have stopped somewhere */
        l->n_threads = l->busy = 0;
        l->stream_epoch = -1;
        make_locks(l);
        for (int64_t i = 0; i < l->n_workers; i++)
            pthread_mutex_init(l->worker[i].generator->lock, NULL);
    }
    pthread_mutex_lock(&l->lock);
    for (int64_t k = l->begin; k < l->end; k++)
        l->batch[k % l->n_batches].taken = l->batch[k % l->n_batches].n;
    while (l->busy) pthread_cond_wait(&l->ready, &l->lock);
    pthread_mutex_unlock(&l->lock);
    while (l->begin < l->end) tni_batches_next(l);
}

void tni_batches_free(tn_loader *l)
{
    if (!l->batch) return; /* nothing was made */
    tni_batches_settle(l);
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int64_t i = 0; i < l->n_threads; i++) pthread_join(l->worker[i].thread, NULL);
    for (tni_worker *w = l->worker; w && w < l->worker + l->n_workers; w++) {
        tn_generator_free(w->generator);
        if (w->to) tni_free(w->to, (size_t)l->data->n_fields * sizeof *w->to);
    }
    if (l->worker) tni_free(l->worker, (size_t)l->n_workers * sizeof *l->worker);
    tni_free(l->batch, (size_t)l->n_batches * sizeof *l->batch);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->ready);
    pthread_mutex_destroy(&l->lock);
}

void tni_batches_next(tn_loader *l)
{
    pthread_mutex_lock(&l->lock);
    const tni_batch *b = &l->batch[l->begin++ % l->n_batches];
    pthread_mutex_unlock(&l->lock);
    close_batch(l, b);
}

/* Opens batches up to the end of the ring, each after the one before. */
static tn_status open_batches(tn_loader *l)
{
    while (l->end - l->begin < l->n_batches) {
        int64_t epoch = l->epoch, position = l->position;
        if (l->end > l->begin) {
            const tni_batch *last = &l->batch[(l->end - 1) % l->n_batches];
            bool new = last->position + 1 >= l->batches;
            epoch = last->epoch + new;
            position = new ? 0 : last->position + 1;
        }
        TNI_TRY(open_batch(l, &l->batch[l->end % l->n_batches], epoch, position));
        pthread_mutex_lock(&l->lock);
        l->end++;
        pthread_cond_broadcast(&l->work);
        pthread_mutex_unlock(&l->lock);
    }
    return TN_OK;
}

static tn_status start_threads(tn_loader *l)
{
    l->pid = getpid();
    while (l->n_threads < l->o.workers) {
        tni_worker *w = &l->worker[l->n_threads];
        int error = tni_thread_start(&w->thread, work, w);
        if (error) return tni_error(TN_E_NOMEM, "tn_loader_next: no thread: %s", strerror(error));
        l->n_threads++;
    }
    return TN_OK;
}

const tni_batch *tni_batches_get(tn_loader *l)
{
    tni_batch *b = &l->batch[l->begin % l->n_batches];
    if (l->begin == l->end || b->epoch != l->epoch || b->position != l->position ||
        l->pid != getpid())
        tni_batches_settle(l);
    if (open_batches(l) != TN_OK || start_threads(l) != TN_OK) return NULL;
    b = &l->batch[l->begin % l->n_batches];
    pthread_mutex_lock(&l->lock);
    if (!l->n_threads && !b->ready) perform(l, &l->worker[0], (task){ b, 0, b->n });
    while (!b->ready) pthread_cond_wait(&l->ready, &l->lock);
    pthread_mutex_unlock(&l->lock);
    if (b->failed == b->n) return b;
    tni_error_restore(&b->error);
    return NULL;
}
