/*
 * Mistake: a tensor that forward reads, here the mean of the data, is a field that nobody
 * registered. Training goes well; the loaded model does not work.
 */
#include "clinic.h"

typedef struct net {
    tn_module base;
    tn_module *inner;
    tn_tensor *mean;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x)
{
    net *m = (net *)self;
    return tn_forward(m->inner, tn_sub(x, m->mean));
}

static const tn_module_type net_type = { .name = "Net",
                                         .size = sizeof(net),
                                         .forward = net_forward };

static tn_module *centred_new(tn_tensor *mean, bool registered)
{
    net *m = tn_module_new(&net_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "inner", &m->inner, net_new());
    if (registered)
        tn_register_buffer(&m->base, "mean", &m->mean, mean, TN_PERSISTENT); /* the cure */
    else
        m->mean = mean;
    return tn_module_done(&m->base);
}

static void live(bool registered)
{
    batch b = points(64, 1);
    b.x = tn_add_scalar(b.x, 5); /* data far from 0 */
    tn_tensor *mean = tn_mean(b.x, TN_AXES(0), false), *unknown = tn_zeros(TN_SHAPE(2));
    TN_CHECK(tn_set_name(mean, "mean"));
    tn_module *m = centred_new(mean, registered), *later = centred_new(unknown, registered);
    TN_CHECK_PTR(m);
    TN_CHECK_PTR(later);
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    train(m, opt, &b, 100);
    TN_CHECK(tn_save(m, "net.safetensors"));
    TN_CHECK(tn_load(later, "net.safetensors"));
    printf("loaded: loss %.2f\n", tn_item(loss_of(later, &b)));
    TN_CHECK(tn_explain_training(stdout, m, opt, loss_of, &b, NULL));
    tn_optim_free(opt), tn_module_drop(m), tn_module_drop(later);
}

int main(void)
{
    TN_SCOPE live(false);
    TN_SCOPE live(true);
    return 0;
}
