/*
 * test_options.c - every field of every options struct of the public headers: what zero means, that
 * another value has an effect, that a bad one is refused and named.
 *
 * A row names a field and a function that hashes what the options do (values, names of state, rates
 * ...). Zero must give the same hash as the documented default, another value another hash. The
 * headers are read to see that no field lacks a row.
 *
 * Seen to fail: beta2 left at 0 for a zero field in src/optim/optimizers.c: the row beta2 fails; a
 * field added to tn_linear_options: every_field_has_a_row fails, and a number zero_is_said;
 * tn_conv2d_new without its check of padding: the row padding fails.
 */
#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boxes.h"
#include "files.h"

/* ---- what options show ----------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t value)
{
    return (h ^ value) * 1099511628211u;
}

static uint64_t mix_number(uint64_t h, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return mix(h, bits);
}

static uint64_t mix_tensor(uint64_t h, tn_tensor *t)
{
    assert_made(t);
    for (int i = 0; i < tn_rank(t); i++) h = mix(h, (uint64_t)tn_size(t, i));
    return mix(h, tn_hash(t));
}

static uint64_t mix_list(uint64_t h, const tn_list *list)
{
    assert_made(list);
    for (int i = 0; i < list->n; i++) {
        for (const char *c = list->entry[i].name; *c; c++) h = mix(h, (unsigned char)*c);
        h = mix_tensor(h, list->entry[i].tensor);
    }
    return h;
}

static tn_tensor *input(tn_shape shape)
{
    return random_as(shape, -0.2, 0.3, 11, TN_F32);
}

/* Outputs in training and evaluation, then the state; 0 for a layer that was refused. */
static uint64_t see_module(tn_module *m, tn_tensor *x)
{
    uint64_t h = 1;
    if (!m) return 0;
    for (int training = 1; training >= 0; training--) {
        assert_ok(tn_train(m, training));
        h = mix_tensor(h, tn_forward(m, x));
    }
    h = mix_list(h, tn_state_dict(m, ""));
    tn_module_drop(m);
    return h;
}

static uint64_t see_linear(const void *o)
{
    return see_module(tn_linear_new(3, 2, *(const tn_linear_options *)o), input(TN_SHAPE(2, 3)));
}

static uint64_t see_conv2d(const void *o)
{
    return see_module(tn_conv2d_new(4, 4, 3, *(const tn_conv2d_options *)o),
                      input(TN_SHAPE(1, 4, 9, 9)));
}

/* 1d, 2d; a batch with a NaN is among what they see */
static uint64_t see_batchnorm(const void *options)
{
    const tn_batch_norm_options *o = options;
    tn_tensor *x = input(TN_SHAPE(4, 3, 2, 2)), *broken = tn_clone(x);
    assert_ok(tn_fill_(tn_select(tn_reshape(broken, TN_SHAPE(48)), 0, 0), NAN));
    tn_module *m = tn_batch_norm2d_new(3, *o);
    if (!m) return 0;
    assert_made(tn_forward(m, x));
    assert_made(tn_forward(m, broken));
    uint64_t h = see_module(m, x);
    return mix(h, see_module(tn_batch_norm1d_new(3, *o), input(TN_SHAPE(4, 3))));
}

static uint64_t see_frozen_batchnorm(const void *o)
{
    tn_module *m = tn_frozen_batch_norm2d_new(3, *(const tn_frozen_batch_norm_options *)o);
    if (m) assert_ok(tn_module_set(m, "running_var", tn_full(TN_SHAPE(3), 2)));
    return see_module(m, input(TN_SHAPE(2, 3, 2, 2)));
}

static uint64_t see_layernorm(const void *o)
{
    return see_module(tn_layer_norm_new(TN_SHAPE(4), *(const tn_layer_norm_options *)o),
                      input(TN_SHAPE(3, 4)));
}

static uint64_t see_embedding(const void *o)
{
    return see_module(tn_embedding_new(5, 2, *(const tn_embedding_options *)o),
                      tn_from_ints((int64_t[]){ 0, 1, 2 }, TN_SHAPE(3)));
}

static uint64_t see_positional_encoding(const void *o)
{
    return see_module(tn_positional_encoding_new(4, 8, *(const tn_positional_encoding_options *)o),
                      input(TN_SHAPE(1, 3, 4)));
}

static uint64_t see_attention(const void *options)
{
    const tn_multihead_attention_options *o = options;
    tn_module *m = tn_multihead_attention_new(4, 2, *o);
    if (!m) return 0;
    tn_tensor *q = input(TN_SHAPE(2, 3, 4));
    tn_tensor *k = input(TN_SHAPE(2, 3, o->kdim ? o->kdim : 4));
    tn_tensor *v = input(TN_SHAPE(2, 3, o->vdim ? o->vdim : 4));
    uint64_t h = mix_list(1, tn_state_dict(m, ""));
    h = mix_tensor(h, tn_multihead_attention_forward(m, q, k, v, (tn_attention_masks){ 0 }, NULL));
    tn_module_drop(m);
    return h;
}

static uint64_t see_masks(const void *o)
{
    tn_manual_seed(5);
    tn_module *m = tn_multihead_attention_new(4, 2, (tn_multihead_attention_options){ 0 });
    tn_tensor *x = input(TN_SHAPE(2, 3, 4));
    tn_tensor *y = tn_multihead_attention_forward(m, x, x, x, *(const tn_attention_masks *)o, NULL);
    tn_module_drop(m);
    return y ? mix_tensor(1, y) : 0;
}

static uint64_t see_encoder_layer(const void *o)
{
    return see_module(tn_encoder_layer_new(4, 2, *(const tn_encoder_layer_options *)o),
                      input(TN_SHAPE(2, 3, 4)));
}

static uint64_t see_recurrent(const void *o)
{
    return see_module(tn_gru_new(4, 5, *(const tn_recurrent_options *)o), input(TN_SHAPE(2, 3, 4)));
}

/* relu and tanh: two RNNs, since a GRU has neither. */
static void recurrent_relu(void)
{
    uint64_t seen[2];
    for (int relu = 0; relu < 2; relu++) {
        tn_manual_seed(5);
        seen[relu] = see_module(tn_rnn_new(4, 5, (tn_recurrent_options){ .relu = relu }),
                                input(TN_SHAPE(2, 3, 4)));
    }
    ck_assert(seen[0] && seen[1] && seen[0] != seen[1]);
}

static uint64_t see_ema(const void *o)
{
    tn_module *model =
        tn_sequential(linear(2, 2), tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }));
    tn_module *ema = tn_ema_new(model, *(const tn_ema_options *)o);
    uint64_t h = 0;
    for (int k = 0; ema && k < 3; k++) {
        assert_made(tn_forward(model, random_as(TN_SHAPE(4, 2), -1, 1, 3 + (uint64_t)k, TN_F32)));
        TN_NO_GRAD assert_ok(tn_add_scalar_(tn_get_parameter(model, "0.weight"), 0.5));
        assert_ok(tn_ema_update(ema, model));
        h = mix_list(1, tn_state_dict(ema, ""));
    }
    tn_module_drop(ema);
    tn_module_drop(model);
    return h;
}

/* A tie, and a buffer that is not saved. */
static tn_module *tied_new(void)
{
    tn_module *m = tn_sequential(linear(2, 2), linear(2, 2),
                                 tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }));
    assert_ok(tn_module_set(m, "1.weight", tn_get_parameter(m, "0.weight")));
    assert_ok(tn_register_buffer(m, "kept", NULL, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
    assert_ok(tn_register_buffer(m, "passing", NULL, tn_ones(TN_SHAPE(1)), TN_NON_PERSISTENT));
    return m;
}

static uint64_t see_walk(const void *options)
{
    const tn_walk_options *o = options;
    tn_module *m = tied_new();
    uint64_t h = mix_list(mix_list(1, tn_parameters_with(m, *o)), tn_buffers_with(m, *o));
    tn_module_drop(m);
    return h;
}

/* The results of loading four lists: one that fits, one that lacks a name, one of f64, one of other
 * sizes. */
static uint64_t see_load(const void *options)
{
    tn_module *m = linear(2, 2);
    uint64_t h = 1;
    for (int k = 0; k < 4; k++) {
        tn_list *list = tn_list_new();
        tn_tensor *w = tn_full(k == 3 ? TN_SHAPE(2, 3) : TN_SHAPE(2, 2), k + 1);
        assert_ok(tn_list_add(list, "weight", k == 2 ? tn_to_dtype(w, TN_F64) : w));
        if (k != 1) assert_ok(tn_list_add(list, "bias", tn_full(TN_SHAPE(2), k + 1)));
        tn_status status = tn_load_state_dict(m, list, *(const tn_load_options *)options, NULL);
        h = mix_list(mix(h, (uint64_t)status), tn_state_dict(m, ""));
    }
    tn_error_clear();
    tn_module_drop(m);
    return h;
}

static uint64_t see_loader(const void *o)
{
    tn_tensor *data = random_f64(TN_SHAPE(7, 2), -1, 1, 3);
    tn_loader *loader = tn_loader_new(&data, 1, *(const tn_loader_options *)o);
    uint64_t h = 1;
    if (!loader) return 0;
    tn_tensor *batch;
    for (int epoch = 0; epoch < 2; epoch++)
        while (tn_loader_next(loader, &batch, 1) > 0)
            h = mix_tensor(mix(h, (uint64_t)epoch), batch);
    tn_loader_free(loader);
    return h;
}

static uint64_t see_cross_entropy(const void *o)
{
    tn_tensor *y = tn_cross_entropy_with(random_f64(TN_SHAPE(4, 3), -2, 2, 3),
                                         tn_from_ints((int64_t[]){ 0, 1, 2, 1 }, TN_SHAPE(4)),
                                         *(const tn_cross_entropy_options *)o);
    return y ? mix_tensor(1, y) : 0;
}

static uint64_t see_conv2d_spec(const void *options)
{
    const tn_conv2d_spec *o = options;
    tn_tensor *w = input(TN_SHAPE(4, o->groups > 1 ? 4 / o->groups : 4, 3, 3));
    tn_tensor *y = tn_conv2d(input(TN_SHAPE(1, 4, 9, 9)), w, TN_NONE, *o);
    return y ? mix_tensor(1, y) : 0;
}

static uint64_t see_max_pool2d(const void *options)
{
    const tn_pool2d_spec *o = options;
    tn_tensor *y = tn_max_pool2d(input(TN_SHAPE(1, 2, 9, 9)), *o);
    tn_module *m = y ? tn_max_pool2d_new(*o) : NULL; /* the layer takes the same */
    uint64_t h = m ? mix_tensor(1, tn_forward(m, input(TN_SHAPE(1, 2, 9, 9)))) : 0;
    tn_module_drop(m);
    return y ? mix_tensor(h, y) : 0;
}

static uint64_t see_avg_pool2d(const void *o)
{
    tn_tensor *y = tn_avg_pool2d(input(TN_SHAPE(1, 2, 9, 9)), *(const tn_pool2d_spec *)o);
    return y ? mix_tensor(1, y) : 0;
}

static tn_tensor *leaf(uint64_t seed)
{
    tn_tensor *t = random_f64(TN_SHAPE(3), -1, 1, seed);
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

/* Steps of large and then small gradients, so that running maxima differ from running means. */
static uint64_t see_steps(tn_optim *opt, tn_tensor *const *p, int n)
{
    uint64_t h = 1;
    if (!opt) return 0;
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < n; i++)
            assert_ok(tn_set_grad(
                p[i], random_f64(TN_SHAPE(3), k ? -.1 : -3, k ? .2 : 4, 5 + (uint64_t)k)));
        assert_ok(tn_optim_step(opt));
    }
    for (int i = 0; i < n; i++) h = mix_tensor(h, p[i]);
    tn_optim_free(opt);
    return h;
}

static tn_list *one(tn_tensor *t)
{
    tn_list *list = tn_list_new();
    assert_ok(tn_list_add(list, "w", t));
    return list;
}

static uint64_t see_sgd(const void *o)
{
    tn_tensor *p = leaf(1);
    return see_steps(tn_sgd(one(p), *(const tn_sgd_options *)o), &p, 1);
}

static uint64_t see_adam(const void *o)
{
    tn_tensor *p = leaf(1);
    return see_steps(tn_adam(one(p), *(const tn_adam_options *)o), &p, 1);
}

static uint64_t see_adamw(const void *o)
{
    tn_tensor *p = leaf(1);
    return see_steps(tn_adamw(one(p), *(const tn_adamw_options *)o), &p, 1);
}

static uint64_t see_rmsprop(const void *o)
{
    tn_tensor *p = leaf(1);
    return see_steps(tn_rmsprop(one(p), *(const tn_rmsprop_options *)o), &p, 1);
}

static uint64_t see_adagrad(const void *o)
{
    tn_tensor *p = leaf(1);
    return see_steps(tn_adagrad(one(p), *(const tn_adagrad_options *)o), &p, 1);
}

/* opt holds p; the group is another parameter. */
static uint64_t see_second(tn_optim *opt, tn_tensor *first, const void *o)
{
    tn_tensor *p[2] = { first, leaf(2) };
    tn_list *second = tn_list_new();
    assert_ok(tn_list_add(second, "v", p[1]));
    if (tn_optim_add_group(opt, second, *(const tn_group_options *)o) == TN_OK)
        return see_steps(opt, p, 2);
    tn_optim_free(opt);
    return 0;
}

static uint64_t see_group(const void *o)
{
    tn_tensor *p = leaf(1);
    const tn_sgd_options given = {
        .lr = 0.25, .weight_decay = 0.5, .momentum = 0.9, .dampening = 0.25
    };
    return see_second(tn_sgd(one(p), given), p, o);
}

static uint64_t see_adam_group(const void *o)
{
    tn_tensor *p = leaf(1);
    return see_second(tn_adam(one(p), (tn_adam_options){ .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-4 }),
                      p, o);
}

static uint64_t see_rmsprop_group(const void *o)
{
    tn_tensor *p = leaf(1);
    return see_second(tn_rmsprop(one(p), (tn_rmsprop_options){ .alpha = 0.9 }), p, o);
}

static uint64_t see_adagrad_group(const void *o)
{
    tn_tensor *p = leaf(1);
    return see_second(tn_adagrad(one(p), (tn_adagrad_options){ .lr_decay = 0.1 }), p, o);
}

/* Rates and momentum of the first 7 steps. */
static uint64_t see_one_cycle(const void *o)
{
    tn_optim *opt = tn_sgd(one(leaf(1)), (tn_sgd_options){ .lr = 1, .momentum = 0.9 });
    tn_scheduler *s = tn_one_cycle_lr(opt, *(const tn_one_cycle_options *)o);
    uint64_t h = s ? 1 : 0;
    for (int k = 0; s && k < 7; k++) {
        h = mix_number(h, tn_optim_lr(opt, 0));
        h = mix_number(h, tn_item(tn_list_get(tn_optim_state_dict(opt), "sgd.momentum")));
        if (tn_scheduler_step(s) != TN_OK) break; /* a shorter cycle */
    }
    tn_scheduler_free(s);
    tn_optim_free(opt);
    return h;
}

/* Rates under a metric that falls by one part in a hundred, then rises, then stays. */
static uint64_t see_plateau(const void *o)
{
    tn_optim *opt = tn_sgd(one(leaf(1)), (tn_sgd_options){ .lr = 1 });
    tn_scheduler *s = tn_plateau_lr(opt, *(const tn_plateau_options *)o);
    uint64_t h = s ? 1 : 0;
    double metric = 1;
    for (int k = 0; s && k < 40; k++) {
        metric *= k < 3 ? 0.99 : k < 6 ? 1 - 3e-5 : k < 12 ? 1.01 : 1;
        assert_ok(tn_plateau_step(s, metric));
        h = mix_number(h, tn_optim_lr(opt, 0));
    }
    tn_scheduler_free(s);
    tn_optim_free(opt);
    return h;
}

/* The state at first, and after a step that was skipped. */
static uint64_t see_scaler(const void *o)
{
    tn_tensor *p = leaf(1);
    tn_optim *opt = tn_sgd(one(p), (tn_sgd_options){ .lr = 1 });
    tn_scaler *s = tn_scaler_new(*(const tn_scaler_options *)o);
    uint64_t h = s ? mix_list(1, tn_scaler_state_dict(s)) : 0;
    if (s) {
        assert_ok(tn_set_grad(p, tn_mul_scalar(tn_ones_like(p), INFINITY)));
        assert_ok(tn_scaler_step(s, opt));
        assert_ok(tn_scaler_update(s));
        h = mix_list(h, tn_scaler_state_dict(s));
    }
    tn_scaler_free(s);
    tn_optim_free(opt);
    return h;
}

/* ---- fields that are not numbers ------------------------------------------------------------- */

#define assert_differs(see, a, b) ck_assert_uint_ne((see)(&(a)), (see)(&(b)))

static void walk_prefix(void)
{
    tn_module *m = linear(1, 1);
    assert_names(tn_parameters_with(m, (tn_walk_options){ 0 }), "weight bias");
    assert_names(tn_parameters_with(m, (tn_walk_options){ .prefix = "gen." }),
                 "gen.weight gen.bias");
    tn_module_drop(m);
}

static bool renamed(const char *name, char *to, size_t size, void *user)
{
    snprintf(to, size, "%s%s", (const char *)user, name);
    return true;
}

static void load_rename(void)
{
    tn_module *to = tn_sequential(linear(1, 1)), *from = linear(1, 1);
    tn_load_options o = { .rename = renamed, .user = "0." };
    assert_fails(tn_load_state_dict(to, tn_state_dict(from, ""), (tn_load_options){ 0 }, NULL),
                 TN_E_NAME, "\"0.weight\"");
    assert_ok(tn_load_state_dict(to, tn_state_dict(from, ""), o, NULL));
    ck_assert_uint_eq(tn_hash(tn_get_parameter(to, "0.weight")),
                      tn_hash(tn_get_parameter(from, "weight")));
    o.user = "1.";
    assert_fails(tn_load_state_dict(to, tn_state_dict(from, ""), o, NULL), TN_E_NAME,
                 "\"1.weight\"");
    tn_module_drop(to);
    tn_module_drop(from);
}

static void load_assign(void)
{
    for (int assign = 0; assign < 2; assign++) {
        tn_module *to = linear(1, 1), *from = linear(1, 1);
        tn_list *list = tn_state_dict(from, "");
        assert_ok(tn_load_state_dict(to, list, (tn_load_options){ .assign = assign }, NULL));
        ck_assert_int_eq(tn_same_storage(tn_get_parameter(to, "weight"), list->entry[0].tensor),
                         assign);
        tn_module_drop(to);
        tn_module_drop(from);
    }
}

/* A tie is stored once, or in full under both names; the reader gives both either way. */
static void save_every_key(void)
{
    const char *path = in_folder("options.safetensors");
    tn_module *m = linear(20, 20);
    struct stat once, every;
    assert_ok(tn_register_parameter(m, "again", NULL, tn_get_parameter(m, "weight")));
    assert_ok(tn_save_with(m, path, (tn_save_options){ 0 }));
    ck_assert_int_eq(stat(path, &once), 0);
    ck_assert(tn_list_has(tn_load_tensors(path, NULL), "again"));
    assert_ok(tn_save_with(m, path, (tn_save_options){ .every_key = true }));
    ck_assert_int_eq(stat(path, &every), 0);
    ck_assert(tn_list_has(tn_load_tensors(path, NULL), "again"));
    ck_assert_int_ge(every.st_size - once.st_size, 20 * 20 * 4 - 256);
    tn_module_drop(m);
}

static void save_metadata(void)
{
    const char *path = in_folder("options.safetensors");
    tn_module *m = linear(1, 1);
    tn_metadata read;
    const char *keys[] = { "epoch" }, *values[] = { "7" };
    const tn_metadata more = { 1, keys, values };
    for (int k = 0; k < 2; k++) {
        assert_ok(tn_save_with(m, path, (tn_save_options){ .metadata = k ? &more : NULL }));
        assert_made(tn_load_tensors(path, &read));
        ck_assert_int_eq(tn_metadata_get(&read, "epoch") != NULL, k);
        ck_assert_str_eq(tn_metadata_get(&read, "format"), "pt");
    }
    tn_module_drop(m);
}

static void limits(tn_file_limits low, tn_file_limits high, tn_file_limits bad, const char *text)
{
    const char *path = in_folder("options.safetensors");
    tn_module *m = linear(2, 2);
    assert_ok(tn_save(m, path));
    assert_made(tn_load_tensors(path, NULL)); /* defaults */
    assert_ok(tn_set_file_limits(low));
    ck_assert_ptr_null(tn_load_tensors(path, NULL));
    assert_error(TN_E_FORMAT, text);
    assert_ok(tn_set_file_limits(high));
    assert_made(tn_load_tensors(path, NULL));
    assert_ok(tn_set_file_limits(low));
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 })); /* back */
    assert_made(tn_load_tensors(path, NULL));
    assert_fails(tn_set_file_limits(bad), TN_E_INVALID, "tn_set_file_limits");
    tn_module_drop(m);
}

static void limit_header(void)
{
    limits((tn_file_limits){ .header_bytes = 20 }, (tn_file_limits){ .header_bytes = 4096 },
           (tn_file_limits){ .header_bytes = 100000001 }, "20");
}

static void limit_tensors(void)
{
    limits((tn_file_limits){ .tensors = 1 }, (tn_file_limits){ .tensors = 2 },
           (tn_file_limits){ .tensors = -1 }, "1");
}

static void limit_inflated(void)
{
    unsigned char idx[8 + 100] = { 0, 0, 8, 1, 0, 0, 0, 100 };
    size_t n;
    unsigned char *bytes = gzip(idx, sizeof idx, 9, &n);
    const char *path = write_bytes("options.gz", bytes, n);
    free(bytes);
    assert_made(tn_idx_load(path)); /* default */
    assert_ok(tn_set_file_limits((tn_file_limits){ .inflated_bytes = 99 }));
    assert_null(tn_idx_load(path), TN_E_FORMAT, "at most 99 bytes are made");
    assert_ok(tn_set_file_limits((tn_file_limits){ .inflated_bytes = 100 }));
    assert_made(tn_idx_load(path));
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 })); /* back */
    assert_fails(tn_set_file_limits((tn_file_limits){ .inflated_bytes = -1 }), TN_E_INVALID,
                 "tn_set_file_limits");
}

/* Reading ahead changes no value. */
static void loader_prefetch(void)
{
    tn_loader_options o = { .batch_size = 2, .shuffle = true, .seed = 3 };
    uint64_t h = see_loader(&o);
    o.prefetch = true;
    ck_assert_uint_eq(see_loader(&o), h);
}

/* Its effect shows only between processes: parallel_driver.c. */
static void parallel_bucket_bytes(void)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    tn_data_parallel_options bad = { .bucket_bytes = -1 };
    assert_null(tn_data_parallel_new(m, bad), TN_E_INVALID, "bucket_bytes -1: want at least 0");
    tn_module_drop(m);
}

static void parallel_buffers(void)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    for (int rule = TN_BUFFERS_FIRST; rule <= TN_BUFFERS_OWN; rule++) {
        tn_data_parallel_options o = { .buffers = (tn_buffer_rule)rule };
        tn_data_parallel *p = tn_data_parallel_new(m, o);
        assert_made(p);
        ck_assert_int_eq(tn_data_parallel_buffers(p, "x"), rule);
        tn_data_parallel_free(p);
    }
    tn_module_drop(m);
}

/* What they do to messages is seen with several ranks (parallel_ranks.sh). */
static void parallel_messages(void)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    static const tn_dtype dtype[] = { TN_F32, TN_BF16, TN_F16 };
    for (int i = 0; i < COUNT(dtype); i++) {
        tn_data_parallel_options o = { .messages = dtype[i] };
        tn_data_parallel *p = tn_data_parallel_new(m, o);
        ck_assert_int_eq(p != NULL, dtype[i] != TN_F16);
        tn_data_parallel_free(p);
    }
    assert_error(TN_E_DTYPE, "want TN_F32 or TN_BF16");
    tn_module_drop(m);
}

static void masks_mask(void)
{
    tn_attention_masks none = { 0 }, absent = { .mask = TN_NONE }, given = { 0 }, bad = { 0 };
    given.mask = tn_from_data((bool[]){ 0, 1, 1, 0, 0, 1, 0, 0, 0 }, TN_SHAPE(3, 3), TN_BOOL);
    bad.mask = tn_ones(TN_SHAPE(2, 2));
    ck_assert_uint_eq(see_masks(&none), see_masks(&absent));
    assert_differs(see_masks, none, given);
    ck_assert_uint_eq(see_masks(&bad), 0);
    assert_error(TN_E_SHAPE, "mask [2,2]");
}

static void masks_key_padding(void)
{
    tn_attention_masks none = { 0 }, given = { 0 }, bad = { 0 };
    given.key_padding = tn_from_data((bool[]){ 0, 0, 1, 0, 1, 1 }, TN_SHAPE(2, 3), TN_BOOL);
    bad.key_padding = tn_ones(TN_SHAPE(2, 3));
    assert_differs(see_masks, none, given);
    ck_assert_uint_eq(see_masks(&bad), 0);
    assert_error(TN_E_SHAPE, "key_padding [2,3] of f32");
}

static void cross_entropy_weight(void)
{
    tn_cross_entropy_options none = { 0 }, absent = { .weight = TN_NONE }, given = { 0 };
    given.weight = from_f64((double[]){ 1, 2, 3 }, TN_SHAPE(3));
    ck_assert_uint_eq(see_cross_entropy(&none), see_cross_entropy(&absent));
    assert_differs(see_cross_entropy, none, given);
    given.weight = from_f64((double[]){ 1, 2 }, TN_SHAPE(2));
    ck_assert_uint_eq(see_cross_entropy(&given), 0);
    assert_error(TN_E_SHAPE, "weight");
}

static void cross_entropy_reduction(void)
{
    tn_cross_entropy_options o[4] = { { .reduction = TN_MEAN },
                                      { .reduction = TN_SUM },
                                      { .reduction = TN_NO_REDUCTION },
                                      { .reduction = (tn_reduction)7 } };
    ck_assert_int_eq(TN_MEAN, 0);
    assert_differs(see_cross_entropy, o[0], o[1]);
    assert_differs(see_cross_entropy, o[0], o[2]);
    ck_assert_uint_eq(see_cross_entropy(&o[3]), 0);
    assert_error(TN_E_INVALID, "reduction 7");
}

/* f(x) = x + error x with the error out of backward's sight */
static tn_tensor *wrong_by(tn_tensor **in, void *error)
{
    return tn_add(in[0], tn_mul_scalar(tn_detach(in[0]), *(const double *)error));
}

static tn_tensor *kink(tn_tensor **in, void *user)
{
    (void)user;
    return tn_relu(in[0]);
}

static tn_tensor *cut(tn_tensor *grad, void *user)
{
    (void)user;
    return tn_detach(grad);
}

/* x^3 with the right gradient, whose own gradient lacks what a hook cut off */
static tn_tensor *cut_gradient(tn_tensor **in, void *user)
{
    (void)user;
    tn_tensor *y = tn_square(in[0]);
    if (tn_requires_grad(y)) tn_register_hook(y, cut, NULL);
    return tn_mul(y, in[0]);
}

static tn_status grad_check(tn_function f, double value, double error, tn_gradcheck_options o)
{
    tn_tensor *x = tn_full_as(TN_SHAPE(1, 1, 2, 2), value, TN_F64, tn_cpu());
    assert_ok(tn_set_requires_grad(x, true));
    tn_status status = tn_gradcheck(f, &x, 1, &error, o);
    return status;
}

#define CHECK(f, value, error, ...)                                                                \
    grad_check(f, value, error, (tn_gradcheck_options){ __VA_ARGS__ })

static void gradcheck_eps(void)
{
    /* 5e-5 below the kink: differences over 1e-6 do not see it, over 1e-3 they do */
    assert_ok(CHECK(kink, -5e-5, 0, 0));
    assert_ok(CHECK(kink, -5e-5, 0, .eps = 1e-6));
    ck_assert_int_ne(CHECK(kink, -5e-5, 0, .eps = 1e-3), TN_OK);
    assert_fails(CHECK(kink, 1, 0, .eps = -1), TN_E_INVALID, "eps -1");
}

static void gradcheck_rtol(void)
{
    assert_ok(CHECK(wrong_by, 1, 0.9e-3, 0)); /* within 1e-3 of 1 */
    ck_assert_int_ne(CHECK(wrong_by, 1, 2e-3, 0), TN_OK);
    assert_ok(CHECK(wrong_by, 1, 2e-3, .rtol = 1e-2));
    assert_fails(CHECK(kink, 1, 0, .rtol = -1), TN_E_INVALID, "rtol -1");
}

static void gradcheck_atol(void)
{
    ck_assert_int_ne(CHECK(wrong_by, 1, 1.2e-3, 0), TN_OK);
    assert_ok(CHECK(wrong_by, 1, 1.2e-3, .atol = 1e-3));
    assert_ok(CHECK(wrong_by, 1, 1.005e-3, 0)); /* 1e-5 more than rtol gives */
    ck_assert_int_ne(CHECK(wrong_by, 1, 1.005e-3, .atol = 1e-9), TN_OK);
    assert_fails(CHECK(kink, 1, 0, .atol = -1), TN_E_INVALID, "atol -1");
}

static void gradcheck_second(void)
{
    assert_ok(CHECK(cut_gradient, 0.3, 0, 0));
    ck_assert_int_ne(CHECK(cut_gradient, 0.3, 0, .second = true), TN_OK);
    tn_error_clear();
}

/* What a loss of the one or six weights of a Linear is to be, and how often it was called. */
typedef struct bent {
    double error, kink; /* of it, w + error w, the latter out of backward's sight; and |w - kink| */
    int calls;
} bent;

static tn_tensor *bent_loss(tn_module *m, void *user)
{
    bent *b = user;
    tn_tensor *w = tn_list_get(tn_parameters(m), "weight");
    tn_tensor *y = tn_add(w, tn_mul_scalar(tn_detach(w), b->error));
    b->calls++;
    if (b->kink != 0) y = tn_abs(tn_add_scalar(w, -b->kink));
    return tn_sum(y, NULL, 0, false);
}

static tn_status bent_check(int n, bent *b, tn_module_gradcheck_options o)
{
    tn_module *m = tn_linear_new(n, 1, (tn_linear_options){ .no_bias = true });
    TN_NO_GRAD assert_ok(tn_fill_(tn_list_get(tn_parameters(m), "weight"), 1));
    tn_status status = tn_module_gradcheck(m, bent_loss, b, o);
    tn_module_drop(m);
    return status;
}

#define BENT(error, kink, ...)                                                                     \
    bent_check(1, &(bent){ error, kink, 0 }, (tn_module_gradcheck_options){ __VA_ARGS__ })

static void module_gradcheck_eps(void)
{
    /* 5e-9 from the kink: 1e-6 / 100 sees it, 1e-7 / 100 does not */
    assert_fails(BENT(0, 1 + 5e-9, 0), TN_E_INVALID, "backward gives");
    assert_fails(BENT(0, 1 + 5e-9, .eps = 1e-6), TN_E_INVALID, "backward gives");
    assert_ok(BENT(0, 1 + 5e-9, .eps = 1e-7));
    assert_fails(BENT(0, 0, .eps = -1), TN_E_INVALID, "eps -1");
}

static void module_gradcheck_rtol(void)
{
    assert_ok(BENT(0.9e-5, 0, 0));
    assert_fails(BENT(2e-5, 0, 0), TN_E_INVALID, "backward gives");
    assert_ok(BENT(2e-5, 0, .rtol = 1e-4));
    assert_fails(BENT(0, 0, .rtol = -1), TN_E_INVALID, "rtol -1");
}

static void module_gradcheck_atol(void)
{
    assert_fails(BENT(1.1e-5, 0, 0), TN_E_INVALID, "backward gives");
    assert_ok(BENT(1.1e-5, 0, .atol = 1e-5));
    assert_fails(BENT(0, 0, .atol = -1), TN_E_INVALID, "atol -1");
}

static void module_gradcheck_fast(void)
{
    bent every = { 0 }, fast = { 0 };
    assert_ok(bent_check(6, &every, (tn_module_gradcheck_options){ 0 }));
    assert_ok(bent_check(6, &fast, (tn_module_gradcheck_options){ .fast = true }));
    ck_assert_int_eq(every.calls - fast.calls, 2 * (6 - 1));
}

/* ---- the rows -------------------------------------------------------------------------------- */

typedef struct row {
    const char *owner, *field;
    char kind; /* d: double, i: int64_t, b: bool */
    size_t at, size;
    double zero, other;  /* what zero means (NAN: refused); another value */
    double bad;          /* what is refused */
    const char *refusal; /* in the message; NULL: no value is bad */
    uint64_t (*see)(const void *options);
    const void *base; /* the other fields */
    void (*custom)(void);
} row;

#define ROW(kind, type, field, at, zero, other, bad, refusal, see, ...)                            \
    {                                                                                              \
#type, #field, kind, at, sizeof(type), zero, other, bad, refusal, see,                     \
            &(const type){ __VA_ARGS__ }, NULL                                                     \
    }
#define REAL(type, field, ...) ROW('d', type, field, offsetof(type, field), __VA_ARGS__)
#define INT(type, field, ...) ROW('i', type, field, offsetof(type, field), __VA_ARGS__)
/* the second element of an int64_t [2] */
#define INT1(type, field, ...) ROW('i', type, field, offsetof(type, field) + 8, __VA_ARGS__)
#define FLAG(type, field, see, ...)                                                                \
    ROW('b', type, field, offsetof(type, field), 0, 1, NAN, NULL, see, __VA_ARGS__)
#define CUSTOM(type, member, f)                                                                    \
    {                                                                                              \
        .owner = #type, .field = #member, .custom = f                                              \
    }

#define ADAM(see)                                                                                  \
    REAL(tn_adam_options, lr, 1e-3, .1, -1, "lr is -1", see, 0),                                   \
        REAL(tn_adam_options, beta1, .9, .5, 1, "beta1 is 1", see, 0),                             \
        REAL(tn_adam_options, beta2, .999, .5, -1, "beta2 is -1", see, 0),                         \
        REAL(tn_adam_options, eps, 1e-8, .1, -1, "eps is -1", see, 0),                             \
        REAL(tn_adam_options, weight_decay, 0, .1, -1, "weight_decay is -1", see, 0),              \
        FLAG(tn_adam_options, amsgrad, see, 0), FLAG(tn_adam_options, maximize, see, 0),           \
        FLAG(tn_adam_options, use_betas, see, 0), FLAG(tn_adam_options, use_lr, see, 0),           \
        FLAG(tn_adam_options, use_eps, see, .lr = .1)

static const row rows[] = {
    FLAG(tn_linear_options, no_bias, see_linear, 0),
    INT(tn_conv2d_options, stride, 1, 2, -1, "stride is -1", see_conv2d, 0),
    INT(tn_conv2d_options, padding, 0, 1, -1, "padding is -1", see_conv2d, 0),
    INT(tn_conv2d_options, dilation, 1, 2, -1, "dilation is -1", see_conv2d, 0),
    INT(tn_conv2d_options, groups, 1, 2, 3, "groups 3", see_conv2d, 0),
    FLAG(tn_conv2d_options, no_bias, see_conv2d, 0),
    FLAG(tn_conv2d_options, same, see_conv2d, 0),
    REAL(tn_batch_norm_options, eps, 1e-5, 1e-2, -1, "eps -1", see_batchnorm, 0),
    REAL(tn_batch_norm_options, momentum, .1, .5, 1.5, "momentum 1.5", see_batchnorm, 0),
    FLAG(tn_batch_norm_options, cumulative, see_batchnorm, .skip_nonfinite = true),
    FLAG(tn_batch_norm_options, no_affine, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, no_tracking, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, skip_nonfinite, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, use_eps, see_batchnorm, 0),
    FLAG(tn_batch_norm_options, use_momentum, see_batchnorm, 0),
    REAL(tn_frozen_batch_norm_options, eps, 1e-5, .5, -1, "eps -1", see_frozen_batchnorm, 0),
    FLAG(tn_frozen_batch_norm_options, use_eps, see_frozen_batchnorm, 0),
    REAL(tn_layer_norm_options, eps, 1e-5, .1, -1, "eps -1", see_layernorm, 0),
    FLAG(tn_layer_norm_options, use_eps, see_layernorm, 0),
    FLAG(tn_layer_norm_options, no_affine, see_layernorm, 0),
    FLAG(tn_layer_norm_options, no_bias, see_layernorm, 0),
    FLAG(tn_embedding_options, use_padding_index, see_embedding, .padding_index = 1),
    INT(tn_embedding_options, padding_index, 0, 2, 7, "padding_index 7", see_embedding,
        .use_padding_index = true),
    REAL(tn_positional_encoding_options, dropout, 0, .5, 1.5, "dropout probability 1.5",
         see_positional_encoding, 0),
    FLAG(tn_positional_encoding_options, non_persistent, see_positional_encoding, 0),
    REAL(tn_multihead_attention_options, dropout, 0, .5, -1, "dropout probability -1",
         see_attention, 0),
    FLAG(tn_multihead_attention_options, no_bias, see_attention, 0),
    FLAG(tn_multihead_attention_options, sequence_first, see_attention, 0),
    INT(tn_multihead_attention_options, kdim, 4, 6, -1, "kdim is -1", see_attention, .vdim = 3),
    INT(tn_multihead_attention_options, vdim, 4, 6, -1, "vdim is -1", see_attention, .kdim = 3),
    CUSTOM(tn_attention_masks, mask, masks_mask),
    CUSTOM(tn_attention_masks, key_padding, masks_key_padding),
    FLAG(tn_attention_masks, causal, see_masks, 0),
    INT(tn_encoder_layer_options, feedforward, 2048, 8, -1, "feedforward is -1", see_encoder_layer,
        0),
    REAL(tn_encoder_layer_options, dropout, 0, .5, 2, "dropout probability 2", see_encoder_layer,
         .feedforward = 8),
    FLAG(tn_encoder_layer_options, gelu, see_encoder_layer, .feedforward = 8),
    FLAG(tn_encoder_layer_options, norm_first, see_encoder_layer, .feedforward = 8),
    FLAG(tn_encoder_layer_options, sequence_first, see_encoder_layer, .feedforward = 8),
    REAL(tn_encoder_layer_options, eps, 1e-5, .1, -1, "eps -1", see_encoder_layer,
         .feedforward = 8),
    FLAG(tn_encoder_layer_options, use_eps, see_encoder_layer, .feedforward = 8),
    INT(tn_recurrent_options, layers, 1, 2, -1, "layers is -1", see_recurrent, 0),
    REAL(tn_recurrent_options, dropout, 0, .5, 2, "dropout probability 2", see_recurrent,
         .layers = 2),
    FLAG(tn_recurrent_options, no_bias, see_recurrent, 0),
    FLAG(tn_recurrent_options, bidirectional, see_recurrent, 0),
    FLAG(tn_recurrent_options, sequence_first, see_recurrent, 0),
    CUSTOM(tn_recurrent_options, relu, recurrent_relu),
    REAL(tn_ema_options, decay, .999, .5, 1.5, "decay 1.5", see_ema, 0),
    FLAG(tn_ema_options, equal, see_ema, 0),
    FLAG(tn_ema_options, average_buffers, see_ema, 0),
    FLAG(tn_ema_options, use_decay, see_ema, 0),

    CUSTOM(tn_walk_options, prefix, walk_prefix),
    FLAG(tn_walk_options, no_recurse, see_walk, 0),
    FLAG(tn_walk_options, keep_duplicates, see_walk, 0),
    FLAG(tn_walk_options, persistent_only, see_walk, 0),
    FLAG(tn_load_options, non_strict, see_load, 0),
    FLAG(tn_load_options, cast, see_load, 0),
    FLAG(tn_load_options, skip_mismatched, see_load, 0),
    CUSTOM(tn_load_options, assign, load_assign),
    CUSTOM(tn_load_options, rename, load_rename),
    CUSTOM(tn_load_options, user, load_rename),
    CUSTOM(tn_save_options, every_key, save_every_key),
    CUSTOM(tn_save_options, metadata, save_metadata),
    CUSTOM(tn_file_limits, header_bytes, limit_header),
    CUSTOM(tn_file_limits, tensors, limit_tensors),
    CUSTOM(tn_file_limits, inflated_bytes, limit_inflated),
    INT(tn_loader_options, batch_size, 1, 2, -1, "batch_size -1", see_loader, 0),
    FLAG(tn_loader_options, shuffle, see_loader, 0),
    FLAG(tn_loader_options, drop_last, see_loader, .batch_size = 3),
    INT(tn_loader_options, seed, 0, 5, NAN, NULL, see_loader, .shuffle = true),
    CUSTOM(tn_loader_options, prefetch, loader_prefetch),
    INT(tn_loader_options, parts, 1, 2, -1, "part 0 of -1", see_loader, .batch_size = 2),
    INT(tn_loader_options, part, 0, 1, 2, "part 2 of 2", see_loader, .batch_size = 2, .parts = 2),
    CUSTOM(tn_data_parallel_options, bucket_bytes, parallel_bucket_bytes),
    CUSTOM(tn_data_parallel_options, buffers, parallel_buffers),
    CUSTOM(tn_data_parallel_options, messages, parallel_messages),

    CUSTOM(tn_cross_entropy_options, weight, cross_entropy_weight),
    REAL(tn_cross_entropy_options, label_smoothing, 0, .2, 1.5, "label_smoothing 1.5",
         see_cross_entropy, 0),
    FLAG(tn_cross_entropy_options, use_ignore_index, see_cross_entropy, .ignore_index = 1),
    INT(tn_cross_entropy_options, ignore_index, 0, 1, NAN, NULL, see_cross_entropy,
        .use_ignore_index = true),
    CUSTOM(tn_cross_entropy_options, reduction, cross_entropy_reduction),
    INT(tn_conv2d_spec, stride, 1, 2, -1, "stride -1", see_conv2d_spec, .groups = 0),
    INT1(tn_conv2d_spec, stride, 1, 2, -1, "stride -1", see_conv2d_spec, .groups = 0),
    INT(tn_conv2d_spec, padding, 0, 1, -1, "padding -1", see_conv2d_spec, .groups = 0),
    INT1(tn_conv2d_spec, padding, 0, 1, -1, "padding -1", see_conv2d_spec, .groups = 0),
    INT(tn_conv2d_spec, dilation, 1, 2, -1, "dilation -1", see_conv2d_spec, .groups = 0),
    INT1(tn_conv2d_spec, dilation, 1, 2, -1, "dilation -1", see_conv2d_spec, .groups = 0),
    FLAG(tn_conv2d_spec, same, see_conv2d_spec, .groups = 0),
    INT(tn_conv2d_spec, groups, 1, 2, -1, "groups -1", see_conv2d_spec, .stride = { 1, 1 }),
    INT(tn_pool2d_spec, kernel, NAN, 2, -1, "kernel", see_max_pool2d, .kernel = { 3, 3 }),
    INT1(tn_pool2d_spec, kernel, NAN, 2, -1, "kernel", see_max_pool2d, .kernel = { 3, 3 }),
    INT(tn_pool2d_spec, stride, 3, 2, -1, "stride -1", see_max_pool2d, .kernel = { 3, 2 }),
    INT1(tn_pool2d_spec, stride, 2, 3, -1, "stride -1", see_max_pool2d, .kernel = { 3, 2 }),
    INT(tn_pool2d_spec, padding, 0, 1, -1, "padding -1", see_max_pool2d, .kernel = { 3, 3 }),
    INT1(tn_pool2d_spec, padding, 0, 1, 2, "padding 2", see_avg_pool2d, .kernel = { 3, 3 }),
    INT(tn_pool2d_spec, dilation, 1, 2, -1, "dilation -1", see_max_pool2d, .kernel = { 3, 3 }),
    INT1(tn_pool2d_spec, dilation, 1, 2, -1, "dilation -1", see_max_pool2d, .kernel = { 3, 3 }),
    FLAG(tn_pool2d_spec, ceil_mode, see_avg_pool2d, .kernel = { 2, 2 }),
    FLAG(tn_pool2d_spec, exclude_padding, see_avg_pool2d, .kernel = { 3, 3 }, .padding = { 1, 1 }),

    REAL(tn_sgd_options, lr, 1e-3, .1, -1, "lr is -1", see_sgd, 0),
    REAL(tn_sgd_options, momentum, 0, .9, -1, "momentum is -1", see_sgd, 0),
    REAL(tn_sgd_options, dampening, 0, .5, -1, "dampening is -1", see_sgd, .momentum = .9),
    REAL(tn_sgd_options, weight_decay, 0, .1, -1, "weight_decay is -1", see_sgd, 0),
    FLAG(tn_sgd_options, nesterov, see_sgd, .momentum = .9),
    FLAG(tn_sgd_options, maximize, see_sgd, 0),
    FLAG(tn_sgd_options, use_lr, see_sgd, 0),
    ADAM(see_adam),
    ADAM(see_adamw),
    REAL(tn_rmsprop_options, lr, 1e-2, .1, -1, "lr is -1", see_rmsprop, 0),
    REAL(tn_rmsprop_options, alpha, .99, .5, 1, "alpha is 1", see_rmsprop, 0),
    REAL(tn_rmsprop_options, eps, 1e-8, .1, -1, "eps is -1", see_rmsprop, 0),
    REAL(tn_rmsprop_options, weight_decay, 0, .1, -1, "weight_decay is -1", see_rmsprop, 0),
    REAL(tn_rmsprop_options, momentum, 0, .5, -1, "momentum is -1", see_rmsprop, 0),
    FLAG(tn_rmsprop_options, centered, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, maximize, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, use_lr, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, use_alpha, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, use_eps, see_rmsprop, 0),
    REAL(tn_adagrad_options, lr, 1e-2, .1, -1, "lr is -1", see_adagrad, 0),
    REAL(tn_adagrad_options, lr_decay, 0, .1, -1, "lr_decay is -1", see_adagrad, 0),
    REAL(tn_adagrad_options, weight_decay, 0, .1, -1, "weight_decay is -1", see_adagrad, 0),
    REAL(tn_adagrad_options, initial_accumulator, 0, .5, -1, "initial_accumulator is -1",
         see_adagrad, 0),
    REAL(tn_adagrad_options, eps, 1e-10, .1, -1, "eps is -1", see_adagrad, 0),
    FLAG(tn_adagrad_options, maximize, see_adagrad, 0),
    FLAG(tn_adagrad_options, use_lr, see_adagrad, 0),
    FLAG(tn_adagrad_options, use_eps, see_adagrad, 0),
    REAL(tn_group_options, lr, .25, .1, -1, "lr is -1", see_group, 0),
    REAL(tn_group_options, weight_decay, 0, .1, -1, "weight_decay is -1", see_group, 0),
    REAL(tn_group_options, momentum, .9, .5, -1, "momentum is -1", see_group, 0),
    REAL(tn_group_options, dampening, .25, .5, -1, "dampening is -1", see_group, .momentum = .9),
    REAL(tn_group_options, beta1, .8, .5, 1, "beta1 is 1", see_adam_group, 0),
    REAL(tn_group_options, beta2, .9, .5, 1, "beta2 is 1", see_adam_group, 0),
    REAL(tn_group_options, eps, 1e-4, .1, -1, "eps is -1", see_adam_group, 0),
    REAL(tn_group_options, alpha, .9, .5, 1, "alpha is 1", see_rmsprop_group, 0),
    REAL(tn_group_options, lr_decay, .1, .2, -1, "lr_decay is -1", see_adagrad_group, 0),
    FLAG(tn_group_options, use_lr, see_group, 0),
    FLAG(tn_group_options, use_numbers, see_group, .momentum = .9),
    REAL(tn_one_cycle_options, max_lr, NAN, 2, -1, "max_lr", see_one_cycle, .total_steps = 6),
    INT(tn_one_cycle_options, total_steps, NAN, 5, -1, "total_steps", see_one_cycle, .max_lr = 1),
    REAL(tn_one_cycle_options, pct_start, .3, .5, 1.5, "pct_start 1.5", see_one_cycle, .max_lr = 1,
         .total_steps = 6),
    REAL(tn_one_cycle_options, div_factor, 25, 10, -1, "div_factor -1", see_one_cycle, .max_lr = 1,
         .total_steps = 6),
    REAL(tn_one_cycle_options, final_div_factor, 1e4, 10, -1, "final_div_factor -1", see_one_cycle,
         .max_lr = 1, .total_steps = 6),
    REAL(tn_one_cycle_options, base_momentum, .85, .5, 1.5, "base_momentum is 1.5", see_one_cycle,
         .max_lr = 1, .total_steps = 6),
    REAL(tn_one_cycle_options, max_momentum, .95, .99, 1.5, "max_momentum is 1.5", see_one_cycle,
         .max_lr = 1, .total_steps = 6),
    FLAG(tn_one_cycle_options, fixed_momentum, see_one_cycle, .max_lr = 1, .total_steps = 6),
    FLAG(tn_one_cycle_options, use_momentum, see_one_cycle, .max_lr = 1, .total_steps = 6),
    REAL(tn_plateau_options, factor, .1, .5, 1.5, "factor 1.5", see_plateau, 0),
    REAL(tn_plateau_options, threshold, 1e-4, .5, -1, "threshold is -1", see_plateau, 0),
    REAL(tn_plateau_options, min_lr, 0, .5, -1, "min_lr is -1", see_plateau, 0),
    INT(tn_plateau_options, patience, 10, 2, -1, "patience -1", see_plateau, 0),
    INT(tn_plateau_options, cooldown, 0, 3, -1, "cooldown -1", see_plateau, .patience = 2),
    FLAG(tn_plateau_options, maximize, see_plateau, 0),
    FLAG(tn_plateau_options, use_patience, see_plateau, 0),
    FLAG(tn_plateau_options, use_threshold, see_plateau, .patience = 1),
    REAL(tn_scaler_options, init_scale, 65536, 8, -1, "scale -1", see_scaler, 0),
    REAL(tn_scaler_options, growth, 2, 3, .5, "growth 0.5", see_scaler, 0),
    REAL(tn_scaler_options, backoff, .5, .25, 1.5, "backoff 1.5", see_scaler, 0),
    INT(tn_scaler_options, interval, 2000, 3, -1, "interval -1", see_scaler, 0),
    FLAG(tn_scaler_options, disabled, see_scaler, 0),

    CUSTOM(tn_gradcheck_options, eps, gradcheck_eps),
    CUSTOM(tn_gradcheck_options, atol, gradcheck_atol),
    CUSTOM(tn_gradcheck_options, rtol, gradcheck_rtol),
    CUSTOM(tn_gradcheck_options, second, gradcheck_second),
    CUSTOM(tn_module_gradcheck_options, eps, module_gradcheck_eps),
    CUSTOM(tn_module_gradcheck_options, atol, module_gradcheck_atol),
    CUSTOM(tn_module_gradcheck_options, rtol, module_gradcheck_rtol),
    CUSTOM(tn_module_gradcheck_options, fast, module_gradcheck_fast),
};

/* ---- a real 0 -------------------------------------------------------------------------------- */

/* Every number of options whose 0 is another number by default. Its twin takes 0 as given; or why
 * nobody can mean 0. A new one that is not here fails zero_is_said. */
static const struct zero {
    const char *owner, *field, *twin, *why;
} zeros[] = {
#define TWIN(owner, field, twin)                                                                   \
    {                                                                                              \
#owner, #field, #twin, NULL                                                                \
    }
#define NEVER(owner, field, why)                                                                   \
    {                                                                                              \
#owner, #field, NULL, why                                                                  \
    }
    TWIN(tn_batch_norm_options, eps, use_eps),
    TWIN(tn_batch_norm_options, momentum, use_momentum),
    TWIN(tn_frozen_batch_norm_options, eps, use_eps),
    TWIN(tn_layer_norm_options, eps, use_eps),
    TWIN(tn_encoder_layer_options, eps, use_eps),
    TWIN(tn_ema_options, decay, use_decay),
    TWIN(tn_sgd_options, lr, use_lr),
    TWIN(tn_adam_options, lr, use_lr),
    TWIN(tn_adam_options, beta1, use_betas),
    TWIN(tn_adam_options, beta2, use_betas),
    TWIN(tn_adam_options, eps, use_eps),
    TWIN(tn_rmsprop_options, lr, use_lr),
    TWIN(tn_rmsprop_options, alpha, use_alpha),
    TWIN(tn_rmsprop_options, eps, use_eps),
    TWIN(tn_adagrad_options, lr, use_lr),
    TWIN(tn_adagrad_options, eps, use_eps),
    TWIN(tn_group_options, lr, use_lr),
    NEVER(tn_group_options, momentum, "whether there is any is the optimizer's, for all groups"),
    TWIN(tn_group_options, dampening, use_numbers),
    TWIN(tn_group_options, beta1, use_numbers),
    TWIN(tn_group_options, beta2, use_numbers),
    TWIN(tn_group_options, eps, use_numbers),
    TWIN(tn_group_options, alpha, use_numbers),
    TWIN(tn_group_options, lr_decay, use_numbers),
    TWIN(tn_one_cycle_options, base_momentum, use_momentum),
    TWIN(tn_one_cycle_options, max_momentum, use_momentum),
    TWIN(tn_plateau_options, threshold, use_threshold),
    TWIN(tn_plateau_options, patience, use_patience),

    NEVER(tn_conv2d_options, stride, "at least 1"),
    NEVER(tn_conv2d_options, dilation, "at least 1"),
    NEVER(tn_conv2d_options, groups, "at least 1"),
    NEVER(tn_conv2d_spec, stride, "at least 1"),
    NEVER(tn_conv2d_spec, dilation, "at least 1"),
    NEVER(tn_conv2d_spec, groups, "at least 1"),
    NEVER(tn_pool2d_spec, kernel, "at least 1"),
    NEVER(tn_pool2d_spec, stride, "at least 1"),
    NEVER(tn_pool2d_spec, dilation, "at least 1"),
    NEVER(tn_multihead_attention_options, kdim, "at least 1"),
    NEVER(tn_multihead_attention_options, vdim, "at least 1"),
    NEVER(tn_encoder_layer_options, feedforward, "at least 1"),
    NEVER(tn_recurrent_options, layers, "at least 1"),
    NEVER(tn_loader_options, batch_size, "at least 1"),
    NEVER(tn_loader_options, parts, "at least 1"),
    NEVER(tn_data_parallel_options, bucket_bytes, "a bucket holds at least one gradient"),
    NEVER(tn_file_limits, header_bytes, "no file has so few"),
    NEVER(tn_file_limits, tensors, "no file worth reading has so few"),
    NEVER(tn_file_limits, inflated_bytes, "no file has so few"),
    NEVER(tn_one_cycle_options, max_lr, "above 0"),
    NEVER(tn_one_cycle_options, total_steps, "at least 1"),
    NEVER(tn_one_cycle_options, pct_start, "above 0"),
    NEVER(tn_one_cycle_options, div_factor, "above 0"),
    NEVER(tn_one_cycle_options, final_div_factor, "above 0"),
    NEVER(tn_plateau_options, factor, "above 0"),
    NEVER(tn_scaler_options, init_scale, "above 0"),
    NEVER(tn_scaler_options, growth, "above 1"),
    NEVER(tn_scaler_options, backoff, "above 0"),
    NEVER(tn_scaler_options, interval, "at least 1"),
    NEVER(tn_gradcheck_options, eps, "above 0"),
    NEVER(tn_gradcheck_options, atol, "above 0"),
    NEVER(tn_gradcheck_options, rtol, "above 0"),
    NEVER(tn_module_gradcheck_options, eps, "above 0"),
    NEVER(tn_module_gradcheck_options, atol, "above 0"),
    NEVER(tn_module_gradcheck_options, rtol, "above 0"),
    NEVER(tn_trace_options, values, "-1 is none"),
    NEVER(tn_explain_options, values, "-1 is none"),
};

static const row *row_of(const char *owner, const char *field)
{
    for (int i = 0; i < COUNT(rows); i++)
        if (!strcmp(rows[i].owner, owner) && !strcmp(rows[i].field, field)) return &rows[i];
    return NULL;
}

static const struct zero *zero_of(const char *owner, const char *field)
{
    for (int i = 0; i < COUNT(zeros); i++)
        if (!strcmp(zeros[i].owner, owner) && !strcmp(zeros[i].field, field)) return &zeros[i];
    return NULL;
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* What the row's function shows with this value in its field, and its twin (NULL: none) set. */
static uint64_t shown_with(const row *r, double value, const row *twin)
{
    _Alignas(max_align_t) char options[256];
    int64_t whole = r->kind == 'i' ? (int64_t)value : 0;
    bool flag = value != 0;
    ck_assert_uint_le(r->size, sizeof options);
    memcpy(options, r->base, r->size);
    memcpy(options + r->at,
           r->kind == 'd'   ? (const void *)&value
           : r->kind == 'i' ? (const void *)&whole
                            : &flag,
           r->kind == 'b' ? sizeof flag : 8);
    if (twin) memcpy(options + twin->at, &(bool){ true }, sizeof flag);
    tn_manual_seed(5);
    return r->see(options);
}

static uint64_t shown(const row *r, double value)
{
    return shown_with(r, value, NULL);
}

START_TEST(fields)
{
    const row *r = &rows[_i];
    if (r->custom) {
        r->custom();
        return;
    }
    uint64_t zero = shown(r, 0);
    if (isnan(r->zero)) {
        ck_assert_msg(zero == 0, "%s.%s: zero was taken", r->owner, r->field);
        ck_assert_msg(strstr(tn_error(), r->refusal) != NULL, "%s.%s: \"%s\" lacks \"%s\"",
                      r->owner, r->field, tn_error(), r->refusal);
    } else {
        ck_assert_msg(zero != 0, "%s.%s: zero was refused: %s", r->owner, r->field, tn_error());
        ck_assert_msg(zero == shown(r, r->zero), "%s.%s: zero is not %g", r->owner, r->field,
                      r->zero);
    }
    tn_error_clear();
    uint64_t other = shown(r, r->other);
    ck_assert_msg(other != 0, "%s.%s: %g was refused: %s", r->owner, r->field, r->other,
                  tn_error());
    ck_assert_msg(other != zero, "%s.%s: %g changes nothing", r->owner, r->field, r->other);
    if (!r->refusal) return;
    tn_error_clear();
    ck_assert_msg(shown(r, r->bad) == 0, "%s.%s: %g was taken", r->owner, r->field, r->bad);
    ck_assert_msg(strstr(tn_error(), r->refusal) != NULL, "%s.%s: \"%s\" lacks \"%s\"", r->owner,
                  r->field, tn_error(), r->refusal);
    tn_error_clear();
}
END_TEST

/* A header's text without comments; to be freed. */
static char *header_text(const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "../../include/tenon/%s", name);
    FILE *file = fopen(golden_path(path), "r");
    ck_assert_msg(file != NULL, "%s cannot be read", golden_path(path));
    char *text = calloc(1, 1 << 20), *to = text;
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    ck_assert_uint_gt(n, 0);
    fclose(file);
    for (const char *c = text; *c; c++) {
        const char *end = strncmp(c, "/*", 2) == 0 ? strstr(c, "*/") : NULL;
        if (end)
            c = end + 1;
        else
            *to++ = *c;
    }
    *to = '\0';
    return text;
}

/* The name that ends at `end`: "x" of "double *x", "x[2]" and "bool (*x)(int)". */
static void declared(const char *start, const char *end, char *name, size_t size)
{
    const char *call = memchr(start, '(', (size_t)(end - start));
    const char *bracket = memchr(start, '[', (size_t)(end - start));
    if (call) {
        start = call + 2;
        end = memchr(start, ')', (size_t)(end - start));
    } else if (bracket) {
        end = bracket;
    }
    while (end > start && isspace((unsigned char)end[-1])) end--;
    const char *first = end;
    while (first > start && (isalnum((unsigned char)first[-1]) || first[-1] == '_')) first--;
    snprintf(name, size, "%.*s", (int)(end - first), first);
}

/* Called with every field of options in the public headers, and its declaration's first word. */
typedef void (*field_check)(const char *owner, const char *type, const char *field);

static void must_have_row(const char *owner, const char *type, const char *field)
{
    (void)type;
    /* of help's and the graph's options other suites show what they do */
    static const char *const elsewhere[] = { "tn_graph_options", "tn_trace_options",
                                             "tn_explain_options" };
    for (int i = 0; i < COUNT(elsewhere); i++)
        if (!strcmp(owner, elsewhere[i])) return;
    ck_assert_msg(row_of(owner, field) != NULL, "%s.%s has no row", owner, field);
}

/* A number's 0 is 0: what comes next to it does the same. Else it has its entry. */
static void must_say_zero(const char *owner, const char *type, const char *field)
{
    static const char *const numbers[] = { "double", "float", "int", "int64_t", "uint64_t" };
    bool is_number = false;
    for (int i = 0; i < COUNT(numbers); i++) is_number |= !strcmp(type, numbers[i]);
    const row *r = row_of(owner, field);
    if (!is_number || zero_of(owner, field)) return;
    ck_assert_msg(r && !r->custom && r->zero == 0,
                  "%s.%s: what can one who means 0 do? want an entry of zeros", owner, field);
    if (r->kind == 'd' && strcmp(field, "dropout") != 0) /* which takes another way, and rounds */
        ck_assert_msg(shown(r, 0) == shown(r, 1e-300), "%s.%s: 0 is not 0", owner, field);
}

/* Every declarator between start and end. Returns how many there are. */
static int check_fields(const char *owner, const char *start, const char *end, field_check check)
{
    char type[32] = "";
    int n = 0;
    int depth = 0; /* of parentheses: commas inside separate no fields */
    for (const char *c = start; c < end; c++) {
        depth += (*c == '(') - (*c == ')');
        if (depth || (*c != ',' && *c != ';')) continue;
        char name[64];
        declared(start, c, name, sizeof name);
        while (isspace((unsigned char)*start)) start++;
        if (!type[0]) snprintf(type, sizeof type, "%.*s", (int)strcspn(start, " "), start);
        check(owner, type, name);
        if (*c == ';') type[0] = '\0';
        start = c + 1;
        n++;
    }
    return n;
}

static void every_field(field_check check)
{
    static const char *const headers[] = { "tensor.h",   "autograd.h",    "ops.h",   "module.h",
                                           "layers.h",   "init.h",        "data.h",  "diagnose.h",
                                           "optim.h",    "io.h",          "graph.h", "trace.h",
                                           "parallel.h", "derivatives.h", "error.h", "custom.h",
                                           "capture.h" };
    static const char *const endings[] = { "_options", "_spec", "_masks", "_limits" };
    static const char opening[] = "typedef struct ";
    int n = 0;
    for (int i = 0; i < COUNT(headers); i++) {
        char *text = header_text(headers[i]);
        for (const char *at = text; (at = strstr(at, opening)) != NULL; at++) {
            const char *name = at + strlen(opening), *end = name;
            bool wanted = false;
            while (isalnum((unsigned char)*end) || *end == '_') end++;
            char owner[64];
            snprintf(owner, sizeof owner, "%.*s", (int)(end - name), name);
            for (int k = 0; k < COUNT(endings); k++) {
                size_t length = strlen(endings[k]);
                wanted |= strlen(owner) > length &&
                          strcmp(owner + strlen(owner) - length, endings[k]) == 0;
            }
            const char *open = strchr(end, '{'), *close = open ? strchr(open, '}') : NULL;
            if (wanted && close) n += check_fields(owner, open + 1, close, check);
        }
        free(text);
    }
    ck_assert_int_ge(n, 90); /* the headers were indeed read */
}

START_TEST(every_field_has_a_row)
{
    every_field(must_have_row);
}
END_TEST

START_TEST(zero_is_said)
{
    every_field(must_say_zero);
}
END_TEST

/* With its twin 0 is taken, and is not the default. */
START_TEST(zero_is_a_number)
{
    const struct zero *z = &zeros[_i];
    const row *r = row_of(z->owner, z->field), *twin = z->twin ? row_of(z->owner, z->twin) : NULL;
    ck_assert_msg(!z->twin == !twin, "%s.%s is not there", z->owner, z->twin);
    if (!twin) return;
    ck_assert(r && r->kind != 'b' && r->zero != 0);
    uint64_t seen = shown_with(r, 0, twin);
    ck_assert_msg(seen != 0, "%s.%s: 0 was refused: %s", z->owner, z->field, tn_error());
    ck_assert_msg(seen != shown(r, 0), "%s.%s: 0 is the default", z->owner, z->field);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("options");
    TCase *t = file_case(suite, "options");
    tcase_add_loop_test(t, fields, 0, COUNT(rows));
    tcase_add_test(t, every_field_has_a_row);
    tcase_add_test(t, zero_is_said);
    tcase_add_loop_test(t, zero_is_a_number, 0, COUNT(zeros));
    return suite;
}
