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
 *
 * A segment has as many addresses as the machine has memory, so that all blocks can be joined; a
 * page takes memory when it is touched first. Blocks that last as long as the program, like an
 * optimizer's state, are cut from the end of the fresh bytes: between activations, they would leave
 * gaps in every step.
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
    uintptr_t fresh, fresh_end;   /* bytes that nobody has had yet */
} block;
_Static_assert(sizeof(block) <= HEADER, "room before the data");

static block *lists[ROWS][STEPS];
static uint32_t filled[ROWS]; /* which lists of a row have blocks */
static size_t total;          /* bytes of all segments */
static bool has_room;         /* the last one has as many addresses as are wanted */

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

/* The largest free block, if more than size bytes of it are fresh. Segments that grow with the
 * program are not filled from both ends: nothing would have room between them. */
static block *find_fresh(size_t size)
{
    int row = ROWS - 1;
    while (row > 0 && !filled[row]) row--;
    block *b = filled[row] ? lists[row][log2_of(filled[row])] : NULL;
    size_t least = size + ((size_t)1 << LOG2_LEAST);
    return has_room && b && b->fresh_end - b->fresh >= least ? b : NULL;
}

/* A new segment as one block: of addresses as many as may be needed; of memory, or where so many
 * are refused, more as the program grows; or as large as the system has. */
static block *segment(size_t size, size_t *added)
{
    bool fresh;
    size_t most = tni_segment_most(&fresh), grown = TNI_MIN(TNI_MAX(total, FIRST_SEGMENT), most);
    size_t tries[] = { fresh ? most : grown, grown, 0 }, more = 0;
    block *b = NULL;
    for (int i = 0; i < 3 && !b; i++) {
        b = tni_segment_alloc(more = TNI_MAX(size, tries[i]));
        has_room = fresh && i == 0;
    }
    if (!b) return NULL;
    *b = (block){ .size = more };
    total += more;
    if (fresh)
        b->fresh = (uintptr_t)b, b->fresh_end = (uintptr_t)b + more;
    else
        *added = more;
    return b;
}

/* Parts b after size bytes; returns what is behind them, or NULL if that would be too small.
 * Neither is in a list. */
static block *part(block *b, size_t size)
{
    if (b->size - size < (size_t)1 << LOG2_LEAST) return NULL;
    block *rest = (block *)(void *)((char *)b + size);
    uintptr_t here = (uintptr_t)rest;
    *rest = (block){ b->size - size, .before = b, .after = b->after };
    rest->fresh = TNI_MAX(b->fresh, here);
    rest->fresh_end = TNI_MAX(b->fresh_end, here);
    b->fresh = TNI_MIN(b->fresh, here);
    b->fresh_end = TNI_MIN(b->fresh_end, here);
    if (b->after) b->after->before = rest;
    b->after = rest;
    b->size = size;
    return rest;
}

/* b takes in the block behind it. Neither is in a list. Blocks are cut from either end of fresh
 * bytes, so only one of two free neighbours has some. */
static void join(block *b)
{
    block *rest = b->after;
    if (rest->fresh < rest->fresh_end) b->fresh = rest->fresh, b->fresh_end = rest->fresh_end;
    b->size += rest->size;
    b->after = rest->after;
    if (b->after) b->after->before = b;
}

void *tni_large_alloc(size_t size, bool lasting, size_t *nbytes, size_t *added)
{
    size_t want = (size + HEADER + PAGE - 1) / PAGE * PAGE;
    block *from = lasting ? find_fresh(want) : NULL, *b = from ? from : find(want);
    *added = 0;
    if (b)
        unlist(b);
    else if (!(b = segment(want, added)))
        return NULL;
    block *rest = part(b, from ? b->size - want : want);
    if (from) b = rest, rest = from;
    if (rest) list(rest);
    *added += b->fresh_end - b->fresh;
    b->fresh = b->fresh_end = 0;
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
                freed += b->size - (b->fresh_end - b->fresh);
                total -= b->size;
                tni_segment_free(b, b->size);
            }
    return freed;
}
