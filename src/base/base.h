/*
 * base.h - what every file of the library stands on: messages, locks, memory, arrays that grow.
 *
 * Nothing here knows what a tensor is made of. map.h (a hash table) and host.h (floating-point
 * traps, the locale) lie beside it.
 */
#ifndef TNI_BASE_H
#define TNI_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <string.h>

#include <tenon/tensor.h>

#if defined(__GNUC__)
#define TNI_LIKELY(x) __builtin_expect(!!(x), 1)
#define TNI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define TNI_LIKELY(x) (x)
#define TNI_UNLIKELY(x) (x)
#endif

#define TNI_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TNI_MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- errors (error.c) ------------------------------------------------------------------------ */

/* The one place where status and message are set. Returns NULL. */
void *tni_fail(tn_status status, const char *format, ...) TN_PRINTF(2, 3);
/* The same where a status is to be returned. */
tn_status tni_error(tn_status status, const char *format, ...) TN_PRINTF(2, 3);
/* Puts text in front of the pending message, or behind it, and returns its status: the one way to
 * add to what was said. The place in the model stands in it once, from where it began. Cut where
 * the buffer ends. */
tn_status tni_error_prefix(const char *format, ...) TN_PRINTF(1, 2);
tn_status tni_error_suffix(const char *format, ...) TN_PRINTF(1, 2);
/* What a status function returns when it was handed NULL: the pending status, or, with nothing
 * pending, TN_E_INVALID saying that argument of function is NULL. */
tn_status tni_poison(const char *function, const char *argument);
/* The same, returning NULL; and for an argument that may be TN_NONE, which the message then
 * names. */
void *tni_poisoned(const char *function, const char *argument);
void *tni_poisoned_optional(const char *function, const char *argument);
/* A tensor in a struct of options, where a zero field is an absent one: TN_NONE for NULL with
 * nothing pending. With an error pending NULL is what failed: NULL, and the message tells where it
 * went. */
tn_tensor *tni_option_tensor(const char *function, const char *field, tn_tensor *t);
/* nn sets it: appends where in the model we are (" (in fc1: Linear)") to a message being made. */
extern _Thread_local void (*tni_error_context)(char *buffer, size_t size);
/* Errors made by this thread so far: tells a new one from one that is still pending. */
extern _Thread_local uint64_t tni_error_count;
/* The op whose forward runs in this thread, or NULL: for messages that a backend gives later. */
extern _Thread_local const char *tni_op_running;
/* TN_OK, or what is pending: for functions whose callee already set the message. */
tn_status tni_pending(void);
/* Copies status and message of this thread, to be put back as they were after calls that may fail
 * too. */
typedef struct tni_saved_error {
    tn_status status;
    char message[2048];
} tni_saved_error;
void tni_error_save(tni_saved_error *to);
void tni_error_restore(const tni_saved_error *from);

/* ---- locks (lock.c) -------------------------------------------------------------------------- */

/* In the order in which they may be taken, the outermost first; held over fork. */
enum {
    TNI_LOCK_MODULES,
    TNI_LOCK_CAPTURE,
    TNI_LOCK_RANDOM,
    TNI_LOCK_BLAS,
    TNI_LOCK_MEMORY,
    TNI_LOCKS
};
extern pthread_mutex_t tni_locks[TNI_LOCKS];

/* ---- memory (alloc.c) ------------------------------------------------------------------------ */

/* Every byte of the library comes through here: 64-byte aligned, cached by size, never zeroed.
 * NULL and TN_E_NOMEM when the system refuses. size must be given back to tni_free. */
void *tni_alloc(size_t size);
void *tni_calloc(size_t size);
void tni_free(void *block, size_t size);
/* a * b or a + b; false on overflow. */
static inline bool tni_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tni_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
/* n items of `size` bytes; more than there can be are refused as too much memory is. */
void *tni_alloc_n(size_t n, size_t size);
void *tni_calloc_n(size_t n, size_t size);
char *tni_strdup(const char *text); /* tni_strfree */
/* The same for what a call can do without: NULL, and no message, when out of memory. */
char *tni_strdup_or_none(const char *text);
void tni_strfree(char *text);

/* ---- arrays that grow (array.c) -------------------------------------------------------------- */

/* An array is a typed pointer, its capacity in items, and the number of items, all of which its
 * owner holds. Zeroed it is empty. Below, items is the address of the pointer. */

/* A larger block, at least twice the old one, for `more` items behind n. */
bool tni_grow(void *items, size_t *capacity, size_t n, size_t more, size_t size);
/* Room for `more` items of `size` bytes behind the n that are there. False and a message when there
 * is no memory: nothing has changed. */
static inline bool tni_room(void *items, size_t *capacity, size_t n, size_t more, size_t size)
{
    return more <= *capacity - n || tni_grow(items, capacity, n, more, size);
}
/* Gives the block back: the array is empty then. */
void tni_room_free(void *items, size_t *capacity, size_t size);
/* How many of n items of `size` bytes have a number of at most x. Their numbers ascend; number is
 * the first item's. */
size_t tni_upto(const int64_t *number, size_t size, size_t n, int64_t x);

#endif
