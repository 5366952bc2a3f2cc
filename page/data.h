/* data.h - what the live page's model learns: points that are drawn, digits, letters of a text. */
#pragma once

#include <tenon/tenon.h>

enum { LIVE_LENGTH = 32 }; /* characters of a text that are read at a time */
typedef enum live_kind { LIVE_POINTS, LIVE_DIGITS, LIVE_TEXT } live_kind;

typedef struct live_data {
    live_kind kind;
    int n, n_train;   /* examples, those to train first; of a text: characters */
    int classes;      /* 2, 10 or the number of characters; 0: there are no data */
    tn_tensor *x, *y; /* kept: [n, 2] or [n, 1, 8, 8] f32, and [n, 1] f32 or [n] i64; of a text x
                       * alone, [n] i64. NULL: no points yet */
    char letter[256]; /* the character of an id */
} live_data;

/** Makes one in place of what d had. name: as in live.h; bytes: of digits or text. Returns what
 *  was wrong, NULL if nothing; then d is as it was. */
const char *live_data_make(live_data *d, const char *name, double noise, const unsigned char *bytes,
                           int n_bytes);
/** Adds one of the user's own points. */
const char *live_data_point(live_data *d, double x, double y, int label);
/** The n examples at these places, as the model reads them; y: as the loss wants them. */
tn_tensor *live_data_batch(const live_data *d, const int64_t *at, int n, tn_tensor **y);
