/*
 * recorder.h - what the core notes while a training step is recorded (tn_capture, optim/capture.c).
 *
 * What the host does inside a recorded step it does once, and the graph holds raw addresses. So a recorder
 * keeps every storage that the step uses and did not make, knows those it made that outlive it, and is told
 * of whatever would go stale: then the recording fails, with a message that says what to do instead.
 */
#ifndef TNI_RECORDER_H
#define TNI_RECORDER_H

#include "tensor/internal.h"

/* A storage from before the recording whose address the graph holds. */
typedef struct tni_use {
    tni_storage *storage; /* one reference */
    tn_tensor
        *member; /* a module's parameter or buffer on it, one reference; NULL: none was seen */
    bool written;
} tni_use;

/* A leaf whose grad the step sets (autograd/record.c). */
typedef struct tni_leaf {
    tn_tensor *leaf;
    tn_tensor *before, *after; /* NULL: none. One reference each, as the leaf's */
    bool from_none;            /* backward found no grad, and the step had not taken one away */
} tni_leaf;

/* What the host asked of an object and would find changed later: the mode of a module that was called. */
typedef struct tni_mode {
    void *object;
    const char *type;
    bool was;
    bool (*now)(const void *object);
    void (*drop)(void *object);
} tni_mode;

struct tni_recorder {
    uint64_t serial;     /* storages and this know each other by it */
    uint64_t first_node; /* sequence numbers of the graph's own nodes start here */
    void *owner;         /* the tn_capture */
    tni_use *use;
    size_t n_uses, use_capacity;
    tni_storage **made; /* NULL: gone since. After the recording: one reference each */
    size_t n_made, made_capacity;
    tni_leaf *leaf;
    size_t n_leaves, leaf_capacity;
    tni_mode *mode;
    size_t n_modes, mode_capacity;
    tn_status refused; /* what makes the recording fail in the end, with its message */
    char why[512];
};

/* NULL and TN_E_NOMEM, or TN_E_STATE when a recording runs in any thread: then it begins in this one. */
tni_recorder *tni_recorder_begin(void *owner);
/* Ends this thread's. */
void tni_recorder_end(tni_recorder *r);
/* Takes over one reference to the object, unless this returns false: it is there already. */
bool tni_record_mode(tni_mode mode);
/* Whether modules are in the mode they were called in and still have the tensors that the graph reads and
 * writes; names the first that are or have not. */
tn_status tni_recorder_check(const tni_recorder *r);
/* Whether somebody else still holds every tensor that the step reads. One that was dropped since is replaced
 * by another, which the graph does not know. */
tn_status tni_recorder_check_held(const tni_recorder *r);
/* As if everything that the step writes had been written by ops. */
void tni_recorder_written(tni_recorder *r);
void tni_recorder_free(tni_recorder *r);

/* Room for item n of an array; marks the recording as failed without memory. */
bool tni_recorder_room(tni_recorder *r, void **items, size_t n, size_t *capacity, size_t size);

/* autograd/record.c. leaf's grad is about to change; adding: backward adds to it. */
void tni_record_leaf(tn_tensor *leaf, bool adding);
void tni_recorder_keep_grads(tni_recorder *r); /* after: the grads that leaves have now */
void tni_recorder_grads(tni_recorder *r,
                        bool after); /* gives leaves those of after, or of before */
void tni_recorder_drop_before(tni_recorder *r);
tn_status tni_recorder_check_grads(const tni_recorder *r);
void tni_recorder_drop_leaves(tni_recorder *r);

#endif
