/* embedding.c - rows of a table by id */
#include "nn/layers/layer.h"

typedef struct embedding {
    tn_module base;
    tn_tensor *weight;           /* [n, d] */
    int64_t n, d, padding_index; /* -1: none */
} embedding;

static tn_tensor *embedding_forward(tn_module *self, tn_tensor *index)
{
    embedding *m = (embedding *)self;
    return tn_embedding(m->weight, index, m->padding_index);
}

static void embedding_describe(const tn_module *self, char *text, size_t size)
{
    const embedding *m = (const embedding *)self;
    snprintf(text, size, "%" PRId64 ", %" PRId64, m->n, m->d);
    if (m->padding_index >= 0) tni_text_add(text, size, ", padding %" PRId64, m->padding_index);
}

/* N(0, 1); the padding row starts as 0, and its gradient stays 0. */
static tn_status embedding_reset(tn_module *self)
{
    embedding *m = (embedding *)self;
    tn_status status = tn_init_normal(m->weight, 0, 1);
    if (status != TN_OK || m->padding_index < 0) return status;
    TN_SCOPE TN_NO_GRAD status = tn_zero_(tn_select(m->weight, 0, m->padding_index));
    return status;
}

TNI_TYPE(embedding, "Embedding", embedding, .forward = embedding_forward,
         .describe = embedding_describe, .reset = embedding_reset)

tn_module *tn_embedding_new(int64_t n, int64_t d, tn_embedding_options o)
{
    int64_t padding = o.use_padding_index ? o.padding_index : -1;
    if (tni_at_least(__func__, "n", n, 1) != TN_OK || tni_at_least(__func__, "d", d, 1) != TN_OK)
        return NULL;
    if (o.use_padding_index && (padding < -n || padding >= n))
        return tni_fail(TN_E_INDEX,
                        "tn_embedding_new: padding_index %" PRId64 " of %" PRId64 " rows: want "
                        "one of them (negative counts from the end)",
                        padding, n);
    if (o.use_padding_index && padding < 0) padding += n;
    embedding *m = tn_module_new(&embedding_type);
    if (!m) return NULL;
    m->n = n, m->d = d, m->padding_index = padding;
    tn_register_parameter(&m->base, "weight", &m->weight, tn_empty(TN_SHAPE(n, d)));
    embedding_reset(&m->base);
    return tn_module_done(&m->base);
}
