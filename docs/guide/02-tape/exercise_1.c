/*
 * How many bytes does the tape behind root keep for backward? A visitor sees every node; the inputs
 * (in), outputs (out) and extra values (saved) of an op each say kept_bytes. Add them all up;
 * what two ops keep counts twice.
 */
#include <tenon/tenon.h>

static int add_bytes(const tn_graph_node *n, void *user)
{
    size_t *bytes = user;
    (void)n, (void)bytes; /* your code here */
    return 0;
}

size_t kept_bytes(tn_tensor *root)
{
    size_t bytes = 0;
    TN_CHECK(tn_graph_visit(root, add_bytes, &bytes, (tn_graph_options){ 0 }));
    return bytes;
}
