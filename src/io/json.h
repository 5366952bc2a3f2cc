/*
 * json.h - JSON, read piece by piece where it lies: no tree is made and no memory is asked for.
 *
 * Whoever reads says what it wants next; strings are decoded in place, so the text is used up by
 * reading. Strict: RFC 8259 with UTF-8 checked, and no zero characters. Twice the same key is the
 * reader's to notice.
 */
#ifndef TNI_JSON_H
#define TNI_JSON_H

#include "io/file.h"

typedef struct tni_json {
    char *text, *at, *end;
    const char *problem; /* what is wrong at `at`; NULL: nothing so far. Then every answer is no */
    bool first;          /* just behind a { or [ */
} tni_json;

tni_json tni_json_of(char *text, size_t n);
/* What comes next: one of { [ " or 0 for a number, n for true, false and null; zero + problem. */
char tni_json_kind(tni_json *j);
/* Goes behind a { or [, which kind has seen. */
void tni_json_open(tni_json *j);
/* Whether another member comes; else goes behind the } or ]. Call until it says no. */
bool tni_json_next(tni_json *j, char close);
/* Of a member of an object. NULL + problem. */
const char *tni_json_key(tni_json *j);
/* NULL when a string is not what comes. */
const char *tni_json_string(tni_json *j);
/* An integer from 0 to 2^63 - 1; false, without a problem, when what comes is something else. */
bool tni_json_integer(tni_json *j, int64_t *value);
/* Nothing follows; else a problem. */
bool tni_json_end(tni_json *j);

/* Appends text as a JSON string. False: it is not UTF-8, and nothing was added. */
bool tni_json_add(tni_bytes *b, const char *text);
/* How many of n bytes are UTF-8, from the first on: n when all are. */
size_t tni_utf8(const char *text, size_t n);

#endif
