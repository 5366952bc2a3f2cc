/* input.c - reading whole regular files, and a growing byte buffer. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#ifdef __linux__
#include <sys/sendfile.h>
#endif

#include "io/file.h"
#include "tensor/cpu/cpu.h"

tn_status tni_null(const char *function, const char *argument, const char *want)
{
    return tni_missing("%s: %s is NULL: want %s", function, argument, want);
}

tn_status tni_errno(int error)
{
    return error == ENOMEM ? TN_E_NOMEM : TN_E_IO;
}

tn_status tni_file_error(tn_status status, const char *function, const char *path,
                         const char *format, ...)
{
    char text[sizeof((tni_texts *)NULL)->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; (c = strchr(c, '\n'));) *c = '?'; /* tni_error sees to the rest */
    return tni_error(status, "%s: " TNI_PATH ": %s", function, path, text);
}

tn_status tni_path_check(const char *function, const char *path)
{
    if (!path) return tni_null(function, "path", "the name of a file");
    if (*path) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: path is empty: want the name of a file", function);
}

tn_status tni_path_in(const char *function, const char *folder, const char *file, char *path,
                      size_t size)
{
    const int n = snprintf(path, size, "%s/%s", folder, file);
    if (n >= 0 && (size_t)n < size) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: a path of %d bytes: want at most %zu", function, n, size);
}

static tn_status fail(const tni_input *in, int error)
{
    return tni_input_error(in, tni_errno(error), "%s", strerror(error));
}

tn_status tni_input_open(tni_input *in, const char *function, const char *path)
{
    *in = (tni_input){ .function = function, .path = path, .fd = -1 };
    TNI_TRY(tni_path_check(function, path));
    /* non-blocking: a pipe without a writer would block for ever; no effect on regular files */
    TNI_UNINTERRUPTED(in->fd, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (in->fd < 0) return fail(in, in->error = errno);
    struct stat st;
    tn_status status = fstat(in->fd, &st) == 0 ? TN_OK : fail(in, errno);
    if (status == TN_OK && !S_ISREG(st.st_mode))
        status = tni_input_error(in, TN_E_IO, "%s: want a regular file",
                                 S_ISDIR(st.st_mode) ? "is a folder" : "is not a regular file");
    if (status == TN_OK) in->size = st.st_size;
    if (status != TN_OK) tni_input_close(in);
    return status;
}

tn_status tni_input_read(const tni_input *in, int64_t offset, void *data, size_t nbytes)
{
    char *at = data;
    while (nbytes > 0) {
        ssize_t n = pread(in->fd, at, nbytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(in, errno);
        if (n == 0)
            return tni_input_error(
                in, TN_E_IO, "became shorter while it was read: %zu bytes missing at %" PRId64,
                nbytes, offset);
        at += n, offset += n, nbytes -= (size_t)n;
    }
    return TN_OK;
}

/* ---- in blocks, by threads that share pieces ------------------------------------------------- */

enum { PIECE = 1 << 18, BLOCK = 1 << 16 }; /* the next to read a block finds it in the cache */

typedef struct job {
    const tni_input *in;
    int64_t offset, nbytes;
    tni_scan s;
    int nowhere;          /* /dev/null; -1: not wanted, or not there */
    _Atomic uint32_t crc; /* the sum of the pieces' own, each moved to its place */
    atomic_bool failed;   /* in the thread that has the message */
} job;

/* n bytes of a block, from byte `at` of all, as elements of data. */
static void cast_block(tni_scan s, void *block, int64_t at, int64_t n)
{
    const int64_t size = (int64_t)tn_dtype_size(s.is), wide = (int64_t)tn_dtype_size(s.as);
    tni_copy a = { .y = { (char *)s.data + at / size * wide, s.as, 1, { n / size }, { 1 } },
                   .x = { block, s.is, 1, { n / size }, { 1 } } };
    tni_disregard(tni_cpu_backend()->copy(&a)); /* it cannot fail */
}

/* Up to where bytes could be read without being copied: they go from the file to nowhere. */
static int64_t pass(const job *j, int64_t begin, int64_t end)
{
#ifdef __linux__
    off_t from = (off_t)(j->offset + begin);
    ssize_t n = j->nowhere >= 0;
    for (; n > 0 && begin < end; begin += TNI_MAX(n, 0))
        n = sendfile(j->nowhere, j->in->fd, &from, (size_t)(end - begin));
#endif
    return (void)j, (void)end, begin;
}

static void scan_piece(void *context, int64_t begin, int64_t end)
{
    _Alignas(64) char block[BLOCK];
    job *j = context;
    const tni_scan s = j->s;
    const bool straight = s.data && s.is == s.as;
    uint32_t crc = 0;
    int64_t n;
    for (int64_t at = pass(j, begin, end); at < end && !j->failed; at += n) {
        char *to = straight ? (char *)s.data + at : block;
        n = TNI_MIN(end - at, straight && !s.crc ? PIECE : BLOCK);
        if (tni_input_read(j->in, j->offset + at, to, (size_t)n) != TN_OK) {
            j->failed = true;
            return;
        }
        if (s.data && !straight) cast_block(s, block, at, n);
        if (s.crc) crc = tni_crc32(crc, to, (size_t)n);
    }
    if (s.crc) atomic_fetch_xor(&j->crc, (uint32_t)crc32_combine(crc, 0, j->nbytes - end));
}

tn_status tni_input_scan(const tni_input *in, int64_t offset, size_t nbytes, tni_scan s)
{
    struct stat st;
    const uint64_t errors = tni_error_count;
    const bool passes = !s.data && !s.crc && nbytes > PIECE;
    const int null = passes ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    const bool device = null >= 0 && fstat(null, &st) == 0 && S_ISCHR(st.st_mode);
    job j = { in, offset, (int64_t)nbytes, s, device ? null : -1, 0, false };
    tni_parallel(j.nbytes, device ? TNI_MAX(PIECE, j.nbytes / 8) : PIECE, scan_piece, &j);
    if (null >= 0) close(null);
    const bool again = j.failed && tni_error_count == errors; /* another thread has the message */
    if (again) j = (job){ in, offset, j.nbytes, s, .nowhere = -1 }, scan_piece(&j, 0, j.nbytes);
    if (j.failed) return tni_pending();
    if (s.crc) *s.crc = (uint32_t)crc32_combine(*s.crc, j.crc, j.nbytes);
    return TN_OK;
}

void tni_input_close(tni_input *in)
{
    if (in->unread)
        tni_unread_leave(in->unread); /* what is still unread keeps the file open */
    else if (in->fd >= 0)
        close(in->fd);
    in->fd = -1, in->unread = NULL;
}

/* How other files begin that are mistaken for those of numbers, and what they are. */
static const struct {
    const char *begin, *what;
} others[] = {
    { "{", "JSON text" },
    { "<", "a page of HTML or XML, as a failed download leaves" },
    { "version ", "a pointer of Git LFS, not the file itself (git lfs pull)" },
    { "GGUF", "a GGUF file" },
    { "\x89HDF", "an HDF5 file" },
    { "\x1f\x8b", "a file compressed by gzip" },
    { "PK\3\4", "an archive (.npz, .pt, .zip): want tn_load_tensors for it" },
    { "\x93NUMPY", "an array of NumPy's" },
    { "\x80", "a pickle of Python's, but not of torch.save" },
    { "\x08", "perhaps an ONNX model" }, /* field 1 of a protobuf message, a small number */
};

const char *tni_begins_as(const void *first)
{
    const char *text = first;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!memcmp(first, others[i].begin, strlen(others[i].begin))) return others[i].what;
    for (int i = 0; i < 8; i++)
        if ((text[i] < ' ' && !strchr("\t\r\n", text[i])) || text[i] == 0x7f) return NULL;
    return "text";
}

tn_status tni_input_gap(const tni_input *in, const char *name, int64_t begin, int64_t end)
{
    return tni_input_bad(in, "%.64s begins at %" PRId64 ": %s, want %" PRId64, name, begin,
                         begin < end ? "inside what lies before it" : "behind a hole", end);
}

void tni_bytes_add(tni_bytes *b, const void *data, size_t n)
{
    b->failed = b->failed || !tni_room(&b->data, &b->capacity, b->n, n, 1);
    if (n == 0 || b->failed) return;
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

void tni_bytes_printf(tni_bytes *b, const char *format, ...)
{
    if (b->failed) return;
    va_list args;
    va_start(args, format);
    char *text = tni_vtext(format, args);
    va_end(args);
    b->failed = !text;
    if (text) tni_bytes_add(b, text, strlen(text));
    tni_strfree(text);
}

void tni_bytes_free(tni_bytes *b)
{
    tni_room_free(&b->data, &b->capacity, 1);
    *b = (tni_bytes){ 0 };
}

tn_status tni_bytes_file(tni_bytes *b, const char *function, const char *path, int64_t most)
{
    tni_input TN_WHEN_LEFT(tni_input_close) in;
    TNI_TRY(tni_input_open(&in, function, path));
    const size_t n = (size_t)in.size;
    if (in.size > most)
        return tni_input_bad(&in, "%" PRId64 " bytes: want at most %" PRId64, in.size, most);
    if (!tni_room(&b->data, &b->capacity, b->n, n + 1, 1)) return tni_pending();
    TNI_TRY(tni_input_read(&in, 0, b->data + b->n, n));
    b->n += n;
    b->data[b->n] = '\0';
    return TN_OK;
}
