/* groups.c - which parameters form a group: by predicate. */
#include "optim/optim.h"

tn_list *tn_list_filter(const tn_list *list, bool (*keep)(const tn_entry *entry, void *user),
                        void *user)
{
    if (!list) return tni_poisoned("tn_list_filter", "the list");
    if (!keep) return tni_fail(TN_E_INVALID, "tn_list_filter: keep is NULL: want a function");
    tn_list *kept = tni_list_new(__func__);
    size_t guarded = tni_scope_guard();
    for (int i = 0; kept && i < list->n; i++)
        if (keep(&list->entry[i], user) &&
            tni_list_push(kept, "", "", list->entry[i].name, list->entry[i]) != TN_OK)
            kept = NULL;
    return tni_list_made(guarded, "tn_list_filter", kept);
}

bool tn_no_decay(const tn_entry *entry, void *user)
{
    (void)user;
    if (!entry || !entry->tensor) return tni_false(tni_poison("tn_no_decay", "entry"));
    return entry->tensor->shape.rank < 2 || (entry->owner && entry->owner->type->no_decay);
}

bool tn_decay(const tn_entry *entry, void *user)
{
    if (!entry || !entry->tensor) return tni_false(tni_poison("tn_decay", "entry"));
    return !tn_no_decay(entry, user);
}
