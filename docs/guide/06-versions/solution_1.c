/*
 * Kept values that have changed since forward.
 */
#include <tenon/tenon.h>

static int count(const tn_graph_value *values, int n)
{
    int stale = 0;
    for (int i = 0; i < n; i++)
        stale += values[i].kept && tn_version(values[i].kept) != values[i].version;
    return stale;
}

static int look(const tn_graph_node *n, void *user)
{
    int *stale = user;
    *stale += count(n->in, n->n_in) + count(n->out, n->n_out) + count(n->saved, n->n_saved);
    return 0;
}

int stale_values(tn_tensor *root)
{
    int stale = 0;
    TN_CHECK(tn_graph_visit(root, look, &stale, (tn_graph_options){ 0 }));
    return stale;
}
