/**
 * tenon/tensor.h - tensors: what they are, who owns them, how they are made and read.
 *
 * Ownership in one line: every tensor that a function returns belongs to the current scope; tn_keep
 * what must outlive it. Shapes are row-major unless a view says otherwise; sizes are int64_t, at
 * most 8 axes. An axis argument may be negative and then counts from the end.
 */
#ifndef TENON_TENSOR_H
#define TENON_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tenon/error.h>

#ifdef __cplusplus
#include <initializer_list>
#endif

TN_BEGIN_C_

/** The most axes that a tensor may have. */
#define TN_MAX_RANK 8

/* For the macros that open blocks: what runs when the block is left, by its end or by return,
 * break, continue or goto. Compilers other than gcc and clang don't have this: there such blocks
 * must be left by their end only. */
#if defined(__GNUC__)
#define TN_WHEN_LEFT(function) __attribute__((cleanup(function), unused))
#define TN_AT_END(call) (void)0
#else
#define TN_WHEN_LEFT(function)
#define TN_AT_END(call) call
#endif

/* The variable of a block, named after its line, so that blocks can be nested. */
#define TN_JOINED_(name, line) name##line
#define TN_JOIN_(name, line) TN_JOINED_(name, line)
#define TN_OF_LINE_(name) TN_JOIN_(name, __LINE__)

/** A handle: shape and strides over a block of memory that views share, and its place in the graph
 *  of recorded ops. Tensors are made and read by functions only. */
typedef struct tn_tensor tn_tensor;

/** Types of elements: floats of 32, 64 and 16 bits (bf16 has f32's range, f16 more digits), signed
 *  integers, bytes, and bool: a byte, 0 or 1. */
typedef enum tn_dtype { TN_F32, TN_F64, TN_BF16, TN_F16, TN_I64, TN_I32, TN_U8, TN_BOOL } tn_dtype;

/** The kinds of devices. */
typedef enum tn_device_type { TN_CPU = 0, TN_CUDA = 1 } tn_device_type;

/** Where a tensor's memory is: tn_cpu() or tn_cuda(0), or another GPU's number. */
typedef struct tn_device {
    tn_device_type type; /* TN_CPU or TN_CUDA */
    int index;           /* among the devices of this type, from 0 */
} tn_device;

/** Sizes of a tensor: rank axes, outermost first. rank 0 is a single value. */
typedef struct tn_shape {
    int rank;                  /* number of axes, 0 to 8; -1: no shape */
    int64_t size[TN_MAX_RANK]; /* the first rank of them count */
} tn_shape;

/** A shape of the first rank sizes. A rank outside 0 to 8, or sizes NULL, gives rank -1, which any
 *  use refuses. */
TN_API tn_shape tn_shape_from(int rank, const int64_t *sizes);
TN_OLD_NAME_(tn_shape_of, tn_shape_from);

#ifdef __cplusplus
extern "C++" inline tn_shape tn_shape_from(std::initializer_list<int64_t> sizes)
{
    return tn_shape_from((int)sizes.size(), sizes.begin());
}
#endif

/** TN_SHAPE(2, 3): a shape by its sizes. */
#ifdef __cplusplus
#define TN_SHAPE(...) tn_shape_from({ __VA_ARGS__ })
#else
#define TN_SHAPE(...)                                                                              \
    tn_shape_from((int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)),                     \
                  (int64_t[]){ __VA_ARGS__ })
#endif
/* Two arguments: these numbers, and how many. */
#ifdef __cplusplus
#define TN_LIST_OF(type, ...)                                                                      \
    std::initializer_list<type>{ __VA_ARGS__ }.begin(),                                            \
        (int)std::initializer_list<type>{ __VA_ARGS__ }.size()
#else
#define TN_LIST_OF(type, ...)                                                                      \
    (const type[]){ __VA_ARGS__ }, (int)(sizeof((const type[]){ __VA_ARGS__ }) / sizeof(type))
#endif
/** TN_AXES(0, 2): these axes and how many: tn_sum(x, TN_AXES(0, 2), false). */
#define TN_AXES(...) TN_LIST_OF(int, __VA_ARGS__)
/** TN_INDEX(1, 2): the place of an element, one number per axis: tn_at(x, TN_INDEX(1, 2)). */
#define TN_INDEX(...) TN_LIST_OF(int64_t, __VA_ARGS__)
/** The shape of a single value. */
#define TN_SCALAR (tn_shape_from(0, NULL))
/** What a failed tn_size or tn_numel gives: so far below 0 that sums, products and quotients with
 *  real sizes are never a valid size, nor the -1 of tn_reshape. A function that is given it as a
 *  size passes the failure on. */
#define TN_NO_SIZE (-(INT64_C(1) << 40))

/** "Absent", where a tensor is optional (no bias, no mask, no gradient). It has no reference count
 *  and is never freed. */
TN_API extern tn_tensor tn_none_object;
#define TN_NONE (&tn_none_object)

TN_API tn_device tn_cpu(void); /* the CPU: where tensors are made */
/** An NVIDIA GPU; whether it exists is checked when it is used. See tn_cuda_available. A process
 *  computes on one: the first that is used. */
TN_API tn_device tn_cuda(int index);

/** Bytes of one element; 0 for a dtype that does not exist */
TN_API size_t tn_dtype_size(tn_dtype dtype);
/** Its name: "f32", "bool", ... Static storage. */
TN_API const char *tn_dtype_name(tn_dtype dtype);
/** True for f32, f64, bf16 and f16. */
TN_API bool tn_dtype_is_float(tn_dtype dtype);

/* ---- scopes ---------------------------------------------------------------------------------- */

/** A token: depth and serial number in this thread's stack of scopes. */
typedef struct tn_scope {
    int64_t depth;   /* scopes around it */
    uint64_t serial; /* tells it from other scopes of this depth */
} tn_scope;

/** Opens a scope: results of the following calls belong to it. A failure makes the next creation
 *  fail. */
TN_API tn_scope tn_scope_begin(void);
/** Drops everything made since, with inner scopes still open. Does nothing if the scope is not
 *  open. In a function that the library calls (a forward, a hook, a visitor), a scope opened before
 *  that call ends when the library's function returns: until then its tensors stay, and what is
 *  made belongs to it. */
TN_API void tn_scope_end(tn_scope scope);
/**
 * TN_SCOPE { ... }: a scope around the block, ended however the block is left: by its end, return,
 * break, continue or goto. (break and continue leave the block, not a loop around it.) tn_keep what
 * must outlive it.
 *
 *     for (int step = 0; step < 100; step++)
 *         TN_SCOPE {
 *             TN_CHECK(tn_backward(tn_cross_entropy(tn_forward(model, x), y)));
 *         }
 */
#define TN_SCOPE                                                                                   \
    for (tn_scope TN_OF_LINE_(tn_scope_) TN_WHEN_LEFT(tn_leave_scope_) = tn_scope_begin(),         \
                                         *TN_OF_LINE_(tn_scope_once_) = &TN_OF_LINE_(tn_scope_);   \
         TN_OF_LINE_(tn_scope_once_);                                                              \
         TN_OF_LINE_(tn_scope_once_) = NULL, TN_AT_END(tn_leave_scope_(&TN_OF_LINE_(tn_scope_))))
static inline void tn_leave_scope_(const tn_scope *scope)
{
    tn_scope_end(*scope);
}
/** Ends the scope and hands t to the parent scope. t may be made in it, be a parameter, or belong
 *  to an outer scope. Errors: a scope opened before the library called your function. */
TN_API tn_tensor *tn_scope_return(tn_scope scope, tn_tensor *t);
/** Gives a reference that you own (after tn_keep) to the current scope. */
TN_API tn_tensor *tn_scope_adopt(tn_tensor *t);

/** Takes one reference of your own, to be given back with tn_drop. Returns t, also NULL and
 *  TN_NONE. */
TN_API tn_tensor *tn_keep(tn_tensor *t);
/** Gives one reference back. NULL and TN_NONE are ignored. */
TN_API void tn_drop(tn_tensor *t);

/** Tensors alive in the process: flat over training steps unless something leaks. */
TN_API int64_t tn_live_tensors(void);

/* ---- memory ---------------------------------------------------------------------------------- */

/** Where the library takes memory from. size is in bytes; the block must be aligned to 64. */
typedef struct tn_allocator {
    void *(*alloc)(void *user, size_t size);            /* NULL: there is no more memory */
    void (*free)(void *user, void *block, size_t size); /* size as it was asked for */
    void *user;                                         /* what both are given */
} tn_allocator;

/**
 * Replaces the system allocator below the cache (tests fail the k-th call through it). For blocks
 * of 256 KiB and more it is asked for segments of 16 to 128 MiB, or for the block alone if it has
 * no segment.
 *
 * Errors   TN_E_STATE while the library uses any memory: a scope is open, or a tensor, a module, an
 *          optimizer or another object is alive (tn_memory().in_use); NULL restores the
 *          default.
 */
TN_API tn_status tn_set_allocator(const tn_allocator *allocator);
/** The allocator in use; all fields NULL for the system's. */
TN_API tn_allocator tn_get_allocator(void);

/** Counters of the caching allocator on the CPU. Bytes unless said otherwise. */
typedef struct tn_memory_stats {
    int64_t system_allocations; /* requests that went to the system, ever, also if it refused */
    int64_t data_allocations;   /* storages made for tensor data, ever: a hidden copy shows here */
    int64_t data_bytes;         /* bytes of those storages, ever (sum of requests) */
    int64_t in_use;             /* bytes handed out now */
    int64_t peak_in_use;        /* highest in_use since tn_memory_reset_peak */
    int64_t cached;             /* bytes held for reuse */
} tn_memory_stats;

/** The counters now. */
TN_API tn_memory_stats tn_memory(void);
TN_API void tn_memory_reset_peak(void); /* peak_in_use starts at in_use again */
/** Returns cached blocks to the system. Large ones (256 KiB and more) between others in use still
 *  count as cached, but their pages go back, too. */
TN_API void tn_memory_trim(void);

/* ---- threads --------------------------------------------------------------------------------- */

/**
 * Sets how many threads each calling thread may use for its kernels, itself included: 1 to 1000,
 * for the whole process from the next kernel on. Results have the same bits for every number.
 *
 * Default  TN_NUM_THREADS or OMP_NUM_THREADS of the environment, else the processors that this
 *          process may use (its affinity; in a container no more than its quota)
 * Helpers  are started when first needed, sleep when there is nothing to do, take no signals but
 *          those of faults (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS), and end with the
 *          thread that they help. If fewer can be started, kernels use fewer
 * fork     a child starts helpers of its own. Inside a parallel OpenMP region of the program a
 *          kernel stays on the thread that calls it
 */
TN_API tn_status tn_set_num_threads(int n);
TN_API int tn_num_threads(void); /* the number now */

/* ---- creation: f32 (or the default dtype) on the CPU; tn_to moves, the _as forms choose ------ */
/* What holds for all of them:
 *   Owner    current scope; TN_E_STATE without one
 *   Errors   NULL: more than 8 axes, a negative size, 2^60 or more elements (a size of 0 counts as
 *            1) (TN_E_SHAPE); out of memory; a value that an integer dtype cannot hold
 *            (TN_E_INVALID; fractions are cut off)
 * The results are leaves that require no gradient. */

/** Sets this thread's floating dtype for the creation functions below: TN_F32 (the initial one) or
 *  TN_F64. */
TN_API tn_status tn_set_default_dtype(tn_dtype dtype);
TN_API tn_dtype tn_default_dtype(void); /* what this thread has */

TN_API tn_tensor *tn_empty(tn_shape shape);              /* of a shape; contents undefined */
TN_API tn_tensor *tn_zeros(tn_shape shape);              /* every element 0 */
TN_API tn_tensor *tn_ones(tn_shape shape);               /* every element 1 */
TN_API tn_tensor *tn_full(tn_shape shape, double value); /* every element value */
TN_API tn_tensor *tn_scalar(double value);               /* a single value: rank 0 */
/** tn_empty with a dtype and a device. */
TN_API tn_tensor *tn_empty_as(tn_shape shape, tn_dtype dtype, tn_device device);
/** tn_full with a dtype and a device. An integer dtype drops the fraction of value, and refuses
 *  what it then cannot hold; for bool anything but 0 is true. */
TN_API tn_tensor *tn_full_as(tn_shape shape, double value, tn_dtype dtype, tn_device device);
TN_API tn_tensor *tn_empty_like(tn_tensor *t); /* dtype, shape, device of t; row-major */
TN_API tn_tensor *tn_zeros_like(tn_tensor *t); /* the same, every element 0 */
TN_API tn_tensor *tn_ones_like(tn_tensor *t);  /* the same, every element 1 */
TN_API tn_tensor *tn_full_like(tn_tensor *t, double value); /* the same, every element value */
/**
 * start, start + step, ... below end (above, for a negative step).
 *
 * Shapes   [ceil((end - start) / step)]
 * Range    PyTorch's values, whose steps start anew every 32 bytes; whole numbers are exact
 * Errors   step 0 or of the wrong sign; a bound that is not finite; dtype bool; a fractional start
 *          or step for an integer dtype
 */
TN_API tn_tensor *tn_arange(double start, double end, double step, tn_dtype dtype);
/** n >= 0 values from start to end, both included; n = 1 gives start. Each is computed in the dtype
 *  from its nearer end, as PyTorch does, so both ends are exact. */
TN_API tn_tensor *tn_linspace(double start, double end, int64_t n);
/** [n, n] identity */
TN_API tn_tensor *tn_eye(int64_t n);
/** Copies as many elements of dtype as shape has, row-major, from data. bool: any byte but 0 is
 *  true. */
TN_API tn_tensor *tn_from_data(const void *data, tn_shape shape, tn_dtype dtype);
/* a copy of floats: f32, whatever the default */
TN_API tn_tensor *tn_from_floats(const float *values, tn_shape shape);
TN_API tn_tensor *tn_from_ints(const int64_t *values, tn_shape shape); /* of integers: i64 */
/**
 * Uses the caller's memory without a copy.
 *
 * Owner    the memory stays the caller's; it must outlive every view. release (may be NULL) is
 *          called with user when the last tensor that uses the memory is gone.
 */
TN_API tn_tensor *tn_from_memory(void *data, tn_shape shape, tn_dtype dtype,
                                 void (*release)(void *user), void *user);
/** A copy in memory of its own, row-major; differentiable. */
TN_API tn_tensor *tn_clone(tn_tensor *t);

/* ---- random numbers -------------------------------------------------------------------------- */
/* Tensors are drawn from the default generator; owner and errors as for creation. */

/**
 * Seeds this process's default generator: MT19937 for values (PyTorch's CPU stream and draw order,
 * low 32 bits of the seed), Philox 4x32-10 for dropout masks (the same on every device). A program
 * that never seeds gets the same numbers in every run.
 *
 * Uniform numbers, integers and permutations equal PyTorch's bit for bit; normal numbers differ by
 * at most 2.4e-7 (1 + |x|). Values are drawn in row-major order.
 *
 * Source   Matsumoto and Nishimura (1998); Salmon et al., Parallel Random Numbers (2011)
 */
TN_API void tn_manual_seed(uint64_t seed);

TN_API tn_tensor *tn_rand(tn_shape shape);  /* uniform in [0, 1): multiples of 2^-24 (f64: 2^-53) */
TN_API tn_tensor *tn_randn(tn_shape shape); /* normal, mean 0, deviation 1; Box and Muller (1958) */
/**
 * The same, made on the device itself: on the CPU as tn_rand and tn_randn, in any floating dtype;
 * on a GPU by cuRAND (Philox, from this generator's mask counter). There the same seed gives the
 * same numbers again, but not the CPU's: a model's initial values are drawn on the CPU, then moved.
 *
 * Errors   dtype not floating
 */
TN_API tn_tensor *tn_rand_as(tn_shape shape, tn_dtype dtype, tn_device device);
/** Normal numbers the same way. */
TN_API tn_tensor *tn_randn_as(tn_shape shape, tn_dtype dtype, tn_device device);
TN_API tn_tensor *tn_rand_like(tn_tensor *t);  /* tn_rand_as, of t's shape, dtype and device */
TN_API tn_tensor *tn_randn_like(tn_tensor *t); /* tn_randn_as, the same */
TN_API tn_tensor *tn_randint(int64_t low, int64_t high, tn_shape shape); /* i64 in [low, high) */
/** The same, as t; a float dtype rounds them. Errors: numbers beyond its dtype's range. */
TN_API tn_tensor *tn_randint_like(tn_tensor *t, int64_t low, int64_t high);
/* i64 [n], each of 0..n-1 once */
TN_API tn_tensor *tn_randperm(int64_t n);
/* 1 with probability p in [0, 1], else 0 */
TN_API tn_tensor *tn_bernoulli(tn_shape shape, double p);
/**
 * Overwrites t in place with uniform numbers from low to high; records nothing.
 *
 * Errors   t not floating; bounds not finite or out of order; deviation negative; and as for every
 *          in-place op: t requires grad or has history, with grad mode on
 */
TN_API TN_MUST_USE tn_status tn_uniform_(tn_tensor *t, double low, double high);
/** The same with normal numbers. */
TN_API TN_MUST_USE tn_status tn_normal_(tn_tensor *t, double mean, double deviation);

/** A generator of your own, independent of the default one (for a loader's shuffle, say). It has a
 *  lock: threads may share it, but the order of draws then depends on how they run. Owner: yours,
 *  tn_generator_free. */
typedef struct tn_generator tn_generator;
/** Seeded as tn_manual_seed does. NULL: out of memory. */
TN_API tn_generator *tn_generator_new(uint64_t seed);
TN_API void tn_generator_free(tn_generator *g); /* frees it; NULL, the default: ignored */
TN_API void tn_generator_seed(tn_generator *g, uint64_t seed); /* starts again, as new */
TN_API tn_generator *tn_default_generator(void);               /* the library's own */
TN_API uint32_t tn_generator_u32(tn_generator *g);             /* the next MT19937 word */
/** Fills perm[0..n) with a random order, drawing as tn_randperm does. */
TN_API void tn_generator_permutation(tn_generator *g, int64_t n, int64_t *perm);
/** The whole state as bytes (words, a kept normal number, the seed and counter of the masks),
 *  little-endian, for checkpoints. tn_generator_set_state refuses bytes that are no such state
 *  (TN_E_FORMAT) and then changes nothing. */
#define TN_GENERATOR_STATE_SIZE 2560
/** Writes TN_GENERATOR_STATE_SIZE bytes. */
TN_API void tn_generator_get_state(const tn_generator *g, unsigned char *bytes);
/** Reads as many bytes; the next draws continue from that state. */
TN_API TN_MUST_USE tn_status tn_generator_set_state(tn_generator *g, const unsigned char *bytes);

/* ---- what a tensor is ------------------------------------------------------------------------ */
/* For NULL they return what their comment says, else TN_F32, the CPU, false, 0 or "". */

TN_API int tn_rank(const tn_tensor *t); /* number of axes; -1 for NULL */
/* the size of an axis; TN_NO_SIZE and a message out of range */
TN_API int64_t tn_size(const tn_tensor *t, int axis);
/* number of elements: the product of sizes, 1 for rank 0; TN_NO_SIZE for NULL */
TN_API int64_t tn_numel(const tn_tensor *t);
TN_API tn_shape tn_shape_get(const tn_tensor *t); /* all sizes; rank -1 for NULL */
/* from one index to the next, in elements */
TN_API int64_t tn_stride(const tn_tensor *t, int axis);
TN_API tn_dtype tn_dtype_of(const tn_tensor *t);   /* its element type */
TN_API tn_device tn_device_of(const tn_tensor *t); /* where its data is */
TN_API bool tn_is_contiguous(const tn_tensor *t);  /* row-major without gaps */
TN_API bool tn_is_none(const tn_tensor *t);        /* whether it is TN_NONE */
/** Whether both lie in one block of memory: views of each other, or of a third. */
TN_API bool tn_same_storage(const tn_tensor *a, const tn_tensor *b);
/* in-place changes of its storage so far */
TN_API uint64_t tn_version(const tn_tensor *t);
/* a name for messages; copied, cut at 63 bytes */
TN_API tn_status tn_set_name(tn_tensor *t, const char *name);
TN_API const char *tn_name(const tn_tensor *t); /* that name; "" when it has none */

/* ---- reading and writing values -------------------------------------------------------------- */

/** The value of a tensor of one element, as a double. NaN and a message otherwise. Waits for a
 *  GPU. */
TN_API double tn_item(const tn_tensor *t);
/** The value at an index, TN_INDEX(2, 0): one number per axis, from 0. NaN and a message
 *  otherwise. */
TN_API double tn_at(const tn_tensor *t, const int64_t *index, int n_index);
/** The first element of a contiguous CPU tensor; NULL and a message otherwise (see tn_copy_out). */
TN_API const void *tn_data(const tn_tensor *t);
/** The same for writing: counts as an in-place change. */
TN_API void *tn_data_mut(tn_tensor *t);
/** Copies all elements, in row-major order, as dtype, to out (nbytes must match exactly). Any
 *  device. */
TN_API TN_MUST_USE tn_status tn_copy_out(const tn_tensor *t, void *out, size_t nbytes,
                                         tn_dtype dtype);
/** Overwrites all elements from row-major data of dtype. An in-place change. */
TN_API TN_MUST_USE tn_status tn_copy_in(tn_tensor *t, const void *data, size_t nbytes,
                                        tn_dtype dtype);
/** FNV-1a of shape, dtype and bytes in row-major order: equal only for equal bits (up to
 *  chance). */
TN_API uint64_t tn_hash(const tn_tensor *t);
/** Largest absolute difference; NaN when shapes differ or any value is NaN on one side only. */
TN_API double tn_max_abs_diff(const tn_tensor *a, const tn_tensor *b);

/**
 * Prints as PyTorch does, then dtype, shape and (on a GPU) device, and a line end:
 *
 *     [[ 0.3367,  0.1288],
 *      [ 0.2345,  0.2303]]  f32 [2, 2]
 *
 * Columns are aligned; four decimals, "1." for whole floats, scientific notation where values span
 * more than 1000 to 1; lines of 80 columns; above 1,000 elements only three entries at each edge.
 * TN_NONE is "none".
 * Errors   t NULL; TN_E_IO when the file cannot be written
 */
TN_API tn_status tn_fprint(FILE *file, const tn_tensor *t);
TN_API tn_status tn_print(const tn_tensor *t); /* tn_fprint to stdout */
/** The same text without its line end, into a buffer: cut to size bytes, always terminated; buffer
 *  may be NULL with size 0. Returns the length of the whole text, -1 on error. */
TN_API int64_t tn_format(const tn_tensor *t, char *buffer, size_t size);

/* ---- the library ----------------------------------------------------------------------------- */

/** The version of these headers. */
#define TN_VERSION "0.1.0"
#define TN_VERSION_MAJOR 0 /* its first number */
#define TN_VERSION_MINOR 1 /* its second */
#define TN_VERSION_PATCH 0 /* its third */

TN_API const char *tn_version_string(void); /* version of the library that was loaded */
/** How the library was built and what it found, one "key: value" per line: version, compiler,
 *  BLAS, SIMD, threads, CUDA; more about CUDA once a CUDA device was asked for (tn_cuda_available).
 *  It says whether AMX is used or, where it is there but not used, why not. Signal stacks: the
 *  first large product, or tn_info before it, asks the system for AMX's registers, which it then
 *  saves for every signal. From then on sigaltstack wants getauxval(AT_MINSIGSTKSZ) bytes (about 12
 *  KiB) in place of MINSIGSTKSZ; and where a thread has set a smaller stack before, the system
 *  refuses, and AMX is not used: the last bits of results then differ. With TN_AMX=off in the
 *  environment nobody asks the system */
TN_API const char *tn_info(void);
/** Whether the device multiplies bf16 by instructions of its own, so that training under
 *  TN_AUTOCAST(TN_BF16) is likely to be faster than in f32: a CPU with AMX, one of AMD's with
 *  AVX512-BF16, a GPU of compute capability 8.0 and later. False for a device that is not there. */
TN_API bool tn_bf16_is_fast(tn_device device);

/* ---- NVIDIA GPUs ----------------------------------------------------------------------------- */

/* CUDA's libraries are loaded (150 MiB and more of memory) when a device is first asked for: by a
 * use of tn_cuda(i), by the functions from here to tn_cuda_memory, or by tn_tf32 where TF32 was
 * allowed. Nothing else loads them. */

/** Whether a CUDA device can be used. Never fails; tn_cuda_why says why not. */
TN_API bool tn_cuda_available(void);
/** "" if a device can be used, else a sentence that says what is missing. Owner: the library. */
TN_API const char *tn_cuda_why(void);
/** The number of GPUs that this process sees (CUDA_VISIBLE_DEVICES says which); 0 if there is
 *  none. */
TN_API int tn_cuda_device_count(void);

/** What a GPU is. */
typedef struct tn_cuda_properties {
    char name[256];      /* as its driver says */
    int64_t memory;      /* bytes */
    int major, minor;    /* compute capability */
    int multiprocessors; /* how many */
} tn_cuda_properties;

/** Fills properties. Errors: TN_E_DEVICE: no such device. */
TN_API tn_status tn_cuda_get_properties(int index, tn_cuda_properties *properties);

/** Bytes of the device; in_use and so on count the tensors' data. */
typedef struct tn_cuda_memory_stats {
    int64_t total, free; /* as the driver sees them; free leaves out what the pool holds */
    int64_t in_use;      /* in tensors now */
    int64_t peak_in_use; /* highest in_use since tn_cuda_memory_reset_peak */
    int64_t reserved;    /* held by the pool, in_use and freed */
    int64_t allocations; /* for tensors, ever */
} tn_cuda_memory_stats;

/** All 0 if there is no device, or it fails. */
TN_API tn_cuda_memory_stats tn_cuda_memory(void);
TN_API void tn_cuda_memory_reset_peak(void); /* peak_in_use starts at in_use again */
/** Waits, and returns the pool's unused memory to the device. */
TN_API void tn_cuda_memory_trim(void);
/**
 * Waits until all work is done. Otherwise only reading values on the host waits.
 *
 * Errors   TN_OK without a device; TN_E_INDEX: an index that kernels met since the last wait was
 *          out of range (nothing was read or written out of bounds); TN_E_BACKEND: the device
 *          failed
 */
TN_API TN_MUST_USE tn_status tn_cuda_synchronize(void);
/** Sets whether products of f32 may round their operands to TF32 (10 bits) on a GPU; initially they
 *  may not. Errors: those of the device. */
TN_API tn_status tn_set_tf32(bool allow);
TN_API bool tn_tf32(void); /* whether they may; false without a device */

TN_END_C_
#endif
