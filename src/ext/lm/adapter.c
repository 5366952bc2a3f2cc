/*
 * adapter.c - an adapter in a folder, as the peft package writes and reads it: its values in
 * adapter_model.safetensors, its settings in adapter_config.json.
 *
 * Which Linears have one is read off the names of the values, so that target_modules, a list or a
 * regular expression, need not be understood.
 */
#include "ext/lm/config.h"
#include "io/choice.h"
#include "nn/layers/layer.h"

#define BEGIN "base_model.model."
static const char values_file[] = "adapter_model.safetensors",
                  config_file[] = "adapter_config.json";

/* The active adapter under its names in a file, of which it adds the Linears' to targets. */
static const tni_lora *list_active(const tn_list *all, tn_list *list, tni_bytes *targets)
{
    const tni_lora *l = NULL;
    for (int i = 0; i < all->n; i++) {
        const tn_entry *e = &all->entry[i];
        if (e->owner->type != &tni_lora_type || !((tni_lora *)e->owner)->active) continue;
        const char *end = strrchr(e->name, '.'); /* X.NAME.lora_A */
        const char *dot = memrchr(e->name, '.', (size_t)(end - e->name));
        char name[4096];
        const int n = snprintf(name, sizeof name, BEGIN "%.*s", (int)(dot - e->name), e->name);
        if (n > (int)sizeof name - 32)
            return tni_fail(TN_E_NAME, "tn_lora_save: %.99s...: %d characters", e->name, n);
        if (end[6] == 'A') tni_bytes_add(targets, ", ", l ? 2 : 0);
        if (end[6] == 'A') tni_json_add(targets, name + strlen(BEGIN));
        snprintf(name + n, sizeof name - (size_t)n, "%s.weight", end);
        if (tn_list_add(list, name, e->tensor) != TN_OK) return NULL;
        l = (const tni_lora *)e->owner;
    }
    return l ? l : tni_fail(TN_E_STATE, "tn_lora_save: no adapter is active: want tn_lora_set");
}

tn_status tn_lora_save(tn_module *m, const char *folder)
{
    static const char f[] = "tn_lora_save";
    TNI_SCOPED;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) targets = { 0 };
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    TNI_TRY(tni_path_check(f, folder));
    const tn_metadata metadata = { 1, (const char *[]){ "format" }, (const char *[]){ "pt" } };
    const tn_list *all = tn_parameters(m);
    tn_list *list = tn_list_new();
    const tni_lora *l = all && list ? list_active(all, list, &targets) : NULL;
    char path[4096];
    if (!l) return tni_pending();
    TNI_C_NUMBERS;
    tni_bytes_printf(&text,
                     "{\n  \"peft_type\": \"LORA\",\n  \"r\": %" PRId64 ",\n"
                     "  \"lora_alpha\": %.17g,\n  \"lora_dropout\": %.17g,\n"
                     "  \"use_rslora\": %s,\n  \"target_modules\": [%.*s]\n}\n",
                     tn_size(l->a, 0), l->alpha, l->dropout, l->rslora ? "true" : "false",
                     (int)targets.n, targets.data);
    if (targets.failed || text.failed) return tni_pending();
    TNI_TRY(tni_lm_folder(f, folder));
    TNI_TRY(tni_path_in(f, folder, values_file, path, sizeof path));
    TNI_TRY(tn_save_tensors(list, &metadata, path));
    TNI_TRY(tni_path_in(f, folder, config_file, path, sizeof path));
    return tni_file_replace(f, path, text.data, text.n);
}

/* Settings that change no value of an adapter that is there. */
static const char harmless[] =
    " auto_mapping base_model_name_or_path eva_config exclude_modules fan_in_fan_out revision "
    "inference_mode layers_pattern layers_to_transform megatron_core peft_version task_type "
    "qalora_group_size runtime_config target_modules ";

static tn_status read_setting(tn_lora_options *o, const tni_json_node *v, const char *path)
{
    const bool number = v->kind == '0' || v->kind == '.';
    const char *key = v->key, *text = v->kind == '"' ? v->text : "";
    char word[64];
    if (!strcmp(key, "r") && v->kind == '0' && v->number) return o->rank = v->number, TN_OK;
    if (!strcmp(key, "lora_alpha") && number && v->real != 0) return o->alpha = v->real, TN_OK;
    if (!strcmp(key, "lora_dropout") && number) return o->dropout = v->real, TN_OK;
    if (!strcmp(key, "use_rslora") && v->kind == 't') return o->rslora = true, TN_OK;
    bool fine = v->kind == 'n' || v->kind == 'f' || (strchr("[{", v->kind) && !v->number);
    fine |= !strcmp(key, "bias") && !strcmp(text, "none");
    fine |= !strcmp(key, "peft_type") && !strcmp(text, "LORA");
    fine |= !strcmp(key, "init_lora_weights") && (v->kind == 't' || !strcmp(text, "gaussian"));
    snprintf(word, sizeof word, " %s ", key);
    if (fine || (!strchr(key, ' ') && strstr(harmless, word))) return TN_OK;
    return tni_file_error(TN_E_UNSUPPORTED, "tn_lora_load", path,
                          "the setting \"%.64s\" has a value that is not supported", key);
}

static tn_status read_config(const char *path, tn_lora_options *o)
{
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    tni_json_tree TN_WHEN_LEFT(tni_json_tree_free) tree = { 0 };
    TNI_TRY(tni_lm_tree("tn_lora_load", path, &text, &tree));
    for (const tni_json_node *v = tni_json_first(tree.node); v; v = tni_json_after(v))
        TNI_TRY(read_setting(o, v, path));
    return TN_OK;
}

/* The values by their names in the model, and the Linears' names, which adapters are to fit. */
static tn_status sort_out(const tn_list *files, const char *path, const char *adapter,
                          tn_list *values, tni_bytes *linears)
{
    const int begin = (int)strlen(BEGIN), end = (int)strlen(".lora_A.weight");
    int n_a = 0;
    for (int i = 0; i < files->n; i++) {
        const char *name = files->entry[i].name;
        const int n = (int)strlen(name) - begin - end;
        const bool a = tni_ends_in(name, ".lora_A.weight"), b = tni_ends_in(name, ".lora_B.weight");
        char own[4096];
        if ((!a && !b) || n < 1 || strncmp(name, BEGIN, (size_t)begin) != 0)
            return tni_file_error(TN_E_UNSUPPORTED, "tn_lora_load", path,
                                  "%.300s: want " BEGIN "X.lora_A.weight, or lora_B", name);
        if (a) tni_bytes_printf(linears, "%s%.*s", n_a++ ? "," : "", n, name + begin);
        snprintf(own, sizeof own, "%.*s.%s.lora_%c", n, name + begin, adapter, a ? 'A' : 'B');
        if (tn_list_add(values, own, files->entry[i].tensor) != TN_OK) return tni_pending();
    }
    tni_bytes_add(linears, "", 1);
    if (linears->failed) return tni_pending();
    if (n_a && 2 * n_a == files->n) return TN_OK;
    return tni_file_error(TN_E_FORMAT, "tn_lora_load", path,
                          "%d lora_A of %d values: want some, and as many lora_B", n_a, files->n);
}

static tn_status fill(tn_module *m, void *user)
{
    const tn_list *values = user;
    tn_load_report report;
    const tn_load_options o = { .non_strict = true, .cast = true };
    tn_status status = tn_load_state_dict(m, values, o, &report);
    if (status != TN_OK || report.loaded == values->n) return status;
    return tni_error(TN_E_NAME, "tn_lora_load: %d of %d values have a place in the model",
                     report.loaded, values->n);
}

tn_status tn_lora_load(tn_module *m, const char *folder, const char *name)
{
    static const char f[] = "tn_lora_load";
    TNI_SCOPED;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) linears = { 0 };
    tn_lora_options o = { .name = name ? name : "default" };
    char path[4096];
    TNI_TRY(tni_path_check(f, folder));
    TNI_TRY(tni_path_in(f, folder, config_file, path, sizeof path));
    TNI_TRY(read_config(path, &o));
    TNI_TRY(tni_path_in(f, folder, values_file, path, sizeof path));
    const tn_list *files = tn_load_tensors(path, NULL);
    tn_list *values = files ? tn_list_new() : NULL;
    if (!values) return tni_pending();
    TNI_TRY(sort_out(files, path, o.name, values, &linears));
    tni_init_skipped = true;
    tn_status status = tni_lora_add(f, m, linears.data, o, fill, values);
    tni_init_skipped = false;
    return status;
}
