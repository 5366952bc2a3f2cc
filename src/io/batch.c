/*
 * batch.c - a batch in parts (nn/micro_batches.c) in a checkpoint: which part comes next, and what
 * the parts so far made of the buffers. The buffers themselves are as before the batch.
 *
 *     .batch.at                i64 [4]: next part, parts, 1 if buffers have moved already, buffers
 *     .batch.K.n               f64 [2]: parts, or numbers behind moments, so far; momentum; where a
 *                              running variance is to be biased [3], the last of them 1
 *     .batch.K.of.PART.NAME    what the parts made of that buffer
 *     .batch.K.var.PART.NAME   of moments: of the running variance, the sum of squares
 */
#include "io/parts.h"

static const char *name_of(const tn_list *buffers, const tn_tensor *t)
{
    for (int i = 0; i < buffers->n; i++)
        if (buffers->entry[i].tensor == t) return buffers->entry[i].name;
    return NULL;
}

/* Under .batch.K.WHAT NAME. */
static tn_status push(tn_list *list, int64_t k, const char *what, const char *name, tn_tensor *t)
{
    char prefix[48];
    tn_entry e = { .tensor = t, .persistent = true };
    snprintf(prefix, sizeof prefix, TNI_BATCH ".%" PRId64 ".%s", k, what);
    return t ? tni_list_push(list, prefix, "", name, e) : tni_pending();
}

static tn_status save(const tni_moved *m, int64_t k, const char *of, const char *var, tn_list *list)
{
    const double x[] = { m->n, m->momentum, 1 };
    tn_status status = push(list, k, "", "n", tn_from_data(x, TN_SHAPE(m->biased ? 3 : 2), TN_F64));
    if (status == TN_OK) status = push(list, k, "of.", of, m->value);
    return status == TN_OK && m->var ? push(list, k, "var.", var, m->spread) : status;
}

tn_status tni_batch_save(const tni_parts *parts, tn_list *list)
{
    tni_batch *b = tni_batch_now;
    if (!b) return TN_OK;
    tn_status status = b->open ? tni_batch_settle(b, true) : TN_OK;
    const tn_list *buffers = tni_parts_tensors(parts, true);
    if (!buffers) return tni_pending();
    int64_t at[] = { b->at + b->open, b->parts, b->over, 0 };
    for (int i = 0; status == TN_OK && !b->over && i < b->n; i++) {
        const tni_moved *m = &b->moved[i];
        const char *of = name_of(buffers, m->buffer), *var = m->var ? name_of(buffers, m->var) : "";
        if (m->n > 0 && of && var) status = save(m, at[3]++, of, var, list);
    }
    tn_entry e = { .tensor = tn_from_data(at, TN_SHAPE(4), TN_I64), .persistent = true };
    if (status != TN_OK || !e.tensor) return tni_pending();
    return tni_list_push(list, TNI_BATCH ".", "", "at", e);
}

/* ---- loading --------------------------------------------------------------------------------- */

#define DAMAGED "its batch in parts is damaged: %s"

/* n values under a name. */
static bool read_values(const tn_list *list, const char *name, tn_dtype dtype, int64_t n, void *to)
{
    const tn_entry *e = tni_list_find(list, name);
    return e && e->tensor->dtype == dtype && e->tensor->shape.rank == 1 &&
           e->tensor->shape.size[0] == n &&
           tn_copy_out(e->tensor, to, (size_t)n * tn_dtype_size(dtype), dtype) == TN_OK;
}

/* The entry "K.WHAT.PART.NAME", for that buffer, in *buffer; NULL: none, or, with *buffer set, it
 * does not fit. */
static tn_tensor *find(const tni_parts *parts, const tn_list *buffers, int64_t k, const char *what,
                       const tn_entry **buffer)
{
    char prefix[48];
    const tn_list *list = parts->batch;
    size_t n = (size_t)snprintf(prefix, sizeof prefix, "%" PRId64 ".%s.", k, what);
    for (int i = 0; i < list->n; i++) {
        if (strncmp(list->entry[i].name, prefix, n) != 0) continue;
        tn_tensor *t = list->entry[i].tensor;
        const tn_entry *e = tni_list_find(buffers, list->entry[i].name + n);
        *buffer = e ? e : &list->entry[i];
        bool fits = e && tni_shape_equal(&t->shape, &e->tensor->shape);
        return fits ? tn_to(t, e->tensor->storage->device) : NULL;
    }
    return NULL;
}

static tn_status read(const tni_input *in, tni_parts *parts, const tn_list *buffers, int64_t k)
{
    char name[32];
    double numbers[3];
    const tn_entry *of = NULL, *var = NULL;
    snprintf(name, sizeof name, "%" PRId64 ".n", k);
    tn_tensor *value = find(parts, buffers, k, "of", &of);
    tn_tensor *spread = find(parts, buffers, k, "var", &var);
    const bool biased = read_values(parts->batch, name, TN_F64, 3, numbers);
    if (!value || (var && !spread) ||
        (!biased && !read_values(parts->batch, name, TN_F64, 2, numbers)) ||
        !(numbers[0] >= 1 + (spread != NULL)) || !(numbers[1] >= 0 && numbers[1] <= 1))
        return tni_input_bad(in, DAMAGED, of ? of->name : name);
    const tni_slot *slot = spread ? NULL : tni_slot_of(of->owner, of->name);
    tni_moved *m = tni_batch_add(parts->begun, slot ? of->owner : NULL, slot, of->tensor,
                                 spread ? var->tensor : NULL);
    if (!m) return tni_pending();
    m->n = numbers[0], m->momentum = numbers[1], m->biased = biased;
    m->value = tn_keep(value);
    m->spread = spread ? tn_keep(spread) : NULL;
    return TN_OK;
}

/* Whether loading ends this thread's batch: the file has another, or buffers that it moves. */
static bool ends_batch(const tni_parts *parts, const tn_list *buffers)
{
    bool ends = parts->batch->n > 0;
    for (int i = 0; tni_batch_now && i < tni_batch_now->n; i++)
        ends |= name_of(buffers, tni_batch_now->moved[i].buffer) != NULL;
    return ends;
}

tn_status tni_batch_read(const tni_input *in, tni_parts *parts)
{
    int64_t at[4];
    if (!tni_batch_now && parts->batch->n == 0) return TN_OK;
    const tn_list *buffers = tni_parts_tensors(parts, true);
    if (!buffers) return tni_pending();
    parts->ends = ends_batch(parts, buffers);
    if (parts->batch->n == 0) return TN_OK;
    if (!read_values(parts->batch, "at", TN_I64, 4, at) || at[0] < 0 || at[0] > at[1] ||
        at[1] < 1 || at[1] > INT32_MAX || at[3] < 0 || at[3] > parts->batch->n)
        return tni_input_bad(in, DAMAGED, "at");
    tni_batch *b = parts->begun = tni_calloc(sizeof *b);
    if (!b) return TN_E_NOMEM;
    b->at = (int)at[0], b->parts = (int)at[1], b->over = at[2] != 0;
    for (int64_t k = 0; k < at[3]; k++) TNI_TRY(read(in, parts, buffers, k));
    return TN_OK;
}

void tni_batch_put(tni_parts *parts)
{
    tni_batch *b = parts->begun;
    for (int i = 0; b && i < b->n; i++) {
        tni_moved *m = &b->moved[i];
        if (m->start) TN_NO_GRAD tni_disregard(tn_copy_(m->start, m->buffer));
        m->version = tn_version(m->buffer);
    }
    if (!parts->ends) return;
    tni_batch_free(tni_batch_now); /* not put back: its buffers are others now */
    tni_batch_now = b;
    parts->begun = NULL;
}
