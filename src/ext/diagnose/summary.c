/*
 * summary.c - a model as a tree: a row per module, below it rows of its parameters and buffers.
 *
 * The walk makes rows; neighbours that differ only in number (the blocks of a transformer) become
 * one row with a count. A module with several paths lists its members under the first path; the
 * others refer to that. Then the rows are printed to the terminal's width.
 */
#include <sys/ioctl.h>
#include <unistd.h>

#include "ext/diagnose/arena.h"
#include "ext/diagnose/stream.h"
#include "nn/module.h"

typedef struct total {
    int64_t n, special; /* elements; of those, frozen or not saved */
    size_t nbytes;
} total;

typedef struct row {
    int64_t depth;
    int64_t number; /* its name; -1: another one, in the text */
    int64_t times;  /* how many equal neighbours it represents, numbered from there on */
    char *text;
    int64_t parameters, buffers; /* elements; -1: nothing in this column */
    int64_t parent, child;       /* rows: of the module around it, of its last child; -1: none */
} row;

typedef struct table {
    row *rows;
    int64_t n, inner; /* inner: the row of the module that the walk is in, -1: none */
    size_t capacity;
    tni_arena arena; /* of texts */
    tni_map seen;    /* tensors counted so far, and modules: -> their first path */
    tni_map gives;   /* modules that have run: -> " -> [64,16]" */
    int inside;      /* levels below a module that was shown before */
    total parameters, buffers;
} table;

/* ---- rows ------------------------------------------------------------------------------------ */

static tn_status add_row(table *t, int64_t number, const char *text, int64_t parameters,
                         int64_t buffers)
{
    if (!tni_room(&t->rows, &t->capacity, (size_t)t->n, 1, sizeof *t->rows)) return TN_E_NOMEM;
    row r = { .number = number, .times = 1, .parent = t->inner, .child = -1 };
    r.depth = t->inner < 0 ? 0 : t->rows[t->inner].depth + 1;
    r.text = tni_arena_text(&t->arena, text);
    r.parameters = parameters, r.buffers = buffers;
    t->rows[t->n++] = r;
    return r.text ? TN_OK : TN_E_NOMEM;
}

enum { LONGEST = TNI_NAME_LIMIT }; /* bytes of a path that are shown */

/* The end of a path that is too long, after dots. */
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

/* ---- the walk -------------------------------------------------------------------------------- */

/* "weight [128,784] bf16, frozen": name, shape, anything unusual; nothing for an absent one. */
static tn_status member(table *t, const tni_slot *slot)
{
    const tn_tensor *v = slot->tensor;
    const bool parameter = slot->kind == TNI_PARAMETER;
    const bool special = parameter ? !v->requires_grad : slot->flags & TN_NON_PERSISTENT;
    const char *role = tn_role_name(slot->flags);
    total *sum = parameter ? &t->parameters : &t->buffers;

    if (tni_none(v)) return TN_OK;
    int is_new = tni_map_put(&t->seen, v, t); /* the first mention of a tensor counts */
    if (is_new < 0) return TN_E_NOMEM;
    int64_t n = tn_numel(v);
    char text[LONGEST + 256];
    snprintf(text, sizeof text, "%s %s%s%s%s%s%s%s", slot->name, tni_shape_text(&v->shape),
             v->dtype == TN_F32 ? "" : " ", v->dtype == TN_F32 ? "" : tn_dtype_name(v->dtype),
             role[0] ? ", " : "", role,
             !special    ? ""
             : parameter ? ", frozen"
                         : ", not saved",
             is_new ? "" : ", tied");
    if (is_new)
        sum->n += n, sum->special += special ? n : 0,
            sum->nbytes += (size_t)n * tn_dtype_size(v->dtype);
    return add_row(t, -1, text, is_new && parameter ? n : -1, is_new && !parameter ? n : -1);
}

/* The number that a name is, else -1. */
static int64_t number_of(const char *name)
{
    size_t n = strspn(name, "0123456789");
    bool number = n > 0 && n <= 10 && !name[n] && (name[0] != '0' || n == 1);
    return number ? strtoll(name, NULL, 10) : -1;
}

static tn_status go_in(tn_module *m, const char *path, void *user)
{
    table *t = user;
    const char *before = tni_map_get(&t->seen, m);
    if (t->inside || before) t->inside++;
    if (t->inside > 1) return TN_OK;
    char first[LONGEST + 1];
    if (!before && m->state->holders > 1) { /* others are seen once */
        char *copy = tni_arena_text(&t->arena, shown_path(path, first));
        if (!copy || tni_map_put(&t->seen, m, copy) < 0) return TN_E_NOMEM;
    }
    char type[256];
    tni_module_text(m, type, sizeof type);
    char text[2 * LONGEST + 512];
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    const bool named = name[0] && number_of(name) < 0;
    const char *gives = tni_map_get(&t->gives, m);
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", named ? shown_path(name, first) : "",
             named ? ": " : "", type, tn_module_frozen(m) && !before ? ", frozen" : "",
             before ? ", tied to " : "", before ? before : "", gives && !before ? gives : "");
    TNI_TRY(add_row(t, number_of(name), text, -1, -1));
    t->inner = t->n - 1;
    for (int i = 0; !before && i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind == TNI_PARAMETER || slot->kind == TNI_BUFFER) TNI_TRY(member(t, slot));
    }
    return TN_OK;
}

/* Whether the rows from b to the end equal those from a to b, but for the number of the first. */
static bool alike(const table *t, int64_t a, int64_t b)
{
    const row *x = &t->rows[a], *y = &t->rows[b];
    if (t->n - b != b - a || x->number < 0 || y->number != x->number + x->times) return false;
    for (int64_t i = 0; i < b - a; i++, x++, y++)
        if (strcmp(x->text, y->text) != 0 || x->depth != y->depth ||
            x->parameters != y->parameters || x->buffers != y->buffers ||
            (i && (x->times != y->times || x->number != y->number)))
            return false;
    return true;
}

static tn_status come_out(tn_module *m, const char *path, void *user)
{
    table *t = user;
    (void)m, (void)path;
    if (t->inside && t->inside-- > 1) return TN_OK;
    const int64_t own = t->inner;
    t->inner = t->rows[own].parent;
    if (t->inner < 0) return TN_OK;
    row *parent = &t->rows[t->inner];
    if (parent->child >= 0 && alike(t, parent->child, own)) {
        t->n = own;
        t->rows[parent->child].times++;
    } else {
        parent->child = own;
    }
    return TN_OK;
}

/* ---- what modules give ----------------------------------------------------------------------- */

/* A tn_forward_hook. Of several calls the first one counts. */
static tn_status note_shapes(tn_module *m, int n_in, tn_tensor *const *in, int n_out,
                             tn_tensor **out, void *user)
{
    table *t = user;
    char text[256] = "";
    (void)n_in, (void)in;
    if (tni_map_get(&t->gives, m)) return TN_OK;
    for (int i = 0; i < n_out; i++)
        tni_text_add(text, sizeof text, "%s%s", i ? ", " : " -> ",
                     tni_none(out[i]) ? "none" : tni_shape_text(&out[i]->shape));
    char *copy = tni_arena_text(&t->arena, text);
    return copy && tni_map_put(&t->gives, m, copy) >= 0 ? TN_OK : TN_E_NOMEM;
}

static tn_status watch(tn_module *m, void *table)
{
    return tn_register_forward_hook(m, note_shapes, table) < 0 ? tni_pending() : TN_OK;
}

/* Runs m, a copy, on x. */
static tn_status run(table *t, tn_module *m, tn_tensor *x)
{
    tn_status status = tn_eval(m);
    if (status == TN_OK) status = tn_module_apply(m, watch, t);
    if (status == TN_OK) TN_SCOPE TN_NO_GRAD status = tn_forward(m, x) ? TN_OK : tni_pending();
    return status == TN_OK ? TN_OK : tni_error_prefix("tn_module_summary_with: ");
}

/* ---- printing -------------------------------------------------------------------------------- */

/* 1234567 as "1,234,567" */
static tni_phrase grouped(int64_t n)
{
    int64_t unit = 1;
    while (n / unit >= 1000) unit *= 1000;
    tni_phrase p = tni_phrase_of("%" PRId64, n / unit);
    while (unit /= 1000) tni_text_add(p.s, sizeof p.s, ",%03" PRId64, n / unit % 1000);
    return p;
}

static tni_phrase in_bytes(size_t nbytes)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)nbytes;
    int i = 0;
    for (; value >= 1024 && i < 4; i++) value /= 1024;
    return tni_phrase_of(i ? "%.1f %s" : "%.0f %s", value, unit[i]);
}

enum { COLUMN = 13, NARROW = 60, USUAL = 80, WIDE = 120 };
enum { DEEPEST = 12 }; /* levels that are indented */

/* Prints text from column `indent` to `width`; the rest, broken after blanks, on lines below,
 * indented by four more. Returns the column it ends in. */
static int print_text(FILE *file, const char *text, int indent, int width)
{
    int n = (int)strlen(text);
    for (int room = width - indent; n > room; room = width - indent) {
        int cut = room;
        while (cut > 0 && text[cut] != ' ') cut--;
        if (cut == 0) break; /* one long word */
        fprintf(file, "%*s%.*s\n", indent, "", cut, text);
        text += cut + 1, n -= cut + 1;
        if (indent <= 2 * DEEPEST) indent += 4;
    }
    fprintf(file, "%*s%s", indent, "", text);
    return indent + n;
}

static void print_row(FILE *file, const row *r, int width)
{
    char text[2 * LONGEST + 1024];
    const int indent = 2 * (int)TNI_MIN(r->depth, DEEPEST), left = width - 2 * COLUMN;
    const bool counted = r->parameters >= 0 || r->buffers >= 0;
    if (r->times > 1)
        snprintf(text, sizeof text, "%" PRId64 " to %" PRId64 ": %s, %" PRId64 " times", r->number,
                 r->number + r->times - 1, r->text, r->times);
    else if (r->number >= 0)
        snprintf(text, sizeof text, "%" PRId64 ": %s", r->number, r->text);
    else
        snprintf(text, sizeof text, "%s", r->text);
    int at = print_text(file, text, indent, counted ? left : width);
    if (r->parameters >= 0)
        fprintf(file, "%*s", TNI_MAX(1, left + COLUMN - at), grouped(r->parameters).s);
    if (r->buffers >= 0) fprintf(file, "%*s", TNI_MAX(1, width - at), grouped(r->buffers).s);
    fputc('\n', file);
}

static void print_total(FILE *file, const char *what, total sum, const char *plain,
                        const char *special)
{
    fprintf(file, "%s %s (%s %s, %s %s), %s\n", what, grouped(sum.n).s, plain,
            grouped(sum.n - sum.special).s, special, grouped(sum.special).s,
            in_bytes(sum.nbytes).s);
}

/* x: NULL, or what m, which is then a copy, is run on */
static tn_status summarize(const char *f, FILE *file, tn_module *m, tn_tensor *x)
{
    TNI_C_NUMBERS;
    table t = { .inner = -1 };
    tn_status status = x ? run(&t, m, x) : TN_OK;
    if (status == TN_OK) status = tni_walk(m, TNI_EVERY, go_in, come_out, &t);
    if (status == TN_OK) {
        struct winsize size = { 0 };
        const int fd = fileno(file);
        const bool known = fd >= 0 && isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0;
        const int columns = known && size.ws_col ? size.ws_col : USUAL;
        const int width = TNI_MAX(NARROW, TNI_MIN(WIDE, columns));
        char dashes[WIDE];
        memset(dashes, '-', sizeof dashes);
        fprintf(file, "%*s%*s\n", width - COLUMN, "parameters", COLUMN, "buffers");
        fprintf(file, "%-*s%*s%*s\n", width - 2 * COLUMN, "module", COLUMN, "(trained)", COLUMN,
                "(carried)");
        fprintf(file, "%.*s\n", width, dashes);
        for (int64_t i = 0; i < t.n; i++) print_row(file, &t.rows[i], width);
        fprintf(file, "%.*s\n", width, dashes);
        print_total(file, "parameters", t.parameters, "trainable", "frozen");
        print_total(file, "buffers", t.buffers, "saved", "not saved");
        fprintf(file, "together %s\n", in_bytes(t.parameters.nbytes + t.buffers.nbytes).s);
        status = tni_stream_written(f, file);
    }
    tni_map_free(&t.gives);
    tni_map_free(&t.seen);
    tni_arena_free(&t.arena);
    tni_room_free(&t.rows, &t.capacity, sizeof *t.rows);
    return status;
}

tn_status tn_module_summary(FILE *file, tn_module *m)
{
    if (!file) return tni_null(__func__, "the file", "an open one");
    TNI_TRY(tni_module_check(__func__, m));
    return summarize(__func__, file, m, NULL);
}

tn_status tn_module_summary_with(FILE *file, tn_module *m, tn_tensor *x)
{
    if (!file) return tni_null(__func__, "the file", "an open one");
    TNI_TRY(tni_module_check(__func__, m));
    if (!x) return tni_poison(__func__, "x");
    tn_module *copy = tn_module_clone(m);
    tn_status status = copy ? summarize(__func__, file, copy, x) : tni_pending();
    tn_module_drop(copy);
    return status;
}
