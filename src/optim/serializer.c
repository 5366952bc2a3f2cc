/* serializer.c - fields to and from a list of named tensors, with one message for all misfits. */
#include "optim/serializer.h"

/* ---- what loading changes -------------------------------------------------------------------- */

typedef struct change {
    void *place;
    size_t size;
    char other[sizeof(int64_t)]; /* what the place held, or will hold */
    bool tensor;                 /* a pointer to one, with a reference */
} change;

struct tni_staged {
    size_t n, capacity;
    change *change; /* in the order of loading: a place may occur twice */
};

static void exchange(change *c)
{
    char here[sizeof c->other];
    memcpy(here, c->place, c->size);
    memcpy(c->place, c->other, c->size);
    memcpy(c->other, here, c->size);
}

static void set(tni_serializer *f, void *place, const void *value, size_t size, bool tensor)
{
    tni_staged *s = f->staged;
    if (f->status == TN_OK && !tni_room(&s->change, &s->capacity, s->n, 1, sizeof *s->change))
        f->status = TN_E_NOMEM;
    if (f->status != TN_OK) return;
    change *c = &s->change[s->n++];
    *c = (change){ .place = place, .size = size, .tensor = tensor };
    memcpy(c->other, value, size);
    exchange(c);
}

void tni_serializer_set(tni_serializer *f, void *place, const void *value, size_t size)
{
    set(f, place, value, size, false);
}

void tni_serializer_set_tensor(tni_serializer *f, tn_tensor **place, tn_tensor *t)
{
    tn_keep(t);
    set(f, place, &t, sizeof t, true);
    if (f->status != TN_OK) tn_drop(t);
}

tni_staged *tni_serializer_staged(tni_serializer *f, tn_status status)
{
    tni_staged *s = f->staged;
    for (size_t i = s ? s->n : 0; i-- > 0;) exchange(&s->change[i]);
    if (status == TN_OK && f->status == TN_OK) return s;
    tni_staged_discard(s);
    return NULL;
}

void tni_staged_discard(tni_staged *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        tn_tensor *t;
        memcpy(&t, s->change[i].other, sizeof t);
        if (s->change[i].tensor) tn_drop(t);
    }
    tni_room_free(&s->change, &s->capacity, sizeof *s->change);
    tni_free(s, sizeof *s);
}

tn_status tni_staged_put(tni_staged *s)
{
    if (!s) return tni_pending();
    for (size_t i = 0; i < s->n; i++) exchange(&s->change[i]);
    tni_staged_discard(s);
    return TN_OK;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

void tni_serializer_save(const char *function, tni_serializer *f)
{
    *f = (tni_serializer){ .to = tni_list_new(function) };
    if (!f->to) f->status = tni_pending();
}

tn_list *tni_serializer_saved(const tni_serializer *f)
{
    return f->status == TN_OK ? f->to : NULL;
}

void tni_serializer_load(tni_serializer *f, const tn_list *from)
{
    *f = (tni_serializer){ .from = from, .used = tni_calloc((size_t)from->n) };
    f->staged = tni_calloc(sizeof *f->staged);
    if (!f->used || !f->staged) f->status = TN_E_NOMEM;
}

tn_status tni_serializer_loaded(tni_serializer *f, const char *function)
{
    static const char *const label[TNI_MISFITS] = { "missing", "unexpected", "mismatched" };
    char text[1536] = "";
    for (int i = 0; f->status == TN_OK && i < f->from->n; i++)
        if (!f->used[i]) tni_serializer_note(f, TNI_UNEXPECTED, "%s", f->from->entry[i].name);
    tni_free(f->used, (size_t)f->from->n);
    for (int i = 0; i < TNI_MISFITS; i++) {
        const char *separator = text[0] ? "; " : "";
        if (f->line[i].count)
            tni_text_add(text, sizeof text, "%s%s %s", separator, label[i], f->line[i].text);
    }
    if (f->status != TN_OK || !text[0]) return f->status;
    bool names = f->line[TNI_MISSING].count || f->line[TNI_UNEXPECTED].count;
    return tni_error(names ? TN_E_NAME : TN_E_SHAPE, "%s: %s: nothing was changed", function, text);
}

/* ---- fields ---------------------------------------------------------------------------------- */

const char *tni_field_name(tni_serializer *f, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(f->name, sizeof f->name, format, args);
    va_end(args);
    return f->name;
}

/* The list's tensor of that name; NULL, and noted, when it is not there. */
static tn_tensor *find(tni_serializer *f, const char *name)
{
    const tn_entry *e = f->status == TN_OK ? tni_list_find(f->from, name) : NULL;
    bool found = e && !f->used[e - f->from->entry];
    if (found) f->used[e - f->from->entry] = true;
    if (!found) tni_serializer_note(f, TNI_MISSING, "%s", name);
    return found ? e->tensor : NULL;
}

static void add(tni_serializer *f, const char *name, tn_tensor *t)
{
    if (f->status == TN_OK) f->status = t ? tn_list_add(f->to, name, t) : tni_pending();
}

/* Saves *value, or reads what the list has into *there, which else keeps it. */
static void number(tni_serializer *f, const char *name, tn_dtype dtype, const void *value,
                   void *there)
{
    memcpy(there, value, tn_dtype_size(dtype));
    if (!f->from) {
        if (f->status == TN_OK) add(f, name, tn_from_data(value, TN_SCALAR, dtype));
        return;
    }
    tn_tensor *t = find(f, name);
    if (!t) return;
    if (t->shape.rank != 0 || t->dtype != dtype)
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%s %s here, want one %s)", name,
                            tni_shape_text(&t->shape), tn_dtype_name(t->dtype),
                            tn_dtype_name(dtype));
    else if (tn_copy_out(t, there, tn_dtype_size(dtype), dtype) != TN_OK)
        tni_serializer_note(f, TNI_MISMATCHED, "%s (unreadable)", name);
}

#define NUMBER(tni_field, type, dtype)                                                             \
    void tni_field(tni_serializer *f, const char *name, type *value)                               \
    {                                                                                              \
        type there;                                                                                \
        number(f, name, dtype, value, &there);                                                     \
        if (f->from) tni_serializer_set(f, value, &there, sizeof there);                           \
    }
NUMBER(tni_field_i64, int64_t, TN_I64)
NUMBER(tni_field_f64, double, TN_F64)

void tni_field_steps(tni_serializer *f, const char *name, int64_t *value)
{
    tni_field_i64(f, name, value);
    if (*value < 0 || *value > TNI_MOST_STEPS)
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%" PRId64 " there, want a count of steps)",
                            name, *value);
}

void tni_field_rate(tni_serializer *f, const char *name, double *value)
{
    tni_field_f64(f, name, value);
    if (!(*value >= 0) || isinf(*value))
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%g there, want a finite number >= 0)", name,
                            *value);
}

void tni_field_switch(tni_serializer *f, const char *name, bool value)
{
    int64_t here = value, there;
    number(f, name, TN_I64, &here, &there);
    if (there != here)
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%d there, %d here)", name, there != 0, value);
}

void tni_field_tensor(tni_serializer *f, const char *name, const tni_form *form, tn_tensor **value)
{
    if (!f->from) {
        add(f, name, *value);
        return;
    }
    tn_tensor *t = find(f, name);
    if (!t) return;
    if (!tni_shape_equal(&t->shape, &form->shape) || t->dtype != form->dtype) {
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%s %s there, %s %s here)", name,
                            tni_shape_text(&t->shape), tn_dtype_name(t->dtype),
                            tni_shape_text(&form->shape), tn_dtype_name(form->dtype));
        return;
    }
    if (!value) return;
    tn_tensor *copy = tn_empty_as(form->shape, form->dtype, form->device);
    if (copy && tn_copy_(copy, t) == TN_OK)
        tni_serializer_set_tensor(f, value, copy);
    else
        f->status = tni_pending();
}
