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
void tni_say_shape(const tni_words *w, const tn_shape *s);
/* "|dy| 0.31", "dy 0.31" for one element, "[[1, 2], [3, 4]]" after it for few; nothing if
 * unknown */
void tni_say_numbers(const tni_words *w, const char *before, const char *name, const tni_numbers *v,
                     const tn_shape *shape);
/* One number for v: its only element, or its norm; "-" if unknown */
void tni_amount(const tni_numbers *v, char *text, size_t size);
/* "0.weight", "x", "relu (2: ReLU)", "data": where an input comes from */
const char *tni_source(const tni_words *w, const tni_log_in *in, char *text, size_t size);
/* The name of a tensor, or what it is. */
const char *tni_tensor_name(const tni_words *w, int tensor);

static inline const tni_log_op *tni_op(const tni_words *w, const tni_log_node *n)
{
    return &w->log->ops[n->op];
}

/* "  linear #4  head (Linear)  net.c:41" */
void tni_say_place(const tni_words *w, int node);

/* text.c, text_backward.c: one step; backward alone, as tn_explain tells it */
void tni_say_forward(const tni_words *w);
void tni_say_backward(const tni_words *w);
/* state.c: the optimizer's step; the ledger */
void tni_say_updates(const tni_words *w);
void tni_say_state(const tni_words *w);
/* "by forward", "by hand and by the optimizer", "no", "not known" */
enum { TNI_MOVED_TEXT = 80 }; /* room for it */
const char *tni_moved_text(unsigned moved, char *text, size_t size);

#endif
