/*
 * The depth of a graph: each op hands its own depth, and one more, to where its inputs came from.
 */
#include <tenon/tenon.h>

enum { MOST = 1000 };

typedef struct depths {
    int of[MOST]; /* of each node, by its id: the ops on the longest way from root to it */
    int largest;
} depths;

static int go_deeper(const tn_graph_node *n, void *user)
{
    depths *d = user;
    if (n->kind != TN_GRAPH_OP) return 0;
    int here = d->of[n->id] + 1;
    if (here > d->largest) d->largest = here;
    for (int i = 0; i < n->n_in; i++) {
        int from = n->in[i].from;
        if (from >= 0 && from < MOST && d->of[from] < here) d->of[from] = here;
    }
    return 0;
}

int depth(tn_tensor *root)
{
    depths d = { { 0 }, 0 };
    TN_CHECK(tn_graph_visit(root, go_deeper, &d, (tn_graph_options){ 0 }));
    return d.largest;
}
