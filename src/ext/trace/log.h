/*
 * log.h - the log of training steps: plain numbers and names, and what belongs to what.
 *
 * The recorder (record.h) fills it; json.c, text.c and diff.c read it. A node is an op as forward
 * applied it; once a step is closed, its nodes are in the order of forward.
 */
#pragma once

#include <tenon/graph.h>
#include <tenon/trace.h>

#include "base/map.h"
#include "ext/diagnose/arena.h"

/* A large tensor in at most 784 numbers: of its first matrices or images (its last two axes) one
 * element of every `down` rows and `across` columns. Of other shapes a histogram: slices is 0, and
 * value has the counts of `columns` equal parts from min to max. */
typedef struct tni_picture {
    int64_t slices, rows, columns, down, across;
    float value[]; /* slices * rows * columns */
} tni_picture;

/* The pictures of an account, by contents and shape, and how many more numbers they may hold. */
typedef struct tni_pictures {
    tni_map known;
    int64_t room;
    struct tni_arena *arena; /* what they lie in; NULL: there are none */
} tni_pictures;

/* What a tensor held at one moment. A copy shares its values. */
typedef struct tni_numbers {
    bool known;
    int64_t n;                   /* elements */
    double norm, min, max, mean; /* the 2-norm; min and max of what is no NaN */
    int64_t zeros, nan, inf;     /* how many */
    uint64_t hash;               /* of all: tells whether two moments differ */
    const double *value;         /* n of them, row-major; NULL: too many, then maybe: */
    const tni_picture *picture;
} tni_numbers;

/* Notes t as it is now, with up to `most` values, in a; of more a picture, unless p is NULL. */
tn_status tni_numbers_note(tni_numbers *v, const tn_tensor *t, int64_t most, tni_arena *a,
                           tni_pictures *p);
/* Whether both are known and differ. */
bool tni_numbers_differ(const tni_numbers *a, const tni_numbers *b);

/* What the optimizer says to a tensor. */
typedef enum tni_held { TNI_NO_OPTIMIZER, TNI_HELD, TNI_NOT_HELD, TNI_REFUSED } tni_held;

typedef struct tni_log_tensor {
    int id;
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
    int id, time; /* id first: json.c reads it there */
    const tni_log_module *module;
    struct tni_log_call *outer;
    const tni_log_tensor **writes; /* buffers that it changed */
    size_t n_writes;
    bool used;                  /* something in it is */
    struct tni_call_site *site; /* until the step is closed: one reference */
} tni_log_call;

typedef struct tni_log_in {
    const struct tni_log_node *node; /* it is an output of that op, known once a pass ended, */
    int output;
    const tni_log_tensor *tensor; /* or that tensor; both NULL: absent */
    uint64_t from;                /* until the step is closed: that op's sequence; 0: none */
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

/* Recomputed is an input of which nothing is kept: backward computes it again. */
typedef struct tni_log_saved {
    enum { TNI_SAVED_IN, TNI_SAVED_OUT, TNI_SAVED_EXTRA, TNI_SAVED_RECOMPUTED } what;
    int index;
    size_t bytes;
} tni_log_saved;

typedef struct tni_log_node {
    int id;                /* first, as in a call; once the step is closed */
    const char *constants; /* NULL, or as in tn_op: names of these */
    double constant[2];
    uint64_t sequence; /* the engine's */
    char *line;        /* "net.c:41"; NULL: not known */
    const tni_log_op *op;
    tni_log_call *call; /* NULL: outside of all */
    bool known;         /* a backward knows it */
    int n_in, n_out;
    size_t n_kept;
    tni_log_in *in;
    tni_log_out *out;
    tni_log_saved *kept;
} tni_log_node;

/* What a hook made of a gradient. */
typedef struct tni_log_hook {
    int number, of; /* which of the hooks, from 1 */
    tni_numbers before, after;
} tni_log_hook;

typedef struct tni_log_hooks {
    tni_log_hook *hook;
    size_t n_hook;
} tni_log_hooks;

/* The gradient of an output, as it has arrived. */
typedef struct tni_log_arrival {
    tni_numbers value;
    const struct tni_log_share **adds; /* what was added; NULL: the seed */
    size_t n_adds;
    tni_log_hooks hooks;
} tni_log_arrival;

/* The gradient that backward computed for an input. */
typedef struct tni_log_share {
    struct tni_log_back *back; /* the step of backward that gave it */
    int in;
    bool reduced; /* was summed over what forward had broadcast, from this shape */
    tn_shape from;
    tni_numbers value;
    const tni_log_tensor *leaf;  /* NULL: it goes to no leaf; else: */
    struct tni_log_share *older; /* the leaf's share before this one; NULL: it is the first */
    int part, of;                /* which of the leaf's shares in this pass, from 1 */
    tni_numbers before, after;   /* the leaf's gradient, as it grows */
    tni_log_hooks hooks;         /* of the last one: what was made of all of them together, */
    double sum;                  /* whose norm is this then */
    bool checked;                /* by a finite difference, in the gradient's direction: */
    double slope, difference;    /* its norm, and what the difference gave */
} tni_log_share;

/* One step of backward. */
typedef struct tni_log_back {
    const struct tni_log_pass *pass;
    const tni_log_node *node;
    tni_log_arrival *incoming; /* for each output */
    tni_log_share *shares;     /* room for one for each input */
    size_t n_shares;
    size_t freed, kept;
    const struct tni_log_finding *finding;
    bool blamed; /* for a leaf's gradient */
} tni_log_back;

/* A leaf's gradient, when the ranks of a run had averaged it at the end of a pass. */
typedef struct tni_log_average {
    const tni_log_tensor *tensor;
    int ranks;
    tni_numbers before, after; /* before: not known where the pass brought none */
} tni_log_average;

typedef struct tni_log_pass {
    int number; /* from 1 */
    const tni_log_node *root;
    bool accumulates; /* tn_backward, not tn_gradients */
    size_t n_nodes;   /* behind its outputs */
    char *error;      /* NULL: it succeeded */
    tni_log_average *averages;
    size_t n_averages;
} tni_log_pass;

/* What tn_clip_grad_norm did to the gradients of a step; zeroed: it did not run. */
typedef struct tni_log_clip {
    double norm, limit, factor; /* of all together; by which they were multiplied, at most 1 */
    bool known;
} tni_log_clip;

typedef struct tni_log_update {
    const tni_log_tensor *tensor;
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
    const tni_log_tensor *tensor;
    tni_numbers start, forward, step, grad;
    unsigned early, late; /* who wrote it before the last backward, and since: of tni_moved */
    unsigned moved;       /* who changed it by that */
} tni_log_entry;

typedef struct tni_log_finding {
    const char *kind;
    const tni_log_node *node; /* to blame */
    char *text;
} tni_log_finding;

typedef struct tni_log_step {
    bool open, training;
    bool stepped; /* an optimizer has */
    double loss;  /* of the last outermost pass whose root has one element */
    bool loss_known;
    const tni_log_node *root; /* made it; else what the last outermost pass began with */
    tni_log_clip clip;        /* the last */
    tni_log_call **calls;
    tni_log_node **nodes;
    tni_log_pass **passes;
    tni_log_back **backs;
    tni_log_finding **findings;
    tni_log_update **updates;
    tni_log_entry **ledger;
    size_t n_calls, n_nodes, n_passes, n_backs, n_findings, n_updates, n_ledger;
    tni_arena arena; /* of all of it */
} tni_log_step;

typedef struct tni_log {
    char *title;
    tni_log_module **modules;
    tni_log_tensor **tensors;
    tni_log_op **ops;
    tni_log_step *steps;
    size_t n_modules, n_tensors, n_ops, n_steps;
    tni_arena arena; /* of all of it but the steps' own */
} tni_log;

void tni_log_free(tni_log *t);
void tni_log_step_free(tni_log_step *s);
/* Whether a share is the last one of its leaf in its pass. */
static inline bool tni_log_is_last(const tni_log_share *s)
{
    return s->leaf && s->part == s->of;
}

/* What input i of an op is called in its formulas: "x", "w"; else "input 2". */
tni_phrase tni_log_name(const tni_log_node *n, int i);
/* What output i is called in them: "y" */
tni_phrase tni_log_result(const tni_log_op *op, int i);
/* How the gradient of input i follows: "dw = dy^T x"; "" */
tni_phrase tni_log_rule(const tni_log_op *op, int i);
/* What an op kept, by its name in the formulas: "x", "saved 1" */
tni_phrase tni_log_kept(const tni_log_node *n, const tni_log_saved *kept);
/* "relu (1: ReLU)": an op and the call that it stands in. In memory of a, NULL: out of memory */
const char *tni_log_place(const tni_log_node *n, tni_arena *a);
/* A tensor's line in the ledger; NULL: it has none. */
tni_log_entry *tni_log_line(const tni_log_step *s, const tni_log_tensor *tensor);
/* What an input held at forward; NULL: not known. */
const tni_numbers *tni_log_input(const tni_log_step *s, const tni_log_in *in);
