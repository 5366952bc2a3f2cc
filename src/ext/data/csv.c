/*
 * csv.c - tables as text: RFC 4180, any separator, lines ending in LF, CRLF or CR; not empty ones.
 *
 * The file is read whole; each field is ended in place by a zero. A column's kind is given, or
 * settled by all its fields, before values are made.
 */
#include <errno.h>
#include <tenon/data.h>

#include "io/file.h"

typedef struct table {
    tn_csv c;       /* first: the caller's pointer is the block's */
    tni_input in;   /* for messages: the file is closed */
    tni_bytes text; /* names and classes lie in it */
    tn_csv_options o;
    char stops[4]; /* what ends a field: its separator first */
    char **cell;   /* row by row, the header too */
    int64_t *line; /* where each row begins; that of now is line_now */
    size_t n, room, lines, line_room;
    int64_t line_now;
} table;

/* ---- fields ---------------------------------------------------------------------------------- */

/* The field at *at, which moves behind it; *last: of its line. */
static tn_status read_field(table *t, char **at, bool *last)
{
    char *from = *at, *to = from;
    const int64_t line = t->line_now;
    bool closed = *from != '"';
    if (closed) from = to = from + strcspn(from, t->stops);
    while (!closed && *++from) {
        closed = *from == '"' && *++from != '"';
        if (!closed) t->line_now += *from == '\n', *to++ = *from;
    }
    if (!closed || (*from && !strchr(t->stops, *from)))
        return tni_input_bad(&t->in, "line %" PRId64 ": %s", line,
                             closed ? "text behind a closing quote" : "a quote is not closed");
    *last = *from != t->stops[0];
    t->line_now += *last;
    *at = from + (*from != 0) + (from[0] == '\r' && from[1] == '\n');
    *to = '\0';
    return TN_OK;
}

static tn_status read_rows(table *t)
{
    size_t columns = 0, in_row = 0;
    bool last = true;
    char *at = t->text.data + (strncmp(t->text.data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
    while (*at || !last) {
        if (last && (*at == '\n' || *at == '\r')) {
            t->line_now += *at == '\n' || at[1] != '\n';
            at++;
            continue;
        }
        if (last && !tni_room(&t->line, &t->line_room, t->lines, 1, sizeof *t->line))
            return TN_E_NOMEM;
        if (last) t->line[t->lines++] = t->line_now;
        if (!tni_room(&t->cell, &t->room, t->n, 1, sizeof *t->cell)) return TN_E_NOMEM;
        t->cell[t->n++] = at;
        TNI_TRY(read_field(t, &at, &last));
        in_row++;
        if (!last) continue;
        if (t->lines == 1) columns = in_row;
        if (in_row != columns)
            return tni_input_bad(&t->in, "line %" PRId64 ": %zu fields: want %zu, as before",
                                 t->line[t->lines - 1], in_row, columns);
        in_row = 0;
    }
    t->c.n_columns = (int)TNI_MIN(columns, INT32_MAX);
    t->c.rows = (int64_t)t->lines - !t->o.no_header;
    return t->c.rows > 0 ? TN_OK : tni_input_bad(&t->in, "no rows: want one or more");
}

/* ---- columns --------------------------------------------------------------------------------- */

/* NULL: missing. */
static char *cell_of(const table *t, int column, int64_t row)
{
    char *cell = t->cell[(row + !t->o.no_header) * t->c.n_columns + column];
    return *cell && !(t->o.missing && strcmp(cell, t->o.missing) == 0) ? cell : NULL;
}

/* Whether a cell is a number of a kind, i, f or d; which goes to `to`. */
static bool number(const char *cell, char kind, void *to)
{
    char *end;
    if (cell[strcspn(cell, "xX(")]) return false; /* hexadecimal, nan(...) */
    errno = 0;
    if (kind == 'i')
        *(int64_t *)to = strtoll(cell, &end, 10);
    else if (kind == 'f')
        *(float *)to = strtof(cell, &end);
    else
        *(double *)to = strtod(cell, &end);
    return end != cell && !end[strspn(end, " \t")] && (kind != 'i' || errno == 0);
}

/* What all values of a column are. */
static char kind_of(const table *t, int column)
{
    char kind = 'i';
    for (int64_t i = 0; i < t->c.rows; i++) {
        int64_t whole;
        double real;
        const char *cell = cell_of(t, column, i);
        if (!cell || (kind == 'i' && !number(cell, 'i', &whole))) kind = 'd';
        if (cell && kind == 'd' && !number(cell, 'd', &real)) return 't';
    }
    return kind;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Texts as the numbers of their classes. */
static tn_status classify(const table *t, int column, tn_column *c, int64_t *to)
{
    char **text = tni_alloc_n((size_t)t->c.rows, sizeof *text);
    c->classes = (const char *const *)text;
    if (!text) return TN_E_NOMEM;
    size_t n = 0, all = 0;
    for (int64_t i = 0; i < t->c.rows; i++)
        if ((text[all] = cell_of(t, column, i))) all++;
    tni_sort(text, all, sizeof *text, by_text);
    for (size_t i = 0; i < all; i++)
        if (n == 0 || strcmp(text[i], text[n - 1]) != 0) text[n++] = text[i];
    c->n_classes = (int64_t)n;
    for (int64_t i = 0; i < t->c.rows; i++) {
        char *cell = cell_of(t, column, i);
        to[i] = cell ? (char **)bsearch(&cell, text, n, sizeof *text, by_text) - text : -1;
    }
    return TN_OK;
}

static tn_status make_column(const table *t, int column, char kind, tn_column *c)
{
    c->name = t->o.no_header ? "" : t->cell[column];
    if (kind == '?') kind = kind_of(t, column);
    if (kind == '-') return TN_OK;
    const tn_dtype dtype = kind == 'f' ? TN_F32 : kind == 'd' ? TN_F64 : TN_I64;
    c->values = tn_keep(tn_empty_as(TN_SHAPE(t->c.rows), dtype, tn_cpu()));
    if (!c->values) return tni_pending();
    char *to = tni_data(c->values);
    if (kind == 't') return classify(t, column, c, (int64_t *)(void *)to);
    for (int64_t i = 0; i < t->c.rows; i++, to += tn_dtype_size(dtype)) {
        const char *cell = cell_of(t, column, i);
        if (number(cell ? cell : "nan", kind, to)) continue;
        return tni_input_bad(&t->in, "line %" PRId64 ", column %d (%.64s): %.64s: want %s",
                             t->line[i + !t->o.no_header], column + 1, c->name,
                             cell ? cell : "missing", kind == 'i' ? "an integer" : "a number");
    }
    return TN_OK;
}

static tn_status read_table(table *t)
{
    TNI_TRY(tni_bytes_file(&t->text, t->in.function, t->in.path, INT64_MAX));
    if (strlen(t->text.data) != t->text.n)
        return tni_input_bad(&t->in, "byte %zu is 0: want a text", strlen(t->text.data));
    if (!strncmp(t->text.data, "version https://git-lfs", 23))
        return tni_input_bad(&t->in, "%s: want a table", tni_begins_as(t->text.data));
    if (!t->stops[0] || strchr("\"\r\n", t->stops[0]))
        return tni_input_error(&t->in, TN_E_INVALID, "a separator that is a quote or ends lines");
    TNI_TRY(read_rows(t));
    const char *types = t->o.types;
    const int n = t->c.n_columns;
    if (types && (strlen(types) != (size_t)n || types[strspn(types, "ifdt-?")]))
        return tni_input_error(&t->in, TN_E_INVALID,
                               "types %.64s: want i, f, d, t, - or ? for each of %d columns", types,
                               n);
    tn_column *column = tni_calloc_n((size_t)n, sizeof *column);
    t->c.column = column;
    if (!column) return TN_E_NOMEM;
    for (int k = 0; k < n; k++) TNI_TRY(make_column(t, k, types ? types[k] : '?', &column[k]));
    return TN_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

tn_csv *tn_csv_load(const char *path, tn_csv_options o)
{
    TNI_C_NUMBERS;
    tn_status status = TN_OK;
    table *t = tni_calloc(sizeof *t);
    if (!t) return NULL;
    *t = (table){ .o = o, .stops = ",\r\n", .line_now = 1 };
    t->in.function = "tn_csv_load", t->in.path = path;
    if (o.separator) t->stops[0] = o.separator;
    TN_SCOPE status = read_table(t);
    tni_room_free(&t->cell, &t->room, sizeof *t->cell);
    tni_room_free(&t->line, &t->line_room, sizeof *t->line);
    if (status == TN_OK) return &t->c;
    tn_csv_free(&t->c);
    return NULL;
}

void tn_csv_free(tn_csv *csv)
{
    table *t = (void *)csv;
    if (!t) return;
    for (const tn_column *c = csv->column; c && c < csv->column + csv->n_columns; c++) {
        tn_drop(c->values);
        if (c->classes) tni_free((void *)c->classes, (size_t)csv->rows * sizeof *c->classes);
    }
    if (csv->column) tni_free((void *)csv->column, (size_t)csv->n_columns * sizeof *csv->column);
    tni_bytes_free(&t->text);
    tni_free(t, sizeof *t);
}
