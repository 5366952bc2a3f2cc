/* fuzz_npy.c - any bytes as a file of NumPy's. */
#include "fuzz.h"

FUZZ_READER(tn_npy_load)
