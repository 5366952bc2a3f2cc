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
/* A text, each byte as put writes it; bytes that are not valid UTF-8 become "?". */
void tni_put_escaped(FILE *file, const char *text, void (*put)(FILE *file, unsigned char byte));
/* json.c: a whole account */
void tni_put_account(FILE *file, const tni_log *log);

#endif
