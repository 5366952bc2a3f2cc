/* hook_list.c - hooks by id. A removed one leaves a gap, until half of the list is gaps. */
#include "autograd/hook_list.h"

static atomic_llong ids = 1;

/* The number of hooks with an id of at most `id`. */
static size_t upto(const tni_hook_list *list, int64_t id)
{
    return list->n ? tni_upto(&list->hook->id, sizeof *list->hook, list->n, id) : 0;
}

static void close_gaps(tni_hook_list *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        if (list->hook[i].call) list->hook[n++] = list->hook[i];
    list->n = n;
    list->removed = 0;
}

int64_t tni_hook_add(tni_hook_list *list, int kind, tni_any_hook call, void *user)
{
    if (!tni_room(&list->hook, &list->capacity, list->n, 1, sizeof *list->hook)) return -1;
    list->hook[list->n] = (tni_hook){ atomic_fetch_add(&ids, 1), kind, call, user };
    return list->hook[list->n++].id;
}

void tni_hook_remove(tni_hook_list *list, int64_t id)
{
    size_t i = upto(list, id);
    if (i == 0 || list->hook[i - 1].id != id || !list->hook[i - 1].call) return;
    list->hook[i - 1].call = NULL;
    if (2 * ++list->removed >= list->n) close_gaps(list);
}

int64_t tni_hook_last(const tni_hook_list *list)
{
    return list->n ? list->hook[list->n - 1].id : 0;
}

bool tni_hook_next(const tni_hook_list *list, int kind, int64_t last, tni_hook *hook)
{
    for (size_t i = upto(list, hook->id); i < list->n && list->hook[i].id <= last; i++) {
        if (!list->hook[i].call || list->hook[i].kind != kind) continue;
        *hook = list->hook[i];
        return true;
    }
    return false;
}

void tni_hook_list_free(tni_hook_list *list)
{
    tni_room_free(&list->hook, &list->capacity, sizeof *list->hook);
    *list = (tni_hook_list){ 0 };
}

tn_status tni_hook_check(const char *who, const char *of, const tn_tensor *gradient,
                         const tn_tensor *now)
{
    const char *shape = tni_shape_text(&gradient->shape);
    if (now == gradient) return TN_OK;
    if (!now)
        return tni_missing("%s gave NULL for the gradient %s%s: want it, or a tensor like it", who,
                           shape, of);
    if (tni_none(now) || !tni_shape_equal(&now->shape, &gradient->shape))
        return tni_error(TN_E_SHAPE, "%s gave %s for the gradient %s%s: want the same shape", who,
                         tni_none(now) ? "TN_NONE" : tni_text(now), shape, of);
    if (now->dtype != gradient->dtype)
        return tni_error(TN_E_DTYPE, "%s gave %s for the gradient %s%s of %s: want the same dtype",
                         who, tn_dtype_name(now->dtype), shape, of, tn_dtype_name(gradient->dtype));
    if (!tni_same_device(now->storage->device, gradient->storage->device))
        return tni_error(
            TN_E_DEVICE,
            "%s gave a tensor on another device for the gradient %s%s: want the same device", who,
            shape, of);
    return TN_OK;
}
