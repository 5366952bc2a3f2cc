/*
 * Chapter 2: the tape. A neuron is computed, looked at, and played back.
 */
#include <tenon/tenon.h>

static tn_tensor *number(const char *name, double value, bool requires_grad)
{
    tn_tensor *t = tn_scalar(value);
    TN_CHECK(tn_set_name(t, name));
    TN_CHECK(tn_set_requires_grad(t, requires_grad));
    return t;
}

/* One line for each node: the whole viewer. */
static int show(const tn_graph_node *n, void *user)
{
    (void)user;
    printf("%2d  %-10s", n->id, n->name);
    if (n->kind == TN_GRAPH_OP) printf(" %-12s", n->formula);
    for (int i = 0; i < n->n_in; i++)
        printf(n->in[i].gradient ? "  <- %d" : "  (%d)", n->in[i].from);
    if (n->kind != TN_GRAPH_OP)
        printf("%s", n->out[0].gradient ? " a gradient ends here" : " takes no gradient");
    printf(n->freed ? "  freed\n" : "\n");
    return 0; /* go on; any other number ends the walk */
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = number("x", 2, false);
    tn_tensor *w = number("w", 0.5, true), *b = number("b", -1, true);
    tn_tensor *y = NULL, *loss = NULL;

    TN_PLACES y = tn_tanh(tn_add(tn_mul(w, x), b));
    TN_PLACES loss = tn_square(tn_add_scalar(y, -1));
    printf("loss %g, made by %s; w is %s\n", tn_item(loss), tn_grad_op(loss),
           tn_is_leaf(w) ? "a leaf" : "a result");
    TN_CHECK(tn_graph_visit(loss, show, NULL, (tn_graph_options){ 0 }));

    TN_CHECK(tn_retain_grad(y)); /* y is no leaf: its gradient is kept only if asked for */
    TN_CHECK(tn_backward(loss));
    printf("dloss/dy %g, dloss/dw %g, dloss/db %g\n", tn_item(tn_grad(y)), tn_item(tn_grad(w)),
           tn_item(tn_grad(b)));
    TN_CHECK(tn_graph_visit(y, show, NULL, (tn_graph_options){ 0 }));
    if (tn_backward(loss) != TN_OK) printf("%s\n", tn_error());

    TN_NO_GRAD y = tn_tanh(tn_mul(w, x));
    printf("under TN_NO_GRAD: made by '%s', requires grad: %d\n", tn_grad_op(y),
           tn_requires_grad(y));
    tn_scope_end(scope);
    return 0;
}
