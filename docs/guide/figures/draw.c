/*
 * draw.c - draws the guide's figures (docs/guide/try figures): the numbers are read from tensors.
 */
#include <math.h>
#include <string.h>
#include <tenon/tenon.h>
#include <tenon/trace.h>

#include "svg.h"

enum { CELL = 34 };

/* ---- chapter 1 ------------------------------------------------------------------------------- */

/* A view as a table, and the way through x's memory: one position right (above), one down. */
static void view(double left, const char *what, tn_tensor *t)
{
    static const char *const row[] = { "a", "b" };
    const int down = (int)tn_stride(t, 0), right = (int)tn_stride(t, 1);
    bool read[6] = { false };
    text_at(left, 30, "start", "head", "%s", what);
    text_at(left, 52, "start", "small", "sizes %d %d, strides %d %d", (int)tn_size(t, 0),
            (int)tn_size(t, 1), down, right);
    for (int i = 0; i < (int)tn_size(t, 0); i++)
        for (int j = 0; j < (int)tn_size(t, 1); j++) {
            int place = i * down + j * right;
            bool again = right == 0 && j > 0;
            read[place] = true;
            cell(left + CELL * j, 68 + CELL * i, CELL, again ? "ghost" : row[place / 3],
                 tn_at(t, TN_INDEX(i, j)));
        }
    const double y = 222, half = 13;
    for (int place = 0; place < 6; place++)
        cell(left + 26 * place, y, 26, read[place] ? row[place / 3] : "ghost", place);
    const double from = left + half;
    if (right)
        arrow("used", "M%g %gq%g -24 %g -2", from, y - 3, half * right, 26.0 * right);
    else
        arrow("used", "M%g %gc-18 -28 14 -28 7 -1", from - 4, y - 3);
    arrow("back", "M%g %gq%g 24 %g 2", from, y + 29, half * down, 26.0 * down);
    text_at(from + 26 * right + (right ? 8 : 14), y - 10, "start", "small", "right: %d", right);
    text_at(from + 26 * down + 8, y + 46, "start", "small", "down: %d", down);
}

static void strides(void)
{
    tn_tensor *x = tn_reshape(tn_arange(0, 6, 1, TN_F32), TN_SHAPE(2, 3));
    begin("strides", 860, 334, "One memory, four tensors: sizes and strides");
    view(24, "x", x);
    view(242, "x transposed", tn_transpose(x, 0, 1));
    view(460, "every other column", tn_slice(x, 1, 0, 3, 2));
    view(678, "column 0, 4 times", tn_expand(tn_narrow(x, 1, 0, 1), TN_SHAPE(2, 4)));
    text_at(24, 300, "start", "small",
            "Below each: the one memory of all four. Arrows: how far one position right or down "
            "moves.");
    text_at(24, 318, "start", "small",
            "Dashed in a table: the same element again. Dashed in the memory: not read.");
    end();
}

/* ---- chapter 2 ------------------------------------------------------------------------------- */

enum { OPS = 5, STEP = 150, ROW = 104 };

static double op_left(int id) /* node 0 is the last op */
{
    return 150 + STEP * (OPS - 1 - id);
}

static const char *kept(const tn_graph_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i].kept) return "keeps its input";
    return n->out[0].kept ? "keeps its result" : "keeps nothing";
}

/* An op's box, and the arrows to it from the ops before. */
static int draw_op(const tn_graph_node *n, void *user)
{
    (void)user;
    if (n->kind != TN_GRAPH_OP) return 1;
    const double left = op_left(n->id);
    box(left, ROW, 106, 56, "a");
    text_at(left + 53, ROW + 23, "middle", "head", "%s", n->name);
    text_at(left + 53, ROW + 43, "middle", "small", "%s", n->formula);
    text_at(left + 53, ROW - 12, "middle", "small", "%s",
            strcmp(n->name, "mul") ? kept(n) : "keeps x");
    return 0;
}

static void leaf_box(double x, double y, const char *name, tn_tensor *t)
{
    box(x, y, 68, 36, tn_requires_grad(t) ? "c" : NONE);
    text_at(x + 34, y + 23, "middle", "", "%s = %g", name, tn_item(t));
}

static tn_tensor *scalar_leaf(const char *name, double value, bool trained)
{
    tn_tensor *t = tn_scalar(value);
    TN_CHECK(tn_set_name(t, name));
    TN_CHECK(tn_set_requires_grad(t, trained));
    return t;
}

static void tape(void)
{
    tn_tensor *x = scalar_leaf("x", 2, false), *w = scalar_leaf("w", 0.5, true);
    tn_tensor *b = scalar_leaf("b", -1, true), *value[OPS]; /* by the ids of the tape */
    value[4] = tn_mul(w, x);
    value[3] = tn_add(value[4], b);
    value[2] = tn_tanh(value[3]);
    value[1] = tn_add_scalar(value[2], -1);
    value[0] = tn_square(value[1]);
    begin("tape", 960, 270, "The tape of loss = (tanh(w x + b) - 1)^2");
    text_at(24, 32, "start", "head", "loss = (tanh(w x + b) - 1)²");
    text_at(936, 26, "end", "small", "forward, with values: grey");
    text_at(936, 46, "end", "small back", "backward, with gradients: orange");
    TN_CHECK(tn_graph_visit(value[0], draw_op, NULL, (tn_graph_options){ 0 }));
    for (int i = 0; i < OPS; i++) TN_CHECK(tn_retain_grad(value[i]));
    TN_CHECK(tn_backward(value[0]));
    for (int i = 0; i < OPS; i++) {
        const double right = op_left(i) + 106;
        arrow("used", "M%g %dh40", right + 2, ROW + 14);
        text_at(right + 20, ROW + 8, "middle", "small", "%g", tn_item(value[i]));
        arrow("back", "M%g %dh-40", right + 42, ROW + 42);
        text_at(right + 24, ROW + 60, "middle", "small back", "%g", tn_item(tn_grad(value[i])));
    }
    leaf_box(28, ROW - 22, "x", x);
    leaf_box(28, ROW + 42, "w", w);
    leaf_box(op_left(3) + 19, ROW + 112, "b", b);
    arrow("used", "M98 %dL147 %d", ROW - 4, ROW + 12);
    arrow("used", "M98 %dL147 %d", ROW + 54, ROW + 30);
    arrow("back", "M150 %dL101 %d", ROW + 44, ROW + 68);
    text_at(132, ROW + 74, "middle", "small back", "%g", tn_item(tn_grad(w)));
    arrow("used", "M%g %dv-50", op_left(3) + 44, ROW + 110);
    arrow("back", "M%g %dv50", op_left(3) + 64, ROW + 58);
    text_at(op_left(3) + 72, ROW + 88, "start", "small back", "%g", tn_item(tn_grad(b)));
    text_at(op_left(0) + 150, ROW + 34, "start", "", "loss");
    end();
}

/* ---- chapter 4 ------------------------------------------------------------------------------- */

static tn_tensor *leaf(tn_tensor *t)
{
    TN_CHECK(tn_set_requires_grad(t, true));
    return t;
}

/* One operand stretched to [2, 3] by forward, and what backward sums. */
static void stretched(double top, const char *what, tn_tensor *x, tn_tensor *dy)
{
    const bool row = tn_rank(x) == 1;
    const int own_rows = row ? 1 : 2, own_columns = row ? 3 : 1;
    text_at(24, top + 40, "start", "head", "%s", what);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) {
            bool own = i < own_rows && j < own_columns;
            cell(160 + CELL * j, top + CELL * i, CELL, own ? "a" : "ghost",
                 row ? tn_at(x, TN_INDEX(j)) : tn_at(x, TN_INDEX(i, 0)));
            cell(360 + CELL * j, top + CELL * i, CELL, "b", tn_at(dy, TN_INDEX(i, j)));
        }
    tn_tensor *grad = tn_grad(x);
    for (int k = 0; k < (row ? 3 : 2); k++)
        if (row) {
            arrow("back", "M%d %gv22", 377 + CELL * k, top + 70);
            cell(360 + CELL * k, top + 96, CELL, "c", tn_at(grad, TN_INDEX(k)));
        } else {
            arrow("back", "M466 %gh24", top + 17 + CELL * k);
            cell(496, top + CELL * k, CELL, "c", tn_at(grad, TN_INDEX(k, 0)));
        }
    text_at(560, top + (row ? 118 : 40), "start", "small",
            row ? "gradient of row: sums of columns" : "gradient of column: sums of rows");
}

static void broadcasting(void)
{
    tn_tensor *row = leaf(tn_from_floats((float[]){ 4, 5, 6 }, TN_SHAPE(3)));
    tn_tensor *column = leaf(tn_from_floats((float[]){ 7, 8 }, TN_SHAPE(2, 1)));
    tn_tensor *dy = tn_from_floats((float[]){ 1, 2, 3, 10, 20, 30 }, TN_SHAPE(2, 3));
    TN_CHECK(tn_backward_from(tn_add(row, column), dy, 0));
    begin("broadcasting", 800, 320, "Forward stretches, backward sums");
    text_at(160, 32, "start", "", "forward: stretched");
    text_at(360, 32, "start", "", "backward: dy, summed over what was stretched");
    stretched(58, "row [3]", row, dy);
    stretched(226, "column [2, 1]", column, dy);
    end();
}

/* ---- chapter 7 ------------------------------------------------------------------------------- */

enum { BATCH = 24, BATCHES = 40 };

/* The values of a channel on a line of numbers from -4 to 10, with their mean and deviation. */
static void strip(double y, const char *what, tn_tensor *channel)
{
    const double unit = 46, zero = 330;
    const double mean = tn_item(tn_mean_all(channel)),
                 deviation = sqrt(tn_item(tn_var(channel, TN_AXES(0), 0, false)));
    text_at(24, y - 10, "start", "head", "%s", what);
    text_at(24, y + 12, "start", "small", "mean %.2f, deviation %.2f",
            fabs(mean) < 0.005 ? 0 : mean, deviation);
    box(zero + unit * (mean - deviation), y - 24, unit * 2 * deviation, 48, "a");
    fprintf(svg, "<path class='line' d='M%g %gH%g'/>\n", zero - 2.5 * unit, y, zero + 9.5 * unit);
    fprintf(svg, "<path class='back' stroke-width='2' d='M%.2f %gv56'/>\n", zero + unit * mean,
            y - 28);
    for (int v = -2; v <= 9; v++) {
        fprintf(svg, "<path class='line' d='M%g %gv5'/>\n", zero + unit * v, y + 26);
        text_at(zero + unit * v, y + 46, "middle", "small", "%d", v);
    }
    for (int i = 0; i < (int)tn_size(channel, 0); i++)
        fprintf(svg, "<circle class='dot' cx='%.2f' cy='%g' r='4' fill-opacity='0.75'/>\n",
                zero + unit * tn_at(channel, TN_INDEX(i)), y);
}

/* Batches whose one channel has mean 4 and deviation 2, through a layer in training. */
static void batch_norm(void)
{
    double step[BATCHES + 1], of_batch[BATCHES + 1], running[BATCHES + 1];
    tn_module *m = tn_batch_norm1d_new(1, (tn_batch_norm_options){ 0 });
    TN_CHECK_PTR(m);
    TN_CHECK(tn_module_to_dtype(m, TN_F64));
    tn_manual_seed(7);
    for (int i = 0; i <= BATCHES; i++) TN_SCOPE
        {
            tn_tensor *x = tn_to_dtype(tn_randn(TN_SHAPE(BATCH, 1)), TN_F64);
            x = tn_add_scalar(tn_mul_scalar(x, 2), 4);
            step[i] = i;
            running[i] = tn_item(tn_get_buffer(m, "running_mean"));
            of_batch[i] = tn_item(tn_mean_all(x));
            tn_tensor *y = tn_forward(m, x);
            TN_CHECK_PTR(y);
            if (i > 0) continue;
            begin("batch-norm", 800, 270, "A channel of a batch before and after batch norm");
            strip(62, "before", tn_select(x, 1, 0));
            strip(172, "after", tn_select(y, 1, 0));
            text_at(24, 256, "start", "small",
                    "Dots: the channel's 24 values. Line: their mean. Box: one deviation to each "
                    "side.");
            end();
        }
    tn_module_drop(m);
    char path[512];
    snprintf(path, sizeof path, "%s/running-mean.svg", into);
    tn_curve curves[] = { { "mean of the batch", BATCHES + 1, step, of_batch },
                          { "running_mean", BATCHES + 1, step, running } };
    TN_CHECK(tn_plot_svg(path, "Batch norm in training: the running mean follows the batches'",
                         "batch", "mean", curves, 2));
}

/* ---- chapter 8 ------------------------------------------------------------------------------- */

/* Weights as a heat map: row query, column key; what is blocked is empty. */
static void heat(double left, double size, const char *what, tn_tensor *weights)
{
    const int n = (int)tn_size(weights, 0);
    text_at(left, 32, "start", "head", "%s", what);
    text_at(left + size * n / 2, 58, "middle", "small", "key");
    fprintf(svg,
            "<text x='%g' y='%g' text-anchor='middle' class='small' transform='rotate(-90)'>query"
            "</text>\n",
            -(84 + size * n / 2), left - 28);
    for (int i = 0; i < n; i++) {
        text_at(left - 12, 84 + size * (i + 0.5) + 5, "middle", "small", "%d", i);
        text_at(left + size * (i + 0.5), 77, "middle", "small", "%d", i);
        for (int j = 0; j < n; j++) {
            const double weight = tn_at(weights, TN_INDEX(i, j)), x = left + size * j,
                         y = 84 + size * i;
            box(x, y, size, size, j > i ? "ghost" : NONE);
            if (j > i) continue;
            fprintf(
                svg,
                "<rect class='heat' x='%g' y='%g' width='%g' height='%g' fill-opacity='%.2f'/>\n",
                x, y, size, size, weight);
            text_at(x + size / 2, y + size / 2 + 5, "middle", weight > 0.6 ? "over" : "", "%.2f",
                    weight);
        }
    }
}

/* Scores of queries for keys, minus infinity for keys that come later. */
static tn_tensor *causal_scores(tn_tensor *q, tn_tensor *k)
{
    const int64_t n = tn_size(q, 0);
    tn_tensor *blocked = tn_gt_scalar(tn_triu(tn_ones(TN_SHAPE(n, n)), 1), 0);
    tn_tensor *scores =
        tn_div_scalar(tn_matmul(q, tn_transpose(k, 0, 1)), sqrt((double)tn_size(q, 1)));
    return tn_masked_fill(scores, blocked, -INFINITY);
}

static tn_tensor *random_f64(int64_t rows, int64_t columns, double size)
{
    return tn_mul_scalar(tn_to_dtype(tn_randn(TN_SHAPE(rows, columns)), TN_F64), size);
}

/* Queries and keys made of the positional table alone, trained until position t looks at t - 1. */
static tn_tensor *trained_scores(int64_t n, int64_t d)
{
    tn_module *pe = tn_positional_encoding_new(d, n, (tn_positional_encoding_options){ 0 });
    TN_CHECK_PTR(pe);
    tn_tensor *table = tn_to_dtype(tn_squeeze(tn_get_buffer(pe, "pe"), 0), TN_F64);
    tn_tensor *wq = random_f64(d, d, 0.3), *wk = random_f64(d, d, 0.3), *scores = NULL;
    tn_tensor *before = tn_arange(0, (double)n - 1, 1, TN_I64);
    for (int step = 0; step < 60; step++) {
        leaf(wq), leaf(wk);
        scores = causal_scores(tn_matmul(table, wq), tn_matmul(table, wk));
        TN_CHECK(tn_backward(tn_cross_entropy(tn_narrow(scores, 0, 1, n - 1), before)));
        TN_NO_GRAD
        {
            wq = tn_sub(wq, tn_grad(wq));
            wk = tn_sub(wk, tn_grad(wk));
        }
    }
    tn_module_drop(pe);
    return scores;
}

static void attention(void)
{
    tn_manual_seed(1); /* the first: as in the chapter's program */
    tn_tensor *q = tn_randn(TN_SHAPE(4, 8)), *k = tn_randn(TN_SHAPE(4, 8));
    begin("attention", 800, 450, "Weights of causal attention, as a heat map");
    heat(70, 58, "random queries and keys", tn_softmax(causal_scores(q, k), -1));
    heat(400, 43, "trained to look one position back", tn_softmax(trained_scores(8, 8), -1));
    end();
}

/* ---- chapter 15 ------------------------------------------------------------------------------ */

/* The last two axes as a table; size x size cells from [row, column] on in class b. */
static void table(double left, double top, const char *what, tn_tensor *t, int row, int column,
                  int size)
{
    tn_tensor *flat = tn_reshape(t, TN_SHAPE(tn_size(t, -2), tn_size(t, -1)));
    text_at(left, top - 12, "start", "head", "%s", what);
    for (int i = 0; i < (int)tn_size(flat, 0); i++)
        for (int j = 0; j < (int)tn_size(flat, 1); j++) {
            bool in = i >= row && i < row + size && j >= column && j < column + size;
            const double value = tn_at(flat, TN_INDEX(i, j)), width = CELL + 12;
            box(left + width * j, top + CELL * i, width, CELL,
                in           ? "b"
                : value == 0 ? "ghost"
                             : NONE);
            text_at(left + width * (j + 0.5), top + CELL * (i + 0.5) + 5, "middle", "", "%g",
                    value);
        }
}

static void convolution(void)
{
    tn_tensor *x = leaf(tn_reshape(tn_arange(1, 10, 1, TN_F64), TN_SHAPE(1, 1, 3, 3)));
    tn_tensor *w = tn_reshape(tn_arange(1, 5, 1, TN_F64), TN_SHAPE(1, 1, 2, 2));
    tn_tensor *dy = tn_from_data((double[]){ 1, 10, 100, 1000 }, TN_SHAPE(1, 1, 2, 2), TN_F64);
    tn_tensor *y = tn_conv2d(x, w, TN_NONE, (tn_conv_spec){ 0 });
    TN_CHECK(tn_backward_from(y, dy, 0));
    begin("convolution", 800, 440, "A convolution, and the gradient of its input");
    text_at(24, 36, "start", "", "Forward: the kernel slides over x");
    table(24, 80, "x", x, 0, 0, 2);
    table(300, 80, "w", w, 0, 0, 2);
    table(500, 80, "y", y, 0, 0, 1);
    text_at(500, 176, "start", "small", "1·1 + 2·2 + 3·4 + 4·5 = 37");
    text_at(24, 228, "start", "",
            "Backward: the kernel, turned by half a turn, slides over dy between zeros");
    table(24, 276, "dy between zeros", tn_pad(dy, TN_PADS(1, 1, 1, 1), TN_PAD_CONSTANT, 0), 1, 1,
          2);
    table(300, 276, "w, turned", tn_flip(w, TN_AXES(2, 3)), 0, 0, 2);
    table(500, 276, "dx", tn_grad(x), 1, 1, 1);
    text_at(500, 406, "start", "small", "4·1 + 3·10 + 2·100 + 1·1000 = 1234");
    end();
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: draw FOLDER\n"), 2;
    into = argv[1];
    tn_scope scope = tn_scope_begin();
    strides();
    tape();
    broadcasting();
    batch_norm();
    attention();
    convolution();
    tn_scope_end(scope);
    return 0;
}
