/* common.c - flags, notes, curves and reports; see common.h */
#include "common.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

/* ---- flags ----------------------------------------------------------------------------------- */

static void value_text(const ex_option *o, char *text, size_t size)
{
    switch (o->kind) {
    case EX_WHOLE: snprintf(text, size, "%" PRId64, *(int64_t *)o->value); break;
    case EX_REAL: snprintf(text, size, "%.17g", *(double *)o->value); break;
    case EX_FLAG: snprintf(text, size, "%s", *(bool *)o->value ? "yes" : "no"); break;
    case EX_TEXT: snprintf(text, size, "%s", *(char **)o->value ? *(char **)o->value : ""); break;
    }
}

/* Reads text into o->value; false if it is not a valid value. */
static bool value_read(ex_option *o, const char *text)
{
    char *end = NULL;
    errno = 0;
    if (o->kind == EX_TEXT) {
        const char *preset = *(const char **)o->value;
        if (!*text && !(preset && !*preset)) return false; /* "" names no file: an unset variable */
        *(const char **)o->value = text;
        return true;
    }
    if (o->kind == EX_FLAG) {
        *(bool *)o->value = !strcmp(text, "yes");
        return true;
    }
    if (o->kind == EX_WHOLE) {
        int64_t v = strtoll(text, &end, 10);
        if (errno || end == text || *end) return false;
        if (o->low < o->high && ((double)v < o->low || (double)v > o->high)) return false;
        *(int64_t *)o->value = v;
        return true;
    }
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return false;
    if (o->low < o->high && (v < o->low || v > o->high)) return false;
    *(double *)o->value = v;
    return true;
}

static void help(const ex_options *options)
{
    printf("usage: %s [OPTION...]\n%s\n\n", ex_program(), options->what);
    for (int i = 0; i < options->n; i++) {
        const ex_option *o = &options->option[i];
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->argument ? " " : "",
                 o->argument ? o->argument : "");
        printf("  %-24s %s", left, o->help);
        char preset[64];
        if (o->kind == EX_WHOLE) {
            printf(" (default %" PRId64 ")", *(int64_t *)o->value);
        } else if (o->kind == EX_REAL) {
            printf(" (default %g)", *(double *)o->value);
        } else if (o->kind == EX_TEXT && *(char **)o->value) {
            value_text(o, preset, sizeof preset);
            printf(" (default \"%s\")", preset);
        }
        printf("\n");
    }
    printf("  %-24s %s\n", "--help", "this list");
    printf("\nOf an option that is given twice the last one counts.\n");
}

/* Ends the program, saying what o takes and what it got. */
static void refuse_value(const ex_option *o, const char *got)
{
    const char *shown = *got ? got : "\"\"", *whole = o->kind == EX_WHOLE ? "whole " : "";
    if (o->kind == EX_TEXT) ex_refuse("--%s %s: want a %s", o->name, shown, o->argument);
    if (o->low >= o->high) ex_refuse("--%s %s: want a %snumber", o->name, shown, whole);
    ex_refuse("--%s %s: want a %snumber from %.10g to %.10g", o->name, shown, whole, o->low,
              o->high);
}

/* Ends the program: getopt_long stopped at this argument; optopt is its option. */
static void refuse_flag(const ex_options *options, const char *argument, int first)
{
    int i = optopt - first;
    if (i < 0 || i >= options->n) ex_refuse("unknown flag %s (see --help)", argument);
    ex_refuse("%s: --%s takes no argument", argument, options->option[i].name);
}

void ex_parse(ex_options *options, int argc, char **argv)
{
    enum { EX_MAX_OPTIONS = 62, HELP = 1000, FIRST };
    static struct option table[EX_MAX_OPTIONS + 2]; /* ends with an empty row */
    ex_begin(argv[0]);
    if (options->n > EX_MAX_OPTIONS) ex_refuse("more than %d options", EX_MAX_OPTIONS);
    for (int i = 0; i < options->n; i++) {
        const ex_option *o = &options->option[i];
        table[i] = (struct option){ o->name, o->kind != EX_FLAG, NULL, FIRST + i };
    }
    table[options->n] = (struct option){ "help", no_argument, NULL, HELP };

    opterr = 0;
    for (;;) {
        int at = optind;
        int c = getopt_long(argc, argv, "+:h", table, NULL);
        if (c == -1) break;
        if (c == HELP || c == 'h') {
            help(options);
            exit(ex_end());
        }
        if (c == ':') ex_refuse("%s needs an argument (see --help)", argv[at]);
        if (c < FIRST) refuse_flag(options, argv[at], FIRST);
        ex_option *o = &options->option[c - FIRST];
        o->given = true;
        const char *value = o->kind == EX_FLAG ? "yes" : optarg;
        if (!value_read(o, value)) refuse_value(o, value);
    }
    if (optind < argc) ex_refuse("unexpected argument %s (see --help)", argv[optind]);
}

static const ex_option *find(const ex_options *options, const char *name)
{
    for (int i = 0; i < options->n; i++)
        if (!strcmp(options->option[i].name, name)) return &options->option[i];
    return NULL;
}

bool ex_given(const ex_options *options, const char *name)
{
    const ex_option *o = find(options, name);
    return o && o->given;
}

const char *ex_text(const ex_options *options, const char *name)
{
    const ex_option *o = find(options, name);
    return o ? *(const char **)o->value : NULL;
}

void ex_print_settings(const ex_options *options)
{
    int column = 0;
    for (int i = 0; i < options->n; i++) {
        const ex_option *o = &options->option[i];
        if (!o->belongs) continue;
        char text[256];
        if (o->kind == EX_REAL)
            snprintf(text, sizeof text, "%g", *(double *)o->value);
        else
            value_text(o, text, sizeof text);
        char pair[320];
        int length = snprintf(pair, sizeof pair, "%s %s", o->name, text);
        if (column && column + 2 + length > 98) {
            printf("\n");
            column = 0;
        }
        column += printf("%s%s", column ? ", " : "", pair);
    }
    printf("\n");
}

/* ---- notes ----------------------------------------------------------------------------------- */

void ex_note(ex_notes *notes, const char *key, const char *format, ...)
{
    size_t left = sizeof notes->text - notes->used;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(notes->text + notes->used, left, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= left || notes->n == EX_MAX_NOTES)
        ex_refuse("too many settings to note in a file");
    notes->key[notes->n] = key;
    notes->value[notes->n] = notes->text + notes->used;
    notes->n++;
    notes->used += (size_t)length + 1;
}

void ex_note_options(ex_notes *notes, const ex_options *options, unsigned which)
{
    for (int i = 0; i < options->n; i++) {
        const ex_option *o = &options->option[i];
        if (!(o->belongs & which)) continue;
        char text[4096];
        value_text(o, text, sizeof text);
        ex_note(notes, o->name, "%s", text);
    }
}

tn_metadata ex_metadata(ex_notes *notes)
{
    return (tn_metadata){ .n = notes->n, .key = notes->key, .value = notes->value };
}

void ex_adopt(ex_options *options, const tn_metadata *metadata, unsigned which, const char *file)
{
    for (int i = 0; i < options->n; i++) {
        ex_option *o = &options->option[i];
        if (!(o->belongs & which)) continue;
        const char *noted = tn_metadata_get(metadata, o->name);
        if (!noted) {
            ex_refuse("%s does not say its %s: it was not saved by %s", file, o->name,
                      ex_program());
        }
        if ((o->belongs & EX_LENGTH) && o->given) continue;
        char mine[4096];
        value_text(o, mine, sizeof mine);
        if (o->given && strcmp(mine, noted)) {
            ex_refuse("--%s %s conflicts with %s, which was made with --%s %s", o->name, mine, file,
                      o->name, noted);
        }
        if (o->kind == EX_TEXT && !(noted = strdup(noted))) ex_refuse("out of memory"); /* stays */
        if (!value_read(o, noted)) {
            ex_refuse("%s: its %s is \"%s\", outside what --%s takes", file, o->name, noted,
                      o->name);
        }
    }
}

/* ---- curves and reports ---------------------------------------------------------------------- */

void ex_curve_add(ex_curve *c, double x, double y)
{
    if (c->n == c->room) {
        int64_t room = c->room ? 2 * c->room : 256;
        double *xs = realloc(c->x, (size_t)room * sizeof *xs);
        if (xs) c->x = xs;
        double *ys = realloc(c->y, (size_t)room * sizeof *ys);
        if (ys) c->y = ys;
        if (!xs || !ys) ex_refuse("out of memory");
        c->room = room;
    }
    c->x[c->n] = x;
    c->y[c->n++] = y;
}

void ex_curve_free(ex_curve *c)
{
    free(c->x);
    free(c->y);
    *c = (ex_curve){ 0 };
}

tn_curve ex_curve_view(const ex_curve *c, const char *label)
{
    return (tn_curve){ .label = label, .n = c->n, .x = c->x, .y = c->y };
}

ex_watch ex_watch_begin(void)
{
    return (ex_watch){ .tensors = tn_live_tensors(),
                       .allocations = tn_memory().system_allocations };
}

void ex_watch_print(const ex_watch *w)
{
    tn_memory_stats m = tn_memory();
    printf("memory: tensors alive %" PRId64 " -> %" PRId64 ", system allocations since the first "
           "evaluation %" PRId64 ", peak %.1f MiB\n",
           w->tensors, tn_live_tensors(), m.system_allocations - w->allocations,
           (double)m.peak_in_use / 1048576);
}

/* FNV-1a, 64 bits */
static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ b[i]) * 0x100000001b3u;
    return hash;
}

uint64_t ex_hash(tn_module *model)
{
    uint64_t hash = 0xcbf29ce484222325u;
    tn_scope scope = tn_scope_begin();
    tn_list *lists[2] = { tn_parameters(model), tn_buffers(model) };
    for (int k = 0; k < 2; k++) {
        ex_check_ptr(lists[k]);
        for (int i = 0; i < lists[k]->n; i++) {
            const tn_entry *e = &lists[k]->entry[i];
            uint64_t h = tn_hash(e->tensor);
            hash = mix(hash, e->name, strlen(e->name) + 1);
            hash = mix(hash, &h, sizeof h);
        }
    }
    tn_scope_end(scope);
    return hash;
}

/* ---- where it runs --------------------------------------------------------------------------- */

tn_device ex_device(const char *name)
{
    if (!strcmp(name, "cpu")) return tn_cpu();
    if (strcmp(name, "cuda")) ex_refuse("--device %s: want cpu or cuda", name);
    /* of several processes each takes a GPU of its own */
    if (tn_cuda_available()) return tn_cuda(tn_parallel_local_rank() % tn_cuda_device_count());
    ex_complain("--device cuda: %s", tn_cuda_why());
    exit(1);
}

/* Removes a flag with its argument, and returns that. Of several, the last one counts; NULL: there
 * is none. */
static const char *take(int *argc, char **argv, const char *flag, const char *wanted)
{
    const char *value = NULL;
    for (int i = 1; i < *argc;) {
        if (strcmp(argv[i], flag)) {
            i++;
            continue;
        }
        if (i + 1 == *argc) ex_refuse("%s needs an argument: %s", flag, wanted);
        value = argv[i + 1];
        for (int k = i; k + 2 <= *argc; k++) argv[k] = argv[k + 2]; /* the NULL at the end too */
        *argc -= 2;
    }
    return value;
}

tn_device ex_parse_few(int *argc, char **argv, int most, const char *usage, const char **html)
{
    ex_begin(argv[0]);
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--help") && strcmp(argv[i], "-h")) continue;
        printf("%s", usage);
        exit(ex_end());
    }
    const char *name = take(argc, argv, "--device", "cpu or cuda");
    tn_device device = name ? ex_device(name) : tn_cpu();
    if (html) *html = take(argc, argv, "--html", "a file");
    for (int i = 1; i < *argc; i++) {
        if (argv[i][0] == '-') ex_refuse("unknown flag %s (see --help)", argv[i]);
        if (i > most) ex_refuse("unexpected argument %s (see --help)", argv[i]);
    }
    return device;
}
