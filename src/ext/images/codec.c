/*
 * codec.c - the module libtenon-images.so: PNG by libpng, JPEG by libjpeg-turbo.
 *
 * Both libraries report an error by a function that must not return. Ours keeps the message in the
 * reader and jumps back to where the library was called; all that must survive the jump is in the
 * reader, outside of the function that calls setjmp. What the libraries print goes nowhere.
 */
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "ext/images/images.h"

#define PNG_HOLDS 1032 /* bytes that deflate makes of one, at most */
#define JPEG_HOLDS 512 /* pixels: one bit for each block of 64, as flat progressive images have */
#define MOST_SCANS 100 /* of a progressive image; chosen: files have about 10 */

static uint32_t number(const unsigned char *p, int n, bool big)
{
    uint32_t value = 0;
    for (int i = 0; i < n; i++) value = value << 8 | p[big ? i : n - 1 - i];
    return value;
}

/* The orientation in EXIF's data, a TIFF file: in its first directory tag 0x0112, a short. */
static int orientation_of(const unsigned char *p, size_t n)
{
    if (n < 14 || (memcmp(p, "II*", 4) != 0 && memcmp(p, "MM\0*", 4) != 0)) return 1;
    const bool big = *p == 'M';
    const size_t at = number(p + 4, 4, big);
    if (at > n - 2) return 1;
    for (size_t i = 0; i < number(p + at, 2, big) && at + 14 + 12 * i <= n; i++) {
        const unsigned char *entry = p + at + 2 + 12 * i;
        const uint32_t value = number(entry + 8, 2, big);
        if (number(entry, 2, big) == 0x0112)
            return number(entry + 2, 2, big) == 3 && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

/* The job's row y from pixels of `wide` bytes, of which the first channels count. Pixels of 4 bytes
 * are read as words, of which compilers make vectors. */
static void spread(const tni_image_job *job, int64_t y, const unsigned char *pixels, int wide)
{
    const int64_t n = job->cols;
    for (int k = 0; k < job->channels; k++) {
        unsigned char *restrict to = job->planes + (k * job->rows + y) * n;
        const unsigned char *restrict from = pixels;
        if (wide == 4)
            for (int64_t x = 0; x < n; x++) {
                uint32_t pixel;
                memcpy(&pixel, from + 4 * x, 4);
                to[x] = (unsigned char)(pixel >> 8 * k);
            }
        else
            for (int64_t x = 0; x < n; x++) to[x] = from[wide * x + k];
    }
}

/* ---- PNG ------------------------------------------------------------------------------------- */

typedef struct png_job {
    png_structp png;
    png_infop info;
    tni_image_job *job;
    size_t at; /* bytes read */
    unsigned char *rows;
    tn_status status;
} png_job;

static void png_failed(png_structp png, png_const_charp text)
{
    png_job *p = png_get_error_ptr(png);
    if (p->status == TN_OK) p->status = strstr(text, "emory") ? TN_E_NOMEM : TN_E_FORMAT;
    snprintf(p->job->why, sizeof p->job->why, "%s", text);
    png_longjmp(png, 1);
}

static void png_warned(png_structp png, png_const_charp text)
{
    (void)png, (void)text;
}

static void png_take(png_structp png, png_bytep data, size_t n)
{
    png_job *p = png_get_io_ptr(png);
    if (n > p->job->n - p->at) png_error(png, "the file is cut off");
    memcpy(data, p->job->bytes + p->at, n);
    p->at += n;
}

/* Pixels become whole bytes, of the wanted channels; returns the bytes of the file's own rows. */
static size_t png_transforms(png_job *p)
{
    const int color = png_get_color_type(p->png, p->info);
    const size_t stored = png_get_rowbytes(p->png, p->info);
    const bool palette = color == PNG_COLOR_TYPE_PALETTE, colored = color & PNG_COLOR_MASK_COLOR;
    png_set_strip_16(p->png);
    if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(p->png);
    if (p->job->o.mode == TN_IMAGE_STORED) {
        if (palette) png_set_packing(p->png);
    } else {
        if (palette) png_set_palette_to_rgb(p->png);
        png_set_strip_alpha(p->png);
        if (p->job->o.mode == TN_IMAGE_RGB && !colored) png_set_gray_to_rgb(p->png);
        if (p->job->o.mode == TN_IMAGE_GREY && colored)
            png_set_rgb_to_gray(p->png, PNG_ERROR_ACTION_NONE, 0.2989, 0.587);
    }
    return stored;
}

/* Calls libpng: what it jumps over has nothing of its own. It takes memory for a chunk before it
 * reads it, so each must lie in the file; and a text may be inflated to 1,000 times the file, so
 * none is read. */
static void png_rows(png_job *p)
{
    tni_image_job *job = p->job;
    size_t n = 0;
    for (size_t at = 8; job->n - at >= 8 && memcmp(job->bytes + at + 4, "IEND", 4); at += 12 + n)
        if ((n = number(job->bytes + at, 4, true)) + 12 > job->n - at)
            png_error(p->png, "the file is cut off");
    const png_byte *texts = (const png_byte *)"iTXt\0tEXt\0zTXt";
    png_set_keep_unknown_chunks(p->png, PNG_HANDLE_CHUNK_NEVER, texts, 3);
    png_set_read_fn(p->png, p, png_take);
    png_set_user_limits(p->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* ours are job->begin's */
    png_read_info(p->png, p->info);
    job->height = png_get_image_height(p->png, p->info);
    job->width = png_get_image_width(p->png, p->info);
    job->least = (double)png_transforms(p) * (double)job->height / PNG_HOLDS;
    const int passes = png_set_interlace_handling(p->png);
    png_read_update_info(p->png, p->info);
    const size_t wide = png_get_rowbytes(p->png, p->info);
    job->channels = png_get_channels(p->png, p->info);
    png_bytep exif;
    png_uint_32 n_exif;
    if (job->o.orient && png_get_eXIf_1(p->png, p->info, &n_exif, &exif))
        job->orientation = orientation_of(exif, n_exif);
    if (!job->begin(job)) p->status = TN_E_STATE, png_error(p->png, "");
    /* rows of an interlaced image grow from pass to pass */
    p->rows = png_malloc(p->png, wide * (passes > 1 ? (size_t)job->height : 1));
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < job->height; y++) {
            unsigned char *row = p->rows + (passes > 1 ? (size_t)y * wide : 0);
            png_read_row(p->png, row, NULL);
            if (pass == passes - 1) spread(job, y, row, job->channels);
        }
    png_read_end(p->png, NULL);
}

static void png_guarded(png_job *p)
{
    if (!setjmp(png_jmpbuf(p->png))) png_rows(p);
}

static tn_status decode_png(tni_image_job *job)
{
    png_job p = { .job = job };
    p.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &p, png_failed, png_warned);
    p.info = p.png ? png_create_info_struct(p.png) : NULL;
    p.status = p.info ? TN_OK : TN_E_NOMEM;
    if (p.info) png_guarded(&p);
    png_free(p.png, p.rows);
    png_destroy_read_struct(&p.png, &p.info, NULL);
    return p.status;
}

static size_t encode_png(const unsigned char *pixels, int channels, uint32_t height, uint32_t width,
                         unsigned char *out, char *why, size_t size)
{
    static const png_uint_32 format[] = { PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB,
                                          PNG_FORMAT_RGBA };
    png_image image = { .version = PNG_IMAGE_VERSION, .format = format[channels - 1] };
    image.width = width, image.height = height;
    png_alloc_size_t n = PNG_IMAGE_PNG_SIZE_MAX(image);
    if (out && !png_image_write_to_memory(&image, out, &n, 0, pixels, 0, NULL)) n = 0;
    snprintf(why, size, "%s", image.message);
    return n;
}

/* ---- JPEG ------------------------------------------------------------------------------------ */

typedef struct jpeg_job {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr error;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    tni_image_job *job;
    tn_status status;
} jpeg_job;

static void jpeg_ends(jpeg_job *j, tn_status status, const char *why)
{
    j->status = status;
    snprintf(j->job->why, sizeof j->job->why, "%s", why);
    longjmp(j->back, 1);
}

static void jpeg_failed(j_common_ptr c)
{
    char text[JMSG_LENGTH_MAX];
    const bool full = c->err->msg_code == JERR_OUT_OF_MEMORY;
    c->err->format_message(c, text);
    jpeg_ends(c->client_data, full ? TN_E_NOMEM : TN_E_FORMAT, text);
}

/* Warnings of lost pixels; with others (bytes between markers, odd headers) the image is whole. */
static void jpeg_warned(j_common_ptr c, int level)
{
    const int code = c->err->msg_code;
    const jpeg_job *j = c->client_data;
    if (level < 0 && !j->job->o.damaged &&
        (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
         code == JWRN_ARITH_BAD_CODE || code == JWRN_MUST_RESYNC))
        jpeg_failed(c);
}

static void jpeg_printed(j_common_ptr c)
{
    (void)c;
}

static void jpeg_counts(j_common_ptr c)
{
    if (c->is_decompressor && ((j_decompress_ptr)c)->input_scan_number > MOST_SCANS)
        jpeg_ends(c->client_data, TN_E_FORMAT, "a progressive image of more than 100 scans");
}

/* C M Y K, inverted as Adobe stores them, to R G B: C K / 255, rounded; or to their grey. */
static void from_cmyk(unsigned char *row, int64_t n, bool grey)
{
    for (int64_t x = 0; x < n; x++, row += 4) {
        for (int k = 0; k < 3; k++) {
            const unsigned t = (unsigned)row[k] * row[3] + 128;
            row[k] = (unsigned char)((t + (t >> 8)) >> 8);
        }
        if (grey)
            row[0] =
                (unsigned char)((19595u * row[0] + 38470u * row[1] + 7471u * row[2] + 32768) >> 16);
    }
}

static void jpeg_header(jpeg_job *j, bool *cmyk)
{
    j_decompress_ptr c = &j->c;
    tni_image_job *job = j->job;
    jpeg_mem_src(c, job->bytes, job->n);
    if (job->o.orient) jpeg_save_markers(c, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(c, TRUE);
    *cmyk = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    const bool grey = c->jpeg_color_space == JCS_GRAYSCALE;
    if (c->jpeg_color_space == JCS_UNKNOWN)
        jpeg_ends(j, TN_E_FORMAT, "colours that are not known: want grey, YCbCr, RGB or CMYK");
    job->channels = job->o.mode == TN_IMAGE_RGB            ? 3
                    : job->o.mode == TN_IMAGE_GREY || grey ? 1
                    : *cmyk                                ? 4
                                                           : 3;
    job->height = c->image_height;
    job->width = c->image_width;
    job->least = (double)job->height * (double)job->width / JPEG_HOLDS;
    for (jpeg_saved_marker_ptr m = c->marker_list; m; m = m->next)
        if (m->data_length > 6 && memcmp(m->data, "Exif\0", 6) == 0)
            job->orientation = orientation_of(m->data + 6, m->data_length - 6);
    job->parts = true;
    c->out_color_space = *cmyk ? JCS_CMYK : job->channels == 1 ? JCS_GRAYSCALE : JCS_EXT_RGBX;
}

static void jpeg_rows(jpeg_job *j)
{
    j_decompress_ptr c = &j->c;
    tni_image_job *job = j->job;
    bool cmyk;
    jpeg_header(j, &cmyk);
    if (!job->begin(job)) jpeg_ends(j, TN_E_STATE, "");
    c->scale_num = 1;
    c->scale_denom = (unsigned)job->shrink;
    jpeg_start_decompress(c);
    JDIMENSION left = (JDIMENSION)job->left, cols = (JDIMENSION)job->cols;
    if (cols < c->output_width) jpeg_crop_scanline(c, &left, &cols);
    const int wide = c->output_components;
    JSAMPARRAY row =
        c->mem->alloc_sarray((j_common_ptr)c, JPOOL_IMAGE, c->output_width * (JDIMENSION)wide, 1);
    if (job->top > 0) jpeg_skip_scanlines(c, (JDIMENSION)job->top);
    for (int64_t y = 0; y < job->rows; y++) {
        jpeg_read_scanlines(c, row, 1);
        unsigned char *first = row[0] + wide * (job->left - (int64_t)left);
        if (cmyk && job->channels < 4) from_cmyk(first, job->cols, job->channels == 1);
        spread(job, y, first, wide);
    }
    if (c->output_scanline == c->output_height) jpeg_finish_decompress(c);
}

static void jpeg_guarded(jpeg_job *j)
{
    if (setjmp(j->back)) return;
    jpeg_create_decompress(&j->c);
    j->c.progress = &j->progress;
    jpeg_rows(j);
}

static tn_status decode_jpeg(tni_image_job *job)
{
    jpeg_job j = { .job = job, .progress = { .progress_monitor = jpeg_counts } };
    j.c.err = jpeg_std_error(&j.error);
    j.c.client_data = &j;
    j.error.error_exit = jpeg_failed;
    j.error.emit_message = jpeg_warned;
    j.error.output_message = jpeg_printed;
    jpeg_guarded(&j);
    jpeg_destroy_decompress(&j.c);
    return j.status;
}

/* ---- the module ------------------------------------------------------------------------------ */

static tn_status decode(tni_image_job *job)
{
    job->orientation = job->shrink = 1;
    if (job->n >= 8 && png_sig_cmp(job->bytes, 0, 8) == 0) return decode_png(job);
    if (job->n >= 3 && memcmp(job->bytes, "\xff\xd8\xff", 3) == 0) return decode_jpeg(job);
    int n = snprintf(job->why, sizeof job->why, "begins with");
    for (size_t i = 0; i < job->n && i < 4; i++)
        n += snprintf(job->why + n, sizeof job->why - (size_t)n, " %02x", job->bytes[i]);
    snprintf(job->why + n, sizeof job->why - (size_t)n, "%s: want PNG or JPEG",
             job->n ? "" : " nothing");
    return TN_E_FORMAT;
}

__attribute__((visibility("default"))) const tni_images *tenon_images_open(const char *id,
                                                                           char *why, size_t size)
{
    static const tni_images images = { decode, encode_png };
    if (strcmp(id, TNI_IMAGES_ID) == 0) return &images;
    snprintf(why, size, "is of another version of tenon");
    return NULL;
}
