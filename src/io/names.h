/*
 * names.h - sorted names: binary search, duplicates, lookup by prefix.
 *
 * Names in files are untrusted; a sorted table, unlike a hash table, has no bad cases.
 */
#ifndef TNI_NAMES_H
#define TNI_NAMES_H

#include <tenon/io.h>

#include "tensor/internal.h"

typedef struct tni_name {
    const char *text;
    int at; /* its index before sorting */
} tni_name;

typedef struct tni_names {
    tni_name *name; /* in the order of strcmp; n of them */
    int n;
} tni_names;

/* Sorts the names of n structures of `size` bytes, their first members. Nothing is copied. */
tn_status tni_names_make(tni_names *names, const void *first, size_t size, int n);
void tni_names_free(tni_names *names);
/* The index of a name, -1: none. */
int tni_names_find(const tni_names *names, const char *text);
/* A name that occurs more than once, NULL: none. */
const char *tni_names_twice(const tni_names *names);
/* The indices of the *n names that begin with prefix, ascending; free with tni_places_free. NULL +
 * message. */
int *tni_names_under(const tni_names *names, const char *prefix, int *n);
void tni_places_free(int *places, int n);

/* A pair of strings. */
typedef struct tni_pair {
    const char *key, *value;
} tni_pair;
/* A copy of n pairs, in one block of the current scope. */
tn_status tni_metadata_of(const tni_pair *pair, int n, tn_metadata *out);
/* Whether the caller's pairs have as many strings as they say. NULL: no pairs. */
tn_status tni_metadata_check(const char *function, const tn_metadata *metadata);

#endif
