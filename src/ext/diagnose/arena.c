/* arena.c - see arena.h. */
#include "ext/diagnose/arena.h"

/* A block of an arena; what is allocated follows. */
typedef struct tni_chunk {
    struct tni_chunk *older;
    size_t size, used; /* with this head */
} tni_chunk;

void *tni_arena_alloc(tni_arena *a, size_t size)
{
    enum { FIRST = 2048, MOST = 65536, ALIGN = _Alignof(max_align_t) };
    const size_t head = (sizeof(tni_chunk) + ALIGN - 1) / ALIGN * ALIGN;
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    tni_chunk *c = a->newest;
    if (a->failed && *a->failed != TN_OK) return NULL;
    if (!c || c->size - c->used < size) {
        size_t usual = c ? TNI_MIN(2 * c->size, (size_t)MOST) : FIRST;
        size_t room = TNI_MAX(usual, head + size);
        c = tni_alloc(room);
        if (!c && a->failed) *a->failed = TN_E_NOMEM;
        if (!c) return NULL;
        *c = (tni_chunk){ a->newest, room, head };
        a->newest = c;
    }
    void *block = (char *)c + c->used;
    c->used += size;
    return memset(block, 0, size);
}

char *tni_arena_text(tni_arena *a, const char *text)
{
    size_t n = text ? strlen(text) : 0;
    char *copy = tni_arena_alloc(a, n + 1);
    return copy && n ? memcpy(copy, text, n) : copy;
}

/* Full arrays have a power of two of items, at least FIRST. */
void *tni_arena_more(tni_arena *a, void *items, size_t *n, size_t size)
{
    enum { FIRST = 4 };
    char *at;
    memcpy(&at, items, sizeof at); /* through bytes: the pointer may be of any type */
    if (*n == 0 || (*n >= FIRST && !(*n & (*n - 1)))) {
        char *larger = tni_arena_alloc(a, TNI_MAX(2 * *n, (size_t)FIRST) * size);
        if (!larger) return NULL;
        if (*n) memcpy(larger, at, *n * size);
        memcpy(items, &larger, sizeof larger);
        at = larger;
    }
    return at + (*n)++ * size;
}

void *tni_arena_new(tni_arena *a, void *items, size_t *n, size_t size)
{
    void *item = tni_arena_alloc(a, size);
    void **at = item ? tni_arena_more(a, items, n, sizeof item) : NULL;
    return at ? *at = item : NULL;
}

void tni_arena_free(tni_arena *a)
{
    for (tni_chunk *c = a->newest, *older; c; c = older) {
        older = c->older;
        tni_free(c, c->size);
    }
    a->newest = NULL;
}

tni_phrase tni_phrase_of(const char *format, ...)
{
    tni_phrase p;
    va_list args;
    va_start(args, format);
    vsnprintf(p.s, sizeof p.s, format, args);
    va_end(args);
    return p;
}
