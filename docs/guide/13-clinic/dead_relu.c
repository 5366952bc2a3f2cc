/*
 * Mistake: biases far below 0. Every relu gives 0 for every point, so no gradient comes through.
 */
#include "clinic.h"

/* relu keeps its result for backward: all of it 0? */
static int look(const tn_graph_node *n, void *user)
{
    (void)user;
    if (n->kind != TN_GRAPH_OP || strcmp(n->name, "relu") != 0 || !n->out[0].kept) return 0;
    double largest = tn_item(tn_max_all((tn_tensor *)n->out[0].kept));
    if (largest > 0) return 0;
    printf("diagnosis: dead relu: all %d results of %s: %s are 0\n", (int)tn_numel(n->out[0].kept),
           n->call ? n->call->module : "?", n->call ? n->call->type : "?");
    return 0;
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1);
    tn_module *m = net_new();
    TN_CHECK(tn_init_constant(tn_get_parameter(m, "0.bias"), -10));
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    TN_CHECK(tn_explain_training(stdout, m, opt, loss_of, &b, NULL));
    train(m, opt, &b, 100);
    tn_tensor *loss = NULL;
    TN_PLACES loss = loss_of(m, &b);
    TN_CHECK(tn_graph_visit(loss, look, NULL, (tn_graph_options){ .model = m }));

    TN_CHECK(tn_init_constant(tn_get_parameter(m, "0.bias"), 0)); /* the cure */
    train(m, opt, &b, 100);
    tn_optim_free(opt), tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
