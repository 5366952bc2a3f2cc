/*
 * large.h - blocks of 256 KiB and more, for alloc.c: cut from segments of system memory, and joined
 * with their free neighbours when they are given back. Whoever calls holds the lock of memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define TNI_LARGE ((size_t)256 << 10)
#define TNI_HUGE_PAGE ((size_t)2 << 20) /* segments begin at a multiple of it */

/* Takes a segment from the system (NULL: there is no memory), and gives it back. In alloc.c. */
void *tni_segment_alloc(size_t size);
void tni_segment_free(void *segment, size_t size);
/* The most that is asked for ahead of need. */
size_t tni_segment_most(void);
/* Reserves addresses alone: as many as the machine has memory, at least `least`; NULL if the system
 * limits them, or if the user has set an allocator. The second function makes some of them memory;
 * false: the system refuses. */
void *tni_segment_reserve(size_t least, size_t *size);
bool tni_segment_open(char *from, size_t size);
/* The contents of [from, end) of a segment are no longer needed. */
void tni_segment_idle(char *from, const char *end);

/* At least size bytes, aligned to 64. lasting: far from those that are not. *nbytes: what the block
 * takes. *added: bytes that the system gave for it. NULL: out of memory, *added is 0. */
void *tni_large_alloc(size_t size, bool lasting, size_t *nbytes, size_t *added);
/* Returns the bytes that the block took. */
size_t tni_large_free(void *data);
/* Gives unused segments back to the system, and the pages of free blocks in the other segments.
 * Returns the bytes that the system must give again when needed: those of unused segments, and what
 * is free around the fresh bytes of the reserved one. */
size_t tni_large_trim(void);
