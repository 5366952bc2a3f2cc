/*
 * base.h - what every file of the library uses: messages, locks, memory, growing arrays, and the
 * headers of the C library that most files need.
 *
 * Nothing here knows the inside of a tensor. See also map.h (a hash table) and host.h
 * (floating-point traps, the locale).
 */
#pragma once

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/tensor.h>

#if defined(__GNUC__)
#define TNI_LIKELY(x) __builtin_expect(!!(x), 1)
#define TNI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TNI_NOINLINE __attribute__((noinline))
#else
#define TNI_LIKELY(x) (x)
#define TNI_UNLIKELY(x) (x)
#define TNI_NOINLINE
#endif

/* Visible outside of libtenon: for libraries of our own above it (libtenon-trace), of the same
 * version. No promise to anybody else. */
#define TNI_SHARED __attribute__((visibility("default")))

#define TNI_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TNI_MAX(a, b) ((a) > (b) ? (a) : (b))

/* A thread-local variable that every op reads. initial-exec: reading it takes no call. The loader
 * keeps little space for thread-local variables of either kind (a test says how little), so buffers
 * are in tni_texts. */
#define TNI_THREAD _Thread_local __attribute__((tls_model("initial-exec")))

/* ---- errors (error.c) ------------------------------------------------------------------------ */

/* The one place where status and message are set. Returns the status. */
TNI_SHARED tn_status tni_error(tn_status status, const char *format, ...) TN_PRINTF(2, 3);
/* Results of functions that return no status, after a call that failed. */
#define TNI_AFTER_ERROR(type, name, result)                                                        \
    static inline type name(tn_status status)                                                      \
    {                                                                                              \
        (void)status;                                                                              \
        return result;                                                                             \
    }
TNI_AFTER_ERROR(void *, tni_nothing, NULL)
TNI_AFTER_ERROR(int, tni_minus_one, -1)
TNI_AFTER_ERROR(bool, tni_false, false)
TNI_AFTER_ERROR(double, tni_nan, (double)NAN)
#define tni_fail(...) tni_nothing(tni_error(__VA_ARGS__)) /* status, format, ... */
/* Puts text before the pending message and returns its status. The place in the model appears once,
 * where the error began. Cut at the end of the buffer. */
tn_status tni_error_prefix(const char *format, ...) TN_PRINTF(1, 2);
/* In the pending message: the first `from` becomes `to`, a shape that was given. */
void tni_error_reword(const char *from, const char *to);
/* What a status function returns where something is NULL, which a failed call may have given: the
 * pending status, or, if no error is pending, TN_E_INVALID with that message. */
TNI_SHARED tn_status tni_missing(const char *format, ...) TN_PRINTF(1, 2);
/* The same for an argument; the message says that it is NULL, a pending one in addition. */
TNI_SHARED tn_status tni_poison(const char *function, const char *argument);
/* Of expressions, which pass NULL on: a pending message stays as it is. The second is for an
 * argument that may also be TN_NONE, as its message says. */
#define tni_poisoned(function, argument)                                                           \
    tni_nothing(tni_missing("%s: %s is NULL: want one that is there", function, argument))
#define tni_poisoned_optional(function, argument)                                                  \
    tni_nothing(                                                                                   \
        tni_missing("%s: %s is NULL: want a tensor, or TN_NONE for none", function, argument))
/* A tensor in an options struct, where a zero field means absent: TN_NONE for NULL if no error is
 * pending. With an error pending, NULL is a failed result: returns NULL, and adds the argument to
 * the message. */
tn_tensor *tni_option_tensor(const char *function, const char *field, tn_tensor *t);
/* Set by nn: appends the place in the model (" (in fc1: Linear)") to a message being made. */
extern _Thread_local void (*tni_error_context)(char *buffer, size_t size);
/* Number of errors set by this thread so far: tells a new error from a pending one. */
extern _Thread_local uint64_t tni_error_count;
/* The op whose forward runs in this thread, or NULL: for a backend's later messages. */
extern TNI_THREAD const char *tni_op_running;
/* TN_OK or the pending status: for functions whose callee already set the message. */
#define tni_pending() tn_error_status()
/* A thread's buffers for text (texts.c), made at first use and given back when the thread ends. */
typedef struct tni_texts {
    char message[2048];
    char place[700];    /* tni_call_site_text's */
    char shape[8][256]; /* tni_text's, in turn */
    unsigned turn;
} tni_texts;
/* NULL, without a message: there is no memory for them. */
tni_texts *tni_texts_mine(void);
/* NULL: not made yet. */
const tni_texts *tni_texts_now(void);
/* Appends to the text in `size` bytes, cut at their end. */
TNI_SHARED void tni_text_add(char *text, size_t size, const char *format, ...) TN_PRINTF(3, 4);
/* What a terminal would obey, as a name from a file may hold it, becomes '?'; lines still end. */
void tni_disarm(char *text);
/* Saves status and message of this thread, to restore them after other calls that may fail. */
typedef struct tni_saved_error {
    tn_status status;
    char message[sizeof((tni_texts *)NULL)->message];
} tni_saved_error;
TNI_SHARED void tni_error_save(tni_saved_error *to);
TNI_SHARED void tni_error_restore(const tni_saved_error *from);
/* Ends the function with the status of a call that failed. */
#define TNI_TRY(call)                                                                              \
    for (tn_status tried_ = (call); tried_ != TN_OK;) return tried_
/* Ignores a status: of a call that cannot fail here, or of one made while another failure, which is
 * the one reported, is cleaned up. */
static inline void tni_disregard(tn_status status)
{
    (void)status;
}

/* ---- locks (lock.c) -------------------------------------------------------------------------- */

/* In locking order, the outermost first; held across fork. */
enum {
    TNI_LOCK_MODULES,
    TNI_LOCK_CAPTURE,
    TNI_LOCK_RANDOM,
    TNI_LOCK_BLAS,
    TNI_LOCK_DEAD,
    TNI_LOCK_MEMORY,
    TNI_LOCKS
};
extern pthread_mutex_t tni_locks[TNI_LOCKS];

/* The lock of memory, in front of its mutex (lock.c says why). */
extern atomic_bool tni_memory_taken;
void tni_memory_wait(void); /* until it is ours */
static inline void tni_memory_take(void)
{
    if (TNI_UNLIKELY(atomic_exchange_explicit(&tni_memory_taken, true, memory_order_acquire)))
        tni_memory_wait();
}
static inline void tni_memory_give(void)
{
    atomic_store_explicit(&tni_memory_taken, false, memory_order_release);
}

/* Takes one reference off a count; returns whether it was the last. A single holder has no rivals,
 * so it needs no atomic subtraction. */
static inline bool tni_last(atomic_int *refs)
{
    return atomic_load_explicit(refs, memory_order_acquire) == 1 ||
           atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

/* ---- memory (alloc.c) ------------------------------------------------------------------------ */

/* All memory of the library is allocated here: 64-byte aligned, cached by size, not zeroed. NULL
 * and TN_E_NOMEM when the system refuses. tni_free needs the same size. */
#define tni_alloc(size) tni_alloc_counted(size, NULL, NULL)
#define tni_calloc(size) tni_calloc_n(1, size)
/* The same for objects that are counted: *count changes by one, under the lock of memory; and for a
 * storage that will have *data bytes of elements, which tn_memory counts. Either may be NULL. */
TNI_SHARED void *tni_alloc_counted(size_t size, const size_t *data, int64_t *count);
void tni_free_counted(void *block, size_t size, int64_t *count);
TNI_SHARED void tni_free(void *block, size_t size);
/* Sets whether this thread's blocks will last as long as the program: large ones then lie together.
 * Returns the setting before. */
bool tni_alloc_lasting(bool on);
/* a * b or a + b; false on overflow. */
static inline bool tni_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tni_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* n items of `size` bytes; a product that overflows fails like running out of memory. */
void *tni_alloc_n(size_t n, size_t size);
TNI_SHARED void *tni_calloc_n(size_t n, size_t size);
/* name: n items of that type up to the end of the block, as they come or zeroed. NULL + message. */
#define TNI_ITEMS(type, name, n) TNI_ITEMS_BY(tni_alloc_n, type, name, n)
#define TNI_ZEROED(type, name, n) TNI_ITEMS_BY(tni_calloc_n, type, name, n)
#define TNI_ITEMS_BY(alloc, type, name, n)                                                         \
    __attribute__((cleanup(tni_give_items), unused))                                               \
    const tni_items name##_items = { alloc((size_t)(n), sizeof(type)),                             \
                                     (size_t)(n) * sizeof(type) };                                 \
    type *const name = name##_items.block
typedef struct tni_items {
    void *block;
    size_t nbytes;
} tni_items;
static inline void tni_give_items(const tni_items *items)
{
    tni_free(items->block, items->nbytes);
}
TNI_SHARED char *tni_strdup(const char *text); /* tni_strfree */
/* What printf would write; tni_strfree. NULL + message: out of memory. */
TNI_SHARED char *tni_vtext(const char *format, va_list args);
/* The same for optional strings: NULL and no message when out of memory. */
char *tni_strdup_or_none(const char *text);
TNI_SHARED void tni_strfree(char *text);

/* ---- arrays that grow (array.c) -------------------------------------------------------------- */

/* An array is a typed pointer, its capacity in items, and the number of items, all three kept by
 * its owner; zeroed, it is empty. Below, items is the address of the pointer. */

/* A larger block, at least twice the old one, for `more` items after n. */
TNI_SHARED bool tni_grow(void *items, size_t *capacity, size_t n, size_t more, size_t size);
/* Makes room for `more` items of `size` bytes after the first n. Out of memory: false and a
 * message, and nothing has changed. */
static inline bool tni_room(void *items, size_t *capacity, size_t n, size_t more, size_t size)
{
    return more <= *capacity - n || tni_grow(items, capacity, n, more, size);
}
/* Frees the block and leaves the array empty. */
TNI_SHARED void tni_room_free(void *items, size_t *capacity, size_t size);
/* qsort, also of an array that was never made. */
static inline void tni_sort(void *items, size_t n, size_t size,
                            int (*order)(const void *, const void *))
{
    if (n > 1) qsort(items, n, size, order);
}
/* How many of n items of `size` bytes have a number of at most x. The numbers ascend; `number`
 * points to the first item's. */
size_t tni_upto(const int64_t *number, size_t size, size_t n, int64_t x);

/* ---- shared modules (module_file.c) ---------------------------------------------------------- */

/* The function `entry` of the shared module `file`. It is looked for at the path in the environment
 * variable, else beside this library, below it in `folder` (a build tree), where it was installed,
 * and where the loader looks. NULL with the reason in why: "could not be opened: ..." */
void *tni_open_module(const char *variable, const char *folder, const char *file, const char *entry,
                      char *why, size_t size);

/* What a field of options means: 0 is the default, unless its use_ field says that 0 is meant. */
static inline double tni_given(double value, bool use, double instead)
{
    return value != 0 || use ? value : instead;
}
