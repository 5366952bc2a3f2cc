/*
 * map.h - a hash table from keys to pointers, and a set of keys. Zeroed is empty.
 *
 * Keys are addresses, compared as such, or, with `names` set before the first key comes, strings
 * compared by their bytes. Neither is copied: a name lives as long as it is in the table. Where a
 * key comes to lie depends on a number drawn once per process, so that nobody can choose names that
 * all come to lie together.
 */
#ifndef TNI_MAP_H
#define TNI_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tni_map_cell {
    const void *key; /* NULL: free */
    void *value;
} tni_map_cell;

typedef struct tni_map {
    bool names;
    size_t n, capacity; /* capacity 0 or a power of two, at most half full */
    tni_map_cell *cell;
} tni_map;

/* Sets key's value. 1: key is new, 0: it was there (and stays the key), -1: out of memory (nothing
 * changed; never for a key that is there, or below a number that was reserved). */
int tni_map_put(tni_map *map, const void *key, void *value);
/* NULL when key is not there. */
void *tni_map_get(const tni_map *map, const void *key);
/* The same for a name of n bytes that need not end there. */
void *tni_map_get_name(const tni_map *map, const char *name, size_t n);
/* Whether key was there. */
bool tni_map_remove(tni_map *map, const void *key);
/* Room for n keys in all. False and a message when there is none. */
bool tni_map_reserve(tni_map *map, size_t n);
/* Empty again, of the same kind of keys. */
void tni_map_free(tni_map *map);

/* An address as a number that looks drawn at random, the same for the life of the process. */
uint64_t tni_hash_address(const void *address);

#endif
