/*
 * record.h - the recorder: a watcher (tensor/watch.h) that fills an account (log.h).
 *
 * It notes numbers at the moment when things happen, and keeps no tensor. Tensors are known by the
 * addresses of their handles until another handle is made there, nodes by the engine's sequence
 * numbers. A failure in it never fails what it watches: the account just ends there.
 */
#pragma once

#include "autograd/pass.h"
#include "autograd/call_site.h"
#include "ext/diagnose/stream.h"
#include "io/file.h"
#include "nn/module.h"
#include "optim/optim.h"
#include "ext/trace/log.h"

/* A backward pass that is running. */
typedef struct tni_record_pass {
    struct tni_record_pass *outer;
    const tni_pass *pass;
    tni_log_pass *noted;
    tni_log_back *back; /* the running step of backward */
    size_t kept;        /* bytes that its nodes still keep */
    bool disturbed;     /* a hook may have changed a gradient, or a grad */
    tni_map incoming;   /* sequence of a node -> what arrives there */
    tni_map leaves;     /* tensor -> its last share */
    tni_numbers way;    /* the gradient that is given to hooks, as it was before the next one */
} tni_record_pass;

struct tn_trace {
    tni_watcher watcher; /* first: a tni_watcher * is a tn_trace * */
    tni_log log;
    tni_log_step now; /* the open step */
    tn_module *model; /* one reference; NULL: none, or ended */
    tn_optim *opt;
    int64_t values;
    tni_pictures pictures; /* arena NULL: it makes none */
    bool running;
    bool late;        /* forward is over: where the registered tensors started is not known */
    bool over;        /* the parameters have moved: the next event begins a new step */
    bool optimizing;  /* an optimizer's step runs */
    bool lines;       /* the setting before */
    bool mode;        /* of the last outermost call: training */
    tn_status failed; /* why the account was cut short */
    tni_map known;    /* handle -> tensor */
    tni_map names;    /* of registered tensors: full name -> tensor */
    tni_map storages; /* of registered tensors -> tensor */
    tni_map modules;  /* of the model -> module */
    /* of the open step */
    tni_map nodes;         /* sequence -> node */
    tni_map calls;         /* tni_call_site -> call */
    tni_map newest;        /* module -> its last call */
    tni_map changed;       /* storage -> name of the function that changed it last */
    tni_record_pass *pass; /* the innermost that runs */
    tni_log_pass *ended;   /* the pass that ended last, */
    tni_map brought;       /* and its leaves */
    bool grad;             /* while something is recorded: the setting, */
    tni_saved_error error; /* and the error before */
    /* NULL, or called when the gradient of a leaf is complete (tn_explain) */
    void (*leaf)(tn_trace *tr, const tn_tensor *leaf, tn_tensor *grad);
    void *user;
};

/* tr: the recorder that the watcher `self` is; NULL: the account has ended. Until the block is left
 * nothing is watched or recorded. An error that was pending before stays. */
#define TNI_RECORDER(tr, self)                                                                     \
    __attribute__((cleanup(tni_record_end), unused)) tn_trace *const tr = tni_record_begin(self)
tn_trace *tni_record_begin(tni_watcher *self);
void tni_record_end(tn_trace *const *recorder);

/* A failure ends the account, and says nothing else: what goes on recording until the end of the
 * event does no harm. Whether there was none. */
static inline bool tni_record_ok(tn_trace *tr, tn_status status)
{
    if (tr->failed == TN_OK) tr->failed = status;
    return status == TN_OK;
}
static inline void tni_record_put(tn_trace *tr, tni_map *map, const void *key, const void *value)
{
    int put = tni_map_put(map, key, (void *)(uintptr_t)value);
    tni_record_ok(tr, put < 0 ? TN_E_NOMEM : TN_OK);
}
/* Notes t as it is now, with its values if they are few. */
void tni_record_numbers(tn_trace *tr, tni_numbers *v, const tn_tensor *t);
/* The next item, zeroed, of arrays of the open step or the log, TNI_NEW(&tr->now, nodes), and of
 * those of what the step holds, TNI_MORE(tr, call, writes). NULL: the account ends. */
#define TNI_NEW(owner, name)                                                                       \
    tni_arena_new(&(owner)->arena, &(owner)->name, &(owner)->n_##name, sizeof **(owner)->name)
#define TNI_MORE(tr, owner, name)                                                                  \
    tni_arena_more(&(tr)->now.arena, &(owner)->name, &(owner)->n_##name, sizeof *(owner)->name)

/* record.c: forward. NULL: the account ends. */
tni_log_tensor *tni_record_tensor(tn_trace *tr, const tn_tensor *t);
/* A tensor or module that is not there yet. */
tni_log_tensor *tni_record_new_tensor(tn_trace *tr, const char *name, const char *module);
tni_log_module *tni_record_new_module(tn_trace *tr, const char *path, const char *type);
/* of a recorded op; c: the call that made it, NULL: not known */
tni_log_node *tni_record_node(tn_trace *tr, const tni_node *node, const tni_call *c);
void tni_record_forward(tni_watcher *w);

/* pass.c: backward, and what becomes of gradients on their way */
void tni_record_backward(tni_watcher *w);
/* The last share so far that the innermost pass has brought to a leaf; NULL: none. */
tni_log_share *tni_record_last_share(tn_trace *tr, const tn_tensor *leaf);
/* Ends it. */
void tni_record_pass_end(tn_trace *tr);

/* diagnose.c: findings. At the end of the innermost pass, what is wrong with its gradients */
void tni_diagnose(tn_trace *tr, const tni_log_pass *pass);
/* Input i (-1: the result) of a node, which it kept, has been changed in place since. */
void tni_diagnose_change(tn_trace *tr, const tni_log_node *n, int i, const tn_tensor *kept);

/* step.c: what begins and ends a step */
void tni_record_steps(tni_watcher *w);
typedef enum tni_moment { TNI_NEVER, TNI_START, TNI_FORWARD, TNI_STEP } tni_moment;
/* Makes the model's parameters and buffers known; notes what they hold, but for TNI_NEVER. */
void tni_record_registered(tn_trace *tr, tni_moment now);
/* Closes the open step if it is over; opens one. */
void tni_record_open(tn_trace *tr);
void tni_record_close(tn_trace *tr);
/* Drops the open step. */
void tni_record_drop(tn_trace *tr);
/* Notes who (of tni_moved) writes a registered tensor. */
void tni_record_written(tn_trace *tr, const tni_log_tensor *tensor, unsigned by);

/* trace.c. Whether this thread may be watched; function: for the message */
tn_status tni_trace_may_begin(const char *function, const tn_module *model);
tn_trace *tni_trace_start(tn_trace_options options, bool late);
/* Closes the last step and stops watching; says why the account was cut short, no message. */
tn_status tni_trace_stop(tn_trace *tr);
/* All writers check it at their start, and tni_stream_written at their end. */
tn_status tni_trace_writable(const char *function, const FILE *file, const tn_trace *tr);

/* A number as a key. */
static inline const void *tni_sequence_key(uint64_t sequence)
{
    return (const void *)(uintptr_t)sequence;
}
