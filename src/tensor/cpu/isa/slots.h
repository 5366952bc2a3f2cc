/*
 * slots.h - prototypes of the functions behind the slots of tni_backend, from the slots' own types.
 */
#ifndef TNI_CPU_SLOTS_H
#define TNI_CPU_SLOTS_H

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/isa/dense_slots.h"
#include "tensor/cpu/isa/pointwise_slots.h"
#include "tensor/cpu/isa/rows_slots.h"

#define TNI_MEMORY_SLOTS(SLOT) SLOT(alloc) SLOT(free) SLOT(upload) SLOT(download) SLOT(synchronize)

#define TNI_SLOT_PROTOTYPE(name) extern __typeof__(*((tni_backend *)0)->name) K(tni_cpu_##name);

extern const tni_backend K(tni_cpu_table);
TNI_MEMORY_SLOTS(TNI_SLOT_PROTOTYPE)
TNI_POINTWISE_SLOTS(TNI_SLOT_PROTOTYPE)
TNI_DENSE_SLOTS(TNI_SLOT_PROTOTYPE)
TNI_ROWS_SLOTS(TNI_SLOT_PROTOTYPE)

#endif
