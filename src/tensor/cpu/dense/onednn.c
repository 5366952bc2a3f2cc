/*
 * onednn.c - the oneDNN module: opening it, what each thread keeps, and matrix products. It is a
 * module of its own, so that a program that multiplies nothing large never maps oneDNN (40 MB).
 *
 * oneDNN compiles a kernel for exact sizes, so each thread keeps plans: the kernels that it has
 * used, with the memory objects through which they get their operands. A kernel is made for one
 * thread, so its bits do not depend on how many threads there are. All kernels of a thread share
 * its scratch memory: by itself oneDNN keeps one for each. Sources: the oneDNN developer guide,
 * "Matrix Multiplication", "Primitive cache" and "Managing scratchpads".
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cpu/dense/onednn_module.h"

int omp_get_max_threads(void); /* in the OpenMP library that oneDNN itself uses, gcc's */
void omp_set_num_threads(int n);

dnnl_engine_t tni_engine;
dnnl_primitive_attr_t tni_options;

/* Held while oneDNN makes or drops a kernel, and around a fork: oneDNN has locks of its own that a
 * child would find held. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
    pthread_mutex_lock(&making);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&making);
}

/* ---- plans ----------------------------------------------------------------------------------- */

void tni_layout_free(tni_layout *layout)
{
#if DNNL_VERSION_MAJOR >= 3
    if (*layout) dnnl_memory_desc_destroy(*layout);
#else
    (void)layout; /* a struct that owns nothing */
#endif
}

const char *tni_dnnl_name(const_dnnl_primitive_desc_t chosen)
{
    const char *name = NULL;
    dnnl_primitive_desc_query(chosen, dnnl_query_impl_info_str, 0, (void *)&name);
    return name ? name : "";
}

dnnl_status_t tni_dnnl_memory(tni_dnnl_plan *plan, int i, tni_const_layout layout)
{
    if (i >= TNI_OPERANDS) {
        plan->offset[i] = plan->scratch;
        plan->scratch += (dnnl_memory_desc_get_size(layout) + 63) / 64 * 64;
    }
    return dnnl_memory_create(&plan->memory[i], layout, tni_engine, DNNL_MEMORY_NONE);
}

dnnl_status_t tni_dnnl_step_add(tni_dnnl_plan *plan, const_dnnl_primitive_desc_t chosen, int n,
                                const int *argument, const int *memory)
{
    tni_const_layout scratchpad = dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md, 0);
    int last = TNI_SCRATCHPADS + plan->n_steps;
    tni_dnnl_step *s = &plan->step[plan->n_steps];
    dnnl_status_t status = dnnl_primitive_create(&s->primitive, chosen);
    if (status != dnnl_success) return status;
    plan->n_steps++;
    s->n = n;
    memcpy(s->argument, argument, (size_t)n * sizeof *argument);
    memcpy(s->memory, memory, (size_t)n * sizeof *memory);
    if (!scratchpad || dnnl_memory_desc_get_size(scratchpad) == 0) return status;
    s->argument[s->n] = DNNL_ARG_SCRATCHPAD;
    s->memory[s->n++] = last;
    return tni_dnnl_memory(plan, last, scratchpad);
}

static void plan_clear(tni_dnnl_plan *plan)
{
    pthread_mutex_lock(&making);
    for (int i = 0; i < plan->n_steps; i++) dnnl_primitive_destroy(plan->step[i].primitive);
    for (int i = 0; i < TNI_MEMORIES; i++)
        if (plan->memory[i]) dnnl_memory_destroy(plan->memory[i]);
    pthread_mutex_unlock(&making);
    *plan = (tni_dnnl_plan){ 0 };
}

static void plan_init(tni_dnnl_plan *plan, const tni_key *key, tni_dnnl_make make, const void *what)
{
    pthread_mutex_lock(&making);
    dnnl_status_t status = make(plan, what);
    pthread_mutex_unlock(&making);
    if (status != dnnl_success) plan_clear(plan);
    plan->key = *key;
    plan->known = status != dnnl_out_of_memory; /* then it is tried again */
}

/* ---- what a thread keeps --------------------------------------------------------------------- */

enum { PLANS = 512, PROBES = 8 };

typedef struct cache {
    tni_dnnl_plan plans[PLANS]; /* a hash table; a full neighbourhood gives up its first plan */
    dnnl_stream_t stream;
    char *scratch;
    size_t scratch_size;
} cache;

static pthread_key_t cache_key;

static void cache_free(void *memory)
{
    cache *c = memory;
    for (int i = 0; i < PLANS; i++) plan_clear(&c->plans[i]);
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
    if (dnnl_stream_create(&c->stream, tni_engine, dnnl_stream_default_flags) != dnnl_success ||
        pthread_setspecific(cache_key, c) != 0) {
        cache_free(c);
        return NULL;
    }
    return c;
}

static uint64_t hash_of(const tni_key *key)
{
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof key->number / sizeof key->number[0]; i++) {
        h = (h ^ (uint64_t)key->number[i]) * 0x9e3779b97f4a7c15u; /* 2^64 / the golden ratio */
        h ^= h >> 32;
    }
    return h;
}

static tni_dnnl_plan *find(cache *c, const tni_key *key, tni_dnnl_make make, const void *what)
{
    uint64_t h = hash_of(key);
    tni_dnnl_plan *plan = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        plan = &c->plans[(h + i) % PLANS];
        if (!plan->known) break;
        if (memcmp(&plan->key, key, sizeof *key) == 0) return plan;
    }
    if (plan->known) {
        plan = &c->plans[h % PLANS];
        plan_clear(plan);
    }
    plan_init(plan, key, make, what);
    return plan;
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

static bool execute(cache *c, const tni_dnnl_plan *plan, const void *const operand[TNI_OPERANDS])
{
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < TNI_MEMORIES && status == dnnl_success; i++) {
        if (!plan->memory[i]) continue;
        void *at = i < TNI_OPERANDS ? (void *)(uintptr_t)operand[i] : c->scratch + plan->offset[i];
        status = dnnl_memory_set_data_handle(plan->memory[i], at);
    }
    for (int i = 0; i < plan->n_steps && status == dnnl_success; i++) {
        const tni_dnnl_step *s = &plan->step[i];
        dnnl_exec_arg_t args[TNI_OPERANDS + 1];
        for (int j = 0; j < s->n; j++)
            args[j] = (dnnl_exec_arg_t){ s->argument[j], plan->memory[s->memory[j]] };
        status = dnnl_primitive_execute(s->primitive, c->stream, s->n, args);
    }
    return status == dnnl_success;
}

bool tni_dnnl_run(const tni_key *key, tni_dnnl_make make, const void *what,
                  const void *const operand[TNI_OPERANDS])
{
    cache *c = cache_of_thread();
    if (!c) return false;
    int threads = omp_get_max_threads(); /* oneDNN would start that many */
    if (threads > 1) omp_set_num_threads(1);
    const tni_dnnl_plan *plan = find(c, key, make, what);
    bool done = plan->n_steps > 0 && reserve(c, plan->scratch) && execute(c, plan, operand);
    if (threads > 1) omp_set_num_threads(threads);
    return done;
}

/* ---- products -------------------------------------------------------------------------------- */

enum { A, B, BIAS, C };

static dnnl_status_t make_layout(tni_layout *l, int64_t rows, int64_t cols, int64_t row,
                                 int64_t col, tn_dtype dtype)
{
    dnnl_dims_t sizes = { rows, cols }, strides = { row, col };
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(l, 2, sizes, tni_dnnl_type(dtype), strides);
#else
    return dnnl_memory_desc_init_by_strides(l, 2, sizes, tni_dnnl_type(dtype), strides);
#endif
}

static dnnl_status_t choose(const tni_product *p, const tni_layout *l,
                            dnnl_primitive_desc_t *chosen)
{
    dnnl_primitive_attr_t options = NULL;
    dnnl_post_ops_t then = NULL;
    dnnl_status_t s = dnnl_primitive_attr_clone(&options, tni_options);
    if (s == dnnl_success && p->accumulate) {
        s = dnnl_post_ops_create(&then);
#if DNNL_VERSION_MAJOR >= 3
        if (s == dnnl_success) s = dnnl_post_ops_append_sum(then, 1, 0, dnnl_data_type_undef);
#else
        if (s == dnnl_success) s = dnnl_post_ops_append_sum(then, 1);
#endif
        if (s == dnnl_success) s = dnnl_primitive_attr_set_post_ops(options, then);
    }
    tni_const_layout bias = p->bias ? LAYOUT(l[BIAS]) : NULL;
#if DNNL_VERSION_MAJOR >= 3
    if (s == dnnl_success)
        s = dnnl_matmul_primitive_desc_create(chosen, tni_engine, l[A], l[B], bias, l[C], options);
#else
    dnnl_matmul_desc_t product;
    if (s == dnnl_success) s = dnnl_matmul_desc_init(&product, &l[A], &l[B], bias, &l[C]);
    if (s == dnnl_success)
        s = dnnl_primitive_desc_create(chosen, &product, options, tni_engine, NULL);
#endif
    if (then) dnnl_post_ops_destroy(then);
    if (options) dnnl_primitive_attr_destroy(options);
    return s;
}

/*
 * Whether oneDNN's choice of a kernel is worth it. brg (operands without gaps) multiplies f32 8 to
 * 12 % faster than OpenBLAS from 2^17 multiplications on (Zen 4). So does gemm:jit (any leading
 * dimension) from 2^20 on, but our own (tile.c) is faster where an operand is stored by
 * columns, and for few rows, since it reads B where it is. Both take bf16 at twice that rate. "ref"
 * is a loop.
 */
static bool is_fast(const_dnnl_primitive_desc_t chosen, const tni_product *p)
{
    const char *name = tni_dnnl_name(chosen);
    if (strncmp(name, "brg", 3) == 0) return true;
    double work = (double)p->m * (double)p->n * (double)p->k;
    bool by_columns = p->ta || p->tb, few_rows = p->m <= 64 && p->n >= 256;
    return strcmp(name, "gemm:jit") == 0 &&
           (p->in == TN_BF16 || (work >= 0x1p20 && !by_columns && !few_rows));
}

static dnnl_status_t add_product(tni_dnnl_plan *plan, const tni_product *p, const tni_layout *l,
                                 const_dnnl_primitive_desc_t chosen)
{
    static const int argument[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS };
    static const int memory[] = { A, B, C, BIAS };
    int n = p->bias ? 4 : 3;
    if (!is_fast(chosen, p)) return dnnl_success;
    dnnl_status_t s = tni_dnnl_step_add(plan, chosen, n, argument, memory);
    for (int i = 0; i < n && s == dnnl_success; i++)
        s = tni_dnnl_memory(plan, memory[i], LAYOUT(l[memory[i]]));
    return s;
}

static dnnl_status_t make_product(tni_dnnl_plan *plan, const void *what)
{
    const tni_product *p = what;
    tni_layout l[TNI_OPERANDS] = { 0 };
    dnnl_primitive_desc_t chosen = NULL;
    dnnl_status_t s = make_layout(&l[A], p->m, p->k, p->ta ? 1 : p->lda, p->ta ? p->lda : 1, p->in);
    if (s == dnnl_success)
        s = make_layout(&l[B], p->k, p->n, p->tb ? 1 : p->ldb, p->tb ? p->ldb : 1, p->in);
    if (s == dnnl_success) s = make_layout(&l[BIAS], 1, p->n, p->n, 1, p->in);
    if (s == dnnl_success) s = make_layout(&l[C], p->m, p->n, p->ldc, 1, p->out);
    if (s == dnnl_success) s = choose(p, l, &chosen);
    if (s == dnnl_success) s = add_product(plan, p, l, chosen);
    if (chosen) dnnl_primitive_desc_destroy(chosen);
    for (int i = 0; i < TNI_OPERANDS; i++) tni_layout_free(&l[i]);
    return s;
}

bool tni_dnnl_product(const tni_product *p)
{
    int64_t kinds = (p->in == TN_BF16) | (p->out == TN_BF16) << 1 | p->ta << 2 | p->tb << 3 |
                    (p->bias != NULL) << 4 | p->accumulate << 5;
    tni_key key = { { p->m, p->n, p->k, p->lda, p->ldb, p->ldc, kinds } };
    return tni_dnnl_run(&key, make_product, p, (const void *[]){ p->a, p->b, p->bias, p->c });
}

/* ---- opening --------------------------------------------------------------------------------- */

TN_API const tni_onednn *tenon_onednn_open(const char *id, char *why, size_t size);

/* Whether oneDNN uses these instructions: a dnnl_cpu_isa_t is a set of bits. */
static bool uses(unsigned instructions)
{
    return (dnnl_get_effective_cpu_isa() & instructions) == instructions;
}

/* Convolutions of oneDNN 2.6.3 by AMX are wrong for some sizes (tests/cpu/test_providers.c), so
 * oneDNN may not use it, unless the environment has set a limit. To be called first of all. */
static void hold_below_amx(void)
{
    if (!getenv("ONEDNN_MAX_CPU_ISA") && !getenv("DNNL_MAX_CPU_ISA"))
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
}

const tni_onednn *tenon_onednn_open(const char *id, char *why, size_t size)
{
    static tni_onednn table = { .product = tni_dnnl_product, .convolve = tni_dnnl_convolve };
    static char version[32];
    if (strcmp(id, TNI_ONEDNN_ID) != 0) {
        snprintf(why, size, "it was built for %s: want %s", TNI_ONEDNN_ID, id);
        return NULL;
    }
    hold_below_amx();
    if (dnnl_engine_create(&tni_engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_primitive_attr_create(&tni_options) != dnnl_success ||
        dnnl_primitive_attr_set_scratchpad_mode(tni_options, dnnl_scratchpad_mode_user) !=
            dnnl_success ||
        pthread_key_create(&cache_key, cache_free) != 0 ||
        pthread_atfork(before_fork, after_fork, after_fork) != 0) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    const dnnl_version_t *v = dnnl_version();
    snprintf(version, sizeof version, "%d.%d.%d", v->major, v->minor, v->patch);
    table.version = version;
    /* Without these instructions it emulates bf16, at a third of f32's speed. With a higher limit,
     * or if the program used oneDNN before, it may use AMX for bf16, but never for f32. */
    table.bf16 = uses(dnnl_cpu_isa_avx512_core_bf16) && !uses(dnnl_cpu_isa_avx512_core_amx);
    return &table;
}
