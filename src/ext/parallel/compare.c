/*
 * compare.c - whether all ranks have the same model: its layout in words at the start, as a number
 * in each pass, its bits on request; and how a failure of one rank becomes one of all (tni_agree).
 *
 * Each rank compares itself with rank 0 and writes what differs, if anything, into a note of fixed
 * size. One small sum tells all ranks whether any note has text; then the notes are exchanged, so
 * that every rank fails with the same message and none waits for a rank that has given up.
 */
#include <stdio.h>

#include "ext/parallel/data_parallel.h"

enum { NOTE = 512 };

tn_list *tni_persistent(tn_module *model)
{
    return tn_buffers_with(model, (tn_walk_options){ .persistent_only = true });
}

uint64_t tni_layout_hash(const tn_data_parallel *p, const tn_list *list)
{
    uint64_t hash = TNI_NO_HASH;
    for (int i = 0; i < list->n; i++) {
        const tn_tensor *t = list->entry[i].tensor;
        hash = tni_hash(hash, list->entry[i].name, strlen(list->entry[i].name) + 1);
        hash = tni_hash(hash, &t->dtype, sizeof t->dtype);
        hash = tni_hash(hash, &t->shape.rank, sizeof t->shape.rank);
        hash = tni_hash(hash, t->shape.size, (size_t)t->shape.rank * sizeof *t->shape.size);
        if (list->entry[i].kind != TN_BUFFER) continue;
        tn_buffer_rule rule = tn_data_parallel_buffers(p, list->entry[i].name);
        hash = tni_hash(hash, &rule, sizeof rule);
    }
    return hash;
}

/* What a rank has to say. */
typedef struct remark {
    tn_status status; /* TN_OK: nothing */
    char text[NOTE];
} remark;

/* The first note with a failure becomes the error on all ranks. Each sends its own in turn: nothing
 * is allocated, so no rank can fail here alone. */
static tn_status exchange_notes(const char *function, tni_mpi_group group, const remark *own)
{
    int64_t any = own->status != TN_OK;
    tn_status status = tni_ranks_status(function, tni_ranks()->sum(group, &any, 1, TN_I64));
    for (int r = 0; r < tn_parallel_size() && status == TN_OK && any; r++) {
        remark theirs = *own;
        status =
            tni_ranks_status(function, tni_ranks()->broadcast(group, &theirs, sizeof theirs, r));
        if (status == TN_OK && theirs.status != TN_OK)
            status = tni_error(theirs.status, "%s: on rank %d %s", function, r, theirs.text);
    }
    return status;
}

tn_status tni_agree(const char *function, tni_mpi_group group, tn_status status)
{
    remark own = { .status = status };
    const char *text = tn_error();
    size_t n = strlen(function);
    if (strncmp(text, function, n) == 0 && strncmp(text + n, ": ", 2) == 0) text += n + 2;
    if (status != TN_OK) snprintf(own.text, sizeof own.text, "%.*s", NOTE - 1, text);
    return exchange_notes(function, group, &own);
}

tn_status tn_parallel_agree(tn_status status)
{
    return tni_ranks() ? tni_agree("tn_parallel_agree", tni_ranks_group(), status) : status;
}

tn_status tn_parallel_same(const char *what, const void *data, size_t nbytes)
{
    static const char f[] = "tn_parallel_same";
    if (!what || (!data && nbytes)) return tni_poison(f, what ? "data" : "what");
    if (!tni_ranks()) return TN_OK;
    remark note = { 0 };
    uint64_t own[] = { nbytes, tni_hash(TNI_NO_HASH, data, nbytes) }, first[] = { own[0], own[1] };
    tni_mpi_group group = tni_ranks_group();
    tn_status status = tni_ranks_status(f, tni_ranks()->broadcast(group, first, sizeof first, 0));
    if (status != TN_OK) return status;
    if (memcmp(own, first, sizeof first) != 0) {
        note.status = TN_E_STATE;
        snprintf(note.text, NOTE, "%.400s is not the same as on rank 0", what);
    }
    return exchange_notes(f, group, &note);
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* A text that grows. */
typedef struct text {
    char *at;
    size_t n, capacity;
} text;

static tn_status add_line(text *t, const char *line)
{
    size_t n = strlen(line);
    if (!tni_room(&t->at, &t->capacity, t->n, n + 1, 1)) return TN_E_NOMEM;
    memcpy(t->at + t->n, line, n + 1);
    t->n += n;
    return TN_OK;
}

/* "parameter fc.weight [4,3] f32\n" */
static tn_status describe(text *t, const tn_entry *e)
{
    char line[1024];
    bool parameter = e->kind == TN_PARAMETER;
    snprintf(line, sizeof line, "%s %.800s %s %s%s\n", parameter ? "parameter" : "buffer", e->name,
             tni_shape_text(&e->tensor->shape), tn_dtype_name(e->tensor->dtype),
             parameter && !e->tensor->requires_grad ? ", frozen" : "");
    return add_line(t, line);
}

static tn_status describe_all(text *t, const tn_list *list)
{
    tn_status status = TN_OK;
    for (int i = 0; i < list->n && status == TN_OK; i++) status = describe(t, &list->entry[i]);
    return status;
}

/* Writes the first line that differs to the note. */
static void note_difference(remark *note, const char *own, const char *first)
{
    bool options = strchr(own, '\n') - own != strchr(first, '\n') - first ||
                   strncmp(own, first, strcspn(own, "\n")) != 0;
    const char *what = options ? "call" : "model";
    while (*own && *first) {
        size_t n = strcspn(own, "\n"), m = strcspn(first, "\n");
        if (n != m || memcmp(own, first, n) != 0) break;
        own += n + 1;
        first += m + 1;
    }
    if (!*own && !*first) return;
    note->status = TN_E_STATE;
    snprintf(note->text, NOTE, "the %s has %.*s, where rank 0 has %.*s: want the same %s", what,
             (int)TNI_MIN(strcspn(own, "\n"), 200), *own ? own : "nothing more",
             (int)TNI_MIN(strcspn(first, "\n"), 200), *first ? first : "nothing more", what);
}

static tn_status compare_text(const char *function, tni_mpi_group group, tn_status status,
                              const text *own)
{
    remark note = { 0 };
    uint64_t n = own->n;
    const tni_mpi *mpi = tni_ranks();
    tn_status sent = tni_ranks_status(function, mpi->broadcast(group, &n, sizeof n, 0));
    if (sent != TN_OK) return sent;
    char *first = status == TN_OK ? tni_alloc(n + 1) : NULL;
    if (status == TN_OK && !first) status = TN_E_NOMEM;
    status = tni_agree(function, group, status);
    if (status == TN_OK && tn_parallel_rank() == 0) memcpy(first, own->at, n);
    if (status == TN_OK) status = tni_ranks_status(function, mpi->broadcast(group, first, n, 0));
    if (status == TN_OK) {
        first[n] = '\0';
        note_difference(&note, own->at, first);
        status = exchange_notes(function, group, &note);
    }
    if (first) tni_free(first, n + 1);
    return status;
}

tn_status tni_same_models(const char *function, const tn_data_parallel *p)
{
    static const char *const rule[] = { "FIRST", "MEAN", "OWN" };
    text own = { 0 };
    char line[128];
    const tn_list *parameters = tn_parameters(p->model), *buffers = tni_persistent(p->model);
    snprintf(line, sizeof line, "bucket_bytes %" PRId64 " and TN_BUFFERS_%s%s\ntensors on a %s\n",
             p->bucket_bytes, rule[p->rule], p->messages == TN_BF16 ? ", messages bf16" : "",
             p->device.type == TN_CUDA ? "GPU" : "CPU");
    tn_status status = parameters && buffers ? add_line(&own, line) : tni_pending();
    if (status == TN_OK) status = describe_all(&own, parameters);
    if (status == TN_OK) status = describe_all(&own, buffers);
    status = compare_text(function, p->group, status, &own);
    tni_room_free(&own.at, &own.capacity, 1);
    return status;
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* The hashes of all tensors of both lists; n of them. */
static tn_status hash_lists(const tn_list *const list[2], uint64_t *hashes)
{
    tn_status status = TN_OK;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < list[k]->n && status == TN_OK; i++) {
            *hashes = tn_hash(list[k]->entry[i].tensor);
            if (*hashes++ == 0) status = tn_error_status();
        }
    return status;
}

/* Notes the first tensor whose hash is not rank 0's. */
static void note_bits(const tn_data_parallel *p, const tn_list *const list[2],
                      const uint64_t *hashes, const uint64_t *first, remark *note)
{
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < list[k]->n; i++) {
            const tn_entry *e = &list[k]->entry[i];
            bool own =
                e->kind == TN_BUFFER && tn_data_parallel_buffers(p, e->name) == TN_BUFFERS_OWN;
            if (*hashes++ == *first++ || own || note->status != TN_OK) continue;
            note->status = TN_E_STATE;
            snprintf(note->text, NOTE, "%s %.400s has other bits than on rank 0",
                     e->kind == TN_BUFFER ? "buffer" : "parameter", e->name);
        }
}

static tn_status check_bits(const char *function, const tn_data_parallel *p)
{
    remark note = { 0 };
    const tn_list *list[2] = { tn_parameters(p->model), tni_persistent(p->model) };
    bool listed = list[0] && list[1];
    size_t n = listed ? (size_t)list[0]->n + (size_t)list[1]->n : 0;
    uint64_t *hashes = listed ? tni_alloc_n(2 * n + 1, sizeof *hashes) : NULL;
    uint64_t *first = hashes ? hashes + n : NULL;
    tn_status status = !listed ? tni_pending() : hashes ? hash_lists(list, hashes) : TN_E_NOMEM;
    status = tni_agree(function, p->group, status);
    if (status == TN_OK) {
        memcpy(first, hashes, n * sizeof *hashes);
        status = tni_ranks_status(function,
                                  tni_ranks()->broadcast(p->group, first, n * sizeof *hashes, 0));
    }
    if (status == TN_OK) {
        note_bits(p, list, hashes, first, &note);
        status = exchange_notes(function, p->group, &note);
    }
    tni_free(hashes, (2 * n + 1) * sizeof *hashes);
    return status;
}

tn_status tn_data_parallel_check(const tn_data_parallel *p)
{
    static const char function[] = "tn_data_parallel_check";
    if (!p) return tni_poison(function, "p");
    if (!tni_ranks()) return TN_OK;
    tn_scope scope = tn_scope_begin();
    tn_status status = check_bits(function, p);
    tn_scope_end(scope);
    return status;
}
