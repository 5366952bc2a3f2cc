/*
 * map.h - a hash table from keys to pointers, and a set of keys. Zeroed is empty.
 *
 * Keys are addresses or, if `names` is set before the first key, strings compared by their bytes.
 * They are not copied: a name must live as long as it is in the table. The hash depends on a number
 * drawn once per process, so that nobody can choose names that collide.
 */
#pragma once

#include "base/base.h"

typedef struct tni_map_cell {
    const void *key; /* NULL: free */
    void *value;
} tni_map_cell;

typedef struct tni_map {
    bool names;
    size_t n, capacity; /* capacity 0 or a power of two, at most half full */
    tni_map_cell *cell;
} tni_map;

/* Sets key's value. 1: key is new, 0: it was present (the old key stays), -1: out of memory
 * (nothing changed; cannot happen for a present key, or within a reserved number). */
TNI_SHARED int tni_map_put(tni_map *map, const void *key, void *value);
/* NULL if key is not present. */
TNI_SHARED void *tni_map_get(const tni_map *map, const void *key);
/* The same for a name of n bytes, not necessarily terminated. */
void *tni_map_get_name(const tni_map *map, const char *name, size_t n);
/* Whether key was present. */
TNI_SHARED bool tni_map_remove(tni_map *map, const void *key);
/* Makes room for n keys in all. False and a message when out of memory. */
bool tni_map_reserve(tni_map *map, size_t n);
/* Empties the table; the kind of keys stays. */
TNI_SHARED void tni_map_free(tni_map *map);

/* The same number in every process: FNV-1a, 64 bits, of more bytes, from TNI_NO_HASH on. Fowler,
 * Noll, Vo. */
#define TNI_NO_HASH UINT64_C(0xcbf29ce484222325)
uint64_t tni_hash(uint64_t hash, const void *data, size_t n);
