/* json_tree.c - see json_tree.h. */
#include "io/json_tree.h"

/* What the value at j is, without what is in it. */
static void read_value(tni_json *j, tni_json_node *node)
{
    char kind = tni_json_kind(j);
    node->kind = kind;
    if (kind == '"') {
        node->text = tni_json_string(j);
    } else if (kind == '{' || kind == '[') {
        tni_json_open(j, kind);
    } else if (kind == '0') {
        TNI_C_NUMBERS;
        char *at = j->at;
        node->real = strtod(at, NULL);
        if (tni_json_integer(j, &node->number)) return;
        if (node->real >= 0x1p63) j->problem = NULL; /* a number like any other */
        j->at = at;
        tni_json_skip(j);
        node->kind = '.';
    } else if (kind == 'n') {
        node->kind = j->at[0];
        tni_json_skip(j);
    }
}

/* One value and what is in it; false: no memory, or a problem. */
static bool add_node(tni_json_tree *tree, tni_json *j, const char *key)
{
    tni_json_node node = { .key = key };
    if (!tni_room(&tree->node, &tree->capacity, tree->n, 1, sizeof node)) return false;
    read_value(j, &node);
    const size_t own = tree->n++;
    const bool object = node.kind == '{';
    if (object || node.kind == '[')
        for (size_t last = 0; tni_json_next(j, object ? '}' : ']'); node.number++) {
            if (last) tree->node[last].next = (uint32_t)(tree->n - last);
            last = tree->n;
            key = object ? tni_json_key(j) : NULL;
            if (j->problem || !add_node(tree, j, key)) return false;
        }
    tree->node[own] = node;
    return !j->problem;
}

bool tni_json_tree_read(tni_json_tree *tree, char *text, size_t n)
{
    *tree = (tni_json_tree){ 0 };
    if (n >= UINT32_MAX) return tree->problem = "it is longer than 4 GiB", false;
    tni_json j = tni_json_of(text, n);
    bool read = add_node(tree, &j, NULL) && tni_json_end(&j);
    tree->problem = j.problem;
    tree->at = (size_t)(j.at - text);
    return read;
}

void tni_json_tree_free(tni_json_tree *tree)
{
    tni_room_free(&tree->node, &tree->capacity, sizeof *tree->node);
    *tree = (tni_json_tree){ 0 };
}

const tni_json_node *tni_json_first(const tni_json_node *parent)
{
    bool some = parent && (parent->kind == '{' || parent->kind == '[') && parent->number > 0;
    return some ? parent + 1 : NULL;
}

const tni_json_node *tni_json_after(const tni_json_node *member)
{
    return member->next ? member + member->next : NULL;
}

const tni_json_node *tni_json_get(const tni_json_node *object, const char *key)
{
    const tni_json_node *m = object && object->kind == '{' ? tni_json_first(object) : NULL;
    while (m && strcmp(m->key, key) != 0) m = tni_json_after(m);
    return m && m->kind != 'n' ? m : NULL;
}

const char *tni_json_get_text(const tni_json_node *object, const char *key, const char *otherwise)
{
    const tni_json_node *m = tni_json_get(object, key);
    return m && m->kind == '"' ? m->text : otherwise;
}

bool tni_json_get_flag(const tni_json_node *object, const char *key, bool otherwise)
{
    const tni_json_node *m = tni_json_get(object, key);
    return m && (m->kind == 't' || m->kind == 'f') ? m->kind == 't' : otherwise;
}
