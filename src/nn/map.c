/* map.c - open addressing with linear probing; nothing is ever removed. */
#include <stdint.h>

#include "nn/map.h"
#include "tensor/internal.h"

/* Fibonacci hashing: Knuth, TAOCP vol. 3, sec. 6.4. Addresses are multiples of 8 and more. */
static size_t home(const tni_map *map, const void *key)
{
    return (size_t)(((uint64_t)(uintptr_t)key >> 3) * UINT64_C(0x9e3779b97f4a7c15) >> 20) &
           (map->capacity - 1);
}

/* The cell of key, or the free one where it belongs. There always is one. */
static tni_map_cell *locate(const tni_map *map, const void *key)
{
    size_t i = home(map, key);
    while (map->cell[i].key && map->cell[i].key != key) i = (i + 1) & (map->capacity - 1);
    return &map->cell[i];
}

static bool grow(tni_map *map)
{
    tni_map larger = { .n = map->n, .capacity = map->capacity ? map->capacity * 2 : 32 };
    size_t nbytes;
    if (!tni_mul_size(larger.capacity, sizeof *map->cell, &nbytes)) return false;
    larger.cell = tni_calloc(nbytes);
    if (!larger.cell) return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->cell[i].key) *locate(&larger, map->cell[i].key) = map->cell[i];
    tni_map_free(map);
    *map = larger;
    return true;
}

int tni_map_put(tni_map *map, const void *key, void *value)
{
    if (map->n * 2 >= map->capacity && !grow(map)) return -1;
    tni_map_cell *cell = locate(map, key);
    bool is_new = !cell->key;
    *cell = (tni_map_cell){ key, value };
    map->n += is_new;
    return is_new;
}

void *tni_map_get(const tni_map *map, const void *key)
{
    return map->capacity ? locate(map, key)->value : NULL;
}

void tni_map_free(tni_map *map)
{
    if (map->cell) tni_free(map->cell, map->capacity * sizeof *map->cell);
    *map = (tni_map){ 0 };
}
