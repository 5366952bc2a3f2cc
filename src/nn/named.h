/*
 * named.h - items in order, found by name: a module's slots, a list's entries.
 *
 * Items have ascending serial numbers that never change; each is stored before the text of its
 * item's name. A table maps a name to that number, so finding an item is a binary search, and
 * removing one shifts only the shorter side, before or after it.
 */
#pragma once

#include "base/base.h"
#include "base/map.h"

/* The owner of an array has a typed pointer to the first item, and their number; below, items is
 * the address of that pointer. An item begins with its name. All zero but size, it is empty. */
typedef struct tni_named {
    size_t size; /* of an item */
    char *room;  /* the first item lies somewhere in it */
    size_t capacity;
    int64_t serials; /* number given so far */
    int repeated;    /* items that repeat a name: the table has the first */
    tni_map names;   /* -> serial number */
} tni_named;

/* The first item with a name of `length` bytes; NULL (no message) if there is none. */
void *tni_named_find(const tni_named *r, const void *items, int n, const char *name, size_t length);
/* The item with a serial number, NULL (no message) if there is none; and an item's number. */
void *tni_named_at(const tni_named *r, const void *items, int n, int64_t serial);
int64_t tni_named_serial(const void *item);
/* Appends an item, zeroed but for its name, "prefix path.name" (any of prefix and path may be "").
 * NULL + message. */
void *tni_named_add(tni_named *r, void *items, int *n, const char *prefix, const char *path,
                    const char *name);
void tni_named_remove(tni_named *r, void *items, int *n, void *item);
/* Gives an item a name that no item has. */
tn_status tni_named_rename(tni_named *r, const void *items, int n, void *item, const char *name);
/* Makes the numbers ascend again after items were reordered. Cannot fail. */
void tni_named_renumber(tni_named *r, const void *items, int n);
/* "prefix path.name", as above; with an empty name: what names below path begin with. NULL +
 * message. The text of an item's name is one, too. */
char *tni_name_new(const char *prefix, const char *path, const char *name);
void tni_name_free(char *name);
/* Frees names, table and array. */
void tni_named_free(tni_named *r, const void *items, int n);
