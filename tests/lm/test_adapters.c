/*
 * test_adapters.c - adapters beside the peft package's: values, training, merging, files both ways;
 * in a language model, with its cache; refusals of files.
 *
 * Truth: golden/lm/lora.safetensors and the folders of golden/lm/lora/, made by
 * golden/make_lm_lora.py with peft.
 *
 * Seen to fail: with rank in place of its root, the base trained, too (src/nn/layers/lora.c);
 * without the check of pairs, or of places in the model (src/ext/lm/adapter.c); with adapters in
 * the file of the base (weights.c).
 */
#include <sys/stat.h>
#include <tenon/generate.h>
#include <tenon/lm.h>
#include <tenon/lora.h>

#include "files.h"

/* fc1, relu, fc2, relu, head */
static tn_module *net_new(void)
{
    const tn_linear_options o = { 0 };
    tn_module *m = tn_module_dict_new();
    assert_ok(tn_register_module(m, "fc1", NULL, tn_linear_new(6, 8, o)));
    assert_ok(tn_register_module(m, "fc2", NULL, tn_linear_new(8, 8, o)));
    assert_ok(tn_register_module(m, "head", NULL, tn_linear_new(8, 3, o)));
    return owned(m);
}

static tn_tensor *of(tn_module *m, tn_tensor *x)
{
    if (strcmp(m->type->name, "LanguageModel") == 0) return tn_forward(m, x);
    x = tn_relu(tn_forward(tn_get_submodule(m, "fc1"), x));
    return tn_forward(tn_get_submodule(m, "head"),
                      tn_relu(tn_forward(tn_get_submodule(m, "fc2"), x)));
}

static tn_list *golden(void)
{
    tn_list *list = tn_load_tensors(golden_path("lm/lora.safetensors"), NULL);
    assert_made(list);
    return list;
}

static bool base_name(const char *name, char *to, size_t size, void *user)
{
    (void)user;
    if (strncmp(name, "base.", 5) != 0) return false;
    snprintf(to, size, "%s", name + 5);
    return true;
}

static const char *const cases[] = { "plain", "rslora", "conv", "gpt2", "bf16" };

static const char *folder_of(const char *name)
{
    static char path[64];
    snprintf(path, sizeof path, "lm/lora/%s", name);
    return golden_path(path);
}

/* The model of a case, in eval mode. */
static tn_module *base_of(const char *name)
{
    tn_module *m = strcmp(name, "gpt2")
                       ? net_new()
                       : owned(tn_lm_load(golden_path("lm/gpt2"), (tn_lm_options){ 0 }));
    if (strcmp(name, "gpt2") != 0)
        assert_ok(tn_load_state_dict(m, golden(), (tn_load_options){ .rename = base_name }, NULL));
    if (strcmp(name, "bf16") == 0) assert_ok(tn_module_to_dtype(m, TN_BF16));
    assert_ok(tn_eval(m));
    return m;
}

static tn_tensor *input_of(const char *name)
{
    if (strcmp(name, "gpt2") == 0) return tn_list_get(golden(), "ids");
    return tn_to_dtype(tn_list_get(golden(), "x"), strcmp(name, "bf16") ? TN_F32 : TN_BF16);
}

static tn_tensor *part(const char *name, const char *what)
{
    char key[256];
    snprintf(key, sizeof key, "%s/%s", name, what);
    tn_tensor *t = tn_list_get(golden(), key);
    assert_made(t);
    return t;
}

/* "X.NAME.lora_A" of the model, as "after.base_model.model.X.lora_A.weight". */
static const char *golden_name(const char *own)
{
    static char name[256];
    const char *end = strrchr(own, '.'), *dot = end;
    while (*--dot != '.') {
    }
    snprintf(name, sizeof name, "after.base_model.model.%.*s%s.weight", (int)(dot - own), own, end);
    return name;
}

static uint64_t hash_of_base(tn_module *m)
{
    const tn_list *state = tn_state_dict(m, "");
    tn_list *base = tn_list_new();
    for (int i = 0; i < state->n; i++)
        if (strcmp(state->entry[i].owner->type->name, "Lora") != 0)
            assert_ok(tn_list_add(base, state->entry[i].name, state->entry[i].tensor));
    return hash_of(base);
}

/* ---- beside peft ----------------------------------------------------------------------------- */

START_TEST(adapters_of_peft_compute_and_train_as_there)
{
    const char *name = cases[_i];
    const bool half = strcmp(name, "bf16") == 0;
    const double tolerance = half ? 2e-2 : 1e-5;
    tn_module *m = base_of(name);
    tn_tensor *x = input_of(name);
    assert_ok(tn_lora_load(m, folder_of(name), NULL));
    const uint64_t base = hash_of_base(m);
    assert_close(of(m, x), part(name, "y"), tolerance, tolerance);
    const tn_list *all = tn_parameters(m);
    tn_optim *opt = owned(tn_adamw(all, (tn_adamw_options){ .lr = 0.01, .weight_decay = 0.01 }));
    for (int i = 0; i < 3; i++) {
        assert_ok(tn_optim_zero_grad(opt));
        assert_ok(tn_backward(tn_mean(tn_square(tn_to_dtype(of(m, x), TN_F32)), NULL, 0, false)));
        assert_ok(tn_optim_step(opt));
    }
    assert_close(of(m, x), part(name, "after"), tolerance, tolerance);
    int trained = 0;
    for (int i = 0; i < all->n; i++) {
        if (!tn_requires_grad(all->entry[i].tensor)) continue;
        ck_assert_int_eq(tn_dtype_of(all->entry[i].tensor), TN_F32);
        assert_close(all->entry[i].tensor, part(name, golden_name(all->entry[i].name)),
                     half ? 0.1 : 1e-5, half ? 0.02 : 1e-5);
        trained++;
    }
    ck_assert_int_eq(trained, strcmp(name, "gpt2") ? 4 : 12);
    ck_assert(hash_of_base(m) == base);
}
END_TEST

START_TEST(a_merged_weight_is_that_of_peft)
{
    const char *name = cases[_i];
    tn_module *m = base_of(name);
    const bool gpt2 = strcmp(name, "gpt2") == 0;
    assert_ok(tn_lora_load(m, folder_of(name), "peft"));
    assert_ok(tn_lora_merge(m));
    assert_close(
        tn_get_buffer(m, gpt2 ? "transformer.h.0.attn.c_attn.peft.merged" : "fc1.peft.merged"),
        part(name, "merged"), 1e-6, 1e-7);
}
END_TEST

START_TEST(a_is_drawn_as_there)
{
    tn_module *m = base_of("plain");
    tn_manual_seed(0);
    assert_ok(tn_lora(m, "fc2,fc1", (tn_lora_options){ .rank = 4 }));
    const tn_list *list = golden();
    assert_close(tn_get_parameter(m, "fc1.default.lora_A"), tn_list_get(list, "drawn.fc1"), 0,
                 1e-7);
    assert_close(tn_get_parameter(m, "fc2.default.lora_A"), tn_list_get(list, "drawn.fc2"), 0,
                 1e-7);
}
END_TEST

START_TEST(what_is_saved_is_what_peft_saves)
{
    const char *name = cases[_i];
    tn_module *m = base_of(name);
    assert_ok(tn_lora_load(m, folder_of(name), "mine"));
    assert_ok(tn_lora_save(m, in_folder("adapter")));
    char file[128];
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", folder_of(name));
    tn_list *got = tn_load_tensors(in_folder("adapter/adapter_model.safetensors"), NULL);
    tn_list *want = tn_load_tensors(file, NULL);
    assert_made(got);
    assert_made(want);
    ck_assert_int_eq(got->n, want->n);
    for (int i = 0; i < want->n; i++) {
        tn_tensor *t = tn_list_get(got, want->entry[i].name);
        assert_made(t);
        assert_close(t, want->entry[i].tensor, 0, 0);
    }
    size_t size;
    char *text = owned(read_bytes(in_folder("adapter/adapter_config.json"), &size));
    assert_made(
        strstr(text, strcmp(name, "rslora") ? "\"use_rslora\": false" : "\"use_rslora\": true"));
    if (strcmp(name, "rslora") == 0) assert_made(strstr(text, "\"lora_dropout\": 0.25,"));
    if (strcmp(name, "plain") == 0)
        assert_made(strstr(text, "\"target_modules\": [\"fc1\", \"fc2\"]"));
    tn_module *again = base_of(name);
    assert_ok(tn_lora_load(again, in_folder("adapter"), NULL));
    assert_close(of(again, input_of(name)), of(m, input_of(name)), 0, 0);
    ck_assert(!tn_training(tn_get_submodule(
        again, strcmp(name, "gpt2") ? "fc1.default" : "transformer.h.0.mlp.c_proj.default")));
}
END_TEST

/* ---- in a language model --------------------------------------------------------------------- */

START_TEST(a_language_model_generates_with_its_cache)
{
    static const int64_t ids[] = { 3, 10, 17, 24, 31 };
    const tn_prompt prompt = { ids, 5 };
    const tn_generate_options o = { .max_new_tokens = 12, .n_eos = -1 };
    tn_module *m = base_of("gpt2");
    tn_generated *plain = tn_generate(m, &prompt, 1, o);
    assert_made(plain);
    assert_ok(tn_lora_load(m, folder_of("gpt2"), NULL));
    for (int merged = 0; merged < 2; merged++) {
        if (merged) assert_ok(tn_lora_merge(m));
        tn_generated *made = tn_generate(m, &prompt, 1, o);
        assert_made(made);
        int64_t all[17];
        memcpy(all, ids, sizeof ids);
        bool differs = false;
        for (int i = 0; i < 12; i++) {
            tn_tensor *y = tn_forward(m, tn_from_ints(all, TN_SHAPE(1, 5 + i)));
            const int64_t best = (int64_t)tn_item(tn_argmax(tn_select(y, 1, -1), -1, false));
            ck_assert_int_eq(made->rows[0].ids[i], best); /* of the full pass */
            all[5 + i] = best;
            differs |= best != plain->rows[0].ids[i];
        }
        ck_assert(differs);
        tn_generated_free(made);
    }
    assert_ok(tn_lora_set(m, NULL));
    tn_generated *made = tn_generate(m, &prompt, 1, o);
    ck_assert_mem_eq(made->rows[0].ids, plain->rows[0].ids, 12 * sizeof *ids);
    tn_generated_free(made);
    tn_generated_free(plain);
}
END_TEST

START_TEST(the_base_of_a_language_model_is_saved_alone)
{
    tn_module *m = base_of("gpt2");
    tn_tensor *x = input_of("gpt2"), *y = tn_forward(m, x);
    assert_ok(tn_lora_load(m, folder_of("gpt2"), NULL));
    assert_ok(tn_lm_save(m, in_folder("base")));
    tn_module *n = owned(tn_lm_load(in_folder("base"), (tn_lm_options){ 0 }));
    assert_close(tn_forward(n, x), y, 0, 0);
    tn_tensor *z = tn_forward(m, x);
    assert_ok(tn_lora_remove(m, "default", true));
    assert_ok(tn_lm_save(m, in_folder("sum")));
    n = owned(tn_lm_load(in_folder("sum"), (tn_lm_options){ 0 }));
    assert_close(tn_forward(n, x), z, 1e-5, 1e-5);
}
END_TEST

/* ---- files that are refused ------------------------------------------------------------------ */

/* The settings of a folder whose values are those of plain. */
static const char *with_settings(const char *text)
{
    size_t n;
    char *values = owned(read_bytes(golden_path("lm/lora/plain/adapter_model.safetensors"), &n));
    mkdir(in_folder("f"), 0777);
    write_bytes("f/adapter_model.safetensors", values, n);
    write_bytes("f/adapter_config.json", text, strlen(text));
    return in_folder("f");
}

START_TEST(settings_that_are_not_supported_are_named)
{
    static const struct {
        const char *text, *message;
        tn_status status;
    } bad[] = {
        { "{\"use_dora\": true}", "the setting \"use_dora\"", TN_E_UNSUPPORTED },
        { "{\"lora_bias\": true}", "\"lora_bias\"", TN_E_UNSUPPORTED },
        { "{\"bias\": \"all\"}", "\"bias\"", TN_E_UNSUPPORTED },
        { "{\"modules_to_save\": [\"head\"]}", "\"modules_to_save\"", TN_E_UNSUPPORTED },
        { "{\"trainable_token_indices\": [1]}", "\"trainable_token_indices\"", TN_E_UNSUPPORTED },
        { "{\"loftq_config\": {\"a\": 1}}", "\"loftq_config\"", TN_E_UNSUPPORTED },
        { "{\"init_lora_weights\": \"pissa\"}", "\"init_lora_weights\"", TN_E_UNSUPPORTED },
        { "{\"alpha_pattern\": {\"fc1\": 2}}", "\"alpha_pattern\"", TN_E_UNSUPPORTED },
        { "{\"rank_pattern\": {\"fc1\": 2}}", "\"rank_pattern\"", TN_E_UNSUPPORTED },
        { "{\"peft_version target_modules\": 1}", "\"peft_version target", TN_E_UNSUPPORTED },
        { "{\"of_tomorrow\": 1}", "\"of_tomorrow\"", TN_E_UNSUPPORTED },
        { "{\"peft_type\": \"IA3\"}", "\"peft_type\"", TN_E_UNSUPPORTED },
        { "{\"lora_alpha\": \"8\"}", "\"lora_alpha\"", TN_E_UNSUPPORTED },
        { "{\"lora_alpha\": 1e999}", "alpha inf", TN_E_INVALID },
        { "{\"r\": 4, \"lora_dropout\": 1.5}", "dropout probability 1.5", TN_E_INVALID },
        { "{\"r\": 8", "adapter_config.json: no JSON object", TN_E_FORMAT },
        { "[]", "want {", TN_E_FORMAT },
        { "{\"r\": 3}", "fc1.default.lora_A", TN_E_SHAPE },
    };
    tn_module *m = net_new();
    const uint64_t hash = hash_of_module(m);
    for (int i = 0; i < COUNT(bad); i++) {
        assert_fails(tn_lora_load(m, with_settings(bad[i].text), NULL), bad[i].status,
                     bad[i].message);
        ck_assert(hash_of_module(m) == hash);
        ck_assert_int_eq(tn_count_parameters(m, true), tn_count_parameters(m, false));
    }
    assert_ok(tn_lora_load(m,
                           with_settings("{\"r\": 4, \"lora_alpha\": 2.5e0, "
                                         "\"loftq_config\": {}, \"corda_config\": null}"),
                           NULL));
    assert_fails(tn_lora_load(m, in_folder("none"), "b"), TN_E_IO, "adapter_config.json");
    assert_fails(tn_lora_load(m, golden_path("lm/lora/plain"), NULL), TN_E_NAME,
                 "tn_lora_load: fc1.weight is beside a \"default\" already");
    assert_ok(tn_lora_set(m, NULL));
    assert_fails(tn_lora_save(m, in_folder("x")), TN_E_STATE, "no adapter is active");
}
END_TEST

START_TEST(values_that_do_not_fit_are_named)
{
    static const struct {
        const char *name, *message;
        int64_t rows, columns;
        tn_status status;
    } bad[] = {
        { "base_model.model.fc9.lora_A.weight", "2 lora_A of 3 values", 4, 6, TN_E_FORMAT },
        { "base_model.model.fc1.lora_A.weight", "fc1.default.lora_A", 4, 5, TN_E_SHAPE },
        { "base_model.model.fc2.lora_B.weight", "1 lora_A of 3 values", 4, 8, TN_E_FORMAT },
        { "base_model.model.fc1.lora_magnitude_vector", "fc1.lora_magnitude_vector: want", 1, 8,
          TN_E_UNSUPPORTED },
        { "base_model.model.head.weight", "head.weight: want", 1, 8, TN_E_UNSUPPORTED },
        { "fc1.lora_A.weight", "want base_model.model.X.lora_A.weight", 4, 6, TN_E_UNSUPPORTED },
    };
    tn_module *m = net_new();
    const uint64_t hash = hash_of_module(m);
    for (int i = 0; i < COUNT(bad) + 1; i++) {
        const char *at = with_settings("{\"r\": 4}");
        const bool wild = i == COUNT(bad);
        tn_list *values = tn_list_new();
        assert_ok(tn_list_set(values,
                              wild ? "base_model.model.fc?.lora_A.weight"
                                   : "base_model.model.fc1.lora_A.weight",
                              tn_ones(TN_SHAPE(4, 6))));
        assert_ok(tn_list_set(values,
                              wild ? "base_model.model.fc?.lora_B.weight"
                                   : "base_model.model.fc1.lora_B.weight",
                              tn_ones(TN_SHAPE(8, 4))));
        if (!wild)
            assert_ok(
                tn_list_set(values, bad[i].name, tn_ones(TN_SHAPE(bad[i].rows, bad[i].columns))));
        assert_ok(tn_save_tensors(values, NULL, in_folder("f/adapter_model.safetensors")));
        if (wild)
            assert_fails(tn_lora_load(m, at, NULL), TN_E_NAME, "0 of 2 values have a place");
        else
            assert_fails(tn_lora_load(m, at, NULL), bad[i].status, bad[i].message);
        ck_assert(hash_of_module(m) == hash);
        ck_assert_int_eq(tn_module_children(tn_get_submodule(m, "fc1")), 0);
    }
}
END_TEST

START_TEST(a_name_that_is_too_long)
{
    tn_module *m = tn_linear_new(2, 2, (tn_linear_options){ 0 });
    for (int i = 0; i < 2100; i++) m = tn_sequential(m); /* two characters each */
    assert_ok(tn_lora(owned(m), "*", (tn_lora_options){ 0 }));
    assert_fails(tn_lora_save(m, in_folder("deep")), TN_E_NAME, " characters");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("adapters");
    TCase *t = file_case(s, "peft");
    tcase_add_loop_test(t, adapters_of_peft_compute_and_train_as_there, 0, COUNT(cases));
    tcase_add_loop_test(t, a_merged_weight_is_that_of_peft, 0, COUNT(cases));
    tcase_add_loop_test(t, what_is_saved_is_what_peft_saves, 0, COUNT(cases));
    add_tests(t, a_is_drawn_as_there, a_language_model_generates_with_its_cache,
              the_base_of_a_language_model_is_saved_alone,
              settings_that_are_not_supported_are_named, values_that_do_not_fit_are_named,
              a_name_that_is_too_long);
    return s;
}
