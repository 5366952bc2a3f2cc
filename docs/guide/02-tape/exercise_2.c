/*
 * How deep is the graph behind root? The depth is the number of ops on the longest way from root
 * to a tensor that no op made. Ops come in the order of backward: an op before those that made its
 * inputs. So when a visitor sees an op, everything that reads its results has been seen.
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
    (void)n, (void)d; /* your code here */
    return 0;
}

int depth(tn_tensor *root)
{
    depths d = { { 0 }, 0 };
    TN_CHECK(tn_graph_visit(root, go_deeper, &d, (tn_graph_options){ 0 }));
    return d.largest;
}
