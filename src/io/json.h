/*
 * json.h - JSON, read token by token in place: no tree is built, no memory is allocated.
 *
 * The caller says what it wants next. Strings are decoded in place, so reading destroys the text.
 * Strict: RFC 8259 with UTF-8 checked, and no zero characters. Duplicate keys are for the caller to
 * detect.
 */
#pragma once

#include "io/file.h"

typedef struct tni_json {
    char *text, *at, *end;
    const char *problem; /* what is wrong at `at`; NULL: nothing yet. Once set, every call fails */
    bool first;          /* just after a { or [ */
    int depth;           /* objects and arrays that are open */
} tni_json;

tni_json tni_json_of(char *text, size_t n);
/* What comes next: one of { [ " or 0 for a number, n for true, false and null; zero + problem. */
char tni_json_kind(tni_json *j);
/* Whether the next value begins with this { or [; if so, moves past it. */
bool tni_json_open(tni_json *j, char open);
/* Whether there is another member; if not, moves past the } or ]. Call until false. */
bool tni_json_next(tni_json *j, char close);
/* The key of an object's next member. NULL + problem. */
const char *tni_json_key(tni_json *j);
/* The next value, a string; NULL if it is not one. */
const char *tni_json_string(tni_json *j);
/* An integer from 0 to 2^63 - 1; false, without a problem, if the next value is something else. */
bool tni_json_integer(tni_json *j, int64_t *value);
/* Whether the next value is this word: true, false or null. If so, moves past it. */
bool tni_json_word(tni_json *j, const char *word);
/* Moves past the next value, of whatever kind; false + problem. */
bool tni_json_skip(tni_json *j);
/* Checks that nothing follows; else a problem. */
bool tni_json_end(tni_json *j);
/* TN_E_FORMAT: what the file has as NAME is not JSON; j has the problem. */
tn_status tni_json_bad(const tni_input *in, const char *name, const tni_json *j);

/* Appends text as a JSON string. False: not UTF-8, nothing was added. */
TNI_SHARED bool tni_json_add(tni_bytes *b, const char *text);
/* How many of the first n bytes are valid UTF-8: n if all are. */
TNI_SHARED size_t tni_utf8(const char *text, size_t n);
/* How many of n bytes begin a character, which has *length: RFC 3629, section 4. 0: none can. */
TNI_SHARED size_t tni_utf8_begun(const char *text, size_t n, size_t *length);
