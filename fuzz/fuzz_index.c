/*
 * fuzz_index.c - any bytes as the index of several files, of which two lie beside it: they are the
 * descriptors 100 and 101, since all of it lies in /proc/self/fd.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void make_file(int descriptor, const char *header)
{
    const uint64_t n = strlen(header);
    const float value = 1;
    int fd = memfd_create("shard", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &n, sizeof n) != sizeof n || write(fd, header, n) != (ssize_t)n ||
        write(fd, &value, sizeof value) != sizeof value || dup2(fd, descriptor) < 0)
        abort();
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t sum;
    static bool made;
    if (size < 1 || data[0] != '{') return 0; /* goes to another reader */
    if (!made) {
        make_file(100, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
        make_file(101, "{\"b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}");
        made = true;
    }
    tn_scope scope = tn_scope_begin();
    const tn_load_options options = { .skip_foreign = size % 2 };
    tn_list *list = tn_load_tensors_with(fuzz_file(data, size), options, NULL, NULL);
    /* an index may name a file that is not there */
    if (!list && tn_error_status() != TN_E_IO) fuzz_refused();
    for (int i = 0; list && i < list->n; i++) sum += tn_hash(list->entry[i].tensor);
    tn_error_clear();
    tn_scope_end(scope);
    return (int)(sum & 0);
}
