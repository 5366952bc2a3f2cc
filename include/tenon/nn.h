/**
 * tenon/nn.h - modules: a tree of named parameters and buffers, with a forward.
 *
 * A parameter is trained: optimizers see it. A buffer is saved, loaded, moved and updated in
 * forward, but no optimizer ever touches it. Saving, loading, moving, counting and freeing are
 * walks over the names that a module registered; no layer implements them itself.
 *
 * A module of your own embeds tn_module first and is made with the same calls as ours:
 *
 *     typedef struct { tn_module base; tn_module *fc; tn_tensor *mean; } net;
 *     static tn_tensor *net_forward(tn_module *self, tn_tensor *x)
 *     {
 *         net *m = (net *)self;
 *         return tn_forward(m->fc, tn_sub(x, m->mean));
 *     }
 *     static const tn_module_type net_type = { .name = "Net",
 *                                              .size = sizeof(net),
 *                                              .forward = net_forward };
 *     tn_module *net_new(tn_tensor *mean)
 *     {
 *         net *m = tn_module_new(&net_type);
 *         if (!m) return NULL;
 *         tn_register_module(&m->base, "fc", &m->fc,
 *                            tn_linear_new(784, 10, (tn_linear_options){ 0 }));
 *         tn_register_buffer(&m->base, "mean", &m->mean, mean, TN_PERSISTENT);
 *         return tn_module_done(&m->base);
 *     }
 *
 * What holds for every function here, so that each comment can be short:
 *   Owner    a module belongs to its maker (tn_module_drop) until it is registered as a child;
 *            tensors it returns from look-ups are borrowed, results of calls and lists belong to
 *            the current scope
 *   Errors   NULL or a status, and a message naming the module; in a forward it ends with the place
 *            in the model: " (in encoder.layers.0.linear1: Linear)"
 *   Names    parameters, buffers and children of a module share one name space; a full name joins
 *            them with dots. "forward" and "training" are taken.
 */
#ifndef TENON_NN_H
#define TENON_NN_H

#include <tenon/autograd.h>
#include <tenon/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A layer, or a model of layers: see struct tn_module below. */
typedef struct tn_module tn_module;
typedef struct tn_module_type tn_module_type;
typedef struct tn_module_state tn_module_state; /* private */
typedef struct tn_list tn_list;                 /* of named tensors: see "walking" */

/** What every module begins with. */
struct tn_module {
    const tn_module_type *type; /* what kind of module it is */
    tn_module_state *state;     /* private: its slots, hooks and mode */
};

/** A kind of module: a name for messages, the size of its struct, its forward. The rest may be
 *  NULL. */
struct tn_module_type {
    const char *name;                                     /* "Linear" */
    size_t size;                                          /* of the struct that embeds tn_module */
    tn_tensor *(*forward)(tn_module *self, tn_tensor *x); /* one tensor in, one out */
    /** for modules of several inputs or outputs: fills out[0..n_out), called through tn_call */
    tn_status (*forward_n)(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                           tn_tensor **out);
    void (*describe)(const tn_module *self, char *text, size_t size); /* "784, 128, no bias" */
    tn_status (*reset)(tn_module *self);                              /* initial values again */
    /* frees what is not a slot (also after a failed construction); slots and children are freed
     * for you. A type with free can be cloned if it has clone, too. */
    void (*free)(tn_module *self);
    int state_version; /* written to files; 0 means 1 */
    /** State that is not in slots (counters, settings), as one tensor: saved under
     *  PATH._extra_state. Define both or none; set gets what extra_state gave, and validates it. */
    tn_tensor *(*extra_state)(tn_module *self);
    tn_status (*set_extra_state)(tn_module *self, tn_tensor *state);
    bool no_decay; /* a norm: tn_no_decay is true for all its parameters, whatever their shape */
    /** Completes copy, a clone of self: gives it memory of its own in place of what free frees (an
     *  array of layers), and sets fields that tn_module_clone cannot. Its slots are there, and
     *  those of the modules below; its fields are as tn_module_clone says. If it fails, free does
     *  not run for copy, so it must leave nothing behind. */
    tn_status (*clone)(tn_module *self, tn_module *copy);
};

/** An absent child, as TN_NONE is an absent tensor. */
TN_API extern tn_module tn_no_module_object;
#define TN_NO_MODULE (&tn_no_module_object)

/* ---- making one ------------------------------------------------------------------------------ */

/**
 * Allocates a zeroed struct of type->size and opens a scope for what the constructor makes.
 * Returns it as void * so that it assigns to your struct's pointer; NULL on failure.
 */
TN_API void *tn_module_new(const tn_module_type *type);
/**
 * Ends the constructor: closes the scope; if anything failed since tn_module_new, frees the module
 * and returns NULL with the first message kept. Every constructor ends with `return
 * tn_module_done(&m->base);`.
 */
TN_API tn_module *tn_module_done(tn_module *m);
/** Adds an owner (for a child shared by two parents, for example). Returns m. */
TN_API tn_module *tn_module_keep(tn_module *m);
/** Ends one ownership; the last one frees the module, its tensors and children. NULL is ignored. */
TN_API void tn_module_drop(tn_module *m);

/* ---- registering ----------------------------------------------------------------------------- */

/** Whether a buffer is saved to files. */
typedef enum tn_persistence { TN_PERSISTENT = 0, TN_NON_PERSISTENT = 1 } tn_persistence;

/**
 * Registers a parameter: t becomes trainable (requires_grad on), and from then on *field is the
 * slot's tensor.
 *
 * field    NULL, or the address of a tn_tensor * inside the module's struct that no other slot has
 * t        a leaf, or TN_NONE for an empty slot; the module takes a reference
 * Errors   in this order, first one wins: module not made by tn_module_new; name NULL; contains a
 *          dot; empty; taken by a buffer, child, "forward" or "training"; field not in the struct;
 *          t NULL, not a leaf, not floating. Re-registering a parameter replaces it in place; field
 *          NULL then keeps the field it has. Inside a constructor nothing more is registered after
 *          the first failure.
 */
TN_API tn_status tn_register_parameter(tn_module *m, const char *name, tn_tensor **field,
                                       tn_tensor *t);
/** The same for a parameter that starts frozen (requires_grad off): any dtype. */
TN_API tn_status tn_register_frozen(tn_module *m, const char *name, tn_tensor **field,
                                    tn_tensor *t);
/**
 * Registers a buffer. Stored by reference, any dtype, leaf or not, requires_grad untouched.
 * Non-persistent: moved and listed, but not in state_dict. Errors as for parameters, but any tensor
 * is taken. Re-registering replaces, keeping its place; the persistence is the new one.
 */
TN_API tn_status tn_register_buffer(tn_module *m, const char *name, tn_tensor **field, tn_tensor *t,
                                    tn_persistence persistence);
/**
 * Registers a child; consumes the caller's reference, on failure too. child may be TN_NO_MODULE.
 * Errors   in this order: m not made by tn_module_new; child NULL (its message stays); name NULL;
 *          taken by a tensor; dotted; empty; field not in the struct; child is m or an ancestor of
 *          m. Checked before these: modules hold all references to child, so the caller has none to
 *          consume (want tn_module_keep first); child is then left as it is
 */
TN_API tn_status tn_register_module(tn_module *m, const char *name, tn_module **field,
                                    tn_module *child);

/**
 * Puts another tensor (or TN_NONE) into the registered slot with this field: `tn_assign(&m->h, h)`.
 * Use it for buffers computed in forward: a plain `m->h = h` would not keep h, and makes the call
 * fail when forward returns.
 *
 * t        a buffer takes any tensor, with its history; a parameter takes a leaf and stays
 *          trainable or frozen as it was
 * Owner    the module keeps t. The tensor that it replaces is dropped: at once, or, inside a
 *          forward, when the call of that forward ends; other fields that point to it are not set
 */
TN_API TN_MUST_USE tn_status tn_assign(tn_tensor **field, tn_tensor *t);
/** The same by dotted path from m: "bn1.running_mean". */
TN_API tn_status tn_module_set(tn_module *m, const char *path, tn_tensor *t);
/** Removes a parameter, buffer or child by its name in m. */
TN_API TN_MUST_USE tn_status tn_module_delete(tn_module *m, const char *name);

/** The parameter at a dotted path; TN_NONE for an empty slot. Borrowed: keep what must outlive the
 *  module or the slot. Errors distinguish "no such name" from "is a buffer, not a parameter". */
TN_API tn_tensor *tn_get_parameter(tn_module *m, const char *path);
/** The same for buffers. */
TN_API tn_tensor *tn_get_buffer(tn_module *m, const char *path);
TN_API tn_module *tn_get_submodule(tn_module *m, const char *path); /* the child; "" is m */

/* ---- calling --------------------------------------------------------------------------------- */

/**
 * y = m(x). The call runs in a scope of its own: only y comes back to the current one. y may be x
 * itself, a parameter or a view.
 *
 * Errors   x does not fit; m has no forward (ModuleList); forward changed a slot's field without
 *          tn_assign; no scope is open; calls nested more than 1,000 deep
 * Fields   of the struct without a slot: it is an error when forward leaves a tensor or list there
 *          that only scopes hold, or an input that nobody kept; the field is restored. Only the
 *          struct itself is checked, not what it points to, and not the structs of other modules.
 *          tn_module_done refuses likewise what ends with the constructor's scope
 */
TN_API tn_tensor *tn_forward(tn_module *m, tn_tensor *x);
/** tn_forward for any number of inputs and outputs (optional inputs: TN_NONE); every call goes this
 *  way. out is filled, or all NULL on failure; with several outputs it must not overlap in. */
TN_API TN_MUST_USE tn_status tn_call(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                                     tn_tensor **out);

/* ---- hooks: your functions around calls, saving and loading ---------------------------------- */

/*
 * Hooks of one kind run in the order they were registered. A hook that returns a status other than
 * TN_OK fails the call that it is part of (tn_fail sets a message; it may do without). Each
 * registration returns an id for tn_remove_module_hook, -1 on failure. user must outlive the hook,
 * and for backward hooks also the graphs recorded with it. Clones start without hooks.
 */

/** Before forward: may replace in[i]. */
typedef tn_status (*tn_forward_pre_hook)(tn_module *m, int n_in, tn_tensor **in, void *user);
/** Registers one on m; id for tn_remove_module_hook, -1: m or hook is NULL, or out of memory. */
TN_API int64_t tn_register_forward_pre_hook(tn_module *m, tn_forward_pre_hook hook, void *user);
/** After forward, with the inputs that forward saw: may replace out[i]. */
typedef tn_status (*tn_forward_hook)(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                                     tn_tensor **out, void *user);
/** Registers one on m, as tn_register_forward_pre_hook does. */
TN_API int64_t tn_register_forward_hook(tn_module *m, tn_forward_hook hook, void *user);
/**
 * When backward has reached the inputs: may replace grad_in[i] (same shape, dtype, device), which
 * flows on. Gradients of parameters are not affected. TN_NONE stands for an input that needs no
 * gradient, and for an output that got none. Runs once per recorded call; if no input needs a
 * gradient, it runs once the gradients of the outputs are known.
 */
typedef tn_status (*tn_backward_hook)(tn_module *m, int n_in, tn_tensor **grad_in, int n_out,
                                      tn_tensor *const *grad_out, void *user);
/** Registers one on m, as tn_register_forward_pre_hook does; for calls from then on. */
TN_API int64_t tn_register_full_backward_hook(tn_module *m, tn_backward_hook hook, void *user);
/** After m's own entries are in state (names begin with prefix): may add, replace or remove
 *  entries. */
typedef tn_status (*tn_state_dict_hook)(tn_module *m, tn_list *state, const char *prefix,
                                        void *user);
/** Registers one on m, as tn_register_forward_pre_hook does. */
TN_API int64_t tn_register_state_dict_hook(tn_module *m, tn_state_dict_hook hook, void *user);
/** Before m's entries are compared: may edit state, a copy of the caller's list. Parents come
 *  first. */
TN_API int64_t tn_register_load_pre_hook(tn_module *m, tn_state_dict_hook hook, void *user);
/** After the values of m and all below it are in place: may remove names from missing and
 *  unexpected, which then do not count, or add some. Children come first. If loading still fails,
 *  everything is restored. The lists hold TN_NONE under each name. */
typedef tn_status (*tn_load_post_hook)(tn_module *m, tn_list *missing, tn_list *unexpected,
                                       void *user);
/** Registers one on m, as tn_register_forward_pre_hook does. */
TN_API int64_t tn_register_load_post_hook(tn_module *m, tn_load_post_hook hook, void *user);
/** Removes the hook with this id, of any kind. Removing twice is harmless. */
TN_API void tn_remove_module_hook(tn_module *m, int64_t id);

/* ---- train, eval, frozen --------------------------------------------------------------------- */

/** Train or eval for m and everything below. */
TN_API tn_status tn_train(tn_module *m, bool training);
TN_API tn_status tn_eval(tn_module *m); /* tn_train(m, false) */
/** Whether m runs in train mode: false while it is frozen. */
TN_API bool tn_training(const tn_module *m);
/** Sets requires_grad of all parameters below, frozen modules excepted; buffers unchanged. */
TN_API tn_status tn_module_set_requires_grad(tn_module *m, bool on);
/**
 * Freezes m and everything below: no gradients (present ones are dropped), so no update and no
 * decay; tn_training is false, so no dropout and no change of running statistics. Calls of tn_train
 * or tn_module_set_requires_grad on a parent don't change that. Thawing restores requires_grad of
 * every parameter.
 */
TN_API tn_status tn_module_freeze(tn_module *m);
/** Undoes the freezing of m and everything below. */
TN_API tn_status tn_module_thaw(tn_module *m);
TN_API bool tn_module_frozen(const tn_module *m); /* frozen itself or from above */
/** Drops the gradients of all parameters below (to TN_NONE). */
TN_API TN_MUST_USE tn_status tn_module_zero_grad(tn_module *m);

/* ---- walking over tensors -------------------------------------------------------------------- */

/** What a registered tensor is. */
typedef enum tn_kind { TN_PARAMETER, TN_BUFFER } tn_kind;

/** A tensor of a list. */
typedef struct tn_entry {
    const char *name;  /* full dotted name; valid as long as the list */
    tn_tensor *tensor; /* the model's own */
    tn_kind kind;      /* raw leaves count as parameters */
    bool persistent;   /* false only for non-persistent buffers */
    tn_module *owner;  /* NULL for raw leaves added by tn_list_add */
} tn_entry;

/** A list of named tensors, made by the functions below only. Belongs to the current scope, as
 *  tensors do; it keeps its tensors and names, and borrows the owners. */
struct tn_list {
    int n;           /* how many */
    tn_entry *entry; /* n of them, in order */
};

/** All parameters: depth first, own members in registration order, then children; repeated tensors
 *  once. */
TN_API tn_list *tn_parameters(tn_module *m);
/* names begin with prefix: "gen." */
TN_API tn_list *tn_named_parameters(tn_module *m, const char *prefix);
TN_API tn_list *tn_buffers(tn_module *m); /* all buffers, in the same order */
/** zero fields: as tn_parameters and tn_buffers */
typedef struct tn_walk_options {
    const char *prefix;   /* prepended verbatim; NULL: "" */
    bool no_recurse;      /* own members only */
    bool keep_duplicates; /* every alias */
    bool persistent_only; /* buffers */
} tn_walk_options;
/** tn_parameters with options. */
TN_API tn_list *tn_parameters_with(tn_module *m, tn_walk_options o);
/** tn_buffers with options. */
TN_API tn_list *tn_buffers_with(tn_module *m, tn_walk_options o);
/* ---- lists of tensors ------------------------------------------------------------------------ */

/** Everything that is saved to files: per module its parameters, its persistent buffers, then its
 *  children; shared tensors under every name. The tensors are the model's own (live). */
TN_API tn_list *tn_state_dict(tn_module *m, const char *prefix);
/** An empty list. */
TN_API tn_list *tn_list_new(void);
/** Adds t, which it keeps, under a name. Errors: the name is empty or taken; t NULL. */
TN_API TN_MUST_USE tn_status tn_list_add(tn_list *list, const char *name, tn_tensor *t);
/** A list of both. A state version that both record is b's. Errors: a name that both have. */
TN_API tn_list *tn_list_concat(tn_list *a, tn_list *b);
/* the tensor under a name; NULL and a message when there is none */
TN_API tn_tensor *tn_list_get(const tn_list *list, const char *name);
/** Whether there is such a name. */
TN_API bool tn_list_has(const tn_list *list, const char *name);
/** Replaces the tensor under a name, or adds it under a new name. TN_NONE is allowed. */
TN_API TN_MUST_USE tn_status tn_list_set(tn_list *list, const char *name, tn_tensor *t);
/** Removes an entry. Errors: no such name. */
TN_API TN_MUST_USE tn_status tn_list_remove(tn_list *list, const char *name);
/** Renames an entry, which keeps its place. Errors: no such name; the new one is empty or taken. */
TN_API TN_MUST_USE tn_status tn_list_rename(tn_list *list, const char *from, const char *to);
/** The state version of the module at a path, as tn_state_dict and files recorded it; 0: not
 *  recorded. */
TN_API int tn_list_version(const tn_list *list, const char *path);
/** Records a version (for load hooks that convert old files). */
TN_API tn_status tn_list_set_version(tn_list *list, const char *path, int version);

/* ---- walking over modules -------------------------------------------------------------------- */

/** Calls visit for every module below, parents first ("" is m itself); each module once. Stops at
 *  the first status that is not TN_OK and returns it. */
TN_API TN_MUST_USE tn_status tn_named_modules(
    tn_module *m, tn_status (*visit)(const char *path, tn_module *m, void *user), void *user);
/** Calls f for every module below, children first, m last, as PyTorch's apply: for initialisers.
 *  Stops at the first status that is not TN_OK and returns it. */
TN_API TN_MUST_USE tn_status tn_module_apply(tn_module *m, tn_status (*f)(tn_module *m, void *user),
                                             void *user);
/** The number of direct children, empty slots included; -1 for NULL. */
TN_API int tn_module_children(const tn_module *m);
TN_API tn_module *tn_module_child(const tn_module *m, int i); /* TN_NO_MODULE: an empty slot */
/** The i-th child's name in m; NULL and a message out of range. */
TN_API const char *tn_module_child_name(const tn_module *m, int i);
TN_API int64_t tn_count_parameters(tn_module *m, bool trainable_only); /* elements; ties once */

/* ---- moving, casting, loading ---------------------------------------------------------------- */

/**
 * Moves parameters, their gradients and all buffers. The tensors stay the same objects with new
 * storage, ties survive (shared tensors, and views of one storage), optimizers stay valid. All or
 * nothing.
 *
 * Errors   a device that does not exist; a buffer with history (detach it first)
 */
TN_API TN_MUST_USE tn_status tn_module_to(tn_module *m, tn_device device);
/** Casts floating members, as tn_module_to moves them; integer buffers keep their dtype. dtype must
 *  be floating. */
TN_API TN_MUST_USE tn_status tn_module_to_dtype(tn_module *m, tn_dtype dtype);

/** zero fields: strict, every name and dtype as in the model */
typedef struct tn_load_options {
    bool non_strict;      /* missing and unexpected names are reported, not refused */
    bool cast;            /* float dtypes are converted; never float to integer */
    bool skip_mismatched; /* entries of another shape are skipped and reported */
    /* the model takes over the list's memory: nothing is copied, dtype and device are the list's.
     * Make optimizers afterwards: older ones refuse to step */
    bool assign;
    /** NULL, or called with every name of the list: writes the model's name for it (at most size
     *  bytes) and returns true, or returns false to leave the entry out. */
    bool (*rename)(const char *name, char *to, size_t size, void *user);
    void *user; /* what rename is given */
} tn_load_options;

/** What became of the names. */
typedef struct tn_load_report {
    int loaded, missing, unexpected, mismatched, cast, tied; /* how many of each */
    char text[2048]; /* the names, one line a category, cut with "..." */
} tn_load_report;

/**
 * Copies values by name, in place: tensors, optimizers and gradients stay. All or nothing:
 * everything is compared and converted before the first byte is written. The message lists missing,
 * unexpected and mismatched names together.
 *
 * report   NULL, or filled, also on failure
 * Shapes   must be equal, except that a single value also loads from a tensor of shape [1]
 * Dtypes   must be equal; with `cast` floats convert to floats
 * Ties     one name of a shared tensor is enough (the others are reported as tied); of several the
 *          last one in the order of tn_state_dict wins
 * Version  BatchNorm's num_batches_tracked is new in its state version 2: where a list that is
 *          older or has no version (tn_list_version) lacks it, it becomes 0
 * Order    rename; load pre-hooks; comparison; copies; extra state; load post-hooks; verdict on
 *          names
 */
TN_API TN_MUST_USE tn_status tn_load_state_dict(tn_module *m, const tn_list *state,
                                                tn_load_options o, tn_load_report *report);

/** Prints a table of m: a tree with a row per module and, below it, one for each parameter and
 *  buffer (name, shape, dtype unless f32; "frozen", "not saved"; elements); then totals of elements
 *  and bytes, ties counted once. Equal numbered neighbours share a row, "0 to 5: Block, 6 times".
 *  Empty slots are left out. A module with several paths is shown under the first, and as "tied to"
 *  it under the others; of paths longer than 1,024 bytes only the end is shown, after "...". As
 *  wide as the terminal, from 60 to 120 columns; 80 in a file. */
TN_API tn_status tn_module_summary(FILE *file, tn_module *m);

/* ---- layers: options by value, zero fields are PyTorch's defaults or zero, as each says ------ */

/** zero fields: with bias */
typedef struct tn_linear_options {
    bool no_bias; /* y = x W^T */
} tn_linear_options;
/** y = x W^T + b: x [..., in] to [..., out]. Parameters weight [out, in] and bias [out], both
 *  U(+-1/sqrt(in)). He et al. (2015) with a = sqrt 5 */
TN_API tn_module *tn_linear_new(int64_t in_features, int64_t out_features, tn_linear_options o);

/** One number for height and width. */
typedef struct tn_conv2d_options {
    int64_t stride, padding, dilation, groups; /* 0: 1, 0, 1, 1 */
    bool no_bias;                              /* no parameter bias */
    bool same;                                 /* as in tn_conv2d_spec */
} tn_conv2d_options;
/** tn_conv2d as a layer: x [N, in, H, W] to [N, out, H', W']. Parameters weight [out, in/groups, k,
 *  k] and bias [out], both U(+-1/sqrt(fan_in)). */
TN_API tn_module *tn_conv2d_new(int64_t in_channels, int64_t out_channels, int64_t kernel,
                                tn_conv2d_options o);
/** The same with a size per axis: weight [out, in/groups, kernel_h, kernel_w]. */
TN_API tn_module *tn_conv2d_spec_new(int64_t in_channels, int64_t out_channels, int64_t kernel_h,
                                     int64_t kernel_w, tn_conv2d_spec spec, bool no_bias);

/** zero fields: eps 1e-5, momentum 0.1; with its use_ field 0 means 0 */
typedef struct tn_batchnorm_options {
    double eps;       /* 0: 1e-5 (use_eps takes 0 as given) */
    double momentum;  /* 0: 0.1 (use_momentum) */
    bool cumulative;  /* plain average over batches instead of momentum */
    bool no_affine;   /* no weight and bias */
    bool no_tracking; /* no running statistics: batch statistics in eval too */
    /* a batch whose statistics are not finite changes no buffer and is counted by
     * tn_batchnorm_skipped; each forward then reads the buffers once more */
    bool skip_nonfinite;
    bool use_eps, use_momentum;
} tn_batchnorm_options;
/**
 * y = weight (x - mean) / sqrt(var + eps) + bias per channel. In training with the batch's mean and
 * (biased) variance, and the running buffers move towards them by momentum (variance unbiased). In
 * evaluation with the running buffers.
 *
 * Shapes   x [N, C, H, W], C = features
 * State    parameters weight [C] 1, bias [C] 0; buffers running_mean [C] 0, running_var [C] 1,
 *          num_batches_tracked [] 0 (i64)
 * Errors   shapes; one value per channel in training. A failed forward changes no buffer.
 * Source   Ioffe and Szegedy (2015), algorithms 1 and 2
 */
TN_API tn_module *tn_batchnorm2d_new(int64_t features, tn_batchnorm_options o);
/** The same for x [N, C] or [N, C, L]. */
TN_API tn_module *tn_batchnorm1d_new(int64_t features, tn_batchnorm_options o);
/** Sets the running buffers of one BatchNorm layer to those of a new one. */
TN_API tn_status tn_batchnorm_reset_running_stats(tn_module *m);
/** The share of a new batch in the running buffers; NaN: m is no BatchNorm layer. */
TN_API double tn_batchnorm_momentum(const tn_module *m);
/** Sets that share, from the next forward on, even if the layer was cumulative; 0 leaves the
 *  buffers alone. A captured step keeps its old momentum. Errors: outside [0, 1]; no BatchNorm
 *  layer. */
TN_API TN_MUST_USE tn_status tn_batchnorm_set_momentum(tn_module *m, double momentum);
/** Batches that skip_nonfinite left out since the last reset; not saved. -1: no BatchNorm layer. */
TN_API int64_t tn_batchnorm_skipped(const tn_module *m);

/** The one number of a frozen batch norm. */
typedef struct tn_frozen_batchnorm_options {
    double eps;   /* 0: 1e-5 */
    bool use_eps; /* takes eps 0 as given */
} tn_frozen_batchnorm_options;
/**
 * BatchNorm whose tensors are all buffers, so that training never changes it: y = x scale + shift
 * in training and evaluation alike, scale = weight / sqrt(running_var + eps), shift = bias -
 * running_mean scale.
 *
 * Shapes   x [N, C, H, W], C = features
 * State    buffers weight [C] 1, bias [C] 0, running_mean [C] 0, running_var [C] 1 - eps (so that a
 *          new layer is exactly the identity), num_batches_tracked absent. State version 3; where a
 *          list of version 1 or unknown lacks the running statistics they become 0 and 1
 * Source   detectron2's FrozenBatchNorm2d
 */
TN_API tn_module *tn_frozen_batchnorm2d_new(int64_t features, tn_frozen_batchnorm_options o);
/**
 * Turns every BatchNorm2d of the tree m into a FrozenBatchNorm2d, where it stands: what points
 * to it (a field, a variable, another tree) finds it frozen. tn_thaw_batchnorm turns them back.
 * They get copies of weight, bias, running statistics and counter, and take over eps, dtype,
 * device, train or eval, frozen or not; ties between these layers survive. Thawed weights are
 * parameters again; momentum is what it was before freezing, else 0.1; a missing counter is 0.
 *
 * Names    unchanged. Optimizers made before hold the old parameters: make them again. Hooks of
 *          these layers are gone; BatchNorm1d is left alone
 * Errors   a BatchNorm2d without running statistics, with its path
 * Owner    consumes m, on failure too; returns m
 */
TN_API tn_module *tn_freeze_batchnorm(tn_module *m);
/** Turns every FrozenBatchNorm2d into a BatchNorm2d, as described above. */
TN_API tn_module *tn_thaw_batchnorm(tn_module *m);

/* ---- other layers with parameters or buffers ------------------------------------------------- */

/** zero fields: eps 1e-5, with weight and bias */
typedef struct tn_layernorm_options {
    double eps;              /* 0: 1e-5 */
    bool no_affine, no_bias; /* neither weight nor bias; no bias */
    bool use_eps;            /* takes eps 0 as given */
} tn_layernorm_options;
/** tn_layer_norm over the trailing axes, which have this shape. Parameters weight 1 and bias 0, of
 *  this shape. */
TN_API tn_module *tn_layernorm_new(tn_shape shape, tn_layernorm_options o);

/** zero fields: no padding row */
typedef struct tn_embedding_options {
    bool use_padding_index; /* the next field counts */
    int64_t padding_index;  /* a row that starts at 0 and gets no gradient */
} tn_embedding_options;
/** tn_embedding as a layer: ids [...] to [..., d]. Parameter weight [n, d]: N(0, 1), the padding
 *  row 0. */
TN_API tn_module *tn_embedding_new(int64_t n, int64_t d, tn_embedding_options o);

/** zero fields: no dropout, the table is saved */
typedef struct tn_positional_encoding_options {
    double dropout;      /* probability, in training */
    bool non_persistent; /* the table is not saved */
} tn_positional_encoding_options;
/**
 * y = dropout(x + pe[:, :T]).
 *
 * Shapes   x [B, T, d_model], T <= max_len
 * State    buffer pe [1, max_len, d_model]: pe[t, 2i] = sin(t f_i), pe[t, 2i+1] = cos(t f_i),
 *          f_i = 10000^(-2i/d); an odd d_model has one cosine less
 * Source   Vaswani et al. (2017), sec. 3.5
 */
TN_API tn_module *tn_positional_encoding_new(int64_t d_model, int64_t max_len,
                                             tn_positional_encoding_options o);

/** tn_dropout as a layer. Training: zero with probability p in [0, 1], scale the rest by 1/(1-p);
 *  evaluation: x itself. */
TN_API tn_module *tn_dropout_new(double p);
/** The probability of one layer: Dropout, PositionalEncoding, MultiheadAttention,
 *  TransformerEncoderLayer, or an RNN, GRU or LSTM of several layers. NaN and a message for any
 *  other. */
TN_API double tn_dropout_p(tn_module *m);
/** Sets p of every such layer of the tree m, from the next forward on. A captured step keeps its
 *  old p. Errors: p outside [0, 1]; no such layer in m. */
TN_API TN_MUST_USE tn_status tn_dropout_set_p(tn_module *m, double p);

/* ---- attention ------------------------------------------------------------------------------- */

/** zero fields: no dropout, with biases, batch first */
typedef struct tn_multihead_attention_options {
    double dropout;      /* of attention weights, in training */
    bool no_bias;        /* neither in_proj_bias nor out_proj.bias */
    bool sequence_first; /* [T, B, E] as PyTorch's default; ours is [B, T, E] */
    int64_t kdim, vdim;  /* 0: embed_dim */
} tn_multihead_attention_options;
/**
 * softmax(q k^T / sqrt(D)) v in every head, between projections in and out; E = heads D.
 *
 * State    in_proj_weight [3E, E] U(+-sqrt(6 / 4E)) (with other kdim or vdim q_, k_ and
 *          v_proj_weight), in_proj_bias [3E] 0, out_proj.weight [E, E], out_proj.bias [E] 0
 * Call     tn_forward(m, x) is self-attention. In training, dropout acts on the attention weights,
 *          which then take memory as [B, heads, T, S]
 * Source   Vaswani et al. (2017), sec. 3.2.2
 */
TN_API tn_module *tn_multihead_attention_new(int64_t embed_dim, int64_t heads,
                                             tn_multihead_attention_options o);
/** Which keys a query does not see. */
typedef struct tn_attention_masks {
    tn_tensor *mask; /* [T, S] or [B*H, T, S]; bool true = blocked, float added */
    /* [B, S] bool, true = ignored. Each: TN_NONE or a zero field for none */
    tn_tensor *key_padding;
    bool causal; /* query t sees keys s <= t only */
} tn_attention_masks;
/** q [B, T, E], k [B, S, kdim], v [B, S, vdim] -> [B, T, E] (sequence_first: [T, B, E] and so on).
 *  weights: NULL, or receives the attention weights [B, T, S] averaged over heads, after dropout
 *  (slower path). A row with everything blocked gives 0. */
TN_API tn_tensor *tn_multihead_attention_forward(tn_module *m, tn_tensor *q, tn_tensor *k,
                                                 tn_tensor *v, tn_attention_masks masks,
                                                 tn_tensor **weights);

/** zero fields: PyTorch's defaults but for dropout and batch first */
typedef struct tn_encoder_layer_options {
    int64_t feedforward; /* 0: 2048 */
    double dropout;      /* 0: none (PyTorch: 0.1) */
    bool gelu;           /* else relu */
    bool norm_first;     /* pre-norm */
    bool sequence_first; /* [T, B, E] */
    double eps;          /* 0: 1e-5 */
    bool use_eps;        /* takes eps 0 as given */
} tn_encoder_layer_options;
/** Attention and feed-forward net with residual paths. Post-norm: x = norm1(x + attn(x)), x =
 *  norm2(x + ff(x)); norm_first: x += attn(norm1(x)), x += ff(norm2(x)); ff =
 *  linear2(drop(act(linear1))). Children self_attn, linear1, linear2, norm1, norm2. tn_forward
 *  calls it without masks. */
TN_API tn_module *tn_encoder_layer_new(int64_t d_model, int64_t heads, tn_encoder_layer_options o);
/** The layer with masks: x [B, T, d_model] to the same shape. */
TN_API tn_tensor *tn_encoder_layer_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks);
/** n deep copies of layer (which is consumed) under layers.0 ..., so with equal initial weights;
 *  norm may be TN_NO_MODULE, consumed. Any module of one input may be a layer, but then masks are
 *  an error. */
TN_API tn_module *tn_encoder_new(tn_module *layer, int n, tn_module *norm);
/** All layers with the same masks, then norm. x [B, T, d_model] to the same shape. */
TN_API tn_tensor *tn_encoder_forward(tn_module *m, tn_tensor *x, tn_attention_masks masks);

/* ---- recurrent layers ------------------------------------------------------------------------ */

/** zero fields: one layer in one direction, with biases, batch first */
typedef struct tn_recurrent_options {
    int64_t layers;      /* 0: 1; each further one reads what the one before it gives */
    double dropout;      /* of what a layer gives to the next, in training */
    bool no_bias;        /* neither bias_ih nor bias_hh */
    bool bidirectional;  /* a second set of weights reads from the last step to the first */
    bool sequence_first; /* [T, B, features] as PyTorch's default; ours is [B, T, features] */
    bool relu;           /* RNN: in place of tanh */
} tn_recurrent_options;
/**
 * A layer over sequences: tn_rnn, tn_gru or tn_lstm with its weights, from states of 0.
 *
 * Shapes   x [B, T, input_size] -> y [B, T, D hidden_size], D directions; one sequence: [T,
 *          input_size] -> [T, D hidden_size]. In both directions y has the first one's, then the
 *          second one's
 * State    of layer k: weight_ih_lk [G hidden, features], weight_hh_lk [G hidden, hidden],
 *          bias_ih_lk, bias_hh_lk [G hidden], G 1 (RNN), 3 (GRU) or 4 (LSTM); of the second
 *          direction the same names with _reverse. All U(+-1/sqrt(hidden_size)), drawn in this
 *          order. Gates lie as r, z, n and i, f, g, o
 * Errors   sizes below 1; dropout with one layer; relu with gates
 */
TN_API tn_module *tn_rnn_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** The same with the gates of a GRU. */
TN_API tn_module *tn_gru_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** The same with the gates and cell state of an LSTM. */
TN_API tn_module *tn_lstm_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** One step of one layer: x [B, input_size] -> h [B, hidden_size], or both without B. Parameters
 *  weight_ih, weight_hh, bias_ih, bias_hh. Errors: other options than no_bias and relu. */
TN_API tn_module *tn_rnn_cell_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** The same of a GRU. */
TN_API tn_module *tn_gru_cell_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** The same of an LSTM. */
TN_API tn_module *tn_lstm_cell_new(int64_t input_size, int64_t hidden_size, tn_recurrent_options o);
/** What goes from step to step. Each: TN_NONE or a zero field for zeros. */
typedef struct tn_recurrent_state {
    tn_tensor *h; /* [layers D, B, hidden_size], of a cell [B, hidden_size]; one sequence: no B */
    tn_tensor *c; /* the same; LSTM alone */
} tn_recurrent_state;
/**
 * The layer, or the cell, from a state. state NULL: as tn_forward. Otherwise it is where the layer
 * starts, and becomes what is after the last step (of the second direction: after step 0).
 *
 * Owner    the new state belongs to the current scope. To start from it in a later scope, as when a
 *          long sequence is trained on part by part, tn_keep what tn_detach gives of each tensor,
 *          and tn_drop what was kept before. Without tn_detach backward goes on into the parts
 *          before
 * Errors   m is no recurrent layer; x or a state does not fit; c without an LSTM. state is then
 *          unchanged
 */
TN_API tn_tensor *tn_recurrent_forward(tn_module *m, tn_tensor *x, tn_recurrent_state *state);

/* ---- layers without state: the op of the same name as a module ------------------------------- */

TN_API tn_module *tn_max_pool2d_new(tn_pool2d_spec spec); /* tn_max_pool2d */
TN_API tn_module *tn_avg_pool2d_new(tn_pool2d_spec spec); /* tn_avg_pool2d */
/** tn_adaptive_avg_pool2d */
TN_API tn_module *tn_adaptive_avg_pool2d_new(int64_t out_h, int64_t out_w);
TN_API tn_module *tn_relu_new(void);        /* tn_relu */
TN_API tn_module *tn_gelu_new(void);        /* tn_gelu, the exact form */
TN_API tn_module *tn_tanh_new(void);        /* tn_tanh */
TN_API tn_module *tn_sigmoid_new(void);     /* tn_sigmoid */
TN_API tn_module *tn_silu_new(void);        /* tn_silu */
TN_API tn_module *tn_softmax_new(int axis); /* tn_softmax */
TN_API tn_module *tn_identity_new(void);    /* y = x */
/* tn_flatten; PyTorch's default is (1, -1) */
TN_API tn_module *tn_flatten_new(int first, int last);

/* ---- containers and copies ------------------------------------------------------------------- */

/**
 * An independent copy: same types, own tensors without gradients, ties and shared children kept,
 * train or eval as they are.
 *
 * Fields   without a slot, byte for byte; but where one holds the address of a module or tensor of
 *          the tree m, of a place in their structs, or of a name there, it holds that of the
 *          copy's. What is not of this tree is shared with the original, and so is memory behind
 *          pointers, unless the type has clone
 * Errors   a type with free and without clone; a field that points to elements or to a gradient of
 *          the tree's tensors, with type and offset, where the type has no clone; a clone's own
 */
TN_API tn_module *tn_module_clone(tn_module *m);

/** tn_sequential(a, b, c): children "0", "1", ... called in order; consumes them. */
#ifdef __cplusplus
#define tn_sequential(...) tn_sequential_from({ __VA_ARGS__ })
#else
#define tn_sequential(...)                                                                         \
    tn_sequential_of((tn_module *[]){ __VA_ARGS__ },                                               \
                     (int)(sizeof((tn_module *[]){ __VA_ARGS__ }) / sizeof(tn_module *)))
#endif
/** The same from an array of n. */
TN_API tn_module *tn_sequential_of(tn_module *const *children, int n);
#ifdef __cplusplus
extern "C++" inline tn_module *tn_sequential_from(std::initializer_list<tn_module *> children)
{
    return tn_sequential_of(children.begin(), (int)children.size());
}
#endif
/** Children without a forward of their own: call them one by one. */
TN_API tn_module *tn_module_list_new(void);
/** Appends to a ModuleList or Sequential under the next number; consumes child. */
TN_API tn_status tn_module_append(tn_module *list, tn_module *child);
/** Children under names of your own: tn_register_module, tn_get_submodule, tn_module_delete. No
 *  forward. */
TN_API tn_module *tn_module_dict_new(void);
/** Tensors under the names "0", "1", ... as parameters, or as buffers of one persistence. No
 *  forward. */
TN_API tn_module *tn_parameter_list_new(void);
/** The same with buffers. */
TN_API tn_module *tn_buffer_list_new(tn_persistence persistence);
/** Appends to a ParameterList or BufferList; errors as tn_register_parameter and
 *  tn_register_buffer. */
TN_API tn_status tn_module_append_tensor(tn_module *list, tn_tensor *t);
/** The number of its tensors, -1 on error. */
TN_API int tn_module_tensors(const tn_module *list);
/** The i-th, borrowed; NULL and a message out of range. */
TN_API tn_tensor *tn_module_tensor(tn_module *list, int i);

/* ---- averages of a model --------------------------------------------------------------------- */

/** zero fields: an exponential average of the parameters, decay 0.999 */
typedef struct tn_ema_options {
    double decay; /* 0: 0.999; share of the old average in the new */
    /* instead: the mean of all updates so far (stochastic weight averaging) */
    bool equal;
    bool average_buffers; /* floating buffers are averaged too; else they are copied */
    bool use_decay;       /* takes decay 0 as given */
} tn_ema_options;
/**
 * A running average of model's parameters, which is itself a model: tn_forward(ema, x).
 *
 * State    buffer n_averaged [] 0 (i64), child module: a clone of model whose parameters are
 *          buffers, so that no optimizer touches them. Names and order in files are those of
 *          PyTorch's AveragedModel
 * Dtypes   the average of a bf16 or f16 model is an f32 model, buffers included: in 16 bits an
 *          average would never move. It is saved and loaded as f32; call it with x in f32, or under
 *          TN_AUTOCAST. Back into a 16-bit model it goes by tn_load_state_dict(model,
 *          tn_state_dict(tn_ema_module(ema), ""), (tn_load_options){ .cast = true }, NULL), rounded
 * Mode     train or eval as model was at first; then what tn_train and tn_eval of ema set
 * Errors   decay outside [0, 1], or given with equal; what cannot be cloned
 * Owner    yours, as every module; model stays yours
 * Source   Polyak and Juditsky (1992), eq. 2; Izmailov et al. (2018), algorithm 1
 */
TN_API tn_module *tn_ema_new(tn_module *model, tn_ema_options o);
/**
 * Adds model's present values to the average: the first update copies them, each further one does
 * a += (1 - decay) (x - a), or takes the equal average. Integer buffers are always copied. Floats
 * are cast and moved to the average's dtype and device.
 *
 * Errors   a name that one of the two lacks, another shape or kind of dtype, other ties: found and
 *          named before any write
 */
TN_API TN_MUST_USE tn_status tn_ema_update(tn_module *ema, tn_module *model);
/** The averaged model itself, borrowed: for functions that want its type. */
TN_API tn_module *tn_ema_module(tn_module *ema);

/* ---- initialisers: in place, under no grad; PyTorch's draw order ----------------------------- */

/** What follows the layer that is initialised. */
typedef enum tn_nonlinearity {
    TN_NL_LINEAR,
    TN_NL_SIGMOID,
    TN_NL_TANH,
    TN_NL_RELU,
    TN_NL_LEAKY_RELU,
    TN_NL_SELU
} tn_nonlinearity;
/** sqrt(2) for relu, 5/3 for tanh, 3/4 for selu, sqrt(2 / (1 + slope^2)) for leaky relu (slope
 *  counts there only), else 1: PyTorch's calculate_gain. NaN for a value outside the enum. */
TN_API double tn_init_gain(tn_nonlinearity nonlinearity, double slope);
/* sizes of axis 1 and axis 0, times the product of the others; rank >= 2 */
TN_API tn_status tn_init_fans(const tn_tensor *t, int64_t *fan_in, int64_t *fan_out);
/** U(low, high), as tn_uniform_ */
TN_API tn_status tn_init_uniform(tn_tensor *t, double low, double high);
/** N(mean, deviation), as tn_normal_ */
TN_API tn_status tn_init_normal(tn_tensor *t, double mean, double deviation);
TN_API tn_status tn_init_constant(tn_tensor *t, double value); /* value, every element */
/** Normal values within [low, high], drawn as PyTorch 2.15 and later do. If more than 0.3 of the
 *  distribution lies there: normal values, drawn again while outside. Else: uniform values,
 *  accepted by the density. Where fewer than about one in a thousand of these would be accepted:
 *  the inverse distribution function, as PyTorch did before. */
TN_API tn_status tn_init_truncated_normal(tn_tensor *t, double mean, double deviation, double low,
                                          double high);
/** U(+-gain sqrt(6 / (fan_in + fan_out))). Glorot and Bengio (2010), eq. 16 */
TN_API tn_status tn_init_xavier_uniform(tn_tensor *t, double gain);
/** N(0, gain sqrt(2 / (fan_in + fan_out))). Same source. */
TN_API tn_status tn_init_xavier_normal(tn_tensor *t, double gain);
/** U(+-gain sqrt(3 / fan)), fan being fan_out or fan_in. He et al. (2015), eq. 14 */
TN_API tn_status tn_init_kaiming_uniform(tn_tensor *t, double slope, bool fan_out,
                                         tn_nonlinearity nl);
/** N(0, gain / sqrt(fan)). Same source. */
TN_API tn_status tn_init_kaiming_normal(tn_tensor *t, double slope, bool fan_out,
                                        tn_nonlinearity nl);

#ifdef __cplusplus
}
#endif
#endif
