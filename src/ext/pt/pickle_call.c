/*
 * pickle_call.c - the names that a state dict's pickle may use, and what calling them means:
 *     collections.OrderedDict()                   an empty dict
 *     torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)
 *     torch._utils._rebuild_parameter(tensor, requires_grad, hooks)        the tensor
 * and torch.FloatStorage and its like, which are only named, in the persistent id of a storage:
 * ("storage", TYPE, KEY, LOCATION, NUMEL).
 */
#include <stdio.h>

#include "ext/pt/pickle.h"

/* Limit on the elements of an expanded tensor (strides of 0): tiny in the file, but large when
 * copied. */
enum { EXPANDED_LIMIT = 1 << 20 };

typedef tni_pickle_value value;

enum { ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, STORAGE_TYPE };

static const struct {
    const char *name; /* "MODULE\nNAME\n" */
    int what;
    tn_dtype dtype; /* of a storage */
} globals[] = {
    { "collections\nOrderedDict\n", ORDERED_DICT, TN_F32 },
    { "torch._utils\n_rebuild_tensor_v2\n", REBUILD_TENSOR, TN_F32 },
    { "torch._utils\n_rebuild_parameter\n", REBUILD_PARAMETER, TN_F32 },
    { "torch\nFloatStorage\n", STORAGE_TYPE, TN_F32 },
    { "torch\nDoubleStorage\n", STORAGE_TYPE, TN_F64 },
    { "torch\nBFloat16Storage\n", STORAGE_TYPE, TN_BF16 },
    { "torch\nHalfStorage\n", STORAGE_TYPE, TN_F16 },
    { "torch\nLongStorage\n", STORAGE_TYPE, TN_I64 },
    { "torch\nIntStorage\n", STORAGE_TYPE, TN_I32 },
    { "torch\nByteStorage\n", STORAGE_TYPE, TN_U8 },
    { "torch\nBoolStorage\n", STORAGE_TYPE, TN_BOOL },
};
enum { N_GLOBALS = sizeof globals / sizeof *globals };

/* Bytes of a line with its end; 0 when it does not end. */
static size_t line(const tni_pickle *p, size_t at)
{
    const unsigned char *end = memchr(p->bytes + at, '\n', p->n - at);
    return end ? (size_t)(end - (p->bytes + at)) + 1 : 0;
}

tn_status tni_pickle_global(tni_pickle *p, int n)
{
    size_t module = line(p, p->at);
    size_t name = module ? line(p, p->at + module) : 0;
    if (!name) return tni_pickle_bad(p, "%s", "GLOBAL without two lines");
    const char *text = (const char *)tni_pickle_operand(p, module + name);
    for (int i = 0; i < N_GLOBALS; i++)
        if (strlen(globals[i].name) == module + name &&
            !memcmp(globals[i].name, text, module + name))
            return tni_pickle_push(p, TNI_PICKLE_GLOBAL, i, (uint32_t)n);
    int m = (int)TNI_MIN(module - 1, 64), k = (int)TNI_MIN(name - 1, 64);
    if (m == 5 && !strncmp(text, "torch", 5) && name > 8 &&
        !memcmp(text + module + name - 8, "Storage", 7))
        return tni_pickle_bad(
            p, "%.*s.%.*s: its dtype is not one of f32, f64, bf16, f16, i64, i32, u8, bool", m,
            text, k, text + module);
    return tni_pickle_bad(p, "the global %.*s.%.*s: " TNI_PICKLE_WANTED, m, text, k, text + module);
}

/* NULL for an empty tuple: the table may not exist yet. */
static const value *members_of(const tni_pickle *p, const value *tuple)
{
    return tuple->n ? (const value *)p->members.data + tuple->number : NULL;
}

static bool is_hooks(const tni_pickle *p, const value *v)
{
    return v->kind == TNI_PICKLE_DICT && tni_pickle_dict_of(p, v)->n == 0;
}

/* A storage's persistent id. The location (its old device) is ignored: it is read to the CPU. */
tn_status tni_pickle_persistent_id(tni_pickle *p, int n)
{
    const value *v = tni_pickle_last(p, n);
    if (!v) return tni_pending();
    const value *id = v->kind == TNI_PICKLE_TUPLE && v->n == 5 ? members_of(p, v) : NULL;
    if (!id || !tni_pickle_is_text(p, &id[0], "storage") || id[1].kind != TNI_PICKLE_GLOBAL ||
        globals[id[1].number].what != STORAGE_TYPE || id[2].kind != TNI_PICKLE_STRING ||
        id[3].kind != TNI_PICKLE_STRING || id[4].kind != TNI_PICKLE_INT || id[4].number < 0)
        return tni_pickle_bad(
            p, "%s", "a persistent id other than (\"storage\", TYPE, KEY, LOCATION, NUMEL)");
    tni_pickle_storage *s = tni_pickle_add(p, &p->storages, sizeof *s, p->max_tensors, "storages");
    if (!s) return tni_pending();
    *s = (tni_pickle_storage){ .dtype = globals[id[1].number].dtype, .numel = id[4].number };
    const char *key = (const char *)p->bytes + id[2].number;
    bool digits = id[2].n > 0 && id[2].n < sizeof s->key;
    for (uint32_t i = 0; digits && i < id[2].n; i++) digits = key[i] >= '0' && key[i] <= '9';
    if (!digits)
        return tni_pickle_bad(p, "the storage key \"%.*s\": want digits", (int)TNI_MIN(id[2].n, 64),
                              key);
    memcpy(s->key, key, id[2].n);
    p->stack.n--;
    return tni_pickle_push(p, TNI_PICKLE_STORAGE, p->storages.n - 1, 0);
}

/* Whether all that shape and stride reach from offset is in [0, numel). */
static bool inside(const tni_pickle_tensor *t, const tni_pickle_storage *s)
{
    int64_t n = tni_shape_numel(&t->shape);
    int64_t nbytes, end = t->offset;
    if (n < 0 || __builtin_mul_overflow(n, (int64_t)tn_dtype_size(s->dtype), &nbytes)) return false;
    int64_t step;
    for (int i = 0; n > 0 && i < t->shape.rank; i++)
        if (__builtin_mul_overflow(t->shape.size[i] - 1, t->stride[i], &step) ||
            __builtin_add_overflow(end, step, &end))
            return false;
    return n > 0 ? end < s->numel : end <= s->numel;
}

static tn_status rebuild_tensor(tni_pickle *p, const value *a, uint32_t n)
{
    if (n == 7)
        return tni_pickle_bad(
            p, "%s", "a tensor with metadata (conjugate or negative bits): want plain ones");
    if (n != 6 || a[0].kind != TNI_PICKLE_STORAGE || a[1].kind != TNI_PICKLE_INT ||
        a[2].kind != TNI_PICKLE_TUPLE || a[3].kind != TNI_PICKLE_TUPLE ||
        a[4].kind != TNI_PICKLE_BOOL || !is_hooks(p, &a[5]))
        return tni_pickle_bad(p, "%s",
                              "_rebuild_tensor_v2 of something other than (storage, offset, size, "
                              "stride, requires_grad, no hooks)");
    if (a[2].n > TN_MAX_RANK || a[3].n != a[2].n)
        return tni_pickle_bad(p, "a tensor of %u sizes and %u strides: want as many, at most %d",
                              a[2].n, a[3].n, TN_MAX_RANK);
    tni_pickle_tensor t = { .storage = a[0].number, .offset = a[1].number };
    bool plain = t.offset >= 0;
    t.shape.rank = (int)a[2].n;
    for (int i = 0; i < t.shape.rank; i++) {
        const value *size = &members_of(p, &a[2])[i], *stride = &members_of(p, &a[3])[i];
        plain = plain && size->kind == TNI_PICKLE_INT && size->number >= 0 &&
                stride->kind == TNI_PICKLE_INT && stride->number >= 0;
        t.shape.size[i] = size->number;
        t.stride[i] = stride->number;
    }
    if (!plain)
        return tni_pickle_bad(p, "%s", "a tensor's offset, size or stride is not an integer >= 0");
    const tni_pickle_storage *s = (tni_pickle_storage *)p->storages.data + t.storage;
    if (!inside(&t, s))
        return tni_pickle_bad(
            p, "a tensor %s at %" PRId64 ": outside its storage %s of %" PRId64 " elements",
            tni_shape_text(&t.shape), t.offset, s->key, s->numel);
    if (tni_shape_numel(&t.shape) > TNI_MAX(s->numel, EXPANDED_LIMIT))
        return tni_pickle_bad(
            p, "a tensor %s of %" PRId64 " elements expanded: at most %d elements are possible",
            tni_shape_text(&t.shape), s->numel, EXPANDED_LIMIT);
    tni_pickle_tensor *place = tni_pickle_add(p, &p->tensors, sizeof t, p->max_tensors, "tensors");
    if (!place) return tni_pending();
    *place = t;
    p->stack.n -= 2;
    return tni_pickle_push(p, TNI_PICKLE_TENSOR, p->tensors.n - 1, 0);
}

static tn_status rebuild_parameter(tni_pickle *p, const value *a, uint32_t n)
{
    if (n != 3 || a[0].kind != TNI_PICKLE_TENSOR || a[1].kind != TNI_PICKLE_BOOL ||
        !is_hooks(p, &a[2]))
        return tni_pickle_bad(p, "%s",
                              "_rebuild_parameter of something other than (tensor, requires_grad, "
                              "no hooks)");
    p->stack.n -= 2;
    return tni_pickle_push(p, TNI_PICKLE_TENSOR, a[0].number, 0);
}

tn_status tni_pickle_reduce(tni_pickle *p, int n)
{
    const value *v = tni_pickle_last(p, n);
    if (!v) return tni_pending();
    if (v[0].kind != TNI_PICKLE_GLOBAL || v[1].kind != TNI_PICKLE_TUPLE)
        return tni_pickle_bad(p, "%s", "REDUCE of something other than a name and its arguments");
    const value *arguments = members_of(p, &v[1]);
    switch (globals[v[0].number].what) {
    case REBUILD_TENSOR: return rebuild_tensor(p, arguments, v[1].n);
    case REBUILD_PARAMETER: return rebuild_parameter(p, arguments, v[1].n);
    case ORDERED_DICT:
        if (v[1].n)
            return tni_pickle_bad(p, "%s", "OrderedDict with arguments: " TNI_PICKLE_WANTED);
        p->stack.n -= 2;
        return tni_pickle_dict_new(p, 1);
    default: return tni_pickle_bad(p, "%s", "a storage type is called: " TNI_PICKLE_WANTED);
    }
}
