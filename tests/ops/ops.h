/*
 * ops.h - the test cases of the files ops_*.c, which belong to the suite ops.
 */
#ifndef TENON_TESTS_OPS_H
#define TENON_TESTS_OPS_H

#include "files.h"

void ops_empty_cases(Suite *suite);
void ops_inplace_cases(Suite *suite);
void ops_null_cases(Suite *suite);
void ops_sorting_cases(Suite *suite);
void ops_values_cases(Suite *suite);

#endif
