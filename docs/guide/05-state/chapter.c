/*
 * Chapter 5: the four kinds of tensor in a module, and who sees which.
 */
#include <string.h>
#include <tenon/tenon.h>

typedef struct net {
    tn_module base;
    tn_tensor *weight; /* a parameter: trained */
    tn_tensor *mean;   /* a buffer: carried, not trained */
    tn_tensor *mask;   /* a buffer that no file holds */
    tn_tensor *scale;  /* a plain field: nobody knows it */
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x)
{
    net *m = (net *)self;
    x = tn_mul(tn_sub(x, m->mean), m->mask);
    return tn_mul(tn_matmul(x, m->weight), m->scale);
}

static const tn_module_type net_type = { .name = "Net",
                                         .size = sizeof(net),
                                         .forward = net_forward };

static tn_module *net_new(tn_tensor *scale)
{
    net *m = tn_module_new(&net_type);
    if (!m) return NULL;
    tn_register_parameter(&m->base, "weight", &m->weight, tn_full(TN_SHAPE(2), 0.5));
    tn_register_buffer(&m->base, "mean", &m->mean, tn_ones(TN_SHAPE(2)), TN_PERSISTENT);
    tn_register_buffer(&m->base, "mask", &m->mask, tn_ones(TN_SHAPE(2)), TN_NON_PERSISTENT);
    m->scale = scale;
    return tn_module_done(&m->base);
}

static const char *yes(bool b)
{
    return b ? "yes" : "-";
}

/* One row of the ledger. */
static void show(tn_module *m, const char *name, tn_tensor *t)
{
    tn_list *one = tn_list_new(), *saved = tn_state_dict(m, "");
    TN_CHECK(tn_list_add(one, name, t));
    tn_optim *opt = tn_sgd(one, (tn_sgd_options){ .lr = 0.1 });
    printf("%-8s  %-4s  %-9s  %-7s  %s\n", name, yes(tn_requires_grad(t)),
           yes(tn_list_has(saved, name)), yes(tn_dtype_of(t) == TN_F64),
           opt ? "accepted" : "refused");
    tn_optim_free(opt);
}

static tn_tensor *loss(tn_module *m, void *user)
{
    return tn_mean_all(tn_forward(m, user));
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *scale = tn_full(TN_SCALAR, 2), *x = tn_full(TN_SHAPE(3, 2), 3);
    TN_CHECK(tn_set_name(scale, "scale"));
    net *m = (net *)net_new(scale);
    TN_CHECK_PTR(m);

    TN_CHECK(tn_module_to_dtype(&m->base, TN_F64)); /* every registered tensor goes along */
    printf("name      grad  in a file  is f64   an optimizer\n");
    show(&m->base, "weight", m->weight);
    show(&m->base, "mean", m->mean);
    show(&m->base, "mask", m->mask);
    show(&m->base, "scale", m->scale);
    if (!tn_sgd(tn_buffers(&m->base), (tn_sgd_options){ .lr = 0.1 })) printf("%s\n", tn_error());
    tn_error_clear();

    TN_CHECK(tn_module_to_dtype(&m->base, TN_F32));
    TN_CHECK(tn_explain_training(stdout, &m->base, NULL, loss, x, NULL));

    /* A leaf is a tensor that no op made. Gradients end in leaves. */
    tn_tensor *half = tn_mul_scalar(m->weight, 0.5);
    printf("weight is a leaf: %s; weight / 2: %s\n", yes(tn_is_leaf(m->weight)),
           yes(tn_is_leaf(half)));
    tn_module_drop(&m->base);
    tn_scope_end(scope);
    return 0;
}
