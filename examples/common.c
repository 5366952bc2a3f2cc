/* common.c - see common.h */
#include "common.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/ioctl.h>

static const char *program = "example";

const char *ex_program(void)
{
    return program;
}

void ex_refuse(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "%s: ", program);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(2);
}

void ex_check(tn_status status)
{
    if (status == TN_OK) return;
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", program, tn_error());
    exit(1);
}

void ex_check_ptr(const void *pointer)
{
    if (!pointer) ex_check(tn_error_status() != TN_OK ? tn_error_status() : TN_E_INVALID);
}

/* ---- flags ------------------------------------------------------------------------------------ */

static void value_text(const ex_option *o, char *text, size_t size)
{
    switch (o->kind) {
    case EX_WHOLE: snprintf(text, size, "%" PRId64, *(int64_t *)o->value); break;
    case EX_REAL: snprintf(text, size, "%.17g", *(double *)o->value); break;
    case EX_FLAG: snprintf(text, size, "%s", *(bool *)o->value ? "yes" : "no"); break;
    case EX_TEXT: snprintf(text, size, "%s", *(char **)o->value ? *(char **)o->value : ""); break;
    }
}

/* Reads text into o->value; false when it is not such a value. */
static bool value_read(ex_option *o, const char *text)
{
    char *end = NULL;
    errno = 0;
    if (o->kind == EX_TEXT) {
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
    printf("usage: %s [OPTION...]\n%s\n\n", program, options->what);
    for (int i = 0; i < options->n; i++) {
        const ex_option *o = &options->option[i];
        char left[64], preset[64];
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->argument ? " " : "",
                 o->argument ? o->argument : "");
        printf("  %-24s %s", left, o->help);
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
}

void ex_parse(ex_options *options, int argc, char **argv)
{
    enum { HELP = 1000, FIRST };
    struct option *table = calloc((size_t)options->n + 2, sizeof *table);
    if (!table) ex_refuse("out of memory");
    const char *slash = strrchr(argv[0], '/');
    program = slash ? slash + 1 : argv[0];
    for (int i = 0; i < options->n; i++) {
        const ex_option *o = &options->option[i];
        table[i] = (struct option){ o->name, o->kind != EX_FLAG, NULL, FIRST + i };
    }
    table[options->n] = (struct option){ "help", no_argument, NULL, HELP };

    opterr = 0;
    for (;;) {
        int at = optind;
        int c = getopt_long(argc, argv, ":h", table, NULL);
        if (c == -1) break;
        if (c == HELP || c == 'h') {
            help(options);
            free(table);
            exit(0);
        }
        if (c == ':') ex_refuse("%s needs an argument (see --help)", argv[at]);
        if (c < FIRST) ex_refuse("unknown flag %s (see --help)", argv[at]);
        ex_option *o = &options->option[c - FIRST];
        o->given = true;
        if (value_read(o, o->kind == EX_FLAG ? "yes" : optarg)) continue;
        if (o->low < o->high) {
            ex_refuse("--%s %s: wanted a %snumber from %g to %g", o->name, optarg,
                      o->kind == EX_WHOLE ? "whole " : "", o->low, o->high);
        }
        ex_refuse("--%s %s: wanted a %snumber", o->name, optarg,
                  o->kind == EX_WHOLE ? "whole " : "");
    }
    if (optind < argc) ex_refuse("unexpected argument %s (see --help)", argv[optind]);
    free(table);
}

bool ex_given(const ex_options *options, const char *name)
{
    for (int i = 0; i < options->n; i++) {
        if (!strcmp(options->option[i].name, name)) return options->option[i].given;
    }
    return false;
}

void ex_print_settings(const ex_options *options)
{
    int column = 0;
    for (int i = 0; i < options->n; i++) {
        const ex_option *o = &options->option[i];
        if (!o->belongs) continue;
        char text[256], pair[320];
        if (o->kind == EX_REAL) {
            snprintf(text, sizeof text, "%g", *(double *)o->value);
        } else {
            value_text(o, text, sizeof text);
        }
        int length = snprintf(pair, sizeof pair, "%s %s", o->name, text);
        if (column && column + 2 + length > 98) {
            printf("\n");
            column = 0;
        }
        column += printf("%s%s", column ? ", " : "", pair);
    }
    printf("\n");
}

/* ---- notes ------------------------------------------------------------------------------------------- */

void ex_note(ex_notes *notes, const char *key, const char *format, ...)
{
    size_t left = sizeof notes->text - notes->used;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(notes->text + notes->used, left, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= left || notes->n == EX_MAX_NOTES) {
        ex_refuse("too many settings to note in a file");
    }
    notes->key[notes->n] = key;
    notes->value[notes->n] = notes->text + notes->used;
    notes->n++;
    notes->used += (size_t)length + 1;
}

void ex_note_options(ex_notes *notes, const ex_options *options, unsigned which)
{
    for (int i = 0; i < options->n; i++) {
        const ex_option *o = &options->option[i];
        char text[4096];
        if (!(o->belongs & which)) continue;
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
        if (!noted) ex_refuse("%s does not say its %s: it was not saved by %s", file, o->name, program);
        char mine[4096];
        value_text(o, mine, sizeof mine);
        if (o->given && strcmp(mine, noted)) {
            ex_refuse("--%s %s conflicts with %s, which was made with --%s %s", o->name, mine, file,
                      o->name, noted);
        }
        if (!value_read(o, noted)) {
            ex_refuse("%s: its %s is \"%s\", outside what --%s takes", file, o->name, noted, o->name);
        }
    }
}

/* ---- leaving early ------------------------------------------------------------------------------------- */

static volatile sig_atomic_t signal_seen;

static void note_signal(int number)
{
    signal_seen = number;
}

void ex_catch_signals(void)
{
    struct sigaction action = { .sa_handler = note_signal, .sa_flags = (int)SA_RESETHAND };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int ex_signal(void)
{
    return signal_seen;
}

/* ---- progress --------------------------------------------------------------------------------------------- */

double ex_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

void ex_progress_begin(ex_progress *p, int64_t first, int64_t total, int64_t per_step,
                       const char *unit, bool quiet)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    *p = (ex_progress){ .unit = unit, .total = total, .per_step = per_step, .first = first,
                        .shown = first, .quiet = quiet };
    p->tty = isatty(STDOUT_FILENO) && !(term && !strcmp(term, "dumb"));
    p->color = p->tty && !(no_color && *no_color);
    p->began = ex_seconds();
    p->shown_at = p->began;
}

static void clear_line(ex_progress *p)
{
    if (!p->on_line) return;
    printf("\r\033[K");
    p->on_line = false;
}

static void time_text(double seconds, char *text, size_t size)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600) {
        snprintf(text, size, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    } else {
        snprintf(text, size, "%d:%02d", (int)(s / 60), (int)(s % 60));
    }
}

/* One line, the most wanted first; parts that do not fit the width are left out. */
static void draw(ex_progress *p, int64_t step, double rate, double lr, const char *left)
{
    char part[5][64];
    int width = terminal_width() - 1, used = 0;
    const char *bold = p->color ? "\033[1m" : "", *plain = p->color ? "\033[0m" : "";
    snprintf(part[0], sizeof part[0], "step %" PRId64 "/%" PRId64, step, p->total);
    snprintf(part[1], sizeof part[1], "loss %.4f", p->loss / (double)p->losses);
    snprintf(part[2], sizeof part[2], "%s left", left);
    snprintf(part[3], sizeof part[3], "%.0f %s/s", rate, p->unit);
    snprintf(part[4], sizeof part[4], "lr %.2e", lr);
    printf("\r");
    for (int i = 0; i < 5; i++) {
        int length = (int)strlen(part[i]) + (i ? 2 : 0);
        if (used + length > width) break;
        printf("%s%s%s%s", i ? "  " : "", i == 1 ? bold : "", part[i], i == 1 ? plain : "");
        used += length;
    }
    int cells = width - used - 4;
    if (cells >= 10) {
        if (cells > 40) cells = 40;
        int full = (int)((double)cells * (double)step / (double)p->total);
        printf("  [%.*s%.*s]", full, "########################################", cells - full,
               "........................................");
    }
    printf("\033[K");
    p->on_line = true;
}

void ex_progress_step(ex_progress *p, int64_t step, double loss, double lr)
{
    p->loss += loss;
    p->losses++;
    if (p->quiet) return;
    double now = ex_seconds();
    int64_t every = p->total / 25 > 0 ? p->total / 25 : 1;
    bool due = p->tty ? now - p->shown_at >= 0.1 : step % every == 0 || step == p->first + 1;
    if (!due && step != p->total) return;

    double seconds = now - p->shown_at, all = now - p->began - p->paused;
    double rate = seconds > 0 ? (double)((step - p->shown) * p->per_step) / seconds : 0;
    char left[32];
    time_text(all / (double)(step - p->first) * (double)(p->total - step), left, sizeof left);
    if (p->tty) {
        draw(p, step, rate, lr, left);
    } else {
        printf("step %" PRId64 "/%" PRId64 "  loss %.4f  %.0f %s/s  lr %.2e  %s left\n", step,
               p->total, p->loss / (double)p->losses, rate, p->unit, lr, left);
    }
    fflush(stdout);
    p->shown = step;
    p->shown_at = now;
    p->loss = 0;
    p->losses = 0;
}

void ex_say(ex_progress *p, const char *format, ...)
{
    if (p->quiet) return;
    clear_line(p);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

void ex_progress_pause(ex_progress *p)
{
    p->paused -= ex_seconds();
    p->shown_at -= ex_seconds();
}

void ex_progress_resume(ex_progress *p)
{
    p->paused += ex_seconds();
    p->shown_at += ex_seconds();
}

double ex_progress_end(ex_progress *p, int64_t step)
{
    clear_line(p);
    double seconds = ex_seconds() - p->began - p->paused;
    return seconds > 0 ? (double)((step - p->first) * p->per_step) / seconds : 0;
}

/* ---- curves and reports -------------------------------------------------------------------------------------- */

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
    return (ex_watch){ .tensors = tn_live_tensors(), .allocations = tn_memory().system_allocations };
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

tn_device ex_device(const char *name)
{
    if (!strcmp(name, "cpu")) return tn_cpu();
    if (strcmp(name, "cuda")) ex_refuse("--device %s: wanted cpu or cuda", name);
    if (!tn_cuda_available()) ex_refuse("--device cuda: %s", tn_cuda_why());
    return tn_cuda(0);
}

void ex_threads(int64_t n)
{
    if (n > 0) ex_check(tn_set_num_threads((int)n));
}
