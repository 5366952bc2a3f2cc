/*
 * test_data.c - what feeds a training loop: IDX files, text, loaders; and plots of what comes out.
 *
 * Truth: files written byte by byte here, PyTorch's draws of random numbers, zlib for making
 * compressed files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files.h"

/* ---- IDX ------------------------------------------------------------------------------------- */

START_TEST(idx_types)
{
    static const struct {
        const char *bytes;
        size_t n;
        tn_dtype dtype;
        int values;
        double value[6];
    } rows[] = {
        { "\0\0\x08\2\0\0\0\2\0\0\0\3\1\2\3\4\5\xff", 18, TN_U8, 6, { 1, 2, 3, 4, 5, 255 } },
        { "\0\0\x09\1\0\0\0\3\1\xff\x80", 11, TN_I32, 3, { 1, -1, -128 } },
        { "\0\0\x0b\1\0\0\0\2\1\2\xff\xfe", 12, TN_I32, 2, { 258, -2 } },
        { "\0\0\x0c\1\0\0\0\2\0\1\0\0\x80\0\0\0", 16, TN_I32, 2, { 65536, -2147483648.0 } },
        { "\0\0\x0d\1\0\0\0\1\xbf\xc0\0\0", 12, TN_F32, 1, { -1.5 } },
        { "\0\0\x0e\1\0\0\0\1\x40\x09\x21\xfb\x54\x44\x2d\x18",
          16,
          TN_F64,
          1,
          { 3.14159265358979311600 } },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        tn_tensor *t = tn_idx_load(write_bytes("a", rows[i].bytes, rows[i].n));
        assert_made(t);
        ck_assert_int_eq(tn_dtype_of(t), rows[i].dtype);
        ck_assert_int_eq(tn_size(t, 0), i ? rows[i].values : 2);
        const char *differs = values_difference(t, rows[i].value, rows[i].values, 0);
        ck_assert_msg(!differs, "type %02x: %s", rows[i].bytes[2], differs);
    }
    /* many values, over chunk borders */
    size_t n = 50000;
    unsigned char *large = owned(malloc(8 + 4 * n));
    memcpy(large, "\0\0\x0c\1\0\0\xc3\x50", 8);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++)
            large[8 + 4 * i + (size_t)k] = (unsigned char)(i >> (24 - 8 * k));
    size_t size;
    unsigned char *packed = owned(gzip(large, 8 + 4 * n, 6, &size));
    tn_tensor *t = tn_idx_load(write_bytes("a.gz", packed, size));
    assert_made(t);
    for (int64_t i = 0; i < (int64_t)n; i += 997) ck_assert_double_eq(tn_at(t, &i, 1), (double)i);
}
END_TEST

/* ---- text ------------------------------------------------------------------------------------ */

START_TEST(text_ids_and_split)
{
    tn_text *text = tn_text_load(write_bytes("t", "hello\nwor", 9), 0.25);
    assert_made(text);
    ck_assert_int_eq(text->vocab, 7); /* \n e h l o r w */
    ck_assert_int_eq(memcmp(text->byte_of, "\nehlorw", 7), 0);
    ck_assert_int_eq(text->id_of['h'], 2);
    ck_assert_int_eq(text->id_of['z'], -1);
    ck_assert_int_eq(text->n_train, 7);
    ck_assert_int_eq(text->n_valid, 2);
    ck_assert_int_eq(memcmp(text->train, "\2\1\3\3\4\0\6", 7), 0);
    ck_assert_int_eq(memcmp(text->valid, "\4\5", 2), 0);
    tn_text_free(text);
    tn_text_free(NULL);
    assert_null(tn_text_load(write_bytes("t", "", 0), 0.1), TN_E_FORMAT, "is empty");
    assert_null(tn_text_load(in_folder("t"), 0.6), TN_E_INVALID, "valid_fraction 0.6");
    assert_null(tn_text_load(folder, 0.1), TN_E_IO, "is a folder");
}
END_TEST

/* From 2^28 places on PyTorch's randint takes two words for one. */
START_TEST(text_batches_of_a_long_text)
{
    const int64_t places = INT64_C(1) << 28, n = places + 1;
    /* pages that nobody touches cost nothing */
    unsigned char *id = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert(id != MAP_FAILED);
    tn_generator *g = tn_generator_new(42), *same = tn_generator_new(42);
    uint64_t word = tn_generator_u32(same);
    word = word << 32 | tn_generator_u32(same);
    id[word % (uint64_t)places] = 7;
    tn_text text = { .train = id, .n_train = n };
    tn_tensor *x, *y;
    assert_ok(tn_text_batch(&text, false, g, 1, 1, &x, &y));
    ck_assert_double_eq(tn_item(x), 7);
    ck_assert_uint_eq(tn_generator_u32(g), tn_generator_u32(same));
    tn_generator_free(g);
    tn_generator_free(same);
    munmap(id, (size_t)n);
}
END_TEST

START_TEST(text_batches)
{
    char all[256];
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    tn_text *text = owned(tn_text_load(write_bytes("t", all, 256), 0.25));
    tn_generator *g = owned(tn_generator_new(42));
    tn_tensor *x, *y;
    assert_ok(tn_text_batch(text, false, g, 5, 8, &x, &y));
    tn_generator *same = owned(tn_generator_new(42));
    for (int64_t b = 0; b < 5; b++) {
        int64_t start = tn_generator_u32(same) % (192 - 8); /* PyTorch's randint */
        for (int64_t t = 0; t < 8; t++) {
            ck_assert_double_eq(tn_at(x, TN_INDEX(b, t)), (double)(start + t));
            ck_assert_double_eq(tn_at(y, TN_INDEX(b, t)), (double)(start + t + 1));
        }
    }
    ck_assert_int_eq(tn_dtype_of(x), TN_I64);
    /* the longest context: one window */
    assert_ok(tn_text_batch(text, true, g, 2, 63, &x, &y));
    ck_assert_double_eq(tn_at(x, TN_INDEX(1, 0)), 192);
    ck_assert_double_eq(tn_at(y, TN_INDEX(1, 62)), 255);
    assert_fails(tn_text_batch(text, true, g, 2, 64, &x, &y), TN_E_INVALID,
                 "a validation part of 64 characters: want more than context 64");
    assert_fails(tn_text_batch(text, true, g, 0, 4, &x, &y), TN_E_INVALID, "batch 0");
}
END_TEST

/* ---- loaders --------------------------------------------------------------------------------- */

/* Rows 0..n-1, as numbers, and as pairs; freed at the end of the test. */
static tn_loader *loader_of(int64_t n, tn_loader_options o)
{
    tn_tensor *data[2] = { tn_arange(0, (double)n, 1, TN_I64),
                           tn_reshape(tn_arange(0, 2 * (double)n, 1, TN_F32), TN_SHAPE(n, 2)) };
    tn_loader *l = tn_loader_new(data, 2, o);
    return l ? owned(l) : NULL;
}

/* The rows of one epoch in order; -1 between batches. Returns how many numbers. */
static int epoch_of(tn_loader *l, double *order)
{
    int n = 0;
    tn_tensor *batch[2];
    int got;
    while ((got = tn_loader_next(l, batch, 2)) == 1) {
        for (int64_t i = 0; i < tn_size(batch[0], 0); i++) {
            order[n] = tn_at(batch[0], &i, 1);
            ck_assert_double_eq(tn_at(batch[1], TN_INDEX(i, 0)), 2 * order[n]);
            ck_assert_double_eq(tn_at(batch[1], TN_INDEX(i, 1)), 2 * order[n] + 1);
            n++;
        }
        order[n++] = -1;
    }
    ck_assert_int_eq(got, 0);
    return n;
}

START_TEST(loader_in_order)
{
    double order[64];
    tn_loader *l = loader_of(7, (tn_loader_options){ .batch_size = 3, .prefetch = _i });
    ck_assert_int_eq(tn_loader_batches(l), 3);
    for (int e = 0; e < 3; e++) {
        ck_assert_int_eq(tn_loader_epoch(l), e);
        ck_assert_int_eq(tn_loader_position(l), 0);
        ck_assert_int_eq(epoch_of(l, order), 10);
        static const double wanted[] = { 0, 1, 2, -1, 3, 4, 5, -1, 6, -1 };
        ck_assert_int_eq(memcmp(order, wanted, sizeof wanted), 0);
    }
    l = loader_of(7, (tn_loader_options){ .batch_size = 3, .drop_last = true, .prefetch = _i });
    ck_assert_int_eq(epoch_of(l, order), 8);
    l = loader_of(3, (tn_loader_options){ .prefetch = _i }); /* batches of 1 */
    ck_assert_int_eq(epoch_of(l, order), 6);
    l = loader_of(3, (tn_loader_options){ .batch_size = 100, .prefetch = _i });
    ck_assert_int_eq(epoch_of(l, order), 4);
    tn_loader_free(NULL);
}
END_TEST

/* The parts of a batch together are the whole batch of a loader without parts, in order; all parts
 * have equally many rows, and what does not divide is left out at the end. */
START_TEST(loader_in_parts)
{
    double whole[64], part[3][64];
    tn_loader_options o = { .batch_size = 6, .shuffle = true, .seed = 5, .prefetch = _i };
    tn_loader *l = loader_of(22, o);
    ck_assert_int_eq(epoch_of(l, whole), 22 + 4);
    for (int k = 0; k < 3; k++) {
        o.parts = 3;
        o.part = k;
        l = loader_of(22, o);
        ck_assert_int_eq(tn_loader_batches(l), 4);
        ck_assert_int_eq(tn_loader_batch_size(l), 6);
        assert_ok(tn_loader_seek(l, 0, 2)); /* resumes as any loader */
        ck_assert_int_eq(epoch_of(l, part[k]), 3 + 2);
        assert_ok(tn_loader_seek(l, 0, 0));
        ck_assert_int_eq(epoch_of(l, part[k]), 3 * 3 + 2); /* 4 rows left: one for each, one out */
        for (int b = 0; b < 3; b++)
            for (int i = 0; i < 2; i++)
                ck_assert_double_eq(part[k][b * 3 + i], whole[b * 7 + 2 * k + i]);
        ck_assert_double_eq(part[k][9], whole[21 + k]);
    }
    l = loader_of(20, o); /* 2 rows left: fewer than parts, so no batch of them */
    ck_assert_int_eq(tn_loader_batches(l), 3);
    assert_null(loader_of(2, o), TN_E_INVALID, "2 rows give no batch");
    o.part = 3;
    assert_null(loader_of(22, o), TN_E_INVALID, "part 3 of 3");
    o.part = 0;
    o.batch_size = 8;
    assert_null(loader_of(22, o), TN_E_INVALID, "batches of 8 in 3 parts: want a multiple");
}
END_TEST

/* At the end of an epoch of one part, whose last batch is too short for four: theirs is at its end
 * too; and back. */
START_TEST(loader_resumes_with_other_parts)
{
    double order[64];
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ 0 }));
    tn_loader *one = loader_of(10, (tn_loader_options){ .batch_size = 8, .prefetch = _i });
    tn_loader *four =
        loader_of(10, (tn_loader_options){ .batch_size = 8, .parts = 4, .prefetch = _i });
    ck_assert_int_eq(tn_loader_batches(one), 2);
    ck_assert_int_eq(tn_loader_batches(four), 1);
    assert_ok(tn_loader_seek(one, 3, 2));
    tn_checkpoint c = { .model = m, .loader = one };
    const char *path = in_folder("parts.ckpt");
    assert_ok(tn_checkpoint_save(&c, path));
    c.loader = four;
    assert_ok(tn_checkpoint_load(&c, path));
    ck_assert_int_eq(tn_loader_epoch(four), 3);
    ck_assert_int_eq(tn_loader_position(four), 1);
    ck_assert_int_eq(epoch_of(four, order), 0); /* that one has ended */
    ck_assert_int_eq(epoch_of(four, order), 2 + 1);
    assert_ok(tn_loader_seek(four, 5, 1));
    assert_ok(tn_checkpoint_save(&c, path));
    c.loader = one;
    assert_ok(tn_checkpoint_load(&c, path));
    ck_assert_int_eq(epoch_of(one, order), 2 + 1); /* the rest */
}
END_TEST

START_TEST(loader_shuffles_by_seed_and_epoch)
{
    double a[3][64];
    tn_loader *l =
        loader_of(20, (tn_loader_options){ .batch_size = 6, .shuffle = true, .seed = 5 });
    for (int e = 0; e < 3; e++) {
        int n = epoch_of(l, a[e]);
        bool seen[20] = { false };
        ck_assert_int_eq(n, 24);
        for (int i = 0; i < n; i++)
            if (a[e][i] >= 0) {
                ck_assert(!seen[(int)a[e][i]]);
                seen[(int)a[e][i]] = true;
            }
    }
    ck_assert(memcmp(a[0], a[1], 24 * sizeof(double)) && memcmp(a[1], a[2], 24 * sizeof(double)));
    /* the same with prefetch; whatever the default generator does; any epoch at once */
    tn_manual_seed(77);
    tn_loader *p = loader_of(
        20, (tn_loader_options){ .batch_size = 6, .shuffle = true, .seed = 5, .prefetch = true });
    double b[64];
    for (int e = 0; e < 3; e++) {
        epoch_of(p, b);
        ck_assert_int_eq(memcmp(a[e], b, 24 * sizeof(double)), 0);
    }
    for (int k = 0; k < 2; k++) {
        assert_ok(tn_loader_seek(k ? p : l, 1, 0));
        epoch_of(k ? p : l, b);
        ck_assert_int_eq(memcmp(a[1], b, 24 * sizeof(double)), 0);
        assert_ok(tn_loader_seek(k ? p : l, 0, 2));
        ck_assert_int_eq(epoch_of(k ? p : l, b), 10);
        ck_assert_int_eq(memcmp(a[0] + 14, b, 10 * sizeof(double)), 0);
    }
    tn_loader *other =
        loader_of(20, (tn_loader_options){ .batch_size = 6, .shuffle = true, .seed = 6 });
    epoch_of(other, b);
    ck_assert(memcmp(a[0], b, 24 * sizeof(double)));
}
END_TEST

/* A checkpoint of another seed: a batch made in advance with the old one is not given out. */
START_TEST(loader_resumes_with_another_seed)
{
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ 0 }));
    tn_loader_options o = { .batch_size = 5, .shuffle = true, .seed = 1, .prefetch = _i };
    tn_loader *l = loader_of(20, o);
    o.seed = 2;
    tn_loader *other = loader_of(20, o);
    tn_tensor *batch[2], *same[2];
    tn_checkpoint c = { .model = m, .loader = other };
    ck_assert_int_eq(tn_loader_next(l, batch, 2), 1);
    ck_assert_int_eq(tn_loader_next(other, batch, 2), 1);
    assert_ok(tn_checkpoint_save(&c, in_folder("seed.ckpt")));
    c.loader = l;
    assert_ok(tn_checkpoint_load(&c, in_folder("seed.ckpt")));
    ck_assert_int_eq(tn_loader_next(l, batch, 2), 1);
    ck_assert_int_eq(tn_loader_next(other, same, 2), 1);
    ck_assert_uint_eq(tn_hash(batch[0]), tn_hash(same[0]));
}
END_TEST

START_TEST(loader_keeps_its_tensors)
{
    tn_scope s = tn_scope_begin();
    tn_tensor *t = as_transposed(random_as(TN_SHAPE(4, 3), -1, 1, 1, TN_F32)); /* not dense */
    tn_loader *l = tn_loader_new(&t, 1, (tn_loader_options){ .batch_size = 4 });
    uint64_t hash = tn_hash(t);
    tn_scope_end(s);
    tn_tensor *batch;
    ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
    ck_assert_uint_eq(tn_hash(batch), hash);
    tn_loader_free(l);
    /* freed in the middle of a prefetch */
    l = loader_of(1000,
                  (tn_loader_options){ .batch_size = 500, .shuffle = true, .prefetch = true });
    tn_tensor *two[2];
    ck_assert_int_eq(tn_loader_next(l, two, 2), 1);
}
END_TEST

/* The values of all batches of an epoch, as they lie. */
static size_t bytes_of_epoch(tn_loader *l, char *to)
{
    size_t n = 0;
    for (tn_tensor *batch; tn_loader_next(l, &batch, 1) == 1;) {
        size_t nbytes = (size_t)tn_numel(batch) * tn_dtype_size(tn_dtype_of(batch));
        memcpy(to + n, tn_data(batch), nbytes);
        n += nbytes;
    }
    return n;
}

/* Casting or replacing a module's buffer does not change the data of a loader made of it. */
START_TEST(a_loader_keeps_what_it_was_made_of)
{
    enum { ROWS = 3000, BYTES = ROWS * 5 * 8 };
    tn_loader_options o = { .batch_size = 700, .shuffle = _i & 1, .prefetch = _i & 2 };
    tn_module *m = tn_module_new(&(tn_module_type){ .name = "M", .size = sizeof(tn_module) });
    tn_tensor *x = random_as(TN_SHAPE(ROWS, 5), -1, 1, 1, TN_F64), *same = tn_clone(x);
    assert_ok(tn_register_buffer(m, "x", NULL, x, TN_PERSISTENT));
    tn_loader *l = owned(tn_loader_new(&x, 1, o)), *other = owned(tn_loader_new(&same, 1, o));
    char *a = owned(calloc(1, BYTES)), *b = owned(calloc(1, BYTES));
    for (int epoch = 0; epoch < 3; epoch++) {
        if (epoch == 1) assert_ok(tn_module_to_dtype(m, TN_BF16));
        if (epoch == 2) assert_ok(tn_module_set(m, "x", tn_zeros(TN_SHAPE(1))));
        if (epoch == 2) tn_module_drop(m);
        ck_assert_uint_eq(bytes_of_epoch(l, a), BYTES);
        ck_assert_uint_eq(bytes_of_epoch(other, b), BYTES);
        ck_assert_int_eq(memcmp(a, b, BYTES), 0);
    }
}
END_TEST

/* A child after fork has its parent's loaders, but not their threads. */
START_TEST(a_loader_goes_on_after_fork)
{
    enum { BYTES = 1000 * 5 * 4 };
    if (TEST_ASAN || !child_may_start_threads()) return;
    tn_loader_options o = { .batch_size = 10, .shuffle = true, .prefetch = true };
    tn_tensor *x = random_as(TN_SHAPE(1000, 5), -1, 1, 1, TN_F32), *batch;
    tn_loader *l = tn_loader_new(&x, 1, o);
    ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        char *a = malloc(BYTES), *b = malloc(BYTES);
        tn_loader *other = tn_loader_new(&x, 1, o);
        bool right = tn_loader_next(other, &batch, 1) == 1 && bytes_of_epoch(l, a) == BYTES - 200 &&
                     bytes_of_epoch(other, b) == BYTES - 200 && !memcmp(a, b, BYTES - 200);
        tn_loader_free(l), tn_loader_free(other);
        _exit(right ? 0 : 1);
    }
    ck_assert_int_eq(status_of(child), 0);
    tn_loader_free(l);
}
END_TEST

START_TEST(loader_refused)
{
    tn_tensor *a = tn_ones(TN_SHAPE(4, 2)), *b = tn_ones(TN_SHAPE(5)), *c = tn_ones(TN_SCALAR);
    tn_tensor *empty = tn_ones(TN_SHAPE(0, 3));
    tn_tensor *many = tn_zeros(TN_SHAPE((INT64_C(1) << 60) - 1, 0));
    assert_made(many);
    const struct {
        tn_tensor *tensors[2];
        int n;
        tn_loader_options o;
        tn_status status;
        const char *text;
    } rows[] = {
        { { a, b }, 2, { 0 }, TN_E_SHAPE, "tensor 0 has 4 rows, tensor 1 5" },
        { { c }, 1, { 0 }, TN_E_SHAPE, "rank >= 1" },
        { { empty }, 1, { .batch_size = 2 }, TN_E_INVALID, "0 rows give no batch of 2" },
        { { a }, 1, { .batch_size = -1 }, TN_E_INVALID, "batch_size -1" },
        { { a },
          1,
          { .batch_size = 5, .drop_last = true },
          TN_E_INVALID,
          "4 rows give no batch of 5" },
        { { many }, 1, { .shuffle = true }, TN_E_NOMEM, "out of memory" },
        { { a, NULL }, 2, { .shuffle = true }, TN_E_INVALID, "tn_loader_new: tensors[1] is NULL" },
        { { a }, 0, { 0 }, TN_E_INVALID, "want 1 to 4" },
        { { a }, -1, { 0 }, TN_E_INVALID, "want 1 to 4" },
        { { a }, 5, { 0 }, TN_E_INVALID, "5 tensors: want 1 to 4" },
        { { a }, INT32_MAX, { 0 }, TN_E_INVALID, "want 1 to 4" },
        { { a }, INT32_MIN, { 0 }, TN_E_INVALID, "want 1 to 4" },
    };
    for (int i = 0; i < COUNT(rows); i++)
        assert_null(tn_loader_new(rows[i].tensors, rows[i].n, rows[i].o), rows[i].status,
                    rows[i].text);
    tn_loader *l = tn_loader_new(&a, 1, (tn_loader_options){ .batch_size = INT64_MAX });
    ck_assert_int_eq(tn_loader_batches(l), 1);
    assert_fails(tn_loader_seek(l, -1, 0), TN_E_INDEX, "epoch -1");
    assert_fails(tn_loader_seek(l, INT64_MAX, 1), TN_E_INDEX, "epoch 9223372036854775807");
    assert_fails(tn_loader_seek(l, 0, 3), TN_E_INDEX, "an epoch has 1 batches");
    assert_fails(tn_loader_seek(l, 0, INT64_MAX), TN_E_INDEX, "an epoch has 1 batches");
    assert_fails(tn_loader_seek(l, INT64_MIN, 0), TN_E_INDEX, "an epoch has 1 batches");
    assert_ok(tn_loader_seek(l, INT64_MAX / 2, 1));
    ck_assert_int_eq(tn_loader_next(l, &b, 1), 0);
    ck_assert_int_eq(tn_loader_next(l, &b, 1), 1);
    tn_loader_free(l);
    l = tn_loader_new((tn_tensor *[]){ a, a }, 2, (tn_loader_options){ .batch_size = 2 });
    ck_assert_int_eq(tn_loader_next(l, &b, 1), -1);
    assert_error(TN_E_INVALID, "tn_loader_next: room for 1 tensors: want 2");
    ck_assert_int_eq((int)tn_loader_position(l), 0);
    tn_loader_free(l);
}
END_TEST

/* ---- plots ----------------------------------------------------------------------------------- */

START_TEST(plot_is_an_svg)
{
    enum { N = 30000 };
    static double x[N], y[N];
    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = 3 * exp(-i / 5000.0) + 1;
    }
    y[17000] = 50; /* a spike survives */
    y[100] = NAN;
    double vx[] = { 0, 10000, 20000 };
    double vy[] = { 4, 2, INFINITY };
    tn_curve curves[] = { { "train <loss> & \"more\"", N, x, y },
                          { "valid \xff\x01", 3, vx, vy },
                          { NULL, 0, NULL, NULL } };
    const char *path = in_folder("plot.svg");
    assert_ok(tn_plot_svg(path, "Loss", "step", "nats", curves, 3));
    size_t n;
    char *svg = read_bytes(path, &n);
    ck_assert_int_eq(strncmp(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39), 0);
    ck_assert_str_eq(svg + n - 7, "</svg>\n");
    ck_assert_ptr_nonnull(strstr(svg, "train &lt;loss&gt; &amp; &quot;more&quot;"));
    ck_assert_ptr_nonnull(strstr(svg, "valid ? "));
    ck_assert_ptr_nonnull(strstr(svg, ">50</text>"));
    ck_assert_ptr_null(strstr(svg, "nan"));
    ck_assert_ptr_null(strstr(svg, "inf"));
    ck_assert_uint_lt(n, 100000);
    /* what is drawn in these colours has another one in the dark */
    static const char *const drawn[] = { "fill='#111'", "fill='#ffffff'", "stroke='#e4e4e4'",
                                         "stroke='#cccccc'", "stroke='#0072b2'" };
    ck_assert_ptr_nonnull(strstr(svg, "@media (prefers-color-scheme:dark){"));
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++) {
        char attribute[32], rule[32];
        snprintf(attribute, sizeof attribute, " %s", drawn[i]);
        snprintf(rule, sizeof rule, "[%s]{", drawn[i]);
        ck_assert_msg(strstr(svg, attribute) && strstr(svg, rule), "%s", drawn[i]);
    }
    free(svg);
    /* nothing to draw, one point, equal values, huge values, an empty title */
    double same[] = { 5, 5 };
    double huge[] = { -1.7e308, 1.7e308 };
    tn_curve odd[] = {
        { "a", 0, x, y }, { "b", 1, x, y }, { "c", 2, same, same }, { "d", 2, huge, huge }
    };
    for (int k = 0; k < 4; k++) assert_ok(tn_plot_svg(path, NULL, "", "", odd + k, 1));
    assert_ok(tn_plot_svg(path, "t", "x", "y", NULL, 0));
    assert_fails(tn_plot_svg(path, "t", "x", "y", NULL, 1), TN_E_INVALID, "1 curves");
    assert_fails(tn_plot_svg(path, "t", "x", "y", &(tn_curve){ "a", 2, NULL, y }, 1), TN_E_INVALID,
                 "curve 0");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("data");
    TCase *t = file_case(suite, "data");
    tcase_add_test(t, idx_types);
    tcase_add_test(t, text_ids_and_split);
    tcase_add_test(t, text_batches);
    tcase_add_test(t, text_batches_of_a_long_text);
    tcase_add_loop_test(t, loader_in_order, 0, 2);
    tcase_add_loop_test(t, loader_in_parts, 0, 2);
    tcase_add_loop_test(t, loader_resumes_with_other_parts, 0, 2);
    tcase_add_loop_test(t, loader_resumes_with_another_seed, 0, 2);
    tcase_add_test(t, loader_shuffles_by_seed_and_epoch);
    tcase_add_test(t, loader_keeps_its_tensors);
    tcase_add_loop_test(t, a_loader_keeps_what_it_was_made_of, 0, 4);
    tcase_add_test(t, a_loader_goes_on_after_fork);
    tcase_add_test(t, loader_refused);
    t = file_case(suite, "plots");
    tcase_add_test(t, plot_is_an_svg);
    return suite;
}
