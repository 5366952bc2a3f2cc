/* pointwise_slots.h - slots of tni_backend filled by the pointwise and reduction kernels. */
#define TNI_POINTWISE_SLOTS(SLOT)                                                                  \
    SLOT(fill)                                                                                     \
    SLOT(copy) SLOT(unary) SLOT(binary) SLOT(ternary) SLOT(reduce) SLOT(arg_reduce) SLOT(cumsum)
