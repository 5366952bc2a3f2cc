/*
 * copy.c - copies that keep the values: clone, casts, row-major copies, other devices.
 *
 * y = x, so dx = dy: the engine casts it to x's dtype; a copy to a device sends its gradient back.
 */
#include "autograd/ops/elementwise.h"

static tn_status copy_forward(tni_call *c)
{
    return tni_backend_of(c->in[0])->copy(
        &(tni_copy){ .y = tni_array_of(c->out[0]), .x = tni_array_of(c->in[0]) });
}

#define COPY(op_, name_, formula_, gradient_, recompute_, shape_)                                  \
    TNI_OP_AS(op_, #name_, 1, formula_, gradient_, shape_, copy_forward, tni_passed_on,            \
              .dtypes = TNI_ANY_DTYPE, .recompute = recompute_)
COPY(op_clone, clone, "y = x in memory of its own", "dx = dy", 0, tni_shape_like_first)
COPY(op_contiguous, contiguous, "y = x, row-major", "dx = dy", 0, tni_shape_like_first)

tn_tensor *tn_clone(tn_tensor *t)
{
    return tni_apply(&op_clone, NULL, 0, 1, &t);
}

tn_tensor *tn_contiguous(tn_tensor *x)
{
    if (x && !tni_none(x) && tni_is_dense(x)) return x;
    return tni_apply(&op_contiguous, NULL, 0, 1, &x);
}

/* ---- casts ----------------------------------------------------------------------------------- */

static tn_status cast_shape(tni_call *c)
{
    const tn_dtype *dtype = c->args;
    if (tn_dtype_size(*dtype) == 0)
        return tni_op_error(c, TN_E_DTYPE, "dtype %d: want one of enum tn_dtype", (int)*dtype);
    return tni_result(c, *dtype, &c->in[0]->shape);
}

#define CAST(op_, least)                                                                           \
    COPY(op_, to_dtype, "y = x as another dtype", "dx = dy as x's dtype", least, cast_shape)
CAST(op_cast, 0)
CAST(op_cast_again, TNI_RECOMPUTE_CAST)

tn_tensor *tni_cast_again(tn_tensor *x, tn_dtype dtype)
{
    return tni_apply(&op_cast_again, &dtype, sizeof dtype, 1, &x);
}

tn_tensor *tn_to_dtype(tn_tensor *x, tn_dtype dtype)
{
    if (x && !tni_none(x) && x->dtype == dtype) return x;
    return tni_apply(&op_cast, &dtype, sizeof dtype, 1, &x);
}

/* ---- devices --------------------------------------------------------------------------------- */

typedef struct to_args {
    tn_device from, to;
} to_args;

static tn_status to_shape(tni_call *c)
{
    const to_args *args = c->args;
    c->device = args->to;
    return tni_shape_like_first(c);
}

/* Copies bytes between host and device; between two devices by way of the host. */
static tn_status to_forward(tni_call *c)
{
    tn_tensor *x = c->in[0], *y = c->out[0];
    if (tni_host_refused("tn_to", "moves a tensor between devices",
                         "it moved before, or as an input of tn_capture_run"))
        return TN_E_STATE;
    size_t nbytes = tni_bytes_of(x);
    if (x->storage->device.type == TN_CPU)
        return tni_backend_of(y)->upload(tni_data(y), tni_data(x), nbytes);
    if (y->storage->device.type == TN_CPU)
        return tni_backend_of(x)->download(tni_data(y), tni_data(x), nbytes);
    tn_tensor *host = tni_new_dense(&x->shape, x->dtype, tn_cpu());
    if (!host) return tni_pending();
    tn_status status = tni_backend_of(x)->download(tni_data(host), tni_data(x), nbytes);
    return status ? status : tni_backend_of(y)->upload(tni_data(y), tni_data(host), nbytes);
}

TNI_DX(to_backward, tn_to(g->dy, ((const to_args *)g->args)->from))
TNI_OP(to, 1, "y = x on another device", "dx = dy on x's device", to_shape, to_forward, to_backward,
       .dtypes = TNI_ANY_DTYPE, .any_device = true, .dense = TNI_X(0))

tn_tensor *tn_to(tn_tensor *x, tn_device device)
{
    tn_device from = tn_device_of(x);
    if (x && !tni_none(x) && tni_same_device(from, device)) return x;
    return tni_apply(&op_to, &(to_args){ from, device }, sizeof(to_args), 1, &x);
}
