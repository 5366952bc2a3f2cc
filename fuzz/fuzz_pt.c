/*
 * fuzz_pt.c - any bytes as a PyTorch file or an archive of arrays: those that begin with PK, or as
 * files of before PyTorch 1.6 do, as a whole; others as what is in an otherwise valid archive, so
 * that mutations need not correct a checksum: behind an S the pickle of a TorchScript archive,
 * behind an N the array of an .npz, else the pickle of a state dict.
 */
#include "fuzz.h"

#include <string.h>

#include "../tests/archive.h"

static uint64_t sum; /* of all that was read, so the compiler omits none */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned char storage[64] = { 1, 0, 1, 1, 2 }; /* 4 of them bool */
    static const char old[] = "\x80\x02\x8a\x0a";
    if ((size < 2 || memcmp(data, "PK", 2) != 0) && (size < 4 || memcmp(data, old, 4) != 0)) {
        const bool script = size && *data == 'S', array = size && *data == 'N';
        if (size > 32768) return 0;
        if (script || array) data++, size--;
        const member members[] = {
            { "m/data.pkl", data, size },
            { "m/data/0", storage, 0 },
            { "m/data/1", storage, 4 },
            { "m/data/2", storage, 8 },
            { "m/data/3", storage, 64 },
            { "m/version", "3\n", 2 },
            { "m/constants.pkl", "\x80\x02).", 4 },
        };
        const member arrays[] = { { "a.npy", data, size } };
        const archive *a = archive_of(array ? arrays : members, array ? 1 : script ? 7 : 6);
        data = a->bytes;
        size = a->n;
    }
    const char *path = fuzz_file(data, size);
    tn_scope scope = tn_scope_begin();
    const tn_load_options all = { .key = "*", .widen = true, .skip_foreign = true };
    tn_metadata metadata;
    tn_list *list = tn_load_tensors_with(path, all, &metadata, NULL);
    if (!list) fuzz_refused();
    for (int i = 0; list && i < list->n; i++) {
        const tn_tensor *t = list->entry[i].tensor;
        sum += strlen(list->entry[i].name);
        if (tn_numel(t) <= 4096) sum += tn_hash(t); /* expanded ones may be larger: slow */
    }
    tn_error_clear();
    tn_scope_end(scope);
    return 0;
}
