/*
 * buffers.c - a model's persistent buffers at the end of an averaging backward, by their rules.
 *
 * Rank 0's: one message carries all such buffers, and only those that differ are written, so that a
 * graph that still reads the others stays valid. Means are taken in f64, of all such buffers
 * together. Integers and bools have no mean: a counter of batches is rank 0's.
 */
#include "ext/parallel/data_parallel.h"

static const char function[] = "tn_backward";

/* Whether the buffer is averaged; *sent: whether it is sent from rank 0; possibly neither. */
static bool averaged(const tn_data_parallel *p, const tn_entry *e, bool *sent)
{
    tn_buffer_rule rule = tn_data_parallel_buffers(p, e->name);
    bool mean = rule == TN_BUFFERS_MEAN && tn_dtype_is_float(e->tensor->dtype);
    *sent = rule != TN_BUFFERS_OWN && !mean;
    return mean;
}

static size_t size_of(const tn_tensor *t, bool mean)
{
    return mean ? (size_t)tni_shape_numel(&t->shape) * sizeof(double) : tni_bytes_of(t);
}

/* Copies the buffers of one kind to a block, one after the other. */
static tn_status pack(const tn_data_parallel *p, const tn_list *list, bool mean, char *block)
{
    tn_status status = TN_OK;
    for (int i = 0; i < list->n && status == TN_OK; i++) {
        const tn_tensor *t = list->entry[i].tensor;
        bool sent, is_mean = averaged(p, &list->entry[i], &sent);
        if (mean ? !is_mean : !sent) continue;
        size_t nbytes = size_of(t, mean);
        status = tn_copy_out(t, block, nbytes, mean ? TN_F64 : t->dtype);
        block += nbytes;
    }
    return status;
}

/* Copies back those whose bytes differ from `was`. */
static tn_status unpack(const tn_data_parallel *p, const tn_list *list, bool mean,
                        const char *block, const char *was)
{
    tn_status status = TN_OK;
    size_t at = 0;
    for (int i = 0; i < list->n && status == TN_OK; i++) {
        tn_tensor *t = list->entry[i].tensor;
        bool sent, is_mean = averaged(p, &list->entry[i], &sent);
        if (mean ? !is_mean : !sent) continue;
        size_t nbytes = size_of(t, mean);
        if (memcmp(block + at, was + at, nbytes) != 0)
            status = tn_copy_in(t, block + at, nbytes, mean ? TN_F64 : t->dtype);
        at += nbytes;
    }
    return status;
}

static tn_status exchange(const tn_data_parallel *p, bool mean, char *block, size_t nbytes)
{
    const tni_mpi *mpi = tni_ranks();
    if (!mean) return tni_ranks_status(function, mpi->broadcast(p->group, block, nbytes, 0));
    size_t n = nbytes / sizeof(double);
    double *number = (double *)(void *)block;
    tn_status status = tni_ranks_status(function, mpi->sum(p->group, number, n, TN_F64));
    for (size_t i = 0; i < n; i++) number[i] /= mpi->size;
    return status;
}

/* The bytes of all buffers of one kind. */
static size_t bytes_of(const tn_data_parallel *p, const tn_list *list, bool mean)
{
    size_t nbytes = 0;
    for (int i = 0; i < list->n; i++) {
        bool sent, is_mean = averaged(p, &list->entry[i], &sent);
        if (mean ? is_mean : sent) nbytes += size_of(list->entry[i].tensor, mean);
    }
    return nbytes;
}

/* The block has the numbers to be averaged, room for as many more, then the bytes to be sent, and
 * room for as many more; the copies there show what has changed. */
tn_status tni_buffers_pack(tn_data_parallel *p, const tn_list *buffers)
{
    size_t mean = 2 * bytes_of(p, buffers, true), sent = 2 * bytes_of(p, buffers, false);
    if (!tni_room(&p->block, &p->block_capacity, 0, mean + sent, 1)) return TN_E_NOMEM;
    tn_status status = mean ? pack(p, buffers, true, p->block) : TN_OK;
    return status == TN_OK && sent ? pack(p, buffers, false, p->block + mean) : status;
}

static tn_status share(const tn_data_parallel *p, const tn_list *list, bool mean, size_t at)
{
    size_t nbytes = bytes_of(p, list, mean);
    if (nbytes == 0) return TN_OK;
    char *block = p->block + at;
    memcpy(block + nbytes, block, nbytes);
    tn_status status = exchange(p, mean, block, nbytes);
    return status == TN_OK ? unpack(p, list, mean, block, block + nbytes) : status;
}

tn_status tni_share_buffers(const tn_data_parallel *p, const tn_list *buffers)
{
    tn_status status = share(p, buffers, false, 2 * bytes_of(p, buffers, true));
    return status == TN_OK ? share(p, buffers, true, 0) : status;
}

/* ---- rules ----------------------------------------------------------------------------------- */

tn_buffer_rule tn_data_parallel_buffers(const tn_data_parallel *p, const char *name)
{
    if (!p || !name) {
        tni_poison("tn_data_parallel_buffers", p ? "name" : "p");
        return TN_BUFFERS_FIRST;
    }
    for (size_t i = p->n_rules; i-- > 0;)
        if (strncmp(name, p->rules[i].prefix, strlen(p->rules[i].prefix)) == 0)
            return p->rules[i].rule;
    return p->rule;
}

tn_status tn_data_parallel_set_buffers(tn_data_parallel *p, const char *prefix, tn_buffer_rule rule)
{
    static const char f[] = "tn_data_parallel_set_buffers";
    if (!p || !prefix) return tni_poison(f, p ? "prefix" : "p");
    if (rule < TN_BUFFERS_FIRST || rule > TN_BUFFERS_OWN)
        return tni_error(TN_E_INVALID, "%s: rule %d: want one of tn_buffer_rule", f, (int)rule);
    if (!tni_room(&p->rules, &p->rule_capacity, p->n_rules, 1, sizeof *p->rules)) return TN_E_NOMEM;
    char *kept = tni_strdup(prefix);
    if (!kept) return TN_E_NOMEM;
    p->rules[p->n_rules++] = (tni_prefix_rule){ kept, rule };
    return TN_OK;
}
