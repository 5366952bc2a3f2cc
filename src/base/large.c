/*
 * large.c - see large.h. A two-level segregated fit: Masmano et al., TLSF: a new dynamic memory
 * allocator for real-time systems (2004).
 *
 * A training step asks for large blocks of many sizes, which are not all needed at one time: while
 * activations are made, the gradients of the last step are free. So a free block is cut to size for
 * whoever comes next, in place of being kept for its own size. Free blocks are listed by size, 32
 * lists to a power of two, and a bit says which lists are not empty: finding one takes the same
 * time however many there are. Of its own list a request looks at the first few blocks, the sizes
 * of the last step among them; any block of a later list is large enough.
 */
#include <stdbool.h>
#include <stdint.h>

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

typedef struct block {
    size_t size;                  /* with this header */
    struct block *before, *after; /* neighbours in the segment; NULL at its ends */
    struct block *next, **link;   /* in its list; link NULL: in use */
} block;

static block *lists[ROWS][STEPS];
static uint32_t filled[ROWS]; /* which lists of a row have blocks */
static size_t total;          /* bytes of all segments */

static int log2_of(size_t size)
{
    return 63 - __builtin_clzll((unsigned long long)size);
}

/* The list of a size: its row by the power of two, its column by the next five bits. */
static void place(size_t size, int *row, int *column)
{
    int log2 = log2_of(size);
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

/* A new segment as one block; larger ones as the program grows, or as large as the system has. */
static block *segment(size_t size, size_t *added)
{
    size_t more = TNI_MAX(size, TNI_MIN(TNI_MAX(total, FIRST_SEGMENT), tni_segment_most()));
    block *b = tni_segment_alloc(more);
    if (!b && more > size) b = tni_segment_alloc(more = size);
    if (!b) return NULL;
    *b = (block){ .size = more };
    total += more;
    *added = more;
    return b;
}

/* Leaves size bytes to b, and the rest as a free block. Whoever stands behind a free block is in
 * use, so there is nothing to join it with. */
static void cut(block *b, size_t size)
{
    if (b->size - size < (size_t)1 << LOG2_LEAST) return;
    block *rest = (block *)(void *)((char *)b + size);
    *rest = (block){ .size = b->size - size, .before = b, .after = b->after };
    if (b->after) b->after->before = rest;
    b->after = rest;
    b->size = size;
    list(rest);
}

/* b takes in the block behind it. Neither is in a list. */
static void join(block *b)
{
    b->size += b->after->size;
    b->after = b->after->after;
    if (b->after) b->after->before = b;
}

void *tni_large_alloc(size_t size, size_t *nbytes, size_t *added)
{
    size_t want = (size + HEADER + PAGE - 1) / PAGE * PAGE;
    block *b = find(want);
    *added = 0;
    if (b)
        unlist(b);
    else if (!(b = segment(want, added)))
        return NULL;
    cut(b, want);
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
    if (b->before && b->before->link) {
        b = b->before;
        unlist(b);
        join(b);
    }
    list(b);
    return nbytes;
}

size_t tni_large_trim(void)
{
    size_t freed = 0;
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < STEPS; column++)
            for (block *b = lists[row][column], *next; b; b = next) {
                next = b->next;
                if (b->before || b->after) {
                    tni_segment_idle((char *)b + HEADER, (char *)b + b->size);
                    continue;
                }
                unlist(b);
                freed += b->size;
                tni_segment_free(b, b->size);
            }
    total -= freed;
    return freed;
}
