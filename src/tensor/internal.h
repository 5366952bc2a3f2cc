/*
 * internal.h - the inside of a tensor, for the library's own files.
 *
 * Floor by floor: this header knows storage, geometry, scopes and the kernel table. The
 * graph behind a tensor (node, out_index) belongs to src/autograd/; here it is only a pointer to
 * drop.
 */
#ifndef TNI_INTERNAL_H
#define TNI_INTERNAL_H

#include <stdatomic.h>

#include "base/base.h"
#include "tensor/kernels.h"
#include "tensor/watch.h"

/* ---- storage and tensors (tensor.c) ---------------------------------------------------------- */

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
    /* for whoever watches (watch.h) */
    uint64_t seen;                       /* the last watcher that met it, by number; 0: none */
    int64_t seen_as;                     /* what it is there */
    tni_watcher *maker;                  /* the one that it was made under */
    void (*gone)(struct tni_storage *s); /* told, in any thread, before it goes */
} tni_storage;

/* What autograd hangs on a tensor, shared between the handle and its node (neither owns the
 * other). */
typedef struct tni_gradmeta tni_gradmeta;
typedef struct tni_node tni_node;
/* Takes what a handle held of them (either may be NULL) when it goes. The one call up from here:
 * src/autograd/node.c has it. */
void tni_graph_drop(tni_node *node, tni_gradmeta *gm);

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

/* The one place where sizes are multiplied and checked; every shape passes it before a tensor has
 * it: the product of sizes, or -1 where there are more than TN_MAX_RANK axes, a size is negative,
 * or the product with sizes of 0 taken as 1, times the widest element, is not below 2^63. So no
 * stride, number of elements or bytes of a tensor, and no part of its product of sizes, can
 * overflow. */
int64_t tni_shape_numel(const tn_shape *shape);
/* TN_E_SHAPE and a message naming function where that is -1. */
tn_status tni_shape_fits(const char *function, const tn_shape *shape);
#define TNI_SHAPE_WANT                                                                             \
    "want at most %d axes, sizes of 0 and up, and fewer than 2^60 elements (a size of 0 counts "   \
    "as 1)"
enum { TNI_WIDEST = 8 }; /* bytes */
bool tni_shape_equal(const tn_shape *a, const tn_shape *b);
void tni_dense_strides(const tn_shape *shape, int64_t *stride);
/* Whether a size is the TN_NO_SIZE of a failed tn_size: then what is pending, or an error of
 * function. */
tn_status tni_size_failed(const char *function, const tn_shape *shape);
/* The one guard of axes: axis in [-rank, rank) -> [0, rank), where size[axis] and stride[axis] are;
 * -1 and a message naming function otherwise, always for a single value. */
int tni_axis(const char *function, int axis, int rank);
/* The same for an op that takes a single value too, whose axes -1 and 0 give 0: it must not look at
 * size[0]. */
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
/* The same geometry: what detach and saved tensors are. NOT entered in a scope: one reference,
 * yours. */
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
/* How steps are captured on that device; NULL: they are not (the CPU). graphs.h */
const struct tni_graphs *tni_graphs_for(tn_device device);
void tni_bump_version(tn_tensor *t);
void tni_storage_drop(tni_storage *s);
/* Puts t2's storage, dtype and geometry under the handle t (module moves). Bumps nothing. */
void tni_swap_storage(tn_tensor *t, tn_tensor *t2);
static inline bool tni_none(const tn_tensor *t)
{
    return t == TN_NONE;
}
void *tni_data(const tn_tensor *t); /* first element, wherever it lives */
/* Whether nbytes of dtype are t's elements; else an error naming function. */
tn_status tni_bytes_fit(const char *function, const tn_tensor *t, size_t nbytes, tn_dtype dtype);
/* The dtype two operands with axes promote to (ops.h). */
tn_dtype tni_promote(tn_dtype a, tn_dtype b);
/* The same, where a single value widens a tensor with axes only by its kind (bool, integer,
 * float). */
tn_dtype tni_result_dtype(const tn_tensor *a, const tn_tensor *b);
/* The result of a broadcast. false: do not fit. */
bool tni_broadcast(const tn_shape *a, const tn_shape *b, tn_shape *out);

/* ---- scopes (scope.c) ------------------------------------------------------------------------ */

/* Enters an object in the current scope, taking over one reference; drop gives it back.
 * TN_E_STATE without a scope, TN_E_NOMEM: then drop is called at once. */
tn_status tni_scope_add(void *object, void (*drop)(void *object));
bool tni_scope_open(void);
/* Whether object, any address, stands in `from` or a scope within it and nothing else holds it: it
 * goes with them. Takes the time of a look at their entries. */
bool tni_scope_alone(tn_scope from, const void *object);
tn_scope tni_scope_outermost(void);

/* ---- random numbers (random.c) --------------------------------------------------------------- */

/* The Philox seed, and n counters reserved from the process-wide offset. */
void tni_philox_take(uint64_t n_counters, uint64_t *seed, uint64_t *offset);
/* What failed after it had taken them gives them back, unless others were taken since. */
void tni_philox_give_back(uint64_t n_counters, uint64_t seed, uint64_t offset);
/* Where that stands, for checkpoints (the default generator's state bytes hold it too). */
void tni_philox_get(uint64_t *seed, uint64_t *offset);
void tni_philox_set(uint64_t seed, uint64_t offset);

#endif
