/*
 * hook_list.h - functions that somebody registered, in order: those on a tensor's gradient, and
 * those of a module.
 *
 * A hook may add hooks and remove any, itself included, while the list is being run. So callers
 * don't walk the list: they ask for the next hook after an id, and get a copy.
 */
#pragma once

#include "tensor/internal.h"

typedef void (*tni_any_hook)(void); /* cast back to what was registered before the call */

typedef struct tni_hook {
    int64_t id;        /* unique in the process, from 1; later ones are larger */
    int kind;          /* the owner's */
    tni_any_hook call; /* NULL: removed */
    void *user;
} tni_hook;

/* Zeroed is empty. Adding, removing and finding the next cost O(log n) amortized. */
typedef struct tni_hook_list {
    size_t n, removed, capacity;
    tni_hook *hook; /* by id */
} tni_hook_list;

/* The new hook's id; -1 when out of memory. */
int64_t tni_hook_add(tni_hook_list *list, int kind, tni_any_hook call, void *user);
void tni_hook_remove(tni_hook_list *list, int64_t id); /* does nothing for an unknown id */
/* The id of the last hook now, 0 if there is none. A run stops at this one, so hooks that are added
 * during the run are not called. */
int64_t tni_hook_last(const tni_hook_list *list);
/* Writes the first hook of a kind with an id above hook->id, up to `last`, to *hook; false if there
 * is none. */
bool tni_hook_next(const tni_hook_list *list, int kind, int64_t last, tni_hook *hook);
void tni_hook_list_free(tni_hook_list *list);

/* Checks a hook's replacement for a gradient: want a tensor of the same shape, dtype and device.
 * For the message: who gave it ("a gradient hook") and whose gradient it is (" of input 0",
 * or ""). */
tn_status tni_hook_check(const char *who, const char *of, const tn_tensor *gradient,
                         const tn_tensor *now);
