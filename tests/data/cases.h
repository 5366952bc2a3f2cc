/* cases.h - the further files of the suite here, each of which adds its cases. */
#ifndef TENON_TESTS_DATA_CASES_H
#define TENON_TESTS_DATA_CASES_H

#include "files.h"

void datasets_csv_cases(Suite *suite);

#endif
