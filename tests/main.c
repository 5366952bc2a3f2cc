/*
 * main.c - runs the suite of a test program and prints Check's summary. CK_FORK=no keeps one
 * process.
 *
 * TN_CUDA_LAUNCHES and TN_CUDA_FAILED name the files where tests/cuda/host adds the kernels that
 * ran and the calls that failed. With TN_TEST_GPU=1 the program tests a real GPU: in one process,
 * since a child cannot use a GPU that its parent has opened; without a GPU it says why and exits
 * with 77.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common.h"

int main(void)
{
    static const char *const logs[] = { "TN_CUDA_LAUNCHES", "TN_CUDA_FAILED" };
    bool gpu = getenv("TN_TEST_GPU") != NULL;
    for (int i = 0; i < 2; i++) { /* created empty: a program may launch nothing */
        FILE *log = getenv(logs[i]) ? fopen(getenv(logs[i]), "w") : NULL;
        if (log) fclose(log);
    }
    /* the module is opened here, not by every child */
    bool there = (gpu || getenv("TN_CUDA_MODULE")) && tn_cuda_available();
    if (gpu && !there) {
        printf("skipped: no GPU was tested: %s\n", tn_cuda_why());
        return 77;
    }
    SRunner *runner = srunner_create(test_suite());
    if (gpu || TEST_NODE) srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
