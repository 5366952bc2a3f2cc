/*
 * pickle.c - a stack machine for the pickles of state dicts: a table of the known instructions.
 *
 * Every instruction checks its operands: kinds, places, sizes. Each table has a limit, so a short
 * file cannot request much memory. Names and calls: pickle_call.c.
 */
#include <stdio.h>

#include "ext/pt/pickle.h"

enum {
    STACK_LIMIT = 4096, /* PyTorch's writer puts 1,000 pairs on it at a time */
    STRING_LIMIT = 4096
};

typedef tni_pickle_value value;

/* ---- tables ---------------------------------------------------------------------------------- */

void *tni_pickle_add(tni_pickle *p, tni_pickle_table *t, size_t size, int64_t limit,
                     const char *what)
{
    if (t->n >= limit) {
        tni_pickle_bad(p, "more than %" PRId64 " %s", limit, what);
        return NULL;
    }
    if (!tni_room(&t->data, &t->capacity, (size_t)t->n, 1, size)) return NULL;
    return (char *)t->data + (size_t)t->n++ * size;
}

static void release(tni_pickle_table *t, size_t size)
{
    tni_room_free(&t->data, &t->capacity, size);
    t->n = 0;
}

tn_status tni_pickle_push(tni_pickle *p, tni_pickle_kind kind, int64_t number, uint32_t n)
{
    value *v = tni_pickle_add(p, &p->stack, sizeof *v, STACK_LIMIT, "values on the stack");
    if (!v) return tni_pending();
    *v = (value){ kind, n, number };
    return TN_OK;
}

value *tni_pickle_last(tni_pickle *p, int64_t k)
{
    value *stack = p->stack.data;
    bool there = p->stack.n >= k;
    for (int64_t i = 1; there && i <= k; i++) there = stack[p->stack.n - i].kind != TNI_PICKLE_MARK;
    if (there) return stack + p->stack.n - k;
    tni_pickle_bad(p, "the stack has less than %" PRId64 " values", k);
    return NULL;
}

/* Values above the last mark; -1 + message. */
static int64_t above_mark(tni_pickle *p)
{
    const value *stack = p->stack.data;
    for (int64_t i = p->stack.n; i > 0; i--)
        if (stack[i - 1].kind == TNI_PICKLE_MARK) return p->stack.n - i;
    tni_pickle_bad(p, "%s", "no mark on the stack");
    return -1;
}

const unsigned char *tni_pickle_operand(tni_pickle *p, size_t n)
{
    if (n > p->n - p->at) {
        tni_pickle_bad(p, "an operand of %zu bytes with %zu left", n, p->n - p->at);
        return NULL;
    }
    p->at += n;
    return p->bytes + p->at - n;
}

static int64_t number(const unsigned char *at, size_t n)
{
    uint64_t x = 0;
    for (size_t i = n; i-- > 0;) x = x << 8 | at[i];
    return (int64_t)x;
}

bool tni_pickle_is_text(const tni_pickle *p, const value *v, const char *text)
{
    return v->kind == TNI_PICKLE_STRING && v->n == strlen(text) &&
           !memcmp(p->bytes + v->number, text, v->n);
}

/* ---- plain values ---------------------------------------------------------------------------- */

static tn_status proto(tni_pickle *p, int n)
{
    const unsigned char *b = tni_pickle_operand(p, (size_t)n);
    if (!b) return tni_pending();
    if (p->here != 0) return tni_pickle_bad(p, "%s", "PROTO after the beginning");
    if (b[0] != 2) return tni_pickle_bad(p, "pickle protocol %d: want 2, PyTorch's default", b[0]);
    return TN_OK;
}

static tn_status mark(tni_pickle *p, int n)
{
    return tni_pickle_push(p, TNI_PICKLE_MARK, 0, (uint32_t)n);
}

static tn_status boolean(tni_pickle *p, int n)
{
    return tni_pickle_push(p, TNI_PICKLE_BOOL, n, 0);
}

static tn_status integer(tni_pickle *p, int n)
{
    const unsigned char *b = tni_pickle_operand(p, (size_t)n);
    if (!b) return tni_pending();
    int64_t x = number(b, (size_t)n);
    return tni_pickle_push(p, TNI_PICKLE_INT, n == 4 ? (int32_t)x : x,
                           0); /* only that of 4 bytes has a sign */
}

/* Two's complement of any length; up to 8 bytes here. */
static tn_status long_integer(tni_pickle *p, int n)
{
    const unsigned char *b = tni_pickle_operand(p, (size_t)n);
    size_t length = b ? b[0] : 0;
    b = b ? tni_pickle_operand(p, length) : NULL;
    if (!b) return tni_pending();
    if (length > 8)
        return tni_pickle_bad(p, "an integer of %zu bytes: at most 8 are possible", length);
    uint64_t x = (uint64_t)number(b, length);
    if (length > 0 && length < 8 && b[length - 1] & 0x80) x |= ~UINT64_C(0) << (8 * length);
    return tni_pickle_push(p, TNI_PICKLE_INT, (int64_t)x, 0);
}

static tn_status string(tni_pickle *p, int n)
{
    const unsigned char *b = tni_pickle_operand(p, (size_t)n);
    if (!b) return tni_pending();
    size_t length = (size_t)number(b, (size_t)n);
    if (length > STRING_LIMIT)
        return tni_pickle_bad(p, "a string of %zu bytes: at most %d are possible", length,
                              STRING_LIMIT);
    if (!tni_pickle_operand(p, length)) return tni_pending();
    return tni_pickle_push(p, TNI_PICKLE_STRING, (int64_t)(p->at - length), (uint32_t)length);
}

/* ---- the memo: values under the numbers 0, 1, ... -------------------------------------------- */

static tn_status put(tni_pickle *p, int n)
{
    const unsigned char *b = tni_pickle_operand(p, (size_t)n);
    const value *top = b ? tni_pickle_last(p, 1) : NULL;
    if (!top) return tni_pending();
    int64_t i = number(b, (size_t)n);
    if (i > p->memo.n)
        return tni_pickle_bad(p, "memo %" PRId64 ": %" PRId64 " would be the next", i, p->memo.n);
    value *cell = i < p->memo.n ? (value *)p->memo.data + i
                                : tni_pickle_add(p, &p->memo, sizeof *cell, p->max_values,
                                                 "values in the memo");
    if (!cell) return tni_pending();
    *cell = *top;
    return TN_OK;
}

static tn_status get(tni_pickle *p, int n)
{
    const unsigned char *b = tni_pickle_operand(p, (size_t)n);
    if (!b) return tni_pending();
    int64_t i = number(b, (size_t)n);
    if (i >= p->memo.n)
        return tni_pickle_bad(p, "memo %" PRId64 ": only %" PRId64 " are set", i, p->memo.n);
    value v = ((value *)p->memo.data)[i];
    return tni_pickle_push(p, v.kind, v.number, v.n);
}

/* ---- tuples and dicts ------------------------------------------------------------------------ */

/* Makes n values a tuple; n < 0: those above the mark. */
static tn_status tuple(tni_pickle *p, int n)
{
    int64_t k = n < 0 ? above_mark(p) : n;
    if (k < 0) return tni_pending();
    int64_t first = p->members.n;
    const value *v = tni_pickle_last(p, k);
    if (!v) return tni_pending();
    for (int64_t i = 0; i < k; i++) {
        value *member =
            tni_pickle_add(p, &p->members, sizeof *member, p->max_values, "values in tuples");
        if (!member) return tni_pending();
        *member = v[i];
    }
    p->stack.n -= k + (n < 0);
    return tni_pickle_push(p, TNI_PICKLE_TUPLE, first, (uint32_t)k);
}

tn_status tni_pickle_dict_new(tni_pickle *p, int ordered)
{
    tni_pickle_dict *d = tni_pickle_add(p, &p->dicts, sizeof *d, p->max_values, "dicts");
    if (!d) return tni_pending();
    *d = (tni_pickle_dict){ .ordered = ordered != 0, .attribute = -1 };
    return tni_pickle_push(p, TNI_PICKLE_DICT, p->dicts.n - 1, 0);
}

tni_pickle_dict *tni_pickle_dict_of(const tni_pickle *p, const value *v)
{
    return (tni_pickle_dict *)p->dicts.data + v->number;
}

/* Puts n values, key before value, into the dict below them; n < 0: those above the mark. */
static tn_status set_items(tni_pickle *p, int n)
{
    int64_t k = n < 0 ? above_mark(p) : n;
    if (k < 0) return tni_pending();
    int64_t below = p->stack.n - k - (n < 0);
    const value *v = tni_pickle_last(p, k);
    if (!v) return tni_pending();
    if (k % 2) return tni_pickle_bad(p, "%s", "a key without a value");
    const value *target = below > 0 ? (value *)p->stack.data + below - 1 : NULL;
    if (!target || target->kind != TNI_PICKLE_DICT)
        return tni_pickle_bad(p, "%s", "items for something other than a dict: " TNI_PICKLE_WANTED);
    for (int64_t i = 0; i < k; i += 2) {
        if (v[i].kind != TNI_PICKLE_STRING)
            return tni_pickle_bad(
                p, "%s", "a key is not a string, as in an optimizer's state: " TNI_PICKLE_WANTED);
        tni_pickle_pair *pair =
            tni_pickle_add(p, &p->pairs, sizeof *pair, p->max_values, "items in dicts");
        if (!pair) return tni_pending();
        *pair = (tni_pickle_pair){ target->number, v[i], v[i + 1] };
        tni_pickle_dict *d = tni_pickle_dict_of(p, target);
        d->n++;
        if (tni_pickle_is_text(p, &v[i], "version") && v[i + 1].kind == TNI_PICKLE_INT)
            d->version = v[i + 1].number;
    }
    p->stack.n = below;
    return TN_OK;
}

/* Attributes of an object: of an OrderedDict, once, the one named _metadata. */
static tn_status build(tni_pickle *p, int n)
{
    const value *v = tni_pickle_last(p, n);
    if (!v) return tni_pending();
    if (v[0].kind != TNI_PICKLE_DICT || v[1].kind != TNI_PICKLE_DICT || p->built ||
        !tni_pickle_dict_of(p, &v[0])->ordered || tni_pickle_dict_of(p, &v[1])->n != 1)
        return tni_pickle_bad(
            p, "%s", "BUILD of something other than a state dict's _metadata: " TNI_PICKLE_WANTED);
    p->built = true;
    const tni_pickle_pair *pair = p->pairs.data;
    while (pair->dict != v[1].number) pair++; /* it has one */
    if (!tni_pickle_is_text(p, &pair->key, "_metadata") || pair->value.kind != TNI_PICKLE_DICT)
        return tni_pickle_bad(
            p, "%s", "BUILD of something other than a state dict's _metadata: " TNI_PICKLE_WANTED);
    tni_pickle_dict_of(p, &v[0])->attribute = pair->value.number;
    p->stack.n--;
    return TN_OK;
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* Instructions by their byte: the function, and its number (of operand bytes, or of values taken).
 * The others have only a name, for the message. */
static const struct {
    const char *name;
    tn_status (*run)(tni_pickle *p, int n);
    int n;
} instructions[256] = {
    [0x80] = { "PROTO", proto, 1 },
    ['('] = { "MARK", mark, 0 },
    [0x88] = { "NEWTRUE", boolean, 1 },
    [0x89] = { "NEWFALSE", boolean, 0 },
    ['K'] = { "BININT1", integer, 1 },
    ['M'] = { "BININT2", integer, 2 },
    ['J'] = { "BININT", integer, 4 },
    [0x8a] = { "LONG1", long_integer, 1 },
    ['X'] = { "BINUNICODE", string, 4 },
    ['q'] = { "BINPUT", put, 1 },
    ['r'] = { "LONG_BINPUT", put, 4 },
    ['h'] = { "BINGET", get, 1 },
    ['j'] = { "LONG_BINGET", get, 4 },
    [')'] = { "EMPTY_TUPLE", tuple, 0 },
    [0x85] = { "TUPLE1", tuple, 1 },
    [0x86] = { "TUPLE2", tuple, 2 },
    [0x87] = { "TUPLE3", tuple, 3 },
    ['t'] = { "TUPLE", tuple, -1 },
    ['}'] = { "EMPTY_DICT", tni_pickle_dict_new, 0 },
    ['s'] = { "SETITEM", set_items, 2 },
    ['u'] = { "SETITEMS", set_items, -1 },
    ['b'] = { "BUILD", build, 2 },
    ['c'] = { "GLOBAL", tni_pickle_global, 0 },
    ['Q'] = { "BINPERSID", tni_pickle_persistent_id, 1 },
    ['R'] = { "REDUCE", tni_pickle_reduce, 2 },
    ['i'] = { "INST", NULL, 0 },
    ['o'] = { "OBJ", NULL, 0 },
    [0x81] = { "NEWOBJ", NULL, 0 },
    [0x92] = { "NEWOBJ_EX", NULL, 0 },
    [0x93] = { "STACK_GLOBAL", NULL, 0 },
    [0x82] = { "EXT1", NULL, 0 },
    [0x83] = { "EXT2", NULL, 0 },
    [0x84] = { "EXT4", NULL, 0 },
    ['P'] = { "PERSID", NULL, 0 },
    ['N'] = { "NONE", NULL, 0 },
    ['G'] = { "BINFLOAT", NULL, 0 },
    [']'] = { "EMPTY_LIST", NULL, 0 },
    ['a'] = { "APPEND", NULL, 0 },
    ['e'] = { "APPENDS", NULL, 0 },
    ['l'] = { "LIST", NULL, 0 },
    ['d'] = { "DICT", NULL, 0 },
    [0x8f] = { "EMPTY_SET", NULL, 0 },
    ['0'] = { "POP", NULL, 0 },
    ['1'] = { "POP_MARK", NULL, 0 },
    ['2'] = { "DUP", NULL, 0 },
    ['I'] = { "INT", NULL, 0 },
    ['L'] = { "LONG", NULL, 0 },
    ['F'] = { "FLOAT", NULL, 0 },
    ['S'] = { "STRING", NULL, 0 },
    ['U'] = { "SHORT_BINSTRING", NULL, 0 },
    ['T'] = { "BINSTRING", NULL, 0 },
    ['V'] = { "UNICODE", NULL, 0 },
    [0x8c] = { "SHORT_BINUNICODE", NULL, 0 },
    [0x8b] = { "LONG4", NULL, 0 },
    ['B'] = { "BINBYTES", NULL, 0 },
    ['C'] = { "SHORT_BINBYTES", NULL, 0 },
    ['p'] = { "PUT", NULL, 0 },
    ['g'] = { "GET", NULL, 0 },
    [0x94] = { "MEMOIZE", NULL, 0 },
    [0x95] = { "FRAME", NULL, 0 },
};

/* What an instruction without a function would put among the tensors; NULL: nothing. */
static const char *plain(unsigned char code)
{
    if (code == 'G' || code == 'F') return "a floating number";
    if (code == 'N') return "None";
    return code == ']' || code == 'l' ? "a list" : NULL;
}

static tn_status unknown(tni_pickle *p, unsigned char code)
{
    if (plain(code))
        return tni_pickle_bad(p,
                              "%s beside the tensors, as in a checkpoint of several parts: want a "
                              "state dict alone, torch.save(model.state_dict(), path)",
                              plain(code));
    return tni_pickle_bad(p, "instruction %s (0x%02x): " TNI_PICKLE_WANTED,
                          instructions[code].name ? instructions[code].name : "unknown", code);
}

static tn_status stop(tni_pickle *p)
{
    const value *v = p->stack.data;
    if (p->stack.n != 1 || v->kind != TNI_PICKLE_DICT)
        return tni_pickle_bad(p, "%s", "the result is not a dict: " TNI_PICKLE_WANTED);
    if (p->at != p->n) return tni_pickle_bad(p, "%zu bytes follow STOP", p->n - p->at);
    p->root = v->number;
    return TN_OK;
}

tn_status tni_pickle_read(tni_pickle *p, const tni_input *in, const unsigned char *bytes, size_t n,
                          int64_t max_tensors)
{
    *p = (tni_pickle){ .in = in, .bytes = bytes, .n = n, .max_tensors = max_tensors };
    p->max_values = TNI_MIN(max_tensors, INT32_MAX) * 32 + STACK_LIMIT; /* 28 a tensor are usual */
    if (!tni_pickle_add(p, &p->stack, sizeof(value), STACK_LIMIT, "")) return tni_pending();
    p->stack.n = 0;
    while (p->at < n) {
        p->here = p->at;
        unsigned char code = bytes[p->at++];
        if (code == '.') return stop(p);
        if (!instructions[code].run) return unknown(p, code);
        tn_status status = instructions[code].run(p, instructions[code].n);
        if (status != TN_OK) return status;
    }
    p->here = n;
    return tni_pickle_bad(p, "%s", "the pickle ends without STOP");
}

void tni_pickle_free(tni_pickle *p)
{
    release(&p->stack, sizeof(value));
    release(&p->memo, sizeof(value));
    release(&p->members, sizeof(value));
    release(&p->storages, sizeof(tni_pickle_storage));
    release(&p->tensors, sizeof(tni_pickle_tensor));
    release(&p->dicts, sizeof(tni_pickle_dict));
    release(&p->pairs, sizeof(tni_pickle_pair));
}
