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
    copy(p, buffers, TN_BUFFERS_MEAN, NULL, NULL, &p->mean_bytes);
    copy(p, buffers, TN_BUFFERS_FIRST, NULL, NULL, &p->first_bytes);
    size_t size = 2 * (p->mean_bytes + p->first_bytes) + 1; /* never 0 */
    if (!tni_room(&p->block, &p->block_capacity, 0, size, 1)) return TN_E_NOMEM;
    char *first = p->block + 2 * p->mean_bytes;
    TNI_TRY(copy(p, buffers, TN_BUFFERS_MEAN, p->block, NULL, &p->mean_bytes));
    return copy(p, buffers, TN_BUFFERS_FIRST, first, NULL, &p->first_bytes);
}

tn_status tni_share_buffers(const tn_data_parallel *p, const tn_list *buffers)
{
    size_t mean = p->mean_bytes, first = p->first_bytes, n = mean / sizeof(double);
    double *number = (double *)(void *)p->block;
    char *sent = p->block + 2 * mean;
    if (mean) {
        memcpy(p->block + mean, p->block, mean);
        TNI_TRY(TNI_MPI(function, sum, p->group, number, n, TN_F64));
        for (size_t i = 0; i < n; i++) number[i] /= tn_parallel_size();
        TNI_TRY(copy(p, buffers, TN_BUFFERS_MEAN, p->block, p->block + mean, &mean));
    }
    if (first == 0) return TN_OK;
    memcpy(sent + first, sent, first);
    TNI_TRY(TNI_MPI(function, broadcast, p->group, sent, first, 0));
    return copy(p, buffers, TN_BUFFERS_FIRST, sent, sent + first, &first);
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
