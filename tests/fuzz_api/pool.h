/* pool.h - the objects a sequence of calls has made: see pool.c. */
#ifndef TENON_FUZZ_API_POOL_H
#define TENON_FUZZ_API_POOL_H

#include <string.h>

#include "world.h"

/* The allocator below the library's cache: a limit, a count, and a request that fails. */
typedef struct memory_hook {
    _Atomic int64_t in_use, left; /* left: requests still granted, -1: all */
    _Atomic int64_t refused;      /* ever */
    _Atomic int64_t tight;        /* of them, near the ceiling: a cache rounds up and holds more */
    bool for_good;                /* after the refused one, all are refused */
} memory_hook;
extern memory_hook memory;
extern const tn_allocator limited_allocator, modest_allocator;

void begin_sequence(world *w, uint64_t seed);
/* Frees everything. */
void end_sequence(world *w);

/* Each takes over one reference, and frees what it replaces. */
void pool_tensor(world *w, tn_tensor *t); /* keeps it: t belongs to a scope */
void pool_module(world *w, tn_module *m);
void drop_evicted(world *w); /* when none of them can be an argument any more */
void pool_list(world *w, tn_list *list);
void pool_result(world *w);             /* the row's result */
void forget_lists(world *w, int depth); /* those of scopes as deep or deeper */
void close_scopes(world *w, int depth); /* after scope number depth was closed */

uint64_t mix(uint64_t hash, uint64_t value);
uint64_t hash_bytes(const void *bytes, size_t n);
uint64_t hash_tensor(const tn_tensor *t);
uint64_t hash_module(tn_module *m);
uint64_t hash_list(const tn_list *list);
uint64_t hash_optim(tn_optim *opt);
/* Of all that the arguments of a row are. */
uint64_t hash_arguments(world *w, const row *r);

/* Whether a function of that name gives a hook's id, which is the process's. */
static inline bool is_hook_id(const char *name)
{
    return strncmp(name, "tn_register_", 12) == 0 || strcmp(name, "tn_optim_add_hook") == 0;
}

#endif
