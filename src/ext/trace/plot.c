/*
 * plot.c - curves as an SVG: frame, ticks at round numbers, grid, legend, title.
 *
 * The text is built in memory and written as one atomic file. A curve with more points than the
 * plot has columns is drawn by the lowest and highest value of each column, so a long run makes no
 * larger file and no spike is lost. Points that are not finite break the line.
 */
#include "ext/trace/words.h"

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

typedef struct plot {
    const tn_curve *curves;
    int n;
    axis x, y;
    FILE *svg;
} plot;

static double place(const axis *a, double v)
{
    return a->from + (v - a->low) / (a->high - a->low) * (a->to - a->from);
}

static bool is_point(const tn_curve *c, int64_t k)
{
    return isfinite(c->x[k]) && isfinite(c->y[k]);
}

/* Sets the step of an axis that includes its data (low > high: there is none), and its range: 1, 2
 * or 5 times a power of ten, about n of them. */
static void scale(axis *a, int n, bool whole)
{
    if (!(a->low <= a->high)) {
        a->low = 0;
        a->high = 1;
    }
    if (a->high - a->low <= 1e-12 * fmax(fabs(a->low), fabs(a->high))) {
        double half = a->low == 0 ? 1 : fabs(a->low) / 2;
        a->low -= half;
        a->high += half;
    }
    /* scaled down where the difference would overflow */
    if (!isfinite(a->high - a->low)) {
        a->low /= 4;
        a->high /= 4;
    }
    const double raw = (a->high - a->low) / n, power = pow(10, floor(log10(raw))), m = raw / power;
    a->step = power * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
    if (!whole) return;
    a->low = floor(a->low / a->step + 1e-9) * a->step;
    a->high = ceil(a->high / a->step - 1e-9) * a->step;
}

static void set_ranges(plot *p)
{
    bool counted = true; /* x are whole numbers (steps, epochs), so are the ticks */
    for (const tn_curve *c = p->curves; c && c < p->curves + p->n; c++)
        for (int64_t k = 0; k < c->n; k++) {
            if (!is_point(c, k)) continue;
            p->x.low = fmin(p->x.low, c->x[k]);
            p->x.high = fmax(p->x.high, c->x[k]);
            p->y.low = fmin(p->y.low, c->y[k]);
            p->y.high = fmax(p->y.high, c->y[k]);
            counted = counted && c->x[k] == rint(c->x[k]);
        }
    scale(&p->x, 8, false);
    if (counted && p->x.step < 1) p->x.step = 1;
    scale(&p->y, 6, true);
}

/* An element of a text from a caller; NULL: "" */
static void add_text(FILE *b, const char *element, const char *text)
{
    fprintf(b, "<%s>", element);
    if (text) tni_put_markup(b, text);
    fprintf(b, "</%.*s>\n", (int)strcspn(element, " "), element);
}

#define MIDDLE " text-anchor='middle'"

/* A text at a place. */
static void add_label(FILE *b, double x, double y, const char *more, const char *text)
{
    add_text(b, tni_phrase_of("text x='%.2f' y='%.2f'%s", x, y, more).s, text);
}

/* A tick's number, as short as the step allows. */
static tni_phrase number(double v, double step)
{
    if (fabs(v) < step * 1e-9) v = 0;
    if (fabs(v) >= 1e6 || (step < 1e-5 && step > 0)) return tni_phrase_of("%.4g", v);
    return tni_phrase_of("%.*f", step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9), v);
}

/* Where the reader's system is dark, what is drawn below in these colours is drawn in others. */
static const char dark[] =
    "<style>@media (prefers-color-scheme:dark){svg{fill:#c9d1d9}[fill='#111']{fill:#fff}"
    "[fill='#ffffff']{fill:#0d1117}[stroke='#e4e4e4']{stroke:#2b313a}[stroke='#cccccc']"
    "{stroke:#484f58}[stroke='#0072b2']{stroke:#3d9be0}[fill='#0072b2']{fill:#3d9be0}"
    "[stroke='#000000']{stroke:#fff}[fill='#000000']{fill:#fff}}</style>\n";

static void add_frame(FILE *b, const char *title, const char *x_label, const char *y_label)
{
    const double middle = (LEFT + WIDTH - RIGHT) / 2.0, centre = (TOP + HEIGHT - BOTTOM) / 2.0;
    fprintf(b,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox='0 0 %d %d' width='%d' height='%d' "
            "font-family='Helvetica, Arial, sans-serif' font-size='13' fill='#333'>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    add_text(b, "title", title);
    fputs(dark, b);
    fprintf(b, "<rect width='%d' height='%d' fill='#ffffff'/>\n", WIDTH, HEIGHT);
    add_label(b, middle, 30, MIDDLE " font-size='17' font-weight='bold' fill='#111'", title);
    add_label(b, middle, HEIGHT - 14, MIDDLE, x_label);
    add_label(b, -centre, 20, MIDDLE " transform='rotate(-90)'", y_label);
}

/* The grid's lines across an axis, with their numbers. */
static void add_ticks(FILE *b, const axis *a, bool upright)
{
    const double last = a->high + a->step * 1e-9;
    for (double k = ceil(a->low / a->step - 1e-9); k * a->step <= last; k++) {
        const double at = place(a, k * a->step);
        tni_phrase text = number(k * a->step, a->step),
                   line = upright ? tni_phrase_of("M%d %.2fH%d", LEFT, at, WIDTH - RIGHT)
                                  : tni_phrase_of("M%.2f %dV%d", at, TOP, HEIGHT - BOTTOM);
        fprintf(b, "<path d='%s' stroke='#e4e4e4'/>", line.s);
        if (upright)
            add_label(b, LEFT - 8, at + 4.5, " text-anchor='end'", text.s);
        else
            add_label(b, at, HEIGHT - BOTTOM + 20, MIDDLE, text.s);
    }
}

/* The extremes of points [from, to), in their order; *open: the line continues from the last. */
static void add_column(plot *p, const tn_curve *c, int64_t from, int64_t to, bool *open)
{
    int64_t low = -1, high = -1;
    for (int64_t k = from; k < to; k++) {
        if (!is_point(c, k)) continue;
        if (low < 0 || c->y[k] < c->y[low]) low = k;
        if (high < 0 || c->y[k] > c->y[high]) high = k;
    }
    const int64_t end[] = { TNI_MIN(low, high), TNI_MAX(low, high) };
    for (int i = low == high; low >= 0 && i < 2; i++) {
        fprintf(p->svg, "%s%.2f %.2f", *open ? "L" : "M", place(&p->x, c->x[end[i]]),
                place(&p->y, c->y[end[i]]));
        *open = true;
    }
    if (low < 0) *open = false;
}

static void add_curve(plot *p, const tn_curve *c, const char *colour)
{
    bool open = false;
    fprintf(p->svg,
            "<path fill='none' stroke='%s' stroke-width='1.8' stroke-linejoin='round' "
            "stroke-linecap='round' d='",
            colour);
    int64_t columns = c->n > MANY ? MANY / 2 : c->n;
    for (int64_t k = 0, from = 0, to; k < columns; k++, from = to) {
        to = k + 1 == columns ? c->n : (int64_t)((double)c->n * (double)(k + 1) / (double)columns);
        add_column(p, c, from, to, &open);
    }
    fprintf(p->svg, "'/>\n");
    /* few points get markers; a single one would not show otherwise */
    for (int64_t k = 0; c->n <= 40 && k < c->n; k++)
        if (is_point(c, k))
            fprintf(p->svg, "<circle cx='%.2f' cy='%.2f' r='2.6' fill='%s'/>\n",
                    place(&p->x, c->x[k]), place(&p->y, c->y[k]), colour);
}

/* In the corner that hides the fewest points; on a tie, the upper right one. */
static void add_legend(plot *p)
{
    size_t longest = 0;
    int named = 0, left = 0, top = 0;
    for (int i = 0; i < p->n; i++) {
        size_t length = p->curves[i].label ? strlen(p->curves[i].label) : 0;
        longest = TNI_MAX(longest, TNI_MIN(length, (size_t)60));
        named += length > 0;
    }
    if (named == 0) return;
    const int width = 48 + (int)(7.2 * (double)longest), height = 10 + 20 * named;
    int64_t least = INT64_MAX;
    for (int corner = 0; corner < 4; corner++) {
        int l = corner & 1 ? LEFT + 12 : WIDTH - RIGHT - width - 12;
        int t = corner & 2 ? HEIGHT - BOTTOM - height - 12 : TOP + 12;
        int64_t hidden = 0;
        for (const tn_curve *c = p->curves; c && c < p->curves + p->n; c++)
            for (int64_t k = 0; k < c->n; k++) {
                double x = place(&p->x, c->x[k]) - l, y = place(&p->y, c->y[k]) - t;
                hidden += x >= -8 && x <= width + 8 && y >= -8 && y <= height + 8;
            }
        if (hidden >= least) continue;
        least = hidden;
        left = l;
        top = t;
    }
    fprintf(p->svg,
            "<rect x='%d' y='%d' width='%d' height='%d' rx='4' fill='#ffffff' "
            "fill-opacity='0.88' stroke='#cccccc'/>\n",
            left, top, width, height);
    for (int i = 0; i < p->n; i++) {
        if (!p->curves[i].label || !*p->curves[i].label) continue;
        fprintf(p->svg, "<path d='M%d %dh22' stroke='%s' stroke-width='2.4'/>", left + 10, top + 15,
                colours[i % N_COLOURS]);
        add_label(p->svg, left + 39, top + 19.5, "", p->curves[i].label);
        top += 20;
    }
}

tn_status tn_plot_svg(const char *path, const char *title, const char *x_label, const char *y_label,
                      const tn_curve *curves, int n)
{
    TNI_C_NUMBERS;
    if (n < 0 || (n > 0 && !curves))
        return tni_error(TN_E_INVALID, "%s: %d curves: want an array of them", __func__, n);
    for (int i = 0; i < n; i++)
        if (curves[i].n < 0 || (curves[i].n > 0 && (!curves[i].x || !curves[i].y)))
            return tni_error(TN_E_INVALID,
                             "%s: curve %d has %" PRId64 " points: want arrays x and y of them",
                             __func__, i, curves[i].n);
    char *text = NULL;
    size_t size = 0;
    plot p = { .curves = curves, .n = n, .svg = open_memstream(&text, &size) };
    p.x = (axis){ .low = INFINITY, .high = -INFINITY, .from = LEFT, .to = WIDTH - RIGHT };
    p.y = (axis){ .low = INFINITY, .high = -INFINITY, .from = HEIGHT - BOTTOM, .to = TOP };
    if (!p.svg) return tni_error(TN_E_NOMEM, "%s: out of memory", __func__);
    set_ranges(&p);
    add_frame(p.svg, title, x_label, y_label);
    add_ticks(p.svg, &p.x, false);
    add_ticks(p.svg, &p.y, true);
    fprintf(p.svg, "<rect x='%d' y='%d' width='%d' height='%d' fill='none' stroke='#777'/>\n", LEFT,
            TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    for (int i = 0; i < n; i++) add_curve(&p, &curves[i], colours[i % N_COLOURS]);
    add_legend(&p);
    fprintf(p.svg, "</svg>\n");
    bool made = !ferror(p.svg);
    made = fclose(p.svg) == 0 && made;
    tn_status status = made ? tni_file_replace(__func__, path, text, size)
                            : tni_error(TN_E_NOMEM, "%s: out of memory", __func__);
    free(text);
    return status;
}
