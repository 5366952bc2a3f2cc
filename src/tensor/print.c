/*
 * print.c - a tensor as text: brackets as PyTorch prints them, byte for byte, then dtype and shape.
 *
 * One number format for the whole tensor, chosen from the elements that will be shown: whole floats
 * end in a point, others have four decimals, a range above 1000 or values outside [1e-4, 1e8] go to
 * scientific notation, and everything is padded to the widest. Above 1,000 elements each axis shows
 * its first and last three. Lines are at most 80 columns where one element leaves room for that.
 *
 * Source   the rules of torch/_tensor_str.py, which follow NumPy's array printing
 */
#include "tensor/internal.h"

/* NUMBER: "%.4f" of the largest f64 */
enum { THRESHOLD = 1000, EDGE = 3, LINE = 80, NUMBER = 400 };

/* Where text goes: to a file, or to a buffer, cut at its end. */
typedef struct sink {
    FILE *file;
    char *buffer;
    size_t size;
    int64_t length; /* of the whole text */
    bool failed;
} sink;

/* The elements shown: per axis all indices, or the first and the last three. */
typedef struct shown {
    tn_dtype dtype;
    int rank;
    bool cut[TN_MAX_RANK];
    int64_t n[TN_MAX_RANK]; /* shown per axis */
    void *values;           /* total elements, row-major, as f64 or, for integers, i64 */
    size_t total;
} shown;

typedef struct format {
    bool whole, scientific;
    int width;
} format;

static void TN_PRINTF(2, 3) emit(sink *s, const char *format, ...)
{
    char text[NUMBER];
    va_list args;
    va_start(args, format);
    size_t n = (size_t)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (s->file) {
        if (fwrite(text, 1, n, s->file) != n) s->failed = true;
    } else if ((size_t)s->length + 1 < s->size) {
        size_t room = s->size - 1 - (size_t)s->length;
        memcpy(s->buffer + s->length, text, TNI_MIN(n, room));
    }
    s->length += (int64_t)n;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Reads n elements of t, the first of them its element `at`; returns where the next one goes. */
static char *read_run(const tn_tensor *t, int64_t at, int64_t n, int64_t stride, char *out,
                      tn_status *status)
{
    const char *first = (char *)tni_data(t) + at * (int64_t)tn_dtype_size(t->dtype);
    tn_dtype wide = tn_dtype_is_float(t->dtype) ? TN_F64 : TN_I64;
    tni_array x = { (void *)(uintptr_t)first, t->dtype, 1, { n }, { stride } };
    tni_array as = { NULL, wide, 1, { n }, { 1 } };
    if (*status == TN_OK) *status = tni_read_host(t, x, as, out, 8 * (size_t)n);
    return out + 8 * n;
}

/* The same for the shown elements of axes from `axis` on. */
static char *collect(const tn_tensor *t, const shown *e, int axis, int64_t at, char *out,
                     tn_status *status)
{
    if (axis == e->rank) return read_run(t, at, 1, 1, out, status);
    if (axis == e->rank - 1 && !e->cut[axis])
        return read_run(t, at, e->n[axis], t->stride[axis], out, status);
    for (int64_t i = 0; i < e->n[axis]; i++) {
        int64_t index = e->cut[axis] && i >= EDGE ? t->shape.size[axis] - 2 * EDGE + i : i;
        out = collect(t, e, axis + 1, at + index * t->stride[axis], out, status);
    }
    return out;
}

static void plan(const tn_tensor *t, shown *e)
{
    bool summarize = tni_shape_numel(&t->shape) > THRESHOLD;
    *e = (shown){ .dtype = t->dtype, .rank = t->shape.rank, .total = 1 };
    for (int i = 0; i < e->rank; i++) {
        e->cut[i] = summarize && t->shape.size[i] > 2 * EDGE;
        e->n[i] = e->cut[i] ? 2 * EDGE : t->shape.size[i];
        e->total *= (size_t)e->n[i]; /* at most 6^8 */
    }
}

/* ---- one format for all ---------------------------------------------------------------------- */

/* Unpadded. Returns the length. */
static int number_text(const format *f, const shown *e, size_t i, char text[NUMBER])
{
    if (e->dtype == TN_BOOL)
        return snprintf(text, NUMBER, "%s", ((const int64_t *)e->values)[i] ? "True" : "False");
    if (!tn_dtype_is_float(e->dtype))
        return snprintf(text, NUMBER, "%" PRId64, ((const int64_t *)e->values)[i]);
    double x = ((const double *)e->values)[i];
    if (isnan(x)) return snprintf(text, NUMBER, "nan"); /* printf would show its sign bit */
    if (f->scientific) return snprintf(text, NUMBER, "%.4e", x);
    if (f->whole) return snprintf(text, NUMBER, isinf(x) ? "%.0f" : "%.0f.", x);
    return snprintf(text, NUMBER, "%.4f", x);
}

/* Zeros, NaN and infinities do not affect the format. */
static bool counts(const shown *e, size_t i)
{
    if (!tn_dtype_is_float(e->dtype)) return true;
    double x = ((const double *)e->values)[i];
    return isfinite(x) && x != 0.0;
}

static format choose(const shown *e)
{
    format f = { .whole = true, .width = 1 };
    double smallest = INFINITY, largest = 0.0;
    for (size_t i = 0; i < e->total; i++) {
        if (!counts(e, i) || !tn_dtype_is_float(e->dtype)) continue;
        double x = ((const double *)e->values)[i];
        smallest = fmin(smallest, fabs(x));
        largest = fmax(largest, fabs(x));
        f.whole = f.whole && x == ceil(x);
    }
    f.scientific = largest / smallest > 1000.0 || largest > 1e8 || (!f.whole && smallest < 1e-4);
    char text[NUMBER];
    for (size_t i = 0; i < e->total; i++)
        if (counts(e, i)) f.width = TNI_MAX(f.width, number_text(&f, e, i, text));
    return f;
}

/* ---- brackets -------------------------------------------------------------------------------- */

/* The elements of an axis and those within it, from element *at on. Along the last axis a line has
 * as many as it takes, the dots between the edges counting as one; others have a newline for each
 * inner axis: an empty line between matrices, two between blocks. */
static void emit_axis(sink *s, const format *f, const shown *e, int axis, size_t *at)
{
    if (axis == e->rank) {
        char text[NUMBER];
        number_text(f, e, (*at)++, text);
        emit(s, "%*s", f->width, text);
        return;
    }
    bool last = axis == e->rank - 1;
    int64_t n = e->n[axis] + e->cut[axis];
    int64_t per_line = last ? TNI_MAX((LINE - axis) / (f->width + 2), 1) : 1;
    emit(s, "[");
    for (int64_t i = 0; i < n; i++) {
        if (i % per_line) emit(s, ", ");
        if (i && i % per_line == 0) {
            emit(s, last ? ",\n" : ",");
            for (int k = axis + 1; k < e->rank; k++) emit(s, "\n");
            emit(s, "%*s", axis + 1, "");
        }
        if (e->cut[axis] && i == EDGE)
            emit(s, last ? " ..." : "...");
        else
            emit_axis(s, f, e, axis + 1, at);
    }
    emit(s, "]");
}

static void emit_summary(sink *s, const tn_tensor *t)
{
    emit(s, "  %s [", tn_dtype_name(t->dtype));
    for (int i = 0; i < t->shape.rank; i++)
        emit(s, i ? ", %" PRId64 : "%" PRId64, t->shape.size[i]);
    emit(s, "]");
    if (t->storage->device.type == TN_CUDA) emit(s, " cuda:%d", t->storage->device.index);
}

static tn_status write_tensor(sink *s, const tn_tensor *t)
{
    size_t at = 0;
    if (tni_none(t)) return emit(s, "none"), TN_OK;
    if (tni_shape_numel(&t->shape) == 0) {
        emit(s, "[]");
        emit_summary(s, t);
        return TN_OK;
    }
    shown e;
    tn_status status = TN_OK;
    plan(t, &e);
    TNI_ITEMS(char, values, e.total * 8);
    if (!(e.values = values)) return TN_E_NOMEM;
    collect(t, &e, 0, 0, values, &status);
    TNI_TRY(status);
    format f = choose(&e);
    emit_axis(s, &f, &e, 0, &at);
    emit_summary(s, t);
    return TN_OK;
}

/* ---- public ---------------------------------------------------------------------------------- */

int64_t tn_format(const tn_tensor *t, char *buffer, size_t size)
{
    TNI_C_NUMBERS;
    sink s = { .buffer = buffer, .size = buffer ? size : 0 };
    if (s.size) buffer[0] = '\0';
    if (!t) return tni_minus_one(tni_poison("tn_format", "t"));
    if (write_tensor(&s, t) != TN_OK) return -1;
    if (s.size) buffer[TNI_MIN((size_t)s.length, s.size - 1)] = '\0';
    return s.length;
}

static tn_status print(const char *function, FILE *file, const tn_tensor *t)
{
    sink s = { .file = file };
    if (!t || !file) return tni_poison(function, t ? "file" : "t");
    TNI_TRY(write_tensor(&s, t));
    emit(&s, "\n");
    if (s.failed)
        return tni_error(TN_E_IO, "%s: the file took no more text: want one that can be written",
                         function);
    return TN_OK;
}

tn_status tn_fprint(FILE *file, const tn_tensor *t)
{
    TNI_C_NUMBERS;
    return print("tn_fprint", file, t);
}

tn_status tn_print(const tn_tensor *t)
{
    TNI_C_NUMBERS;
    return print("tn_print", stdout, t);
}
