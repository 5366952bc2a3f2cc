/* scope_cases.h - the part of the suite "scope" in a file of its own. */
#include <check.h>

TCase *scope_failures_case(Suite *suite);
