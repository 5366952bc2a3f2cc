/*
 * compare.c - whether all ranks have the same model: its layout at the start, its bits on request.
 *
 * Each rank compares itself with rank 0 and writes what differs, if anything, into a note of fixed
 * size; the notes are exchanged, so that every rank fails with the same message and none waits for
 * one that has given up.
 */
#include <stdio.h>

#include "parallel/data_parallel.h"

enum { NOTE = 512 };

/* FNV-1a, 64 bits: Fowler, Noll, Vo. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

#define NO_HASH 0xcbf29ce484222325u

tn_list *tni_persistent(tn_module *model)
{
    return tn_buffers_with(model, (tn_walk_options){ .persistent_only = true });
}

uint64_t tni_layout_hash(const tn_list *list)
{
    uint64_t hash = NO_HASH;
    for (int i = 0; i < list->n; i++) {
        const tn_tensor *t = list->entry[i].tensor;
        hash = hash_bytes(hash, list->entry[i].name, strlen(list->entry[i].name) + 1);
        hash = hash_bytes(hash, &t->dtype, sizeof t->dtype);
        hash = hash_bytes(hash, &t->shape.rank, sizeof t->shape.rank);
        hash = hash_bytes(hash, t->shape.size, (size_t)t->shape.rank * sizeof *t->shape.size);
    }
    return hash;
}

/* An error on all ranks if a rank's note is not empty. */
static tn_status exchange_notes(const char *function, tni_mpi_group group, const char *note)
{
    int size = tn_parallel_size();
    char *all = tni_alloc_n((size_t)size, NOTE);
    if (!all) return TN_E_NOMEM;
    tn_status status = tni_ranks_status(function, tni_ranks()->gather(group, note, NOTE, all));
    for (int r = 0; r < size && status == TN_OK; r++)
        if (all[r * NOTE])
            status = tni_error(TN_E_STATE, "%s: on rank %d %s", function, r, all + r * NOTE);
    tni_free(all, (size_t)size * NOTE);
    return status;
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* A text that grows. */
typedef struct text {
    char *at;
    size_t n, capacity;
} text;

/* "parameter fc.weight [4,3] f32\n" */
static tn_status describe(text *t, const tn_entry *e)
{
    char line[1024];
    bool parameter = e->kind == TN_PARAMETER;
    int n = snprintf(line, sizeof line, "%s %.800s %s %s%s\n", parameter ? "parameter" : "buffer",
                     e->name, tni_shape_text(&e->tensor->shape), tn_dtype_name(e->tensor->dtype),
                     parameter && !e->tensor->requires_grad ? ", frozen" : "");
    if (!tni_room(&t->at, &t->capacity, t->n, (size_t)n + 1, 1)) return TN_E_NOMEM;
    memcpy(t->at + t->n, line, (size_t)n + 1);
    t->n += (size_t)n;
    return TN_OK;
}

static tn_status describe_all(text *t, const tn_list *list)
{
    tn_status status = TN_OK;
    for (int i = 0; i < list->n && status == TN_OK; i++) status = describe(t, &list->entry[i]);
    return status;
}

/* Writes the first line that differs to note. */
static void note_difference(char *note, const char *own, const char *first)
{
    while (*own && *first) {
        size_t n = strcspn(own, "\n"), m = strcspn(first, "\n");
        if (n != m || memcmp(own, first, n) != 0) break;
        own += n + 1;
        first += m + 1;
    }
    if (!*own && !*first) return;
    snprintf(note, NOTE, "the model has %.*s, where rank 0 has %.*s: want the same model",
             (int)TNI_MIN(strcspn(own, "\n"), 200), *own ? own : "nothing more",
             (int)TNI_MIN(strcspn(first, "\n"), 200), *first ? first : "nothing more");
}

static tn_status compare_text(const char *function, tni_mpi_group group, const text *own)
{
    char note[NOTE] = { 0 };
    uint64_t n = own->n;
    tn_status status = tni_ranks_status(function, tni_ranks()->broadcast(group, &n, sizeof n, 0));
    if (status != TN_OK) return status;
    char *first = tni_alloc(n + 1);
    if (!first) return TN_E_NOMEM;
    if (tn_parallel_rank() == 0) memcpy(first, own->at, n);
    first[n] = '\0';
    status = tni_ranks_status(function, tni_ranks()->broadcast(group, first, n, 0));
    if (status == TN_OK) note_difference(note, own->at, first);
    tni_free(first, n + 1);
    return status == TN_OK ? exchange_notes(function, group, note) : status;
}

tn_status tni_same_models(const char *function, tni_mpi_group group, tn_module *model)
{
    text own = { 0 };
    const tn_list *parameters = tn_parameters(model), *buffers = tni_persistent(model);
    tn_status status = parameters && buffers ? describe_all(&own, parameters) : tni_pending();
    if (status == TN_OK) status = describe_all(&own, buffers);
    if (status == TN_OK) status = compare_text(function, group, &own);
    tni_room_free(&own.at, &own.capacity, 1);
    return status;
}

/* ---- bits ------------------------------------------------------------------------------------ */

static tn_status hash_tensor(const tn_tensor *t, uint64_t *hash)
{
    size_t nbytes = (size_t)tni_shape_numel(&t->shape) * tn_dtype_size(t->dtype);
    void *data = tni_alloc(nbytes + 1);
    if (!data) return TN_E_NOMEM;
    tn_status status = tn_copy_out(t, data, nbytes, t->dtype);
    *hash = hash_bytes(NO_HASH, data, nbytes);
    tni_free(data, nbytes + 1);
    return status;
}

static tn_status check_list(const tn_data_parallel *p, const tn_list *list, uint64_t *hashes,
                            char *note)
{
    static const char function[] = "tn_data_parallel_check";
    tn_status status = TN_OK;
    uint64_t *first = hashes + list->n;
    for (int i = 0; i < list->n && status == TN_OK; i++)
        status = hash_tensor(list->entry[i].tensor, &hashes[i]);
    if (status != TN_OK) return status;
    size_t nbytes = (size_t)list->n * sizeof *hashes;
    memcpy(first, hashes, nbytes);
    status = tni_ranks_status(function, tni_ranks()->broadcast(p->group, first, nbytes, 0));
    for (int i = 0; i < list->n && status == TN_OK && !*note; i++) {
        const tn_entry *e = &list->entry[i];
        if (e->kind == TN_BUFFER && tn_data_parallel_buffers(p, e->name) == TN_BUFFERS_OWN)
            continue;
        if (hashes[i] != first[i])
            snprintf(note, NOTE, "%s %.400s has other bits than on rank 0",
                     e->kind == TN_BUFFER ? "buffer" : "parameter", e->name);
    }
    return status;
}

tn_status tn_data_parallel_check(const tn_data_parallel *p)
{
    static const char function[] = "tn_data_parallel_check";
    char note[NOTE] = { 0 };
    if (!p) return tni_poison(function, "p");
    if (!tni_ranks()) return TN_OK;
    tn_scope scope = tn_scope_begin();
    const tn_list *list[] = { tn_parameters(p->model), tni_persistent(p->model) };
    tn_status status = list[0] && list[1] ? TN_OK : tni_pending();
    for (int k = 0; k < 2 && status == TN_OK; k++) {
        size_t n = 2 * (size_t)list[k]->n + 1;
        uint64_t *hashes = tni_alloc_n(n, sizeof *hashes);
        status = hashes ? check_list(p, list[k], hashes, note) : TN_E_NOMEM;
        tni_free(hashes, n * sizeof *hashes);
    }
    tn_scope_end(scope);
    return status == TN_OK ? exchange_notes(function, p->group, note) : status;
}
