// blocks.cpp - every macro of the public headers in a C++ program: compiled by cxx_check.sh with
// each compiler there is, warnings being errors, and run.
//
// Seen to fail: TN_SHAPE and tn_sequential as compound literals do not compile; without
// TN_WHEN_LEFT the mode after `return` out of TN_NO_GRAD.
#include <tenon/tenon.h>

static int failed;

static void check(bool right, const char *what)
{
    if (right) return;
    printf("failed: %s (%s)\n", what, tn_error());
    failed++;
}

static int leave_by_return()
{
    TN_NO_GRAD
    {
        TN_AUTOCAST(TN_BF16)
        {
            TN_SCOPE
            {
                tn_zeros(TN_SHAPE(2, 2));
                return tn_grad_enabled() || tn_autocast() != TN_BF16;
            }
        }
    }
    return 1;
}

static void modes()
{
    int64_t live = tn_live_tensors();
    check(leave_by_return() == 0, "inside the blocks");
    check(tn_grad_enabled() && tn_autocast() == TN_F32, "the modes after return");
    check(tn_live_tensors() == live, "the scope after return");
    for (int i = 0; i < 3; i++) TN_SCOPE
        {
            tn_zeros(TN_SCALAR);
            if (i < 1) break;
            if (i < 2) continue;
        }
    check(tn_live_tensors() == live, "the scope after break and continue");
}

static void training()
{
    tn_scope scope = tn_scope_begin();
    int64_t n = 6;
    tn_tensor *x = tn_randn(TN_SHAPE(n, 4)), *y = tn_randint(0, 3, TN_SHAPE(n));
    tn_module *model = tn_sequential(tn_linear_new(4, 8, tn_linear_options{}), tn_relu_new(),
                                     tn_linear_new(8, 3, tn_linear_options{}));
    TN_CHECK_PTR(model);
    check(tn_get_submodule(model, "2") != TN_NO_MODULE, "a sequential of three");
    tn_sgd_options o{};
    o.lr = 0.5;
    tn_optim *opt = tn_sgd(tn_parameters(model), o);
    TN_CHECK_PTR(opt);
    double first = 0, last = 0;
    for (int step = 0; step < 20; step++) TN_SCOPE
        {
            tn_tensor *loss = tn_cross_entropy(tn_forward(model, x), y);
            TN_CHECK(tn_optim_zero_grad(opt));
            TN_CHECK(tn_backward(loss));
            TN_CHECK(tn_optim_step(opt));
            last = tn_item(loss);
            if (step == 0) first = last;
        }
    check(last < first, "the loss falls");
    check(tn_linear(x, tn_get_parameter(model, "0.weight"), TN_NONE) != nullptr, "no bias");
    check(tn_size(x, 7) == TN_NO_SIZE, "no such size");
    tn_tensor *sums = tn_sum(tn_ones(TN_SHAPE(2, 3, 4)), TN_AXES(0, 2), false);
    check(tn_rank(sums) == 1 && tn_at(sums, TN_INDEX(2)) == 8, "axes and an index");
    check(tn_size(tn_permute(x, TN_AXES(1, 0)), 0) == 4, "axes in another order");
    tn_error_clear();
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_scope_end(scope);
}

// An op of one's own, and a viewer of the tape.
static tn_status cube(tn_custom *c, int, tn_tensor *const *in, int, tn_tensor **out)
{
    out[0] = tn_mul(in[0], tn_square(in[0]));
    return tn_custom_save(c, in[0]);
}

static tn_status cube_grad(tn_custom *c, int, tn_tensor *const *dout, int, tn_tensor **din)
{
    din[0] = tn_mul_scalar(tn_mul(dout[0], tn_square(tn_custom_saved(c, 0))), 3);
    return TN_OK;
}

static const tn_custom_op cube_op = { "cube", "y = x^3", cube, cube_grad, nullptr, false, nullptr };

static tn_tensor *cube_of(tn_tensor **in, void *)
{
    return tn_apply(&cube_op, nullptr, 1, in);
}

static int count_cubes(const tn_graph_node *node, void *user)
{
    *static_cast<int *>(user) += node->kind == TN_GRAPH_OP && node->formula[4] == 'x';
    return 0;
}

static void own_op()
{
    TN_SCOPE
    {
        const double values[] = { -1, 0.5, 2 };
        tn_tensor *x = tn_from_data(values, TN_SHAPE(3), TN_F64), *y = nullptr;
        tn_set_requires_grad(x, true);
        tn_gradcheck_options twice{};
        twice.second = true;
        check(tn_gradcheck(cube_of, &x, 1, nullptr, twice) == TN_OK, "gradients of an own op");
        TN_PLACES y = cube_of(&x, nullptr);
        int cubes = 0;
        check(!tn_places() && tn_graph_visit(y, count_cubes, &cubes, tn_graph_options{}) == TN_OK,
              "a walk");
        check(cubes == 1, "the op on the tape");
    }
}

int main()
{
    check(TN_SHAPE(2, 3).rank == 2 && TN_SHAPE(2, 3).size[1] == 3 && TN_SCALAR.rank == 0, "shapes");
    modes();
    training();
    own_op();
    printf("1 passed, %d failed\n", failed);
    return failed != 0;
}
