/*
 * dnn.cpp - a stand-in for cuDNN 9: the functions of its backend API that src/cuda uses, found by
 * dlopen of this very module (TN_CUDNN names it).
 *
 * Descriptors keep their attributes, which are checked as cuDNN's documentation says: which a
 * descriptor has, their types and counts, which are required, set before it is finalized, and only
 * finalized descriptors used by others. A graph is run operation by operation on the tensors'
 * sizes and strides alone, in f32 and rounded to each tensor's type: whatever its operations
 * compute, it computes, and a wrong stride, axis or number gives wrong results or a complaint.
 *
 * A complaint is a mistake of the caller (the first one is kept for tests, all go to stderr), and
 * the status BAD_PARAM. Of the configurations offered the first has the note of engines whose bits
 * differ between runs (its results are wrong, so choosing it shows), the second cannot be
 * finalized. Graphs with a real tensor of 97 rows are not supported; with 98 the run is refused.
 */
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cudnn_api.h"
#include "internal.h"
#include "tensor/math.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))
#define CALL                                                                                       \
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);                                   \
    if (cuda_host::fails(__func__)) return DNN_EXECUTION_FAILED

enum { DNN_EXECUTION_FAILED = 5000, UNSUPPORTED = 97, REFUSED = 98, NOT_BITWISE = 0, UNFINISHED };

/* A machine with a GPU may have the real one, which cannot use the shim's memory. */
static const int unasked __attribute__((unused)) = setenv("TN_CUDNN", "off", 0);

/* ---- complaints ------------------------------------------------------------------------------ */

static std::string complaint;

static dnn_status complain(const char *format, ...)
{
    char text[512];
    va_list list;

    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    std::fprintf(stderr, "cudnn stand-in: %s\n", text);
    if (complaint.empty()) complaint = text;
    return DNN_BAD_PARAM;
}

/* For tests: the first complaint since the last call; "": none. */
EXPORTED const char *cuda_host_dnn_complaint(void)
{
    static std::string last;
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);
    last = complaint;
    complaint.clear();
    return last.c_str();
}

/* "ATTR_TENSOR_STRIDES" of 903, "BACKEND_TENSOR_DESCRIPTOR" of 17 */
static const char *name_of(const char *prefix, int value)
{
#define ENTRY(name, number) { #name, number },
    static const struct {
        const char *name;
        int value;
    } names[] = { DNN_NAMES(ENTRY) };
    for (const auto &n : names)
        if (n.value == value && std::strncmp(n.name, prefix, std::strlen(prefix)) == 0)
            return n.name;
    return "an unknown name";
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* The attributes of a type of descriptor: type and count of elements; 0 at least: optional. */
struct rule {
    int owner, name, type;
    int64_t least, most;
};

enum { ANY = 1 << 20 };
static const rule rules[] = {
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, 1, 1 },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 1, 8 },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 1, 8 },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, 1 },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, 1 },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 0, 1 },
    { DNN_BACKEND_TENSOR_DESCRIPTOR, DNN_ATTR_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 0, 1 },
    { DNN_BACKEND_POINTWISE_DESCRIPTOR, DNN_ATTR_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, 1 },
    { DNN_BACKEND_POINTWISE_DESCRIPTOR, DNN_ATTR_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, 1 },
    { DNN_BACKEND_POINTWISE_DESCRIPTOR, DNN_ATTR_POINTWISE_AXIS, DNN_TYPE_INT64, 0, 1 },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_XDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_BDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 0, 1 },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_TDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 0, 1 },
    { DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DNN_ATTR_OPERATION_POINTWISE_YDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_MATMUL_DESCRIPTOR, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, 1 },
    { DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DNN_ATTR_OPERATION_MATMUL_ADESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DNN_ATTR_OPERATION_MATMUL_BDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DNN_ATTR_OPERATION_MATMUL_CDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DNN_ATTR_OPERATION_MATMUL_DESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_REDUCTION_DESCRIPTOR, DNN_ATTR_REDUCTION_OPERATOR,
      DNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1 },
    { DNN_BACKEND_REDUCTION_DESCRIPTOR, DNN_ATTR_REDUCTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, 1 },
    { DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, DNN_ATTR_OPERATION_REDUCTION_XDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, DNN_ATTR_OPERATION_REDUCTION_YDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, DNN_ATTR_OPERATION_REDUCTION_DESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, DNN_ATTR_OPERATION_RESHAPE_XDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, DNN_ATTR_OPERATION_RESHAPE_YDESC,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_CONVOLUTION_DESCRIPTOR, DNN_ATTR_CONVOLUTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1,
      1 },
    { DNN_BACKEND_CONVOLUTION_DESCRIPTOR, DNN_ATTR_CONVOLUTION_CONV_MODE, DNN_TYPE_CONVOLUTION_MODE,
      1, 1 },
    { DNN_BACKEND_CONVOLUTION_DESCRIPTOR, DNN_ATTR_CONVOLUTION_SPATIAL_DIMS, DNN_TYPE_INT64, 1, 1 },
    { DNN_BACKEND_CONVOLUTION_DESCRIPTOR, DNN_ATTR_CONVOLUTION_PRE_PADDINGS, DNN_TYPE_INT64, 2, 2 },
    { DNN_BACKEND_CONVOLUTION_DESCRIPTOR, DNN_ATTR_CONVOLUTION_POST_PADDINGS, DNN_TYPE_INT64, 2,
      2 },
    { DNN_BACKEND_CONVOLUTION_DESCRIPTOR, DNN_ATTR_CONVOLUTION_DILATIONS, DNN_TYPE_INT64, 2, 2 },
    { DNN_BACKEND_CONVOLUTION_DESCRIPTOR, DNN_ATTR_CONVOLUTION_FILTER_STRIDES, DNN_TYPE_INT64, 2,
      2 },
    { DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, DNN_ATTR_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1,
      1 },
    { DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, DNN_ATTR_OPERATIONGRAPH_OPS,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, ANY },
    { DNN_BACKEND_ENGINEHEUR_DESCRIPTOR, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_ENGINEHEUR_DESCRIPTOR, DNN_ATTR_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, 1 },
    { DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
      DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, DNN_ATTR_EXECUTION_PLAN_HANDLE, DNN_TYPE_HANDLE, 1,
      1 },
    { DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, 1,
      ANY },
    { DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, DNN_ATTR_VARIANT_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR,
      1, ANY },
    { DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, DNN_ATTR_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1,
      1 },
};

enum { CONV_ATTRIBUTES = DNN_CONV_Y + 1 };

static int convolution_base(int type)
{
    switch (type) {
    case DNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        return DNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA;
    case DNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA;
    case DNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA;
    default: return 0;
    }
}

static std::vector<rule> rules_of(int type)
{
    std::vector<rule> all;
    for (const rule &r : rules)
        if (r.owner == type) all.push_back(r);
    if (int base = convolution_base(type); base)
        for (int i = 0; i < CONV_ATTRIBUTES; i++)
            all.push_back({ type, base + i,
                            i < DNN_CONV_HOW ? DNN_TYPE_FLOAT : DNN_TYPE_BACKEND_DESCRIPTOR, 1,
                            1 });
    return all;
}

static size_t size_of_type(int type)
{
    switch (type) {
    case DNN_TYPE_BOOLEAN: return 1;
    case DNN_TYPE_INT64:
    case DNN_TYPE_HANDLE:
    case DNN_TYPE_VOID_PTR:
    case DNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
    }
}

struct program;

struct descriptor {
    int type;
    bool finalized;
    std::map<int, std::vector<char>> values;
    std::map<int, int64_t> counts;
    int engine;                          /* configurations and engines: which */
    std::shared_ptr<const program> runs; /* plans, and the graphs that they are of */
    int64_t workspace;
};

static std::map<void *, std::unique_ptr<descriptor>> all;

static descriptor *find(void *d)
{
    auto at = all.find(d);
    return at == all.end() ? nullptr : at->second.get();
}

template <class T> static T value(const descriptor *d, int name, int i = 0)
{
    T to{};
    auto at = d->values.find(name);
    if (at != d->values.end() && (i + 1) * sizeof to <= at->second.size())
        std::memcpy(&to, at->second.data() + i * sizeof to, sizeof to);
    return to;
}

static const descriptor *linked(const descriptor *d, int name, int i = 0)
{
    return find(value<void *>(d, name, i));
}

/* ---- programs: what a finalized graph computes ----------------------------------------------- */

struct tensor {
    int64_t id, size[4], stride[4];
    int type;
    bool is_virtual, by_value;
    int64_t elements() const { return size[0] * size[1] * size[2] * size[3]; }
    bool operator==(const tensor &o) const
    {
        return std::memcmp(size, o.size, sizeof size) == 0 &&
               std::memcmp(stride, o.stride, sizeof stride) == 0 && type == o.type &&
               is_virtual == o.is_virtual && by_value == o.by_value;
    }
};

struct step {
    int type, mode;
    int64_t axis, padding[2], stride[2], dilation[2];
    int64_t in[3]; /* ids; 0: none */
    int64_t out;
};

struct program {
    std::map<int64_t, tensor> tensors;
    std::vector<step> steps;
    int engine = -1;
};

/* Adds a tensor; its id, or 0 with a complaint. */
static int64_t add_tensor(program *p, const descriptor *d)
{
    tensor t = {};
    if (!d || d->type != DNN_BACKEND_TENSOR_DESCRIPTOR) {
        complain("an operation's tensor is not a tensor descriptor");
        return 0;
    }
    t.id = value<int64_t>(d, DNN_ATTR_TENSOR_UNIQUE_ID);
    for (int i = 0; i < 4; i++) {
        t.size[i] = value<int64_t>(d, DNN_ATTR_TENSOR_DIMENSIONS, i);
        t.stride[i] = value<int64_t>(d, DNN_ATTR_TENSOR_STRIDES, i);
    }
    t.type = value<int>(d, DNN_ATTR_TENSOR_DATA_TYPE);
    t.is_virtual = value<bool>(d, DNN_ATTR_TENSOR_IS_VIRTUAL);
    t.by_value = value<bool>(d, DNN_ATTR_TENSOR_IS_BY_VALUE);
    auto known = p->tensors.find(t.id);
    if (known != p->tensors.end() && !(known->second == t)) {
        complain("two tensors have the unique id %lld", static_cast<long long>(t.id));
        return 0;
    }
    p->tensors[t.id] = t;
    return t.id;
}

static std::string sizes(const tensor &t)
{
    char text[128];
    std::snprintf(text, sizeof text, "%lld [%lld,%lld,%lld,%lld]", static_cast<long long>(t.id),
                  static_cast<long long>(t.size[0]), static_cast<long long>(t.size[1]),
                  static_cast<long long>(t.size[2]), static_cast<long long>(t.size[3]));
    return text;
}

static bool divides(int64_t a, int64_t b)
{
    return a > 0 && b % a == 0;
}

static bool check_product(const tensor &a, const tensor &b, const tensor &c)
{
    bool ok = a.size[3] == b.size[2] && c.size[2] == a.size[2] && c.size[3] == b.size[3] &&
              a.size[0] == c.size[0] && (b.size[0] == 1 || b.size[0] == c.size[0]) &&
              a.size[1] == c.size[1] && divides(b.size[1], c.size[1]);
    if (!ok)
        complain("a product of tensors %s and %s does not give %s", sizes(a).c_str(),
                 sizes(b).c_str(), sizes(c).c_str());
    return ok;
}

static bool check_pointwise(const program &p, const step &s)
{
    const tensor &y = p.tensors.at(s.out);
    int n = 0;
    for (int64_t id : s.in) {
        if (!id) continue;
        n++;
        const tensor &x = p.tensors.at(id);
        for (int d = 0; d < 4; d++)
            if (x.size[d] != 1 && x.size[d] != y.size[d]) {
                complain("a pointwise operation of tensors %s and %s", sizes(x).c_str(),
                         sizes(y).c_str());
                return false;
            }
    }
    const int wanted = s.mode == DNN_POINTWISE_BINARY_SELECT ? 3
                       : s.mode == DNN_POINTWISE_EXP || s.mode == DNN_POINTWISE_LOG ||
                               s.mode == DNN_POINTWISE_GEN_INDEX
                           ? 1
                           : 2;
    if (n != wanted) {
        complain("%s has %d operands, wants %d", name_of("POINTWISE", s.mode), n, wanted);
        return false;
    }
    if ((y.type == DNN_DATA_INT32) != (s.mode == DNN_POINTWISE_GEN_INDEX) ||
        (y.type == DNN_DATA_BOOLEAN) != (s.mode == DNN_POINTWISE_CMP_GE)) {
        complain("%s gives a tensor of %s", name_of("POINTWISE", s.mode), name_of("DATA", y.type));
        return false;
    }
    if (s.mode == DNN_POINTWISE_BINARY_SELECT && p.tensors.at(s.in[2]).type != DNN_DATA_BOOLEAN) {
        complain("a selection wants a tensor of booleans");
        return false;
    }
    return true;
}

static bool check_convolution(const program &p, const step &s, const tensor &x, const tensor &w,
                              const tensor &y)
{
    bool ok = x.size[0] == y.size[0] && w.size[0] == y.size[1] && divides(w.size[1], x.size[1]) &&
              divides(x.size[1] / (w.size[1] ? w.size[1] : 1), w.size[0]);
    (void)p;
    for (int i = 0; i < 2; i++)
        ok = ok && y.size[2 + i] ==
                       (x.size[2 + i] + 2 * s.padding[i] - s.dilation[i] * (w.size[2 + i] - 1) -
                        1) / s.stride[i] +
                           1;
    if (!ok)
        complain("a convolution of tensors %s and %s does not give %s", sizes(x).c_str(),
                 sizes(w).c_str(), sizes(y).c_str());
    return ok;
}

/* What an operation reads and writes; false: a complaint. */
static bool add_step(program *p, const descriptor *d)
{
    step s = {};
    s.type = d->type;
    const descriptor *how = nullptr;
    auto in = [&](int i, int name) {
        const descriptor *t = linked(d, name);
        if (d->values.count(name)) s.in[i] = add_tensor(p, t);
        return !d->values.count(name) || s.in[i] != 0;
    };
    auto out = [&](int name) { return (s.out = add_tensor(p, linked(d, name))) != 0; };
    auto at = [&](int64_t id) -> const tensor & { return p->tensors.at(id); };

    switch (d->type) {
    case DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        how = linked(d, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        s.mode = value<int>(how, DNN_ATTR_POINTWISE_MODE);
        s.axis = value<int64_t>(how, DNN_ATTR_POINTWISE_AXIS);
        if (!in(0, DNN_ATTR_OPERATION_POINTWISE_XDESC) ||
            !in(1, DNN_ATTR_OPERATION_POINTWISE_BDESC) ||
            !in(2, DNN_ATTR_OPERATION_POINTWISE_TDESC) ||
            !out(DNN_ATTR_OPERATION_POINTWISE_YDESC) || !check_pointwise(*p, s))
            return false;
        break;
    case DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        if (!in(0, DNN_ATTR_OPERATION_MATMUL_ADESC) || !in(1, DNN_ATTR_OPERATION_MATMUL_BDESC) ||
            !out(DNN_ATTR_OPERATION_MATMUL_CDESC) ||
            !check_product(at(s.in[0]), at(s.in[1]), at(s.out)))
            return false;
        break;
    case DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        s.mode =
            value<int>(linked(d, DNN_ATTR_OPERATION_REDUCTION_DESC), DNN_ATTR_REDUCTION_OPERATOR);
        if (!in(0, DNN_ATTR_OPERATION_REDUCTION_XDESC) || !out(DNN_ATTR_OPERATION_REDUCTION_YDESC))
            return false;
        for (int i = 0; i < 4; i++)
            if (!divides(at(s.out).size[i], at(s.in[0]).size[i])) {
                complain("a reduction of tensors %s to %s", sizes(at(s.in[0])).c_str(),
                         sizes(at(s.out)).c_str());
                return false;
            }
        break;
    case DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        if (!in(0, DNN_ATTR_OPERATION_RESHAPE_XDESC) || !out(DNN_ATTR_OPERATION_RESHAPE_YDESC))
            return false;
        if (at(s.in[0]).elements() != at(s.out).elements()) {
            complain("a reshape of tensor %s to %s", sizes(at(s.in[0])).c_str(),
                     sizes(at(s.out)).c_str());
            return false;
        }
        break;
    default: {
        const int base = convolution_base(d->type);
        if (base == 0) {
            complain("%s is not an operation", name_of("BACKEND", d->type));
            return false;
        }
        const bool data = base == DNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA;
        const bool filter = base == DNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA;
        how = linked(d, base + DNN_CONV_HOW);
        for (int i = 0; i < 2; i++) {
            s.padding[i] = value<int64_t>(how, DNN_ATTR_CONVOLUTION_PRE_PADDINGS, i);
            s.stride[i] = value<int64_t>(how, DNN_ATTR_CONVOLUTION_FILTER_STRIDES, i);
            s.dilation[i] = value<int64_t>(how, DNN_ATTR_CONVOLUTION_DILATIONS, i);
        }
        if (value<float>(d, base + DNN_CONV_ALPHA) != 1 ||
            value<float>(d, base + DNN_CONV_BETA) != 0) {
            complain("alpha and beta of a convolution: want 1 and 0");
            return false;
        }
        if (!in(0, base + (data ? DNN_CONV_Y : DNN_CONV_X)) ||
            !in(1, base + (filter ? DNN_CONV_Y : DNN_CONV_W)) ||
            !out(base + (data     ? DNN_CONV_X
                         : filter ? DNN_CONV_W
                                  : DNN_CONV_Y)) ||
            !check_convolution(*p, s, at(data ? s.out : s.in[0]), at(filter ? s.out : s.in[1]),
                               at(data     ? s.in[0]
                                  : filter ? s.in[1]
                                           : s.out)))
            return false;
    }
    }
    for (const step &before : p->steps)
        if (before.out == s.out) {
            complain("tensor %s is written twice", sizes(at(s.out)).c_str());
            return false;
        }
    for (int64_t id : s.in) {
        bool written = id == 0 || !at(id).is_virtual;
        for (const step &before : p->steps) written = written || before.out == id;
        if (!written) {
            complain("virtual tensor %s is read before an operation writes it",
                     sizes(at(id)).c_str());
            return false;
        }
    }
    p->steps.push_back(s);
    return true;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef std::vector<float> numbers;

static float from_memory(const void *data, int type, int64_t i)
{
    if (type == DNN_DATA_FLOAT) return static_cast<const float *>(data)[i];
    uint16_t bits = static_cast<const uint16_t *>(data)[i];
    return type == DNN_DATA_BFLOAT16 ? tn_from_bf16(bits) : tn_from_f16(bits);
}

static void to_memory(void *data, int type, int64_t i, float x)
{
    if (type == DNN_DATA_FLOAT)
        static_cast<float *>(data)[i] = x;
    else
        static_cast<uint16_t *>(data)[i] = type == DNN_DATA_BFLOAT16 ? tn_to_bf16(x) : tn_to_f16(x);
}

static float rounded(float x, int type)
{
    return type == DNN_DATA_BFLOAT16 ? tn_from_bf16(tn_to_bf16(x))
           : type == DNN_DATA_HALF   ? tn_from_f16(tn_to_f16(x))
                                     : x;
}

/* The offset of element i, in the order of the axes, by strides. */
static int64_t offset(const tensor &t, int64_t i)
{
    int64_t at = 0;
    for (int d = 3; d >= 0; d--) {
        at += i % t.size[d] * t.stride[d];
        i /= t.size[d];
    }
    return at;
}

/* Element of x, which repeats along axes of one element, for element i of y. */
static int64_t spread(const tensor &x, const tensor &y, int64_t i)
{
    int64_t index[4], at = 0;
    for (int d = 3; d >= 0; d--) {
        index[d] = i % y.size[d];
        i /= y.size[d];
    }
    for (int d = 0; d < 4; d++) at = at * x.size[d] + (x.size[d] == 1 ? 0 : index[d]);
    return at;
}

static float pointwise(int mode, float x, float b, float t)
{
    switch (mode) {
    case DNN_POINTWISE_ADD: return x + b;
    case DNN_POINTWISE_SUB: return x - b;
    case DNN_POINTWISE_MUL: return x * b;
    case DNN_POINTWISE_DIV: return x / b;
    case DNN_POINTWISE_EXP: return std::exp(x);
    case DNN_POINTWISE_LOG: return std::log(x);
    case DNN_POINTWISE_CMP_GE: return x >= b;
    case DNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: return NAN;
    }
}

static void run_pointwise(const program &p, const step &s, std::map<int64_t, numbers> &n)
{
    const tensor &y = p.tensors.at(s.out);
    numbers &to = n[s.out];
    for (int64_t i = 0; i < y.elements(); i++) {
        float v[3] = { 0, 0, 0 };
        if (s.mode == DNN_POINTWISE_GEN_INDEX) {
            int64_t left = i;
            for (int d = 3; d > s.axis; d--) left /= y.size[d];
            to[i] = static_cast<float>(left % y.size[s.axis]);
            continue;
        }
        for (int k = 0; k < 3; k++)
            if (s.in[k]) v[k] = n[s.in[k]][spread(p.tensors.at(s.in[k]), y, i)];
        to[i] = pointwise(s.mode, v[0], v[1], v[2]);
    }
}

static void run_product(const program &p, const step &s, std::map<int64_t, numbers> &n)
{
    const tensor &a = p.tensors.at(s.in[0]), &b = p.tensors.at(s.in[1]), &c = p.tensors.at(s.out);
    const float *x = n[s.in[0]].data(), *y = n[s.in[1]].data();
    float *to = n[s.out].data();
    const int64_t m = c.size[2], width = c.size[3], k = a.size[3], heads = c.size[1];
    std::vector<double> row(static_cast<size_t>(width));

    for (int64_t item = 0; item < c.size[0] * heads; item++) {
        const int64_t batch = b.size[0] == 1 ? 0 : item / heads;
        const int64_t head = item % heads / (heads / b.size[1]);
        const float *left = x + item * m * k, *right = y + (batch * b.size[1] + head) * k * width;
        for (int64_t i = 0; i < m; i++) {
            std::fill(row.begin(), row.end(), 0.0);
            for (int64_t l = 0; l < k; l++) {
                const double v = static_cast<double>(left[i * k + l]);
                if (v == 0) continue; /* of half the pairs where keys are masked */
                for (int64_t j = 0; j < width; j++)
                    row[static_cast<size_t>(j)] += v * static_cast<double>(right[l * width + j]);
            }
            for (int64_t j = 0; j < width; j++)
                to[(item * m + i) * width + j] = static_cast<float>(row[static_cast<size_t>(j)]);
        }
    }
}

static void run_reduction(const program &p, const step &s, std::map<int64_t, numbers> &n)
{
    const tensor &x = p.tensors.at(s.in[0]), &y = p.tensors.at(s.out);
    const bool add = s.mode == DNN_REDUCE_TENSOR_ADD;
    std::vector<double> sum(static_cast<size_t>(y.elements()), add ? 0.0 : -HUGE_VAL);
    for (int64_t i = 0; i < x.elements(); i++) {
        int64_t index[4], left = i, at = 0;
        for (int d = 3; d >= 0; d--) {
            index[d] = left % x.size[d] / (x.size[d] / y.size[d]);
            left /= x.size[d];
        }
        for (int d = 0; d < 4; d++) at = at * y.size[d] + index[d];
        double &to = sum[static_cast<size_t>(at)];
        const double v = static_cast<double>(n[s.in[0]][i]);
        to = add ? to + v : v > to ? v : to;
    }
    for (int64_t i = 0; i < y.elements(); i++)
        n[s.out][i] = static_cast<float>(sum[static_cast<size_t>(i)]);
}

/* Both lie in the same memory: x's elements by its strides, read by y's. */
static void run_reshape(const program &p, const step &s, std::map<int64_t, numbers> &n)
{
    const tensor &x = p.tensors.at(s.in[0]), &y = p.tensors.at(s.out);
    std::map<int64_t, float> memory;
    for (int64_t i = 0; i < x.elements(); i++) memory[offset(x, i)] = n[s.in[0]][i];
    for (int64_t i = 0; i < y.elements(); i++) {
        auto at = memory.find(offset(y, i));
        n[s.out][i] = at == memory.end() ? NAN : at->second;
    }
}

static void run_convolution(const program &p, const step &s, std::map<int64_t, numbers> &n)
{
    const bool data = s.type == DNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    const bool filter = s.type == DNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
    const int64_t xi = data ? s.out : s.in[0], wi = filter ? s.out : s.in[1];
    const int64_t yi = data ? s.in[0] : filter ? s.in[1] : s.out;
    const tensor &x = p.tensors.at(xi), &w = p.tensors.at(wi), &y = p.tensors.at(yi);
    const int64_t groups = x.size[1] / w.size[1], outputs = w.size[0] / groups;
    std::vector<double> sum(static_cast<size_t>(p.tensors.at(s.out).elements()));

    for (int64_t i = 0; i < y.elements(); i++) {
        const int64_t ow = i % y.size[3], oh = i / y.size[3] % y.size[2];
        const int64_t o = i / y.size[3] / y.size[2] % y.size[1];
        const int64_t image = i / y.size[3] / y.size[2] / y.size[1];
        for (int64_t c = 0; c < w.size[1]; c++)
            for (int64_t r = 0; r < w.size[2]; r++)
                for (int64_t q = 0; q < w.size[3]; q++) {
                    const int64_t h = oh * s.stride[0] - s.padding[0] + r * s.dilation[0];
                    const int64_t v = ow * s.stride[1] - s.padding[1] + q * s.dilation[1];
                    if (h < 0 || h >= x.size[2] || v < 0 || v >= x.size[3]) continue;
                    const int64_t channel = o / outputs * w.size[1] + c;
                    const int64_t xe =
                        ((image * x.size[1] + channel) * x.size[2] + h) * x.size[3] + v;
                    const int64_t we = ((o * w.size[1] + c) * w.size[2] + r) * w.size[3] + q;
                    const double a = static_cast<double>(data ? n[yi][i] : n[xi][xe]);
                    const double b = static_cast<double>(filter ? n[yi][i] : n[wi][we]);
                    sum[static_cast<size_t>(data ? xe : filter ? we : i)] += a * b;
                }
    }
    for (size_t i = 0; i < sum.size(); i++) n[s.out][i] = static_cast<float>(sum[i]);
}

static void run_program(const program &p, const std::map<int64_t, void *> &data,
                        const std::map<int64_t, float> &by_value)
{
    std::map<int64_t, numbers> n;
    for (const auto &entry : p.tensors) {
        const tensor &t = entry.second;
        numbers &to = n[t.id];
        to.resize(static_cast<size_t>(t.elements()), NAN);
        bool written = t.is_virtual;
        for (const step &s : p.steps) written = written || s.out == t.id;
        if (t.by_value) to[0] = by_value.at(t.id);
        if (t.by_value || written) continue;
        for (int64_t i = 0; i < t.elements(); i++)
            to[i] = from_memory(data.at(t.id), t.type, offset(t, i));
    }
    for (const step &s : p.steps) {
        const tensor &y = p.tensors.at(s.out);
        if (s.type == DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            run_pointwise(p, s, n);
        else if (s.type == DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            run_product(p, s, n);
        else if (s.type == DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            run_reduction(p, s, n);
        else if (s.type == DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
            run_reshape(p, s, n);
        else
            run_convolution(p, s, n);
        for (float &v : n[s.out]) v = rounded(v, y.type);
        if (y.is_virtual) continue;
        for (int64_t i = 0; i < y.elements(); i++)
            to_memory(data.at(y.id), y.type, offset(y, i),
                      p.engine == NOT_BITWISE ? NAN : n[s.out][i]);
    }
}

/* ---- finalizing ------------------------------------------------------------------------------ */

static dnn_status check_tensor(const descriptor *d)
{
    const int64_t axes = d->counts.at(DNN_ATTR_TENSOR_DIMENSIONS);
    const int64_t aligned = value<int64_t>(d, DNN_ATTR_TENSOR_BYTE_ALIGNMENT);

    if (axes != 4 || d->counts.at(DNN_ATTR_TENSOR_STRIDES) != axes)
        return complain("a tensor of %lld sizes and %lld strides: want four each",
                        static_cast<long long>(axes),
                        static_cast<long long>(d->counts.at(DNN_ATTR_TENSOR_STRIDES)));
    for (int i = 0; i < 4; i++)
        if (value<int64_t>(d, DNN_ATTR_TENSOR_DIMENSIONS, i) < 1 ||
            value<int64_t>(d, DNN_ATTR_TENSOR_STRIDES, i) < 1)
            return complain("a tensor's sizes and strides are positive");
    if (aligned < 1 || (aligned & (aligned - 1)) != 0)
        return complain("a tensor's alignment of %lld bytes", static_cast<long long>(aligned));
    if (value<bool>(d, DNN_ATTR_TENSOR_IS_VIRTUAL) && value<bool>(d, DNN_ATTR_TENSOR_IS_BY_VALUE))
        return complain("a tensor is virtual and given by value");
    return 0;
}

static dnn_status make_graph(descriptor *d)
{
    auto made = std::make_shared<program>();
    for (int i = 0; i < d->counts.at(DNN_ATTR_OPERATIONGRAPH_OPS); i++)
        if (!add_step(made.get(), linked(d, DNN_ATTR_OPERATIONGRAPH_OPS, i))) return DNN_BAD_PARAM;
    d->runs = made;
    return 0;
}

static bool has_rows(const program &p, int64_t rows)
{
    for (const auto &t : p.tensors)
        if (!t.second.is_virtual && t.second.size[2] == rows) return true;
    return false;
}

static dnn_status make_plan(descriptor *d)
{
    const descriptor *configuration = linked(d, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (configuration->engine == UNFINISHED) return DNN_NOT_SUPPORTED;
    auto made = std::make_shared<program>(*configuration->runs);
    made->engine = configuration->engine;
    d->runs = made;
    d->workspace = 100;
    return 0;
}

static dnn_status finalize(descriptor *d)
{
    for (const rule &r : rules_of(d->type))
        if (r.least > 0 && !d->values.count(r.name))
            return complain("%s is finalized without %s", name_of("BACKEND", d->type),
                            name_of("ATTR", r.name));
    dnn_status status = 0;
    if (d->type == DNN_BACKEND_TENSOR_DESCRIPTOR) status = check_tensor(d);
    if (d->type == DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) status = make_graph(d);
    if (d->type == DNN_BACKEND_ENGINEHEUR_DESCRIPTOR &&
        has_rows(*linked(d, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->runs, UNSUPPORTED))
        status = DNN_NOT_SUPPORTED;
    if (d->type == DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) status = make_plan(d);
    if (d->type == DNN_BACKEND_VARIANT_PACK_DESCRIPTOR &&
        d->counts.at(DNN_ATTR_VARIANT_PACK_UNIQUE_IDS) !=
            d->counts.at(DNN_ATTR_VARIANT_PACK_DATA_POINTERS))
        status =
            complain("a variant pack of %lld ids and %lld pointers",
                     static_cast<long long>(d->counts.at(DNN_ATTR_VARIANT_PACK_UNIQUE_IDS)),
                     static_cast<long long>(d->counts.at(DNN_ATTR_VARIANT_PACK_DATA_POINTERS)));
    d->finalized = status == 0;
    return status;
}

/* ---- the API --------------------------------------------------------------------------------- */

static char the_handle;
static void *the_stream;

EXPORTED size_t cudnnGetVersion(void)
{
    const char *text = std::getenv("TN_CUDNN_VERSION");
    return text ? static_cast<size_t>(std::atoll(text)) : 91900;
}

EXPORTED const char *cudnnGetErrorString(dnn_status status)
{
    return status == 0                      ? "CUDNN_STATUS_SUCCESS"
           : status == DNN_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED"
           : status == DNN_NOT_SUPPORTED    ? "CUDNN_STATUS_NOT_SUPPORTED"
                                            : "CUDNN_STATUS_BAD_PARAM";
}

EXPORTED dnn_status cudnnCreate(dnn_handle *handle)
{
    CALL;
    *handle = &the_handle;
    return 0;
}

EXPORTED dnn_status cudnnDestroy(dnn_handle)
{
    return 0;
}

EXPORTED dnn_status cudnnSetStream(dnn_handle handle, void *stream)
{
    CALL;
    if (handle != &the_handle) return complain("cudnnSetStream of no handle");
    the_stream = stream;
    return 0;
}

EXPORTED dnn_status cudnnBackendCreateDescriptor(int type, dnn_descriptor *to)
{
    CALL;
    std::unique_ptr<descriptor> made(new descriptor());
    made->type = type;
    *to = made.get();
    all[*to] = std::move(made);
    return 0;
}

EXPORTED dnn_status cudnnBackendDestroyDescriptor(dnn_descriptor d)
{
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);
    if (all.erase(d) == 0) return complain("a descriptor is destroyed twice");
    return 0;
}

EXPORTED dnn_status cudnnBackendSetAttribute(dnn_descriptor at, int name, int type, int64_t count,
                                             const void *values)
{
    CALL;
    descriptor *d = find(at);
    if (!d) return complain("%s is set on no descriptor", name_of("ATTR", name));
    if (d->finalized)
        return complain("%s is set after %s was finalized", name_of("ATTR", name),
                        name_of("BACKEND", d->type));
    for (const rule &r : rules_of(d->type)) {
        if (r.name != name) continue;
        if (r.type != type)
            return complain("%s is of %s: want %s", name_of("ATTR", name), name_of("TYPE", type),
                            name_of("TYPE", r.type));
        if (count < (r.least > 0 ? r.least : 1) || count > r.most)
            return complain("%s of %lld elements", name_of("ATTR", name),
                            static_cast<long long>(count));
        const char *bytes = static_cast<const char *>(values);
        d->values[name].assign(bytes, bytes + count * static_cast<int64_t>(size_of_type(type)));
        d->counts[name] = count;
        for (int64_t i = 0; type == DNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
            const descriptor *of = linked(d, name, static_cast<int>(i));
            if (of && (of->finalized || of->type == DNN_BACKEND_ENGINECFG_DESCRIPTOR)) continue;
            return complain("%s is given %s that is not finalized", name_of("ATTR", name),
                            of ? name_of("BACKEND", of->type) : "a descriptor");
        }
        return 0;
    }
    return complain("%s has no %s", name_of("BACKEND", d->type), name_of("ATTR", name));
}

static dnn_status results(const descriptor *d, int64_t most, int64_t *count, void *values)
{
    const descriptor *graph = linked(d, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    const bool best = value<int>(d, DNN_ATTR_ENGINEHEUR_MODE) == DNN_HEUR_MODE_A;
    *count = best ? 3 : 0;
    for (int64_t i = 0; i < *count && i < most; i++) {
        descriptor *to = find(static_cast<dnn_descriptor *>(values)[i]);
        if (!to || to->type != DNN_BACKEND_ENGINECFG_DESCRIPTOR)
            return complain("results are wanted in what is not BACKEND_ENGINECFG_DESCRIPTOR");
        to->runs = graph->runs;
        to->engine = static_cast<int>(i);
    }
    return 0;
}

EXPORTED dnn_status cudnnBackendGetAttribute(dnn_descriptor at, int name, int type, int64_t most,
                                             int64_t *count, void *values)
{
    CALL;
    descriptor *d = find(at);
    if (!d) return complain("%s is read from no descriptor", name_of("ATTR", name));
    if (!d->finalized && d->type != DNN_BACKEND_ENGINECFG_DESCRIPTOR &&
        d->type != DNN_BACKEND_ENGINE_DESCRIPTOR)
        return complain("%s is read before %s is finalized", name_of("ATTR", name),
                        name_of("BACKEND", d->type));
    if (name == DNN_ATTR_ENGINEHEUR_RESULTS && type == DNN_TYPE_BACKEND_DESCRIPTOR)
        return results(d, most, count, values);
    if (name == DNN_ATTR_ENGINECFG_ENGINE && type == DNN_TYPE_BACKEND_DESCRIPTOR) {
        descriptor *engine = find(*static_cast<dnn_descriptor *>(values));
        if (!engine || engine->type != DNN_BACKEND_ENGINE_DESCRIPTOR)
            return complain("an engine is wanted in what is not BACKEND_ENGINE_DESCRIPTOR");
        engine->engine = d->engine;
        *count = 1;
        return 0;
    }
    if (name == DNN_ATTR_ENGINE_NUMERICAL_NOTE && type == DNN_TYPE_NUMERICAL_NOTE) {
        int *notes = static_cast<int *>(values);
        *count = d->engine == NOT_BITWISE ? 2 : 1;
        notes[0] = 0; /* tensor cores */
        if (d->engine == NOT_BITWISE && most > 1) notes[1] = DNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return 0;
    }
    if (name == DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == DNN_TYPE_INT64) {
        *static_cast<int64_t *>(values) = d->workspace;
        *count = 1;
        return 0;
    }
    return complain("%s of %s cannot be read from %s", name_of("ATTR", name), name_of("TYPE", type),
                    name_of("BACKEND", d->type));
}

EXPORTED dnn_status cudnnBackendFinalize(dnn_descriptor at)
{
    CALL;
    descriptor *d = find(at);
    if (!d) return complain("no descriptor is finalized");
    if (d->finalized) return complain("%s is finalized twice", name_of("BACKEND", d->type));
    return finalize(d);
}

/* Where a plan's tensors lie; a complaint for what is missing, or not where the GPU can be. */
static dnn_status place(const program &p, const descriptor *pack, std::map<int64_t, void *> *data,
                        std::map<int64_t, float> *by_value)
{
    for (int i = 0; i < pack->counts.at(DNN_ATTR_VARIANT_PACK_UNIQUE_IDS); i++) {
        const int64_t id = value<int64_t>(pack, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i);
        void *at = value<void *>(pack, DNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
        auto t = p.tensors.find(id);
        if (t == p.tensors.end() || t->second.is_virtual)
            return complain("a pointer is given for unique id %lld, which the graph does not have",
                            static_cast<long long>(id));
        if (t->second.by_value) {
            if (cuda_host::device_block(at))
                return complain("number %lld is not in the host's memory",
                                static_cast<long long>(id));
            (*by_value)[id] = *static_cast<const float *>(at);
            continue;
        }
        const int64_t last = offset(t->second, t->second.elements() - 1);
        const int64_t each = t->second.type == DNN_DATA_FLOAT ? 4 : 2;
        if (reinterpret_cast<uintptr_t>(at) % 16 != 0)
            return complain("tensor %s is not on 16 bytes", sizes(t->second).c_str());
        if (!cuda_host::device_block(at) ||
            cuda_host::device_block(at) !=
                cuda_host::device_block(static_cast<char *>(at) + last * each))
            return complain("tensor %s is not in one block of device memory",
                            sizes(t->second).c_str());
        (*data)[id] = at;
    }
    for (const auto &t : p.tensors)
        if (!t.second.is_virtual && !data->count(t.first) && !by_value->count(t.first))
            return complain("no pointer is given for tensor %s", sizes(t.second).c_str());
    return 0;
}

EXPORTED dnn_status cudnnBackendExecute(dnn_handle handle, dnn_descriptor plan, dnn_descriptor pack)
{
    CALL;
    const descriptor *p = find(plan), *v = find(pack);
    std::map<int64_t, void *> data;
    std::map<int64_t, float> by_value;

    if (handle != &the_handle || !the_stream) return complain("a run without handle or stream");
    if (!p || p->type != DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !p->finalized)
        return complain("a run of what is not a finalized plan");
    if (!v || v->type != DNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !v->finalized)
        return complain("a run with what is not a finalized variant pack");
    if (!cuda_host::device_block(value<void *>(v, DNN_ATTR_VARIANT_PACK_WORKSPACE)))
        return complain("the workspace is not device memory");
    if (dnn_status failed = place(*p->runs, v, &data, &by_value); failed != 0) return failed;
    if (has_rows(*p->runs, REFUSED)) return DNN_NOT_SUPPORTED;
    std::shared_ptr<const program> runs = p->runs;
    cuda_host::enqueue([runs, data, by_value]() { run_program(*runs, data, by_value); });
    return 0;
}
