/* arena.h - memory of a report, a walk or a trace, freed as a whole; short texts that need none. */
#pragma once

#include "base/base.h"

/* Empty when zeroed. */
typedef struct tni_arena {
    struct tni_chunk *newest;
    tn_status *failed; /* NULL, or becomes TN_E_NOMEM when there is none; then all fail */
} tni_arena;

/* Zeroed. NULL: out of memory, for the three below as well. */
TNI_SHARED void *tni_arena_alloc(tni_arena *a, size_t size);
/* A copy; of NULL: "" */
TNI_SHARED char *tni_arena_text(tni_arena *a, const char *text);
/* The next item, zeroed, of an array that only grows; items is the address of its pointer. */
TNI_SHARED void *tni_arena_more(tni_arena *a, void *items, size_t *n, size_t size);
/* The next item, zeroed, of an array of pointers to items. */
TNI_SHARED void *tni_arena_new(tni_arena *a, void *items, size_t *n, size_t size);
TNI_SHARED void tni_arena_free(tni_arena *a); /* may be used again */

/* A few words, by value: fprintf(file, "%s", tni_log_result(op, 0).s). */
typedef struct tni_phrase {
    char s[512];
} tni_phrase;

TNI_SHARED tni_phrase tni_phrase_of(const char *format, ...) TN_PRINTF(1, 2);
