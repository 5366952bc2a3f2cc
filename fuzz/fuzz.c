/* fuzz.c - what fuzz.h promises. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Blocks of just the size that was asked for, so that a sanitizer sees their ends, even if the
 * allocator's own file was compiled without it. */
__attribute__((constructor)) static void fuzz_memory(void)
{
    setenv("TN_CACHE", "0", 1);
}

const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    if (file < 0 || pwrite(file, data, size, 0) != (ssize_t)size || ftruncate(file, (off_t)size)) {
        perror("fuzz: a file in memory");
        exit(2);
    }
    return path;
}

void fuzz_refused(void)
{
    tn_status status = tn_error_status();
    if (status == TN_E_FORMAT) return;
    fprintf(stderr, "refused with %s: %s\n", tn_status_name(status), tn_error());
    abort();
}
