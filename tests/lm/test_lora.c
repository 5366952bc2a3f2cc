/*
 * test_lora.c - adapters of Linears: what is frozen, what is drawn, dropout, several, merging,
 * clones, moves, checkpoints, refusals.
 *
 * Truth: the sum written with ops; bits for what must not change. peft's values and files are in
 * test_adapters.c.
 *
 * Seen to fail: with a merged sum used whatever was written since, or came in the place of what it
 * was made of; a product in bf16; sums left behind by a failure or by unmerging; rank in place of
 * its root; modules with statistics or the base not frozen (src/nn/layers/lora.c).
 */
#include <tenon/lora.h>

#include "files.h"
#include "scarce.h"

/* ---- a model --------------------------------------------------------------------------------- */

/* fc1, norm (a BatchNorm), relu, fc2, relu, head. */
static tn_module *net_new(void)
{
    const tn_linear_options o = { 0 };
    tn_module *m = tn_module_dict_new();
    assert_made(m);
    assert_ok(tn_register_module(m, "fc1", NULL, tn_linear_new(6, 8, o)));
    assert_ok(
        tn_register_module(m, "norm", NULL, tn_batch_norm1d_new(8, (tn_batch_norm_options){ 0 })));
    assert_ok(tn_register_module(m, "fc2", NULL, tn_linear_new(8, 8, o)));
    assert_ok(tn_register_module(m, "head", NULL, tn_linear_new(8, 3, o)));
    return owned(m);
}

static tn_tensor *of(tn_module *m, tn_tensor *x)
{
    x = tn_forward(tn_get_submodule(m, "norm"), tn_forward(tn_get_submodule(m, "fc1"), x));
    x = tn_relu(tn_forward(tn_get_submodule(m, "fc2"), tn_relu(x)));
    return tn_forward(tn_get_submodule(m, "head"), x);
}

static tn_tensor *some_x(int64_t rows)
{
    return random_as(TN_SHAPE(rows, 6), -1, 1, 5, TN_F32);
}

static const tn_lora_options rank4 = { .rank = 4, .alpha = 6 };

/* Other values than zeros in every B of the active adapter. */
static void fill_b(tn_module *m, double value)
{
    const tn_list *p = tn_parameters(m);
    for (int i = 0; i < p->n; i++)
        if (strstr(p->entry[i].name, "lora_B") && tn_requires_grad(p->entry[i].tensor))
            assert_ok(tn_init_constant(p->entry[i].tensor, value));
}

static void train(tn_module *m, int steps)
{
    tn_optim *opt = tn_adamw(tn_parameters(m), (tn_adamw_options){ .lr = 0.1 }); /* decays, too */
    assert_made(opt);
    for (int i = 0; i < steps; i++) {
        assert_ok(tn_optim_zero_grad(opt));
        assert_ok(tn_backward(tn_mean(tn_square(of(m, some_x(4))), NULL, 0, false)));
        assert_ok(tn_optim_step(opt));
    }
    tn_optim_free(opt);
}

/* Names and bits of all that is no adapter, buffers that are in no file included. */
static uint64_t hash_of_base(tn_module *m)
{
    const tn_list *parts[] = { tn_parameters(m), tn_buffers(m) };
    tn_list *base = tn_list_new();
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < parts[k]->n; i++)
            if (strcmp(parts[k]->entry[i].owner->type->name, "Lora") != 0)
                assert_ok(tn_list_add(base, parts[k]->entry[i].name, parts[k]->entry[i].tensor));
    return hash_of(base);
}

static const char *trained(tn_module *m)
{
    static char text[1024];
    const tn_list *p = tn_parameters(m);
    text[0] = '\0';
    for (int i = 0; i < p->n; i++)
        if (tn_requires_grad(p->entry[i].tensor))
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] ? " " : "",
                     p->entry[i].name);
    return text;
}

/* ---- one call -------------------------------------------------------------------------------- */

START_TEST(one_call_freezes_all_but_the_adapter)
{
    tn_module *m = net_new();
    tn_tensor *x = some_x(4), *y = NULL;
    assert_ok(tn_eval(m));
    y = of(m, x);
    assert_ok(tn_train(m, true));
    assert_ok(tn_lora(m, "fc1,*2", rank4));
    ck_assert_str_eq(trained(m), "fc1.default.lora_A fc1.default.lora_B "
                                 "fc2.default.lora_A fc2.default.lora_B");
    ck_assert_int_eq(tn_size(tn_get_parameter(m, "fc1.default.lora_A"), 1), 6);
    assert_close(of(m, x), y, 0, 0); /* B is zero, and the norm is frozen */
    uint64_t base = hash_of_base(m), all = hash_of_module(m);
    train(m, 5);
    ck_assert(hash_of_base(m) == base);
    ck_assert(hash_of_module(m) != all);
    ck_assert(difference(of(m, x), y, 1e-3, 1e-3) != NULL);
    ck_assert(tn_is_none(tn_grad(tn_get_parameter(m, "fc1.weight"))));
    ck_assert_int_eq(tn_count_parameters(m, true), 4 * (6 + 8) + 4 * (8 + 8));
}
END_TEST

START_TEST(the_sum_is_that_of_the_formula)
{
    for (int rslora = 0; rslora < 2; rslora++) {
        tn_module *m = owned(tn_sequential(tn_linear_new(6, 8, (tn_linear_options){ 0 })));
        tn_tensor *x = tn_reshape(with_grad(some_x(4)), TN_SHAPE(2, 2, 6));
        assert_ok(tn_lora(m, "*", (tn_lora_options){ .rank = 4, .alpha = 6, .rslora = rslora }));
        tn_tensor *a = tn_get_parameter(m, "0.default.lora_A");
        tn_tensor *b = tn_get_parameter(m, "0.default.lora_B");
        const double bound = 1 / sqrt(6); /* kaiming uniform with slope sqrt(5) */
        ck_assert_double_le(tn_item(tn_max_all(tn_abs(a))), bound);
        ck_assert_double_ge(tn_item(tn_max_all(tn_abs(a))), 0.8 * bound);
        ck_assert_double_eq(tn_item(tn_max_all(tn_abs(b))), 0);
        fill_b(m, 0.25);
        tn_tensor *w = tn_get_parameter(m, "0.weight"), *bias = tn_get_parameter(m, "0.bias");
        tn_tensor *ba = tn_mul_scalar(tn_matmul(b, a), rslora ? 3 : 1.5), *y = tn_forward(m, x);
        assert_close(y, tn_linear(x, tn_add(w, ba), bias), 1e-6, 1e-6);
        assert_ok(tn_backward(tn_sum_all(tn_square(y))));
        tn_tensor *got = tn_grad(a);
        assert_ok(tn_set_grad(a, TN_NONE));
        assert_ok(tn_backward(tn_sum_all(tn_square(tn_linear(x, tn_add(w, ba), bias)))));
        assert_close(got, tn_grad(a), 1e-5, 1e-5);
    }
}
END_TEST

START_TEST(dropout_acts_in_training_alone)
{
    tn_module *m = net_new();
    tn_lora_options o = rank4;
    o.dropout = 0.5;
    assert_ok(tn_lora(m, "fc1", o));
    fill_b(m, 0.5);
    tn_tensor *x = some_x(4), *y = of(m, x);
    ck_assert(difference(of(m, x), y, 1e-4, 1e-4) != NULL);
    assert_ok(tn_eval(m));
    y = of(m, x);
    assert_close(of(m, x), y, 0, 0);
    assert_ok(tn_train(m, true));
    assert_ok(tn_dropout_set_p(m, 0));
    assert_close(of(m, x), y, 0, 0);
    m = net_new();
    assert_ok(tn_eval(m));
    assert_ok(tn_lora(m, "fc1", o));
    ck_assert(!tn_training(tn_get_submodule(m, "fc1.default")));
}
END_TEST

START_TEST(refusals_change_nothing)
{
    static const struct {
        const char *patterns;
        tn_lora_options o;
        tn_status status;
        const char *message;
    } cases[] = {
        { "fc1,q_proj",
          { 0 },
          TN_E_NAME,
          "tn_lora: \"q_proj\" fits no Linear: want a pattern of names such as \"head\" (*" },
        { "norm", { 0 }, TN_E_NAME, "\"norm\" fits no Linear" },
        { "", { 0 }, TN_E_NAME, "\"\" fits no Linear" },
        { NULL, { 0 }, TN_E_INVALID, "tn_lora: patterns is NULL" },
        { "fc1", { .rank = -1 }, TN_E_INVALID, "rank is -1: want 1 and up" },
        { "fc1", { .dropout = 1.5 }, TN_E_INVALID, "dropout probability 1.5" },
        { "fc1", { .alpha = NAN }, TN_E_INVALID, "alpha nan: want a finite number" },
        { "fc1", { .name = "a.b" }, TN_E_NAME, "adapter \"a.b\": want a name without dots" },
        { "*",
          { .name = "weight" },
          TN_E_NAME,
          "fc1.weight is beside a \"weight\" already: want another name" },
    };
    tn_module *m = net_new();
    uint64_t hash = hash_of_module(m);
    for (int i = 0; i < COUNT(cases); i++) {
        assert_fails(tn_lora(m, cases[i].patterns, cases[i].o), cases[i].status, cases[i].message);
        ck_assert(hash_of_module(m) == hash);
        ck_assert(tn_requires_grad(tn_get_parameter(m, "fc1.weight")));
    }
    assert_fails(tn_lora(NULL, "fc1", rank4), TN_E_INVALID, "tn_lora");
    assert_ok(tn_lora(m, "fc1", rank4));
    assert_fails(tn_lora(m, "*", rank4), TN_E_NAME, "fc1.weight is beside a \"default\" already");
    assert_fails(tn_lora_set(m, "b"), TN_E_NAME, "tn_lora_set: no Linear has a \"b\"");
    assert_fails(tn_lora_remove(m, NULL, false), TN_E_INVALID, "name");
    assert_fails(tn_lora_merge(m), TN_E_STATE, "m is in train mode: want tn_eval before");
    assert_fails(tn_lora_remove(m, "b", true), TN_E_NAME, "no Linear has a \"b\"");
    assert_fails(tn_lora_unmerge(NULL), TN_E_INVALID, "tn_lora_unmerge: the module is NULL");
}
END_TEST

/* A module that moves its own buffer, and has a child. */
typedef struct counting {
    tn_module base;
    tn_module *fc;
    tn_tensor *seen;
} counting;

static tn_tensor *counting_forward(tn_module *self, tn_tensor *x)
{
    counting *m = (counting *)self;
    if (tn_training(self)) assert_ok(tn_assign(&m->seen, tn_add_scalar(m->seen, 1)));
    return tn_forward(m->fc, x);
}

START_TEST(what_moves_buffers_is_frozen_where_no_adapter_is_below)
{
    static const tn_module_type type = { .name = "Counting",
                                         .size = sizeof(counting),
                                         .forward = counting_forward };
    counting *c = tn_module_new(&type);
    tn_register_module(&c->base, "fc", &c->fc, tn_linear_new(6, 6, (tn_linear_options){ 0 }));
    tn_register_buffer(&c->base, "seen", &c->seen, tn_zeros(TN_SHAPE(1)), 0);
    tn_module *m = owned(
        tn_sequential(tn_module_done(&c->base), tn_linear_new(6, 6, (tn_linear_options){ 0 })));
    assert_ok(tn_lora(m, "1", rank4));
    assert_made(tn_forward(m, some_x(2)));
    ck_assert_double_eq(tn_item(c->seen), 0);
    assert_ok(tn_module_thaw(m));
    assert_ok(tn_lora(m, "0.fc", (tn_lora_options){ .name = "b" }));
    ck_assert(!tn_module_frozen(&c->base));
    ck_assert_str_eq(trained(m), "0.fc.b.lora_A 0.fc.b.lora_B");
}
END_TEST

/* ---- several, merged, copied ----------------------------------------------------------------- */

START_TEST(adapters_are_switched_at_run_time)
{
    tn_module *m = net_new();
    tn_lora_options second = { .name = "second", .rank = 2, .rslora = true };
    assert_ok(tn_lora(m, "fc1,fc2", rank4));
    tn_tensor *x = some_x(4), *none = of(m, x), *a, *b;
    fill_b(m, 0.5);
    a = of(m, x);
    assert_ok(tn_backward(tn_sum_all(a)));
    assert_ok(tn_lora(m, "fc2,head", second));
    ck_assert_str_eq(trained(m), "fc2.second.lora_A fc2.second.lora_B "
                                 "head.second.lora_A head.second.lora_B");
    ck_assert(tn_is_none(tn_grad(tn_get_parameter(m, "fc1.default.lora_B"))));
    assert_close(of(m, x), none, 0, 0);
    fill_b(m, -1);
    b = of(m, x);
    ck_assert(difference(a, b, 1e-3, 1e-3) && difference(none, b, 1e-3, 1e-3));
    assert_ok(tn_lora_set(m, "default"));
    assert_close(of(m, x), a, 0, 0);
    assert_ok(tn_lora_set(m, NULL));
    assert_close(of(m, x), none, 0, 0);
    ck_assert_str_eq(trained(m), "");
    assert_ok(tn_lora_set(m, "second"));
    assert_close(of(m, x), b, 0, 0);
    assert_ok(tn_lora_remove(m, "second", false));
    assert_close(of(m, x), none, 0, 0);
    assert_fails(tn_lora_set(m, "second"), TN_E_NAME, "no Linear has a \"second\"");
    assert_ok(tn_lora_remove(m, "default", false));
    ck_assert_int_eq(tn_module_children(tn_get_submodule(m, "fc1")), 0);
    assert_close(of(m, x), none, 0, 0);
}
END_TEST

START_TEST(merging_is_taken_back_bit_for_bit)
{
    for (int half = 0; half < 2; half++) {
        tn_module *m = net_new();
        if (half) assert_ok(tn_module_to_dtype(m, TN_BF16));
        assert_ok(tn_lora(m, "fc1,fc2", rank4));
        ck_assert_int_eq(tn_dtype_of(tn_get_parameter(m, "fc1.default.lora_A")), TN_F32);
        fill_b(m, 0.3);
        assert_ok(tn_eval(m));
        double tolerance = half ? 3e-2 : 1e-5;
        tn_tensor *x = tn_to_dtype(some_x(4), half ? TN_BF16 : TN_F32), *y = of(m, x);
        ck_assert_int_eq(tn_dtype_of(y), half ? TN_BF16 : TN_F32);
        uint64_t hash = hash_of_module(m), base = hash_of_base(m);
        assert_ok(tn_lora_merge(m));
        tn_tensor *merged = of(m, x), *sum = tn_get_buffer(m, "fc2.default.merged");
        ck_assert_int_eq(tn_dtype_of(sum), half ? TN_BF16 : TN_F32);
        assert_close(merged, y, tolerance, tolerance);
        ck_assert(difference(merged, y, 0, 0) != NULL);                  /* another order of sums */
        ck_assert(hash_of_module(m) == hash && hash_of_base(m) == base); /* so are files */
        assert_close(of(owned(tn_module_clone(m)), x), y, 0, 0);
        assert_ok(tn_lora_unmerge(m));
        ck_assert(tn_is_none(tn_get_buffer(m, "fc2.default.merged")));
        assert_close(of(m, x), y, 0, 0);
        assert_ok(tn_lora_merge(m));
        fill_b(m, -0.3); /* so what was merged is no longer right */
        tn_tensor *z = of(m, x);
        ck_assert(difference(z, y, 1e-2, 1e-2) != NULL);
        assert_ok(tn_lora_merge(m));
        assert_close(of(m, x), z, tolerance, tolerance);
        assert_ok(tn_train(m, true));
        ck_assert(tn_is_none(tn_get_buffer(m, "fc1.default.merged")));
        assert_ok(tn_eval(m));
        ck_assert(hash_of_base(m) == base);
        assert_ok(tn_lora_remove(m, "default", true));
        ck_assert_int_eq(tn_module_children(tn_get_submodule(m, "fc1")), 0);
        assert_close(of(m, x), z, tolerance, tolerance);
        ck_assert_int_eq(tn_parameters(m)->n, 8);
        ck_assert_str_eq(trained(m), "");
    }
}
END_TEST

/* What was merged is used for the tensors that it was made of alone: not for an average's, others
 * that are put in their places, or a clone's that were cast to and fro. */
START_TEST(a_sum_is_of_what_is_there)
{
    tn_module *m = net_new();
    assert_ok(tn_lora(m, "fc1,fc2", rank4));
    fill_b(m, 0.3);
    tn_module *e = owned(tn_ema_new(m, (tn_ema_options){ .decay = 0.5 }));
    assert_ok(tn_ema_update(e, m));
    fill_b(m, -0.2);
    assert_ok(tn_ema_update(e, m));
    assert_ok(tn_eval(m));
    tn_tensor *x = some_x(4), *own = of(m, x);
    assert_ok(tn_ema_use(e, m));
    tn_tensor *average = of(m, x);
    assert_ok(tn_ema_restore(m));
    assert_ok(tn_lora_merge(m));
    assert_ok(tn_ema_use(e, m));
    assert_close(of(m, x), average, 0, 0);
    assert_ok(tn_ema_restore(m));
    assert_close(of(m, x), own, 1e-5, 1e-5);
    assert_ok(tn_module_set(m, "fc1.default.lora_B", tn_zeros(TN_SHAPE(8, 4))));
    tn_tensor *set = of(m, x);
    assert_ok(tn_lora_unmerge(m));
    assert_close(of(m, x), set, 1e-5, 1e-5);
    tn_module *copy = owned(tn_module_clone(m));
    assert_ok(tn_lora_merge(copy));
    fill_b(copy, 0.7);
    tn_tensor *other = of(copy, x);
    assert_ok(tn_module_to_dtype(copy, TN_F64));
    assert_ok(tn_module_to_dtype(copy, TN_F32));
    assert_close(of(copy, x), other, 1e-6, 1e-6);
    ck_assert(difference(other, set, 1e-2, 1e-2) != NULL);
}
END_TEST

/* A merge under autocast multiplies in f32. */
START_TEST(merging_is_not_cast)
{
    tn_module *m = net_new(), *n = net_new();
    const tn_list *from = tn_parameters(m), *to = tn_parameters(n);
    for (int i = 0; i < from->n; i++)
        TN_NO_GRAD assert_ok(tn_copy_(to->entry[i].tensor, from->entry[i].tensor));
    tn_module *both[] = { m, n };
    for (int i = 0; i < 2; i++) {
        assert_ok(tn_lora(both[i], "fc2", rank4));
        assert_ok(tn_init_constant(tn_get_parameter(both[i], "fc2.default.lora_A"), 0.123));
        fill_b(both[i], 0.321);
        if (i) TN_AUTOCAST(TN_BF16) assert_ok(tn_lora_remove(both[i], "default", true));
        if (!i) assert_ok(tn_lora_remove(both[i], "default", true));
    }
    assert_close(tn_get_parameter(n, "fc2.weight"), tn_get_parameter(m, "fc2.weight"), 0, 0);
}
END_TEST

START_TEST(a_tied_weight_stays_as_it_is)
{
    tn_module *tied = tn_embedding_new(6, 6, (tn_embedding_options){ 0 });
    tn_module *head = tn_linear_new(6, 6, (tn_linear_options){ .no_bias = true });
    tn_module *m = owned(tn_sequential(tied, head));
    assert_ok(tn_module_set(m, "1.weight", tn_get_parameter(m, "0.weight")));
    assert_ok(tn_lora(m, "1", rank4));
    fill_b(m, 0.5);
    assert_ok(tn_eval(m));
    uint64_t base = hash_of_base(m);
    tn_tensor *id = tn_arange(0, 6, 1, TN_I64), *y = tn_forward(m, id);
    assert_ok(tn_lora_merge(m));
    assert_close(tn_forward(m, id), y, 1e-5, 1e-5);
    ck_assert(hash_of_base(m) == base);
    ck_assert_ptr_eq(tn_get_parameter(m, "0.weight"), tn_get_parameter(m, "1.weight"));
    tn_tensor *table = tn_clone(tn_get_parameter(m, "0.weight"));
    assert_ok(tn_lora_remove(m, "default", true));
    assert_close(tn_forward(m, id), y, 1e-5, 1e-5);
    assert_close(tn_get_parameter(m, "0.weight"), table, 0, 0);
}
END_TEST

START_TEST(a_layer_with_two_parents_gets_one_adapter)
{
    tn_module *fc = tn_linear_new(6, 6, (tn_linear_options){ 0 });
    tn_module *m = owned(tn_sequential(tn_module_keep(fc), fc));
    assert_ok(tn_lora(m, "*", rank4));
    ck_assert_str_eq(trained(m), "0.default.lora_A 0.default.lora_B");
    assert_ok(tn_lora(m, "*", (tn_lora_options){ .name = "b" }));
    ck_assert_str_eq(trained(m), "0.b.lora_A 0.b.lora_B");
}
END_TEST

START_TEST(layers_of_tenon_call_their_linears)
{
    static const char *const patterns[] = { "*.out_proj", "*.linear1", "*.linear2" };
    tn_encoder_layer_options eo = { .feedforward = 8, .norm_first = true };
    tn_tensor *x = random_as(TN_SHAPE(2, 3, 6), -1, 1, 5, TN_F32);
    for (int i = 0; i < COUNT(patterns); i++) {
        tn_module *m = owned(tn_encoder_new(tn_encoder_layer_new(6, 2, eo), 2, TN_NO_MODULE));
        tn_tensor *y = tn_forward(m, x);
        assert_ok(tn_lora(m, patterns[i], rank4));
        assert_close(tn_forward(m, x), y, 0, 0);
        fill_b(m, 0.5);
        tn_tensor *z = tn_forward(m, x);
        ck_assert_msg(difference(z, y, 1e-3, 1e-3) != NULL, "%s is not called", patterns[i]);
        assert_ok(tn_module_set_recompute(m, true));
        assert_close(tn_forward(m, x), z, 0, 0);
        assert_ok(tn_backward(tn_mean(tn_square(tn_forward(m, x)), NULL, 0, false)));
        const tn_list *p = tn_parameters(m);
        for (int k = 0; k < p->n; k++)
            ck_assert_int_eq(tn_is_none(tn_grad(p->entry[k].tensor)),
                             !strstr(p->entry[k].name, "lora_"));
    }
}
END_TEST

START_TEST(clones_casts_and_checkpoints)
{
    tn_module *m = net_new();
    assert_ok(tn_lora(m, "fc*", rank4));
    assert_ok(tn_lora(m, "fc1", (tn_lora_options){ .name = "other" }));
    assert_ok(tn_lora_set(m, "default"));
    fill_b(m, 0.5);
    tn_module *copy = owned(tn_module_clone(m));
    tn_tensor *x = some_x(4), *y = of(m, x);
    assert_close(of(copy, x), y, 0, 0);
    ck_assert_str_eq(trained(copy), trained(m));
    train(copy, 2); /* the copy's own adapter */
    ck_assert(difference(of(copy, x), y, 1e-3, 1e-3) != NULL);
    assert_close(of(m, x), y, 0, 0);
    assert_ok(tn_save(m, in_folder("whole.safetensors")));
    assert_ok(tn_load(copy, in_folder("whole.safetensors")));
    assert_close(of(copy, x), y, 0, 0);
    tn_optim *opt = owned(tn_adamw(tn_parameters(copy), (tn_adamw_options){ 0 }));
    tn_checkpoint at = { .model = copy, .optimizer = opt };
    assert_ok(tn_checkpoint_save(&at, in_folder("run.checkpoint")));
    train(copy, 2);
    assert_ok(tn_checkpoint_load(&at, in_folder("run.checkpoint")));
    assert_close(of(copy, x), y, 0, 0);
    assert_ok(tn_module_to(copy, tn_cpu()));
    assert_ok(tn_module_to_dtype(copy, TN_F64));
    ck_assert_int_eq(tn_dtype_of(tn_get_parameter(copy, "fc1.default.lora_A")), TN_F64);
    assert_close(tn_to_dtype(of(copy, tn_to_dtype(x, TN_F64)), TN_F32), y, 1e-5, 1e-5);
}
END_TEST

static tn_tensor *loss_of(tn_module *m, int part, int parts, void *user)
{
    int64_t n = tn_size(user, 0) / parts;
    tn_tensor *y = of(m, tn_narrow(user, 0, part * n, n));
    return tn_div_scalar(tn_mean(tn_square(y), NULL, 0, false), parts);
}

START_TEST(state_is_as_the_rules_say)
{
    tn_module *m = net_new();
    tn_lora_options o = rank4;
    o.dropout = 0.1;
    assert_ok(tn_lora(m, "fc*", o));
    fill_b(m, 0.5);
    assert_ok(tn_check_state(NULL, m, NULL, loss_of, some_x(8)));
}
END_TEST

/* ---- little memory --------------------------------------------------------------------------- */

static tn_module *little;

static tn_status add_one(void *user)
{
    (void)user;
    tn_status status = tn_lora(little, "fc*", rank4);
    scarce.failing = 0;
    if (status == TN_OK) assert_ok(tn_lora_remove(little, "default", false));
    return status;
}

static tn_status merge_one(void *user)
{
    (void)user;
    tn_status status = tn_lora_merge(little);
    scarce.failing = 0;
    if (status == TN_OK) assert_ok(tn_lora_unmerge(little));
    return status;
}

static void is_plain(void *user)
{
    (void)user;
    ck_assert_int_eq(tn_module_children(tn_get_submodule(little, "fc1")), 0);
    ck_assert_int_eq(tn_module_children(tn_get_submodule(little, "fc2")), 0);
}

static void is_unmerged(void *user)
{
    (void)user;
    ck_assert(tn_is_none(tn_get_buffer(little, "fc1.default.merged")));
    ck_assert(tn_is_none(tn_get_buffer(little, "fc2.default.merged")));
}

START_TEST(when_memory_runs_out_the_model_is_as_before)
{
    little = net_new();
    ck_assert_int_gt(scarce_sweep(add_one, is_plain, NULL), 20);
    assert_ok(tn_lora(little, "fc*", rank4));
    assert_ok(tn_eval(little));
    ck_assert_int_gt(scarce_sweep(merge_one, is_unmerged, NULL), 5);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("lora");
    TCase *t = file_case(s, "adapters");
    add_tests(t, one_call_freezes_all_but_the_adapter, the_sum_is_that_of_the_formula,
              dropout_acts_in_training_alone, refusals_change_nothing,
              what_moves_buffers_is_frozen_where_no_adapter_is_below,
              adapters_are_switched_at_run_time, merging_is_taken_back_bit_for_bit,
              a_sum_is_of_what_is_there, merging_is_not_cast, a_tied_weight_stays_as_it_is,
              a_layer_with_two_parents_gets_one_adapter, layers_of_tenon_call_their_linears,
              clones_casts_and_checkpoints, state_is_as_the_rules_say);
    t = scarce_case(s, "memory");
    add_tests(t, when_memory_runs_out_the_model_is_as_before);
    return s;
}
