/*
 * cudnn_api.h - what src/cuda uses of cuDNN 9's backend ("graph") API: the functions by pointer,
 * since the library is opened when it is first wanted, and the numbers of its interface, which do
 * not change within a major version. So a build needs no cuDNN; where its header is installed,
 * tests/cuda/test_cudnn_real.cpp compares every number with it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* X(name, value): cuDNN's name is CUDNN_name. */
/* clang-format off */
#define DNN_NAMES(X)                                                                               \
    X(DATA_FLOAT, 0) X(DATA_HALF, 2) X(DATA_INT32, 4) X(DATA_BFLOAT16, 9) X(DATA_BOOLEAN, 11)      \
    X(CROSS_CORRELATION, 1) X(POINTWISE_ADD, 0) X(POINTWISE_MUL, 1) X(POINTWISE_DIV, 6)            \
    X(POINTWISE_SUB, 9) X(POINTWISE_EXP, 13) X(POINTWISE_LOG, 15) X(POINTWISE_CMP_GE, 303)         \
    X(POINTWISE_GEN_INDEX, 501) X(POINTWISE_BINARY_SELECT, 601) X(REDUCE_TENSOR_ADD, 0)            \
    X(REDUCE_TENSOR_MAX, 3) X(HEUR_MODE_FALLBACK, 2) X(HEUR_MODE_A, 3)                             \
    X(NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, 2) X(NUMERICAL_NOTE_FFT, 3)                      \
    X(NUMERICAL_NOTE_NONDETERMINISTIC, 4) X(NUMERICAL_NOTE_WINOGRAD, 5)                            \
    X(NUMERICAL_NOTE_TYPE_COUNT, 10) X(TYPE_HANDLE, 0) X(TYPE_DATA_TYPE, 1) X(TYPE_BOOLEAN, 2)     \
    X(TYPE_INT64, 3) X(TYPE_FLOAT, 4) X(TYPE_VOID_PTR, 6) X(TYPE_CONVOLUTION_MODE, 7)              \
    X(TYPE_HEUR_MODE, 8) X(TYPE_NUMERICAL_NOTE, 11) X(TYPE_POINTWISE_MODE, 14)                     \
    X(TYPE_BACKEND_DESCRIPTOR, 15) X(TYPE_REDUCTION_OPERATOR_TYPE, 18)                             \
    X(BACKEND_POINTWISE_DESCRIPTOR, 0) X(BACKEND_CONVOLUTION_DESCRIPTOR, 1)                        \
    X(BACKEND_ENGINE_DESCRIPTOR, 2) X(BACKEND_ENGINECFG_DESCRIPTOR, 3)                             \
    X(BACKEND_ENGINEHEUR_DESCRIPTOR, 4) X(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                    \
    X(BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 10)                                        \
    X(BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, 11)                                \
    X(BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, 12)                                  \
    X(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13) X(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)         \
    X(BACKEND_VARIANT_PACK_DESCRIPTOR, 16) X(BACKEND_TENSOR_DESCRIPTOR, 17)                        \
    X(BACKEND_MATMUL_DESCRIPTOR, 18) X(BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19)                    \
    X(BACKEND_REDUCTION_DESCRIPTOR, 21) X(BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22)              \
    X(BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31) X(ATTR_POINTWISE_MODE, 0)                          \
    X(ATTR_POINTWISE_MATH_PREC, 1) X(ATTR_POINTWISE_AXIS, 9) X(ATTR_CONVOLUTION_COMP_TYPE, 100)    \
    X(ATTR_CONVOLUTION_CONV_MODE, 101) X(ATTR_CONVOLUTION_DILATIONS, 102)                          \
    X(ATTR_CONVOLUTION_FILTER_STRIDES, 103) X(ATTR_CONVOLUTION_POST_PADDINGS, 104)                 \
    X(ATTR_CONVOLUTION_PRE_PADDINGS, 105) X(ATTR_CONVOLUTION_SPATIAL_DIMS, 106)                    \
    X(ATTR_ENGINEHEUR_MODE, 200) X(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)                           \
    X(ATTR_ENGINEHEUR_RESULTS, 202) X(ATTR_ENGINEHEUR_DEVICEPROP, 204)                             \
    X(ATTR_ENGINECFG_ENGINE, 300) X(ATTR_EXECUTION_PLAN_HANDLE, 400)                               \
    X(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401) X(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)           \
    X(ATTR_EXECUTION_PLAN_DEVICEPROP, 407) X(ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 700)        \
    X(ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 706)                                              \
    X(ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 712)                                            \
    X(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750) X(ATTR_OPERATION_POINTWISE_XDESC, 751)          \
    X(ATTR_OPERATION_POINTWISE_BDESC, 752) X(ATTR_OPERATION_POINTWISE_YDESC, 753)                  \
    X(ATTR_OPERATION_POINTWISE_TDESC, 758) X(ATTR_OPERATIONGRAPH_HANDLE, 800)                      \
    X(ATTR_OPERATIONGRAPH_OPS, 801) X(ATTR_TENSOR_BYTE_ALIGNMENT, 900)                             \
    X(ATTR_TENSOR_DATA_TYPE, 901) X(ATTR_TENSOR_DIMENSIONS, 902) X(ATTR_TENSOR_STRIDES, 903)       \
    X(ATTR_TENSOR_UNIQUE_ID, 906) X(ATTR_TENSOR_IS_VIRTUAL, 907) X(ATTR_TENSOR_IS_BY_VALUE, 908)   \
    X(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000) X(ATTR_VARIANT_PACK_DATA_POINTERS, 1001)                 \
    X(ATTR_VARIANT_PACK_WORKSPACE, 1003) X(ATTR_ENGINE_NUMERICAL_NOTE, 1303)                       \
    X(ATTR_MATMUL_COMP_TYPE, 1500) X(ATTR_OPERATION_MATMUL_ADESC, 1520)                            \
    X(ATTR_OPERATION_MATMUL_BDESC, 1521) X(ATTR_OPERATION_MATMUL_CDESC, 1522)                      \
    X(ATTR_OPERATION_MATMUL_DESC, 1523) X(ATTR_REDUCTION_OPERATOR, 1600)                           \
    X(ATTR_REDUCTION_COMP_TYPE, 1601) X(ATTR_OPERATION_REDUCTION_XDESC, 1610)                      \
    X(ATTR_OPERATION_REDUCTION_YDESC, 1611) X(ATTR_OPERATION_REDUCTION_DESC, 1612)                 \
    X(ATTR_OPERATION_RESHAPE_XDESC, 2200) X(ATTR_OPERATION_RESHAPE_YDESC, 2201)
/* clang-format on */

#define DNN_NAME(name, value) DNN_##name = value,
enum { DNN_NAMES(DNN_NAME) };
#undef DNN_NAME
/* The attributes of each of the three convolutions, counted from its ..ALPHA on. */
enum { DNN_CONV_ALPHA, DNN_CONV_BETA, DNN_CONV_HOW, DNN_CONV_W, DNN_CONV_X, DNN_CONV_Y };

/* A status: 0, or thousands by cause: the caller's argument, not supported, internal, execution. */
typedef int dnn_status;
enum { DNN_BAD_PARAM = 2000, DNN_NOT_SUPPORTED = 3000, DNN_INTERNAL = 4000, DNN_CAUSE = 1000 };

typedef void *dnn_handle;
typedef void *dnn_descriptor;

/* X(name, result, parameters): the function cudnn<name>. */
#define DNN_FUNCTIONS(X)                                                                           \
    X(GetVersion, size_t, (void))                                                                  \
    X(GetErrorString, const char *, (dnn_status status))                                           \
    X(Create, dnn_status, (dnn_handle * handle))                                                   \
    X(Destroy, dnn_status, (dnn_handle handle))                                                    \
    X(SetStream, dnn_status, (dnn_handle handle, void *stream))                                    \
    X(BackendCreateDescriptor, dnn_status, (int type, dnn_descriptor *descriptor))                 \
    X(BackendDestroyDescriptor, dnn_status, (dnn_descriptor descriptor))                           \
    X(BackendSetAttribute, dnn_status,                                                             \
      (dnn_descriptor descriptor, int name, int type, int64_t count, const void *values))          \
    X(BackendGetAttribute, dnn_status,                                                             \
      (dnn_descriptor descriptor, int name, int type, int64_t most, int64_t *count, void *values)) \
    X(BackendFinalize, dnn_status, (dnn_descriptor descriptor))                                    \
    X(BackendExecute, dnn_status, (dnn_handle handle, dnn_descriptor plan, dnn_descriptor pack))

struct dnn_api {
#define DNN_POINTER(name, result, parameters) result(*name) parameters;
    DNN_FUNCTIONS(DNN_POINTER)
#undef DNN_POINTER
};
