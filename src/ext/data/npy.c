/*
 * npy.c - NumPy's files of one array.
 *
 * "\x93NUMPY", two bytes of version, the length of the header (16 bits, from version 2 on 32), the
 * header, the values. The header is a dict as Python writes it, of the three keys descr ("<f4"),
 * fortran_order and shape; spaces and a newline fill it up, so that the values begin at a multiple
 * of 64. Source: NumPy's NEP 1 and numpy.lib.format.
 */
#include <errno.h>

#include "ext/pt/zip.h"
#include "io/io.h"

#define MAGIC "\x93NUMPY"
#define MOST_HEADER 65535

typedef struct kind {
    char letter;
    int size; /* bytes of a value */
    const char *name;
    tn_dtype dtype; /* of the tensor */
} kind;

static const kind kinds[] = {
    { 'f', 4, "float32", TN_F32 }, { 'f', 8, "float64", TN_F64 }, { 'f', 2, "float16", TN_F16 },
    { 'i', 8, "int64", TN_I64 },   { 'i', 4, "int32", TN_I32 },   { 'u', 1, "uint8", TN_U8 },
    { 'b', 1, "bool", TN_BOOL },   { 'i', 1, "int8", TN_I32 },    { 'i', 2, "int16", TN_I32 },
    { 'u', 2, "uint16", TN_I32 },  { 'u', 4, "uint32", TN_I64 },
};

typedef struct header {
    const kind *kind;
    tn_shape shape;
    bool big, fortran;
    int64_t begin; /* of the values in the file */
    size_t nbytes; /* of the values */
} header;

/* ---- the header's text ----------------------------------------------------------------------- */

static void skip_blanks(const char **at)
{
    while (**at == ' ' || **at == '\t' || **at == '\n' || **at == '\r') ++*at;
}

/* Whether a word or sign is next, which is then passed. */
static bool passed(const char **at, const char *word)
{
    skip_blanks(at);
    const size_t n = strlen(word);
    if (strncmp(*at, word, n) != 0) return false;
    *at += n;
    return true;
}

/* A string in either quotes. */
static bool read_text(const char **at, char *text, size_t size)
{
    skip_blanks(at);
    const char quote = **at, *end = quote == '\'' || quote == '"' ? strchr(*at + 1, quote) : NULL;
    if (!end || (size_t)(end - *at) > size) return false;
    snprintf(text, size, "%.*s", (int)(end - *at - 1), *at + 1);
    *at = end + 1;
    return true;
}

static bool read_shape(const char **at, tn_shape *shape)
{
    if (!passed(at, "(")) return false;
    for (bool comma = true; !passed(at, ")"); comma = passed(at, ",")) {
        char *end;
        skip_blanks(at);
        if (!comma || **at < '0' || **at > '9' || shape->rank == TN_MAX_RANK) return false;
        errno = 0;
        shape->size[shape->rank++] = strtoll(*at, &end, 10);
        *at = end + (*end == 'L'); /* as Python 2 wrote them */
        if (errno) return false;
    }
    return true;
}

/* "<f4", "|u1", "=f8", "float32"; another order of bytes than this machine's is `big`. */
static bool read_kind(const char *text, header *h)
{
    h->big = *text == '>';
    if (*text && strchr("<>=|", *text)) text++;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char code[8];
        snprintf(code, sizeof code, "%c%d", kinds[i].letter, kinds[i].size);
        if (strcmp(text, code) == 0 || strcmp(text, kinds[i].name) == 0) h->kind = &kinds[i];
    }
    return h->kind != NULL;
}

static tn_status parse(const tni_input *in, const char *at, const char *end, header *h)
{
    char key[32], type[64] = "";
    unsigned seen = 0;
    bool fine = passed(&at, "{");
    while (fine && !passed(&at, "}")) {
        fine = read_text(&at, key, sizeof key) && passed(&at, ":");
        const unsigned bit = strcmp(key, "descr") == 0           ? 1
                             : strcmp(key, "fortran_order") == 0 ? 2
                             : strcmp(key, "shape") == 0         ? 4
                                                                 : 0;
        if (fine && (!bit || seen & bit))
            return tni_input_bad(
                in, "the header's key %s: want descr, fortran_order and shape, once", key);
        seen |= bit;
        if (fine && bit == 1 && passed(&at, "["))
            return tni_input_bad(in, "records of several fields: want one number for each value");
        if (fine && bit == 1) fine = read_text(&at, type, sizeof type);
        if (fine && bit == 2) fine = (h->fortran = passed(&at, "True")) || passed(&at, "False");
        if (fine && bit == 4) fine = read_shape(&at, &h->shape);
        if (fine && !passed(&at, ",")) {
            fine = passed(&at, "}");
            break;
        }
    }
    skip_blanks(&at);
    if (!fine || at != end || seen != 7)
        return tni_input_bad(in,
                             "the header is no dict of descr, fortran_order and a shape of 0 to %d "
                             "sizes",
                             TN_MAX_RANK);
    if (type[0] && strchr(type, 'O'))
        return tni_input_bad(in, "its values are Python objects: want numbers");
    if (!read_kind(type, h))
        return tni_input_bad(in, "dtype %s: want float16 to 64, int8 to 64, uint8 to 32 or bool",
                             type);
    return TN_OK;
}

static tn_status read_header(const tni_input *in, header *h)
{
    unsigned char b[12] = { 0 };
    const int64_t prefix = TNI_MIN(in->size, (int64_t)sizeof b);
    tn_status status = tni_input_read(in, 0, b, (size_t)prefix);
    if (status != TN_OK) return status;
    if (prefix < 10 || memcmp(b, MAGIC, 6) != 0)
        return tni_input_bad(in, b[0] == 'P' && b[1] == 'K'
                                     ? "an archive (.npz): want one array (.npy)"
                                     : "does not begin with \\x93NUMPY: want a .npy file");
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        return tni_input_bad(in, "version %d.%d: want 1.0, 2.0 or 3.0", b[6], b[7]);
    const int64_t n = (int64_t)tni_little(b + 8, b[6] > 1 ? 4 : 2);
    h->begin = (b[6] > 1 ? 12 : 10) + n;
    if (h->begin > in->size || n > MOST_HEADER)
        return tni_input_bad(in, "a header of %" PRId64 " bytes: want at most %d, within the file",
                             n, MOST_HEADER);
    char *text = tni_alloc((size_t)n + 1);
    if (!text) return TN_E_NOMEM;
    status = tni_input_read(in, h->begin - n, text, (size_t)n);
    text[n] = '\0';
    if (status == TN_OK) status = parse(in, text, text + n, h);
    tni_free(text, (size_t)n + 1);
    if (status != TN_OK) return status;
    const int64_t count = tni_shape_numel(&h->shape);
    if (count < 0 || !tni_mul_size((size_t)count, (size_t)h->kind->size, &h->nbytes) ||
        h->nbytes > INT64_MAX)
        return tni_input_bad(in, "%s: the sizes overflow", tni_shape_text(&h->shape));
    if ((int64_t)h->nbytes != in->size - h->begin)
        return tni_input_bad(
            in, "%s of %s are %zu bytes, the file has %" PRId64 " behind its header",
            tni_shape_text(&h->shape), h->kind->name, h->nbytes, in->size - h->begin);
    return TN_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* n values of the file to as many of the tensor's dtype; `from` lies at the end of `to`. */
static void convert(const header *h, const unsigned char *from, char *to, size_t n)
{
    const int size = h->kind->size, wide = (int)tn_dtype_size(h->kind->dtype);
    const bool is_signed = h->kind->letter == 'i', is_bool = h->kind->letter == 'b';
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        for (int k = 0; k < size; k++)
            bits |= (uint64_t)from[i * (size_t)size + (size_t)(h->big ? size - 1 - k : k)] << 8 * k;
        if (is_signed && size < wide && bits >> (8 * size - 1)) bits |= UINT64_MAX << 8 * size;
        if (is_bool) bits = bits != 0;
        memcpy(to + i * (size_t)wide, &bits, (size_t)wide);
    }
}

static tn_tensor *read_values(const tni_input *in, const header *h)
{
    tn_shape stored = h->shape;
    int order[TN_MAX_RANK];
    for (int i = 0; i < stored.rank; i++) {
        order[i] = stored.rank - 1 - i;
        if (h->fortran) stored.size[i] = h->shape.size[stored.rank - 1 - i];
    }
    tn_tensor *t = tn_empty_as(stored, h->kind->dtype, tn_cpu());
    if (!t) return NULL;
    const size_t n = h->nbytes / (size_t)h->kind->size, wide = tn_dtype_size(h->kind->dtype);
    char *to = tni_data(t);
    unsigned char *from = (unsigned char *)to + n * wide - h->nbytes;
    if (tni_input_read(in, h->begin, from, h->nbytes) != TN_OK) return NULL;
    if (h->big || (size_t)h->kind->size != wide || h->kind->dtype == TN_BOOL)
        convert(h, from, to, n);
    return h->fortran && stored.rank > 1 ? tn_contiguous(tn_permute(t, order, stored.rank)) : t;
}

tn_tensor *tn_npy_load(const char *path)
{
    tni_input in;
    header h = { 0 };
    if (tni_input_open(&in, "tn_npy_load", path) != TN_OK) return NULL;
    tn_scope scope = tn_scope_begin();
    bool was = tn_set_grad_enabled(false);
    tn_tensor *t = read_header(&in, &h) == TN_OK ? read_values(&in, &h) : NULL;
    tn_set_grad_enabled(was);
    tni_input_close(&in);
    return tn_scope_return(scope, t);
}

/* ---- writing --------------------------------------------------------------------------------- */

static tn_status write(const char *f, const tn_tensor *t, const kind *k, const char *path)
{
    char text[512];
    int n = snprintf(text, sizeof text, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                     k->size == 1 ? '|' : '<', k->letter, k->size);
    for (int i = 0; i < t->shape.rank; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%" PRId64 "%s", i ? " " : "",
                      t->shape.size[i], i < t->shape.rank - 1 || i == 0 ? "," : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    /* 128 bytes in all; NumPy's room for a first size that grows fits in there for 8 axes */
    while ((10 + n + 1) % 64) text[n++] = ' ';
    text[n++] = '\n';
    const unsigned char head[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)
    };
    const size_t nbytes = (size_t)tni_shape_numel(&t->shape) * (size_t)k->size;
    tni_atomic_file file;
    tn_status status = tni_file_create(&file, f, path, (int64_t)nbytes + 10 + n);
    if (status != TN_OK) return status;
    status = tni_file_write(&file, head, sizeof head);
    if (status == TN_OK) status = tni_file_write(&file, text, (size_t)n);
    if (status == TN_OK) status = tni_file_write(&file, tni_data(t), nbytes);
    if (status == TN_OK) return tni_file_finish(&file);
    tni_file_abandon(&file);
    return status;
}

tn_status tn_npy_save(tn_tensor *t, const char *path)
{
    static const char f[] = "tn_npy_save";
    if (!t || tni_none(t)) return tni_poison(f, "t");
    tn_status status = tni_path_check(f, path);
    if (status != TN_OK) return status;
    const kind *k = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].dtype == t->dtype && (size_t)kinds[i].size == tn_dtype_size(t->dtype))
            k = &kinds[i];
    if (!k)
        return tni_error(TN_E_DTYPE,
                         "%s: %s is %s, which NumPy has not: want tn_to_dtype before it", f,
                         tni_text(t), tn_dtype_name(t->dtype));
    tn_scope scope = tn_scope_begin();
    bool was = tn_set_grad_enabled(false);
    tn_tensor *dense = tn_contiguous(tn_to(t, tn_cpu()));
    status = dense ? write(f, dense, k, path) : tni_pending();
    tn_set_grad_enabled(was);
    tn_scope_end(scope);
    return status;
}
