/* fuzz_idx.c - any bytes as an IDX file, plain or compressed. */
#include "fuzz.h"

FUZZ_READER(tn_idx_load)
