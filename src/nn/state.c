/*
 * state.c - loading a state dict: everything is compared and staged before the first copy.
 *
 * The model's slots are compared with the list name by name. Lists of an older state_version lack
 * some slots (BatchNorm's counter came with version 2); these get a default value when the list is
 * older or has no version. If user code runs after the copies (extra state, post-hooks), the old
 * values are kept until it has succeeded.
 */
#include "nn/module.h"

void tni_line_add(tni_line *l, const char *separator, const char *format, ...)
{
    const size_t room = sizeof l->text - 4; /* "..." always fits */
    if (l->count++ && l->n < room)
        l->n += (size_t)snprintf(l->text + l->n, room - l->n, "%s", separator);
    if (l->n >= room) return;
    va_list args;
    va_start(args, format);
    l->n += (size_t)vsnprintf(l->text + l->n, room - l->n, format, args);
    va_end(args);
    if (l->n >= room) strcat(l->text, "...");
}

/* What the report lists, each with its title. */
enum { MISSING, UNEXPECTED, SHAPES, DTYPES, CAST, TIED, LINES };
static const char *const title[LINES] = { "missing: ",     "unexpected: ", "mismatched:\n",
                                          "mismatched:\n", "cast: ",       "tied: " };

/* One copy to make: into the tensor of an entry of the model, from source (TN_NONE: fill with
 * value); when assigning, source takes the tensor's place. */
typedef struct step {
    const tn_entry *entry;
    tn_tensor *target, *source;
    double value;
    tn_tensor *backup; /* restored if loading fails later */
} step;

typedef struct plan {
    tn_load_options options;
    tn_module *root;
    tn_list *model;                /* the entries of its slots */
    tn_list *state;                /* the caller's list, renamed and changed by hooks */
    tn_list *missing, *unexpected; /* names, with TN_NONE */
    step *steps;
    int n;
    int loaded;
    bool may_fail_late;  /* hooks or extra state follow the copies */
    bool on_gpu;         /* a copy may fail */
    tni_map place, back; /* assigning: target -> source, source -> target */
    tni_line line[LINES];
} plan;

/* Equal shapes; a 0-d tensor also takes shape [1]. Source: PyTorch 2.x */
static bool shape_fits(const tn_tensor *target, const tn_tensor *source)
{
    const tn_shape *to = &target->shape, *from = &source->shape;
    if (tni_none(source)) return false;
    return tni_shape_equal(to, from) || (to->rank == 0 && from->rank == 1 && from->size[0] == 1);
}

/* Compares one entry of the model with the list's. */
static void compare(plan *p, const tn_entry *e, tn_tensor *source)
{
    tn_tensor *t = e->tensor;
    if (!shape_fits(t, source)) {
        tni_line_add(&p->line[SHAPES], "\n",
                     "  size mismatch for %s: the list has %s, the model %s", e->name,
                     tni_none(source) ? "none" : tni_shape_text(&source->shape),
                     tni_shape_text(&t->shape));
        return;
    }
    if (t->dtype != source->dtype && !p->options.assign) {
        bool floats = tn_dtype_is_float(t->dtype) && tn_dtype_is_float(source->dtype);
        if (!floats || !(p->options.cast || tni_stays_wide(e->role))) {
            tni_line_add(&p->line[DTYPES], "\n",
                         "  dtype mismatch for %s: the list has %s, the model %s%s", e->name,
                         tn_dtype_name(source->dtype), tn_dtype_name(t->dtype),
                         floats ? " (the option cast converts)" : "");
            return;
        }
        tni_line_add(&p->line[CAST], ", ", "%s (%s to %s)", e->name, tn_dtype_name(source->dtype),
                     tn_dtype_name(t->dtype));
    }
    p->steps[p->n++] = (step){ e, t, source, 0, NULL };
    p->on_gpu |= t->storage->device.type != TN_CPU;
    p->loaded++;
}

static tn_status compare_all(plan *p)
{
    tni_map TN_WHEN_LEFT(tni_map_free) given = { 0 };
    tn_status status = TN_OK;
    for (int i = 0; i < p->model->n; i++) {
        const tn_entry *e = &p->model->entry[i];
        if (!tni_list_find(p->state, e->name)) continue;
        if (tni_map_put(&given, e->tensor, e->tensor) < 0) return TN_E_NOMEM;
    }
    for (int i = 0; status == TN_OK && i < p->model->n; i++) {
        const tn_entry *e = &p->model->entry[i], *from = tni_list_find(p->state, e->name);
        const tni_slot *slot = tni_slot_of(e->owner, e->name);
        const char *dot = strrchr(e->name, '.'); /* behind its module's path */
        const size_t n = dot ? (size_t)(dot - e->name) : 0;
        if (from)
            compare(p, e, from->tensor);
        else if (tni_map_get(&given, e->tensor)) /* under another name of a tied tensor */
            tni_line_add(&p->line[TIED], ", ", "\"%s\"", e->name);
        else if (slot->since > tni_list_version_n(p->state, e->name, n))
            p->steps[p->n++] = (step){ e, e->tensor, TN_NONE, slot->since_value, NULL };
        else
            status = tn_list_set(p->missing, e->name, TN_NONE);
    }
    for (int i = 0; status == TN_OK && i < p->state->n; i++)
        if (!tni_list_find(p->model, p->state->entry[i].name))
            status = tn_list_set(p->unexpected, p->state->entry[i].name, TN_NONE);
    return status;
}

/* The names as they are now: hooks may change them. */
static const tni_line *names_of(plan *p, int i, const tn_list *names)
{
    p->line[i] = (tni_line){ 0 };
    for (int k = 0; names && k < names->n; k++)
        tni_line_add(&p->line[i], ", ", "\"%s\"", names->entry[k].name);
    return &p->line[i];
}

static tn_status verdict(plan *p)
{
    bool strict = !p->options.non_strict;
    const tni_line *missing = names_of(p, MISSING, strict ? p->missing : NULL);
    const tni_line *unexpected = names_of(p, UNEXPECTED, strict ? p->unexpected : NULL);
    const tni_line *shapes = &p->line[SHAPES], *dtypes = &p->line[DTYPES];
    bool names = missing->count || unexpected->count;
    bool sizes = shapes->count && !p->options.skip_mismatched;
    if (!names && !sizes && !dtypes->count) return TN_OK;
    return tni_error(
        names   ? TN_E_NAME
        : sizes ? TN_E_SHAPE
                : TN_E_DTYPE,
        "tn_load_state_dict: %s: the list does not fit, nothing was changed%s%s%s%s%s%s%s%s",
        p->root->type->name, missing->count ? "\n  missing: " : "", missing->text,
        unexpected->count ? "\n  unexpected: " : "", unexpected->text, sizes ? "\n" : "",
        sizes ? shapes->text : "", dtypes->count ? "\n" : "", dtypes->text);
}

static void fill_report(plan *p, tn_load_report *r)
{
    const tni_line *l = p->line;
    size_t n = 0;
    names_of(p, MISSING, p->missing);
    names_of(p, UNEXPECTED, p->unexpected);
    *r = (tn_load_report){ .loaded = p->loaded,
                           .missing = l[MISSING].count,
                           .unexpected = l[UNEXPECTED].count,
                           .mismatched = l[SHAPES].count + l[DTYPES].count,
                           .cast = l[CAST].count,
                           .tied = l[TIED].count };
    for (int i = 0; i < LINES; i++)
        if (l[i].count && n < sizeof r->text - 1)
            n += (size_t)snprintf(r->text + n, sizeof r->text - n, "%s%s\n", title[i], l[i].text);
    tni_disarm(r->text);
}

/* ---- the caller's list as the model will see it ---------------------------------------------- */

static tn_status rename_all(plan *p, const tn_list *from)
{
    const tn_load_options *o = &p->options;
    for (int i = 0; i < from->n; i++) {
        char name[1025] = "";
        const tn_entry *e = &from->entry[i];
        if (!o->rename(e->name, name, sizeof name, o->user)) continue;
        if (!memchr(name, '\0', sizeof name) || !name[0] || tni_list_find(p->state, name))
            return tni_error(TN_E_NAME,
                             "tn_load_state_dict: rename made \"%.200s\" of \"%s\": want a name "
                             "of 1 to 1,024 bytes that no other entry has",
                             name, e->name);
        TNI_TRY(tni_list_push(p->state, "", "", name, *e));
    }
    return TN_OK;
}

static tn_status load_pre(tn_module *m, const char *path, void *user)
{
    plan *p = user;
    const bool hooked = tni_has_hook(m, TNI_HOOK_LOAD_PRE);
    if (hooked || m->type->set_extra_state || p->options.assign)
        TNI_TRY(tni_unread_fill(p->state, NULL, true));
    if (!hooked) return TN_OK;
    char *prefix = tni_name_new("", path, "");
    if (!prefix) return TN_E_NOMEM;
    tn_status status = tni_run_list_hooks(m, TNI_HOOK_LOAD_PRE, p->state, prefix, NULL);
    tni_name_free(prefix);
    return status;
}

static tn_status load_post(tn_module *m, const char *path, void *user)
{
    plan *p = user;
    (void)path;
    return tni_run_list_hooks(m, TNI_HOOK_LOAD_POST, p->missing, NULL, p->unexpected);
}

/* *e: the extra state of the module at a path in a list, NULL if there is none. */
static tn_status find_extra(const tn_list *list, const char *path, const tn_entry **e)
{
    char *name = tni_name_new("", path, TNI_EXTRA_STATE);
    *e = name ? tni_list_find(list, name) : NULL;
    if (name) tni_name_free(name);
    return name ? TN_OK : TN_E_NOMEM;
}

/* Compares names of extra state; notes whether anything follows the copies. */
static tn_status compare_late(tn_module *m, const char *path, void *user)
{
    plan *p = user;
    const tn_entry *e;
    p->may_fail_late |= tni_has_hook(m, TNI_HOOK_LOAD_POST) || m->type->set_extra_state;
    if (!m->type->set_extra_state) return TN_OK;
    TNI_TRY(find_extra(p->state, path, &e));
    if (!e)
        return tni_list_push(p->missing, "", path, TNI_EXTRA_STATE,
                             (tn_entry){ .tensor = TN_NONE });
    return tn_list_has(p->unexpected, e->name) ? tn_list_remove(p->unexpected, e->name) : TN_OK;
}

/* The source in the target's dtype, shape and device, in memory that no copy writes to. */
static tn_tensor *staged(const plan *p, const step *s, const tni_map *written)
{
    if (p->options.assign) {
        tn_tensor *own = tn_detach(tn_reshape(s->source, s->target->shape));
        tn_module *m = s->entry->owner;
        const tni_slot *slot = tni_slot_of(m, s->entry->name);
        if (!own || tni_slot_accepts("tn_load_state_dict", m, slot, own) != TN_OK) return NULL;
        /* named now: nothing may fail once it takes the target's place */
        return own->name || tn_set_name(own, slot->name) == TN_OK ? own : NULL;
    }
    if (tni_unread_waits(s->source, s->target)) return s->source;
    tn_tensor *y = tn_to_dtype(tni_unread_values(s->source), s->target->dtype);
    y = tn_to(y, s->target->storage->device);
    if (y && y->shape.rank != s->target->shape.rank) y = tn_reshape(y, s->target->shape);
    if (y && y != s->target && tni_map_get(written, y->storage)) y = tn_clone(y);
    return y;
}

static tn_status stage_all(plan *p)
{
    tni_map TN_WHEN_LEFT(tni_map_free) written = { 0 };
    for (int i = 0; i < p->n; i++)
        if (tni_map_put(&written, p->steps[i].target->storage, p) < 0) return TN_E_NOMEM;
    for (int i = 0; i < p->n; i++) {
        step *s = &p->steps[i];
        int64_t marks = TNI_AVERAGED(atomic_load(&s->target->storage->buffer_marks));
        TNI_TRY(tni_may_change("tn_load_state_dict", s->entry->name, marks));
        if (tni_none(s->source)) continue;
        s->source = staged(p, s, &written);
        if (!s->source) return tni_pending();
        if (p->options.assign && (tni_map_put(&p->place, s->target, s->source) < 0 ||
                                  tni_map_put(&p->back, s->source, s->target) < 0))
            return TN_E_NOMEM;
    }
    return TN_OK;
}

/* Assigning: every slot that held a replaced tensor gets the new one, so tied tensors stay tied. If
 * a tensor has several new ones, the last wins. */
static tn_status take_places(const plan *p, const tni_map *place)
{
    for (int i = 0; i < p->model->n; i++) {
        const tn_entry *e = &p->model->entry[i];
        tni_slot *slot = tni_slot_of(e->owner, e->name);
        tn_tensor *to = tni_map_get(place, slot->tensor);
        if (to) TNI_TRY(tni_slot_assign("tn_load_state_dict", e->owner, slot, to));
    }
    return TN_OK;
}

static tn_status copy_all(const plan *p)
{
    for (int i = 0; i < p->n; i++) {
        const step *s = &p->steps[i];
        if (tni_none(s->source))
            TNI_TRY(tn_fill_(s->target, s->value));
        else if (!p->options.assign && s->source != s->target)
            TNI_TRY(tni_unread_put(s->target, s->source));
    }
    return p->options.assign ? take_places(p, &p->place) : TN_OK;
}

/* ---- what follows the copies, and may undo them ---------------------------------------------- */

/* The modules' extra state before loading, by name. */
static tn_status backup_extra(tn_module *m, const char *path, void *user)
{
    if (!m->type->set_extra_state || !m->type->extra_state) return TN_OK;
    tn_tensor *t = m->type->extra_state(m);
    tn_entry e = { .tensor = t };
    return t ? tni_list_push(user, "", path, TNI_EXTRA_STATE, e) : tni_pending();
}

static tn_status set_extra(tn_module *m, const char *path, void *user)
{
    const tn_entry *e = NULL;
    tn_status status = m->type->set_extra_state ? find_extra(user, path, &e) : TN_OK;
    return e ? m->type->set_extra_state(m, e->tensor) : status;
}

/* The others go back even if one fails. */
static tn_status extra_back(tn_module *m, const char *path, void *user)
{
    tni_disregard(set_extra(m, path, user));
    return TN_OK;
}

static tn_status backup_tensors(plan *p)
{
    for (int i = 0; i < p->n; i++) {
        bool stays = p->options.assign && !tni_none(p->steps[i].source);
        p->steps[i].backup = stays ? p->steps[i].target : tn_clone(p->steps[i].target);
        if (!p->steps[i].backup) return tni_pending();
    }
    return TN_OK;
}

/* The message of the first failure stays. */
static void put_back(const plan *p, tn_list *extra)
{
    tni_saved_error was;
    tni_error_save(&was);
    for (int i = 0; i < p->n; i++) {
        const step *s = &p->steps[i];
        if (s->backup != s->target) tni_disregard(tn_copy_(s->target, s->backup));
    }
    take_places(p, &p->back);
    tni_walk(p->root, TNI_EVERY, extra_back, NULL, extra);
    tni_error_restore(&was);
}

static tn_status copy_and_follow(plan *p)
{
    TNI_TRY(p->may_fail_late ? TN_OK : verdict(p));
    if (!p->may_fail_late && !p->on_gpu) return copy_all(p);
    tn_list *extra = tn_list_new();
    TNI_TRY(extra ? backup_tensors(p) : TN_E_NOMEM);
    TNI_TRY(tni_walk(p->root, TNI_EVERY, backup_extra, NULL, extra));
    tn_status status = copy_all(p);
    if (status == TN_OK) status = tni_walk(p->root, TNI_EVERY, set_extra, NULL, p->state);
    if (status == TN_OK) status = tni_walk(p->root, TNI_EVERY, NULL, load_post, p);
    if (status == TN_OK && p->may_fail_late) status = verdict(p);
    if (status != TN_OK) put_back(p, extra);
    return status;
}

static tn_status load(plan *p, const tn_list *from)
{
    p->missing = tn_list_new();
    p->unexpected = tn_list_new();
    p->model = tni_slot_list(p->root);
    p->state = p->options.rename ? tn_list_new() : tni_list_copy(from);
    if (!p->missing || !p->unexpected || !p->model || !p->state) return tni_pending();
    TNI_TRY(p->options.rename ? rename_all(p, from) : TN_OK);
    TNI_TRY(tni_unread_fill_small(p->state));
    TNI_TRY(tni_walk(p->root, TNI_EVERY, load_pre, NULL, p));
    TNI_ITEMS(step, steps, p->model->n);
    if (!(p->steps = steps)) return TN_E_NOMEM;
    tn_status status = compare_all(p);
    if (status == TN_OK) status = tni_walk(p->root, TNI_EVERY, compare_late, NULL, p);
    bool fits = p->options.skip_mismatched || !p->line[SHAPES].count;
    if (status == TN_OK && (!fits || p->line[DTYPES].count)) status = verdict(p);
    if (status == TN_OK) status = stage_all(p);
    if (status == TN_OK) status = copy_and_follow(p);
    tni_map_free(&p->place);
    tni_map_free(&p->back);
    return status;
}

tn_status tn_load_state_dict(tn_module *m, const tn_list *state, tn_load_options o,
                             tn_load_report *report)
{
    TNI_TRY(tni_module_check("tn_load_state_dict", m));
    if (!state) return tni_poison("tn_load_state_dict", "the list");
    TNI_SCOPES_STAY;
    TNI_ITEMS(plan, p, 1);
    if (!p) return TN_E_NOMEM;
    *p = (plan){ .options = o, .root = m };
    TNI_UNRECORDED;
    tn_status status = scope.depth < 0 ? TN_E_NOMEM : load(p, state);
    if (status != TN_OK) p->loaded = 0;
    if (report) fill_report(p, report);
    return status;
}
