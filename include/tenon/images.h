/**
 * tenon/images.h - images: PNG and JPEG files, and the transforms of training, as torchvision's
 * (v2, on tensors) for the same random numbers.
 *
 * Images are [C, H, W], or [..., C, H, W], of u8 from 0 to 255 or of f32 (colours: 0 to 1), on
 * the CPU. Files are read by libpng and libjpeg-turbo, in a module that the first one opens
 * (TN_E_UNSUPPORTED, with the packages' names, where it was not built). Every function works in
 * the calling thread and may be called by several at once. Functions that draw take the
 * sample's own generator: what they do depends on its state alone, and a batch gets one draw.
 * Tensors made here have no history: what requires grad is refused, but for views and f32 resized.
 */
#ifndef TENON_IMAGES_H
#define TENON_IMAGES_H

#include <tenon/spatial.h>

TN_BEGIN_C_

/* ---- files ----------------------------------------------------------------------------------- */

/** What of a file's channels is wanted. */
typedef enum tn_image_mode {
    TN_IMAGE_RGB = 0, /* 3 channels: grey is repeated, alpha dropped, palettes are looked up */
    TN_IMAGE_GREY,    /* 1: a JPEG's Y; of PNG .2989 R + .587 G + .114 B */
    /* as many as the file has: grey 1, grey and alpha 2, RGB 3, RGB and alpha, or CMYK, 4. Of a
     * palette the indices, which are the classes of some segmentation data */
    TN_IMAGE_STORED
} tn_image_mode;
/** zero fields: RGB, not rotated, damage is an error */
typedef struct tn_image_options {
    tn_image_mode mode; /* its channels; 0: RGB */
    bool orient;        /* rotated as EXIF says (PyTorch: apply_exif_orientation) */
    /* a JPEG that is cut off or has wrong codes is taken with what there is of it, as most viewers
     * do, PIL and PyTorch where it is not cut off */
    bool damaged;
} tn_image_options;

/**
 * The image in n bytes of JPEG (baseline or progressive) or PNG of any depth: 1, 2 and 4 bits of
 * grey become 0 to 255, of 16 the high byte; alpha is never composed, gAMA and profiles ignored.
 *
 * Shapes   u8 [C, H, W]
 * Errors   TN_E_FORMAT: neither, cut off, damaged, larger than so many bytes can hold or than
 *          tn_set_file_limits allows (inflated_bytes); nothing is allocated before that is known
 * Owner    current scope
 * Source   libpng 1.6, libjpeg-turbo 2.1. PyTorch: torchvision.io.decode_image, whose default is
 *          TN_IMAGE_STORED, and which leaves 16 bits as they are
 */
TN_API tn_tensor *tn_image_decode(const void *bytes, size_t n, tn_image_options o);
/** The same of a file. PyTorch: torchvision.io.read_image */
TN_API tn_tensor *tn_image_load(const char *path, tn_image_options o);
/** Writes u8 [C, H, W] as PNG: grey, grey and alpha, RGB, RGB and alpha. The file is replaced
 *  whole, or not at all. Errors: other shapes and dtypes; TN_E_IO. PyTorch:
 *  torchvision.io.write_png */
TN_API TN_MUST_USE tn_status tn_image_save_png(tn_tensor *t, const char *path);

/** An image file of such a folder. */
typedef struct tn_image_file {
    const char *path; /* the folder's, and then the names down to the file's */
    int64_t label;    /* the number of its class */
} tn_image_file;
/** The image files in a folder that has a folder for each class. */
typedef struct tn_image_folder {
    int64_t n, n_classes;
    const tn_image_file *image;    /* [n], by class, then by folder, then by name */
    const char *const *class_name; /* [n_classes], the folders' names, ascending bytes */
} tn_image_folder;
/**
 * Finds the .png, .jpg and .jpeg files in each folder in `path`, and below it. Links are followed;
 * names that begin with a dot are passed over. No file is opened.
 *
 * Errors   TN_E_IO: no such folder; TN_E_FORMAT: no folders in it, or one without images, by name
 * Owner    yours, tn_image_folder_free
 * Source   PyTorch: torchvision.datasets.ImageFolder
 */
TN_API tn_image_folder *tn_image_folder_open(const char *path);
TN_API void tn_image_folder_free(tn_image_folder *folder); /* frees it; NULL is ignored */

/* ---- sizes and places ------------------------------------------------------------------------ */

/** How a pixel is interpolated: of 2 or 4 along each axis, or the nearest one taken. */
typedef enum tn_image_filter {
    TN_IMAGE_LINEAR = 0,
    TN_IMAGE_CUBIC,
    TN_IMAGE_NEAREST
} tn_image_filter;
/** zero fields: linear, antialiased */
typedef struct tn_image_resize_options {
    tn_image_filter filter; /* 0: linear */
    bool no_antialias;      /* smaller images leave pixels out */
} tn_image_resize_options;
/**
 * x with h rows and w columns, antialiased unless told not to. w = 0: h is the shorter side, and
 * the other becomes int(h long / short).
 *
 * u8 is computed in whole numbers: weights in up to 22 bits that fit 16, rounded and clipped after
 * each of the passes, rows first. f32 is tn_interpolate's.
 *
 * Shapes   [..., H, W] -> [..., h, w]
 * Errors   h below 1, w below 0, an empty image
 * Source   Pillow's and PyTorch's resampling of u8. PyTorch: v2.Resize, bit for bit on u8
 */
TN_API tn_tensor *tn_image_resize(tn_tensor *x, int64_t h, int64_t w, tn_image_resize_options o);
/** The middle h rows and w columns, with 0 around an x that is smaller; else a view. PyTorch:
 *  v2.CenterCrop */
TN_API tn_tensor *tn_image_center_crop(tn_tensor *x, int64_t h, int64_t w);
/** h rows and w columns from somewhere in x, a view: draws the first row and the first column,
 *  where there is a choice. Errors: x smaller. PyTorch: v2.RandomCrop; its padding is tn_pad's */
TN_API tn_tensor *tn_image_random_crop(tn_tensor *x, int64_t h, int64_t w, tn_generator *g);

/** zero fields: scale 0.08 to 1, ratio 3/4 to 4/3, antialiased and linear */
typedef struct tn_image_crop_options {
    double scale[2];                /* area of the part, of x's */
    double ratio[2];                /* its width to its height */
    tn_image_resize_options resize; /* how it is resized */
} tn_image_crop_options;
/**
 * A part of x, of random area, ratio of sides and place, resized to h rows and w columns.
 *
 * Draws    up to 10 times area and logarithm of the ratio, uniform, until it fits; then the first
 *          row, then the first column. If none fits: the middle, of the nearest ratio
 * Errors   those of tn_image_resize; bounds out of order, not above 0
 * Source   Szegedy et al., Going Deeper with Convolutions (2015). PyTorch: v2.RandomResizedCrop
 */
TN_API tn_tensor *tn_image_random_resized_crop(tn_tensor *x, int64_t h, int64_t w,
                                               tn_image_crop_options o, tn_generator *g);
/**
 * tn_image_load and then that, of a JPEG decoded only as far as needed: at 1, 1/2, 1/4 or 1/8 of
 * its size, such that the part still has h rows and w columns, and not beyond the part. Damage
 * there is not seen, and pixels differ a little. With TN_IMAGE_NEAREST, and of PNG and of what EXIF
 * turns, the whole is decoded.
 */
TN_API tn_tensor *tn_image_load_crop(const char *path, int64_t h, int64_t w,
                                     tn_image_crop_options crop, tn_image_options o,
                                     tn_generator *g);

/** x reversed along an axis with probability p: -1 swaps left and right, -2 top and bottom. Draws
 *  one number, whatever p is. PyTorch: v2.RandomHorizontalFlip, v2.RandomVerticalFlip */
TN_API tn_tensor *tn_image_random_flip(tn_tensor *x, int axis, double p, tn_generator *g);

/** zero fields: the nearest pixel, the same size, 0 around it */
typedef struct tn_image_rotate_options {
    bool linear; /* of 4 pixels */
    bool expand; /* as large as all of x needs */
    double fill; /* where x has nothing */
} tn_image_rotate_options;
/** x rotated about its middle, counter-clockwise, by so many degrees. By 0, 90, 180, 270 exactly,
 *  where the size allows it. Errors: degrees not finite, fill that u8 cannot hold. PyTorch:
 *  v2.functional.rotate with fill given */
TN_API tn_tensor *tn_image_rotate(tn_tensor *x, double degrees, tn_image_rotate_options o);
/** By degrees drawn from low to high. PyTorch: v2.RandomRotation */
TN_API tn_tensor *tn_image_random_rotate(tn_tensor *x, double low, double high,
                                         tn_image_rotate_options o, tn_generator *g);

/* ---- values ---------------------------------------------------------------------------------- */

/** What tn_image_adjust changes. */
typedef enum tn_image_property {
    TN_IMAGE_BRIGHTNESS, /* x factor */
    TN_IMAGE_CONTRAST,   /* x factor + (1 - factor) mean of its grey */
    TN_IMAGE_SATURATION, /* x factor + (1 - factor) its grey */
    TN_IMAGE_HUE         /* factor is added to the hue, of which 1 is the whole circle */
} tn_image_property;
/** x with a property changed, within 0 to 255 or 1; grey images keep hue and saturation. Grey is
 *  .2989 R + .587 G + .114 B. Errors: channels other than 1 and 3; a factor below 0, of hue beyond
 *  -1/2 to 1/2. PyTorch: v2.functional.adjust_brightness, adjust_contrast and so on */
TN_API tn_tensor *tn_image_adjust(tn_tensor *x, tn_image_property property, double factor);
/** zero fields: that property stays */
typedef struct tn_image_jitter_options {
    double brightness, contrast, saturation; /* factors from max(0, 1 - this) to 1 + this */
    double hue;                              /* from -this to this, at most 1/2 */
} tn_image_jitter_options;
/** All four changed in random order: draws it, then factors of those not 0. PyTorch: ColorJitter */
TN_API tn_tensor *tn_image_color_jitter(tn_tensor *x, tn_image_jitter_options o, tn_generator *g);

/** zero fields: scale 0.02 to 0.33, ratio 0.3 to 3.3, value 0 */
typedef struct tn_image_erase_options {
    double scale[2], ratio[2]; /* area of the part, of x's; its height to its width */
    double value;
} tn_image_erase_options;
/** x with a part set to a value, with probability p. Draws a number, whatever p is; then as
 *  tn_image_random_resized_crop; if nothing fits, x stays. Errors: as there; a value that u8 cannot
 *  hold. PyTorch: v2.RandomErasing, without its value "random" */
TN_API tn_tensor *tn_image_random_erase(tn_tensor *x, double p, tn_image_erase_options o,
                                        tn_generator *g);

/** (x - mean[c]) / std[c] of each channel, f32; u8 is first multiplied by 1/255. n numbers each, as
 *  many as channels, or 1. Errors: other n; std of 0; numbers that are not finite. PyTorch:
 *  v2.ToDtype(torch.float32, scale=True), v2.Normalize */
TN_API tn_tensor *tn_image_normalize(tn_tensor *x, const double *mean, const double *std, int n);

TN_END_C_
#endif
