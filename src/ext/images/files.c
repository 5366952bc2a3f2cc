/* files.c - images from bytes and files, and to files, by the module libtenon-images.so. */
#include "ext/images/images.h"
#include "io/io.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tni_images *images;
static char why[512];

static void open_images(void)
{
    void *symbol = tni_open_module("TN_IMAGES_MODULE", "ext/images/", TNI_IMAGES_FILE,
                                   TNI_IMAGES_SYMBOL, why, sizeof why);
    tni_images_open open = NULL;
    memcpy(&open, &symbol, sizeof open);
    if (open) images = open(TNI_IMAGES_ID, why, sizeof why);
}

static bool opened(const char *f)
{
    pthread_once(&once, open_images);
    if (!images)
        tni_error(TN_E_UNSUPPORTED,
                  "%s: tenon's module for PNG and JPEG, %s, %s: want it built with libpng-dev and "
                  "libjpeg62-turbo-dev, and beside the library or where TN_IMAGES_MODULE says",
                  f, TNI_IMAGES_FILE, why);
    return images;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reading {
    tni_input in;    /* for messages; size: of the bytes */
    tn_generator *g; /* NULL: no crop */
    tn_image_crop_options crop;
    int64_t h, w;
    double box[4]; /* in pixels of t, which is only a part */
    bool part;
    tn_tensor *t;
} reading;

/* Draws a box, and chooses how small and which part of the image holds it with a pixel around. */
static void choose(tni_image_job *job, reading *r)
{
    int64_t box[4], first[2], count[2];
    tni_image_box(r->g, &r->crop, job->height, job->width, box);
    const int64_t whole[] = { job->height, job->width };
    for (int s = 2; s <= 8 && box[2] / s >= r->h && box[3] / s >= r->w; s *= 2) job->shrink = s;
    for (int i = 0; i < 2; i++) {
        const int64_t s = job->shrink, margin = s > 1;
        first[i] = TNI_MAX(box[i] / s - margin, 0);
        const int64_t end = (box[i] + box[i + 2] + s - 1) / s + margin;
        count[i] = TNI_MIN(end, (whole[i] + s - 1) / s) - first[i];
        r->box[i] = (double)box[i] / (double)s - (double)first[i];
        r->box[i + 2] = (double)box[i + 2] / (double)s;
    }
    job->top = first[0], job->left = first[1];
    job->rows = count[0], job->cols = count[1];
    r->part = true;
}

static bool begin(tni_image_job *job)
{
    reading *r = job->user;
    const tn_shape whole = TN_SHAPE(job->channels, job->height, job->width);
    const int64_t most = tni_inflated_limit(r->in.size), numel = tni_shape_numel(&whole);
    if (job->least > (double)r->in.size || numel < 0)
        return tni_false(tni_input_bad(&r->in, "%s: %" PRId64 " bytes cannot hold so many",
                                       tni_shape_text(&whole), r->in.size));
    if (numel > most)
        return tni_false(tni_input_bad(
            &r->in, "%s: at most %" PRId64 " bytes are made (inflated_bytes of tn_set_file_limits)",
            tni_shape_text(&whole), most));
    job->rows = job->height, job->cols = job->width;
    if (r->g && job->parts && job->orientation == 1 && r->crop.resize.filter != TN_IMAGE_NEAREST)
        choose(job, r);
    r->t = tn_empty_as(TN_SHAPE(job->channels, job->rows, job->cols), TN_U8, tn_cpu());
    if (r->t) job->planes = tni_data(r->t);
    return r->t;
}

/* As EXIF's orientation says: rows from the last one for 3, 4, 6, 7; columns for 2, 3, 7, 8; from 5
 * on they are swapped. */
static tn_tensor *oriented(tn_tensor *t, int orientation)
{
    const bool up = 0xd8 >> orientation & 1, left = 0x18c >> orientation & 1;
    return orientation == 1 ? t : tni_image_turned("tn_image_load", t, up, left, orientation > 4);
}

static tn_tensor *decode(reading *r, const void *bytes, tn_image_options o)
{
    tni_image_job job = {
        .bytes = bytes, .n = (size_t)r->in.size, .o = o, .begin = begin, .user = r
    };
    const tn_status status = images->decode(&job);
    if (status == TN_E_NOMEM) return tni_fail(status, "%s: out of memory", r->in.function);
    if (status == TN_E_STATE) return NULL; /* begin's error */
    const char *is = status != TN_OK && job.n >= 8 ? tni_begins_as(bytes) : NULL;
    if (is) return tni_nothing(tni_input_bad(&r->in, "%s: %s", is, job.why));
    if (status != TN_OK) return tni_nothing(tni_input_bad(&r->in, "%s", job.why));
    if (r->part) return tni_image_resized(r->t, r->box, r->h, r->w, r->crop.resize);
    tn_tensor *t = oriented(r->t, job.orientation);
    return r->g ? tn_image_random_resized_crop(t, r->h, r->w, r->crop, r->g) : t;
}

/* What of the options and the module can be known before the bytes. */
static bool ready(const char *f, tn_image_options o)
{
    if (o.mode >= TN_IMAGE_RGB && o.mode <= TN_IMAGE_STORED) return opened(f);
    return tni_false(tni_error(TN_E_INVALID, "%s: mode %d: want a tn_image_mode", f, (int)o.mode));
}

tn_tensor *tn_image_decode(const void *bytes, size_t n, tn_image_options o)
{
    reading r = { .in = { .function = __func__, .path = "the bytes", .fd = -1 } };
    r.in.size = (int64_t)TNI_MIN(n, (size_t)INT64_MAX);
    if (!bytes) return tni_nothing(tni_null(__func__, "bytes", "an image's"));
    if (!ready(__func__, o)) return NULL;
    tn_scope scope = tn_scope_begin();
    return tni_scope_return(__func__, scope, decode(&r, bytes, o));
}

static tn_tensor *from_file(const char *f, const char *path, tn_image_options o, reading *r)
{
    if (!ready(f, o) || tni_input_open(&r->in, f, path) != TN_OK) return NULL;
    TNI_SCOPED;
    TNI_ITEMS(unsigned char, bytes, r->in.size);
    const bool read = bytes && tni_input_read(&r->in, 0, bytes, (size_t)r->in.size) == TN_OK;
    tn_tensor *t = read ? decode(r, bytes, o) : NULL;
    tni_input_close(&r->in);
    return tni_scope_return(f, scope, t);
}

tn_tensor *tn_image_load(const char *path, tn_image_options o)
{
    return from_file("tn_image_load", path, o, &(reading){ 0 });
}

tn_tensor *tn_image_load_crop(const char *path, int64_t h, int64_t w, tn_image_crop_options crop,
                              tn_image_options o, tn_generator *g)
{
    TNI_HOLD_TRAPS;
    tni_generator_state was;
    if (!tni_image_draws(__func__, g, &was) || !tni_image_crop_ok(__func__, &crop, h, w))
        return NULL;
    reading r = { .g = g, .crop = crop, .h = h, .w = w };
    return tni_image_drawn(g, &was, from_file(__func__, path, o, &r));
}

/* ---- writing --------------------------------------------------------------------------------- */

static tn_status write(const char *f, tn_tensor *t, const char *path)
{
    const int64_t *size = t->shape.size;
    const int c = (int)size[0];
    const uint32_t h = (uint32_t)size[1], w = (uint32_t)size[2];
    char text[256];
    const tn_tensor *pixels = tn_contiguous(tn_permute(t, TN_AXES(1, 2, 0)));
    size_t n = images->encode_png(NULL, c, h, w, NULL, text, sizeof text);
    tn_tensor *room = tn_empty_as(TN_SHAPE((int64_t)n), TN_U8, tn_cpu());
    if (!pixels || !room) return tni_pending();
    n = images->encode_png(tni_data(pixels), c, h, w, tni_data(room), text, sizeof text);
    const tn_status why = strstr(text, "emory") ? TN_E_NOMEM : TN_E_BACKEND;
    if (n == 0) return tni_file_error(why, f, path, "%s", text);
    return tni_file_replace(f, path, tni_data(room), n);
}

tn_status tn_image_save_png(tn_tensor *t, const char *path)
{
    if (!tni_image_ok(__func__, t, false)) return tni_pending();
    const int64_t *size = t->shape.size, most = INT32_MAX / 8;
    if (t->dtype != TN_U8 || t->shape.rank != 3 || size[0] < 1 || size[0] > 4 || size[1] < 1 ||
        size[2] < 1 || size[1] > most || size[2] > most || size[0] * size[1] > most * 4 / size[2])
        return tni_error(TN_E_SHAPE, "%s: %s of %s: want [1 to 4, H, W] of u8, below 2^30 in all",
                         __func__, tni_text(t), tn_dtype_name(t->dtype));
    TNI_TRY(tni_path_check(__func__, path));
    if (!opened(__func__)) return tni_pending();
    TN_SCOPE TNI_TRY(write(__func__, t, path));
    return TN_OK;
}
