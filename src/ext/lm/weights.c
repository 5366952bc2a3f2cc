/*
 * weights.c - weights of language models from the files of transformers, and back.
 *
 * Names are those of our modules but for what may stand in front of them. Weights of GPT-2's
 * Conv1D lie as [in, out]: they are turned.
 */
#include "ext/lm/model.h"
#include "io/choice.h"
#include "nn/layers/layer.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* A weight of Conv1D: [in, out] in files, but for bytes. */
static bool turned(const tni_lm *m, const char *name, const tn_tensor *t)
{
    return m->c.family == TNI_LM_GPT2 && tn_rank(t) == 2 && tn_dtype_of(t) != TN_U8 &&
           (tni_ends_in(name, ".c_attn.weight") || tni_ends_in(name, ".c_proj.weight") ||
            tni_ends_in(name, ".c_fc.weight"));
}

/* The embedding's weight. */
static const char *table_of(const tni_lm *m)
{
    return m->c.family == TNI_LM_GPT2   ? "transformer.wte.weight"
           : m->c.family == TNI_LM_BERT ? "bert.embeddings.word_embeddings.weight"
                                        : "model.embed_tokens.weight";
}

/* What is no weight of ours: masks and tables of old files, BERT's heads. */
static bool left_out(const tni_lm *m, const char *name)
{
    if (m->c.family == TNI_LM_LLAMA) return tni_ends_in(name, ".rotary_emb.inv_freq");
    if (m->c.family == TNI_LM_BERT)
        return !strncmp(name, "cls.", 4) || tni_ends_in(name, "embeddings.position_ids");
    return tni_ends_in(name, ".attn.bias") || tni_ends_in(name, ".attn.masked_bias");
}

/* What files from TensorFlow call the weight and the bias of BERT's norms. */
static void rename_norm(char *name)
{
    char *last = strrchr(name, '.');
    if (tni_ends_in(name, ".LayerNorm.gamma")) strcpy(last, ".weight");
    if (tni_ends_in(name, ".LayerNorm.beta")) strcpy(last, ".bias");
}

/* The list under our names, in one floating dtype. */
static tn_list *ours(const tni_lm *m, const tn_list *files, tn_lm_options o)
{
    tn_list *list = tn_list_new();
    char name[2048];
    const char *const table = table_of(m), *const word = strchr(table, '.') + 1;
    for (int i = 0; list && !o.use_dtype && i < files->n; i++) {
        o.use_dtype = tni_ends_in(files->entry[i].name, word);
        o.dtype = tn_dtype_of(files->entry[i].tensor);
    }
    const int prefix = (int)(word - table); /* BERT's modules are those without it */
    const bool bert = m->c.family == TNI_LM_BERT;
    for (int i = 0; list && i < files->n; i++) {
        const char *theirs = files->entry[i].name; /* may lack what is before word */
        const bool whole = !strncmp(theirs, table, (size_t)prefix);
        const bool as_is = whole || bert || !strncmp(theirs, "lm_head.", 8);
        if (whole && bert) theirs += prefix;
        snprintf(name, sizeof name - 1, "%.*s%s", as_is ? 0 : prefix, table, theirs);
        if (bert) rename_norm(name);
        if (left_out(m, theirs)) continue;
        tn_tensor *t = files->entry[i].tensor;
        if (o.use_dtype && tn_dtype_is_float(tn_dtype_of(t))) t = tn_to_dtype(t, o.dtype);
        if (turned(m, name, t)) t = tn_contiguous(tn_transpose(t, 0, 1));
        if (tn_list_add(list, name, t) != TN_OK) return NULL;
    }
    return list;
}

/* ---- loading --------------------------------------------------------------------------------- */

static tn_status find_weights(const char *folder, char *path, size_t size)
{
    static const char *const files[] = { "model.safetensors", "model.safetensors.index.json",
                                         "pytorch_model.bin", "pytorch_model.bin.index.json" };
    for (int i = 0; i < 4; i++) {
        TNI_TRY(tni_path_in("tn_lm_load", folder, files[i], path, size));
        if (access(path, F_OK) == 0) return TN_OK;
    }
    return tni_file_error(TN_E_IO, "tn_lm_load", folder,
                          "no weights: want model.safetensors or its index, or pytorch_model.bin");
}

/* Tied by config, and both in the file, which differ: as transformers, both are kept. */
static tn_status untie(tni_lm *m, const tn_list *list)
{
    const char *const word = table_of(m);
    if (!m->c.tied || !tn_list_has(list, word) || !tn_list_has(list, "lm_head.weight"))
        return TN_OK;
    tn_tensor *head = tn_list_get(list, "lm_head.weight"), *table = tn_list_get(list, word);
    const tn_shape a = tn_shape_get(head), b = tn_shape_get(table);
    if (!tni_shape_equal(&a, &b) || tn_max_abs_diff(head, table) == 0) return TN_OK;
    m->c.tied = false;
    return tn_module_set(m->part[1], "weight", tn_empty_like(head));
}

/* Gives a Linear the weight of bytes that the file has for it. */
static tn_status take_bytes(tn_module *m, const char *path, void *user)
{
    char name[1024];
    snprintf(name, sizeof name, "%s.weight", path);
    if (!tni_is_linear(m) || !tn_list_has(user, name)) return TN_OK;
    const tni_linear *linear = (const tni_linear *)m;
    tn_tensor *t = tn_list_get(user, name);
    if (!tni_groups_of(t, linear->in) || tn_size(t, 0) != linear->out) return TN_OK;
    return tn_register_frozen(m, "weight", NULL, t);
}

static tn_status load(tni_lm *m, const char *folder, tn_lm_options o)
{
    TNI_SCOPED;
    char path[4096];
    TNI_TRY(find_weights(folder, path, sizeof path));
    const tn_load_options as = { .widen = true, .unwrap = true };
    const tn_list *files = tn_load_tensors_with(path, as, NULL, NULL);
    tn_list *list = files ? ours(m, files, o) : NULL;
    if (!list) return tni_pending();
    TNI_TRY(untie(m, list));
    TNI_TRY(tn_named_modules(&m->base, take_bytes, list));
    const tn_load_options into = { .assign = true, .non_strict = o.non_strict };
    TNI_TRY(tn_load_state_dict(&m->base, list, into, o.report));
    if (o.non_strict) /* what the file lacks is f32 */
        TNI_TRY(tn_module_to_dtype(&m->base, tn_dtype_of(tni_lm_table(m))));
    TNI_TRY(tni_path_in("tn_lm_load", folder, "generation_config.json", path, sizeof path));
    return access(path, F_OK) == 0 ? tni_lm_config_read(&m->c, "tn_lm_load", path, NULL) : TN_OK;
}

tn_module *tn_lm_load(const char *folder, tn_lm_options o)
{
    if (o.report) *o.report = (tn_load_report){ 0 };
    if (o.use_dtype && !tn_dtype_is_float(o.dtype))
        return tni_fail(TN_E_DTYPE, "tn_lm_load: %s: want a floating dtype",
                        tn_dtype_name(o.dtype));
    tn_module *m = tni_lm_make("tn_lm_load", folder, o.non_strict);
    if (!m) return NULL;
    if (load((tni_lm *)m, folder, o) == TN_OK && tn_eval(m) == TN_OK) return m;
    tn_module_drop(m);
    return NULL;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The config as it was read, but for the dtype. */
static tn_status save_config(const tni_lm *m, const char *path, tn_dtype dtype)
{
    static const char *const names[] = { "float32", "float64", "bfloat16", "float16" };
    const char *text = m->text, *at = text + m->c.dtype_at, *end = at + strcspn(at, "\"");
    if (at == text || dtype > TN_F16)
        return tni_file_replace("tn_lm_save", path, text, strlen(text));
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) b = { 0 };
    tni_bytes_printf(&b, "%.*s%s%s", (int)(at - text), text, names[dtype], end);
    return b.failed ? tni_pending() : tni_file_replace("tn_lm_save", path, b.data, b.n);
}

static tn_status save_ends(const tni_lm *m, const char *folder)
{
    static const char *const f = "tn_lm_save";
    char path[4096], text[512] = "{\"eos_token_id\": [";
    if (!m->c.ends_apart) return TN_OK;
    TNI_TRY(tni_path_in(f, folder, "generation_config.json", path, sizeof path));
    for (int i = 0; i < m->c.n_eos; i++)
        tni_text_add(text, sizeof text, "%s%" PRId64, i ? ", " : "", m->c.eos[i]);
    tni_text_add(text, sizeof text, "]}\n");
    return tni_file_replace(f, path, text, strlen(text));
}

tn_status tni_lm_folder(const char *function, const char *folder)
{
    tn_status status = tni_path_check(function, folder);
    if (status != TN_OK || mkdir(folder, 0777) == 0 || errno == EEXIST) return status;
    return tni_file_error(tni_errno(errno), function, folder, "%s", strerror(errno));
}

tn_status tn_lm_save(tn_module *module, const char *folder)
{
    const tn_metadata metadata = { 1, (const char *[]){ "format" }, (const char *[]){ "pt" } };
    char path[4096];
    tni_lm *m = tni_lm_of("tn_lm_save", module);
    if (!m) return tni_pending();
    TNI_UNRECORDED;
    TNI_TRY(tni_lm_folder("tn_lm_save", folder));
    const tn_list *state = tn_state_dict(module, "");
    tn_list *list = tn_list_new();
    if (!state || !list) return tni_pending();
    for (int i = 0; i < state->n; i++) {
        tn_entry e = state->entry[i];
        if (e.owner && e.owner->type == &tni_lora_type) continue;
        if (e.tensor == tni_lm_table(m) && strcmp(e.name, "lm_head.weight") == 0) continue;
        if (turned(m, e.name, e.tensor)) e.tensor = tn_contiguous(tn_transpose(e.tensor, 0, 1));
        TNI_TRY(tn_list_add(list, e.name, e.tensor));
    }
    TNI_TRY(tni_path_in("tn_lm_save", folder, "config.json", path, sizeof path));
    TNI_TRY(save_config(m, path, tn_dtype_of(list->entry[0].tensor)));
    TNI_TRY(tni_path_in("tn_lm_save", folder, "model.safetensors", path, sizeof path));
    TNI_TRY(tn_save_tensors(list, &metadata, path));
    return save_ends(m, folder);
}
