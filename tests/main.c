/* main.c - runs the suite of a test program and prints Check's summary. CK_FORK=no keeps one
 * process. TN_CUDA_LAUNCHES names the file where tests/cuda_host adds the kernels that ran. */
#include <stdio.h>
#include <stdlib.h>

#include "common.h"

int main(void)
{
    const char *launches = getenv("TN_CUDA_LAUNCHES");
    if (launches) remove(launches);
    SRunner *runner = srunner_create(test_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
