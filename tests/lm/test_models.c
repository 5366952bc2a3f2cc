/*
 * test_models.c - language models against transformers (golden/lm, make_lm_models.py): logits, loss,
 * gradients of every weight, greedy continuations with the cache; frequencies of rotary positions;
 * what config.json may say; files, saving, dtypes.
 */
#include <tenon/lm.h>

#include "ext/lm/config.h"
#include "files.h"

static const char *const cases[] = { "gpt2",  "llama",   "qwen2",
                                     "qwen3", "smollm2", "smollm3" };

static tn_module *load(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "lm/%s", name);
    tn_module *m = tn_lm_load(golden_path(path), (tn_lm_options){ .use_dtype = true });
    assert_made(m);
    return owned(m);
}

static tn_list *golden(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "lm/%s.safetensors", name);
    tn_list *list = tn_load_tensors(golden_path(path), NULL);
    assert_made(list);
    return list;
}

/* Within share of the largest element. */
static void assert_near(const tn_tensor *actual, const tn_tensor *expected, double share)
{
    tn_tensor *largest = tn_max_all(tn_abs((tn_tensor *)expected));
    assert_close(actual, expected, 0, share * tn_item(largest));
}

/* The products of a gradient with sin(i) and cos(2 i), to 1e-4 of the largest element. */
static void check_gradients(tn_module *m, tn_list *expected)
{
    tn_list *all = tn_parameters(m);
    assert_made(all);
    for (int i = 0; i < all->n; i++) {
        char name[256];
        snprintf(name, sizeof name, "grad/%s", all->entry[i].name);
        tn_tensor *g = tn_grad(all->entry[i].tensor), *want = tn_list_get(expected, name);
        assert_made(want);
        ck_assert_msg(g && !tn_is_none(g), "%s", name);
        const int64_t n = tn_numel(g);
        g = tn_to_dtype(tn_reshape(g, TN_SHAPE(n)), TN_F64);
        tn_tensor *at = tn_arange(0, (double)n, 1, TN_F64);
        const double one = tn_item(tn_sum_all(tn_mul(g, tn_sin(at))));
        const double two = tn_item(tn_sum_all(tn_mul(g, tn_cos(tn_mul_scalar(at, 2)))));
        const double most = tn_at(want, TN_INDEX(2)), largest = tn_item(tn_max_all(tn_abs(g)));
        const double most_off = 1e-4 * most + 1e-5; /* that of a bias of keys is 0 */
        ck_assert_msg(fabs(one - tn_at(want, TN_INDEX(0))) < most_off, "%s: %g", name, one);
        ck_assert_msg(fabs(two - tn_at(want, TN_INDEX(1))) < most_off, "%s: %g", name, two);
        ck_assert_msg(fabs(largest - most) < most_off, "%s: %g", name, largest);
    }
}

/* ---- against transformers -------------------------------------------------------------------- */

START_TEST(logits_and_gradients)
{
    tn_list *expected = golden(cases[_i]);
    tn_module *m = load(cases[_i]);
    tn_tensor *ids = tn_list_get(expected, "ids"), *logits = tn_forward(m, ids);
    assert_near(logits, tn_list_get(expected, "logits"), 1e-5);
    const int64_t t = tn_size(ids, 1) - 1;
    tn_tensor *loss = tn_cross_entropy(tn_narrow(logits, 1, 0, t), tn_narrow(ids, 1, 1, t));
    assert_near(loss, tn_list_get(expected, "loss"), 1e-6);
    assert_ok(tn_backward(loss));
    check_gradients(m, expected);
}
END_TEST

/* The most likely token behind each row: [B, 1]. */
static tn_tensor *likely(tn_tensor *logits)
{
    return tn_argmax(logits, -1, true);
}

START_TEST(greedy)
{
    tn_list *expected = golden(cases[_i]);
    tn_module *m = load(cases[_i]);
    assert_ok(tn_lm_set_cache(m, 1, 70));
    const int64_t *want = tn_data(tn_list_get(expected, "greedy"));
    tn_tensor *prompt = tn_narrow(tn_narrow(tn_list_get(expected, "ids"), 0, 0, 1), 1, 0, 6);
    tn_tensor *all = prompt, *last = likely(tn_lm_next(m, prompt, TN_NONE));
    for (int i = 0; i < 64; i++) {
        ck_assert_int_eq((int64_t)tn_item(last), want[i]);
        tn_tensor *logits = tn_lm_next(m, last, TN_NONE);
        assert_made(logits);
        all = tn_cat((tn_tensor *[]){ all, last }, 2, 1);
        if (i % 21 == 0) assert_near(logits, tn_select(tn_forward(m, all), 1, -1), 1e-5);
        last = likely(logits);
    }
}
END_TEST

/* Prompts of 6 and 9 tokens, padded at the right; each goes on as it does alone. */
START_TEST(greedy_unequal)
{
    tn_list *expected = golden(cases[_i]);
    tn_module *m = load(cases[_i]);
    assert_ok(tn_lm_set_cache(m, 2, 60));
    tn_tensor *ids = tn_narrow(tn_list_get(expected, "ids"), 1, 0, 9);
    tn_tensor *lengths = tn_from_ints((int64_t[]){ 6, 9 }, TN_SHAPE(2));
    tn_tensor *want = tn_list_get(expected, "unequal");
    tn_tensor *last = likely(tn_lm_next(m, ids, lengths));
    for (int64_t i = 0; i < 48; i++) {
        assert_made(last);
        for (int64_t b = 0; b < 2; b++)
            ck_assert_int_eq((int64_t)tn_at(last, TN_INDEX(b, 0)),
                             (int64_t)tn_at(want, TN_INDEX(b, i)));
        last = likely(tn_lm_next(m, last, TN_NONE));
    }
}
END_TEST

START_TEST(bert)
{
    tn_list *expected = golden("bert");
    tn_module *m = load("bert");
    tn_tensor *in[] = { tn_list_get(expected, "ids"), tn_list_get(expected, "mask"),
                        tn_list_get(expected, "types") };
    tn_tensor *out[2];
    assert_ok(tn_call(m, 3, in, 2, out));
    assert_near(out[0], tn_list_get(expected, "hidden"), 1e-5);
    assert_near(out[1], tn_list_get(expected, "pooled"), 1e-5);
    tn_tensor *both[] = { tn_reshape(out[0], TN_SHAPE(-1)), tn_reshape(out[1], TN_SHAPE(-1)) };
    tn_tensor *y = tn_cat(both, 2, 0);
    tn_tensor *seed = tn_sin(tn_arange(0, (double)tn_numel(y), 1, TN_F32));
    assert_ok(tn_backward(tn_sum_all(tn_mul(y, seed))));
    check_gradients(m, expected);
    /* token types of 0 are the default */
    in[2] = tn_zeros_like(in[0]);
    tn_tensor *zero, *none;
    assert_ok(tn_call(m, 3, in, 1, &zero));
    in[2] = TN_NONE;
    assert_ok(tn_call(m, 3, in, 1, &none));
    assert_close(none, zero, 0, 0);
}
END_TEST

/* ---- rotary positions ------------------------------------------------------------------------ */

static void check_rope(tn_list *all, const char *name, tni_rope r, int64_t tokens)
{
    tn_tensor *want = tn_list_get(all, name);
    float f[TNI_LM_HEAD / 2];
    r.dim = 32, r.positions = 128, r.theta = 1e4;
    if (r.beta_fast == 0) r.beta_fast = 32, r.beta_slow = 1;
    const double scale = tni_rope_frequencies(&r, tokens, f);
    for (int64_t i = 0; i < 16; i++) {
        const double w = tn_at(want, TN_INDEX(i));
        ck_assert_msg(fabs(f[i] - w) <= 1.2e-7 * w, "%s[%d]: %.9g, not %.9g", name, (int)i, f[i], w);
    }
    ck_assert_msg(fabs(scale - tn_at(want, TN_INDEX(16))) < 1e-7, "%s: %g", name, scale);
}

START_TEST(frequencies)
{
    tn_list *all = golden("rope");
    check_rope(all, "default", (tni_rope){ 0 }, 1);
    check_rope(all, "linear", (tni_rope){ .type = TNI_ROPE_LINEAR, .factor = 4 }, 1);
    tni_rope dynamic = { .type = TNI_ROPE_DYNAMIC, .factor = 2 };
    check_rope(all, "dynamic", dynamic, 128);
    check_rope(all, "dynamic_long", dynamic, 256);
    tni_rope yarn = { .type = TNI_ROPE_YARN, .factor = 4, .original = 128, .truncate = true };
    check_rope(all, "yarn", yarn, 1);
    yarn.mscale = 1, yarn.mscale_all = 0.8;
    check_rope(all, "yarn_mscale", yarn, 1);
    yarn = (tni_rope){ .type = TNI_ROPE_YARN, .factor = 4, .original = 128 };
    check_rope(all, "yarn_open", yarn, 1);
    yarn = (tni_rope){ .type = TNI_ROPE_YARN, .factor = 4, .original = 64, .truncate = true,
                       .attention = 0.7, .beta_fast = 16, .beta_slow = 2 };
    check_rope(all, "yarn_attention", yarn, 1);
    check_rope(all, "llama3",
               (tni_rope){ .type = TNI_ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 64 },
               1);
    tni_rope lr = { .type = TNI_ROPE_LONGROPE, .factor = 2, .original = 64 };
    for (int i = 0; i < 16; i++)
        lr.shorts[i] = 1 + 0.1F * (float)i, lr.longs[i] = 2 + (float)i;
    check_rope(all, "longrope", lr, 64);
    check_rope(all, "longrope_long", lr, 256);
}
END_TEST

/* ---- the cache ------------------------------------------------------------------------------- */

static tn_tensor *tokens(int64_t rows, int64_t t)
{
    return tn_remainder_scalar(
        tn_mul_scalar(tn_reshape(tn_arange(3, (double)(3 + rows * t), 1, TN_I64),
                                 TN_SHAPE(rows, t)),
                      7),
        48);
}

START_TEST(cache_in_parts)
{
    tn_module *m = load(cases[_i]);
    tn_tensor *ids = tokens(2, 12), *whole = tn_forward(m, ids);
    assert_ok(tn_lm_set_cache(m, 2, 12));
    int64_t at = 0;
    for (int64_t n = 1; at < 12; at += n, n = TNI_MIN(n + 1, 12 - at)) {
        tn_tensor *logits = tn_lm_next(m, tn_narrow(ids, 1, at, n), TN_NONE);
        assert_made(logits);
        assert_near(logits, tn_select(whole, 1, at + n - 1), 2e-6);
    }
    /* emptied, and filled by rows that grow unequally */
    assert_ok(tn_lm_set_cache(m, 2, 12));
    tn_tensor *n = tn_from_ints((int64_t[]){ 2, 5 }, TN_SHAPE(2));
    assert_made(tn_lm_next(m, tn_narrow(ids, 1, 0, 5), n));
    tn_tensor *rest[] = { tn_narrow(tn_narrow(ids, 0, 0, 1), 1, 2, 4),
                          tn_narrow(tn_narrow(ids, 0, 1, 1), 1, 5, 4) };
    n = tn_from_ints((int64_t[]){ 4, 3 }, TN_SHAPE(2));
    tn_tensor *logits = tn_lm_next(m, tn_cat(rest, 2, 0), n);
    assert_near(tn_select(logits, 0, 0), tn_select(tn_select(whole, 0, 0), 0, 5), 2e-6);
    assert_near(tn_select(logits, 0, 1), tn_select(tn_select(whole, 0, 1), 0, 7), 2e-6);
    assert_values(tn_get_buffer(m, "cache_lengths"), 0, 6, 8);
}
END_TEST

START_TEST(cache_refuses)
{
    tn_module *m = load("llama");
    tn_tensor *ids = tokens(2, 5);
    assert_null(tn_lm_next(m, ids, TN_NONE), TN_E_STATE, "no cache");
    assert_ok(tn_lm_set_cache(m, 2, 8));
    assert_made(tn_lm_next(m, ids, TN_NONE));
    const uint64_t before = hash_of(tn_buffers(m));
    assert_null(tn_lm_next(m, ids, TN_NONE), TN_E_STATE, "5 tokens and 5 come: want at most 8");
    tn_tensor *n = tn_from_ints((int64_t[]){ 3, 4 }, TN_SHAPE(2));
    assert_null(tn_lm_next(m, ids, n), TN_E_STATE, "row 1 has 5 tokens and 4 come: want at most 8");
    assert_null(tn_lm_next(m, ids, tn_from_ints((int64_t[]){ 0, 4 }, TN_SHAPE(2))), TN_E_INDEX,
                "lengths[0] is 0: want 1 to 5");
    assert_null(tn_lm_next(m, ids, tn_from_ints((int64_t[]){ 1, 6 }, TN_SHAPE(2))), TN_E_INDEX,
                "lengths[1] is 6");
    assert_null(tn_lm_next(m, tokens(3, 1), TN_NONE), TN_E_SHAPE, "want i64 [2, T]");
    assert_null(tn_lm_next(m, tn_zeros(TN_SHAPE(2, 1)), TN_NONE), TN_E_SHAPE, "ids are f32");
    assert_null(tn_lm_next(m, ids, tokens(3, 1)), TN_E_SHAPE, "want i64 [2]");
    assert_null(tn_lm_next(m, NULL, TN_NONE), TN_E_INVALID, "ids is NULL");
    assert_null(tn_lm_next(m, ids, NULL), TN_E_INVALID, "lengths is NULL");
    ck_assert_uint_eq(hash_of(tn_buffers(m)), before);
    n = tn_from_ints((int64_t[]){ 3, 2 }, TN_SHAPE(2));
    assert_made(tn_lm_next(m, ids, n));
    assert_fails(tn_lm_set_cache(m, 2, 0), TN_E_INVALID, "capacity 0");
    assert_fails(tn_lm_set_cache(m, -1, 5), TN_E_INVALID, "batch -1");
    assert_fails(tn_lm_set_cache(load("bert"), 1, 5), TN_E_INVALID, "bert is an encoder");
    m = load("gpt2");
    assert_ok(tn_lm_set_cache(m, 1, 200));
    assert_null(tn_lm_next(m, tokens(1, 97), TN_NONE), TN_E_STATE, "the model's positions");
    assert_null(tn_forward(m, tokens(1, 97)), TN_E_INDEX, "97 tokens: want at most 96");
}
END_TEST

START_TEST(cache_is_one)
{
    tn_module *m = load("qwen2");
    const int n = tn_state_dict(m, "")->n;
    assert_ok(tn_lm_set_cache(m, 2, 8));
    tn_lm_info info;
    assert_ok(tn_lm_get_info(m, &info));
    ck_assert_int_eq(info.cache_batch, 2);
    ck_assert_int_eq(info.capacity, 8);
    ck_assert_int_eq(tn_state_dict(m, "")->n, n);
    tn_list *buffers = tn_buffers(m);
    int caches = 0;
    for (int i = 0; i < buffers->n; i++) caches += buffers->entry[i].role == TN_CACHE;
    ck_assert_int_eq(caches, 2 * 2 + 1);
    assert_made(tn_lm_next(m, tokens(2, 3), TN_NONE));
    tn_module *copy = owned(tn_module_clone(m));
    tn_tensor *one = tn_lm_next(m, tokens(2, 1), TN_NONE);
    assert_close(tn_lm_next(copy, tokens(2, 1), TN_NONE), one, 0, 0);
    assert_ok(tn_train(m, true));
    assert_null(tn_lm_next(m, tokens(2, 1), TN_NONE), TN_E_STATE, "train mode");
    assert_ok(tn_eval(m));
    assert_null(tn_lm_next(m, tokens(2, 1), TN_NONE), TN_E_STATE, "no cache");
    assert_made(tn_lm_next(copy, tokens(2, 1), TN_NONE));
    assert_ok(tn_lm_set_cache(copy, 0, 0));
    assert_null(tn_lm_next(copy, tokens(2, 1), TN_NONE), TN_E_STATE, "no cache");
}
END_TEST

/* A step of one token makes no copy of the cache: what it allocates does not grow with it. */
START_TEST(cache_is_not_copied)
{
    tn_module *m = load(cases[_i]);
    int64_t made[2];
    for (int k = 0; k < 2; k++) {
        const int64_t filled = k ? 80 : 10;
        assert_ok(tn_lm_set_cache(m, 2, 90));
        assert_made(tn_lm_next(m, tokens(2, filled), TN_NONE));
        const int64_t before = tn_memory().data_bytes;
        assert_made(tn_lm_next(m, tokens(2, 1), TN_NONE));
        made[k] = tn_memory().data_bytes - before;
    }
    ck_assert_int_eq(made[0], made[1]);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("models");
    TCase *t = file_case(s, "models");
    tcase_add_loop_test(t, logits_and_gradients, 0, COUNT(cases));
    tcase_add_loop_test(t, greedy, 0, COUNT(cases));
    tcase_add_loop_test(t, greedy_unequal, 0, COUNT(cases));
    tcase_add_loop_test(t, cache_in_parts, 0, COUNT(cases));
    tcase_add_loop_test(t, cache_is_not_copied, 0, COUNT(cases));
    add_tests(t, bert, frequencies, cache_refuses, cache_is_one);
    return s;
}
