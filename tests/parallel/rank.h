/*
 * rank.h - what the programs of several ranks share: their modes, what must hold, data and a model.
 */
#ifndef TENON_TESTS_RANK_H
#define TENON_TESTS_RANK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/tenon.h>

#define EXPECT(what)                                                                               \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: rank %d: %s does not hold (%s)\n", __FILE__, __LINE__,         \
                    tn_parallel_rank(), #what, tn_error());                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The call fails, with that status or with NULL, and the message has that text. */
#define EXPECT_FAILS(call, status, text)                                                           \
    do {                                                                                           \
        EXPECT((call) == (status));                                                                \
        EXPECT(strstr(tn_error(), (text)));                                                        \
        tn_error_clear();                                                                          \
    } while (0)
#define EXPECT_NULL(call, text) EXPECT_FAILS(call, NULL, text)

typedef struct rank_mode {
    const char *name;
    int arguments; /* how many */
    void (*run)(char **argument);
    void (*plain)(void); /* in place of run, without arguments */
} rank_mode;
#define MODE(function)                                                                             \
    {                                                                                              \
#function, 0, .plain = function                                                            \
    }
#define WITH(function, arguments)                                                                  \
    {                                                                                              \
#function, arguments, .run = function                                                      \
    }

typedef struct rank_program {
    const rank_mode *modes;
    size_t n;
    const char *scarce;  /* the mode that runs with the allocator of scarce.h; NULL: none */
    void (*begun)(void); /* called once the ranks are joined; NULL: nothing */
} rank_program;

/* main of a program that is called as PROGRAM MODE [ARGUMENT...]: joins the other ranks and runs
 * the mode, after which no tensor may be left. */
int rank_main(int argc, char **argv, rank_program program);

bool last_rank(void);
/* "on rank N WHAT", of the last one. Static memory of the last two. */
const char *on_last_rank(const char *what);
/* The largest, of elements as f64. */
double tensor_difference(tn_tensor *a, tn_tensor *b);

enum { ROWS = 12, WIDTH = 5, HIDDEN = 7, CLASSES = 3 };

/* Rows `first` to `first + n` of a data set that every rank can make, in f64; their classes. */
tn_tensor *data_rows(int64_t first, int64_t n, int64_t step);
tn_tensor *data_classes(int64_t first, int64_t n, int64_t step);

/* A handle whose making succeeds; the end of both. */
tn_data_parallel *shared(tn_module *m, tn_data_parallel_options o);
void shared_free(tn_data_parallel *p, tn_module *m);

/* Three branches, linear without a bias: "all" is used by all ranks, "one" by rank 0 alone, "none"
 * by nobody. */
tn_module *branches_new(void);
tn_tensor *branches_forward(tn_module *m, tn_tensor *x);

#endif
