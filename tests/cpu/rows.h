/* rows.h - the parts of the suite "rows". */
#ifndef TENON_TESTS_ROWS_H
#define TENON_TESTS_ROWS_H

#include <stdlib.h>

#include "common.h"
#include "tensor/kernels.h"

/* Ops on rows: rows_ops.c. */
void rows_ops_cases(Suite *suite);
/* Numbers whose squares leave the range: rows_range.c. */
void rows_range_cases(Suite *suite);

#endif
