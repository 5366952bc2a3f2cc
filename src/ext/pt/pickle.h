/*
 * pickle.h - reading the pickle of a PyTorch file. Nothing is executed.
 *
 * A pickle is a program for a stack machine. Only what torch.load(path, weights_only=True) runs is
 * known here: instructions that build numbers, strings, tuples, lists and dicts, and calls of the
 * names in a table, each a separate case below; in a TorchScript archive, also objects as their
 * attributes. Source: CPython, Lib/pickletools.py (protocol 2); PyTorch, torch/_utils.py for the
 * arguments of the calls, torch/csrc/jit/serialization/pickler.cpp.
 */
#pragma once

#include "io/io.h"

typedef enum tni_pickle_kind {
    TNI_PICKLE_MARK,
    TNI_PICKLE_NONE,
    TNI_PICKLE_BOOL,
    TNI_PICKLE_INT,
    TNI_PICKLE_FLOAT,
    TNI_PICKLE_STRING,
    TNI_PICKLE_GLOBAL,
    TNI_PICKLE_OTHER, /* a device, a set, a complex number: known, and of no use here */
    TNI_PICKLE_TUPLE,
    TNI_PICKLE_DICT, /* a list, too: keys 0, 1, ...; an object: its attributes */
    TNI_PICKLE_STORAGE,
    TNI_PICKLE_TENSOR
} tni_pickle_kind;

/* A value is copied freely: its contents are in tables and never change. Only dicts grow, and they
 * are referred to by number; they may form cycles. */
typedef struct tni_pickle_value {
    tni_pickle_kind kind;
    uint32_t n;     /* bytes of a string, members of a tuple */
    int64_t number; /* an int's or bool's; a float's bits; a string's first byte; a tuple's first
                       member; else which */
} tni_pickle_value;

typedef struct tni_pickle_storage {
    char key[24];                /* digits: its data are the entry data/KEY */
    const tni_file_dtype *dtype; /* NULL: bytes */
    int64_t numel;
    int64_t begin, end; /* elements: a view of it, in old files; else 0 and numel */
} tni_pickle_storage;

typedef struct tni_pickle_tensor {
    int64_t storage;  /* which; -1: none */
    const char *what; /* NULL, or why tenon cannot hold it: "sparse" */
    const tni_file_dtype *dtype;
    int64_t offset; /* elements; shape and stride stay inside the storage's numel */
    tn_shape shape;
    int64_t stride[TN_MAX_RANK];
} tni_pickle_tensor;

typedef struct tni_pickle_dict {
    bool ordered, list, object;
    int64_t n, first, last; /* pairs: how many, the first and the last; -1: none */
    int64_t version;        /* the int under "version", 0 without */
    int64_t under;          /* number of the dict under "_metadata"; -1: none */
    int64_t attribute;      /* number of the dict that is its _metadata; -1: none */
} tni_pickle_dict;

typedef struct tni_pickle_pair {
    int64_t next; /* of the same dict, in insertion order; -1: none */
    tni_pickle_value key, value;
} tni_pickle_pair;

typedef struct tni_pickle_table {
    void *data;
    size_t capacity, size; /* size: bytes of an element */
    int64_t n;
} tni_pickle_table;

typedef struct tni_pickle {
    const tni_input *in;        /* for messages */
    const char *name;           /* "data.pkl", for messages */
    const unsigned char *bytes; /* n of the caller's, for as long as this is used */
    size_t n, at;
    int64_t max_tensors;
    bool script; /* of a TorchScript archive: classes of its own are allowed */
    /* set by reading: the first byte of the present instruction; values in a table */
    size_t here;
    int64_t max_values;
    tni_pickle_table stack, memo, members; /* values */
    tni_pickle_table storages, tensors, dicts, pairs;
} tni_pickle;

/* Reads the pickle that begins at p->at, and moves past it. Memory is proportional to its length or
 * to max_tensors, whichever is less. Free p, also after a failure. */
tn_status tni_pickle_read(tni_pickle *p, tni_pickle_value *result);
void tni_pickle_free(tni_pickle *p);

static inline tni_pickle_dict *tni_pickle_dict_of(const tni_pickle *p, const tni_pickle_value *v)
{
    return (tni_pickle_dict *)p->dicts.data + v->number;
}
/* NULL for an empty tuple: the table may not exist yet. */
static inline const tni_pickle_value *tni_pickle_members(const tni_pickle *p,
                                                         const tni_pickle_value *tuple)
{
    return tuple->n ? (const tni_pickle_value *)p->members.data + tuple->number : NULL;
}
/* The value of a key of a dict; NULL if it is not there, or v is no dict. */
const tni_pickle_value *tni_pickle_get(const tni_pickle *p, const tni_pickle_value *v,
                                       const char *key);
/* Whether v is that string. */
bool tni_pickle_is(const tni_pickle *p, const tni_pickle_value *v, const char *text);
