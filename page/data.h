/* data.h - what the live page's model learns: points that are drawn, digits, characters of a text. */
#ifndef TENON_LIVE_DATA_H
#define TENON_LIVE_DATA_H

#include <stdbool.h>
#include <stdint.h>

enum { LIVE_TEXT_LENGTH = 32 };
typedef enum live_kind { LIVE_POINTS, LIVE_DIGITS, LIVE_TEXT } live_kind;

typedef struct live_data {
    live_kind kind;
    int n, n_train;   /* examples, those to train first; of a text: characters */
    int features;     /* of an example: 2, 64 or 1 */
    int classes;      /* 2, 10 or the number of characters */
    float *x;         /* [n, features]; NULL for a text */
    int64_t *y;       /* [n] classes; of a text: its characters as ids */
    char letter[256]; /* the character of an id */
} live_data;

/** Makes one, in place of what d had. name: as in live.h; bytes: of digits or text, n_bytes of them.
 *  Returns what was wrong, NULL if nothing; then d is as it was. */
const char *live_data_make(live_data *d, const char *name, double noise, const unsigned char *bytes,
                           int n_bytes);
/** Adds one of the user's own points. */
const char *live_data_point(live_data *d, double x, double y, int label);
void live_data_free(live_data *d);

#endif
