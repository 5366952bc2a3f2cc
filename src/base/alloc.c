/*
 * alloc.c - all memory of the library: a cache of free blocks by size class over one replaceable
 * allocator.
 *
 * A training step requests the same sizes again and again, so a freed block is kept in the list of
 * its class for the next request: after the first steps nothing is requested from the system.
 * Classes: multiples of 64 bytes up to 1 KiB, then eight steps per power of two (at most 12.5 % is
 * lost). A free block's first bytes are its entry in the list, so the cache itself needs no memory.
 * Blocks of 256 KiB and more are cut to size and joined again (large.c).
 *
 * Sanitizer builds, and TN_CACHE=0 in the environment, go straight to the allocator: a use after
 * free is then seen where it happens.
 */
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/base.h"
#include "base/large.h"

#if !defined(__has_feature)
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define CACHED_BY_DEFAULT 0
#else
#define CACHED_BY_DEFAULT 1
#endif

enum {
    ALIGNMENT = 64,
    SMALL = 1024,                          /* up to here, a class every 64 bytes */
    SMALL_CLASSES = SMALL / ALIGNMENT + 1, /* class 0 is never used */
    STEPS = 8,                             /* classes per power of two above */
    CLASSES = SMALL_CLASSES + STEPS * 53
};

typedef struct free_block {
    struct free_block *next;
    size_t size;
} free_block;

static free_block *lists[CLASSES];
static tn_memory_stats stats;
static tn_allocator allocator; /* alloc NULL: the default below */
static int cached = -1;        /* -1: not decided yet */
static _Thread_local bool lasting;

/* Every op allocates, so this lock orders almost everything that threads do, and hides races
 * between them from ThreadSanitizer. In a build with it, TN_UNSEEN_LOCK=1 in the environment hides
 * this lock and the data it guards from the sanitizer. */
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

static bool unseen;

__attribute__((constructor)) static void decide_unseen(void)
{
    const char *text = getenv("TN_UNSEEN_LOCK");
    unseen = text && strcmp(text, "1") == 0;
}

static void look_away(bool begin)
{
    if (!unseen) return;
    (begin ? AnnotateIgnoreSyncBegin : AnnotateIgnoreSyncEnd)(__FILE__, __LINE__);
    (begin ? AnnotateIgnoreReadsBegin : AnnotateIgnoreReadsEnd)(__FILE__, __LINE__);
    (begin ? AnnotateIgnoreWritesBegin : AnnotateIgnoreWritesEnd)(__FILE__, __LINE__);
}
#else
static inline void look_away(bool begin)
{
    (void)begin;
}
#endif

static inline void take(void)
{
    look_away(true);
    tni_memory_take();
}

static inline void give(void)
{
    tni_memory_give();
    look_away(false);
}

static void *system_alloc(size_t size)
{
    void *block = NULL;
    if (allocator.alloc) return allocator.alloc(allocator.user, size);
    return posix_memalign(&block, ALIGNMENT, size) == 0 ? block : NULL;
}

static void system_free(void *block, size_t size)
{
    if (allocator.free)
        allocator.free(allocator.user, block, size);
    else
        free(block);
}

static size_t huge_pages(size_t size)
{
    return (size + TNI_HUGE_PAGE - 1) & ~(TNI_HUGE_PAGE - 1);
}

/* Pages, which take memory only once they are touched. It maps enough to begin at a huge page, and
 * gives back what is left over. */
static void *map_pages(size_t size, int access)
{
    char *at = mmap(NULL, size + TNI_HUGE_PAGE, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    size_t before = TNI_HUGE_PAGE - ((uintptr_t)at & (TNI_HUGE_PAGE - 1));
    munmap(at, before);
    if (before < TNI_HUGE_PAGE) munmap(at + before + size, TNI_HUGE_PAGE - before);
    madvise(at + before, size, MADV_HUGEPAGE); /* only a hint */
    return at + before;
}

void *tni_segment_alloc(size_t size)
{
    return allocator.alloc ? system_alloc(size)
                           : map_pages(huge_pages(size), PROT_READ | PROT_WRITE);
}

size_t tni_segment_most(void)
{
    return (size_t)(allocator.alloc ? 128 : 4096) << 20;
}

/* Addresses that can't be read or written don't count in what the system grants, locks or dumps. */
void *tni_segment_reserve(size_t least, size_t *size)
{
    struct rlimit limit;
    size_t pages = (size_t)sysconf(_SC_PHYS_PAGES), page = (size_t)sysconf(_SC_PAGESIZE);
    *size = pages * page / TNI_HUGE_PAGE * TNI_HUGE_PAGE;
    bool limited = getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
    return allocator.alloc || limited || *size < least ? NULL : map_pages(*size, PROT_NONE);
}

bool tni_segment_open(char *from, size_t size)
{
    return mprotect(from, size, PROT_READ | PROT_WRITE) == 0;
}

void tni_segment_free(void *segment, size_t size)
{
    if (allocator.free)
        system_free(segment, size);
    else
        munmap(segment, huge_pages(size));
}

void tni_segment_idle(char *from, const char *end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t before = (page - ((uintptr_t)from & (page - 1))) & (page - 1);
    size_t pages = (size_t)(end - from) > before ? ((size_t)(end - from) - before) / page : 0;
    if (!allocator.alloc && pages) madvise(from + before, pages * page, MADV_DONTNEED);
}

/* The class of a size and the size of its blocks; -1 if the size is too large for any block. */
static int class_of(size_t size, size_t *rounded)
{
    if (size <= SMALL) {
        int class = (int)((size + ALIGNMENT - 1) / ALIGNMENT);
        class = class ? class : 1;
        *rounded = (size_t) class * ALIGNMENT;
        return class;
    }
    /* 2^log2 < size <= 2^(log2+1) */
    int log2 = 63 - __builtin_clzll((unsigned long long)(size - 1));
    if (log2 >= 62) return -1;
    size_t step = ((size_t)1 << log2) / STEPS;
    int sub = (int)((size - 1 - ((size_t)1 << log2)) / step);
    *rounded = ((size_t)1 << log2) + (size_t)(sub + 1) * step;
    return SMALL_CLASSES + (log2 - 10) * STEPS + sub;
}

static size_t trim_locked(void)
{
    size_t freed = tni_large_trim();
    for (int i = 0; i < CLASSES; i++)
        while (lists[i]) {
            free_block *block = lists[i];
            lists[i] = block->next;
            freed += block->size;
            system_free(block, block->size);
        }
    stats.cached -= (int64_t)freed;
    return freed;
}

/* A large block through the cache. *rounded: what it takes. */
static void *allocate_large(size_t size, size_t *rounded)
{
    size_t added;
    void *block = tni_large_alloc(size, lasting, rounded, &added);
    if (!block && trim_locked()) block = tni_large_alloc(size, lasting, rounded, &added);
    if (!block || added) stats.system_allocations++;
    if (block) stats.cached += (int64_t)added - (int64_t)*rounded;
    return block;
}

/* A block when no list has one. *rounded: what it takes. */
static void *allocate_new(size_t size, size_t *rounded)
{
    const char *wish = TNI_UNLIKELY(cached < 0) ? getenv("TN_CACHE") : NULL;
    if (cached < 0) cached = wish ? wish[0] != '0' : CACHED_BY_DEFAULT;
    if (cached && size >= TNI_LARGE) return allocate_large(size, rounded);
    size_t wanted = cached ? *rounded : TNI_MAX(size, 1);
    stats.system_allocations++;
    void *block = system_alloc(wanted);
    return !block && trim_locked() ? system_alloc(wanted) : block;
}

/* NULL without a message; in_use is then the number of bytes in use. */
static inline void *allocate(size_t size, const size_t *data, int64_t *count, int64_t *in_use)
{
    size_t rounded = 0;
    int class = class_of(size, &rounded);
    void *block = NULL;
    if (class >= 0) {
        take();
        /* a block a little smaller than TNI_LARGE has the class of TNI_LARGE */
        block = size < TNI_LARGE ? lists[class] : NULL;
        if (TNI_LIKELY(block != NULL)) {
            lists[class] = lists[class]->next;
            stats.cached -= (int64_t)rounded;
        } else {
            block = allocate_new(size, &rounded);
        }
        if (block) {
            stats.in_use += (int64_t)rounded;
            if (stats.in_use > stats.peak_in_use) stats.peak_in_use = stats.in_use;
            if (count) ++*count;
            if (data) {
                stats.data_allocations++;
                stats.data_bytes += (int64_t)*data;
            }
        }
        *in_use = stats.in_use;
        give();
    }
    return block;
}

void *tni_alloc_counted(size_t size, const size_t *data, int64_t *count)
{
    int64_t in_use = 0;
    void *block = allocate(size, data, count, &in_use);
    if (TNI_UNLIKELY(!block))
        tni_error(TN_E_NOMEM, "out of memory: want %zu bytes, %" PRId64 " are in use", size,
                  in_use);
    return block;
}

bool tni_alloc_lasting(bool on)
{
    bool before = lasting;
    lasting = on;
    return before;
}

void tni_free(void *block, size_t size)
{
    tni_free_counted(block, size, NULL);
}

void tni_free_counted(void *block, size_t size, int64_t *count)
{
    size_t rounded = 0;
    if (!block) return;
    int class = class_of(size, &rounded);
    take();
    if (count) --*count;
    if (TNI_LIKELY(cached > 0)) {
        if (TNI_LIKELY(size < TNI_LARGE)) {
            *(free_block *)block = (free_block){ lists[class], rounded };
            lists[class] = block;
        } else {
            rounded = tni_large_free(block);
        }
        stats.cached += (int64_t)rounded;
    } else {
        system_free(block, size ? size : 1);
    }
    stats.in_use -= (int64_t)rounded;
    give();
}

char *tni_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = tni_alloc(n);
    return copy ? memcpy(copy, text, n) : NULL;
}

char *tni_strdup_or_none(const char *text)
{
    size_t n = strlen(text) + 1;
    int64_t in_use;
    char *copy = allocate(n, NULL, NULL, &in_use);
    return copy ? memcpy(copy, text, n) : NULL;
}

char *tni_vtext(const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n < 0) return tni_fail(TN_E_NOMEM, "out of memory: a text could not be made");
    char *text = tni_alloc((size_t)n + 1);
    if (text) vsnprintf(text, (size_t)n + 1, format, args);
    return text;
}

void tni_strfree(char *text)
{
    if (text) tni_free(text, strlen(text) + 1);
}

tn_status tn_set_allocator(const tn_allocator *a)
{
    if (a && (!a->alloc || !a->free))
        return tni_error(TN_E_INVALID, "tn_set_allocator: alloc or free is NULL: want both");
    take();
    int64_t alive = stats.in_use;
    if (alive == 0) { /* else the new free would get blocks from the old alloc */
        trim_locked();
        allocator = a ? *a : (tn_allocator){ 0 };
    }
    give();
    if (alive != 0)
        return tni_error(TN_E_STATE,
                         "tn_set_allocator: %" PRId64 " bytes in use, %" PRId64
                         " tensors alive: want every scope closed and every object freed",
                         alive, tn_live_tensors());
    return TN_OK;
}

#define COPY_OF(type, tn_name, what)                                                               \
    type tn_name(void)                                                                             \
    {                                                                                              \
        take();                                                                                    \
        type copy = what;                                                                          \
        give();                                                                                    \
        return copy;                                                                               \
    }
COPY_OF(tn_allocator, tn_get_allocator, allocator)
COPY_OF(tn_memory_stats, tn_memory, stats)

void tn_memory_reset_peak(void)
{
    take();
    stats.peak_in_use = stats.in_use;
    give();
}

void tn_memory_trim(void)
{
    take();
    trim_locked();
    give();
}
