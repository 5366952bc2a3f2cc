/*
 * compare.c - whether all ranks have the same model: its layout in words at the start, as a number
 * in each pass, its bits on request; and how a failure of one rank becomes one of all (tni_agree).
 *
 * Each rank compares itself with rank 0 and writes what differs, if anything, into a note of fixed
 * size. One small sum tells all ranks whether any note has text; then the notes are exchanged, so
 * that every rank fails with the same message and none waits for a rank that has given up.
 */
#include "ext/parallel/data_parallel.h"
#include "io/file.h"

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
        hash = tni_hash(hash, &list->entry[i].role, sizeof list->entry[i].role);
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
    TNI_TRY(TNI_MPI(function, sum, group, &any, 1, TN_I64));
    for (int r = 0; r < tn_parallel_size() && any; r++) {
        remark theirs = *own;
        TNI_TRY(TNI_MPI(function, broadcast, group, &theirs, sizeof theirs, r));
        if (theirs.status != TN_OK)
            return tni_error(theirs.status, "%s: on rank %d %s", function, r, theirs.text);
    }
    return TN_OK;
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

/* ---- line by line ---------------------------------------------------------------------------- */

enum { DIGITS = 16 }; /* of a hash */

/* Writes the first line that differs to the note; verdict: what is said of it, and the line begins
 * with a hash; NULL: that it is to be as on rank 0. */
static void note_difference(remark *note, const char *own, const char *first, const char *verdict)
{
    const char *what = "call"; /* its options are the first line */
    while (*own && *first) {
        size_t n = strcspn(own, "\n"), m = strcspn(first, "\n");
        if (verdict ? strncmp(own, first, DIGITS) : n != m || memcmp(own, first, n)) break;
        own += n + 1;
        first += m + 1;
        what = "model";
    }
    if (!*own && !*first) return;
    note->status = TN_E_STATE;
    if (verdict) own += TNI_MIN(strcspn(own, "\n"), DIGITS + 1);
    int n = (int)TNI_MIN(strcspn(own, "\n"), verdict ? 400 : 200);
    if (!*own) n = (int)strlen(own = "nothing more");
    if (verdict)
        snprintf(note->text, NOTE, "%.*s %s", n, own, verdict);
    else
        snprintf(note->text, NOTE, "the %s has %.*s, where rank 0 has %.*s: want the same %s", what,
                 n, own, (int)TNI_MIN(strcspn(first, "\n"), 200), *first ? first : "nothing more",
                 what);
}

/* Compares this rank's text with rank 0's; status: whether it could be made. */
static tn_status compare_text(const char *function, tni_mpi_group group, tn_status status,
                              tni_bytes *own, const char *verdict)
{
    remark note = { 0 };
    tni_bytes_add(own, "", 1);
    if (status == TN_OK && own->failed) status = tni_pending();
    uint64_t n = own->n;
    TNI_TRY(TNI_MPI(function, broadcast, group, &n, sizeof n, 0));
    char *first = status == TN_OK ? tni_alloc_n(n + 1, 1) : NULL;
    if (status == TN_OK && !first) status = TN_E_NOMEM;
    status = tni_agree(function, group, status);
    if (status == TN_OK && tn_parallel_rank() == 0) memcpy(first, own->data, n);
    if (status == TN_OK) status = TNI_MPI(function, broadcast, group, first, n, 0);
    if (status == TN_OK) {
        note_difference(&note, own->data, first, verdict);
        status = exchange_notes(function, group, &note);
    }
    tni_free(first, n + 1);
    return status;
}

tn_status tn_parallel_same(const char *what, const void *data, size_t nbytes)
{
    if (!what || (!data && nbytes)) return tni_poison(__func__, what ? "data" : "what");
    if (!tni_ranks()) return TN_OK;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) own = { 0 };
    uint64_t hash = tni_hash(tni_hash(TNI_NO_HASH, &nbytes, sizeof nbytes), data, nbytes);
    tni_bytes_printf(&own, "%0*" PRIx64 " %s\n", DIGITS, hash, what);
    return compare_text(__func__, tni_ranks_group(), TN_OK, &own, "is not the same as on rank 0");
}

tn_list *tni_same_on_all(tn_module *model)
{
    return tn_list_concat(tn_parameters(model), tni_persistent(model));
}

static const char *kind_of(const tn_entry *e)
{
    return e->kind == TN_BUFFER ? "buffer" : "parameter";
}

tn_status tni_same_models(const char *function, const tn_data_parallel *p)
{
    static const char *const rule[] = { "FIRST", "MEAN", "OWN" };
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) own = { 0 };
    const tn_list *all = tni_same_on_all(p->model);
    tni_bytes_printf(&own, "bucket_bytes %" PRId64 " and TN_BUFFERS_%s%s\ntensors on a %s\n",
                     p->bucket_bytes, rule[p->rule],
                     p->messages == TN_BF16 ? ", messages bf16" : "",
                     p->device.type == TN_CUDA ? "GPU" : "CPU");
    for (const tn_entry *e = all ? all->entry : NULL; e && e < all->entry + all->n; e++) {
        bool frozen = e->kind == TN_PARAMETER && !e->tensor->requires_grad;
        const char *role = tn_role_name(e->role);
        tni_bytes_printf(&own, "%s %.800s %s %s%s%s%s\n", kind_of(e), e->name,
                         tni_shape_text(&e->tensor->shape), tn_dtype_name(e->tensor->dtype),
                         frozen ? ", frozen" : "", role[0] ? ", " : "", role);
    }
    const tn_list *buffers = tn_buffers(p->model);
    tn_status status = all && buffers ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < buffers->n; i++) {
        const tn_entry *e = &buffers->entry[i];
        if (!tni_is(e->role, TN_CONSTANT)) continue;
        uint64_t hash = tn_hash(e->tensor);
        if (hash == 0) status = tn_error_status();
        tni_bytes_printf(&own, "constant %.800s of hash %" PRIx64 "\n", e->name, hash);
    }
    return compare_text(function, p->group, status, &own, NULL);
}

tn_status tn_data_parallel_check(const tn_data_parallel *p)
{
    if (!p) return tni_poison(__func__, "p");
    if (!tni_ranks()) return TN_OK;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) own = { 0 };
    TNI_SCOPED;
    const tn_list *all = tni_same_on_all(p->model);
    tn_status status = all ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < all->n; i++) {
        const tn_entry *e = &all->entry[i];
        uint64_t hash = tn_hash(e->tensor);
        if (hash == 0) status = tn_error_status();
        if (e->kind == TN_BUFFER && tn_data_parallel_buffers(p, e->name) == TN_BUFFERS_OWN)
            hash = 0;
        tni_bytes_printf(&own, "%0*" PRIx64 " %s %s\n", DIGITS, hash, kind_of(e), e->name);
    }
    return compare_text(__func__, p->group, status, &own, "has other bits than on rank 0");
}
