/*
 * reduce.c - gradients averaged in buckets while backward runs; Li et al., PyTorch Distributed
 * (2020), sec. 3.2.
 *
 * Buckets hold the parameters from the last registered to the first, about the order in which their
 * gradients become complete. A gradient that is complete is copied into its place; a full bucket's
 * sum over ranks is begun (non-blocking), in the order of the buckets on every rank, whatever the
 * order of the gradients. At the end of the pass what is still missing is filled in, the rest is
 * sent, and all sums are waited for: a parameter without a gradient on this rank sends what it has
 * accumulated, or 0.
 *
 * Open MPI moves messages on only inside of its own calls, so each complete gradient also asks for
 * the buckets on their way (test).
 *
 * Then every rank tells the others, in a few bytes, which parameters had a gradient, which require
 * one, and the layout of its parameters and buffers. So all ranks agree on which averages count,
 * and a rank whose model has changed is found by all of them.
 */
#include "parallel/data_parallel.h"

static const char function[] = "tn_backward";

/* ---- buckets --------------------------------------------------------------------------------- */

static tn_dtype wide(tn_dtype dtype)
{
    return dtype == TN_F64 ? TN_F64 : TN_F32;
}

/* A bucket of the parameters order[first .. first + n), n elements in all. */
static tn_status add_bucket(tn_data_parallel *p, int first, int n, int64_t elements)
{
    if (elements > INT32_MAX)
        return tni_error(TN_E_UNSUPPORTED,
                         "tn_data_parallel_new: %s has %" PRId64
                         " elements: want fewer than 2^31 in a tensor",
                         p->name[p->order[first]], elements);
    if (!tni_room(&p->bucket, &p->bucket_capacity, p->n_buckets, 1, sizeof *p->bucket))
        return TN_E_NOMEM;
    tni_bucket *b = &p->bucket[p->n_buckets];
    *b = (tni_bucket){ .first = first, .n = n };
    tn_dtype dtype = wide(p->sync.leaf[p->order[first]].leaf->dtype);
    b->flat = tn_empty_as(TN_SHAPE(elements), dtype, tn_cpu());
    if (!b->flat) return tni_pending();
    tn_keep(b->flat);
    p->n_buckets++;
    int64_t at = 0;
    for (int i = first; i < first + n; i++) {
        tni_sync_leaf *l = &p->sync.leaf[p->order[i]];
        int64_t size = tni_shape_numel(&l->leaf->shape);
        tn_tensor *row = tn_narrow(b->flat, 0, at, size);
        l->average = tn_reshape(row, l->leaf->shape);
        if (!l->average) return tni_pending();
        tn_keep(l->average);
        p->part[p->order[i]].bucket = (int)(p->n_buckets - 1);
        at += size;
    }
    return TN_OK;
}

tn_status tni_buckets_make(tn_data_parallel *p)
{
    int n = p->sync.n, first = 0;
    int64_t elements = 0;
    tn_status status = TN_OK;
    for (int i = 0; i < n; i++) p->order[i] = n - 1 - i;
    for (int i = 0; i < n && status == TN_OK; i++) {
        const tn_tensor *t = p->sync.leaf[p->order[i]].leaf;
        const tn_tensor *before = i ? p->sync.leaf[p->order[i - 1]].leaf : t;
        int64_t size = tni_shape_numel(&t->shape), unit = (int64_t)tn_dtype_size(wide(t->dtype));
        bool fits =
            (elements + size) * unit <= p->bucket_bytes && wide(t->dtype) == wide(before->dtype);
        if (i > first && !fits) {
            status = add_bucket(p, first, i - first, elements);
            first = i;
            elements = 0;
        }
        elements += size;
    }
    return status == TN_OK ? add_bucket(p, first, n - first, elements) : status;
}

void tni_buckets_free(tn_data_parallel *p)
{
    for (int i = 0; i < p->sync.n; i++) tn_drop(p->sync.leaf[i].average);
    for (size_t i = 0; i < p->n_buckets; i++)
        if (!p->broken) tn_drop(p->bucket[i].flat); /* else MPI may still write to it */
    tni_room_free(&p->bucket, &p->bucket_capacity, sizeof *p->bucket);
}

/* Begins the sums of all full buckets whose turn it is. */
static tn_status send_full(tn_data_parallel *p)
{
    tn_status status = TN_OK;
    while (p->next < p->n_buckets && p->bucket[p->next].waiting == 0 && status == TN_OK) {
        tni_bucket *b = &p->bucket[p->next];
        status = tni_ranks_status(function,
                                  tni_ranks()->sum_begin(p->group, tni_data(b->flat),
                                                         (size_t)tni_shape_numel(&b->flat->shape),
                                                         b->flat->dtype, &b->request));
        if (status != TN_OK) break;
        b->sent = true;
        p->next++;
    }
    return status;
}

/* Lets the buckets on their way move on. */
static tn_status move_on(tn_data_parallel *p)
{
    tn_status status = TN_OK;
    bool done = false;
    for (size_t i = 0; i < p->next && status == TN_OK; i++)
        status = tni_ranks_status(function, tni_ranks()->test(&p->bucket[i].request, &done));
    return status;
}

/* Puts into the bucket what this rank sends of a parameter. */
static tn_status fill(tn_data_parallel *p, int i)
{
    tni_sync_leaf *l = &p->sync.leaf[i];
    const tni_gradmeta *gm = l->leaf->gm;
    tn_tensor *first = gm->pending ? gm->pending : gm->grad;
    tn_status status = first ? tn_copy_(l->average, first) : tn_fill_(l->average, 0);
    if (status == TN_OK && gm->pending && gm->grad) status = tn_add_(l->average, gm->grad);
    if (status != TN_OK) return status;
    p->part[i].there = true;
    p->part[i].used = first != NULL;
    p->bucket[p->part[i].bucket].waiting--;
    return TN_OK;
}

/* ---- reports --------------------------------------------------------------------------------- */

static unsigned char *report_of(const tn_data_parallel *p, int rank)
{
    return p->reports + (size_t)(1 + rank) * p->n_bytes;
}

static bool bit(const unsigned char *report, int i)
{
    return report[sizeof(tni_layouts) + (size_t)i / 8] >> i % 8 & 1;
}

bool tni_report_used(const tn_data_parallel *p, int rank, int parameter)
{
    return bit(report_of(p, rank), 2 * parameter);
}

bool tni_report_trained(const tn_data_parallel *p, int rank, int parameter)
{
    return bit(report_of(p, rank), 2 * parameter + 1);
}

static void set_bit(unsigned char *report, int i, bool on)
{
    report[sizeof(tni_layouts) + (size_t)i / 8] |= (unsigned char)(on << i % 8);
}

static tn_status exchange_reports(tn_data_parallel *p, const tn_list *buffers)
{
    const tn_list *parameters = tn_parameters(p->model);
    if (!parameters) return tni_pending();
    tni_layouts layouts = { tni_layout_hash(p, parameters), tni_layout_hash(p, buffers) };
    unsigned char *own = p->reports;
    memset(own, 0, p->n_bytes);
    memcpy(own, &layouts, sizeof layouts);
    for (int i = 0; i < p->sync.n; i++) {
        set_bit(own, 2 * i, p->part[i].used);
        set_bit(own, 2 * i + 1, p->sync.leaf[i].leaf->requires_grad);
    }
    return tni_ranks_status(function,
                            tni_ranks()->gather(p->group, own, p->n_bytes, own + p->n_bytes));
}

static tn_status compare_layouts(const tn_data_parallel *p, int rank)
{
    tni_layouts first, other;
    memcpy(&first, report_of(p, 0), sizeof first);
    memcpy(&other, report_of(p, rank), sizeof other);
    if (first.parameters != other.parameters)
        return tni_error(TN_E_STATE,
                         "%s: the parameters of rank %d have other shapes or dtypes than those of "
                         "rank 0: want the same ones",
                         function, rank);
    if (first.buffers != other.buffers)
        return tni_error(TN_E_STATE,
                         "%s: the buffers of rank %d have other names, shapes, dtypes or rules "
                         "than those of rank 0: want the same ones",
                         function, rank);
    return TN_OK;
}

/* The same verdict on all ranks. */
static tn_status compare_reports(const tn_data_parallel *p)
{
    for (int r = 1; r < tn_parallel_size(); r++) {
        tn_status status = compare_layouts(p, r);
        if (status != TN_OK) return status;
        for (int i = 0; i < p->sync.n; i++)
            if (tni_report_trained(p, r, i) != tni_report_trained(p, 0, i))
                return tni_error(TN_E_STATE,
                                 "%s: %s requires grad on rank %d: want the same parameters frozen "
                                 "on all ranks",
                                 function, p->name[i], tni_report_trained(p, r, i) ? r : 0);
    }
    return TN_OK;
}

/* ---- what the engine calls ------------------------------------------------------------------- */

static tn_data_parallel *owner(tni_sync *s)
{
    return (tn_data_parallel *)s;
}

/* Whether the model still has the parameters that the buckets were made for. */
static tn_status check_parameters(const tn_data_parallel *p)
{
    tn_scope scope = tn_scope_begin();
    const tn_list *now = tn_parameters(p->model);
    tn_status status = now ? TN_OK : tni_pending();
    bool same = now && now->n == p->sync.n;
    for (int i = 0; same && i < now->n; i++) {
        const tn_tensor *t = now->entry[i].tensor;
        same = t == p->sync.leaf[i].leaf && t->storage->device.type == TN_CPU &&
               tni_shape_equal(&t->shape, &p->sync.leaf[i].average->shape) &&
               wide(t->dtype) == p->sync.leaf[i].average->dtype;
    }
    tn_scope_end(scope);
    if (status != TN_OK || same) return status;
    return tni_error(TN_E_STATE,
                     "%s: the model's parameters have changed since tn_data_parallel_new: want it "
                     "made again",
                     function);
}

static tn_status begin(tni_sync *s)
{
    tn_data_parallel *p = owner(s);
    if (p->broken)
        return tni_error(TN_E_STATE,
                         "%s: an earlier pass failed while gradients were on their way to other "
                         "ranks: want the program ended",
                         function);
    tn_status status = check_parameters(p);
    p->begun = status == TN_OK;
    p->next = 0;
    for (size_t i = 0; i < p->n_buckets; i++) {
        p->bucket[i].waiting = p->bucket[i].n;
        p->bucket[i].sent = false;
    }
    for (int i = 0; i < s->n; i++) p->part[i] = (tni_part){ .bucket = p->part[i].bucket };
    /* those that the graph does not read send what they have */
    for (int i = 0; i < s->n && status == TN_OK; i++)
        if (s->leaf[i].leaf->gm->awaited == 0) status = fill(p, i);
    return status == TN_OK ? send_full(p) : status;
}

static tn_status ready(tni_sync *s, int index)
{
    tn_data_parallel *p = owner(s);
    tn_status status = fill(p, index);
    if (status == TN_OK) status = send_full(p);
    return status == TN_OK ? move_on(p) : status;
}

static tn_status wait_all(tn_data_parallel *p)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < p->n_buckets && status == TN_OK; i++) {
        tni_bucket *b = &p->bucket[i];
        status = tni_ranks_status(function, tni_ranks()->wait(&b->request));
        if (status == TN_OK) b->sent = false;
        if (status == TN_OK) status = tn_mul_scalar_(b->flat, 1.0 / tn_parallel_size());
    }
    return status;
}

static tn_status finish(tni_sync *s)
{
    tn_data_parallel *p = owner(s);
    tn_status status = TN_OK;
    for (int i = 0; i < s->n && status == TN_OK; i++)
        if (!p->part[i].there) status = fill(p, i);
    if (status == TN_OK) status = send_full(p);
    if (status == TN_OK) status = wait_all(p);
    if (status != TN_OK) return status;
    const tn_list *buffers = tni_persistent(p->model);
    if (!buffers) return tni_pending();
    status = exchange_reports(p, buffers);
    if (status == TN_OK) status = compare_reports(p);
    if (status != TN_OK) return status;
    for (int i = 0; i < s->n; i++) {
        s->leaf[i].used = false;
        for (int r = 0; r < tn_parallel_size() && s->leaf[i].leaf->requires_grad; r++)
            s->leaf[i].used |= tni_report_used(p, r, i);
    }
    p->reported = true;
    p->begun = false;
    return tni_share_buffers(p, buffers);
}

static void fail(tni_sync *s)
{
    tn_data_parallel *p = owner(s);
    for (size_t i = 0; i < p->n_buckets; i++) p->broken |= p->begun && p->bucket[i].sent;
    p->begun = false;
}

void tni_reduce_set(tn_data_parallel *p)
{
    p->sync.ranks = tn_parallel_size();
    p->sync.begin = begin;
    p->sync.ready = ready;
    p->sync.finish = finish;
    p->sync.fail = fail;
}
