/*
 * scheduler.h - what a schedule is: a function of the step and the base rate (scheduler.c,
 * schedules.c).
 *
 * Every schedule but plateau gives the rate of any step, so to resume is to set the step.
 */
#pragma once

#include "optim/optim.h"

typedef struct tni_schedule {
    const char *name; /* "cosine_lr" */
    double (*rate)(tn_scheduler *s, int64_t step, double base);
    /* for schedules.c: the least value of n and m (a and b are finite and >= 0), and the names of
     * these; NULL: not used */
    int least;
    const char *count[2], *number[2];
    double (*momentum)(const tn_scheduler *s, int64_t step); /* NULL, -1: left alone */
    bool ends;                                               /* with step n */
} tni_schedule;

struct tn_scheduler {
    const tni_schedule *schedule;
    tn_optim *opt;      /* one reference */
    tn_scheduler *next; /* of the optimizer's schedules */
    int64_t step;
    double a, b, c, d; /* meaning: see the schedule's constructor */
    int64_t n, m;
    double momentum[2]; /* one cycle: base and max; -1: left alone */
    bool fixed;         /* its rates do not come from the base */
    bool maximize;      /* plateau, and the next */
    bool absolute;
    int n_milestones;
    int64_t *milestone; /* ascending */
    int depth;          /* sequences and chains within it, itself included */
    int n_children;
    tn_scheduler **child; /* sequential, one per stretch, and chained; owned */
    double (*factor)(int64_t step, void *user);
    void *user;
    double product; /* multiplicative: of the first so many factors */
    int64_t factors;
    int64_t metrics_from; /* the step of a plateau's turn; INT64_MAX: never */
    double best;          /* plateau */
    int64_t bad, cooling;
};

/* A scheduler on opt with the numbers of given (its schedule and opt are not read); milestones are
 * checked and copied, children become its own. NULL and a message on failure. */
tn_scheduler *tni_scheduler_new(const tni_schedule *schedule, tn_optim *opt, tn_scheduler given);
/* Sets the rates of its first step; on failure frees s and returns NULL. NULL gives NULL. */
tn_scheduler *tni_scheduler_start(tn_scheduler *s);
/* From one to the other along half a cosine; part in [0, 1]. */
static inline double tni_cosine(double from, double to, double part)
{
    return to + (from - to) * (1 + cos(3.14159265358979323846 * part)) / 2;
}
/* How many milestones are <= step. */
int tni_milestones_passed(const tn_scheduler *s, int64_t step);
/* The plateau that s is or ends with; NULL: there is none. */
tn_scheduler *tni_plateau_of(tn_scheduler *s);
/* TN_OK if s is its optimizer's only scheduler: each sets the rates by its own formula, so of two
 * the last to step would win. */
tn_status tni_scheduler_alone(const char *function, const tn_scheduler *s);
extern const tni_schedule tni_schedule_plateau;
