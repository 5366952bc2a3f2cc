/*
 * Chapter 7, why one normalises: the size of activations through depth, and which learning rates
 * train, with batch norm and without.
 */
#include <math.h>
#include <tenon/tenon.h>

enum { MOST = 20, WIDTH = 32, ROWS = 128, STEPS = 50 };

typedef struct net {
    int depth;
    bool normed;
    tn_tensor *w[MOST + 1]; /* [WIDTH, WIDTH]; the last one: to 2 classes */
    double size[MOST];      /* of each layer's activations: the root of their mean square */
} net;

static tn_tensor *leaf(tn_tensor *t)
{
    TN_CHECK(tn_set_requires_grad(t, true));
    return t;
}

static tn_tensor *random_f64(int64_t rows, int64_t columns, double size)
{
    return tn_mul_scalar(tn_to_dtype(tn_randn(TN_SHAPE(rows, columns)), TN_F64), size);
}

static double root_mean_square(tn_tensor *t)
{
    return sqrt(tn_item(tn_mean_all(tn_square(tn_detach(t)))));
}

/* Weights of the size that keeps activations of a ReLU net as large as they are, times gain. */
static net new_net(int depth, bool normed, double gain)
{
    net m = { .depth = depth, .normed = normed };
    tn_manual_seed(1);
    for (int i = 0; i < depth; i++)
        m.w[i] = leaf(random_f64(WIDTH, WIDTH, gain * sqrt(2.0 / WIDTH)));
    m.w[depth] = leaf(random_f64(WIDTH, 2, sqrt(1.0 / WIDTH)));
    return m;
}

static tn_tensor *normalise(tn_tensor *x)
{
    tn_tensor *var = tn_var(x, TN_AXES(0), 0, true);
    return tn_mul(tn_sub(x, tn_mean(x, TN_AXES(0), true)), tn_rsqrt(tn_add_scalar(var, 1e-5)));
}

static tn_tensor *forward(net *m, tn_tensor *x)
{
    for (int i = 0; i < m->depth; i++) {
        tn_tensor *a = tn_matmul(x, m->w[i]);
        x = tn_relu(m->normed ? normalise(a) : a);
        m->size[i] = root_mean_square(x);
    }
    return tn_matmul(x, m->w[m->depth]);
}

/* The loss after steps of gradient descent. */
static double train(net *m, tn_tensor *x, tn_tensor *y, double rate, int steps)
{
    double last = 0;
    for (int step = 0; step <= steps; step++) {
        tn_tensor *loss = tn_cross_entropy(forward(m, x), y);
        last = tn_item(loss);
        if (step == steps) break;
        TN_CHECK(tn_backward(loss));
        for (int i = 0; i <= m->depth; i++)
            TN_NO_GRAD m->w[i] = tn_sub(m->w[i], tn_mul_scalar(tn_grad(m->w[i]), rate));
        for (int i = 0; i <= m->depth; i++) leaf(m->w[i]);
    }
    return last;
}

static const double gains[] = { 0.5, 1, 2 };

static void sizes(tn_tensor *x, tn_tensor *y)
{
    printf("20 layers            activations after 1, 10, 20     gradient of weight 1, 20\n");
    for (int k = 0; k < 6; k++) TN_SCOPE
        {
            net m = new_net(20, k >= 3, gains[k % 3]);
            TN_CHECK(tn_backward(tn_cross_entropy(forward(&m, x), y)));
            printf("%-10s x %-3g  %9.2g %9.2g %9.2g        %9.2g %9.2g\n",
                   k < 3 ? "plain" : "batch norm", gains[k % 3], m.size[0], m.size[9], m.size[19],
                   root_mean_square(tn_grad(m.w[0])), root_mean_square(tn_grad(m.w[19])));
        }
}

static void rates(tn_tensor *x, tn_tensor *y)
{
    printf("10 layers        loss after %d steps at rate 0.001      0.01       0.1         1\n",
           STEPS);
    for (int k = 0; k < 6; k++) {
        printf("%-10s x %-3g                        ", k < 3 ? "plain" : "batch norm",
               gains[k % 3]);
        for (double rate = 0.001; rate < 2; rate *= 10) TN_SCOPE
            {
                net m = new_net(10, k >= 3, gains[k % 3]);
                double loss = train(&m, x, y, rate, STEPS);
                isfinite(loss) ? printf("%10.2f", loss) : printf("%10s", "nan");
            }
        printf("\n");
    }
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_manual_seed(2);
    tn_tensor *x =
        random_f64(ROWS, WIDTH, 1); /* two classes: whether the first column is above 0 */
    tn_tensor *y = tn_to_dtype(tn_gt_scalar(tn_select(x, 1, 0), 0), TN_I64);
    sizes(x, y);
    rates(x, y);
    tn_scope_end(scope);
    return 0;
}
