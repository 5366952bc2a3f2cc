/* json_tree.h - a JSON text as a tree, for files whose parts are read in any order. */
#pragma once

#include "io/json.h"

/* A value. The members of an object or array follow it in the tree's order. */
typedef struct tni_json_node {
    const char *key;  /* in an object, else NULL */
    const char *text; /* of a string */
    int64_t number;   /* of an integer >= 0; the number of members of an object or array */
    double real;      /* of any number: infinite if it is too large */
    uint32_t next;    /* from here to the next member of the same parent; 0: the last */
    char kind;        /* { [ " 0 (an integer >= 0) . (another number) t f n (true, false, null) */
} tni_json_node;

typedef struct tni_json_tree {
    tni_json_node *node; /* the first is the root */
    size_t n, capacity;
    const char *problem; /* NULL, or what is wrong with the text at byte `at` */
    size_t at;
} tni_json_tree;

/* Reads the text, which is destroyed and must outlive the tree. False: a problem, or no memory
 * (problem is NULL then, and a message is set). tni_json_tree_free in any case. */
TNI_SHARED bool tni_json_tree_read(tni_json_tree *tree, char *text, size_t n);
TNI_SHARED void tni_json_tree_free(tni_json_tree *tree);

/* The first member of an object or array, and the one after it; NULL: there is none. */
TNI_SHARED const tni_json_node *tni_json_first(const tni_json_node *parent);
TNI_SHARED const tni_json_node *tni_json_after(const tni_json_node *member);
/* An object's member; NULL: it has none, it is null, or `object` is NULL or no object. */
TNI_SHARED const tni_json_node *tni_json_get(const tni_json_node *object, const char *key);
/* The text of a member that is a string; else `otherwise`. */
TNI_SHARED const char *tni_json_get_text(const tni_json_node *object, const char *key,
                                         const char *otherwise);
/* Whether a member is true; `otherwise` if it is neither true nor false. */
TNI_SHARED bool tni_json_get_flag(const tni_json_node *object, const char *key, bool otherwise);
