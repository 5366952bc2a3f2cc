/*
 * onednn_conv.c - convolutions of the oneDNN module. Its kernels want images in blocks of channels
 * or with channels last; operands are NCHW, so a plan copies them into the wanted layout, computes,
 * and copies the result back, over few enough images that the copies stay in the L2 cache. Source:
 * the oneDNN developer guide, "Convolution" and "Understanding memory formats".
 */
#include <string.h>

#include "tensor/cpu/dense/onednn_module.h"

/* By a kernel's own names for them: input, weights, bias, output. */
enum { SRC, WEIGHTS, BIAS, DST };

/* The sizes of a convolution as oneDNN takes them. */
typedef struct shape {
    dnnl_dims_t size[TNI_OPERANDS];
    int rank[TNI_OPERANDS];
    dnnl_dims_t stride, dilation, before, after; /* dilation 0: neighbours */
} shape;

static shape shape_of(const tni_conv2d_sizes *c)
{
    shape s = { .size = { { c->n, c->c, c->h, c->w },
                          { c->o, c->c, c->kh, c->kw },
                          { c->o },
                          { c->n, c->o, c->oh, c->ow } },
                .rank = { 4, 4, 1, 4 } };
    const int64_t in[] = { c->h, c->w }, taps[] = { c->kh, c->kw }, out[] = { c->oh, c->ow };
    for (int d = 0; d < 2; d++) {
        s.stride[d] = c->stride[d];
        s.dilation[d] = c->dilation[d] - 1;
        s.before[d] = c->padding[d];
        s.after[d] = (out[d] - 1) * c->stride[d] + (taps[d] - 1) * c->dilation[d] + 1 - in[d] -
                     c->padding[d];
    }
    return s;
}

/* The type of an operand: gradients of weights are f32. */
static dnnl_data_type_t type_of(const tni_convolution *c, int i)
{
    return i == WEIGHTS && c->kind == TNI_CONV_DW ? dnnl_f32 : tni_dnnl_type(c->x.dtype);
}

/* The layout that a kernel is asked for: tenon's; oneDNN's choice; images in blocks of 16 channels,
 * weights as oneDNN chooses. */
enum { PLAIN, ANY, BLOCKS, LAYOUTS };

static dnnl_status_t make_layout(tni_layout *l, const tni_convolution *c, const shape *s, int i,
                                 int layout)
{
    static const dnnl_format_tag_t tags[LAYOUTS][TNI_OPERANDS] = {
        { dnnl_nchw, dnnl_oihw, dnnl_a, dnnl_nchw },
        { dnnl_format_tag_any, dnnl_format_tag_any, dnnl_a, dnnl_format_tag_any },
        { dnnl_nChw16c, dnnl_format_tag_any, dnnl_a, dnnl_nChw16c },
    };
    dnnl_format_tag_t tag = tags[layout][i];
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(l, s->rank[i], s->size[i], type_of(c, i), tag);
#else
    return dnnl_memory_desc_init_by_tag(l, s->rank[i], s->size[i], type_of(c, i), tag);
#endif
}

static dnnl_status_t choose_forward(const tni_convolution *c, const shape *s, const tni_layout *l,
                                    dnnl_primitive_desc_t *chosen)
{
    tni_const_layout bias = c->kind == TNI_CONV_Y && c->bias.data ? LAYOUT(l[BIAS]) : NULL;
    dnnl_prop_kind_t what = c->kind == TNI_CONV_Y ? dnnl_forward_inference : dnnl_forward_training;
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_convolution_forward_primitive_desc_create(
        chosen, tni_engine, what, dnnl_convolution_direct, l[SRC], l[WEIGHTS], bias, l[DST],
        s->stride, s->dilation, s->before, s->after, tni_options);
#else
    dnnl_convolution_desc_t d;
    dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
        &d, what, dnnl_convolution_direct, &l[SRC], &l[WEIGHTS], bias, &l[DST], s->stride,
        s->dilation, s->before, s->after);
    return status == dnnl_success
               ? dnnl_primitive_desc_create(chosen, &d, tni_options, tni_engine, NULL)
               : status;
#endif
}

static dnnl_status_t choose_backward(const tni_convolution *c, const shape *s, const tni_layout *l,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *chosen)
{
#if DNNL_VERSION_MAJOR >= 3
    return c->kind == TNI_CONV_DX
               ? dnnl_convolution_backward_data_primitive_desc_create(
                     chosen, tni_engine, dnnl_convolution_direct, l[SRC], l[WEIGHTS], l[DST],
                     s->stride, s->dilation, s->before, s->after, forward, tni_options)
               : dnnl_convolution_backward_weights_primitive_desc_create(
                     chosen, tni_engine, dnnl_convolution_direct, l[SRC], l[WEIGHTS], NULL, l[DST],
                     s->stride, s->dilation, s->before, s->after, forward, tni_options);
#else
    dnnl_convolution_desc_t d;
    dnnl_status_t status = c->kind == TNI_CONV_DX
                               ? dnnl_dilated_convolution_backward_data_desc_init(
                                     &d, dnnl_convolution_direct, &l[SRC], &l[WEIGHTS], &l[DST],
                                     s->stride, s->dilation, s->before, s->after)
                               : dnnl_dilated_convolution_backward_weights_desc_init(
                                     &d, dnnl_convolution_direct, &l[SRC], &l[WEIGHTS], NULL,
                                     &l[DST], s->stride, s->dilation, s->before, s->after);
    return status == dnnl_success
               ? dnnl_primitive_desc_create(chosen, &d, tni_options, tni_engine, forward)
               : status;
#endif
}

/* A backward kernel is chosen with a forward one as a hint, whose weights have the inputs' type. */
static dnnl_status_t choose(const tni_convolution *c, const shape *s, const tni_layout *l,
                            dnnl_primitive_desc_t *chosen)
{
    if (c->kind == TNI_CONV_Y) return choose_forward(c, s, l, chosen);
    tni_convolution hint = *c;
    hint.kind = TNI_CONV_DX;
    tni_layout h[TNI_OPERANDS];
    memcpy(h, l, sizeof h);
    dnnl_primitive_desc_t forward = NULL;
    tni_layout weights = { 0 };
    dnnl_status_t status = make_layout(&weights, &hint, s, WEIGHTS, ANY);
    h[WEIGHTS] = weights;
    if (status == dnnl_success) status = choose_forward(&hint, s, h, &forward);
    if (status == dnnl_success) status = choose_backward(c, s, l, forward, chosen);
    if (forward) dnnl_primitive_desc_destroy(forward);
    tni_layout_free(&weights);
    return status;
}

static dnnl_status_t add_copy(tni_dnnl_plan *plan, tni_const_layout from, int from_memory,
                              tni_const_layout to, int to_memory)
{
    static const int argument[] = { DNNL_ARG_FROM, DNNL_ARG_TO };
    dnnl_primitive_desc_t copy = NULL;
    dnnl_status_t s =
        dnnl_reorder_primitive_desc_create(&copy, from, tni_engine, to, tni_engine, tni_options);
    if (s == dnnl_success)
        s = tni_dnnl_step_add(plan, copy, 2, argument, (int[]){ from_memory, to_memory });
    if (copy) dnnl_primitive_desc_destroy(copy);
    return s;
}

/* The kernel's arguments, its result last, with the query that tells the layout it wants. */
typedef struct role {
    int operand, argument;
    dnnl_query_t wanted;
} role;

static const role roles[3][TNI_OPERANDS] = {
    [TNI_CONV_Y] = { { SRC, DNNL_ARG_SRC, dnnl_query_src_md },
                     { WEIGHTS, DNNL_ARG_WEIGHTS, dnnl_query_weights_md },
                     { DST, DNNL_ARG_DST, dnnl_query_dst_md },
                     { BIAS, DNNL_ARG_BIAS, dnnl_query_undef } },
    [TNI_CONV_DX] = { { WEIGHTS, DNNL_ARG_WEIGHTS, dnnl_query_weights_md },
                      { DST, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md },
                      { SRC, DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md } },
    [TNI_CONV_DW] = { { SRC, DNNL_ARG_SRC, dnnl_query_src_md },
                      { DST, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md },
                      { WEIGHTS, DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md } },
};

static dnnl_status_t add_steps(tni_dnnl_plan *plan, const tni_convolution *c,
                               const_dnnl_primitive_desc_t chosen, const tni_layout *plain)
{
    const role *r = roles[c->kind];
    int argument[TNI_OPERANDS], memory[TNI_OPERANDS], n = 3;
    tni_const_layout wanted[TNI_OPERANDS];
    dnnl_status_t s = dnnl_success;
    for (int i = 0; i < n && s == dnnl_success; i++) {
        int operand = r[i].operand;
        wanted[i] = dnnl_primitive_desc_query_md(chosen, r[i].wanted, 0);
        argument[i] = r[i].argument;
        memory[i] = operand;
        s = tni_dnnl_memory(plan, operand, LAYOUT(plain[operand]));
        if (s != dnnl_success || dnnl_memory_desc_equal(wanted[i], LAYOUT(plain[operand])))
            continue;
        memory[i] = operand + TNI_OPERANDS;
        s = tni_dnnl_memory(plan, memory[i], wanted[i]);
        if (s == dnnl_success && i < 2)
            s = add_copy(plan, LAYOUT(plain[operand]), operand, wanted[i], memory[i]);
    }
    if (s == dnnl_success && c->kind == TNI_CONV_Y && c->bias.data) {
        argument[n] = r[n].argument;
        memory[n++] = BIAS;
        s = tni_dnnl_memory(plan, BIAS, LAYOUT(plain[BIAS]));
    }
    if (s == dnnl_success) s = tni_dnnl_step_add(plan, chosen, n, argument, memory);
    int result = r[2].operand;
    if (s == dnnl_success && memory[2] != result)
        s = add_copy(plan, wanted[2], memory[2], LAYOUT(plain[result]), result);
    return s;
}

static bool is_fast(const_dnnl_primitive_desc_t chosen)
{
    const char *name = tni_dnnl_name(chosen);
    return strncmp(name, "jit", 3) == 0 || strncmp(name, "brg", 3) == 0;
}

/* Sets *chosen to a fast kernel, or leaves it NULL. */
static dnnl_status_t choose_in(int layout, const tni_convolution *c, const shape *s,
                               dnnl_primitive_desc_t *chosen)
{
    tni_layout wanted[TNI_OPERANDS] = { 0 };
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < TNI_OPERANDS && status == dnnl_success; i++)
        status = make_layout(&wanted[i], c, s, i, layout);
    if (status == dnnl_success) status = choose(c, s, wanted, chosen);
    if (status == dnnl_success && !is_fast(*chosen)) {
        dnnl_primitive_desc_destroy(*chosen);
        *chosen = NULL;
    }
    for (int i = 0; i < TNI_OPERANDS; i++) tni_layout_free(&wanted[i]);
    return status;
}

/* With AVX-512 oneDNN by itself chooses channels last for a forward pass; its kernel and copies are
 * then slower by a tenth than with blocks. */
static bool prefers_blocks(const tni_convolution *c)
{
    return c->sizes.c % 16 == 0 && c->sizes.o % 16 == 0;
}

static dnnl_status_t make_convolution(tni_dnnl_plan *plan, const void *what)
{
    const tni_convolution *c = what;
    shape s = shape_of(&c->sizes);
    tni_layout plain[TNI_OPERANDS] = { 0 };
    dnnl_primitive_desc_t chosen = NULL;
    dnnl_status_t status = dnnl_success;
    if (prefers_blocks(c)) status = choose_in(BLOCKS, c, &s, &chosen);
    if (!chosen && status != dnnl_out_of_memory) status = choose_in(ANY, c, &s, &chosen);
    if (!chosen) return status;
    for (int i = 0; i < TNI_OPERANDS && status == dnnl_success; i++)
        status = make_layout(&plain[i], c, &s, i, PLAIN);
    if (status == dnnl_success) status = add_steps(plan, c, chosen, plain);
    dnnl_primitive_desc_destroy(chosen);
    for (int i = 0; i < TNI_OPERANDS; i++) tni_layout_free(&plain[i]);
    return status;
}

/* oneDNN 2.6.3 computes these wrongly, with AVX512-BF16: gradients of weights from images that are
 * narrower than the stride. */
static bool is_wrong(const tni_convolution *c)
{
    return c->kind == TNI_CONV_DW && c->x.dtype == TN_BF16 && c->sizes.stride[1] > c->sizes.w;
}

bool tni_dnnl_convolve(const tni_convolution *c)
{
    const tni_conv2d_sizes *z = &c->sizes;
    if (is_wrong(c)) return false;
    int64_t kinds = 1 | c->kind << 1 | (c->x.dtype == TN_BF16) << 3 | (c->bias.data != NULL) << 4;
    tni_key key = { { -kinds, z->n, z->c, z->h, z->w, z->o, z->kh, z->kw, z->oh, z->ow,
                      z->stride[0], z->stride[1], z->padding[0], z->padding[1], z->dilation[0],
                      z->dilation[1] } };
    const void *operand[TNI_OPERANDS] = {
        [SRC] = c->x.data, [WEIGHTS] = c->w.data, [BIAS] = c->bias.data, [DST] = c->y.data
    };
    return tni_dnnl_run(&key, make_convolution, c, operand);
}
