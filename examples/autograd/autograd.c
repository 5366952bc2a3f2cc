/*
 * autograd - what backward does: for a neuron, small enough for pencil and paper, or (--net) for a
 * net of two layers. It prints the tape, step by step as backward plays it, and each gradient
 * beside the change of the loss when the number is moved a little. With --explain backward is told
 * in words. usage: autograd [--net] [--explain | --html FILE] [--dot FILE]
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "../common.h"

/* A loss that depends on some tensors, by their names. */
typedef struct task {
    tn_tensor *(*loss)(struct task *t);
    tn_module *model; /* of the net; NULL */
    tn_list *leaves;
    tn_tensor *x, *y; /* the net's data */
} task;

/* ---- a neuron -------------------------------------------------------------------------------- */

/* (tanh(w1 x1 + w2 x2 + b) - 1)^2: how far the neuron's answer is from 1 */
static tn_tensor *neuron_loss(task *t)
{
    tn_tensor *a = tn_mul(tn_list_get(t->leaves, "w1"), tn_list_get(t->leaves, "x1"));
    tn_tensor *b = tn_mul(tn_list_get(t->leaves, "w2"), tn_list_get(t->leaves, "x2"));
    tn_tensor *n = tn_add(tn_add(a, b), tn_list_get(t->leaves, "b"));
    return tn_square(tn_add_scalar(tn_tanh(n), -1));
}

static void add_number(tn_list *list, const char *name, double value)
{
    tn_tensor *t = tn_full_as(TN_SCALAR, value, TN_F64, tn_cpu());
    TN_CHECK(tn_set_name(t, name));
    TN_CHECK(tn_set_requires_grad(t, true));
    TN_CHECK(tn_list_add(list, name, t));
}

static task neuron(void)
{
    task t = { .loss = neuron_loss, .leaves = tn_list_new() };
    add_number(t.leaves, "x1", 2);
    add_number(t.leaves, "x2", -1);
    add_number(t.leaves, "w1", 0.5);
    add_number(t.leaves, "w2", 1.5);
    add_number(t.leaves, "b", 1);
    return t;
}

/* ---- a net of two layers --------------------------------------------------------------------- */

static tn_tensor *net_loss(task *t)
{
    return tn_mse_loss(tn_forward(t->model, t->x), t->y, TN_MEAN);
}

static task net(void)
{
    const double inputs[] = { 0, 0, 0, 1, 1, 0, 1, 1 }, wanted[] = { 0, 1, 1, 0 };
    task t = { .loss = net_loss };
    t.model = tn_sequential(tn_linear_new(2, 3, (tn_linear_options){ 0 }), tn_tanh_new(),
                            tn_linear_new(3, 1, (tn_linear_options){ 0 }));
    TN_CHECK_PTR(t.model);
    TN_CHECK(tn_module_to_dtype(t.model, TN_F64)); /* in f32 small moves are lost */
    t.leaves = tn_parameters(t.model);
    t.x = tn_from_data(inputs, TN_SHAPE(4, 2), TN_F64);
    t.y = tn_from_data(wanted, TN_SHAPE(4, 1), TN_F64);
    TN_CHECK(tn_set_name(t.x, "x"));
    TN_CHECK(tn_set_name(t.y, "y"));
    return t;
}

/* ---- looking --------------------------------------------------------------------------------- */

static void print_shape(const tn_shape *s)
{
    printf("[");
    for (int i = 0; i < s->rank; i++) printf("%s%" PRId64, i ? "," : "", s->size[i]);
    printf("]");
}

/* "  4  tanh [4,3]  in 1 (Tanh)  y = tanh x;  gradients go to 5" */
static int print_step(const tn_graph_node *node, void *user)
{
    (void)user;
    printf("%3d  %s ", node->id, node->name);
    print_shape(&node->out[0].shape);
    if (node->kind != TN_GRAPH_OP) {
        printf(node->out[0].gradient ? "  a gradient ends here\n" : "  takes no gradient\n");
        return 0;
    }
    if (node->call) printf("  in %s (%s)", node->call->module, node->call->type);
    printf("  %s;  gradients go to", node->formula);
    for (int i = 0; i < node->n_in; i++)
        if (node->in[i].gradient) printf(" %d", node->in[i].from);
    printf("\n");
    return 0;
}

/* The slope of the loss along the first element of a leaf, by moving it a little to both sides. */
static double slope(task *t, tn_tensor *leaf)
{
    const double h = 1e-6;
    double loss[2] = { 0 };
    TN_NO_GRAD
    {
        tn_tensor *first = tn_select(tn_reshape(leaf, TN_SHAPE(-1)), 0, 0);
        double was = tn_item(first);
        for (int up = 0; up < 2; up++) {
            TN_CHECK(tn_fill_(first, up ? was + h : was - h));
            loss[up] = tn_item(t->loss(t));
        }
        TN_CHECK(tn_fill_(first, was));
    }
    return (loss[1] - loss[0]) / (2 * h);
}

static double first_of(tn_tensor *t)
{
    return tn_item(tn_select(tn_reshape(t, TN_SHAPE(-1)), 0, 0));
}

/* Backward's gradient of each leaf beside the slope; false if one is off. */
static bool print_gradients(task *t)
{
    bool right = true;
    printf("\n%-10s %12s %12s %12s\n", "element 0", "value", "gradient", "moved");
    for (int i = 0; i < t->leaves->n; i++) {
        tn_entry *e = &t->leaves->entry[i];
        double gradient = first_of(tn_grad(e->tensor)), moved = slope(t, e->tensor);
        printf("%-10s %12.6f %12.6f %12.6f\n", e->name, first_of(e->tensor), gradient, moved);
        right = right && gradient - moved < 1e-7 && moved - gradient < 1e-7;
    }
    return right;
}

static FILE *open_drawing(const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file) ex_refuse("--dot %s: %s", path, strerror(errno));
    return file;
}

static void draw(FILE *file, tn_tensor *loss, tn_module *model, const char *path)
{
    ex_check(tn_graph_dot(file, loss, (tn_graph_options){ .model = model }));
    if (fclose(file) != 0) ex_complain("--dot %s: %s", path, strerror(errno));
}

static tn_tensor *again(tn_module *model, void *user)
{
    task *t = user;
    (void)model;
    return t->loss(t);
}

/* Backward, with or without words. */
static void run_backward(task *t, tn_tensor *loss, bool explain)
{
    tn_explain_options o = { .model = t->model, .again = again, .user = t };
    if (!explain) {
        TN_CHECK(tn_backward(loss));
        return;
    }
    printf("\n");
    TN_CHECK(tn_explain(stdout, loss, o));
}

int main(int argc, char **argv)
{
    bool with_net = false, explain = false;
    const char *dot = NULL, *html = NULL;
    ex_option flags[] = {
        EX_FLAG("net", with_net, "a net of two layers instead of a neuron"),
        EX_FLAG("explain", explain, "backward told step by step, checked by differences"),
        EX_TEXT("dot", dot, "FILE", EX_WRITTEN,
                "draw the graph for Graphviz: dot -Tsvg FILE -o graph.svg"),
        EX_TEXT("html", html, "FILE", EX_WRITTEN, "a page that plays the tape, for a browser"),
    };
    ex_parse("autograd: the tape of a small computation, and its gradients", flags,
             sizeof flags / sizeof *flags, 0, argc, argv);
    if (explain && html) ex_refuse("--explain and --html: want one of them");
    FILE *drawing = dot ? open_drawing(dot) : NULL; /* refused before any work */

    tn_manual_seed(1);
    tn_scope program = tn_scope_begin();
    task t = with_net ? net() : neuron();
    tn_tensor *loss = NULL;
    ex_page_begin(html, 1, t.model, NULL);
    TN_PLACES loss = t.loss(&t); /* forward, and nodes that remember their modules */
    TN_CHECK_PTR(loss);
    printf("loss %.6f; backward:\n", tn_item(loss));
    TN_CHECK(tn_graph_visit(loss, print_step, NULL, (tn_graph_options){ .model = t.model }));
    if (drawing) draw(drawing, loss, t.model, dot);

    run_backward(&t, loss, explain);
    ex_page_step(true);
    bool right = print_gradients(&t);
    tn_module_drop(t.model);
    tn_scope_end(program);
    return ex_end() || !right;
}
