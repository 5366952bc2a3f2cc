/* map.c - open addressing with linear probing. */
#include <sys/random.h>
#include <time.h>

#include "base/base.h"
#include "base/map.h"

/* SipHash-1-3 for names, its finish alone for addresses: Aumasson and Bernstein, 2012. */

static uint64_t seed[2];
static pthread_once_t seeded = PTHREAD_ONCE_INIT;

static void draw_seed(void)
{
    if (getrandom(seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* the system has no random numbers yet */
    seed[0] = (uint64_t)now.tv_nsec * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)(uintptr_t)&now;
    seed[1] = (uint64_t)now.tv_sec * UINT64_C(0xbf58476d1ce4e5b9) ^ (uint64_t)(uintptr_t)seed;
}

static uint64_t turn(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void mix(uint64_t v[4])
{
    v[0] += v[1], v[2] += v[3];
    v[1] = turn(v[1], 13) ^ v[0], v[3] = turn(v[3], 16) ^ v[2];
    v[0] = turn(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = turn(v[1], 17) ^ v[2], v[3] = turn(v[3], 21) ^ v[0];
    v[2] = turn(v[2], 32);
}

static uint64_t hash_bytes(const void *bytes, size_t n)
{
    pthread_once(&seeded, draw_seed);
    uint64_t v[4] = { seed[0] ^ UINT64_C(0x736f6d6570736575),
                      seed[1] ^ UINT64_C(0x646f72616e646f6d),
                      seed[0] ^ UINT64_C(0x6c7967656e657261),
                      seed[1] ^ UINT64_C(0x7465646279746573) };
    const char *at = bytes;
    uint64_t word = 0;
    for (size_t left = n; left >= 8; left -= 8, at += 8) {
        memcpy(&word, at, 8);
        v[3] ^= word;
        mix(v);
        v[0] ^= word;
    }
    word = 0;
    memcpy(&word, at, n % 8);
    word |= (uint64_t)n << 56;
    v[3] ^= word;
    mix(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Two multiplications are enough: addresses, unlike names, are not chosen. Steele et al. (2014). */
static uint64_t hash_address(const void *address)
{
    pthread_once(&seeded, draw_seed);
    uint64_t z = (uint64_t)(uintptr_t)address ^ seed[0];
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t tni_hash(uint64_t hash, const void *data, size_t n)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* ---- cells ----------------------------------------------------------------------------------- */

static size_t home(const tni_map *map, const void *key, size_t n)
{
    uint64_t h = map->names ? hash_bytes(key, n) : hash_address(key);
    return (size_t)h & (map->capacity - 1);
}

static size_t length(const tni_map *map, const void *key)
{
    return map->names ? strlen(key) : 0;
}

static bool same(const tni_map *map, const void *a, const void *b, size_t n)
{
    if (a == b) return true;
    return map->names && strncmp(a, b, n) == 0 && ((const char *)a)[n] == '\0';
}

/* The cell of key, or the free one where it belongs; there always is one. n: length of a name. */
static tni_map_cell *locate(const tni_map *map, const void *key, size_t n)
{
    size_t i = home(map, key, n);
    while (map->cell[i].key && !same(map, map->cell[i].key, key, n))
        i = (i + 1) & (map->capacity - 1);
    return &map->cell[i];
}

static bool grow(tni_map *map, size_t capacity)
{
    tni_map larger = { .names = map->names, .n = map->n, .capacity = capacity };
    if (!(larger.cell = tni_calloc_n(capacity, sizeof *map->cell))) return false;
    for (size_t i = 0; i < map->capacity; i++) {
        const tni_map_cell *cell = &map->cell[i];
        if (cell->key) *locate(&larger, cell->key, length(map, cell->key)) = *cell;
    }
    tni_map_free(map);
    *map = larger;
    return true;
}

bool tni_map_reserve(tni_map *map, size_t n)
{
    size_t capacity = map->capacity ? map->capacity : 8;
    while (capacity / 2 < n && capacity <= SIZE_MAX / 4) capacity *= 2;
    return capacity == map->capacity || grow(map, capacity);
}

int tni_map_put(tni_map *map, const void *key, void *value)
{
    size_t n = length(map, key);
    tni_map_cell *cell = map->capacity ? locate(map, key, n) : NULL;
    if (cell && cell->key) {
        cell->value = value;
        return 0;
    }
    if (map->n >= map->capacity / 2) {
        if (!tni_map_reserve(map, map->n + 1)) return -1;
        cell = locate(map, key, n);
    }
    *cell = (tni_map_cell){ key, value };
    map->n++;
    return 1;
}

void *tni_map_get(const tni_map *map, const void *key)
{
    return map->capacity ? locate(map, key, length(map, key))->value : NULL;
}

void *tni_map_get_name(const tni_map *map, const char *name, size_t n)
{
    return map->capacity ? locate(map, name, n)->value : NULL;
}

/* Cells after the hole move back into it, unless that is before their home cell. Knuth, TAOCP vol.
 * 3, sec. 6.4, algorithm R. */
bool tni_map_remove(tni_map *map, const void *key)
{
    tni_map_cell *cell = map->capacity ? locate(map, key, length(map, key)) : NULL;
    if (!cell || !cell->key) return false;
    const size_t mask = map->capacity - 1;
    size_t hole = (size_t)(cell - map->cell);
    for (size_t i = (hole + 1) & mask; map->cell[i].key; i = (i + 1) & mask) {
        size_t at = home(map, map->cell[i].key, length(map, map->cell[i].key));
        if (((i - at) & mask) < ((i - hole) & mask)) continue;
        map->cell[hole] = map->cell[i];
        hole = i;
    }
    map->cell[hole] = (tni_map_cell){ NULL, NULL };
    map->n--;
    return true;
}

void tni_map_free(tni_map *map)
{
    if (map->cell) tni_free(map->cell, map->capacity * sizeof *map->cell);
    *map = (tni_map){ .names = map->names };
}
