/**
 * tenon/error.h - how functions fail.
 *
 * There is one rule for expressions and one for statements:
 *   - a function that returns a tensor, module, list or optimizer returns NULL when it fails, and
 *     passes any NULL input on without a word ("poison"), so expressions nest without checks;
 *   - a function that acts returns a tn_status; given poison it returns the status already pending,
 *     and the first one to do so adds its name to the message.
 * The message is set once, where the failure began: tn_error() reads it. Success never clears it.
 * Numbers fail as NaN, sizes and counts as -1.
 *
 * The compiler warns when the status of a TN_MUST_USE function is ignored: an unnoticed failure
 * there would lose data or leave training wrong. Other functions don't need it: those that a
 * module's constructor calls (tn_module_done reports their failures), settings, printing.
 *
 * NULL stands for a failed result, never for "absent": that is TN_NONE in tensor.h. A NULL argument
 * with no error pending is itself an error, which names the function and the argument. Only tensors
 * in structs of options may be left NULL for "none"; while an error is pending even such a NULL
 * counts as a failed result, and the call fails with that error.
 */
#ifndef TENON_ERROR_H
#define TENON_ERROR_H

#include <stdio.h>
#include <stdlib.h>

#if defined(_WIN32)
#define TN_API
#else
#define TN_API __attribute__((visibility("default")))
#endif

#if defined(__GNUC__)
#define TN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TN_MUST_USE __attribute__((warn_unused_result))
/* Old names of a function and a type, for one release: each use is a warning with the new name. */
#define TN_OLD_NAME_(old, now)                                                                     \
    extern __typeof__(now) old __asm__(#now) __attribute__((deprecated("it is " #now " now")))
#define TN_OLD_TYPE_(old, now) typedef now old __attribute__((deprecated("it is " #now " now")))
#else
#define TN_PRINTF(fmt, args)
#define TN_MUST_USE
#define TN_OLD_NAME_(old, now) struct tn_old_name_
#define TN_OLD_TYPE_(old, now) typedef now old
#endif

#ifdef __cplusplus
#define TN_BEGIN_C_ extern "C" {
#define TN_END_C_ }
#else
#define TN_BEGIN_C_
#define TN_END_C_
#endif

TN_BEGIN_C_

/** What became of a call. */
typedef enum tn_status {
    TN_OK = 0,    /* it did what it says */
    TN_E_INVALID, /* an argument that no call could accept (NULL, negative size, bad option) */
    TN_E_SHAPE,   /* sizes that do not fit together */
    TN_E_DTYPE,   /* an element type the function does not take */
    TN_E_DEVICE,  /* tensors on different devices, or a device that does not exist */
    TN_E_INDEX,   /* an axis, index, class or token id out of range */
    TN_E_NAME,    /* a name that is taken, empty, dotted, unknown or of another kind */
    /* right arguments at the wrong time (second backward, changed in place, no scope) */
    TN_E_STATE,
    TN_E_NOMEM,       /* out of memory */
    TN_E_IO,          /* the operating system refused; the message carries its reason */
    TN_E_FORMAT,      /* a file that is not what it claims to be */
    TN_E_UNSUPPORTED, /* the backend or op does not offer it */
    TN_E_BACKEND      /* BLAS or CUDA failed */
} tn_status;

/**
 * The calling thread's message: "function: what was given: want what is needed".
 *
 * Owner    the library; valid until this thread's next error. "" when nothing has failed. Never
 *          NULL.
 */
TN_API const char *tn_error(void);

/** The status that belongs to tn_error(): TN_OK when nothing has failed since tn_error_clear(). */
TN_API tn_status tn_error_status(void);

/** Forgets the calling thread's message and status. */
TN_API void tn_error_clear(void);

/** The name of a status, "TN_E_SHAPE" for example. Static storage. */
TN_API const char *tn_status_name(tn_status status);

/**
 * For code built on tenon (modules, losses, readers of your own): sets this thread's status and
 * message and returns NULL, so that `return tn_fail(TN_E_SHAPE, "my_layer: got %d: want 4", n);`
 * fails as the library's own do. With TN_TRAP=1 in the environment the process aborts here, so that
 * a debugger shows where the error began.
 */
TN_API void *tn_fail(tn_status status, const char *format, ...) TN_PRINTF(2, 3);

/**
 * TN_CHECK(expr): for programs, not for libraries. expr is a tn_status; unless it is TN_OK, prints
 * the message with file and line to stderr and ends the program with status 1.
 */
#define TN_CHECK(expr) tn_check_(expr, __FILE__, __LINE__)
static inline void tn_check_(tn_status status, const char *file, int line)
{
    if (status == TN_OK) return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, tn_status_name(status), tn_error());
    exit(1);
}

/** TN_CHECK_PTR(ptr): the same for anything that is NULL on failure (tensor, module, optimizer). If
 *  no error is pending in this thread, there is no message: the expression is printed instead. */
#define TN_CHECK_PTR(ptr) ((ptr) ? (void)0 : tn_check_null_(#ptr, __FILE__, __LINE__))
static inline void tn_check_null_(const char *expression, const char *file, int line)
{
    tn_check_(tn_error_status(), file, line);
    fprintf(stderr, "%s:%d: NULL: %s (no error is pending)\n", file, line, expression);
    exit(1);
}

TN_END_C_
#endif
