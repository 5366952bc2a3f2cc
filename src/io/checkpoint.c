/*
 * checkpoint.c - everything that training needs to go on bit for bit, in one file.
 *
 * A safetensors file whose names carry their part: "model.", "optim.", "sched.", "loader.",
 * "rng.default" (u8: the default generator's whole state, the counters behind dropout included),
 * "rng.0" ... (the program's own generators), "step" (i64), the names of further parts and
 * ".grad." (parts.c), and ".batch." (batch.c). Its metadata holds the caller's pairs, and
 * tenon.checkpoint = 1.
 *
 * Loading has two halves: read, compare and stage everything; then put it all in place by steps
 * that cannot fail. Modules, whose loading is itself all or nothing, are loaded in between.
 */
#include "io/parts.h"
#include "nn/module.h"

#define bad(file, ...) tni_input_bad(&(file)->in, __VA_ARGS__)

/* ---- what is beside the parts ---------------------------------------------------------------- */

/* As it is now, or as it was read and compared, before any of it is put in place. */
typedef struct beside {
    tn_checkpoint c; /* loading: with the file's step and metadata */
    unsigned char (*random)[TN_GENERATOR_STATE_SIZE]; /* default, then own: n_random of them */
    size_t n_random;
    union {
        tni_loader_state state;
        int64_t number[TNI_LOADER_NUMBERS];
    } loader;
} beside;

static bool begin(beside *s, const tn_checkpoint *c)
{
    *s = (beside){ .c = *c, .n_random = (size_t)c->n_generators + 1 };
    return (s->random = tni_alloc_n(s->n_random, sizeof *s->random)) != NULL;
}

static void end(const beside *s)
{
    if (s->random) tni_free(s->random, s->n_random * sizeof *s->random);
}

/* Generator -1 is the default one. */
static const char *random_name(int i, char *name, size_t size)
{
    if (i < 0) return "rng.default";
    snprintf(name, size, "rng.%d", i);
    return name;
}

static tn_generator *generator_of(const tn_checkpoint *c, int i)
{
    return i < 0 ? tn_default_generator() : c->generators[i];
}

/* n values of a dtype (0: one, of rank 0): added to list, or read from an entry just like this. */
static tn_status value(tn_list *list, const tni_safetensors *file, const char *name, tn_dtype dtype,
                       int64_t n, void *at)
{
    tn_shape shape = n ? TN_SHAPE(n) : TN_SCALAR;
    if (list) return tn_list_add(list, name, tn_from_data(at, shape, dtype));
    const int i = tni_names_find(&file->entries, name);
    if (i < 0) return tni_input_error(&file->in, TN_E_NAME, "%s is missing", name);
    const tni_safetensor *e = &file->entry[i];
    if (e->dtype != dtype || !tni_shape_equal(&e->shape, &shape))
        return bad(file, "%s is %s %s: want %s %s", name, tn_dtype_name(e->dtype),
                   tni_shape_text(&e->shape), tn_dtype_name(dtype), tni_shape_text(&shape));
    return tni_input_read(&file->in, file->data + e->begin, at, (size_t)(e->end - e->begin));
}

/* All of them, so that saving and loading cannot differ. */
static tn_status values_of(beside *s, tn_list *list, const tni_safetensors *file)
{
    char name[64];
    tn_status status = value(list, file, "step", TN_I64, 0, &s->c.step);
    for (int i = -1; status == TN_OK && i < s->c.n_generators; i++)
        status = value(list, file, random_name(i, name, sizeof name), TN_U8,
                       TN_GENERATOR_STATE_SIZE, s->random[i + 1]);
    for (int i = 0; s->c.loader && status == TN_OK && i < TNI_LOADER_NUMBERS; i++) {
        snprintf(name, sizeof name, "loader.%s", tni_loader_names[i]);
        status = value(list, file, name, TN_I64, 0, &s->loader.number[i]);
    }
    return status;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* Weights that became NaN must not replace good ones. Buffers may hold infinities: a mask does. */
static tn_status check_module(const char *function, tn_module *model)
{
    tn_list *list = tn_parameters(model);
    if (!list) return tni_pending();
    for (int i = 0; i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
        if (!tn_dtype_is_float(e->tensor->dtype)) continue;
        double finite = 0;
        TN_SCOPE finite = tn_item(tn_all(tn_isfinite(e->tensor), NULL, 0, false));
        if (isnan(finite)) return tni_pending();
        if (finite == 0)
            return tni_error(TN_E_INVALID,
                             "%s: parameter %s holds NaN or infinity: nothing was written; "
                             "allow_nonfinite saves it all the same",
                             function, e->name);
    }
    return TN_OK;
}

static tn_status check_finite(const char *function, const tni_parts *parts)
{
    for (int i = 0; i < parts->n; i++)
        if (parts->part[i].p.module) TNI_TRY(check_module(function, parts->part[i].p.module));
    return TN_OK;
}

static tn_status check_generators(const char *function, const tn_checkpoint *c)
{
    if (c->n_generators < 0 || (c->n_generators == 0 && c->generators))
        return tni_error(TN_E_INVALID, "%s: n_generators %d%s: want how many they are, or NULL",
                         function, c->n_generators, c->n_generators ? "" : " with generators");
    for (int i = 0; i < c->n_generators; i++)
        if (!c->generators || !c->generators[i])
            return tni_error(TN_E_INVALID, "%s: generators[%d] is NULL: want %d generators",
                             function, i, c->n_generators);
    return TN_OK;
}

static tn_status save(const char *f, const tn_checkpoint *c, const tni_parts *parts,
                      const char *path)
{
    beside TN_WHEN_LEFT(end) s;
    tn_list *list = tn_list_new();
    if (!begin(&s, c) || !list) return tni_pending();
    for (int i = -1; i < c->n_generators; i++)
        tn_generator_get_state(generator_of(c, i), s.random[i + 1]);
    if (c->loader) tni_loader_get(c->loader, &s.loader.state);
    TNI_TRY(values_of(&s, list, NULL));
    TNI_TRY(tni_parts_save(f, parts, list));
    return tni_safetensors_write(f, path, list, (tni_writing){ &c->metadata, .checkpoint = true });
}

tn_status tni_checkpoint_save(const char *function, const tn_checkpoint *c, const char *path)
{
    TNI_SCOPES_STAY;
    TNI_TRY(tni_metadata_check(function, &c->metadata));
    TNI_TRY(check_generators(function, c));
    TNI_SCOPED;
    tni_parts TN_WHEN_LEFT(tni_parts_free) parts;
    TNI_TRY(tni_parts_of(function, c, &parts));
    TNI_TRY(c->allow_nonfinite ? TN_OK : check_finite(function, &parts));
    return save(function, c, &parts, path);
}

tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path)
{
    return c ? tni_checkpoint_save(__func__, c, path) : tni_null(__func__, "c", "a checkpoint");
}

/* ---- loading --------------------------------------------------------------------------------- */

static tn_status open_checkpoint(tni_safetensors *file, const char *f, const char *path)
{
    TNI_TRY(tni_safetensors_open(file, f, path));
    const char *version = tni_safetensors_string(file, TNI_CHECKPOINT);
    if (!version) return bad(file, "not a checkpoint (for a file of weights: tn_load)");
    if (strcmp(version, TNI_CHECKPOINT_NOW) != 0)
        return bad(file, "a checkpoint of version %.16s: want version " TNI_CHECKPOINT_NOW,
                   version);
    if (tni_safetensors_string(file, TNI_CHECKSUM)) return TN_OK;
    return bad(file, "a checkpoint without its checksum");
}

static tn_status check_random(const tni_safetensors *file, const beside *s)
{
    const int n = s->c.n_generators;
    char name[32];
    /* the same check as when setting it, on a throw-away generator */
    tn_generator *trial = tn_generator_new(0);
    tn_status status = trial ? TN_OK : tni_pending();
    for (size_t i = 0; status == TN_OK && i < s->n_random; i++)
        if (tn_generator_set_state(trial, s->random[i]) != TN_OK)
            status = tni_in_file(file->in.function, file->in.path);
    tn_generator_free(trial);
    if (status == TN_OK && n &&
        tni_names_find(&file->entries, random_name(n, name, sizeof name)) >= 0)
        status = tni_input_error(&file->in, TN_E_NAME,
                                 "%s is in it, but only %d generators are given here", name, n);
    return status;
}

static tn_status stage(tni_safetensors *file, beside *s)
{
    TNI_TRY(tni_safetensors_verify(file));
    TNI_TRY(tni_safetensors_metadata(file, "tenon.", &s->c.metadata));
    TNI_TRY(values_of(s, NULL, file));
    TNI_TRY(check_random(file, s));
    if (s->c.loader && tni_loader_fits(s->c.loader, &s->loader.state) != TN_OK)
        return tni_in_file(file->in.function, file->in.path);
    return TN_OK;
}

static void commit(tn_checkpoint *c, const beside *s, tni_parts *parts)
{
    tni_parts_put(parts);
    if (c->loader) tni_loader_set(c->loader, &s->loader.state);
    for (int i = -1; i < c->n_generators; i++)
        tni_disregard(tn_generator_set_state(generator_of(c, i), s->random[i + 1]));
    *c = s->c;
}

static tn_status load(tni_safetensors *file, tn_checkpoint *c, tni_parts *parts)
{
    beside TN_WHEN_LEFT(end) s;
    tn_status status = begin(&s, c) ? stage(file, &s) : TN_E_NOMEM;
    size_t guarded = tni_scope_guard();
    tn_scope scope = tn_scope_begin(); /* after the metadata, which stays */
    if (status == TN_OK) status = tni_parts_load(file, parts);
    if (status == TN_OK) commit(c, &s, parts);
    tn_scope_end(scope);
    if (tni_scope_unguard(guarded) && status == TN_OK)
        c->metadata = (tn_metadata){ 0 }; /* a hook ended its scope, which freed it */
    return status;
}

tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path)
{
    if (!c) return tni_null(__func__, "c", "a checkpoint");
    tni_parts TN_WHEN_LEFT(tni_parts_free) parts = { 0 };
    tni_safetensors TN_WHEN_LEFT(tni_safetensors_close) file = { .in.fd = -1 };
    TNI_TRY(check_generators(__func__, c));
    TNI_TRY(tni_parts_of(__func__, c, &parts));
    TNI_TRY(open_checkpoint(&file, __func__, path));
    return load(&file, c, &parts);
}

tn_status tni_checkpoint_verify(const char *function, const char *path, int *error)
{
    tni_safetensors TN_WHEN_LEFT(tni_safetensors_close) file;
    tn_status status = open_checkpoint(&file, function, path);
    *error = file.in.error;
    return status == TN_OK ? tni_safetensors_verify(&file) : status;
}

tn_status tn_checkpoint_peek(const char *path, tn_metadata *metadata, int64_t *step)
{
    tni_safetensors TN_WHEN_LEFT(tni_safetensors_close) file;
    TNI_TRY(open_checkpoint(&file, "tn_checkpoint_peek", path));
    int64_t at = 0;
    tn_metadata pairs = { 0 };
    TNI_TRY(value(NULL, &file, "step", TN_I64, 0, &at));
    TNI_TRY(tni_safetensors_metadata(&file, "tenon.", &pairs));
    if (metadata) *metadata = pairs;
    if (step) *step = at;
    return TN_OK;
}
