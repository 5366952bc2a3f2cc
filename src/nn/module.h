/*
 * module.h - the inside of a module, for src/nn/ and what stands above it.
 *
 * A module is its type, and a state with one ordered list of slots. A slot is a parameter, a buffer
 * or a child under a name; it owns one reference. The field of the module's struct that the slot
 * was registered with is a borrowed copy of the slot's pointer, kept true by whoever changes the
 * slot.
 */
#ifndef TNI_MODULE_H
#define TNI_MODULE_H

#include <stdint.h>

#include <tenon/nn.h>

#include "autograd/op.h"
#include "base/map.h"

typedef enum tni_slot_kind { TNI_PARAMETER, TNI_BUFFER, TNI_CHILD } tni_slot_kind;

typedef struct tni_slot {
    char *name;
    int64_t serial; /* ascends with the slots, and stays when others go */
    tni_slot_kind kind;
    tn_persistence persistence; /* of a buffer */
    bool frozen;                /* a parameter registered as frozen */
    int since;                  /* files of a smaller state_version lack it: it then is */
    double since_value;         /* this everywhere */
    bool thaw;                  /* requires_grad that a frozen module's parameter gets back */
    tn_tensor *tensor;          /* TN_NONE when absent; unused for a child */
    tn_module *child;           /* TN_NO_MODULE when absent; NULL for tensors */
    size_t field;               /* offset in the struct; 0: no field (there the base lies) */
} tni_slot;

typedef struct tni_hooks tni_hooks;

/* Lives from tn_module_new to tn_module_done. */
typedef struct tni_building {
    tn_scope scope;
    uint64_t errors;       /* tni_error_count at the start */
    tni_saved_error first; /* of the registrations that failed; status TN_OK: none */
} tni_building;

/* What finds a slot of a module that has many of them. */
typedef struct tni_slot_index {
    tni_map names;   /* -> serial */
    tni_map fields;  /* offset -> serial */
    tni_map tensors; /* of parameters -> how many of the slots */
} tni_slot_index;

struct tn_module_state {
    tn_module *module; /* whose it is */
    atomic_int refs;
    atomic_int holders; /* child slots that hold it: a reference each */
    bool training;
    bool frozen; /* by tn_module_freeze */
    int n;
    int n_children; /* slots of that kind */
    tni_slot *slot; /* n of them, somewhere in the room */
    tni_slot *room;
    size_t capacity;       /* of the room */
    int64_t serials;       /* given so far */
    tni_slot_index *index; /* NULL while there are few */
    tni_building *building;
    tni_hooks *hooks;                      /* NULL until the first one is registered */
    tn_module *next;                       /* of those waiting to be freed */
    struct tn_module_state *below, *above; /* in the tree of live modules */
    uint64_t weight;                       /* there: no parent's is smaller */
};

/* ---- module.c -------------------------------------------------------------------------------- */

/* TN_OK for a module made by tn_module_new; else the error, naming function and argument. */
tn_status tni_module_check(const char *function, const tn_module *m);
/* A struct of its type with an empty state, training, in no construction. NULL + message. */
tn_module *tni_module_alloc(const tn_module_type *type);
static inline bool tni_no_module(const tn_module *m)
{
    return m == TN_NO_MODULE;
}
/* The slot of a name, by n bytes; NULL (no message) when there is none. */
tni_slot *tni_slot_find(const tn_module *m, const char *name, size_t n);
/* The slot whose field lies at that offset; NULL (no message) when there is none. */
tni_slot *tni_slot_at(const tn_module *m, size_t field);
/* A new slot at the end; NULL + message. Name and field are set, the rest is absent. */
tni_slot *tni_slot_add(tn_module *m, const char *name, tni_slot_kind kind, size_t field);
/* Takes a slot away that holds nothing any more. */
void tni_slot_remove(tn_module *m, tni_slot *slot);
/* Gives the slot another field. */
void tni_slot_move_field(tn_module *m, tni_slot *slot, size_t field);
/* Puts the slots into the order of a copy of them. Cannot fail. */
void tni_slots_reorder(tn_module *m, const tni_slot *ordered);
/* Puts child into a child slot, taking a reference. Returns what was there: its reference is the
 * caller's to give back. */
tn_module *tni_slot_put_child(tn_module *m, tni_slot *slot, tn_module *child);
/* Puts t into a tensor slot, taking a reference, setting marks and field. t was accepted before.
 * Returns the tensor that was there: the reference is the caller's to give back. */
tn_tensor *tni_slot_put(tn_module *m, tni_slot *slot, tn_tensor *t);
/* The field follows the slot. */
void tni_slot_sync(tn_module *m, const tni_slot *slot);
/* Whether the module's struct holds this address; which module's does (NULL: none). */
bool tni_module_contains(const tn_module *m, const void *address);
tn_module *tni_module_at(const void *address);
/* Whether one of owner's parameters is t. */
bool tni_module_holds_parameter(const tn_module *owner, const tn_tensor *t);
/* "Linear(784, 128)" */
const char *tni_module_text(const tn_module *m, char *text, size_t size);

/* ---- register.c ------------------------------------------------------------------------------ */

/* Says that a persistent buffer of m is missing in files of a state_version below `since`: it then
 * is `value` everywhere. */
void tni_slot_since(tn_module *m, const char *name, int since, double value);
/* Another tensor into a tensor slot, trainable or frozen as what it replaces; and whether it
 * fits. */
tn_status tni_slot_assign(const char *function, tn_module *m, tni_slot *slot, tn_tensor *t);
tn_status tni_slot_accepts(const char *function, const tn_module *m, const tni_slot *slot,
                           const tn_tensor *t);
/* The module at a dotted path of n bytes; NULL + message naming function. "" is m. */
tn_module *tni_module_find(const char *function, tn_module *m, const char *path, size_t n);

/* ---- call.c ---------------------------------------------------------------------------------- */

/* tn_call with the options of a typed function, which forward_n reads back. */
tn_status tni_call_with(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                        const void *options);
/* The options of the running call of self; NULL when it was made by tn_call or tn_forward. */
const void *tni_call_options(const tn_module *self);
/* The innermost running call's module whose struct holds the address; NULL. */
tn_module *tni_calling_at(const void *address);
bool tni_calling(void);

/* ---- fields.c -------------------------------------------------------------------------------- */

enum { TNI_FIELDS_NEAR = 24, TNI_FIELDS_IN = 4 };

/* What a struct showed, and who held the inputs, before a forward. */
typedef struct tni_fields {
    uintptr_t near[TNI_FIELDS_NEAR], *word; /* the struct behind its base */
    size_t n;                               /* words of it */
    int refs[TNI_FIELDS_IN];                /* of the first inputs */
} tni_fields;

tn_status tni_fields_before(tni_fields *fields, const tn_module *m, int n_in, tn_tensor *const *in);
/* Puts fields back that a forward let show what nobody keeps. The status of the forward, or the
 * error. The call's scope is still open. */
tn_status tni_fields_after(tni_fields *fields, tn_module *m, int n_in, tn_tensor *const *in,
                           tn_status status);
/* The same at the end of a construction, for what goes with its scope. */
tn_status tni_fields_made(tn_module *m, tn_scope scope);

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
/* Those of state dicts and before loading; prefix: what names of m begin with. */
tn_status tni_run_state_hooks(tn_module *m, tni_hook_kind kind, tn_list *state, const char *prefix);
tn_status tni_run_load_post_hooks(tn_module *m, tn_list *missing, tn_list *unexpected);
/* The module goes; its hooks as soon as no graph refers to them. NULL is ignored. */
void tni_hooks_leave(tni_hooks *hooks);

/* ---- walk.c ---------------------------------------------------------------------------------- */

typedef enum tni_repeats {
    TNI_ONCE,     /* a shared module is visited under its first path */
    TNI_SIBLINGS, /* once per parent */
    TNI_EVERY     /* under each of its paths */
} tni_repeats;

/* path: of the module below the root, "" for the root. It is valid during the call only. */
typedef tn_status (*tni_visit)(tn_module *m, const char *path, void *user);

/* Depth first, in registration order; before is called on the way down, after on the way up (either
 * may be NULL). Stops at the first status that is not TN_OK and returns it. Any depth: no
 * recursion. */
tn_status tni_walk(tn_module *root, tni_repeats repeats, tni_visit before, tni_visit after,
                   void *user);

/* Calls change, which cannot fail, for each module once, in that order, or, without the memory to
 * find them all, for none. */
tn_status tni_change_modules(tn_module *root, void (*change)(tn_module *m, void *user), void *user);

/* ---- list.c ---------------------------------------------------------------------------------- */

/* Appends "prefix path.name"; any of prefix and path may be "". Names may repeat. */
tn_status tni_list_push(tn_list *list, const char *prefix, const char *path, const char *name,
                        tn_entry entry);
/* The entry of a name; NULL (no message) when there is none. */
const tn_entry *tni_list_find(const tn_list *list, const char *name);
/* The i-th recorded state version and its module's path; 0 when there are no more. */
int tni_list_versions(const tn_list *list, int i, const char **path);
/* tn_list_version of a path of n bytes. */
int tni_list_version_n(const tn_list *list, const char *path, size_t n);
/* tn_list_set_version without a look at its arguments. */
tn_status tni_list_push_version(tn_list *list, const char *path, int version);
/* A new list with the same names, tensors and versions. */
tn_list *tni_list_copy(const tn_list *list);
/* tn_state_dict without hooks and extra state: what a model's slots hold. */
tn_list *tni_slot_list(tn_module *m);

/* What extra state is saved under, in its module. */
#define TNI_EXTRA_STATE "_extra_state"
static inline int tni_state_version(const tn_module *m)
{
    return m->type->state_version ? m->type->state_version : 1;
}

/* ---- move.c ---------------------------------------------------------------------------------- */

/*
 * New tensors for a set of handles, ties kept: handles over one storage get results over one
 * storage. add() every handle first (twice is harmless), then convert(), then get() the result of
 * each.
 */
typedef struct tni_stage {
    tni_map result;  /* handle -> its new tensor (current scope), itself until converted */
    tni_map sharers; /* storage -> number of handles */
    tni_map base;    /* storage -> all of it, converted, as one axis */
    bool copy;       /* what needs no conversion is copied all the same */
    bool cast;       /* floating tensors become dtype */
    tn_dtype dtype;
    bool move; /* all become device's */
    tn_device device;
} tni_stage;

tn_status tni_stage_add(tni_stage *stage, tn_tensor *t);
tn_status tni_stage_convert(tni_stage *stage);
static inline tn_tensor *tni_stage_get(const tni_stage *stage, const tn_tensor *t)
{
    return tni_map_get(&stage->result, t);
}
void tni_stage_free(tni_stage *stage);

#endif
