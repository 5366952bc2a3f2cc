/* common.c - messages, options, pages; see common.h */
#include "common.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

atomic_int ex_signal;
bool ex_redrawn;

/* What error() puts in front of a message. */
static void print_name(void)
{
    if (ex_redrawn) printf("\033[K");
    ex_flush();
    fprintf(stderr, "%s: ", ex_program);
    if (tn_parallel_size() > 1) fprintf(stderr, "rank %d: ", tn_parallel_rank());
}

void ex_check(tn_status status)
{
    if (status != TN_OK) error(1, 0, "%s", tn_error());
}

void ex_flush(void)
{
    static bool told;
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (!lost || told || ex_signal == SIGPIPE) return;
    told = true;
    error(0, errno ? errno : EIO, "standard output");
}

int ex_end(void)
{
    ex_flush();
    return error_message_count > 0 ? 1 : ex_signal ? 128 + ex_signal : 0;
}

static ex_option *table;
static int rows;

ex_option *ex_next(const ex_option *o, unsigned traits)
{
    for (int i = o ? (int)(o - table) + 1 : 0; i < rows; i++)
        if (table[i].traits & traits) return &table[i];
    return NULL;
}

/* Real numbers with the fewest digits that give the same value again. */
const char *ex_value(ex_option *o)
{
    if (o->kind == EX_STRING && *(char **)o->value) return *(char **)o->value;
    if (o->kind == EX_WHOLE) snprintf(o->text, sizeof o->text, "%d", *(int *)o->value);
    for (int digits = 6; o->kind == EX_REAL && digits < 18; digits++) {
        snprintf(o->text, sizeof o->text, "%.*g", digits, *(double *)o->value);
        if (strtod(o->text, NULL) == *(double *)o->value) break;
    }
    return o->text;
}

bool ex_read(ex_option *o, const char *text)
{
    char *end;
    const char **string = o->value;
    if (o->kind == EX_SWITCH) return *(bool *)o->value = true;
    if (o->kind == EX_STRING) return (*text || (*string && !**string)) && (*string = text);
    double number = o->kind == EX_WHOLE ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    if (end == text || *end || !(number >= o->low && number <= o->high)) return false;
    if (o->kind == EX_REAL) *(double *)o->value = number;
    if (o->kind == EX_WHOLE) *(int *)o->value = (int)number;
    return true;
}

static void help(const char *what)
{
    printf("usage: %s [OPTION...]\n%s\n\n", ex_program, what);
    for (ex_option *o = table; o < table + rows; o++) {
        const char *preset = ex_value(o);
        if (!o->help) continue;
        printf("  --%s %-*s %s", o->name, 21 - (int)strlen(o->name), o->argument, o->help);
        printf(*preset ? " (default %s)\n" : "\n", preset);
    }
    printf("  --help %17s this list\n\nOf an option that is given twice the last one counts.\n",
           "");
    exit(ex_end());
}

bool ex_given(const char *name)
{
    ex_option *o = NULL;
    while ((o = ex_next(o, EX_GIVEN)) && strcmp(o->name, name) != 0) continue;
    return o != NULL;
}

int ex_parse(const char *what, ex_option *options, int n, int most, int argc, char **argv)
{
    struct option flags[64] = { { "help", no_argument, NULL, 'h' } }, *flag = flags;
    table = options;
    rows = n;
    /* The next file opened would get a closed descriptor's number, and our output. Standard
     * output's stand-in accepts no bytes, so the loss is noticed, as it should be. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 1 ? O_RDONLY : O_RDWR) < 0) exit(1);
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit then gives an error, like a full disk */
    for (int i = 0; i < n; i++)
        if (table[i].help)
            *++flag = (struct option){ table[i].name, *table[i].argument != 0, NULL, 256 + i };
    argv[0] = ex_program; /* as getopt's messages begin, and error's */
    error_print_progname = print_name;
    for (int c; (c = getopt_long(argc, argv, "h", flags, NULL)) >= 0;) {
        if (c == 'h') help(what);
        if (c == '?') exit(2);
        ex_option *o = &table[c - 256];
        o->traits |= EX_GIVEN;
        if (ex_read(o, optarg ? optarg : "")) continue;
        const char *given = *optarg ? optarg : "\"\"";
        if (o->kind == EX_STRING) ex_refuse("--%s %s: want a %s", o->name, given, o->argument);
        ex_refuse("--%s %s: want a %snumber from %.10g to %.10g", o->name, given,
                  o->kind == EX_WHOLE ? "whole " : "", o->low, o->high);
    }
    if (argc > optind + most) ex_refuse("unexpected argument %s (see --help)", argv[optind + most]);
    return optind;
}

tn_device ex_device(const char *name)
{
    if (!strcmp(name, "cpu")) return tn_cpu();
    if (strcmp(name, "cuda") != 0) ex_refuse("--device %s: want cpu or cuda", name);
    if (!tn_cuda_available()) error(1, 0, "--device cuda: %s", tn_cuda_why());
    /* each of several processes takes its own GPU */
    return tn_cuda(tn_parallel_local_rank() % tn_cuda_device_count());
}

static FILE *page;
static const char *page_path;
static tn_trace *trace; /* NULL: no page, or written */
static int steps_left;

void ex_page_begin(const char *path, int steps, tn_module *model, tn_optim *optimizer)
{
    tn_trace_options o = { .model = model, .opt = optimizer, .title = ex_program, .lines = true };
    if (!path) return;
    if (!(page = fopen(path, "w"))) ex_refuse("--html %s: %s", path, strerror(errno));
    page_path = path, steps_left = steps;
    ex_check_ptr(trace = tn_trace_begin(o));
}

void ex_page_step(bool last)
{
    if (!trace || (--steps_left > 0 && !last)) return;
    bool told = tn_trace_end(trace) == TN_OK && tn_trace_html(page, &trace, 1) == TN_OK;
    if (fclose(page) != 0 || !told)
        ex_complain("--html: %s", told ? strerror(errno) : tn_error());
    else
        fprintf(stderr, "%spage written: %s; open it in a browser: xdg-open %s\n",
                ex_redrawn ? "\033[K" : "", page_path, page_path);
    tn_error_clear();
    tn_trace_free(trace), trace = NULL;
}
