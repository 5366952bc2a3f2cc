/* data.c - see data.h. */
#include "data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

enum { POINTS = 400, TRAIN = 300, DIGIT_BYTES = 65, DIGIT_MOST = 16 };
static const double TURN = 6.283185307179586;

void live_data_free(live_data *d)
{
    free(d->x);
    free(d->y);
    *d = (live_data){ 0 };
}

static bool make_room(live_data *d, int n, int features)
{
    d->n = n;
    d->features = features;
    d->x = features > 0 ? malloc((size_t)n * (size_t)features * sizeof *d->x) : NULL;
    d->y = malloc((size_t)n * sizeof *d->y);
    return d->y && (d->x || features == 0);
}

/* ---- points ---------------------------------------------------------------------------------- */

/* A point of a class from two numbers that are uniform in [0, 1). */
typedef void (*shape)(double u, double v, int label, double *x, double *y);

static void spiral(double u, double v, int label, double *x, double *y)
{
    double angle = 1.75 * TURN * u + (label ? TURN / 2 : 0);
    (void)v;
    *x = u * sin(angle);
    *y = u * cos(angle);
}

static void circle(double u, double v, int label, double *x, double *y)
{
    double radius = label ? 0.5 * u : 0.7 + 0.3 * u;
    *x = radius * sin(TURN * v);
    *y = radius * cos(TURN * v);
}

static void crossed(double u, double v, int label, double *x, double *y)
{
    *y = 2 * v - 1;
    *x = (*y > 0) == (label == 1) ? u : -u;
    *x += *x > 0 ? 0.05 : -0.05;
    *y += *y > 0 ? 0.05 : -0.05;
}

static bool draw_points(live_data *d, shape at, double noise)
{
    if (!make_room(d, POINTS, 2)) return false;
    tn_tensor *drawn = tn_rand(TN_SHAPE(POINTS, 2)), *off = tn_randn(TN_SHAPE(POINTS, 2));
    const float *u = tn_data(drawn), *by = tn_data(off);
    if (!u || !by) return false;
    for (int i = 0; i < POINTS; i++) {
        double x, y;
        d->y[i] = i % 2;
        at(u[2 * i], u[2 * i + 1], i % 2, &x, &y);
        d->x[2 * i] = (float)(x + noise * by[2 * i]);
        d->x[2 * i + 1] = (float)(y + noise * by[2 * i + 1]);
    }
    d->n_train = TRAIN;
    d->classes = 2;
    return true;
}

const char *live_data_point(live_data *d, double x, double y, int label)
{
    if (d->kind != LIVE_POINTS || d->n_train != d->n) return "point: want `data points` before";
    if (label != 0 && label != 1) return "point: want class 0 or 1";
    float *more = realloc(d->x, (size_t)(d->n + 1) * 2 * sizeof *more);
    if (more) d->x = more;
    int64_t *classes = more ? realloc(d->y, (size_t)(d->n + 1) * sizeof *classes) : NULL;
    if (!classes) return "point: out of memory";
    d->y = classes;
    d->x[2 * d->n] = (float)x;
    d->x[2 * d->n + 1] = (float)y;
    d->y[d->n] = label;
    d->n_train = ++d->n;
    return NULL;
}

/* ---- digits, text ---------------------------------------------------------------------------- */

static bool read_digits(live_data *d, const unsigned char *bytes, int n)
{
    if (!make_room(d, n, DIGIT_BYTES - 1)) return false;
    for (int i = 0; i < n; i++, bytes += DIGIT_BYTES) {
        for (int k = 0; k < DIGIT_BYTES - 1; k++)
            d->x[i * (DIGIT_BYTES - 1) + k] = (float)bytes[k] / DIGIT_MOST;
        d->y[i] = bytes[DIGIT_BYTES - 1];
    }
    d->n_train = n / 5 * 4;
    d->classes = 10;
    return true;
}

static bool read_text(live_data *d, const unsigned char *bytes, int n)
{
    int id[256] = { 0 };
    if (!make_room(d, n, 0)) return false;
    for (int i = 0; i < n; i++) id[bytes[i]] = 1;
    for (int c = 0; c < 256; c++)
        if (id[c]) {
            d->letter[d->classes] = (char)c;
            id[c] = d->classes++;
        }
    for (int i = 0; i < n; i++) d->y[i] = id[bytes[i]];
    d->features = 1;
    d->n_train = n / 10 * 9;
    return true;
}

static const char *make(live_data *d, const char *name, double noise, const unsigned char *bytes,
                        int n_bytes)
{
    bool made = true;
    if (strcmp(name, "spirals") == 0)
        made = draw_points(d, spiral, noise);
    else if (strcmp(name, "circles") == 0)
        made = draw_points(d, circle, noise);
    else if (strcmp(name, "xor") == 0)
        made = draw_points(d, crossed, noise);
    else if (strcmp(name, "points") == 0)
        d->features = d->classes = 2;
    else if (strcmp(name, "digits") == 0 && n_bytes < 5 * DIGIT_BYTES)
        return "data digits: want the bytes of at least 5 digits in live_room";
    else if (strcmp(name, "digits") == 0)
        d->kind = LIVE_DIGITS, made = read_digits(d, bytes, n_bytes / DIGIT_BYTES);
    else if (strcmp(name, "text") == 0 && n_bytes < 20 * LIVE_TEXT_LENGTH)
        return "data text: want at least 640 characters in live_room";
    else if (strcmp(name, "text") == 0)
        d->kind = LIVE_TEXT, made = read_text(d, bytes, n_bytes);
    else
        return "data: want spirals, circles, xor, points, digits or text";
    return made ? NULL : "data: out of memory";
}

const char *live_data_make(live_data *d, const char *name, double noise, const unsigned char *bytes,
                           int n_bytes)
{
    live_data next = { 0 };
    const char *wrong = make(&next, name, noise, bytes, n_bytes);
    live_data_free(wrong ? &next : d);
    if (!wrong) *d = next;
    return wrong;
}
