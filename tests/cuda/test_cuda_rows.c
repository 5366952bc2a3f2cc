/*
 * test_cuda_rows.c - the CUDA kernels of softmax, losses and norms against the CPU's, slot by
 * slot, at sizes that divide by nothing; every kernel again, which must leave the same bits.
 *
 * Seen to fail: in batch_norm.cu the eight values' mean left out, the biased variance kept; in
 * batch_norm.h the wrap one too far; in layer_norm.cu the last piece of rows, or the mean of dy w,
 * left out, zeros beyond a row's end counted, an array's borders not asked for, a warp's sums or
 * the old values of dx left out; in online.h the sum not scaled when the maximum grows, -inf
 * subtracted from -inf; in cross_entropy.cu the target's own term left out, an ignored row made 0
 * x, packs begun at a row's first element, or counted twice, or taken where dx has other borders;
 * rows' gaps left out; weights read as x's dtype.
 */
#include "twins.h"

/* ---- softmax --------------------------------------------------------------------------------- */

static void softmax_case(int64_t n, int64_t c, bool log)
{
    twin *x = make(n, c), *y = make(n, c), *dy = make(n, c), *dx = make(n, c);
    BOTH(y, softmax, &(tni_softmax){ .y = *A(y), .x = *A(x), .log = log });
    check_near(y, log ? 1 : 0, "softmax");
    upload(y);
    BOTH(dx, softmax_grad,
         &(tni_softmax_grad){ .dx = *A(dx), .dy = *A(dy), .y = *A(y), .log = log });
    check_near(dx, log ? 1 : 1 / ((double)c + 1), "softmax_grad");
    free_twins();
}

START_TEST(softmax_rows)
{
    static const int64_t c[] = { 0, 1, 7, 33, 257, 600, 1025, 5003 };
    choose(_i);
    for (int log = 0; log < 2; log++) {
        for (int k = 0; k < 8; k++) softmax_case(7, c[k], log);
        for (int k = 0; k < SIZES; k++) softmax_case(sizes[k], 33, log);
        softmax_case(130, 1100, log); /* more rows than blocks */
        softmax_case(1030, 3, log);
    }
}
END_TEST

START_TEST(softmax_extremes) /* NaN, infinities, rows of -inf, maxima that come late */
{
    static const int64_t c[] = { 7, 33, 1025, 9000 };
    choose(_i);
    for (int k = 0; k < 8; k++) {
        int64_t m = c[k / 2];
        twin *x = make(7, m), *y = make(7, m);
        void *data = x->at[CPU].data;
        for (int64_t j = 0; j < m; j++) {
            set(data, dtype, j, -INFINITY);
            set(data, dtype, m + j, j == m - 1 ? 1 : -INFINITY);
            set(data, dtype, 5 * m + j, (double)j);      /* every element a new maximum */
            set(data, dtype, 6 * m + j, -1e4 + (j % 3)); /* exp alone would be 0 */
        }
        set(data, dtype, 2 * m + m / 2, NAN);
        set(data, dtype, 3 * m + m / 2, INFINITY);
        set(data, dtype, 4 * m, -INFINITY);
        upload(x);
        BOTH(y, softmax, &(tni_softmax){ .y = *A(y), .x = *A(x), .log = k % 2 });
        check_near(y, k % 2 ? 1 : 0, "softmax");
        ck_assert(isnan(value(y->at[CPU].data, dtype, 0)));
        free_twins();
    }
}
END_TEST

/* ---- cross entropy --------------------------------------------------------------------------- */

static tn_dtype logits; /* dtype, or bf16 or f16 where that is f32 */

/* Before x are `lead` elements, so that it and dx have other borders; between rows `gap`: with one
 * dx overwrites x. */
typedef struct cross_entropy_options {
    bool weighted;
    double smoothing;
    int64_t lead, gap;
} cross_entropy_options;

static void cross_entropy_case(int64_t n, int64_t c, int64_t d, cross_entropy_options o)
{
    twin *x = make_as(logits, o.lead, SIZES_OF(n, c + o.gap, d));
    twin *dx = o.gap ? x : make_as(logits, 0, SIZES_OF(n, c, d));
    tn_dtype of_w = c % 2 ? logits : dtype;
    twin *w = o.weighted ? make_as(of_w, 0, SIZES_OF(c)) : &none;
    twin *target = make_ids(c, SIZES_OF(n, d));
    twin *loss = make(n, d), *row_weight = make(n, d), *top = make(n, d), *sum = make(n, d);
    twin *drow = make(n, d);
    for (int64_t j = 0; o.weighted && j < c; j++)
        set(w->at[CPU].data, of_w, j, fabs(uniform()) + 0.1);
    for (int64_t r = 0; r < n * d; r += 3) ((int64_t *)target->at[CPU].data)[r] = r % 2 ? -100 : -7;
    if (n * d > 1) /* an ignored row of infinities gives zeros */
        for (int64_t j = 0; j < c; j++) set(x->at[CPU].data, logits, j * d, -INFINITY);
    if (o.weighted) upload(w);
    upload(x);
    upload(target);
    for (int side = 0; side < SIDES; side++) x->at[side].size[1] = c;
    BOTH(loss, cross_entropy,
         &(tni_cross_entropy){ *A(loss), *A(row_weight), *A(top), *A(sum), *A(x), *A(target), *A(w),
                               o.smoothing, -7, 0 });
    check_near(loss, 1, "row_loss");
    check_near(row_weight, 0, "row_weight");
    check_near(top, 0, "top");
    check_near(sum, 0, "sum");
    upload(top);
    upload(sum);
    for (int side = 0; side < SIDES; side++) { /* the mean's gradient: one number for all rows */
        drow->at[side].stride[0] = o.smoothing > 0 ? 0 : d;
        drow->at[side].stride[1] = o.smoothing > 0 ? 0 : 1;
    }
    BOTH(dx, cross_entropy_grad,
         &(tni_cross_entropy_grad){ *A(dx), *A(drow), *A(top), *A(sum), *A(x), *A(target), *A(w),
                                    o.smoothing, -7 });
    for (int side = 0; side < SIDES; side++) dx->at[side].size[1] = c + o.gap; /* left as it was */
    check_near(dx, logits == dtype ? 1 : 1 / (double)c, "cross_entropy_grad");
    free_twins();
}

START_TEST(cross_entropy_rows)
{
    static const int64_t c[] = { 1, 7, 33, 257, 1025, 4500 };
    choose(_i == 1);
    logits = _i < 2 ? dtype : _i == 2 ? TN_BF16 : TN_F16;
    for (int option = 0; option < 4; option++) {
        cross_entropy_options o = { option % 2, option / 2 * 0.1, 0, 0 };
        for (int k = 0; k < 6; k++)
            for (o.gap = 0; o.gap < 6; o.gap += 5)
                for (o.lead = 0; o.lead < 4; o.lead += 3) cross_entropy_case(7, c[k], 1, o);
        o.lead = 1, o.gap = 5;
        cross_entropy_case(2, 17001, 1, o);
        o.gap = 0;
        for (int k = 0; k < SIZES; k++) {
            cross_entropy_case(sizes[k], 7, 1, o);
            cross_entropy_case(3, 7, sizes[k], o);
        }
        cross_entropy_case(3, 33, 2, o);
    }
}
END_TEST

/* ---- negative log likelihood ----------------------------------------------------------------- */

static void nll_case(int64_t n, int64_t c, int64_t d, bool weighted)
{
    twin *x = make(n, c, d), *dx = make(n, c, d), *w = weighted ? make(c) : &none;
    twin *target = make_ids(c, SIZES_OF(n, d)), *loss = make(n, d), *row_weight = make(n, d);
    for (int64_t r = 0; r < n * d; r += 3) ((int64_t *)target->at[CPU].data)[r] = r % 2 ? -100 : -7;
    upload(target);
    BOTH(loss, nll, &(tni_nll){ *A(loss), *A(row_weight), *A(x), *A(target), *A(w), -7 });
    check_near(loss, 0, "nll");
    check_near(row_weight, 0, "row_weight");
    upload(loss);
    BOTH(dx, nll_grad, &(tni_nll_grad){ *A(dx), *A(loss), *A(target), *A(w), -7 });
    check_near(dx, 0, "nll_grad");
    free_twins();
}

START_TEST(nll_rows)
{
    choose(_i);
    for (int weighted = 0; weighted < 2; weighted++) {
        for (int k = 0; k < SIZES; k++) {
            nll_case(sizes[k], 7, 1, weighted);
            nll_case(3, 7, sizes[k], weighted);
        }
        nll_case(5, 4500, 2, weighted);
    }
}
END_TEST

/* ---- layer norm ------------------------------------------------------------------------------ */

/* Of the twins y, mean, rstd, x, w and b, on the side that runs. */
#define LAYER_NORM                                                                                 \
    &(tni_layer_norm)                                                                              \
    {                                                                                              \
        .y = *A(y), .mean = *A(mean), .rstd = *A(rstd), .x = *A(x), .weight = *A(w),               \
        .bias = *A(b), .eps = 1e-5                                                                 \
    }

/* Of the twins x, dy, mean, rstd and w, on the side that runs: the gradients that are wanted. */
#define LAYER_NORM_GRAD(of_x, of_weight, of_bias, adds)                                            \
    &(tni_layer_norm_grad)                                                                         \
    {                                                                                              \
        .dx = *A(of_x), .dweight = *A(of_weight), .dbias = *A(of_bias), .dy = *A(dy), .x = *A(x),  \
        .mean = *A(mean), .rstd = *A(rstd), .weight = *A(w), .add = (adds)                         \
    }

/* Bits of odd: which of x, y, dy, dx, w and b begin beside a sixteen-byte boundary. */
static void layer_norm_case_at(int odd, int64_t n, int64_t f, bool affine)
{
    twin *x = make_after(odd & 1, n, f), *y = make_after(odd >> 1 & 1, n, f);
    twin *dy = make_after(odd >> 2 & 1, n, f), *dx = make_after(odd >> 3 & 1, n, f);
    twin *mean = make(n), *rstd = make(n), *dw = make(f), *db = make(f);
    twin *w = affine ? make_after(odd >> 4 & 1, f) : &none;
    twin *b = affine ? make_after(odd >> 5 & 1, f) : &none;
    BOTH(y, layer_norm, LAYER_NORM);
    check_near(y, 1, "layer_norm");
    check_near(mean, 1, "mean");
    check_near(rstd, 0, "rstd");
    upload(mean);
    upload(rstd);
    BOTH(dx, layer_norm_grad, LAYER_NORM_GRAD(dx, dw, db, false));
    BOTH(dw, layer_norm_grad, LAYER_NORM_GRAD(dx, dw, db, false));
    /* two equal numbers of f = 2 are as sensitive as rstd is large */
    check_near(dx, f > 2 ? 10 : 1000, "layer_norm_grad");
    check_near(dw, 10 + (double)n / 100, "dweight");
    check_near(db, 10 + (double)n / 100, "dbias");
    int side = GPU;
    ck_assert_int_eq(kernels[GPU]->upload(db->block[GPU], dw->block[CPU], db->nbytes), TN_OK);
    ck_assert_int_eq(kernels[GPU]->layer_norm_grad(LAYER_NORM_GRAD(&none, &none, db, false)),
                     TN_OK);
    check_near(db, 10 + (double)n / 100, "dbias alone");
    free_twins();
}

static void layer_norm_case(int64_t n, int64_t f, bool affine)
{
    layer_norm_case_at(0, n, f, affine);
}

START_TEST(layer_norm_rows)
{
    static const int64_t f[] = { 1, 7, 33, 257, 600, 1025, 4099 };
    choose(_i);
    for (int affine = 0; affine < 2; affine++) {
        for (int k = 0; k < 7; k++) layer_norm_case(7, f[k], affine);
        for (int k = 0; k < SIZES; k++) layer_norm_case(sizes[k], 33, affine);
        layer_norm_case(7, 0, affine);
    }
    layer_norm_case(131, 1100, true); /* more rows than blocks */
    layer_norm_case(1301, 5, true);   /* the rows in pieces */
}
END_TEST

START_TEST(layer_norm_wide) /* sixteen bytes at a time, or not */
{
    static const int64_t f[] = { 4, 36, 38, 132, 516, 768, 770, 772, 1022, 1024 };
    choose(_i);
    for (int k = 0; k < 10; k++) {
        layer_norm_case(7, f[k], true);
        layer_norm_case(7, f[k], false);
    }
    for (int array = 0; array < 6; array++) layer_norm_case_at(1 << array, 7, 772, true);
    layer_norm_case(1301, 36, true); /* more rows than warps */
}
END_TEST

/* Of bf16 and f16, with an x and a dx of their own dtype or of f32; the gradient
 * put there, or added. */
static void half_norm_case(tn_dtype half, bool wide, int64_t n, int64_t f, bool add)
{
    const tn_dtype in = wide ? TN_F32 : half;
    twin *x = make_as(in, 0, SIZES_OF(n, f)), *y = make_as(in, 0, SIZES_OF(n, f));
    twin *dy = make_as(half, 0, SIZES_OF(n, f)), *dx = make_as(in, 0, SIZES_OF(n, f));
    twin *w = make(f), *b = make(f), *dw = make(f), *db = make(f);
    twin *mean = make(n), *rstd = make(n);
    BOTH(y, layer_norm, LAYER_NORM);
    check_near(y, 1, "layer_norm");
    check_near(mean, 1, "mean");
    upload(mean), upload(rstd);
    BOTH(dx, layer_norm_grad, LAYER_NORM_GRAD(dx, dw, db, add));
    check_near(dx, f > 2 ? 10 : 1000, "dx");
    check_near(dw, 10 + (double)n / 100, "dweight");
    check_near(db, 10 + (double)n / 100, "dbias");
    free_twins();
}

START_TEST(layer_norm_halves)
{
    static const int64_t f[] = { 1, 33, 36, 768, 770, 1024, 1025 };
    choose(0);
    for (int k = 0; k < 7; k++)
        for (int way = 0; way < 3; way++)
            half_norm_case(_i ? TN_F16 : TN_BF16, way > 0, 7, f[k], way == 2);
    half_norm_case(_i ? TN_F16 : TN_BF16, true, 1301, 36, true); /* pieces, and warps with rows */
    half_norm_case(_i ? TN_F16 : TN_BF16, true, 2100, 5, false);
}
END_TEST

/* Squares beyond f32, and, without eps, below it: as the row times 2^-70, or 2^60 has them. */
static void scaled(const twin *x, double by)
{
    for (int64_t i = 0; i < count(x); i++)
        set(x->at[CPU].data, TN_F32, i, value(x->at[CPU].data, TN_F32, i) * by);
    upload(x);
}

/* The CPU's results are of a normalisation: their largest is above 1 and below most. */
static void check_normalised(const twin *y, double most)
{
    double largest = 0;
    for (int64_t i = 0; i < count(y); i++)
        largest = fmax(largest, fabs(value(y->at[CPU].data, dtype, i)));
    ck_assert(largest > 1 && largest < most);
}

START_TEST(layer_norm_out_of_range)
{
    static const int64_t f[] = { 7, 33, 257, 768, 1025, 4099 };
    choose(0);
    for (int k = 0; k < 12; k++) {
        twin *x = make(5, f[k / 2]), *y = make(5, f[k / 2]), *mean = make(5), *rstd = make(5);
        scaled(x, k % 2 ? 0x1p-60 : 0x1p70);
        for (int side = 0; side < SIDES; side++)
            ck_assert_int_eq(kernels[side]->layer_norm(&(tni_layer_norm){
                                 .y = *A(y), .mean = *A(mean), .rstd = *A(rstd), .x = *A(x) }),
                             TN_OK);
        check_normalised(y, 3);
        check_near(y, 1, "layer_norm");
        check_near(rstd, 0, "rstd");
        free_twins();
    }
}
END_TEST

/* RMSNorm of rows of channels (groups 0), and group norm of [n, channels, plane]. */
static void other_norm_case(int64_t n, int64_t groups, int64_t channels, int64_t plane, bool affine)
{
    const int64_t f = channels * plane, rows = groups ? n * groups : n;
    const tni_norm_rows how = { groups, groups ? channels : 0, groups == 0 };
    twin *x = make(n, f), *y = make(n, f), *dy = make(n, f), *dx = make(n, f);
    twin *mean = groups ? make(rows) : &none, *rstd = make(rows), *dw = make(channels);
    twin *db = groups ? make(channels) : &none;
    twin *w = affine ? make(channels) : &none, *b = affine && groups ? make(channels) : &none;
    BOTH(y, layer_norm,
         &(tni_layer_norm){ .y = *A(y),
                            .mean = *A(mean),
                            .rstd = *A(rstd),
                            .x = *A(x),
                            .weight = *A(w),
                            .bias = *A(b),
                            .eps = 1e-5,
                            .rows = how });
    check_near(y, 1, "norm");
    check_near(rstd, 0, "rstd");
    if (groups) check_near(mean, 1, "mean"), upload(mean);
    upload(rstd);
    for (int side = 0; side < SIDES; side++)
        ck_assert_int_eq(kernels[side]->layer_norm_grad(&(tni_layer_norm_grad){ .dx = *A(dx),
                                                                                .dweight = *A(dw),
                                                                                .dbias = *A(db),
                                                                                .dy = *A(dy),
                                                                                .x = *A(x),
                                                                                .mean = *A(mean),
                                                                                .rstd = *A(rstd),
                                                                                .weight = *A(w),
                                                                                .rows = how }),
                         TN_OK);
    check_near(dx, f > 2 ? 10 : 1000, "norm_grad");
    check_near(dw, 10 + (double)(n * plane) / 100, "dweight");
    if (groups) check_near(db, 10 + (double)(n * plane) / 100, "dbias");
    free_twins();
}

START_TEST(other_norms)
{
    static const int64_t f[] = { 1, 7, 36, 257, 768, 1025 };
    choose(_i);
    for (int affine = 0; affine < 2; affine++) {
        for (int k = 0; k < 6; k++) other_norm_case(7, 0, f[k], 1, affine);
        other_norm_case(1301, 0, 36, 1, affine);
        for (int k = 0; k < 6; k++) other_norm_case(3, 2, 6, f[k] + 1, affine);
        other_norm_case(5, 4, 4, 33, affine);
        other_norm_case(70, 1, 3, 1, affine);
        other_norm_case(0, 2, 4, 3, affine);
    }
}
END_TEST

/* ---- batch norm ------------------------------------------------------------------------------ */

/* Of the twins x and y, or x and dy, mean and rstd, on the side that runs. */
#define BATCH_NORM(weight, bias, mean_to, var_to, training, momentum)                              \
    &(tni_batch_norm)                                                                              \
    {                                                                                              \
        *A(y), *A(mean), *A(rstd), *A(x), *A(weight), *A(bias), *A(mean_to), *A(var_to), momentum, \
            1e-5, training                                                                         \
    }
#define BATCH_NORM_GRAD(of_x, of_weight, of_bias, weight)                                          \
    &(tni_batch_norm_grad)                                                                         \
    {                                                                                              \
        *A(of_x), *A(of_weight), *A(of_bias), *A(dy), *A(x), *A(mean), *A(rstd), *A(weight),       \
            training                                                                               \
    }

static void batch_norm_case(int64_t n, int64_t c, int64_t s, bool training, double offset, int lead)
{
    twin *x = make_after(lead, n, c, s), *y = make_after(lead, n, c, s);
    twin *dy = make_after(lead, n, c, s), *dx = make_after(lead, n, c, s);
    twin *mean = make(c), *rstd = make(c), *w = make(c), *b = make(c), *rm = make(c), *rv = make(c),
         *dw = make(c), *db = make(c);
    double sum = 10 + (double)(n * s) / 100;
    for (int64_t i = 0; i < count(x); i++) set(x->at[CPU].data, dtype, i, uniform() + offset);
    for (int64_t i = 0; i < c; i++) set(rv->at[CPU].data, dtype, i, fabs(uniform()) + 0.1);
    upload(x);
    upload(rv);
    for (int side = 0; side < SIDES; side++)
        ck_assert_int_eq(kernels[side]->batch_norm(BATCH_NORM(w, b, rm, rv, training, 0.3)), TN_OK);
    check_near(y, 1 + offset, "batch_norm");
    check_near(mean, 1, "mean");
    check_near(rstd, 0, "rstd");
    check_near(rm, 1, "running_mean");
    check_near(rv, 0, "running_var");
    upload(mean);
    upload(rstd);
    BOTH(y, batch_norm,
         BATCH_NORM(&none, &none, training ? &none : rm, training ? &none : rv, training, 0.3));
    check_near(y, 1 + offset, "batch_norm without weights");
    upload(mean);
    upload(rstd);
    BOTH(dx, batch_norm_grad, BATCH_NORM_GRAD(dx, dw, db, w));
    check_near(dx, 10, "batch_norm_grad");
    check_near(dw, sum, "dweight");
    check_near(db, sum, "dbias");
    BOTH(dx, batch_norm_grad, BATCH_NORM_GRAD(dx, &none, &none, &none));
    check_near(dx, 10, "dx alone");
    BOTH(dw, batch_norm_grad, BATCH_NORM_GRAD(&none, dw, &none, w));
    check_near(dw, sum, "dweight alone");
    free_twins();
}

START_TEST(batch_norm_planes_and_columns)
{
    static const int64_t s[] = { 1, 2, 3, 7, 8, 33, 36, 257 };
    choose(_i / 2);
    bool training = _i % 2;
    for (int k = 0; k < 8; k++) {
        batch_norm_case(7, 5, s[k], training, 0, 0);
        batch_norm_case(9, 67, s[k], training, 0, 0);
        batch_norm_case(257, 1, s[k], training, 0, 0);
    }
    batch_norm_case(600, 3, 36, training, 0, 0); /* a channel's blocks: several */
    batch_norm_case(600, 3, 36, training, 0, 1); /* and no sixteen-byte boundaries */
    batch_norm_case(600, 3, 33, training, 0, 0);
    batch_norm_case(2000, 33, 2, training, 0, 0); /* columns, split */
    batch_norm_case(1025, 40, 1, training, 0, 0);
    batch_norm_case(1, 3, 40001, training, 0, 0); /* one sample */
    batch_norm_case(0, 3, 4, training, 0, 0);
    batch_norm_case(4, 3, 0, training, 0, 0);
    batch_norm_case(4, 0, 3, training, 0, 0);
}
END_TEST

START_TEST(batch_norm_out_of_range) /* planes and columns, whole channels and split ones */
{
    static const int64_t size[][3] = {
        { 7, 20, 40 }, { 600, 3, 36 }, { 9, 20, 2 }, { 2000, 33, 2 }
    };
    choose(0);
    for (int k = 0; k < 4; k++) {
        const bool training = true;
        twin *x = make(size[k][0], size[k][1], size[k][2]);
        twin *y = make(size[k][0], size[k][1], size[k][2]);
        twin *mean = make(size[k][1]), *rstd = make(size[k][1]);
        scaled(x, 0x1p70);
        for (int side = 0; side < SIDES; side++)
            ck_assert_int_eq(
                kernels[side]->batch_norm(BATCH_NORM(&none, &none, &none, &none, training, 0.1)),
                TN_OK);
        check_normalised(y, 4);
        check_near(y, 1, "batch_norm");
        check_near(rstd, 0, "rstd");
        free_twins();
    }
}
END_TEST

START_TEST(batch_norm_offset) /* the mean far above the deviation, and a first value far off */
{
    choose(_i);
    twin *x = make(64, 2, 100), *y = make(64, 2, 100), *mean = make(2), *rstd = make(2),
         *rm = make(2), *rv = make(2);
    for (int64_t i = 0; i < count(x); i++) set(x->at[CPU].data, dtype, i, uniform() + 1000);
    set(x->at[CPU].data, dtype, 0, 0);
    upload(x);
    double mu[2] = { 0 }, var[2] = { 0 };
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < count(x); i++) {
            double v = value(x->at[CPU].data, dtype, i);
            int ch = (int)(i / 100 % 2);
            if (pass)
                var[ch] += (v - mu[ch]) * (v - mu[ch]) / 6399;
            else
                mu[ch] += v / 6400;
        }
    }
    int side = GPU;
    ck_assert_int_eq(kernels[GPU]->batch_norm(BATCH_NORM(&none, &none, rm, rv, true, 1)), TN_OK);
    char *means = held(rm), *vars = held(rv);
    for (int ch = 0; ch < 2; ch++) {
        double is_f64 = dtype == TN_F64;
        ck_assert_double_le(fabs(value(vars, dtype, ch) / var[ch] - 1), is_f64 ? 4e-12 : 1e-6);
        ck_assert_double_le(fabs(value(means, dtype, ch) / mu[ch] - 1), is_f64 ? 1e-14 : 1e-7);
    }
    free(means);
    free(vars);
    free_twins();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_rows");
    TCase *t = test_case(suite, "softmax");
    tcase_add_loop_test(t, softmax_rows, 0, 2);
    tcase_add_loop_test(t, softmax_extremes, 0, 2);
    t = test_case(suite, "cross entropy");
    tcase_add_loop_test(t, cross_entropy_rows, 0, 4);
    tcase_add_loop_test(t, nll_rows, 0, 2);
    t = test_case(suite, "layer norm");
    tcase_add_loop_test(t, layer_norm_rows, 0, 2);
    tcase_add_loop_test(t, layer_norm_wide, 0, 2);
    tcase_add_loop_test(t, layer_norm_halves, 0, 2);
    tcase_add_test(t, layer_norm_out_of_range);
    tcase_add_loop_test(t, other_norms, 0, 2);
    t = test_case(suite, "batch norm");
    tcase_add_loop_test(t, batch_norm_planes_and_columns, 0, 4);
    tcase_add_loop_test(t, batch_norm_offset, 0, 2);
    tcase_add_test(t, batch_norm_out_of_range);
    return suite;
}
