/*
 * reduce.c - gradients averaged in buckets during backward; Li et al., PyTorch Distributed, 2020.
 *
 * Buckets hold the parameters from the last registered to the first, about the order in which their
 * gradients become complete. A gradient that is complete is copied into its place; a full bucket's
 * sum over ranks is begun (non-blocking), in the order of the buckets on every rank, whatever the
 * order of the gradients. At the end of the pass the missing gradients are filled in, the other
 * buckets sent, and all sums waited for: a parameter without one here sends what it has, or 0.
 *
 * Open MPI makes progress only inside its own calls, so each complete gradient also tests the
 * buckets on their way. On a GPU the host waits for nothing here: a bucket's sum is queued after
 * the work that fills it, and work that reads it after the sum (wire.c).
 *
 * A bucket that travels as bf16 is collected in f32, rounded to a message when it is full, and read
 * back from it when the sum is there.
 *
 * Then every rank tells the others, in a few bytes, which parameters had a gradient, which require
 * one, and the layout of its parameters and buffers. So all ranks agree on which averages count,
 * and all notice if one rank's model has changed. A rank on which the pass has failed sends
 * whatever it has and reports that, so all fail together and can go on together.
 */
#include "ext/parallel/data_parallel.h"
#include "nn/micro_batches.h"

static const char function[] = "tn_backward";

/* ---- buckets --------------------------------------------------------------------------------- */

static tn_dtype wide(tn_dtype dtype)
{
    return dtype == TN_F64 ? TN_F64 : TN_F32;
}

/* The dtype in which a parameter's gradient is sent. */
static tn_dtype sent_as(const tn_data_parallel *p, tn_dtype dtype)
{
    return dtype == TN_F64 ? TN_F64 : p->messages;
}

/* How many numbers are sent for that many elements: a sum in bf16 needs equal pieces for the ranks,
 * and the last one is filled up with 0. */
static int64_t numbers(const tn_data_parallel *p, int64_t elements, tn_dtype dtype)
{
    int64_t size = sent_as(p, dtype) == TN_BF16 ? tn_parallel_size() : 1;
    return (elements + size - 1) / size * size;
}

/* The parameter at a place in the order of the buckets: the last registered is the first. */
static int nth(const tn_data_parallel *p, int place)
{
    return p->sync.n - 1 - place;
}

/* A bucket of n parameters from `first`. While a sum in bf16 is under way flat is MPI's scratch. */
static tn_status add_bucket(tn_data_parallel *p, int first, int n, int64_t elements)
{
    tn_dtype dtype = wide(p->sync.leaf[nth(p, first)].leaf->dtype);
    int64_t sent = numbers(p, elements, dtype);
    if (sent > INT32_MAX)
        return tni_error(TN_E_UNSUPPORTED,
                         "tn_data_parallel_new: %s takes %" PRId64
                         " numbers in a message: want fewer than 2^31 of a tensor",
                         p->part[nth(p, first)].name, sent);
    if (!tni_room(&p->bucket, &p->bucket_capacity, p->n_buckets, 1, sizeof *p->bucket))
        return TN_E_NOMEM;
    bool half = sent_as(p, dtype) == TN_BF16;
    tn_tensor *flat = tn_full_as(TN_SHAPE(sent), 0, dtype, p->device);
    tn_tensor *message = half ? tn_empty_as(TN_SHAPE(sent), TN_BF16, p->device) : flat;
    if (!flat || !message) return tni_pending();
    p->bucket[p->n_buckets++] =
        (tni_bucket){ .flat = tn_keep(flat), .message = tn_keep(message), .n = n };
    int64_t at = 0;
    for (int i = first; i < first + n; i++) {
        tni_sync_leaf *l = &p->sync.leaf[nth(p, i)];
        int64_t size = tni_shape_numel(&l->leaf->shape);
        tn_tensor *row = tn_narrow(flat, 0, at, size);
        l->average = tn_reshape(row, l->leaf->shape);
        if (!l->average) return tni_pending();
        tn_keep(l->average);
        p->part[nth(p, i)].bucket = (int)(p->n_buckets - 1);
        at += size;
    }
    return TN_OK;
}

void tni_buckets_free(tn_data_parallel *p)
{
    for (int i = 0; i < p->sync.n; i++) tn_drop(p->sync.leaf[i].average);
    for (size_t i = 0; i < p->n_buckets && !p->broken; i++) { /* else MPI may still write to them */
        tn_drop(p->bucket[i].flat);
        tn_drop(p->bucket[i].message);
    }
    tni_room_free(&p->bucket, &p->bucket_capacity, sizeof *p->bucket);
}

/* Begins the sums of the next buckets in order, as long as they are full. */
static tn_status send_full(tn_data_parallel *p)
{
    TNI_HOLD_TRAPS;
    for (; p->next < p->n_buckets && p->bucket[p->next].waiting == 0; p->next++) {
        tni_bucket *b = &p->bucket[p->next];
        if (b->message != b->flat) TNI_TRY(tn_copy_(b->message, b->flat));
        TNI_TRY(tni_wire_sum(function, &p->wire, b->message, b->flat, &b->request));
    }
    return TN_OK;
}

/* Copies what this rank sends for a parameter into its bucket, which is sent when it is full. */
static tn_status fill(tn_data_parallel *p, int i)
{
    tni_sync_leaf *l = &p->sync.leaf[i];
    const tni_gradmeta *gm = l->leaf->gm;
    tn_tensor *first = gm->pending ? gm->pending : gm->grad;
    TNI_TRY(first ? tn_copy_(l->average, first) : tn_fill_(l->average, 0));
    if (gm->pending && gm->grad) TNI_TRY(tn_add_(l->average, gm->grad));
    p->part[i].there = true;
    tni_report_of(p, -1)->parameter[i].used = first != NULL;
    p->bucket[p->part[i].bucket].waiting--;
    return send_full(p);
}

/* ---- buffers, by their rules ----------------------------------------------------------------- */

/* One message carries all buffers that become rank 0's, and only those that differ are written, so
 * that a graph that still reads the others stays valid. Means are taken in f64. */

/* Copies the buffers of a rule to a block, one after the other (NULL: only counts); or back those
 * whose bytes differ from `was`. *nbytes: of the block. */
static tn_status copy_buffers(const tn_data_parallel *p, const tn_list *list, tn_buffer_rule rule,
                              char *block, const char *was, size_t *nbytes)
{
    size_t at = 0;
    for (const tn_entry *e = list->entry; e && e < list->entry + list->n; e++) {
        tn_tensor *t = e->tensor;
        tn_buffer_rule own = tn_data_parallel_buffers(p, e->name);
        if (own == TN_BUFFERS_MEAN && !tni_has_mean(e->role, t->dtype)) own = TN_BUFFERS_FIRST;
        if (own != rule || tni_is(e->role, TN_CONSTANT))
            continue; /* constants: compared at the start */
        tn_dtype dtype = rule == TN_BUFFERS_MEAN ? TN_F64 : t->dtype;
        size_t n = (size_t)tni_shape_numel(&t->shape) * tn_dtype_size(dtype);
        if (block && !was)
            TNI_TRY(tn_copy_out(t, block + at, n, dtype));
        else if (block && memcmp(block + at, was + at, n) != 0)
            TNI_TRY(tn_copy_in(t, block + at, n, dtype));
        at += n;
    }
    *nbytes = at;
    return TN_OK;
}

/* The part that may fail on this rank alone, before the reports: copies the buffers to p->block. It
 * has the numbers to be averaged, room for as many more, then the bytes to be sent, and room for as
 * many more; the copies there show what has changed. */
static tn_status pack_buffers(tn_data_parallel *p, const tn_list *buffers)
{
    copy_buffers(p, buffers, TN_BUFFERS_MEAN, NULL, NULL, &p->mean_bytes);
    copy_buffers(p, buffers, TN_BUFFERS_FIRST, NULL, NULL, &p->first_bytes);
    size_t size = 2 * (p->mean_bytes + p->first_bytes) + 1; /* never 0 */
    if (!tni_room(&p->block, &p->block_capacity, 0, size, 1)) return TN_E_NOMEM;
    char *first = p->block + 2 * p->mean_bytes;
    TNI_TRY(copy_buffers(p, buffers, TN_BUFFERS_MEAN, p->block, NULL, &p->mean_bytes));
    return copy_buffers(p, buffers, TN_BUFFERS_FIRST, first, NULL, &p->first_bytes);
}

static tn_status share_buffers(const tn_data_parallel *p, const tn_list *buffers)
{
    size_t mean = p->mean_bytes, first = p->first_bytes, n = mean / sizeof(double);
    double *number = (double *)(void *)p->block;
    char *sent = p->block + 2 * mean;
    if (mean) {
        memcpy(p->block + mean, p->block, mean);
        TNI_TRY(TNI_MPI(function, sum, p->group, number, n, TN_F64));
        for (size_t i = 0; i < n; i++) number[i] /= tn_parallel_size();
        TNI_TRY(copy_buffers(p, buffers, TN_BUFFERS_MEAN, p->block, p->block + mean, &mean));
    }
    if (first == 0) return TN_OK;
    memcpy(sent + first, sent, first);
    TNI_TRY(TNI_MPI(function, broadcast, p->group, sent, first, 0));
    return copy_buffers(p, buffers, TN_BUFFERS_FIRST, sent, sent + first, &first);
}

/* ---- reports --------------------------------------------------------------------------------- */

/* Prepares everything that this rank needs to end the pass, and its report. */
static tn_status prepare_end(tn_data_parallel *p, const tn_list *buffers)
{
    const tn_list *parameters = tn_parameters(p->model);
    tni_report *own = tni_report_of(p, -1);
    if (!parameters) return tni_pending();
    own->parameters = tni_layout_hash(p, parameters);
    own->buffers = tni_layout_hash(p, buffers);
    for (int i = 0; i < p->sync.n; i++)
        own->parameter[i].trained = p->sync.leaf[i].leaf->requires_grad;
    return pack_buffers(p, buffers);
}

/* Exchanges the reports; of a failed pass buffers are NULL. If one rank failed, all do. */
static tn_status exchange_reports(tn_data_parallel *p, tn_status status, const tn_list *buffers)
{
    bool failed = false;
    if (buffers) status = prepare_end(p, buffers);
    tni_report_of(p, -1)->failed = status != TN_OK;
    char *all = p->reports + p->n_bytes;
    tn_status sent = TNI_MPI(function, gather, p->group, p->reports, p->n_bytes, all);
    p->begun = false;
    p->broken |= sent != TN_OK;
    if (sent != TN_OK) return sent;
    for (int r = 0; r < tn_parallel_size(); r++) failed |= tni_report_of(p, r)->failed != 0;
    return failed ? tni_agree(function, p->group, status) : TN_OK;
}

/* The same verdict on all ranks. */
static tn_status compare_reports(const tn_data_parallel *p)
{
    const tni_report *first = tni_report_of(p, 0);
    for (int r = 1; r < tn_parallel_size(); r++) {
        const tni_report *other = tni_report_of(p, r);
        const bool parameters = first->parameters != other->parameters;
        if (parameters || first->buffers != other->buffers)
            return tni_error(TN_E_STATE,
                             "%s: the %s of rank %d have other %s than those of rank 0: want the "
                             "same ones",
                             function, parameters ? "parameters" : "buffers", r,
                             parameters ? "shapes or dtypes" : "names, shapes, dtypes or rules");
        for (int i = 0; i < p->sync.n; i++)
            if (other->parameter[i].trained != first->parameter[i].trained)
                return tni_error(TN_E_STATE,
                                 "%s: %s requires grad on rank %d: want the same parameters frozen "
                                 "on all ranks",
                                 function, p->part[i].name, other->parameter[i].trained ? r : 0);
    }
    return TN_OK;
}

/* ---- what the engine calls ------------------------------------------------------------------- */

/* Whether the model still has the parameters that the buckets were made for. */
static tn_status check_parameters(const tn_data_parallel *p)
{
    const tn_list *now = tn_parameters(p->model);
    bool same = now && now->n == p->sync.n;
    for (int i = 0; same && i < now->n; i++) {
        const tn_tensor *t = now->entry[i].tensor;
        same = t == p->sync.leaf[i].leaf && t->storage->device.type == p->device.type &&
               tni_shape_equal(&t->shape, &p->sync.leaf[i].average->shape) &&
               wide(t->dtype) == p->sync.leaf[i].average->dtype;
    }
    if (!now || same) return now ? TN_OK : tni_pending();
    return tni_error(TN_E_STATE,
                     "%s: the model's parameters have changed since tn_data_parallel_new: want it "
                     "made again",
                     function);
}

tn_status tni_usable(const char *caller, const tn_data_parallel *p)
{
    if (!p->broken && !p->apart) return TN_OK;
    return tni_error(
        TN_E_STATE, "%s: an earlier backward failed %s: want the program ended", caller,
        p->broken ? "while gradients were on their way to other ranks" : "on this rank alone");
}

static tn_status begin(tni_sync *s)
{
    tn_data_parallel *p = (tn_data_parallel *)s;
    TNI_TRY(tni_usable(function, p));
    p->begun = false;
    TNI_TRY(
        tni_wire_ready(&p->wire, p->device)); /* captured: all fail; GPU lost: the others wait */
    p->begun = true;
    tn_status status = TN_OK;
    TN_SCOPE status = check_parameters(p);
    p->next = 0;
    for (size_t i = 0; i < p->n_buckets; i++) p->bucket[i].waiting = p->bucket[i].n;
    memset(p->reports, 0, p->n_bytes);
    for (int i = 0; i < s->n; i++) p->part[i].there = false;
    /* those that the graph does not read send what they have */
    for (int i = 0; i < s->n && status == TN_OK; i++)
        if (s->leaf[i].leaf->gm->awaited == 0) status = fill(p, i);
    return status;
}

static tn_status ready(tni_sync *s, int index)
{
    tn_data_parallel *p = (tn_data_parallel *)s;
    TNI_TRY(fill(p, index));
    TNI_HOLD_TRAPS;
    for (size_t i = 0; i < p->next; i++) /* MPI makes progress */
        TNI_TRY(tni_wire_test(function, &p->wire, &p->bucket[i].request));
    return TN_OK;
}

static tn_status wait_all(tn_data_parallel *p)
{
    TNI_HOLD_TRAPS;
    for (tni_bucket *b = p->bucket; b < p->bucket + p->n_buckets; b++) {
        TNI_TRY(tni_wire_wait(function, &p->wire, &b->request));
        if (b->message != b->flat) TNI_TRY(tn_copy_(b->flat, b->message));
        TNI_TRY(tn_mul_scalar_(b->flat, 1.0 / tn_parallel_size()));
    }
    return TN_OK;
}

static tn_status finish(tni_sync *s)
{
    tn_data_parallel *p = (tn_data_parallel *)s;
    for (int i = 0; i < s->n; i++)
        if (!p->part[i].there) TNI_TRY(fill(p, i));
    TNI_TRY(wait_all(p));
    TNI_TRY(tni_batch_end_early()); /* so that buffers are shared as they will be */
    const tn_list *buffers = tni_persistent(p->model);
    if (!buffers) return tni_pending();
    TNI_TRY(exchange_reports(p, TN_OK, buffers));
    TNI_TRY(compare_reports(p));
    for (int i = 0; i < s->n; i++) {
        s->leaf[i].used = false;
        for (int r = 0; r < tn_parallel_size() && s->leaf[i].leaf->requires_grad; r++)
            s->leaf[i].used |= tni_report_of(p, r)->parameter[i].used;
    }
    p->reported = true;
    tn_status status = share_buffers(p, buffers);
    p->apart = status != TN_OK;
    return status;
}

/* All ranks know from the reports whether one of them needed memory for an average. */
static tn_status agree(tni_sync *s, tn_status status)
{
    const tn_data_parallel *p = (tn_data_parallel *)s;
    bool needed = false;
    for (int i = 0; i < s->n; i++)
        for (int r = 0; r < tn_parallel_size() && s->leaf[i].used; r++)
            needed |= !tni_report_of(p, r)->parameter[i].used;
    return needed ? tni_agree(function, p->group, status) : status;
}

/* The others wait: they get sums of no meaning and a report of it. All fail; no message is left. */
static tn_status fail(tni_sync *s, tn_status status)
{
    tn_data_parallel *p = (tn_data_parallel *)s;
    p->apart |= s->agreed;
    p->reported = false;
    if (!p->begun) return status;
    for (size_t i = 0; i < p->n_buckets; i++) p->bucket[i].waiting = 0;
    tni_saved_error why;
    tni_error_save(&why);
    tn_status sent = send_full(p);
    if (sent == TN_OK) sent = wait_all(p);
    p->broken |= sent != TN_OK;
    p->begun = sent == TN_OK;
    tni_error_restore(&why);
    return sent == TN_OK ? exchange_reports(p, status, NULL) : status;
}

/* ---- making the buckets ---------------------------------------------------------------------- */

tn_status tni_buckets_make(tn_data_parallel *p)
{
    int n = p->sync.n, first = 0;
    int64_t elements = 0;
    p->sync.ranks = tn_parallel_size();
    p->sync.begin = begin;
    p->sync.ready = ready;
    p->sync.finish = finish;
    p->sync.agree = agree;
    p->sync.fail = fail;
    for (int i = 0; i < n; i++) {
        const tn_tensor *t = p->sync.leaf[nth(p, i)].leaf;
        const tn_tensor *before = i ? p->sync.leaf[nth(p, i - 1)].leaf : t;
        int64_t size = tni_shape_numel(&t->shape);
        int64_t unit = (int64_t)tn_dtype_size(sent_as(p, t->dtype));
        bool fits = (elements + size) * unit <= p->bucket_bytes &&
                    numbers(p, elements + size, t->dtype) <= INT32_MAX &&
                    wide(t->dtype) == wide(before->dtype);
        if (i > first && !fits) {
            TNI_TRY(add_bucket(p, first, i - first, elements));
            first = i;
            elements = 0;
        }
        elements += size;
    }
    return add_bucket(p, first, n - first, elements);
}
