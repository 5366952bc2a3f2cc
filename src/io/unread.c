/*
 * unread.c - tensors whose values are still in a file.
 *
 * Its elements are as far into a range of addresses as its values are into the file: views have
 * their place, ties are the same memory. Nothing is ever there: the range is no map of the file,
 * where reading what is cut off would be a fault.
 */
#include <sys/mman.h>

#include "autograd/op.h"
#include "io/io.h"
#include "nn/module.h"
#include "optim/optim.h"

typedef struct tni_unread {
    atomic_int refs; /* of the input, and of storages */
    tni_input in;
    char *range; /* in.size bytes and one more */
    char path[]; /* in.path */
} tni_unread;

void tni_unread_leave(void *unread)
{
    tni_unread *u = unread;
    if (!tni_last(&u->refs)) return;
    munmap(u->range, (size_t)u->in.size + 1);
    tni_input_close(&u->in);
    tni_free(u, sizeof *u + strlen(u->path) + 1);
}

static tni_unread *hold(tni_input *in)
{
    const size_t n = strlen(in->path) + 1, size = (size_t)in->size + 1;
    tni_unread *u = tni_alloc(sizeof *u + n);
    if (!u) return NULL;
    *u = (tni_unread){ .refs = 1, .in = *in };
    u->in.path = memcpy(u->path, in->path, n);
    u->range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (u->range != MAP_FAILED) return in->unread = u;
    tni_free(u, sizeof *u + n);
    tni_input_error(in, TN_E_NOMEM, "there are no %zu addresses for it", size);
    return NULL;
}

tn_tensor *tni_unread_tensor(tni_input *in, int64_t at, tn_shape shape, tn_dtype dtype)
{
    tni_unread *u = in->unread ? in->unread : hold(in);
    tn_tensor *t = u ? tn_from_memory(u->range + at, shape, dtype, tni_unread_leave, u) : NULL;
    if (t) atomic_fetch_add_explicit(&u->refs, 1, memory_order_relaxed);
    return t;
}

static bool is_unread(const tn_tensor *t)
{
    return t->storage && t->storage->release == tni_unread_leave; /* TN_NONE has none */
}

/* What is read and written front to back: no memory is needed for it then. */
bool tni_unread_waits(const tn_tensor *t, const tn_tensor *to)
{
    const bool here = to->storage->device.type == TN_CPU;
    return is_unread(t) && here && tni_is_dense(t) && tni_is_dense(to);
}

/* All of the storage is read: a view may reach all of it. */
tn_tensor *tni_unread_values(tn_tensor *t)
{
    const tni_storage *s = t->storage;
    const tni_unread *u = s->user;
    if (!is_unread(t)) return t;
    const int64_t n = (int64_t)(s->nbytes / tn_dtype_size(t->dtype));
    tn_tensor *all = tn_empty_as(TN_SHAPE(n), t->dtype, tn_cpu());
    const tni_scan scan = { .data = all ? tni_data(all) : NULL };
    if (!all || tni_input_scan(&u->in, (char *)s->data - u->range, s->nbytes, scan)) return NULL;
    tni_spec spec = { t->dtype, t->shape, .strided = true, .offset = t->offset };
    memcpy(spec.stride, t->stride, sizeof spec.stride);
    return tni_alias(all, &spec);
}

tn_status tni_unread_put(tn_tensor *to, tn_tensor *t)
{
    if (!is_unread(t)) return tn_copy_(to, t);
    const tni_unread *u = t->storage->user;
    const tni_scan scan = { tni_data(to), NULL, t->dtype, to->dtype };
    const int64_t at = (char *)tni_data(t) - u->range;
    TNI_TRY(tni_may_write("tn_load_state_dict", to, TN_NONE));
    tn_status status = tni_input_scan(&u->in, at, tni_bytes_of(t), scan);
    if (status != TN_OK && tn_dtype_is_float(to->dtype)) tni_disregard(tn_fill_(to, NAN));
    tni_bump_rewritten(to);
    return status == TN_OK ? status : tni_error_prefix("half loaded, with NaN where it failed: ");
}

tn_status tni_unread_fill(tn_list *list, const tn_optim *optimizer, bool values)
{
    tni_map TN_WHEN_LEFT(tni_map_free) filled = { 0 }; /* tensor -> what it becomes; a tie once */
    for (int i = 0; i < list->n; i++) {
        tn_entry *e = &list->entry[i];
        const tn_tensor *u = e->tensor;
        if (!is_unread(u) || (optimizer && !tni_optim_reads(optimizer, e->name))) continue;
        tn_tensor *t = tni_map_get(&filled, u);
        if (!t && values) t = tni_unread_values(e->tensor);
        if (!t && !values) t = tn_expand(tn_full_as(TN_SCALAR, 0, u->dtype, tn_cpu()), u->shape);
        if (!t || tni_map_put(&filled, u, t) < 0) return tni_pending();
        tn_drop(e->tensor);
        e->tensor = tn_keep(t);
    }
    return TN_OK;
}

int64_t tni_read_first = INT64_C(64) << 20;

/* Nothing of the file can then fail when a model has been changed half way. */
tn_status tni_unread_fill_small(tn_list *list)
{
    int64_t bytes = 0;
    for (int i = 0; i < list->n && bytes <= tni_read_first; i++)
        bytes += tni_bytes_of(list->entry[i].tensor);
    return bytes <= tni_read_first ? tni_unread_fill(list, NULL, true) : TN_OK;
}
