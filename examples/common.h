/*
 * common.h - shared by the example programs, and written with <tenon/tenon.h> alone: messages,
 * options, a page of the first steps. training.h has what only the programs that train share.
 */
#pragma once

#include <errno.h>
#include <error.h>
#include <stdatomic.h>
#include <tenon/tenon.h>

#define ex_program program_invocation_short_name
/* Prints "PROGRAM: message"; the program goes on, but will end with 1: for a file that cannot be
 * written while there is work to save. */
#define ex_complain(...) error(0, 0, __VA_ARGS__)
/* The same, and ends the program with 2: for errors on the command line. */
#define ex_refuse(...) error(2, 0, __VA_ARGS__)
/* Ends the program with tn_error() and 1 unless status is TN_OK; unless pointer is not NULL. */
void ex_check(tn_status status);
#define ex_check_ptr(pointer) ex_check((pointer) ? TN_OK : TN_E_INVALID)
extern bool ex_redrawn;      /* the terminal's last line is a progress line, to be replaced */
void ex_flush(void);         /* standard output; a failure is a complaint, once */
extern atomic_int ex_signal; /* that came while it trained, or 0: check it during long work */
/* Call this last: returns the exit status. 1 after a complaint, 128 plus the signal received, else
 * 0. */
int ex_end(void);

/* What an option's value is, besides its kind. */
enum {
    EX_MODEL = 1,     /* a size of the model: noted in weight files, read back from them */
    EX_RUN = 2,       /* decides the bits of a run: noted in checkpoints, read back from them */
    EX_FREE = 4,      /* may differ when a run is resumed */
    EX_READ = 8,      /* a file that is read */
    EX_WRITTEN = 16,  /* a file that is written */
    EX_REPLACED = 32, /* a file that the library replaces */
    EX_GIVEN = 64,    /* it was on the command line */
    EX_LATER = 128    /* files from before it existed do not note it: then it is the default */
};

typedef struct ex_option {
    const char *name; /* without the dashes */
    enum { EX_WHOLE, EX_REAL, EX_STRING, EX_SWITCH } kind;
    void *value;          /* int, double, const char * (NULL: none) or bool; at first the default */
    const char *argument; /* as --help shows it: "N", "X", "FILE"; "": a switch takes none */
    double low, high;     /* of a number, both ends included */
    unsigned traits;
    const char *help; /* NULL: not on the command line, only noted in files */
    char text[32];    /* of a number: ex_value */
} ex_option;

/* Rows of a table of options: FIELD is where the value goes. */
/* clang-format off */
#define EX_NUMBER(name, field, low, high, traits, help) \
    { name, _Generic(field, int : EX_WHOLE, double : EX_REAL), &(field), \
      _Generic(field, int : "N", double : "X"), low, high, traits, help, "" }
#define EX_TEXT(name, field, argument, traits, help) \
    { name, EX_STRING, &(field), argument, 0, 0, traits, help, "" }
#define EX_FLAG(name, field, help) { name, EX_SWITCH, &(field), "", 0, 0, 0, help, "" }
/* clang-format on */

/* Call this first: reads the command line into the options' values. --help prints what the program
 * does and its options, and ends it with 0; a mistake ends it with 2 and a message. Returns the
 * index of the first other argument in argv; there are `most` of them at most. */
int ex_parse(const char *what, ex_option *options, int n, int most, int argc, char **argv);
bool ex_given(const char *name);
/* The next option with any of these traits, the first one after NULL; NULL at the end. */
ex_option *ex_next(const ex_option *o, unsigned traits);
const char *ex_value(ex_option *o); /* as a text; of a number until the next call */
/* False if text is not a value of o. "" names no file: it comes from an unset variable. */
bool ex_read(ex_option *o, const char *text);

/* "cpu" or "cuda". Another word ends the program with 2, a missing device with 1 and the reason. */
tn_device ex_device(const char *name);

/* Begins a page (--html) of the first steps of a training, which plays them op by op. path NULL: no
 * page. Refuses a file that cannot be written. optimizer: NULL for none. */
void ex_page_begin(const char *path, int steps, tn_module *model, tn_optim *optimizer);
/* After each step. The last of them, or of the training, writes the page. */
void ex_page_step(bool last);
