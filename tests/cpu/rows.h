/* rows.h - the two halves of the suite "rows". */
#ifndef TENON_TESTS_ROWS_H
#define TENON_TESTS_ROWS_H

#include <stdlib.h>

#include "common.h"
#include "tensor/kernels.h"

/* Ops on rows: rows_ops.c. */
void rows_ops_cases(Suite *suite);

#endif
