/*
 * npy.c - NumPy's files of one array; files of raw numbers.
 *
 * "\x93NUMPY", two bytes of version, the length of the header (16 bits, from version 2 on 32), the
 * header, the values. The header is a dict as Python writes it, of the three keys descr ("<f4"),
 * fortran_order and shape; spaces and a newline fill it up, so that the values begin at a multiple
 * of 64. Source: NumPy's NEP 1 and numpy.lib.format.
 */
#include <errno.h>
#include <sys/mman.h>

#include "autograd/op.h"
#include "ext/pt/zip.h"
#include "io/choice.h"
#include "io/json.h"
#include "nn/module.h"

#define MAGIC "\x93NUMPY"
#define MOST_HEADER 65535

/* Where an array is: a file, or an entry of an archive, which is read into memory first. */
typedef struct source {
    tni_input in;
    const unsigned char *bytes; /* NULL: the file's */
    int64_t size;
} source;

static tn_status read_from(const source *s, int64_t at, void *to, size_t n)
{
    if (!s->bytes) return tni_input_read(&s->in, at, to, n);
    if (n) memcpy(to, s->bytes + at, n);
    return TN_OK;
}

typedef struct header {
    bool foreign; /* it is an array, of values that no tensor has */
    const tni_file_dtype *kind;
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
    const tni_file_dtype *d;
    for (int i = 0; (d = tni_file_dtype_at(i)); i++) {
        char code[16];
        snprintf(code, sizeof code, "%c%d", d->letter, d->bits / 8);
        if (d->letter && (strcmp(text, code) == 0 || strcmp(text, d->name) == 0)) h->kind = d;
    }
    return h->kind != NULL;
}

static tn_status unknown(const tni_input *in, const char *dtype)
{
    return tni_input_bad(in, "dtype %s: want float16 to 64, int8 to 64, uint8 to 32, bool", dtype);
}

/* Its dtype may be one that no tensor has. */
static tn_status parse(const tni_input *in, const char *at, const char *end, header *h)
{
    char key[32], type[64] = "";
    unsigned seen = 0;
    bool fine = passed(&at, "{");
    while (fine && !passed(&at, "}")) {
        fine = read_text(&at, key, sizeof key) && passed(&at, ":");
        if (!fine) break;
        const unsigned bit =
            !strcmp(key, "descr") + 2 * !strcmp(key, "fortran_order") + 4 * !strcmp(key, "shape");
        if (!bit || seen & bit)
            return tni_input_bad(in, "the key %s: want descr, fortran_order and shape, once", key);
        seen |= bit;
        h->foreign = bit == 1 && passed(&at, "[");
        if (h->foreign)
            return tni_input_bad(in, "records of several fields: want one number for each value");
        fine = bit == 1   ? read_text(&at, type, sizeof type)
               : bit == 2 ? (h->fortran = passed(&at, "True")) || passed(&at, "False")
                          : read_shape(&at, &h->shape);
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
    h->foreign = true;
    if (type[0] && strchr(type, 'O'))
        return tni_input_bad(in, "its values are Python objects: want numbers");
    if (!read_kind(type, h)) return unknown(in, type);
    h->foreign = h->kind->dtype < 0;
    return TN_OK;
}

static tn_status read_header(const source *s, header *h)
{
    const tni_input *in = &s->in;
    unsigned char b[12] = { 0 };
    const int64_t prefix = TNI_MIN(s->size, (int64_t)sizeof b);
    TNI_TRY(read_from(s, 0, b, (size_t)prefix));
    const char *is = prefix < 10 ? NULL : tni_begins_as(b);
    if (prefix < 10 || memcmp(b, MAGIC, 6) != 0)
        return tni_input_bad(in, "%s: want a .npy file", is ? is : "no \\x93NUMPY at first");
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        return tni_input_bad(in, "version %d.%d: want 1.0, 2.0 or 3.0", b[6], b[7]);
    const int64_t n = (int64_t)tni_little(b + 8, b[6] > 1 ? 4 : 2);
    h->begin = (b[6] > 1 ? 12 : 10) + n;
    if (h->begin > s->size || n > MOST_HEADER)
        return tni_input_bad(in, "a header of %" PRId64 " bytes: want at most %d, within the file",
                             n, MOST_HEADER);
    TNI_ITEMS(char, text, n + 1);
    if (!text) return TN_E_NOMEM;
    TNI_TRY(read_from(s, h->begin - n, text, (size_t)n));
    text[n] = '\0';
    TNI_TRY(parse(in, text, text + n, h));
    const int64_t count = tni_shape_numel(&h->shape);
    if (count < 0 || !tni_mul_size((size_t)count, (size_t)h->kind->bits / 8, &h->nbytes) ||
        h->nbytes > INT64_MAX)
        return tni_input_bad(in, "%s: the sizes overflow", tni_shape_text(&h->shape));
    if ((int64_t)h->nbytes != s->size - h->begin)
        return tni_input_bad(
            in, "%s of %s are %zu bytes, the file has %" PRId64 " behind its header",
            tni_shape_text(&h->shape), h->kind->name, h->nbytes, s->size - h->begin);
    return TN_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static tn_tensor *read_values(const source *s, const header *h)
{
    tn_shape stored = h->shape;
    int order[TN_MAX_RANK];
    for (int i = 0; i < stored.rank; i++) {
        order[i] = stored.rank - 1 - i;
        if (h->fortran) stored.size[i] = h->shape.size[stored.rank - 1 - i];
    }
    const tn_dtype dtype = (tn_dtype)h->kind->dtype;
    tn_tensor *t = tn_empty_as(stored, dtype, tn_cpu());
    if (!t) return NULL;
    const size_t n = h->nbytes * 8 / (size_t)h->kind->bits, wide = tn_dtype_size(dtype);
    char *to = tni_data(t);
    unsigned char *from = (unsigned char *)to + n * wide - h->nbytes;
    if (read_from(s, h->begin, from, h->nbytes) != TN_OK) return NULL;
    if (h->big || !tni_file_dtype_kept(h->kind) || dtype == TN_BOOL)
        tni_widen(h->kind, h->big, from, to, n);
    return h->fortran && stored.rank > 1 ? tn_contiguous(tn_permute(t, order, stored.rank)) : t;
}

/* ---- maps ------------------------------------------------------------------------------------ */

typedef struct map {
    void *memory;
    size_t nbytes;
} map;

static void unmap(void *user)
{
    map *m = user;
    munmap(m->memory, m->nbytes);
    tni_free(m, sizeof *m);
}

/* The file's bytes from `at` on. */
static tn_tensor *map_values(const tni_input *in, int64_t at, tn_shape shape, tn_dtype dtype)
{
    const int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_NORESERVE;
    if (dtype == TN_BOOL || at % (int64_t)tn_dtype_size(dtype))
        return tni_nothing(tni_input_error(in, TN_E_INVALID,
                                           "%s from byte %" PRId64 " on: want a "
                                           "multiple of its size, no bool",
                                           tn_dtype_name(dtype), at));
    map *m = tni_alloc(sizeof *m);
    if (!m) return NULL;
    *m = (map){ mmap(NULL, (size_t)in->size, rights, flags, in->fd, 0), (size_t)in->size };
    const bool made = m->memory != MAP_FAILED;
    if (!made) tni_input_error(in, tni_errno(errno), "%s", strerror(errno));
    tn_tensor *t = made ? tn_from_memory((char *)m->memory + at, shape, dtype, unmap, m) : NULL;
    if (made && !t) unmap(m);
    if (!made) tni_free(m, sizeof *m);
    return t;
}

tn_tensor *tn_raw_map(const char *path, int64_t skip, tn_shape row, tn_dtype dtype)
{
    int64_t nbytes;
    if (tni_shape_fits(__func__, &row) != TN_OK) return NULL;
    if (row.rank == TN_MAX_RANK || skip < 0 ||
        __builtin_mul_overflow(tni_shape_numel(&row), tn_dtype_size(dtype), &nbytes) || nbytes < 1)
        return tni_fail(TN_E_INVALID,
                        "%s: skip %" PRId64 ", rows of %s %s: want >= 0, at most 7 sizes >= 1",
                        __func__, skip, tni_shape_text(&row), tn_dtype_name(dtype));
    tni_input TN_WHEN_LEFT(tni_input_close) in;
    if (tni_input_open(&in, __func__, path) != TN_OK) return NULL;
    tn_shape shape = { row.rank + 1, { (in.size - skip) / nbytes } };
    memcpy(shape.size + 1, row.size, (size_t)row.rank * sizeof *row.size);
    if (shape.size[0] < 1 || (in.size - skip) % nbytes)
        return tni_nothing(tni_input_bad(
            &in, "%" PRId64 " bytes, rows from %" PRId64 " on: want whole ones of %" PRId64,
            in.size, skip, nbytes));
    return map_values(&in, skip, shape, dtype);
}

static tn_tensor *read_array(const char *f, const char *path, bool maps)
{
    TNI_UNRECORDED;
    tni_input TN_WHEN_LEFT(tni_input_close) in;
    if (tni_input_open(&in, f, path) != TN_OK) return NULL;
    const source s = { in, NULL, in.size };
    header h = { 0 };
    if (read_header(&s, &h) != TN_OK) return NULL;
    if (h.kind->dtype < 0) return tni_nothing(unknown(&in, h.kind->name));
    if (maps && (h.big || h.fortran || !tni_file_dtype_kept(h.kind)))
        return tni_nothing(tni_input_bad(&in, "%s%s%s: want tn_npy_load for it", h.kind->name,
                                         h.big ? ", big-endian" : "",
                                         h.fortran ? ", columns first" : ""));
    tn_tensor *t =
        maps ? map_values(&in, h.begin, h.shape, (tn_dtype)h.kind->dtype) : read_values(&s, &h);
    return tni_scope_return(f, scope, t);
}

tn_tensor *tn_npy_load(const char *path)
{
    return read_array(__func__, path, false);
}

tn_tensor *tn_npy_map(const char *path)
{
    return read_array(__func__, path, true);
}

/* ---- archives of arrays ---------------------------------------------------------------------- */

/* Reads entry e of an .npz, whose bytes are at s, and appends it to the list. */
static tn_status add_array(tni_choice *c, const source *s, const char *entry, tn_list *list)
{
    header h = { 0 };
    char name[TNI_ZIP_NAME_LIMIT + 1];
    const size_t n = strlen(entry);
    const bool npy = tni_ends_in(entry, ".npy");
    snprintf(name, sizeof name, "%.*s", (int)(npy ? n - 4 : n), entry);
    if (!npy) return tni_leave_out(c, &s->in, name, "not an array (.npy)", NULL);
    tn_status status = read_header(s, &h);
    if (status == TN_OK && h.foreign) return tni_leave_out(c, &s->in, name, h.kind->name, h.kind);
    if (status == TN_E_FORMAT && h.foreign && c->o.skip_foreign) {
        tn_error_clear();
        return tni_leave_out(c, &s->in, name, "not of numbers", NULL);
    }
    if (status != TN_OK) return status;
    tn_entry e = { .kind = TN_PARAMETER, .persistent = true };
    e.tensor = read_values(s, &h);
    return e.tensor ? tni_list_push(list, "", "", name, e) : tni_pending();
}

tn_list *tni_npz_list(const tni_zip *zip, tni_choice *c)
{
    tn_list *list = tn_list_new();
    bool picks = false; /* if the key names anything, else all is there to be listed */
    for (int i = 0; i < zip->n; i++) picks |= !tni_outside(c, zip->entry[i].name);
    for (const tni_zip_entry *e = zip->entry; list && e < zip->entry + zip->n; e++) {
        if (picks && tni_outside(c, e->name)) continue;
        TNI_UNRECORDED;
        char path[4096];
        TNI_ITEMS(unsigned char, bytes, e->nbytes);
        if (!bytes || tni_zip_read(zip, e, bytes) != TN_OK) return NULL;
        source s = { zip->in, bytes, e->nbytes };
        snprintf(path, sizeof path, "%.3000s: %.64s", zip->in.path, e->name);
        s.in.path = path;
        if (add_array(c, &s, e->name, list) != TN_OK) return NULL;
    }
    return list;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The header of t's values, as numpy.save writes it. */
static void put_header(const tn_tensor *t, tni_bytes *b)
{
    const tni_file_dtype *k = tni_file_dtype_of(t->dtype);
    char text[512];
    int n = snprintf(text, sizeof text, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                     k->bits == 8 ? '|' : '<', k->letter, k->bits / 8);
    for (int i = 0; i < t->shape.rank; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%" PRId64 "%s", i ? " " : "",
                      t->shape.size[i], i < t->shape.rank - 1 || i == 0 ? "," : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    /* 128 bytes in all; NumPy's room for a first size that grows fits in there for 8 axes */
    while ((10 + n + 1) % 64) text[n++] = ' ';
    text[n++] = '\n';
    tni_bytes_add(b, MAGIC "\x01", 8);
    tni_little_add(b, (uint64_t)n, 2);
    tni_bytes_add(b, text, (size_t)n);
}

/* t is on the CPU and dense, or NULL; the same below. */
static tn_status write(const char *f, const tn_tensor *t, const char *path)
{
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) b = { 0 };
    tni_atomic_file file;
    if (!t) return tni_pending();
    const size_t nbytes = tni_bytes_of(t);
    put_header(t, &b);
    if (b.failed) return tni_pending();
    TNI_TRY(tni_file_create(&file, f, path, (int64_t)(nbytes + b.n)));
    tn_status status = tni_file_write(&file, b.data, b.n);
    if (status == TN_OK) status = tni_file_write(&file, tni_data(t), nbytes);
    return tni_file_finish(&file, status);
}

tn_status tn_npy_save(tn_tensor *t, const char *path)
{
    if (!t || tni_none(t)) return tni_poison(__func__, "t");
    TNI_TRY(tni_path_check(__func__, path));
    if (!tni_file_dtype_of(t->dtype)->letter)
        return tni_error(TN_E_DTYPE,
                         "%s: %s is %s, which NumPy has not: want tn_to_dtype before it", __func__,
                         tni_text(t), tn_dtype_name(t->dtype));
    TN_SCOPE TN_NO_GRAD TNI_TRY(write(__func__, tn_contiguous(tn_to(t, tn_cpu())), path));
    return TN_OK;
}

/* An entry NAME.npy. */
static tn_status add_entry(tni_zip_writer *zip, const char *name, const tn_tensor *t)
{
    char entry[TNI_ZIP_NAME_LIMIT + 1];
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) b = { 0 };
    if (!t) return tni_pending();
    put_header(t, &b);
    tni_bytes_add(&b, tni_data(t), tni_bytes_of(t));
    snprintf(entry, sizeof entry, "%s.npy", name);
    return b.failed ? TN_E_NOMEM : tni_zip_add(zip, entry, b.data, b.n);
}

tn_status tni_npz_write(const char *function, const char *path, const tn_list *list)
{
    tni_atomic_file file;
    tni_zip_writer zip = { .file = &file };
    TNI_TRY(tni_check_counts(function, list, true));
    if (list->n == 0)
        return tni_error(TN_E_INVALID, "%s: no tensors: want one or more in a .npz", function);
    for (int i = 0; i < list->n; i++) {
        const tn_tensor *t = list->entry[i].tensor;
        const size_t n = strlen(list->entry[i].name);
        if (n == 0 || n > TNI_ZIP_NAME_LIMIT - 4 || tni_utf8(list->entry[i].name, n) < n)
            return tni_error(TN_E_NAME,
                             "%s: a tensor is named \"%.64s\": want 1 to %d bytes of UTF-8 text",
                             function, list->entry[i].name, TNI_ZIP_NAME_LIMIT - 4);
        if (tni_none(t) || !tni_file_dtype_of(t->dtype)->letter)
            return tni_error(TN_E_DTYPE, "%s: %.200s is %s, which NumPy has not", function,
                             list->entry[i].name, tni_none(t) ? "absent" : tn_dtype_name(t->dtype));
    }
    TNI_TRY(tni_file_create(&file, function, path, 0));
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < list->n; i++)
        TN_SCOPE TN_NO_GRAD status = add_entry(
            &zip, list->entry[i].name, tn_contiguous(tn_to(list->entry[i].tensor, tn_cpu())));
    if (status == TN_OK) status = tni_zip_end(&zip);
    tni_bytes_free(&zip.directory);
    return tni_file_finish(&file, status);
}
