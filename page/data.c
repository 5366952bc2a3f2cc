/* data.c - see data.h. */
#include "data.h"

#include <math.h>
#include <string.h>

enum { POINTS = 400, TRAIN = 300, DIGIT = 65, MOST = 1 << 17 };
static const double TURN = 6.283185307179586;

/* ---- points ---------------------------------------------------------------------------------- */

/* A point of a class from two numbers that are uniform in [0, 1); kind: a name's first letter. */
static void place(char kind, double u, double v, int label, double at[2])
{
    const bool spiral = kind == 's';
    const double radius = spiral ? u : label ? 0.5 * u : 0.7 + 0.3 * u;
    const double angle = spiral ? 1.75 * TURN * u + (label ? TURN / 2 : 0) : TURN * v;
    at[0] = radius * sin(angle);
    at[1] = radius * cos(angle);
    if (kind != 'x') return;
    at[1] = 2 * v - 1;
    at[0] = (at[1] > 0) == (label == 1) ? u : -u;
    for (int i = 0; i < 2; i++) at[i] += at[i] > 0 ? 0.05 : -0.05;
}

static void draw_points(live_data *d, char kind, double noise)
{
    float x[POINTS][2], y[POINTS];
    tn_tensor *drawn = tn_rand(TN_SHAPE(POINTS, 2)), *off = tn_randn(TN_SHAPE(POINTS, 2));
    const float *u = drawn && off ? tn_data(drawn) : NULL, *by = u ? tn_data(off) : NULL;
    for (int i = 0; u && i < POINTS; i++) {
        double at[2];
        place(kind, u[2 * i], u[2 * i + 1], i % 2, at);
        for (int k = 0; k < 2; k++) x[i][k] = (float)(at[k] + noise * by[2 * i + k]);
        y[i] = (float)(i % 2);
    }
    if (u) d->x = tn_from_floats(x[0], TN_SHAPE(POINTS, 2));
    if (u) d->y = tn_from_floats(y, TN_SHAPE(POINTS, 1));
    d->n = POINTS, d->n_train = TRAIN, d->classes = 2;
}

const char *live_data_point(live_data *d, double x, double y, int label)
{
    if (d->classes != 2 || d->n_train != d->n) return "point: want `data points` before";
    if (label != 0 && label != 1) return "point: want class 0 or 1";
    TN_SCOPE
    {
        tn_tensor *px = tn_from_floats((float[]){ (float)x, (float)y }, TN_SHAPE(1, 2));
        tn_tensor *py = tn_from_floats((float[]){ (float)label }, TN_SHAPE(1, 1));
        if (d->n) px = tn_cat((tn_tensor *[]){ d->x, px }, 2, 0);
        if (d->n) py = tn_cat((tn_tensor *[]){ d->y, py }, 2, 0);
        if (px && py) {
            tn_drop(d->x), tn_drop(d->y);
            d->x = tn_keep(px), d->y = tn_keep(py);
            d->n_train = ++d->n;
        }
    }
    return NULL;
}

/* ---- digits, text ---------------------------------------------------------------------------- */

static const char *read_digits(live_data *d, const unsigned char *bytes, int n_bytes)
{
    if (n_bytes < 5 * DIGIT) return "data digits: want the bytes of at least 5 digits in live_room";
    tn_tensor *all = tn_from_data(bytes, TN_SHAPE(n_bytes / DIGIT, DIGIT), TN_U8);
    tn_tensor *x = all ? tn_to_dtype(tn_slice(all, 1, 0, DIGIT - 1, 1), TN_F32) : NULL;
    d->kind = LIVE_DIGITS, d->classes = 10;
    d->n = n_bytes / DIGIT, d->n_train = d->n / 5 * 4;
    d->x = x ? tn_reshape(tn_div_scalar(x, 16), TN_SHAPE(d->n, 1, 8, 8)) : NULL;
    d->y = x ? tn_to_dtype(tn_select(all, 1, DIGIT - 1), TN_I64) : NULL;
    return NULL;
}

static const char *read_text(live_data *d, const unsigned char *bytes, int n)
{
    static int64_t ids[MOST];
    int id[256] = { 0 };
    if (n < 20 * LIVE_LENGTH || n > MOST)
        return "data text: want 640 to 131072 characters in live_room";
    for (int i = 0; i < n; i++) id[bytes[i]] = 1;
    for (int c = 0; c < 256; c++)
        if (id[c]) {
            d->letter[d->classes] = (char)c;
            id[c] = d->classes++;
        }
    for (int i = 0; i < n; i++) ids[i] = id[bytes[i]];
    d->kind = LIVE_TEXT, d->n = n, d->n_train = n / 10 * 9;
    d->x = d->y = tn_from_data(ids, TN_SHAPE(n), TN_I64);
    return NULL;
}

static const char *make(live_data *d, const char *name, double noise, const unsigned char *bytes,
                        int n_bytes)
{
    if (strcmp(name, "digits") == 0) return read_digits(d, bytes, n_bytes);
    if (strcmp(name, "text") == 0) return read_text(d, bytes, n_bytes);
    d->classes = 2;
    if (strcmp(name, "points") == 0) return NULL;
    if (strcmp(name, "spirals") != 0 && strcmp(name, "circles") != 0 && strcmp(name, "xor") != 0)
        return "data: want spirals, circles, xor, points, digits or text";
    draw_points(d, *name, noise);
    return NULL;
}

const char *live_data_make(live_data *d, const char *name, double noise, const unsigned char *bytes,
                           int n_bytes)
{
    live_data next = { 0 };
    const char *wrong = NULL;
    TN_SCOPE
    {
        wrong = make(&next, name, noise, bytes, n_bytes);
        if (!wrong && next.n > 0 && (!next.x || !next.y)) wrong = "data: out of memory";
        if (!wrong && next.n > 0) tn_keep(next.x), tn_keep(next.y);
    }
    if (wrong) return wrong;
    if (d->n) tn_drop(d->x), tn_drop(d->y);
    *d = next;
    return NULL;
}

/* Runs of t's numbers, from k step on for each k in at; by hand: an op takes twice as long. */
static tn_tensor *runs(tn_tensor *t, const int64_t *at, int64_t step, tn_shape shape)
{
    tn_tensor *y = tn_empty_as(shape, tn_dtype_of(t), tn_cpu());
    char *to = y ? tn_data_mut(y) : NULL;
    const size_t item = tn_dtype_size(tn_dtype_of(t)), run = item * (size_t)tn_stride(y, 0);
    for (int64_t i = 0; to && i < shape.size[0]; i++, to += run)
        memcpy(to, (const char *)tn_data(t) + item * (size_t)(at[i] * step), run);
    return y;
}

tn_tensor *live_data_batch(const live_data *d, const int64_t *at, int n, tn_tensor **y)
{
    if (d->kind == LIVE_TEXT) { /* and the character behind them, the last target */
        tn_tensor *ids = runs(d->x, at, 1, TN_SHAPE(n, LIVE_LENGTH + 1));
        *y = tn_flatten(tn_narrow(ids, 1, 1, LIVE_LENGTH), 0, 1);
        return tn_narrow(ids, 1, 0, LIVE_LENGTH);
    }
    const bool digits = d->kind == LIVE_DIGITS;
    *y = runs(d->y, at, 1, digits ? TN_SHAPE(n) : TN_SHAPE(n, 1));
    return runs(d->x, at, digits ? 64 : 2, digits ? TN_SHAPE(n, 1, 8, 8) : TN_SHAPE(n, 2));
}
