/*
 * parts.c - the parts of a checkpoint, all treated alike: each state is a list of tensors saved
 * under the part's name.
 *
 * Optimizers, schedulers and scalers are staged, and then put in place by steps that cannot fail.
 * Each module loads at once, all or nothing; its old values are kept until everything has loaded.
 * The model loads last, and needs no such copy.
 *
 * Gradients that wait for a step, of a batch computed in parts, are saved as ".grad.PART.NAME"; no
 * part has an empty name, so no other names begin like this. A parameter in several parts (a model,
 * its optimizer) has a name in each, stored once. A gradient that a step has used, and no backward
 * has added to since, is not saved. Loading leaves no older gradient: a parameter without one in
 * the file has none.
 */
#include "autograd/op.h"
#include "autograd/sync.h"
#include "io/choice.h"
#include "io/parts.h"
#include "nn/module.h"
#include "optim/optim.h"

enum { LONGEST = 64 }; /* bytes of a part's name */
#define GRADS ".grad"  /* what the names of gradients begin with */

static tn_status check_part(const char *function, const tn_checkpoint_part *p, int i)
{
    static const char *const taken[] = { "model", "optim", "sched", "loader", "rng", "step" };
    int given = !!p->module + !!p->optimizer + !!p->scheduler + !!p->scaler;
    if (given != 1)
        return tni_error(TN_E_INVALID, "%s: parts[%d] holds %d objects: want one", function, i,
                         given);
    bool bad = !p->name || !p->name[0] || strlen(p->name) > LONGEST || strchr(p->name, '.');
    for (int k = 0; !bad && k < (int)(sizeof taken / sizeof *taken); k++)
        bad = strcmp(p->name, taken[k]) == 0;
    if (!bad) return TN_OK;
    return tni_error(TN_E_NAME,
                     "%s: parts[%d] is named \"%.80s\": want 1 to %d bytes without a dot, and "
                     "not model, optim, sched, loader, rng, step",
                     function, i, p->name ? p->name : "(NULL)", LONGEST);
}

static tn_status check_parts(const char *function, const tn_checkpoint *c)
{
    if (c->n_parts < 0 || !c->n_parts != !c->parts)
        return tni_error(TN_E_INVALID, "%s: n_parts %d %s parts: want as many parts", function,
                         c->n_parts, c->parts ? "with" : "without");
    for (int i = 0; i < c->n_parts; i++) TNI_TRY(check_part(function, &c->parts[i], i));
    return TN_OK;
}

tn_status tni_parts_of(const char *function, const tn_checkpoint *c, tni_parts *parts)
{
    const tn_checkpoint_part own[] = { { .name = "model", .module = c->model },
                                       { .name = "optim", .optimizer = c->optimizer },
                                       { .name = "sched", .scheduler = c->scheduler } };
    *parts = (tni_parts){ .lists.names = true };
    TNI_TRY(check_parts(function, c));
    if (!tni_room(&parts->part, &parts->capacity, 0, (size_t)c->n_parts + 3, sizeof(tni_part)))
        return TN_E_NOMEM;
    for (int i = 0; i < 3; i++)
        if (own[i].module || own[i].optimizer || own[i].scheduler)
            parts->part[parts->n++] = (tni_part){ .p = own[i] };
    for (int i = 0; i < c->n_parts; i++) parts->part[parts->n++] = (tni_part){ .p = c->parts[i] };
    for (int i = 0; i < parts->n; i++) {
        tni_part *part = &parts->part[i];
        int is_new = tni_map_put(&parts->lists, part->p.name, &part->file);
        if (is_new < 0) return TN_E_NOMEM;
        if (!is_new)
            return tni_error(TN_E_NAME, "%s: two parts are named \"%s\": want a name for each",
                             function, part->p.name);
    }
    return TN_OK;
}

tn_list *tni_parts_tensors(const tni_parts *parts, bool buffers)
{
    tn_list *leaves = tn_list_new();
    for (int k = 0; leaves && k < parts->n; k++) {
        const tn_checkpoint_part *p = &parts->part[k].p;
        if (!p->module && (buffers || !p->optimizer)) continue;
        const tn_list *own = buffers     ? tn_buffers(p->module)
                             : p->module ? tn_parameters(p->module)
                                         : tn_optim_parameters(p->optimizer);
        if (!own) return NULL;
        for (int i = 0; i < own->n; i++)
            if (tni_list_push(leaves, "", p->name, own->entry[i].name, own->entry[i]) != TN_OK)
                return NULL;
    }
    return leaves;
}

static tn_list *state_of(const tn_checkpoint_part *p)
{
    if (p->module) return tn_state_dict(p->module, "");
    if (p->optimizer) return tn_optim_state_dict(p->optimizer);
    if (p->scheduler) return tn_scheduler_state_dict(p->scheduler);
    return tn_scaler_state_dict(p->scaler);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The gradient that the next step would use; NULL: none. */
static tn_tensor *waiting(const tn_tensor *leaf)
{
    tn_tensor *grad = tni_grad_of(leaf);
    return grad && leaf->gm->used != 1 + tn_version(grad) ? grad : NULL;
}

static tn_status save_grads(const char *function, const tni_parts *parts, tn_list *list)
{
    tn_list *leaves = tni_parts_tensors(parts, false);
    if (!leaves) return tni_pending();
    for (int i = 0; i < leaves->n; i++) {
        tn_entry e = leaves->entry[i];
        const tn_tensor *leaf = e.tensor;
        e.tensor = waiting(leaf);
        if (!e.tensor) continue;
        if (leaf->gm->sync && leaf->gm->sync->leaf[leaf->gm->sync_index].own)
            return tni_error(TN_E_STATE,
                             "%s: the gradient of %s is this rank's alone: want a backward that "
                             "averages (tn_data_parallel_set_sync), or tn_optim_zero_grad, before",
                             function, e.name);
        TNI_TRY(tni_list_push(list, GRADS ".", "", e.name, e));
    }
    return TN_OK;
}

/* Makes entry e of the file leaf's gradient, *grad: everything that may fail. */
static tn_status read_grad(const tni_input *in, const tn_entry *e, tn_tensor *leaf,
                           tn_tensor **grad)
{
    const tn_tensor *t = e->tensor;
    if (!tni_gradmeta_of(leaf)) return TN_E_NOMEM;
    if (!tni_shape_equal(&t->shape, &leaf->shape) || t->dtype != leaf->dtype)
        return tni_input_error(in, TN_E_SHAPE,
                               "the gradient of %s is %s %s there, the parameter %s %s here",
                               e->name, tni_shape_text(&t->shape), tn_dtype_name(t->dtype),
                               tni_shape_text(&leaf->shape), tn_dtype_name(leaf->dtype));
    *grad = tn_to(e->tensor, leaf->storage->device);
    return *grad ? TN_OK : tni_pending();
}

static tn_status read_grads(const tni_input *in, tni_parts *parts)
{
    tn_list *leaves = parts->leaves = tni_parts_tensors(parts, false);
    if (!leaves) return tni_pending();
    if (!tni_room(&parts->grad, &parts->grad_capacity, 0, (size_t)leaves->n, sizeof *parts->grad))
        return TN_E_NOMEM;
    for (int i = 0; i < leaves->n; i++) {
        tn_tensor *leaf = leaves->entry[i].tensor;
        const tn_entry *e = tni_list_find(parts->grads, leaves->entry[i].name);
        parts->grad[i] = NULL;
        if (e) TNI_TRY(read_grad(in, e, leaf, &parts->grad[i]));
        if (e || (leaf->gm && leaf->gm->grad)) TNI_TRY(TNI_NOTIFY(grad_changes, leaf, false));
    }
    return TN_OK;
}

static void put_grads(const tni_parts *parts)
{
    for (int i = 0; i < parts->leaves->n; i++) {
        tni_gradmeta *gm = parts->leaves->entry[i].tensor->gm;
        if (gm) tni_grad_put(gm, parts->grad[i] ? tn_keep(parts->grad[i]) : NULL);
    }
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The part's name is also the path of the root among the versions. */
static tn_status save(const char *function, tn_list *list, const char *name, const tn_list *state)
{
    if (!state) return tni_pending();
    char prefix[LONGEST + 2];
    snprintf(prefix, sizeof prefix, "%s.", name);
    for (int i = 0; i < state->n; i++) {
        const tn_entry *e = &state->entry[i];
        TNI_TRY(tni_may_change(function, e->name, TNI_AVERAGED(e->tensor->is_buffer)));
        TNI_TRY(tni_list_push(list, prefix, "", e->name, *e));
    }
    for (int i = -1, version; (version = tni_list_next_version(state, &i)) != 0;) {
        if (version == 1) continue; /* which no file says */
        const char *path = tni_list_path(state, i);
        char whole[TNI_NAME_LIMIT + LONGEST + 2];
        int length = snprintf(whole, sizeof whole, "%s%s%s", name, *path ? "." : "", path);
        if (length >= (int)sizeof whole)
            return tni_error(
                TN_E_NAME, "the path of a module has %zu bytes: %.64s...: at most %d are possible",
                strlen(path), path, TNI_NAME_LIMIT);
        TNI_TRY(tni_list_push_version(list, whole, version));
    }
    return TN_OK;
}

tn_status tni_parts_save(const char *function, const tni_parts *parts, tn_list *list)
{
    tn_status status = tni_batch_save(parts, list); /* puts buffers back */
    for (int i = 0; status == TN_OK && i < parts->n; i++)
        status = save(function, list, parts->part[i].p.name, state_of(&parts->part[i].p));
    return status == TN_OK ? save_grads(function, parts, list) : status;
}

/* ---- loading --------------------------------------------------------------------------------- */

static tni_staged *stage(const tn_checkpoint_part *p, const tn_list *state)
{
    if (p->optimizer) return tni_optim_stage(p->optimizer, state);
    if (p->scheduler) return tni_scheduler_stage(p->scheduler, state);
    return tni_scaler_stage(p->scaler, state);
}

static tn_status stage_part(const tni_input *in, tni_part *part)
{
    /* an optimizer always has state to save */
    const tn_list *now = part->p.optimizer ? NULL : state_of(&part->p);
    if (!part->p.optimizer && !now) return tni_pending();
    if ((!now || now->n) && !part->file->n)
        return tni_input_error(
            in, TN_E_NAME, "nothing of %s.* is in it, but the part is given here", part->p.name);
    if (part->p.module) return TN_OK; /* which reads its values itself */
    TNI_TRY(tni_unread_fill(part->file, part->p.optimizer, true));
    part->staged = stage(&part->p, part->file);
    return part->staged ? TN_OK : tni_in_file(in->function, in->path);
}

/* A copy of a list, with its versions, that loading does not write to: it can be loaded back. */
static tn_list *copied(const tn_list *live)
{
    tn_list *copy = live ? tni_list_copy(live) : NULL;
    for (int i = 0; copy && i < copy->n; i++) {
        tn_tensor *t = tn_clone(tn_detach(copy->entry[i].tensor));
        if (tn_list_set(copy, copy->entry[i].name, t) != TN_OK) return NULL;
    }
    return copy;
}

static tn_status load_module(const tni_input *in, tni_part *part, bool is_last)
{
    if (!is_last) part->before = copied(tn_state_dict(part->p.module, ""));
    if (!is_last && !part->before) return tni_pending();
    if (tn_load_state_dict(part->p.module, part->file, (tn_load_options){ 0 }, NULL) == TN_OK)
        return TN_OK;
    if (tn_error_status() != TN_E_IO) part->before = NULL; /* it has not changed */
    return tni_in_file(in->function, in->path);
}

static void put_back(const tni_parts *parts)
{
    const tn_load_options plain = { 0 };
    tni_saved_error was;
    tni_error_save(&was);
    for (int i = 0; i < parts->n; i++) {
        const tni_part *part = &parts->part[i];
        if (part->before)
            tni_disregard(tn_load_state_dict(part->p.module, part->before, plain, NULL));
    }
    tni_error_restore(&was);
}

/* The list of the part that a name belongs to (NULL: none); *rest: the name within it. */
static tn_list *list_of(const tni_parts *parts, const char *name, const char **rest)
{
    const char *dot = strchr(name + (name[0] == '.'), '.'); /* GRADS and TNI_BATCH begin with one */
    tn_list **list =
        tni_map_get_name(&parts->lists, name, dot ? (size_t)(dot - name) : strlen(name));
    *rest = dot ? dot + 1 : NULL;
    return list ? *list : NULL;
}

static tn_status split(const tn_list *all, const tni_parts *parts)
{
    const char *rest;
    if (!all) return tni_pending();
    for (int i = 0; i < all->n; i++) {
        tn_list *list = list_of(parts, all->entry[i].name, &rest);
        if (list && rest) TNI_TRY(tni_list_push(list, "", "", rest, all->entry[i]));
    }
    for (int i = -1, version; (version = tni_list_next_version(all, &i));) {
        tn_list *list = list_of(parts, tni_list_path(all, i), &rest);
        if (list) TNI_TRY(tni_list_push_version(list, rest ? rest : "", version));
    }
    return TN_OK;
}

static tn_status read_lists(tni_safetensors *file, tni_parts *parts)
{
    if (tni_map_put(&parts->lists, GRADS, &parts->grads) < 0 ||
        tni_map_put(&parts->lists, TNI_BATCH, &parts->batch) < 0)
        return tni_pending();
    for (size_t i = 0; i < parts->lists.capacity; i++) {
        tn_list **list = parts->lists.cell[i].value;
        if (list && !(*list = tn_list_new())) return tni_pending();
    }
    TN_SCOPE TNI_TRY(split(tni_safetensors_list(file, NULL), parts));
    TNI_TRY(tni_unread_fill(parts->grads, NULL, true));
    return tni_unread_fill(parts->batch, NULL, true);
}

tn_status tni_parts_load(tni_safetensors *file, tni_parts *parts)
{
    tn_status status = read_lists(file, parts);
    for (int i = 0; status == TN_OK && i < parts->n; i++)
        status = stage_part(&file->in, &parts->part[i]);
    if (status == TN_OK) status = read_grads(&file->in, parts);
    if (status == TN_OK) status = tni_batch_read(&file->in, parts);
    for (int i = parts->n; status == TN_OK && i-- > 0;)
        if (parts->part[i].p.module) status = load_module(&file->in, &parts->part[i], i == 0);
    if (status != TN_OK) put_back(parts);
    return status;
}

void tni_parts_put(tni_parts *parts)
{
    for (int i = 0; i < parts->n; i++) {
        if (parts->part[i].staged) tni_staged_put(parts->part[i].staged);
        parts->part[i].staged = NULL;
    }
    put_grads(parts);
    tni_batch_put(parts);
}

void tni_parts_free(tni_parts *parts)
{
    for (int i = 0; i < parts->n; i++) tni_staged_discard(parts->part[i].staged);
    tni_batch_free(parts->begun);
    tni_room_free(&parts->grad, &parts->grad_capacity, sizeof *parts->grad);
    tni_room_free(&parts->part, &parts->capacity, sizeof *parts->part);
    tni_map_free(&parts->lists);
    parts->n = 0;
}
