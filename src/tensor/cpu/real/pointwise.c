/*
 * pointwise.c - the row loops of every formula on REAL.
 */
#include "tensor/cpu/pointwise.h"

#define T REAL
#define FORMULA(kind, name) TNI_CAT3(tni_##kind, name, TNI_REAL_NAME)
#define NUMBER(x) ((REAL)(x))
#include "tensor/cpu/row_text.h"

TNI_UNARY_LIST(UNARY_ROW)
TNI_UNARY_PREDICATE_LIST(UNARY_TEST)
TNI_BINARY_LIST(BINARY_ROW)
TNI_BINARY_PREDICATE_LIST(BINARY_TEST)
TNI_TERNARY_LIST(TERNARY_ROW)

const tni_row K(tni_unary_rows)[TNI_U_COUNT] = { TNI_UNARY_LIST(UNARY_ENTRY)
                                                     TNI_UNARY_PREDICATE_LIST(UNARY_ENTRY) };
const tni_row K(tni_binary_rows)[TNI_B_COUNT] = { TNI_BINARY_LIST(BINARY_ENTRY)
                                                      TNI_BINARY_PREDICATE_LIST(BINARY_ENTRY) };
const tni_row K(tni_ternary_rows)[TNI_T_COUNT] = { TNI_TERNARY_LIST(TERNARY_ENTRY) };
