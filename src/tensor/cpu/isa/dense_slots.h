/* dense_slots.h - slots of tni_backend filled by products, convolution, pooling and attention. */
#define TNI_DENSE_SLOTS(SLOT)                                                                      \
    SLOT(gemm)                                                                                     \
    SLOT(conv2d) SLOT(conv2d_grad_input) SLOT(conv2d_grad_weight) SLOT(max_pool2d)                 \
        SLOT(max_pool2d_grad) SLOT(avg_pool2d) SLOT(avg_pool2d_grad) SLOT(adaptive_avg_pool2d)     \
            SLOT(adaptive_avg_pool2d_grad) SLOT(attention) SLOT(attention_grad)
