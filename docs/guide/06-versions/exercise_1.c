/*
 * Would backward refuse? Count the values that ops behind root keep and that have changed since:
 * their version at forward differs from tn_version of what is kept. Look at inputs (in), outputs
 * (out) and extra values (saved).
 */
#include <tenon/tenon.h>

static int look(const tn_graph_node *n, void *user)
{
    int *stale = user;
    (void)n, (void)stale; /* your code here */
    return 0;
}

int stale_values(tn_tensor *root)
{
    int stale = 0;
    TN_CHECK(tn_graph_visit(root, look, &stale, (tn_graph_options){ 0 }));
    return stale;
}
