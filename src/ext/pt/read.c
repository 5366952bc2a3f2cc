/*
 * read.c - a PyTorch state dict: tensors from the pickle over the archive's entries.
 *
 * FOLDER/data.pkl      the dict: names, shapes, strides, storage keys; versions of the modules
 * FOLDER/version       "3\n"
 * FOLDER/byteorder     "little"; files from before PyTorch 2.1 lack it
 * FOLDER/data/KEY      a storage's elements
 *
 * A storage is read once, whole: a view may reach all of it, and its checksum is of all of it. The
 * tensors are views of storages, with the strides of the file.
 */
#include <stdio.h>

#include "io/io.h"
#include "io/json.h"
#include "ext/pt/pickle.h"
#include "ext/pt/zip.h"
#include "nn/module.h"

#define bad(pt, ...) tni_input_bad(&(pt)->zip.in, __VA_ARGS__)

typedef struct pt {
    tni_zip zip;
    unsigned char *bytes; /* of data.pkl */
    size_t nbytes;
    tni_pickle pickle;
    tn_tensor **storage; /* by entry: what it holds, once read */
} pt;

/* Checks a small entry's text. TN_OK if it is absent and optional. */
static tn_status expect(const pt *f, const char *name, const char *wanted, bool optional)
{
    char text[16] = "";
    const tni_zip_entry *e = tni_zip_find(&f->zip, name);
    if (!e && optional) return TN_OK;
    if (!e) return bad(f, "no entry %s", name);
    if (e->nbytes < (int64_t)sizeof text) {
        tn_status status = tni_zip_read(&f->zip, e, text);
        if (status != TN_OK) return status;
    }
    size_t line = strcspn(text, "\n");
    if (strcmp(text, wanted))
        return bad(f, "%s is \"%.*s\": want \"%.*s\"", name, (int)line, text,
                   (int)strcspn(wanted, "\n"), wanted);
    return TN_OK;
}

static tn_status open_pickle(pt *f)
{
    const tn_file_limits limits = tn_get_file_limits();
    const tni_zip_entry *e = tni_zip_find(&f->zip, "data.pkl");
    if (tni_zip_find(&f->zip, "constants.pkl")) return bad(f, TNI_ZIP_SCRIPT);
    if (!e) return bad(f, "no entry data.pkl: not a PyTorch file");
    if (e->nbytes > limits.header_bytes)
        return bad(
            f, "data.pkl has %" PRId64 " bytes: at most %" PRId64 " are read (tn_set_file_limits)",
            e->nbytes, limits.header_bytes);
    tn_status status = expect(f, "version", "3\n", false);
    if (status == TN_OK) status = expect(f, "byteorder", "little", true);
    if (status != TN_OK) return status;
    f->nbytes = (size_t)TNI_MAX(e->nbytes, 1);
    f->bytes = tni_alloc(f->nbytes);
    if (!f->bytes) return tni_pending();
    status = tni_zip_read(&f->zip, e, f->bytes);
    if (status != TN_OK) return status;
    return tni_pickle_read(&f->pickle, &f->zip.in, f->bytes, (size_t)e->nbytes, limits.tensors);
}

/* The elements of a storage as one axis; NULL + message. */
static tn_tensor *storage_of(pt *f, const tni_pickle_storage *s)
{
    char name[sizeof s->key + 8];
    snprintf(name, sizeof name, "data/%s", s->key);
    const tni_zip_entry *e = tni_zip_find(&f->zip, name);
    if (!e) return bad(f, "no entry %s", name), NULL;
    tn_tensor **place = &f->storage[e - f->zip.entry];
    tn_tensor *known = *place;
    int64_t nbytes;
    if (__builtin_mul_overflow(s->numel, (int64_t)tn_dtype_size(s->dtype), &nbytes) ||
        nbytes != e->nbytes || (known && known->dtype != s->dtype)) {
        bad(f, "%s holds %" PRId64 " bytes%s%s: want %" PRId64 " elements of %s", name, e->nbytes,
            known ? " of " : "", known ? tn_dtype_name(known->dtype) : "", s->numel,
            tn_dtype_name(s->dtype));
        return NULL;
    }
    if (known) return known;
    tn_tensor *t = tn_empty_as(TN_SHAPE(s->numel), s->dtype, tn_cpu());
    if (!t || tni_zip_read(&f->zip, e, tni_data(t)) != TN_OK) return NULL;
    const unsigned char *byte = tni_data(t);
    for (int64_t i = 0; s->dtype == TN_BOOL && i < nbytes; i++)
        if (byte[i] > 1) {
            bad(f, "%s: byte %" PRId64 " of bool is %d: want 0 or 1", name, i, byte[i]);
            return NULL;
        }
    return *place = t;
}

/* Copies a key of the dict as a C string into to, which has room. */
static tn_status name_of(const pt *f, const tni_pickle_value *key, char *to)
{
    const char *text = (const char *)f->bytes + key->number;
    if (key->n > TNI_NAME_LIMIT)
        return bad(f, "a name has %u bytes: at most %d are possible", key->n, TNI_NAME_LIMIT);
    if (tni_utf8(text, key->n) < key->n || memchr(text, 0, key->n))
        return bad(f, "the name at byte %" PRId64 " of data.pkl is not UTF-8 text", key->number);
    memcpy(to, text, key->n);
    to[key->n] = 0;
    return TN_OK;
}

static tn_status add_tensor(pt *f, tn_list *list, const char *name, const tni_pickle_value *v)
{
    static const char *const kind[] = { "",         "a bool",  "a number", "a string",
                                        "a global", "a tuple", "a dict",   "a storage" };
    if (v->kind != TNI_PICKLE_TENSOR)
        return bad(f,
                   "\"%.64s\" is %s: want a tensor, as in what "
                   "torch.save(model.state_dict(), path) writes",
                   name, kind[v->kind]);
    if (!*name) return bad(f, "a tensor without a name");
    if (tni_list_find(list, name)) return bad(f, "two tensors are named %.64s", name);
    const tni_pickle_tensor *t = (tni_pickle_tensor *)f->pickle.tensors.data + v->number;
    tn_tensor *all = storage_of(f, (tni_pickle_storage *)f->pickle.storages.data + t->storage);
    if (!all) return tni_pending();
    tni_spec spec = { all->dtype, t->shape, .strided = true, .offset = t->offset };
    memcpy(spec.stride, t->stride, sizeof spec.stride);
    tn_entry entry = { .kind = TN_PARAMETER, .persistent = true };
    entry.tensor = tni_alias(all, &spec);
    return entry.tensor ? tni_list_push(list, "", "", name, entry) : tni_pending();
}

static tn_status add_version(pt *f, tn_list *list, const char *path, const tni_pickle_value *v)
{
    const tni_pickle_dict *d = f->pickle.dicts.data;
    if (v->kind != TNI_PICKLE_DICT) return bad(f, "_metadata: \"%.64s\": want a dict", path);
    int64_t version = d[v->number].version;
    if (version < 0 || version > INT32_MAX)
        return bad(f, "_metadata: \"%.64s\": version %" PRId64, path, version);
    return version ? tni_list_push_version(list, path, (int)version) : TN_OK;
}

static tn_status fill(pt *f, tn_list *list)
{
    size_t nbytes = (size_t)f->zip.n * sizeof *f->storage;
    f->storage = tni_calloc(nbytes);
    if (!f->storage) return tni_pending();
    const tni_pickle_dict *dict = f->pickle.dicts.data;
    const tni_pickle_pair *pair = f->pickle.pairs.data;
    int64_t root = f->pickle.root, metadata = dict[root].attribute;
    tn_status status = TN_OK;
    if (metadata >= 0 && dict[metadata].n > tn_get_file_limits().tensors)
        status = bad(f,
                     "_metadata of %" PRId64 " modules: at most %" PRId64
                     " are read (tn_set_file_limits)",
                     dict[metadata].n, tn_get_file_limits().tensors);
    char name[TNI_NAME_LIMIT + 1];
    for (int64_t i = 0; status == TN_OK && i < f->pickle.pairs.n; i++) {
        if (pair[i].dict != root && pair[i].dict != metadata) continue;
        status = name_of(f, &pair[i].key, name);
        if (status != TN_OK) break;
        status = pair[i].dict == root ? add_tensor(f, list, name, &pair[i].value)
                                      : add_version(f, list, name, &pair[i].value);
    }
    tni_free(f->storage, nbytes);
    return status;
}

tn_list *tni_pt_list(const char *function, const char *path)
{
    const tn_file_limits limits = tn_get_file_limits();
    pt f = { 0 };
    /* an entry per tensor and a few more; 128 bytes each in the directory */
    if (tni_zip_open(&f.zip, function, path, limits.tensors + 16, limits.header_bytes) != TN_OK)
        return NULL;
    tn_status status = open_pickle(&f);
    tn_list *list = status == TN_OK ? tn_list_new() : NULL;
    if (list) TN_SCOPE status = fill(&f, list);
    tni_pickle_free(&f.pickle);
    if (f.bytes) tni_free(f.bytes, f.nbytes);
    tni_zip_close(&f.zip);
    return status == TN_OK ? list : NULL;
}
