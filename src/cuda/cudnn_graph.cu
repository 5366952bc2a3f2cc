/*
 * cudnn_graph.cu - descriptors, graphs and plans of cuDNN's backend API.
 *
 * Attention is the pattern of operations that cuDNN's engines recognize and run as one kernel: for
 * forward the two products with scale, mask and softmax between them; for backward
 *     delta = sum of dy y     p = exp(s - log_sum)     dv = p^T dy
 *     ds = p (dy v^T - delta) scale     dk = ds^T q     dq = ds k
 * with dq a product of its own over the stored ds (in the plan's workspace), since to add to it
 * atomically would give other bits in each run.
 * Source: NVIDIA, cuDNN documentation, Graph API, "Fused attention fprop" and "bprop"; Attention in
 * the documentation of cudnn-frontend.
 */
#include "cuda/cudnn_graph.h"

#include <initializer_list>

enum { CONFIGURATIONS = 32, ALIGNED = 16 };

/* ---- descriptors ----------------------------------------------------------------------------- */

static bool check(dnn_graph *g, dnn_status status, const char *call)
{
    if (status == 0) return true;
    g->status = status;
    g->failed = call;
    return false;
}

static dnn_descriptor create(dnn_graph *g, int type)
{
    dnn_descriptor d = nullptr;
    if (g->n_made == DNN_MADE) check(g, DNN_INTERNAL, "a graph too large");
    if (g->status != 0 ||
        !check(g, g->api->BackendCreateDescriptor(type, &d), "cudnnBackendCreateDescriptor"))
        return nullptr;
    return g->made[g->n_made++] = d;
}

static void set(dnn_graph *g, dnn_descriptor d, int name, int type, int64_t count,
                const void *values)
{
    if (g->status == 0)
        check(g, g->api->BackendSetAttribute(d, name, type, count, values),
              "cudnnBackendSetAttribute");
}

static void set_int(dnn_graph *g, dnn_descriptor d, int name, int type, int value)
{
    set(g, d, name, type, 1, &value); /* cuDNN's enumerations are ints */
}

static void set_descriptor(dnn_graph *g, dnn_descriptor d, int name, dnn_descriptor value)
{
    set(g, d, name, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static dnn_descriptor finish(dnn_graph *g, dnn_descriptor d)
{
    if (g->status == 0) check(g, g->api->BackendFinalize(d), "cudnnBackendFinalize");
    return d;
}

/* An operation: what its attributes name. A NULL descriptor is left out. */
struct link {
    int name;
    dnn_descriptor to;
};

static dnn_descriptor operation(dnn_graph *g, int type, std::initializer_list<link> links)
{
    dnn_descriptor d = create(g, type);
    for (const link &l : links)
        if (l.to) set_descriptor(g, d, l.name, l.to);
    if (g->n_operations < DNN_OPERATIONS) g->operations[g->n_operations++] = d;
    return d;
}

void dnn_drop(dnn_graph *g)
{
    while (g->n_made > 0) g->api->BackendDestroyDescriptor(g->made[--g->n_made]);
    g->n_operations = 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int type_of(tn_dtype dtype)
{
    return dtype == TN_BF16 ? DNN_DATA_BFLOAT16 : dtype == TN_F16 ? DNN_DATA_HALF : DNN_DATA_FLOAT;
}

/* what: 0, or ..IS_VIRTUAL or ..IS_BY_VALUE. Strides of axes of one element say nothing, but must
 * be positive. */
static dnn_tensor tensor(dnn_graph *g, int64_t id, int type, const int64_t *size,
                         const int64_t *stride, int what)
{
    const bool yes = true;
    const int64_t aligned = ALIGNED;
    dnn_tensor t = { create(g, DNN_BACKEND_TENSOR_DESCRIPTOR), type, {}, {} };
    int64_t dense = 1;

    for (int i = 3; i >= 0; i--) {
        t.size[i] = size[i];
        t.stride[i] = !stride || size[i] == 1 ? dense : stride[i];
        dense *= size[i];
    }
    set_int(g, t.descriptor, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, type);
    set(g, t.descriptor, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, t.size);
    set(g, t.descriptor, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, t.stride);
    set(g, t.descriptor, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, &id);
    set(g, t.descriptor, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, &aligned);
    if (what != 0) set(g, t.descriptor, what, DNN_TYPE_BOOLEAN, 1, &yes);
    finish(g, t.descriptor);
    return t;
}

/* turned: with the last two axes exchanged. */
static dnn_tensor tensor_of(dnn_graph *g, int64_t id, const tni_array *x, bool turned = false)
{
    const int third = turned ? 3 : 2, last = turned ? 2 : 3;
    const int64_t size[4] = { x->size[0], x->size[1], x->size[third], x->size[last] };
    const int64_t stride[4] = { x->stride[0], x->stride[1], x->stride[third], x->stride[last] };
    return tensor(g, id, type_of(x->dtype), size, stride, 0);
}

static dnn_tensor inner(dnn_graph *g, int type, const int64_t *size)
{
    return tensor(g, g->fresh++, type, size, nullptr, DNN_ATTR_TENSOR_IS_VIRTUAL);
}

static dnn_tensor number(dnn_graph *g, int64_t id)
{
    const int64_t one[4] = { 1, 1, 1, 1 };
    return tensor(g, id, DNN_DATA_FLOAT, one, nullptr, DNN_ATTR_TENSOR_IS_BY_VALUE);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void pointwise_to(dnn_graph *g, int mode, const dnn_tensor &x, dnn_descriptor b,
                         dnn_descriptor t, const dnn_tensor &y, int64_t axis)
{
    const int precision = mode == DNN_POINTWISE_GEN_INDEX ? DNN_DATA_INT32
                          : mode == DNN_POINTWISE_CMP_GE  ? DNN_DATA_BOOLEAN
                                                          : DNN_DATA_FLOAT;
    dnn_descriptor how = create(g, DNN_BACKEND_POINTWISE_DESCRIPTOR);
    set_int(g, how, DNN_ATTR_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, mode);
    set_int(g, how, DNN_ATTR_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, precision);
    if (axis) set(g, how, DNN_ATTR_POINTWISE_AXIS, DNN_TYPE_INT64, 1, &axis);
    finish(g, operation(g, DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                        { { DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finish(g, how) },
                          { DNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor },
                          { DNN_ATTR_OPERATION_POINTWISE_BDESC, b },
                          { DNN_ATTR_OPERATION_POINTWISE_TDESC, t },
                          { DNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor } }));
}

/* A virtual y of x's sizes. */
static dnn_tensor pointwise(dnn_graph *g, int mode, const dnn_tensor &x,
                            const dnn_tensor *b = nullptr, const dnn_tensor *t = nullptr,
                            int type = DNN_DATA_FLOAT, int64_t axis = 0)
{
    dnn_tensor y = inner(g, type, x.size);
    pointwise_to(g, mode, x, b ? b->descriptor : nullptr, t ? t->descriptor : nullptr, y, axis);
    return y;
}

/* Over the axes where y has fewer elements. */
static void reduce_to(dnn_graph *g, int how_to, const dnn_tensor &x, const dnn_tensor &y)
{
    dnn_descriptor how = create(g, DNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_int(g, how, DNN_ATTR_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION_OPERATOR_TYPE, how_to);
    set_int(g, how, DNN_ATTR_REDUCTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, DNN_DATA_FLOAT);
    finish(g, operation(g, DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                        { { DNN_ATTR_OPERATION_REDUCTION_DESC, finish(g, how) },
                          { DNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor },
                          { DNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor } }));
}

static dnn_tensor rows_of(dnn_graph *g, int how_to, const dnn_tensor &x)
{
    const int64_t size[4] = { x.size[0], x.size[1], x.size[2], 1 };
    dnn_tensor y = inner(g, DNN_DATA_FLOAT, size);
    reduce_to(g, how_to, x, y);
    return y;
}

static void multiply_to(dnn_graph *g, const dnn_tensor &a, const dnn_tensor &b, const dnn_tensor &c)
{
    dnn_descriptor how = create(g, DNN_BACKEND_MATMUL_DESCRIPTOR);
    set_int(g, how, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, DNN_DATA_FLOAT);
    finish(g, operation(g, DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                        { { DNN_ATTR_OPERATION_MATMUL_DESC, finish(g, how) },
                          { DNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor },
                          { DNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor },
                          { DNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor } }));
}

static dnn_tensor multiply(dnn_graph *g, const dnn_tensor &a, const dnn_tensor &b)
{
    const int64_t size[4] = { a.size[0], a.size[1], a.size[2], b.size[3] };
    dnn_tensor c = inner(g, DNN_DATA_FLOAT, size);
    multiply_to(g, a, b, c);
    return c;
}

/* The same memory with the last two axes exchanged: of a product's result, as an operand of type
 * `type`. */
static dnn_tensor reshaped(dnn_graph *g, const dnn_tensor &x, int type)
{
    const int64_t size[4] = { x.size[0], x.size[1], x.size[3], x.size[2] };
    const int64_t stride[4] = { x.stride[0], x.stride[1], x.stride[3], x.stride[2] };
    dnn_tensor y = tensor(g, g->fresh++, type, size, stride, DNN_ATTR_TENSOR_IS_VIRTUAL);
    finish(g, operation(g, DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                        { { DNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor },
                          { DNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor } }));
    return y;
}

/* ---- attention ------------------------------------------------------------------------------- */

static dnn_tensor scores(dnn_graph *g, const dnn_tensor &q, const dnn_tensor &k,
                         const dnn_tensor &scale, const tni_array *bias)
{
    dnn_tensor s = multiply(g, q, k);
    s = pointwise(g, DNN_POINTWISE_MUL, s, &scale);
    if (!bias) return s;
    dnn_tensor add = tensor_of(g, DNN_BIAS, bias);
    return pointwise(g, DNN_POINTWISE_ADD, s, &add);
}

/* What a query does not see becomes the lowest number: keys after it. */
static dnn_tensor masked(dnn_graph *g, const dnn_tensor &s)
{
    const dnn_tensor lowest = number(g, DNN_LOWEST);
    const dnn_tensor query =
        pointwise(g, DNN_POINTWISE_GEN_INDEX, s, nullptr, nullptr, DNN_DATA_INT32, 2);
    const dnn_tensor key =
        pointwise(g, DNN_POINTWISE_GEN_INDEX, s, nullptr, nullptr, DNN_DATA_INT32, 3);
    const dnn_tensor sees =
        pointwise(g, DNN_POINTWISE_CMP_GE, query, &key, nullptr, DNN_DATA_BOOLEAN);
    return pointwise(g, DNN_POINTWISE_BINARY_SELECT, s, &lowest, &sees);
}

static dnn_tensor rows_tensor(dnn_graph *g, int64_t id, const tni_array *q)
{
    const int64_t size[4] = { q->size[0], q->size[1], q->size[2], 1 };
    return tensor(g, id, DNN_DATA_FLOAT, size, nullptr, 0);
}

void dnn_attention(dnn_graph *g, const tni_attention *a, const tni_array *bias, bool log_sum)
{
    const dnn_tensor q = tensor_of(g, DNN_Q, &a->q), k = tensor_of(g, DNN_K, &a->k, true);
    const dnn_tensor v = tensor_of(g, DNN_V, &a->v), y = tensor_of(g, DNN_Y, &a->y);
    dnn_tensor s = scores(g, q, k, number(g, DNN_SCALE), bias);
    if (a->causal) s = masked(g, s);
    const dnn_tensor top = rows_of(g, DNN_REDUCE_TENSOR_MAX, s);
    s = pointwise(g, DNN_POINTWISE_SUB, s, &top);
    s = pointwise(g, DNN_POINTWISE_EXP, s);
    const dnn_tensor sum = rows_of(g, DNN_REDUCE_TENSOR_ADD, s);
    if (log_sum) {
        const dnn_tensor log = pointwise(g, DNN_POINTWISE_LOG, sum);
        pointwise_to(g, DNN_POINTWISE_ADD, top, log.descriptor, nullptr,
                     rows_tensor(g, DNN_LOG_SUM, &a->q), 0);
    }
    const dnn_tensor p = pointwise(g, DNN_POINTWISE_DIV, s, &sum, nullptr, q.type);
    multiply_to(g, p, v, y);
}

void dnn_attention_grad(dnn_graph *g, const tni_attention_grad *a, const tni_array *bias)
{
    const tni_attention *f = &a->of;
    const dnn_tensor q = tensor_of(g, DNN_Q, &f->q), y = tensor_of(g, DNN_Y, &f->y);
    const dnn_tensor k = tensor_of(g, DNN_K, &f->k, true), v = tensor_of(g, DNN_V, &f->v, true);
    const dnn_tensor dy = tensor_of(g, DNN_DY, &a->dy);
    const dnn_tensor scale = number(g, DNN_SCALE), one = number(g, DNN_ONE);
    const dnn_tensor log_sum = rows_tensor(g, DNN_LOG_SUM, &f->q);
    const dnn_tensor delta = rows_tensor(g, DNN_DELTA, &f->q);
    const dnn_tensor both = pointwise(g, DNN_POINTWISE_MUL, dy, &y);
    const dnn_tensor rows = rows_of(g, DNN_REDUCE_TENSOR_ADD, both);
    pointwise_to(g, DNN_POINTWISE_MUL, rows, one.descriptor, nullptr, delta, 0);

    dnn_tensor p = scores(g, q, k, scale, bias);
    p = pointwise(g, DNN_POINTWISE_SUB, p, &log_sum);
    if (f->causal) p = masked(g, p);
    p = pointwise(g, DNN_POINTWISE_EXP, p);
    multiply_to(g, reshaped(g, p, q.type), dy, tensor_of(g, DNN_DV, &a->dv));

    dnn_tensor ds = multiply(g, dy, v);
    ds = pointwise(g, DNN_POINTWISE_SUB, ds, &delta);
    ds = pointwise(g, DNN_POINTWISE_MUL, ds, &p);
    ds = pointwise(g, DNN_POINTWISE_MUL, ds, &scale);
    multiply_to(g, reshaped(g, ds, q.type), q, tensor_of(g, DNN_DK, &a->dk));
    multiply_to(g, ds, reshaped(g, k, q.type), tensor_of(g, DNN_DQ, &a->dq));
}

/* ---- convolution ----------------------------------------------------------------------------- */

static dnn_tensor planes(dnn_graph *g, int64_t id, int type, int64_t n, int64_t c, int64_t h,
                         int64_t w, bool inside, int what)
{
    const int64_t size[4] = { n, c, h, w };
    const int64_t stride[4] = { c * h * w, inside ? 1 : h * w, inside ? w * c : w, inside ? c : 1 };
    return tensor(g, id, type, size, stride, what);
}

static dnn_descriptor geometry(dnn_graph *g, const tni_conv2d_sizes *c)
{
    dnn_descriptor d = create(g, DNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    const int64_t two = 2;
    set_int(g, d, DNN_ATTR_CONVOLUTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, DNN_DATA_FLOAT);
    set_int(g, d, DNN_ATTR_CONVOLUTION_CONV_MODE, DNN_TYPE_CONVOLUTION_MODE, DNN_CROSS_CORRELATION);
    set(g, d, DNN_ATTR_CONVOLUTION_SPATIAL_DIMS, DNN_TYPE_INT64, 1, &two);
    set(g, d, DNN_ATTR_CONVOLUTION_PRE_PADDINGS, DNN_TYPE_INT64, 2, c->padding);
    set(g, d, DNN_ATTR_CONVOLUTION_POST_PADDINGS, DNN_TYPE_INT64, 2, c->padding);
    set(g, d, DNN_ATTR_CONVOLUTION_DILATIONS, DNN_TYPE_INT64, 2, c->dilation);
    set(g, d, DNN_ATTR_CONVOLUTION_FILTER_STRIDES, DNN_TYPE_INT64, 2, c->stride);
    return finish(g, d);
}

static const struct {
    int operation, attributes; /* from where on */
    int64_t x, w, y;
} passes[] = { { DNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                 DNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, DNN_X, DNN_W, DNN_Y },
               { DNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                 DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, DNN_DX, DNN_W, DNN_DY },
               { DNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                 DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, DNN_X, DNN_DW, DNN_DY } };

void dnn_convolution(dnn_graph *g, dnn_pass pass, tn_dtype dtype, const tni_conv2d_sizes *c,
                     bool bias, bool inside)
{
    const int type = type_of(dtype);
    const int first = passes[pass].attributes;
    const float one = 1, zero = 0;
    const dnn_tensor x = planes(g, passes[pass].x, type, c->n, c->c, c->h, c->w, inside, 0);
    const dnn_tensor w =
        planes(g, passes[pass].w, type, c->o, c->c / c->groups, c->kh, c->kw, inside, 0);
    const dnn_tensor result = planes(g, passes[pass].y, type, c->n, c->o, c->oh, c->ow, inside, 0);
    dnn_tensor y = result;
    if (bias)
        y = planes(g, g->fresh++, DNN_DATA_FLOAT, c->n, c->o, c->oh, c->ow, inside,
                   DNN_ATTR_TENSOR_IS_VIRTUAL);
    dnn_descriptor d = operation(g, passes[pass].operation,
                                 { { first + DNN_CONV_HOW, geometry(g, c) },
                                   { first + DNN_CONV_X, x.descriptor },
                                   { first + DNN_CONV_W, w.descriptor },
                                   { first + DNN_CONV_Y, y.descriptor } });
    set(g, d, first + DNN_CONV_ALPHA, DNN_TYPE_FLOAT, 1, &one);
    set(g, d, first + DNN_CONV_BETA, DNN_TYPE_FLOAT, 1, &zero);
    finish(g, d);
    if (!bias) return;
    const dnn_tensor b = planes(g, DNN_BIAS, type, 1, c->o, 1, 1, inside, 0);
    pointwise_to(g, DNN_POINTWISE_ADD, y, b.descriptor, nullptr, result, 0);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* A call about one configuration: others may do without it, so only the cause is kept. */
static bool tried(dnn_graph *g, dnn_status status, const char *call)
{
    if (status / DNN_CAUSE >= DNN_INTERNAL / DNN_CAUSE) {
        g->broke = status;
        g->broke_in = call;
    }
    return status == 0;
}

static bool get(dnn_graph *g, dnn_descriptor d, int name, int type, int64_t most, int64_t *n,
                void *values)
{
    return tried(g, g->api->BackendGetAttribute(d, name, type, most, n, values),
                 "cudnnBackendGetAttribute");
}

/* Whether an engine's sums are what is wanted: the same bits in each run, all parts in f32. */
static bool fits(dnn_graph *g, dnn_descriptor configuration)
{
    int notes[DNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    dnn_descriptor engine = create(g, DNN_BACKEND_ENGINE_DESCRIPTOR);
    if (g->status != 0 ||
        !get(g, configuration, DNN_ATTR_ENGINECFG_ENGINE, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
             &engine) ||
        !get(g, engine, DNN_ATTR_ENGINE_NUMERICAL_NOTE, DNN_TYPE_NUMERICAL_NOTE,
             DNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == DNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
            notes[i] == DNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
            notes[i] == DNN_NUMERICAL_NOTE_FFT || notes[i] == DNN_NUMERICAL_NOTE_WINOGRAD)
            return false;
    return true;
}

/* Many configurations do not fit the graph or the device, which shows only here. */
static bool finalize_plan(dnn_graph *g, dnn_descriptor configuration, dnn_plan *p)
{
    const dnn_api *api = g->api;
    const bool has = g->handle;
    void *on = has ? g->handle : g->properties;
    int64_t n = 0;
    dnn_descriptor d = nullptr;

    if (!tried(g, api->BackendCreateDescriptor(DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &d),
               "cudnnBackendCreateDescriptor"))
        return false;
    dnn_status status = api->BackendSetAttribute(d, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                 DNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration);
    if (status == 0)
        status = api->BackendSetAttribute(
            d, has ? DNN_ATTR_EXECUTION_PLAN_HANDLE : DNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
            has ? DNN_TYPE_HANDLE : DNN_TYPE_BACKEND_DESCRIPTOR, 1, &on);
    if (tried(g, status, "cudnnBackendSetAttribute") &&
        tried(g, api->BackendFinalize(d), "cudnnBackendFinalize") &&
        get(g, d, DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, DNN_TYPE_INT64, 1, &n, &p->workspace)) {
        p->plan = d;
        return true;
    }
    api->BackendDestroyDescriptor(d);
    return false;
}

static bool choose_by(dnn_graph *g, dnn_descriptor graph, int mode, dnn_plan *p)
{
    dnn_descriptor found[CONFIGURATIONS];
    int64_t n = 0;
    dnn_descriptor ask = create(g, DNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, ask, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_int(g, ask, DNN_ATTR_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, mode);
    if (!g->handle) set_descriptor(g, ask, DNN_ATTR_ENGINEHEUR_DEVICEPROP, g->properties);
    finish(g, ask);
    for (dnn_descriptor &f : found) f = create(g, DNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->status != 0) return false;
    if (!check(g,
               g->api->BackendGetAttribute(ask, DNN_ATTR_ENGINEHEUR_RESULTS,
                                           DNN_TYPE_BACKEND_DESCRIPTOR, CONFIGURATIONS, &n, found),
               "cudnnBackendGetAttribute"))
        return false;
    if (n > CONFIGURATIONS) n = CONFIGURATIONS;
    for (int64_t i = 0; i < n; i++)
        if (fits(g, found[i]) && finalize_plan(g, found[i], p)) return true;
    return false;
}

dnn_plan dnn_choose(dnn_graph *g)
{
    dnn_plan p = {};
    dnn_descriptor graph = create(g, DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, graph, DNN_ATTR_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, g->n_operations,
        g->operations);
    if (g->handle) set(g, graph, DNN_ATTR_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &g->handle);
    finish(g, graph);
    for (int mode : { DNN_HEUR_MODE_A, DNN_HEUR_MODE_FALLBACK }) {
        if (g->status != 0 || choose_by(g, graph, mode, &p)) break;
        if (g->status / DNN_CAUSE == DNN_NOT_SUPPORTED / DNN_CAUSE)
            g->status = 0; /* in this mode */
    }
    if (!p.plan && g->status == 0) check(g, g->broke, g->broke_in);
    return p;
}
