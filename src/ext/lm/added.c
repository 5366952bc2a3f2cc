/*
 * added.c - tokens that stand in a text as they are: "<|endoftext|>".
 *
 * At each place the longest one counts, from left to right; those that are not normalised first,
 * over the whole text, then the others in the normal form of what is between.
 */
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

void tni_trie_free(tni_trie *trie)
{
    tni_room_free(&trie->node, &trie->capacity, sizeof *trie->node);
}

/* The longest token at the beginning of n bytes, and its length. */
static int32_t longest(const tni_trie *trie, const char *text, size_t n, size_t *length)
{
    int32_t id = TNI_NO_ID, node = 0;
    for (size_t i = 0; i < n && (node = child(trie, node, (unsigned char)text[i])); i++)
        if (trie->node[node].id != TNI_NO_ID) id = trie->node[node].id, *length = i + 1;
    return id;
}

/* The character that ends at text + end. */
static int32_t character_before(const char *text, size_t end, size_t *begin)
{
    int32_t c = 0;
    *begin = end;
    while (*begin > 0 && ((unsigned char)text[--*begin] & 0xc0) == 0x80)
        ;
    tni_next(text + *begin, end - *begin, &c);
    return c;
}

static bool stands_alone(const char *text, size_t n, size_t start, size_t end)
{
    size_t begin;
    int32_t c;
    if (start > 0 && tni_is_word(character_before(text, start, &begin))) return false;
    if (end == n) return true;
    tni_next(text + end, n - end, &c);
    return !tni_is_word(c);
}

static size_t without_space_before(const char *text, size_t start, size_t least)
{
    size_t begin;
    while (start > least && tni_is_space(character_before(text, start, &begin))) start = begin;
    return TNI_MAX(start, least);
}

static size_t with_space_after(const char *text, size_t n, size_t end)
{
    int32_t c;
    while (end < n) {
        size_t k = tni_next(text + end, n - end, &c);
        if (!tni_is_space(c)) break;
        end += k;
    }
    return end;
}

/* What stands between the tokens that were found. first: it begins where the text does. */
typedef bool between(tni_work *w, const char *text, size_t n, bool first);

static bool find_added(tni_work *w, const tni_trie *trie, const char *text, size_t n, bool first,
                       between *rest)
{
    size_t done = 0;
    for (size_t at = 0; at < n && trie->n;) {
        size_t length = 0;
        if (!trie->first[(unsigned char)text[at]]) {
            at++;
            continue;
        }
        int32_t id = longest(trie, text + at, n - at, &length);
        if (id == TNI_NO_ID) {
            at++;
            continue;
        }
        const tni_token *token = &w->t->token[id];
        size_t start = at, end = at + length;
        at = end;
        if (w->literal && token->special) continue;
        if (start < done || (token->single && !stands_alone(text, n, start, end))) continue;
        if (token->left) start = without_space_before(text, start, done);
        if (token->right) end = with_space_after(text, n, end);
        if (start > done && !rest(w, text + done, start - done, first && done == 0)) return false;
        if (!tni_ids_add(w->out, id)) return false;
        done = end;
        at = TNI_MAX(at, done);
    }
    return done == n || rest(w, text + done, n - done, first && done == 0);
}

static bool to_words(tni_work *w, const char *text, size_t n, bool first)
{
    return tni_split_words(w, 0, text, n, first);
}

static bool normalised(tni_work *w, const char *text, size_t n, bool first)
{
    return tni_normal_form(w, &text, &n) &&
           find_added(w, &w->t->normalised, text, n, first, to_words);
}

bool tni_text_ids(tni_work *w, const char *text, size_t n)
{
    return find_added(w, &w->t->raw, text, n, true, normalised);
}
