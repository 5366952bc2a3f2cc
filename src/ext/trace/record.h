/*
 * record.h - the recorder: a watcher (tensor/watch.h) that fills an account (log.h).
 *
 * It notes numbers at the moment when things happen, and keeps no tensor. Tensors are known by the
 * addresses of their handles until another handle is made there, nodes by the engine's sequence
 * numbers. A failure in it never fails what it watches: the account just ends there.
 */
#ifndef TNI_RECORD_H
#define TNI_RECORD_H

#include "autograd/pass.h"
#include "autograd/call_site.h"
#include "nn/module.h"
#include "optim/optim.h"
#include "ext/trace/log.h"

/* A gradient on its way: it was added to what arrives at a node. */
typedef struct tni_record_add {
    tni_log_add add;
    int older; /* the one before it at the same node; -1: none */
} tni_record_add;

/* A backward pass that is running. */
typedef struct tni_record_pass {
    struct tni_record_pass *outer;
    const tni_pass *pass;
    int number, back; /* within the step: number of this pass; running step of backward */
    size_t kept;      /* bytes that its nodes still keep */
    bool disturbed;   /* a hook may have changed a gradient, or a grad */
    tni_map newest;   /* sequence of a node -> its newest add + 1 */
    tni_map leaves;   /* tensor -> the step of backward that has its last share + 1 */
    tni_map sum_of;   /* tensor -> its number in sums + 1 */
    double *sums;     /* norms of leaves' totals, for leaves with several shares */
    tni_numbers way;  /* the gradient that is given to hooks, as it was before the next one */
    struct tni_record_add *adds;
    size_t n_adds, room, n_sums, sums_room;
} tni_record_pass;

struct tn_trace {
    tni_watcher watcher; /* first: a tni_watcher * is a tn_trace * */
    tni_log log;
    tni_log_step now; /* the open step */
    tn_module *model; /* one reference; NULL: none, or ended */
    tn_optim *opt;
    int64_t values;
    size_t line; /* of the ledger: where a search begins */
    bool running;
    bool late;        /* forward is over: where the registered tensors started is not known */
    bool over;        /* the parameters have moved: the next event begins a new step */
    bool optimizing;  /* an optimizer's step runs */
    bool lines;       /* the setting before */
    bool mode;        /* of the last outermost call: training */
    tn_status failed; /* why the account was cut short */
    tni_map known;    /* handle -> tensor + 1 */
    tni_map names;    /* of registered tensors: full name -> tensor + 1 */
    tni_map storages; /* of registered tensors -> tensor + 1 */
    tni_map offsets;  /* registered tensor -> where it begins in its storage */
    tni_map modules;  /* of the model -> module + 1 */
    /* of the open step */
    tni_map nodes;         /* sequence -> node + 1 */
    tni_map calls;         /* tni_call_site -> call + 1 */
    tni_map times;         /* module -> number of its calls */
    tni_map changed;       /* storage -> name of the function that changed it last */
    tni_call_site **sites; /* of the calls, one reference each */
    size_t n_sites, site_room;
    tni_record_pass *pass; /* the innermost that runs */
    int ended;             /* the number of the pass that ended last */
    /* NULL, or called when the gradient of a leaf is complete (tn_explain) */
    tn_status (*leaf)(tn_trace *tr, const tn_tensor *leaf, tn_tensor *grad);
    void *user;
};

/* Between begin and end nothing is watched or recorded. A failure ends the account; an error that
 * was pending before stays. */
typedef struct tni_note {
    tn_trace *trace;
    bool grad;
    tni_saved_error error;
} tni_note;
/* False: the account has ended. */
bool tni_note_begin(tni_note *note, tni_watcher *self);
void tni_note_end(tni_note *note, tn_status status);

/* record.c: forward. Each gives an index; -1: out of memory. */
int tni_record_tensor(tn_trace *tr, const tn_tensor *t);
/* of a recorded op; c: the call that made it, NULL: not known */
int tni_record_node(tn_trace *tr, const tni_node *node, const tni_call *c);
void tni_record_forward(tni_watcher *w);
/* Whether all texts were made; if not, frees those that were. */
bool tni_record_texts(int n, char *const *text);

/* pass.c: backward */
void tni_record_backward(tni_watcher *w);
void tni_record_pass_free(tni_record_pass *p);
/* The norm of a leaf's gradient from the pass that is ending; last: its last share. */
double tni_record_sum(const tn_trace *tr, int tensor, const tni_log_share *last);

/* hooks.c: what becomes of gradients on their way */
void tni_record_hooks(tni_watcher *w);

/* diagnose.c: findings. At the end of the innermost pass, what is wrong with its gradients */
tn_status tni_diagnose(tn_trace *tr, int pass);
/* Input i (-1: the result) of a node, which it kept, has been changed in place since. */
tn_status tni_diagnose_change(tn_trace *tr, int node, int i, const tn_tensor *kept);

/* step.c: what begins and ends a step */
void tni_record_steps(tni_watcher *w);
/* Makes the registered tensors known. */
tn_status tni_record_registered(tn_trace *tr);
/* Closes the open step if it is over; opens one. */
tn_status tni_record_open(tn_trace *tr);
tn_status tni_record_close(tn_trace *tr);
/* Notes the registered tensors as forward left them. */
tn_status tni_record_after_forward(tn_trace *tr);
/* Notes who (of tni_moved) writes a registered tensor. */
void tni_record_written(tn_trace *tr, int tensor, unsigned by);

/* trace.c. Whether this thread may be watched; function: for the message */
tn_status tni_trace_may_begin(const char *function, const tn_module *model);
tn_trace *tni_trace_start(tn_trace_options options, bool late);
/* Closes the last step and stops watching. The status says why the account was cut short; no
 * message. */
tn_status tni_trace_stop(tn_trace *tr);
/* All writers check the first at their start, the second at their end. */
tn_status tni_trace_writable(const char *function, const FILE *file, const tn_trace *tr);
tn_status tni_trace_written(const char *function, FILE *file);

/* Numbers in a map's values: 0 is "not there". */
static inline int tni_get(const tni_map *map, const void *key)
{
    return (int)(uintptr_t)tni_map_get(map, key) - 1;
}

static inline tn_status tni_put(tni_map *map, const void *key, int index)
{
    return tni_map_put(map, key, (void *)((uintptr_t)index + 1)) < 0 ? TN_E_NOMEM : TN_OK;
}

/* Numbers as keys. */
static inline const void *tni_sequence_key(uint64_t sequence)
{
    return (const void *)(uintptr_t)sequence;
}

static inline const void *tni_index_key(int index)
{
    return (const void *)((uintptr_t)index + 1);
}

/* Where t begins in its storage, as a map's value. */
static inline void *tni_offset_value(const tn_tensor *t)
{
    return (void *)((uintptr_t)t->offset + 1);
}

#endif
