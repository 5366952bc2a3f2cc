/*
 * added.c - tokens that stand in a text as they are: "<|endoftext|>".
 *
 * At each place the longest one counts, from left to right; those that are not normalised first,
 * over the whole text, then the others in the normal form of what is between.
 */
#include <utf8proc.h>

#include "ext/lm/tokenizer.h"

/* The node for `byte` among the children of a node, or of the root for node 0. */
static int32_t child(const tni_trie *trie, int32_t node, unsigned char byte)
{
    if (!node) return trie->first[byte];
    int32_t c = trie->node[node].child;
    while (c && trie->node[c].byte != byte) c = trie->node[c].next;
    return c;
}

static int32_t add_node(tni_trie *trie, int32_t parent, unsigned char byte)
{
    if (!tni_room(&trie->node, &trie->capacity, trie->n, 2, sizeof *trie->node)) return 0;
    if (trie->n == 0) trie->node[trie->n++] = (tni_trie_node){ .id = TNI_NO_ID };
    int32_t here = (int32_t)trie->n++;
    trie->node[here] = (tni_trie_node){ .id = TNI_NO_ID, .byte = byte };
    int32_t *from = parent ? &trie->node[parent].child : &trie->first[byte];
    trie->node[here].next = *from;
    return *from = here;
}

bool tni_trie_add(tni_trie *trie, const char *text, size_t n, int32_t id)
{
    int32_t node = 0;
    if (trie->n + n > INT32_MAX / 2)
        return tni_false(tni_error(TN_E_FORMAT, "the added tokens have more than 2^30 bytes"));
    for (size_t i = 0; i < n; i++) {
        int32_t next = child(trie, node, (unsigned char)text[i]);
        node = next ? next : add_node(trie, node, (unsigned char)text[i]);
        if (!node) return false;
    }
    if (node) trie->node[node].id = id;
    return true;
}

/* The longest token at the beginning of n bytes, and its length. */
static int32_t longest(const tni_trie *trie, const char *text, size_t n, size_t *length)
{
    int32_t id = TNI_NO_ID, node = 0;
    for (size_t i = 0; i < n && (node = child(trie, node, (unsigned char)text[i])); i++)
        if (trie->node[node].id != TNI_NO_ID) id = trie->node[node].id, *length = i + 1;
    return id;
}

/* What stands between the tokens that were found. */
typedef bool between(tni_work *w, const char *text, size_t n);

static bool find_added(tni_work *w, const tni_trie *trie, const char *text, size_t n, between *rest)
{
    size_t done = 0, length = 0;
    const bool first = w->first;
    for (size_t at = 0; at < n && trie->n;) {
        int32_t id = longest(trie, text + at, n - at, &length);
        if (id == TNI_NO_ID || (w->literal && w->t->token[id].special)) {
            at += id == TNI_NO_ID ? 1 : length;
            continue;
        }
        w->first = first && done == 0;
        if (at > done && !rest(w, text + done, at - done)) return false;
        if (!tni_ids_add(w->out, &id, 1)) return false;
        done = at += length;
    }
    w->first = first && done == 0;
    return done == n || rest(w, text + done, n - done);
}

static bool to_words(tni_work *w, const char *text, size_t n)
{
    return tni_split_words(w, 0, text, n);
}

/* utf8proc takes the square of the number of marks that follow one another. */
static bool too_many_marks(const char *text, size_t n)
{
    enum { MOST = 4096 };
    int32_t c = 0;
    for (size_t at = 0, marks = 0; at < n;) {
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
        marks = k > 0 && utf8proc_get_property(c)->combining_class ? marks + 1 : 0;
        if (marks > MOST) return true;
        at += k > 0 ? (size_t)k : 1;
    }
    return false;
}

static bool is_ascii(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && !(text[i] & 0x80)) i++;
    return i == n;
}

bool tni_normal_form(tni_work *w, const char **text, size_t *n)
{
    const unsigned how = w->t->normal, before = how & (TNI_CLEAN | TNI_IDEOGRAPHS);
    if (how & TNI_SPACES) return tni_mark_spaces(&w->normal, text, n, how & TNI_PREPEND && *n);
    if (!(how & (TNI_COMPOSE | TNI_NO_ACCENTS)) || is_ascii(*text, *n))
        return !(how & ~TNI_COMPOSE) || tni_fold(w, text, n, how);
    if (too_many_marks(*text, *n))
        return tni_false(tni_error(TN_E_INVALID, "tokenizer: more than 4,096 marks in a row"));
    if (before && !tni_fold(w, text, n, before)) return false;
    utf8proc_uint8_t *form = NULL;
    utf8proc_ssize_t k =
        utf8proc_map((const utf8proc_uint8_t *)*text, (utf8proc_ssize_t)*n, &form,
                     UTF8PROC_STABLE | (how & TNI_COMPOSE ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE));
    if (k < 0) return tni_false(tni_error(TN_E_NOMEM, "tokenizer: %s", utf8proc_errmsg(k)));
    *text = (const char *)form, *n = (size_t)k;
    const bool done = tni_fold(w, text, n, how & (TNI_NO_ACCENTS | TNI_LOWER));
    free(form);
    return done;
}

static bool normalised(tni_work *w, const char *text, size_t n)
{
    return tni_normal_form(w, &text, &n) && find_added(w, &w->t->normalised, text, n, to_words);
}

bool tni_text_ids(tni_work *w, const char *text, size_t n)
{
    w->first = true;
    return find_added(w, &w->t->raw, text, n, normalised);
}
