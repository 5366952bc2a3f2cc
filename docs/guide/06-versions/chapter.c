/*
 * Chapter 6: version counters. Backward refuses to compute with values that have changed.
 */
#include <inttypes.h>
#include <tenon/tenon.h>

static tn_tensor *leaf(const char *name)
{
    tn_tensor *t = tn_full(TN_SHAPE(3), 0.5);
    TN_CHECK(tn_set_name(t, name));
    TN_CHECK(tn_set_requires_grad(t, true));
    return t;
}

/* What each op keeps, with its version at forward and now. */
static int show(const tn_graph_node *n, void *user)
{
    (void)user;
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        const tn_graph_value *v = i < n->n_in ? &n->in[i] : &n->out[i - n->n_in];
        if (v->kept)
            printf("%s keeps its %s: version %" PRIu64 " then, %" PRIu64 " now\n", n->name,
                   i < n->n_in ? "input" : "output", v->version, tn_version(v->kept));
    }
    return 0;
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = leaf("x"), *y = tn_exp(x), *loss = tn_sum_all(tn_square(y));
    TN_CHECK(tn_set_name(y, "y"));
    if (tn_mul_scalar_(y, 2) != TN_OK) printf("1 %s\n", tn_error());

    TN_NO_GRAD TN_CHECK(tn_mul_scalar_(y, 2)); /* nobody looks */
    TN_CHECK(tn_graph_visit(loss, show, NULL, (tn_graph_options){ 0 }));
    if (tn_backward(loss) != TN_OK) printf("2 %s\n", tn_error());
    printf("x has a gradient: %s\n", tn_is_none(tn_grad(x)) ? "no" : "yes");

    /* An addition keeps nothing: its result may be overwritten. */
    tn_tensor *sum = tn_add_scalar(x, 1);
    loss = tn_sum_all(sum);
    TN_NO_GRAD TN_CHECK(tn_mul_scalar_(sum, 2));
    TN_CHECK(tn_backward(loss));
    tn_print(tn_grad(x));

    /* Views share memory and so its counter. */
    tn_tensor *first = tn_narrow(tn_detach(y), 0, 0, 1);
    printf("y %" PRIu64 ", a view of it %" PRIu64, tn_version(y), tn_version(first));
    TN_CHECK(tn_fill_(first, 7));
    printf("; after writing to the view %" PRIu64 "\n", tn_version(y));

    /* An optimizer's step is an in-place change of its parameters. */
    tn_tensor *w = leaf("w"), *old = tn_sum_all(tn_square(w));
    tn_list *list = tn_list_new();
    TN_CHECK(tn_list_add(list, "w", w));
    tn_optim *opt = tn_sgd(list, (tn_sgd_options){ .lr = 0.1 });
    TN_CHECK(tn_backward_from(old, TN_NONE, TN_RETAIN_GRAPH));
    TN_CHECK(tn_optim_step(opt));
    if (tn_backward(old) != TN_OK) printf("3 %s\n", tn_error());
    tn_optim_free(opt);
    tn_scope_end(scope);
    return 0;
}
