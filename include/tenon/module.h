/**
 * tenon/module.h - modules: a tree of named parameters and buffers, with a forward.
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
#ifndef TENON_MODULE_H
#define TENON_MODULE_H

#include <tenon/autograd.h>
#include <tenon/ops.h>

TN_BEGIN_C_

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
     * for you. A type with free can only be cloned if it also has clone. */
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

/**
 * Flags of a buffer: whether it is saved to files, and at most one role, or-ed. The role says what
 * casts, files, averages, ranks and parts of batches do with it. 0: saved, and plain.
 */
enum tn_buffer_flags {
    TN_PERSISTENT = 0,
    TN_NON_PERSISTENT = 1, /* moved and listed, but in no file */
    TN_PLAIN = 0,          /* as its module does */
    TN_CONSTANT = 1 << 1,  /* a table, a mask: no forward writes it */
    TN_STATISTIC = 2 << 1, /* of the data, as a running mean: a cast leaves it at least f32 */
    TN_COUNTER = 3 << 1,   /* of steps: never averaged */
    /* what eval mode keeps between calls, as keys and values: tn_train empties it (TN_NONE) */
    TN_CACHE = 4 << 1 | TN_NON_PERSISTENT,
    TN_DIRECTION = 5 << 1, /* a unit vector: never averaged; a cast leaves it at least f32 */
    TN_ROLE = 7 << 1       /* the bits of a role */
};
typedef unsigned tn_persistence; /* the type that such flags had before */
/** "statistic": the role in flags; "" for a plain one. */
TN_API const char *tn_role_name(unsigned flags);

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
 * Registers a buffer. Stored by reference, any dtype, leaf or not, requires_grad untouched. flags:
 * tn_buffer_flags, or-ed. Errors as for parameters, but any tensor is taken; flags that are none.
 * Re-registering replaces, keeping its place; the flags are the new ones.
 */
TN_API tn_status tn_register_buffer(tn_module *m, const char *name, tn_tensor **field, tn_tensor *t,
                                    unsigned flags);
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

/**
 * Whether backward makes the calls of m again instead of keeping what their ops need: less memory
 * for one more forward. Everything has the same bits (recompute.h, whose rules hold; hooks on the
 * call run twice). Of a TransformerEncoder it is each layer by itself, of a module without forward
 * (ModuleList) each child. Clones do as their original. Calls under TN_NO_GRAD are as always.
 */
TN_API tn_status tn_module_set_recompute(tn_module *m, bool on);
TN_API bool tn_module_recompute(tn_module *m); /* whether it does: all of those, if it is several */

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
    unsigned role;     /* of a buffer: TN_PLAIN, TN_STATISTIC ... */
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
    bool no_caches;       /* buffers */
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
/** A list of both. Where both record a state version, b's counts. Errors: a name that both have. */
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
    tn_module *m, tn_status (*visit)(tn_module *m, const char *path, void *user), void *user);
/** Calls f for every module below, children first, m last, as PyTorch's apply: for initialisers.
 *  Stops at the first status that is not TN_OK and returns it. In a constructor tn_module_done
 *  reports a failure, so the status may be ignored there. */
TN_API tn_status tn_module_apply(tn_module *m, tn_status (*f)(tn_module *m, void *user),
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
/** Casts floating members, as tn_module_to moves them; integer buffers keep their dtype, statistics
 *  and directions become f32 where dtype is narrower. dtype must be floating. */
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
    /* of files, for tn_load_with and tn_load_tensors_with; a list is loaded as it is: */
    const char *key;   /* a part of a checkpoint, by its path: "model", "ema.shadow"; see tn_load */
    bool unwrap;       /* "module." before names and "_orig_mod." in them are dropped */
    bool widen;        /* i8, i16 and u16 become i32, u32 becomes i64 */
    bool skip_foreign; /* tensors that tenon cannot hold are left out and reported */
    bool no_values;    /* tn_load_tensors_with: names, shapes, dtypes; elements are 0 */
} tn_load_options;

/** What became of the names. */
typedef struct tn_load_report {
    int loaded, missing, unexpected, mismatched, cast, tied; /* how many of each */
    int left_out;                                            /* of a file, by skip_foreign */
    char text[2048]; /* the names, one line a category, cut with "..." */
} tn_load_report;

/**
 * Copies values by name, in place: tensors, optimizers and gradients stay. All or nothing:
 * everything is compared and converted before the first byte is written. The message lists missing,
 * unexpected and mismatched names together.
 *
 * report   NULL, or filled, also on failure
 * Shapes   must be equal, except that a single value also loads from a tensor of shape [1]
 * Dtypes   must be equal; with `cast`, and of statistics and directions, floats convert to floats
 * Ties     one name of a shared tensor is enough (the others are reported as tied); of several the
 *          last one in the order of tn_state_dict wins
 * Version  BatchNorm's num_batches_tracked is new in its state version 2: where a list that is
 *          older or has no version (tn_list_version) lacks it, it becomes 0
 * Order    rename; load pre-hooks; comparison; copies; extra state; load post-hooks; verdict on
 *          names
 */
TN_API TN_MUST_USE tn_status tn_load_state_dict(tn_module *m, const tn_list *state,
                                                tn_load_options o, tn_load_report *report);

/* ---- copies ---------------------------------------------------------------------------------- */

/**
 * An independent copy: same types, own tensors without gradients, ties and shared children kept,
 * train or eval as they are.
 *
 * Fields   without a slot are copied byte for byte; but the address of a module or tensor of the
 *          tree m, of a place in their structs, or of a name there, becomes the address in the
 *          copy. What is not of this tree is shared with the original, and so is memory behind
 *          pointers, unless the type has clone
 * Errors   a type with free and without clone; a field that points to elements or to a gradient of
 *          the tree's tensors, with type and offset, where the type has no clone; a clone's own
 */
TN_API tn_module *tn_module_clone(tn_module *m);

TN_END_C_
#endif
