/*
 * table.c - the CPU backend's table of kernels, once per instruction set.
 *
 * To add a kernel `name` of kernels.h: name it in its area's list (pointwise_slots.h,
 * dense_slots.h, rows_slots.h) as SLOT(name), and define tn_status K(tni_cpu_name)(...) in a file
 * of isa/. Prototypes come from the type of the slot itself. K(tni_cpu_name) usually only picks the
 * variant by dtype:
 *
 *     tn_status K(tni_cpu_softmax)(const tni_array *y, const tni_array *x, bool log)
 *     {
 *         return TNI_BY_REAL(y->dtype, softmax, (y, x, log));
 *     }
 *
 * where real/softmax.c defines tn_status K(tni_softmax)(...), declared by
 * TNI_REAL_KERNEL(tni_softmax, (...)); see real/real.h.
 */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/isa/slots.h"

#define SLOT(name) .name = K(tni_cpu_##name),

const tni_backend K(tni_cpu_table) = { .name = "cpu",
                                       TNI_MEMORY_SLOTS(SLOT) TNI_POINTWISE_SLOTS(SLOT)
                                           TNI_DENSE_SLOTS(SLOT) TNI_ROWS_SLOTS(SLOT) };
