/*
 * test_logs.c - event files of TensorBoard, read by a reader of their own: CRC32C bit by bit, and
 * fields of messages found by their numbers.
 *
 * Truth: golden/tensorboard.events, by PyTorch's SummaryWriter (make_tensorboard.py); pictures are
 * unpacked by zlib.
 *
 * Seen to fail: in src/ext/logs/tensorboard.c, a checksum that is not turned; the length of a
 * message left out; an edge of 1.1 rounded to float; a value on a negative edge in the bucket below
 * it; rows of pixels without the zero; nothing cut off after a write that failed; a child that
 * writes; the buffer of the pixels not freed.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "files.h"
#include "scarce.h"

/* ---- a reader -------------------------------------------------------------------------------- */

typedef struct bytes {
    const unsigned char *at; /* NULL: not there */
    size_t n;
} bytes;

typedef struct events {
    int n;
    bytes of[600];
} events;

static uint64_t little(const unsigned char *at, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* Castagnoli's polynomial, a bit at a time; turned by 15 bits, plus a number. */
static uint32_t masked_crc(const unsigned char *at, size_t n)
{
    uint32_t crc = 0xffffffff;
    for (size_t bit = 0; bit < 8 * n; bit++) {
        uint32_t low = (crc ^ (uint32_t)(at[bit / 8] >> bit % 8)) & 1;
        crc = crc >> 1 ^ (low ? 0x82f63b78 : 0);
    }
    crc ^= 0xffffffff;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static void read_events(const char *path, events *e)
{
    size_t n;
    const unsigned char *at = owned((unsigned char *)read_bytes(path, &n)), *end = at + n;
    for (e->n = 0; at < end; e->n++) {
        ck_assert_int_ge(end - at, 16);
        const uint64_t length = little(at, 8);
        ck_assert_uint_eq(little(at + 8, 4), masked_crc(at, 8));
        ck_assert_uint_le(length, (uint64_t)(end - at) - 16);
        ck_assert_uint_eq(little(at + 12 + length, 4), masked_crc(at + 12, length));
        ck_assert_int_lt(e->n, COUNT(e->of));
        e->of[e->n] = (bytes){ at + 12, length };
        at += 16 + length;
    }
}

static uint64_t varint(const unsigned char **at, const unsigned char *end)
{
    uint64_t value = 0;
    int shift = 0;
    do {
        ck_assert(*at < end && shift < 64);
        value |= (uint64_t)(**at & 127) << shift;
        shift += 7;
    } while (*(*at)++ & 128);
    return value;
}

/* The nth field of that number, as the bytes of its value: a varint's are 8, little-endian. */
static bytes field(bytes message, int number, int nth)
{
    static unsigned char value[64][8];
    static unsigned turn;
    const unsigned char *at = message.at, *end = at + message.n;
    while (at < end) {
        const uint64_t key = varint(&at, end);
        bytes found = { at, (key & 7) == 1 ? 8 : 4 };
        if ((key & 7) == 0) {
            const uint64_t number_of = varint(&at, end);
            found = (bytes){ value[turn = (turn + 1) % 64], 8 };
            for (int i = 0; i < 8; i++) value[turn][i] = (unsigned char)(number_of >> 8 * i);
        } else {
            ck_assert_msg((key & 7) != 3 && (key & 7) != 4 && (key & 7) < 6, "kind %d",
                          (int)key & 7);
            if ((key & 7) == 2) found.n = varint(&at, end);
            if ((key & 7) == 2) found.at = at;
            ck_assert_uint_le(found.n, (uint64_t)(end - at));
            at += found.n;
        }
        if (key >> 3 == (uint64_t)number && nth-- == 0) return found;
    }
    return (bytes){ NULL, 0 };
}

/* "5.1.4": the first field 4 of the first field 1 of the first field 5. */
static bytes get(bytes message, const char *path)
{
    for (const char *c = path; *c && message.at; c += strcspn(c, ".") + (strchr(c, '.') != NULL))
        message = field(message, atoi(c), 0);
    return message;
}

static bool is(bytes b, const char *text)
{
    return b.at && b.n == strlen(text) && memcmp(b.at, text, b.n) == 0;
}

static double real(bytes b)
{
    double d = 0;
    float f = 0;
    if (b.n == 4) memcpy(&f, b.at, 4);
    if (b.n == 8) memcpy(&d, b.at, 8);
    return b.n == 4 ? (double)f : d;
}

static int64_t whole(bytes b)
{
    return b.at ? (int64_t)little(b.at, 8) : 0;
}

#define SUMMARY "5"
#define VALUE "5.1"
#define TAG "5.1.1"

/* ---- a log in a folder of its own ------------------------------------------------------------ */

/* The path of the nth file there, by name. */
static const char *file_of(const char *name, int nth)
{
    static char path[2048];
    struct dirent **entry;
    int n = scandir(in_folder(name), &entry, NULL, alphasort), seen = 0;
    ck_assert_int_ge(n, 0);
    path[0] = 0;
    for (int i = 0; i < n; i++) {
        if (entry[i]->d_name[0] != '.' && seen++ == nth)
            snprintf(path, sizeof path, "%s/%s", in_folder(name), entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    ck_assert_msg(*path, "no file %d in %s", nth, name);
    return path;
}

static void free_log(void *log)
{
    tn_tensorboard_free(log);
}

static tn_tensorboard *new_log(const char *name)
{
    tn_tensorboard *log = tn_tensorboard_new(in_folder(name), (tn_tensorboard_options){ 0 });
    assert_made(log);
    free_at_end(log, free_log);
    return log;
}

static events *events_of(const char *name)
{
    events *e = owned(malloc(sizeof *e));
    read_events(file_of(name, 0), e);
    return e;
}

/* ---- PyTorch's file -------------------------------------------------------------------------- */

static double edge(int k)
{
    double v = 1e-12;
    while (k-- > 0) v *= 1.1;
    return v;
}

static tn_tensor *values_of(const char *tag)
{
    static double v[2003];
    int n = 0;
    const int near[] = { 0, 1, 2, 10 }, far[] = { 0, 772, 773 };
    if (!strcmp(tag, "zeros"))
        while (n < 3) v[n++] = 0;
    if (!strcmp(tag, "constant"))
        while (n < 4) v[n++] = 0.5;
    if (!strcmp(tag, "one")) v[n++] = -2;
    if (!strcmp(tag, "spread"))
        for (; n < 2003; n++) v[n] = ldexp(n * 7919 % 2003 - 1001, n % 40 - 20);
    if (!strcmp(tag, "edges"))
        for (v[8] = 0, v[9] = 1e-13, v[10] = -1e-13; n < 8; n++)
            v[n] = (n % 2 ? -1 : 1) * edge(near[n / 2]);
    if (!strcmp(tag, "ends"))
        for (; n < 6; n++) v[n] = (n % 2 ? -1 : 1) * edge(far[n / 2]);
    if (!strcmp(tag, "edges")) n = 11;
    ck_assert_msg(n > 0, "%s", tag);
    return from_f64(v, TN_SHAPE(n));
}

static void same_histogram(const char *tag, bytes ours, bytes theirs)
{
    for (int i = 1; i <= 5; i++) { /* min, max, number, sum, sum of squares */
        double a = real(field(ours, i, 0)), b = real(field(theirs, i, 0));
        ck_assert_msg(fabs(a - b) <= (i < 4 ? 0 : 1e-13 * fabs(b) + 1e-5 * (i == 4)),
                      "%s: field %d is %.17g, not %.17g", tag, i, a, b);
    }
    for (int i = 6; i <= 7; i++) { /* limits, numbers */
        bytes a = field(ours, i, 0), b = field(theirs, i, 0);
        ck_assert_msg(b.n > 0 && a.n == b.n, "%s: %zu bytes, not %zu", tag, a.n, b.n);
        for (size_t k = 0; k < a.n; k += 8)
            ck_assert_msg(memcmp(a.at + k, b.at + k, 8) == 0,
                          "%s: field %d [%zu] is %.17g, not %.17g", tag, i, k / 8,
                          real((bytes){ a.at + k, 8 }), real((bytes){ b.at + k, 8 }));
    }
}

START_TEST(as_pytorch_writes)
{
    tn_tensorboard *log = new_log("run");
    events *theirs = owned(malloc(sizeof *theirs));
    read_events(golden_path("tensorboard.events"), theirs);
    ck_assert_int_eq(theirs->n, 1 + 6 + 6 + 1 + 2);
    const char *key[] = { "lr", "optimizer" }, *value[] = { "0.001", "adamw" };
    int settings = 0;
    for (int i = 1; i < theirs->n; i++) {
        char tag[64];
        bytes b = get(theirs->of[i], TAG);
        snprintf(tag, sizeof tag, "%.*s", (int)b.n, (const char *)b.at);
        const int64_t step = whole(get(theirs->of[i], "2"));
        if (get(theirs->of[i], VALUE ".2").at)
            assert_ok(tn_tensorboard_scalar(log, tag, real(get(theirs->of[i], VALUE ".2")), step));
        else if (get(theirs->of[i], VALUE ".5").at)
            assert_ok(tn_tensorboard_histogram(log, tag, values_of(tag), step));
        else if (get(theirs->of[i], VALUE ".8").at)
            assert_ok(tn_tensorboard_text(log, "said", "# \xc3\x84pfel\n*and* more", step));
        else {
            tn_metadata one = { 1, &key[settings], &value[settings] };
            assert_ok(tn_tensorboard_hparams(log, &one));
            settings++;
        }
    }
    events *ours = events_of("run");
    ck_assert_int_eq(ours->n, theirs->n);
    ck_assert_int_eq(settings, 2);
    ck_assert(is(get(ours->of[0], "3"), "brain.Event:2") &&
              is(get(theirs->of[0], "3"), "brain.Event:2"));
    for (int i = 1; i < theirs->n; i++) {
        bytes a = get(ours->of[i], SUMMARY), b = get(theirs->of[i], SUMMARY);
        if (i < 1 + 6 + 6 + 1)
            ck_assert_int_eq(whole(get(ours->of[i], "2")), whole(get(theirs->of[i], "2")));
        ck_assert_double_le(fabs(real(get(ours->of[i], "1")) - (double)time(NULL)), 600);
        if (get(a, "1.5").at) {
            ck_assert(get(ours->of[i], TAG).n == get(theirs->of[i], TAG).n);
            same_histogram((const char *)get(a, "1.1").at, get(a, "1.5"), get(b, "1.5"));
        } else {
            ck_assert_msg(a.n == b.n && memcmp(a.at, b.at, a.n) == 0, "event %d: other bytes", i);
        }
    }
}
END_TEST

/* ---- histograms ------------------------------------------------------------------------------ */

/* What a histogram counts between two limits, the outermost included. */
static double counted(bytes histo)
{
    double sum = 0;
    bytes b = field(histo, 7, 0);
    for (size_t k = 0; k < b.n; k += 8) sum += real((bytes){ b.at + k, 8 });
    return sum;
}

START_TEST(histograms_of_any_tensor)
{
    tn_tensorboard *log = new_log("run");
    tn_tensor *x = random_f64(TN_SHAPE(200, 300), -3, 3, 1);
    tn_tensor *same[] = { x, as_transposed(x), as_strided(x), with_grad(tn_mul_scalar(x, 1)),
                          tn_reshape(x, TN_SHAPE(10, 20, 300)) };
    for (int i = 0; i < COUNT(same); i++) assert_ok(tn_tensorboard_histogram(log, "x", same[i], i));
    tn_tensor *few[] = { tn_to_dtype(x, TN_F32),        tn_to_dtype(x, TN_BF16),
                         tn_to_dtype(x, TN_F16),        tn_to_dtype(x, TN_I64),
                         tn_to_dtype(x, TN_I32),        tn_gt_scalar(x, 0),
                         tn_to_dtype(tn_abs(x), TN_U8), tn_full(TN_SCALAR, 3) };
    for (int i = 0; i < COUNT(few); i++) assert_ok(tn_tensorboard_histogram(log, "y", few[i], i));
    events *e = events_of("run");
    ck_assert_int_eq(e->n, 1 + COUNT(same) + COUNT(few));
    for (int i = 1; i < e->n; i++) {
        bytes h = get(e->of[i], VALUE ".5");
        ck_assert_double_eq(counted(h), i == e->n - 1 ? 1 : 60000);
        ck_assert_double_eq(real(field(h, 3, 0)), counted(h));
        if (i <= COUNT(same)) same_histogram("x", h, get(e->of[1], VALUE ".5"));
    }
    ck_assert_double_eq(real(get(e->of[9], VALUE ".5.1")), -2); /* i64 */
    ck_assert_double_eq(real(get(e->of[9], VALUE ".5.2")), 2);
}
END_TEST

START_TEST(what_no_bucket_holds)
{
    tn_tensorboard *log = new_log("run");
    const double v[] = { 1, NAN, INFINITY, -2, -INFINITY }, far[] = { 1e300, -1e25, 0, -0.0 };
    assert_ok(tn_tensorboard_histogram(log, "w", from_f64(v, TN_SHAPE(5)), 3));
    assert_ok(tn_tensorboard_histogram(log, "none", from_f64(v + 1, TN_SHAPE(2)), 4));
    assert_ok(tn_tensorboard_histogram(log, "far", from_f64(far, TN_SHAPE(4)), 5));
    events *e = events_of("run");
    ck_assert_int_eq(e->n, 5);
    bytes h = get(e->of[1], VALUE ".5");
    ck_assert_double_eq(counted(h), 2);
    ck_assert(real(field(h, 1, 0)) == -2 && real(field(h, 2, 0)) == 1 &&
              real(field(h, 3, 0)) == 2 && real(field(h, 4, 0)) == -1 && real(field(h, 5, 0)) == 5);
    ck_assert(is(get(e->of[2], TAG), "w/nonfinite"));
    ck_assert(real(get(e->of[2], VALUE ".2")) == 3 && whole(get(e->of[2], "2")) == 3);
    ck_assert(is(get(e->of[3], TAG), "none/nonfinite"));
    ck_assert_double_eq(real(get(e->of[3], VALUE ".2")), 2);
    h = get(e->of[4], VALUE ".5");
    ck_assert_double_eq(counted(h), 4);
    ck_assert_uint_eq(field(h, 6, 0).n, 1549 * 8); /* all edges */
    ck_assert_double_eq(real(field(h, 2, 0)), 1e300);
    bytes counts = field(h, 7, 0);
    ck_assert_double_eq(real((bytes){ counts.at + 8, 8 }), 1);       /* -1e25 */
    ck_assert_double_eq(real((bytes){ counts.at + 775 * 8, 8 }), 2); /* both zeros */
}
END_TEST

/* ---- pictures -------------------------------------------------------------------------------- */

static uint64_t big(const unsigned char *at)
{
    return (uint64_t)at[0] << 24 | (uint64_t)at[1] << 16 | (uint64_t)at[2] << 8 | at[3];
}

/* A PNG of 8 bits whose rows have no filter: its pixels, and what its header says. */
static const unsigned char *pixels_of(bytes png, int64_t height, int64_t width, int64_t channels)
{
    const int colours[] = { 0, 0, 0, 2, 6 };
    const uLong size = (uLong)(height * (1 + width * channels));
    unsigned char *rows = owned((unsigned char *)malloc(size));
    uLong n = size;
    ck_assert(png.n > 8 && memcmp(png.at, "\x89PNG\r\n\x1a\n", 8) == 0);
    const unsigned char *at = png.at + 8, *end = png.at + png.n;
    for (int chunk = 0; chunk < 3; chunk++) {
        const uint64_t length = big(at);
        ck_assert_uint_le(length + 12, (uint64_t)(end - at));
        ck_assert_uint_eq(crc32(0, at + 4, (uInt)length + 4), big(at + 8 + length));
        ck_assert(memcmp(at + 4, &"IHDRIDATIEND"[chunk * 4], 4) == 0);
        if (chunk == 0) {
            ck_assert(length == 13 && big(at + 8) == (uint64_t)width &&
                      big(at + 12) == (uint64_t)height);
            ck_assert(at[16] == 8 && at[17] == colours[channels] && !at[18] && !at[19] && !at[20]);
        }
        if (chunk == 1) ck_assert_int_eq(uncompress(rows, &n, at + 8, length), Z_OK);
        at += length + 12;
    }
    ck_assert(at == end && n == size);
    return rows;
}

START_TEST(pictures)
{
    tn_tensorboard *log = new_log("run");
    tn_tensor *u8 = tn_to_dtype(random_f64(TN_SHAPE(3, 5, 7), 0, 256, 1), TN_U8);
    tn_tensor *f = random_f64(TN_SHAPE(4, 6, 2), -0.2, 1.2, 2);
    tn_tensor *grey = random_as(TN_SHAPE(9, 4), 0, 1, 3, TN_F32);
    tn_tensor *rows[] = { u8,
                          as_transposed(u8),
                          as_strided(u8),
                          f,
                          tn_to_dtype(f, TN_F16),
                          with_grad(tn_mul_scalar(f, 1)),
                          grey,
                          tn_unsqueeze(grey, 0),
                          tn_to_dtype(grey, TN_BF16),
                          tn_full(TN_SHAPE(1, 1), 1),
                          from_f64((double[]){ NAN, INFINITY, -INFINITY, 1, 0, 0.999 },
                                   TN_SHAPE(2, 3)) };
    for (int i = 0; i < COUNT(rows); i++) assert_ok(tn_tensorboard_image(log, "i", rows[i], i));
    events *e = events_of("run");
    ck_assert_int_eq(e->n, 1 + COUNT(rows));
    for (int i = 0; i < COUNT(rows); i++) {
        bytes image = get(e->of[1 + i], VALUE ".4");
        const int rank = tn_rank(rows[i]);
        const int64_t c = rank == 3 ? tn_size(rows[i], 0) : 1, h = tn_size(rows[i], -2),
                      w = tn_size(rows[i], -1);
        ck_assert_int_eq(whole(field(image, 1, 0)), h);
        ck_assert_int_eq(whole(field(image, 2, 0)), w);
        ck_assert_int_eq(whole(field(image, 3, 0)), c);
        const unsigned char *pixel = pixels_of(field(image, 4, 0), h, w, c);
        double *v = owned((void *)malloc((size_t)(c * h * w) * sizeof *v));
        assert_ok(tn_copy_out(rows[i], v, (size_t)(c * h * w) * sizeof *v, TN_F64));
        for (int64_t k = 0; k < c * h * w; k++) {
            const int64_t in = k / (h * w), y = k / w % h, x = k % w;
            const float one = (float)v[k] * 255; /* PyTorch: clipped, then cut */
            const int want = tn_dtype_of(rows[i]) == TN_U8 ? (int)v[k]
                             : one >= 255                  ? 255
                             : one > 0                     ? (int)one
                                                           : 0;
            const unsigned char *row = pixel + y * (1 + w * c);
            ck_assert_int_eq(row[0], 0);
            ck_assert_msg(row[1 + x * c + in] == want, "picture %d [%d,%d,%d]: %d, not %d", i,
                          (int)in, (int)y, (int)x, row[1 + x * c + in], want);
        }
    }
}
END_TEST

/* ---- settings, order, a resume --------------------------------------------------------------- */

START_TEST(settings)
{
    const char *key[] = { "lr", "name", "hex", "empty", "far", "neg", "inf", "space" };
    const char *value[] = { "1e-3", "adamw", "0x10", "", "1e999", "-2.50", "inf", " 1" };
    const double number[] = { 1e-3, NAN, NAN, NAN, NAN, -2.5, NAN, NAN };
    tn_metadata all = { COUNT(key), key, value };
    assert_ok(tn_tensorboard_hparams(new_log("run"), &all));
    assert_ok(tn_tensorboard_hparams(new_log("none"), &(tn_metadata){ 0 }));
    bytes event = events_of("run")->of[1];
    ck_assert(is(get(event, TAG), "_hparams_/session_start_info"));
    ck_assert(is(get(event, VALUE ".9.1.1"), "hparams"));
    bytes start = get(event, VALUE ".9.1.2.3");
    for (int i = 0; i < COUNT(key); i++) {
        bytes entry = field(start, 1, i);
        ck_assert_msg(is(field(entry, 1, 0), key[i]), "%s", key[i]);
        const bool is_number = number[i] == number[i];
        ck_assert_msg(is_number ? real(get(entry, "2.2")) == number[i] && !get(entry, "2.3").at
                                : is(get(entry, "2.3"), value[i]) && !get(entry, "2.2").at,
                      "%s", key[i]);
    }
    ck_assert(!field(start, 1, COUNT(key)).at);
}
END_TEST

/* A resume is a further file, behind the others by its name. It says from which step on older
 * points are to be hidden: TensorBoard looks for that behind a version of 2. */
START_TEST(a_resume)
{
    static events e;
    for (int i = 0; i < 4; i++) {
        const tn_tensorboard_options o = { .purge_step = i == 1 ? 70 : 0,
                                           .use_purge_step = i == 2 };
        tn_tensorboard *log = tn_tensorboard_new(in_folder("a/b/c/"), o);
        assert_made(log);
        assert_ok(tn_tensorboard_scalar(log, "loss", i, 1000 * i));
        tn_tensorboard_free(log);
    }
    for (int i = 0; i < 4; i++) {
        read_events(file_of("a/b/c", i), &e);
        const bool purges = i == 1 || i == 2;
        ck_assert_int_eq(e.n, purges ? 3 : 2);
        ck_assert(is(get(e.of[0], "3"), "brain.Event:2") && !get(e.of[0], "7").at);
        if (purges) ck_assert_int_eq(whole(get(e.of[1], "7.1")), 1); /* SessionLog.START */
        if (purges) ck_assert_int_eq(whole(get(e.of[1], "2")), i == 1 ? 70 : 0);
        ck_assert_double_eq(real(get(e.of[e.n - 1], VALUE ".2")), i);
        ck_assert(strstr(file_of("a/b/c", i), "/events.out.tfevents.1"));
    }
}
END_TEST

/* ---- what goes wrong ------------------------------------------------------------------------- */

START_TEST(refused)
{
    static char longest[1026];
    memset(longest, 'x', 1025);
    tn_tensorboard *log = new_log("run");
    tn_tensor *x = tn_ones(TN_SHAPE(2, 3));
    const char *tags[] = { NULL, "", "\xff", longest, "a\xc3" };
    for (int i = 0; i < COUNT(tags); i++) {
        assert_fails(tn_tensorboard_scalar(log, tags[i], 1, 1), TN_E_INVALID,
                     "tn_tensorboard_scalar: tag ");
        assert_fails(tn_tensorboard_histogram(log, tags[i], x, 1), TN_E_INVALID, "tag ");
        assert_fails(tn_tensorboard_image(log, tags[i], x, 1), TN_E_INVALID, "tag ");
        assert_fails(tn_tensorboard_text(log, tags[i], "t", 1), TN_E_INVALID, "tag ");
        const char *one = tags[i], *fine = "1";
        assert_fails(tn_tensorboard_hparams(log, &(tn_metadata){ 1, &one, &fine }), TN_E_INVALID,
                     i ? "a name " : "metadata.key[0] is NULL");
    }
    for (int i = 0; i < 3; i++) {
        if (i != 1) assert_fails(tn_tensorboard_text(log, "t", tags[i], 1), TN_E_INVALID, "text ");
        const char *name = "n", *bad = tags[i];
        if (i != 1)
            assert_fails(tn_tensorboard_hparams(log, &(tn_metadata){ 1, &name, &bad }),
                         TN_E_INVALID, i ? "a value " : "metadata.value[0] is NULL");
    }
    assert_fails(tn_tensorboard_hparams(log, NULL), TN_E_INVALID, "hparams is NULL");
    assert_fails(tn_tensorboard_hparams(log, &(tn_metadata){ .n = 2 }), TN_E_INVALID,
                 "without keys");
    assert_fails(tn_tensorboard_scalar(NULL, "a", 1, 1), TN_E_INVALID, "log is NULL");
    assert_fails(tn_tensorboard_histogram(log, "a", NULL, 1), TN_E_INVALID, "x is NULL");
    assert_fails(tn_tensorboard_histogram(log, "a", TN_NONE, 1), TN_E_INVALID, "x is TN_NONE");
    assert_fails(tn_tensorboard_histogram(log, "a", tn_ones(TN_SHAPE(0, 3)), 1), TN_E_SHAPE,
                 "no elements");
    assert_fails(tn_tensorboard_image(log, "a", NULL, 1), TN_E_INVALID, "x is NULL");
    assert_fails(tn_tensorboard_image(log, "a", tn_to_dtype(x, TN_I64), 1), TN_E_DTYPE, "want u8");
    const tn_shape shapes[] = { TN_SHAPE(3),          TN_SCALAR,
                                TN_SHAPE(2, 4, 4),    TN_SHAPE(5, 4, 4),
                                TN_SHAPE(1, 3, 4, 4), TN_SHAPE(0, 4),
                                TN_SHAPE(3, 4, 0),    TN_SHAPE(0, 2, 2) };
    for (int i = 0; i < COUNT(shapes); i++)
        assert_fails(tn_tensorboard_image(log, "a", tn_ones(shapes[i]), 1), TN_E_SHAPE,
                     "want [H,W]");
    tn_tensor *wide =
        tn_expand(tn_full_as(TN_SHAPE(1, 1), 0, TN_U8, tn_cpu()), TN_SHAPE(1 << 15, 1 << 15));
    assert_fails(tn_tensorboard_image(log, "a", wide, 1), TN_E_SHAPE, "1 to 2^30 values");
    ck_assert_int_eq(events_of("run")->n, 1);

    const tn_tensorboard_options none = { 0 };
    write_bytes("file", "x", 1);
    assert_null(tn_tensorboard_new(NULL, none), TN_E_INVALID, "tn_tensorboard_new: path is NULL");
    assert_null(tn_tensorboard_new("", none), TN_E_INVALID, "is empty");
    assert_null(tn_tensorboard_new(in_folder("file/run"), none), TN_E_IO,
                "file/run/events.out.tfevents.");
    assert_null(tn_tensorboard_new(in_folder("file"), none), TN_E_IO, "Not a directory");
    char *deep = owned((char *)malloc(6000));
    memset(deep, 'd', 5999);
    deep[5999] = 0;
    assert_null(tn_tensorboard_new(deep, none), TN_E_IO, "too long");
    tn_tensorboard_free(NULL);
}
END_TEST

static rlim_t limit_files(rlim_t most)
{
    struct rlimit now;
    getrlimit(RLIMIT_FSIZE, &now);
    const rlim_t was = now.rlim_cur;
    now.rlim_cur = most;
    setrlimit(RLIMIT_FSIZE, &now);
    return was;
}

/* A limit on file sizes, with the signal ignored, stands for a full disk. */
START_TEST(a_full_disk)
{
    tn_tensorboard *log = new_log("run");
    for (int i = 0; i < 10; i++) assert_ok(tn_tensorboard_scalar(log, "loss", i, i));
    size_t before, after;
    free(read_bytes(file_of("run", 0), &before));
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t more = 0; more < 40; more += 13) { /* some bytes of a record fit */
        const rlim_t was = limit_files(before + more);
        const tn_status status = tn_tensorboard_scalar(log, "loss", 77, 77);
        const tn_status other = tn_tensorboard_histogram(log, "w", values_of("spread"), 77);
        limit_files(was);
        ck_assert_int_eq(status, TN_E_IO);
        ck_assert_int_eq(other, TN_E_IO);
        ck_assert_msg(strstr(tn_error(), file_of("run", 0)) && strstr(tn_error(), "File too large"),
                      "%s", tn_error());
        tn_error_clear();
        free(read_bytes(file_of("run", 0), &after));
        ck_assert_uint_eq(before, after);
    }
    assert_ok(tn_tensorboard_scalar(log, "loss", 10, 10)); /* there is room again */
    events *e = events_of("run");
    ck_assert_int_eq(e->n, 12);
    for (int i = 0; i < 11; i++) ck_assert_double_eq(real(get(e->of[1 + i], VALUE ".2")), i);
    const rlim_t was = limit_files(10);
    ck_assert(!tn_tensorboard_new(in_folder("new"), (tn_tensorboard_options){ 0 }));
    limit_files(was);
    assert_error(TN_E_IO, "new/events.out.tfevents.");
    ck_assert_int_eq(rmdir(in_folder("new")), 0); /* no file stays */
}
END_TEST

/* The child of a fork neither writes to the log nor repeats anything; one that ends at once loses
 * nothing of its own. */
START_TEST(other_processes)
{
    tn_tensorboard *log = new_log("run");
    for (int i = 0; i < 3; i++) assert_ok(tn_tensorboard_scalar(log, "loss", i, i));
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        bool refused = tn_tensorboard_scalar(log, "loss", 9, 9) == TN_E_STATE &&
                       strstr(tn_error(), "another process made it");
        tn_tensorboard_free(log);
        tn_tensorboard *own = tn_tensorboard_new(in_folder("child"), (tn_tensorboard_options){ 0 });
        bool written = own && tn_tensorboard_scalar(own, "loss", 9, 9) == TN_OK;
        raise(refused && written ? SIGKILL : SIGTERM);
    }
    ck_assert_int_eq(status_of(child), 128 + SIGKILL);
    assert_ok(tn_tensorboard_scalar(log, "loss", 3, 3));
    ck_assert_int_eq(events_of("run")->n, 5);
    ck_assert_int_eq(events_of("child")->n, 2);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static int kind_of_call;
static tn_tensorboard *log_of_call;
static size_t size_before;

static tn_status call_of_kind(void)
{
    const char *key[] = { "lr", "name" }, *value[] = { "1", "x" };
    const tn_tensorboard_options o = { .purge_step = 3 };
    switch (kind_of_call) {
    case 0: return tn_tensorboard_scalar(log_of_call, "a", 1, 1);
    case 1: return tn_tensorboard_text(log_of_call, "a", "words", 1);
    case 2: return tn_tensorboard_hparams(log_of_call, &(tn_metadata){ 2, key, value });
    case 3: return tn_tensorboard_histogram(log_of_call, "a", tn_ones(TN_SHAPE(3, 2)), 1);
    case 4: return tn_tensorboard_image(log_of_call, "a", tn_ones(TN_SHAPE(3, 4, 5)), 1);
    default: break;
    }
    tn_tensorboard *log = tn_tensorboard_new(in_folder("more"), o);
    tn_tensorboard_free(log);
    if (log) ck_assert_int_eq(unlink(file_of("more", 0)), 0);
    return log ? TN_OK : tn_error_status();
}

static size_t size_now(void)
{
    size_t n;
    free(read_bytes(file_of("run", 0), &n));
    return n;
}

static tn_status write_one(void *user)
{
    (void)user;
    tn_status status = call_of_kind();
    if (status == TN_OK) size_before = size_now();
    return status;
}

static void nothing_was_written(void *user)
{
    (void)user;
    ck_assert_msg(size_now() == size_before, "call %d", kind_of_call);
    if (kind_of_call == 5) ck_assert(rmdir(in_folder("more")) == 0 || errno == ENOENT);
}

START_TEST(memory_runs_out)
{
    setenv("TN_CACHE", "0", 1);
    scarce_install();
    log_of_call = tn_tensorboard_new(in_folder("run"), (tn_tensorboard_options){ 0 });
    assert_made(log_of_call);
    for (kind_of_call = 0; kind_of_call < 6; kind_of_call++)
        ck_assert_int_gt(scarce_sweep_warm(write_one, nothing_was_written, NULL), 1);
    tn_tensorboard_free(log_of_call);
    ck_assert_int_eq(events_of("run")->n, 1 + 5 * 2);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("logs");
    TCase *t = file_case(suite, "logs");
    add_tests(t, as_pytorch_writes, histograms_of_any_tensor, what_no_bucket_holds, pictures,
              settings, a_resume, refused, a_full_disk, other_processes, memory_runs_out);
    return suite;
}
