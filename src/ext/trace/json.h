/*
 * json.h - writing accounts as JSON: for programs as it is, for the page packed.
 *
 * Packed, each text and each tensor's numbers are written once, in a table, and referred to by
 * index: a gradient is the share of one op and arrives at another, and all ops of a kind have one
 * formula. page/data.js unpacks it.
 */
#ifndef TNI_TRACE_JSON_H
#define TNI_TRACE_JSON_H

#include "ext/trace/words.h"

/* Empty when zeroed, except that text_at.names must be set. */
typedef struct tni_pack {
    char **text;
    const tni_numbers **value; /* of the accounts */
    size_t n_texts, n_values;
    tni_arena arena;
    tni_map text_at, value_at; /* text, hash -> place + 1 */
    bool failed;               /* out of memory: the output is incomplete */
} tni_pack;

typedef struct tni_out {
    FILE *file;
    const tni_log *log;
    const tni_log_step *step;
    tni_pack *pack; /* NULL: as it is */
} tni_out;

/* Writes a template, in which ' stands for " and % for the next argument:
 *
 *     d int    z size_t    l int64_t    g double    b bool    w text as it is
 *     s text as a string; NULL: null        v numbers       h shape
 *     i int; null if negative               t id of a tensor
 *     , size_t: a comma unless it is 0      n the same, and a new line  (json_values.c) */
void tni_write(const tni_out *o, const char *form, ...);
/* "texts":[...],"values":[...], after all that refers to them */
void tni_put_tables(const tni_out *o);
void tni_pack_free(tni_pack *pack);

/* json.c: a whole account */
void tni_put_account(const tni_out *to, const tni_log *log);

#endif
