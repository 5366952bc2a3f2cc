/* pointwise_int.c - the row loops on int64_t, for the formulas that integers have. */
#include "tensor/cpu/pointwise.h"

#define T int64_t
#define FORMULA(kind, name) TNI_CAT3(tni_##kind, name, i64)
#define NUMBER(x) number(x)

/* A parameter as an integer; clamp's absent bounds are infinite. */
static int64_t number(double x)
{
    return x >= 0x1p63 ? INT64_MAX : tn_int_of(x);
}

#include "tensor/cpu/row_text.h"

TNI_UNARY_INT_LIST(UNARY_ROW)
TNI_UNARY_INT_PREDICATE_LIST(UNARY_TEST)
TNI_BINARY_INT_LIST(BINARY_ROW)
TNI_BINARY_PREDICATE_LIST(BINARY_TEST)
TNI_TERNARY_INT_LIST(TERNARY_ROW)

const tni_row K(tni_unary_rows)[TNI_U_COUNT] = { TNI_UNARY_INT_LIST(UNARY_ENTRY)
                                                     TNI_UNARY_INT_PREDICATE_LIST(UNARY_ENTRY) };
const tni_row K(tni_binary_rows)[TNI_B_COUNT] = { TNI_BINARY_INT_LIST(BINARY_ENTRY)
                                                      TNI_BINARY_PREDICATE_LIST(BINARY_ENTRY) };
const tni_row K(tni_ternary_rows)[TNI_T_COUNT] = { TNI_TERNARY_INT_LIST(TERNARY_ENTRY) };
