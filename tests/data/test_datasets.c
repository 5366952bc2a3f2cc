/*
 * test_datasets.c - data sets of a user's own, their loaders, and which samples an epoch has.
 *
 * Truth: what get was asked to write; counts that must come out exactly; frequencies against the
 * weights, within five standard deviations.
 *
 * Seen to fail: in src/ext/data/batches.c, a sample's generator that is not seeded; no wait for
 * threads in tni_batches_settle, or old locks in a forked child; what came of a task noted without
 * the lock (under ThreadSanitizer); tensors of collate's with their strides, a failure of it that
 * is dropped, the empty end of a stream that is collated; a stream that goes on behind a failure,
 * or where it stood in another epoch; no padding, or the largest size; in sampler.c, members at
 * j / n; keys without the logarithm of the weight.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "data/cases.h"
#include "scarce.h"

/* ---- a data set of ours ---------------------------------------------------------------------- */

/* x: numbers and a random one, y: the index, v: index % 5 numbers. */
static const tn_field fields[] = {
    { "x", TN_F32, { 1, { 3 } }, false },
    { "y", TN_I64, { 0, { 0 } }, false },
    { "v", TN_U8, { 2, { 4, 2 } }, true },
};

typedef struct world {
    tn_dataset d;
    int64_t bad; /* a sample that fails; -1: none */
    int64_t end; /* of a stream */
    bool mute;   /* fails without a message */
    int draws;   /* more random numbers, and no pauses */
    atomic_int calls, at_once, most_at_once;
    atomic_int collate; /* what comes of together for the batch from sample 20 on */
    int64_t last;       /* of a stream */
} world;

static tn_status get(const tn_dataset *d, tn_sample *s)
{
    world *w = d->user;
    const int now = atomic_fetch_add(&w->at_once, 1) + 1;
    if (now > w->most_at_once) w->most_at_once = now;
    atomic_fetch_add(&w->calls, 1);
    for (int i = 0; i < w->draws; i++) tn_generator_u32(s->generator);
    if (!w->draws && s->index % 7 == 0)
        nanosleep(&(struct timespec){ .tv_nsec = 1000 * (s->index * 37 % 100) }, NULL);
    tn_status status = TN_OK;
    float *x = s->to[0];
    uint8_t *v = s->to[2];
    x[0] = (float)s->index;
    x[1] = (float)s->epoch;
    x[2] = (float)(tn_generator_u32(s->generator) >> 8);
    *(int64_t *)s->to[1] = s->index;
    s->size[2] = s->index % 5;
    for (int i = 0; i < 8; i++) v[i] = (uint8_t)(s->index % 5 * 2 > i ? s->index % 100 : 77);
    if (d->length < 0) {
        if (s->index != 0 && s->index != w->last + 1) status = TN_E_INDEX;
        w->last = s->index;
        s->end = s->index == w->end;
    }
    if (s->index == w->bad) {
        if (!w->mute) tn_fail(TN_E_IO, "picture %d is torn", (int)s->index);
        status = w->mute ? TN_E_STATE : TN_E_IO;
    }
    atomic_fetch_sub(&w->at_once, 1);
    return status;
}

/* Until the end of the test, after loaders of it. */
static world *world_of(int64_t length)
{
    world *w = calloc(1, sizeof *w);
    free_at_end(w, free);
    w->d = (tn_dataset){ "worlds", length, fields, 3, get, w };
    w->bad = w->end = -1;
    return w;
}

static tn_loader *loader_of(world *w, tn_loader_options o)
{
    tn_loader *l = tn_loader_from(&w->d, o);
    return l ? owned(l) : NULL;
}

static const int64_t workers[] = { 0, 1, 2, 5 };

static uint64_t add(uint64_t h, uint64_t more)
{
    return (h ^ more) * UINT64_C(0x100000001b3);
}

/* The next batch: 1, and its hash added to *h; 0, -1. Checks x against y and v. */
static int next(tn_loader *l, uint64_t *h, int64_t *rows, int64_t *index)
{
    tn_tensor *out[4];
    int got = 0;
    TN_SCOPE
    {
        got = tn_loader_next(l, out, 4);
        for (int k = 0; got == 1 && k < 4; k++) *h = add(*h, tn_hash(out[k]));
        if (got == 1) {
            const int64_t n = tn_size(out[1], 0), *y = tn_data(out[1]), *size = tn_data(out[3]);
            const float *x = tn_data(out[0]);
            const uint8_t *v = tn_data(out[2]);
            int64_t longest = 0;
            for (int64_t i = 0; i < n; i++) longest = size[i] > longest ? size[i] : longest;
            ck_assert_int_eq(tn_size(out[2], 1), longest);
            for (int64_t i = 0; i < n; i++) {
                ck_assert_float_eq(x[3 * i], (float)y[i]);
                ck_assert_int_eq(size[i], y[i] % 5);
                for (int64_t j = 0; j < longest * 2; j++)
                    ck_assert_int_eq(v[i * longest * 2 + j], j < size[i] * 2 ? y[i] % 100 : 9);
                if (index) index[i] = y[i];
            }
            *rows = n;
        }
    }
    return got;
}

/* The hash of an epoch; -1: a failure. order: what came, may be NULL. */
static uint64_t epoch_of(tn_loader *l, int64_t *order, int64_t *n_rows)
{
    uint64_t h = 7;
    int64_t rows, n = 0;
    int got;
    while ((got = next(l, &h, &rows, order ? order + n : NULL)) == 1) n += rows;
    ck_assert_msg(got == 0, "%s", tn_error());
    if (n_rows) *n_rows = n;
    return h;
}

/* ---- the same batches ------------------------------------------------------------------------ */

START_TEST(any_number_of_workers)
{
    const tn_loader_options forms[] = {
        { .batch_size = 16, .pad = 9 },
        { .batch_size = 16, .pad = 9, .shuffle = true, .seed = 3, .ahead = 3 },
        { .batch_size = 1, .pad = 9, .shuffle = true, .drop_last = true },
        { .batch_size = 400, .pad = 9, .shuffle = true, .seed = 5 },
        { .batch_size = 30, .pad = 9, .parts = 3, .part = 1, .shuffle = true },
    };
    for (int f = 0; f < COUNT(forms); f++) {
        uint64_t first[3];
        for (int k = 0; k < COUNT(workers); k++) {
            world *w = world_of(203);
            tn_loader_options o = forms[f];
            o.workers = workers[k];
            tn_loader *l = loader_of(w, o);
            assert_made(l);
            int64_t order[203] = { 0 }, n;
            for (int e = 0; e < 3; e++) {
                uint64_t h = epoch_of(l, order, &n);
                if (k == 0) first[e] = h;
                ck_assert_msg(h == first[e], "form %d, %d workers", f, (int)workers[k]);
                ck_assert_int_eq(n, f == 4 ? 67 : 203);
                ck_assert(f != 0 || order[77] == 77);
                ck_assert(e == 0 || first[e] != first[e - 1]); /* other random numbers */
            }
            if (workers[k] == 5 && f == 1) ck_assert_int_ge(w->most_at_once, 2);
            if (workers[k] < 2) ck_assert_int_eq(w->most_at_once, 1);
        }
    }
}
END_TEST

/* What one form of a loader gives, another one that is set to its place gives from there on. */
START_TEST(goes_on_in_the_middle)
{
    world *w = world_of(100);
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ 0 }));
    tn_tensor *weights = tn_rand(TN_SHAPE(100)), *classes = tn_zeros(TN_SHAPE(100));
    classes = tn_to_dtype(tn_mul_scalar(weights, 3), TN_I64);
    const tn_loader_options forms[] = {
        { .shuffle = true },
        { .weights = weights },
        { .weights = weights, .without_replacement = true, .draws = 90 },
        { .classes = classes, .shuffle = true },
        { .samples = tn_randperm(100), .draws = 80 },
    };
    for (int f = 0; f < COUNT(forms); f++) {
        tn_loader_options o = forms[f];
        o.pad = 9, o.batch_size = 7, o.seed = 11;
        tn_loader *l = loader_of(w, o);
        assert_made(l);
        uint64_t a = 1, b;
        int64_t rows;
        epoch_of(l, NULL, NULL);
        for (int i = 0; i < 4; i++) ck_assert_int_eq(next(l, &a, &rows, NULL), 1);
        tn_checkpoint c = { .model = m, .loader = l };
        assert_ok(tn_checkpoint_save(&c, in_folder("middle.ckpt")));
        a = epoch_of(l, NULL, NULL);
        for (int k = 0; k < COUNT(workers); k++) {
            o.workers = workers[k], o.seed = 99; /* the file's counts */
            c.loader = loader_of(w, o);
            if (k > 1) next(c.loader, &b, &rows, NULL);
            assert_ok(tn_checkpoint_load(&c, in_folder("middle.ckpt")));
            ck_assert_int_eq(tn_loader_position(c.loader), 4);
            b = epoch_of(c.loader, NULL, NULL);
            ck_assert_msg(a == b, "form %d, %d workers", f, (int)workers[k]);
        }
        c.loader = loader_of(w, (tn_loader_options){ .batch_size = 7, .draws = 79 });
        assert_fails(tn_checkpoint_load(&c, in_folder("middle.ckpt")), TN_E_INVALID,
                     "want equal ones");
    }
}
END_TEST

START_TEST(left_and_begun_again)
{
    for (int k = 0; k < COUNT(workers); k++) {
        world *w = world_of(60);
        tn_loader *l =
            loader_of(w, (tn_loader_options){ .batch_size = 8, .workers = workers[k], .pad = 9 });
        uint64_t first = epoch_of(l, NULL, NULL), h = 7;
        int64_t rows, index[8];
        for (int i = 0; i < 3; i++) ck_assert_int_eq(next(l, &h, &rows, NULL), 1);
        assert_ok(tn_loader_seek(l, 0, 0));
        ck_assert_uint_eq(epoch_of(l, NULL, NULL), first);
        assert_ok(tn_loader_set_batch_size(l, 4));
        ck_assert_int_eq(next(l, &h, &rows, index), 1);
        ck_assert_int_eq(rows, 4);
        assert_ok(tn_loader_seek(l, 4, 14));
        ck_assert_int_eq(next(l, &h, &rows, index), 1);
        ck_assert_int_eq(index[3], 59);
        ck_assert_int_eq(next(l, &h, &rows, index), 0);
        ck_assert_int_eq(tn_loader_epoch(l), 5);
    }
}
END_TEST

/* With replacement a sample that comes twice has other random numbers. */
START_TEST(draws_of_one_sample_differ)
{
    world *w = world_of(2);
    tn_tensor *weights = tn_from_floats((float[]){ 1, 0 }, TN_SHAPE(2)), *out[4];
    tn_loader *l = loader_of(
        w, (tn_loader_options){ .batch_size = 50, .weights = weights, .draws = 50, .pad = 9 });
    ck_assert_int_eq(tn_loader_next(l, out, 4), 1);
    const float *x = tn_data(out[0]);
    for (int i = 1; i < 50; i++) {
        ck_assert_float_eq(x[3 * i], 0);
        ck_assert_float_ne(x[3 * i + 2], x[3 * i - 1]);
    }
}
END_TEST

/* ---- collate --------------------------------------------------------------------------------- */

/* Sums of v, y repeated, x as it is; some with strides of their own. */
static tn_status together(const tn_dataset *d, tn_tensor *const *in, tn_tensor **out)
{
    const world *w = d->user;
    const int64_t n = tn_size(in[1], 0);
    if (n == 0) return TN_E_STATE;
    const int64_t first = (int64_t)tn_at(in[1], TN_INDEX(0));
    out[0] = tn_sum(tn_to_dtype(in[2], TN_F32), TN_AXES(1, 2), false);
    out[1] = tn_expand(tn_unsqueeze(in[1], 1), TN_SHAPE(n, 3));
    out[2] = tn_transpose(in[0], 0, 1);
    const int status = first == 20 ? w->collate : TN_OK;
    if (status == TN_E_SHAPE) out[1] = NULL;
    if (status == TN_E_IO) tn_fail(TN_E_IO, "no glue");
    return status == TN_E_SHAPE ? TN_OK : (tn_status)status;
}

/* Of rows of 3 a label and the rest. */
static tn_status apart(const tn_dataset *d, tn_tensor *const *in, tn_tensor **out)
{
    ck_assert(!d->get);
    out[0] = tn_to_dtype(tn_select(in[0], 1, 0), TN_I64);
    out[1] = tn_narrow(in[0], 1, 1, 2);
    return TN_OK;
}

START_TEST(batches_of_one_s_own)
{
    uint64_t wanted = 0;
    for (int k = 0; k < COUNT(workers); k++) {
        world *w = world_of(43);
        tn_loader_options o = {
            .batch_size = 10, .workers = workers[k], .collate = together, .n_out = 3
        };
        tn_loader *l = loader_of(w, o);
        assert_made(l);
        tn_tensor *out[3];
        uint64_t h = 1;
        for (int64_t i = 0; i < 5; i++) {
            ck_assert_int_eq(tn_loader_next(l, out, 3), 1);
            const int64_t n = i < 4 ? 10 : 3;
            ck_assert(tn_is_contiguous(out[1]) && tn_is_contiguous(out[2]));
            ck_assert_int_eq(tn_size(out[2], 1), n);
            for (int64_t j = 0, y = 10 * i; j < n; j++, y++) {
                ck_assert_double_eq(tn_at(out[0], &j, 1), (double)(y % 5 * 2 * y));
                ck_assert_double_eq(tn_at(out[1], TN_INDEX(j, 2)), (double)y);
                ck_assert_double_eq(tn_at(out[2], TN_INDEX(0, j)), (double)y);
            }
            h = add(h, tn_hash(out[2]));
        }
        ck_assert_int_eq(tn_loader_next(l, out, 3), 0);
        if (k == 0) wanted = h;
        ck_assert_uint_eq(h, wanted);
        /* failures come when the batch is due */
        const tn_status failures[] = { TN_E_IO, TN_E_STATE, TN_E_SHAPE };
        const char *const texts[] = { "no glue", "collate returned ", "" };
        for (int f = 0; f < 3; f++) {
            w->collate = failures[f];
            assert_ok(tn_loader_seek(l, 0, 0));
            for (int i = 0; i < 2; i++) ck_assert_int_eq(tn_loader_next(l, out, 3), 1);
            for (int again = 0; again < 2; again++) ck_assert_int_eq(tn_loader_next(l, out, 3), -1);
            ck_assert(strstr(tn_error(), "tn_loader_next: worlds, the batch from sample 20: "));
            ck_assert_msg(strstr(tn_error(), texts[f]) != NULL, "%s", tn_error());
            w->collate = TN_OK;
            tn_error_clear();
            ck_assert_int_eq(tn_loader_next(l, out, 3), 1);
            ck_assert_double_eq(tn_at(out[1], TN_INDEX(0, 0)), 20);
        }
    }
    world *w = world_of(-1); /* a stream: no empty batch is collated */
    w->end = 20;
    tn_loader *l = loader_of(
        w, (tn_loader_options){ .batch_size = 10, .workers = 2, .collate = together, .n_out = 3 });
    tn_tensor *out[3];
    for (int i = 0; i < 3; i++) ck_assert_int_eq(tn_loader_next(l, out, 3), i < 2);
    tn_tensor *rows = tn_reshape(tn_arange(0, 12, 1, TN_F32), TN_SHAPE(4, 3));
    const tn_loader_options o = { .batch_size = 4, .collate = apart, .n_out = 2 };
    l = owned(tn_loader_new(&rows, 1, o));
    ck_assert_int_eq(tn_loader_next(l, out, 2), 1);
    ck_assert_double_eq(tn_at(out[0], TN_INDEX(2)), 6);
    ck_assert_double_eq(tn_at(out[1], TN_INDEX(2, 1)), 8);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(a_failure_names_its_sample)
{
    for (int k = 0; k < COUNT(workers); k++) {
        world *w = world_of(100);
        tn_loader *l =
            loader_of(w, (tn_loader_options){ .batch_size = 10, .workers = workers[k], .pad = 9 });
        uint64_t h = 0;
        int64_t rows, index[10];
        w->bad = 34;
        for (int i = 0; i < 3; i++) ck_assert_int_eq(next(l, &h, &rows, index), 1);
        for (int again = 0; again < 2; again++) {
            ck_assert_int_eq(next(l, &h, &rows, index), -1);
            assert_error(TN_E_IO, "tn_loader_next: worlds, sample 34: picture 34 is torn");
            ck_assert_int_eq(tn_loader_position(l), 3);
        }
        assert_ok(tn_loader_seek(l, 0, 4)); /* passed over */
        ck_assert_int_eq(next(l, &h, &rows, index), 1);
        ck_assert_int_eq(index[0], 40);
        assert_ok(tn_loader_seek(l, 0, 3));
        w->mute = true;
        ck_assert_int_eq(next(l, &h, &rows, index), -1);
        assert_error(TN_E_STATE, "tn_loader_next: worlds, sample 34: get returned");
        w->bad = -1; /* mended */
        ck_assert_int_eq(next(l, &h, &rows, index), 1);
        ck_assert_int_eq(index[4], 34);
    }
}
END_TEST

static tn_status wide(const tn_dataset *d, tn_sample *s)
{
    s->size[0] = *(int64_t *)d->user;
    return TN_OK;
}

START_TEST(sizes_are_checked)
{
    static int64_t size = 5;
    static const tn_field f = { "v", TN_F32, { 1, { 4 } }, true };
    static const tn_dataset d = { NULL, 8, &f, 1, wide, &size };
    tn_loader *l = owned(tn_loader_from(&d, (tn_loader_options){ .batch_size = 8 }));
    tn_tensor *out[2];
    ck_assert_int_eq(tn_loader_next(l, out, 2), -1);
    assert_error(TN_E_SHAPE, "a data set, sample 0: field 0 of size 5: want 0 to 4");
    size = -1;
    ck_assert_int_eq(tn_loader_next(l, out, 2), -1);
    assert_error(TN_E_SHAPE, "field 0 of size -1");
    size = 0;
    ck_assert_int_eq(tn_loader_next(l, out, 2), 1);
    ck_assert_int_eq(tn_numel(out[0]), 0);
    ck_assert_int_eq(tn_size(out[0], 0), 8);
}
END_TEST

START_TEST(refused)
{
    const tn_field ok = { "x", TN_F32, { 1, { 3 } }, false }, flat = { "n", TN_F32, { 0 }, true },
                   odd = { "d", (tn_dtype)99, { 0 }, false },
                   minus = { 0, TN_F32, { 1, { -1 } }, 0 };
    tn_tensor *w = tn_ones(TN_SHAPE(4)), *i = tn_to_dtype(tn_arange(0, 4, 1, TN_F32), TN_I64);
    tn_tensor *far = tn_add_scalar(i, 1), *nan = tn_full(TN_SHAPE(4), NAN);
    const struct {
        tn_dataset d;
        tn_loader_options o;
        tn_status status;
        const char *text;
    } rows[] = {
        { { "d", 4, &ok, 1, NULL, NULL }, { 0 }, TN_E_INVALID, "and no get" },
        { { "d", 4, &ok, 0, get, NULL }, { 0 }, TN_E_INVALID, "0 fields" },
        { { "d", 4, NULL, 3, get, NULL }, { 0 }, TN_E_INVALID, "0 fields" },
        { { "d", -2, &ok, 1, get, NULL }, { 0 }, TN_E_INVALID, "length -2" },
        { { "d", 0, &ok, 1, get, NULL }, { 0 }, TN_E_INVALID, "0 rows give no batch" },
        { { "d", 4, &flat, 1, get, NULL }, { 0 }, TN_E_SHAPE, "field 0 (n): want a dtype and 1" },
        { { "d", 4, &odd, 1, get, NULL }, { 0 }, TN_E_SHAPE, "field 0 (d)" },
        { { "d", 4, &minus, 1, get, NULL }, { 0 }, TN_E_SHAPE, "field 0 (unnamed)" },
        { { "d", 4, &ok, 1, get, NULL }, { .workers = -1 }, TN_E_INVALID, "workers -1" },
        { { "d", 4, &ok, 1, get, NULL }, { .ahead = -1 }, TN_E_INVALID, "ahead -1" },
        { { "d", 4, &ok, 1, get, NULL }, { .draws = -1 }, TN_E_INVALID, "draws -1" },
        { { "d", 4, &ok, 1, get, NULL }, { .draws = 5 }, TN_E_INVALID, "draws 5 of 4 rows" },
        { { "d", 4, &ok, 1, get, NULL }, { .n_out = 1 }, TN_E_INVALID, "n_out 1: want collate's" },
        { { "d", 4, &ok, 1, get, NULL }, { .collate = apart }, TN_E_INVALID, "n_out 0: want" },
        { { "d", -1, &ok, 1, get, NULL }, { .shuffle = true }, TN_E_INVALID, "a stream: want" },
        { { "d", -1, &ok, 1, get, NULL }, { .draws = 3 }, TN_E_INVALID, "a stream: want" },
        { { "d", 5, &ok, 1, get, NULL }, { .weights = w }, TN_E_SHAPE, "each of 5 rows" },
        { { "d", 4, &ok, 1, get, NULL }, { .weights = i }, TN_E_SHAPE, "want floats" },
        { { "d", 4, &ok, 1, get, NULL }, { .classes = w }, TN_E_SHAPE, "want integers" },
        { { "d", 4, &ok, 1, get, NULL }, { .weights = nan }, TN_E_INVALID, "weight 0 is nan" },
        { { "d", 4, &ok, 1, get, NULL },
          { .weights = tn_zeros(TN_SHAPE(4)) },
          TN_E_INVALID,
          "0 weights above 0" },
        { { "d", 4, &ok, 1, get, NULL },
          { .weights = w, .without_replacement = true, .draws = 5 },
          TN_E_INVALID,
          "draws 5 of 4" },
        { { "d", 4, &ok, 1, get, NULL }, { .weights = w, .classes = i }, TN_E_INVALID, "one of" },
        { { "d", 4, &ok, 1, get, NULL },
          { .samples = far },
          TN_E_INDEX,
          "samples has 4: want 0 to 3" },
        { { "d", 4, &ok, 1, get, NULL }, { .samples = w }, TN_E_SHAPE, "samples" },
    };
    for (int k = 0; k < COUNT(rows); k++)
        assert_null(tn_loader_from(&rows[k].d, rows[k].o), rows[k].status, rows[k].text);
    assert_null(tn_loader_from(NULL, (tn_loader_options){ 0 }), TN_E_INVALID, "d is NULL");
    const tn_dataset d = { "d", 4, &ok, 1, get, NULL };
    /* a failed result is not an absent one */
    const tn_loader_options failed = { .weights = tn_add(w, tn_ones(TN_SHAPE(3))) };
    assert_null(tn_loader_from(&d, failed), TN_E_SHAPE, "is pending");
}
END_TEST

/* ---- streams --------------------------------------------------------------------------------- */

START_TEST(streams)
{
    for (int k = 0; k < 3; k++)
        for (int drop = 0; drop < 2; drop++) {
            world *w = world_of(-1);
            int64_t order[32], n, rows;
            uint64_t h = 7;
            w->end = 22;
            tn_loader *l = loader_of(
                w, (tn_loader_options){
                       .batch_size = 5, .workers = workers[k], .drop_last = drop, .pad = 9 });
            ck_assert_int_eq(tn_loader_batches(l), -1);
            ck_assert_int_eq(tn_loader_rows(l), -1);
            uint64_t first = epoch_of(l, order, &n);
            for (int64_t i = 0; i < n; i++) ck_assert_int_eq(order[i], i);
            ck_assert_int_eq(n, drop ? 20 : 22);
            ck_assert_uint_ne(epoch_of(l, order, &n), first);
            ck_assert_int_eq(n, drop ? 20 : 22);
            /* goes on in the middle: what lies before is read again */
            assert_ok(tn_loader_seek(l, 0, 2));
            ck_assert_int_eq(next(l, &h, &rows, order), 1);
            ck_assert_int_eq(order[0], 10);
            ck_assert_int_eq(order[4], 14);
            assert_ok(tn_loader_seek(l, 0, 0));
            ck_assert_uint_eq(epoch_of(l, order, &n), first);
            assert_ok(tn_loader_seek(l, 0, 20)); /* behind the end */
            ck_assert_int_eq(next(l, &h, &rows, order), 0);
            ck_assert_int_eq(tn_loader_epoch(l), 1);
            /* a whole number of batches */
            w->end = 20;
            epoch_of(l, order, &n);
            ck_assert_int_eq(n, 20);
            w->end = 0;
            epoch_of(l, order, &n);
            ck_assert_int_eq(n, 0);
            w->end = 30, w->bad = 10;
            for (int i = 0; i < 2; i++) ck_assert_int_eq(next(l, &h, &rows, order), 1);
            ck_assert_int_eq(next(l, &h, &rows, order), -1);
            assert_error(TN_E_IO, "sample 10: picture 10");
            w->bad = -1;
            ck_assert_int_eq(next(l, &h, &rows, order), 1);
            ck_assert_int_eq(order[0], 10); /* read from the beginning */
            ck_assert_int_eq(w->most_at_once, 1);
        }
}
END_TEST

/* ---- which samples --------------------------------------------------------------------------- */

/* Rows 0 .. n - 1 of a loader of a tensor, in order. */
static int64_t rows_of(tn_loader *l, int64_t *order)
{
    int64_t n = 0;
    tn_tensor *batch;
    int got = 1;
    while (got == 1) TN_SCOPE
        {
            got = tn_loader_next(l, &batch, 1);
            for (int64_t i = 0; got == 1 && i < tn_size(batch, 0); i++)
                order[n++] = (int64_t)tn_at(batch, &i, 1);
        }
    ck_assert_int_eq(got, 0);
    return n;
}

static tn_loader *rows_loader(int64_t n, tn_loader_options o)
{
    tn_tensor *t = tn_arange(0, (double)n, 1, TN_I64);
    if (o.batch_size == 0) o.batch_size = 20;
    tn_loader *l = tn_loader_new(&t, 1, o);
    assert_made(l);
    return owned(l);
}

START_TEST(weights)
{
    enum { N = 5, DRAWS = 20000 };
    static int64_t order[DRAWS];
    const double w[N] = { 0, 1, 0.25, 3.75, 0 };
    tn_tensor *weights = tn_from_floats((float[]){ 0, 1, 0.25, 3.75, 0 }, TN_SHAPE(N));
    tn_loader *l = rows_loader(
        N, (tn_loader_options){ .weights = weights, .draws = DRAWS, .batch_size = 500 });
    ck_assert_int_eq(tn_loader_rows(l), DRAWS);
    int64_t count[N] = { 0 }, pairs = 0;
    ck_assert_int_eq(rows_of(l, order), DRAWS);
    for (int i = 0; i < DRAWS; i++) {
        count[order[i]]++;
        pairs += i > 0 && order[i] == 3 && order[i - 1] == 3;
    }
    for (int k = 0; k < N; k++) {
        const double p = w[k] / 5, s = sqrt(DRAWS * p * (1 - p));
        ck_assert_double_le(fabs((double)count[k] - DRAWS * p), 5 * s);
    }
    ck_assert_double_le(fabs((double)pairs / DRAWS - 0.75 * 0.75), 0.02); /* independent */
}
END_TEST

/* The first of each epoch by weight; the second, given the first, by the rest: 1 / 3 * 3 / 4 ... */
START_TEST(weights_without_replacement)
{
    enum { N = 4, EPOCHS = 6000 };
    tn_tensor *weights = tn_from_floats((float[]){ 1, 2, 0, 3 }, TN_SHAPE(N));
    tn_loader *l = rows_loader(
        N, (tn_loader_options){ .weights = weights, .without_replacement = true, .draws = 3 });
    double first[N] = { 0 }, then = 0;
    int64_t order[N];
    for (int e = 0; e < EPOCHS; e++) {
        ck_assert_int_eq(rows_of(l, order), 3);
        ck_assert(order[0] != order[1] && order[1] != order[2] && order[0] != order[2]);
        for (int i = 0; i < 3; i++) ck_assert_int_ne(order[i], 2);
        first[order[0]] += 1.0 / EPOCHS;
        then += order[0] == 3 && order[1] == 1 ? 1.0 / EPOCHS : 0;
    }
    const double s = 5 * 0.5 / sqrt(EPOCHS);
    ck_assert_double_le(fabs(first[0] - 1 / 6.0), s);
    ck_assert_double_le(fabs(first[1] - 2 / 6.0), s);
    ck_assert_double_le(fabs(first[3] - 3 / 6.0), s);
    ck_assert_double_le(fabs(then - 3 / 6.0 * 2 / 3.0), s);
}
END_TEST

/* 60 : 30 : 10 in batches of 20 are 12 : 6 : 2 in each; in batches of 7 within one of the share. */
START_TEST(classes_have_equal_shares)
{
    enum { N = 200 };
    int64_t class[N], order[N], order2[N];
    for (int i = 0; i < N; i++) class[i] = i * 7 % 10 < 6 ? -5 : i * 7 % 10 < 9 ? 40 : INT64_MAX;
    for (int f = 0; f < 4; f++) {
        const int size = f & 2 ? 7 : 20;
        tn_loader *l =
            rows_loader(N, (tn_loader_options){ .classes = tn_from_ints(class, TN_SHAPE(N)),
                                                .shuffle = f & 1,
                                                .batch_size = size });
        ck_assert_int_eq(rows_of(l, order), N);
        bool seen[N] = { false };
        for (int i = 0; i < N; i += size) {
            int a = 0, b = 0, n = size < N - i ? size : N - i;
            for (int j = i; j < i + n; j++) {
                ck_assert(!seen[order[j]]);
                seen[order[j]] = true;
                a += class[order[j]] == -5;
                b += class[order[j]] == 40;
            }
            ck_assert_double_le(fabs(a - 0.6 * n), size == 20 ? 0 : 1);
            ck_assert_double_le(fabs(b - 0.3 * n), size == 20 ? 0 : 1);
        }
        rows_of(l, order2);
        ck_assert_int_eq(memcmp(order, order2, sizeof order) != 0, f & 1);
    }
    for (int i = 0; i < 21; i++) class[i] = i == 3; /* one alone stands in the middle */
    tn_loader *l =
        rows_loader(21, (tn_loader_options){ .classes = tn_from_ints(class, TN_SHAPE(21)) });
    rows_of(l, order);
    ck_assert_int_eq(order[10], 3);
}
END_TEST

/* A random split as PyTorch's, of randperm(10) after manual_seed(0). */
START_TEST(samples_of_a_split)
{
    tn_manual_seed(0);
    tn_tensor *p = tn_randperm(10);
    static const int64_t torch[] = { 4, 1, 7, 5, 3, 9, 0, 8, 6, 2 };
    int64_t order[10];
    tn_loader *train = rows_loader(10, (tn_loader_options){ .samples = tn_narrow(p, 0, 0, 7) });
    tn_loader *valid = rows_loader(10, (tn_loader_options){ .samples = tn_narrow(p, 0, 7, 3) });
    ck_assert_int_eq(rows_of(train, order), 7);
    ck_assert_int_eq(rows_of(valid, order + 7), 3);
    ck_assert_int_eq(memcmp(order, torch, sizeof order), 0);
    tn_loader *mixed = rows_loader(
        10, (tn_loader_options){ .samples = tn_narrow(p, 0, 0, 7), .shuffle = true, .draws = 5 });
    for (int e = 0; e < 20; e++) {
        ck_assert_int_eq(rows_of(mixed, order), 5);
        for (int i = 0; i < 5; i++) ck_assert(order[i] != 8 && order[i] != 6 && order[i] != 2);
    }
}
END_TEST

/* ---- threads come and go --------------------------------------------------------------------- */

START_TEST(freed_at_any_time)
{
    for (int i = 0; i < 60; i++) {
        world *w = world_of(300);
        tn_loader *l = tn_loader_from(
            &w->d, (tn_loader_options){ .batch_size = 20, .workers = 1 + i % 5, .pad = 9 });
        uint64_t h = 0;
        int64_t rows;
        for (int k = 0; k < i % 4; k++) ck_assert_int_eq(next(l, &h, &rows, NULL), 1);
        tn_loader_free(l);
        ck_assert_int_eq(w->at_once, 0); /* nobody uses it any more */
    }
}
END_TEST

START_TEST(goes_on_after_fork)
{
    if (TEST_ASAN || !child_may_start_threads()) return;
    world *w = world_of(500);
    w->draws = 2000; /* so that threads are likely to be at it */
    tn_loader *l = loader_of(
        w, (tn_loader_options){ .batch_size = 20, .workers = 3, .shuffle = true, .pad = 9 });
    for (int k = 0; k < 5; k++) {
        tn_tensor *out[4];
        for (int i = 0; i < 3; i++) TN_SCOPE ck_assert_int_eq(tn_loader_next(l, out, 4), 1);
        pid_t child = fork();
        if (child == 0) signal(SIGALRM, SIG_DFL), alarm(30);
        const uint64_t a = epoch_of(l, NULL, NULL);
        if (child == 0) {
            tn_loader_free(tn_loader_from(&w->d, (tn_loader_options){ .workers = 2 }));
            _exit((int)(a % 251));
        }
        ck_assert_int_eq(status_of(child), (int)(a % 251));
    }
}
END_TEST

/* ---- no memory ------------------------------------------------------------------------------- */

static world *scarce_world;

static tn_status an_epoch(void *user)
{
    const tn_loader_options *o = user;
    tn_loader *l = tn_loader_from(&scarce_world->d, *o);
    uint64_t h = 7;
    int64_t rows;
    int got = l ? 1 : -1;
    while (got == 1) got = next(l, &h, &rows, NULL);
    tn_status status = got == 0 ? TN_OK : tn_error_status();
    tn_loader_free(l);
    return status;
}

START_TEST(every_request_may_be_refused)
{
    scarce_install();
    tn_tensor *weights = tn_ones(TN_SHAPE(40)), *classes = tn_zeros(TN_SHAPE(40));
    classes = tn_to_dtype(classes, TN_I64);
    scarce_world = world_of(40);
    const tn_loader_options forms[] = {
        { .batch_size = 16, .pad = 9 },
        { .batch_size = 16, .pad = 9, .weights = weights, .without_replacement = true },
        { .batch_size = 16, .pad = 9, .classes = classes, .shuffle = true, .samples = classes },
    };
    for (int f = 0; f < COUNT(forms); f++)
        ck_assert_int_gt(scarce_sweep(an_epoch, NULL, (void *)&forms[f]), 5);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("datasets");
    TCase *t = file_case(suite, "datasets");
    add_tests(t, any_number_of_workers, goes_on_in_the_middle, left_and_begun_again,
              draws_of_one_sample_differ, batches_of_one_s_own, a_failure_names_its_sample,
              sizes_are_checked, refused, streams, weights, weights_without_replacement,
              classes_have_equal_shares, samples_of_a_split, freed_at_any_time, goes_on_after_fork,
              every_request_may_be_refused);
    datasets_csv_cases(suite);
    return suite;
}
