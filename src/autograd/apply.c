/*
 * apply.c - the one way an op is applied: poison, devices, dtypes, shape rule, allocation, forward,
 * recording.
 */
#include "autograd/graph.h"
#include "autograd/notify.h"
#include "autograd/recompute.h"

enum { MAX_SAVED = 4, FEW_OUT = 4 };

tn_status tni_op_error(const tni_call *c, tn_status status, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tni_error(status, "%s%s: %s", tni_op_prefix(c->op), c->op->name, text);
}

tn_tensor *tni_wide(tn_tensor *x)
{
    if (tni_absent(x)) return x;
    return tni_wide_dtype(x->dtype) == x->dtype ? x : tn_to_dtype(x, TN_F32);
}

tn_status tni_shape_like_first(tni_call *c)
{
    return tni_result(c, c->in[0]->dtype, &c->in[0]->shape);
}

static tn_status check_inputs(const tni_call *c)
{
    const tn_op *op = c->op;
    const tn_tensor *first = NULL; /* the first that is present */
    const tn_tensor *real = NULL;  /* the first whose dtype others must have */
    for (int i = 0; i < c->n_in; i++) {
        const tn_tensor *t = c->in[i];
        if (!t || tni_none(t)) {
            bool optional = i < 32 && op->optional & (1u << i);
            if (t && optional) continue;
            if (!t && tni_pending() != TN_OK) return tni_pending();
            return tni_op_error(c, TN_E_INVALID, "input %d is %s: want a tensor%s", i,
                                t ? "TN_NONE" : "NULL", optional ? ", or TN_NONE for none" : "");
        }
        if (!first)
            first = t;
        else if (!op->any_device && !tni_same_device(t->storage->device, first->storage->device))
            return tni_op_error(c, TN_E_DEVICE,
                                "%s and %s are on different devices: want one device",
                                tni_text(first), tni_text(t));
        bool floats = op->dtypes == TNI_ONE_FLOAT || (i == 0 && op->dtypes != TNI_ANY_DTYPE);
        if (floats && !tn_dtype_is_float(t->dtype))
            return tni_op_error(c, TN_E_DTYPE, "%s is %s: want a floating dtype", tni_text(t),
                                tn_dtype_name(t->dtype));
        if (op->dtypes != TNI_ANY_DTYPE && tn_dtype_is_float(t->dtype)) {
            if (!real)
                real = t;
            else if (real->dtype != t->dtype &&
                     (op->dtypes != TNI_MIXED_FLOAT || t->dtype != tni_wide_dtype(real->dtype)))
                return tni_op_error(
                    c, TN_E_DTYPE, "%s is %s, %s is %s: want one dtype%s", tni_text(real),
                    tn_dtype_name(real->dtype), tni_text(t), tn_dtype_name(t->dtype),
                    op->dtypes == TNI_MIXED_FLOAT && tni_wide_dtype(real->dtype) != real->dtype
                        ? ", or f32 beside it"
                        : "");
        }
    }
    return TN_OK;
}

bool tni_wants_recording(const tni_call *c)
{
    if (!c->op->backward || !tn_grad_enabled()) return false;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->requires_grad) return true;
    return false;
}

/* Which of its inputs and outputs a node keeps: the union over the inputs that need a gradient. */
static unsigned reads_of(const tni_call *c)
{
    unsigned reads = 0;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->requires_grad) reads |= c->op->reads[c->op->arity < 0 ? 0 : i];
    bool x = reads & TNI_X(0) || c->op->arity == 1; /* x is kept, or all that there is to keep */
    bool all = c->op->recompute && x && tni_is_recomputed(c->op, c->out[0]);
    return all ? reads | (TNI_X(c->n_in) - 1) : reads;
}

bool tni_save_alias(tni_saved *saved, const tn_tensor *t)
{
    saved->alias = tni_alias_raw(t);
    saved->version = tn_version(t);
    return saved->alias != NULL;
}

static bool keep(tni_node *node, int i, const tn_tensor *t)
{
    if (TNI_UNLIKELY(node->op->recompute || (t->node && t->node->op->recompute)))
        return tni_save_input(node, i, t);
    return tni_save_alias(&node->x[i], t);
}

/* A node with everything in one block: the struct, its arrays, the args. */
static tni_node *node_new(const tni_call *c, size_t args_size)
{
    size_t n_in = (size_t)c->n_in, n_out = (size_t)c->n_out, n_saved = (size_t)c->n_saved;
    size_t empty = sizeof(tni_node) + n_in * (sizeof(tni_edge) + sizeof(tni_saved)) +
                   n_out * (sizeof(tn_tensor *) + sizeof(tni_gradmeta *)) +
                   n_saved * sizeof(tn_tensor *); /* the part that begins as zeros */
    size_t args_at = (empty + (n_in + n_out) * sizeof(tni_meta) + 15) & ~(size_t)15;
    size_t nbytes = args_at + args_size;
    tni_node *node = tni_alloc(nbytes);
    if (!node) return NULL;
    memset(node, 0, empty);
    atomic_init(&node->refs, 1);
    node->n_in = c->n_in, node->n_out = c->n_out, node->n_saved = c->n_saved;
    node->op = c->op, node->nbytes = nbytes;
    node->edge = (tni_edge *)(void *)(node + 1);
    node->x = (tni_saved *)(void *)(node->edge + n_in);
    node->pending = (tn_tensor **)(void *)(node->x + n_in);
    node->gm = (tni_gradmeta **)(void *)(node->pending + n_out);
    node->saved = (tn_tensor **)(void *)(node->gm + n_out);
    node->in = (tni_meta *)(void *)((char *)node + empty);
    node->out = node->in + n_in;
    node->args = (char *)node + args_at;
    return node;
}

static void describe(tni_meta *meta, const tn_tensor *t)
{
    tni_shape_copy(&meta->shape, &t->shape);
    meta->dtype = t->dtype, meta->absent = tni_none(t);
}

tn_status tni_record(const tni_call *c, size_t args_size)
{
    tni_node *node = node_new(c, args_size);
    unsigned reads = reads_of(c);
    int owners = 0;
    if (!node) return TN_E_NOMEM;
    node->keeps = reads || c->op->custom;
    if (args_size) memcpy(node->args, c->args, args_size);
    if (c->op->keep) c->op->keep(node->args);
    for (int i = 0; i < c->n_in; i++) {
        tn_tensor *t = c->in[i];
        describe(&node->in[i], t);
        if (t->requires_grad) {
            tni_edge *edge = &node->edge[i];
            if (t->node) {
                atomic_fetch_add_explicit(&t->node->refs, 1, memory_order_relaxed);
                edge->node = t->node;
                edge->index = t->out_index;
            } else {
                edge->leaf = tn_keep(t);
            }
        }
        if (i < 16 && (reads & TNI_X(i)) && !tni_none(t) && !keep(node, i, t)) goto fail;
    }
    for (int i = 0; i < c->n_out; i++) describe(&node->out[i], c->out[i]);
    if ((reads & TNI_Y) && !tni_save_alias(&node->y, c->out[0])) goto fail;
    if (reads & TNI_SAVED)
        for (int i = 0; i < c->n_saved; i++) node->saved[i] = tn_keep(c->saved[i]);
    if (TNI_UNLIKELY(tni_region_now) && tni_region_record(node) != TN_OK) goto fail;
    node->sequence = tni_next_sequence();
    for (int i = 0; i < c->n_out; i++) {
        if (!tn_dtype_is_float(c->out[i]->dtype) || (c->op->plain && c->op->plain[i])) continue;
        if (owners++) atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
        c->out[i]->node = node; /* the first takes over the node's first reference */
        c->out[i]->out_index = i;
        c->out[i]->requires_grad = true;
    }
    if (owners == 0) tni_node_drop(node);
    return TN_OK;
fail:
    tni_node_drop(node);
    return TN_E_NOMEM;
}

/* The error for an output that could not be made. A shape that does not fit names the op. */
static tn_status not_made(const tni_call *c, const tn_shape *shape)
{
    if (!tni_scope_open()) return tni_error_prefix("%s%s: ", tni_op_prefix(c->op), c->op->name);
    if (tni_shape_numel(shape) >= 0) return tni_pending();
    return tni_op_error(c, TN_E_SHAPE, "a result of shape %s: " TNI_SHAPE_WANT,
                        tni_shape_text(shape), TN_MAX_RANK);
}

/* Forward, with the inputs row-major as op->dense wants them. The node keeps the original ones. */
static tn_status forward(tni_call *c)
{
    tn_tensor *const *given = c->in;
    const char *outer = tni_op_running;
    tn_status status = TN_OK;
    tni_op_running = c->op->name;
    tn_tensor *in[TNI_MAX_IN];
    for (int i = 0; c->op->dense && i < c->n_in && status == TN_OK; i++) {
        in[i] = c->op->dense & TNI_X(i) ? tni_dense(given[i]) : given[i];
        if (!in[i]) status = tni_pending();
    }
    if (c->op->dense) c->in = in;
    if (status == TN_OK) status = c->op->forward(c);
    c->in = given;
    tni_op_running = outer;
    return status;
}

/* Makes the outputs in the caller's scope, then runs forward; its temporaries (dense copies, casts)
 * are freed when it returns. */
static tn_status compute(tni_call *c, size_t args_size)
{
    tn_status status = TN_OK;
    for (int i = 0; i < c->n_out; i++) {
        c->out[i] = c->op->view ? tni_alias(c->in[c->op->arity < 0 ? i : 0], &c->out_spec[i])
                                : tni_new(&c->out_spec[i], c->device);
        if (!c->out[i]) return not_made(c, &c->out_spec[i].shape);
    }
    if (c->op->view && c->n_saved == 0) return c->recorded ? tni_record(c, args_size) : TN_OK;
    size_t mark = tni_scope_mark();
    for (int i = 0; i < c->n_saved && status == TN_OK; i++) {
        c->saved_spec[i].strided = false;
        if (!(c->saved[i] = tni_new(&c->saved_spec[i], c->device))) status = tni_pending();
    }
    if (status == TN_OK) status = forward(c);
    if (status == TN_OK && c->recorded) status = tni_record(c, args_size);
    tni_scope_cut(mark);
    return status;
}

tn_status tni_apply_n(const tn_op *op, const void *args, size_t args_size, int n_in,
                      tn_tensor *const *in, int n_out, tn_tensor **out)
{
    TNI_HOLD_TRAPS;
    for (int i = 0; TNI_UNLIKELY(tni_debugging) && i < n_in; i++)
        if (tni_gone(in[i])) return tni_error_prefix("%s%s: ", tni_op_prefix(op), op->name);
    if (TNI_UNLIKELY(tni_autocasting != TN_F32) && tni_autocast_applies(op, n_in, in))
        return tni_autocast_apply(op, args, args_size, n_in, in, n_out, out);
    tni_spec few_specs[FEW_OUT], saved_specs[MAX_SAVED];
    tn_tensor *saved[MAX_SAVED] = { NULL };
    size_t specs_size = (size_t)n_out * sizeof(tni_spec);
    tni_call c = { .op = op,
                   .args = args,
                   .n_in = n_in,
                   .in = in,
                   .n_out = n_out,
                   .out_spec = few_specs,
                   .saved_spec = saved_specs,
                   .out = out,
                   .saved = saved };
    tn_status status = check_inputs(&c);
    if (TNI_UNLIKELY(tni_region_now) && status == TN_OK) status = tni_region_reads(n_in, in);
    if (status == TN_OK) status = TNI_NOTIFY_OP(starts, op->name);
    if (status != TN_OK) return status;
    if (n_out > FEW_OUT && !(c.out_spec = tni_alloc(specs_size))) return TN_E_NOMEM;
    for (int i = 0; i < n_out; i++) c.out_spec[i].strided = false;
    c.device = n_in && !tni_none(in[0]) ? in[0]->storage->device : tn_cpu();
    c.recorded = tni_wants_recording(&c);
    status = op->shape(&c);
    if (status == TN_OK) status = compute(&c, args_size);
    if (status == TN_OK) status = TNI_NOTIFY_OP(applied, &c);
    if (c.out_spec != few_specs) tni_free(c.out_spec, specs_size);
    return status;
}

tn_tensor *tni_apply(const tn_op *op, const void *args, size_t args_size, int n_in,
                     tn_tensor *const *in)
{
    tn_tensor *out = NULL;
    return tni_apply_n(op, args, args_size, n_in, in, 1, &out) == TN_OK ? out : NULL;
}

tn_status tni_copy_last(const tni_backend *backend, const tni_array *y, const tni_array *x)
{
    tni_saved_error before;
    tni_error_save(&before);
    if (backend->copy(&(tni_copy){ .y = *y, .x = *x }) == TN_OK) return TN_OK;
    tn_status status = backend->copy(&(tni_copy){ .y = *y, .x = *x });
    if (status == TN_OK) tni_error_restore(&before);
    return status;
}

tn_status tni_put_last(const tn_tensor *to, const tn_tensor *from)
{
    tni_array y = tni_array_of(to), x = tni_array_of(from);
    return tni_copy_last(tni_backend_of(to), &y, &x);
}
