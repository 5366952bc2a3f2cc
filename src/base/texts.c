/*
 * texts.c - the buffers for text that each thread has, and adding to a text: see base.h.
 *
 * They are not thread-local variables: the loader has a few hundred bytes to spare for those of a
 * library that is opened while the program runs, and refuses one that wants more. The first threads
 * take theirs from a pool, so that a message about memory needs none.
 */
#include "base/base.h"

enum { POOL = 8 };

static tni_texts pool[POOL];
static atomic_uint taken; /* a bit for each of the pool */
static _Thread_local tni_texts *mine;

static bool in_pool(const tni_texts *t)
{
    return (uintptr_t)t - (uintptr_t)pool < sizeof pool;
}

static void give_back(void *texts)
{
    tni_texts *t = texts;
    mine = NULL; /* a later destructor of the thread's may fail, and ask again */
    if (in_pool(t))
        atomic_fetch_and_explicit(&taken, ~(1U << (t - pool)), memory_order_release);
    else
        free(t);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;

static void make_key(void)
{
    has_key = pthread_key_create(&key, give_back) == 0;
}

static tni_texts *claim(void)
{
    for (unsigned i = 0, bit = 1; i < POOL; i++, bit <<= 1) {
        if (atomic_fetch_or_explicit(&taken, bit, memory_order_acquire) & bit) continue;
        memset(&pool[i], 0, sizeof pool[i]);
        return &pool[i];
    }
    return calloc(1, sizeof(tni_texts));
}

tni_texts *tni_texts_mine(void)
{
    if (mine) return mine;
    pthread_once(&once, make_key);
    tni_texts *t = claim();
    bool returns = t && has_key && pthread_setspecific(key, t) == 0;
    if (t && !returns && !in_pool(t)) { /* nobody would free it */
        free(t);
        t = NULL;
    }
    return mine = t;
}

const tni_texts *tni_texts_now(void)
{
    return mine;
}

void tni_text_add(char *text, size_t size, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, size - n, format, args);
    va_end(args);
}
