/* rows_slots.h - slots of tni_backend filled by indexing, softmax, losses, norms, dropout, optimizers. */
#define TNI_ROWS_SLOTS(SLOT)                                                                       \
    SLOT(gather)                                                                                   \
    SLOT(scatter_add) SLOT(take) SLOT(take_add) SLOT(softmax) SLOT(softmax_grad)                   \
        SLOT(cross_entropy) SLOT(cross_entropy_grad) SLOT(nll) SLOT(nll_grad) SLOT(layer_norm)     \
            SLOT(layer_norm_grad) SLOT(batch_norm) SLOT(batch_norm_grad) SLOT(dropout)             \
                SLOT(random) SLOT(optim_step)
