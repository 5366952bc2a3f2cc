/* text.c - a text as character ids: an id is a byte's rank among those that occur. */
#include <tenon/io.h>

#include "io/file.h"
#include "tensor/random.h"

typedef struct block {
    tn_text text; /* first: the caller's pointer is the block's */
    size_t nbytes;
    unsigned char id[];
} block;

tn_text *tn_text_load(const char *path, double valid_fraction)
{
    static const char f[] = "tn_text_load";
    if (!(valid_fraction >= 0 && valid_fraction <= 0.5))
        return tni_fail(TN_E_INVALID, "%s: valid_fraction %g: want in [0, 0.5]", f, valid_fraction);
    tni_input in;
    if (tni_input_open(&in, f, path) != TN_OK) return NULL;
    block *b = NULL;
    size_t nbytes;
    if (in.size == 0)
        tni_error(TN_E_FORMAT, "%s: " TNI_PATH ": is empty: want a text", f, path);
    else if (tni_add_size((size_t)in.size, sizeof *b, &nbytes))
        b = tni_alloc(nbytes);
    if (b && tni_input_read(&in, 0, b->id, (size_t)in.size) != TN_OK) {
        tni_free(b, nbytes);
        b = NULL;
    }
    tni_input_close(&in);
    if (!b) return NULL;
    b->nbytes = nbytes;
    b->text = (tn_text){ .n_valid = (int64_t)floor((double)in.size * valid_fraction) };
    b->text.n_train = in.size - b->text.n_valid;
    b->text.train = b->id;
    b->text.valid = b->id + b->text.n_train;
    bool seen[256] = { false };
    for (int64_t i = 0; i < in.size; i++) seen[b->id[i]] = true;
    for (int k = 0; k < 256; k++) {
        b->text.id_of[k] = seen[k] ? b->text.vocab : -1;
        if (seen[k]) b->text.byte_of[b->text.vocab++] = (unsigned char)k;
    }
    for (int64_t i = 0; i < in.size; i++) b->id[i] = (unsigned char)b->text.id_of[b->id[i]];
    return &b->text;
}

void tn_text_free(tn_text *text)
{
    if (text) tni_free(text, ((block *)(void *)text)->nbytes);
}

tn_status tn_text_batch(const tn_text *text, bool valid, tn_generator *g, int64_t batch,
                        int64_t context, tn_tensor **x, tn_tensor **y)
{
    if (!text) return tni_null(__func__, "text", "a text");
    if (!g) return tni_null(__func__, "g", "a generator");
    if (!x || !y) return tni_null(__func__, x ? "y" : "x", "room for a tensor");
    int64_t n = valid ? text->n_valid : text->n_train;
    const unsigned char *id = valid ? text->valid : text->train;
    if (batch < 1 || context < 1)
        return tni_error(TN_E_INVALID, "%s: batch %" PRId64 ", context %" PRId64 ": want both >= 1",
                         __func__, batch, context);
    if (n <= context)
        return tni_error(TN_E_INVALID,
                         "%s: a %s part of %" PRId64 " characters: want more than context %" PRId64,
                         __func__, valid ? "validation" : "training", n, context);
    tn_tensor *a = tn_empty_as(TN_SHAPE(batch, context), TN_I64, tn_cpu());
    tn_tensor *b = tn_empty_as(TN_SHAPE(batch, context), TN_I64, tn_cpu());
    if (!a || !b) return tni_pending();
    if (tni_host_refused(__func__, "draws on the host", "a batch as an input of tn_capture_run"))
        return TN_E_STATE;
    int64_t *from = tni_data(a);
    int64_t *to = tni_data(b);
    tni_generator_lock(g);
    for (int64_t i = 0; i < batch; i++) { /* context + 1 characters each */
        const unsigned char *window = id + tni_draw_below(g, (uint64_t)(n - context));
        for (int64_t t = 0; t < context; t++) {
            from[i * context + t] = window[t];
            to[i * context + t] = window[t + 1];
        }
    }
    tni_generator_unlock(g);
    *x = a;
    *y = b;
    return TN_OK;
}
