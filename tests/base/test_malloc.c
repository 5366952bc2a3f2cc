/*
 * test_malloc.c - the C library's allocator refuses once, or from some call on. Whatever reads or
 * writes a file says that it is out of memory, or does what it should: no damaged file, no bad
 * name, no older checkpoint; and nothing is left behind. A product is right, or says that it is out
 * of memory. An error that finds no memory for its message is an error.
 *
 * The program has its own malloc (scarce_malloc.c), so that allocations in the C library and zlib
 * fail too, which the library's own hook does not see.
 *
 * Seen to fail, with jansson as the JSON reader: all but lock, idx, text and loader; latest then
 * named the older of two whole checkpoints. In src/io/input.c, tni_errno() without ENOMEM: save,
 * save_pt, checkpoint, numbered, latest. In cut.c, a product that adds to C computed once more
 * after a refusal. In src/ext/images/codec.c, every chunk of a PNG given to libpng: 2 GiB for
 * one that is not there, 4 MiB for 4 KiB of compressed text.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "files.h"
#include "scarce.h"
#include "tensor/cpu/cpu.h"
#include "tensor/math.h"

/* The library's cache would answer in malloc's place. */
__attribute__((constructor)) static void without_cache(void)
{
    setenv("TN_CACHE", "0", 1);
}

/* ---- what is tried --------------------------------------------------------------------------- */

typedef struct run {
    tn_module *model;
    tn_optim *optimizer;
    tn_loader *loader;
    tn_checkpoint c;
    char out[1024];
    bool wrong; /* what was read */
} run;

static tn_status with_metadata(run *r, const char *name)
{
    const char *key[] = { "text", "more" },
               *value[] = { "a \"quoted\" string, longer than sixteen", "\xc3\xa9" };
    const tn_metadata m = { 2, key, value };
    return tn_save_with(r->model, in_folder(name), (tn_save_options){ .metadata = &m });
}

static tn_status save(run *r)
{
    return with_metadata(r, "new.safetensors");
}
static tn_status save_pt(run *r)
{
    return tn_save(r->model, in_folder("new.pt"));
}
static tn_status load(run *r)
{
    return tn_load(r->model, in_folder("w.safetensors"));
}
static tn_status load_pt(run *r)
{
    return tn_load(r->model, in_folder("w.pt"));
}
static tn_status checkpoint(run *r)
{
    return tn_checkpoint_save(&r->c, in_folder("new.safetensors"));
}
static tn_status resume(run *r)
{
    return tn_checkpoint_load(&r->c, in_folder("net-00000007.safetensors"));
}

static tn_status tensors(run *r)
{
    tn_metadata m;
    tn_list *list = tn_load_tensors(in_folder("w.safetensors"), &m);
    if (!list) return tn_error_status();
    const char *one = tn_metadata_get(&m, "text"), *two = tn_metadata_get(&m, "more");
    r->wrong = list->n != 10 || !one || strcmp(one, "a \"quoted\" string, longer than sixteen") ||
               !two || strcmp(two, "\xc3\xa9");
    return TN_OK;
}

static tn_status numbered(run *r)
{
    tn_checkpoint c = r->c;
    c.step = 9;
    return tn_checkpoint_save_numbered(&c, folder, "net", 4);
}

/* 8 is damaged, 7 is the newest whole one: neither 6 nor silence about 8. */
static tn_status latest(run *r)
{
    tn_metadata skipped;
    tn_status status = tn_checkpoint_latest_report(folder, "net", r->out, sizeof r->out, &skipped);
    if (status != TN_OK) return status;
    r->wrong = strcmp(r->out, in_folder("net-00000007.safetensors")) || skipped.n != 1;
    return TN_OK;
}

static tn_status idx(run *r)
{
    tn_tensor *t = tn_idx_load(in_folder("idx.gz"));
    return t && r ? TN_OK : tn_error_status();
}

static tn_status image(run *r, const char *name)
{
    tn_tensor *t = tn_image_load(golden_path(name), (tn_image_options){ 0 });
    if (t) r->wrong = tn_rank(t) != 3;
    return t ? TN_OK : tn_error_status();
}
static tn_status png(run *r)
{
    return image(r, "images/interlaced.png");
}
static tn_status jpeg(run *r)
{
    return image(r, "images/progressive.jpg");
}
static tn_status save_png(run *r)
{
    const unsigned char pixels[12] = { 7, 8, 9 };
    r->wrong = false;
    return tn_image_save_png(tn_from_data(pixels, TN_SHAPE(3, 2, 2), TN_U8), in_folder("new.png"));
}

static tn_status lock(run *r)
{
    tn_file_lock *l;
    tn_status status = tn_checkpoint_lock(folder, &l);
    if (status == TN_OK && r) tn_checkpoint_unlock(l);
    return status;
}

static tn_status read_text(run *r)
{
    tn_text *t = tn_text_load(in_folder("text"), 0.1);
    tn_generator *g = t ? tn_generator_new(1) : NULL;
    tn_tensor *x, *y;
    tn_status status = g ? tn_text_batch(t, false, g, 2, 3, &x, &y) : tn_error_status();
    tn_generator_free(g), tn_text_free(t);
    return r ? status : TN_E_INVALID;
}

static tn_status loader(run *r)
{
    tn_tensor *x = tn_ones(TN_SHAPE(8, 3)), *batch;
    tn_loader *l =
        x ? tn_loader_new(&x, 1, (tn_loader_options){ .shuffle = true, .prefetch = true }) : NULL;
    tn_status status = l && r && tn_loader_next(l, &batch, 1) == 1 ? TN_OK : tn_error_status();
    tn_loader_free(l);
    return status;
}

static const struct {
    const char *name;
    tn_status (*call)(run *r);
} calls[] = {
    { "save", save },         { "save_pt", save_pt },   { "load", load },
    { "load_pt", load_pt },   { "tensors", tensors },   { "checkpoint", checkpoint },
    { "resume", resume },     { "numbered", numbered }, { "latest", latest },
    { "idx", idx },           { "lock", lock },         { "text", read_text },
    { "loader", loader },     { "png", png },           { "jpeg", jpeg },
    { "save_png", save_png },
};

/* ---- trying it ------------------------------------------------------------------------------- */

static run run_new(void)
{
    run r = { .model = tn_sequential(tn_linear_new(3, 4, (tn_linear_options){ 0 }),
                                     tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 }),
                                     tn_linear_new(4, 4, (tn_linear_options){ 0 })) };
    /* a tie, and names longer than a small buffer */
    assert_ok(tn_register_parameter(r.model, "a_name_of_more_than_sixteen_bytes", NULL,
                                    tn_get_parameter(r.model, "2.weight")));
    tn_tensor *rows = tn_ones(TN_SHAPE(20, 3));
    r.optimizer = tn_adamw(tn_parameters(r.model), (tn_adamw_options){ .lr = 0.1 });
    r.loader = tn_loader_new(&rows, 1, (tn_loader_options){ .shuffle = true });
    assert_ok(tn_backward(tn_sum(tn_forward(r.model, rows), NULL, 0, false)));
    assert_ok(tn_optim_step(r.optimizer));
    r.c = (tn_checkpoint){
        .model = r.model, .optimizer = r.optimizer, .loader = r.loader, .step = 6
    };
    assert_ok(with_metadata(&r, "w.safetensors"));
    assert_ok(tn_save(r.model, in_folder("w.pt")));
    for (; r.c.step < 8; r.c.step++) assert_ok(tn_checkpoint_save_numbered(&r.c, folder, "net", 0));
    write_bytes("net-00000008.safetensors", "torn", 4);
    write_bytes("text", "some text", 9);
    unsigned char bytes[] = { 0, 0, 0x0d, 1, 0, 0, 0, 1, 0xbf, 0xc0, 0, 0 };
    size_t n;
    unsigned char *gz = gzip(bytes, sizeof bytes, 9, &n);
    write_bytes("idx.gz", gz, n);
    free(gz);
    return r;
}

static uint64_t hash_of_run(const run *r)
{
    tn_scope s = tn_scope_begin();
    uint64_t h = hash_of_module(r->model) * 31 + hash_of(tn_optim_state_dict(r->optimizer));
    tn_scope_end(s);
    return h * 31 + (uint64_t)tn_loader_epoch(r->loader);
}

START_TEST(a_file_is_read_and_written_or_out_of_memory)
{
    run r = run_new();
    const char *name = calls[_i].name;
    const tn_status first = calls[_i].call(&r);      /* first uses of all kinds */
    if (first != TN_E_UNSUPPORTED) assert_ok(first); /* built without libpng and libjpeg */
    ck_assert(!r.wrong);
    const uint64_t hash = hash_of_run(&r);
    for (int rest = 0; first == TN_OK && rest < 2; rest++) {
        long failed = 0;
        for (long k = 0;; k++) {
            tn_scope s = tn_scope_begin();
            const int64_t live = tn_live_tensors(), bytes = tn_memory().in_use;
            malloc_for_good = rest;
            *malloc_left = k;
            tn_status status = calls[_i].call(&r);
            const bool met =
                /* k requests were made, and one more */
                *malloc_left < 0 || (rest && *malloc_left == 0);
            *malloc_left = -1;
            ck_assert_msg(!r.wrong, "%s, allocation %ld: something else was read", name, k);
            ck_assert_msg(status == TN_OK || status == TN_E_NOMEM, "%s, allocation %ld: %s: %s",
                          name, k, tn_status_name(status), tn_error());
            ck_assert_msg(status == TN_OK || tn_error_status() == TN_E_NOMEM,
                          "%s, allocation %ld: %s", name, k, tn_error());
            tn_error_clear();
            tn_scope_end(s);
            ck_assert_msg(tn_live_tensors() <= live && tn_memory().in_use <= bytes,
                          "%s, allocation %ld leaves something behind", name, k);
            if (status != TN_OK)
                ck_assert_msg(hash_of_run(&r) == hash, "%s, allocation %ld changes something", name,
                              k);
            failed += status != TN_OK;
            if (!met) break;
            ck_assert_int_lt(k, 20000);
        }
        ck_assert_msg(failed > 0, "%s: no allocation was met", name);
    }
    tn_loader_free(r.loader), tn_optim_free(r.optimizer), tn_module_drop(r.model);
}
END_TEST

/* ---- images ---------------------------------------------------------------------------------- */

/* Reads rgb.png with a chunk of n bytes behind its header, which says that it has `length`; cut:
 * the file ends within those bytes. */
static tn_tensor *read_png_with(const char *type, const void *data, size_t n, size_t length,
                                bool cut)
{
    enum { HEADER = 33 };
    size_t rest;
    unsigned char *png = owned((unsigned char *)read_bytes(golden_path("images/rgb.png"), &rest));
    unsigned char *all = owned((unsigned char *)malloc(rest + n + 12)), *at = all + HEADER;
    memcpy(all, png, HEADER);
    memcpy(at + 4, type, 4);
    memcpy(at + 8, data, n);
    const uint32_t crc = (uint32_t)crc32_z(0, at + 4, n + 4);
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(length >> (24 - 8 * i));
        at[8 + n + (size_t)i] = (unsigned char)(crc >> (24 - 8 * i));
    }
    memcpy(at + n + 12, png + HEADER, rest - HEADER);
    malloc_most = 0;
    const size_t size = cut ? HEADER + 10 : rest + n + 12;
    return tn_image_decode(all, size, (tn_image_options){ .orient = true });
}

/* libpng takes memory for a chunk before it reads it, and for what a text is inflated to. */
START_TEST(a_png_takes_no_memory_for_what_it_does_not_have)
{
    enum { TEXT = 4 << 20, MOST = 1 << 20 };
    static const char *const types[] = { "eXIf", "iCCP", "iTXt", "pCAL", "sCAL",
                                         "sPLT", "tEXt", "zTXt", "quux" };
    if (!read_png_with("tEXt", "k", 2, 2, false)) { /* built without libpng */
        assert_null(NULL, TN_E_UNSUPPORTED, "");
        return;
    }
    for (int i = 0; i < 2 * COUNT(types); i++) {
        const char *type = types[i / 2];
        assert_null(read_png_with(type, "II*", 4, 0x7fffffff, i % 2), TN_E_FORMAT, "cut off");
        ck_assert_msg(malloc_most < MOST, "%s, %d: %zu bytes", type, i % 2, malloc_most);
    }
    static unsigned char text[TEXT], packed[TEXT / 64] = "k";
    for (int i = 0; i < 2; i++) { /* zTXt: k 0 0; iTXt: k 0 1 0 0 0 */
        const size_t before = i ? 6 : 3;
        uLongf n = sizeof packed - before;
        memset(packed + 1, 0, before - 1);
        packed[2] = (unsigned char)i;
        ck_assert_int_eq(compress2(packed + before, &n, text, TEXT, 9), Z_OK);
        assert_made(read_png_with(i ? "iTXt" : "zTXt", packed, before + n, before + n, false));
        ck_assert_msg(malloc_most < MOST, "%d: %zu bytes", i, malloc_most);
    }
}
END_TEST

/* ---- products -------------------------------------------------------------------------------- */

enum { M = 64, N = 48, ALLOCATIONS = 6 };

/* C [M, N] = A B or += A B, all of A and B 1. */
static void multiply(tn_dtype dtype, int64_t k, bool accumulate, int64_t allocation)
{
    uint16_t *ones = calloc((size_t)(k * M), sizeof *ones), *c = calloc(M * N, sizeof(float));
    uint16_t one = dtype == TN_BF16 ? tn_to_bf16(1) : tn_to_f16(1);
    for (int64_t i = 0; i < k * M; i++) ones[i] = one;
    tni_gemm g = { .dtype = dtype, .sums_f32 = true, .m = M, .n = N, .k = k, .batch = 1 };
    g.accumulate = accumulate;
    g.a = g.b = ones;
    g.c = c;
    g.a_row = g.b_col = k;
    g.a_col = g.b_row = 1;
    g.c_row = N;
    *malloc_left = allocation;
    tn_status status = tni_cpu_backend()->gemm(&g);
    *malloc_left = -1;
    for (int64_t i = 0; status == TN_OK && i < M * N; i++)
        ck_assert_msg(((float *)c)[i] == (float)k, "%s, inner size %d, allocation %d: %g",
                      tn_dtype_name(dtype), (int)k, (int)allocation, ((float *)c)[i]);
    if (status != TN_OK) assert_fails(status, TN_E_NOMEM, "memory");
    free(ones);
    free(c);
}

/* Each in a process of its own, whose first product it is. */
START_TEST(a_product_is_right_or_out_of_memory)
{
    int64_t left = _i % ALLOCATIONS, which = _i / ALLOCATIONS;
    assert_ok(tn_set_num_threads(1));
    multiply(which & 1 ? TN_BF16 : TN_F16, which & 2 ? 2048 : 256, which & 4, left);
}
END_TEST

/* ---- messages of more threads than have a buffer without malloc ------------------------------ */

enum { THREADS = 12 };

static pthread_barrier_t all;

static void *fail_there(void *number)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, "thread %d", *(int *)number);
    pthread_barrier_wait(&all);
    tn_fail(TN_E_SHAPE, "%s", wanted);
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all); /* Check's own assertions want memory */
    bool own = strcmp(tn_error(), wanted) == 0;
    bool none = strcmp(tn_error(), "out of memory: there is none for this thread's message") == 0;
    ck_assert_msg(own || none, "%s", tn_error());
    ck_assert_int_eq(tn_error_status(), TN_E_SHAPE);
    tn_error_clear();
    ck_assert_str_eq(tn_error(), "");
    *(int *)number = none;
    return NULL;
}

/* Twice: the buffers of threads that have ended serve others. */
START_TEST(an_error_without_memory_for_its_message_is_an_error)
{
    for (int round = 0; round < 2; round++) {
        pthread_t thread[THREADS];
        int number[THREADS], none = 0;
        pthread_barrier_init(&all, NULL, THREADS + 1);
        for (int i = 0; i < THREADS; i++) {
            number[i] = i;
            ck_assert_int_eq(pthread_create(&thread[i], NULL, fail_there, &number[i]), 0);
        }
        *malloc_left = 0;
        malloc_for_good = true;
        pthread_barrier_wait(&all);
        pthread_barrier_wait(&all);
        *malloc_left = -1;
        malloc_for_good = false;
        pthread_barrier_wait(&all);
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL), none += number[i];
        ck_assert_msg(none > 0 && none < 8, "%d of %d threads have no message", none, THREADS);
        pthread_barrier_destroy(&all);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("malloc");
    TCase *t = file_case(suite, "malloc");
    tcase_add_loop_test(t, a_file_is_read_and_written_or_out_of_memory, 0, COUNT(calls));
    tcase_add_test(t, a_png_takes_no_memory_for_what_it_does_not_have);
    tcase_add_loop_test(t, a_product_is_right_or_out_of_memory, 0, 8 * ALLOCATIONS);
    tcase_add_test(t, an_error_without_memory_for_its_message_is_an_error);
    return suite;
}
