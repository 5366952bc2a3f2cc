/*
 * named.h - items in order, found by name: a module's slots, a list's entries.
 *
 * Serial numbers ascend with the items and never change; before its text, a name has its item's. A
 * table leads from a name to that number, so finding an item is a binary search, and removing one
 * shifts the shorter side, before or after it.
 */
#ifndef TNI_NAMED_H
#define TNI_NAMED_H

#include "base/base.h"
#include "base/map.h"

/* An array's owner has a typed pointer to the first item and their number; below, items is the
 * address of the pointer. An item begins with its name. Zeroed but for size, it is empty. */
typedef struct tni_named {
    size_t size; /* of an item */
    char *room;  /* the first item lies somewhere in it */
    size_t capacity;
    int64_t serials; /* number given so far */
    int repeated;    /* items with an earlier one's name: the table has the first */
    tni_map names;   /* -> serial number */
} tni_named;

/* The first item with a name of `length` bytes; NULL (no message) if there is none. */
void *tni_named_find(const tni_named *r, const void *items, int n, const char *name, size_t length);
/* The item of a serial number; NULL (no message) if there is none. And its number. */
void *tni_named_at(const tni_named *r, const void *items, int n, int64_t serial);
int64_t tni_named_serial(const void *item);
/* Appends an item, zeroed but for its name, "prefix path.name" (any of prefix and path may be "").
 * NULL + message. */
void *tni_named_add(tni_named *r, void *items, int *n, const char *prefix, const char *path,
                    const char *name);
void tni_named_remove(tni_named *r, void *items, int *n, void *item);
/* Gives an item a name that none has. */
tn_status tni_named_rename(tni_named *r, const void *items, int n, void *item, const char *name);
/* Gives items that were put into another order numbers that ascend again. Cannot fail. */
void tni_named_renumber(tni_named *r, const void *items, int n);
/* Frees names, table and array. */
void tni_named_free(tni_named *r, const void *items, int n);

#endif
