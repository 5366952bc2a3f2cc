/* tensor_cases.h - the parts of the suite "tensor" in files of their own. */
#ifndef TENON_TESTS_TENSOR_CASES_H
#define TENON_TESTS_TENSOR_CASES_H

#include <check.h>

TCase *tensor_limits_case(Suite *suite);
TCase *tensor_host_case(Suite *suite);

#endif
