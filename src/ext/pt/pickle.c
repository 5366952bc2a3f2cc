/*
 * pickle.c - a stack machine for the pickles of state dicts: a table of the known instructions.
 *
 * Every instruction checks its operands: kinds, places, sizes. Each table has a limit, so a short
 * file cannot request much memory. The names that may be called:
 *     collections.OrderedDict()                   an empty dict
 *     torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)
 *     torch._utils._rebuild_parameter(tensor, requires_grad, hooks)        the tensor
 * and torch.FloatStorage and its like, which are only named, in the persistent id of a storage:
 * ("storage", TYPE, KEY, LOCATION, NUMEL).
 */
#include "ext/pt/pickle.h"
#include "ext/pt/zip.h"

/* TN_E_FORMAT with the place of the current instruction. */
#define bad(p, format, ...)                                                                        \
    tni_input_bad((p)->in, "data.pkl, byte %zu: " format, (p)->here, __VA_ARGS__)
#define WANTED                                                                                     \
    "only what PyTorch's torch.save(model.state_dict(), path) writes is read, and nothing is "     \
    "executed"

enum {
    STACK_LIMIT = 4096, /* PyTorch's writer puts 1,000 pairs on it at a time */
    STRING_LIMIT = 4096
};

typedef tni_pickle_value value;

/* ---- tables ---------------------------------------------------------------------------------- */

/* Room for one more element of `size` bytes; NULL + message beyond the limit. */
static void *add(tni_pickle *p, tni_pickle_table *t, size_t size, int64_t limit, const char *what)
{
    if (t->n >= limit) return bad(p, "more than %" PRId64 " %s", limit, what), NULL;
    t->size = size;
    if (!tni_room(&t->data, &t->capacity, (size_t)t->n, 1, size)) return NULL;
    return (char *)t->data + (size_t)t->n++ * size;
}

static tn_status push(tni_pickle *p, tni_pickle_kind kind, int64_t number, uint32_t n)
{
    value *v = add(p, &p->stack, sizeof *v, STACK_LIMIT, "values on the stack");
    if (!v) return tni_pending();
    *v = (value){ kind, n, number };
    return TN_OK;
}

/* The last k values, no mark among them; NULL + message. */
static value *last(tni_pickle *p, int64_t k)
{
    value *stack = p->stack.data;
    bool there = p->stack.n >= k;
    for (int64_t i = 1; there && i <= k; i++) there = stack[p->stack.n - i].kind != TNI_PICKLE_MARK;
    if (there) return stack + p->stack.n - k;
    return bad(p, "the stack has less than %" PRId64 " values", k), NULL;
}

/* The last *k values; *k < 0: those above the last mark, and *k becomes their number. */
static value *several(tni_pickle *p, int64_t *k)
{
    const value *stack = p->stack.data;
    int64_t mark = p->stack.n - 1;
    if (*k >= 0) return last(p, *k);
    while (mark >= 0 && stack[mark].kind != TNI_PICKLE_MARK) mark--;
    if (mark < 0) return bad(p, "%s", "no mark on the stack"), NULL;
    *k = p->stack.n - 1 - mark;
    return (value *)p->stack.data + mark + 1;
}

/* The next n bytes; NULL + message. */
static const unsigned char *operand(tni_pickle *p, size_t n)
{
    if (n > p->n - p->at)
        return bad(p, "an operand of %zu bytes with %zu left", n, p->n - p->at), NULL;
    p->at += n;
    return p->bytes + p->at - n;
}

static bool is_text(const tni_pickle *p, const value *v, const char *text)
{
    return v->kind == TNI_PICKLE_STRING && v->n == strlen(text) &&
           !memcmp(p->bytes + v->number, text, v->n);
}

/* ---- plain values ---------------------------------------------------------------------------- */

static tn_status proto(tni_pickle *p, int64_t version)
{
    if (p->here != 0) return bad(p, "%s", "PROTO after the beginning");
    if (version != 2)
        return bad(p, "pickle protocol %" PRId64 ": want 2, PyTorch's default", version);
    return TN_OK;
}

#define PUSHES(name, kind)                                                                         \
    static tn_status name(tni_pickle *p, int64_t x)                                                \
    {                                                                                              \
        return push(p, kind, x, 0);                                                                \
    }
PUSHES(mark, TNI_PICKLE_MARK)
PUSHES(boolean, TNI_PICKLE_BOOL)
PUSHES(integer, TNI_PICKLE_INT)

/* Of the integers with a fixed length, only that of 4 bytes has a sign. */
static tn_status signed_integer(tni_pickle *p, int64_t x)
{
    return integer(p, (int32_t)x);
}

/* Two's complement of any length; up to 8 bytes here. */
static tn_status long_integer(tni_pickle *p, int64_t n)
{
    const unsigned char *b = operand(p, (size_t)n);
    if (!b) return tni_pending();
    if (n > 8) return bad(p, "an integer of %" PRId64 " bytes: at most 8 are possible", n);
    uint64_t x = tni_little(b, (int)n);
    if (n > 0 && n < 8 && b[n - 1] & 0x80) x |= ~UINT64_C(0) << (8 * n);
    return integer(p, (int64_t)x);
}

static tn_status string(tni_pickle *p, int64_t n)
{
    if (n > STRING_LIMIT)
        return bad(p, "a string of %" PRId64 " bytes: at most %d are possible", n, STRING_LIMIT);
    if (!operand(p, (size_t)n)) return tni_pending();
    return push(p, TNI_PICKLE_STRING, (int64_t)p->at - n, (uint32_t)n);
}

/* ---- the memo: values under the numbers 0, 1, ... -------------------------------------------- */

static tn_status put(tni_pickle *p, int64_t i)
{
    const value *top = last(p, 1);
    if (!top) return tni_pending();
    if (i > p->memo.n)
        return bad(p, "memo %" PRId64 ": %" PRId64 " would be the next", i, p->memo.n);
    value *cell = i < p->memo.n
                      ? (value *)p->memo.data + i
                      : add(p, &p->memo, sizeof *cell, p->max_values, "values in the memo");
    if (!cell) return tni_pending();
    *cell = *top;
    return TN_OK;
}

static tn_status get(tni_pickle *p, int64_t i)
{
    if (i >= p->memo.n) return bad(p, "memo %" PRId64 ": only %" PRId64 " are set", i, p->memo.n);
    value v = ((value *)p->memo.data)[i];
    return push(p, v.kind, v.number, v.n);
}

/* ---- tuples and dicts ------------------------------------------------------------------------ */

/* Makes n values a tuple; n < 0: those above the mark. */
static tn_status tuple(tni_pickle *p, int64_t n)
{
    int64_t k = n, first = p->members.n;
    const value *v = several(p, &k);
    if (!v) return tni_pending();
    for (int64_t i = 0; i < k; i++) {
        value *member = add(p, &p->members, sizeof *member, p->max_values, "values in tuples");
        if (!member) return tni_pending();
        *member = v[i];
    }
    p->stack.n -= k + (n < 0);
    return push(p, TNI_PICKLE_TUPLE, first, (uint32_t)k);
}

static tn_status dict_new(tni_pickle *p, int64_t ordered)
{
    tni_pickle_dict *d = add(p, &p->dicts, sizeof *d, p->max_values, "dicts");
    if (!d) return tni_pending();
    *d = (tni_pickle_dict){ .ordered = ordered != 0, .attribute = -1 };
    return push(p, TNI_PICKLE_DICT, p->dicts.n - 1, 0);
}

static tni_pickle_dict *dict_of(const tni_pickle *p, const value *v)
{
    return (tni_pickle_dict *)p->dicts.data + v->number;
}

/* Puts n values, key before value, into the dict below them; n < 0: those above the mark. */
static tn_status set_items(tni_pickle *p, int64_t n)
{
    int64_t k = n;
    const value *v = several(p, &k);
    if (!v) return tni_pending();
    int64_t below = p->stack.n - k - (n < 0);
    if (k % 2) return bad(p, "%s", "a key without a value");
    const value *target = below > 0 ? (value *)p->stack.data + below - 1 : NULL;
    if (!target || target->kind != TNI_PICKLE_DICT)
        return bad(p, "%s", "items for something other than a dict: " WANTED);
    for (int64_t i = 0; i < k; i += 2) {
        if (v[i].kind != TNI_PICKLE_STRING)
            return bad(p, "%s", "a key is not a string, as in an optimizer's state: " WANTED);
        tni_pickle_pair *pair = add(p, &p->pairs, sizeof *pair, p->max_values, "items in dicts");
        if (!pair) return tni_pending();
        *pair = (tni_pickle_pair){ target->number, v[i], v[i + 1] };
        tni_pickle_dict *d = dict_of(p, target);
        d->n++;
        if (is_text(p, &v[i], "version") && v[i + 1].kind == TNI_PICKLE_INT)
            d->version = v[i + 1].number;
    }
    p->stack.n = below;
    return TN_OK;
}

/* Attributes of an object: of an OrderedDict, once, the one named _metadata. */
static tn_status build(tni_pickle *p, int64_t n)
{
    const value *v = last(p, n);
    if (!v) return tni_pending();
    bool dicts = v[0].kind == TNI_PICKLE_DICT && v[1].kind == TNI_PICKLE_DICT;
    bool one = dicts && dict_of(p, &v[0])->ordered && dict_of(p, &v[1])->n == 1;
    const tni_pickle_pair *pair = p->pairs.data;
    if (one)
        while (pair->dict != v[1].number) pair++; /* it has one */
    if (!one || p->built || !is_text(p, &pair->key, "_metadata") ||
        pair->value.kind != TNI_PICKLE_DICT)
        return bad(p, "%s", "BUILD of something other than a state dict's _metadata: " WANTED);
    p->built = true;
    dict_of(p, &v[0])->attribute = pair->value.number;
    p->stack.n--;
    return TN_OK;
}

/* ---- names and calls ------------------------------------------------------------------------- */

/* Limit on the elements of an expanded tensor (strides of 0): tiny in the file, but large when
 * copied. */
enum { EXPANDED_LIMIT = 1 << 20 };

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

static tn_status global(tni_pickle *p, int64_t n)
{
    size_t module = line(p, p->at);
    size_t name = module ? line(p, p->at + module) : 0;
    if (!name) return bad(p, "%s", "GLOBAL without two lines");
    const char *text = (const char *)operand(p, module + name);
    for (int i = 0; i < N_GLOBALS; i++)
        if (strlen(globals[i].name) == module + name &&
            !memcmp(globals[i].name, text, module + name))
            return push(p, TNI_PICKLE_GLOBAL, i, (uint32_t)n);
    int m = (int)TNI_MIN(module - 1, 64), k = (int)TNI_MIN(name - 1, 64);
    if (m == 5 && !strncmp(text, "torch", 5) && name > 8 &&
        !memcmp(text + module + name - 8, "Storage", 7))
        return bad(p, "%.*s.%.*s: its dtype is not one of f32, f64, bf16, f16, i64, i32, u8, bool",
                   m, text, k, text + module);
    return bad(p, "the global %.*s.%.*s: " WANTED, m, text, k, text + module);
}

/* NULL for an empty tuple: the table may not exist yet. */
static const value *members_of(const tni_pickle *p, const value *tuple)
{
    return tuple->n ? (const value *)p->members.data + tuple->number : NULL;
}

static bool is_hooks(const tni_pickle *p, const value *v)
{
    return v->kind == TNI_PICKLE_DICT && dict_of(p, v)->n == 0;
}

/* A storage's persistent id. The location (its old device) is ignored: it is read to the CPU. */
static tn_status persistent_id(tni_pickle *p, int64_t n)
{
    const value *v = last(p, n);
    if (!v) return tni_pending();
    const value *id = v->kind == TNI_PICKLE_TUPLE && v->n == 5 ? members_of(p, v) : NULL;
    if (!id || !is_text(p, &id[0], "storage") || id[1].kind != TNI_PICKLE_GLOBAL ||
        globals[id[1].number].what != STORAGE_TYPE || id[2].kind != TNI_PICKLE_STRING ||
        id[3].kind != TNI_PICKLE_STRING || id[4].kind != TNI_PICKLE_INT || id[4].number < 0)
        return bad(p, "%s", "a persistent id other than (\"storage\", TYPE, KEY, LOCATION, NUMEL)");
    tni_pickle_storage *s = add(p, &p->storages, sizeof *s, p->max_tensors, "storages");
    if (!s) return tni_pending();
    *s = (tni_pickle_storage){ .dtype = globals[id[1].number].dtype, .numel = id[4].number };
    const char *key = (const char *)p->bytes + id[2].number;
    bool digits = id[2].n > 0 && id[2].n < sizeof s->key;
    for (uint32_t i = 0; digits && i < id[2].n; i++) digits = key[i] >= '0' && key[i] <= '9';
    if (!digits)
        return bad(p, "the storage key \"%.*s\": want digits", (int)TNI_MIN(id[2].n, 64), key);
    memcpy(s->key, key, id[2].n);
    p->stack.n--;
    return push(p, TNI_PICKLE_STORAGE, p->storages.n - 1, 0);
}

const char *tni_pickle_storage_type(tn_dtype dtype)
{
    int i = 0;
    while (globals[i].what != STORAGE_TYPE || globals[i].dtype != dtype) i++;
    return globals[i].name;
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
        return bad(p, "%s", "a tensor with metadata (conjugate or negative bits): want plain ones");
    if (n != 6 || a[0].kind != TNI_PICKLE_STORAGE || a[1].kind != TNI_PICKLE_INT ||
        a[2].kind != TNI_PICKLE_TUPLE || a[3].kind != TNI_PICKLE_TUPLE ||
        a[4].kind != TNI_PICKLE_BOOL || !is_hooks(p, &a[5]))
        return bad(p, "%s",
                   "_rebuild_tensor_v2 of something other than (storage, offset, size, "
                   "stride, requires_grad, no hooks)");
    if (a[2].n > TN_MAX_RANK || a[3].n != a[2].n)
        return bad(p, "a tensor of %u sizes and %u strides: want as many, at most %d", a[2].n,
                   a[3].n, TN_MAX_RANK);
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
    if (!plain) return bad(p, "%s", "a tensor's offset, size or stride is not an integer >= 0");
    const tni_pickle_storage *s = (tni_pickle_storage *)p->storages.data + t.storage;
    if (!inside(&t, s))
        return bad(p, "a tensor %s at %" PRId64 ": outside its storage %s of %" PRId64 " elements",
                   tni_shape_text(&t.shape), t.offset, s->key, s->numel);
    if (tni_shape_numel(&t.shape) > TNI_MAX(s->numel, EXPANDED_LIMIT))
        return bad(p,
                   "a tensor %s of %" PRId64 " elements expanded: at most %d elements are possible",
                   tni_shape_text(&t.shape), s->numel, EXPANDED_LIMIT);
    tni_pickle_tensor *place = add(p, &p->tensors, sizeof t, p->max_tensors, "tensors");
    if (!place) return tni_pending();
    *place = t;
    p->stack.n -= 2;
    return push(p, TNI_PICKLE_TENSOR, p->tensors.n - 1, 0);
}

static tn_status rebuild_parameter(tni_pickle *p, const value *a, uint32_t n)
{
    if (n != 3 || a[0].kind != TNI_PICKLE_TENSOR || a[1].kind != TNI_PICKLE_BOOL ||
        !is_hooks(p, &a[2]))
        return bad(p, "%s",
                   "_rebuild_parameter of something other than (tensor, requires_grad, "
                   "no hooks)");
    p->stack.n -= 2;
    return push(p, TNI_PICKLE_TENSOR, a[0].number, 0);
}

static tn_status reduce(tni_pickle *p, int64_t n)
{
    const value *v = last(p, n);
    if (!v) return tni_pending();
    if (v[0].kind != TNI_PICKLE_GLOBAL || v[1].kind != TNI_PICKLE_TUPLE)
        return bad(p, "%s", "REDUCE of something other than a name and its arguments");
    const value *arguments = members_of(p, &v[1]);
    switch (globals[v[0].number].what) {
    case REBUILD_TENSOR: return rebuild_tensor(p, arguments, v[1].n);
    case REBUILD_PARAMETER: return rebuild_parameter(p, arguments, v[1].n);
    case ORDERED_DICT:
        if (v[1].n) return bad(p, "%s", "OrderedDict with arguments: " WANTED);
        p->stack.n -= 2;
        return dict_new(p, 1);
    default: return bad(p, "%s", "a storage type is called: " WANTED);
    }
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* Instructions by their byte: the function, and the number that it gets: its operand, of so many
 * bytes, or else x. */
static const struct {
    const char *name;
    tn_status (*run)(tni_pickle *p, int64_t x);
    int bytes, x;
} instructions[256] = {
    [0x80] = { "PROTO", proto, 1, 0 },          ['('] = { "MARK", mark, 0, 0 },
    [0x88] = { "NEWTRUE", boolean, 0, 1 },      [0x89] = { "NEWFALSE", boolean, 0, 0 },
    ['K'] = { "BININT1", integer, 1, 0 },       ['M'] = { "BININT2", integer, 2, 0 },
    ['J'] = { "BININT", signed_integer, 4, 0 }, [0x8a] = { "LONG1", long_integer, 1, 0 },
    ['X'] = { "BINUNICODE", string, 4, 0 },     ['q'] = { "BINPUT", put, 1, 0 },
    ['r'] = { "LONG_BINPUT", put, 4, 0 },       ['h'] = { "BINGET", get, 1, 0 },
    ['j'] = { "LONG_BINGET", get, 4, 0 },       [')'] = { "EMPTY_TUPLE", tuple, 0, 0 },
    [0x85] = { "TUPLE1", tuple, 0, 1 },         [0x86] = { "TUPLE2", tuple, 0, 2 },
    [0x87] = { "TUPLE3", tuple, 0, 3 },         ['t'] = { "TUPLE", tuple, 0, -1 },
    ['}'] = { "EMPTY_DICT", dict_new, 0, 0 },   ['s'] = { "SETITEM", set_items, 0, 2 },
    ['u'] = { "SETITEMS", set_items, 0, -1 },   ['b'] = { "BUILD", build, 0, 2 },
    ['c'] = { "GLOBAL", global, 0, 0 },         ['Q'] = { "BINPERSID", persistent_id, 0, 1 },
    ['R'] = { "REDUCE", reduce, 0, 2 },
};

static tn_status unknown(tni_pickle *p, unsigned char code)
{
    const char *what = code == 'G' || code == 'F'   ? "a floating number"
                       : code == 'N'                ? "None"
                       : code == ']' || code == 'l' ? "a list"
                                                    : NULL;
    if (!what) return bad(p, "instruction 0x%02x: " WANTED, code);
    return bad(
        p,
        "%s beside the tensors, as in a checkpoint of several parts: want a state dict alone, "
        "torch.save(model.state_dict(), path)",
        what);
}

tn_status tni_pickle_read(tni_pickle *p, const tni_input *in, const unsigned char *bytes, size_t n,
                          int64_t max_tensors)
{
    *p = (tni_pickle){ .in = in, .bytes = bytes, .n = n, .max_tensors = max_tensors };
    p->max_values = TNI_MIN(max_tensors, INT32_MAX) * 32 + STACK_LIMIT; /* 28 a tensor are usual */
    if (!add(p, &p->stack, sizeof(value), STACK_LIMIT, "")) return tni_pending();
    p->stack.n = 0;
    while (p->at < n) {
        p->here = p->at;
        unsigned char code = bytes[p->at++];
        const value *v = p->stack.data;
        if (code == '.' && (p->stack.n != 1 || v->kind != TNI_PICKLE_DICT))
            return bad(p, "%s", "the result is not a dict: " WANTED);
        if (code == '.' && p->at != n) return bad(p, "%zu bytes follow STOP", n - p->at);
        if (code == '.') return p->root = v->number, TN_OK;
        if (!instructions[code].run) return unknown(p, code);
        const int size = instructions[code].bytes;
        const unsigned char *b = operand(p, (size_t)size);
        if (!b) return tni_pending();
        int64_t x = size ? (int64_t)tni_little(b, size) : instructions[code].x;
        tn_status status = instructions[code].run(p, x);
        if (status != TN_OK) return status;
    }
    p->here = n;
    return bad(p, "%s", "the pickle ends without STOP");
}

void tni_pickle_free(tni_pickle *p)
{
    tni_pickle_table *all[] = { &p->stack,   &p->memo,  &p->members, &p->storages,
                                &p->tensors, &p->dicts, &p->pairs };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tni_room_free(&all[i]->data, &all[i]->capacity, all[i]->size);
}
