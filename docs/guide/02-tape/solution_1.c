/*
 * What a tape keeps: a sum over the values of all nodes.
 */
#include <tenon/tenon.h>

static int add_bytes(const tn_graph_node *n, void *user)
{
    size_t *bytes = user;
    for (int i = 0; i < n->n_in; i++) *bytes += n->in[i].kept_bytes;
    for (int i = 0; i < n->n_out; i++) *bytes += n->out[i].kept_bytes;
    for (int i = 0; i < n->n_saved; i++) *bytes += n->saved[i].kept_bytes;
    return 0;
}

size_t kept_bytes(tn_tensor *root)
{
    size_t bytes = 0;
    TN_CHECK(tn_graph_visit(root, add_bytes, &bytes, (tn_graph_options){ 0 }));
    return bytes;
}
