/*
 * test_averages.c - moving averages of a model.
 *
 * Truth: numbers of PyTorch 2.15's torch.optim.swa_utils.AveragedModel in f64, closed forms, hashes
 * for what must not change, sums of our own for statistics.
 *
 * Seen to fail: in src/nn/averages.c, hold_parameters() without the memmove:
 * ema_equals_averaged_model fails; weight 1 / n for the equal average: the same; compare() left
 * out: ema_refuses_another_model fails.
 */
#include "boxes.h"
#include "files.h"

/* A buffer before the parameters, a norm, a tie: a table, c scale, child bn, other fc. */
static tn_tensor *averaged_run(box *m, tn_tensor *x)
{
    x = tn_add(tn_mul(x, m->c), m->a);
    return tn_forward(m->other, tn_forward(m->child, x));
}

static tn_module *averaged_new(void)
{
    box *m = box_new();
    tn_module *base = &m->base;
    m->run = averaged_run;
    assert_ok(buffer(base, "table", &m->a, tn_zeros(TN_SHAPE(2))));
    assert_ok(tn_register_module(base, "bn", &m->child, norm1d(2)));
    assert_ok(tn_register_parameter(base, "scale", &m->c, tn_zeros(TN_SHAPE(2))));
    assert_ok(tn_register_module(base, "fc", &m->other, linear(2, 2)));
    assert_ok(tn_register_module(base, "tied", NULL,
                                 tn_linear_new(2, 2, (tn_linear_options){ .no_bias = true })));
    assert_ok(tn_module_set(base, "tied.weight", tn_get_parameter(base, "fc.weight")));
    assert_ok(tn_module_to_dtype(base, TN_F64));
    return base;
}

/* The values behind the numbers below: tensor j of parameters and buffers, at step k. */
static void fill_step(tn_module *m, int k)
{
    tn_list *all = tn_list_concat(tn_parameters(m), tn_buffers(m));
    TN_NO_GRAD for (int j = 0; j < all->n; j++)
    {
        tn_tensor *t = all->entry[j].tensor;
        double v[8];
        for (int i = 0; i < 8; i++) v[i] = sin(i + 3 * j + 0.7 * k);
        if (tn_dtype_is_float(tn_dtype_of(t)))
            assert_ok(tn_copy_(t, from_f64(v, tn_shape_get(t))));
        else
            assert_ok(tn_fill_(t, 10 + k));
    }
}

static const char averaged_names[] =
    "n_averaged module.scale module.table module.bn.weight module.bn.bias module.bn.running_mean "
    "module.bn.running_var module.bn.num_batches_tracked module.fc.weight module.fc.bias "
    "module.tied.weight";

/* Of the state, in the order of its names: scale, table, bn (weight, bias, mean, variance, count;
 * PyTorch averages the count, to 10), fc's weight and bias, the tie. */
/* clang-format off */
static const struct averaged_case {
    tn_ema_options o;
    double v[23];
} averaged_cases[] = {
    { { .decay = 0.9 },
      { 0.22719304503010174, 0.7587069500645391, -0.9840650050816434, -0.6813137655554999, -0.11826589642077441,
        -0.7204678572494203, 0.006971655090482499, 0.6678085953729146, 0.9491245536478946, 0.7777941618010928,
        -0.8951873678196818, -0.8587070026099295, 13, 0.10446212396384652, -0.6017831399195167,
        -0.754751760226015, -0.21380509289678967, -0.21380509289678967, 0.5237129908290404,
        0.10446212396384652, -0.6017831399195167, -0.754751760226015, -0.21380509289678967 } },
    { { .decay = 0.9, .average_buffers = true },
      { 0.22719304503010174, 0.7587069500645391, 0.31886875144171956, -0.43516072266633904, -0.11826589642077441,
        -0.7204678572494203, 0.006971655090482499, 0.6678085953729146, -0.41755024975851995, 0.33789870968076574,
        0.5078744769874338, -0.23387365172352173, 13, 0.10446212396384652, -0.6017831399195167,
        -0.754751760226015, -0.21380509289678967, -0.21380509289678967, 0.5237129908290404,
        0.10446212396384652, -0.6017831399195167, -0.754751760226015, -0.21380509289678967 } },
    { { .equal = true },
      { 0.6232191959687563, 0.6375449095612018, -0.9840650050816434, -0.6813137655554999, -0.5665332222664687,
        -0.677913186175028, 0.4985080822685964, 0.7047130257583556, 0.9491245536478946, 0.7777941618010928,
        -0.8951873678196818, -0.8587070026099295, 13, -0.4205052996147072, -0.7174080293397087,
        -0.3547291253864181, 0.3340861005299684, 0.3340861005299684, 0.7157441063360922, -0.4205052996147072,
        -0.7174080293397087, -0.3547291253864181, 0.3340861005299684 } },
};
/* clang-format on */

START_TEST(ema_equals_averaged_model)
{
    const struct averaged_case *c = &averaged_cases[_i];
    tn_module *model = owned(averaged_new()), *ema = owned(tn_ema_new(model, c->o));
    assert_names(tn_state_dict(ema, ""), averaged_names);
    for (int k = 0; k < 4; k++) {
        fill_step(model, k);
        assert_ok(tn_ema_update(ema, model));
        if (k == 0) /* the first one copies */
            ck_assert_uint_eq(hash_of_module(tn_ema_module(ema)), hash_of_module(model));
    }
    const tn_list *state = tn_state_dict(tn_ema_module(ema), "");
    const double *v = c->v;
    for (int i = 0; i < state->n; i++) {
        const tn_tensor *t = state->entry[i].tensor;
        const char *d = values_difference(t, v, tn_numel(t), 1e-15);
        ck_assert_msg(!d, "%s: %s", state->entry[i].name, d);
        v += tn_numel(t);
    }
    ck_assert_ptr_eq(v, c->v + COUNT(c->v));
    ck_assert_int_eq((int)tn_item(tn_get_buffer(ema, "n_averaged")), 4);
}
END_TEST

START_TEST(ema_is_carried)
{
    tn_module *model = averaged_new(), *ema = owned(tn_ema_new(model, (tn_ema_options){ 0 }));
    ck_assert_int_eq(tn_parameters(ema)->n, 0);
    assert_null(sgd(tn_parameters(ema), 0), TN_E_INVALID, "is empty");
    assert_null(sgd(tn_buffers(ema), 0), TN_E_NAME,
                "n_averaged is a buffer: optimizers update parameters only");
    tn_tensor *detached = tn_detach(tn_get_buffer(ema, "module.fc.weight"));
    tn_list *raw = listed("w", detached, NULL);
    assert_null(sgd(raw, 0), TN_E_NAME, "shares memory with a buffer");
    /* the tie is kept, and is the copy's own */
    ck_assert_ptr_eq(tn_get_buffer(ema, "module.fc.weight"),
                     tn_get_buffer(ema, "module.tied.weight"));
    ck_assert(!tn_same_storage(detached, tn_get_parameter(model, "fc.weight")));
    ck_assert(!tn_requires_grad(detached));
    /* training the model records nothing here and leaves the average alone */
    fill_step(model, 0);
    assert_ok(tn_ema_update(ema, model));
    uint64_t hash = hash_of_module(ema);
    tn_optim *opt = sgd(tn_parameters(model), .lr = .1);
    tn_tensor *x = random_f64(TN_SHAPE(4, 2), -1, 1, 1);
    assert_ok(tn_backward(tn_mean_all(tn_square(tn_forward(model, x)))));
    assert_ok(tn_optim_step(opt));
    ck_assert_uint_eq(hash_of_module(ema), hash);
    assert_ok(tn_ema_update(ema, model));
    ck_assert_uint_ne(hash_of_module(ema), hash);
    tn_optim_free(opt);
    tn_module_drop(model);
    /* it outlives the model, runs as it does, and needs no gradient */
    assert_ok(tn_eval(ema));
    tn_tensor *y = tn_forward(ema, x);
    assert_made(y);
    ck_assert(!tn_requires_grad(y));
    assert_close(tn_forward(tn_ema_module(ema), x), y, 0, 0);
}
END_TEST

START_TEST(ema_mode_and_defaults)
{
    tn_module *model = owned(averaged_new());
    for (int training = 0; training < 2; training++) {
        assert_ok(tn_train(model, training));
        tn_module *ema = owned(tn_ema_new(model, (tn_ema_options){ 0 }));
        ck_assert_int_eq(tn_training(ema), training);
        ck_assert_int_eq(tn_training(tn_get_submodule(ema, "module.bn")), training);
        assert_ok(tn_train(ema, !training));
        ck_assert_int_eq(tn_training(tn_get_submodule(ema, "module.bn")), !training);
        ck_assert_int_eq(tn_training(model), training);
        /* decay 0.999: one thousandth of the way */
        fill_step(model, 0);
        assert_ok(tn_ema_update(ema, model));
        double a = tn_at(tn_get_buffer(ema, "module.scale"), TN_INDEX(1));
        fill_step(model, 1);
        assert_ok(tn_ema_update(ema, model));
        double x = tn_at(tn_get_parameter(model, "scale"), TN_INDEX(1));
        ck_assert_double_eq_tol(tn_at(tn_get_buffer(ema, "module.scale"), TN_INDEX(1)),
                                0.999 * a + 0.001 * x, 1e-15);
    }
}
END_TEST

/* A model that calls a grandchild by a field that no slot has, and one above it that does. */
static tn_tensor *by_child(box *m, tn_tensor *x)
{
    return tn_forward(m->other, x);
}

/* Of a model that points to a grandchild without a slot: it computes with averages. */
START_TEST(ema_of_a_model_with_other_fields)
{
    box *m = box_new();
    tn_module *parts = tn_module_dict_new();
    m->run = by_child;
    assert_ok(tn_register_module(parts, "fc", NULL,
                                 tn_linear_new(1, 1, (tn_linear_options){ .no_bias = true })));
    assert_ok(tn_register_module(&m->base, "parts", &m->child, parts));
    m->other = tn_get_submodule(parts, "fc");
    tn_tensor *w = tn_get_parameter(m->other, "weight"), *x = tn_ones(TN_SHAPE(1, 1));
    tn_module *ema = owned(tn_ema_new(&m->base, (tn_ema_options){ .equal = true }));
    for (int i = 0; i < 2; i++) {
        TN_NO_GRAD assert_ok(tn_fill_(w, 2 + 4 * i));
        assert_ok(tn_ema_update(ema, &m->base));
    }
    assert_values(tn_forward(&m->base, x), 0, 6);
    assert_values(tn_forward(ema, x), 0, 4);
    tn_module_drop(&m->base);
    assert_values(tn_forward(ema, x), 0, 4);
}
END_TEST

START_TEST(ema_refuses_another_model)
{
    tn_module *model = owned(averaged_new()),
              *ema = owned(tn_ema_new(model, (tn_ema_options){ .decay = .5 }));
    fill_step(model, 1);
    assert_ok(tn_ema_update(ema, model));
    uint64_t hash = hash_of_module(ema);
    tn_module *relu = owned(tn_relu_new());
    for (int k = 0; k < 6; k++) {
        static const char *const wanted[] = {
            "tn_ema_update: the model has no fc.bias",
            "tn_ema_update: the average has no late",
            "fc.bias is [2] f64 in the average, [3] f64 in the model",
            "table is [2] f64 in the average, [2] i64 in the model",
            "9 tensors in the average, 10 in the model: want the ties",
            "tn_ema_update: the module is a ReLU: want an Ema",
        };
        static const tn_status status[] = { TN_E_NAME,  TN_E_NAME,  TN_E_SHAPE,
                                            TN_E_SHAPE, TN_E_STATE, TN_E_INVALID };
        tn_module *m = owned(averaged_new());
        fill_step(m, 2);
        if (k == 0) assert_ok(tn_module_delete(tn_get_submodule(m, "fc"), "bias"));
        if (k == 1) assert_ok(buffer(m, "late", NULL, tn_ones(TN_SHAPE(1))));
        if (k == 2) assert_ok(tn_module_set(m, "fc.bias", tn_ones(TN_SHAPE(3))));
        if (k == 2) assert_ok(tn_module_to_dtype(m, TN_F64));
        if (k == 3)
            assert_ok(tn_module_set(m, "table", tn_from_ints((int64_t[]){ 1, 2 }, TN_SHAPE(2))));
        if (k == 4)
            assert_ok(tn_module_set(m, "tied.weight",
                                    tn_clone(tn_detach(tn_get_parameter(m, "fc.weight")))));
        assert_fails(tn_ema_update(k == 5 ? relu : ema, m), status[k], wanted[k]);
        ck_assert_msg(hash_of_module(ema) == hash, "case %d: the average has changed", k);
    }
    /* another floating dtype is not a mismatch: an f64 average of an f32 model */
    tn_module *single = owned(averaged_new());
    assert_ok(tn_module_to_dtype(single, TN_F32));
    assert_ok(tn_ema_update(ema, single));
    ck_assert_int_eq(tn_dtype_of(tn_get_buffer(ema, "module.scale")), TN_F64);
    assert_null(tn_ema_new(model, (tn_ema_options){ .decay = 1.5 }), TN_E_INVALID, "decay 1.5");
    assert_null(tn_ema_new(model, (tn_ema_options){ .decay = NAN }), TN_E_INVALID, "decay nan");
    assert_null(tn_ema_new(model, (tn_ema_options){ .decay = .9, .equal = true }), TN_E_INVALID,
                "decay 0.9 and equal");
    ck_assert_ptr_null(tn_ema_module(single));
    tn_error_clear();
}
END_TEST

/* Interrupted after two updates, saved, loaded into a new average, continued. */
START_TEST(ema_resumes_from_a_file)
{
    const char *path = in_folder("average.safetensors");
    tn_module *model = owned(averaged_new());
    tn_module *a = owned(tn_ema_new(model, averaged_cases[_i].o)),
              *b = owned(tn_ema_new(model, averaged_cases[_i].o));
    for (int k = 0; k < 5; k++) {
        fill_step(model, k);
        assert_ok(tn_ema_update(a, model));
        if (k == 1) {
            assert_ok(tn_save(a, path));
            assert_ok(tn_load(b, path));
        } else if (k > 1) {
            assert_ok(tn_ema_update(b, model));
        }
    }
    ck_assert_uint_eq(hash_of_module(b), hash_of_module(a));
}
END_TEST

START_TEST(an_average_follows_casts)
{
    tn_module *m = owned(tn_module_dict_new());
    assert_ok(tn_register_parameter(m, "w", NULL, tn_ones(TN_SHAPE(2))));
    tn_module *average = owned(tn_ema_new(m, (tn_ema_options){ .decay = 0.5 }));
    assert_ok(tn_ema_update(average, m)); /* 1 */
    assert_ok(tn_module_to_dtype(m, TN_F64));
    assert_ok(tn_init_constant(tn_get_parameter(m, "w"), 3));
    assert_ok(tn_ema_update(average, m)); /* 2 */
    tn_tensor *a = tn_get_buffer(average, "module.w");
    assert_ok(tn_module_to_dtype(average, TN_F64));
    assert_ok(tn_ema_update(average, m)); /* 2.5 */
    ck_assert_int_eq(tn_dtype_of(a), TN_F64);
    assert_ok(tn_module_to_dtype(average, TN_BF16)); /* too narrow for small steps */
    assert_ok(tn_ema_update(average, m));            /* 2.75 */
    ck_assert_int_eq(tn_dtype_of(a), TN_F32);
    assert_values(a, 0, 2.75, 2.75);
}
END_TEST

/* The average of a 16-bit model is f32, so that small shares count: of values 2, after a 1. */
START_TEST(HP_06_ema_of_a_narrow_model)
{
    static const struct {
        tn_dtype dtype;
        tn_ema_options o;
        int updates;
        double wanted;
    } run[] = { { TN_BF16, { .average_buffers = true }, 5001, 1.9932787 },
                { TN_F16, { .average_buffers = true }, 5001, 1.9932787 },
                { TN_BF16, { .decay = .9999 }, 501, 1.0487747 },
                { TN_BF16, { .equal = true, .average_buffers = true }, 1000, 1.999 } };
    tn_module *model = owned(tn_sequential(linear(2, 2), norm1d(2)));
    assert_ok(tn_module_to_dtype(model, run[_i].dtype));
    tn_module *ema = owned(tn_ema_new(model, run[_i].o));
    for (int k = 0; k < run[_i].updates; k++) {
        const tn_list *list = k < 2 ? tn_state_dict(model, "") : NULL;
        for (int i = 0; list && i < list->n; i++)
            TN_NO_GRAD assert_ok(tn_fill_(list->entry[i].tensor, k + 1));
        assert_ok(tn_ema_update(ema, model));
    }
    static const char *const names[] = { "0.weight", "0.bias", "1.weight", "1.running_var" };
    for (int i = 0; i < COUNT(names); i++) {
        const tn_tensor *t = tn_get_buffer(tn_ema_module(ema), names[i]);
        ck_assert_int_eq(tn_dtype_of(t), TN_F32);
        double wanted = i == 3 && !run[_i].o.average_buffers ? 2 : run[_i].wanted;
        ck_assert_double_eq_tol(tn_item(tn_max_all((tn_tensor *)t)), wanted, 2e-5);
    }
    /* saved and read as it is, called in f32 or under autocast; back in the model it is rounded */
    const char *path = in_folder("narrow.safetensors");
    tn_module *read = owned(tn_ema_new(model, run[_i].o));
    assert_ok(tn_save(ema, path));
    assert_ok(tn_load(read, path));
    ck_assert_uint_eq(hash_of_module(read), hash_of_module(ema));
    tn_tensor *x = tn_ones(TN_SHAPE(3, 2)), *narrow = tn_to_dtype(x, run[_i].dtype), *y = NULL;
    tn_eval(ema);
    ck_assert_int_eq(tn_dtype_of(tn_forward(ema, x)), TN_F32);
    TN_AUTOCAST(run[_i].dtype) y = tn_forward(ema, narrow);
    assert_made(y);
    tn_list *state = tn_state_dict(tn_ema_module(ema), "");
    assert_ok(load_with(model, state, .cast = true));
    ck_assert_int_eq(tn_dtype_of(tn_get_parameter(model, "0.weight")), run[_i].dtype);
    ck_assert_double_eq_tol(tn_item(tn_max_all(tn_get_parameter(model, "0.bias"))), run[_i].wanted,
                            1.0 / 128);
}
END_TEST

/* ---- computing with an average --------------------------------------------------------------- */

/* A model and an average of it after two updates, both in eval mode. */
typedef struct used {
    tn_module *model, *ema;
    uint64_t own, average; /* their values */
    tn_tensor *x;
} used;

static used used_new(tn_dtype dtype)
{
    used u = { .model = averaged_new(), .x = random_as(TN_SHAPE(4, 2), -1, 1, 3, dtype) };
    assert_ok(tn_module_to_dtype(u.model, dtype));
    assert_ok(tn_eval(u.model));
    u.ema = tn_ema_new(u.model, (tn_ema_options){ .decay = .5, .average_buffers = true });
    for (int k = 0; k < 2; k++) {
        fill_step(u.model, k);
        TN_NO_GRAD assert_ok(tn_fill_(tn_get_buffer(u.model, "bn.running_var"), 1 + k));
        assert_ok(tn_ema_update(u.ema, u.model));
    }
    tn_module *average = owned(tn_module_clone(u.model));
    assert_ok(load_with(average, tn_state_dict(tn_ema_module(u.ema), ""), .cast = true));
    u.own = hash_of_module(u.model);
    u.average = hash_of_module(average);
    ck_assert_uint_ne(u.own, u.average);
    return u;
}

static void used_drop(used *u)
{
    tn_module_drop(u->ema);
    tn_module_drop(u->model);
}

START_TEST(ema_is_used_and_given_back)
{
    static const tn_dtype dtypes[] = { TN_F64, TN_F32, TN_BF16 };
    used u = used_new(dtypes[_i]);
    tn_tensor *before = tn_forward(u.model, u.x), *w = tn_get_parameter(u.model, "fc.weight");
    for (int round = 0; round < 2; round++) {
        assert_ok(tn_ema_use(u.ema, u.model));
        ck_assert_uint_eq(hash_of_module(u.model), u.average);
        ck_assert_ptr_eq(tn_get_parameter(u.model, "fc.weight"), w);
        ck_assert_int_eq(tn_dtype_of(w), dtypes[_i]);
        if (dtypes[_i] != TN_BF16)
            assert_close(tn_forward(u.model, u.x), tn_forward(u.ema, u.x), 0, 0);
        assert_ok(tn_ema_restore(u.model));
        ck_assert_uint_eq(hash_of_module(u.model), u.own);
        assert_close(tn_forward(u.model, u.x), before, 0, 0);
    }
    assert_fails(tn_ema_restore(u.model), TN_E_STATE, "the Box has its own values");
    /* trained on from there */
    tn_optim *opt = owned(sgd(tn_parameters(u.model), .lr = .1));
    assert_ok(tn_set_grad(w, tn_ones_like(w)));
    assert_ok(tn_optim_step(opt));
    assert_ok(tn_ema_update(u.ema, u.model));
    used_drop(&u);
}
END_TEST

/* Each of these changes nothing, and what is its own comes back. */
static tn_status in_between(int what, used *u, tn_optim *opt)
{
    static tn_checkpoint c;
    tn_module *m = u->model, *fc = tn_get_submodule(m, "fc");
    tn_tensor *w = tn_get_parameter(m, "fc.weight");
    tn_status status = TN_OK;
    c = (tn_checkpoint){ .model = m };
    switch (what) {
    case 0: return tn_optim_step(opt);
    case 1: return tn_ema_use(u->ema, m);
    case 2: return tn_ema_update(u->ema, m);
    case 3: return load(m, tn_state_dict(tn_ema_module(u->ema), ""));
    case 4: return load_with(m, tn_state_dict(tn_ema_module(u->ema), ""), .assign = true);
    case 5: TN_NO_GRAD status = tn_fill_(w, 0); return status;
    case 6: return tn_init_constant(w, 0);
    case 7: return tn_module_set(m, "fc.weight", tn_zeros_like(w));
    case 8: return tn_module_set(m, "tied.weight", tn_zeros_like(w));
    case 9: return tn_checkpoint_save(&c, in_folder("used"));
    case 10: return tn_checkpoint_load(&c, in_folder("before"));
    case 11: return tn_train(m, true), tn_forward(m, u->x) ? TN_OK : tn_error_status();
    case 12: return tn_ema_update(u->ema, owned(tn_module_clone(m)));
    case 13: return tn_ema_use(owned(tn_ema_new(fc, (tn_ema_options){ 0 })), fc);
    default: return TN_OK;
    }
}

START_TEST(nothing_changes_what_an_average_is_used_in)
{
    static const char *const wanted[] = {
        "tn_optim_step: weight has an average's values: want tn_ema_restore before",
        "tn_ema_use: scale has an average's values: want tn_ema_restore before",
        "tn_ema_update: scale has an average's values",
        "tn_load_state_dict: fc.weight has an average's values",
        "tn_load_state_dict: fc.weight has an average's values",
        "tn_fill_: weight has an average's values",
        "weight has an average's values",
        "tn_module_set: weight has an average's values",
        "tn_module_set: weight has an average's values",
        "tn_checkpoint_save: scale has an average's values",
        "has an average's values",
        "running_mean has an average's values",
        "tn_ema_update: scale has an average's values",
        "tn_ema_use: weight has an average's values",
    };
    used u = used_new(TN_F64);
    tn_module *fc = tn_get_submodule(u.model, "fc");
    tn_tensor *w = tn_get_parameter(fc, "weight");
    tn_optim *opt = owned(sgd(tn_parameters(fc), .lr = .1));
    assert_ok(tn_set_grad(w, tn_ones_like(w)));
    assert_ok(tn_checkpoint_save(&(tn_checkpoint){ .model = u.model }, in_folder("before")));
    /* a load is all or nothing, where only the last module is in use */
    if (_i == 3 || _i == 4)
        assert_ok(tn_ema_use(owned(tn_ema_new(fc, (tn_ema_options){ 0 })), fc));
    else
        assert_ok(tn_ema_use(u.ema, u.model));
    uint64_t hash = hash_of_module(u.model);
    assert_fails(in_between(_i, &u, opt), TN_E_STATE, wanted[_i]);
    ck_assert_uint_eq(hash_of_module(u.model), hash);
    assert_ok(tn_ema_restore(u.model));
    ck_assert_uint_eq(hash_of_module(u.model), u.own);
    assert_ok(tn_eval(u.model));
    if (_i != 13 && _i != 1) assert_ok(in_between(_i, &u, opt));
    used_drop(&u);
}
END_TEST

/* Handled: casts, clones, files of weights, the average's own life, tensors that are replaced. */
START_TEST(an_average_in_use_and_the_rest)
{
    used u = used_new(TN_F64);
    const char *path = in_folder("weights");
    tn_module *read = owned(averaged_new()), *narrow = owned(tn_module_clone(u.model));
    assert_ok(tn_module_to_dtype(narrow, TN_BF16));
    assert_ok(tn_ema_use(u.ema, u.model));
    tn_module *copy = owned(tn_module_clone(u.model));
    assert_ok(tn_save(u.model, path));
    assert_ok(tn_load(read, path));
    used_drop(&(used){ .ema = u.ema }); /* the average goes first */
    ck_assert_uint_eq(hash_of_module(copy), u.average);
    ck_assert_uint_eq(hash_of_module(read), u.average);
    fill_step(copy, 0); /* a model as any other */
    assert_ok(tn_module_to_dtype(u.model, TN_BF16));
    assert_fails(tn_init_constant(tn_get_parameter(u.model, "scale"), 1), TN_E_STATE, "average");
    /* another tensor in the slot: there is nothing to give back */
    assert_ok(tn_register_parameter(tn_get_submodule(u.model, "fc"), "bias", NULL,
                                    tn_to_dtype(tn_ones(TN_SHAPE(2)), TN_BF16)));
    TN_NO_GRAD
    {
        assert_ok(tn_fill_(tn_get_parameter(u.model, "fc.bias"), 7));
        assert_ok(tn_ema_restore(u.model));
        assert_ok(tn_fill_(tn_get_parameter(narrow, "fc.bias"), 7));
    }
    ck_assert_uint_eq(hash_of_module(u.model), hash_of_module(narrow));
    tn_module_drop(u.model);
    u = used_new(TN_F32);
    assert_ok(tn_ema_use(u.ema, u.model));
    used_drop(&u); /* in use */
    tn_module *images = owned(tn_sequential(norm2d(2)));
    assert_ok(tn_ema_use(owned(tn_ema_new(images, (tn_ema_options){ 0 })), images));
    assert_null(tn_freeze_batch_norm(tn_module_keep(images)), TN_E_STATE,
                "tn_freeze_batch_norm: weight has an average's values");
    assert_ok(tn_ema_restore(images));
    assert_made(tn_freeze_batch_norm(images));
}
END_TEST

/* ---- statistics measured again --------------------------------------------------------------- */

/* Rows in batches of 2, 6 and 3. */
enum { ROWS = 11, FEATURES = 2 };
typedef struct batches {
    int at, bad; /* the batch that fails; -1: none */
    tn_tensor *x;
} batches;

static int next_batch(tn_module *m, void *user)
{
    static const int from[] = { 0, 2, 8, ROWS };
    batches *b = user;
    if (b->at == 3) return 0;
    if (b->at == b->bad) return tn_fail(TN_E_INVALID, "no batch"), -1;
    tn_tensor *x = tn_narrow(b->x, 0, from[b->at], from[b->at + 1] - from[b->at]);
    b->at++;
    return tn_forward(m, x) ? 1 : -1;
}

static int next_without_message(tn_module *m, void *user)
{
    (void)m, (void)user;
    return -1;
}

static int next_that_cancels(tn_module *m, void *user)
{
    (void)m, (void)user;
    tn_micro_batches_cancel();
    return 0;
}

static int next_with_parts(tn_module *m, void *user)
{
    (void)m, (void)user;
    return tn_micro_batches_begin(2);
}

/* Mean and unbiased variance of column j, by sums of our own. */
static void moments(const tn_tensor *x, int j, double *mean, double *var)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < ROWS; i++) sum += tn_at(x, TN_INDEX(i, j));
    *mean = sum / ROWS;
    for (int i = 0; i < ROWS; i++) squares += pow(tn_at(x, TN_INDEX(i, j)) - *mean, 2);
    *var = squares / (ROWS - 1);
}

static void assert_measured(tn_module *norm, const tn_tensor *x, bool measured)
{
    for (int j = 0; j < FEATURES; j++) {
        double mean = 0, var = 1;
        if (measured) moments(x, j, &mean, &var);
        tn_tensor *m = tn_get_buffer(norm, "running_mean"), *v = tn_get_buffer(norm, "running_var");
        ck_assert_double_eq_tol(tn_at(m, TN_INDEX(j)), mean, 1e-13);
        ck_assert_double_eq_tol(tn_at(v, TN_INDEX(j)), var, 1e-13);
    }
    ck_assert_double_eq(tn_item(tn_get_buffer(norm, "num_batches_tracked")), 0);
}

static int next_of_loader(tn_module *m, void *loader)
{
    tn_tensor *batch[2];
    int more = tn_loader_next(loader, batch, 2);
    return more > 0 && !tn_forward(m, batch[0]) ? -1 : more;
}

/* Batches of several sizes are one; NaN is forgotten; momentum, cumulative; frozen, evaluating. */
START_TEST(statistics_are_measured_again)
{
    tn_module *norms[4] = { norm1d(FEATURES), norm1d(FEATURES), norm1d(FEATURES) };
    norms[3] = tn_batch_norm1d_new(FEATURES, (tn_batch_norm_options){ .cumulative = true });
    tn_module *m = owned(tn_sequential_from(norms, 4));
    assert_ok(tn_module_to_dtype(m, TN_F64));
    batches b = { .bad = -1, .x = random_f64(TN_SHAPE(ROWS, FEATURES), 1, 3, 5) };
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_buffer(norms[0], "running_var"), NAN));
    assert_ok(tn_batch_norm_set_momentum(norms[0], .3));
    assert_ok(tn_module_freeze(norms[1]));
    assert_ok(tn_eval(norms[2]));
    assert_ok(tn_measure_statistics(m, next_batch, &b));
    for (int i = 0; i < 3; i++) assert_measured(norms[i], b.x, i == 0);
    ck_assert_double_eq(tn_batch_norm_momentum(norms[0]), .3);
    ck_assert_double_eq(tn_item(tn_get_buffer(norms[3], "num_batches_tracked")), 0);
    /* of batches that have variance 1, but for eps */
    double v = tn_at(tn_get_buffer(norms[3], "running_var"), TN_INDEX(0));
    ck_assert_double_eq_tol(v, ROWS / (ROWS - 1.0), 1e-3);
    /* an average: its weights and its count of updates are statistics and a counter, too */
    tn_module *ema = owned(tn_ema_new(norms[0], (tn_ema_options){ 0 }));
    assert_ok(tn_ema_update(ema, norms[0]));
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_buffer(ema, "module.running_mean"), 9));
    uint64_t weight = tn_hash(tn_get_buffer(ema, "module.weight"));
    tn_tensor *tensors[] = { b.x, tn_zeros(TN_SHAPE(ROWS)) };
    tn_loader *loader = tn_loader_new(tensors, 2, (tn_loader_options){ .batch_size = 4 });
    assert_ok(tn_measure_statistics(ema, next_of_loader, loader));
    tn_loader_free(loader);
    assert_measured(tn_ema_module(ema), b.x, true);
    ck_assert_double_eq(tn_item(tn_get_buffer(ema, "n_averaged")), 1);
    ck_assert_uint_eq(tn_hash(tn_get_buffer(ema, "module.weight")), weight);
}
END_TEST

START_TEST(measuring_fails_whole)
{
    tn_module *m = owned(tn_sequential(norm1d(FEATURES), tn_dropout_new(.5)));
    assert_ok(tn_module_to_dtype(m, TN_F64));
    uint64_t hash = hash_of_module(m);
    batches b = { .bad = 2, .x = random_f64(TN_SHAPE(ROWS, FEATURES), 1, 3, 5) };
    assert_fails(tn_measure_statistics(m, next_batch, &b), TN_E_INVALID, "no batch");
    assert_fails(tn_measure_statistics(m, next_without_message, NULL), TN_E_STATE,
                 "tn_measure_statistics: next returned -1 without a message");
    assert_fails(tn_measure_statistics(m, next_that_cancels, NULL), TN_E_STATE,
                 "next has ended the batch");
    assert_fails(tn_measure_statistics(m, next_with_parts, NULL), TN_E_STATE, "of a batch is open");
    assert_fails(tn_measure_statistics(m, NULL, NULL), TN_E_INVALID, "next is NULL");
    ck_assert_int_eq(tn_micro_batches_begin(2), 0);
    assert_fails(tn_measure_statistics(m, next_batch, &b), TN_E_STATE, "a batch in parts is open");
    tn_micro_batches_cancel();
    assert_ok(tn_eval(m));
    b = (batches){ .bad = -1, .x = b.x };
    assert_fails(tn_measure_statistics(m, next_batch, &b), TN_E_STATE,
                 "no batch norm in training saw a batch: want tn_train");
    ck_assert_uint_eq(hash_of_module(m), hash);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("averages");
    TCase *t = file_case(suite, "averages");
    add_tests(t, ema_is_carried, ema_mode_and_defaults, ema_of_a_model_with_other_fields,
              ema_refuses_another_model, an_average_follows_casts, an_average_in_use_and_the_rest,
              statistics_are_measured_again, measuring_fails_whole);
    tcase_add_loop_test(t, ema_is_used_and_given_back, 0, 3);
    tcase_add_loop_test(t, nothing_changes_what_an_average_is_used_in, 0, 14);
    tcase_add_loop_test(t, ema_equals_averaged_model, 0, COUNT(averaged_cases));
    tcase_add_loop_test(t, ema_resumes_from_a_file, 0, COUNT(averaged_cases));
    tcase_add_loop_test(t, HP_06_ema_of_a_narrow_model, 0, 4);
    return suite;
}
