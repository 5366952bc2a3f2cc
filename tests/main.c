/* main.c - runs the suite of a test program and prints Check's summary. CK_FORK=no keeps one
 * process. */
#include <stdlib.h>

#include "common.h"

int main(void)
{
    SRunner *runner = srunner_create(test_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
