/* words.h - what the writers of accounts share: text, JSON, the page. */
#pragma once

#include "ext/trace/record.h"

typedef struct tni_words {
    FILE *file;
    const tni_log_step *step;
} tni_words;

/* "|dy| 0.31", "dy 0.31" for one element, " = [[1, 2], [3, 4]]" after it for few if shape is given;
 * the text `before` before it; nothing if unknown */
tni_phrase tni_numbers_phrase(const char *before, const char *name, const tni_numbers *v,
                              const tn_shape *shape);
/* One number for v: its only element, or its norm; "-" if unknown */
tni_phrase tni_amount_phrase(const tni_numbers *v);
/* "0.weight", "x", "relu (2: ReLU)", "data": where an input comes from */
tni_phrase tni_source_phrase(const tni_log_in *in);
/* "by forward", "by hand and by the optimizer", "no", "not known" */
tni_phrase tni_moved_phrase(unsigned moved);
/* The name of a tensor, or what it is. */
const char *tni_tensor_name(const tni_log_tensor *t);
/* text.c: backward of one step, as tn_explain tells it */
void tni_say_backward(const tni_words *w);
/* The ledger as a table. Row 0 has the heads, row i + 1 is line i */
enum { TNI_LEDGER_COLUMNS = 9 };
tni_phrase tni_ledger_cell(const tni_words *w, size_t row, int column);
void tni_say_state(const tni_words *w);

/* Text in an element of HTML or SVG: markup is escaped, a control character becomes a space. */
void tni_put_markup(FILE *file, const char *text);
/* Gives a text to put byte by byte, which has `to`; bytes that are not valid UTF-8 are "?". */
void tni_escape(void *to, const char *text, void (*put)(void *to, unsigned char byte));
/* json.c: a whole account. For a page it has pictures, constants, and numbers that came before as
 * {"same":k}, the k-th of the account from 0. */
void tni_put_account(FILE *file, const tni_log *log, bool for_page);

/* The page; the bytes 1, 2 and 3 stand for title, static part and accounts (page/embed.py). */
extern const unsigned char tni_page[];
