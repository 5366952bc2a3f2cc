/*
 * register.c - names: registering, replacing, deleting and looking up parameters, buffers and
 * children.
 *
 * Parameters, buffers and children share one name space. The order of checks is part of the
 * contract: the first failing one wins, and inside a constructor the first failing registration is
 * the one whose message tn_module_done keeps.
 */
#include "autograd/recompute.h"
#include "nn/module.h"

static const char *const kind_name[] = {
    [TNI_PARAMETER] = "parameter",
    [TNI_BUFFER] = "buffer",
    [TNI_CHILD] = "child",
};

/* ---- checks ---------------------------------------------------------------------------------- */

/* Returns status; remembers the first failure of a construction with its message. */
static tn_status note(tn_module *m, tn_status status)
{
    tni_building *b = m->state->building;
    if (status != TN_OK && b && b->first.status == TN_OK) {
        tni_error_save(&b->first);
        b->first.status = status;
    }
    return status;
}

/* What later registrations in a constructor return after an earlier one failed. */
static tn_status failed_before(const tn_module *m)
{
    return m->state->building ? m->state->building->first.status : TN_OK;
}

static tn_status check_dot_and_empty(const char *function, const tn_module *m, const char *name)
{
    if (strchr(name, '.'))
        return tni_error(TN_E_NAME,
                         "%s: name \"%s\" in %s contains a dot: want a name without one (dots "
                         "separate the modules of a path)",
                         function, name, m->type->name);
    if (!name[0])
        return tni_error(TN_E_NAME, "%s: the name in %s is empty: want at least one character",
                         function, m->type->name);
    return TN_OK;
}

/* A name is taken by a member of another kind or by what every module has. */
static tn_status check_free(const char *function, const tn_module *m, const char *name,
                            tni_slot_kind kind)
{
    const tni_slot *slot = tni_slot_find(m, name, strlen(name));
    const char *taken = slot && slot->kind != kind ? kind_name[slot->kind] : NULL;
    if (strcmp(name, "forward") == 0) taken = "function";
    if (strcmp(name, "training") == 0) taken = "flag";
    if (!taken) return TN_OK;
    return tni_error(TN_E_NAME,
                     "%s: \"%s\" already exists in %s as a %s: want another name for this %s",
                     function, name, m->type->name, taken, kind_name[kind]);
}

static tn_status check_name(const char *function, const tn_module *m, const char *name,
                            tni_slot_kind kind)
{
    if (!name)
        return tni_error(TN_E_INVALID, "%s: the name of a %s of %s is NULL: want a string",
                         function, kind_name[kind], m->type->name);
    if (kind == TNI_CHILD) TNI_TRY(check_free(function, m, name, kind));
    TNI_TRY(check_dot_and_empty(function, m, name));
    return check_free(function, m, name, kind);
}

/* The field is NULL (offset 0), or is in the struct after its base and belongs to no other slot. */
static tn_status check_field(const char *function, const tn_module *m, const char *name,
                             const void *field, size_t *offset)
{
    *offset = 0;
    if (!field) return TN_OK;
    if (!tni_module_contains(m, field))
        return tni_error(TN_E_INVALID,
                         "%s: the field for \"%s\" lies outside the struct of %s: want the address "
                         "of one of its fields, or NULL",
                         function, name, m->type->name);
    *offset = (size_t)((uintptr_t)field - (uintptr_t)m);
    const tni_slot *slot = tni_slot_at(m, *offset);
    if (slot && strcmp(slot->name, name) != 0)
        return tni_error(
            TN_E_INVALID,
            "%s: the field for \"%s\" of %s already follows \"%s\": want one field each", function,
            name, m->type->name, slot->name);
    return TN_OK;
}

/* Whether its parameter is not trained. The mark counts in a frozen module and an empty slot; else
 * the tensor tells, whose requires_grad anybody may set. */
static bool is_frozen(const tn_module *m, const tni_slot *slot)
{
    bool marked = m->state->frozen || tni_none(slot->tensor);
    return marked ? slot->frozen : !slot->tensor->requires_grad;
}

tn_status tni_slot_accepts(const char *function, const tn_module *m, const tni_slot *slot,
                           const tn_tensor *t)
{
    const char *name = slot->name;
    if (!t)
        return tni_missing("%s: the tensor for %s \"%s\" of %s is NULL: want a tensor or TN_NONE",
                           function, kind_name[slot->kind], name, m->type->name);
    if (slot->kind == TNI_BUFFER || tni_none(t)) return TN_OK;
    if (t->node)
        return tni_error(
            TN_E_STATE,
            "%s: the tensor for parameter \"%s\" of %s was made by %s%s: want a leaf (tn_detach "
            "gives one; to express it by other tensors, compute it in forward)",
            function, name, m->type->name, tni_op_prefix(t->node->op), t->node->op->name);
    if (!is_frozen(m, slot) && !tn_dtype_is_float(t->dtype))
        return tni_error(
            TN_E_DTYPE,
            "%s: parameter \"%s\" of %s is %s: want a floating dtype, or tn_register_frozen",
            function, name, m->type->name, tn_dtype_name(t->dtype));
    return TN_OK;
}

/* ---- changing slots -------------------------------------------------------------------------- */

/* A forward may still use what it replaces, so inside a call it lives until the call ends. */
static void retire(tn_tensor *old)
{
    if (tni_calling() && tni_scope_open())
        tn_scope_adopt(old);
    else
        tn_drop(old);
}

static tn_status put(tn_module *m, tni_slot *slot, tn_tensor *t)
{
    if (!tni_none(t) && !t->name) TNI_TRY(tn_set_name(t, slot->name));
    if (slot->kind == TNI_PARAMETER && !tni_none(t))
        TNI_TRY(tn_set_requires_grad(t, !slot->frozen && !m->state->frozen));
    retire(tni_slot_put(m, slot, t));
    return TN_OK;
}

static tn_status register_tensor(const char *function, tn_module *m, tni_slot *like,
                                 tn_tensor **field, tn_tensor *t)
{
    const char *name = like->name;
    like->tensor = TN_NONE; /* its own mark counts */
    TNI_TRY(tni_module_check(function, m));
    TNI_TRY(failed_before(m));
    tn_status status = check_name(function, m, name, like->kind);
    if (status == TN_OK) status = check_field(function, m, name, field, &like->field);
    if (status == TN_OK) status = tni_slot_accepts(function, m, like, t);
    if (status == TN_OK && like->flags > TN_DIRECTION + TN_NON_PERSISTENT)
        status = tni_error(TN_E_INVALID, "%s: flags %#x for \"%s\" of %s: want tn_buffer_flags",
                           function, like->flags, name, m->type->name);
    if (status != TN_OK) return note(m, status);
    tni_slot *slot = tni_slot_find(m, name, strlen(name));
    bool is_new = !slot;
    if (is_new) slot = tni_slot_add(m, like);
    if (!slot) return note(m, TN_E_NOMEM);
    const tni_slot was = *slot;
    slot->flags = like->flags;
    slot->frozen = like->frozen;
    status = put(m, slot, t);
    if (status == TN_OK) {
        tni_slot_move_field(m, slot, like->field);
    } else if (is_new) {
        tni_slot_remove(m, slot);
    } else {
        slot->flags = was.flags;
        slot->frozen = was.frozen;
    }
    return note(m, status);
}

#define REGISTER(tn_name, is_frozen)                                                               \
    tn_status tn_name(tn_module *m, const char *name, tn_tensor **field, tn_tensor *t)             \
    {                                                                                              \
        tni_slot like = { .name = (char *)name, .kind = TNI_PARAMETER, .frozen = is_frozen };      \
        return register_tensor(#tn_name, m, &like, field, t);                                      \
    }
REGISTER(tn_register_parameter, false)
REGISTER(tn_register_frozen, true)

const char *tn_role_name(unsigned flags)
{
    static const char *const names[] = { "",        "constant", "statistic",
                                         "counter", "cache",    "direction" };
    size_t role = (flags & TN_ROLE) / TN_CONSTANT;
    return role < sizeof names / sizeof *names ? names[role] : "";
}

tn_status tn_register_buffer(tn_module *m, const char *name, tn_tensor **field, tn_tensor *t,
                             unsigned flags)
{
    tni_slot like = { .name = (char *)name, .kind = TNI_BUFFER, .flags = flags };
    return register_tensor("tn_register_buffer", m, &like, field, t);
}

static tn_status is_not(tn_module *m, const char *path, void *user)
{
    (void)path;
    return m == user ? TN_E_STATE : TN_OK;
}

/* No module may be below itself: walks would not end. Only a module with children can have m below
 * it, and only one held by a module can be below another. */
static tn_status check_cycle(const tn_module *m, const char *name, tn_module *child)
{
    tn_status status = TN_OK;
    if (child == m)
        status = TN_E_STATE;
    else if (!tni_no_module(child) && child->state->n_children > 0 && m->state->holders > 0)
        status = tni_walk(child, TNI_ONCE, is_not, NULL, (void *)m);
    if (status != TN_E_STATE) return status;
    return tni_error(TN_E_STATE,
                     "tn_register_module: %s is an ancestor of \"%s\" of %s, or is itself that "
                     "child: want a tree",
                     child->type->name, name, m->type->name);
}

static tn_status check_child(const tn_module *m, const char *name, tn_module *child)
{
    const char *shown = name ? name : "";
    if (!child)
        return tni_missing("tn_register_module: the module for \"%s\" of %s is NULL: want a module "
                           "or TN_NO_MODULE",
                           shown, m->type->name);
    if (!child->state && !tni_no_module(child))
        return tni_error(TN_E_STATE,
                         "tn_register_module: the module for \"%s\" of %s was not made by "
                         "tn_module_new: want that first",
                         shown, m->type->name);
    return TN_OK;
}

static tn_status register_module(tn_module *m, const char *name, tn_module **field,
                                 tn_module *child)
{
    static const char function[] = "tn_register_module";
    TNI_TRY(failed_before(m));
    tn_status status = check_child(m, name, child);
    if (status == TN_OK) status = check_name(function, m, name, TNI_CHILD);
    tni_slot like = { .name = (char *)name, .kind = TNI_CHILD };
    if (status == TN_OK) status = check_field(function, m, name, field, &like.field);
    if (status == TN_OK) status = check_cycle(m, name, child);
    if (status != TN_OK) return note(m, status);
    tni_slot *slot = tni_slot_find(m, name, strlen(name));
    if (!slot) slot = tni_slot_add(m, &like);
    if (!slot) return note(m, TN_E_NOMEM);
    tn_module *old = tni_slot_put_child(m, slot, child);
    tni_slot_move_field(m, slot, like.field);
    tn_module_drop(old);
    return TN_OK;
}

/* Whether the caller has no reference to child left to give: all belong to the modules that hold
 * it. If child is m, one more is the caller's own reference to m. */
static bool is_given_away(const tn_module *m, const tn_module *child)
{
    return child && child->state && child->state->refs <= child->state->holders + (child == m);
}

tn_status tn_register_module(tn_module *m, const char *name, tn_module **field, tn_module *child)
{
    tn_status status = tni_module_check("tn_register_module", m);
    if (is_given_away(m, child) && child != m) {
        status = tni_error(TN_E_STATE,
                           "tn_register_module: the %s for \"%s\" belongs to another module "
                           "already: want a reference of one's own (tn_module_keep)",
                           child->type->name, name ? name : "");
        return m && m->state ? note(m, status) : status;
    }
    if (status == TN_OK) status = register_module(m, name, field, child);
    if (child == m && is_given_away(m, child)) return status; /* refused, with nothing to consume */
    tn_module_drop(child); /* the caller's reference, on failure too */
    return status;
}

void tni_slot_since(tn_module *m, const char *name, int since, double value)
{
    tni_slot *slot = m ? tni_slot_find(m, name, strlen(name)) : NULL;
    if (!slot) return;
    slot->since = since;
    slot->since_value = value;
}

/* For tn_recompute: the tensor that a slot has now. */
static void exchange_slot(tni_undo *u)
{
    tn_module *m = (tn_module *)u->key;
    tni_slot *slot = tni_slot_numbered(m, u->number);
    if (!slot || slot->kind == TNI_CHILD) return;
    tn_tensor *was = tni_slot_put(m, slot, u->value);
    tn_drop(u->value);
    u->value = was;
}

static void keep_module(void *m)
{
    tn_module_keep(m);
}

static void drop_module(void *m)
{
    tn_module_drop(m);
}

/* t takes its place. */
static tn_status remember(tn_module *m, const tni_slot *slot, const tn_tensor *t)
{
    tn_status status = tni_region_undo(&(tni_undo){ .key = m,
                                                    .number = tni_named_serial(slot),
                                                    .value = slot->tensor,
                                                    .exchange = exchange_slot,
                                                    .keep = keep_module,
                                                    .drop = drop_module });
    return status == TN_OK ? tni_region_assigns(t) : status;
}

tn_status tni_slot_assign(const char *function, tn_module *m, tni_slot *slot, tn_tensor *t)
{
    if (slot->kind == TNI_CHILD)
        return tni_error(TN_E_NAME, "%s: \"%s\" of %s is a child: want a parameter or buffer",
                         function, slot->name, m->type->name);
    slot->frozen = slot->kind == TNI_PARAMETER && is_frozen(m, slot);
    const int64_t marks = tni_slot_mark(slot) | TNI_AVERAGED(slot->tensor->is_buffer);
    tn_status status = tni_may_change(function, slot->name, marks);
    if (status == TN_OK) status = tni_slot_accepts(function, m, slot, t);
    if (status == TN_OK && TNI_UNLIKELY(tni_region_now)) status = remember(m, slot, t);
    return status == TN_OK ? put(m, slot, t) : status;
}

tn_status tn_assign(tn_tensor **field, tn_tensor *t)
{
    if (!field) return tni_poison("tn_assign", "field");
    tn_module *m = tni_calling_at(field); /* without the lock of all modules */
    if (!m) m = tni_module_at(field);
    tni_slot *slot = m ? tni_slot_at(m, (size_t)((uintptr_t)field - (uintptr_t)m)) : NULL;
    if (slot) return tni_slot_assign("tn_assign", m, slot, t);
    return tni_error(TN_E_NAME,
                     "tn_assign: no registered slot%s%s has this field: want the address of a "
                     "field given to tn_register_buffer or tn_register_parameter",
                     m ? " of " : "", m ? m->type->name : "");
}

tn_status tn_module_delete(tn_module *m, const char *name)
{
    TNI_TRY(tni_module_check("tn_module_delete", m));
    tni_slot *slot = name ? tni_slot_find(m, name, strlen(name)) : NULL;
    if (!slot)
        return tni_error(TN_E_NAME, "tn_module_delete: %s has no \"%s\": want a registered name",
                         m->type->name, name ? name : "(NULL)");
    tn_module *child = NULL;
    if (slot->kind == TNI_CHILD)
        child = tni_slot_put_child(m, slot, TN_NO_MODULE);
    else
        retire(tni_slot_put(m, slot, TN_NONE));
    tni_slot_remove(m, slot);
    tn_module_drop(child);
    return TN_OK;
}

/* ---- by path --------------------------------------------------------------------------------- */

/* The module at a dotted path of n bytes; NULL + message naming function. "" is m. */
static tn_module *module_at(const char *function, tn_module *m, const char *path, size_t n)
{
    if (tni_module_check(function, m) != TN_OK) return NULL;
    if (!path) return tni_fail(TN_E_INVALID, "%s: the path is NULL: want a string", function);
    const char *at = path, *end = path + n;
    while (at < end) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        size_t length = (size_t)((dot ? dot : end) - at);
        const tni_slot *slot = tni_slot_find(m, at, length);
        if (!slot || slot->kind != TNI_CHILD || tni_no_module(slot->child)) {
            const char *what = !slot                     ? "has no child \"%.*s\""
                               : slot->kind != TNI_CHILD ? "has \"%.*s\", but not as a child"
                                                         : "has an absent child \"%.*s\"";
            char detail[192];
            snprintf(detail, sizeof detail, what, (int)TNI_MIN(length, (size_t)100), at);
            return tni_fail(TN_E_NAME, "%s: path \"%s\": %s %s: want a module there", function,
                            path, m->type->name, detail);
        }
        m = slot->child;
        at += length + 1;
    }
    return m;
}

/* The tensor slot at a path, and its module; NULL + message. */
static tni_slot *find_tensor(const char *function, tn_module *m, const char *path,
                             tn_module **owner)
{
    const char *dot = path ? strrchr(path, '.') : NULL, *name = dot ? dot + 1 : path;
    *owner = module_at(function, m, path, dot ? (size_t)(dot - path) : 0);
    if (!*owner) return NULL;
    tni_slot *slot = tni_slot_find(*owner, name, strlen(name));
    if (!slot)
        return tni_fail(TN_E_NAME, "%s: path \"%s\": %s has no \"%s\": want a registered name",
                        function, path, (*owner)->type->name, name);
    return slot;
}

static tn_tensor *get(const char *function, tn_module *m, const char *path, tni_slot_kind kind)
{
    tn_module *owner = NULL;
    const tni_slot *slot = find_tensor(function, m, path, &owner);
    if (!slot) return NULL;
    if (slot->kind != kind)
        return tni_fail(TN_E_NAME, "%s: \"%s\" is a %s of %s: want a %s", function, path,
                        kind_name[slot->kind], owner->type->name, kind_name[kind]);
    return slot->tensor;
}

#define GET(tn_name, kind)                                                                         \
    tn_tensor *tn_name(tn_module *m, const char *path)                                             \
    {                                                                                              \
        return get(#tn_name, m, path, kind);                                                       \
    }
GET(tn_get_parameter, TNI_PARAMETER)
GET(tn_get_buffer, TNI_BUFFER)

tn_module *tn_get_submodule(tn_module *m, const char *path)
{
    return module_at("tn_get_submodule", m, path, path ? strlen(path) : 0);
}

tn_status tn_module_set(tn_module *m, const char *path, tn_tensor *t)
{
    tn_module *owner = NULL;
    tni_slot *slot = find_tensor("tn_module_set", m, path, &owner);
    return slot ? tni_slot_assign("tn_module_set", owner, slot, t) : tni_pending();
}
