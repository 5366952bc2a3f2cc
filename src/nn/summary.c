/*
 * summary.c - a model as a table: one row per module, parameters and buffers side by side.
 *
 * Two walks that write the same cells: the first measures the columns, the second prints. A module
 * that stands under several paths has its members under the first; the others only point there.
 */
#include <inttypes.h>

#include "nn/module.h"
#include "tensor/host.h"

enum { PATH, TYPE, PARAMETERS, BUFFERS, COLUMNS };

typedef struct total {
    int64_t n, special; /* elements; of those, frozen ones or ones that no file holds */
    size_t nbytes;
} total;

typedef struct table {
    FILE *file; /* NULL: only measure */
    int width[COLUMNS];
    int column, blanks; /* where the row has come to, and what to put before the next text */
    tni_map seen;       /* tensors counted so far, and modules: -> their first path */
    int inside;         /* levels below a module that was shown before */
    total parameters, buffers;
} table;

/* ---- cells ----------------------------------------------------------------------------------- */

/* The next cell of the row. */
static void TN_PRINTF(2, 3) cell(table *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (!t->file) t->width[t->column] = TNI_MAX(t->width[t->column], n);
    if (t->file && n > 0) {
        fprintf(t->file, "%*s", t->blanks, "");
        vfprintf(t->file, format, again);
        t->blanks = 0;
    }
    t->blanks += t->width[t->column] + 2 - n;
    va_end(again);
    va_end(args);
    t->column++;
}

static void end_row(table *t)
{
    if (t->file) fputc('\n', t->file);
    t->column = t->blanks = 0;
}

static void rule(table *t)
{
    int n = 2 * (COLUMNS - 1);
    for (int c = 0; c < COLUMNS; c++) n += t->width[c];
    for (int i = 0; t->file && i < n; i++) fputc('-', t->file);
    end_row(t);
}

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
static tn_status member(table *t, const tni_slot *slot)
{
    const tn_tensor *v = slot->tensor;
    char elements[32];
    bool parameter = slot->kind == TNI_PARAMETER;
    bool special = parameter ? !v->requires_grad : slot->persistence == TN_NON_PERSISTENT;
    total *sum = parameter ? &t->parameters : &t->buffers;
    if (tni_none(v)) {
        cell(t, "%s absent", slot->name);
        return TN_OK;
    }
    int is_new = tni_map_put(&t->seen, v, t); /* the first mention of a tensor counts */
    if (is_new < 0) return TN_E_NOMEM;
    int64_t n = tn_numel(v);
    cell(t, "%s %s %s%s%s%s%s", slot->name, tni_shape_text(&v->shape),
         grouped(n, elements, sizeof elements), v->dtype == TN_F32 ? "" : " ",
         v->dtype == TN_F32 ? "" : tn_dtype_name(v->dtype),
         !special    ? ""
         : parameter ? " frozen"
                     : " not saved",
         is_new ? "" : " tied");
    if (!is_new) return TN_OK;
    sum->n += n;
    sum->special += special ? n : 0;
    sum->nbytes += (size_t)n * tn_dtype_size(v->dtype);
    return TN_OK;
}

/* The next slot of a kind at or after i; -1: no more. */
static int next_of(const tn_module *m, tni_slot_kind kind, int i)
{
    for (; i < m->state->n; i++)
        if (m->state->slot[i].kind == kind) return i;
    return -1;
}

/* Its parameters and buffers, beside each other as far as there are both. */
static tn_status members(table *t, tn_module *m)
{
    int at[] = { next_of(m, TNI_PARAMETER, 0), next_of(m, TNI_BUFFER, 0) };
    for (bool first = true; first || at[0] >= 0 || at[1] >= 0; first = false) {
        if (!first) cell(t, "%s", ""), cell(t, "%s", "");
        for (int k = 0; k < 2; k++) {
            const tni_slot *slot = at[k] < 0 ? NULL : &m->state->slot[at[k]];
            if (!slot)
                cell(t, "%s", "");
            else if (member(t, slot) != TN_OK)
                return TN_E_NOMEM;
            else
                at[k] = next_of(m, slot->kind, at[k] + 1);
        }
        end_row(t);
    }
    return TN_OK;
}

enum { LONGEST = 1024 }; /* bytes of a path that are shown, as many as names in files have */

/* The end of a path that is too long, behind dots. */
static const char *shown_path(const char *path, char text[LONGEST + 1])
{
    const size_t n = strlen(path);
    if (n == 0) return "(model)";
    if (n <= LONGEST) return path;
    const char *end = path + n - (LONGEST - 3);
    while ((*end & 0xc0) == 0x80) end++; /* whole characters of UTF-8 */
    snprintf(text, LONGEST + 1, "...%s", end);
    return text;
}

static tn_status go_in(tn_module *m, const char *path, void *user)
{
    table *t = user;
    char type[256], text[LONGEST + 1];
    const char *before = tni_map_get(&t->seen, m);
    if (t->inside || before) t->inside++;
    if (t->inside > 1) return TN_OK;
    if (!before && m->state->holders > 1) { /* others are met once */
        char *copy = tni_strdup(shown_path(path, text));
        if (!copy) return TN_E_NOMEM;
        if (tni_map_put(&t->seen, m, copy) < 0) {
            tni_strfree(copy);
            return TN_E_NOMEM;
        }
    }
    cell(t, "%s", shown_path(path, text));
    tni_module_text(m, type, sizeof type);
    if (!before) {
        cell(t, "%s%s", type, tn_module_frozen(m) ? " frozen" : "");
        return members(t, m);
    }
    cell(t, "%s tied to %s", type, before);
    end_row(t);
    return TN_OK;
}

static tn_status come_out(tn_module *m, const char *path, void *user)
{
    table *t = user;
    (void)m, (void)path;
    if (t->inside) t->inside--;
    return TN_OK;
}

static void forget(table *t)
{
    for (size_t i = 0; i < t->seen.capacity; i++)
        if (t->seen.cell[i].key && t->seen.cell[i].value != t) tni_strfree(t->seen.cell[i].value);
    tni_map_free(&t->seen);
}

/* One walk; the totals are of this one alone. */
static tn_status pass(table *t, tn_module *m)
{
    t->parameters = t->buffers = (total){ 0 };
    t->column = t->blanks = t->inside = 0;
    cell(t, "module"), cell(t, "type"), cell(t, "parameters (trained)"),
        cell(t, "buffers (carried)");
    end_row(t);
    rule(t);
    tn_status status = tni_walk(m, TNI_EVERY, go_in, come_out, t);
    forget(t);
    return status;
}

static void print_total(FILE *file, const char *what, total sum, const char *plain,
                        const char *special)
{
    char n[3][32], bytes[32];
    fprintf(file, "%s %s (%s %s, %s %s), %s\n", what, grouped(sum.n, n[0], sizeof n[0]), plain,
            grouped(sum.n - sum.special, n[1], sizeof n[1]), special,
            grouped(sum.special, n[2], sizeof n[2]), bytes_text(sum.nbytes, bytes, sizeof bytes));
}

tn_status tn_module_summary(FILE *file, tn_module *m)
{
    TNI_C_NUMBERS;
    table t = { 0 };
    char bytes[32];
    if (!file)
        return tni_error(TN_E_INVALID, "tn_module_summary: the file is NULL: want an open one");
    tn_status status = tni_module_check("tn_module_summary", m);
    if (status == TN_OK) status = pass(&t, m);
    if (status != TN_OK) return status;
    t.file = file;
    status = pass(&t, m);
    if (status != TN_OK) return status;
    rule(&t);
    print_total(file, "parameters", t.parameters, "trainable", "frozen");
    print_total(file, "buffers", t.buffers, "saved", "not saved");
    fprintf(file, "together %s\n",
            bytes_text(t.parameters.nbytes + t.buffers.nbytes, bytes, sizeof bytes));
    if (ferror(file)) return tni_error(TN_E_IO, "tn_module_summary: the file cannot be written");
    return TN_OK;
}
