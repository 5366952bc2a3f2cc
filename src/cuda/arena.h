/*
 * arena.h - the memory of a graph: blocks cut from a few large pieces of device memory, by best
 * fit, joined with their neighbours when they are freed. Host code; the caller holds the lock.
 *
 * A graph runs in the order in which it was captured, so a freed block may be reused at once. Lists
 * are searched from the front: this happens while a step is captured, not while it runs.
 */
#pragma once

#include <cstdlib>

#include "cuda/cuda.h"

enum { ARENA_ALIGNMENT = 256 };

/* Neighbours by address within one chunk. */
typedef struct arena_block {
    struct arena_block *before, *after;
    char *at;
    size_t size;
    bool used;
} arena_block;

typedef struct arena_chunk {
    struct arena_chunk *next;
    arena_block *first;
    char *memory;
    size_t size;
} arena_chunk;

typedef struct arena {
    struct arena *next; /* list of all live arenas */
    arena_chunk *chunks;
    int64_t used; /* blocks in use */
    bool closed;  /* its graph is freed: freed with the last block */
} arena;

static inline size_t arena_rounded(size_t nbytes)
{
    if (nbytes == 0) nbytes = 1;
    return (nbytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* Takes over `size` bytes of device memory, a multiple of the alignment; false: host out of
 * memory. */
static inline bool arena_add(arena *a, void *memory, size_t size)
{
    arena_chunk *chunk = static_cast<arena_chunk *>(std::malloc(sizeof *chunk));
    arena_block *block = static_cast<arena_block *>(std::malloc(sizeof *block));
    if (!chunk || !block) {
        std::free(chunk);
        std::free(block);
        return false;
    }
    *block = arena_block{ nullptr, nullptr, static_cast<char *>(memory), size, false };
    *chunk = arena_chunk{ a->chunks, block, block->at, size };
    a->chunks = chunk;
    return true;
}

/* The smallest free block of at least `size` bytes; nullptr: none. */
static inline arena_block *arena_find(arena *a, size_t size)
{
    arena_block *best = nullptr;
    for (arena_chunk *c = a->chunks; c; c = c->next)
        for (arena_block *b = c->first; b; b = b->after)
            if (!b->used && b->size >= size && (!best || b->size < best->size)) best = b;
    return best;
}

/* A block of at least nbytes; nullptr: no room, or (a block could not be cut) host out of
 * memory. */
static inline void *arena_take(arena *a, size_t nbytes)
{
    size_t size = arena_rounded(nbytes);
    arena_block *b = arena_find(a, size);
    if (!b) return nullptr;
    if (b->size > size) {
        arena_block *rest = static_cast<arena_block *>(std::malloc(sizeof *rest));
        if (!rest) return nullptr;
        *rest = arena_block{ b, b->after, b->at + size, b->size - size, false };
        if (b->after) b->after->before = rest;
        b->after = rest;
        b->size = size;
    }
    b->used = true;
    a->used++;
    return b->at;
}

/* Joins b and the block after it. */
static inline void arena_join(arena_block *b)
{
    arena_block *gone = b->after;
    b->size += gone->size;
    b->after = gone->after;
    if (gone->after) gone->after->before = b;
    std::free(gone);
}

/* false: the address is not this arena's. */
static inline bool arena_give(arena *a, const void *at)
{
    const char *p = static_cast<const char *>(at);
    arena_chunk *c = a->chunks;
    while (c && !(p >= c->memory && p < c->memory + c->size)) c = c->next;
    if (!c) return false;
    arena_block *b = c->first;
    while (b->at != p) b = b->after;
    b->used = false;
    a->used--;
    if (b->after && !b->after->used) arena_join(b);
    if (b->before && !b->before->used) arena_join(b->before);
    return true;
}

/* Frees the lists; `release` gets each chunk's memory. */
static inline void arena_free(arena *a, void (*release)(void *memory))
{
    while (a->chunks) {
        arena_chunk *c = a->chunks;
        a->chunks = c->next;
        release(c->memory);
        while (c->first) {
            arena_block *b = c->first;
            c->first = b->after;
            std::free(b);
        }
        std::free(c);
    }
    std::free(a);
}
