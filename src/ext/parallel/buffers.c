/*
 * buffers.c - a model's persistent buffers at the end of an averaging backward, by their rules.
 *
 * Rank 0's: one message carries all such buffers, and only those that differ are written, so that a
 * graph that still reads the others stays valid. Means are taken in f64, of all such buffers
 * together. Integers, bools, counters and directions have no mean, and become rank 0's; constants
 * stay.
 */
#include "ext/parallel/data_parallel.h"

static const char function[] = "tn_backward";

/* Copies the buffers of a rule to a block, one after the other (NULL: only counts); or back those
 * whose bytes differ from `was`. *nbytes: of the block. */
static tn_status copy(const tn_data_parallel *p, const tn_list *list, tn_buffer_rule rule,
                      char *block, const char *was, size_t *nbytes)
{
    size_t at = 0;
    for (int i = 0; i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
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

/* The block has the numbers to be averaged, room for as many more, then the bytes to be sent, and
 * room for as many more; the copies there show what has changed. */
tn_status tni_buffers_pack(tn_data_parallel *p, const tn_list *buffers)
{
    size_t mean, first;
    copy(p, buffers, TN_BUFFERS_MEAN, NULL, NULL, &mean);
    copy(p, buffers, TN_BUFFERS_FIRST, NULL, NULL, &first);
    size_t size = 2 * (mean + first) + 1; /* of no buffers there is an address, too */
    if (!tni_room(&p->block, &p->block_capacity, 0, size, 1)) return TN_E_NOMEM;
    TNI_TRY(copy(p, buffers, TN_BUFFERS_MEAN, p->block, NULL, &mean));
    return copy(p, buffers, TN_BUFFERS_FIRST, p->block + 2 * mean, NULL, &first);
}

/* Exchanges the rule's part of the block, and moves *at behind it. */
static tn_status share(const tn_data_parallel *p, const tn_list *list, tn_buffer_rule rule,
                       char **at)
{
    const tni_mpi *mpi = tni_ranks();
    const char *reason;
    size_t n;
    char *block = *at;
    copy(p, list, rule, NULL, NULL, &n);
    if (n == 0) return TN_OK;
    memcpy(block + n, block, n);
    *at += 2 * n;
    if (rule == TN_BUFFERS_FIRST) {
        reason = mpi->broadcast(p->group, block, n, 0);
    } else {
        double *number = (double *)(void *)block;
        reason = mpi->sum(p->group, number, n / sizeof *number, TN_F64);
        for (size_t i = 0; i < n / sizeof *number; i++) number[i] /= mpi->size;
    }
    if (reason) return tni_ranks_status(function, reason);
    return copy(p, list, rule, block, block + n, &n);
}

tn_status tni_share_buffers(const tn_data_parallel *p, const tn_list *buffers)
{
    char *at = p->block;
    TNI_TRY(share(p, buffers, TN_BUFFERS_MEAN, &at));
    return share(p, buffers, TN_BUFFERS_FIRST, &at);
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
