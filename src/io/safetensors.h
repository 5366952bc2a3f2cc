/*
 * safetensors.h - one file of named tensors, opened and checked before anything is made of it.
 *
 * Layout: u64 little-endian n; n bytes of JSON { NAME: { dtype, shape, data_offsets: [begin, end]
 * }, ..., "__metadata__": { string: string } }; then the data, row-major little-endian, without
 * holes. Source: the format's description, huggingface/safetensors README; limits of our own: see
 * safetensors.c.
 */
#ifndef TNI_SAFETENSORS_H
#define TNI_SAFETENSORS_H

#include <jansson.h>
#include <tenon/io.h>

#include "io/file.h"

typedef struct tni_safetensor {
    const char *name; /* lives as long as the file is open */
    tn_dtype dtype;
    tn_shape shape;
    int64_t begin, end; /* in the data area */
} tni_safetensor;

typedef struct tni_safetensors {
    tni_input in;
    json_t *root;
    json_t *metadata; /* NULL: none */
    int64_t data;     /* where the data area begins */
    int n;
    tni_safetensor *entry; /* in the order of the header */
} tni_safetensors;

/* Opens and checks everything but the data. On failure nothing is left open. */
tn_status tni_safetensors_open(tni_safetensors *file, const char *function, const char *path);
/* Reads one tensor: CPU, current scope. */
tn_tensor *tni_safetensors_tensor(tni_safetensors *file, const tni_safetensor *entry);
/* The entry of a name, NULL without a message. */
const tni_safetensor *tni_safetensors_find(const tni_safetensors *file, const char *name);
/* Strings of the file whose keys do not begin with skip ("": all), current scope. */
tn_status tni_safetensors_metadata(const tni_safetensors *file, const char *skip, tn_metadata *out);
/* The value of a key, NULL when it is not there; lives as long as the file is open. */
const char *tni_safetensors_string(const tni_safetensors *file, const char *key);
void tni_safetensors_close(tni_safetensors *file);

/* Writes a list, own pairs before the caller's (either may be NULL). */
tn_status tni_safetensors_write(const char *function, const char *path, const tn_list *list,
                                const tn_metadata *own, const tn_metadata *metadata);

/* What both sides keep to. */
#define TNI_HEADER_LIMIT ((int64_t)16 << 20)
#define TNI_TENSOR_LIMIT 65536
#define TNI_NAME_LIMIT 1024
const char *tni_safetensors_dtype_name(tn_dtype dtype); /* "F32" */

#endif
