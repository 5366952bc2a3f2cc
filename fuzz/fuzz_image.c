/* fuzz_image.c - any bytes as a PNG or JPEG file, turned as its EXIF says. */
#include "fuzz.h"

static tn_tensor *load(const char *path)
{
    return tn_image_load(path, (tn_image_options){ .mode = TN_IMAGE_STORED, .orient = true });
}

FUZZ_READER(load)
