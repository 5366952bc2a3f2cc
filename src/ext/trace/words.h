/* words.h - what the writers of text share. */
#ifndef TNI_WORDS_H
#define TNI_WORDS_H

#include "ext/trace/record.h"

typedef struct tni_words {
    FILE *file;
    const tni_log *log;
    const tni_log_step *step;
} tni_words;

/* "[2,8]" */
tni_phrase tni_shape_phrase(const tn_shape *s);
/* "|dy| 0.31", "dy 0.31" for one element, " = [[1, 2], [3, 4]]" after it for few if shape is given;
 * the text `before` before it; nothing if unknown */
tni_phrase tni_numbers_phrase(const char *before, const char *name, const tni_numbers *v,
                              const tn_shape *shape);
/* One number for v: its only element, or its norm; "-" if unknown */
tni_phrase tni_amount_phrase(const tni_numbers *v);
/* "0.weight", "x", "relu (2: ReLU)", "data": where an input comes from */
tni_phrase tni_source_phrase(const tni_words *w, const tni_log_in *in);
/* "by forward", "by hand and by the optimizer", "no", "not known" */
tni_phrase tni_moved_phrase(unsigned moved);
/* The name of a tensor, or what it is. */
const char *tni_tensor_name(const tni_words *w, int tensor);

static inline const tni_log_op *tni_op(const tni_words *w, const tni_log_node *n)
{
    return &w->log->ops[n->op];
}

/* "  linear #4  head (Linear)  net.c:41" */
void tni_say_place(const tni_words *w, int node);
/* text_backward.c: backward of one step, as tn_explain tells it */
void tni_say_backward(const tni_words *w);
/* text.c: the ledger */
void tni_say_state(const tni_words *w);

#endif
