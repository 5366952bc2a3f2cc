/* files.c - what files.h promises. */
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

char folder[512];

const char *in_folder(const char *name)
{
    static _Thread_local char path[8][1536];
    static _Thread_local int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static void make_folder(void)
{
    test_setup();
    const char *place = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/tenon-test-XXXXXX", place && *place ? place : "/tmp");
    ck_assert_msg(mkdtemp(folder) != NULL, "%s: %s", folder, strerror(errno));
}

int files_in_folder(void)
{
    int n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *where)
{
    (void)about, (void)type, (void)where;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    test_teardown();
}

TCase *file_case(Suite *suite, const char *name)
{
    TCase *t = tcase_create(name);
    tcase_add_checked_fixture(t, make_folder, remove_folder);
    tcase_set_timeout(t, 300);
    suite_add_tcase(suite, t);
    return t;
}

const char *write_bytes(const char *name, const void *bytes, size_t n)
{
    const char *path = in_folder(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    for (size_t at = 0; at < n;) {
        ssize_t written = write(fd, (const char *)bytes + at, n - at);
        ck_assert_msg(written > 0, "%s: %s", path, strerror(errno));
        at += (size_t)written;
    }
    ck_assert_int_eq(close(fd), 0);
    return path;
}

char *read_bytes(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*n + 1);
    ck_assert_uint_eq(fread(bytes, 1, *n, file), *n);
    bytes[*n] = 0;
    fclose(file);
    return bytes;
}

const char *write_tensors(const char *name, const char *header, const void *data, size_t n)
{
    size_t h = strlen(header);
    char *bytes = calloc(8 + h + n, 1);
    for (int i = 0; i < 8; i++) bytes[i] = (char)(h >> (8 * i));
    memcpy(bytes + 8, header, h);
    if (data) memcpy(bytes + 8 + h, data, n);
    const char *path = write_bytes(name, bytes, 8 + h + n);
    free(bytes);
    return path;
}

const char *write_header(const char *name, const char *header, size_t n)
{
    return write_tensors(name, header, NULL, n);
}

unsigned char *gzip(const void *bytes, size_t n, int level, size_t *size)
{
    *size = compressBound(n) + 64;
    unsigned char *out = malloc(*size);
    z_stream z = { .next_in = (unsigned char *)(uintptr_t)bytes,
                   .avail_in = (uInt)n,
                   .next_out = out,
                   .avail_out = (uInt)*size };
    ck_assert_int_eq(deflateInit2(&z, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    *size = z.total_out;
    deflateEnd(&z);
    return out;
}

uint64_t hash_of(const tn_list *list)
{
    uint64_t hash = 1469598103934665603u;
    assert_made(list);
    for (int i = 0; i < list->n; i++) {
        for (const char *c = list->entry[i].name; *c; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211u;
        hash = (hash ^ tn_hash(list->entry[i].tensor)) * 1099511628211u;
    }
    return hash;
}

uint64_t hash_of_module(tn_module *m)
{
    tn_scope s = tn_scope_begin();
    uint64_t hash = hash_of(tn_state_dict(m, ""));
    tn_scope_end(s);
    return hash;
}

int status_of(pid_t child)
{
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int full_or(int full, int shortened)
{
    const char *text = getenv("TN_TEST_FULL");
    return text && *text && strcmp(text, "0") ? full : shortened;
}
