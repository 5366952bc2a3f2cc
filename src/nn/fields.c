/*
 * fields.c - finds fields of a module's struct that point to objects nobody keeps.
 *
 * A forward that writes `m->h = t` leaves a field whose tensor is freed with the call; the next
 * call would read freed memory. The field of a slot is compared with the slot. Other words of the
 * struct are compared with their values before forward. One that now holds the address of an object
 * that only open scopes hold is such a field, whatever its declared type. So is one with the
 * address of an input that nobody has kept since.
 *
 * Not detected: memory behind a pointer in the struct; fields of modules other than the called one;
 * a tensor of a scope that forward itself has closed; an input after the fourth that no scope
 * holds.
 */
#include "nn/module.h"

enum { WORD = sizeof(uintptr_t), LOWEST = 4096 /* no object is below */ };

/* The struct's fields after its base. */
static char *fields_of(const tn_module *m)
{
    return (char *)m + sizeof(tn_module);
}

static uintptr_t word_at(const tn_module *m, size_t i)
{
    uintptr_t word;
    memcpy(&word, fields_of(m) + i * WORD, WORD); /* fields may have any type */
    return word;
}

static size_t count_words(const tn_module *m)
{
    return (m->type->size - sizeof(tn_module)) / WORD;
}

static int holders_of(const tn_tensor *t)
{
    return tni_none(t) ? 0 : atomic_load_explicit(&t->refs, memory_order_relaxed);
}

tn_status tni_fields_before(tni_fields *f, const tn_module *m, int n_in, tn_tensor *const *in)
{
    f->n = count_words(m);
    f->word = f->near;
    if (f->n > TNI_FIELDS_NEAR) f->word = tni_alloc(f->n * WORD);
    if (!f->word) return TN_E_NOMEM;
    memcpy(f->word, fields_of(m), f->n * WORD);
    for (int i = 0; i < n_in && i < TNI_FIELDS_IN; i++) f->refs[i] = holders_of(in[i]);
    return TN_OK;
}

/* Restores the fields of slots, so that the module is consistent; the name of the first wrong
 * one. */
static const char *check_slots(tn_module *m)
{
    const char *wrong = NULL;
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        const void *held =
            slot->kind == TNI_CHILD ? (const void *)slot->child : (const void *)slot->tensor;
        if (!slot->field) continue;
        void *shown;
        memcpy(&shown, (char *)m + slot->field, sizeof shown);
        if (shown == held) continue;
        wrong = wrong ? wrong : slot->name;
        tni_slot_sync(m, slot);
    }
    return wrong;
}

/* Whether a word may be the address of an object, without reading that memory. */
static bool may_point(uintptr_t word)
{
    return word > LOWEST && word % WORD == 0;
}

static bool is_lent_input(const tni_fields *f, uintptr_t word, int n_in, tn_tensor *const *in)
{
    for (int i = 0; i < n_in && i < TNI_FIELDS_IN; i++)
        if ((uintptr_t)in[i] == word && !tni_none(in[i])) return holders_of(in[i]) <= f->refs[i];
    return false;
}

static size_t offset_of(size_t word)
{
    return sizeof(tn_module) + word * WORD;
}

tn_status tni_fields_after(tni_fields *f, tn_module *m, int n_in, tn_tensor *const *in,
                           tn_status status)
{
    const char *slot = check_slots(m);
    size_t wrong = 0;
    for (size_t i = 0; i < f->n; i++) {
        uintptr_t word = word_at(m, i);
        if (word == f->word[i] || !may_point(word)) continue;
        if (!is_lent_input(f, word, n_in, in) &&
            !tni_scope_alone(tni_scope_outermost(), (const void *)word))
            continue;
        wrong = wrong ? wrong : offset_of(i);
        memcpy(fields_of(m) + i * WORD, &f->word[i], WORD);
    }
    if (f->word != f->near) tni_free(f->word, f->n * WORD);
    if (status != TN_OK) return status;
    if (slot)
        return tni_error(TN_E_STATE,
                         "%s: forward assigned the field of \"%s\" directly: want "
                         "tn_assign(&m->field, t), which keeps the tensor",
                         m->type->name, slot);
    if (wrong)
        return tni_error(TN_E_STATE,
                         "%s: forward put what goes with the call into the field at byte %zu of "
                         "the struct, which no slot has: want tn_register_buffer for it, and "
                         "tn_assign(&m->field, t), which keeps the tensor",
                         m->type->name, wrong);
    return TN_OK;
}

tn_status tni_fields_made(tn_module *m, tn_scope scope)
{
    for (size_t i = 0; i < count_words(m); i++) {
        uintptr_t word = word_at(m, i);
        if (!may_point(word) || tni_slot_at(m, offset_of(i))) continue;
        if (tni_scope_alone(scope, (const void *)word))
            return tni_error(TN_E_STATE,
                             "%s: its constructor made what goes with tn_module_done and left it "
                             "in the field at byte %zu of the struct, which no slot has: want "
                             "tn_register_buffer or tn_register_parameter for it",
                             m->type->name, offset_of(i));
    }
    return TN_OK;
}

size_t tni_fields_map(tn_module *m, uintptr_t (*to)(uintptr_t word, void *user), void *user)
{
    size_t wrong = 0;
    for (size_t i = 0; i < count_words(m); i++) {
        uintptr_t word = word_at(m, i);
        if (word <= LOWEST || tni_slot_at(m, offset_of(i))) continue;
        uintptr_t now = to(word, user);
        if (now) memcpy(fields_of(m) + i * WORD, &now, WORD);
        if (!now && !wrong) wrong = offset_of(i);
    }
    return wrong;
}
