/*
 * lora_file.c - an adapter in a folder, as the peft package writes and reads it: its values in
 * adapter_model.safetensors, its settings in adapter_config.json.
 *
 * Which layers have one is read off the names of the values, so that target_modules, a list or a
 * regular expression, need not be understood.
 */
#include <errno.h>
#include <sys/stat.h>
#include <tenon/io.h>

#include "base/host.h"
#include "ext/lm/lora.h"
#include "io/json.h"
#include "nn/named.h"

#define PREFIX "base_model.model."
#define BASE ".base_layer."

/* "FOLDER/FILE"; tni_name_free. */
static char *path_of(const char *folder, const char *file)
{
    char name[64];
    snprintf(name, sizeof name, "/%s", file);
    return tni_name_new(folder, "", name);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* What is written: the active adapter and its layers, and modules that are trained whole. */
typedef struct writing {
    tni_sites sites;
    const tni_lora *first; /* a layer that has it; NULL: none */
    tni_map whole;         /* modules */
    const char *bias;      /* as peft says it */
} writing;

static bool is_bias(const tn_entry *e)
{
    const char *dot = strrchr(e->name, '.');
    return e->kind == TN_PARAMETER && strcmp(dot ? dot + 1 : e->name, "bias") == 0;
}

static bool is_factor(const tn_entry *e)
{
    return e->owner && strcmp(e->owner->type->name, "LoraFactor") == 0;
}

static tn_status find_trained(writing *w, const tn_list *state)
{
    for (int i = 0; i < state->n; i++) {
        const tn_entry *e = &state->entry[i];
        if (is_factor(e) || e->kind != TN_PARAMETER || !tn_requires_grad(e->tensor)) continue;
        if (!is_bias(e) && tni_map_put(&w->whole, e->owner, e->owner) < 0) return TN_E_NOMEM;
    }
    w->bias = "none";
    for (int i = 0; i < state->n; i++) {
        const tn_entry *e = &state->entry[i];
        if (!is_bias(e) || !tn_requires_grad(e->tensor) || tni_map_get(&w->whole, e->owner))
            continue;
        if (!strstr(e->name, BASE))
            w->bias = "all";
        else if (strcmp(w->bias, "none") == 0)
            w->bias = "lora_only";
    }
    return TN_OK;
}

static tn_status add_value(tn_list *list, const char *path, const char *end, tn_tensor *t)
{
    char *name = tni_name_new(PREFIX, path, end);
    if (!name) return TN_E_NOMEM;
    tn_status status = tn_list_add(list, name, t);
    tni_name_free(name);
    return status;
}

static tn_list *values_of(const writing *w, const tn_list *state)
{
    tn_list *list = tn_list_new();
    tn_status status = list ? TN_OK : tni_pending();
    for (size_t i = 0; status == TN_OK && i < w->sites.n; i++) {
        const tni_lora *m = tni_lora_of(w->sites.at[i].module);
        if (!m || !m->now_a) continue;
        status = add_value(list, w->sites.at[i].path, "lora_A.weight", m->now_a->weight);
        if (status == TN_OK)
            status = add_value(list, w->sites.at[i].path, "lora_B.weight", m->now_b->weight);
    }
    for (int i = 0; status == TN_OK && i < state->n; i++) {
        const tn_entry *e = &state->entry[i];
        bool whole = tni_map_get(&w->whole, e->owner) != NULL;
        if (!is_factor(e) && (whole || (is_bias(e) && tn_requires_grad(e->tensor))))
            status = add_value(list, "", e->name, e->tensor);
    }
    return status == TN_OK ? list : NULL;
}

typedef enum what { LAYERS, WHOLE, RANKS, ALPHAS } what;

/* In JSON: a list of the layers with the adapter, or of modules that are trained whole; an object
 * of the layers whose rank, or alpha, is not the first one's. */
static void put(tni_bytes *b, const writing *w, what what)
{
    const char *open = what >= RANKS ? "{" : "[", *between = open;
    const tni_factor *first = w->first->now_a;
    for (size_t i = 0; i < w->sites.n; i++) {
        const tni_site *s = &w->sites.at[i];
        const tni_lora *m = tni_lora_of(s->module);
        const tni_factor *f = m ? m->now_a : NULL;
        if (what == WHOLE ? !tni_map_get(&w->whole, s->module) : !f) continue;
        double rank = f ? (double)tn_size(f->weight, 0) : 0, n = rank;
        if (what == ALPHAS) n = f->scale * (first->rslora ? sqrt(rank) : rank);
        if (what == ALPHAS && f->rslora == first->rslora) n = f->alpha;
        if (what == RANKS && n == (double)tn_size(first->weight, 0)) continue;
        if (what == ALPHAS && n == first->alpha) continue;
        tni_bytes_printf(b, "%s", between);
        tni_json_add(b, s->path);
        if (what >= RANKS) tni_bytes_printf(b, ": %.17g", n);
        between = ", ";
    }
    tni_bytes_printf(b, "%s%s", between == open ? open : "", what >= RANKS ? "}" : "]");
}

static void put_config(tni_bytes *b, const writing *w)
{
    TNI_C_NUMBERS;
    const tni_factor *a = w->first->now_a;
    tni_bytes_printf(b,
                     "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": null,\n"
                     "  \"base_model_name_or_path\": null,\n  \"inference_mode\": true,\n"
                     "  \"r\": %" PRId64 ",\n  \"lora_alpha\": %.17g,\n"
                     "  \"lora_dropout\": %.17g,\n  \"use_rslora\": %s,\n"
                     "  \"bias\": \"%s\",\n  \"fan_in_fan_out\": false,\n"
                     "  \"init_lora_weights\": true,\n  \"use_dora\": false,\n",
                     tn_size(a->weight, 0), a->alpha, a->dropout, a->rslora ? "true" : "false",
                     w->bias);
    static const char *const keys[] = { "target_modules", "modules_to_save", "rank_pattern",
                                        "alpha_pattern" };
    for (what i = LAYERS; i <= ALPHAS; i++) {
        tni_bytes_printf(b, "%s  \"%s\": ", i ? ",\n" : "", keys[i]);
        put(b, w, i);
    }
    tni_bytes_printf(b, "\n}\n");
}

static tn_status write_files(const char *f, const writing *w, const tn_list *values,
                             const char *folder)
{
    const char *key = "format", *value = "pt";
    char *model = path_of(folder, "adapter_model.safetensors");
    char *config = path_of(folder, "adapter_config.json");
    tni_bytes text = { 0 };
    put_config(&text, w);
    tn_status status = model && config && !text.failed ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK && mkdir(folder, 0777) != 0 && errno != EEXIST)
        status = tni_file_error(tni_errno(errno), f, folder, "%s", strerror(errno));
    if (status == TN_OK) status = tn_save_tensors(values, &(tn_metadata){ 1, &key, &value }, model);
    if (status == TN_OK) status = tni_file_replace(f, config, text.data, text.n);
    tni_bytes_free(&text);
    if (model) tni_name_free(model);
    if (config) tni_name_free(config);
    return status;
}

tn_status tn_lora_save(tn_module *m, const char *folder)
{
    static const char f[] = "tn_lora_save";
    writing w = { 0 };
    tn_scope scope = tn_scope_begin();
    tn_status status = tni_path_check(f, folder);
    if (status == TN_OK) status = tni_sites_find(f, m, &w.sites);
    for (size_t i = 0; status == TN_OK && i < w.sites.n && !w.first; i++) {
        const tni_lora *l = tni_lora_of(w.sites.at[i].module);
        if (l && l->now_a) w.first = l;
    }
    if (status == TN_OK && !w.first)
        status = tni_error(TN_E_STATE, "%s: no adapter is active: want tn_lora_set before", f);
    tn_list *state = status == TN_OK ? tn_state_dict(m, "") : NULL;
    if (status == TN_OK) status = state ? find_trained(&w, state) : tni_pending();
    tn_list *values = status == TN_OK ? values_of(&w, state) : NULL;
    if (status == TN_OK) status = values ? write_files(f, &w, values, folder) : tni_pending();
    tni_sites_free(&w.sites);
    tni_map_free(&w.whole);
    tn_scope_end(scope);
    return status;
}

/* ---- reading the settings -------------------------------------------------------------------- */

typedef struct pattern {
    const char *key; /* the end of a name */
    double alpha;
} pattern;

typedef struct config {
    char *text; /* all strings are in it */
    size_t size;
    double r, alpha, dropout;
    bool rslora;
    pattern *pattern; /* n of them */
    size_t n, room;
    const char *f, *path;
} config;

static tn_status bad(const config *c, const char *key, const char *want)
{
    return tni_file_error(TN_E_FORMAT, c->f, c->path, "\"%.64s\": want %s", key, want);
}

static bool number(tni_json *j, double *x)
{
    TNI_C_NUMBERS;
    char digits[64], *end;
    size_t n = 0;
    if (tni_json_kind(j) != '0') return false;
    while (n + 1 < sizeof digits && j->at < j->end && strchr("+-.0123456789Ee", *j->at))
        digits[n++] = *j->at++;
    digits[n] = '\0';
    *x = strtod(digits, &end);
    return n && !*end && isfinite(*x);
}

/* Whether the next value is null, false or empty; moves past it. */
static bool unused(tni_json *j)
{
    if (tni_json_word(j, "null") || tni_json_word(j, "false")) return true;
    if (tni_json_open(j, '{')) return !tni_json_next(j, '}');
    return tni_json_open(j, '[') && !tni_json_next(j, ']');
}

static tn_status read_alphas(config *c, tni_json *j)
{
    if (tni_json_word(j, "null")) return TN_OK;
    if (!tni_json_open(j, '{')) return bad(c, "alpha_pattern", "an object of numbers");
    while (tni_json_next(j, '}')) {
        pattern p = { .key = tni_json_key(j) };
        if (!p.key || !number(j, &p.alpha)) return bad(c, "alpha_pattern", "an object of numbers");
        if (strpbrk(p.key, "\\^$*+?()[]{}|"))
            return tni_file_error(TN_E_UNSUPPORTED, c->f, c->path,
                                  "alpha_pattern \"%.200s\": want a plain name", p.key);
        if (!tni_room(&c->pattern, &c->room, c->n, 1, sizeof p)) return TN_E_NOMEM;
        c->pattern[c->n++] = p;
    }
    return TN_OK;
}

/* Whether a key, or a value, is one of those that spaces divide. */
static bool among(const char *words, const char *word)
{
    const char *at = word && *word && !strchr(word, ' ') ? strstr(words, word) : NULL;
    for (; at; at = strstr(at + 1, word))
        if (at[-1] == ' ' && at[strlen(word)] == ' ') return true;
    return false;
}

/* Settings that change no value of a saved adapter. */
static const char harmless[] =
    " auto_mapping base_model_name_or_path bias ensure_weight_tying eva_config exclude_modules "
    "fan_in_fan_out inference_mode layers_pattern layers_to_transform megatron_core "
    "modules_to_save peft_version qalora_group_size rank_pattern revision runtime_config "
    "target_modules task_type ";

/* Ways in which A and B were drawn, without a change of the base weights. */
static bool is_plain_start(tni_json *j)
{
    return tni_json_word(j, "true") || tni_json_word(j, "false") || tni_json_word(j, "null") ||
           among(" gaussian eva orthogonal ", tni_json_string(j));
}

static tn_status read_member(config *c, tni_json *j, const char *key)
{
    double *const real = strcmp(key, "r") == 0              ? &c->r
                         : strcmp(key, "lora_alpha") == 0   ? &c->alpha
                         : strcmp(key, "lora_dropout") == 0 ? &c->dropout
                                                            : NULL;
    if (real) return number(j, real) && *real >= 0 ? TN_OK : bad(c, key, "a number from 0 on");
    if (strcmp(key, "alpha_pattern") == 0) return read_alphas(c, j);
    if (strcmp(key, "use_rslora") == 0 && (c->rslora = tni_json_word(j, "true"))) return TN_OK;
    if (strcmp(key, "peft_type") == 0) {
        const char *type = tni_json_string(j);
        return type && strcmp(type, "LORA") == 0 ? TN_OK : bad(c, key, "LORA");
    }
    if (among(harmless, key)) return tni_json_skip(j) ? TN_OK : bad(c, key, "a value");
    if (strcmp(key, "init_lora_weights") == 0 ? is_plain_start(j) : unused(j)) return TN_OK;
    return tni_file_error(TN_E_UNSUPPORTED, c->f, c->path,
                          "the setting \"%.64s\" is in use, which is not supported", key);
}

static tn_status parse(config *c)
{
    tni_json j = tni_json_of(c->text, c->size - 1);
    tn_status status = TN_OK;
    c->r = c->alpha = 8;
    if (tni_json_open(&j, '{'))
        while (status == TN_OK && tni_json_next(&j, '}')) {
            const char *key = tni_json_key(&j);
            status = key ? read_member(c, &j, key) : TN_E_FORMAT;
        }
    if (!j.problem && status != TN_OK) return status;
    if (!j.problem && tni_json_end(&j) && c->dropout < 1) return TN_OK;
    return tni_file_error(TN_E_FORMAT, c->f, c->path, "%s",
                          j.problem ? j.problem : "lora_dropout: want it below 1");
}

/* The config's text and meaning; freed by config_free, on failure, too. */
static tn_status read_config(config *c)
{
    tni_input in;
    tn_status status = tni_input_open(&in, c->f, c->path);
    if (status != TN_OK) return status;
    if (in.size > 1 << 24) status = tni_input_bad(&in, "above 16 MiB: want a short file");
    if (status == TN_OK && !(c->text = tni_alloc((size_t)in.size + 1))) status = TN_E_NOMEM;
    if (status == TN_OK) {
        c->size = (size_t)in.size + 1;
        c->text[in.size] = '\0';
        status = tni_input_read(&in, 0, c->text, (size_t)in.size);
    }
    tni_input_close(&in);
    return status == TN_OK ? parse(c) : status;
}

static void config_free(config *c)
{
    if (c->text) tni_free(c->text, c->size);
    tni_room_free(&c->pattern, &c->room, sizeof *c->pattern);
}

/* The first pattern that is the path or ends it after a dot. */
static double alpha_of(const config *c, const char *path)
{
    for (size_t i = 0; i < c->n; i++) {
        size_t n = strlen(path), k = strlen(c->pattern[i].key);
        if (k > n || strcmp(path + n - k, c->pattern[i].key) != 0) continue;
        if (k == n || path[n - k - 1] == '.') return c->pattern[i].alpha;
    }
    return c->alpha;
}

/* ---- reading the values ---------------------------------------------------------------------- */

typedef struct reading {
    config config;
    tni_sites sites;
    tni_graft *graft; /* n of them */
    size_t n, room;
    tn_list *rest;    /* values of the model itself, by their names in it */
    const char *path; /* of the values */
} reading;

static const tni_site *site_at(const tni_sites *s, const char *path, size_t n)
{
    for (size_t i = 0; i < s->n; i++)
        if (strlen(s->at[i].path) == n && memcmp(s->at[i].path, path, n) == 0) return &s->at[i];
    return NULL;
}

/* A layer's A, whose name in the file is prefix, path of n bytes, end. */
static tn_status add_layer(reading *r, const tn_list *values, const tn_entry *e, const char *path,
                           size_t n)
{
    const char *f = r->config.f;
    const tni_site *site = site_at(&r->sites, path, n);
    const tn_tensor *w = site ? tni_lora_weight(site->module) : NULL;
    if (!w)
        return tni_file_error(TN_E_NAME, f, r->path, "%.300s: the model has no Linear of this name",
                              e->name);
    const int64_t in = tn_size(w, 1), out = tn_size(w, 0);
    char *name = tni_name_new(PREFIX, site->path, "lora_B.weight");
    if (!name) return TN_E_NOMEM;
    tn_tensor *a = e->tensor, *b = tn_list_has(values, name) ? tn_list_get(values, name) : NULL;
    tni_name_free(name);
    if (!b) return tni_file_error(TN_E_FORMAT, f, r->path, "%.300s: there is no lora_B", e->name);
    if (tn_rank(a) != 2 || tn_rank(b) != 2 || tn_size(a, 0) < 1 || tn_size(a, 1) != in ||
        tn_size(b, 0) != out || tn_size(b, 1) != tn_size(a, 0) ||
        !tn_dtype_is_float(tn_dtype_of(a)) || !tn_dtype_is_float(tn_dtype_of(b)))
        return tni_file_error(TN_E_SHAPE, f, r->path,
                              "%.300s: want floats, A [r, %" PRId64 "] and B [%" PRId64 ", r]",
                              e->name, in, out);
    if (!tni_room(&r->graft, &r->room, r->n, 1, sizeof *r->graft)) return TN_E_NOMEM;
    r->graft[r->n++] = (tni_graft){ .site = site,
                                    .a = a,
                                    .b = b,
                                    .rank = tn_size(a, 0),
                                    .alpha = alpha_of(&r->config, site->path) };
    return TN_OK;
}

static bool ends(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && strcmp(name + n - k, end) == 0;
}

static tn_status sort_out(reading *r, const tn_list *values)
{
    static const char a[] = ".lora_A.weight", b[] = ".lora_B.weight";
    const char *f = r->config.f;
    tn_status status = TN_OK;
    size_t n_b = 0;
    for (int i = 0; status == TN_OK && i < values->n; i++) {
        const tn_entry *e = &values->entry[i];
        const char *path = e->name + strlen(PREFIX);
        if (strncmp(e->name, PREFIX, strlen(PREFIX)) != 0)
            status = tni_file_error(TN_E_FORMAT, f, r->path,
                                    "%.300s: want names that begin with " PREFIX, e->name);
        else if (ends(path, a))
            status = add_layer(r, values, e, path, strlen(path) + 1 - sizeof a);
        else if (ends(path, b))
            n_b++;
        else if (strstr(path, ".lora_"))
            status = tni_file_error(TN_E_UNSUPPORTED, f, r->path,
                                    "%.300s: want adapters of Linear layers without more", e->name);
        else
            status = tn_list_add(r->rest, path, e->tensor);
    }
    if (status == TN_OK && (!r->n || n_b != r->n))
        status = tni_file_error(TN_E_FORMAT, f, r->path,
                                "%zu layers with lora_A, %zu with lora_B: want as many, and one",
                                r->n, n_b);
    return status;
}

/* Copies what belongs to the model itself; it is trained, too, unless frozen. */
static tn_status load_rest(const reading *r, tn_module *m, bool frozen)
{
    const tn_list *rest = r->rest, *state = tn_state_dict(m, "");
    if (!state) return tni_pending();
    for (int i = 0; i < rest->n; i++)
        if (!tn_list_has(state, rest->entry[i].name))
            return tni_file_error(TN_E_NAME, r->config.f, r->path,
                                  "%.300s: the model has no tensor of this name",
                                  rest->entry[i].name);
    tn_load_options o = { .non_strict = true, .cast = true };
    tn_status status = rest->n ? tn_load_state_dict(m, rest, o, NULL) : TN_OK;
    for (int i = 0; status == TN_OK && !frozen && i < rest->n; i++) {
        const tn_entry *e = &state->entry[0];
        while (strcmp(e->name, rest->entry[i].name) != 0) e++;
        if (e->kind == TN_PARAMETER) tni_disregard(tn_set_requires_grad(e->tensor, true));
    }
    return status;
}

static tn_status load(reading *r, tn_module *m, tn_lora_load_options lo)
{
    const char *f = r->config.f;
    const tn_list *values = tn_load_tensors(r->path, NULL);
    r->rest = tn_list_new();
    if (!values || !r->rest) return tni_pending();
    tn_status status = read_config(&r->config);
    if (status == TN_OK) status = tni_sites_find(f, m, &r->sites);
    if (status == TN_OK) status = sort_out(r, values);
    tn_lora_options o = { .name = lo.name ? lo.name : "default",
                          .dropout = r->config.dropout,
                          .rslora = r->config.rslora };
    if (status == TN_OK) status = tni_lora_graft(f, r->graft, r->n, &o, lo.frozen);
    if (status != TN_OK) return status;
    status = tni_lora_choose(f, m, &o);
    if (status == TN_OK) status = load_rest(r, m, lo.frozen);
    if (status != TN_OK) tni_lora_take_back(r->graft, r->n, o.name);
    return status;
}

tn_status tn_lora_load(tn_module *m, const char *folder, tn_lora_load_options o)
{
    static const char f[] = "tn_lora_load";
    tn_status status = tni_path_check(f, folder);
    if (status != TN_OK) return status;
    char *values = path_of(folder, "adapter_model.safetensors");
    char *settings = path_of(folder, "adapter_config.json");
    reading r = { .config = { .f = f, .path = settings }, .path = values };
    tn_scope scope = tn_scope_begin();
    status = values && settings ? load(&r, m, o) : TN_E_NOMEM;
    config_free(&r.config);
    tni_sites_free(&r.sites);
    tni_room_free(&r.graft, &r.room, sizeof *r.graft);
    tn_scope_end(scope);
    if (values) tni_name_free(values);
    if (settings) tni_name_free(settings);
    return status;
}
