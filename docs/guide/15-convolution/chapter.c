/*
 * Chapter 15: a convolution from its formula to its gradient.
 */
#include <tenon/tenon.h>

static tn_tensor *matrix(int64_t rows, int64_t columns, const double *values)
{
    tn_tensor *t = tn_from_data(values, TN_SHAPE(1, 1, rows, columns), TN_F64);
    TN_CHECK_PTR(t);
    return t;
}

/* The last two axes, as whole numbers. */
static void show(tn_tensor *t)
{
    tn_print(tn_to_dtype(tn_reshape(t, TN_SHAPE(tn_size(t, -2), tn_size(t, -1))), TN_I64));
}

static tn_tensor *conv(tn_tensor *x, tn_tensor *w, int64_t stride)
{
    return tn_conv2d(x, w, TN_NONE, (tn_conv_spec){ .stride = { stride, stride } });
}

/* y[n,o,i,j] = sum over c, r, s of w[o,c,r,s] x[n,c,i+r,j+s], element by element */
static tn_tensor *by_formula(tn_tensor *x, tn_tensor *w)
{
    const int64_t rows = tn_size(x, 2) - tn_size(w, 2) + 1,
                  columns = tn_size(x, 3) - tn_size(w, 3) + 1;
    tn_tensor *y =
        tn_full_as(TN_SHAPE(tn_size(x, 0), tn_size(w, 0), rows, columns), 0, TN_F64, tn_cpu());
    double *to = tn_data_mut(y);
    for (int n = 0; n < tn_size(x, 0); n++)
        for (int o = 0; o < tn_size(w, 0); o++)
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < columns; j++, to++)
                    for (int c = 0; c < tn_size(w, 1); c++)
                        for (int r = 0; r < tn_size(w, 2); r++)
                            for (int s = 0; s < tn_size(w, 3); s++)
                                *to += tn_at(w, TN_INDEX(o, c, r, s)) *
                                       tn_at(x, TN_INDEX(n, c, i + r, j + s));
    return y;
}

/* x [N, C, H, W] -> [N, C kh kw, H' W']: a row for each element of the kernel, what it meets
 * while the kernel slides; a column for each place of the kernel, the patch under it */
static tn_tensor *unfold(tn_tensor *x, int64_t kh, int64_t kw)
{
    const int64_t rows = tn_size(x, 2) - kh + 1, columns = tn_size(x, 3) - kw + 1;
    tn_tensor *meets[64];
    for (int64_t r = 0; r < kh; r++)
        for (int64_t s = 0; s < kw; s++)
            meets[r * kw + s] = tn_narrow(tn_narrow(x, 2, r, rows), 3, s, columns);
    tn_tensor *patches = tn_stack(meets, (int)(kh * kw), 2); /* [N, C, kh kw, H', W'] */
    return tn_reshape(patches, TN_SHAPE(tn_size(x, 0), tn_size(x, 1) * kh * kw, rows * columns));
}

static tn_tensor *by_product(tn_tensor *x, tn_tensor *w)
{
    const int64_t rows = tn_size(x, 2) - tn_size(w, 2) + 1;
    tn_tensor *flat = tn_reshape(w, TN_SHAPE(tn_size(w, 0), -1)); /* [O, C kh kw] */
    tn_tensor *y = tn_matmul(flat, unfold(x, tn_size(w, 2), tn_size(w, 3)));
    return tn_reshape(y, TN_SHAPE(tn_size(x, 0), tn_size(w, 0), rows, -1));
}

/* dw[o,c,r,s] = sum over n, i, j of dy[n,o,i,j] x[n,c,i+r,j+s]: dy times the patches, transposed */
static tn_tensor *weight_gradient(tn_tensor *x, tn_tensor *w, tn_tensor *dy)
{
    tn_tensor *flat = tn_reshape(dy, TN_SHAPE(tn_size(dy, 0), tn_size(dy, 1), -1));
    tn_tensor *patches = unfold(x, tn_size(w, 2), tn_size(w, 3));
    tn_tensor *each = tn_matmul(flat, tn_transpose(patches, 1, 2)); /* [N, O, C kh kw] */
    return tn_reshape(tn_sum(each, TN_AXES(0), false), tn_shape_get(w));
}

/* dx[n,c,u,v] = sum over o, r, s of w[o,c,r,s] dy[n,o,u-r,v-s]: a convolution again */
static tn_tensor *input_gradient(tn_tensor *w, tn_tensor *dy)
{
    const int64_t above = tn_size(w, 2) - 1, left = tn_size(w, 3) - 1;
    tn_tensor *turned = tn_transpose(tn_flip(w, TN_AXES(2, 3)), 0, 1); /* [C, O, kh, kw] */
    tn_tensor *padded = tn_pad(dy, TN_PADS(left, left, above, above), TN_PAD_CONSTANT, 0);
    return conv(padded, turned, 1);
}

static tn_tensor *leaf(tn_tensor *t)
{
    TN_CHECK(tn_set_requires_grad(t, true));
    return t;
}

/* The derivative of sum(y dy) by each element of t, which is x or w: it is moved up and down. */
static tn_tensor *moved(tn_tensor *x, tn_tensor *w, tn_tensor *t, tn_tensor *dy)
{
    const double h = 1e-3;
    tn_tensor *grad = tn_zeros_like(t);
    double *at = tn_data_mut(tn_detach(t)), *to = tn_data_mut(grad);
    for (int64_t i = 0; i < tn_numel(t); i++) {
        double loss[2];
        for (int up = 0; up < 2; up++) {
            at[i] += up ? h : -h;
            TN_NO_GRAD loss[up] = tn_item(tn_sum_all(tn_mul(conv(x, w, 1), dy)));
            at[i] -= up ? h : -h;
        }
        to[i] = (loss[1] - loss[0]) / (2 * h);
    }
    return grad;
}

static int same(tn_tensor *a, tn_tensor *b)
{
    TN_CHECK_PTR(a), TN_CHECK_PTR(b);
    return tn_max_abs_diff(a, b) < 1e-6;
}

/* Several images, channels and a kernel that is not square: all ways must agree. */
static void compare(void)
{
    tn_manual_seed(1);
    tn_tensor *x = leaf(tn_to_dtype(tn_randn(TN_SHAPE(2, 3, 5, 6)), TN_F64));
    tn_tensor *w = leaf(tn_to_dtype(tn_randn(TN_SHAPE(4, 3, 3, 2)), TN_F64));
    tn_tensor *y = conv(x, w, 1), *dy = tn_to_dtype(tn_randn(tn_shape_get(y)), TN_F64);
    TN_CHECK(tn_backward_from(y, dy, 0));
    tn_tensor *dx = tn_grad(x), *dw = tn_grad(w);
    TN_NO_GRAD
    {
        printf("tn_conv2d: the formula agrees %d, the product %d\n", same(by_formula(x, w), y),
               same(by_product(x, w), y));
        printf("its gradient of x: ours agrees %d, the transposed convolution %d, differences %d\n",
               same(input_gradient(w, dy), dx),
               same(tn_conv_transpose2d(dy, w, TN_NONE, (tn_conv_spec){ 0 }), dx),
               same(moved(x, w, x, dy), dx));
        printf("its gradient of w: ours agrees %d, differences %d\n",
               same(weight_gradient(x, w, dy), dw), same(moved(x, w, w, dy), dw));
    }
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = leaf(matrix(3, 3, (double[]){ 1, 2, 3, 4, 5, 6, 7, 8, 9 }));
    tn_tensor *w = leaf(matrix(2, 2, (double[]){ 1, 2, 3, 4 }));
    show(conv(x, w, 1));
    show(unfold(x, 2, 2));

    tn_tensor *dy = matrix(2, 2, (double[]){ 1, 10, 100, 1000 });
    TN_CHECK(tn_backward_from(conv(x, w, 1), dy, 0));
    show(tn_grad(w));
    show(tn_grad(x));

    compare();

    /* Stride 2: the kernel's places don't touch, and every element meets one weight. */
    tn_tensor *big = leaf(matrix(4, 4, (double[16]){ 0 }));
    TN_CHECK(tn_backward_from(conv(big, w, 2), dy, 0));
    show(tn_grad(big));
    tn_scope_end(scope);
    return 0;
}
