/*
 * summary.c - a model as a table: one row per module, parameters and buffers side by side.
 *
 * Two walks with the same cells: the first measures the columns, the second prints.
 */
#include <inttypes.h>

#include "nn/module.h"

enum { PATH, TYPE, PARAMETERS, BUFFERS, COLUMNS };

enum { CELL = 192 };

typedef struct table {
    FILE *file; /* NULL: only measure */
    int width[COLUMNS];
    tni_map seen; /* tensors counted so far */
    int64_t parameters, trainable, buffers;
    size_t nbytes;
} table;

/* 1234567 as "1,234,567" */
static const char *grouped(int64_t n, char *text, size_t size)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRId64, n);
    size_t k = 0;
    for (int i = 0; i < length && k + 2 < size; i++) {
        if (i && (length - i) % 3 == 0) text[k++] = ',';
        text[k++] = digits[i];
    }
    text[k] = '\0';
    return text;
}

static const char *bytes_text(size_t nbytes, char *text, size_t size)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)nbytes;
    int i = 0;
    for (; value >= 1024 && i < 4; i++) value /= 1024;
    snprintf(text, size, i ? "%.1f %s" : "%.0f %s", value, unit[i]);
    return text;
}

/* "weight [128,784] 100,352 frozen": name, shape, elements, and what is out of the ordinary. */
static void member_cell(table *t, const tni_slot *slot, char *text)
{
    const tn_tensor *v = slot->tensor;
    char elements[32];
    bool parameter = slot->kind == TNI_PARAMETER;
    if (tni_none(v)) {
        snprintf(text, CELL, "%s absent", slot->name);
        return;
    }
    bool tied = tni_map_get(&t->seen, v) != NULL;
    snprintf(text, CELL, "%s %s %s%s%s%s%s%s", slot->name, tni_shape_text(&v->shape),
             grouped(tn_numel(v), elements, sizeof elements), v->dtype == TN_F32 ? "" : " ",
             v->dtype == TN_F32 ? "" : tn_dtype_name(v->dtype),
             parameter && !v->requires_grad ? " frozen" : "",
             !parameter && slot->persistence == TN_NON_PERSISTENT ? " not saved" : "",
             tied ? " tied" : "");
}

/* The first mention of a tensor counts. */
static tn_status count(table *t, const tni_slot *slot)
{
    const tn_tensor *v = slot->tensor;
    if (tni_none(v)) return TN_OK;
    int is_new = tni_map_put(&t->seen, v, t);
    if (is_new < 0) return TN_E_NOMEM;
    if (!is_new) return TN_OK;
    int64_t n = tn_numel(v);
    if (slot->kind == TNI_PARAMETER) {
        t->parameters += n;
        t->trainable += v->requires_grad ? n : 0;
    } else {
        t->buffers += n;
    }
    t->nbytes += (size_t)n * tn_dtype_size(v->dtype);
    return TN_OK;
}

static void row(table *t, char cells[COLUMNS][CELL])
{
    int last = COLUMNS - 1;
    for (int c = 0; c < COLUMNS; c++) t->width[c] = TNI_MAX(t->width[c], (int)strlen(cells[c]));
    if (!t->file) return;
    while (last > 0 && !cells[last][0]) last--;
    for (int c = 0; c < last; c++) fprintf(t->file, "%-*s  ", t->width[c], cells[c]);
    fprintf(t->file, "%s\n", cells[last]);
}

static void rule(table *t)
{
    int n = 2 * (COLUMNS - 1);
    for (int c = 0; c < COLUMNS; c++) n += t->width[c];
    for (int i = 0; i < n; i++) fputc('-', t->file);
    fputc('\n', t->file);
}

/* The next slot of a kind at or after i; -1: no more. */
static int next_of(const tn_module *m, tni_slot_kind kind, int i)
{
    for (; i < m->state->n; i++)
        if (m->state->slot[i].kind == kind) return i;
    return -1;
}

static tn_status rows(tn_module *m, const char *path, void *user)
{
    table *t = user;
    char cells[COLUMNS][CELL] = { { 0 } };
    int p = next_of(m, TNI_PARAMETER, 0), b = next_of(m, TNI_BUFFER, 0);
    snprintf(cells[PATH], CELL, "%s", path[0] ? path : "(model)");
    tni_module_text(m, cells[TYPE], CELL);
    do {
        const int at[] = { p, b };
        for (int k = 0; k < 2; k++) {
            char *cell = cells[PARAMETERS + k];
            cell[0] = '\0';
            if (at[k] < 0) continue;
            member_cell(t, &m->state->slot[at[k]], cell);
            if (count(t, &m->state->slot[at[k]]) != TN_OK) return TN_E_NOMEM;
        }
        row(t, cells);
        cells[PATH][0] = cells[TYPE][0] = '\0';
        if (p >= 0) p = next_of(m, TNI_PARAMETER, p + 1);
        if (b >= 0) b = next_of(m, TNI_BUFFER, b + 1);
    } while (p >= 0 || b >= 0);
    return TN_OK;
}

/* One walk; the totals are of this one alone. */
static tn_status pass(table *t, tn_module *m)
{
    char titles[COLUMNS][CELL] = { "module", "type", "parameters (trained)", "buffers (carried)" };
    t->parameters = t->trainable = t->buffers = 0;
    t->nbytes = 0;
    row(t, titles);
    if (t->file) rule(t);
    tn_status status = tni_walk(m, TNI_ONCE, rows, NULL, t);
    tni_map_free(&t->seen);
    return status;
}

tn_status tn_module_summary(FILE *file, tn_module *m)
{
    table t = { 0 };
    char n[3][32], bytes[32];
    if (!file)
        return tni_error(TN_E_INVALID, "tn_module_summary: the file is NULL: want an open one");
    tn_status status = tni_module_check("tn_module_summary", m);
    if (status == TN_OK) status = pass(&t, m);
    if (status != TN_OK) return status;
    t.file = file;
    status = pass(&t, m);
    if (status != TN_OK) return status;
    rule(&t);
    fprintf(file, "parameters %s (trainable %s), buffers %s, together %s\n",
            grouped(t.parameters, n[0], sizeof n[0]), grouped(t.trainable, n[1], sizeof n[1]),
            grouped(t.buffers, n[2], sizeof n[2]), bytes_text(t.nbytes, bytes, sizeof bytes));
    if (ferror(file)) return tni_error(TN_E_IO, "tn_module_summary: the file cannot be written");
    return TN_OK;
}
