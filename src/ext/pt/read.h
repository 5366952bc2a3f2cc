/*
 * read.h - an open file of PyTorch's: its pickle has been read, its storages are read when asked
 * for. What the pickle made is a tree: dicts, lists and tuples, with tensors and other values as
 * leaves. A leaf's path is the keys to it, joined by dots: "optimizer.state.0.step".
 */
#pragma once

#include "ext/pt/pickle.h"
#include "ext/pt/zip.h"
#include "io/choice.h"
#include "nn/module.h"

/* ---- the tree (tree.c) ----------------------------------------------------------------------- */

typedef struct tni_tree {
    const tni_pickle *pickle;
    tni_pickle_value root;
    tni_choice *choice;
} tni_tree;

/* The part that choice names: the key's; or the only container of tensors, which choice then notes;
 * or, if the root is an object, the root. An error lists the parts. */
tn_status tni_tree_pick(const tni_tree *tree, tni_pickle_value *part);
/* The state of an optimizer: that under choice's key, or the only one. */
tn_status tni_tree_optimizer(const tni_tree *tree, tni_pickle_value *part);
/* Calls leaf for each tensor of a part, in order; path is valid during the call. */
typedef tn_status tni_tree_leaf(void *user, const char *path, const tni_pickle_tensor *t);
tn_status tni_tree_tensors(const tni_tree *tree, const tni_pickle_value *part, tni_tree_leaf *leaf,
                           void *user);
/* The numbers, strings and lists of them in all the tree, by path, as Python prints them. */
tn_status tni_tree_metadata(const tni_tree *tree, tn_metadata *metadata);
/* A key as a path may hold it, at path + n (TNI_NAME_LIMIT + 1 bytes in all). */
tn_status tni_tree_name(const tni_tree *tree, char *path, size_t n, const tni_pickle_value *key);

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct tni_pt {
    tni_zip zip;          /* of an old file, its input only */
    bool npz;             /* it is an archive of arrays, without a pickle */
    const char *folder;   /* of the storages */
    unsigned char *bytes; /* of the pickle */
    size_t nbytes;
    tni_pickle pickle;
    tni_tree tree;
    struct tni_pt_place {
        int64_t begin, nbytes;
    } * places;   /* of an old file, by storage */
    tni_map keys; /* -> its storage */
    size_t n_places;
    tni_map read; /* where a storage begins -> its tensor */
    tn_list *list;
} tni_pt;

/* Reads everything but storages; an .npz has no pickle. To be closed, also after a failure. */
tn_status tni_pt_open(tni_pt *f, const char *function, const char *path, tni_choice *c);
/* A tensor, a view of its storage, in the current scope, which must outlast the open file. */
tn_tensor *tni_pt_tensor(tni_pt *f, const tni_pickle_tensor *t);
void tni_pt_close(tni_pt *f);

/* ---- optimizers, read and written (optim.c) -------------------------------------------------- */

/* Whether PyTorch has that optimizer; *key: its groups alone have it; *steps: of each parameter. */
tn_status tni_pt_optim_check(const char *function, const tn_optim *opt, const char **key,
                             bool *steps);
/* PyTorch's key for a number; *place: which of its two values it is, -1: the value itself. */
const char *tni_pt_number(const char *name, int *place);
