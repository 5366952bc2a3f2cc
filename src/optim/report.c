/*
 * report.c - comparing a list of named tensors with what is wanted, one message for all that
 * differs.
 */
#include <math.h>
#include <stdio.h>

#include "nn/module.h"
#include "optim/optim.h"

void tni_report_add(tni_report *r, int category, const char *format, ...)
{
    char *text = r->text[category];
    size_t size = sizeof r->text[category];
    size_t used = strlen(text);
    char item[256];
    va_list args;
    va_start(args, format);
    vsnprintf(item, sizeof item, format, args);
    va_end(args);
    r->n[category]++;
    /* room is kept for ", ..." */
    if (used + strlen(item) + 8 < size)
        snprintf(text + used, size - used, "%s%s", used ? ", " : "", item);
    else if (used + 6 <= size && (used < 3 || strcmp(text + used - 3, "...")))
        snprintf(text + used, size - used, "%s...", used ? ", " : "");
}

tn_status tni_report_end(const tni_report *r, const char *function)
{
    static const char *const label[3] = { "missing", "unexpected", "mismatched" };
    if (!r->n[0] && !r->n[1] && !r->n[2]) return TN_OK;
    char text[1024];
    size_t used = 0;
    for (int i = 0; i < 3; i++) {
        if (!r->n[i]) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", used ? "; " : "",
                                 label[i], r->text[i]);
    }
    return tni_error(r->n[TNI_MISMATCHED] && !r->n[0] && !r->n[1] ? TN_E_SHAPE : TN_E_NAME,
                     "%s: %s: nothing was changed", function, text);
}

tn_tensor *tni_report_find(const tn_list *list, bool *used, const char *name)
{
    const tn_entry *e = tni_list_find(list, name);
    if (!e || used[e - list->entry]) return NULL;
    used[e - list->entry] = true;
    return e->tensor;
}

/* The tensor of that name if it is one number of dtype, else NULL and a line in the report. */
static tn_tensor *find_number(tni_report *r, const tn_list *list, bool *used, const char *name,
                              tn_dtype dtype)
{
    tn_tensor *t = tni_report_find(list, used, name);
    if (!t) {
        tni_report_add(r, TNI_MISSING, "%s", name);
        return NULL;
    }
    if (t->shape.rank != 0 || t->dtype != dtype) {
        tni_report_add(r, TNI_MISMATCHED, "%s (%s %s here, one %s wanted)", name,
                       tni_shape_text(&t->shape), tn_dtype_name(t->dtype), tn_dtype_name(dtype));
        return NULL;
    }
    return t;
}

void tni_report_f64(tni_report *r, const tn_list *list, bool *used, const char *name, double *value)
{
    tn_tensor *t = find_number(r, list, used, name, TN_F64);
    if (t && tn_copy_out(t, value, sizeof *value, TN_F64) != TN_OK)
        tni_report_add(r, TNI_MISMATCHED, "%s (unreadable)", name);
}

void tni_report_i64(tni_report *r, const tn_list *list, bool *used, const char *name,
                    int64_t *value)
{
    tn_tensor *t = find_number(r, list, used, name, TN_I64);
    if (t && tn_copy_out(t, value, sizeof *value, TN_I64) != TN_OK)
        tni_report_add(r, TNI_MISMATCHED, "%s (unreadable)", name);
}

void tni_report_steps(tni_report *r, const tn_list *list, bool *used, const char *name,
                      int64_t *value)
{
    tni_report_i64(r, list, used, name, value);
    if (*value < 0 || *value > TNI_MOST_STEPS)
        tni_report_add(r, TNI_MISMATCHED, "%s (%lld there, a count of steps is wanted)", name,
                       (long long)*value);
}

void tni_report_rate(tni_report *r, const tn_list *list, bool *used, const char *name,
                     double *value)
{
    tni_report_f64(r, list, used, name, value);
    if (!(*value >= 0) || isinf(*value))
        tni_report_add(r, TNI_MISMATCHED, "%s (%g there, a finite number >= 0 is wanted)", name,
                       *value);
}

void tni_report_unused(tni_report *r, const tn_list *list, const bool *used)
{
    for (int i = 0; i < list->n; i++)
        if (!used[i]) tni_report_add(r, TNI_UNEXPECTED, "%s", list->entry[i].name);
}

tn_status tni_list_f64(tn_list *list, const char *name, double value)
{
    tn_tensor *t = tn_from_data(&value, TN_SCALAR, TN_F64);
    return t ? tn_list_add(list, name, t) : tni_pending();
}

tn_status tni_list_i64(tn_list *list, const char *name, int64_t value)
{
    tn_tensor *t = tn_from_data(&value, TN_SCALAR, TN_I64);
    return t ? tn_list_add(list, name, t) : tni_pending();
}
