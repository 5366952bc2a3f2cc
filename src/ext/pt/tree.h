/*
 * tree.h - what a pickle made, as a tree: its dicts, lists and tuples, with tensors and other
 * values as leaves. A leaf's path is the keys to it, joined by dots: "optimizer.state.0.step".
 */
#ifndef TNI_TREE_H
#define TNI_TREE_H

#include "ext/pt/pickle.h"
#include "io/choice.h"

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
tn_status tni_tree_tensors(const tni_tree *tree, const tni_pickle_value *part,
                           tn_status (*leaf)(void *user, const char *path,
                                             const tni_pickle_tensor *t),
                           void *user);
/* The numbers, strings and lists of them in all the tree, by path, as Python prints them. */
tn_status tni_tree_metadata(const tni_tree *tree, tn_metadata *metadata);
/* A key as a path may hold it, at path + n (TNI_NAME_LIMIT + 1 bytes in all). */
tn_status tni_tree_name(const tni_tree *tree, char *path, size_t n, const tni_pickle_value *key);

#endif
