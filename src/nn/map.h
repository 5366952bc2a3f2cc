/*
 * map.h - a hash table from pointers to pointers (identity), and a set of them. Zeroed is empty.
 */
#ifndef TNI_MAP_H
#define TNI_MAP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tni_map_cell {
    const void *key; /* NULL: free */
    void *value;
} tni_map_cell;

typedef struct tni_map {
    size_t n, capacity; /* capacity 0 or a power of two, at most half full */
    tni_map_cell *cell;
} tni_map;

/* Sets key's value. 1: key is new, 0: it was there, -1: out of memory (nothing changed). */
int tni_map_put(tni_map *map, const void *key, void *value);
/* NULL when key is not there. */
void *tni_map_get(const tni_map *map, const void *key);
void tni_map_free(tni_map *map);

#endif
