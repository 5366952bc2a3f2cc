/* pool.c - the objects that a sequence of calls has made, for use as arguments of later calls. */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#include "draw.h"

/* ---- memory ---------------------------------------------------------------------------------- */

enum { CEILING = 16 << 20 };
memory_hook memory = { .left = -1 };

static void *limited_alloc(void *user, size_t size)
{
    memory_hook *m = user;
    bool refuse = size > CEILING || m->in_use + (int64_t)size > CEILING;
    if (refuse && size < 2 * CEILING) m->tight++;
    if (m->left == 0) {
        refuse = true;
        if (!m->for_good) m->left = -1;
    } else if (m->left > 0) {
        m->left--;
    }
    void *block = NULL;
    if (refuse || posix_memalign(&block, 64, size ? size : 1) != 0) {
        m->refused++;
        return NULL;
    }
    m->in_use += (int64_t)size;
    return block;
}

static void limited_free(void *user, void *block, size_t size)
{
    memory_hook *m = user;
    m->in_use -= (int64_t)size;
    free(block);
}

/* The same limit on one request, without a counter, which would order the threads. */
static void *modest_alloc(void *user, size_t size)
{
    void *block = NULL;
    (void)user;
    return size <= CEILING && posix_memalign(&block, 64, size ? size : 1) == 0 ? block : NULL;
}
static void modest_free(void *user, void *block, size_t size)
{
    (void)user, (void)size;
    free(block);
}
const tn_allocator modest_allocator = { modest_alloc, modest_free, NULL };
const tn_allocator limited_allocator = { limited_alloc, limited_free, &memory };

/* ---- hashes ---------------------------------------------------------------------------------- */

uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    return hash * 0xff51afd7ed558ccdu;
}

uint64_t hash_bytes(const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

static uint64_t hash_text(const char *text)
{
    return text ? hash_bytes(text, strlen(text)) : 7;
}

/* All NaNs count as equal: their bits depend on the compiler. */
uint64_t hash_tensor(const tn_tensor *t)
{
    if (!t || tn_is_none(t)) return t ? 1 : 2;
    int64_t n = tn_numel(t);
    uint64_t h =
        mix((uint64_t)tn_dtype_of(t), (uint64_t)tn_requires_grad(t) * 2 + (uint64_t)tn_is_leaf(t));
    for (int i = 0; i < tn_rank(t); i++) h = mix(h, (uint64_t)tn_size(t, i));
    if (n < 0 || n > 4 * MAX_NUMEL) return h;
    double *values = malloc((size_t)(n ? n : 1) * sizeof *values);
    if (!values) abort();
    tn_dtype dtype = tn_dtype_of(t) == TN_I64 ? TN_I64 : TN_F64;
    if (tn_copy_out(t, values, (size_t)n * sizeof *values, dtype) == TN_OK) {
        for (int64_t i = 0; dtype == TN_F64 && i < n; i++)
            if (values[i] != values[i]) values[i] = 12345.678;
        h = mix(h, hash_bytes(values, (size_t)n * sizeof *values));
    }
    free(values);
    return h;
}

uint64_t hash_list(const tn_list *list)
{
    if (!list) return 2;
    uint64_t h = (uint64_t)list->n;
    for (int i = 0; i < list->n; i++) {
        h = mix(h, hash_text(list->entry[i].name));
        h = mix(h, hash_tensor(list->entry[i].tensor));
    }
    return h;
}

uint64_t hash_module(tn_module *m)
{
    if (!m || m == TN_NO_MODULE) return m ? 1 : 2;
    tn_scope s = tn_scope_begin();
    uint64_t h = mix((uint64_t)tn_training(m), (uint64_t)tn_module_frozen(m));
    h = mix(h, hash_list(tn_parameters_with(m, (tn_walk_options){ .keep_duplicates = true })));
    h = mix(h, hash_list(tn_buffers_with(m, (tn_walk_options){ .keep_duplicates = true })));
    h = mix(h, (uint64_t)tn_module_children(m));
    tn_scope_end(s);
    return h;
}

uint64_t hash_optim(tn_optim *opt)
{
    if (!opt) return 2;
    tn_scope s = tn_scope_begin();
    uint64_t h = mix(hash_list(tn_optim_state_dict(opt)), hash_list(tn_optim_parameters(opt)));
    h = mix(h, (uint64_t)tn_optim_steps(opt));
    tn_scope_end(s);
    return h;
}

static uint64_t hash_generator(const tn_generator *g)
{
    if (!g) return 2;
    unsigned char bytes[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(g, bytes);
    return hash_bytes(bytes, sizeof bytes);
}

/* ---- what a failed call must not change ------------------------------------------------------ */

typedef enum class { OTHER, TENSOR, TENSOR_ARRAY, MODULE, LIST, OPTIM, GENERATOR } class;
static const class classes[KINDS] = {
#define KIND(name, type, when)                                                                     \
    [K_##name] = _Generic((type){ 0 }, tn_tensor *: TENSOR, tn_tensor **: TENSOR_ARRAY,            \
                          tn_module *: MODULE, tn_list *: LIST, tn_optim *: OPTIM,                 \
                          tn_generator *: GENERATOR, default: OTHER),
#include "kinds.def"
#undef KIND
};

static uint64_t hash_operand(tn_tensor *t)
{
    uint64_t h = hash_tensor(t);
    if (!t || tn_is_none(t)) return h;
    h = mix(h, tn_version(t));
    if (!tn_is_leaf(t) || !tn_requires_grad(t)) return h;
    tn_scope s = tn_scope_begin();
    h = mix(h, hash_tensor(tn_grad(t)));
    tn_scope_end(s);
    return h;
}

static uint64_t hash_argument(const slot *s, kind k)
{
    uint64_t h = 0;
    if (k == K_field || k == K_out || k == K_outs) return 0;
    switch (classes[k]) {
    case TENSOR: return hash_operand(s->v.any);
    case TENSOR_ARRAY:
        for (int i = 0; s->v.tensors && i < s->have; i++) h = mix(h, hash_operand(s->v.tensors[i]));
        return h;
    case MODULE: /* what the call consumes may be freed */
        return k == K_child || k == K_given_module || k == K_norm ? 0 : hash_module(s->v.module);
    case LIST: return hash_list(s->v.list);
    case OPTIM: return hash_optim(s->v.optim);
    case GENERATOR: return hash_generator(s->v.generator);
    default: return 0;
    }
}

uint64_t hash_arguments(world *w, const row *r)
{
    /* a layer that fails half-way has drawn some of its values */
    bool draws = r->gives == G_module || !w->alone;
    uint64_t h = draws ? 0 : hash_generator(tn_default_generator());
    for (int i = 0; i < r->n; i++) h = mix(h, hash_argument(&w->slot[i], r->kinds[i]));
    return h;
}

/* ---- the pools ------------------------------------------------------------------------------- */

#define PUT(w, pool, n, object, drop)                                                              \
    do {                                                                                           \
        int put_at_ = (int)below(w, n);                                                            \
        for (int put_i_ = 0; put_i_ < (n); put_i_++)                                               \
            if (!(w)->pool[put_i_]) put_at_ = put_i_;                                              \
        if ((w)->pool[put_at_]) drop((w)->pool[put_at_]);                                          \
        (w)->pool[put_at_] = (object);                                                             \
    } while (0)

/* Only tensors that the next call can process quickly: no gigantic view. */
static bool handy(const tn_tensor *t)
{
    int64_t n = tn_numel(t);
    if (n < 0 || n > MAX_NUMEL) return false;
    for (int i = 0; i < tn_rank(t); i++)
        if (tn_size(t, i) > MAX_OUT) return false;
    return true;
}

void pool_tensor(world *w, tn_tensor *t)
{
    if (!t || tn_is_none(t)) return;
    if (!handy(t)) return;
    tn_keep(t); /* before another is dropped, which may be t's only holder */
    PUT(w, tensor, TENSORS, t, tn_drop);
}

/* Lists borrow the owners they name, so no list may outlive one. */
void drop_evicted(world *w)
{
    if (w->n_evicted > 0) forget_lists(w, 0);
    while (w->n_evicted > 0) tn_module_drop(w->evicted[--w->n_evicted]);
}

void pool_module(world *w, tn_module *m)
{
    if (!m || m == TN_NO_MODULE) return;
    int at = (int)below(w, MODULES);
    for (int i = 0; i < MODULES; i++)
        if (!w->module[i]) at = i;
    if (w->module[at]) w->evicted[w->n_evicted++] = w->module[at];
    w->module[at] = m;
}

static void drop_list(tn_list *list)
{
    (void)list;
}

void pool_list(world *w, tn_list *list)
{
    if (!list) return;
    PUT(w, list, LISTS, list, drop_list);
    for (int i = 0; i < LISTS; i++)
        if (w->list[i] == list) w->list_depth[i] = w->scopes - 1;
}

void forget_lists(world *w, int depth)
{
    for (int i = 0; i < LISTS; i++)
        if (w->list[i] && w->list_depth[i] >= depth) w->list[i] = NULL;
}

void close_scopes(world *w, int depth)
{
    forget_lists(w, depth);
    if (depth < w->scopes) w->scopes = depth;
    if (w->scopes == 0) w->scope[w->scopes++] = tn_scope_begin();
}

void pool_result(world *w)
{
    result r = w->result;
    switch (w->row->gives) {
    case G_tensor:
        /* what it held is undefined */
        if (strncmp(w->row->name, "tn_empty", 8) == 0) either_way(tn_zero_(r.tensor));
        w->digest = mix(w->digest, hash_tensor(r.tensor));
        pool_tensor(w, r.tensor);
        break;
    case G_module: /* a looked-up module is borrowed */
        w->digest = mix(w->digest, hash_module(r.module));
        if (strcmp(w->row->name, "tn_get_submodule") == 0 ||
            strcmp(w->row->name, "tn_module_child") == 0 ||
            strcmp(w->row->name, "tn_ema_module") == 0)
            tn_module_keep(r.module);
        pool_module(w, r.module);
        break;
    case G_list:
        w->digest = mix(w->digest, hash_list(r.list));
        pool_list(w, r.list);
        break;
    case G_optim: PUT(w, optim, FEW, r.optim, tn_optim_free); break;
    case G_scheduler: PUT(w, scheduler, FEW, r.scheduler, tn_scheduler_free); break;
    case G_scaler: PUT(w, scaler, FEW, r.scaler, tn_scaler_free); break;
    case G_shared:
        forget_lists(w, 0); /* of the model that one keeps which goes */
        PUT(w, shared, FEW, r.shared, tn_data_parallel_free);
        break;
    case G_generator: PUT(w, generator, FEW, r.generator, tn_generator_free); break;
    case G_loader: PUT(w, loader, FEW, r.loader, tn_loader_free); break;
    case G_capture: PUT(w, capture, FEW, r.capture, tn_capture_free); break;
    case G_later: PUT(w, later, FEW, r.later, tn_later_take); break;
    case G_trace: PUT(w, trace, FEW, r.trace, tn_trace_free); break;
    case G_tensorboard: PUT(w, tensorboard, FEW, r.tensorboard, tn_tensorboard_free); break;
    case G_corpus: PUT(w, corpus, FEW, r.corpus, tn_text_free); break;
    case G_images: PUT(w, images, FEW, r.images, tn_image_folder_free); break;
    case G_csv: PUT(w, csv, FEW, r.csv, tn_csv_free); break;
    case G_status: w->digest = mix(w->digest, (uint64_t)r.status); break;
    case G_count:
        if (is_hook_id(w->row->name)) break; /* ids are per process */
        /* fall through */
    case G_plain: w->digest = mix(w->digest, (uint64_t)r.n); break;
    case G_number:
        w->digest = mix(w->digest, r.real != r.real ? 3 : hash_bytes(&r.real, sizeof r.real));
        break;
    case G_found: w->digest = mix(w->digest, r.text != NULL); break;
    default: break;
    }
}

/* ---- a sequence ------------------------------------------------------------------------------ */

void begin_sequence(world *w, uint64_t seed)
{
    w->random = seed;
    w->digest = 0;
    w->broken = false;
    w->scopes = 0;
    w->n_path = 0;
    memset(w->hook, 0, sizeof w->hook);
    if (w->alone) {
        clear_lent_memory();
        tn_manual_seed(seed);
        either_way(tn_set_file_limits((tn_file_limits){ 0 }));
    }
    tn_set_default_dtype(TN_F32);
    tn_set_autocast(TN_F32);
    tn_set_grad_enabled(true);
    tn_set_anomaly(TN_ANOMALY_OFF);
    tn_set_places(false);
    tn_set_lines(false);
    w->scope[w->scopes++] = tn_scope_begin();
    for (int i = 0; i < 6; i++) {
        static const int64_t shapes[6][2] = { { 2, 3 }, { 4, 3 }, { 3, 3 },
                                              { 3, 2 }, { 1, 3 }, { 2, 1 } };
        tn_shape shape = { 2, { shapes[i][0], shapes[i][1] } };
        pool_tensor(w, i % 2 ? make_leaf(w, shape, TN_F32) : make_tensor(w, shape, TN_F32, PLAIN));
    }
}

static void empty_folder(world *w);

#define DROP_ALL(pool, n, drop)                                                                    \
    for (int i = 0; i < (n); i++) {                                                                \
        if (w->pool[i]) drop(w->pool[i]);                                                          \
        w->pool[i] = NULL;                                                                         \
    }

void end_sequence(world *w)
{
    drop_evicted(w);
    forget_lists(w, 0);
    DROP_ALL(trace, FEW, tn_trace_free)
    DROP_ALL(capture, FEW, tn_capture_free)
    DROP_ALL(later, FEW, tn_later_take)
    DROP_ALL(loader, FEW, tn_loader_free)
    DROP_ALL(scheduler, FEW, tn_scheduler_free)
    DROP_ALL(scaler, FEW, tn_scaler_free)
    DROP_ALL(shared, FEW, tn_data_parallel_free)
    DROP_ALL(optim, FEW, tn_optim_free)
    DROP_ALL(generator, FEW, tn_generator_free)
    DROP_ALL(tensorboard, FEW, tn_tensorboard_free)
    DROP_ALL(corpus, FEW, tn_text_free)
    DROP_ALL(images, FEW, tn_image_folder_free)
    DROP_ALL(csv, FEW, tn_csv_free)
    DROP_ALL(lock, FEW, tn_checkpoint_unlock)
    DROP_ALL(module, MODULES, tn_module_drop)
    DROP_ALL(tensor, TENSORS, tn_drop)
    tn_micro_batches_cancel();
    tn_set_autocast(TN_F32); /* drops its casts */
    if (w->scopes > 0) tn_scope_end(w->scope[0]);
    w->scopes = 0;
    if (w->touched) empty_folder(w);
}

#include <ftw.h>
#include <stdio.h>

static int remove_inner(const char *path, const struct stat *about, int type, struct FTW *where)
{
    (void)about, (void)type;
    return where->level ? remove(path) : 0;
}

static void empty_folder(world *w)
{
    nftw(w->folder, remove_inner, 8, FTW_DEPTH | FTW_PHYS);
    w->touched = false;
}
