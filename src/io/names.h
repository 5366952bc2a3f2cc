/*
 * names.h - what a file lists by name: an array of structures that begin with their names, and
 * where each name is in it. Also pairs of strings.
 */
#ifndef TNI_NAMES_H
#define TNI_NAMES_H

#include <tenon/io.h>

#include "base/map.h"
#include "tensor/internal.h"

/* Beside an array, which its owner has a typed pointer to; below, items is the address of that
 * pointer. The texts of the names are not copied. Zeroed, it is empty. */
typedef struct tni_names {
    int n;
    size_t capacity; /* of the array */
    tni_map places;  /* name -> place in it, from 1 */
} tni_names;

/* Appends an item of `size` bytes. 1: done, 0: its name was there, and is found no more, -1: out of
 * memory, with a message. */
int tni_names_add(tni_names *names, void *items, const void *item, size_t size);
/* The index of a name, -1: none. */
int tni_names_find(const tni_names *names, const char *text);
void tni_names_free(tni_names *names, void *items, size_t size);

/* A pair of strings. */
typedef struct tni_pair {
    const char *key, *value;
} tni_pair;
/* A copy of n pairs, in one block of the current scope. */
tn_status tni_metadata_of(const tni_pair *pair, int n, tn_metadata *out);
/* Whether the caller's pairs have as many strings as they say. NULL: no pairs. */
tn_status tni_metadata_check(const char *function, const tn_metadata *metadata);

#endif
