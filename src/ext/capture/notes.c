/*
 * notes.c - what is noted while a step is captured. One capture at a time in a process, in the
 * thread that began it; other threads may drop what it made.
 */
#include "ext/capture/capture.h"

static pthread_mutex_t *const lock = &tni_locks[TNI_LOCK_CAPTURE]; /* of made */
static atomic_bool running;
static uint64_t serials; /* of the capture that runs */

bool tni_notes_room(tni_notes *r, void *items, size_t *capacity, size_t n, size_t size)
{
    if (tni_room(items, capacity, n, 1, size)) return true;
    tni_error(TN_E_NOMEM, "out of memory while a step was captured");
    tni_error_save(&r->refused);
    return false;
}

/* ---- while it runs --------------------------------------------------------------------------- */

static tn_status refuse(tni_notes *r, const char *function, const char *does, const char *want)
{
    tn_status status = tni_error(TN_E_STATE,
                                 "%s: %s, which a captured step would do once, when it is "
                                 "captured, and not in its runs: want %s",
                                 function, does, want);
    if (r->refused.status == TN_OK) tni_error_save(&r->refused);
    return status;
}

static void refuses(tni_watcher *self, const char *function, const char *does, const char *want)
{
    refuse((tni_notes *)self, function, does, want);
}

static tni_held *use_of(tni_notes *r, tni_storage *s)
{
    if (s->seen == r->serial) return s->seen_as < 0 ? NULL : &r->use[s->seen_as];
    if (!tni_notes_room(r, &r->use, &r->use_capacity, r->n_uses, sizeof *r->use)) return NULL;
    s->seen = r->serial;
    s->seen_as = (int64_t)r->n_uses;
    r->use[r->n_uses] = (tni_held){ .storage = tni_storage_keep(s) };
    return &r->use[r->n_uses++];
}

static void uses(tni_watcher *self, const tn_tensor *t)
{
    tni_notes *r = (tni_notes *)self;
    if (t->storage->device.type == TN_CPU) {
        char function[80], does[320];
        snprintf(function, sizeof function, "tn_%s", tni_op_running ? tni_op_running : "data");
        snprintf(does, sizeof does, "uses %s, a tensor on the CPU", tni_text(t));
        if (r->refused.status == TN_OK)
            refuse(r, function, does, "it on the GPU, or as an input of tn_capture_run");
        return;
    }
    tni_held *use = use_of(r, t->storage);
    if (use && !use->member && (t->is_parameter || t->is_buffer))
        use->member = tn_keep((tn_tensor *)(uintptr_t)t);
}

static void writes(tni_watcher *self, const tn_tensor *t)
{
    bool on_cpu = t->storage->device.type == TN_CPU;
    tni_held *use = on_cpu ? NULL : use_of((tni_notes *)self, t->storage);
    if (use) use->written = true;
}

/* In any thread: the notes are there until they have been told or the capture has ended. */
static void gone(tni_storage *s)
{
    pthread_mutex_lock(lock);
    if (s->maker) /* NULL: the capture has ended */
        ((tni_notes *)s->maker)->made[-1 - s->seen_as] = NULL;
    pthread_mutex_unlock(lock);
}

static void storage_made(tni_watcher *self, tni_storage *s)
{
    tni_notes *r = (tni_notes *)self;
    if (s->device.type == TN_CPU) return;
    pthread_mutex_lock(lock);
    if (tni_notes_room(r, &r->made, &r->made_capacity, r->n_made, sizeof *r->made)) {
        s->maker = self;
        s->gone = gone;
        s->seen = r->serial;
        s->seen_as = -1 - (int64_t)r->n_made;
        r->made[r->n_made++] = s;
    }
    pthread_mutex_unlock(lock);
}

/* Replays behave as in the mode that the module was called in. */
static void called(tni_watcher *self, tn_module *m, int n_in, tn_tensor *const *in)
{
    (void)n_in, (void)in;
    tni_notes *r = (tni_notes *)self;
    for (size_t i = 0; i < r->n_modes; i++)
        if (r->mode[i].module == m) return;
    if (!tni_notes_room(r, &r->mode, &r->mode_capacity, r->n_modes, sizeof *r->mode)) return;
    r->mode[r->n_modes++] = (tni_mode){ tn_module_keep(m), tn_training(m) };
}

static tn_status arrived(tni_watcher *self, const tni_node *node)
{
    tni_notes *r = (tni_notes *)self;
    if (node->sequence >= r->first_node) return TN_OK;
    return refuse(r, "tn_backward", "goes through a graph from before it",
                  "forward and backward in one step");
}

static tn_status grad_changes(tni_watcher *self, tn_tensor *leaf, bool adding)
{
    tni_notes *r = (tni_notes *)self;
    const tn_tensor *grad = tni_grad_of(leaf);
    bool made = grad && grad->storage->seen == r->serial && grad->storage->seen_as < 0;
    if (adding && grad && !made) /* not in the step */
        return refuse(r, "tn_backward", "adds to a gradient from before it",
                      "tn_optim_zero_grad in the step, before tn_backward");
    if (leaf->storage->device.type == TN_CPU) return TN_OK;
    for (size_t i = 0; i < r->n_leaves; i++)
        if (r->leaf[i].leaf == leaf) return TN_OK;
    if (!tni_notes_room(r, &r->leaf, &r->leaf_capacity, r->n_leaves, sizeof *r->leaf)) return TN_OK;
    r->leaf[r->n_leaves++] = (tni_leaf){ .leaf = tn_keep(leaf),
                                         .before = tn_keep(tni_grad_of(leaf)),
                                         .from_none = adding && !grad };
    return TN_OK;
}

static const tni_watcher watcher = { .storage_made = storage_made,
                                     .uses = uses,
                                     .writes = writes,
                                     .arrived = arrived,
                                     .grad_changes = grad_changes,
                                     .called = called,
                                     .steps = tni_capture_note,
                                     .refuses = refuses };

/* ---- begin and end --------------------------------------------------------------------------- */

tni_notes *tni_notes_begin(tn_capture *owner)
{
    tni_notes *r = tni_calloc(sizeof *r);
    if (!r) return NULL;
    if (atomic_exchange(&running, true)) {
        tni_free(r, sizeof *r);
        return tni_fail(TN_E_STATE,
                        "tn_capture_run: another thread is capturing a step: want one at a time");
    }
    *r = (tni_notes){ .watcher = watcher, .serial = ++serials, .owner = owner };
    r->first_node = tni_next_sequence();
    tni_watch(&r->watcher);
    return r;
}

/* Takes a reference to a storage that another thread may be freeing. */
static bool keep_alive(tni_storage *s)
{
    int refs = atomic_load(&s->refs);
    while (refs > 0)
        if (atomic_compare_exchange_weak(&s->refs, &refs, refs + 1)) return true;
    return false;
}

/* Without a gm there is no grad to set or to remove. */
static void set_grad(tn_tensor *leaf, tn_tensor *grad)
{
    if (!leaf->gm || leaf->gm->grad == grad) return;
    tn_keep(grad);
    tn_drop(leaf->gm->grad);
    leaf->gm->grad = grad;
}

void tni_notes_end(tni_notes *r)
{
    tni_watch(NULL);
    pthread_mutex_lock(lock);
    for (size_t i = 0; i < r->n_made; i++) {
        if (!r->made[i]) continue;
        r->made[i]->seen = 0;
        r->made[i]->maker = NULL;
        if (!keep_alive(r->made[i])) r->made[i] = NULL;
    }
    pthread_mutex_unlock(lock);
    atomic_store(&running, false);
    for (tni_leaf *l = r->leaf; l && l < r->leaf + r->n_leaves; l++) {
        l->after = tn_keep(tni_grad_of(l->leaf));
        set_grad(l->leaf, l->before);
        tn_drop(l->before);
        l->before = NULL;
    }
}

void tni_notes_free(tni_notes *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n_leaves; i++) {
        tn_drop(r->leaf[i].leaf);
        tn_drop(r->leaf[i].before);
        tn_drop(r->leaf[i].after);
    }
    for (size_t i = 0; i < r->n_uses; i++) {
        tn_drop(r->use[i].member);
        tni_storage_drop(r->use[i].storage);
    }
    for (size_t i = 0; i < r->n_made; i++)
        if (r->made[i]) tni_storage_drop(r->made[i]);
    for (size_t i = 0; i < r->n_modes; i++) tn_module_drop(r->mode[i].module);
    tni_room_free(&r->leaf, &r->leaf_capacity, sizeof *r->leaf);
    tni_room_free(&r->mode, &r->mode_capacity, sizeof *r->mode);
    tni_room_free(&r->use, &r->use_capacity, sizeof *r->use);
    tni_room_free(&r->made, &r->made_capacity, sizeof *r->made);
    tni_free(r, sizeof *r);
}

/* ---- the runs -------------------------------------------------------------------------------- */

tn_status tni_notes_check(const tni_notes *r)
{
    for (const tni_mode *mode = r->mode; mode && mode < r->mode + r->n_modes; mode++) {
        if (tn_training(mode->module) != mode->was)
            return tni_stale("a %s was %s when the step was captured, and is not now: want "
                             "tn_train or tn_eval as it was, or a new capture",
                             mode->module->type->name, mode->was ? "training" : "evaluating");
    }
    for (const tni_held *use = r->use; use && use < r->use + r->n_uses; use++) {
        if (use->member && (use->member->storage != use->storage ||
                            (!use->member->is_parameter && !use->member->is_buffer)))
            return tni_changed(tni_text(use->member), "moved, cast or replaced");
        if (!use->member && atomic_load(&use->storage->refs) == 1)
            return tni_stale("the step reads a tensor of %zu bytes on the GPU that was made before "
                             "it and that nobody else holds now, so its values cannot change: want "
                             "it kept and written in place (tn_copy_), or as an input",
                             use->storage->nbytes);
    }
    for (size_t i = 0; i < r->n_leaves; i++)
        if (r->leaf[i].from_none && tni_grad_of(r->leaf[i].leaf))
            return tni_stale("%s has a gradient, had none when the step was "
                             "captured, and the step would overwrite it: want tn_optim_zero_grad "
                             "before tn_capture_run or in the step",
                             tni_text(r->leaf[i].leaf));
    return TN_OK;
}

void tni_notes_written(tni_notes *r)
{
    for (size_t i = 0; i < r->n_uses; i++)
        if (r->use[i].written)
            atomic_fetch_add_explicit(&r->use[i].storage->version, 1, memory_order_relaxed);
    for (size_t i = 0; i < r->n_made; i++)
        if (r->made[i]) atomic_fetch_add_explicit(&r->made[i]->version, 1, memory_order_relaxed);
    for (size_t i = 0; i < r->n_leaves; i++) set_grad(r->leaf[i].leaf, r->leaf[i].after);
}
