/*
 * Chapter 3: the backward pass of a net of two layers, written by hand, beside tn_backward's.
 */
#include <tenon/tenon.h>

typedef struct net {
    tn_tensor *x, *wanted; /* data: [N, 2], [N, 1] */
    tn_tensor *w1, *w2;    /* parameters: [2, 3], [3, 1] */
} net;

typedef struct trace {
    tn_tensor *a, *h, *y, *loss;
} trace;

static trace forward(const net *m)
{
    trace t;
    t.a = tn_matmul(m->x, m->w1); /* 1  a = x w1            [N, 3] */
    t.h = tn_tanh(t.a);           /* 2  h = tanh a          [N, 3] */
    t.y = tn_matmul(t.h, m->w2);  /* 3  y = h w2            [N, 1] */
    t.loss = tn_mean_all(         /* 4  loss = mean (y - wanted)^2 */
                         tn_square(tn_sub(t.y, m->wanted)));
    return t;
}

/* The same steps from the last to the first: dz stands for dloss/dz. */
static void backward(const net *m, const trace *t, tn_tensor **dw1, tn_tensor **dw2)
{
    double n = (double)tn_numel(t->y);
    tn_tensor *dy = tn_mul_scalar(tn_sub(t->y, m->wanted), 2 / n);  /* 4 */
    tn_tensor *dh = tn_matmul(dy, tn_transpose(m->w2, 0, 1));       /* 3 */
    *dw2 = tn_matmul(tn_transpose(t->h, 0, 1), dy);                 /* 3 */
    tn_tensor *da = tn_mul(dh, tn_rsub_scalar(tn_square(t->h), 1)); /* 2: tanh' = 1 - h^2 */
    *dw1 = tn_matmul(tn_transpose(m->x, 0, 1), da);                 /* 1 */
}

static tn_tensor *parameter(const float *values, tn_shape shape)
{
    tn_tensor *t = tn_from_floats(values, shape);
    TN_CHECK(tn_set_requires_grad(t, true));
    return t;
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    net m = {
        .x = tn_from_floats((float[]){ 1, 2, -1, 0.5F, 0, 1, 2, -1 }, TN_SHAPE(4, 2)),
        .wanted = tn_from_floats((float[]){ 1, 0, 0.5F, -1 }, TN_SHAPE(4, 1)),
        .w1 = parameter((float[]){ 0.1F, 0.2F, -0.3F, 0.4F, -0.5F, 0.6F }, TN_SHAPE(2, 3)),
        .w2 = parameter((float[]){ 1, -1, 0.5F }, TN_SHAPE(3, 1)),
    };
    trace t = forward(&m);
    tn_tensor *dw1 = NULL, *dw2 = NULL;
    TN_NO_GRAD backward(&m, &t, &dw1, &dw2);
    TN_CHECK(tn_backward(t.loss));

    printf("loss %.4f\nby hand:\n", tn_item(t.loss));
    tn_print(dw1);
    tn_print(tn_transpose(dw2, 0, 1));
    printf("tn_backward:\n");
    tn_print(tn_grad(m.w1));
    tn_print(tn_transpose(tn_grad(m.w2), 0, 1));

    /* A value that is used twice gets the sum of what comes back from both uses. */
    tn_tensor *w = parameter((float[]){ 3 }, TN_SHAPE(1));
    TN_CHECK(tn_backward(tn_add(tn_square(w), tn_mul_scalar(w, 5))));
    printf("d(w w + 5 w)/dw at 3: %g\n", tn_item(tn_grad(w)));
    tn_scope_end(scope);
    return 0;
}
