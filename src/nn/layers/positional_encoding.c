/*
 * positional_encoding.c - x + pe[:, :T]; Vaswani et al. (2017), sec. 3.5.
 *
 * pe[t, 2i] = sin(t f_i), pe[t, 2i+1] = cos(t f_i), f_i = exp(-2i ln(10000) / d). Computed in the
 * buffer's dtype, as in PyTorch's tutorial: in f32 the rounding of the argument makes an error of
 * 4e-4 at position 5,000. An odd d has one cosine column less.
 */
#include "nn/layers/layer.h"

typedef struct positional_encoding {
    tn_module base;
    tn_tensor *pe; /* [1, max_len, d] */
    int64_t d, max_len;
    double dropout;
} positional_encoding;

static tn_tensor *positional_encoding_forward(tn_module *self, tn_tensor *x)
{
    positional_encoding *m = (positional_encoding *)self;
    if (tni_none(x) || x->shape.rank != 3 || x->shape.size[2] != m->d)
        return tni_fail(TN_E_SHAPE, "PositionalEncoding: x %s: want [B, T, %" PRId64 "]",
                        tni_none(x) ? "is absent" : tni_text(x), m->d);
    int64_t t = x->shape.size[1];
    if (t > m->max_len)
        return tni_fail(TN_E_SHAPE,
                        "PositionalEncoding: x %s has T = %" PRId64 " positions: want at most "
                        "max_len = %" PRId64,
                        tni_text(x), t, m->max_len);
    return tn_dropout(tn_add(x, tn_narrow(m->pe, 1, 0, t)), m->dropout, tn_training(self));
}

static void positional_encoding_describe(const tn_module *self, char *text, size_t size)
{
    const positional_encoding *m = (const positional_encoding *)self;
    snprintf(text, size, "%" PRId64 ", max_len %" PRId64, m->d, m->max_len);
    if (m->dropout > 0) tni_text_add(text, size, ", dropout %g", m->dropout);
}

#define FILL(fill, type, EXP, SIN, COS)                                                            \
    static void fill(type *pe, int64_t max_len, int64_t d)                                         \
    {                                                                                              \
        const type step = (type)(-log(10000.0) / (double)d);                                       \
        for (int64_t i = 0; i < d; i += 2) {                                                       \
            type f = EXP((type)i * step);                                                          \
            for (int64_t t = 0; t < max_len; t++) {                                                \
                pe[t * d + i] = SIN((type)t * f);                                                  \
                if (i + 1 < d) pe[t * d + i + 1] = COS((type)t * f);                               \
            }                                                                                      \
        }                                                                                          \
    }
FILL(fill_f32, float, expf, sinf, cosf)
FILL(fill_f64, double, exp, sin, cos)

static tn_tensor *encoding(int64_t max_len, int64_t d)
{
    tn_tensor *pe = tn_empty(TN_SHAPE(1, max_len, d));
    void *data = pe ? tn_data_mut(pe) : NULL;
    if (!data) return NULL;
    if (pe->dtype == TN_F64)
        fill_f64(data, max_len, d);
    else
        fill_f32(data, max_len, d);
    return pe;
}

TNI_TYPE(positional_encoding, "PositionalEncoding", positional_encoding,
         .forward = positional_encoding_forward, .describe = positional_encoding_describe)

tn_module *tn_positional_encoding_new(int64_t d_model, int64_t max_len,
                                      tn_positional_encoding_options o)
{
    TNI_HOLD_TRAPS;
    if (tni_at_least(__func__, "d_model", d_model, 1) != TN_OK ||
        tni_at_least(__func__, "max_len", max_len, 1) != TN_OK ||
        tni_probability(__func__, o.dropout) != TN_OK)
        return NULL;
    positional_encoding *m = tn_module_new(&positional_encoding_type);
    if (!m) return NULL;
    m->d = d_model;
    m->max_len = max_len;
    tni_drops(&m->base, &m->dropout, o.dropout);
    tn_register_buffer(&m->base, "pe", &m->pe, encoding(max_len, d_model),
                       o.non_persistent ? TN_CONSTANT | TN_NON_PERSISTENT : TN_CONSTANT);
    return tn_module_done(&m->base);
}
