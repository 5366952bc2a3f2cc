/*
 * world.h - random calls of the public functions, and the checks after each of them.
 *
 * A row (in rows/) is one function: its result, its name, and the kind of each argument. A kind
 * (kinds.def) is a type and a way to draw it (draw.c). Everything random in an argument comes from
 * the pick_ functions below, one number or pointer at a time, so a sweep can take sound arguments
 * and replace the k-th part by something odd.
 */
#ifndef TENON_FUZZ_API_WORLD_H
#define TENON_FUZZ_API_WORLD_H

#include <inttypes.h>
#include <tenon/tenon.h>

enum { MAX_ARGS = 9, MAX_OUT = 4096, MAX_NUMEL = 1 << 16 };

typedef void (*release_function)(void *user);
typedef tn_status (*visit_function)(tn_module *m, const char *path, void *user);
typedef tn_status (*apply_function)(tn_module *m, void *user);
typedef bool (*keep_function)(const tn_entry *entry, void *user);
typedef double (*factor_function)(int64_t step, void *user);
typedef int (*batch_function)(tn_module *m, void *user);
typedef tn_status (*collate_function)(const tn_dataset *d, tn_tensor *const *in, tn_tensor **out);
typedef tn_tensor *(*loss_function_)(tn_module *m, void *user);

/* An argument: a member for every kind, named after it. */
typedef union value {
#define KIND(name, type, when) type name;
#include "kinds.def"
#undef KIND
} value;

typedef enum kind {
#define KIND(name, type, when) K_##name,
#include "kinds.def"
#undef KIND
    KINDS
} kind;

/* What a function returns, and so how it fails. */
typedef enum gives {
    G_tensor, /* NULL on failure, as all the objects */
    G_module,
    G_list,
    G_optim,
    G_scheduler,
    G_scaler,
    G_shared,
    G_generator,
    G_loader,
    G_capture,
    G_later,
    G_trace,
    G_tensorboard,
    G_corpus,
    G_images,
    G_csv,
    G_status,
    G_count,   /* -1 on failure */
    G_number,  /* NaN on failure, with a message: else a NaN like any */
    G_address, /* NULL on failure; never dereferenced */
    G_found,   /* text or NULL, which alone is not a failure */
    G_plain,   /* a number that is never a failure */
    G_moody,   /* the same, but it varies: addresses, memory, threads */
    G_moody_text,
    G_nothing,
    G_scope,
    G_default_generator
} gives;

typedef union result {
    tn_tensor *tensor;
    tn_module *module;
    tn_list *list;
    tn_optim *optim;
    tn_scheduler *scheduler;
    tn_scaler *scaler;
    tn_data_parallel *shared;
    tn_generator *generator;
    tn_loader *loader;
    tn_capture *capture;
    tn_later *later;
    tn_trace *trace;
    tn_tensorboard *tensorboard;
    tn_text *corpus;
    tn_image_folder *images;
    tn_csv *csv;
    tn_status status;
    int64_t n;
    double real;
    const char *text;
    tn_scope scope;
    const void *object;
} result;

typedef struct slot {
    value v;
    int have;        /* entries of the array that v is; -1: no array */
    const void *why; /* what v is borrowed from, if needed later */
} slot;

typedef struct world world;

typedef struct row {
    const char *name;
    gives gives;
    int n;
    kind kinds[MAX_ARGS];
    void (*call)(world *w, slot *s);
} row;

extern const row rows[];
extern const int n_rows;
/* The rows that rows_custom.c writes out: rows.c knows them by name. */
#define CUSTOM(gives, name) void custom_##name(world *w, slot *s);
#define R0(gives, name)
#define R1(gives, name, ...)
#define R2 R1
#define R3 R1
#define R4 R1
#define R5 R1
#define R6 R1
#define R7 R1
#define R8 R1
#define R9 R1
#include "rows.def"

/* ---- what a sequence of calls lives in ------------------------------------------------------- */

enum { TENSORS = 20, MODULES = 6, LISTS = 6, FEW = 3, SCOPES = 12, SCRATCH = 96, HOOKS = 8 };

typedef enum mode {
    SOUND, /* arguments that should be accepted */
    WILD,  /* some parts are odd */
    SWEEP  /* the part at `cut` takes its odd value number `way` */
} mode;

struct world {
    uint64_t random;
    mode mode;
    int cut, way, drawn, ways; /* SWEEP; ways: how many odd values the one at cut has */

    tn_tensor *tensor[TENSORS]; /* each holds a reference of its own, as the other objects */
    tn_module *module[MODULES];
    tn_module *evicted[SCRATCH]; /* from the pool, but possibly still an argument */
    int n_evicted;
    tn_list *list[LISTS]; /* of the scope at its depth */
    int list_depth[LISTS];
    tn_optim *optim[FEW];
    tn_scheduler *scheduler[FEW];
    tn_scaler *scaler[FEW];
    tn_data_parallel *shared[FEW];
    tn_generator *generator[FEW];
    tn_loader *loader[FEW];
    tn_capture *capture[FEW];
    tn_later *later[FEW];
    tn_trace *trace[FEW];
    tn_tensorboard *tensorboard[FEW];
    tn_text *corpus[FEW];
    tn_image_folder *images[FEW];
    tn_csv *csv[FEW];
    tn_file_lock *lock[FEW];
    int64_t hook[HOOKS];
    tn_scope scope[SCOPES];
    int scopes;

    void *scratch[SCRATCH];
    int n_scratch;
    char folder[256];
    char path[8][400];
    int n_path;
    bool touched; /* files may be in the folder */
    FILE *sink;

    slot slot[MAX_ARGS];
    result result;
    uint64_t digest; /* of all results of the sequence */
    int64_t calls, failed_calls;
    const row *row;
    bool ought;    /* the call would succeed with enough memory */
    bool broken;   /* an invariant did not hold: the sequence ends */
    bool refusing; /* memory may be refused: then results depend on what the cache holds */
    bool alone;    /* no other thread: state of the process may change */
    bool verbose;  /* print every call */
};

/* For a call that is made on the way: it may fail. */
static inline void either_way(tn_status status)
{
    (void)status;
}

#endif
