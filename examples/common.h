/*
 * common.h - shared by the example programs, so that each of them can concentrate on its model:
 * flags, notes in files, the progress line, curves, reports at the end. training.h has what only
 * the programs that train share.
 *
 * Nothing here uses the library's internals: only <tenon/tenon.h>, as in any program.
 */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <tenon/tenon.h>

/* ---- the process: messages, standard output, signals, exit status ---------------------------- */

/* Call this first in a program; ex_parse and ex_parse_few do. path: argv[0]. */
void ex_begin(const char *path);
const char *ex_program(void);
/* Prints "PROGRAM: message" and ends the program with 2: for errors on the command line. */
void ex_refuse(const char *format, ...) TN_PRINTF(1, 2) __attribute__((noreturn));
/* Prints "PROGRAM: message"; the program goes on and will end with 1: for a file that cannot be
 * written while there is work to save. */
void ex_complain(const char *format, ...) TN_PRINTF(1, 2);
/* Prints "PROGRAM: tn_error()" and ends the program with 1 unless status is TN_OK. */
void ex_check(tn_status status);
/* The same for anything that is NULL on failure. */
void ex_check_ptr(const void *pointer);
/* Flushes standard output. A failure is reported at the end. */
void ex_flush(void);
/* Ends the program with 1, before any work, if standard output cannot be written. */
void ex_need_output(void);
/* Call this last in a program: returns the exit status. 1 after a complaint (lost lines on standard
 * output are one), 128 plus the signal received, else 0. */
int ex_end(void);

/* From here on the first SIGINT, SIGTERM, SIGHUP or SIGPIPE is only recorded; a second one ends the
 * program at once. If nohup or the like ignores SIGHUP or SIGPIPE, it stays ignored. */
void ex_catch_signals(void);
/* From here on they end the program at once, unless one was recorded: nothing is left to save. */
void ex_let_signals(void);
/* The signal received, or 0: check it regularly during long work. */
int ex_signal(void);

/* ---- flags ----------------------------------------------------------------------------------- */

typedef enum ex_kind {
    EX_WHOLE, /* int64_t */
    EX_REAL,  /* double */
    EX_TEXT,  /* const char *, NULL when absent; "" is refused, unless it is the default */
    EX_FLAG   /* bool, takes no argument */
} ex_kind;

/* What a flag's value belongs to, besides this run of the program. */
enum {
    EX_MODEL = 1, /* sizes of the model: noted in weight files, read back by --load and --resume */
    EX_RUN = 2,   /* decides the bits of a run: noted in checkpoints, read back by --resume */
    EX_LENGTH = 4 /* with EX_RUN: the length of the run; may be changed with --resume */
};

typedef struct ex_option {
    const char *name; /* without the dashes */
    ex_kind kind;
    void *value;          /* holds the default; parsing overwrites it */
    const char *argument; /* as shown by --help: "N", "FILE" */
    const char *help;
    double low, high; /* accepted range of numbers, both ends included; low == high: any */
    unsigned belongs; /* EX_MODEL, EX_RUN or 0 */
    bool given;       /* set by parsing: was on the command line */
} ex_option;

/* Rows of a table of options: FIELD is where the value goes. */
/* clang-format off */
#define EX_WHOLE_ROW(name, field, low, high, belongs, help)                                        \
    { name, EX_WHOLE, &(field), "N", help, low, high, belongs, false }
#define EX_REAL_ROW(name, field, low, high, belongs, help)                                         \
    { name, EX_REAL, &(field), "X", help, low, high, belongs, false }
#define EX_TEXT_ROW(name, field, argument, help)                                                   \
    { name, EX_TEXT, &(field), argument, help, 0, 0, 0, false }
#define EX_FLAG_ROW(name, field, help) { name, EX_FLAG, &(field), NULL, help, 0, 0, 0, false }
/* clang-format on */

typedef struct ex_options {
    const char *what; /* one line for --help */
    ex_option *option;
    int n;
} ex_options;

/* Reads the command line. --help prints all flags with their defaults and ends the program with 0;
 * a flag that is unknown, lacks its argument or is out of range ends it with 2 and a message. */
void ex_parse(ex_options *options, int argc, char **argv);
bool ex_given(const ex_options *options, const char *name);
/* The value of an EX_TEXT; NULL also for an option that this program does not have. */
const char *ex_text(const ex_options *options, const char *name);
/* "name value" pairs of all numbers and flags of the run, on as few lines as possible. */
void ex_print_settings(const ex_options *options);

/* ---- notes: strings in the metadata of a file ------------------------------------------------ */

enum { EX_MAX_NOTES = 48 };

typedef struct ex_notes {
    int n;
    size_t used;
    const char *key[EX_MAX_NOTES], *value[EX_MAX_NOTES];
    char text[8192];
} ex_notes;

void ex_note(ex_notes *notes, const char *key, const char *format, ...) TN_PRINTF(3, 4);
/* The values of all options that belong to any of the kinds in which. */
void ex_note_options(ex_notes *notes, const ex_options *options, unsigned which);
tn_metadata ex_metadata(ex_notes *notes);
/* Reads such values from a file. A flag given with another value is refused by name. */
void ex_adopt(ex_options *options, const tn_metadata *metadata, unsigned which, const char *file);

/* ---- progress -------------------------------------------------------------------------------- */

typedef struct ex_progress {
    const char *unit;     /* of the rate: "tokens" */
    int64_t total;        /* steps */
    int64_t per_step;     /* units a step */
    int64_t first, shown; /* step at the start; last step shown */
    double began, shown_at, paused;
    double loss; /* mean of the losses since the last line: sum and count */
    int64_t losses;
    bool quiet, tty, color;
} ex_progress;

/* On a terminal one line is redrawn, at most ten times a second; otherwise about 25 plain lines are
 * printed in all. */
void ex_progress_begin(ex_progress *p, int64_t first, int64_t total, int64_t per_step,
                       const char *unit, bool quiet);
/* Whether to show this step. Reads only the clock, so the loss need not be known yet. */
bool ex_progress_due(const ex_progress *p, int64_t step);
/* A step's loss, in the order of the steps; the line shows the mean of those since the last
 * line. */
void ex_progress_loss(ex_progress *p, double loss);
void ex_progress_show(ex_progress *p, int64_t step, double lr);
/* Prints a permanent line above the redrawn one. Nothing when quiet. */
void ex_say(ex_progress *p, const char *format, ...) TN_PRINTF(2, 3);
/* The time between these two does not count as training: evaluation, files. */
void ex_progress_pause(ex_progress *p);
void ex_progress_resume(ex_progress *p);
/* Clears the redrawn line to make room for another. */
void ex_progress_clear(void);
/* Clears the line; returns the units per second over all steps since begin. */
double ex_progress_end(ex_progress *p, int64_t step);
double ex_seconds(void); /* monotonic clock */
int ex_width(void);      /* columns of the terminal; 80 where there is none */

/* ---- curves and reports ---------------------------------------------------------------------- */

typedef struct ex_curve {
    int64_t n, room;
    double *x, *y;
} ex_curve;

void ex_curve_add(ex_curve *c, double x, double y);
void ex_curve_free(ex_curve *c);
tn_curve ex_curve_view(const ex_curve *c, const char *label);

/* What must not grow while training: tensors alive, and calls to the system's allocator. */
typedef struct ex_watch {
    int64_t tensors, allocations;
} ex_watch;
ex_watch ex_watch_begin(void);
/* "tensors alive 120 -> 120; system allocations since the first evaluation 0; peak 48.1 MiB" */
void ex_watch_print(const ex_watch *w);

/* The first steps of a training as a page (--html), which plays them op by op. */
typedef struct ex_page {
    const char *path;
    FILE *file;
    tn_trace *trace; /* NULL: none, or written */
    int64_t left;    /* steps */
} ex_page;
/* path NULL: no page. Refuses a file that cannot be written. optimizer: NULL for none. */
void ex_page_begin(ex_page *p, const char *path, int64_t steps, tn_module *model,
                   tn_optim *optimizer);
/* After each step: the last of them writes the page. */
void ex_page_step(ex_page *p);
/* Writes what there is, if that has not been done. Before the model goes. */
void ex_page_end(ex_page *p);

/* One number over names, shapes and bits of all parameters and all buffers. */
uint64_t ex_hash(tn_module *model);

/* ---- where it runs --------------------------------------------------------------------------- */

/* "cpu" or "cuda". Any other word ends the program with 2; cuda without a device ends it with 1 and
 * the reason. */
tn_device ex_device(const char *name);
/* For programs without a table of flags: begins; removes "--device NAME" from the command line if
 * present, and "--html FILE" unless html is NULL; --help prints the usage and ends the program with
 * 0; any other flag, or more than `most` arguments, ends it with 2. */
tn_device ex_parse_few(int *argc, char **argv, int most, const char *usage, const char **html);

#endif
