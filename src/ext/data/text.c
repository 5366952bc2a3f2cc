/* text.c - a text as character ids: an id is a byte's rank among those that occur. */
#include <tenon/io.h>

#include "io/file.h"
#include "tensor/random.h"

typedef struct block {
    tn_text text;   /* first: the caller's pointer is the block's */
    tni_bytes file; /* its ids */
} block;

tn_text *tn_text_load(const char *path, double valid_fraction)
{
    static const char f[] = "tn_text_load";
    if (!(valid_fraction >= 0 && valid_fraction <= 0.5))
        return tni_fail(TN_E_INVALID, "%s: valid_fraction %g: want in [0, 0.5]", f, valid_fraction);
    block *b = tni_calloc(sizeof *b);
    if (!b) return NULL;
    tn_text *text = &b->text;
    tn_status status = tni_bytes_file(&b->file, f, path, INT64_MAX);
    const int64_t n = (int64_t)b->file.n;
    if (status == TN_OK && n == 0)
        status = tni_error(TN_E_FORMAT, "%s: " TNI_PATH ": is empty: want a text", f, path);
    if (status != TN_OK) return tn_text_free(text), NULL;
    unsigned char *id = (unsigned char *)b->file.data;
    text->n_valid = (int64_t)floor((double)n * valid_fraction);
    text->n_train = n - text->n_valid;
    text->train = id;
    text->valid = id + text->n_train;
    bool seen[256] = { false };
    for (int64_t i = 0; i < n; i++) seen[id[i]] = true;
    for (int k = 0; k < 256; k++) {
        text->id_of[k] = seen[k] ? text->vocab : -1;
        if (seen[k]) text->byte_of[text->vocab++] = (unsigned char)k;
    }
    for (int64_t i = 0; i < n; i++) id[i] = (unsigned char)text->id_of[id[i]];
    return text;
}

void tn_text_free(tn_text *text)
{
    if (!text) return;
    tni_bytes_free(&((block *)(void *)text)->file);
    tni_free(text, sizeof(block));
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
    int64_t *from = tni_data(a), *to = tni_data(b);
    tni_generator_lock(g);
    for (int64_t i = 0; i < batch; i++) { /* context + 1 characters each */
        const unsigned char *window = id + tni_draw_below(g, (uint64_t)(n - context));
        for (int64_t t = 0; t < context; t++) {
            from[i * context + t] = window[t];
            to[i * context + t] = window[t + 1];
        }
    }
    tni_generator_unlock(g);
    return *x = a, *y = b, TN_OK;
}
