/*
 * test_check_state.c - tn_check_state finds nothing in our layers and in models that follow the
 * rules, and each planted fault, by name.
 *
 * Truth: the rules of docs/buffers.md; the faults' lines by hand.
 *
 * Seen to fail: with parts whose moments lack the spread of their means, or whose counters are not
 * put back (src/nn/micro_batches.c); an optimizer that counts outside of its state; without what
 * src/autograd/recompute.c does for one input given twice, and for three levels of calls;
 * each_fault_is_found has models that break one rule each.
 */

#include "../examples/batchnorm/net.h"
#include "../examples/transformer/model.h"
#include "files.h"
#include "models.h"
#include "nn/boxes.h"

/* ---- running it ------------------------------------------------------------------------------ */

/* A batch, cut along its first axis. */
typedef struct batch {
    tn_tensor *x, *y; /* y: classes, or TN_NONE */
} batch;

static tn_tensor *part_of(tn_tensor *t, int part, int parts)
{
    int64_t n = tn_size(t, 0) / parts;
    return tn_narrow(t, 0, part * n, n);
}

static tn_tensor *loss_of(tn_module *m, int part, int parts, void *user)
{
    const batch *b = user;
    tn_tensor *y = tn_forward(m, part_of(b->x, part, parts));
    if (tn_is_none(b->y)) return tn_div_scalar(tn_mean(tn_square(y), NULL, 0, false), parts);
    y = tn_reshape(y, TN_SHAPE(-1, tn_size(y, -1)));
    tn_tensor *classes = tn_reshape(part_of(b->y, part, parts), TN_SHAPE(-1));
    return tn_div_scalar(tn_cross_entropy(y, classes), parts);
}

static tn_optim *the_optim; /* NULL: none */

/* What is printed; static buffer. The model and the generator are as before. */
static const char *checked(tn_status wanted, tn_module *m, tn_check_step step, void *user)
{
    static char text[65536];
    unsigned char before[TN_GENERATOR_STATE_SIZE], after[TN_GENERATOR_STATE_SIZE];
    uint64_t hash = state_hash(m);
    tn_generator_get_state(tn_default_generator(), before);
    FILE *file = tmpfile();
    int64_t live = tn_live_tensors();
    tn_status status = tn_check_state(file, m, the_optim, step, user);
    ck_assert_int_eq(tn_live_tensors(), live);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    ck_assert_msg(status == wanted, "%s\n%s\n%s", status == TN_OK ? "nothing found" : tn_error(),
                  type_of(m), text);
    tn_generator_get_state(tn_default_generator(), after);
    ck_assert_int_eq(memcmp(before, after, sizeof before), 0);
    ck_assert_uint_eq(state_hash(m), hash);
    return text;
}

/* No way was left out. */
static const char *all_ways(const char *text)
{
    ck_assert_msg(!strstr(text, ": skipped: "), "%s", text);
    return text;
}

static const char *passes(tn_module *m, tn_tensor *x)
{
    return all_ways(checked(TN_OK, m, loss_of, &(batch){ x, TN_NONE }));
}

/* Some steps before the check, so that buffers are not at their first values. */
static void warm(tn_module *m, tn_tensor *x)
{
    for (int i = 0; i < 3; i++) assert_made(tn_forward(m, tn_add_scalar(x, i)));
}

/* ---- our layers ------------------------------------------------------------------------------ */

static tn_module *norm_of(int which)
{
    tn_batch_norm_options o = { .cumulative = which & 1, .skip_nonfinite = which & 2 };
    return which & 4 ? tn_batch_norm2d_new(3, o) : tn_batch_norm1d_new(3, o);
}

START_TEST(batch_norms)
{
    tn_module *m = owned(norm_of(_i));
    tn_tensor *x = _i & 4 ? tn_randn(TN_SHAPE(16, 3, 2, 2)) : tn_randn(TN_SHAPE(16, 3));
    x = tn_add_scalar(tn_mul_scalar(x, 3), 50);
    passes(m, x);
    warm(m, x);
    passes(m, x);
}
END_TEST

static tn_module *frozen_norm(void)
{
    tn_module *m = tn_sequential(linear(4, 4), norm1d(4), linear(4, 4));
    assert_ok(tn_module_freeze(tn_module_child(m, 1)));
    return m;
}

/* The average of a model beside it, in one model. */
static tn_module *with_average(void)
{
    tn_module *m = tn_sequential(linear(4, 4), norm1d(4));
    tn_module *ema = tn_ema_new(m, (tn_ema_options){ 0 });
    assert_ok(tn_ema_update(ema, m));
    return tn_sequential(m, ema);
}

/* Of x [N, 5, 4]: norms, channels that drop, and weights made of another. */
static tn_module *norms(void)
{
    const tn_instance_norm_options tracks = { .affine = true, .tracking = true };
    tn_module *first = linear(4, 6), *last = linear(6, 3), *middle = linear(6, 6);
    assert_ok(tn_weight_norm(middle, "weight", 0));
    assert_ok(tn_spectral_norm(first, "weight", (tn_spectral_norm_options){ 0 }));
    assert_ok(tn_spectral_norm(last, "weight", (tn_spectral_norm_options){ .axis = 1 }));
    return tn_sequential(tn_instance_norm1d_new(5, tracks), first, tn_dropout1d_new(0.3),
                         tn_group_norm_new(1, 5, (tn_layer_norm_options){ 0 }),
                         tn_rms_norm_new(TN_SHAPE(6), (tn_rms_norm_options){ 0 }), middle, last);
}

START_TEST(other_layers)
{
    const tn_recurrent_options two = { .layers = 2, .bidirectional = true };
    tn_module *const models[] = {
        frozen_norm(),
        with_average(),
        tn_sequential(linear(4, 8), tn_dropout_new(0.5), linear(8, 4), tn_dropout_new(0.1)),
        tn_sequential(norm1d(4), tn_dropout_new(0.3), linear(4, 6), norm1d(6)),
        layernorm(TN_SHAPE(4)),
    };
    tn_module *const sequences[] = {
        tn_sequential(linear(4, 4), encoding(4, 5, .dropout = 0.2)),
        tn_sequential(encoding(4, 5, 0), encoder_layer(4, 2, .feedforward = 8, .dropout = 0.2)),
        tn_encoder_new(encoder_layer(4, 2, .feedforward = 8, .dropout = 0.2), 2,
                       layernorm(TN_SHAPE(4))),
        tn_lstm_new(4, 3, two),
        tn_gru_new(4, 3, two),
        tn_rnn_new(4, 3, (tn_recurrent_options){ 0 }),
        norms(),
    };
    tn_tensor *x = tn_randn(TN_SHAPE(8, 4)), *s = tn_randn(TN_SHAPE(8, 5, 4));
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) passes(owned(models[i]), x);
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++)
        passes(owned(sequences[i]), s);
}
END_TEST

static tn_tensor *attention_loss(tn_module *m, int part, int parts, void *user)
{
    tn_tensor *x = part_of(user, part, parts);
    const tn_attention_masks causal = { .causal = true };
    tn_tensor *y = tn_multihead_attention_forward(m, x, x, x, causal, NULL);
    return tn_mean(tn_square(y), NULL, 0, false);
}

/* Decoder and packed rows: their loss is of the part's rows. */
static tn_tensor *decoder_loss(tn_module *m, int part, int parts, void *user)
{
    tn_tensor *x = part_of(user, part, parts);
    const tn_attention_masks causal = { .causal = true }, none = { 0 };
    return tn_mean_all(tn_square(tn_decoder_forward(m, x, x, causal, none)));
}

static tn_tensor *packed_loss(tn_module *m, int part, int parts, void *user)
{
    const int64_t lengths[] = { 2, 5, 1, 4 };
    tn_tensor *x = part_of(user, part, parts), *all = tn_from_ints(lengths, TN_SHAPE(4));
    tn_recurrent_state state = { .lengths = part_of(all, part, parts) };
    return tn_mean_all(tn_square(tn_recurrent_forward(m, x, &state)));
}

START_TEST(decoder_and_packed_rows)
{
    const tn_encoder_layer_options o = { .feedforward = 8, .dropout = 0.2 };
    const tn_recurrent_options both = {
        .layers = 2, .bidirectional = true, .dropout = 0.2, .proj_size = 2
    };
    tn_tensor *x = tn_randn(TN_SHAPE(4, 5, 8));
    tn_module *m = owned(tn_decoder_new(tn_decoder_layer_new(8, 2, o), 2, TN_NO_MODULE));
    all_ways(checked(TN_OK, m, decoder_loss, x));
    all_ways(checked(TN_OK, owned(tn_lstm_new(8, 3, both)), packed_loss, x));
}
END_TEST

START_TEST(attention_with_dropout)
{
    tn_module *m = owned(
        tn_multihead_attention_new(8, 2, (tn_multihead_attention_options){ .dropout = 0.25 }));
    all_ways(checked(TN_OK, m, attention_loss, tn_randn(TN_SHAPE(4, 5, 8))));
}
END_TEST

/* ---- models ---------------------------------------------------------------------------------- */

START_TEST(the_examples)
{
    tn_module *cnn = owned(net_new(30, 60, 0));
    tn_tensor *images, *classes, *ids, *next;
    synthetic_images(0, TN_F32, &images, &classes);
    images = tn_mul_scalar(tn_cat((tn_tensor *[]){ images, tn_neg(images) }, 2, 0), 100);
    classes = tn_cat((tn_tensor *[]){ classes, classes }, 2, 0);
    all_ways(checked(TN_OK, cnn, loss_of, &(batch){ images, classes }));
    gpt_sizes sizes = { MODEL_VOCAB, MODEL_CONTEXT, 2, 2, 32, 0.1 };
    tn_module *gpt = owned(gpt_new(sizes));
    random_text(4, &ids, &next);
    all_ways(checked(TN_OK, gpt, loss_of, &(batch){ ids, next }));
}
END_TEST

/* A user's module with a buffer of each role, which moves as it should; or with a fault. */
typedef enum fault { NONE, FIELD, IN_EVAL, TWICE, MASK, COUNTER, CONSTANT } fault;

typedef struct roles {
    tn_module base;
    tn_tensor *w, *plain, *table, *mean, *steps, *cache, *direction, *fill;
    fault fault;
    double calls;
    tn_generator *own; /* the test's */
    tn_module *child;
} roles;

static tn_status break_rules(roles *m, tn_tensor *x)
{
    const bool training = tn_training(&m->base);
    if (m->fault == FIELD) m->calls++;
    if (m->fault == IN_EVAL && !training) return tn_mul_scalar_(m->mean, 0.5);
    if (m->fault == COUNTER && training) return tn_add_scalar_(m->fill, 1);
    if (m->fault == CONSTANT) return tn_mul_scalar_(m->table, 2);
    if (m->fault == TWICE && training) { /* through a pointer: nobody sees that it was written */
        float *mean = (float *)(uintptr_t)tn_data(tn_get_buffer(m->child, "running_mean"));
        if (mean) mean[0] += (float)tn_item(tn_max_all(x));
    }
    return TN_OK;
}

static tn_status move_buffers(roles *m, tn_tensor *x)
{
    tn_tensor *mean = tn_mean(x, TN_AXES(0), false);
    tn_status status = tn_mul_scalar_(m->mean, 0.9);
    if (status == TN_OK) status = tn_add_(m->mean, tn_mul_scalar(mean, 0.1));
    if (status == TN_OK) status = tn_mul_scalar_(m->plain, 0.5);
    if (status == TN_OK) status = tn_add_scalar_(m->steps, 1);
    if (status == TN_OK) status = tn_assign(&m->cache, tn_clone(tn_detach(x)));
    tn_tensor *d = tn_add(m->direction, mean);
    if (status == TN_OK) status = tn_copy_(m->direction, tn_div(d, tn_norm(d, 2, NULL, 0, false)));
    return status;
}

static tn_tensor *roles_forward(tn_module *self, tn_tensor *x)
{
    roles *m = (roles *)self;
    tn_status status = TN_OK;
    TN_NO_GRAD
    {
        if (tn_training(self)) status = move_buffers(m, x);
        if (status == TN_OK) status = break_rules(m, x);
    }
    if (status != TN_OK) return NULL;
    tn_tensor *y = tn_mul(tn_add(tn_mul(x, m->table), m->direction), m->w);
    if (m->fault == FIELD) y = tn_square(tn_mul_scalar(y, 1 + m->calls));
    if (m->fault == MASK) y = tn_square(tn_mul_scalar(y, tn_generator_u32(m->own) % 1000));
    return y;
}

static const tn_module_type roles_type = { .name = "Roles",
                                           .size = sizeof(roles),
                                           .forward = roles_forward };

static tn_module *roles_new(fault fault)
{
    const tn_shape two = TN_SHAPE(2);
    roles *m = tn_module_new(&roles_type);
    tn_module *b = &m->base;
    tn_register_parameter(b, "w", &m->w, tn_ones(two));
    tn_register_buffer(b, "plain", &m->plain, tn_ones(two), TN_PLAIN);
    tn_register_buffer(b, "table", &m->table, tn_full(two, 3), TN_CONSTANT);
    tn_register_buffer(b, "mean", &m->mean, tn_full(two, 0.5), TN_STATISTIC);
    tn_register_buffer(b, "steps", &m->steps, tn_zeros(TN_SHAPE(1)), TN_COUNTER);
    tn_register_buffer(b, "best", NULL, tn_full(TN_SHAPE(1), 1e30), TN_PLAIN);
    tn_register_buffer(b, "fill", &m->fill, tn_zeros(TN_SHAPE(1)), TN_PLAIN);
    tn_register_buffer(b, "cache", &m->cache, TN_NONE, TN_CACHE);
    tn_register_buffer(b, "direction", &m->direction, tn_full(two, 0.7), TN_DIRECTION);
    tn_register_module(b, "child", &m->child, norm1d(2));
    m->fault = fault;
    if (fault == MASK) m->own = owned(tn_generator_new(1));
    return tn_module_done(b);
}

START_TEST(a_buffer_of_each_role)
{
    tn_module *m = owned(roles_new(NONE));
    const char *text = passes(m, tn_randn(TN_SHAPE(8, 2)));
    ck_assert_msg(strstr(text, "recomputed: ") && strstr(text, "in 2 parts: ") &&
                      strstr(text, "frozen: "),
                  "%s", text);
}
END_TEST

/* ---- faults ---------------------------------------------------------------------------------- */

static const struct {
    fault fault;
    const char *line;
} faults[] = {
    { FIELD, "gradient of w: differs when recomputed: " },
    { FIELD, "gradient of w: differs when saved and resumed: " },
    { IN_EVAL, "mean: moved in eval mode: 0.25 where before gives 0.5 at element 0; a statistic, "
               "counter or" },
    { TWICE, "child.running_mean: moved twice when recomputed: " },
    { MASK, "(loss): differs when run again: " },
    { COUNTER, "fill: counts steps, and is averaged with buffers; want TN_COUNTER" },
};

START_TEST(each_fault_is_found)
{
    tn_module *m = owned(roles_new(faults[_i].fault));
    batch b = { tn_full(TN_SHAPE(8, 2), 1.5), TN_NONE };
    const char *text = checked(TN_E_STATE, m, loss_of, &b);
    ck_assert_msg(strstr(text, faults[_i].line), "%s", text);
    ck_assert_msg(strstr(tn_error(), "tn_check_state: "), "%s", tn_error());
}
END_TEST

/* ---- with an optimizer ----------------------------------------------------------------------- */

/* Kept outside of the optimizer's state: a fault. */
static int steps_taken;

static tn_status slower(tn_optim_part *part, int n)
{
    (void)n;
    const double lr = part->numbers.lr / (part->numbers.user ? ++steps_taken : 1);
    part->new_state[0] = tn_add(part->state[0], part->g);
    part->new_p = tn_sub(part->p, tn_mul_scalar(part->new_state[0], lr));
    return TN_OK;
}

static tn_optim *optimizer_of(int which, tn_list *p, void *user)
{
    static const tn_optim_type own = { .name = "slower",
                                       .state = { { .name = "sum" } },
                                       .update = slower };
    const tn_optim_options search = { .lr = 0.5,
                                      .set = { { "line_search", 1 }, { "max_iter", 3 } } };
    tn_list *matrices = tn_list_filter(p, tn_decay, NULL),
            *rest = tn_list_filter(p, tn_no_decay, NULL);
    tn_optim *opt = NULL;
    switch (which) {
    case 0: return tn_lbfgs(p, search);
    case 1: return tn_muon(matrices, (tn_optim_options){ .lr = 0.02 });
    case 2: return tn_optim_new(&own, p, (tn_optim_options){ .lr = 0.1, .user = user });
    case 3: return tn_adagrad(p, (tn_adagrad_options){ .initial_accumulator = 0.5 });
    default:
        opt = tn_adamw(matrices, (tn_adamw_options){ .weight_decay = 0.1, .amsgrad = true });
        assert_ok(tn_optim_add_group(opt, rest, (tn_group_options){ .lr = 0.1, .beta1 = 0.5 }));
        return opt;
    }
}

/* Two groups, one for all, a search, and so on: nothing is found, and nothing has changed. */
START_TEST(with_an_optimizer)
{
    tn_module *m = owned(tn_sequential(linear(4, 6), norm1d(6), tn_dropout_new(0.2), linear(6, 4)));
    tn_tensor *x = tn_randn(TN_SHAPE(8, 4));
    the_optim = owned(optimizer_of(_i, tn_parameters(m), NULL));
    for (int k = 0; k < 2; k++) {
        const uint64_t was = hash_of(tn_optim_state_dict(the_optim));
        const char *text = passes(m, x), *parts = strstr(text, "saved and resumed: ");
        ck_assert_msg(parts && strtol(parts + 19, NULL, 10) > 30, "%s", text);
        ck_assert_uint_eq(hash_of(tn_optim_state_dict(the_optim)), was);
        if (k == 0 && _i) { /* from its second step on */
            assert_ok(tn_backward(loss_of(m, 0, 1, &(batch){ x, TN_NONE })));
            assert_ok(tn_optim_step(the_optim));
        }
    }
    the_optim = NULL;
}
END_TEST

START_TEST(faults_of_an_optimizer)
{
    tn_module *m = owned(linear(2, 2)), *other = owned(linear(2, 2));
    batch b = { tn_full(TN_SHAPE(8, 2), 1.5), TN_NONE };
    the_optim = owned(optimizer_of(2, tn_parameters(m), &steps_taken));
    const char *text = checked(TN_E_STATE, m, loss_of, &b);
    ck_assert_msg(strstr(text, "weight: differs when saved and resumed: "), "%s", text);
    assert_fails(tn_check_state(NULL, other, the_optim, loss_of, &b), TN_E_NAME,
                 "opt's weight is no parameter of model");
    the_optim = NULL;
}
END_TEST

static tn_tensor *whole_only(tn_module *m, int part, int parts, void *user)
{
    if (parts == 1) return loss_of(m, part, parts, user);
    tn_fail(TN_E_UNSUPPORTED, "one batch");
    return NULL;
}

static tn_tensor *leaving(tn_module *m, int part, int parts, void *user)
{
    tn_micro_batches_cancel();
    return loss_of(m, part, parts, user);
}

static tn_tensor *of_another(tn_module *m, int part, int parts, void *user)
{
    (void)m;
    return tn_sum_all(tn_square(tn_forward(user, tn_full(TN_SHAPE(4, 2), part + parts))));
}

/* A batch that cannot be cut; a step that leaves its batch; of another model; that fails; none. */
START_TEST(steps)
{
    batch b = { tn_full(TN_SHAPE(8, 2), 1.5), TN_NONE };
    tn_module *m = owned(roles_new(NONE)), *constant = owned(roles_new(CONSTANT));
    const char *text = checked(TN_OK, m, whole_only, &b);
    ck_assert_msg(strstr(text, "in 4 parts: skipped: one batch\n"), "%s", text);
    assert_ok(tn_check_state(NULL, m, NULL, whole_only, &b));
    assert_fails(tn_check_state(NULL, constant, NULL, loss_of, &b), TN_E_STATE,
                 "table is constant");
    assert_fails(tn_check_state(NULL, m, NULL, of_another, m), TN_E_STATE, "when run again");
    assert_fails(tn_check_state(NULL, m, NULL, leaving, &b), TN_E_STATE, "fails in 2 parts: ");
    assert_fails(tn_check_state(NULL, m, NULL, NULL, NULL), TN_E_INVALID, "step is NULL");
    assert_fails(tn_check_state(NULL, NULL, NULL, loss_of, &b), TN_E_INVALID, "tn_check_state");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("check_state");
    TCase *t = test_case(suite, "layers");
    tcase_add_loop_test(t, batch_norms, 0, 8);
    add_tests(t, other_layers, decoder_and_packed_rows, attention_with_dropout);
    add_tests(test_case(suite, "models"), the_examples, a_buffer_of_each_role);
    t = test_case(suite, "faults");
    tcase_add_loop_test(t, each_fault_is_found, 0, sizeof faults / sizeof *faults);
    add_tests(t, steps, faults_of_an_optimizer);
    tcase_add_loop_test(t, with_an_optimizer, 0, 5);
    return suite;
}
