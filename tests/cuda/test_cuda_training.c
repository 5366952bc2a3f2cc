/*
 * test_cuda_training.c - the loop of the examples (examples/training.c) with losses on the device:
 * steps wait for nothing until there is something to print, and the log still has every step's
 * loss.
 *
 * Seen to fail: with read_losses() in every one_step (63 waits where none were wanted); with
 * write_log() left out where there is no room for more steps; with every loss copied to place 0;
 * with atexit() called before the device is open (its memory is gone by the time the log is
 * written).
 */
#include <sys/wait.h>
#include <unistd.h>

#include "../../examples/training.h"
#include "shim.h"
#include "files.h"

enum { STEPS = 3 * EX_LATEST + 7 };

struct ex_run ex;
static long long waits[STEPS + 1]; /* before each step */
static double means;               /* of the losses between evaluations: their sum */
static bool fails;                 /* the optimizer's step, at the end of the log */

static void next(tn_tensor **in)
{
    in[0] = in[1] = NULL;
}

/* The loss of step n is 1 / n. */
static tn_tensor *learn(void *user, int n, tn_tensor *const *in)
{
    (void)user, (void)n, (void)in;
    if (ex.step <= STEPS && host.waits) waits[ex.step] = host.waits();
    if (fails && ex.step == 33) ex_check(tn_optim_step(NULL));
    return tn_to(tn_scalar(1.0 / (double)(ex.step + 1)), tn_cuda(0));
}

static double evaluate(double mean)
{
    means += mean;
    return ex.step;
}

/* A run with a constant rate of 0.5, which stops after some steps of many. */
static void train(const char *log, int steps, int total, int every)
{
    ex = (struct ex_run){ EX_DEFAULTS,         .quiet = true,  .log = log,     .where = tn_cuda(0),
                          .total = total,      .batch = 1,     .per_step = 1,  .every = every,
                          .stop_after = steps, .next = next,   .learn = learn, .evaluate = evaluate,
                          .value = "value",    .unit = "steps" };
    ex.place = in_folder("stopped");
    ex.model = tn_linear_new(1, 1, (tn_linear_options){ 0 });
    ex.optimizer = tn_sgd(tn_parameters(ex.model), (tn_sgd_options){ .lr = 0.5 });
    ex.schedule = tn_step_lr(ex.optimizer, 1000000, 0.5);
    ck_assert(ex.schedule != NULL);
    assert_ok(tn_cuda_synchronize());
    ex_train();
}

static void assert_log(const char *path, int steps, int every)
{
    char line[128], wanted[128];
    FILE *file = fopen(path, "r");
    ck_assert(file && fgets(line, sizeof line, file));
    ck_assert_str_eq(line, "step,loss,lr,value\n");
    for (int step = 1; step <= steps; step++) {
        int n = snprintf(wanted, sizeof wanted, "%d,%.6f,0.5,", step, (double)(1.0f / (float)step));
        if (every && step % every == 0 && step < steps)
            n += snprintf(wanted + n, sizeof wanted - (size_t)n, "%d.000000", step);
        snprintf(wanted + n, sizeof wanted - (size_t)n, "\n");
        ck_assert_msg(fgets(line, sizeof line, file) != NULL, "the log ends before step %d", step);
        ck_assert_str_eq(line, wanted);
    }
    ck_assert(!fgets(line, sizeof line, file));
    fclose(file);
}

START_TEST(steps_wait_for_nothing)
{
    if (!shim_for(__func__)) return;
    train(in_folder("log.csv"), STEPS, 100 * STEPS, 0);
    ck_assert_int_eq(waits[EX_LATEST - 1] - waits[0], 0);
    ck_assert_int_eq(waits[EX_LATEST] - waits[0], 1);
    ck_assert_int_eq(waits[STEPS - 1] - waits[0], 3); /* once when the places are full */
    assert_log(ex.log, STEPS, 0);
    ex_free();
}
END_TEST

/* The means of the losses between evaluations; what these return stands in the log. */
START_TEST(evaluations)
{
    double sum = 0;
    means = 0;
    train(in_folder("log.csv"), STEPS, 100 * STEPS, 10);
    for (int step = 1; step <= STEPS / 10 * 10; step++) sum += (double)(1.0f / (float)step) / 10;
    ck_assert(means - sum < 1e-12 && sum - means < 1e-12);
    ck_assert_int_eq(ex.curve[1].n, STEPS / 10);
    assert_log(ex.log, STEPS, 10);
    ex_free();
}
END_TEST

/* A curve of about 200 points, each the mean of its steps. */
START_TEST(curve)
{
    train(NULL, STEPS, 400, 0);
    ck_assert_int_eq(ex.curve[0].n, STEPS / 2);
    for (int i = 0; i < ex.curve[0].n; i++) {
        double first = (double)(1.0f / (float)(2 * i + 1)),
               second = (double)(1.0f / (float)(2 * i + 2));
        ck_assert(ex.curve[0].x[i] == (double)(2 * i + 2));
        ck_assert(ex.curve[0].y[i] == (first + second) / 2);
    }
    ex_free();
}
END_TEST

/* The program ends in the middle of a step: the log has the losses of the steps before. */
START_TEST(an_error_keeps_the_log)
{
    const char *path = in_folder("log.csv");
    if (!shim_for(__func__)) return; /* a real device does not survive a fork */
    pid_t child = fork();
    if (child == 0) {
        fails = true;
        train(path, STEPS, 100, 0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %x", (unsigned)status);
    assert_log(path, 33, 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_training");
    TCase *t = file_case(suite, "losses");
    tcase_add_test(t, steps_wait_for_nothing);
    tcase_add_test(t, evaluations);
    tcase_add_test(t, curve);
    tcase_add_test(t, an_error_keeps_the_log);
    return suite;
}
