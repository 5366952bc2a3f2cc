/* tenon.c - the command line, a program on the public headers alone; tenon.1 is its manual. */
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <tenon/tenon.h>

enum { SAME, DIFFERENT, TROUBLE }; /* exit statuses, as diff's */
enum { RENAMES = 63, CHUNK = 8192, STRINGS = 65536 };

/* Options as they were given, NULL: not; the numbers among them are in `number`, 0: not given. */
enum { KEY, DEPTH, NO_STATS, JSON, RTOL, ATOL, IGNORE_DTYPE, DTYPE, RENAME, FORCE, OPTIONS };
static const char *given[OPTIONS], *renames[RENAMES + 1];
static double number[OPTIONS];

/* ---- text ------------------------------------------------------------------------------------ */

/* Prints before, then a text of any bytes of which a terminal only shows: a character of control
 * is \u00XX, a backslash two. json: in quotes, as JSON. Returns the number of characters. */
static int put(FILE *f, const char *before, const char *text, bool json)
{
    int count = fprintf(f, "%s%s", before, json ? "\"" : "");
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        const bool wide = *s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0; /* U+0080 to U+009F */
        if (*s < 0x20 || *s == 0x7f || wide)
            count += fprintf(f, "\\u%04x", *(s += wide));
        else if (*s == '\\' || (json && *s == '"'))
            count += fprintf(f, "\\%c", *s);
        else
            fputc(*s, f), count += (*s & 0xc0) != 0x80;
    }
    return json ? count + fprintf(f, "\"") : count;
}

/* A text that lasts for 32 calls. */
static const char *TN_PRINTF(1, 2) text(const char *format, ...)
{
    static char texts[32][8192];
    static int next;
    va_list args;
    va_start(args, format);
    vsnprintf(texts[++next % 32], sizeof *texts, format, args);
    va_end(args);
    return texts[next % 32];
}

/* A line on standard error. */
static int say(const char *message)
{
    fflush(stdout); /* where both are one file, in the order of what happened */
    put(stderr, "tenon: ", message, false);
    fputc('\n', stderr);
    return TROUBLE;
}

/* The library's message. */
static int failed(void)
{
    const char *message = tn_error(), *behind = strstr(message, ": ");
    return say(!strncmp(message, "tn_", 3) && behind ? behind + 2 : message);
}

static const char *shape_text(const tn_tensor *t)
{
    const char *sizes = "";
    for (int i = 0; i < tn_rank(t); i++)
        sizes = text("%s%s%lld", sizes, i ? ", " : "", (long long)tn_size(t, i));
    return text("[%s]", sizes);
}

static const char *bytes_text(int64_t n)
{
    double x = (double)n;
    int unit = 0;
    for (; unit < 4 && x >= 999.95; unit++) x /= 1024;
    return unit ? text("%.1f %ciB", x, " KMGT"[unit]) : text("%.0f B", x);
}

/* A whole number, or a float of so many digits; 0: as many as tell it from the next, f32 or f64. */
static const char *value_text(long double value, tn_dtype dtype, int digits)
{
    if (!digits) digits = dtype == TN_F64 ? 17 : 9;
    return tn_dtype_is_float(dtype) ? text("%.*Lg", digits, value) : text("%.0Lf", value);
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), k = strlen(end);
    return n > k && !strcmp(path + n - k, end);
}

static const char *module_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return text("%.*s", dot ? (int)(dot - name) : 0, name);
}

/* Adds entry e of a list under a name, as t, with its role and its module's state version. */
static bool add_as(tn_list *to, const tn_list *from, const tn_entry *e, const char *name,
                   tn_tensor *t)
{
    const int version = tn_list_version(from, module_of(e->name));
    if (tn_list_add(to, name, t) != TN_OK) return false;
    to->entry[to->n - 1].role = e->role;
    return !version || tn_list_set_version(to, module_of(name), version) == TN_OK;
}

/* What --key picks of a file; shows: of all of it, with what tenon cannot hold left out. The one
 * place that opens files. An array of NumPy's has no name: "array". */
static tn_list *read_file(const char *path, tn_metadata *metadata, bool shows)
{
    const bool array = ends_in(path, ".npy");
    tn_load_options o = { .key = given[KEY] || !shows ? given[KEY] : "*", .skip_foreign = shows };
    tn_load_report report = { .loaded = 0 };
    *metadata = (tn_metadata){ 0 }, o.no_values = given[NO_STATS];
    tn_list *list = array ? tn_list_new() : tn_load_tensors_with(path, o, metadata, &report);
    tn_tensor *values = array ? tn_npy_load(path) : NULL;
    if (array && (!values || tn_list_add(list, "array", values) != TN_OK)) list = NULL;
    o.key = "*", o.skip_foreign = true; /* the key may be a tensor's, of all of them */
    tn_list *one = tn_list_new(), *all = NULL;
    if (!array && !list && given[KEY]) all = tn_load_tensors_with(path, o, metadata, NULL);
    for (const tn_entry *e = all ? all->entry : NULL; e && e < all->entry + all->n; e++)
        if (!strcmp(e->name, given[KEY]) && add_as(one, all, e, e->name, e->tensor)) list = one;
    if (!list) failed();
    for (char *line = strtok(report.text, "\n"); list && line; line = strtok(NULL, "\n"))
        say(text("note: %s: %s", path, line));
    return list;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* The first entry with entry i's memory: i or less. To be asked for a list's entries in turn. */
static int first_name(const tn_list *list, int i)
{
    static tn_list *seen; /* place -> number */
    tn_tensor *t = list->entry[i].tensor;
    const long long n = tn_numel(t);
    const char *place = text("%p %lld", n && tn_is_contiguous(t) ? tn_data(t) : t, n);
    if (i == 0) seen = tn_list_new();
    if (tn_list_has(seen, place)) return (int)tn_item(tn_list_get(seen, place));
    if (tn_list_add(seen, place, tn_scalar(i)) != TN_OK) tn_error_clear(); /* no memory: no ties */
    return i;
}

/* Values of a tensor of one axis from the i-th on, exact where long double has 64 bits of fraction.
 * Returns how many; 0: none is left, -1: failed. */
static int64_t read_values(tn_tensor *t, int64_t i, long double to[CHUNK])
{
    static double floats[CHUNK];
    static int64_t whole[CHUNK];
    const bool is_float = tn_dtype_is_float(tn_dtype_of(t));
    const int64_t left = t ? tn_numel(t) - i : -1, n = left < CHUNK ? left : CHUNK;
    if (n <= 0) return n;
    TN_SCOPE if (tn_copy_out(tn_narrow(t, 0, i, n), is_float ? (void *)floats : whole,
                             (size_t)n * 8, is_float ? TN_F64 : TN_I64) != TN_OK) return -1;
    for (int64_t k = 0; k < n; k++) to[k] = is_float ? floats[k] : (long double)whole[k];
    return n;
}

typedef struct stats {
    long long nan, inf;
    long double of[4]; /* min, max, mean, std (by n - 1) of finite values; NaN: there are too few */
} stats;

/* Sums are of differences to the first value: as it is one of them, std is at least as large as
 * that of the mean over the root of their number, and few of long double's digits are lost. */
static bool measure(tn_tensor *t, stats *s)
{
    static long double x[CHUNK];
    long double first = 0, sum = 0, squares = 0, count = 0;
    int64_t n;
    *s = (stats){ .of = { NAN, NAN, NAN, NAN } };
    t = tn_reshape(t, TN_SHAPE(tn_numel(t)));
    for (int64_t i = 0; (n = read_values(t, i, x)) > 0; i += n)
        for (int64_t k = 0; k < n; k++) {
            s->nan += isnan(x[k]) != 0;
            s->inf += isinf(x[k]) != 0;
            if (!isfinite(x[k])) continue;
            if (count++ == 0) first = s->of[0] = s->of[1] = x[k];
            if (x[k] < s->of[0]) s->of[0] = x[k];
            if (x[k] > s->of[1]) s->of[1] = x[k];
            sum += x[k] - first;
            squares += (x[k] - first) * (x[k] - first);
        }
    if (count > 0) s->of[2] = (double)(first + sum / count);
    if (count > 1) s->of[3] = (double)sqrtl(fmaxl(squares - sum * sum / count, 0) / (count - 1));
    return n == 0;
}

/* ---- tenon inspect: a tree, printed twice, first to nowhere for the width of its names ------- */

typedef struct row {
    const char *name, *tie, *role; /* tie: another name of the same memory; NULL: none */
    tn_tensor *tensor;
    long long nbytes;
    tn_dtype dtype;
    stats stats;
} row;

#define COLUMNS "%-14s %-5s %9s"
static FILE *out;
static int width;

static int by_name(const void *a, const void *b)
{
    return strverscmp(((const row *)a)->name, ((const row *)b)->name);
}

/* The columns up to the size; the name is n bytes. */
static void put_left(int depth, const char *name, size_t n, const char *columns)
{
    const int used = put(out, "", text("%*s%.*s", 2 * depth, "", (int)n, name), false);
    if (used > width && used <= 60) width = used;
    fprintf(out, "%*s  %s", used < width ? width - used : 0, "", columns);
}

static void put_right(const row *r)
{
    if (r->stats.nan) fprintf(out, "  %lld nan", r->stats.nan);
    if (r->stats.inf) fprintf(out, "  %lld inf", r->stats.inf);
    if (*r->role) fprintf(out, "  %s", r->role);
    if (r->tie) put(out, "  = ", r->tie, false);
    fputc('\n', out);
}

static void put_tensor(int depth, const row *r, const char *name)
{
    const long double *of = r->stats.of;
    const char *shape = shape_text(r->tensor), *dtype = tn_dtype_name(r->dtype);
    put_left(depth, name, strlen(name), text(COLUMNS, shape, dtype, bytes_text(r->nbytes)));
    for (int i = 0; i < 4 && !given[NO_STATS]; i++)
        fprintf(out, " %11s", isnan(of[i]) ? "-" : value_text(of[i], i < 2 ? r->dtype : TN_F64, 5));
    put_right(r);
}

/* Rows from r to end, whose names have their first `skip` bytes in common. */
static void put_tree(const row *r, const row *end, size_t skip, int depth)
{
    for (const row *next; r < end; r = next) {
        const char *name = r->name, *dot = strchr(name + skip, '.');
        const size_t n = dot ? (size_t)(dot - name) + 1 : 0;
        row all = { .role = "" };
        for (next = r; next == r || (n && next < end && !strncmp(next->name, name, n)); next++) {
            all.nbytes += next->tie ? 0 : next->nbytes;
            all.stats.nan += next->stats.nan, all.stats.inf += next->stats.inf;
        }
        if (next == r + 1) { /* a branch of one tensor is that tensor */
            put_tensor(depth, r, name + skip);
            continue;
        }
        const char *count = text("%td tensors", next - r), *size = bytes_text(all.nbytes);
        put_left(depth, name + skip, n - skip, text(COLUMNS, count, "", size));
        put_right(&all);
        if (depth + 1 != number[DEPTH]) put_tree(r, next, n, depth + 1);
    }
}

static void put_text(row *rows, int n, const tn_metadata *m)
{
    for (int i = 0; i < m->n; i++) {
        put(stdout, "", m->key[i], false);
        put(stdout, ": ", m->value[i], false);
        putchar('\n');
    }
    qsort(rows, (size_t)n, sizeof *rows, by_name);
    if ((out = fopen("/dev/null", "w"))) put_tree(rows, rows + n, 0, 0), fclose(out);
    out = stdout;
    put_left(0, "name", 4, text(COLUMNS, "shape", "dtype", "size"));
    puts(given[NO_STATS] ? "" : "         min         max        mean         std");
    put_tree(rows, rows + n, 0, 0);
}

static void put_json(const row *rows, int n, const tn_metadata *m)
{
    static const char *const names[] = { "min", "max", "mean", "std" };
    for (int i = 0; i < m->n; i++) {
        put(stdout, i ? ",\n    " : "{\n  \"metadata\": {\n    ", m->key[i], true);
        put(stdout, ": ", m->value[i], true);
    }
    fputs(m->n ? "},\n  \"tensors\": [" : "{\n  \"metadata\": {},\n  \"tensors\": [", stdout);
    for (const row *r = rows; r < rows + n; r++) {
        put(stdout, r == rows ? "\n    {\"name\": " : ",\n    {\"name\": ", r->name, true);
        printf(", \"shape\": %s, \"dtype\": \"%s\", \"bytes\": %lld", shape_text(r->tensor),
               tn_dtype_name(r->dtype), r->nbytes);
        for (int i = 0; i < 4 && !given[NO_STATS]; i++) {
            const char *value = value_text(r->stats.of[i], i < 2 ? r->dtype : TN_F64, 0);
            printf(", \"%s\": %s", names[i], isfinite(r->stats.of[i]) ? value : "null");
        }
        if (!given[NO_STATS]) printf(", \"nan\": %lld, \"inf\": %lld", r->stats.nan, r->stats.inf);
        if (*r->role) put(stdout, ", \"role\": ", r->role, true);
        if (r->tie) put(stdout, ", \"same_as\": ", r->tie, true);
        putchar('}');
    }
    puts("]\n}");
}

static int inspect(char **files)
{
    tn_metadata metadata;
    tn_list *list = read_file(files[0], &metadata, true);
    if (!list) return TROUBLE;
    row *rows = calloc((size_t)list->n + 1, sizeof *rows);
    bool filled = rows || tn_fail(TN_E_NOMEM, "out of memory");
    long long nbytes = 0;
    for (int i = 0; filled && i < list->n; i++) {
        const tn_entry *e = &list->entry[i], *first = &list->entry[first_name(list, i)];
        row *r = &rows[i];
        *r = (row){ .name = e->name, .tensor = e->tensor, .dtype = tn_dtype_of(e->tensor) };
        r->role = tn_role_name(e->role), r->tie = first < e ? first->name : NULL;
        r->nbytes = tn_numel(e->tensor) * (long long)tn_dtype_size(r->dtype);
        nbytes += r->tie ? 0 : r->nbytes;
        filled = given[NO_STATS] || measure(e->tensor, &r->stats);
    }
    if (filled && given[JSON]) {
        put_json(rows, list->n, &metadata);
    } else if (filled) {
        put(stdout, "", files[0], false);
        printf(": %d tensor%s, %s\n", list->n, &"s"[list->n == 1], bytes_text(nbytes));
        put_text(rows, list->n, &metadata);
    }
    free(rows);
    return filled ? SAME : failed();
}

/* ---- tenon diff ------------------------------------------------------------------------------ */

typedef struct gaps {
    int64_t n; /* values that differ by more than the tolerances */
    struct gap {
        long double by, a, b;
        int64_t at;
    } absolute, relative; /* the largest */
} gaps;

/* NaN equals NaN; what is NaN or infinite in one alone differs by infinity. Relative is to the
 * larger of both, so that neither file comes first. */
static void compare_two(gaps *g, long double a, long double b, int64_t at)
{
    if (a == b || (isnan(a) && isnan(b))) return;
    const bool finite = isfinite(a) && isfinite(b);
    const long double by = finite ? fabsl(a - b) : INFINITY, scale = fmaxl(fabsl(a), fabsl(b));
    const long double relative = finite ? by / scale : INFINITY;
    if (finite && by <= number[ATOL] + number[RTOL] * scale) return;
    if (!g->n || by > g->absolute.by) g->absolute = (struct gap){ by, a, b, at };
    if (!g->n++ || relative > g->relative.by) g->relative = (struct gap){ relative, a, b, at };
}

/* Of tensors of one shape. */
static bool compare_values(gaps *g, tn_tensor *a, tn_tensor *b)
{
    static long double x[CHUNK], y[CHUNK];
    int64_t n;
    a = tn_reshape(a, TN_SHAPE(tn_numel(a)));
    b = tn_reshape(b, TN_SHAPE(tn_numel(b)));
    for (int64_t i = 0; (n = read_values(a, i, x)) > 0; i += n) {
        if (read_values(b, i, y) != n) return false;
        for (int64_t k = 0; k < n; k++) compare_two(g, x[k], y[k], i + k);
    }
    return n == 0;
}

static void put_gap(const char *how, const struct gap *g, tn_tensor *a, tn_tensor *b)
{
    int64_t size = tn_numel(a), rest = g->at;
    printf("%s %s at [", how, value_text(g->by, TN_F64, 5));
    for (int i = 0; i < tn_rank(a); rest %= size, i++)
        printf("%s%lld", i ? ", " : "", (long long)(rest / (size /= tn_size(a, i))));
    printf("], %s", value_text(g->a, tn_dtype_of(a), 0));
    printf(" and %s", value_text(g->b, tn_dtype_of(b), 0));
}

/* 0: the same, 1: different, -1: failed. */
static int compare(const char *name, tn_tensor *a, tn_tensor *b)
{
    const char *x = shape_text(a), *y = shape_text(b);
    const char *p = tn_dtype_name(tn_dtype_of(a)), *q = tn_dtype_name(tn_dtype_of(b));
    const bool same_shape = !strcmp(x, y), same_dtype = given[IGNORE_DTYPE] || p == q;
    gaps g = { 0 };
    if (same_shape && !compare_values(&g, a, b)) return -1;
    if (same_shape && same_dtype && !g.n) return 0;
    put(stdout, "", name, false);
    if (!same_shape) printf(": shape %s and %s", x, y);
    if (!same_dtype) printf(": dtype %s and %s", p, q);
    if (g.n) {
        printf(": %lld of %lld values differ", (long long)g.n, (long long)tn_numel(a));
        put_gap(", by up to", &g.absolute, a, b);
        put_gap("; relatively", &g.relative, a, b);
    }
    putchar('\n');
    return 1;
}

/* Names of a list that the other lacks. */
static int put_alone(const tn_list *list, const tn_list *other, const char *path)
{
    int count = 0;
    for (const tn_entry *e = list->entry; e < list->entry + list->n; e++) {
        if (tn_list_has(other, e->name)) continue;
        put(stdout, "", e->name, false);
        const char *dtype = tn_dtype_name(tn_dtype_of(e->tensor)), *shape = shape_text(e->tensor);
        put(stdout, text(": %s %s only in ", dtype, shape), path, false);
        putchar('\n'), count++;
    }
    return count;
}

static int diff(char **files)
{
    tn_metadata metadata;
    int differ = 0;
    tn_list *a = read_file(files[0], &metadata, false);
    tn_list *b = a ? read_file(files[1], &metadata, false) : NULL;
    if (!b) return TROUBLE;
    for (const tn_entry *e = a->entry; e && e < a->entry + a->n; e++) {
        if (!tn_list_has(b, e->name)) continue;
        const int found = compare(e->name, e->tensor, tn_list_get(b, e->name));
        if (found < 0) return failed();
        differ += found;
    }
    const int only_a = put_alone(a, b, files[0]), only_b = put_alone(b, a, files[1]);
    if (!differ && !only_a && !only_b) return SAME;
    printf("tensors that differ: %d; only in the first file: %d; only in the second: %d\n", differ,
           only_a, only_b);
    return DIFFERENT;
}

/* ---- tenon convert --------------------------------------------------------------------------- */

/* A name by the first pair OLD=NEW whose OLD begins it. */
static const char *renamed(const char *name, bool *used)
{
    for (int i = 0; renames[i]; i++) {
        const char *now = strchr(renames[i], '=') + 1;
        const size_t n = (size_t)(now - renames[i]) - 1;
        if (strncmp(name, renames[i], n) != 0) continue;
        used[i] = true;
        return text("%s%s", now, name + n);
    }
    return name;
}

/* Entry i as another float; a tie is one again, of what is in `done`. Says what became infinite. */
static tn_tensor *cast(tn_dtype dtype, const tn_list *list, int i, const tn_list *done)
{
    tn_tensor *t = list->entry[i].tensor;
    const int first = first_name(list, i);
    stats before, after;
    if (!tn_dtype_is_float(tn_dtype_of(t)) || tn_dtype_of(t) == dtype) return t;
    if (first < i) return tn_reshape(done->entry[first].tensor, tn_shape_get(t));
    tn_tensor *now = tn_to_dtype(t, dtype);
    if (!now || !measure(t, &before) || !measure(now, &after)) return NULL;
    if (after.inf > before.inf)
        say(text("note: %s: %lld values are too large for %s, and infinite now",
                 list->entry[i].name, after.inf - before.inf, tn_dtype_name(dtype)));
    return now;
}

/* The list under new names and in new dtypes. */
static tn_list *remake(const tn_list *list, tn_dtype dtype)
{
    bool used[RENAMES] = { false };
    tn_list *to = tn_list_new();
    for (int i = 0; to && i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
        const char *name = renamed(e->name, used);
        if (!*name || tn_list_has(to, name))
            return tn_fail(TN_E_NAME, "%s: its new name is %s%s", e->name,
                           *name ? "another's too: " : "empty", name);
        tn_tensor *t = given[DTYPE] ? cast(dtype, list, i, to) : e->tensor;
        if (!t || !add_as(to, list, e, name, t)) return NULL;
    }
    for (int i = 0; renames[i]; i++)
        if (!used[i]) return tn_fail(TN_E_NAME, "--rename %s: no name begins so", renames[i]);
    return to;
}

/* Without the strings that are the library's own, which belong to the old file. */
static bool write_file(const tn_list *list, const tn_metadata *m, const char *path)
{
    static const char *key[STRINGS] = { "format" }, *value[STRINGS] = { "pt" }; /* for PyTorch's */
    const char *lost = "";
    int ties = 0, n = 1;
    if (!given[KEY] && tn_metadata_get(m, "tenon.checkpoint")) say("note: it is no checkpoint now");
    if (m->n >= STRINGS)
        return tn_fail(TN_E_FORMAT, "%d strings: want fewer than %d", m->n, STRINGS);
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->key[i], "format"))
            value[0] = m->value[i];
        else if (strncmp(m->key[i], "tenon.", 6) != 0)
            key[n] = m->key[i], value[n++] = m->value[i];
    for (int i = 0; i < list->n; i++) ties += first_name(list, i) < i;
    if (ties && !strstr(".pt.pth", strrchr(path, '.')))
        say(text("note: tensors that are others too, stored once more: %d", ties));
    if (ends_in(path, ".safetensors"))
        return tn_save_tensors(list, &(tn_metadata){ n, key, value }, path) == TN_OK;
    for (int i = 1; i < n; i++) lost = text("%s%s%s", lost, *lost ? ", " : "", key[i]);
    if (*lost) say(text("note: the new file has no place for the metadata %s", lost));
    if (!ends_in(path, ".npy")) return tn_save_tensors(list, NULL, path) == TN_OK;
    if (list->n != 1 || tn_dtype_of(list->entry->tensor) == TN_BF16)
        return tn_fail(TN_E_DTYPE, "%s: want one array (--key NAME), not bf16 (--dtype f32)", path);
    return tn_npy_save(list->entry[0].tensor, path) == TN_OK;
}

static int convert(char **files)
{
    static const tn_dtype floats[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };
    static const char *const ends[] = { ".safetensors", ".pt", ".pth", ".npy", ".npz" };
    tn_metadata metadata;
    int k = 0, e = 0;
    while (k < 4 && given[DTYPE] && strcmp(given[DTYPE], tn_dtype_name(floats[k])) != 0) k++;
    while (e < 5 && !ends_in(files[1], ends[e])) e++;
    if (k == 4) return say(text("--dtype %s: want f32, f64, bf16 or f16", given[DTYPE]));
    if (e == 5)
        return say(text("%s: want a name in .safetensors, .pt, .pth, .npy or .npz", files[1]));
    if (!given[FORCE] && access(files[1], F_OK) == 0)
        return say(text("%s is there already: --force replaces it", files[1]));
    tn_list *from = read_file(files[0], &metadata, false),
            *to = from ? remake(from, floats[k]) : NULL;
    return !from ? TROUBLE : to && write_file(to, &metadata, files[1]) ? SAME : failed();
}

/* ---- tenon info ------------------------------------------------------------------------------ */

static int info(char **files)
{
    static const char *const begins[] = { "TN_", "OMP_", "OPENBLAS_", "CUDA_", "NCCL_" };
    const int gpus = tn_cuda_device_count(); /* asks for CUDA, so that tn_info knows of it */
    struct utsname system;
    tn_cuda_properties p;
    fputs(tn_info(), stdout);
    for (int i = 0; i < gpus && tn_cuda_get_properties(i, &p) == TN_OK; i++)
        printf("GPU %d: %s, %s, %d.%d\n", i, p.name, bytes_text(p.memory), p.major, p.minor);
    if (tn_parallel_begin() != TN_OK || uname(&system) != 0) return failed();
    printf("rank: %d of %d\n", tn_parallel_rank(), tn_parallel_size());
    printf("system: %s %s %s\n", system.sysname, system.release, system.machine);
    for (char **e = environ; e && *e; e++)
        for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
            if (!strncmp(*e, begins[i], strlen(begins[i])))
                put(stdout, "environment: ", *e, false), putchar('\n');
    return (void)files, SAME;
}

/* ---- commands and options -------------------------------------------------------------------- */

static const struct {
    const char *name;
    int n; /* files */
    int (*run)(char **files);
    const char *about;
} commands[] = {
    { "inspect", 1, inspect, "FILE: names, shapes, dtypes, sizes, statistics of its tensors" },
    { "diff", 2, diff, "A B: what differs. Status 0: nothing, 1: something, 2: trouble" },
    { "convert", 2, convert, "A B: A as B, in the format of B's ending" },
    { "info", 0, info, "the library and the machine, for a report" },
};
enum { INSPECT = 1, DIFF = 2, CONVERT = 4, COMMANDS = 4 };

static const struct {
    const char *name, *wants; /* X, N: a number, N from 1 */
    int of;                   /* commands */
    const char *about;
} options[OPTIONS] = {
    [KEY] = { "key", "NAME", INSPECT | DIFF | CONVERT, "what is below NAME, or NAME itself" },
    [DEPTH] = { "depth", "N", INSPECT, "branches down to level N" },
    [NO_STATS] = { "no-stats", "", INSPECT, "no min, max, mean, std, nan, inf" },
    [JSON] = { "json", "", INSPECT, "as JSON, in the file's order" },
    [RTOL] = { "rtol", "X", DIFF, "equal up to X times the larger value" },
    [ATOL] = { "atol", "X", DIFF, "equal up to X" },
    [IGNORE_DTYPE] = { "ignore-dtype", "", DIFF, "equal values of two dtypes are equal" },
    [DTYPE] = { "dtype", "NAME", CONVERT, "floats as f32, f64, bf16 or f16" },
    [RENAME] = { "rename", "OLD=NEW", CONVERT, "NEW where a name begins with OLD; repeatable" },
    [FORCE] = { "force", "", CONVERT, "replaces B" },
};

static int help(void)
{
    puts("usage: tenon COMMAND [OPTION...] [FILE...]    tenon --help    tenon --version");
    for (int c = 0; c < COMMANDS; c++) {
        printf("tenon %s %s\n", commands[c].name, commands[c].about);
        for (int i = 0; i < OPTIONS; i++)
            if (options[i].of & 1 << c)
                printf("  --%-13s%-8s %s\n", options[i].name, options[i].wants, options[i].about);
    }
    return SAME;
}

/* Whether it is what the option wants. */
static bool take(int i, const char *text)
{
    char *end;
    int n = 0;
    given[i] = text ? text : "";
    while (i == RENAME && renames[n]) n++;
    if (i == RENAME) return n < RENAMES && strchr(renames[n] = text, '=');
    if (strlen(options[i].wants) != 1) return true;
    const double x = number[i] = strtod(text, &end), least = *options[i].wants == 'N';
    return end != text && !*end && x >= least && isfinite(x) && (least == 0 || x == floor(x));
}

static int run(int c, int argc, char **argv)
{
    struct option flags[OPTIONS + 2] = { [OPTIONS] = { "help", 0, NULL, 'h' } };
    for (int i = 0; i < OPTIONS; i++)
        flags[i] = (struct option){ options[i].name, *options[i].wants != 0, NULL, 256 + i };
    for (int o; (o = getopt_long(argc, argv, ":h", flags, NULL)) >= 0;) {
        const int i = o - 256;
        if (o == 'h') return help();
        if (o == ':') return say(text("%s wants an argument (tenon --help)", argv[optind - 1]));
        if (o == '?' || !(options[i].of & 1 << c))
            return say(text("%s is no option of this command (tenon --help)", argv[optind - 1]));
        if (!take(i, optarg))
            return say(text("--%s %s: want %s", options[i].name, optarg, options[i].wants));
    }
    if (argc - optind != commands[c].n)
        return say(text("%d files: want %d (tenon --help)", argc - optind, commands[c].n));
    int result = TROUBLE;
    TN_SCOPE result = commands[c].run(argv + optind);
    return result;
}

int main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    int c = 0, result;
    for (int fd = 0; fd < 3; fd++) /* a file would get a closed one's number, and our output */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 1 ? O_RDONLY : O_RDWR) < 0) return 2;
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit is then an error, like a full disk */
    while (c < COMMANDS && strcmp(word, commands[c].name) != 0) c++;
    if (c < COMMANDS)
        result = run(c, argc - 1, argv + 1);
    else if (!strcmp(word, "--version"))
        result = printf("tenon %s\n", tn_version_string()) < 0;
    else if (!strcmp(word, "--help") || !strcmp(word, "-h"))
        result = help();
    else
        result = say(text("\"%s\" is no command (tenon --help)", word));
    if (fclose(stdout) != 0 && result != TROUBLE) result = say("the output cannot be written");
    return result;
}
