/*
 * checkpoint.c - everything that training needs to go on bit for bit, in one file.
 *
 * A safetensors file whose names carry their part: "model.", "optim.", "sched.", "loader.",
 * "rng.default" (u8: the default generator's whole state, the counters behind dropout included),
 * "step" (i64). Its metadata holds the caller's pairs, and tenon.checkpoint = 1.
 *
 * Loading is in two halves: read, compare and stage every part; then put all in place by steps that
 * cannot fail. The model's own loading, all or nothing itself, stands between them.
 */
#include <stdio.h>

#include "io/io.h"
#include "nn/module.h"
#include "optim/optim.h"

static const char *const keys[] = { "tenon.checkpoint", "tenon.version" };
static const char *const values[] = { "1", TN_VERSION };

/* ---- saving ---------------------------------------------------------------------------------- */

static tn_status add_part(tn_list *list, const char *prefix, const tn_list *part)
{
    if (!part) return tni_pending();
    for (int i = 0; i < part->n; i++) {
        tn_status status = tni_list_push(list, prefix, "", part->entry[i].name, part->entry[i]);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status add_random(tn_list *list)
{
    unsigned char bytes[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), bytes);
    tn_tensor *state = tn_from_data(bytes, TN_SHAPE(TN_GENERATOR_STATE_SIZE), TN_U8);
    return state ? tn_list_add(list, "rng.default", state) : tni_pending();
}

static tn_status add_loader(tn_list *list, const tn_loader *loader)
{
    union {
        tni_loader_state state;
        int64_t number[TNI_LOADER_NUMBERS];
    } u;
    tni_loader_get(loader, &u.state);
    for (int i = 0; i < TNI_LOADER_NUMBERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "loader.%s", tni_loader_names[i]);
        tn_status status = tni_list_i64(list, name, u.number[i]);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status save(const tn_checkpoint *c, const char *path)
{
    static const char f[] = "tn_checkpoint_save";
    for (int i = 0; i < c->metadata.n; i++)
        if (c->metadata.key[i] && !strncmp(c->metadata.key[i], "tenon.", 6))
            return tni_error(TN_E_NAME,
                             "%s: metadata key %s: names in tenon. are the library's own", f,
                             c->metadata.key[i]);
    tn_list *list = tn_list_new();
    tn_status status = list ? tni_list_i64(list, "step", c->step) : tni_pending();
    if (status == TN_OK) status = add_random(list);
    if (status == TN_OK && c->model) status = add_part(list, "model.", tn_state_dict(c->model, ""));
    if (status == TN_OK && c->optimizer)
        status = add_part(list, "optim.", tn_optim_state_dict(c->optimizer));
    if (status == TN_OK && c->scheduler)
        status = add_part(list, "sched.", tn_scheduler_state_dict(c->scheduler));
    if (status == TN_OK && c->loader) status = add_loader(list, c->loader);
    if (status != TN_OK) return status;
    tn_metadata own = { 2, (const char **)keys, (const char **)values };
    return tni_safetensors_write(f, path, list, &own, &c->metadata);
}

tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path)
{
    if (!c) return tni_poison("tn_checkpoint_save", "c");
    tn_scope scope = tn_scope_begin();
    tn_status status = save(c, path);
    tn_scope_end(scope);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

static tn_status open_checkpoint(tni_safetensors *file, const char *f, const char *path)
{
    tn_status status = tni_safetensors_open(file, f, path);
    if (status != TN_OK) return status;
    const char *version = tni_safetensors_string(file, keys[0]);
    if (version && !strcmp(version, values[0])) return TN_OK;
    status =
        version
            ? tni_error(TN_E_FORMAT, "%s: %s: a checkpoint of version %.16s: version %s is wanted",
                        f, path, version, values[0])
            : tni_error(TN_E_FORMAT, "%s: %s: not a checkpoint (for a file of weights: tn_load)", f,
                        path);
    tni_safetensors_close(file);
    return status;
}

/* Values of an entry that must have exactly this dtype and shape [n] (n = 0: a single value). */
static tn_status read_values(tni_safetensors *file, const char *name, tn_dtype dtype, int64_t n,
                             void *out)
{
    const tni_safetensor *e = tni_safetensors_find(file, name);
    tn_shape shape = n ? TN_SHAPE(n) : TN_SCALAR;
    if (!e)
        return tni_error(TN_E_NAME, "%s: %s: %s is missing", file->in.function, file->in.path,
                         name);
    if (e->dtype != dtype || !tni_shape_equal(&e->shape, &shape))
        return tni_error(TN_E_FORMAT, "%s: %s: %s is %s %s: %s %s is wanted", file->in.function,
                         file->in.path, name, tn_dtype_name(e->dtype), tni_shape_text(&e->shape),
                         tn_dtype_name(dtype), tni_shape_text(&shape));
    return tni_input_read(&file->in, file->data + e->begin, out, (size_t)(e->end - e->begin));
}

/* What has been read and compared, before any of it is put in place. */
typedef struct staged {
    int64_t step;
    unsigned char random[TN_GENERATOR_STATE_SIZE];
    tni_loader_state loader;
    tni_optim_staged *optimizer;
    tni_scheduler_staged *scheduler;
    tn_list *model;
    tn_metadata metadata;
} staged;

static tn_status stage_random(tni_safetensors *file, staged *s)
{
    tn_status status = read_values(file, "rng.default", TN_U8, TN_GENERATOR_STATE_SIZE, s->random);
    if (status != TN_OK) return status;
    /* The same check that setting it will make, on a generator that nobody needs. */
    tn_generator *trial = tn_generator_new(0);
    if (!trial) return tni_pending();
    status = tn_generator_set_state(trial, s->random);
    tn_generator_free(trial);
    return status == TN_OK ? TN_OK : tni_in_file(file->in.function, file->in.path);
}

static tn_status stage_loader(tni_safetensors *file, const tn_loader *loader, staged *s)
{
    union {
        tni_loader_state state;
        int64_t number[TNI_LOADER_NUMBERS];
    } u;
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

/* The part of a file as a list; NULL with a message when the file has none of it. */
static tn_list *part_of(tni_safetensors *file, const char *prefix, bool may_be_empty)
{
    tn_list *list = tni_safetensors_list(file, prefix);
    if (!list || list->n || may_be_empty) return list;
    tni_error(TN_E_NAME, "%s: %s: nothing of %s* is in it, but the part is given here",
              file->in.function, file->in.path, prefix);
    return NULL;
}

static tn_status stage(tni_safetensors *file, const tn_checkpoint *c, staged *s)
{
    tn_status status = read_values(file, "step", TN_I64, 0, &s->step);
    if (status == TN_OK) status = stage_random(file, s);
    if (status == TN_OK && c->loader) status = stage_loader(file, c->loader, s);
    if (status == TN_OK && c->optimizer) {
        tn_list *part = part_of(file, "optim.", false);
        s->optimizer = part ? tni_optim_stage(c->optimizer, part) : NULL;
        if (!s->optimizer)
            return part ? tni_in_file(file->in.function, file->in.path) : tni_pending();
    }
    if (status == TN_OK && c->scheduler) {
        tn_list *part = part_of(file, "sched.", false);
        s->scheduler = part ? tni_scheduler_stage(c->scheduler, part) : NULL;
        if (!s->scheduler)
            return part ? tni_in_file(file->in.function, file->in.path) : tni_pending();
    }
    if (status == TN_OK && c->model) {
        tn_list *own = tn_state_dict(c->model, "");
        s->model = own ? part_of(file, "model.", own->n == 0) : NULL;
        if (!s->model) return tni_pending();
    }
    return status;
}

static void commit(tn_checkpoint *c, staged *s)
{
    if (c->optimizer) tni_optim_commit(c->optimizer, s->optimizer);
    if (c->scheduler) tni_scheduler_commit(c->scheduler, s->scheduler);
    if (c->loader) tni_loader_set(c->loader, &s->loader);
    tn_generator_set_state(tn_default_generator(), s->random);
    c->step = s->step;
    c->metadata = s->metadata;
}

tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path)
{
    static const char f[] = "tn_checkpoint_load";
    if (!c) return tni_poison(f, "c");
    tni_safetensors file;
    tn_status status = open_checkpoint(&file, f, path);
    if (status != TN_OK) return status;
    staged s = { 0 };
    status =
        tni_safetensors_metadata(&file, "tenon.", &s.metadata); /* before the scope: it stays */
    tn_scope scope = tn_scope_begin();
    if (status == TN_OK) status = stage(&file, c, &s);
    if (status == TN_OK && c->model &&
        tn_load_state_dict(c->model, s.model, (tn_load_options){ 0 }, NULL) != TN_OK)
        status = tni_in_file(f, path);
    if (status == TN_OK) {
        commit(c, &s);
    } else {
        tni_optim_discard(s.optimizer);
        tni_scheduler_discard(s.scheduler);
    }
    tn_scope_end(scope);
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
