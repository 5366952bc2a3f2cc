/*
 * clinic.h - what the patients share: the data, a small net, and its loss. The task: is the product
 * of both coordinates positive?
 */
#ifndef GUIDE_CLINIC_H
#define GUIDE_CLINIC_H

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <tenon/tenon.h>

typedef struct batch {
    tn_tensor *x, *y;
} batch;

/* n points, and the class of each. */
static inline batch points(int64_t n, uint64_t seed)
{
    batch b;
    tn_manual_seed(seed);
    b.x = tn_randn(TN_SHAPE(n, 2));
    b.y = tn_to_dtype(tn_gt_scalar(tn_prod(b.x, TN_AXES(1), false), 0), TN_I64);
    TN_CHECK_PTR(b.y);
    return b;
}

static inline tn_module *net_new(void)
{
    tn_manual_seed(7);
    tn_linear_options o = { 0 };
    tn_module *m = tn_sequential(tn_linear_new(2, 16, o), tn_relu_new(), tn_linear_new(16, 2, o));
    TN_CHECK_PTR(m);
    return m;
}

static inline tn_tensor *loss_of(tn_module *m, void *user)
{
    const batch *b = user;
    return tn_cross_entropy(tn_forward(m, b->x), b->y);
}

/* Another task, a straight line: y = x1 + x2. */
static inline batch line(void)
{
    batch b;
    tn_manual_seed(3);
    b.x = tn_mul_scalar(tn_randn(TN_SHAPE(64, 2)), 3);
    b.y = tn_sum(b.x, TN_AXES(1), true);
    TN_CHECK_PTR(b.y);
    return b;
}

static inline tn_tensor *line_loss(tn_module *m, void *user)
{
    const batch *b = user;
    return tn_mse_loss(tn_forward(m, b->x), b->y, TN_MEAN);
}

/* One step as it should be; returns the loss before it. */
static inline double step_of(tn_module *m, tn_optim *opt, batch *b)
{
    double now = NAN;
    TN_SCOPE
    {
        tn_tensor *loss = loss_of(m, b);
        TN_CHECK(tn_optim_zero_grad(opt));
        TN_CHECK(tn_backward(loss));
        TN_CHECK(tn_optim_step(opt));
        now = tn_item(loss);
    }
    return now;
}

/* steps of them; prints the first loss and the last one. */
static inline void train(tn_module *m, tn_optim *opt, batch *b, int steps)
{
    double first = step_of(m, opt, b), last = first;
    for (int i = 1; i < steps; i++) last = step_of(m, opt, b);
    printf("%d steps: loss %.2f to %.2f\n", steps, first, last);
}

#endif
