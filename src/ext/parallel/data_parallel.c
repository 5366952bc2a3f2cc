/*
 * data_parallel.c - a tn_data_parallel: all ranks make one together; settings and queries.
 *
 * Steps that can fail on one rank alone come first; then ranks exchange that: all go on, or none.
 *
 * Alone (no other ranks) a handle keeps its model and settings, and the engine never sees it.
 */
#include "ext/parallel/data_parallel.h"

/* ---- making one ------------------------------------------------------------------------------ */

/* Whether all are on the device, and no other handle averages one: two would send its gradient
 * twice, and only one would get the average. */
static tn_status check_tensors(const char *function, const tn_list *all, tn_device device)
{
    for (const tn_entry *e = all->entry; e && e < all->entry + all->n; e++) {
        if (e->kind == TN_BUFFER && !tni_ranks()) continue;
        if (e->tensor->storage->device.type != device.type)
            return tni_error(TN_E_DEVICE, "%s: %s is not on the %s: want the whole model there",
                             function, e->name, device.type == TN_CPU ? "CPU" : "GPU");
        if (e->tensor->gm && e->tensor->gm->sync)
            return tni_error(TN_E_STATE,
                             "%s: another tn_data_parallel averages %s already: want one handle of "
                             "a parameter",
                             function, e->name);
    }
    return TN_OK;
}

static tn_status take_parameters(tn_data_parallel *p, const tn_list *parameters)
{
    size_t n = (size_t)parameters->n;
    p->n_bytes = (sizeof(tni_report) + n * sizeof((tni_report *)NULL)->parameter[0] + 7) / 8 * 8;
    p->sync.leaf = tni_calloc_n(n, sizeof *p->sync.leaf);
    p->part = tni_calloc_n(n, sizeof *p->part);
    p->reports = tni_calloc_n(1 + (size_t)tn_parallel_size(), p->n_bytes);
    p->sync.n = parameters->n;
    if (!p->sync.leaf || !p->part || !p->reports) return TN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        p->sync.leaf[i].leaf = tn_keep(parameters->entry[i].tensor);
        p->part[i].name = tni_strdup(parameters->entry[i].name);
        if (!p->part[i].name) return TN_E_NOMEM;
    }
    return TN_OK;
}

static tn_status check(const char *function, const tn_module *model, tn_data_parallel_options o)
{
    TNI_TRY(tni_module_check(function, model));
    if (o.bucket_bytes < 0)
        return tni_error(TN_E_INVALID, "%s: bucket_bytes %" PRId64 ": want at least 0", function,
                         o.bucket_bytes);
    if (o.buffers < TN_BUFFERS_FIRST || o.buffers > TN_BUFFERS_OWN)
        return tni_error(TN_E_INVALID, "%s: buffers %d: want one of tn_buffer_rule", function,
                         (int)o.buffers);
    if (o.messages != TN_F32 && o.messages != TN_BF16)
        return tni_error(TN_E_DTYPE, "%s: messages %d: want TN_F32 or TN_BF16", function,
                         (int)o.messages);
    return TN_OK;
}

/* Everything of this rank alone. */
static tn_status prepare(const char *function, tn_data_parallel **made, tn_module *model,
                         tn_data_parallel_options o)
{
    enum { BUCKET = 25 << 20 };
    TNI_TRY(check(function, model, o));
    tn_data_parallel *p = *made = tni_calloc(sizeof *p);
    if (!p) return TN_E_NOMEM;
    *p = (tn_data_parallel){ .rule = o.buffers, .messages = o.messages };
    p->model = tn_module_keep(model);
    p->bucket_bytes = o.bucket_bytes ? o.bucket_bytes : BUCKET;
    const tn_list *parameters = tn_parameters(model), *all = tni_same_on_all(model);
    if (!parameters || !all) return tni_pending();
    if (parameters->n == 0)
        return tni_error(TN_E_INVALID, "%s: the model has no parameters: want some", function);
    p->device = parameters->entry[0].tensor->storage->device;
    TNI_TRY(check_tensors(function, all, p->device));
    if (!tni_ranks()) return TN_OK;
    TNI_TRY(take_parameters(p, parameters));
    TNI_TRY(tni_buckets_make(p));
    TNI_TRY(tni_wire_new(function, p->device, &p->group, &p->wire));
    return tni_sync_add(&p->sync);
}

static tn_status make(const char *function, tn_data_parallel **made, tn_module *model,
                      tn_data_parallel_options o)
{
    tni_mpi_group group = { 0 };
    if (!tni_ranks()) return prepare(function, made, model, o);
    TNI_TRY(TNI_MPI(function, group_new, &group));
    tn_status status = tni_agree(function, group, prepare(function, made, model, o));
    if (*made) {
        (*made)->group = group;
        (*made)->grouped = true;
    } else {
        tni_ranks()->group_free(&group);
    }
    if (status != TN_OK) return status;
    const tn_list *all = tni_same_on_all(model); /* from here on all ranks together */
    TNI_TRY(tni_agree(function, group, all ? TN_OK : tni_pending()));
    TNI_TRY(tni_same_models(function, *made));
    TNI_TRY(tni_wire_join(function, &(*made)->wire));
    for (int i = 0; i < all->n; i++)
        TNI_TRY(tni_ranks_copy(function, group, TN_OK, all->entry[i].tensor, 0));
    return TN_OK;
}

tn_data_parallel *tn_data_parallel_new(tn_module *model, tn_data_parallel_options o)
{
    tn_data_parallel *p = NULL;
    tn_status status = TN_OK;
    TN_SCOPE TN_NO_GRAD status = make("tn_data_parallel_new", &p, model, o);
    if (status == TN_OK) return p;
    tn_data_parallel_free(p);
    return NULL;
}

void tn_data_parallel_free(tn_data_parallel *p)
{
    if (!p) return;
    tni_shards_detach(p);
    if (!p->broken) tni_wire_free(&p->wire);
    if (p->sync.leaf) {
        tni_sync_remove(&p->sync);
        tni_buckets_free(p);
    }
    if (p->grouped && !p->broken) tni_ranks()->group_free(&p->group);
    size_t n = (size_t)p->sync.n;
    for (size_t i = 0; i < n; i++) {
        if (p->sync.leaf) tn_drop(p->sync.leaf[i].leaf);
        if (p->part) tni_strfree(p->part[i].name);
    }
    tni_free(p->sync.leaf, n * sizeof *p->sync.leaf);
    tni_free(p->part, n * sizeof *p->part);
    tni_free(p->reports, (1 + (size_t)tn_parallel_size()) * p->n_bytes);
    tni_room_free(&p->block, &p->block_capacity, 1);
    for (size_t i = 0; i < p->n_rules; i++) tni_strfree(p->rules[i].prefix);
    tni_room_free(&p->rules, &p->rule_capacity, sizeof *p->rules);
    tn_module_drop(p->model);
    tni_free(p, sizeof *p);
}

/* ---- settings and answers -------------------------------------------------------------------- */

bool tn_data_parallel_sync(const tn_data_parallel *p)
{
    if (!p) tni_poison("tn_data_parallel_sync", "p");
    return p && !p->sync.off;
}

bool tn_data_parallel_set_sync(tn_data_parallel *p, bool on)
{
    if (!p) tni_poison("tn_data_parallel_set_sync", "p");
    bool was = p && !p->sync.off;
    if (p) p->sync.off = !on;
    return was;
}

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

static bool is_unused(const tn_entry *e, void *rank)
{
    if (tni_ranks()) return tni_reported_of(e->tensor, *(int *)rank) == TNI_REPORTED_MISSING;
    return e->tensor->requires_grad && !tni_grad_of(e->tensor);
}

tn_list *tn_data_parallel_unused(const tn_data_parallel *p, int rank)
{
    if (!p) return tni_poisoned(__func__, "p");
    if (rank < -1 || rank >= tn_parallel_size())
        return tni_fail(TN_E_INDEX, "%s: rank %d: want one of 0 to %d, or -1", __func__, rank,
                        tn_parallel_size() - 1);
    if (tni_ranks() && !p->reported)
        return tni_fail(TN_E_STATE,
                        "%s: there was no averaging backward, or the last one failed: want one "
                        "before",
                        __func__);
    const tn_list *all = tn_parameters(p->model);
    return all ? tn_list_filter(all, is_unused, &rank) : NULL;
}

tni_reported tni_reported_of(const tn_tensor *parameter, int rank)
{
    const tni_gradmeta *gm = parameter->gm;
    const tn_data_parallel *p = gm ? (const tn_data_parallel *)gm->sync : NULL;
    if (!p) return TNI_REPORTED_ALONE;
    if (!p->reported) return TNI_REPORTED_NOTHING;
    int first = rank < 0 ? 0 : rank, end = rank < 0 ? tn_parallel_size() : rank + 1;
    bool trained = false, used = false;
    for (int r = first; r < end; r++) {
        trained |= tni_report_of(p, r)->parameter[gm->sync_index].trained;
        used |= tni_report_of(p, r)->parameter[gm->sync_index].used;
    }
    return trained && !used ? TNI_REPORTED_MISSING : TNI_REPORTED_FINE;
}
