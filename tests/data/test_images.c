/*
 * test_images.c - PNG and JPEG files, and the transforms of images.
 *
 * Truth: golden/images and golden/images.safetensors, made with torchvision (make_images.py). What
 * is drawn must leave the generator as there, and what it makes be equal to 1 of 255; most of it is
 * equal bit for bit.
 *
 * Seen to fail: in src/ext/images/codec.c, a channel of another's bits, warnings of damage passed
 * over, EXIF of either order of bytes, sizes that the file cannot hold; in resize.c, sums cut in
 * place of rounded; in folder.c, folders compared with names; in places.c, a side of the part
 * rounded down; in colors.c, grey not cut.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "scarce.h"

/* make_images.py's */
static tn_tensor *picture(int c, int h, int w)
{
    unsigned char p[3 * 40 * 40];
    for (int k = 0, i = 0; k < c; k++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                p[i++] = (unsigned char)(3 * x * x + 5 * x * y + y * y + 71 * k);
    return tn_from_data(p, TN_SHAPE(c, h, w), TN_U8);
}

static tn_tensor *floats(tn_tensor *x)
{
    return tn_image_normalize(x, &(double){ 0 }, &(double){ 1 }, 1);
}

/* y is the golden tensor, but for `off` of 255 in at most `share` of its elements. */
static void is(tn_tensor *y, double off, double share, const char *format, ...)
{
    char name[64];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    ck_assert_msg(y != NULL, "%s: %s", name, tn_error());
    tn_tensor *want = tn_list_get(tn_load_tensors(golden_path("images.safetensors"), NULL), name);
    assert_made(want);
    ck_assert_int_eq(tn_dtype_of(y), tn_dtype_of(want));
    const bool real = tn_dtype_of(want) == TN_F32;
    const char *differs = difference(y, want, 0, real ? off / 255 + 1e-6 : off);
    ck_assert_msg(!differs, "%s: %s", name, differs);
    if (real) return;
    const double n = tn_item(tn_sum(tn_to_dtype(tn_ne(y, want), TN_F64), NULL, 0, false));
    ck_assert_msg(n <= share * (double)tn_numel(want), "%s: %g differ", name, n);
}

/* A transform with the seeds 0, 1, ..., n - 1 is as NAME says, and so is the next number. */
static void seeds_are(const char *name, int n, double share, tn_tensor *x,
                      tn_tensor *(*call)(tn_tensor *x, tn_generator *g))
{
    tn_tensor *made[8], *next[8];
    for (int i = 0; i < n; i++) {
        tn_generator *g = owned(tn_generator_new((uint64_t)i));
        made[i] = call(x, g);
        ck_assert_msg(made[i] != NULL, "%s: %s", name, tn_error());
        const int64_t number = tn_generator_u32(g) % (1 << 20);
        next[i] = tn_from_data(&number, TN_SHAPE(1), TN_I64);
    }
    is(tn_stack(made, n, 0), 1, share, "%s", name);
    is(tn_cat(next, n, 0), 0, 0, "%s.next", name);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const char *const pngs[] = { "rgb",        "rgb16",   "grey16", "grey",
                                    "grey_alpha", "grey1",   "grey2",  "grey4",
                                    "interlaced", "palette", "rgba",   "palette4" };
static const char *const jpegs[] = { "444", "420", "progressive", "grey", "cmyk" };

static const char *image_path(const char *name, const char *kind)
{
    static char file[64];
    snprintf(file, sizeof file, "images/%s.%s", name, kind);
    return golden_path(file);
}

/* The bytes of a golden file. */
static unsigned char *bytes_of(const char *name, const char *kind, size_t *n)
{
    return owned((unsigned char *)read_bytes(image_path(name, kind), n));
}

START_TEST(decoded_as_torchvision_does)
{
    static const char *const mode[] = { "RGB", "GRAY", "UNCHANGED" };
    for (int m = 0; m < 3; m++) {
        const tn_image_options o = { .mode = (tn_image_mode)m };
        for (int i = 0; i < COUNT(pngs); i++)
            if (m != TN_IMAGE_STORED || i != COUNT(pngs) - 1)
                is(tn_image_load(image_path(pngs[i], "png"), o), 0, 0, "%s.png.%s", pngs[i],
                   mode[m]);
        for (int i = 0; i < COUNT(jpegs); i++)
            is(tn_image_load(image_path(jpegs[i], "jpg"), o), 1, 0.02, "%s.jpg.%s", jpegs[i],
               mode[m]);
    }
    /* the same indices in half a byte each */
    const tn_image_options stored = { .mode = TN_IMAGE_STORED };
    is(tn_image_load(image_path("palette4", "png"), stored), 0, 0, "palette.png.UNCHANGED");
    size_t n, at = 0;
    unsigned char *b = bytes_of("turned", "jpg", &n);
    while (memcmp(b + at, "\1\x12\0\3\0\0\0\1\0", 9) != 0) at++;
    for (unsigned char turn = 1; turn < 9; turn++) {
        b[at + 9] = turn;
        is(tn_image_decode(b, n, (tn_image_options){ .orient = true }), 0, 0, "turned%d", turn);
    }
    is(tn_image_load(image_path("turned", "png"), (tn_image_options){ .orient = true }), 0, 0,
       "turned.png.RGB");
    tn_tensor *as_stored = tn_image_load(image_path("turned", "png"), (tn_image_options){ 0 });
    ck_assert_double_eq(tn_max_abs_diff(as_stored, tn_image_load(image_path("rgb", "png"),
                                                                 (tn_image_options){ 0 })),
                        0);
}
END_TEST

START_TEST(png_saved_and_read_again)
{
    for (int c = 1; c <= 4; c++) {
        tn_tensor *x = tn_from_data(owned(calloc(4, 35)), TN_SHAPE(4, 5, 7), TN_U8);
        for (int64_t i = 0; i < 140; i++)
            ((unsigned char *)tn_data_mut(x))[i] = (unsigned char)(i * 37);
        tn_tensor *t = tn_transpose(tn_narrow(x, 0, 0, c), 1, 2); /* of any strides */
        assert_ok(tn_image_save_png(t, in_folder("t.png")));
        tn_tensor *back =
            tn_image_load(in_folder("t.png"), (tn_image_options){ .mode = TN_IMAGE_STORED });
        assert_made(back);
        ck_assert_double_eq(tn_max_abs_diff(back, t), 0);
    }
    ck_assert_int_eq(files_in_folder(), 1);
    assert_fails(tn_image_save_png(picture(3, 4, 4), in_folder("none/t.png")), TN_E_IO,
                 "none/t.png");
    assert_fails(tn_image_save_png(floats(picture(3, 4, 4)), in_folder("t.png")), TN_E_SHAPE,
                 "of f32: want [1 to 4, H, W] of u8");
    assert_fails(
        tn_image_save_png(tn_empty_as(TN_SHAPE(5, 2, 2), TN_U8, tn_cpu()), in_folder("t.png")),
        TN_E_SHAPE, "[5,2,2] of u8: want [1 to 4, H, W] of u8");
    assert_fails(tn_image_save_png(NULL, in_folder("t.png")), TN_E_INVALID, "x is NULL");
}
END_TEST

START_TEST(files_refused)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } rows[] = {
        { "", 0, "begins with nothing: want PNG or JPEG" },
        { "GIF89a", 6, "begins with 47 49 46 38: want PNG or JPEG" },
        { "<!DOCTYPE html>", 15,
          "a page of HTML or XML, as a failed download leaves: begins with 3c 21 44 4f: want" },
        { "\xff\xd8\xff", 3, "Premature end of JPEG file" },
        { "\x89PNG\r\n\x1a\n", 8, "the file is cut off" },
        { "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\x7f\xff\xff\xff\x7f\xff\xff\xff\x08\2\0\0\0\x03\x95\xb9"
          "\x6f",
          33, "" },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        assert_null(tn_image_decode(rows[i].bytes, rows[i].n, (tn_image_options){ 0 }), TN_E_FORMAT,
                    rows[i].text);
        assert_null(
            tn_image_load(write_bytes("f", rows[i].bytes, rows[i].n), (tn_image_options){ 0 }),
            TN_E_FORMAT, "/f: ");
    }
    assert_null(tn_image_decode(NULL, 0, (tn_image_options){ 0 }), TN_E_INVALID, "bytes is NULL");
    assert_null(tn_image_decode("", 0, (tn_image_options){ .mode = 3 }), TN_E_INVALID, "mode 3");
    assert_null(tn_image_load(in_folder("none.png"), (tn_image_options){ 0 }), TN_E_IO, "none.png");
    assert_null(tn_image_load(NULL, (tn_image_options){ 0 }), TN_E_INVALID, "path");
    size_t n;
    unsigned char *b = bytes_of("rgb", "png", &n);
    b[n - 30] ^= 1; /* of the pixels */
    assert_null(tn_image_decode(b, n, (tn_image_options){ 0 }), TN_E_FORMAT, "the bytes: IDAT");
    /* a size that so few bytes cannot hold, and one above the limits */
    b = bytes_of("420", "jpg", &n);
    for (size_t i = 0; i + 9 < n; i++)
        if (b[i] == 0xff && b[i + 1] == 0xc0) memset(b + i + 5, 0x7f, 4);
    assert_null(tn_image_decode(b, n, (tn_image_options){ 0 }), TN_E_FORMAT,
                "[3,32639,32639]: 686 bytes cannot hold so many");
    assert_ok(tn_set_file_limits((tn_file_limits){ .inflated_bytes = 100 }));
    assert_null(tn_image_load(image_path("rgb", "png"), (tn_image_options){ 0 }), TN_E_FORMAT,
                "[3,6,9]: at most 100 bytes are made (inflated_bytes of tn_set_file_limits)");
    assert_ok(tn_set_file_limits((tn_file_limits){ 0 }));
}
END_TEST

START_TEST(a_jpeg_that_is_cut_off_is_taken_on_request)
{
    size_t n;
    const unsigned char *b = bytes_of("444", "jpg", &n);
    for (size_t k = n - 200; k < n; k += 9) {
        assert_null(tn_image_decode(b, k, (tn_image_options){ 0 }), TN_E_FORMAT, "the bytes: ");
        tn_tensor *t = tn_image_decode(b, k, (tn_image_options){ .damaged = true });
        assert_made(t);
        ck_assert_int_eq(tn_size(t, 2), 18);
    }
}
END_TEST

/* ---- parts of a JPEG ------------------------------------------------------------------------- */

START_TEST(a_crop_decodes_what_it_needs)
{
    const char *const names[] = { "444", "420", "progressive", "grey", "cmyk" };
    for (int i = 0; i < COUNT(names); i++) {
        const char *path = image_path(names[i], "jpg");
        for (uint64_t seed = 0; seed < 12; seed++) {
            tn_generator *g = owned(tn_generator_new(seed)), *h = owned(tn_generator_new(seed));
            const tn_image_crop_options crop = { .scale = { 0.2, 1 } };
            tn_tensor *part = tn_image_load_crop(path, 3, 3, crop, (tn_image_options){ 0 }, g);
            assert_made(part);
            tn_tensor *whole = tn_image_load(path, (tn_image_options){ 0 });
            tn_tensor *want = tn_image_random_resized_crop(whole, 3, 3, crop, h);
            const char *differs = difference(part, want, 0, 40);
            ck_assert_msg(!differs, "%s, seed %d: %s", names[i], (int)seed, differs);
            ck_assert_int_eq(tn_generator_u32(g), tn_generator_u32(h));
        }
    }
    /* a PNG: the whole of it, so the same */
    tn_generator *g = owned(tn_generator_new(1)), *h = owned(tn_generator_new(1));
    tn_tensor *part = tn_image_load_crop(image_path("rgb", "png"), 3, 3,
                                         (tn_image_crop_options){ 0 }, (tn_image_options){ 0 }, g);
    tn_tensor *whole = tn_image_load(image_path("rgb", "png"), (tn_image_options){ 0 });
    ck_assert_double_eq(tn_max_abs_diff(part, tn_image_random_resized_crop(
                                                  whole, 3, 3, (tn_image_crop_options){ 0 }, h)),
                        0);
    assert_null(
        tn_image_load_crop("none", 0, 3, (tn_image_crop_options){ 0 }, (tn_image_options){ 0 }, g),
        TN_E_SHAPE, "0 x 3");
    assert_null(tn_image_load_crop(image_path("420", "jpg"), 3, INT64_MAX,
                                   (tn_image_crop_options){ 0 }, (tn_image_options){ 0 }, g),
                TN_E_SHAPE, "9223372036854775807");
    assert_null(tn_image_load_crop(image_path("420", "jpg"), 3, 3,
                                   (tn_image_crop_options){ .resize.filter = TN_IMAGE_NEAREST + 1 },
                                   (tn_image_options){ 0 }, g),
                TN_E_INVALID, "tn_image_load_crop: filter 3");
}
END_TEST

/* Each scan of a progressive image goes over all of it. */
START_TEST(a_jpeg_of_endless_scans_is_refused)
{
    size_t n, at = 0;
    const unsigned char *b = bytes_of("progressive", "jpg", &n);
    for (size_t i = 0; i + 1 < n; i++)
        if (b[i] == 0xff && b[i + 1] == 0xda) at = i;
    const size_t scan = n - 2 - at;
    unsigned char *many = owned((unsigned char *)malloc(n + 100 * scan));
    memcpy(many, b, at);
    for (size_t k = 0; k < 101; k++) memcpy(many + at + k * scan, b + at, scan);
    memcpy(many + at + 101 * scan, b + n - 2, 2);
    assert_null(tn_image_decode(many, n + 100 * scan, (tn_image_options){ .damaged = true }),
                TN_E_FORMAT, "more than 100 scans");
}
END_TEST

/* ---- places ---------------------------------------------------------------------------------- */

START_TEST(resized_as_torchvision_does)
{
    static const char *const filter[] = { "linear", "cubic", "nearest" };
    static const int sizes[][2] = { { 5, 6 }, { 15, 20 }, { 13, 6 }, { 4, 17 }, { 2, 3 } };
    tn_tensor *x = picture(3, 13, 17);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < COUNT(sizes); i++)
            for (int antialias = k == TN_IMAGE_NEAREST; antialias < 2; antialias++) {
                const tn_image_resize_options o = { (tn_image_filter)k, !antialias };
                is(tn_image_resize(x, sizes[i][0], sizes[i][1], o), 0, 0, "resize.%s.%d.%dx%d",
                   filter[k], antialias, sizes[i][0], sizes[i][1]);
                /* part of a batch of views */
                tn_tensor *wide = tn_pad(x, TN_PADS(2, 0, 1, 3), TN_PAD_CONSTANT, 9);
                tn_tensor *batch = tn_stack((tn_tensor *[]){ x, x }, 2, 0);
                ck_assert_double_eq(
                    tn_max_abs_diff(
                        tn_image_resize(tn_narrow(tn_narrow(wide, 1, 1, 13), 2, 2, 17), sizes[i][0],
                                        sizes[i][1], o),
                        tn_select(tn_image_resize(batch, sizes[i][0], sizes[i][1], o), 0, 1)),
                    0);
            }
    is(tn_image_resize(x, 6, 0, (tn_image_resize_options){ 0 }), 0, 0, "resize.short");
    is(tn_image_resize(tn_transpose(x, 1, 2), 6, 0, (tn_image_resize_options){ 0 }), 0, 0,
       "resize.short.tall");
    is(tn_image_resize(floats(x), 5, 6, (tn_image_resize_options){ 0 }), 0, 0, "resize.f32");
}
END_TEST

START_TEST(moved_as_torchvision_does)
{
    tn_tensor *x = picture(1, 13, 17);
    static const int sizes[][2] = { { 6, 8 }, { 7, 10 }, { 15, 20 }, { 15, 5 } };
    for (int i = 0; i < COUNT(sizes); i++)
        is(tn_image_center_crop(x, sizes[i][0], sizes[i][1]), 0, 0, "center.%dx%d", sizes[i][0],
           sizes[i][1]);
    tn_tensor *wide = tn_to_dtype(x, TN_F32); /* what is not constant is of floats */
    is(tn_pad(x, TN_PADS(1, 3, 2, 4), TN_PAD_CONSTANT, 7), 0, 0, "pad.constant");
    is(tn_to_dtype(tn_pad(wide, TN_PADS(1, 3, 2, 4), TN_PAD_REFLECT, 0), TN_U8), 0, 0,
       "pad.reflect");
    is(tn_to_dtype(tn_pad(wide, TN_PADS(1, 3, 2, 4), TN_PAD_REPLICATE, 0), TN_U8), 0, 0,
       "pad.edge");
    static const double angles[] = { -33, 90, 180, 200.5 };
    for (int linear = 0; linear < 2; linear++)
        for (int i = 0; i < COUNT(angles); i++)
            for (int expand = 0; expand < 2; expand++)
                is(tn_image_rotate(x, angles[i], (tn_image_rotate_options){ linear, expand, 9 }), 1,
                   0.02, "rotate.%s.%g.%d", linear ? "linear" : "nearest", angles[i], expand);
    ck_assert_double_eq(tn_max_abs_diff(tn_image_rotate(x, 720, (tn_image_rotate_options){ 0 }), x),
                        0);
    /* f32 is turned as u8 is */
    ck_assert_double_eq(
        tn_max_abs_diff(floats(tn_image_rotate(x, 20, (tn_image_rotate_options){ 0 })),
                        tn_image_rotate(floats(x), 20, (tn_image_rotate_options){ 0 })),
        0);
}
END_TEST

static tn_tensor *random_crop(tn_tensor *x, tn_generator *g)
{
    return tn_image_random_crop(x, 5, 17, g);
}

static tn_tensor *resized_crop(tn_tensor *x, tn_generator *g)
{
    return tn_image_random_resized_crop(x, 5, 6, (tn_image_crop_options){ 0 }, g);
}

static tn_tensor *middle_crop(tn_tensor *x, tn_generator *g)
{
    return tn_image_random_resized_crop(
        x, 5, 6, (tn_image_crop_options){ .scale = { 0.9, 1 }, .ratio = { 5, 6 } }, g);
}

static tn_tensor *flip_columns(tn_tensor *x, tn_generator *g)
{
    return tn_image_random_flip(x, -1, 0.5, g);
}

static tn_tensor *flip_rows(tn_tensor *x, tn_generator *g)
{
    return tn_image_random_flip(x, -2, 0.3, g);
}

static tn_tensor *turn(tn_tensor *x, tn_generator *g)
{
    return tn_image_random_rotate(x, -40, 60, (tn_image_rotate_options){ .linear = true }, g);
}

static tn_tensor *erase(tn_tensor *x, tn_generator *g)
{
    return tn_image_random_erase(x, 0.5, (tn_image_erase_options){ .value = 3 }, g);
}

static tn_tensor *jitter(tn_tensor *x, tn_generator *g)
{
    return tn_image_color_jitter(x, (tn_image_jitter_options){ 0.4, 0.5, 0.6, 0.2 }, g);
}

static tn_tensor *some_jitter(tn_tensor *x, tn_generator *g)
{
    return tn_image_color_jitter(x, (tn_image_jitter_options){ .contrast = 0.5, .hue = 0.1 }, g);
}

START_TEST(drawn_as_torchvision_does)
{
    tn_tensor *x = picture(3, 13, 17), *grey = picture(1, 13, 17);
    seeds_are("rrc", 8, 0, x, resized_crop);
    seeds_are("rrc.middle", 2, 0, grey, middle_crop);
    seeds_are("crop", 4, 0, grey, random_crop);
    seeds_are("flip.-1", 4, 0, picture(3, 5, 9), flip_columns);
    seeds_are("flip.-2", 8, 0, grey, flip_rows);
    seeds_are("rotate.random", 4, 0.02, grey, turn);
    seeds_are("erase", 6, 0, grey, erase);
    seeds_are("jitter", 6, 0.01, picture(3, 8, 8), jitter);
    seeds_are("jitter.some", 4, 0.01, picture(3, 6, 6), some_jitter);
    seeds_are("jitter.f32", 2, 0, floats(picture(3, 6, 6)), jitter);
}
END_TEST

/* ---- values ---------------------------------------------------------------------------------- */

START_TEST(values_as_torchvision_changes_them)
{
    static const double factors[4][2] = { { 0.4, 1.7 }, { 0.4, 1.7 }, { 0, 2.5 }, { -0.3, 0.45 } };
    tn_tensor *x = picture(3, 13, 17);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 2; i++)
            is(tn_image_adjust(x, (tn_image_property)k, factors[k][i]), 1, 0.005, "adjust.%d.%g", k,
               factors[k][i]);
    is(tn_image_adjust(picture(1, 13, 17), TN_IMAGE_CONTRAST, 1.7), 1, 0.005, "adjust.grey");
    static const double mean[] = { 0.485, 0.456, 0.406 }, std[] = { 0.229, 0.224, 0.225 };
    tn_tensor *five = picture(3, 5, 17);
    is(tn_image_normalize(five, mean, std, 3), 0, 0, "normalize");
    is(tn_image_normalize(floats(five), mean, std, 3), 0, 0, "normalize");
    /* each image of a batch has its own mean of grey */
    tn_tensor *batch =
        tn_stack((tn_tensor *[]){ x, tn_image_adjust(x, TN_IMAGE_BRIGHTNESS, 0.3) }, 2, 0);
    ck_assert_double_eq(
        tn_max_abs_diff(tn_select(tn_image_adjust(batch, TN_IMAGE_CONTRAST, 1.7), 0, 0),
                        tn_image_adjust(x, TN_IMAGE_CONTRAST, 1.7)),
        0);
}
END_TEST

START_TEST(transforms_refused)
{
    tn_tensor *x = picture(3, 4, 5), *real = floats(x);
    tn_generator *g = owned(tn_generator_new(0));
    const tn_image_resize_options plain = { 0 };
    const tn_image_crop_options crop = { 0 };
    const tn_image_erase_options hole = { 0 };
    assert_null(tn_image_resize(NULL, 1, 1, plain), TN_E_INVALID, "tn_image_resize: x is NULL");
    assert_null(tn_image_resize(tn_ones(TN_SHAPE(3, 3)), 1, 1, plain), TN_E_SHAPE,
                "want [C, H, W]");
    assert_null(tn_image_resize(tn_to_dtype(x, TN_F64), 1, 1, plain), TN_E_DTYPE,
                "f64: want u8 or f32");
    assert_null(tn_image_resize(x, 0, 1, plain), TN_E_SHAPE, "[3,4,5] to 0 x 1");
    assert_null(tn_image_resize(tn_narrow(x, 1, 0, 0), 2, 2, plain), TN_E_SHAPE,
                "[3,0,5] to 2 x 2");
    assert_null(tn_image_resize(x, INT64_MAX, 2, plain), TN_E_SHAPE, "9223372036854775807");
    assert_null(tn_image_resize(x, 2, 2, (tn_image_resize_options){ .filter = 3 }), TN_E_INVALID,
                "filter 3");
    assert_null(tn_image_center_crop(x, 0, 2), TN_E_SHAPE, "0 x 2");
    assert_null(tn_image_random_crop(x, 5, 5, g), TN_E_SHAPE, "5 x 5 of x [3,4,5]");
    assert_null(tn_image_random_crop(x, 2, 2, NULL), TN_E_INVALID, "g is NULL");
    assert_null(
        tn_image_random_resized_crop(x, 2, 2, (tn_image_crop_options){ .scale = { -1, 1 } }, g),
        TN_E_INVALID, "scale from -1 to 1");
    assert_null(
        tn_image_random_resized_crop(x, 2, 2, (tn_image_crop_options){ .ratio = { 1, NAN } }, g),
        TN_E_INVALID, "ratio from 1 to nan");
    assert_null(tn_image_random_resized_crop(tn_narrow(x, 0, 0, 0), 2, 2, crop, g), TN_E_SHAPE,
                "empty");
    assert_null(tn_image_random_flip(x, 0, 0.5, g), TN_E_INDEX, "axis 0");
    assert_null(tn_image_random_flip(x, -1, NAN, g), TN_E_INVALID, "p nan");
    assert_null(tn_image_rotate(x, NAN, (tn_image_rotate_options){ 0 }), TN_E_INVALID,
                "nan degrees");
    assert_null(tn_image_rotate(x, 5, (tn_image_rotate_options){ .fill = 256 }), TN_E_INVALID,
                "fill 256");
    assert_null(tn_image_random_rotate(x, 5, 4, (tn_image_rotate_options){ 0 }, g), TN_E_INVALID,
                "from 5 to 4");
    assert_null(tn_image_random_erase(x, 2, hole, g), TN_E_INVALID, "p 2");
    assert_null(tn_image_random_erase(x, 1, (tn_image_erase_options){ .value = -1 }, g),
                TN_E_INVALID, "value -1");
    assert_null(tn_image_adjust(tn_narrow(x, 0, 0, 2), TN_IMAGE_HUE, 0), TN_E_SHAPE,
                "1 or 3 channels");
    assert_null(tn_image_adjust(x, TN_IMAGE_HUE, 0.6), TN_E_INVALID, "factor 0.6");
    assert_null(tn_image_adjust(x, TN_IMAGE_CONTRAST, -0.1), TN_E_INVALID, "factor -0.1");
    assert_null(tn_image_adjust(x, TN_IMAGE_BRIGHTNESS, 1e300), TN_E_INVALID, "factor 1e+300");
    assert_null(tn_image_color_jitter(x, (tn_image_jitter_options){ .hue = 0.6 }, g), TN_E_INVALID,
                "0.6");
    assert_null(tn_image_normalize(x, (double[]){ 0, 0 }, (double[]){ 1, 1 }, 2), TN_E_SHAPE,
                "2 numbers");
    assert_null(tn_image_normalize(x, (double[]){ 0 }, (double[]){ 0 }, 1), TN_E_INVALID, "std 0");
    assert_null(tn_image_normalize(x, NULL, (double[]){ 0 }, 1), TN_E_INVALID, "mean is NULL");
    assert_null(tn_image_random_resized_crop(
                    x, 2, 2, (tn_image_crop_options){ .resize.filter = TN_IMAGE_NEAREST + 1 }, g),
                TN_E_INVALID, "filter 3");
    /* a gradient would be lost; a resize of f32 records it */
    tn_set_requires_grad(real, true);
    assert_null(tn_image_adjust(real, TN_IMAGE_CONTRAST, 1), TN_E_STATE, "tn_detach(x)");
    ck_assert(tn_requires_grad(tn_image_resize(real, 2, 2, plain)));
}
END_TEST

/* ---- folders --------------------------------------------------------------------------------- */

static void plant(const char *const *names)
{
    for (; *names; names++) {
        const char *name = *names;
        if (name[strlen(name) - 1] == '/')
            ck_assert_int_eq(mkdir(in_folder(name), 0777), 0);
        else
            write_bytes(name, "", 0);
    }
}

/* Without the scope that the other cases have. */
START_TEST(no_scope_is_an_error_of_the_function)
{
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_keep(picture(3, 8, 8));
    tn_scope_end(s);
    tn_error_clear();
    assert_null(floats(x), TN_E_STATE, "tn_image_normalize: no scope");
    assert_null(tn_image_adjust(x, TN_IMAGE_CONTRAST, 2), TN_E_STATE, "tn_image_adjust: no scope");
    assert_null(tn_image_rotate(x, 45, (tn_image_rotate_options){ 0 }), TN_E_STATE,
                "tn_image_rotate: no scope");
    assert_null(tn_image_resize(x, 4, 4, (tn_image_resize_options){ 0 }), TN_E_STATE,
                "tn_image_resize: no scope");
    assert_null(tn_image_center_crop(x, 4, 4), TN_E_STATE, "tn_image_center_crop: no scope");
    tn_drop(x);
    ck_assert_int_eq(tn_live_tensors(), 0);
}
END_TEST

/* What torchvision's ImageFolder (0.29) finds, and in that order; it also takes .hidden. */
START_TEST(a_folder_of_classes_is_listed_as_torchvision_does)
{
    static const char *const names[] = { "cat/",          "cat/x/",        "cat/x-y/",
                                         "cat-2/",        "Dog/",          "Dog/deep/",
                                         ".hidden/",      ".hidden/h.png", "readme.png",
                                         "cat/zz.txt",    "cat/.s.png",    "cat/b.png",
                                         "cat/a.JPG",     "cat/x/2.jpeg",  "cat/x-y/1.png",
                                         "cat/x/10.jpeg", "cat-2/0.jpg",   "Dog/deep/q.png",
                                         "Dog/z.jpg",     "Dog/d.png/",    NULL };
    static const char *const want[] = { "Dog/z.jpg",    "Dog/deep/q.png", "Dog/link/0.jpg",
                                        "cat/a.JPG",    "cat/b.png",      "cat/x/10.jpeg",
                                        "cat/x/2.jpeg", "cat/x-y/1.png",  "cat-2/0.jpg" };
    static const int label[] = { 0, 0, 0, 1, 1, 1, 1, 1, 2 };
    plant(names);
    ck_assert_int_eq(symlink("../cat-2", in_folder("Dog/link")), 0);
    ck_assert_int_eq(symlink("nowhere", in_folder("gone")), 0); /* as other files: passed over */
    ck_assert_int_eq(symlink("nowhere", in_folder("cat/gone")), 0);
    for (int slash = 0; slash < 2; slash++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%s", folder, slash ? "//" : "");
        tn_image_folder *f = tn_image_folder_open(path);
        assert_made(f);
        ck_assert_int_eq(f->n_classes, 3);
        ck_assert_str_eq(f->class_name[0], "Dog");
        ck_assert_str_eq(f->class_name[1], "cat");
        ck_assert_str_eq(f->class_name[2], "cat-2");
        ck_assert_int_eq(f->n, COUNT(want));
        for (int i = 0; i < COUNT(want); i++) {
            ck_assert_str_eq(f->image[i].path, in_folder(want[i]));
            ck_assert_int_eq(f->image[i].label, label[i]);
        }
        tn_image_folder_free(f);
    }
    tn_image_folder_free(NULL);
}
END_TEST

START_TEST(folders_refused)
{
    char path[5000];
    assert_null(tn_image_folder_open(in_folder("none")), TN_E_IO, "/none: No such file");
    assert_null(tn_image_folder_open(NULL), TN_E_INVALID, "path is NULL");
    assert_null(tn_image_folder_open(folder), TN_E_FORMAT,
                "no folders in it: want one for each class");
    plant((const char *const[]){ "a/", "b/", "a/1.png", "b/notes.txt", NULL });
    assert_null(tn_image_folder_open(in_folder("a/1.png")), TN_E_IO, "Not a directory");
    assert_null(tn_image_folder_open(folder), TN_E_FORMAT, "/b: no .png, .jpg or .jpeg in it");
    write_bytes("b/1.png", "", 0);
    ck_assert_int_eq(symlink(".", in_folder("b/loop")), 0);
    assert_null(tn_image_folder_open(folder), TN_E_IO, "Too many levels of symbolic links");
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = 0;
    assert_null(tn_image_folder_open(path), TN_E_IO, "File name too long");
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static tn_status everything(void *user)
{
    tn_generator *g = user;
    tn_generator_seed(g, 3);
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_image_load(image_path("420", "jpg"), (tn_image_options){ 0 });
    tn_tensor *y = tn_image_load_crop(image_path("420", "jpg"), 4, 4, (tn_image_crop_options){ 0 },
                                      (tn_image_options){ 0 }, g);
    y = tn_image_random_erase(tn_image_random_flip(jitter(y, g), -1, 1, g), 1,
                              (tn_image_erase_options){ .scale = { 0.1, 0.2 } }, g);
    y = tn_image_rotate(tn_image_center_crop(resized_crop(x, g), 9, 9), 30,
                        (tn_image_rotate_options){ .expand = y != NULL });
    y = tn_image_normalize(
        tn_image_resize(y, 3, 3, (tn_image_resize_options){ TN_IMAGE_NEAREST, 0 }), (double[]){ 0 },
        (double[]){ 1 }, 1);
    const char *path = "/dev/null/t.png"; /* what it takes to write is in test_malloc.c */
    tn_status status = y ? tn_image_save_png(x, path) : tn_error_status();
    if (status == TN_E_IO) status = TN_OK, tn_error_clear();
    tn_scope_end(s);
    return status;
}

static tn_status list_folder(void *user)
{
    tn_memory_trim(); /* no request is answered by the cache */
    tn_image_folder *f = tn_image_folder_open(user);
    tn_image_folder_free(f);
    return f ? TN_OK : tn_error_status();
}

START_TEST(memory_may_run_out_while_a_folder_is_listed)
{
    plant((const char *const[]){ "a/", "b/", "a/1.png", "b/2.png", "b/3.png", NULL });
    scarce_install();
    ck_assert_int_gt(scarce_sweep_warm(list_folder, NULL, folder), 5);
}
END_TEST

START_TEST(memory_may_run_out_at_any_request)
{
    tn_generator *g = owned(tn_generator_new(0));
    ck_assert_int_gt(scarce_sweep_warm(everything, NULL, g), 20);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("images");
    TCase *t = file_case(suite, "files");
    add_tests(t, decoded_as_torchvision_does, png_saved_and_read_again, files_refused,
              a_jpeg_that_is_cut_off_is_taken_on_request, a_crop_decodes_what_it_needs,
              a_jpeg_of_endless_scans_is_refused);
    t = file_case(suite, "folders");
    add_tests(t, a_folder_of_classes_is_listed_as_torchvision_does, folders_refused,
              memory_may_run_out_while_a_folder_is_listed);
    t = test_case(suite, "transforms");
    add_tests(t, resized_as_torchvision_does, moved_as_torchvision_does, drawn_as_torchvision_does,
              values_as_torchvision_changes_them, transforms_refused);
    t = tcase_create("no scope");
    tcase_add_test(t, no_scope_is_an_error_of_the_function);
    suite_add_tcase(suite, t);
    t = scarce_case(suite, "memory");
    tcase_add_test(t, memory_may_run_out_at_any_request);
    return suite;
}
