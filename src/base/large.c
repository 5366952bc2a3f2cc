/*
 * large.c - see large.h. A two-level segregated fit: Masmano et al., TLSF: a new dynamic memory
 * allocator for real-time systems (2004).
 *
 * A training step asks for large blocks of many sizes, which are not all needed at one time: while
 * activations are made, the gradients of the last step are free. So a free block is cut to size for
 * whoever comes next, in place of being kept for its own size. Free blocks are listed by size, 32
 * lists to a power of two, and a bit says which lists are not empty: finding one takes the same
 * time however many there are. In its own list a request looks at the first few blocks, among which
 * are the sizes of the last step; any block of a later list is large enough.
 *
 * Nothing joins across segments, so one is reserved with as many addresses as the machine has
 * memory, and opened as it is needed. Blocks that last as long as the program, like an optimizer's
 * state, are cut from its end: between activations, they would leave gaps in every step.
 */
#include "base/base.h"
#include "base/large.h"

enum {
    HEADER = 64, /* before the data, which is aligned to as much */
    STEPS = 32,  /* lists per power of two */
    LOG2_STEPS = 5,
    LOG2_LEAST = 16, /* smaller remainders stay with the block that they were cut from */
    ROWS = 63 - LOG2_LEAST,
    PAGE = 4096, /* sizes are multiples of it */
    TRIES = 16   /* blocks of a request's own list */
};

#define FIRST_SEGMENT ((size_t)16 << 20)
#define LEAST ((size_t)1 << LOG2_LEAST)

typedef struct block {
    size_t size;                  /* with this header */
    struct block *before, *after; /* neighbours in the segment; NULL at its ends */
    struct block *next, **link;   /* in its list; link NULL: in use */
} block;
_Static_assert(sizeof(block) <= HEADER, "room before the data");

static block *lists[ROWS][STEPS];
static uint32_t filled[ROWS]; /* which lists of a row have blocks */
static size_t total;          /* bytes of the segments that are not reserved */

/* The reserved segment; NULL: none. Blocks are cut from both ends of its fresh bytes, which nobody
 * has had yet. Of these, [shut, shut_end) can't be read or written yet. */
static block *reserved;
static block *edge; /* the free block that holds the fresh bytes; NULL: none are left */
static uintptr_t fresh, fresh_end, shut, shut_end;

/* The list of a size: its row by the power of two, its column by the next five bits. */
static void place(size_t size, int *row, int *column)
{
    int log2 = 63 - __builtin_clzll((unsigned long long)size);
    *row = log2 - LOG2_LEAST;
    *column = (int)(size >> (log2 - LOG2_STEPS)) & (STEPS - 1);
}

static void list(block *b)
{
    int row, column;
    place(b->size, &row, &column);
    b->link = &lists[row][column];
    b->next = *b->link;
    if (b->next) b->next->link = &b->next;
    *b->link = b;
    filled[row] |= (uint32_t)1 << column;
}

static void unlist(block *b)
{
    int row, column;
    place(b->size, &row, &column);
    *b->link = b->next;
    if (b->next) b->next->link = b->link;
    b->link = NULL;
    if (!lists[row][column]) filled[row] &= ~((uint32_t)1 << column);
}

/* A free block of at least size bytes; NULL: none. */
static block *find(size_t size)
{
    int row, column, tries = TRIES;
    place(size, &row, &column);
    for (block *b = lists[row][column]; b && tries--; b = b->next)
        if (b->size >= size) return b;
    if (++column == STEPS) column = 0, row++;
    uint32_t there = row < ROWS ? filled[row] >> column << column : 0;
    while (!there && ++row < ROWS) there = filled[row];
    return there ? lists[row][__builtin_ctz(there)] : NULL;
}

/* A reserved segment as one free block. */
static block *reserve(size_t least)
{
    size_t size;
    block *b = reserved ? NULL : tni_segment_reserve(least, &size);
    if (!b) return NULL;
    fresh = (uintptr_t)b, fresh_end = fresh + size;
    shut = fresh + TNI_HUGE_PAGE, shut_end = fresh_end;
    if (!tni_segment_open((char *)b, TNI_HUGE_PAGE)) {
        tni_segment_free(b, size);
        return NULL;
    }
    *b = (block){ .size = size };
    return reserved = edge = b;
}

/* A new segment as one free block: reserved; or larger ones as the program grows; or size alone. */
static block *segment(size_t size, size_t *added)
{
    size_t more = TNI_MAX(size, TNI_MIN(TNI_MAX(total, FIRST_SEGMENT), tni_segment_most()));
    block *b = reserve(size);
    if (!b) {
        b = tni_segment_alloc(more);
        if (!b && more > size) b = tni_segment_alloc(more = size);
        if (!b) return NULL;
        *b = (block){ .size = more };
        total += more;
        *added = more;
    }
    list(b);
    return b;
}

/* Takes the first or the last size bytes of the edge, and also opens the header of what is left
 * before fresh bytes. *added grows by the fresh bytes taken. False: the system refuses them. */
static bool advance(size_t size, bool last, size_t *added)
{
    uintptr_t begin = (uintptr_t)edge, end = begin + edge->size, was = fresh_end - fresh;
    uintptr_t now = last ? fresh : TNI_MAX(fresh, TNI_MIN(begin + size, fresh_end));
    uintptr_t now_end = last ? TNI_MIN(fresh_end, end - size) : fresh_end;
    uintptr_t to =
        TNI_MIN((now + PAGE + TNI_HUGE_PAGE - 1) / TNI_HUGE_PAGE * TNI_HUGE_PAGE, shut_end);
    uintptr_t from = TNI_MAX(now_end / TNI_HUGE_PAGE * TNI_HUGE_PAGE, shut);
    if (!last && to > shut) {
        if (!tni_segment_open((char *)edge + (shut - begin), to - shut)) return false;
        shut = to;
    } else if (last && from < shut_end) {
        if (!tni_segment_open((char *)edge + (from - begin), shut_end - from)) return false;
        shut_end = from;
    }
    fresh = now, fresh_end = now_end;
    *added += was - (fresh_end - fresh);
    return true;
}

/* Splits b after size bytes, and returns the rest. Neither is in a list. */
static block *part(block *b, size_t size)
{
    block *rest = (block *)(void *)((char *)b + size);
    *rest = (block){ .size = b->size - size, .before = b, .after = b->after };
    if (b->after) b->after->before = rest;
    b->after = rest;
    b->size = size;
    return rest;
}

/* Joins b with the block behind it. Neither is in a list. */
static void join(block *b)
{
    if (b->after == edge) edge = b;
    b->size += b->after->size;
    b->after = b->after->after;
    if (b->after) b->after->before = b;
}

/* The smallest free block of at least size bytes behind the fresh ones; NULL: none. */
static block *find_last(size_t size)
{
    block *best = NULL;
    for (block *b = edge ? edge->after : NULL; b; b = b->after)
        if (b->link && b->size >= size && (!best || b->size < best->size)) best = b;
    return best;
}

void *tni_large_alloc(size_t size, bool lasting, size_t *nbytes, size_t *added)
{
    size_t want = (size + HEADER + PAGE - 1) / PAGE * PAGE;
    block *b = lasting ? find_last(want) : NULL;
    bool last = lasting && !b && edge && fresh_end - fresh >= want + LEAST;
    *added = 0;
    if (!b) b = last ? edge : find(want);
    if (!b && !(b = segment(want, added))) return NULL;
    bool whole = b->size - want < LEAST;
    if (b == edge && !advance(whole ? b->size : want, last, added)) return NULL;
    unlist(b);
    block *rest = whole ? NULL : part(b, last ? b->size - want : want);
    if (b == edge && !last) edge = rest;
    if (last) {
        list(b);
        b = rest;
    } else if (rest) {
        list(rest);
    }
    if (fresh == fresh_end) edge = NULL;
    *nbytes = b->size;
    return (char *)b + HEADER;
}

size_t tni_large_free(void *data)
{
    block *b = (block *)(void *)((char *)data - HEADER);
    size_t nbytes = b->size;
    if (b->after && b->after->link) {
        unlist(b->after);
        join(b);
    }
    if (b->before && b->before->link && b->before != edge) {
        b = b->before;
        unlist(b);
        join(b);
    }
    list(b);
    return nbytes;
}

/* What is free around the fresh bytes becomes fresh again; returns how much that is. */
static size_t retreat(void)
{
    uintptr_t was = fresh_end - fresh;
    if (!edge) return 0;
    if (edge->after && edge->after->link) {
        unlist(edge);
        unlist(edge->after);
        join(edge);
        list(edge);
    }
    fresh = TNI_MIN(fresh, (uintptr_t)edge + PAGE); /* but for the header */
    fresh_end = (uintptr_t)edge + edge->size;
    return fresh_end - fresh - was;
}

size_t tni_large_trim(void)
{
    size_t freed = retreat();
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < STEPS; column++)
            for (block *b = lists[row][column], *next; b; b = next) {
                next = b->next;
                if (b->before || b->after) {
                    tni_segment_idle((char *)b + HEADER, (char *)b + b->size);
                    continue;
                }
                unlist(b);
                freed += b == edge ? fresh - (uintptr_t)b : b->size;
                if (b == reserved)
                    reserved = edge = NULL;
                else
                    total -= b->size;
                tni_segment_free(b, b->size);
            }
    return freed;
}
