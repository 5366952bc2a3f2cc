/* named.c - see named.h. */
#include "nn/named.h"

static void *as_value(int64_t n)
{
    return (void *)(intptr_t)n;
}

/* ---- names, behind their numbers ------------------------------------------------------------- */

static char *name_of(const void *item)
{
    char *name;
    memcpy(&name, item, sizeof name);
    return name;
}

static int64_t *number_of(const void *item)
{
    return (int64_t *)(void *)name_of(item) - 1;
}

char *tni_name_new(const char *prefix, const char *path, const char *name)
{
    size_t n = strlen(prefix) + strlen(path) + (path[0] != '\0') + strlen(name) + 1;
    int64_t *block = tni_alloc(sizeof *block + n); /* exact: tni_name_free takes the size from it */
    if (!block) return NULL;
    char *text = (char *)(block + 1);
    snprintf(text, n, "%s%s%s%s", prefix, path, path[0] ? "." : "", name);
    return text;
}

void tni_name_free(char *name)
{
    tni_free((int64_t *)(void *)name - 1, sizeof(int64_t) + strlen(name) + 1);
}

int64_t tni_named_serial(const void *item)
{
    return *number_of(item);
}

/* ---- finding --------------------------------------------------------------------------------- */

static char *first_of(const void *items)
{
    char *first;
    memcpy(&first, items, sizeof first); /* through bytes: the pointer may be of any type */
    return first;
}

void *tni_named_at(const tni_named *r, const void *items, int n, int64_t serial)
{
    char *first = first_of(items);
    size_t low = 0, high = (size_t)n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (*number_of(first + middle * r->size) < serial)
            low = middle + 1;
        else
            high = middle;
    }
    void *item = first + low * r->size;
    return low < (size_t)n && *number_of(item) == serial ? item : NULL;
}

void *tni_named_find(const tni_named *r, const void *items, int n, const char *name, size_t length)
{
    int64_t serial = (intptr_t)tni_map_get_name(&r->names, name, length);
    return serial ? tni_named_at(r, items, n, serial) : NULL;
}

/* ---- changing -------------------------------------------------------------------------------- */

/* Has room: cannot fail. */
static void enter(tni_named *r, const void *item)
{
    const char *name = name_of(item);
    if (tni_map_get(&r->names, name))
        r->repeated++;
    else
        tni_map_put(&r->names, name, as_value(*number_of(item)));
}

/* Room for one more item after the last. */
static bool make_room(tni_named *r, void *items, size_t n)
{
    char *first = first_of(items);
    if (r->room && first + n * r->size < r->room + r->capacity * r->size) return true;
    if (n) memmove(r->room, first, n * r->size);
    memcpy(items, &r->room, sizeof r->room);
    size_t more = n < r->capacity / 2 ? 1 : r->capacity - n + 1;
    if (!tni_room(&r->room, &r->capacity, n, more, r->size)) return false;
    memcpy(items, &r->room, sizeof r->room);
    return true;
}

void *tni_named_add(tni_named *r, void *items, int *n, const char *prefix, const char *path,
                    const char *name)
{
    if (*n > INT32_MAX / 2) return tni_fail(TN_E_NOMEM, "%d names: no more fit", *n);
    r->names.names = true;
    /* one to spare, so that renaming cannot fail */
    if (!tni_map_reserve(&r->names, (size_t)*n + 2) || !make_room(r, items, (size_t)*n))
        return NULL;
    char *text = tni_name_new(prefix, path, name), *item = first_of(items) + (size_t)*n * r->size;
    if (!text) return NULL;
    memset(item, 0, r->size);
    memcpy(item, &text, sizeof text);
    *number_of(item) = ++r->serials;
    enter(r, item);
    ++*n;
    return item;
}

/* Removes an item's name from the table; if later items have it too, the next one is its first. */
static void forget(tni_named *r, const void *items, int n, const char *item)
{
    const char *name = name_of(item), *end = first_of(items) + (size_t)n * r->size;
    if (tni_map_get(&r->names, name) != as_value(*number_of(item))) {
        r->repeated--;
        return;
    }
    tni_map_remove(&r->names, name);
    for (item += r->size; r->repeated && item < end; item += r->size) {
        if (strcmp(name_of(item), name) != 0) continue;
        tni_map_put(&r->names, name_of(item), as_value(*number_of(item)));
        r->repeated--;
        return;
    }
}

void tni_named_remove(tni_named *r, void *items, int *n, void *item)
{
    char *first = first_of(items), *name = name_of(item), *at = item;
    size_t before = (size_t)(at - first), behind = (size_t)*n * r->size - before - r->size;
    forget(r, items, *n, item);
    if (before < behind) { /* shift the shorter side */
        memmove(first + r->size, first, before);
        first += r->size;
        memcpy(items, &first, sizeof first);
    } else {
        memmove(at, at + r->size, behind);
    }
    --*n;
    tni_name_free(name);
}

tn_status tni_named_rename(tni_named *r, const void *items, int n, void *item, const char *name)
{
    char *old = name_of(item), *text = tni_name_new("", "", name);
    if (!text) return TN_E_NOMEM;
    int64_t serial = *number_of(item);
    forget(r, items, n, item);
    memcpy(item, &text, sizeof text);
    *number_of(item) = serial;
    enter(r, item);
    tni_name_free(old);
    return TN_OK;
}

void tni_named_renumber(tni_named *r, const void *items, int n)
{
    char *item = first_of(items);
    for (int i = 0; i < n; i++, item += r->size) {
        *number_of(item) = ++r->serials;
        tni_map_put(&r->names, name_of(item), as_value(r->serials));
    }
}

void tni_named_free(tni_named *r, const void *items, int n)
{
    char *item = first_of(items);
    for (int i = 0; i < n; i++, item += r->size) tni_name_free(name_of(item));
    tni_room_free(&r->room, &r->capacity, r->size);
    tni_map_free(&r->names);
}
