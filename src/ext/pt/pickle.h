/*
 * pickle.h - reading the pickle of a PyTorch state dict. Nothing is executed.
 *
 * A pickle is a program for a stack machine. Only the instructions that build a dict of tensors are
 * known here: numbers, strings, tuples, dicts, and calls of four names, each a separate case below.
 * Source: CPython, Lib/pickletools.py (protocol 2); PyTorch, torch/_utils.py for the arguments of
 * the calls.
 */
#ifndef TNI_PICKLE_H
#define TNI_PICKLE_H

#include "io/file.h"

typedef enum tni_pickle_kind {
    TNI_PICKLE_MARK,
    TNI_PICKLE_BOOL,
    TNI_PICKLE_INT,
    TNI_PICKLE_STRING,
    TNI_PICKLE_GLOBAL,
    TNI_PICKLE_TUPLE,
    TNI_PICKLE_DICT,
    TNI_PICKLE_STORAGE,
    TNI_PICKLE_TENSOR
} tni_pickle_kind;

/* A value is copied freely: its contents are in tables and never change. Only dicts grow, and they
 * are referred to by number, so there can be no cycles. */
typedef struct tni_pickle_value {
    tni_pickle_kind kind;
    uint32_t n; /* bytes of a string, members of a tuple */
    int64_t
        number; /* an int's or bool's; a string's first byte; a tuple's first member; else which */
} tni_pickle_value;

typedef struct tni_pickle_storage {
    char key[24]; /* digits: its data are the entry data/KEY */
    tn_dtype dtype;
    int64_t numel;
} tni_pickle_storage;

typedef struct tni_pickle_tensor {
    int64_t storage; /* which */
    int64_t offset;  /* elements; shape and stride stay inside the storage's numel */
    tn_shape shape;
    int64_t stride[TN_MAX_RANK];
} tni_pickle_tensor;

typedef struct tni_pickle_dict {
    bool ordered;
    int64_t n;         /* pairs */
    int64_t version;   /* the int under "version", 0 without */
    int64_t attribute; /* number of the dict that is its _metadata; -1: none */
} tni_pickle_dict;

/* A pair of a dict; those of one dict are in insertion order. */
typedef struct tni_pickle_pair {
    int64_t dict;
    tni_pickle_value key, value; /* key: a string */
} tni_pickle_pair;

typedef struct tni_pickle_table {
    void *data;
    size_t capacity, size; /* size: bytes of an element */
    int64_t n;
} tni_pickle_table;

typedef struct tni_pickle {
    const tni_input *in;        /* for messages */
    const unsigned char *bytes; /* the caller's, for as long as this is used */
    size_t n, at, here;         /* here: the first byte of the present instruction */
    int64_t max_tensors, max_values;
    int64_t root; /* which dict: the result */
    bool built;
    tni_pickle_table stack, memo, members; /* values */
    tni_pickle_table storages, tensors, dicts, pairs;
} tni_pickle;

/* Reads all n bytes. Memory is proportional to n or to max_tensors, whichever is less. Free
 * afterwards, also on failure. */
tn_status tni_pickle_read(tni_pickle *p, const tni_input *in, const unsigned char *bytes, size_t n,
                          int64_t max_tensors);
void tni_pickle_free(tni_pickle *p);

/* "torch\nFloatStorage\n", the global that names a storage of that dtype. */
const char *tni_pickle_storage_type(tn_dtype dtype);

#endif
