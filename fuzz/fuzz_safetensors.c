/* fuzz_safetensors.c - any bytes as weights and as a checkpoint. */
#include "fuzz.h"

#include <string.h>

static uint64_t sum; /* of all that was read, so the compiler omits none */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 2 && !memcmp(data, "PK", 2)) return 0; /* goes to another reader */
    const char *path = fuzz_file(data, size);
    tn_scope scope = tn_scope_begin();
    tn_metadata metadata;
    tn_list *list = tn_load_tensors(path, &metadata);
    /* an index of several files may name one that is not there */
    if (!list && tn_error_status() != TN_E_IO) fuzz_refused();
    for (int i = 0; list && i < list->n; i++)
        sum += strlen(list->entry[i].name) + tn_hash(list->entry[i].tensor);
    for (int i = 0; i < metadata.n; i++) sum += strlen(metadata.key[i]) + strlen(metadata.value[i]);
    tn_error_clear();
    tn_checkpoint c = { .step = 0 };
    if (tn_checkpoint_load(&c, path) != TN_OK && tn_error_status() != TN_E_NAME &&
        tn_error_status() != TN_E_IO)
        fuzz_refused();
    tn_error_clear();
    tn_scope_end(scope);
    return 0;
}
