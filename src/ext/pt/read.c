/*
 * read.c - PyTorch's files: tensors from a pickle and the storages that it names.
 *
 * Since 1.6 an archive:
 * FOLDER/data.pkl      what was saved: dicts of tensors, other values
 * FOLDER/version       "3\n" and up
 * FOLDER/byteorder     "little"; files from before PyTorch 2.1 lack it
 * FOLDER/data/KEY      a storage's elements
 * FOLDER/constants.pkl of TorchScript, whose data.pkl has the module as an object: the tensors that
 *                      its code names, with storages in constants/KEY
 * Before, and on request, four pickles after a fixed one: 1001; a dict with little_endian; what was
 * saved; the list of keys. Then for each key the number of elements, 64 bits, and the elements.
 *
 * A storage is read once, whole: a view may reach all of it, and its checksum is of all of it. The
 * tensors are views of storages, with the strides of the file.
 */
#include "ext/pt/read.h"

#define bad(pt, ...) tni_input_bad(&(pt)->zip.in, __VA_ARGS__)

/* Checks a small entry's text. TN_OK if it is absent and optional. */
static tn_status expect(const tni_pt *f, const char *name, const char *wanted, bool optional)
{
    char text[16] = "";
    const tni_zip_entry *e = tni_map_get(&f->zip.names, name);
    if (!e && optional) return TN_OK;
    if (!e) return bad(f, "no entry %s", name);
    if (e->nbytes < (int64_t)sizeof text) TNI_TRY(tni_zip_read(&f->zip, e, text));
    size_t line = strcspn(text, "\n");
    if (strcmp(text, wanted))
        return bad(f, "%s is \"%.*s\": want \"%.*s\"", name, (int)line, text,
                   (int)strcspn(wanted, "\n"), wanted);
    return TN_OK;
}

/* Begins the pickle with the file's first or the entry's n bytes. */
static tn_status read_bytes(tni_pt *f, const tni_zip_entry *e, const char *name, size_t n)
{
    f->nbytes = n;
    f->bytes = tni_alloc(n);
    if (!f->bytes) return tni_pending();
    f->pickle = (tni_pickle){ .in = &f->zip.in, .name = name, .bytes = f->bytes, .n = n };
    f->pickle.max_tensors = tn_get_file_limits().tensors;
    return e ? tni_zip_read(&f->zip, e, f->bytes) : tni_input_read(&f->zip.in, 0, f->bytes, n);
}

static tn_status open_pickle(tni_pt *f)
{
    const int64_t most = tn_get_file_limits().header_bytes;
    const char *key = f->tree.choice->o.key;
    const bool script = tni_map_get(&f->zip.names, "constants.pkl"),
               constants = script && key && !strcmp(key, "constants");
    const char *name = constants ? "constants.pkl" : "data.pkl";
    const tni_zip_entry *e = tni_map_get(&f->zip.names, name);
    if (!e) return bad(f, "no entry %s: not a PyTorch file", name);
    if (e->nbytes > most)
        return bad(f, "%s has %" PRId64 " bytes" TNI_MOST_READ, name, e->nbytes, most);
    if (!script) TNI_TRY(expect(f, "version", "3\n", false));
    TNI_TRY(expect(f, "byteorder", "little", true));
    TNI_TRY(read_bytes(f, e, name, (size_t)e->nbytes));
    f->folder = constants ? "constants" : "data";
    f->pickle.script = script;
    TNI_TRY(tni_pickle_read(&f->pickle, &f->tree.root));
    if (f->pickle.at != f->pickle.n)
        return bad(f, "%s: %zu bytes follow the pickle", name, f->pickle.n - f->pickle.at);
    if (constants) f->tree.choice->o.key = "*";
    return TN_OK;
}

/* ---- the format before 1.6 ------------------------------------------------------------------- */

/* Finds out where the storages of the keys are, which follow byte `at`. */
static tn_status read_places(tni_pt *f, const tni_pickle_value *keys, int64_t at)
{
    const tni_pickle *p = &f->pickle;
    tni_pickle_storage *s = p->storages.data;
    f->keys.names = true;
    for (int64_t i = 0; i < p->storages.n; i++)
        if (tni_map_put(&f->keys, s[i].key, &s[i]) < 0) return tni_pending();
    const tni_pickle_dict *d = keys->kind == TNI_PICKLE_DICT ? tni_pickle_dict_of(p, keys) : NULL;
    const tni_pickle_pair *pairs = p->pairs.data;
    if (!d || !d->list || (size_t)d->n != f->keys.n)
        return bad(f, "the list of storages' keys does not fit the %zu storages", f->keys.n);
    f->n_places = (size_t)p->storages.n;
    f->places = tni_calloc_n(f->n_places, sizeof *f->places);
    if (!f->places) return tni_pending();
    int64_t n = 0;
    for (int64_t i = d->first; i >= 0; i = pairs[i].next, n++) {
        const tni_pickle_value *key = &pairs[i].value;
        const tni_pickle_storage *of =
            key->kind == TNI_PICKLE_STRING
                ? tni_map_get_name(&f->keys, (const char *)p->bytes + key->number, key->n)
                : NULL;
        if (!of || !of->dtype || f->places[of - s].begin)
            return bad(f, "key %" PRId64 " of the storages is of none", n);
        unsigned char count[8] = { 0 };
        const int64_t left = f->zip.in.size - at - 8;
        int64_t nbytes = 0;
        if (left >= 0) TNI_TRY(tni_input_read(&f->zip.in, at, count, sizeof count));
        if (left < 0 || (int64_t)tni_little(count, 8) != of->numel ||
            __builtin_mul_overflow(of->numel, of->dtype->bits / 8, &nbytes) || nbytes > left)
            return bad(f, "storage %s at %" PRId64 ": want %" PRId64 " elements of %s", of->key, at,
                       of->numel, of->dtype->name);
        f->places[of - s] = (struct tni_pt_place){ at + 8, nbytes };
        at += 8 + nbytes;
    }
    if (at == f->zip.in.size) return TN_OK;
    return bad(f, "%" PRId64 " bytes follow the storages", f->zip.in.size - at);
}

#define MAGIC "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

static tn_status open_old(tni_pt *f)
{
    const int64_t most = tn_get_file_limits().header_bytes;
    tni_pickle_value version, system, keys;
    tni_pickle *p = &f->pickle;
    tn_status status = read_bytes(f, NULL, "the pickles", (size_t)TNI_MIN(f->zip.in.size, most));
    p->at = sizeof MAGIC - 1;
    if (status == TN_OK && (p->n < p->at || memcmp(f->bytes + 2, &MAGIC[2], p->at - 2) != 0))
        status = bad(f, "the first pickle is not the number of PyTorch's format");
    if (status == TN_OK) status = tni_pickle_read(p, &version);
    if (status == TN_OK && (version.kind != TNI_PICKLE_INT || version.number != 1001))
        status = bad(f, "a version other than 1001 of the format before 1.6");
    if (status == TN_OK) status = tni_pickle_read(p, &system);
    const bool ok = status == TN_OK;
    const tni_pickle_value *v = ok ? tni_pickle_get(p, &system, "little_endian") : NULL;
    if (ok && (!v || v->kind != TNI_PICKLE_BOOL || !v->number))
        status = bad(f, "its numbers are not little-endian");
    if (status == TN_OK) status = tni_pickle_read(p, &f->tree.root);
    if (status == TN_OK) status = tni_pickle_read(p, &keys);
    if (status == TN_E_FORMAT && f->zip.in.size > most)
        status = bad(f,
                     "its pickles are damaged, or of more than %" PRId64
                     " bytes: at most so many are read (tn_set_file_limits)",
                     most);
    return status == TN_OK ? read_places(f, &keys, (int64_t)p->at) : status;
}

/* ---- storages and tensors -------------------------------------------------------------------- */

/* Where a storage's bytes are, and the archive's entry; NULL: of an old file. */
static tn_status find_storage(const tni_pt *f, const tni_pickle_storage *s,
                              const tni_zip_entry **entry, struct tni_pt_place *place)
{
    char name[sizeof s->key + 16];
    snprintf(name, sizeof name, "%s/%s", f->folder, s->key);
    const tni_pickle_storage *all = f->pickle.storages.data;
    const tni_zip_entry *e = *entry = f->places ? NULL : tni_map_get(&f->zip.names, name);
    if (!f->places && !e) return bad(f, "no entry %s", name);
    *place = e ? (struct tni_pt_place){ e->begin, e->nbytes }
               : f->places[(tni_pickle_storage *)tni_map_get(&f->keys, s->key) - all];
    return TN_OK;
}

/* *known: the elements of a storage as one axis, of the tensor that dtype becomes. */
static tn_status storage_of(tni_pt *f, const tni_pickle_storage *s, const tni_file_dtype *dtype,
                            tn_tensor **known)
{
    const tni_zip_entry *entry;
    struct tni_pt_place at = { 0 };
    TNI_TRY(find_storage(f, s, &entry, &at));
    const int64_t size = dtype->bits / 8, n = s->dtype ? s->numel : s->numel / size;
    tn_tensor *t = *known = tni_map_get(&f->read, (void *)(intptr_t)at.begin);
    int64_t nbytes;
    const bool overflows = __builtin_mul_overflow(n, size, &nbytes);
    if (overflows || nbytes != at.nbytes ||
        (t && (t->dtype != (tn_dtype)dtype->dtype || tni_shape_numel(&t->shape) != n)))
        return bad(
            f, "%s/%s holds %" PRId64 " bytes%s%s: want %" PRId64 " elements of %s", f->folder,
            s->key, at.nbytes, t ? " of " : "", t ? tn_dtype_name(t->dtype) : "", n,
            tni_file_dtype_kept(dtype) ? tn_dtype_name((tn_dtype)dtype->dtype) : dtype->name);
    if (t) return TN_OK;
    const tni_choice *c = f->tree.choice;
    const tn_dtype as = (tn_dtype)dtype->dtype;
    const bool kept = tni_file_dtype_kept(dtype), packed = entry && entry->deflated,
               unread = (c->weights || c->o.no_values) && kept && as != TN_BOOL && !packed;
    t = unread ? tni_unread_tensor(&f->zip.in, at.begin, TN_SHAPE(n), as)
               : tn_empty_as(TN_SHAPE(n), as, tn_cpu());
    if (!t) return tni_pending();
    unsigned char *to = tni_data(t),
                  *from = unread ? NULL : to + (size_t)n * tn_dtype_size(as) - (size_t)nbytes;
    if (!unread || c->weights)
        TNI_TRY(entry ? tni_zip_read(&f->zip, entry, from)
                      : tni_input_scan(&f->zip.in, at.begin, (size_t)nbytes,
                                       (tni_scan){ .data = from }));
    for (int64_t i = 0; t->dtype == TN_BOOL && i < nbytes; i++)
        if (to[i] > 1)
            return bad(f, "%s/%s: byte %" PRId64 " of bool is %d: want 0 or 1", f->folder, s->key,
                       i, to[i]);
    if (!kept) tni_widen(dtype, false, from, (char *)to, (size_t)n);
    *known = t;
    return tni_map_put(&f->read, (void *)(intptr_t)at.begin, t) < 0 ? TN_E_NOMEM : TN_OK;
}

tn_tensor *tni_pt_tensor(tni_pt *f, const tni_pickle_tensor *t)
{
    const tni_pickle_storage *s = (tni_pickle_storage *)f->pickle.storages.data + t->storage;
    tn_tensor *all;
    if (storage_of(f, s, t->dtype, &all) != TN_OK) return NULL;
    tni_spec spec = { all->dtype, t->shape, .strided = true, .offset = t->offset };
    memcpy(spec.stride, t->stride, sizeof spec.stride);
    return tni_alias(all, &spec);
}

static tn_status add_tensor(void *user, const char *name, const tni_pickle_tensor *t)
{
    tni_pt *f = user;
    const int64_t most = tn_get_file_limits().tensors;
    if (!*name) return bad(f, "a tensor without a name");
    if ((int64_t)f->list->n + f->tree.choice->n_left >= most)
        return bad(f,
                   "more than %" PRId64 " tensors: at most so many are read (tn_set_file_limits)",
                   most);
    if (t->what || !tni_file_dtype_wanted(t->dtype, &f->tree.choice->o))
        return tni_leave_out(f->tree.choice, &f->zip.in, name, t->what ? t->what : t->dtype->name,
                             t->what ? NULL : t->dtype);
    if (tni_list_find(f->list, name)) return bad(f, "two tensors are named %.64s", name);
    tn_entry entry = { .kind = TN_PARAMETER, .persistent = true };
    entry.tensor = tni_pt_tensor(f, t);
    return entry.tensor ? tni_list_push(f->list, "", "", name, entry) : tni_pending();
}

/* ---- versions -------------------------------------------------------------------------------- */

static tn_status add_version(tni_pt *f, const tni_pickle_pair *pair)
{
    char path[TNI_NAME_LIMIT + 1];
    if (pair->key.kind != TNI_PICKLE_STRING) return bad(f, "_metadata: a key is not a string");
    TNI_TRY(tni_tree_name(&f->tree, path, 0, &pair->key));
    if (pair->value.kind != TNI_PICKLE_DICT)
        return bad(f, "_metadata: \"%.64s\": want a dict", path);
    int64_t version = tni_pickle_dict_of(&f->pickle, &pair->value)->version;
    if (version < 0 || version > INT32_MAX)
        return bad(f, "_metadata: \"%.64s\": version %" PRId64, path, version);
    return version ? tni_list_push_version(f->list, path, (int)version) : TN_OK;
}

/* The state versions in a part's _metadata. */
static tn_status add_versions(tni_pt *f, const tni_pickle_value *part)
{
    const tni_pickle_dict *dicts = f->pickle.dicts.data;
    const tni_pickle_pair *pairs = f->pickle.pairs.data;
    if (part->kind != TNI_PICKLE_DICT || dicts[part->number].attribute < 0) return TN_OK;
    const tni_pickle_dict *metadata = &dicts[dicts[part->number].attribute];
    const int64_t most = tn_get_file_limits().tensors;
    if (metadata->n > most)
        return bad(f, "_metadata of %" PRId64 " modules" TNI_MOST_READ, metadata->n, most);
    for (int64_t i = metadata->first; i >= 0; i = pairs[i].next) TNI_TRY(add_version(f, &pairs[i]));
    return TN_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

tn_status tni_pt_open(tni_pt *f, const char *function, const char *path, tni_choice *c)
{
    const tn_file_limits limits = tn_get_file_limits();
    char first = 0;
    *f = (tni_pt){ .tree = { .choice = c, .pickle = &f->pickle }, .folder = "data" };
    TNI_TRY(tni_input_open(&f->zip.in, function, path));
    if (f->zip.in.size > 0) TNI_TRY(tni_input_read(&f->zip.in, 0, &first, 1));
    if (first == 'P') {
        tni_input_close(&f->zip.in);
        /* an entry per tensor and a few more; 128 bytes each in the directory */
        TNI_TRY(tni_zip_open(&f->zip, function, path, limits.tensors + 16, limits.header_bytes));
    }
    for (int i = 0; !f->zip.pytorch && i < f->zip.n; i++)
        f->npz |= tni_ends_in(f->zip.entry[i].name, ".npy");
    return f->npz ? TN_OK : f->zip.n ? open_pickle(f) : open_old(f);
}

void tni_pt_close(tni_pt *f)
{
    tni_pickle_free(&f->pickle);
    tni_free(f->bytes, f->nbytes);
    tni_map_free(&f->read);
    tni_free(f->places, f->n_places * sizeof *f->places);
    tni_map_free(&f->keys);
    tni_zip_close(&f->zip);
}

static tn_status fill(tni_pt *f)
{
    tni_pickle_value part;
    TNI_TRY(tni_tree_pick(&f->tree, &part));
    TNI_TRY(tni_tree_tensors(&f->tree, &part, add_tensor, f));
    return add_versions(f, &part);
}

tn_list *tni_pt_list(const char *function, const char *path, tni_choice *c, tn_metadata *metadata)
{
    tni_pt TN_WHEN_LEFT(tni_pt_close) f;
    if (tni_pt_open(&f, function, path, c) != TN_OK) return NULL;
    if (f.npz) return tni_npz_list(&f.zip, c);
    f.list = tn_list_new();
    if (!f.list) return NULL;
    c->picked = true;
    TN_SCOPE if (fill(&f) != TN_OK) return NULL;
    const bool all = metadata && !f.pickle.script;
    return all && tni_tree_metadata(&f.tree, metadata) != TN_OK ? NULL : f.list;
}
