/* file.h - files as the rest of this folder reads and writes them. */
#pragma once

#include <limits.h>
#include <sys/types.h>

#include "tensor/internal.h"

/* The status for a NULL argument that is not a tensor: the pending error or, if none, TN_E_INVALID:
 * "FUNCTION: ARGUMENT is NULL: want WANT". (input.c) */
TNI_SHARED tn_status tni_null(const char *function, const char *argument, const char *want);

/* The status for an errno: TN_E_NOMEM for ENOMEM, else TN_E_IO. */
TNI_SHARED tn_status tni_errno(int error);

/* Repeats a call that signals may interrupt. */
#define TNI_UNINTERRUPTED(result, call)                                                            \
    do {                                                                                           \
        (result) = (call);                                                                         \
    } while ((result) < 0 && errno == EINTR)

/* Length of a path in a message: the reason after it must fit too. */
#define TNI_PATH "%.1000s"
#define TNI_PATH_SHOWN 1000
/* The error "FUNCTION: PATH: TEXT", the text on one line. Returns status. (input.c) */
TNI_SHARED tn_status tni_file_error(tn_status status, const char *function, const char *path,
                                    const char *format, ...) TN_PRINTF(4, 5);
/* Whether path is the name of a file, else an error naming function. (input.c) */
TNI_SHARED tn_status tni_path_check(const char *function, const char *path);
/* "FOLDER/FILE", in size bytes. */
TNI_SHARED tn_status tni_path_in(const char *function, const char *folder, const char *file,
                                 char *path, size_t size);

/* ---- writing: the file appears whole or not at all (atomic_file.c) --------------------------- */

/* Makes the folders that a file's path names; what is wrong shows when the file is opened. */
void tni_make_folders(char *path);

/* A file being written under a temporary name. All but the last two is atomic_file.c's own. */
typedef struct tni_atomic_file {
    const char *function; /* for messages */
    const char *name;     /* as the caller gave it, for messages; the caller's */
    char target[PATH_MAX], temp[PATH_MAX + 48]; /* temp "": there is none */
    int fd, folder; /* folder: synced after the rename; -1: it may not be read */
    int64_t written;
    bool sums; /* its writer's to set before the first byte: crc is that of what is written */
    uint32_t crc;
} tni_atomic_file;

/* size: bytes that will be written, reserved at once so that a full disk is known before the first;
 * 0: unknown. After TN_OK call finish, with the status of all writes. */
tn_status tni_file_create(tni_atomic_file *file, const char *function, const char *path,
                          int64_t size);
tn_status tni_file_write(tni_atomic_file *file, const void *data, size_t nbytes);
/* Overwrites bytes written before. */
tn_status tni_file_patch(tni_atomic_file *file, int64_t offset, const void *data, size_t nbytes);
/* If status is TN_OK: fsync, rename, fsync of the folder. On failure, this or before, everything is
 * undone. Returns status, or what went wrong. */
tn_status tni_file_finish(tni_atomic_file *file, tn_status status);
/* All of it, of bytes in memory. */
TNI_SHARED tn_status tni_file_replace(const char *function, const char *path, const void *data,
                                      size_t nbytes);
/* Removes an entry of an open folder if it is a temporary of the file named by its first n bytes
 * and nobody has it locked: its writer is gone. (A process number would not show that: another
 * container may use the same one.) A best effort, without messages. */
void tni_file_sweep(int folder, const char *entry, size_t n);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct tni_input {
    const char *function, *path;
    int fd;
    int64_t size;
    int error;                 /* the errno if opening failed, else 0 */
    struct tni_unread *unread; /* of io/unread.c; NULL: it has no unread tensors */
} tni_input;

/* Opens a regular file. */
tn_status tni_input_open(tni_input *in, const char *function, const char *path);
/* Exactly nbytes from offset: an interrupted read goes on, a file that got shorter is an error. */
tn_status tni_input_read(const tni_input *in, int64_t offset, void *data, size_t nbytes);
/* zlib's crc32_z, faster (crc32.c). */
uint32_t tni_crc32(uint32_t crc, const void *data, size_t n);
/* The same in blocks, large parts by several threads. */
typedef struct tni_scan {
    void *data;      /* where to; NULL: nowhere, what counts is whether they can be read */
    uint32_t *crc;   /* of what is before them, goes on over them; NULL: not wanted */
    tn_dtype is, as; /* if they differ: of the elements in the file, and of those in data */
} tni_scan;
tn_status tni_input_scan(const tni_input *in, int64_t offset, size_t nbytes, tni_scan scan);
void tni_unread_leave(void *unread); /* a hold on what keeps a file open: an input's, a tensor's */
void tni_input_close(tni_input *in);
/* Errors about it; TN_E_FORMAT. */
#define tni_input_error(in, status, ...)                                                           \
    tni_file_error(status, (in)->function, (in)->path, __VA_ARGS__)
#define tni_input_bad(in, ...) tni_input_error(in, TN_E_FORMAT, __VA_ARGS__)
/* What a file of numbers is not that begins with these 8 bytes, in words; NULL: nothing known. */
const char *tni_begins_as(const void *first);
/* TN_E_FORMAT: NAME begins at `begin`, but the part before it ends at `end`. */
tn_status tni_input_gap(const tni_input *in, const char *name, int64_t begin, int64_t end);

/* ---- text in memory -------------------------------------------------------------------------- */

/* A growing byte buffer; failed: it ran out of memory, further additions are ignored. */
typedef struct tni_bytes {
    char *data;
    size_t n, capacity;
    bool failed;
} tni_bytes;

TNI_SHARED void tni_bytes_add(tni_bytes *b, const void *data, size_t n);
TNI_SHARED void tni_bytes_printf(tni_bytes *b, const char *format, ...) TN_PRINTF(2, 3);
TNI_SHARED void tni_bytes_free(tni_bytes *b);
/* Appends a file of at most so many bytes, and a zero that does not count. */
TNI_SHARED tn_status tni_bytes_file(tni_bytes *b, const char *function, const char *path,
                                    int64_t most);
