/*
 * capture.h - the inside of a captured step: what the host notes meanwhile, and its optimizers.
 *
 * The host's work inside a captured step is done only once, and the graph holds raw addresses. So
 * the notes keep every older storage that the step uses, list the storages made in the step that
 * outlive it, and learn of anything that would go stale: then the capture fails, with a message
 * that says what to do instead. During a capture they are the thread's watcher (tensor/watch.h).
 */
#pragma once

#include <tenon/capture.h>

#include "autograd/notify.h"
#include "nn/module.h"
#include "optim/optim.h"
#include "tensor/graphs.h"

/* ---- notes.c --------------------------------------------------------------------------------- */

/* A storage from before the capture whose address the graph holds. */
typedef struct tni_held {
    tni_storage *storage; /* one reference */
    /* a module's parameter or buffer over it, one reference; NULL: none seen */
    tn_tensor *member;
    bool written;
} tni_held;

/* A leaf whose grad the step sets. */
typedef struct tni_leaf {
    tn_tensor *leaf;
    tn_tensor *before, *after; /* NULL: none. One reference each */
    bool from_none;            /* backward found no grad, and the step had not taken one away */
} tni_leaf;

/* The mode of a module that was called. */
typedef struct tni_mode {
    tn_module *module; /* one reference */
    bool was;
} tni_mode;

typedef struct tni_notes {
    tni_watcher watcher; /* first: a tni_watcher * is a tni_notes * */
    uint64_t serial;     /* links storages and these notes */
    uint64_t first_node; /* sequence numbers of the graph's own nodes start here */
    tn_capture *owner;
    tni_held *use;
    size_t n_uses, use_capacity;
    tni_storage **made; /* NULL: freed since. After the capture: one reference each */
    size_t n_made, made_capacity;
    tni_leaf *leaf;
    size_t n_leaves, leaf_capacity;
    tni_mode *mode;
    size_t n_modes, mode_capacity;
    tni_saved_error refused; /* why the capture fails at its end; status TN_OK: it does not */
} tni_notes;

/* Takes notes of this thread until the end. NULL: TN_E_NOMEM; TN_E_STATE, a thread is capturing. */
tni_notes *tni_notes_begin(tn_capture *owner);
/* Also takes back what the step did to the leaves' grads, and keeps it for the runs. */
void tni_notes_end(tni_notes *r);
/* Whether modules are in the mode they were called in and still have the tensors that the graph
 * reads and writes, whether somebody else still holds every other tensor that it reads (if one was
 * dropped, its replacement is unknown to the graph), and whether no leaf has a grad that a run
 * would overwrite. The message names the first that is not so. */
tn_status tni_notes_check(const tni_notes *r);
/* After a run: bumps versions as if ops had written everything that the step writes, and sets the
 * leaves' grads as the step left them. */
void tni_notes_written(tni_notes *r);
void tni_notes_free(tni_notes *r);

/* The error that the captured step is not what would run now; what: "was frozen" meanwhile. */
#define tni_stale(...) tni_error(TN_E_STATE, "tn_capture_run: " __VA_ARGS__)
#define tni_changed(what, was)                                                                     \
    tni_stale("%s was %s since the step was captured: want a new capture", what, was)

/* tni_room for one item; when out of memory, marks the capture as failed. */
bool tni_notes_room(tni_notes *r, void *items, size_t *capacity, size_t n, size_t size);

/* ---- capture.c ------------------------------------------------------------------------------- */

/* tn_optim_step inside the capture: opt->call[0..n) goes to the kernel next. */
tn_status tni_capture_note(tni_watcher *notes, tn_optim *opt, int n);
