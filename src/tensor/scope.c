/*
 * scope.c - who owns results: a thread-local stack of scopes.
 *
 * One array holds the entries of all open scopes of a thread, one below the other; a scope is the
 * index where its entries begin. An entry is one counted reference to an object and the function
 * that releases it. Ending a scope drops its entries in reverse order. The scope stays open
 * meanwhile: dropping may call a user's function (a release, a module's free), and what that
 * creates is dropped too.
 */
#include "tensor/internal.h"

typedef struct entry {
    void *object;
    void (*drop)(void *object);
} entry;

typedef struct frame {
    size_t first; /* its first entry */
    uint64_t serial;
} frame;

typedef struct stack {
    entry *entries;
    size_t n, capacity;
    frame *frames;
    size_t depth, frame_capacity;
    uint64_t serial;  /* the next scope's */
    unsigned guarded; /* frames that stay for now */
    unsigned ended;   /* 1 + the lowest of these that is to end; 0: none */
    int ending;       /* 1 + the depth of the scope that drops its entries; 0: none */
    bool lost;        /* a scope failed to open: do not enter anything into its parent instead */
} stack;

static TNI_THREAD stack scopes;

/* Serials are different in all threads: a thread takes this many at a time. */
enum { SERIALS = 1 << 16 };
static _Atomic uint64_t serials = SERIALS;

static uint64_t next_serial(void)
{
    if (scopes.serial % SERIALS == 0)
        scopes.serial = atomic_fetch_add_explicit(&serials, SERIALS, memory_order_relaxed);
    return scopes.serial++;
}

tn_scope tn_scope_begin(void)
{
    if (!tni_room(&scopes.frames, &scopes.frame_capacity, scopes.depth, 1, sizeof(frame))) {
        scopes.lost = true;
        return (tn_scope){ -1, 0 };
    }
    if (scopes.depth == 0) scopes.lost = false;
    frame f = { scopes.n, next_serial() };
    scopes.frames[scopes.depth++] = f;
    return (tn_scope){ (int64_t)scopes.depth - 1, f.serial };
}

static bool is_open(tn_scope s)
{
    return s.depth >= 0 && (size_t)s.depth < scopes.depth &&
           scopes.frames[s.depth].serial == s.serial;
}

tn_scope tni_scope_ending(void)
{
    int depth = scopes.ending - 1;
    return (tn_scope){ depth, depth < 0 ? 0 : scopes.frames[depth].serial };
}

static void drop_tensor(void *t)
{
    tn_drop(t);
}

static void drop_newest(void)
{
    entry e = scopes.entries[--scopes.n];
    e.drop == drop_tensor ? tn_drop(e.object) : e.drop(e.object); /* a known call takes less */
}

static bool clear(tn_scope s)
{
    do {
        /* close inner scopes, also those that a drop left open */
        scopes.depth = (size_t)s.depth + 1;
        scopes.lost = false;
        if (scopes.n <= scopes.frames[s.depth].first) return true;
        drop_newest();
    } while (is_open(s));
    return false;
}

bool tni_scope_clear(tn_scope s)
{
    if (!is_open(s)) return false;
    if (TNI_LIKELY(!tni_debugging)) return clear(s); /* ending is for its messages */
    int outer = scopes.ending;
    scopes.ending = (int)s.depth + 1;
    bool open = clear(s);
    scopes.ending = outer;
    return open;
}

/* The arrays are freed when the thread's outermost scope ends: a finished thread leaks nothing. */
void tn_scope_end(tn_scope s)
{
    if (TNI_UNLIKELY(s.depth < (int64_t)scopes.guarded) && is_open(s)) {
        unsigned at = (unsigned)s.depth + 1;
        scopes.ended = scopes.ended ? TNI_MIN(scopes.ended, at) : at;
        return;
    }
    if (!tni_scope_clear(s)) return;
    if ((scopes.depth = (size_t)s.depth) > 0) return;
    tni_room_free(&scopes.entries, &scopes.capacity, sizeof(entry));
    tni_room_free(&scopes.frames, &scopes.frame_capacity, sizeof(frame));
    scopes = (stack){ 0 };
}

size_t tni_scope_guard(void)
{
    size_t was = scopes.guarded;
    scopes.guarded = (unsigned)scopes.depth;
    return was;
}

bool tni_scope_unguard(size_t was)
{
    size_t ended = scopes.ended;
    scopes.guarded = (unsigned)was;
    if (TNI_LIKELY(ended <= was)) return false;
    scopes.ended = 0;
    tn_scope_end((tn_scope){ (int64_t)ended - 1, scopes.frames[ended - 1].serial });
    return true;
}

size_t tni_scope_mark(void)
{
    return scopes.n;
}

void tni_scope_cut(size_t mark)
{
    while (scopes.n > mark) drop_newest();
}

bool tni_scope_open(void)
{
    return scopes.depth > 0 || scopes.lost;
}

tn_status tni_scope_missing(const char *who)
{
    return tni_error(TN_E_STATE,
                     "%s%sno scope is open: want tn_scope_begin before it, so that somebody owns "
                     "what it makes",
                     who, *who ? ": " : "");
}

tn_status tni_scope_add(const char *who, void *object, void (*drop)(void *object))
{
    if (scopes.lost) {
        drop(object);
        return tni_error(TN_E_NOMEM, "out of memory: the current scope could not be opened");
    }
    if (scopes.depth == 0) {
        drop(object);
        return tni_scope_missing(who);
    }
    if (!tni_room(&scopes.entries, &scopes.capacity, scopes.n, 1, sizeof(entry))) {
        drop(object);
        return TN_E_NOMEM;
    }
    scopes.entries[scopes.n++] = (entry){ object, drop };
    return TN_OK;
}

tn_tensor *tni_scope_adopt(const char *who, tn_tensor *t)
{
    if (!t) return tni_poisoned(who, "t");
    if (tni_none(t)) return t;
    if (tni_gone(t)) return NULL;
    return tni_scope_add(who, t, drop_tensor) == TN_OK ? t : NULL;
}

tn_tensor *tn_scope_adopt(tn_tensor *t)
{
    return tni_scope_adopt(__func__, t);
}

tn_tensor *tni_scope_take(tn_scope s, tn_tensor *t)
{
    if (!is_open(s) || scopes.lost || scopes.n == scopes.frames[scopes.depth - 1].first)
        return tn_keep(t);
    const entry *newest = &scopes.entries[scopes.n - 1];
    if (newest->object != t || newest->drop != drop_tensor) return tn_keep(t);
    scopes.n--;
    return t;
}

tn_tensor *tni_scope_return(const char *who, tn_scope s, tn_tensor *t)
{
    if (s.depth != 0 || !is_open(s)) return tn_scope_return(s, t);
    tn_scope_end(s);
    return t ? tni_nothing(tni_scope_missing(who)) : NULL;
}

tn_tensor *tn_scope_return(tn_scope s, tn_tensor *t)
{
    if (!is_open(s)) return t; /* no scope ends, so t stays where it is */
    if (s.depth < (int64_t)scopes.guarded)
        return tni_fail(TN_E_STATE, "tn_scope_return: the scope was opened outside of the function "
                                    "that the library is calling: want it ended there");
    if (t && !tni_none(t)) {
        if (s.depth == 0) {
            tn_scope_end(s);
            return tni_fail(TN_E_STATE, "tn_scope_return: the outermost scope has no parent to "
                                        "hand the tensor to: want tn_keep before tn_scope_end");
        }
        tn_keep(t);
    }
    tn_scope_end(s);
    return t ? tn_scope_adopt(t) : NULL;
}

tn_status tni_scope_hand_over(tn_scope s, const size_t *guarded, tn_status status, int64_t n,
                              tn_tensor **out)
{
    int64_t kept = status == TN_OK ? n : 0;
    for (int64_t i = 0; i < kept; i++) tn_keep(out[i]);
    if (guarded) tni_scope_unguard(*guarded);
    tn_scope_end(s);
    for (int64_t i = 0; i < kept; i++) /* all of them: each reference must go somewhere */
        if (!tn_scope_adopt(out[i])) status = tni_pending();
    for (int64_t i = 0; status != TN_OK && i < n; i++) out[i] = NULL;
    return status;
}

bool tni_scope_alone(tn_scope from, const void *object)
{
    int n = 0; /* its entries in `from` and the scopes within */
    for (size_t i = is_open(from) ? scopes.frames[from.depth].first : scopes.n; i < scopes.n; i++)
        n += scopes.entries[i].object == object;
    for (size_t i = scopes.n; n && i-- > 0;)
        if (scopes.entries[i].object == object && scopes.entries[i].drop == drop_tensor)
            return atomic_load_explicit(&((const tn_tensor *)object)->refs, memory_order_relaxed) <=
                   n;
    return n > 0; /* for example a list, which only its scope holds */
}

tn_scope tni_scope_outermost(void)
{
    return scopes.depth ? (tn_scope){ 0, scopes.frames[0].serial } : (tn_scope){ -1, 0 };
}
