/*
 * numbers.h - numbers of any dtype in plain memory, for the suites that compare kernels with loops.
 */
#ifndef TENON_TESTS_NUMBERS_H
#define TENON_TESTS_NUMBERS_H

#include "common.h"
#include "tensor/math.h"

/* In the innermost loops of the suites. */
static inline double number_get(const void *data, tn_dtype dtype, int64_t i)
{
    switch (dtype) {
    case TN_F32: return (double)((const float *)data)[i];
    case TN_F64: return ((const double *)data)[i];
    case TN_BF16: return (double)tn_from_bf16(((const uint16_t *)data)[i]);
    case TN_F16: return (double)tn_from_f16(((const uint16_t *)data)[i]);
    case TN_I64: return (double)((const int64_t *)data)[i];
    case TN_I32: return (double)((const int32_t *)data)[i];
    default: return (double)((const uint8_t *)data)[i];
    }
}

/* As a C cast does it, a bool by whether v is 0; bf16 and f16 rounded to nearest, even. */
void number_set(void *data, tn_dtype dtype, int64_t i, double v);

/* xorshift64*, [low, high): the same numbers after the same seed, which is 1 at first. */
extern uint64_t number_seed; /* not 0 */
double number_in(double low, double high);

/* Memory of zeros for n items, before a page that cannot be touched. */
void *guarded(int64_t n, size_t item);
/* Gives back all but the `left` that were made first. Fails where something was written before one
 * of them. */
void guarded_free(int left);
int guarded_made(void); /* how many there are */

#endif
