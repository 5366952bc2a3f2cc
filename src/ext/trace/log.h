/*
 * log.h - the log of training steps: plain numbers, names and indices.
 *
 * The recorder (record.h) fills it; json.c, text.c and diff.c read it. A node is an op as forward
 * applied it. Indices are -1 for "none"; those of nodes count in the order of forward once a step
 * is closed.
 */
#ifndef TNI_LOG_H
#define TNI_LOG_H

#include <tenon/graph.h>
#include <tenon/trace.h>

#include "base/base.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* A part of a log, freed as a whole; empty when zeroed. What lies in it is never freed alone. */
typedef struct tni_arena {
    struct tni_chunk *newest;
} tni_arena;

/* Zeroed. NULL: out of memory, for the two below as well. */
void *tni_arena_alloc(tni_arena *a, size_t size);
/* A copy; of NULL: "" */
char *tni_arena_text(tni_arena *a, const char *text);
/* The next item, zeroed, of an array that only grows; items is the address of its pointer. */
void *tni_arena_more(tni_arena *a, void *items, size_t *n, size_t size);
void tni_arena_free(tni_arena *a);

/* ---- what is logged -------------------------------------------------------------------------- */

/* What a tensor held at one moment. A copy shares its values. */
typedef struct tni_numbers {
    bool known;
    int64_t n;                   /* elements */
    double norm, min, max, mean; /* the 2-norm; min and max of what is no NaN */
    int64_t zeros, nan, inf;     /* how many */
    uint64_t hash;               /* of all: tells whether two moments differ */
    const double *value;         /* n of them, row-major; NULL: too many */
} tni_numbers;

/* Notes t as it is now, with its values if there are at most `most`; they lie in a. */
tn_status tni_numbers_note(tni_numbers *v, const tn_tensor *t, int64_t most, tni_arena *a);
/* Whether both are known and differ. */
bool tni_numbers_differ(const tni_numbers *a, const tni_numbers *b);

/* What the optimizer says to a tensor. */
typedef enum tni_held { TNI_NO_OPTIMIZER, TNI_HELD, TNI_NOT_HELD, TNI_REFUSED } tni_held;

typedef struct tni_log_tensor {
    char *name, *module; /* "0.weight" of "0"; "" */
    tn_graph_kind kind;  /* never TN_GRAPH_OP */
    tn_dtype dtype;
    tn_shape shape;
    int64_t offset; /* of a registered one: where it begins in its storage */
    bool registered, persistent, requires_grad;
    unsigned role; /* of a buffer */
    tni_held held;
} tni_log_tensor;

typedef struct tni_log_module {
    char *path, *type;
} tni_log_module;

typedef struct tni_log_op {
    char *name, *formula, *gradient;
} tni_log_op;

typedef struct tni_log_call {
    int module, time, outer;
    int *writes; /* tensors: buffers that it changed */
    size_t n_writes;
    bool used;                  /* something in it is */
    struct tni_call_site *site; /* until the step is closed: one reference */
} tni_log_call;

typedef struct tni_log_in {
    int node, output; /* it came from that output of an op, */
    int tensor;       /* or is that tensor; both -1: absent */
    uint64_t from;    /* until the step is closed: that op's sequence; 0: none */
    bool gradient;
    tn_dtype dtype;
    tn_shape shape;
    tni_numbers value; /* at forward, of a tensor that the ledger does not have */
} tni_log_in;

typedef struct tni_log_out {
    tn_dtype dtype;
    tn_shape shape;
    bool gradient;
    tni_numbers value;
} tni_log_out;

typedef struct tni_log_saved {
    enum {
        TNI_SAVED_IN,
        TNI_SAVED_OUT,
        TNI_SAVED_EXTRA,
        TNI_SAVED_RECOMPUTED /* an input: nothing is kept, backward computes it again */
    } what;
    int index;
    size_t bytes;
} tni_log_saved;

typedef struct tni_log_node {
    uint64_t sequence; /* the engine's */
    char *line;        /* "net.c:41"; NULL: not known */
    int op, call;
    bool known; /* a backward knows it */
    int n_in, n_out;
    size_t n_kept;
    tni_log_in *in;
    tni_log_out *out;
    tni_log_saved *kept;
} tni_log_node;

/* One of the gradients that were added to the gradient of an output. */
typedef struct tni_log_add {
    int output;
    int back;     /* the step of backward that gave it; -1: it is the seed */
    size_t share; /* which of its shares it is */
} tni_log_add;

/* The gradient that backward computed for an input. */
typedef struct tni_log_share {
    int in;
    bool reduced; /* was summed over what forward had broadcast, from this shape */
    tn_shape from;
    tni_numbers value;
    tni_numbers before, after; /* of a leaf: its gradient, as it grows in this pass */
    int leaf;                  /* the tensor; -1: it goes to no leaf */
    int part, of;              /* of a leaf: which of its shares, from 1; else 0 */
    bool checked;              /* by a finite difference, in the gradient's direction: */
    double slope, difference;  /* its norm, and what the difference gave */
} tni_log_share;

/* One step of backward. */
typedef struct tni_log_back {
    int pass, node;
    int n_out;
    tni_numbers *incoming; /* n_out */
    tni_log_add *adds;
    tni_log_share *shares;
    size_t n_adds, n_shares;
    size_t freed, kept;
    int finding;
} tni_log_back;

/* What a leaf gets from a pass. */
typedef struct tni_log_leaf {
    int pass, tensor;
    tni_log_add last, most; /* of its shares: the last one, and the largest */
    double norm;            /* of all of them together, after the hooks */
} tni_log_leaf;

/* What a hook made of a gradient. */
typedef struct tni_log_hook {
    int pass;
    int node, output; /* of what arrives there; */
    int tensor;       /* or, and node is -1, of what the pass brings to this leaf */
    int number, of;   /* which of the hooks, from 1 */
    tni_numbers before, after;
} tni_log_hook;

/* A leaf's gradient, when the ranks of a run had averaged it at the end of a pass. */
typedef struct tni_log_average {
    int pass, tensor, ranks;
    tni_numbers before, after; /* before: not known where the pass brought none */
} tni_log_average;

typedef struct tni_log_pass {
    int root;
    bool accumulates; /* tn_backward, not tn_gradients */
    size_t n_nodes;   /* behind its outputs */
    char *error;      /* NULL: it succeeded */
} tni_log_pass;

typedef struct tni_log_update {
    int tensor;
    tni_numbers before, after, gradient;
} tni_log_update;

/* Who moved a tensor: these, together. */
enum tni_moved {
    TNI_MOVED_NOT = 0,
    TNI_MOVED_HAND = 1,    /* outside of any module's call */
    TNI_MOVED_FORWARD = 2, /* a module's call */
    TNI_MOVED_BACKWARD = 4,
    TNI_MOVED_OPTIMIZER = 8,
    TNI_MOVED_UNKNOWN = 16 /* nobody saw it, or forward was not watched */
};

typedef struct tni_log_entry { /* of the ledger */
    int tensor;
    tni_numbers start, forward, step, grad;
    unsigned early, late; /* who wrote it before the last backward, and since: of tni_moved */
    unsigned moved;       /* who changed it by that */
} tni_log_entry;

typedef struct tni_log_finding {
    const char *kind;
    int node; /* -1: none to blame */
    char *text;
} tni_log_finding;

typedef struct tni_log_step {
    bool open, training;
    bool stepped; /* an optimizer has */
    double loss;  /* of the last outermost pass whose root has one element */
    bool loss_known;
    int root; /* the op that made it; else what the last outermost pass began with */
    tni_log_call *calls;
    tni_log_node *nodes;
    tni_log_pass *passes;
    tni_log_back *backs;
    tni_log_leaf *leaves;
    tni_log_hook *hooks;
    tni_log_average *averages;
    tni_log_update *updates;
    tni_log_entry *ledger;
    tni_log_finding *findings;
    size_t n_calls, n_nodes, n_passes, n_backs, n_leaves, n_hooks, n_averages, n_updates;
    size_t n_ledger, n_findings;
    tni_arena arena; /* of all of it */
} tni_log_step;

typedef struct tni_log {
    char *title;
    bool optimizer; /* the ledger knows one */
    tni_log_module *modules;
    tni_log_tensor *tensors;
    tni_log_op *ops;
    tni_log_step *steps;
    size_t n_modules, n_tensors, n_ops, n_steps;
    tni_arena arena; /* of all of it but the steps' own */
} tni_log;

void tni_log_free(tni_log *t);
void tni_log_step_free(tni_log_step *s);
/* NULL: the seed. */
static inline const tni_log_share *tni_log_added(const tni_log_step *s, const tni_log_add *a)
{
    return a->back < 0 ? NULL : &s->backs[a->back].shares[a->share];
}
/* The last share of a leaf in a pass. */
static inline tni_log_share *tni_log_last(const tni_log_step *s, const tni_log_leaf *leaf)
{
    return &s->backs[leaf->last.back].shares[leaf->last.share];
}

/* A few words, by value: fprintf(file, "%s", tni_log_result(op, 0).s). */
typedef struct tni_phrase {
    char s[512];
} tni_phrase;

tni_phrase tni_phrase_of(const char *format, ...) TN_PRINTF(1, 2);

/* What input i of an op is called in its formulas: "x", "w"; else "input 2". */
tni_phrase tni_log_name(const tni_log_op *op, int i, int n_in);
/* What output i is called in them: "y" */
tni_phrase tni_log_result(const tni_log_op *op, int i);
/* How the gradient of input i follows: "dw = dy^T x"; "" */
tni_phrase tni_log_rule(const tni_log_op *op, int i);
/* What short names in the rules mean: "where s = sigmoid(x)"; "" */
const char *tni_log_where(const tni_log_op *op);
/* What an op kept, by its name in the formulas: "x", "saved 1" */
tni_phrase tni_log_kept(const tni_log_op *op, const tni_log_node *n, const tni_log_saved *kept);
/* "relu (1: ReLU)": an op and the call that it stands in */
tni_phrase tni_log_place(const tni_log *t, const tni_log_step *s, int node);
/* A tensor's line in the ledger; NULL: it has none. */
tni_log_entry *tni_log_line(const tni_log_step *s, int tensor);
/* What an input held at forward; NULL: not known. */
const tni_numbers *tni_log_input(const tni_log_step *s, const tni_log_in *in);

#endif
