/*
 * internal.h - the inside of a tensor, for the library's own files.
 *
 * This header knows storage, geometry, scopes and the kernel table. The autograd graph behind a
 * tensor (node, out_index) belongs to src/autograd/; here it is only a pointer to release.
 */
#pragma once

#include "base/base.h"
#include "base/dead.h"
#include "base/host.h"
#include "tensor/kernels.h"
#include "tensor/watch.h"

/* ---- storage and tensors (tensor.c) ---------------------------------------------------------- */

/* Bytes of a tensor's name in a file, at most. */
#define TNI_NAME_LIMIT 1024

typedef struct tni_storage {
    atomic_int refs;
    _Atomic int64_t buffer_marks; /* of registered buffers over this memory: optimizers refuse it */
    _Atomic uint64_t version;
    _Atomic uint64_t rewritten; /* version since the last function that put values of its own */
    tn_device device;
    const tni_backend *backend;
    void *data;
    size_t nbytes;
    void (*release)(void *user); /* borrowed memory: called instead of backend->free */
    void *user;
    bool borrowed, inside; /* data belongs to somebody else; is in this block */
    /* for the watcher (watch.h) */
    uint64_t seen;                       /* number of the last watcher that saw it; 0: none */
    int64_t seen_as;                     /* its index there */
    tni_watcher *maker;                  /* the watcher when it was made */
    void (*gone)(struct tni_storage *s); /* called, in any thread, before it is freed */
} tni_storage;

/* A buffer is marked with 1, a cache, a constant and what has an average's values (tn_ema_use) with
 * these: sums tell how many of each. */
#define TNI_MARK_CACHE (INT64_C(1) << 20)
#define TNI_MARK_CONSTANT (INT64_C(1) << 34)
#define TNI_MARK_AVERAGED (INT64_C(1) << 50)
#define TNI_AVERAGED(marks) ((marks) & -TNI_MARK_AVERAGED) /* these alone; 0: its own values */

/* What autograd attaches to a tensor, shared by the handle and its node (neither owns the
 * other). */
typedef struct tni_gradmeta tni_gradmeta;
typedef struct tni_node tni_node;
/* Releases what a freed handle held of them (either may be NULL). The one call upward from here;
 * defined in src/autograd/node.c. */
void tni_graph_drop(tni_node *node, tni_gradmeta *gm);
extern const char *(*tni_op_of)(const tn_tensor *t); /* tn_grad_op, set there; or NULL */

struct tn_tensor {
    atomic_int refs;
    tn_dtype dtype; /* tni_swap_storage swaps from here to stride */
    tni_storage *storage;
    int64_t offset; /* elements */
    tn_shape shape;
    int64_t stride[TN_MAX_RANK];
    bool requires_grad; /* set on a leaf, or: has history */
    int is_parameter;   /* number of module slots holding this handle */
    int out_index;
    int64_t is_buffer; /* sum of the marks of the buffer slots holding it */
    tni_node *node;    /* that made it; NULL for leaves */
    tni_gradmeta *gm;  /* grad, hooks; created when needed */
    char *name;        /* for messages; NULL when it has none */
    tn_tensor *next;   /* in the list of handles to be freed */
};

/* Where and how an output is laid out. */
typedef struct tni_spec {
    tn_dtype dtype;
    tn_shape shape;
    bool strided; /* stride and offset count; else dense */
    int64_t stride[TN_MAX_RANK];
    int64_t offset;
} tni_spec;

/* The one place where sizes are multiplied and checked; every tensor's shape has passed it. Returns
 * the product of the sizes, or -1 if there are more than TN_MAX_RANK axes, a size is negative, or
 * the product (sizes of 0 counted as 1) times the widest element is not below 2^63. So no stride,
 * number of elements or bytes of a tensor, and no part of its product of sizes, can overflow. */
TNI_SHARED int64_t tni_shape_numel(const tn_shape *shape);
/* *to = *from, for which a function is called in WebAssembly. */
static inline void tni_shape_copy(tn_shape *to, const tn_shape *from)
{
    to->rank = from->rank;
    memcpy(to->size, from->size, sizeof to->size);
}
/* TN_E_SHAPE and a message naming function if that is -1. */
tn_status tni_shape_fits(const char *function, const tn_shape *shape);
#define TNI_SHAPE_WANT                                                                             \
    "want at most %d axes, sizes of 0 and up, and fewer than 2^60 elements (a size of 0 counts "   \
    "as 1)"
enum { TNI_WIDEST = 8 }; /* bytes */
static inline bool tni_shape_equal(const tn_shape *a, const tn_shape *b)
{
    if (a->rank != b->rank) return false;
    for (int i = 0; i < TNI_MIN(a->rank, TN_MAX_RANK); i++)
        if (a->size[i] != b->size[i]) return false;
    return true;
}
void tni_dense_strides(const tn_shape *shape, int64_t *stride);
/* shape without an axis; -1: without none. */
tn_shape tni_shape_without(const tn_shape *shape, int axis);
/* Whether a size is the TN_NO_SIZE of a failed tn_size: then the pending error stays, or function's
 * is set. */
tn_status tni_size_failed(const char *function, const tn_shape *shape);
/* The one check of axes: maps [-rank, rank) to [0, rank), an index into size[] and stride[].
 * Otherwise, and always for a 0-d tensor, -1 and a message naming function. */
int tni_axis(const char *function, int axis, int rank);
/* The same for an op that accepts a 0-d tensor, whose axes -1 and 0 both give 0: the op must not
 * read size[0]. */
int tni_axis_of_any(const char *function, int axis, int rank);
/* A tensor as text for messages: "[3,4]" or "weight [3,4]". In 8 rotating thread-local buffers. */
TNI_SHARED const char *tni_shape_text(const tn_shape *shape);
const char *tni_text(const tn_tensor *t);

/* A new tensor with its own storage, in the current scope. Fails without an open scope. */
tn_tensor *tni_new(const tni_spec *spec, tn_device device);
#define tni_new_dense(shape, dtype, device) tni_create("", *(shape), dtype, device)
/* The same for a public function, whose name starts the error message. */
tn_tensor *tni_create(const char *function, tn_shape shape, tn_dtype dtype, tn_device device);
/* ---- C scalars beside tensors ---- */

/* Whether s is an integer: whole, and an i64. Beside integers every other one promotes to f32. */
static inline bool tni_is_whole(double s)
{
    return s >= -0x1p63 && s < 0x1p63 && (double)(int64_t)s == s;
}
/* Whether an integer dtype can hold value without its fraction; others hold anything. */
bool tni_fits(double value, tn_dtype dtype);
/* value as dtype stores it: an integer without its fraction; TN_E_INVALID if it does not fit. */
tn_status tni_number_in(const char *function, double value, tn_dtype dtype, tni_number *number);
/* x rounded to a floating dtype. */
double tni_rounded(double x, tn_dtype dtype);

/* A new handle on t's storage with other geometry, no history, in the current scope. */
tn_tensor *tni_alias(const tn_tensor *t, const tni_spec *spec);
/* The same geometry, as for detach and saved tensors. NOT entered in a scope: the caller owns the
 * reference. */
tn_tensor *tni_alias_raw(const tn_tensor *t);
/* All of t's memory as one axis, in the current scope. */
tn_tensor *tni_alias_all(const tn_tensor *t);
/* *a becomes t as kernels see it, broadcast to shape (0-strides); the shapes must be compatible.
 * What is beyond the rank stays as it was. */
void tni_array_set(tni_array *a, const tn_tensor *t, const tn_shape *shape);
/* The same returned, which costs two copies: of t as it is, and broadcast. */
tni_array tni_array_of(const tn_tensor *t);
tni_array tni_array_expand(const tn_tensor *t, const tn_shape *shape);
/* An absent array (data NULL). */
#define tni_array_none() ((tni_array){ .data = NULL })
/* A dense copy in dtype, without history, in the current scope. */
tn_tensor *tni_copied(const tn_tensor *t, tn_dtype dtype);
/* t or, if it is not dense, such a copy. */
tn_tensor *tni_dense(tn_tensor *t);
TNI_SHARED bool tni_is_dense(const tn_tensor *t);
static inline const tni_backend *tni_backend_of(const tn_tensor *t)
{
    return t->storage->backend;
}
const tni_backend *tni_backend_for(tn_device device); /* NULL + message if unavailable */
/* How the device captures steps (graphs.h); NULL if it cannot (the CPU). */
const struct tni_graphs *tni_graphs_for(tn_device device);
void tni_bump_version(tn_tensor *t);
/* The same after a user's function that left none of the old values, if t covers all of its
 * memory. */
void tni_bump_rewritten(tn_tensor *t);
void tni_storage_drop(tni_storage *s);
tni_storage *tni_storage_keep(tni_storage *s);
/* Two handles exchange storage, dtype and geometry (module moves). No version changes. */
void tni_swap_storage(tn_tensor *a, tn_tensor *b);
void tni_swap_bytes(void *a, void *b, size_t from, size_t to); /* of two structs */
static inline bool tni_same_device(tn_device a, tn_device b)
{
    return a.type == b.type && a.index == b.index;
}

static inline bool tni_none(const tn_tensor *t)
{
    return t == TN_NONE;
}
/* Whether a tensor that a user gave is missing: NULL, TN_NONE, or (with TN_DEBUG=1) freed, which
 * then becomes the pending error. */
static inline bool tni_absent(const tn_tensor *t)
{
    return !t || tni_none(t) || tni_gone(t);
}
/* False, with an error naming function and argument, if it is missing. (create.c) */
bool tni_present(const char *function, const char *argument, const tn_tensor *t);
/* Puts elements of that dtype, dense in host memory, into t. (access.c) */
tn_status tni_write_host(const tn_tensor *t, const void *data, size_t nbytes, tn_dtype dtype);
/* Reads x, part of t or all, into dense host memory, as `as` describes it but for its data. */
tn_status tni_read_host(const tn_tensor *t, tni_array x, tni_array as, void *data, size_t nbytes);
void *tni_data(const tn_tensor *t);                 /* first element, wherever it lives */
TNI_SHARED size_t tni_bytes_of(const tn_tensor *t); /* of its elements; 0 for NULL */
/* Whether nbytes is the size of t's elements in dtype; else an error naming function. */
tn_status tni_bytes_fit(const char *function, const tn_tensor *t, size_t nbytes, tn_dtype dtype);
/* The dtype to which two operands with axes are promoted (ops.h). */
tn_dtype tni_promote(tn_dtype a, tn_dtype b);
/* The same, but a 0-d tensor widens one with axes only if its kind (bool, integer, float) is
 * higher. */
tn_dtype tni_result_dtype(const tn_tensor *a, const tn_tensor *b);
/* The shape of a broadcast. false: they do not fit. */
bool tni_broadcast(const tn_shape *a, const tn_shape *b, tn_shape *out);
/* Whether `from` can be stretched to `to`. */
bool tni_broadcasts_to(const tn_shape *from, const tn_shape *to);

/* ---- scopes (scope.c) ------------------------------------------------------------------------ */

/* Enters an object in the current scope, which takes over one reference and releases it with drop.
 * On TN_E_STATE (no scope) or TN_E_NOMEM drop is called at once. who: the function or type that the
 * user called, for the message; "": the caller adds it. */
tn_status tni_scope_add(const char *who, void *object, void (*drop)(void *object));
tn_tensor *tni_scope_adopt(const char *who, tn_tensor *t);
/* tn_scope_return from a scope that who opened for itself. */
TNI_SHARED tn_tensor *tni_scope_return(const char *who, tn_scope s, tn_tensor *t);
tn_status tni_scope_missing(const char *who); /* sets the error */
bool tni_scope_open(void);
/* The number of entries now, and dropping all that were made since: a scope in which no user's code
 * runs, not even in a drop. */
size_t tni_scope_mark(void);
void tni_scope_cut(size_t mark);
/* Drops what s and the scopes within it hold, and closes the inner ones. false: s is not open. */
bool tni_scope_clear(tn_scope s);
/* A reference to t: the current scope's, if s is open and t its newest; else one more. */
tn_tensor *tni_scope_take(tn_scope s, tn_tensor *t);
/* Whether object (any address) is held only by `from` and scopes within it, and so is freed with
 * them. Takes time in proportion to their entries. */
bool tni_scope_alone(tn_scope from, const void *object);
tn_scope tni_scope_outermost(void);
/*
 * From guard to unguard, the scopes that are open at guard stay: when a user's function ends one,
 * it really ends at unguard (the outermost one, if guards are nested). So what our function holds
 * through scopes outlives the user's functions that it calls. Results are entered in a scope after
 * unguard, which returns whether it ended any.
 */
TNI_SHARED size_t tni_scope_guard(void);
TNI_SHARED bool tni_scope_unguard(size_t was);
static inline void tni_scopes_go(const size_t *was)
{
    tni_scope_unguard(*was);
}
/* The same up to the end of the block, for a function without results in a scope. */
#define TNI_SCOPES_STAY                                                                            \
    __attribute__((cleanup(tni_scopes_go), unused)) const size_t tni_scopes_were_ =                \
        tni_scope_guard()
/* A scope, named scope, up to the end of the block. */
#define TNI_SCOPED tn_scope TN_WHEN_LEFT(tn_leave_scope_) scope = tn_scope_begin()
/* Ends s, after the guard set in or around it (NULL: none). out[0..n), if status is TN_OK, belong
 * to the scope around it; otherwise, or if there is no memory for that, all are NULL. */
tn_status tni_scope_hand_over(tn_scope s, const size_t *guarded, tn_status status, int64_t n,
                              tn_tensor **out);
/* With TN_DEBUG=1 the scope that is being ended, whose entries are dropped; depth -1: none. */
tn_scope tni_scope_ending(void);

/* ---- random numbers (random.c) --------------------------------------------------------------- */

/* The Philox seed, and n counters reserved from the process-wide offset. */
void tni_philox_take(uint64_t n_counters, uint64_t *seed, uint64_t *offset);
/* For a call that fails after reserving: returns them, unless others were reserved since. */
void tni_philox_give_back(uint64_t n_counters, uint64_t seed, uint64_t offset);
/* That offset, for checkpoints (the default generator's state bytes hold it too). */
#define tni_philox_get(seed, offset) tni_philox_take(0, seed, offset)
void tni_philox_set(uint64_t seed, uint64_t offset);
