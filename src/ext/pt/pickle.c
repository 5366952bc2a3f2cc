/*
 * pickle.c - a stack machine for the pickles of PyTorch's files: a table of the known instructions.
 *
 * Every instruction checks its operands: kinds, places, sizes. Each table has a limit, so a short
 * file cannot request much memory. The names that may be called are in a table below; torch's
 * storages (torch.FloatStorage) are only named, in the persistent id of a storage:
 * ("storage", TYPE, KEY, LOCATION, NUMEL).
 */
#include "ext/pt/pickle.h"
#include "ext/pt/zip.h"

/* TN_E_FORMAT with the place of the current instruction. */
#define bad(p, format, ...)                                                                        \
    tni_input_bad((p)->in, "%s, byte %zu: " format, (p)->name, (p)->here, __VA_ARGS__)
#define WANTED                                                                                     \
    "only what torch.load(path, weights_only=True) reads is read, and nothing is executed"

enum { NAME_LIMIT = 256 }; /* of a module or class */

typedef tni_pickle_value value;

/* ---- tables ---------------------------------------------------------------------------------- */

/* One more element, of t->size bytes; a message beyond the limit. */
static tn_status add(tni_pickle *p, tni_pickle_table *t, const void *element, int64_t limit,
                     const char *what)
{
    if (t->n >= limit) return bad(p, "more than %" PRId64 " %s", limit, what);
    if (!tni_room(&t->data, &t->capacity, (size_t)t->n, 1, t->size)) return tni_pending();
    memcpy((char *)t->data + (size_t)t->n++ * t->size, element, t->size);
    return TN_OK;
}

static tn_status push(tni_pickle *p, tni_pickle_kind kind, int64_t number, uint32_t n)
{
    return add(p, &p->stack, &(value){ kind, n, number }, p->max_values, "values on the stack");
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

bool tni_pickle_is(const tni_pickle *p, const value *v, const char *text)
{
    return v->kind == TNI_PICKLE_STRING && v->n == strlen(text) &&
           !memcmp(p->bytes + v->number, text, v->n);
}

/* ---- plain values ---------------------------------------------------------------------------- */

static tn_status proto(tni_pickle *p, int64_t version)
{
    if (version != 2 && version != 3)
        return bad(p, "pickle protocol %" PRId64 ": want 2 or 3", version);
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
PUSHES(none, TNI_PICKLE_NONE)

/* Big-endian. */
static tn_status floating(tni_pickle *p, int64_t x)
{
    return push(p, TNI_PICKLE_FLOAT, (int64_t)__builtin_bswap64((uint64_t)x), 0);
}

/* Of the integers with a fixed length, only that of 4 bytes has a sign. */
static tn_status signed_integer(tni_pickle *p, int64_t x)
{
    return integer(p, (int32_t)x);
}

/* Two's complement of any length; of more than 8 bytes, of no use here. */
static tn_status long_integer(tni_pickle *p, int64_t n)
{
    const unsigned char *b = operand(p, (size_t)n);
    if (!b) return tni_pending();
    if (n > 8) return push(p, TNI_PICKLE_OTHER, 0, 0);
    uint64_t x = tni_little(b, (int)n);
    if (n > 0 && n < 8 && b[n - 1] & 0x80) x |= ~UINT64_C(0) << (8 * n);
    return integer(p, (int64_t)x);
}

static tn_status string(tni_pickle *p, int64_t n)
{
    if (!operand(p, (size_t)n)) return tni_pending();
    return push(p, TNI_PICKLE_STRING, (int64_t)p->at - n, (uint32_t)n);
}

/* ---- the memo: values under the numbers 0, 1, ...; Python 2 began with 1 --------------------- */

static tn_status put(tni_pickle *p, int64_t i)
{
    const value *top = last(p, 1);
    if (!top) return tni_pending();
    if (i > p->memo.n + 1)
        return bad(p, "memo %" PRId64 ": %" PRId64 " would be the next", i, p->memo.n);
    while (p->memo.n <= i)
        TNI_TRY(add(p, &p->memo, &(value){ .kind = TNI_PICKLE_MARK }, p->max_values,
                    "values in the memo"));
    ((value *)p->memo.data)[i] = *top;
    return TN_OK;
}

static tn_status get(tni_pickle *p, int64_t i)
{
    const value *v = i < p->memo.n ? (value *)p->memo.data + i : NULL;
    if (!v || v->kind == TNI_PICKLE_MARK) return bad(p, "memo %" PRId64 ": is not set", i);
    return push(p, v->kind, v->number, v->n);
}

/* ---- tuples and dicts ------------------------------------------------------------------------ */

/* Makes n values a tuple; n < 0: those above the mark. */
static tn_status tuple(tni_pickle *p, int64_t n)
{
    int64_t k = n, first = p->members.n;
    const value *v = several(p, &k);
    if (!v) return tni_pending();
    for (int64_t i = 0; i < k; i++)
        TNI_TRY(add(p, &p->members, &v[i], p->max_values, "values in tuples"));
    p->stack.n -= k + (n < 0);
    return push(p, TNI_PICKLE_TUPLE, first, (uint32_t)k);
}

enum { PLAIN, ORDERED, LIST, OBJECT };

static tn_status dict_new(tni_pickle *p, int64_t form)
{
    tni_pickle_dict d = { .ordered = form == ORDERED, .list = form == LIST };
    d.object = form == OBJECT;
    d.first = d.last = d.under = d.attribute = -1;
    TNI_TRY(add(p, &p->dicts, &d, p->max_values, "dicts"));
    return push(p, TNI_PICKLE_DICT, p->dicts.n - 1, 0);
}

const value *tni_pickle_get(const tni_pickle *p, const value *v, const char *key)
{
    if (v->kind != TNI_PICKLE_DICT) return NULL;
    const tni_pickle_pair *pairs = p->pairs.data;
    for (int64_t i = tni_pickle_dict_of(p, v)->first; i >= 0; i = pairs[i].next)
        if (tni_pickle_is(p, &pairs[i].key, key)) return &pairs[i].value;
    return NULL;
}

static tn_status set_item(tni_pickle *p, int64_t dict, value key, value item)
{
    const tni_pickle_pair pair = { -1, key, item };
    TNI_TRY(add(p, &p->pairs, &pair, p->max_values, "items in dicts"));
    tni_pickle_dict *d = (tni_pickle_dict *)p->dicts.data + dict;
    int64_t *link = d->n++ ? &((tni_pickle_pair *)p->pairs.data)[d->last].next : &d->first;
    *link = d->last = p->pairs.n - 1;
    if (tni_pickle_is(p, &key, "version") && item.kind == TNI_PICKLE_INT) d->version = item.number;
    if (tni_pickle_is(p, &key, "_metadata") && item.kind == TNI_PICKLE_DICT) d->under = item.number;
    return TN_OK;
}

/* The dict or list below the top k values and, with is_marked, their mark; NULL + message. */
static tni_pickle_dict *target_of(tni_pickle *p, int64_t k, bool is_marked, bool list)
{
    int64_t below = p->stack.n - k - is_marked;
    const value *v = below > 0 ? (value *)p->stack.data + below - 1 : NULL;
    tni_pickle_dict *d = v && v->kind == TNI_PICKLE_DICT ? tni_pickle_dict_of(p, v) : NULL;
    if (d && !d->object && d->list == list) return d;
    return bad(p, "items for something other than a %s: " WANTED, list ? "list" : "dict"), NULL;
}

/* Puts key and value into the dict below (n 2), a value into the list (1); -n: all from the mark */
static tn_status add_items(tni_pickle *p, int64_t n)
{
    const int64_t step = n < 0 ? -n : n;
    const bool list = step == 1;
    int64_t k = n;
    const value *v = several(p, &k);
    if (v && k % step) return bad(p, "%s", "a key without a value");
    const tni_pickle_dict *d = v ? target_of(p, k, n < 0, list) : NULL;
    if (!d) return tni_pending();
    const int64_t which = d - (tni_pickle_dict *)p->dicts.data, before = d->n;
    for (int64_t i = 0; i < k; i += step) {
        const value place = { TNI_PICKLE_INT, 0, before + i };
        TNI_TRY(set_item(p, which, list ? place : v[i], v[i + step - 1]));
    }
    p->stack.n -= k + (n < 0);
    return TN_OK;
}

/* Attributes of an object: of an OrderedDict, only _metadata counts. */
static tn_status build(tni_pickle *p, int64_t n)
{
    const value *v = last(p, n);
    if (!v) return tni_pending();
    tni_pickle_dict *d = v[0].kind == TNI_PICKLE_DICT ? tni_pickle_dict_of(p, &v[0]) : NULL;
    const bool attributes = v[1].kind == TNI_PICKLE_DICT && !tni_pickle_dict_of(p, &v[1])->list;
    if (!d || !(d->object || (d->ordered && attributes)))
        return bad(p, "%s", "BUILD of something other than an OrderedDict: " WANTED);
    const tni_pickle_dict *from = attributes ? tni_pickle_dict_of(p, &v[1]) : NULL;
    if (d->object && from)
        d->n = from->n, d->first = from->first, d->last = from->last;
    else if (from && from->under >= 0)
        d->attribute = from->under;
    p->stack.n--;
    return TN_OK;
}

/* ---- names and calls ------------------------------------------------------------------------- */

/* Limit on the elements of an expanded tensor (strides of 0): tiny in the file, large as a copy. */
enum { EXPANDED_LIMIT = 1 << 20 };

/* What a name stands for: */
enum {
    ORDERED_DICT,
    COUNTER,
    TUPLE,     /* called with one value: that value */
    OTHER,     /* called or not: of no use here */
    PARAMETER, /* called with (tensor, ...): the tensor */
    TENSOR,    /* _rebuild_tensor (n 4), _v2 (6) and _v3 (7) */
    FOREIGN,   /* tensors of other kinds */
    FROM_TYPE, /* of a subclass: (function, TYPE, arguments, state) */
    CLASS,     /* of a TorchScript archive's own */
    STORAGE
};

static const struct {
    const char *name; /* "MODULE\nNAME\n" */
    int what;
    uint32_t n;       /* of arguments */
    const char *kind; /* of tensor */
} globals[] = {
    { "collections\nOrderedDict\n", ORDERED_DICT, 0, NULL },
    { "collections\nCounter\n", COUNTER, 1, NULL },
    { "torch\nSize\n", TUPLE, 1, NULL },
    { "torch.jit._pickle\nbuild_intlist\n", TUPLE, 1, NULL },
    { "torch.jit._pickle\nbuild_doublelist\n", TUPLE, 1, NULL },
    { "torch.jit._pickle\nbuild_boollist\n", TUPLE, 1, NULL },
    { "torch.jit._pickle\nbuild_tensorlist\n", TUPLE, 1, NULL },
    { "torch.jit._pickle\nrestore_type_tag\n", PARAMETER, 2, NULL },
    { "torch\ndevice\n", OTHER, 0, NULL },
    { "torch\nTensor\n", OTHER, 0, NULL },
    { "torch\nper_tensor_affine\n", OTHER, 0, NULL },
    { "torch\nper_channel_affine\n", OTHER, 0, NULL },
    { "torch.serialization\n_get_layout\n", OTHER, 0, NULL },
    { "_codecs\nencode\n", OTHER, 0, NULL },
    { "builtins\nbytearray\n", OTHER, 0, NULL },
    { "builtins\nset\n", OTHER, 0, NULL },
    { "builtins\ncomplex\n", OTHER, 0, NULL },
    { "__builtin__\nbytearray\n", OTHER, 0, NULL },
    { "__builtin__\nset\n", OTHER, 0, NULL },
    { "__builtin__\ncomplex\n", OTHER, 0, NULL },
    { "torch.nn.parameter\nParameter\n", PARAMETER, 0, NULL },
    { "torch._utils\n_rebuild_parameter\n", PARAMETER, 3, NULL },
    { "torch._utils\n_rebuild_parameter_with_state\n", PARAMETER, 4, NULL },
    { "torch._utils\n_rebuild_tensor\n", TENSOR, 4, NULL },
    { "torch._utils\n_rebuild_tensor_v2\n", TENSOR, 6, NULL },
    { "torch._utils\n_rebuild_tensor_v3\n", TENSOR, 7, NULL },
    { "torch._utils\n_rebuild_qtensor\n", FOREIGN, 0, "quantized" },
    { "torch._utils\n_rebuild_sparse_tensor\n", FOREIGN, 0, "sparse" },
    { "torch._utils\n_rebuild_meta_tensor_no_storage\n", FOREIGN, 0, "without values" },
    { "torch._utils\n_rebuild_wrapper_subclass\n", FOREIGN, 0, "of a subclass" },
    { "torch._utils\n_rebuild_device_tensor_from_numpy\n", FOREIGN, 0, "of a device" },
    { "torch._utils\n_rebuild_device_tensor_from_cpu_tensor\n", FOREIGN, 0, "of a device" },
    { "torch._tensor\n_rebuild_from_type_v2\n", FROM_TYPE, 4, NULL },
    { "torch\nUntypedStorage\n", STORAGE, 0, NULL },
    { "torch.storage\nUntypedStorage\n", STORAGE, 0, NULL },
};
enum { N_GLOBALS = sizeof globals / sizeof *globals };
/* Of kind GLOBAL: a place there; from TYPES on a dtype, STORAGES its storage; SCRIPT: a class. */
enum { TYPES = 1000, STORAGES = 2000, SCRIPT = 3000 };

static int what_of(const value *v)
{
    return v->number >= SCRIPT     ? CLASS
           : v->number >= STORAGES ? STORAGE
           : v->number >= TYPES    ? OTHER
                                   : globals[v->number].what;
}

/* The dtype that a value names; NULL: none. */
static const tni_file_dtype *dtype_of(const value *v)
{
    if (v->kind != TNI_PICKLE_GLOBAL || v->number < TYPES || v->number >= SCRIPT) return NULL;
    return tni_file_dtype_at((int)(v->number % TYPES));
}

/* Bytes of a line with its end; 0 when it does not end. */
static size_t line(const tni_pickle *p, size_t at)
{
    const unsigned char *end = memchr(p->bytes + at, '\n', p->n - at);
    return end ? (size_t)(end - (p->bytes + at)) + 1 : 0;
}

/* The number of "torch\nFloatStorage\n" or "torch\nfloat32\n"; -1: another name. */
static int torch_name(const char *text, size_t n)
{
    char name[NAME_LIMIT];
    const tni_file_dtype *d;
    for (int i = 0; (d = tni_file_dtype_at(i)); i++) {
        snprintf(name, sizeof name, "torch\n%sStorage\n", d->storage ? d->storage : "");
        if (d->storage && strlen(name) == n && !memcmp(name, text, n)) return STORAGES + i;
        snprintf(name, sizeof name, "torch\n%s\n", d->name ? d->name : "");
        if (d->name && strlen(name) == n && !memcmp(name, text, n)) return TYPES + i;
    }
    return -1;
}

static tn_status global(tni_pickle *p, int64_t n)
{
    size_t module = line(p, p->at), name = module ? line(p, p->at + module) : 0;
    if (!name) return bad(p, "%s", "GLOBAL without two lines");
    const char *text = (const char *)operand(p, module + name);
    int64_t which = torch_name(text, module + name);
    for (int i = 0; which < 0 && i < N_GLOBALS; i++)
        if (strlen(globals[i].name) == module + name &&
            !memcmp(globals[i].name, text, module + name))
            which = i;
    if (which < 0 && p->script && !strncmp(text, "__torch__", 9)) which = SCRIPT;
    if (which >= 0) return push(p, TNI_PICKLE_GLOBAL, which, (uint32_t)n);
    int m = (int)TNI_MIN(module - 1, 64), k = (int)TNI_MIN(name - 1, 64);
    return bad(p, "the global %.*s.%.*s: " WANTED, m, text, k, text + module);
}

static bool is_hooks(const tni_pickle *p, const value *v)
{
    return v->kind == TNI_PICKLE_NONE ||
           (v->kind == TNI_PICKLE_DICT && tni_pickle_dict_of(p, v)->n == 0);
}

/* A view of a storage in files of before PyTorch 0.4: (KEY, OFFSET, NUMEL) behind the id. */
static bool view_of(const tni_pickle *p, const value *v, tni_pickle_storage *s)
{
    if (v->kind == TNI_PICKLE_NONE) return true;
    const value *part = v->kind == TNI_PICKLE_TUPLE && v->n == 3 ? tni_pickle_members(p, v) : NULL;
    if (!part || part[1].kind != TNI_PICKLE_INT || part[2].kind != TNI_PICKLE_INT) return false;
    s->begin = part[1].number;
    return s->begin >= 0 && part[2].number >= 0 &&
           !__builtin_add_overflow(s->begin, part[2].number, &s->end) && s->end <= s->numel;
}

/* A storage's persistent id. The location (its old device) is ignored: it is read to the CPU. */
static tn_status persistent_id(tni_pickle *p, int64_t n)
{
    const value *v = last(p, n);
    if (!v) return tni_pending();
    const value *id =
        v->kind == TNI_PICKLE_TUPLE && (v->n == 5 || v->n == 6) ? tni_pickle_members(p, v) : NULL;
    if (!id || !tni_pickle_is(p, &id[0], "storage") || id[1].kind != TNI_PICKLE_GLOBAL ||
        what_of(&id[1]) != STORAGE || id[2].kind != TNI_PICKLE_STRING ||
        id[3].kind != TNI_PICKLE_STRING || id[4].kind != TNI_PICKLE_INT || id[4].number < 0)
        return bad(p, "%s", "a persistent id other than (\"storage\", TYPE, KEY, LOCATION, NUMEL)");
    tni_pickle_storage s = { .dtype = dtype_of(&id[1]), .numel = id[4].number };
    s.end = s.numel;
    const char *key = (const char *)p->bytes + id[2].number;
    bool digits = id[2].n > 0 && id[2].n < sizeof s.key;
    for (uint32_t i = 0; digits && i < id[2].n; i++) digits = key[i] >= '0' && key[i] <= '9';
    if (!digits)
        return bad(p, "the storage key \"%.*s\": want digits", (int)TNI_MIN(id[2].n, 64), key);
    memcpy(s.key, key, id[2].n);
    if (v->n == 6 && !view_of(p, &id[5], &s))
        return bad(p, "the storage %s: a view other than (KEY, OFFSET, NUMEL) within it", s.key);
    TNI_TRY(add(p, &p->storages, &s, p->max_tensors, "storages"));
    p->stack.n--;
    return push(p, TNI_PICKLE_STORAGE, p->storages.n - 1, 0);
}

/* Whether all that shape and stride reach from offset is in the storage. */
static bool inside(const tni_pickle_tensor *t, const tni_pickle_storage *s)
{
    const int64_t n = tni_shape_numel(&t->shape), size = TNI_MAX(t->dtype->bits / 8, 1);
    int64_t nbytes, step, end = t->offset;
    if (n < 0 || __builtin_mul_overflow(n, size, &nbytes)) return false;
    for (int i = 0; n > 0 && i < t->shape.rank; i++)
        if (__builtin_mul_overflow(t->shape.size[i] - 1, t->stride[i], &step) ||
            __builtin_add_overflow(end, step, &end))
            return false;
    const int64_t limit = s->dtype ? s->end : s->end / size;
    return n > 0 ? end < limit : end <= limit;
}

/* Puts a tensor in the place of a function and its arguments. */
static tn_status put_tensor(tni_pickle *p, const tni_pickle_tensor *t)
{
    TNI_TRY(add(p, &p->tensors, t, p->max_tensors, "tensors"));
    p->stack.n -= 2;
    return push(p, TNI_PICKLE_TENSOR, p->tensors.n - 1, 0);
}

/* (storage, offset, size, stride[, requires_grad, hooks[, dtype or metadata]]) */
static tn_status rebuild_tensor(tni_pickle *p, const value *a, uint32_t n, uint32_t wanted)
{
    const bool more = wanted == 6 && n == 7; /* metadata */
    if ((n != wanted && !more) || a[0].kind != TNI_PICKLE_STORAGE || a[1].kind != TNI_PICKLE_INT ||
        a[2].kind != TNI_PICKLE_TUPLE || a[3].kind != TNI_PICKLE_TUPLE ||
        (n > 4 && (a[4].kind != TNI_PICKLE_BOOL || !is_hooks(p, &a[5]))))
        return bad(p, "%s",
                   "_rebuild_tensor of something other than (storage, offset, size, stride, "
                   "requires_grad, no hooks)");
    if (a[2].n > TN_MAX_RANK || a[3].n != a[2].n)
        return bad(p, "a tensor of %u sizes and %u strides: want as many, at most %d", a[2].n,
                   a[3].n, TN_MAX_RANK);
    const tni_pickle_storage *s = (tni_pickle_storage *)p->storages.data + a[0].number;
    tni_pickle_tensor t = { .storage = a[0].number,
                            .dtype = wanted == 7 ? dtype_of(&a[6]) : s->dtype,
                            .what = more ? "a conjugate or negative view" : NULL };
    if (!t.dtype || (s->dtype && t.dtype != s->dtype))
        return bad(p, "a tensor of the storage %s, whose dtype is not known", s->key);
    bool plain = a[1].number >= 0;
    t.offset = a[1].number;
    t.shape.rank = (int)a[2].n;
    for (int i = 0; i < t.shape.rank; i++) {
        const value *size = &tni_pickle_members(p, &a[2])[i],
                    *stride = &tni_pickle_members(p, &a[3])[i];
        plain = plain && size->kind == TNI_PICKLE_INT && size->number >= 0 &&
                stride->kind == TNI_PICKLE_INT && stride->number >= 0;
        t.shape.size[i] = size->number;
        t.stride[i] = stride->number;
    }
    if (!plain || __builtin_add_overflow(t.offset, s->begin, &t.offset))
        return bad(p, "%s", "a tensor's offset, size or stride is not an integer >= 0");
    if (!inside(&t, s))
        return bad(p, "a tensor %s at %" PRId64 ": outside its storage %s of %" PRId64 " elements",
                   tni_shape_text(&t.shape), t.offset, s->key, s->numel);
    if (tni_shape_numel(&t.shape) > TNI_MAX(s->numel, EXPANDED_LIMIT))
        return bad(p,
                   "a tensor %s of %" PRId64 " elements expanded: at most %d elements are possible",
                   tni_shape_text(&t.shape), s->numel, EXPANDED_LIMIT);
    return put_tensor(p, &t);
}

/* One that changes nothing: what it is called with takes its place. */
static tn_status first_of(tni_pickle *p, const value *a, uint32_t n)
{
    const value v = n ? a[0] : (value){ TNI_PICKLE_TUPLE, 0, 0 };
    p->stack.n -= 2;
    return push(p, v.kind, v.number, v.n);
}

/* A dict of nothing, as torch.save writes it, or of one list of [key, value], as Python 2 did. */
static tn_status ordered_dict(tni_pickle *p, const value *a, uint32_t n)
{
    const bool list = n == 1 && a[0].kind == TNI_PICKLE_DICT && tni_pickle_dict_of(p, &a[0])->list;
    if (n && !list) return bad(p, "%s", "OrderedDict with arguments: " WANTED);
    int64_t next = n ? tni_pickle_dict_of(p, &a[0])->first : -1;
    p->stack.n -= 2;
    TNI_TRY(dict_new(p, ORDERED));
    for (const int64_t dict = p->dicts.n - 1; next >= 0;) {
        const tni_pickle_pair *pairs = p->pairs.data;
        const value *two = &pairs[next].value;
        next = pairs[next].next;
        const tni_pickle_dict *d = two->kind == TNI_PICKLE_DICT ? tni_pickle_dict_of(p, two) : NULL;
        const bool tuple = two->kind == TNI_PICKLE_TUPLE && two->n == 2;
        if (!tuple && !(d && d->list && d->n == 2))
            return bad(p, "%s", "OrderedDict of something other than pairs: " WANTED);
        const value *of = tuple ? tni_pickle_members(p, two) : &pairs[d->first].value;
        TNI_TRY(set_item(p, dict, of[0], tuple ? of[1] : pairs[d->last].value));
    }
    return TN_OK;
}

/* The arguments of a call; *function and *arguments are the top of the stack or a tuple's. */
static tn_status call(tni_pickle *p, const value *function, const value *arguments, int depth)
{
    if (function->kind != TNI_PICKLE_GLOBAL || arguments->kind != TNI_PICKLE_TUPLE)
        return bad(p, "%s", "REDUCE of something other than a name and its arguments");
    const value *a = tni_pickle_members(p, arguments);
    const uint32_t n = arguments->n;
    const int what = what_of(function);
    const uint32_t wanted =
        what == CLASS || function->number >= TYPES ? 0 : globals[function->number].n;
    if (what == TENSOR) return rebuild_tensor(p, a, n, wanted);
    if (what == ORDERED_DICT) return ordered_dict(p, a, n);
    if (what == STORAGE) return bad(p, "%s", "a storage type is called: " WANTED);
    if ((wanted && n != wanted) || (what == PARAMETER && n == 0))
        return bad(p, "a call with %u arguments: want %u", n, TNI_MAX(wanted, 1U));
    switch (what) {
    case FOREIGN:
        return put_tensor(p, &(tni_pickle_tensor){ -1, .what = globals[function->number].kind });
    case FROM_TYPE:
        if (depth) return bad(p, "%s", "a subclass of a subclass: " WANTED);
        return call(p, &a[0], &a[2], depth + 1);
    case COUNTER:
    case TUPLE:
    case PARAMETER: return first_of(p, a, n);
    default:
        p->stack.n -= 2;
        return what == CLASS ? dict_new(p, OBJECT) : push(p, TNI_PICKLE_OTHER, 0, 0);
    }
}

/* made: by NEWOBJ, of what is a class. */
static tn_status reduce(tni_pickle *p, int64_t made)
{
    const value *v = last(p, 2);
    if (!v) return tni_pending();
    const int what = v[0].kind == TNI_PICKLE_GLOBAL ? what_of(&v[0]) : OTHER;
    if (made && what != CLASS && what != PARAMETER)
        return bad(p, "%s", "NEWOBJ of an unknown class: " WANTED);
    return call(p, &v[0], &v[1], 0);
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* Instructions by their byte: the function, its operand of so many bytes, or else the number x. */
static const struct {
    const char *name;
    tn_status (*run)(tni_pickle *p, int64_t x);
    int bytes, x;
} instructions[256] = {
    [0x80] = { "PROTO", proto, 1, 0 },           ['('] = { "MARK", mark, 0, 0 },
    [0x88] = { "NEWTRUE", boolean, 0, 1 },       [0x89] = { "NEWFALSE", boolean, 0, 0 },
    ['K'] = { "BININT1", integer, 1, 0 },        ['M'] = { "BININT2", integer, 2, 0 },
    ['J'] = { "BININT", signed_integer, 4, 0 },  [0x8a] = { "LONG1", long_integer, 1, 0 },
    ['X'] = { "BINUNICODE", string, 4, 0 },      ['q'] = { "BINPUT", put, 1, 0 },
    ['r'] = { "LONG_BINPUT", put, 4, 0 },        ['h'] = { "BINGET", get, 1, 0 },
    ['j'] = { "LONG_BINGET", get, 4, 0 },        [')'] = { "EMPTY_TUPLE", tuple, 0, 0 },
    [0x85] = { "TUPLE1", tuple, 0, 1 },          [0x86] = { "TUPLE2", tuple, 0, 2 },
    [0x87] = { "TUPLE3", tuple, 0, 3 },          ['t'] = { "TUPLE", tuple, 0, -1 },
    ['}'] = { "EMPTY_DICT", dict_new, 0, 0 },    ['s'] = { "SETITEM", add_items, 0, 2 },
    ['u'] = { "SETITEMS", add_items, 0, -2 },    ['b'] = { "BUILD", build, 0, 2 },
    ['c'] = { "GLOBAL", global, 0, 0 },          ['Q'] = { "BINPERSID", persistent_id, 0, 1 },
    ['R'] = { "REDUCE", reduce, 0, false },      ['N'] = { "NONE", none, 0, 0 },
    ['G'] = { "BINFLOAT", floating, 8, 0 },      [']'] = { "EMPTY_LIST", dict_new, 0, LIST },
    ['a'] = { "APPEND", add_items, 0, 1 },       ['e'] = { "APPENDS", add_items, 0, -1 },
    ['U'] = { "SHORT_BINSTRING", string, 1, 0 }, ['T'] = { "BINSTRING", string, 4, 0 },
    [0x81] = { "NEWOBJ", reduce, 0, true },
};

tn_status tni_pickle_read(tni_pickle *p, tni_pickle_value *result)
{
    const size_t begin = p->at;
    p->max_values = TNI_MIN(p->max_tensors, INT32_MAX) * 32 + 4096; /* 28 a tensor are usual */
    p->stack.size = p->memo.size = p->members.size = sizeof(value);
    p->storages.size = sizeof(tni_pickle_storage), p->tensors.size = sizeof(tni_pickle_tensor);
    p->dicts.size = sizeof(tni_pickle_dict), p->pairs.size = sizeof(tni_pickle_pair);
    if (!tni_room(&p->stack.data, &p->stack.capacity, 0, 1, sizeof(value))) return tni_pending();
    p->stack.n = p->memo.n = 0;
    while (p->at < p->n) {
        p->here = p->at;
        unsigned char code = p->bytes[p->at++];
        if (code == '.' && p->stack.n != 1)
            return bad(p, "%" PRId64 " values are left: want one", p->stack.n);
        if (code == '.') return *result = *(value *)p->stack.data, TN_OK;
        if (!instructions[code].run) return bad(p, "instruction 0x%02x: " WANTED, code);
        if (code == 0x80 && p->here != begin) return bad(p, "%s", "PROTO after the beginning");
        const int size = instructions[code].bytes;
        const unsigned char *b = operand(p, (size_t)size);
        if (!b) return tni_pending();
        int64_t x = size ? (int64_t)tni_little(b, size) : instructions[code].x;
        TNI_TRY(instructions[code].run(p, x));
    }
    p->here = p->n;
    return bad(p, "%s", "the pickle ends without STOP");
}

void tni_pickle_free(tni_pickle *p)
{
    tni_pickle_table *all[] = { &p->stack,   &p->memo,  &p->members, &p->storages,
                                &p->tensors, &p->dicts, &p->pairs };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tni_room_free(&all[i]->data, &all[i]->capacity, all[i]->size);
}
