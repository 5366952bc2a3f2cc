/* names.c - see names.h. */
#include <stdlib.h>

#include "io/file.h"
#include "io/names.h"

static int by_text(const void *a, const void *b)
{
    const tni_name *x = a;
    const tni_name *y = b;
    int d = strcmp(x->text, y->text);
    return d ? d : (x->at > y->at) - (x->at < y->at);
}

static int by_place(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

tn_status tni_names_make(tni_names *names, const void *first, size_t size, int n)
{
    *names = (tni_names){ 0 };
    if (n == 0) return TN_OK;
    names->name = tni_alloc_n((size_t)n, sizeof *names->name);
    if (!names->name) return tni_pending();
    names->n = n;
    for (int i = 0; i < n; i++) {
        const void *structure = (const char *)first + (size_t)i * size;
        names->name[i] = (tni_name){ *(const char *const *)structure, i };
    }
    tni_sort(names->name, (size_t)n, sizeof *names->name, by_text);
    return TN_OK;
}

void tni_names_free(tni_names *names)
{
    if (names->name) tni_free(names->name, (size_t)names->n * sizeof *names->name);
    *names = (tni_names){ 0 };
}

/* The index of the first name not below text. */
static int lower_bound(const tni_names *names, const char *text)
{
    int low = 0, high = names->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (strcmp(names->name[middle].text, text) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int tni_names_find(const tni_names *names, const char *text)
{
    int i = lower_bound(names, text);
    return i < names->n && !strcmp(names->name[i].text, text) ? names->name[i].at : -1;
}

const char *tni_names_twice(const tni_names *names)
{
    for (int i = 1; i < names->n; i++)
        if (!strcmp(names->name[i - 1].text, names->name[i].text)) return names->name[i].text;
    return NULL;
}

int *tni_names_under(const tni_names *names, const char *prefix, int *n)
{
    const size_t length = strlen(prefix);
    int from = lower_bound(names, prefix), to = from;
    while (to < names->n && !strncmp(names->name[to].text, prefix, length)) to++;
    *n = to - from;
    int *places = tni_alloc_n((size_t)TNI_MAX(*n, 1), sizeof *places);
    if (!places) return NULL;
    for (int i = 0; i < *n; i++) places[i] = names->name[from + i].at;
    tni_sort(places, (size_t)*n, sizeof *places, by_place);
    return places;
}

void tni_places_free(int *places, int n)
{
    if (places) tni_free(places, (size_t)TNI_MAX(n, 1) * sizeof *places);
}

/* ---- pairs for the caller: one block with the arrays in front and the texts behind ----------- */

typedef struct block {
    size_t nbytes;
    const char *string[]; /* n keys, n values, then the texts */
} block;

static void drop_block(void *object)
{
    tni_free(object, ((block *)object)->nbytes);
}

tn_status tni_metadata_of(const tni_pair *pair, int n, tn_metadata *out)
{
    *out = (tn_metadata){ 0 };
    if (n == 0) return TN_OK;
    size_t text = 0; /* of strings in memory: their sum fits */
    for (int i = 0; i < n; i++) text += strlen(pair[i].key) + strlen(pair[i].value) + 2;
    block *b;
    size_t nbytes = sizeof *b + 2 * (size_t)n * sizeof *b->string + text;
    b = tni_alloc(nbytes);
    if (!b) return tni_pending();
    b->nbytes = nbytes;
    char *at = (char *)(b->string + 2 * (size_t)n);
    for (int i = 0; i < n; i++) {
        b->string[i] = at;
        at = stpcpy(at, pair[i].key) + 1;
        b->string[n + i] = at;
        at = stpcpy(at, pair[i].value) + 1;
    }
    tn_status status = tni_scope_add(b, drop_block);
    if (status == TN_OK) *out = (tn_metadata){ n, b->string, b->string + n };
    return status;
}

tn_status tni_metadata_check(const char *function, const tn_metadata *m)
{
    if (!m || (m->n == 0 && !m->key == !m->value)) return TN_OK;
    if (m->n <= 0 || !m->key || !m->value)
        return tni_error(TN_E_INVALID, "%s: metadata of %d pairs%s: want as many keys and values",
                         function, m->n,
                         m->n < 0    ? ""
                         : m->n == 0 ? ", with strings"
                         : !m->key   ? " whose key is NULL"
                                     : " whose value is NULL");
    for (int i = 0; i < m->n; i++)
        if (!m->key[i] || !m->value[i])
            return tni_error(TN_E_INVALID, "%s: metadata.%s[%d] is NULL: want a string", function,
                             m->key[i] ? "value" : "key", i);
    return TN_OK;
}

const char *tn_metadata_get(const tn_metadata *metadata, const char *key)
{
    static const char f[] = "tn_metadata_get";
    if (!metadata || !key) {
        tni_null(f, metadata ? "key" : "metadata", metadata ? "a string" : "pairs of strings");
        return NULL;
    }
    if (tni_metadata_check(f, metadata) != TN_OK) return NULL;
    for (int i = 0; i < metadata->n; i++)
        if (!strcmp(metadata->key[i], key)) return metadata->value[i];
    return NULL;
}
