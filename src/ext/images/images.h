/*
 * images.h - what the files of this room share, and what the shared module libtenon-images.so
 * offers (codec.c): the two formats, without a type of libpng's or libjpeg's.
 */
#pragma once

#include <tenon/autograd.h>
#include <tenon/images.h>

#include "tensor/random.h"

#define TNI_IMAGES_FILE "libtenon-images.so"
#define TNI_IMAGES_SYMBOL "tenon_images_open"
#define TNI_IMAGES_ID "tenon images 1"

/* An image being decoded. */
typedef struct tni_image_job {
    const unsigned char *bytes; /* what is given, */
    size_t n;
    tn_image_options o;
    /* called when the next fields are known: sets those behind them, or answers false, and the job
     * ends with TN_E_STATE and no reason */
    bool (*begin)(struct tni_image_job *job);
    void *user;
    int channels, orientation; /* EXIF's 1 to 8; 1 unless o.orient */
    int64_t height, width;
    double least; /* bytes that such an image takes at least */
    bool parts;   /* it can be decoded smaller, and in part; otherwise shrink 1 and all of it */
    int shrink;   /* 1, 2, 4, 8: to height / shrink, width / shrink, rounded up */
    int64_t top, left, rows, cols; /* of that */
    unsigned char *planes;         /* [channels, rows, cols] */
    char why[256];                 /* of a failure */
} tni_image_job;

typedef struct tni_images {
    /* Any of the statuses is possible; a job's fields may have been set then. */
    tn_status (*decode)(tni_image_job *job);
    /* Writes [height, width, channels] of u8 to out, and returns how many bytes; out NULL: how many
     * at most; 0: failed, and why. */
    size_t (*encode_png)(const unsigned char *pixels, int channels, uint32_t height, uint32_t width,
                         unsigned char *out, char *why, size_t size);
} tni_images;
typedef const tni_images *(*tni_images_open)(const char *id, char *why, size_t size);

/* ---- in the library -------------------------------------------------------------------------- */

/* Whether x is an image of u8 or f32 on the CPU, with no_grad without a gradient; else an error. */
bool tni_image_ok(const char *f, const tn_tensor *x, bool no_grad);
/* Whether numbers can be drawn from g here, whose state is kept in *was; else an error. */
bool tni_image_draws(const char *f, const tn_generator *g, tni_generator_state *was);
/* y; if that failed, g is as it was. */
tn_tensor *tni_image_drawn(tn_generator *g, const tni_generator_state *was, tn_tensor *y);
float tni_image_uniform(tn_generator *g, double low, double high); /* as PyTorch's uniform_ */
/* The part that tn_image_random_resized_crop takes: first row and column, rows, columns. */
void tni_image_box(tn_generator *g, const tn_image_crop_options *o, int64_t height, int64_t width,
                   int64_t *box);
/* Whether the options are right, with their defaults filled in. */
bool tni_image_crop_ok(const char *f, tn_image_crop_options *o, int64_t h, int64_t w);
/* A dense copy of x with rows and columns from the last one, then swapped. */
tn_tensor *tni_image_turned(const char *f, tn_tensor *x, bool up, bool left, bool swap);
bool tni_image_filter_ok(const char *f, tn_image_filter filter);
/* Rows and columns of u8 resized; box: first row and column, rows, columns, in pixels of x. */
tn_tensor *tni_image_resized(tn_tensor *x, const double *box, int64_t h, int64_t w,
                             tn_image_resize_options o);
