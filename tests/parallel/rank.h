/*
 * rank.h - what the programs of several ranks share: their modes, what must hold, data and a model.
 */
#ifndef TENON_TESTS_RANK_H
#define TENON_TESTS_RANK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <tenon/tenon.h>

#define EXPECT(what)                                                                               \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: rank %d: %s does not hold (%s)\n", __FILE__, __LINE__,         \
                    tn_parallel_rank(), #what, tn_error());                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef struct rank_mode {
    const char *name;
    int arguments; /* how many */
    void (*run)(char **argument);
} rank_mode;

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
/* The largest, of elements as f64. */
double tensor_difference(tn_tensor *a, tn_tensor *b);

enum { ROWS = 12, WIDTH = 5, HIDDEN = 7, CLASSES = 3 };

/* Rows `first` to `first + n` of a data set that every rank can make, in f64; their classes. */
tn_tensor *data_rows(int64_t first, int64_t n, int64_t step);
tn_tensor *data_classes(int64_t first, int64_t n, int64_t step);

/* Three branches, linear without a bias: "all" is used by all ranks, "one" by rank 0 alone, "none"
 * by nobody. */
tn_module *branches_new(void);
tn_tensor *branches_forward(tn_module *m, tn_tensor *x);

#endif
