/*
 * write.c - a list of tensors as a PyTorch state dict.
 *
 * The pickle is protocol 2 with the same contents as PyTorch's, without the memo: an OrderedDict of
 * names and calls of _rebuild_tensor_v2, and, where the list knows state versions, an attribute
 * _metadata with one per module. torch.load reads it with weights_only and with mmap. Entries are
 * as in read.c; storages are written dense, in the order of the list.
 */
#include "ext/pt/read.h"
#include "io/json.h"
#include "optim/optim.h"

typedef struct item {
    const char *name;
    tn_tensor *tensor;
    size_t nbytes;
    int place; /* in the list */
    int first; /* the first item of the same memory: it is written, under its key */
    int key;
} item;

typedef struct plan {
    const char *function;
    const tn_list *list;
    const tn_optim *opt; /* NULL, or: the list is of its states, in order */
    item *items;
    tni_bytes *pickle;
} plan;

/* ---- what is written, and under which key ---------------------------------------------------- */

static tn_status check_item(const plan *p, item *it)
{
    const size_t length = strlen(it->name);
    if (length == 0 || length > TNI_NAME_LIMIT || tni_utf8(it->name, length) < length)
        return tni_error(TN_E_NAME,
                         "%s: a tensor is named \"%.64s\": want 1 to %d bytes of UTF-8 text",
                         p->function, it->name, TNI_NAME_LIMIT);
    if (tni_list_find(p->list, it->name)->name != it->name)
        return tni_error(TN_E_NAME, "%s: two tensors are named %s", p->function, it->name);
    if (!it->tensor || tni_none(it->tensor))
        return tni_error(TN_E_INVALID, "%s: %s is absent: want a tensor", p->function, it->name);
    if (!tni_mul_size((size_t)tni_shape_numel(&it->tensor->shape), tn_dtype_size(it->tensor->dtype),
                      &it->nbytes) ||
        it->nbytes > INT64_MAX / 2)
        return tni_error(TN_E_INVALID, "%s: %s: too large for a file", p->function, it->name);
    return TN_OK;
}

static int by_memory(const void *a, const void *b)
{
    const item *x = a, *y = b;
    int d = tni_compare_places(x->tensor, y->tensor, false);
    return d ? d : x->place - y->place;
}

static int by_place(const void *a, const void *b)
{
    return ((const item *)a)->place - ((const item *)b)->place;
}

/* Numbers keys in the order of the list; tensors in the same memory share one. */
static tn_status collect(plan *p)
{
    const size_t n = (size_t)p->list->n;
    for (int i = 0; i < p->list->n; i++) {
        const tn_entry *e = &p->list->entry[i];
        p->items[i] = (item){ .name = e->name, .tensor = e->tensor, .place = i, .first = i };
        TNI_TRY(check_item(p, &p->items[i]));
    }
    tni_sort(p->items, n, sizeof *p->items, by_memory);
    for (size_t i = 1; i < n; i++)
        if (!tni_compare_places(p->items[i - 1].tensor, p->items[i].tensor, false))
            p->items[i].first = p->items[i - 1].first;
    tni_sort(p->items, n, sizeof *p->items, by_place);
    int keys = 0;
    for (item *it = p->items; it < p->items + n; it++)
        it->key = it->first == it->place ? keys++ : p->items[it->first].key;
    return TN_OK;
}

static tn_status check_bytes(const plan *p, const char *what, size_t n)
{
    const int64_t limit = tn_get_file_limits().header_bytes;
    if ((int64_t)n <= limit) return TN_OK;
    return tni_error(TN_E_INVALID,
                     "%s: a %s of %zu bytes: at most %" PRId64
                     " could be read back (tn_set_file_limits)",
                     p->function, what, n, limit);
}

/* ---- the pickle ------------------------------------------------------------------------------ */

static void put_code(tni_bytes *b, int code, uint64_t operand, int n)
{
    tni_little_add(b, (uint64_t)code, 1);
    tni_little_add(b, operand, n);
}

static void put_text(tni_bytes *b, const char *text)
{
    const size_t n = strlen(text);
    put_code(b, 'X', n, 4); /* BINUNICODE */
    tni_bytes_add(b, text, n);
}

static void put_integer(tni_bytes *b, int64_t x)
{
    if (x <= INT32_MAX)
        put_code(b, 'J', (uint64_t)x, 4); /* BININT */
    else {
        put_code(b, 0x8a, 8, 1); /* LONG1 of 8 bytes */
        tni_little_add(b, (uint64_t)x, 8);
    }
}

static void put_tuple(tni_bytes *b, int n, const int64_t *x)
{
    tni_bytes_printf(b, "("); /* MARK */
    for (int i = 0; i < n; i++) put_integer(b, x[i]);
    tni_bytes_printf(b, "t"); /* TUPLE */
}

#define ORDERED_DICT "ccollections\nOrderedDict\n)R" /* GLOBAL, EMPTY_TUPLE, REDUCE */

/* _rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()) */
static void put_tensor(tni_bytes *b, const item *it)
{
    const tn_tensor *t = it->tensor;
    char key[16];
    snprintf(key, sizeof key, "%d", it->key);
    int64_t stride[TN_MAX_RANK];
    tni_dense_strides(&t->shape, stride);
    tni_bytes_printf(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
    put_text(b, "storage");
    tni_bytes_printf(b, "ctorch\n%sStorage\n", tni_file_dtype_of(t->dtype)->storage);
    put_text(b, key);
    put_text(b, "cpu");
    put_integer(b, tni_shape_numel(&t->shape));
    tni_bytes_printf(b, "tQ"); /* TUPLE, BINPERSID */
    put_integer(b, 0);
    put_tuple(b, t->shape.rank, t->shape.size);
    put_tuple(b, t->shape.rank, stride);
    tni_bytes_printf(b, "\x89" ORDERED_DICT "tR"); /* NEWFALSE ... TUPLE, REDUCE */
}

/* The state of the outer dict: { "_metadata": OrderedDict of paths to { "version": n } }. */
static tn_status put_versions(tni_bytes *b, const char *function, const tn_list *list)
{
    bool any = false;
    for (int i = -1, version; (version = tni_list_next_version(list, &i)) != 0; any = true) {
        const char *path = tni_list_path(list, i);
        if (!any) {
            tni_bytes_printf(b, "}");
            put_text(b, "_metadata");
            tni_bytes_printf(b, ORDERED_DICT);
        }
        const size_t length = strlen(path);
        if (length > TNI_NAME_LIMIT || tni_utf8(path, length) < length)
            return tni_error(
                TN_E_NAME,
                "%s: the path of a module is \"%.64s\": want at most %d bytes of UTF-8 text",
                function, path, TNI_NAME_LIMIT);
        put_text(b, path);
        tni_bytes_printf(b, "}");
        put_text(b, "version");
        put_integer(b, version);
        tni_bytes_printf(b, "ss"); /* SETITEM into the module's, SETITEM into _metadata */
    }
    if (any) tni_bytes_printf(b, "sb"); /* SETITEM, BUILD */
    return TN_OK;
}

/* After its key, unless that is NULL. */
static void put_number(tni_bytes *b, const char *key, const tn_number_type *number, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (key) put_text(b, key);
    if (number && number->on_off)
        put_code(b, x != 0 ? 0x88 : 0x89, 0, 0); /* NEWTRUE, NEWFALSE */
    else
        put_code(b, 'G', __builtin_bswap64(bits), 8); /* BINFLOAT */
}

/* { "lr": ..., "betas": (..., ...), ..., "params": [first, first + 1, ...] } */
static void put_group(tni_bytes *b, const tn_optim *opt, int k, int *first)
{
    const tni_optim_group *group = &opt->group[k];
    const tn_optim_type *type = opt->type;
    tni_bytes_printf(b, "}(");
    put_number(b, "lr", NULL, group->lr);
    put_number(b, "initial_lr", NULL, group->base_lr); /* schedules that go on want it */
    put_number(b, "weight_decay", NULL, group->weight_decay);
    for (int i = 0, place; i < TN_OPTIM_NUMBERS; i++) {
        const tn_number_type *number = &type->number[i];
        if (!number->name || number->optional) continue;
        const char *key = tni_pt_number(number->name, &place);
        put_number(b, place > 0 ? NULL : key, number, group->number[i]);
        if (place > 0) tni_bytes_printf(b, "\x86"); /* TUPLE2: beta2 comes after beta1 */
    }
    if (!strcmp(type->name, "adam") || !strcmp(type->name, "adamw")) {
        put_text(b, "decoupled_weight_decay");
        put_code(b, type->name[4] ? 0x88 : 0x89, 0, 0);
    }
    put_text(b, "params");
    tni_bytes_printf(b, "]("); /* EMPTY_LIST, MARK */
    for (int i = 0; i < opt->n; i++)
        if (opt->param[i].group == k) put_integer(b, (*first)++);
    tni_bytes_printf(b, "eu"); /* APPENDS, SETITEMS */
}

/* The parameters of our optimizer stand in the order of their groups here. */
static void put_optimizer(plan *p)
{
    tni_bytes *b = p->pickle;
    int first = 0;
    tni_bytes_printf(b, "\x80\x02}");
    put_text(b, "state");
    tni_bytes_printf(b, "}");
    for (int i = 0; i < p->list->n;) {
        const char *name = p->items[i].name;
        const size_t n = strcspn(name, ".") + 1;
        put_integer(b, strtol(name, NULL, 10));
        tni_bytes_printf(b, "}");
        for (const char *begin = name; i < p->list->n && !strncmp(p->items[i].name, begin, n);
             i++) {
            put_text(b, p->items[i].name + n);
            put_tensor(b, &p->items[i]);
            tni_bytes_printf(b, "s");
        }
        tni_bytes_printf(b, "s");
    }
    tni_bytes_printf(b, "s");
    put_text(b, "param_groups");
    tni_bytes_printf(b, "](");
    for (int k = 0; k < p->opt->n_groups; k++) put_group(b, p->opt, k, &first);
    tni_bytes_printf(b, "es");
}

static void put_list(plan *p)
{
    tni_bytes *b = p->pickle;
    tni_bytes_printf(b, "\x80\x02" ORDERED_DICT);
    for (int i = 0; i < p->list->n; i++) {
        put_text(b, p->items[i].name);
        put_tensor(b, &p->items[i]);
        tni_bytes_printf(b, "s"); /* SETITEM */
    }
}

static tn_status make_pickle(plan *p)
{
    tni_bytes *b = p->pickle;
    if (p->opt)
        put_optimizer(p);
    else
        put_list(p);
    TNI_TRY(put_versions(b, p->function, p->list));
    tni_bytes_printf(b, "."); /* STOP */
    return b->failed ? tni_pending() : check_bytes(p, "pickle", b->n);
}

/* ---- the archive ----------------------------------------------------------------------------- */

/* A dense copy if the tensor is not dense or not on the CPU. */
static tn_status add_data(tni_zip_writer *zip, const item *it)
{
    char name[32];
    snprintf(name, sizeof name, "data/%d", it->key);
    if (!zip->file) return tni_zip_add(zip, name, NULL, it->nbytes);
    TN_SCOPE TN_NO_GRAD
    {
        const tn_tensor *t = tn_contiguous(tn_to(it->tensor, tn_cpu()));
        TNI_TRY(t ? tni_zip_add(zip, name, tni_data(t), it->nbytes) : tni_pending());
    }
    return TN_OK;
}

/* Writes everything, or without a file only counts the size. */
static tn_status write_archive(const plan *p, tni_atomic_file *file, uint64_t *size)
{
    tni_zip_writer zip = { .file = file, .folder = "archive" };
    tn_status status = tni_zip_add(&zip, "data.pkl", p->pickle->data, p->pickle->n);
    if (status == TN_OK) status = tni_zip_add(&zip, "byteorder", "little", 6);
    for (int i = 0; status == TN_OK && i < p->list->n; i++)
        if (p->items[i].first == i) status = add_data(&zip, &p->items[i]);
    if (status == TN_OK) status = tni_zip_add(&zip, "version", "3\n", 2);
    if (status == TN_OK) status = check_bytes(p, "directory", zip.directory.n);
    if (status == TN_OK) status = tni_zip_end(&zip);
    tni_bytes_free(&zip.directory);
    *size = zip.at;
    return status;
}

static tn_status write_file(const plan *p, const char *path)
{
    uint64_t size;
    TNI_TRY(write_archive(p, NULL, &size));
    if (size > INT64_MAX)
        return tni_error(TN_E_INVALID, "%s: " TNI_PATH ": too large for a file", p->function, path);
    tni_atomic_file file;
    TNI_TRY(tni_file_create(&file, p->function, path, (int64_t)size));
    return tni_file_finish(&file, write_archive(p, &file, &size));
}

static tn_status write_plan(plan *p, const char *path)
{
    TNI_TRY(tni_check_counts(p->function, p->list, true));
    TNI_ITEMS(item, items, p->list->n);
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) pickle = { 0 };
    if (!items) return tni_pending();
    p->items = items, p->pickle = &pickle;
    TNI_TRY(collect(p));
    TNI_TRY(make_pickle(p));
    return write_file(p, path);
}

tn_status tni_pt_write(const char *function, const char *path, const tn_list *list)
{
    if (tni_ends_in(path, ".npz")) return tni_npz_write(function, path, list);
    return write_plan(&(plan){ .function = function, .list = list }, path);
}

/* ---- optimizers ------------------------------------------------------------------------------ */

static tn_status add_state(tn_list *list, int id, const char *name, tn_tensor *t)
{
    char text[80];
    snprintf(text, sizeof text, "%d.%s", id, name);
    return t ? tn_list_add(list, text, t) : tni_pending();
}

/* NAdam's product of mu_i = beta1 (1 - 0.96^(i decay) / 2), which PyTorch keeps. */
static double mu_product(const tn_optim *opt, const tni_optim_param *p)
{
    const double *number = opt->group[p->group].number;
    const double beta1 = number[tni_optim_number_at(opt->type, "beta1")],
                 decay = number[tni_optim_number_at(opt->type, "momentum_decay")];
    double product = 1;
    for (int64_t i = 1; i <= p->step && product > 0; i++)
        product *= beta1 * (1 - 0.5 * pow(0.96, (double)i * decay));
    return product;
}

static tn_status add_param(tn_list *list, const tn_optim *opt, const tni_optim_param *p, int id,
                           bool steps)
{
    tni_form form;
    if (p->step == 0) return TN_OK;
    const tn_device cpu = tn_cpu();
    if (steps)
        TNI_TRY(add_state(list, id, "step", tn_full_as(TN_SCALAR, (double)p->step, TN_F32, cpu)));
    if (!strcmp(opt->type->name, "nadam"))
        TNI_TRY(add_state(list, id, "mu_product",
                          tn_full_as(TN_SCALAR, mu_product(opt, p), TN_F32, cpu)));
    for (int s = 0; s < TN_OPTIM_STATES; s++)
        if (tni_optim_form(opt, p, s, &form))
            TNI_TRY(add_state(list, id, opt->type->state[s].name, p->state[s]));
    return TN_OK;
}

tn_status tn_optim_save_pytorch(tn_optim *opt, const char *path)
{
    if (tni_no_optim(opt)) return tni_poison(__func__, "opt");
    const char *key;
    bool steps;
    TNI_TRY(tni_path_check(__func__, path));
    TNI_TRY(tni_pt_optim_check(__func__, opt, &key, &steps));
    TN_SCOPE
    {
        /* names what is on another rank */
        tn_list *list = tn_optim_state_dict(opt) ? tn_list_new() : NULL;
        if (!list) return tni_pending();
        int id = 0;
        for (int k = 0; k < opt->n_groups; k++)
            for (int i = 0; i < opt->n; i++)
                if (opt->param[i].group == k)
                    TNI_TRY(add_param(list, opt, &opt->param[i], id++, steps));
        TNI_TRY(write_plan(&(plan){ .function = __func__, .list = list, .opt = opt }, path));
    }
    return TN_OK;
}
