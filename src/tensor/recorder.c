/*
 * recorder.c - see recorder.h. One recording at a time in a process, in the thread that began it; other
 * threads may drop what it made.
 */
#include "tensor/recorder.h"

#include <pthread.h>

_Thread_local tni_recorder *tni_recording;

static pthread_mutex_t *const lock = &tni_locks[TNI_LOCK_RECORDING]; /* of made, and of: */
static bool running;
static uint64_t serials;

bool tni_recorder_room(tni_recorder *r, void **items, size_t n, size_t *capacity, size_t size)
{
    size_t wanted = *capacity ? *capacity * 2 : 64;
    void *bigger;

    if (n < *capacity) return true;
    bigger = tni_calloc(wanted * size);
    if (!bigger) {
        r->refused = TN_E_NOMEM;
        snprintf(r->why, sizeof r->why, "out of memory while a step was recorded");
        return false;
    }
    if (*items) {
        memcpy(bigger, *items, n * size);
        tni_free(*items, *capacity * size);
    }
    *items = bigger;
    *capacity = wanted;
    return true;
}

/* ---- begin and end ---------------------------------------------------------------------------------- */

tni_recorder *tni_recorder_begin(void *owner)
{
    tni_recorder *r = tni_calloc(sizeof *r);
    bool busy;

    if (!r) return NULL;
    pthread_mutex_lock(lock);
    busy = running;
    running = true;
    r->serial = ++serials;
    pthread_mutex_unlock(lock);
    if (busy) {
        tni_free(r, sizeof *r);
        return tni_fail(TN_E_STATE,
                        "tn_capture_run: another thread is recording a captured step: want one at "
                        "a time");
    }
    r->owner = owner;
    tni_recording = r;
    return r;
}

/* A reference to what may be going in another thread. */
static bool keep_alive(tni_storage *s)
{
    int refs = atomic_load(&s->refs);

    while (refs > 0)
        if (atomic_compare_exchange_weak(&s->refs, &refs, refs + 1)) return true;
    return false;
}

void tni_recorder_end(tni_recorder *r)
{
    tni_recording = NULL;
    pthread_mutex_lock(lock);
    running = false;
    for (size_t i = 0; i < r->n_made; i++) {
        if (!r->made[i]) continue;
        r->made[i]->recorded = 0;
        r->made[i]->recorder = NULL;
        if (!keep_alive(r->made[i])) r->made[i] = NULL;
    }
    pthread_mutex_unlock(lock);
}

void tni_recorder_free(tni_recorder *r)
{
    if (!r) return;
    tni_recorder_drop_leaves(r);
    for (size_t i = 0; i < r->n_uses; i++) {
        tn_drop(r->use[i].member);
        tni_storage_drop(r->use[i].storage);
    }
    for (size_t i = 0; i < r->n_made; i++)
        if (r->made[i]) tni_storage_drop(r->made[i]);
    for (size_t i = 0; i < r->n_modes; i++) r->mode[i].drop(r->mode[i].object);
    tni_free(r->mode, r->mode_capacity * sizeof *r->mode);
    tni_free(r->use, r->use_capacity * sizeof *r->use);
    tni_free(r->made, r->made_capacity * sizeof *r->made);
    tni_free(r, sizeof *r);
}

/* ---- while it runs ------------------------------------------------------------------------------------ */

tn_status tni_record_refuse(const char *function, const char *does, const char *want)
{
    tni_recorder *r = tni_recording;
    tn_status status = tni_error(TN_E_STATE,
                                 "%s: %s, which a captured step would do once, when it is "
                                 "recorded, and not in its runs: want %s",
                                 function, does, want);

    if (r->refused == TN_OK) {
        r->refused = status;
        snprintf(r->why, sizeof r->why, "%s", tn_error());
    }
    return status;
}

static void refuse_cpu(const tn_tensor *t)
{
    char function[80], does[320];

    snprintf(function, sizeof function, "tn_%s", tni_op_running ? tni_op_running : "data");
    snprintf(does, sizeof does, "uses %s, a tensor on the CPU", tni_text(t));
    if (tni_recording->refused == TN_OK)
        tni_record_refuse(function, does, "it on the GPU, or as an input of tn_capture_run");
}

static tni_use *use_of(tni_storage *s)
{
    tni_recorder *r = tni_recording;
    void *items = r->use;

    if (s->recorded == r->serial) return s->record_slot < 0 ? NULL : &r->use[s->record_slot];
    if (!tni_recorder_room(r, &items, r->n_uses, &r->use_capacity, sizeof *r->use)) return NULL;
    r->use = items;
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    s->recorded = r->serial;
    s->record_slot = (int64_t)r->n_uses;
    r->use[r->n_uses] = (tni_use){ .storage = s };
    return &r->use[r->n_uses++];
}

void tni_record_use(const tn_tensor *t)
{
    tni_use *use;

    if (t->storage->device.type == TN_CPU) {
        refuse_cpu(t);
        return;
    }
    use = use_of(t->storage);
    if (use && !use->member && (t->is_parameter || t->is_buffer))
        use->member = tn_keep((tn_tensor *)(uintptr_t)t);
}

void tni_record_write(const tn_tensor *t)
{
    tni_use *use = t->storage->device.type == TN_CPU ? NULL : use_of(t->storage);

    if (use) use->written = true;
}

void tni_record_made(tni_storage *s)
{
    tni_recorder *r = tni_recording;
    void *items = r->made;

    if (s->device.type == TN_CPU) return;
    pthread_mutex_lock(lock);
    if (tni_recorder_room(r, &items, r->n_made, &r->made_capacity, sizeof *r->made)) {
        r->made = items;
        s->recorder = r;
        s->recorded = r->serial;
        s->record_slot = -1 - (int64_t)r->n_made;
        r->made[r->n_made++] = s;
    }
    pthread_mutex_unlock(lock);
}

void tni_record_gone(tni_storage *s)
{
    pthread_mutex_lock(lock);
    if (s->recorder) /* else the recording has ended */
        s->recorder->made[-1 - s->record_slot] = NULL;
    pthread_mutex_unlock(lock);
}

bool tni_record_mode(tni_mode mode)
{
    tni_recorder *r = tni_recording;
    void *items = r->mode;

    for (size_t i = 0; i < r->n_modes; i++)
        if (r->mode[i].object == mode.object) return false;
    if (!tni_recorder_room(r, &items, r->n_modes, &r->mode_capacity, sizeof *r->mode)) return false;
    r->mode = items;
    r->mode[r->n_modes++] = mode;
    return true;
}

bool tni_record_is_made(const tn_tensor *t)
{
    return t->storage->recorded == tni_recording->serial && t->storage->record_slot < 0;
}

/* ---- the runs ------------------------------------------------------------------------------------------- */

tn_status tni_recorder_check(const tni_recorder *r)
{
    for (size_t i = 0; i < r->n_modes; i++) {
        const tni_mode *mode = &r->mode[i];

        if (mode->now(mode->object) != mode->was)
            return tni_error(
                TN_E_STATE,
                "tn_capture_run: a %s was %s when the step was captured, and is not now: "
                "want tn_train or tn_eval as it was, or a new capture",
                mode->type, mode->was ? "training" : "evaluating");
    }
    for (size_t i = 0; i < r->n_uses; i++) {
        const tni_use *use = &r->use[i];

        if (use->member && (use->member->storage != use->storage ||
                            (!use->member->is_parameter && !use->member->is_buffer)))
            return tni_error(TN_E_STATE,
                             "tn_capture_run: %s was moved, cast or replaced since the step was "
                             "captured: want a new capture",
                             tni_text(use->member));
    }
    return TN_OK;
}

tn_status tni_recorder_check_held(const tni_recorder *r)
{
    for (size_t i = 0; i < r->n_uses; i++) {
        const tni_use *use = &r->use[i];

        if (!use->member && atomic_load(&use->storage->refs) == 1)
            return tni_error(TN_E_STATE,
                             "tn_capture_run: the step reads a tensor of %zu bytes on the GPU that "
                             "was made before it and that nobody else holds now, so its values "
                             "cannot change: want it kept and written in place (tn_copy_), or "
                             "as an input",
                             use->storage->nbytes);
    }
    return TN_OK;
}

void tni_recorder_written(tni_recorder *r)
{
    for (size_t i = 0; i < r->n_uses; i++)
        if (r->use[i].written)
            atomic_fetch_add_explicit(&r->use[i].storage->version, 1, memory_order_relaxed);
    for (size_t i = 0; i < r->n_made; i++)
        if (r->made[i]) atomic_fetch_add_explicit(&r->made[i]->version, 1, memory_order_relaxed);
}
