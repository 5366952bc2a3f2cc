/*
 * onednn.c - products by oneDNN, a module of its own: a program that multiplies nothing large never
 * maps oneDNN (40 MB). The one file that calls it; oneDNN 2.6 and 3.x.
 *
 * oneDNN compiles a kernel for the exact sizes of a product ("primitive"), so each thread keeps the
 * primitives that it has used, with the memory objects through which they get their operands. A
 * primitive is made for one thread, so its bits do not depend on how many threads there are.
 * Sources: the oneDNN developer guide, "Matrix Multiplication" and "Primitive cache".
 */
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dnnl.h>

#include "tensor/cpu/onednn.h"

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t layout;
typedef const_dnnl_memory_desc_t const_layout;
#define LAYOUT(l) (l)
#else
typedef dnnl_memory_desc_t layout;
typedef const dnnl_memory_desc_t *const_layout;
#define LAYOUT(l) (&(l))
#endif

static dnnl_engine_t engine;

/* Held while oneDNN makes or drops a primitive, and around a fork: oneDNN has locks of its own that
 * a child would find held. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
    pthread_mutex_lock(&making);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&making);
}

/* ---- one primitive --------------------------------------------------------------------------- */

enum { A, B, BIAS, C, SCRATCH, OPERANDS };
static const int argument[OPERANDS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                        DNNL_ARG_SCRATCHPAD };

/* A product's sizes and kinds without its operands; all bytes count. */
typedef struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t kinds; /* dtypes, transpositions, bias, accumulate: a bit each */
} key;

typedef struct entry {
    key key;
    bool known;
    dnnl_primitive_t primitive; /* NULL: oneDNN has no fast kernel for these sizes here */
    dnnl_memory_t operand[OPERANDS];
    size_t scratch;
} entry;

static key key_of(const tni_product *p)
{
    int64_t kinds = (p->in == TN_BF16) | (p->out == TN_BF16) << 1 | p->ta << 2 | p->tb << 3 |
                    (p->bias != NULL) << 4 | p->accumulate << 5;
    return (key){ p->m, p->n, p->k, p->lda, p->ldb, p->ldc, kinds };
}

static dnnl_data_type_t type_of(tn_dtype dtype)
{
    return dtype == TN_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t make_layout(layout *l, int64_t rows, int64_t cols, int64_t row, int64_t col,
                                 tn_dtype dtype)
{
    dnnl_dims_t sizes = { rows, cols }, strides = { row, col };
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(l, 2, sizes, type_of(dtype), strides);
#else
    return dnnl_memory_desc_init_by_strides(l, 2, sizes, type_of(dtype), strides);
#endif
}

/* The plan of a product: for one thread, scratch memory from the caller. */
static dnnl_status_t describe(const tni_product *p, const layout *l, dnnl_primitive_desc_t *plan)
{
    dnnl_primitive_attr_t options = NULL;
    dnnl_post_ops_t then = NULL;
    dnnl_status_t s = dnnl_primitive_attr_create(&options);
    if (s == dnnl_success)
        s = dnnl_primitive_attr_set_scratchpad_mode(options, dnnl_scratchpad_mode_user);
    if (s == dnnl_success && p->accumulate) {
        s = dnnl_post_ops_create(&then);
#if DNNL_VERSION_MAJOR >= 3
        if (s == dnnl_success) s = dnnl_post_ops_append_sum(then, 1, 0, dnnl_data_type_undef);
#else
        if (s == dnnl_success) s = dnnl_post_ops_append_sum(then, 1);
#endif
        if (s == dnnl_success) s = dnnl_primitive_attr_set_post_ops(options, then);
    }
    const_layout bias = p->bias ? LAYOUT(l[BIAS]) : NULL;
#if DNNL_VERSION_MAJOR >= 3
    if (s == dnnl_success)
        s = dnnl_matmul_primitive_desc_create(plan, engine, l[A], l[B], bias, l[C], options);
#else
    dnnl_matmul_desc_t product;
    if (s == dnnl_success) s = dnnl_matmul_desc_init(&product, &l[A], &l[B], bias, &l[C]);
    if (s == dnnl_success) s = dnnl_primitive_desc_create(plan, &product, options, engine, NULL);
#endif
    if (then) dnnl_post_ops_destroy(then);
    if (options) dnnl_primitive_attr_destroy(options);
    return s;
}

static void entry_clear(entry *e)
{
    for (int i = 0; i < OPERANDS; i++)
        if (e->operand[i]) dnnl_memory_destroy(e->operand[i]);
    if (e->primitive) dnnl_primitive_destroy(e->primitive);
    *e = (entry){ 0 };
}

/*
 * Whether oneDNN's choice of a kernel is worth it. Measured on Zen 4 against OpenBLAS 0.3.21: brg
 * (operands without gaps) multiplies f32 8 to 12 % faster from 2^17 multiplications on, gemm:jit
 * (any leading dimension) 3 to 8 % from 2^20 on; both take bf16 at twice that rate. "ref" is a
 * loop.
 */
static bool is_fast(const_dnnl_primitive_desc_t plan, const tni_product *p)
{
    const char *name = NULL;
    if (dnnl_primitive_desc_query(plan, dnnl_query_impl_info_str, 0, (void *)&name) !=
            dnnl_success ||
        !name)
        return false;
    if (strncmp(name, "brg", 3) == 0) return true;
    double work = (double)p->m * (double)p->n * (double)p->k;
    return strcmp(name, "gemm:jit") == 0 && (p->in == TN_BF16 || work >= 0x1p20);
}

static dnnl_status_t entry_fill(entry *e, const tni_product *p, const layout *l)
{
    dnnl_primitive_desc_t plan = NULL;
    dnnl_status_t s = describe(p, l, &plan);
    if (s == dnnl_success && is_fast(plan, p)) {
        const_layout scratch = dnnl_primitive_desc_query_md(plan, dnnl_query_scratchpad_md, 0);
        e->scratch = dnnl_memory_desc_get_size(scratch);
        s = dnnl_primitive_create(&e->primitive, plan);
        for (int i = 0; i < OPERANDS && s == dnnl_success; i++)
            if (i != BIAS || p->bias)
                s = dnnl_memory_create(&e->operand[i], i == SCRATCH ? scratch : LAYOUT(l[i]),
                                       engine, DNNL_MEMORY_NONE);
    }
    if (plan) dnnl_primitive_desc_destroy(plan);
    return s;
}

static void entry_init(entry *e, const tni_product *p)
{
    layout l[SCRATCH] = { 0 };
    pthread_mutex_lock(&making);
    dnnl_status_t s = make_layout(&l[A], p->m, p->k, p->ta ? 1 : p->lda, p->ta ? p->lda : 1, p->in);
    if (s == dnnl_success)
        s = make_layout(&l[B], p->k, p->n, p->tb ? 1 : p->ldb, p->tb ? p->ldb : 1, p->in);
    if (s == dnnl_success) s = make_layout(&l[BIAS], 1, p->n, p->n, 1, p->in);
    if (s == dnnl_success) s = make_layout(&l[C], p->m, p->n, p->ldc, 1, p->out);
    if (s == dnnl_success) s = entry_fill(e, p, l);
#if DNNL_VERSION_MAJOR >= 3
    for (int i = 0; i < SCRATCH; i++)
        if (l[i]) dnnl_memory_desc_destroy(l[i]);
#endif
    if (s != dnnl_success) entry_clear(e);
    pthread_mutex_unlock(&making);
    e->key = key_of(p);
    e->known = s != dnnl_out_of_memory; /* tried again */
}

/* ---- a thread's primitives ------------------------------------------------------------------- */

enum { ENTRIES = 512, PROBES = 8 };

typedef struct cache {
    entry entries[ENTRIES]; /* a hash table; a full neighbourhood gives up its first entry */
    dnnl_stream_t stream;
    void *scratch;
    size_t scratch_size;
} cache;

static pthread_key_t cache_key;

static void cache_free(void *memory)
{
    cache *c = memory;
    pthread_mutex_lock(&making);
    for (int i = 0; i < ENTRIES; i++) entry_clear(&c->entries[i]);
    pthread_mutex_unlock(&making);
    if (c->stream) dnnl_stream_destroy(c->stream);
    free(c->scratch);
    free(c);
}

static cache *cache_of_thread(void)
{
    cache *c = pthread_getspecific(cache_key);
    if (c) return c;
    c = calloc(1, sizeof *c);
    if (!c) return NULL;
    if (dnnl_stream_create(&c->stream, engine, dnnl_stream_default_flags) != dnnl_success ||
        pthread_setspecific(cache_key, c) != 0) {
        cache_free(c);
        return NULL;
    }
    return c;
}

static uint64_t hash_of(const key *k)
{
    const int64_t word[] = { k->m, k->n, k->k, k->lda, k->ldb, k->ldc, k->kinds };
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof word / sizeof word[0]; i++) {
        h = (h ^ (uint64_t)word[i]) * 0x9e3779b97f4a7c15u; /* 2^64 / the golden ratio */
        h ^= h >> 32;
    }
    return h;
}

static entry *find(cache *c, const tni_product *p)
{
    key k = key_of(p);
    uint64_t h = hash_of(&k);
    entry *e = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        e = &c->entries[(h + i) % ENTRIES];
        if (!e->known) break;
        if (memcmp(&e->key, &k, sizeof k) == 0) return e;
    }
    if (e->known) {
        e = &c->entries[h % ENTRIES];
        pthread_mutex_lock(&making);
        entry_clear(e);
        pthread_mutex_unlock(&making);
    }
    entry_init(e, p);
    return e;
}

static bool reserve(cache *c, size_t size)
{
    if (size <= c->scratch_size) return true;
    free(c->scratch);
    c->scratch_size = 0;
    size = (size + 4095) / 4096 * 4096;
    c->scratch = aligned_alloc(4096, size);
    if (c->scratch) c->scratch_size = size;
    return c->scratch != NULL;
}

static bool execute(cache *c, entry *e, const tni_product *p)
{
    void *const memory[OPERANDS] = { (void *)(uintptr_t)p->a, (void *)(uintptr_t)p->b,
                                     (void *)(uintptr_t)p->bias, p->c, c->scratch };
    dnnl_exec_arg_t args[OPERANDS];
    int n = 0;
    for (int i = 0; i < OPERANDS; i++) {
        if (!e->operand[i]) continue;
        if (dnnl_memory_set_data_handle(e->operand[i], memory[i]) != dnnl_success) return false;
        args[n++] = (dnnl_exec_arg_t){ argument[i], e->operand[i] };
    }
    return dnnl_primitive_execute(e->primitive, c->stream, n, args) == dnnl_success;
}

static bool product(const tni_product *p)
{
    cache *c = cache_of_thread();
    if (!c) return false;
    int threads = omp_get_max_threads(); /* oneDNN would start that many */
    if (threads > 1) omp_set_num_threads(1);
    entry *e = find(c, p);
    bool done = e->primitive && reserve(c, e->scratch) && execute(c, e, p);
    if (threads > 1) omp_set_num_threads(threads);
    return done;
}

/* ---- opening --------------------------------------------------------------------------------- */

TN_API const tni_onednn *tenon_onednn_open(const char *id, char *why, size_t size);

static bool multiplies(tn_dtype dtype)
{
    static const uint16_t some[64 * 64];
    static float c[64 * 64];
    tni_product p = { 64, 64, 64, 64, 64, 64, dtype, TN_F32, .a = some, .b = some, .c = c };
    entry e = { 0 };
    entry_init(&e, &p);
    bool yes = e.primitive != NULL;
    entry_clear(&e);
    return yes;
}

const tni_onednn *tenon_onednn_open(const char *id, char *why, size_t size)
{
    static tni_onednn table = { .product = product };
    static char version[32];
    if (strcmp(id, TNI_ONEDNN_ID) != 0) {
        snprintf(why, size, "it was built for %s: want %s", TNI_ONEDNN_ID, id);
        return NULL;
    }
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success ||
        pthread_key_create(&cache_key, cache_free) != 0 ||
        pthread_atfork(before_fork, after_fork, after_fork) != 0) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    const dnnl_version_t *v = dnnl_version();
    snprintf(version, sizeof version, "%d.%d.%d", v->major, v->minor, v->patch);
    table.version = version;
    table.bf16 = multiplies(TN_BF16);
    return &table;
}
