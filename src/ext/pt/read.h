/*
 * read.h - an open file of PyTorch's: its pickle has been read, its storages are read when asked
 * for.
 */
#ifndef TNI_PT_READ_H
#define TNI_PT_READ_H

#include "ext/pt/pickle.h"
#include "ext/pt/tree.h"
#include "ext/pt/zip.h"
#include "nn/module.h"

/* Where an old file has a storage. */
typedef struct tni_pt_place {
    int64_t begin, nbytes;
} tni_pt_place;

typedef struct tni_pt {
    tni_zip zip;          /* of an old file, its input only */
    bool npz;             /* it is an archive of arrays, without a pickle */
    const char *folder;   /* of the storages */
    unsigned char *bytes; /* of the pickle */
    size_t nbytes;
    tni_pickle pickle;
    tni_tree tree;
    tni_pt_place *places; /* of an old file, by storage */
    tni_map keys;         /* -> its storage */
    size_t n_places;
    tn_tensor **storage; /* by entry or place: what it holds, once read */
    tn_list *list;
} tni_pt;

/* Reads everything but storages; an .npz has no pickle. On failure nothing is left open. */
tn_status tni_pt_open(tni_pt *f, const char *function, const char *path, tni_choice *c);
/* A tensor of a dtype that is wanted: a view of its storage, in the current scope, which must stay
 * until the file is closed. */
tn_tensor *tni_pt_tensor(tni_pt *f, const tni_pickle_tensor *t);
void tni_pt_close(tni_pt *f);

/* ---- optimizers, read and written (optim.c) -------------------------------------------------- */

/* Whether PyTorch has the same optimizer; *key: what tells its groups from others'; *steps: it
 * counts each parameter's. */
tn_status tni_pt_optim_check(const char *function, const tn_optim *opt, const char **key,
                             bool *steps);
/* PyTorch's key for a number; *place: which of its two values it is, -1: the value itself. */
const char *tni_pt_number(const char *name, int *place);

#endif
