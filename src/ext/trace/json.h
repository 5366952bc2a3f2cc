/* json.h - writing accounts as JSON. */
#ifndef TNI_TRACE_JSON_H
#define TNI_TRACE_JSON_H

#include "ext/trace/words.h"

/* Writes a template, in which ' stands for " and % for the next argument:
 *
 *     d int    z size_t    l int64_t    g double    b bool    w text as it is
 *     s text as a string; NULL: null        v numbers       h shape
 *     i int; null if negative               t id of a tensor
 *     , size_t: a comma unless it is 0      n the same, and a new line  (json_values.c) */
void tni_write(const tni_words *o, const char *form, ...);
/* Gives a text to put byte by byte, which has `to`; bytes that are not valid UTF-8 are "?". */
void tni_escape(void *to, const char *text, void (*put)(void *to, unsigned char byte));
/* json.c: a whole account */
void tni_put_account(FILE *file, const tni_log *log);

/* The page; the bytes 1, 2 and 3 stand for title, static part and accounts (page/embed.py). */
extern const unsigned char tni_page[];

#endif
