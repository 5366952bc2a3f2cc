/*
 * scope_failures.c - what fails for want of memory says so, and changes nothing: no value, no
 * version, no generator, no mode; and no tensor is left. The first try that succeeds gives what a
 * call with memory enough gives. fuzz_api sweeps over every function; these are what it has found.
 *
 * Seen to fail: dropout's counters taken and never given back; values of bf16 drawn and written
 * before the allocation that rounding up to 1 needs; the truncated normal distribution drawing into
 * a tensor of its own before it checks the target, and a check of its candidates that ran out of
 * memory taken for "some lie outside"; tni_walk in place of what changes modules (the first ones of
 * the tree were changed); the handle on a gradient leaked when the tensor's own part could not be
 * allocated; the loop over copies of a layer run to its last one after memory had run out (by its
 * time limit); tni_strdup in tni_alias_raw.
 */
#include "files.h"
#include "scarce.h"
#include "scope_cases.h"

/* Calls with no memory left after k requests, for each k until it succeeds; state as it was. */
static void sweep(const char *name, tn_status (*call)(void), uint64_t (*state)(void))
{
    uint64_t before = state();
    int64_t live = tn_live_tensors();
    tn_status status = TN_E_NOMEM;
    for (int64_t k = 0; status != TN_OK; k++) {
        TN_SCOPE
        {
            scarce_allow(k);
            status = call();
            scarce_allow(INT64_MAX);
        }
        ck_assert_msg(tn_live_tensors() == live, "%s, refusal %d: %d tensors more", name, (int)k,
                      (int)(tn_live_tensors() - live));
        ck_assert_msg(k > 0 || status != TN_OK, "%s: no request was refused", name);
        if (status == TN_OK) break;
        assert_error(TN_E_NOMEM, "out of memory");
        ck_assert_msg(state() == before, "%s, refusal %d changed something", name, (int)k);
        ck_assert_int_lt(k, 2000);
    }
    ck_assert_msg(state() != before, "%s: nothing changed", name);
}

/* ---- random numbers -------------------------------------------------------------------------- */

static struct {
    double low, high;
    tn_tensor *t;
    uint64_t made; /* a hash of the result, if it is another tensor */
} draw;

static uint64_t drawn(void)
{
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), state);
    uint64_t hash = (tn_hash(draw.t) * 31 + tn_version(draw.t)) * 31 + draw.made;
    for (size_t i = 0; i < sizeof state; i++) hash = hash * 31 + state[i];
    return hash;
}

static tn_status made(tn_tensor *t)
{
    if (!t) return tn_error_status();
    scarce_allow(INT64_MAX);
    draw.made = tn_hash(t);
    return TN_OK;
}

static tn_status cut_normal(void)
{
    return tn_init_truncated_normal(draw.t, 0, 1, draw.low, draw.high);
}
static tn_status uniform(void)
{
    return tn_uniform_(draw.t, draw.low, draw.high);
}
static tn_status rand_f16(void)
{
    return made(tn_rand_as(TN_SHAPE(700), TN_F16, tn_cpu()));
}
static tn_status dropout(void)
{
    return made(tn_dropout(draw.t, 0.5, true));
}

static const struct {
    const char *name;
    tn_status (*call)(void);
    double low, high;
    tn_dtype dtype;
    int64_t n;
} draws[] = {
    { "normal, inside", cut_normal, -1, 1, TN_F32, 700 },
    { "normal, inside, few", cut_normal, -0.4, 0.8, TN_F32, 16 },
    { "normal, outside", cut_normal, 2, 3, TN_F32, 700 },
    { "normal, far outside", cut_normal, 3, 1e9, TN_F32, 700 },
    { "uniform", uniform, 0, 1, TN_BF16, 700 },
    { "uniform, few", uniform, 0, 1, TN_BF16, 16 },
    { "rand", rand_f16, 0, 1, TN_F32, 1 },
    { "dropout", dropout, 0, 1, TN_F32, 16 },
};

START_TEST(draws_without_memory_draw_nothing)
{
    uint64_t hash[2];
    for (int scarcely = 0; scarcely < 2; scarcely++) {
        draw.t = tn_full_as(TN_SHAPE(draws[_i].n), 7, draws[_i].dtype, tn_cpu());
        draw.low = draws[_i].low, draw.high = draws[_i].high, draw.made = 0;
        tn_manual_seed(5);
        if (scarcely)
            sweep(draws[_i].name, draws[_i].call, drawn);
        else
            assert_ok(draws[_i].call());
        hash[scarcely] = drawn();
    }
    ck_assert_msg(hash[0] == hash[1], "%s: other values", draws[_i].name);
}
END_TEST

START_TEST(a_refused_target_draws_nothing)
{
    draw.t = tn_expand(tn_ones(TN_SHAPE(1, 4)), TN_SHAPE(4, 4));
    draw.low = -1, draw.high = 1;
    uint64_t before = drawn();
    assert_fails(cut_normal(), TN_E_INVALID, "expanded");
    ck_assert_uint_eq(drawn(), before);
}
END_TEST

/* ---- modules, gradients, handles ------------------------------------------------------------- */

static tn_module *module;
static tn_tensor *grad;
static bool set;

/* Of a tree: train or eval, frozen or not, what is trained. */
static uint64_t mode_of(tn_module *m)
{
    uint64_t mode = (uint64_t)tn_training(m) + 2 * (uint64_t)tn_module_frozen(m);
    tn_list *all = tn_parameters_with(m, (tn_walk_options){ .no_recurse = true });
    for (int i = 0; i < all->n; i++) mode = mode * 2 + tn_requires_grad(all->entry[i].tensor);
    for (int i = 0; i < tn_module_children(m); i++)
        mode = mode * 31 + mode_of(tn_module_child(m, i));
    return mode;
}

static uint64_t mode(void)
{
    return mode_of(module);
}

static tn_status train_off(void)
{
    return tn_train(module, false);
}
static tn_status eval(void)
{
    return tn_eval(module);
}
static tn_status freeze(void)
{
    return tn_module_freeze(module);
}
static tn_status thaw(void)
{
    return tn_module_thaw(module);
}
static tn_status grad_off(void)
{
    return tn_module_set_requires_grad(module, false);
}

START_TEST(modules_without_memory_stay_in_their_mode)
{
    static tn_status (*const change[])(void) = { train_off, eval, grad_off, freeze, thaw };
    module = tn_encoder_layer_new(4, 2, (tn_encoder_layer_options){ .feedforward = 3 });
    if (change[_i] == thaw) assert_ok(tn_module_freeze(module));
    sweep("a module", change[_i], mode);
    tn_module_drop(module);
}
END_TEST

static uint64_t has_grad(void)
{
    return set;
}

static tn_status set_grad(void)
{
    tn_tensor *t = tn_zeros(TN_SHAPE(2));
    tn_status status = t ? tn_set_grad(t, grad) : tn_error_status();
    set = status == TN_OK;
    return status;
}

START_TEST(a_gradient_set_without_memory_leaves_no_tensor)
{
    grad = tn_ones(TN_SHAPE(2));
    sweep("a gradient", set_grad, has_grad);
}
END_TEST

START_TEST(copies_beyond_memory_end_with_the_first_that_fails)
{
    tn_module *layer = tn_relu_new();
    scarce_allow(500); /* none after these */
    tn_module *encoder = tn_encoder_new(layer, INT32_MAX, TN_NO_MODULE);
    scarce_allow(INT64_MAX);
    assert_null(encoder, TN_E_NOMEM, "out of memory");
}
END_TEST

/* A name is only for messages: a handle can do without. */
START_TEST(a_handle_without_memory_for_its_name_leaves_no_message)
{
    tn_tensor *x = tn_ones(TN_SHAPE(4, 4)), *y = NULL;
    assert_ok(tn_set_name(x, "weights"));
    int nameless = 0;
    for (int64_t k = 0; k < 50; k++) {
        tn_error_clear();
        scarce_allow(k);
        y = tn_detach(x);
        scarce_allow(INT64_MAX);
        ck_assert_int_eq(y == NULL, tn_error_status() == TN_E_NOMEM);
        if (y) nameless += tn_name(y)[0] == '\0';
    }
    ck_assert_int_eq(nameless, 1);
    ck_assert_str_eq(tn_name(y), "weights");
    tn_error_clear();
}
END_TEST

TCase *scope_failures_case(Suite *suite)
{
    TCase *t = scarce_case(suite, "failures");
    tcase_set_timeout(t, 20);
    tcase_add_loop_test(t, draws_without_memory_draw_nothing, 0, COUNT(draws));
    tcase_add_test(t, a_refused_target_draws_nothing);
    tcase_add_loop_test(t, modules_without_memory_stay_in_their_mode, 0, 5);
    add_tests(t, a_gradient_set_without_memory_leaves_no_tensor,
              copies_beyond_memory_end_with_the_first_that_fails,
              a_handle_without_memory_for_its_name_leaves_no_message);
    return t;
}
