/*
 * optim.h - what reading and writing PyTorch's optimizers share.
 */
#ifndef TNI_PT_OPTIM_H
#define TNI_PT_OPTIM_H

#include <tenon/io.h>

/* Whether PyTorch has the same optimizer; *steps: and counts each parameter's. */
tn_status tni_pt_optim_check(const char *function, const tn_optim *opt, bool *steps);
/* PyTorch's key for a number; *place: which of its two values it is, -1: the value itself. */
const char *tni_pt_number(const char *name, int *place);

#endif
