/*
 * internal.h - the inside of a tensor, for the library's own files.
 *
 * Floor by floor: this header knows storage, geometry, scopes, errors and the kernel table. The graph
 * behind a tensor (node, out_index) belongs to src/autograd/; here it is only a pointer to drop.
 */
#ifndef TNI_INTERNAL_H
#define TNI_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <string.h>

#include <tenon/tensor.h>
#include "tensor/kernels.h"

#if defined(__GNUC__)
#define TNI_LIKELY(x) __builtin_expect(!!(x), 1)
#define TNI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define TNI_LIKELY(x) (x)
#define TNI_UNLIKELY(x) (x)
#endif

#define TNI_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TNI_MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- errors (error.c) -------------------------------------------------------------------------- */

/* The one place where status and message are set. Returns NULL. */
void *tni_fail(tn_status status, const char *format, ...) TN_PRINTF(2, 3);
/* The same where a status is to be returned. */
tn_status tni_error(tn_status status, const char *format, ...) TN_PRINTF(2, 3);
/* Puts text in front of the pending message, or behind it, and returns its status: the one way to add to what
 * was said. The place in the model stands in it once, from where it began. Cut where the buffer ends. */
tn_status tni_error_prefix(const char *format, ...) TN_PRINTF(1, 2);
tn_status tni_error_suffix(const char *format, ...) TN_PRINTF(1, 2);
/* What a status function returns when it was handed NULL: the pending status, or, with nothing pending,
 * TN_E_INVALID saying that argument of function is NULL. */
tn_status tni_poison(const char *function, const char *argument);
/* The same, returning NULL; and for an argument that may be TN_NONE, which the message then names. */
void *tni_poisoned(const char *function, const char *argument);
void *tni_poisoned_optional(const char *function, const char *argument);
/* A tensor in a struct of options, where a zero field is an absent one: TN_NONE for NULL with nothing pending.
 * With an error pending NULL is what failed: NULL, and the message tells where it went. */
tn_tensor *tni_option_tensor(const char *function, const char *field, tn_tensor *t);
/* nn sets it: appends where in the model we are (" (in fc1: Linear)") to a message being made. */
extern _Thread_local void (*tni_error_context)(char *buffer, size_t size);
/* Errors made by this thread so far: tells a new one from one that is still pending. */
extern _Thread_local uint64_t tni_error_count;
/* The op whose forward runs in this thread, or NULL: for messages that a backend gives later. */
extern _Thread_local const char *tni_op_running;
/* TN_OK, or what is pending: for functions whose callee already set the message. */
tn_status tni_pending(void);
/* Copies status and message of this thread, to be put back as they were after calls that may fail too. */
typedef struct tni_saved_error {
    tn_status status;
    char message[2048];
} tni_saved_error;
void tni_error_save(tni_saved_error *to);
void tni_error_restore(const tni_saved_error *from);

/* ---- locks (lock.c) ------------------------------------------------------------------------------ */

/* In the order in which they may be taken, the outermost first; held over fork. */
enum {
    TNI_LOCK_MODULES,
    TNI_LOCK_RECORDING,
    TNI_LOCK_RANDOM,
    TNI_LOCK_BLAS,
    TNI_LOCK_MEMORY,
    TNI_LOCKS
};
extern pthread_mutex_t tni_locks[TNI_LOCKS];

/* ---- memory (alloc.c) --------------------------------------------------------------------------- */

/* Every byte of the library comes through here: 64-byte aligned, cached by size, never zeroed.
 * NULL and TN_E_NOMEM when the system refuses. size must be given back to tni_free. */
void *tni_alloc(size_t size);
void *tni_calloc(size_t size);
void tni_free(void *block, size_t size);
/* a * b or a + b; false on overflow. Sizes are never multiplied in any other way. */
static inline bool tni_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tni_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
char *tni_strdup(const char *text); /* tni_strfree */
/* The same for what a call can do without: NULL, and no message, when out of memory. */
char *tni_strdup_or_none(const char *text);
void tni_strfree(char *text);

/* ---- storage and tensors (tensor.c) -------------------------------------------------------------- */

typedef struct tni_recorder tni_recorder;

typedef struct tni_storage {
    atomic_int refs;
    atomic_int buffer_marks; /* registered buffers over this memory: optimizers refuse it */
    _Atomic uint64_t version;
    tn_device device;
    const tni_backend *backend;
    void *data;
    size_t nbytes;
    void (*release)(void *user); /* borrowed memory: called at the end instead of backend->free */
    void *user;
    bool borrowed;
    uint64_t recorded;      /* recorder.h: the last recording that met it; 0: none */
    int64_t record_slot;    /* there: which of its uses; below 0: it was made there, and alive */
    tni_recorder *recorder; /* the one that it was made in */
} tni_storage;

/* What autograd hangs on a tensor, shared between the handle and its node (neither owns the other). */
typedef struct tni_gradmeta tni_gradmeta;
typedef struct tni_node tni_node;

struct tn_tensor {
    atomic_int refs;
    tn_dtype dtype;
    tni_storage *storage;
    int64_t offset; /* elements */
    tn_shape shape;
    int64_t stride[TN_MAX_RANK];
    bool requires_grad;          /* leaf's wish, or: has history */
    int is_parameter, is_buffer; /* slots of modules that hold this handle as one */
    int out_index;
    tni_node *node;   /* made by; NULL for leaves */
    tni_gradmeta *gm; /* grad, hooks; made on demand */
    char *name;       /* for messages; NULL when it has none */
    tn_tensor *next;  /* of those that wait to be freed */
};

/* Where and how an output is to be laid out. */
typedef struct tni_spec {
    tn_dtype dtype;
    tn_shape shape;
    bool strided; /* stride and offset count; else dense */
    int64_t stride[TN_MAX_RANK];
    int64_t offset;
} tni_spec;

/* Unless NULL, told of every handle that this thread makes: a report sets it, to tell what a run made
 * from what was there. */
extern _Thread_local void (*tni_handle_made)(const tn_tensor *t)
    __attribute__((tls_model("initial-exec")));

/* The one place where sizes are multiplied and checked; every shape passes it before a tensor has it: the
 * product of sizes, or -1 where there are more than TN_MAX_RANK axes, a size is negative, or the product
 * with sizes of 0 taken as 1, times the widest element, is not below 2^63. So no stride, number of
 * elements or bytes of a tensor, and no part of its product of sizes, can overflow. */
int64_t tni_shape_numel(const tn_shape *shape);
/* TN_E_SHAPE and a message naming function where that is -1. */
tn_status tni_shape_fits(const char *function, const tn_shape *shape);
#define TNI_SHAPE_WANT                                                                             \
    "want at most %d axes, sizes of 0 and up, and fewer than 2^60 elements (a size of 0 counts "   \
    "as 1)"
enum { TNI_WIDEST = 8 }; /* bytes */
bool tni_shape_equal(const tn_shape *a, const tn_shape *b);
void tni_dense_strides(const tn_shape *shape, int64_t *stride);
/* Whether a size is the TN_NO_SIZE of a failed tn_size: then what is pending, or an error of function. */
tn_status tni_size_failed(const char *function, const tn_shape *shape);
/* The one guard of axes: axis in [-rank, rank) -> [0, rank), where size[axis] and stride[axis] are; -1 and a
 * message naming function otherwise, always for a single value. */
int tni_axis(const char *function, int axis, int rank);
/* The same for an op that takes a single value too, whose axes -1 and 0 give 0: it must not look at size[0]. */
int tni_axis_of_any(const char *function, int axis, int rank);
/* A tensor as text for messages: "[3,4]" or "weight [3,4]". Rotating thread-local buffers (8). */
const char *tni_shape_text(const tn_shape *shape);
const char *tni_text(const tn_tensor *t);

/* A new tensor with its own storage, in the current scope. Fails without an open scope. */
tn_tensor *tni_new(const tni_spec *spec, tn_device device);
tn_tensor *tni_new_dense(tn_shape shape, tn_dtype dtype, tn_device device);
/* The same for a function of the public headers, whose name begins the message of a failure. */
tn_tensor *tni_create(const char *function, tn_shape shape, tn_dtype dtype, tn_device device);
/* A new handle on t's storage with other geometry, no history, in the current scope. */
tn_tensor *tni_alias(const tn_tensor *t, const tni_spec *spec);
/* The same geometry: what detach and saved tensors are. NOT entered in a scope: one reference, yours. */
tn_tensor *tni_alias_raw(const tn_tensor *t);
/* t as kernels see it. */
tni_array tni_array_of(const tn_tensor *t);
/* t broadcast to shape (0-strides); the shapes must be compatible. */
tni_array tni_array_expand(const tn_tensor *t, const tn_shape *shape);
/* An absent array (data NULL). */
tni_array tni_array_none(void);
/* t or, if it is not dense, a dense copy without history in the current scope. */
tn_tensor *tni_dense(tn_tensor *t);
bool tni_is_dense(const tn_tensor *t);
static inline const tni_backend *tni_backend_of(const tn_tensor *t)
{
    return t->storage->backend;
}
const tni_backend *tni_backend_for(tn_device device); /* NULL + message when it is not there */
/* How steps are recorded on that device; NULL: they are not (the CPU). cuda/graphs.h */
const struct tni_graphs *tni_graphs_for(tn_device device);
void tni_bump_version(tn_tensor *t);
/* Puts t2's storage, dtype and geometry under the handle t (module moves). Bumps nothing. */
void tni_swap_storage(tn_tensor *t, tn_tensor *t2);
static inline bool tni_none(const tn_tensor *t)
{
    return t == TN_NONE;
}
void *tni_data(const tn_tensor *t); /* first element, wherever it lives */
/* The dtype two operands with axes promote to (ops.h). */
tn_dtype tni_promote(tn_dtype a, tn_dtype b);
/* The same, where a single value widens a tensor with axes only by its kind (bool, integer, float). */
tn_dtype tni_result_dtype(const tn_tensor *a, const tn_tensor *b);
/* The result of a broadcast. false: do not fit. */
bool tni_broadcast(const tn_shape *a, const tn_shape *b, tn_shape *out);

/* ---- a step that is recorded (recorder.c) ----------------------------------------------------------- */

/* This thread's recording, or NULL. */
extern _Thread_local tni_recorder *tni_recording __attribute__((tls_model("initial-exec")));
/* An address of t is about to be used; it is about to be written; a storage was made, or goes. */
void tni_record_use(const tn_tensor *t);
void tni_record_write(const tn_tensor *t);
void tni_record_made(tni_storage *s);
void tni_record_gone(tni_storage *s);
/* Whether t's memory was made in this thread's recording. */
bool tni_record_is_made(const tn_tensor *t);
/* Makes this thread's recording fail: "FUNCTION: DOES, which a captured step would do once ...: want WANT".
 * Returns TN_E_STATE. */
tn_status tni_record_refuse(const char *function, const char *does, const char *want);
void tni_storage_drop(tni_storage *s);

/* ---- scopes (scope.c) ----------------------------------------------------------------------------- */

/* Enters an object in the current scope, taking over one reference; drop gives it back.
 * TN_E_STATE without a scope, TN_E_NOMEM: then drop is called at once. */
tn_status tni_scope_add(void *object, void (*drop)(void *object));
bool tni_scope_open(void);
/* Whether object, any address, stands in `from` or a scope within it and nothing else holds it: it goes with
 * them. Takes the time of a look at their entries. */
bool tni_scope_alone(tn_scope from, const void *object);
tn_scope tni_scope_outermost(void);

/* ---- random numbers (random.c) --------------------------------------------------------------------- */

/* The Philox seed, and n counters reserved from the process-wide offset. */
void tni_philox_take(uint64_t n_counters, uint64_t *seed, uint64_t *offset);
/* What failed after it had taken them gives them back, unless others were taken since. */
void tni_philox_give_back(uint64_t n_counters, uint64_t seed, uint64_t offset);
/* Where that stands, for checkpoints (the default generator's state bytes hold it too). */
void tni_philox_get(uint64_t *seed, uint64_t *offset);
void tni_philox_set(uint64_t seed, uint64_t offset);

#endif
