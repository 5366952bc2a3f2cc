/*
 * checkpoint.c - everything that training needs to go on bit for bit, in one file.
 *
 * A safetensors file whose names carry their part: "model.", "optim.", "sched.", "loader.",
 * "rng.default" (u8: the default generator's whole state, the counters behind dropout included),
 * "rng.0" ... (the program's own generators), "step" (i64), the names of further parts (parts.c),
 * ".grad." (grads.c) and ".batch." (batch.c). Its metadata holds the caller's pairs, and
 * tenon.checkpoint = 1.
 *
 * Loading has two halves: read, compare and stage everything; then put it all in place by steps
 * that cannot fail. Modules, whose loading is itself all or nothing, are loaded in between.
 */
#include "io/parts.h"
#include "nn/module.h"

static const char *const keys[] = { TNI_CHECKPOINT, TNI_WRITER };
static const char *const values[] = { "1", TN_VERSION };

/* ---- saving ---------------------------------------------------------------------------------- */

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

static tn_status add_random(tn_list *list, const tn_checkpoint *c)
{
    for (int i = -1; i < c->n_generators; i++) {
        unsigned char bytes[TN_GENERATOR_STATE_SIZE];
        tn_generator_get_state(generator_of(c, i), bytes);
        tn_tensor *state = tn_from_data(bytes, TN_SHAPE(TN_GENERATOR_STATE_SIZE), TN_U8);
        char name[32];
        tn_status status = tn_list_add(list, random_name(i, name, sizeof name), state);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

/* A loader's state is also an array of numbers. */
typedef union loader_numbers {
    tni_loader_state state;
    int64_t number[TNI_LOADER_NUMBERS];
} loader_numbers;

static void add_loader(tni_serializer *f, const tn_loader *loader)
{
    loader_numbers u;
    tni_loader_get(loader, &u.state);
    for (int i = 0; i < TNI_LOADER_NUMBERS; i++)
        tni_field_i64(f, tni_field_name(f, "loader.%s", tni_loader_names[i]), &u.number[i]);
}

/* Weights that have become NaN must not replace the last good ones. Buffers may hold infinities: a
 * mask does. */
static tn_status check_module(const char *function, tn_module *model)
{
    tn_list *list = tn_parameters(model);
    if (!list) return tni_pending();
    for (int i = 0; i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
        if (!tn_dtype_is_float(e->tensor->dtype)) continue;
        tn_scope scope = tn_scope_begin();
        double finite = tn_item(tn_all(tn_isfinite(e->tensor), NULL, 0, false));
        tn_scope_end(scope);
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
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < parts->n; i++)
        if (parts->part[i].p.module) status = check_module(function, parts->part[i].p.module);
    return status;
}

static tn_status check_generators(const char *function, const tn_checkpoint *c)
{
    if (c->n_generators < 0)
        return tni_error(TN_E_INVALID, "%s: n_generators %d: want >= 0", function, c->n_generators);
    if (c->n_generators == 0 && c->generators)
        return tni_error(TN_E_INVALID,
                         "%s: n_generators 0 with generators: want how many they are, or NULL",
                         function);
    for (int i = 0; i < c->n_generators; i++)
        if (!c->generators || !c->generators[i])
            return tni_error(TN_E_INVALID, "%s: generators[%d] is NULL: want %d generators",
                             function, i, c->n_generators);
    return TN_OK;
}

static tn_status save(const char *f, const tn_checkpoint *c, const tni_parts *parts,
                      const char *path)
{
    tni_serializer serializer;
    int64_t step = c->step;
    tni_serializer_save(&serializer);
    tni_field_i64(&serializer, "step", &step);
    if (c->loader) add_loader(&serializer, c->loader);
    tn_list *list = tni_serializer_saved(&serializer);
    tn_status status = list ? add_random(list, c) : tni_pending();
    if (status == TN_OK) status = tni_batch_save(parts, list); /* puts buffers back */
    if (status == TN_OK) status = tni_parts_save(parts, list);
    if (status == TN_OK) status = tni_grads_save(f, parts, list);
    if (status != TN_OK) return status;
    tn_metadata own = { 2, (const char **)keys, (const char **)values };
    return tni_safetensors_write(
        f, path, list, (tni_writing){ .own = &own, .metadata = &c->metadata, .checksum = true });
}

tn_status tni_checkpoint_save(const char *function, const tn_checkpoint *c, const char *path)
{
    TNI_SCOPES_STAY;
    tn_scope scope = tn_scope_begin();
    tn_status status = tni_metadata_check(function, &c->metadata);
    if (status == TN_OK) status = check_generators(function, c);
    if (status == TN_OK) {
        tni_parts parts;
        status = tni_parts_of(function, c, &parts);
        if (status == TN_OK && !c->allow_nonfinite) status = check_finite(function, &parts);
        if (status == TN_OK) status = save(function, c, &parts, path);
        tni_parts_free(&parts);
    }
    tn_scope_end(scope);
    return status;
}

tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path)
{
    static const char f[] = "tn_checkpoint_save";
    return c ? tni_checkpoint_save(f, c, path) : tni_null(f, "c", "a checkpoint");
}

/* ---- loading --------------------------------------------------------------------------------- */

static tn_status open_checkpoint(tni_safetensors *file, const char *f, const char *path)
{
    tn_status status = tni_safetensors_open(file, f, path);
    if (status != TN_OK) return status;
    const char *version = tni_safetensors_string(file, keys[0]);
    if (!version)
        status = tni_error(TN_E_FORMAT,
                           "%s: " TNI_PATH ": not a checkpoint (for a file of weights: tn_load)", f,
                           path);
    else if (strcmp(version, values[0]) != 0)
        status = tni_error(TN_E_FORMAT,
                           "%s: " TNI_PATH ": a checkpoint of version %.16s: want version %s", f,
                           path, version, values[0]);
    else if (!tni_safetensors_string(file, TNI_CHECKSUM))
        status =
            tni_error(TN_E_FORMAT, "%s: " TNI_PATH ": a checkpoint without its checksum", f, path);
    if (status != TN_OK) tni_safetensors_close(file);
    return status;
}

/* Values of an entry that must have exactly this dtype and shape [n] (n = 0: rank 0). */
static tn_status read_values(tni_safetensors *file, const char *name, tn_dtype dtype, int64_t n,
                             void *out)
{
    const tni_safetensor *e = tni_safetensors_find(file, name);
    tn_shape shape = n ? TN_SHAPE(n) : TN_SCALAR;
    if (!e)
        return tni_error(TN_E_NAME, "%s: " TNI_PATH ": %s is missing", file->in.function,
                         file->in.path, name);
    if (e->dtype != dtype || !tni_shape_equal(&e->shape, &shape))
        return tni_error(TN_E_FORMAT, "%s: " TNI_PATH ": %s is %s %s: want %s %s",
                         file->in.function, file->in.path, name, tn_dtype_name(e->dtype),
                         tni_shape_text(&e->shape), tn_dtype_name(dtype), tni_shape_text(&shape));
    return tni_input_read(&file->in, file->data + e->begin, out, (size_t)(e->end - e->begin));
}

/* Everything that was read and compared, before any of it is put in place. */
typedef struct staged {
    tn_checkpoint c;                                  /* with the file's step and metadata */
    unsigned char (*random)[TN_GENERATOR_STATE_SIZE]; /* default, then own: n_random of them */
    size_t n_random;
    tni_loader_state loader;
} staged;

static tn_status stage_random(tni_safetensors *file, staged *s)
{
    const tn_checkpoint *c = &s->c;
    s->n_random = (size_t)c->n_generators + 1;
    s->random = tni_alloc_n(s->n_random, sizeof *s->random);
    tn_generator *trial = tn_generator_new(0);
    tn_status status = s->random && trial ? TN_OK : tni_pending();
    char name[32];
    for (int i = -1; status == TN_OK && i < c->n_generators; i++) {
        status = read_values(file, random_name(i, name, sizeof name), TN_U8,
                             TN_GENERATOR_STATE_SIZE, s->random[i + 1]);
        /* The same check as when setting it, on a throw-away generator. */
        if (status == TN_OK && tn_generator_set_state(trial, s->random[i + 1]) != TN_OK)
            status = tni_in_file(file->in.function, file->in.path);
    }
    tn_generator_free(trial);
    random_name(c->n_generators, name, sizeof name);
    if (status == TN_OK && c->n_generators && tni_safetensors_find(file, name))
        status = tni_error(TN_E_NAME,
                           "%s: " TNI_PATH ": %s is in it, but only %d generators are given here",
                           file->in.function, file->in.path, name, c->n_generators);
    return status;
}

static tn_status stage_loader(tni_safetensors *file, const tn_loader *loader, staged *s)
{
    loader_numbers u;
    for (int i = 0; i < TNI_LOADER_NUMBERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "loader.%s", tni_loader_names[i]);
        tn_status status = read_values(file, name, TN_I64, 0, &u.number[i]);
        if (status != TN_OK) return status;
    }
    s->loader = u.state;
    return tni_loader_fits(loader, &s->loader) == TN_OK
               ? TN_OK
               : tni_in_file(file->in.function, file->in.path);
}

static tn_status stage(tni_safetensors *file, staged *s)
{
    tn_status status = tni_safetensors_verify(file);
    if (status == TN_OK) status = tni_safetensors_metadata(file, "tenon.", &s->c.metadata);
    if (status == TN_OK) status = read_values(file, "step", TN_I64, 0, &s->c.step);
    if (status == TN_OK) status = stage_random(file, s);
    if (status == TN_OK && s->c.loader) status = stage_loader(file, s->c.loader, s);
    return status;
}

static void commit(tn_checkpoint *c, const staged *s, tni_parts *parts)
{
    tni_parts_put(parts);
    if (c->loader) tni_loader_set(c->loader, &s->loader);
    for (int i = -1; i < c->n_generators; i++)
        tni_disregard(tn_generator_set_state(generator_of(c, i), s->random[i + 1]));
    *c = s->c;
}

static tn_status load(tni_safetensors *file, tn_checkpoint *c, tni_parts *parts)
{
    staged s = { .c = *c };
    tn_status status = stage(file, &s);
    size_t guarded = tni_scope_guard();
    tn_scope scope = tn_scope_begin(); /* after the metadata, which stays */
    if (status == TN_OK) status = tni_parts_load(file, parts);
    if (status == TN_OK) commit(c, &s, parts);
    tn_scope_end(scope);
    if (tni_scope_unguard(guarded) && status == TN_OK)
        c->metadata = (tn_metadata){ 0 }; /* a hook ended its scope, which freed it */
    if (s.random) tni_free(s.random, s.n_random * sizeof *s.random);
    return status;
}

tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path)
{
    static const char f[] = "tn_checkpoint_load";
    if (!c) return tni_null(f, "c", "a checkpoint");
    tni_parts parts = { 0 };
    tn_status status = check_generators(f, c);
    if (status == TN_OK) status = tni_parts_of(f, c, &parts);
    tni_safetensors file;
    if (status == TN_OK) status = open_checkpoint(&file, f, path);
    if (status == TN_OK) {
        status = load(&file, c, &parts);
        tni_safetensors_close(&file);
    }
    tni_parts_free(&parts);
    return status;
}

tn_status tni_checkpoint_verify(const char *function, const char *path, int *error)
{
    tni_safetensors file;
    tn_status status = open_checkpoint(&file, function, path);
    *error = file.in.error;
    if (status != TN_OK) return status;
    status = tni_safetensors_verify(&file);
    tni_safetensors_close(&file);
    return status;
}

tn_status tn_checkpoint_peek(const char *path, tn_metadata *metadata, int64_t *step)
{
    tni_safetensors file;
    tn_status status = open_checkpoint(&file, "tn_checkpoint_peek", path);
    if (status != TN_OK) return status;
    int64_t value = 0;
    tn_metadata pairs = { 0 };
    status = read_values(&file, "step", TN_I64, 0, &value);
    if (status == TN_OK) status = tni_safetensors_metadata(&file, "tenon.", &pairs);
    if (status == TN_OK && metadata) *metadata = pairs;
    if (status == TN_OK && step) *step = value;
    tni_safetensors_close(&file);
    return status;
}
