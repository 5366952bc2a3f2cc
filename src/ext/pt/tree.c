/* tree.c - what read.h says of the tree. */
#include "ext/pt/read.h"
#include "io/json.h"

typedef tni_pickle_value value;

#define bad(t, ...) tni_input_bad((t)->pickle->in, __VA_ARGS__)
/* Most levels of a tree; chosen. A dict that holds itself ends there, too. */
enum { DEPTH = 64 };

/* ---- a container's children ------------------------------------------------------------------ */

typedef struct child {
    int64_t next; /* of a tuple's members, or of pairs; -1: none */
    value key;
    const value *value;
} child;

static bool holds(const value *v)
{
    return v->kind == TNI_PICKLE_DICT || v->kind == TNI_PICKLE_TUPLE;
}

static child before(const tni_pickle *p, const value *v)
{
    return (child){ .next = v->kind == TNI_PICKLE_DICT ? tni_pickle_dict_of(p, v)->first : 0 };
}

static bool next(const tni_pickle *p, const value *v, child *c)
{
    if (v->kind == TNI_PICKLE_TUPLE) {
        if (c->next == v->n) return false;
        c->key = (value){ TNI_PICKLE_INT, 0, c->next };
        c->value = &tni_pickle_members(p, v)[c->next++];
        return true;
    }
    if (c->next < 0) return false;
    const tni_pickle_pair *pair = (tni_pickle_pair *)p->pairs.data + c->next;
    *c = (child){ pair->next, pair->key, &pair->value };
    return true;
}

/* ---- paths ----------------------------------------------------------------------------------- */

enum { DIGITS = 24 };

/* The text of a key, *n bytes: a string's own, or in `number`. */
static const char *text_of(const tni_pickle *p, const value *key, char number[DIGITS], size_t *n)
{
    const bool string = key->kind == TNI_PICKLE_STRING;
    snprintf(number, DIGITS, "%" PRId64, key->number);
    if (key->kind != TNI_PICKLE_INT) strcpy(number, "?"); /* of a kind that no model uses */
    *n = string ? key->n : strlen(number);
    return string ? (const char *)p->bytes + key->number : number;
}

tn_status tni_tree_name(const tni_tree *t, char *path, size_t n, const value *key)
{
    const tni_pickle *p = t->pickle;
    char number[DIGITS];
    size_t more;
    const char *from = text_of(p, key, number, &more);
    if (more > TNI_NAME_LIMIT - n)
        return bad(t, "a name has %zu bytes: at most %d are possible", n + more, TNI_NAME_LIMIT);
    if (tni_utf8(from, more) < more || memchr(from, 0, more))
        return bad(t, "the name at byte %" PRId64 " of %s is not UTF-8 text", key->number, p->name);
    memcpy(path + n, from, more);
    path[n + more] = 0;
    return TN_OK;
}

/* ---- walking --------------------------------------------------------------------------------- */

typedef struct walk {
    const tni_tree *tree;
    /* of each value below a part; *down: whether to go on into it */
    tn_status (*visit)(struct walk *w, const value *v, bool *down);
    tni_tree_leaf *leaf;
    void *user;
    int64_t seen;
    int depth;
    char path[TNI_NAME_LIMIT + 1];
} walk;

static tn_status visit(walk *w, const value *v)
{
    const tni_pickle *p = w->tree->pickle;
    bool down = holds(v);
    /* one object may be in many places, so there may be more places than values */
    if (w->depth > DEPTH || ++w->seen > p->max_values)
        return bad(w->tree, "%.64s: more than %d levels or %" PRId64 " values: want a smaller tree",
                   w->path, DEPTH, p->max_values);
    TNI_TRY(w->visit(w, v, &down));
    const size_t n = strlen(w->path), dot = n && n < TNI_NAME_LIMIT;
    w->depth++;
    for (child c = before(p, v); down && next(p, v, &c);) {
        if (dot) w->path[n] = '.', w->path[n + 1] = 0;
        TNI_TRY(tni_tree_name(w->tree, w->path, n + dot, &c.key));
        TNI_TRY(visit(w, c.value));
        w->path[n] = 0;
    }
    w->depth--;
    return TN_OK;
}

static tn_status visit_tensor(walk *w, const value *v, bool *down)
{
    (void)down;
    const tni_pickle_tensor *tensors = w->tree->pickle->tensors.data;
    return v->kind == TNI_PICKLE_TENSOR ? w->leaf(w->user, w->path, tensors + v->number) : TN_OK;
}

tn_status tni_tree_tensors(const tni_tree *tree, const value *part, tni_tree_leaf *leaf, void *user)
{
    walk w = { .tree = tree, .visit = visit_tensor, .leaf = leaf, .user = user };
    return visit(&w, part);
}

/* ---- other values ---------------------------------------------------------------------------- */

/* The fewest digits that give it back, and a point as Python's floats have. */
static void add_double(tni_bytes *b, double x)
{
    char text[40] = "";
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    tni_bytes_printf(b, "%s%s", text, strspn(text, "-0123456789") == strlen(text) ? ".0" : "");
}

/* As Python prints it; false: it has no text here. */
static bool add_text(const tni_pickle *p, const value *v, tni_bytes *b, bool quoted)
{
    const char *string = (const char *)p->bytes + (v->kind == TNI_PICKLE_STRING ? v->number : 0);
    double x;
    memcpy(&x, &v->number, sizeof x);
    switch (v->kind) {
    case TNI_PICKLE_NONE: return tni_bytes_printf(b, "None"), true;
    case TNI_PICKLE_BOOL: return tni_bytes_printf(b, "%s", v->number ? "True" : "False"), true;
    case TNI_PICKLE_INT: return tni_bytes_printf(b, "%" PRId64, v->number), true;
    case TNI_PICKLE_FLOAT: return add_double(b, x), true;
    case TNI_PICKLE_STRING:
        if (tni_utf8(string, v->n) < v->n || memchr(string, 0, v->n)) return false;
        if (quoted) tni_bytes_add(b, "'", 1);
        tni_bytes_add(b, string, v->n);
        if (quoted) tni_bytes_add(b, "'", 1);
        return true;
    default: return false;
    }
}

/* A list or tuple of such values, the first 16 of them. */
static bool add_flat(const tni_pickle *p, const value *v, tni_bytes *b)
{
    const bool tuple = v->kind == TNI_PICKLE_TUPLE;
    if (!tuple && !tni_pickle_dict_of(p, v)->list) return false;
    int n = 0;
    tni_bytes_add(b, tuple ? "(" : "[", 1);
    for (child c = before(p, v); n <= 16 && next(p, v, &c); n++) {
        if (n == 16) tni_bytes_printf(b, ", ...");
        if (n > 0 && n < 16) tni_bytes_printf(b, ", ");
        if (n < 16 && !add_text(p, c.value, b, true)) return false;
    }
    tni_bytes_printf(b, "%s", !tuple ? "]" : n == 1 ? ",)" : ")");
    return true;
}

static tn_status visit_other(walk *w, const value *v, bool *down)
{
    tni_bytes *all = w->user;
    const size_t n = all->n;
    tni_bytes_add(all, w->path, strlen(w->path) + 1);
    const bool there =
        *down ? add_flat(w->tree->pickle, v, all) : add_text(w->tree->pickle, v, all, false);
    *down = *down && !there;
    if (there)
        tni_bytes_add(all, "", 1);
    else if (!all->failed)
        all->n = n;
    const int64_t most = tn_get_file_limits().header_bytes;
    if ((int64_t)all->n > most)
        return bad(w->tree,
                   "other values of more than %" PRId64 " bytes: at most so many are read "
                   "(tn_set_file_limits)",
                   most);
    return all->failed ? TN_E_NOMEM : TN_OK;
}

tn_status tni_tree_metadata(const tni_tree *tree, tn_metadata *metadata)
{
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) all = { 0 };
    walk w = { .tree = tree, .visit = visit_other, .user = &all };
    if (tree->root.kind == TNI_PICKLE_DICT) TNI_TRY(visit(&w, &tree->root));
    return tni_metadata_of(&all, metadata);
}

/* ---- parts ----------------------------------------------------------------------------------- */

typedef struct census {
    tni_bytes *text; /* "model (312 tensors), epoch 41" */
    char key[128];   /* an example of a part */
    value first, optimizer;
    int64_t n_first;
    int parts, optimizers, values;
} census;

/* Of a container's values those of one kind or, with `more`, the containers, too. */
static int64_t count_of(const tni_pickle *p, const value *v, tni_pickle_kind kind, bool more)
{
    int64_t n = 0;
    for (child c = before(p, v); next(p, v, &c);)
        n += c.value->kind == kind || (more && holds(c.value));
    return n;
}

static bool is_optimizer(const tni_pickle *p, const value *v)
{
    const value *state = tni_pickle_get(p, v, "state");
    return state && holds(state) && tni_pickle_get(p, v, "param_groups");
}

/* Counts the containers that hold tensors themselves; what an optimizer holds is not of them. */
static tn_status visit_part(walk *w, const value *v, bool *down)
{
    census *all = w->user;
    const tni_pickle *p = w->tree->pickle;
    const char *comma = all->text->n ? ", " : "";
    if (is_optimizer(p, v)) {
        const int64_t n = count_of(p, tni_pickle_get(p, v, "state"), TNI_PICKLE_DICT, false);
        if (all->optimizers < 16)
            tni_bytes_printf(all->text,
                             w->path[0] ? "%s%s (an optimizer's state of %" PRId64 " parameters)"
                                        : "%s%san optimizer's state of %" PRId64 " parameters "
                                          "(tn_optim_load_pytorch)",
                             comma, w->path, n);
        if (all->optimizers++ == 0) all->optimizer = *v;
        w->seen += n; /* that were counted */
        *down = false;
        return TN_OK;
    }
    const int64_t n = *down ? count_of(p, v, TNI_PICKLE_TENSOR, false) : 0;
    if (n) {
        if (all->parts++ == 0) all->first = *v, all->n_first = n;
        if (!all->key[0] && w->path[0]) snprintf(all->key, sizeof all->key, "%.100s", w->path);
        if (all->parts <= 16)
            tni_bytes_printf(all->text,
                             w->path[0] ? "%s%s (%" PRId64 " tensor%s)"
                                        : "%s%s%" PRId64 " tensor%s at the top",
                             comma, w->path, n, n == 1 ? "" : "s");
        if (all->parts == 17) tni_bytes_printf(all->text, ", and more");
    }
    const bool leaf =
        *down ? count_of(p, v, TNI_PICKLE_TENSOR, true) == 0 : v->kind != TNI_PICKLE_TENSOR;
    if (w->depth == 1 && leaf && all->values++ < 8) {
        static const char *const kind[] = {
            [TNI_PICKLE_STRING] = "a string", [TNI_PICKLE_GLOBAL] = "a name",
            [TNI_PICKLE_OTHER] = "of no use", [TNI_PICKLE_TUPLE] = "a tuple",
            [TNI_PICKLE_DICT] = "a dict",     [TNI_PICKLE_STORAGE] = "a storage"
        };
        const bool list = v->kind == TNI_PICKLE_DICT && tni_pickle_dict_of(p, v)->list;
        tni_bytes_printf(all->text, "%s%s ", comma, w->path);
        if (v->kind == TNI_PICKLE_STRING || !add_text(p, v, all->text, true))
            tni_bytes_printf(all->text, "(%s)", list ? "a list" : kind[v->kind]);
    }
    return all->text->failed ? TN_E_NOMEM : TN_OK;
}

/* The value whose path from v is key; NULL: none. Keys may hold dots, so there may be several ways
 * to try; *left: so many keys are looked at. */
static const value *find(const tni_tree *t, const value *v, const char *key, int depth,
                         int64_t *left)
{
    char number[DIGITS];
    size_t n;
    const tni_pickle *p = t->pickle;
    const value *found = NULL;
    if (!*key || !holds(v) || depth > DEPTH) return *key ? NULL : v;
    for (child c = before(p, v); !found && --*left > 0 && next(p, v, &c);) {
        const char *name = text_of(p, &c.key, number, &n);
        if (n && n <= strlen(key) && !memcmp(key, name, n) && (!key[n] || key[n] == '.'))
            found = find(t, c.value, key + n + (key[n] == '.'), depth + 1, left);
    }
    return found;
}

tn_status tni_tree_optimizer(const tni_tree *tree, value *part)
{
    const char *key = tree->choice->o.key;
    int64_t left = tree->pickle->max_values;
    const value *named = key ? find(tree, &tree->root, key, 0, &left) : NULL;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    census all = { .text = &text };
    walk w = { .tree = tree, .visit = visit_part, .user = &all };
    if (named) snprintf(w.path, sizeof w.path, "%s", key);
    TNI_TRY(visit(&w, named ? named : &tree->root));
    *part = all.optimizer;
    if (all.optimizers == 1 && (!key || named)) return TN_OK;
    return bad(tree, "%d optimizers%s%.64s: want the key of one (it has %.*s)",
               key && !named ? 0 : all.optimizers, key ? " under " : "", key ? key : "",
               (int)TNI_MIN(text.n, (size_t)1500), text.data);
}

tn_status tni_tree_pick(const tni_tree *tree, value *part)
{
    const char *key = tree->choice->o.key;
    *part = tree->root;
    const bool object =
        tree->root.kind == TNI_PICKLE_DICT && tni_pickle_dict_of(tree->pickle, part)->object;
    if (!holds(part)) return bad(tree, "the result is not a dict: want named tensors");
    if (key && !strcmp(key, "*")) return TN_OK;
    int64_t left = tree->pickle->max_values;
    const value *named = key ? find(tree, part, key, 0, &left) : NULL;
    if (named && holds(named)) return *part = *named, TN_OK;
    if (!key && object) return TN_OK;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    census all = { .text = &text };
    walk w = { .tree = tree, .visit = visit_part, .user = &all };
    TNI_TRY(visit(&w, part));
    tni_bytes_add(&text, "", 1);
    if (text.failed) return TN_E_NOMEM;
    if (key)
        return bad(tree, "%s %.64s in it: it has %.1500s", named ? "no tensors under" : "no part",
                   key, text.data);
    if (all.parts == 0 && text.n > 1)
        return bad(tree, "no tensors in it: it has %.1500s", text.data);
    if (all.parts > 1)
        return bad(tree, "a checkpoint: %.1500s: want .key = \"%s\" (\"*\": all of it)", text.data,
                   all.key);
    if (all.parts == 1) *part = all.first;
    if (all.parts == 1 && all.key[0])
        tni_bytes_printf(&tree->choice->taken, "taken: %s (%" PRId64 " tensors)\n", all.key,
                         all.n_first);
    return TN_OK;
}
