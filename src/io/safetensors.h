/*
 * safetensors.h - a file of named tensors, opened and checked before anything is made from it.
 *
 * Layout: u64 little-endian n; n bytes of JSON { NAME: { dtype, shape, data_offsets: [begin, end]
 * }, ..., "__metadata__": { string: string } }; then the data, row-major little-endian, without
 * holes. Source: the format's description, huggingface/safetensors README; limits of our own: see
 * safetensors.c.
 */
#pragma once

#include <tenon/io.h>

#include "base/map.h"
#include "io/file.h"

/* ---- what a file lists by name (names.c) ----------------------------------------------------- */

/* Beside an array of structures that begin with their names, which its owner has a typed pointer
 * to; below, items is the address of that pointer. The texts of the names are not copied. Zeroed,
 * it is empty. */
typedef struct tni_names {
    int n;
    size_t capacity; /* of the array */
    tni_map places;  /* name -> place in it, from 1 */
} tni_names;

/* Appends an item of `size` bytes: 1; 0: its name was there, is found no more; -1: no memory. */
int tni_names_add(tni_names *names, void *items, const void *item, size_t size);
/* The index of a name, -1: none. */
int tni_names_find(const tni_names *names, const char *text);
void tni_names_free(tni_names *names, void *items, size_t size);

/* A pair of strings. */
typedef struct tni_pair {
    const char *key, *value;
} tni_pair;
/* Pairs, in one block of the current scope, of text that holds key, value, key ... each with a zero
 * at its end. Frees text. */
tn_status tni_metadata_of(tni_bytes *text, tn_metadata *out);
/* Whether the caller's pairs have as many strings as they say. NULL: no pairs. */
tn_status tni_metadata_check(const char *function, const tn_metadata *metadata);

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct tni_safetensor {
    const char *name;                    /* lives as long as the file is open */
    const struct tni_file_dtype *stored; /* io/io.h */
    tn_dtype dtype;                      /* of the tensor, if one can hold it */
    tn_shape shape;
    int64_t begin, end; /* in the data area */
} tni_safetensor;

typedef struct tni_safetensors {
    tni_input in;
    int64_t data; /* where the data area begins */
    char *header; /* all names and strings are in it */
    size_t header_bytes;
    tni_names entries, pairs; /* of these arrays, in the order of the header: */
    tni_safetensor *entry;
    tni_pair *pair; /* of the metadata */
} tni_safetensors;

/* Opens and checks everything but the data. On failure nothing is left open. */
tn_status tni_safetensors_open(tni_safetensors *file, const char *function, const char *path);
/* One tensor, unread where its values are as tenon keeps them; current scope. */
tn_tensor *tni_safetensors_tensor(tni_safetensors *file, const tni_safetensor *entry);
/* The metadata whose keys do not begin with skip ("": all); current scope. */
tn_status tni_safetensors_metadata(const tni_safetensors *file, const char *skip, tn_metadata *out);
/* The value of a key, NULL if absent; lives as long as the file is open. */
const char *tni_safetensors_string(const tni_safetensors *file, const char *key);
void tni_safetensors_close(tni_safetensors *file);

/* Whether two names begin with the same part of a checkpoint: "model." */
bool tni_same_part(const char *a, const char *b);
/* TN_E_FORMAT if the file has a checksum that does not match. Reads all of it. */
tn_status tni_safetensors_verify(tni_safetensors *file);

typedef struct tni_writing {
    const tn_metadata *metadata; /* the caller's pairs; NULL: none */
    bool every_key;              /* tied tensors in full under each of their names */
    bool weights, checkpoint;    /* which it is: pairs of the library's own, a checksum */
} tni_writing;
/* Writes a list, with the versions recorded in it. */
tn_status tni_safetensors_write(const char *function, const char *path, const tn_list *list,
                                tni_writing o);

/* Shared by reading and writing. */
#define TNI_CHECKPOINT "tenon.checkpoint" /* a checkpoint's own version: */
#define TNI_CHECKPOINT_NOW "1"
#define TNI_FORMAT "format" /* of weights: "pt", for tools that ask which framework's they are */
#define TNI_WRITER "tenon.version"    /* which tenon wrote it */
#define TNI_TIES "tenon.ties"         /* a JSON object: name -> the name it is stored under */
#define TNI_ROLES "tenon.roles"       /* a JSON object: name of a buffer -> its role */
#define TNI_VERSIONS "tenon.versions" /* a JSON object: module path -> state version, where not 1 */
/* Whether a pair is a tie as written before TNI_TIES existed: { name: stored name }, in a file with
 * TNI_WRITER. Other keys of such a file are not names. */
bool tni_old_tie(const tni_map *stored, bool checkpoint, const char *key, const char *value);
/* CRC-32 of the whole file with its own 8 digits as 0; the first pair, so its place is fixed. */
#define TNI_CHECKSUM "tenon.crc32"
#define TNI_CHECKSUM_AT (8 + (int64_t)sizeof "{\"__metadata__\":{\"" TNI_CHECKSUM "\":\"" - 1)
