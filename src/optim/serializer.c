/*
 * form.c - fields to and from a list of named tensors, with one message for all misfits.
 */
#include <math.h>
#include <stdio.h>

#include "nn/module.h"
#include "optim/serializer.h"

void tni_serializer_note(tni_serializer *f, int misfit, const char *format, ...)
{
    char *text = f->text[misfit];
    size_t size = sizeof f->text[misfit];
    size_t used = strlen(text);
    char item[256];
    va_list args;
    va_start(args, format);
    vsnprintf(item, sizeof item, format, args);
    va_end(args);
    f->n[misfit]++;
    /* room is kept for ", ..." */
    if (used + strlen(item) + 8 < size)
        snprintf(text + used, size - used, "%s%s", used ? ", " : "", item);
    else if (used + 6 <= size && (used < 3 || strcmp(text + used - 3, "...")))
        snprintf(text + used, size - used, "%s...", used ? ", " : "");
}

/* ---- beginning and end ----------------------------------------------------------------------- */

void tni_serializer_save(tni_serializer *f)
{
    *f = (tni_serializer){ .to = tn_list_new() };
    if (!f->to) f->status = tni_pending();
}

tn_list *tni_serializer_saved(const tni_serializer *f)
{
    return f->status == TN_OK ? f->to : NULL;
}

void tni_serializer_load(tni_serializer *f, const tn_list *from)
{
    *f = (tni_serializer){ .from = from, .used = tni_calloc((size_t)from->n) };
    if (!f->used) f->status = TN_E_NOMEM;
}

tn_status tni_serializer_loaded(tni_serializer *f, const char *function)
{
    static const char *const label[TNI_MISFITS] = { "missing", "unexpected", "mismatched" };
    char text[1024] = "";
    for (int i = 0; f->status == TN_OK && i < f->from->n; i++)
        if (!f->used[i]) tni_serializer_note(f, TNI_UNEXPECTED, "%s", f->from->entry[i].name);
    tni_free(f->used, (size_t)f->from->n);
    for (int i = 0; i < TNI_MISFITS; i++) {
        size_t n = strlen(text);
        if (f->n[i])
            snprintf(text + n, sizeof text - n, "%s%s %s", n ? "; " : "", label[i], f->text[i]);
    }
    if (f->status != TN_OK || !text[0]) return f->status;
    bool names = f->n[TNI_MISSING] || f->n[TNI_UNEXPECTED];
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

static void number(tni_serializer *f, const char *name, tn_dtype dtype, void *value)
{
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
    else if (tn_copy_out(t, value, tn_dtype_size(dtype), dtype) != TN_OK)
        tni_serializer_note(f, TNI_MISMATCHED, "%s (unreadable)", name);
}

void tni_field_i64(tni_serializer *f, const char *name, int64_t *value)
{
    number(f, name, TN_I64, value);
}

void tni_field_f64(tni_serializer *f, const char *name, double *value)
{
    number(f, name, TN_F64, value);
}

void tni_field_steps(tni_serializer *f, const char *name, int64_t *value)
{
    number(f, name, TN_I64, value);
    if (*value < 0 || *value > TNI_MOST_STEPS)
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%" PRId64 " there, want a count of steps)",
                            name, *value);
}

void tni_field_rate(tni_serializer *f, const char *name, double *value)
{
    number(f, name, TN_F64, value);
    if (!(*value >= 0) || isinf(*value))
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%g there, want a finite number >= 0)", name,
                            *value);
}

void tni_field_switch(tni_serializer *f, const char *name, bool value)
{
    int64_t there = value;
    number(f, name, TN_I64, &there);
    if (there != value)
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%d there, %d here)", name, there != 0, value);
}

void tni_field_tensor(tni_serializer *f, const char *name, const tn_tensor *like, tn_tensor **value)
{
    if (!f->from) {
        add(f, name, *value);
        return;
    }
    tn_tensor *t = find(f, name);
    if (!t) return;
    if (!tni_shape_equal(&t->shape, &like->shape) || t->dtype != like->dtype) {
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%s %s there, %s %s here)", name,
                            tni_shape_text(&t->shape), tn_dtype_name(t->dtype),
                            tni_shape_text(&like->shape), tn_dtype_name(like->dtype));
        return;
    }
    if (!value) return;
    tn_tensor *copy = tn_empty_as(like->shape, like->dtype, like->storage->device);
    if (copy && tn_copy_(copy, t) == TN_OK)
        *value = tn_keep(copy);
    else
        f->status = tni_pending();
}

/* ---- loading in two steps -------------------------------------------------------------------- */

void tni_staged_discard(tni_staged *staged)
{
    if (staged && staged->drop) staged->drop(staged);
    if (staged) tni_free(staged, staged->nbytes);
}

tn_status tni_staged_put(tni_staged *staged)
{
    if (!staged) return tni_pending();
    staged->put(staged);
    tni_staged_discard(staged);
    return TN_OK;
}
