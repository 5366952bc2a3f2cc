/*
 * norm_gradients.h - for the tests, on the CPU and over the CUDA module, of norms that take
 * gradients in half precision as they come.
 */
#ifndef TENON_TESTS_NORM_GRADIENTS_H
#define TENON_TESTS_NORM_GRADIENTS_H

#include "common.h"
#include "autograd/notify.h"

static tn_status look(tni_watcher *self, const struct tni_node *node, const struct tni_grad *g)
{
    (void)self, (void)node, (void)g;
    return TN_OK;
}

/* Pre-norm layers x + f(norm x), f a linear or two, on leaves x, w, b, W, c (and the last norm by
 * itself); *loss, and the hashes of their gradients. seen: a watcher is shown every gradient, so
 * that none is passed on in half precision, or added up by the op that makes it. */
static void norm_gradients(tn_tensor *const leaf[5], tn_dtype dtype, int kind, bool seen,
                           uint64_t bits[5])
{
    static tni_watcher watcher = { .differentiated = look };
    tn_tensor *x = leaf[0], *loss = NULL, *h;
    for (int i = 0; i < 5; i++) assert_ok(tn_set_grad(leaf[i], TN_NONE));
    TN_AUTOCAST(dtype)
    {
        for (int layer = 0; layer < 3; layer++) {
            h = kind == 1 ? tn_rms_norm(x, 1, leaf[1], 1e-5)
                          : tn_layer_norm(x, 1, leaf[1], leaf[2], 1e-5);
            if (kind == 2) assert_ok(tn_retain_grad(h));
            tn_tensor *y = tn_linear(h, leaf[3], leaf[4]);
            if (kind == 3) y = tn_add(y, tn_linear(h, tn_transpose(leaf[3], 0, 1), TN_NONE));
            x = tn_add(x, y);
        }
        loss = tn_sum(tn_mul(tn_layer_norm(x, 1, TN_NONE, TN_NONE, 1e-5), x), NULL, 0, false);
    }
    assert_made(loss);
    tni_watcher *was = seen ? tni_watch(&watcher) : NULL;
    assert_ok(tn_backward(loss));
    if (seen) tni_watch(was);
    if (kind == 2) ck_assert_int_eq(tn_dtype_of(tn_grad(h)), TN_F32);
    for (int i = 0; i < 5; i++)
        bits[i] = tn_is_none(tn_grad(leaf[i])) ? 0 : tn_hash(tn_grad(leaf[i]));
}

#endif
