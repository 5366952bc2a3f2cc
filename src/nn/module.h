/*
 * module.h - the inside of a module, for src/nn/ and the folders above it.
 *
 * A module has a type and a state with one ordered list of slots. A slot is a named parameter,
 * buffer or child; it owns one reference. The field of the module's struct that was registered with
 * the slot is a borrowed copy of the slot's pointer; whoever changes the slot updates the field.
 */
#pragma once

#include <tenon/nn.h>

#include "autograd/graph.h"
#include "nn/named.h"

typedef enum tni_slot_kind { TNI_PARAMETER, TNI_BUFFER, TNI_CHILD } tni_slot_kind;

typedef struct tni_slot {
    char *name; /* first: named.h */
    tni_slot_kind kind;
    unsigned flags;     /* of a buffer: tn_buffer_flags */
    int64_t mark;       /* what its tensor was marked with (slots.c) */
    bool frozen;        /* not trained, were its module not frozen (is_frozen in register.c) */
    int since;          /* files of a lower state_version lack it: then it */
    double since_value; /* is filled with this */
    tn_tensor *tensor;  /* TN_NONE when absent; unused for a child */
    tn_tensor *own;     /* while that has an average's values: its own; else NULL */
    tn_module *child;   /* TN_NO_MODULE when absent; NULL for tensors */
    size_t field;       /* offset in the struct; 0: no field (the base is there) */
} tni_slot;

typedef struct tni_hooks tni_hooks;

/* Lives from tn_module_new to tn_module_done. */
typedef struct tni_building {
    tn_scope scope;
    uint64_t errors;       /* tni_error_count at the start */
    tni_saved_error first; /* the first failed registration; status TN_OK: none */
} tni_building;

struct tn_module_state {
    atomic_int refs;
    atomic_int holders; /* child slots that hold it: a reference each */
    bool copying;       /* its type's clone has not run yet: it owns nothing that could be freed */
    bool training;      /* tni_module_exchange swaps from here to building */
    bool frozen;        /* by tn_module_freeze */
    bool recompute;     /* its calls run again in backward (layers/recompute.c) */
    size_t dropout;     /* where its probability is in the struct; 0: it has none */
    size_t made;        /* and the field of the parameter that each call makes; 0: none */
    int n;
    int n_children; /* number of child slots */
    tni_slot *slot; /* n of them */
    tni_named named;
    tni_map fields;     /* of the slots: offset -> serial number */
    tni_map parameters; /* tensor -> number of slots that hold it */
    tni_building *building;
    tni_hooks *hooks; /* NULL until the first one is registered */
    tn_module *next;  /* in the list of modules to be freed */
};

/* ---- module.c -------------------------------------------------------------------------------- */

/* TN_OK for a module made by tn_module_new; else an error naming function and argument. */
TNI_SHARED tn_status tni_module_check(const char *function, const tn_module *m);
/* A struct of its type with an empty state, training, not being constructed. NULL + message. */
tn_module *tni_module_alloc(const tn_module_type *type);
/* NAME_type, the type of modules of a struct, with what it sets. */
#define TNI_TYPE(name_, text, layer, ...)                                                          \
    static const tn_module_type name_##_type = { .name = text, .size = sizeof(layer), __VA_ARGS__ };
static inline bool tni_no_module(const tn_module *m)
{
    return m == TN_NO_MODULE;
}
/* Whether flags have that role. */
static inline bool tni_is(unsigned flags, unsigned role)
{
    return (flags & TN_ROLE) == (role & TN_ROLE);
}
/* Whether several buffers of that role and dtype have a mean that is one, too. */
static inline bool tni_has_mean(unsigned flags, tn_dtype dtype)
{
    return tn_dtype_is_float(dtype) && (tni_is(flags, TN_PLAIN) || tni_is(flags, TN_STATISTIC));
}
/* Whether a buffer of that role moves once for a batch in parts. */
static inline bool tni_moves_once(unsigned flags)
{
    return tni_is(flags, TN_STATISTIC) || tni_is(flags, TN_COUNTER) || tni_is(flags, TN_DIRECTION);
}
/* Whether a buffer of that role stays at least f32 when its module is cast. */
static inline bool tni_stays_wide(unsigned flags)
{
    return tni_is(flags, TN_STATISTIC) || tni_is(flags, TN_DIRECTION);
}
/* The slot with a name of n bytes; NULL (no message) if there is none. */
tni_slot *tni_slot_find(const tn_module *m, const char *name, size_t n);
/* The same for the last part of a full name. */
static inline tni_slot *tni_slot_of(const tn_module *m, const char *full_name)
{
    const char *dot = strrchr(full_name, '.'), *name = dot ? dot + 1 : full_name;
    return tni_slot_find(m, name, strlen(name));
}
/* The tensor of the slot with that name; NULL (no message) if there is none. */
static inline tn_tensor *tni_slot_tensor(const tn_module *m, const char *name)
{
    const tni_slot *slot = tni_slot_find(m, name, strlen(name));
    return slot ? slot->tensor : NULL;
}
/* The slot whose field is at that offset; NULL (no message) if there is none. */
tni_slot *tni_slot_at(const tn_module *m, size_t field);
/* The slot with that serial number (tni_named_serial); NULL (no message) once it is deleted. */
tni_slot *tni_slot_numbered(const tn_module *m, int64_t serial);
/* Appends an empty slot like another one; NULL + message. */
tni_slot *tni_slot_add(tn_module *m, const tni_slot *like);
/* Removes a slot that is empty already. */
void tni_slot_remove(tn_module *m, tni_slot *slot);
/* Gives the slot another field; 0: it keeps the one that it has. */
void tni_slot_move_field(tn_module *m, tni_slot *slot, size_t field);
/* Swaps type, struct, slots and mode of two modules with structs of equal size. Hooks and addresses
 * stay: a pointer to one module now reaches the contents of the other. Cannot fail. */
void tni_module_exchange(tn_module *a, tn_module *b);
/* Restores the slots to the order of an earlier copy of them. Cannot fail. */
void tni_slots_reorder(tn_module *m, const tni_slot *ordered);
/* Puts child into a child slot, taking a reference. Returns the previous child; the caller must
 * drop its reference. */
tn_module *tni_slot_put_child(tn_module *m, tni_slot *slot, tn_module *child);
/* Puts t, already accepted, into a tensor slot: takes a reference, sets marks and field. Returns
 * the previous tensor; the caller must drop its reference. */
tn_tensor *tni_slot_put(tn_module *m, tni_slot *slot, tn_tensor *t);
/* Gives and marks the tensor an average's values, and keeps its own; NULL: it gets those again. */
void tni_slot_set_own(const tn_module *m, tni_slot *slot, tn_tensor *average);
/* What its tensor is to be marked with. */
int64_t tni_slot_mark(const tni_slot *slot);
/* Frees the slots, which must be empty already. */
void tni_slots_free(tn_module *m);
/* Updates the field from the slot. */
void tni_slot_sync(tn_module *m, const tni_slot *slot);
/* Whether the module's struct contains this address; the module whose struct does (or NULL). */
bool tni_module_contains(const tn_module *m, const void *address);
tn_module *tni_module_at(const void *address);
/* Whether one of owner's parameters is t. */
bool tni_module_holds_parameter(const tn_module *owner, const tn_tensor *t);
/* "Linear(784, 128)" */
const char *tni_module_text(const tn_module *m, char *text, size_t size);

/* ---- register.c ------------------------------------------------------------------------------ */

/* Says that files of a state_version below `since` lack a persistent buffer of m: it is then filled
 * with `value`. */
void tni_slot_since(tn_module *m, const char *name, int since, double value);
/* Replaces the tensor of a slot, keeping it trainable or frozen as before; checks that it fits. */
tn_status tni_slot_assign(const char *function, tn_module *m, tni_slot *slot, tn_tensor *t);
tn_status tni_slot_accepts(const char *function, const tn_module *m, const tni_slot *slot,
                           const tn_tensor *t);

/* ---- call.c ---------------------------------------------------------------------------------- */

/* What a typed function gives its module beside inputs. */
typedef struct tni_attention_options {
    bool causal, memory_causal;
} tni_attention_options;

/* TN_OK, or what is wrong with the arguments of a call. */
tn_status tni_call_check(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out);
/* A call as such. */
tn_status tni_call_once(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                        const tni_attention_options *options);
/* tn_call with a typed function's options for forward_n, or NULL (layers/recompute.c). */
tn_status tni_call_with(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                        const tni_attention_options *options);
/* The options of the running call of self; NULL, or all zero in a recomputed one, when it was made
 * by tn_call or tn_forward. */
const tni_attention_options *tni_call_options(const tn_module *self);
/* The module of the innermost running call whose struct contains the address; NULL if none. */
tn_module *tni_calling_at(const void *address);
TNI_SHARED bool tni_calling(void);

/* layers/parametrizations.c: makes that parameter, in its field; what was there. NULL + message.
 * Until it is back there, other threads wait. */
tn_tensor *tni_made(tn_module *m);
void tni_made_end(tn_module *m, tn_tensor *was);

/* ---- fields.c -------------------------------------------------------------------------------- */

enum { TNI_FIELDS_NEAR = 24, TNI_FIELDS_IN = 4 };

/* The words of a struct, and the inputs' reference counts, before a forward. */
typedef struct tni_fields {
    uintptr_t near[TNI_FIELDS_NEAR], *word; /* the struct behind its base */
    size_t n;                               /* words of it */
    int refs[TNI_FIELDS_IN];                /* of the first inputs */
} tni_fields;

tn_status tni_fields_before(tni_fields *fields, const tn_module *m, int n_in, tn_tensor *const *in);
/* Restores fields that forward left pointing to objects that nobody keeps. Returns forward's
 * status, or that error. The call's scope is still open. */
tn_status tni_fields_after(tni_fields *fields, tn_module *m, int n_in, tn_tensor *const *in,
                           tn_status status);
/* The same at the end of a construction, for objects freed with its scope. */
tn_status tni_fields_made(tn_module *m, tn_scope scope);
/* Replaces every word of the struct that may be an address, outside of slots, by to(word). A word
 * stays if that is 0; returns the offset of the first such word, or 0. */
size_t tni_fields_map(tn_module *m, uintptr_t (*to)(uintptr_t word, void *user), void *user);

/* ---- hooks.c --------------------------------------------------------------------------------- */

typedef enum tni_hook_kind {
    TNI_HOOK_FORWARD_PRE,
    TNI_HOOK_FORWARD,
    TNI_HOOK_BACKWARD,
    TNI_HOOK_STATE_DICT,
    TNI_HOOK_LOAD_PRE,
    TNI_HOOK_LOAD_POST
} tni_hook_kind;

typedef tn_status (*tni_forward)(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                                 tn_tensor **out);
/* forward between the module's hooks. */
tn_status tni_hooked_call(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                          tni_forward forward);
bool tni_has_hook(const tn_module *m, tni_hook_kind kind);
/* Runs the state dict or pre-load hooks (list: the state, prefix: the beginning of m's names), or
 * the post-load ones (list: the missing names). */
tn_status tni_run_list_hooks(tn_module *m, tni_hook_kind kind, tn_list *list, const char *prefix,
                             tn_list *unexpected);
/* Removes all hooks of m, even while they are being run. */
void tni_hooks_clear(tn_module *m);
/* Call it when the module is freed: the hooks are freed once no graph refers to them. NULL is
 * ignored. */
void tni_hooks_leave(tni_hooks *hooks);

/* ---- walk.c ---------------------------------------------------------------------------------- */

typedef enum tni_repeats {
    TNI_ONCE,     /* a shared module is visited under its first path */
    TNI_SIBLINGS, /* once per parent */
    TNI_EVERY     /* under each of its paths */
} tni_repeats;

/* path: from the root to the module, "" for the root; valid only during the call. */
typedef tn_status (*tni_visit)(tn_module *m, const char *path, void *user);

/* Depth first, in registration order; before is called on the way down, after on the way up (either
 * may be NULL). Stops at the first status that is not TN_OK and returns it. Any depth: no
 * recursion. */
TNI_SHARED tn_status tni_walk(tn_module *root, tni_repeats repeats, tni_visit before,
                              tni_visit after, void *user);

/* Calls change, which cannot fail, once for each module in that order; for none if root is no
 * module (an error naming function) or there is too little memory to find them all. */
tn_status tni_change_modules(const char *function, tn_module *root,
                             void (*change)(tn_module *m, void *user), void *user);
/* tn_module_set_requires_grad, and freezes the modules that choose has put into the map, its user;
 * NULL: none. Nothing changes on failure. */
tn_status tni_switch_modules(const char *function, tn_module *m, bool on, tni_visit choose);

/* ---- list.c ---------------------------------------------------------------------------------- */

/* Appends "prefix path.name"; any of prefix and path may be "". Names may repeat. */
tn_status tni_list_push(tn_list *list, const char *prefix, const char *path, const char *name,
                        tn_entry entry);
/* The entry with a name; NULL (no message) if there is none. */
const tn_entry *tni_list_find(const tn_list *list, const char *name);
/* The next recorded state version after number *i (-1: the first); moves *i there; 0: no more. */
int tni_list_next_version(const tn_list *list, int *i);
/* The path of module number i; valid until the next call. */
const char *tni_list_path(const tn_list *list, int i);
/* tn_list_version of a path of n bytes. */
int tni_list_version_n(const tn_list *list, const char *path, size_t n);
/* tn_list_set_version without checks of its arguments. */
tn_status tni_list_push_version(tn_list *list, const char *path, int version);
/* Returns list, which was made while user functions ran; NULL + message if they ended its scope. */
tn_list *tni_list_made(size_t guarded, const char *function, tn_list *list);
/* A new list with the same names, tensors and versions. */
tn_list *tni_list_copy(const tn_list *list);
/* An empty one, for a result of that function. */
tn_list *tni_list_new(const char *function);
/* tn_state_dict without hooks and extra state: only the model's slots. */
tn_list *tni_slot_list(tn_module *m);

/* Of tensors whose values may be in a file yet (io/unread.c): t's; whether they wait until they are
 * put into `to`; puts them; a list's, of an optimizer's what it needs (not `values`: as 0s). */
tn_tensor *tni_unread_values(tn_tensor *t);
bool tni_unread_waits(const tn_tensor *t, const tn_tensor *to);
tn_status tni_unread_put(tn_tensor *to, tn_tensor *t);
tn_status tni_unread_fill(tn_list *list, const struct tn_optim *optimizer, bool values);
tn_status tni_unread_fill_small(tn_list *list); /* if it is not above tni_read_first bytes */
extern int64_t tni_read_first;                  /* 64 MiB; tests change it */

/* What does not fit, in a text that ends in "..." where it is too long. (state.c) */
typedef struct tni_line {
    char text[640];
    size_t n;
    int count;
} tni_line;
void tni_line_add(tni_line *l, const char *separator, const char *format, ...) TN_PRINTF(3, 4);

/* The name of extra state within its module. */
#define TNI_EXTRA_STATE "_extra_state"

/* ---- move.c ---------------------------------------------------------------------------------- */

/*
 * New tensors for a set of handles, ties kept: handles over one storage get results over one
 * storage. add() every handle first (twice is harmless), then convert(), then get() the result of
 * each.
 */
typedef struct tni_stage {
    tni_map result;  /* handle -> its new tensor (in the current scope); itself until converted */
    tni_map sharers; /* storage -> number of handles */
    tni_map base;    /* storage -> all of it, converted, as one axis */
    tni_map wide;    /* storages that stay at least f32 */
    bool copy;       /* tensors that need no conversion are copied too */
    bool cast;       /* floating tensors become dtype */
    bool widen;      /* instead: those of bf16 and f16 do */
    tn_dtype dtype;
    bool move; /* all tensors move to device */
    tn_device device;
} tni_stage;

tn_status tni_stage_add(tni_stage *stage, tn_tensor *t);
tn_status tni_stage_convert(tni_stage *stage);
static inline tn_tensor *tni_stage_get(const tni_stage *stage, const tn_tensor *t)
{
    return tni_map_get(&stage->result, t);
}
void tni_stage_free(tni_stage *stage);
/* The memory of two handles changes places; their marks stay theirs. */
void tni_exchange_memory(tn_tensor *a, tn_tensor *b);
/* Casts bf16 and f16 to f32, as tn_module_to_dtype does. */
tn_status tni_module_widen(const char *function, tn_module *m);

/* This thread's layers draw no initial values. */
TNI_SHARED extern TNI_THREAD bool tni_init_skipped;
