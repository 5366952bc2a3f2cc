/* names.c - arrays with names, and where each name is; pairs of strings. See safetensors.h. */
#include "io/safetensors.h"

int tni_names_add(tni_names *names, void *items, const void *item, size_t size)
{
    const char *name, *first;
    memcpy(&name, item, sizeof name);
    names->places.names = true;
    if (!tni_room(items, &names->capacity, (size_t)names->n, 1, size)) return -1;
    int is_new = tni_map_put(&names->places, name, (void *)(intptr_t)(names->n + 1));
    if (is_new <= 0) return is_new;
    memcpy(&first, items, sizeof first); /* through bytes: the pointer may be of any type */
    memcpy((char *)first + (size_t)names->n++ * size, item, size);
    return 1;
}

int tni_names_find(const tni_names *names, const char *text)
{
    return (int)(intptr_t)tni_map_get(&names->places, text) - 1;
}

void tni_names_free(tni_names *names, void *items, size_t size)
{
    tni_room_free(items, &names->capacity, size);
    tni_map_free(&names->places);
    names->n = 0;
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

tn_status tni_metadata_of(tni_bytes *text, tn_metadata *out)
{
    size_t n = 0; /* strings, which are in memory: their sum fits */
    for (size_t i = 0; i < text->n; i++) n += !text->data[i];
    const size_t nbytes = sizeof(block) + n * sizeof(char *) + text->n;
    block *b = text->failed || n == 0 ? NULL : tni_alloc(nbytes);
    tn_status status = text->failed || (n && !b) ? TN_E_NOMEM : TN_OK;
    *out = (tn_metadata){ 0 };
    if (b) {
        const char *at = memcpy(b->string + n, text->data, text->n);
        b->nbytes = nbytes;
        for (size_t i = 0; i < n; i++, at += strlen(at) + 1)
            b->string[i % 2 * (n / 2) + i / 2] = at;
        status = tni_scope_add("", b, drop_block);
    }
    if (b && status == TN_OK) *out = (tn_metadata){ (int)n / 2, b->string, b->string + n / 2 };
    tni_bytes_free(text);
    return status;
}

tn_status tni_metadata_check(const char *function, const tn_metadata *m)
{
    if (!m || (m->n == 0 && !m->key == !m->value)) return TN_OK;
    if (m->n <= 0 || !m->key || !m->value)
        return tni_error(TN_E_INVALID, "%s: metadata of %d pairs%s: want as many keys and values",
                         function, m->n,
                         !m->key     ? " without keys"
                         : !m->value ? " without values"
                                     : "");
    for (int i = 0; i < m->n; i++)
        if (!m->key[i] || !m->value[i])
            return tni_error(TN_E_INVALID, "%s: metadata.%s[%d] is NULL: want a string", function,
                             m->key[i] ? "value" : "key", i);
    return TN_OK;
}

const char *tn_metadata_get(const tn_metadata *metadata, const char *key)
{
    if (!metadata) return tni_nothing(tni_null(__func__, "metadata", "pairs of strings"));
    if (!key) return tni_nothing(tni_null(__func__, "key", "a string"));
    if (tni_metadata_check(__func__, metadata) != TN_OK) return NULL;
    for (int i = 0; i < metadata->n; i++)
        if (!strcmp(metadata->key[i], key)) return metadata->value[i];
    return NULL;
}
