/*
 * shard_state.c - brings the state of all ranks together on rank 0, for a file.
 *
 * Rank 0 first makes room for all of it, and the ranks agree that nobody lacks memory. Then each
 * parameter's state goes from its rank straight into its place, one message for each tensor. No
 * rank but rank 0 needs more memory than before, and a file is begun only when everything is there.
 */
#include "ext/parallel/shard.h"

/* Whether p has state that another rank than rank 0 holds. */
static bool travels(const tn_optim *opt, const tni_optim_param *p)
{
    return opt->slots && p->step > 0 && p->holder != 0;
}

/* Makes own state ready as for a step, as it is sent in the parameter's dtype; on rank 0 also room
 * for the others'. */
static tn_status make_ready(tn_optim *opt)
{
    tn_status status = TN_OK;
    for (int i = 0; i < opt->n && status == TN_OK; i++) {
        tni_optim_param *p = &opt->param[i];
        if (!tni_optim_elsewhere(opt, p) && p->step > 0) status = tni_optim_ready(opt, p);
        for (int k = 0; k < TNI_OPTIM_SLOTS && status == TN_OK; k++) {
            if (!travels(opt, p) || !(opt->slots >> k & 1) || opt->shards->own != 0) continue;
            tn_tensor *t = tn_empty_as(p->tensor->shape, p->tensor->dtype, tn_cpu());
            if (!t) return tni_pending();
            p->state[k] = tn_keep(t);
        }
    }
    return status;
}

/* Sends one tensor of p's state from its rank to rank 0; all ranks call it. */
static tn_status transfer(const char *function, const tni_shard *s, const tni_optim_param *p, int k)
{
    bool ours = s->base.own == 0 || s->base.own == p->holder;
    size_t nbytes = tni_bytes_of(p->tensor);
    void *data = ours ? tni_data(p->state[k]) : NULL;
    return tni_ranks_status(function, tni_ranks()->move(s->p->group, data, nbytes, p->holder, 0));
}

static tn_status gather(const char *function, tni_shard *s)
{
    tn_optim *opt = s->opt;
    tni_optim_release(opt);
    tn_status status = tni_shard_agree(function, s, make_ready(opt), false);
    for (int i = 0; i < opt->n && status == TN_OK; i++) {
        const tni_optim_param *p = &opt->param[i];
        for (int k = 0; k < TNI_OPTIM_SLOTS && status == TN_OK; k++)
            if (travels(opt, p) && opt->slots >> k & 1) status = transfer(function, s, p, k);
    }
    if (status == TN_OK) s->base.whole = s->base.own == 0;
    return status;
}

tn_status tn_data_parallel_gather(tn_data_parallel *p)
{
    static const char f[] = "tn_data_parallel_gather";
    if (!p) return tni_poison(f, "p");
    tn_status status = tni_usable(f, p);
    if (status != TN_OK) return status;
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD
    {
        for (tni_shard *s = p->shards; s && status == TN_OK; s = s->next) status = gather(f, s);
    }
    tn_scope_end(scope);
    if (status != TN_OK) tn_data_parallel_release(p);
    return status;
}

void tn_data_parallel_release(tn_data_parallel *p)
{
    if (!p) tni_poison("tn_data_parallel_release", "p");
    for (tni_shard *s = p ? p->shards : NULL; s; s = s->next) tni_optim_release(s->opt);
}
