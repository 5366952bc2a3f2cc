/*
 * test_cuda_training.c - the clockwork of the examples (examples/training.c) with losses on the
 * device: steps wait for nothing until there is something to print, and the log still has every
 * step's loss.
 *
 * Seen to fail: with read_losses() in every ex_training_step (63 waits where none were wanted);
 * with write_log() left out where there is no room for more steps; with every loss copied to place
 * 0; with atexit() called before the device is open (its memory is gone by the time the log is
 * written).
 */
#include <sys/wait.h>
#include <unistd.h>

#include "../../examples/training.h"
#include "shim.h"
#include "files.h"

enum { STEPS = 3 * EX_LATEST + 7 };

static tn_tensor *loss_of_step(int64_t step)
{
    return tn_to(tn_scalar(1.0 / (double)step), tn_cuda(0));
}

static void train(ex_training *t, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        tn_scope scope = tn_scope_begin();
        ex_training_step(t, step, loss_of_step(step), 0.5, true);
        if (step % 10 == 0) ex_training_remark(t, ",tenth");
        tn_scope_end(scope);
    }
}

static void assert_log(const char *path, int64_t steps)
{
    char line[128], wanted[128];
    FILE *file = fopen(path, "r");
    ck_assert(file && fgets(line, sizeof line, file));
    ck_assert_str_eq(line, "step,loss,lr\n");
    for (int64_t step = 1; step <= steps; step++) {
        snprintf(wanted, sizeof wanted, "%d,%.6f,0.5%s\n", (int)step, (double)(1.0f / (float)step),
                 step % 10 ? "" : ",tenth");
        ck_assert_msg(fgets(line, sizeof line, file) != NULL, "the log ends before step %d",
                      (int)step);
        ck_assert_str_eq(line, wanted);
    }
    ck_assert(!fgets(line, sizeof line, file));
    fclose(file);
}

START_TEST(steps_wait_for_nothing)
{
    ex_settings s = { EX_SETTINGS, .quiet = true, .log = in_folder("log.csv"),
                      .where = tn_cuda(0) };
    ex_training t = { 0 };
    if (!shim_for(__func__)) return;
    ex_training_begin(&t, &s, 0, 100 * STEPS, 1, "steps", "step,loss,lr");
    assert_ok(tn_cuda_synchronize());
    long long waits = host.waits();
    train(&t, 1, EX_LATEST);
    ck_assert_int_eq(host.waits() - waits, 0);
    train(&t, EX_LATEST + 1, STEPS);
    ck_assert_int_eq(host.waits() - waits, 3); /* once when the places are full */
    double sum = 0;
    for (int64_t step = 1; step <= STEPS; step++) sum += (double)(1.0f / (float)step);
    ck_assert(ex_training_mean(&t) == sum / STEPS);
    ck_assert(ex_training_mean(&t) == 0);
    ex_training_end(&t, STEPS);
    ex_training_free(&t);
    assert_log(s.log, STEPS);
}
END_TEST

/* A curve of about 200 points, each the mean of its steps. */
START_TEST(curve)
{
    ex_settings s = { EX_SETTINGS, .quiet = true, .where = tn_cuda(0) };
    ex_training t = { 0 };
    ex_training_begin(&t, &s, 0, 400, 1, "steps", "");
    train(&t, 1, STEPS);
    ex_training_pause(&t);
    ck_assert_int_eq(t.curve.n, STEPS / 2);
    for (int64_t i = 0; i < t.curve.n; i++) {
        double first = (double)(1.0f / (float)(2 * i + 1)),
               second = (double)(1.0f / (float)(2 * i + 2));
        ck_assert(t.curve.x[i] == (double)(2 * i + 2) && t.curve.y[i] == (first + second) / 2);
    }
    ex_training_resume(&t, false);
    ex_training_end(&t, STEPS);
    ex_training_free(&t);
}
END_TEST

/* The program ends in the middle of a step: the log has the losses of the steps before. */
START_TEST(an_error_keeps_the_log)
{
    const char *path = in_folder("log.csv");
    ex_settings s = { EX_SETTINGS, .quiet = true, .log = path, .where = tn_cuda(0) };
    if (!shim_for(__func__)) return; /* a real device does not survive a fork */
    pid_t child = fork();
    if (child == 0) {
        ex_training t = { 0 };
        ex_training_begin(&t, &s, 0, 100, 1, "steps", "step,loss,lr");
        train(&t, 1, 33);
        ex_check(tn_optim_step(NULL));
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %x", (unsigned)status);
    assert_log(path, 33);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_training");
    TCase *t = file_case(suite, "losses");
    tcase_add_test(t, steps_wait_for_nothing);
    tcase_add_test(t, curve);
    tcase_add_test(t, an_error_keeps_the_log);
    return suite;
}
