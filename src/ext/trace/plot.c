/*
 * plot.c - curves as an SVG: frame, ticks at round numbers, grid, legend, title.
 *
 * The text is built in memory and written as one atomic file. A curve with more points than the
 * plot has columns is drawn by the lowest and highest value of each column, so a long run makes no
 * larger file and no spike is lost. Points that are not finite break the line.
 */
#include <math.h>
#include <stdio.h>

#include "ext/trace/words.h"
#include "io/io.h"

enum { WIDTH = 860, HEIGHT = 520, LEFT = 78, RIGHT = 24, TOP = 52, BOTTOM = 58, MANY = 2000 };

/* Okabe and Ito, Color universal design (2008): distinguishable for colour-blind readers. */
static const char *const colours[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                       "#e69f00", "#56b4e9", "#000000", "#8a7500" };
#define N_COLOURS (int)(sizeof colours / sizeof *colours)

/* One axis: data low..high (its outer ticks) onto pixels from..to. */
typedef struct axis {
    double low, high, step;
    double from, to;
} axis;

static double place(const axis *a, double v)
{
    return a->from + (v - a->low) / (a->high - a->low) * (a->to - a->from);
}

/* The round number 1, 2 or 5 times a power of ten that cuts span into about n steps. */
static double round_step(double span, int n)
{
    double raw = span / n;
    double power = pow(10, floor(log10(raw)));
    double m = raw / power;
    return power * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

/* Sets range and step of an axis whose data spans low..high (low > high: there is none). */
static void scale(axis *a, double low, double high, int n, bool whole)
{
    if (!(low <= high)) {
        low = 0;
        high = 1;
    }
    if (high - low <= 1e-12 * fmax(fabs(low), fabs(high)) || high == low) {
        double half = low == 0 ? 1 : fabs(low) / 2;
        low -= half;
        high += half;
    }
    /* scaled down where the difference would overflow */
    if (!isfinite(high - low)) {
        low /= 4;
        high /= 4;
    }
    a->step = round_step(high - low, n);
    a->low = whole ? floor(low / a->step + 1e-9) * a->step : low;
    a->high = whole ? ceil(high / a->step - 1e-9) * a->step : high;
}

static void range_of(const tn_curve *curves, int n, axis *x, axis *y)
{
    double low[2] = { INFINITY, INFINITY };
    double high[2] = { -INFINITY, -INFINITY };
    bool counted = true; /* x are whole numbers (steps, epochs), so are the ticks */
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < curves[i].n; k++) {
            double p[2] = { curves[i].x[k], curves[i].y[k] };
            if (!isfinite(p[0]) || !isfinite(p[1])) continue;
            for (int d = 0; d < 2; d++) {
                low[d] = fmin(low[d], p[d]);
                high[d] = fmax(high[d], p[d]);
            }
            counted = counted && p[0] == rint(p[0]);
        }
    scale(x, low[0], high[0], 8, false);
    if (counted && x->step < 1) x->step = 1;
    scale(y, low[1], high[1], 6, true);
}

static void add_byte(void *b, unsigned char c)
{
    const char *markup = c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : "&quot;";
    if (c < 0x20 || c == 0x7f) c = ' ';
    if (strchr("<>&\"", c))
        tni_bytes_add(b, markup, strlen(markup));
    else
        tni_bytes_add(b, &c, 1);
}

/* Text from a caller: markup escaped, control characters and broken UTF-8 replaced. */
static void add_text(tni_bytes *b, const char *text)
{
    if (text) tni_escape(b, text, add_byte);
}

/* A tick's number, as short as the step allows. */
static void add_number(tni_bytes *b, double v, double step)
{
    if (fabs(v) < step * 1e-9) v = 0;
    int digits = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    if (fabs(v) >= 1e6 || (step < 1e-5 && step > 0))
        tni_bytes_printf(b, "%.4g</text>\n", v);
    else
        tni_bytes_printf(b, "%.*f</text>\n", digits, v);
}

static double first_tick(const axis *a)
{
    return ceil(a->low / a->step - 1e-9);
}

static bool is_tick(const axis *a, double k)
{
    return k * a->step <= a->high + a->step * 1e-9;
}

static void add_frame(tni_bytes *b, const char *title, const char *x_label, const char *y_label)
{
    tni_bytes_printf(b,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                     "height=\"%d\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" "
                     "fill=\"#333\">\n<title>",
                     WIDTH, HEIGHT, WIDTH, HEIGHT);
    add_text(b, title);
    double middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
           centre = TOP + (HEIGHT - TOP - BOTTOM) / 2.0;
    tni_bytes_printf(b,
                     "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n"
                     "<text x=\"%.1f\" y=\"30\" text-anchor=\"middle\" font-size=\"17\" "
                     "font-weight=\"bold\" fill=\"#111\">",
                     WIDTH, HEIGHT, middle);
    add_text(b, title);
    tni_bytes_printf(b, "</text>\n<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", middle,
                     HEIGHT - 14);
    add_text(b, x_label);
    tni_bytes_printf(b,
                     "</text>\n<text x=\"20\" y=\"%.1f\" text-anchor=\"middle\" "
                     "transform=\"rotate(-90 20 %.1f)\">",
                     centre, centre);
    add_text(b, y_label);
    tni_bytes_printf(b, "</text>\n");
}

static void add_axes(tni_bytes *b, const axis *x, const axis *y)
{
    for (double k = first_tick(x); is_tick(x, k); k++) {
        double at = place(x, k * x->step);
        tni_bytes_printf(b,
                         "<path d=\"M%.2f %dV%d\" stroke=\"#e4e4e4\"/>"
                         "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">",
                         at, TOP, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 20);
        add_number(b, k * x->step, x->step);
    }
    for (double k = first_tick(y); is_tick(y, k); k++) {
        double at = place(y, k * y->step);
        tni_bytes_printf(b,
                         "<path d=\"M%d %.2fH%d\" stroke=\"#e4e4e4\"/>"
                         "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">",
                         LEFT, at, WIDTH - RIGHT, LEFT - 8, at + 4.5);
        add_number(b, k * y->step, y->step);
    }
    tni_bytes_printf(b,
                     "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" "
                     "stroke=\"#777\"/>\n",
                     LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
}

static bool is_point(const tn_curve *c, int64_t k)
{
    return isfinite(c->x[k]) && isfinite(c->y[k]);
}

/* The extremes of points [from, to), in the order in which they stand; *open: the line continues
 * from the last ones. */
static void add_column(tni_bytes *b, const axis *x, const axis *y, const tn_curve *c, int64_t from,
                       int64_t to, bool *open)
{
    int64_t low = -1, high = -1;
    for (int64_t k = from; k < to; k++) {
        if (!is_point(c, k)) continue;
        if (low < 0 || c->y[k] < c->y[low]) low = k;
        if (high < 0 || c->y[k] > c->y[high]) high = k;
    }
    const int64_t end[] = { TNI_MIN(low, high), TNI_MAX(low, high) };
    for (int i = low == high; low >= 0 && i < 2; i++) {
        tni_bytes_printf(b, "%s%.2f %.2f", *open ? "L" : "M", place(x, c->x[end[i]]),
                         place(y, c->y[end[i]]));
        *open = true;
    }
    if (low < 0) *open = false;
}

static void add_curve(tni_bytes *b, const axis *x, const axis *y, const tn_curve *c,
                      const char *colour)
{
    bool open = false;
    tni_bytes_printf(b,
                     "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" "
                     "stroke-linejoin=\"round\" stroke-linecap=\"round\" d=\"",
                     colour);
    int64_t columns = c->n > MANY ? MANY / 2 : c->n;
    for (int64_t k = 0, from = 0, to; k < columns; k++, from = to) {
        to = k + 1 == columns ? c->n : (int64_t)((double)c->n * (double)(k + 1) / (double)columns);
        add_column(b, x, y, c, from, to, &open);
    }
    tni_bytes_printf(b, "\"/>\n");
    /* few points get markers; a single one would not show otherwise */
    for (int64_t k = 0; c->n <= 40 && k < c->n; k++)
        if (is_point(c, k))
            tni_bytes_printf(b, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"2.6\" fill=\"%s\"/>\n",
                             place(x, c->x[k]), place(y, c->y[k]), colour);
}

/* Points of all curves inside a box. */
static int64_t points_in(const tn_curve *curves, int n, const axis *x, const axis *y, int left,
                         int top, int width, int height)
{
    int64_t inside = 0;
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < curves[i].n; k++) {
            double px = place(x, curves[i].x[k]) - left;
            double py = place(y, curves[i].y[k]) - top;
            inside += px >= -8 && px <= width + 8 && py >= -8 && py <= height + 8;
        }
    return inside;
}

/* In the corner that hides the fewest points; on a tie, the upper right one. */
static void add_legend(tni_bytes *b, const tn_curve *curves, int n, const axis *x, const axis *y)
{
    size_t longest = 0;
    int named = 0;
    for (int i = 0; i < n; i++) {
        size_t length = curves[i].label ? strlen(curves[i].label) : 0;
        longest = TNI_MAX(longest, TNI_MIN(length, (size_t)60));
        named += length > 0;
    }
    if (named == 0) return;
    int width = 48 + (int)(7.2 * (double)longest);
    int height = 10 + 20 * named;
    int left = 0, top = 0;
    int64_t least = INT64_MAX;
    for (int corner = 0; corner < 4; corner++) {
        int l = corner & 1 ? LEFT + 12 : WIDTH - RIGHT - width - 12;
        int t = corner & 2 ? HEIGHT - BOTTOM - height - 12 : TOP + 12;
        int64_t hidden = points_in(curves, n, x, y, l, t, width, height);
        if (hidden >= least) continue;
        least = hidden;
        left = l;
        top = t;
    }
    tni_bytes_printf(b,
                     "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"#ffffff\" "
                     "fill-opacity=\"0.88\" stroke=\"#cccccc\"/>\n",
                     left, top, width, height);
    int row = 0;
    for (int i = 0; i < n; i++) {
        if (!curves[i].label || !*curves[i].label) continue;
        int at = top + 15 + 20 * row++;
        tni_bytes_printf(b,
                         "<path d=\"M%d %dh22\" stroke=\"%s\" stroke-width=\"2.4\"/><text x=\"%d\" "
                         "y=\"%.1f\">",
                         left + 10, at, colours[i % N_COLOURS], left + 39, at + 4.5);
        add_text(b, curves[i].label);
        tni_bytes_printf(b, "</text>\n");
    }
}

tn_status tn_plot_svg(const char *path, const char *title, const char *x_label, const char *y_label,
                      const tn_curve *curves, int n)
{
    TNI_C_NUMBERS;
    static const char f[] = "tn_plot_svg";
    if (n < 0 || (n > 0 && !curves))
        return tni_error(TN_E_INVALID, "%s: %d curves: want an array of them", f, n);
    for (int i = 0; i < n; i++)
        if (curves[i].n < 0 || (curves[i].n > 0 && (!curves[i].x || !curves[i].y)))
            return tni_error(TN_E_INVALID,
                             "%s: curve %d has %" PRId64 " points: want arrays x and y of them", f,
                             i, curves[i].n);
    axis x = { .from = LEFT, .to = WIDTH - RIGHT };
    axis y = { .from = HEIGHT - BOTTOM, .to = TOP };
    tni_bytes b = { 0 };
    range_of(curves, n, &x, &y);
    add_frame(&b, title, x_label, y_label);
    add_axes(&b, &x, &y);
    for (int i = 0; i < n; i++) add_curve(&b, &x, &y, &curves[i], colours[i % N_COLOURS]);
    add_legend(&b, curves, n, &x, &y);
    tni_bytes_printf(&b, "</svg>\n");
    tn_status status = b.failed ? tni_pending() : TN_OK;
    tni_atomic_file file;
    if (status == TN_OK) status = tni_file_create(&file, f, path, (int64_t)b.n);
    bool open = status == TN_OK;
    if (open) status = tni_file_write(&file, b.data, b.n);
    if (open && status == TN_OK)
        status = tni_file_finish(&file);
    else if (open)
        tni_file_abandon(&file);
    tni_bytes_free(&b);
    return status;
}
