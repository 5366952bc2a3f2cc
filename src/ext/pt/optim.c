/*
 * optim.c - the state of PyTorch's optimizers, into ours and back.
 *
 * { "state": { ID: { "step": tensor, "exp_avg": tensor, ... } },
 *   "param_groups": [{ "lr": 0.1, "betas": (0.9, 0.999), ..., "params": [ID, ...] }, ...] }
 * An ID is a parameter's place in the order of the groups; in files of before PyTorch 1.2, any
 * number. Names of states and most numbers are ours. Source: torch/optim/optimizer.py, torch.save.
 */
#include "autograd/op.h"
#include "ext/pt/read.h"
#include "optim/optim.h"

typedef tni_pickle_value value;

/* The types that both have, with the same states. */
static const struct {
    const char *name, *key; /* a number that PyTorch's groups of this kind have */
    bool steps;             /* PyTorch counts them */
} types[] = { { "sgd", "dampening", false },       { "adam", "amsgrad", true },
              { "adamw", "amsgrad", true },        { "rmsprop", "alpha", true },
              { "adagrad", "lr_decay", true },     { "adamax", "betas", true },
              { "nadam", "momentum_decay", true }, { "radam", "betas", true } };

tn_status tni_pt_optim_check(const char *function, const tn_optim *opt, const char **key,
                             bool *steps)
{
    for (int i = 0; i < opt->n_groups * TN_OPTIM_NUMBERS; i++) {
        const tn_number_type *number = &opt->type->number[i % TN_OPTIM_NUMBERS];
        if (number->optional && opt->group[i / TN_OPTIM_NUMBERS].number[i % TN_OPTIM_NUMBERS] != 0)
            return tni_error(TN_E_UNSUPPORTED, "%s: %s: PyTorch has none: want it off", function,
                             number->name);
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (opt->type->function && !strcmp(types[i].name, opt->type->name))
            return *key = types[i].key, *steps = types[i].steps, TN_OK;
    return tni_error(TN_E_UNSUPPORTED,
                     "%s: %s: want sgd, adam, adamw, rmsprop, adagrad, adamax, nadam or radam: the "
                     "others are not the same in PyTorch",
                     function, opt->type->name);
}

const char *tni_pt_number(const char *name, int *place)
{
    const bool beta = !strncmp(name, "beta", 4) && (name[4] == '1' || name[4] == '2') && !name[5];
    *place = beta ? name[4] - '1' : -1;
    return beta ? "betas" : name;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct incoming {
    tni_pt file;
    const tn_optim *opt;
    const char *key; /* that groups of its kind have */
    tn_list *list;   /* what tn_optim_load_state_dict takes */
    tni_map state;   /* ID + 1 -> its values */
    int64_t steps;
} incoming;

static void end(incoming *m)
{
    tni_map_free(&m->state);
    tni_pt_close(&m->file);
}

#define bad(m, ...) tni_input_bad(&(m)->file.zip.in, __VA_ARGS__)

static tn_status TN_PRINTF(4, 5) put(incoming *m, tn_dtype dtype, double x, const char *format, ...)
{
    char name[TNI_NAME_LIMIT + 64];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    tn_tensor *t = tn_full_as(TN_SCALAR, x, dtype, tn_cpu());
    return t ? tn_list_add(m->list, name, t) : tni_pending();
}

/* A number, a bool, or a tensor of one value; *x stays where it is something else. */
static tn_status number_of(incoming *m, const value *v, double *x)
{
    if (v && v->kind == TNI_PICKLE_FLOAT) memcpy(x, &v->number, sizeof *x);
    if (v && (v->kind == TNI_PICKLE_INT || v->kind == TNI_PICKLE_BOOL)) *x = (double)v->number;
    if (!v || v->kind != TNI_PICKLE_TENSOR) return TN_OK;
    const tni_pickle_tensor *t = (tni_pickle_tensor *)m->file.pickle.tensors.data + v->number;
    if (t->what || !tni_file_dtype_kept(t->dtype) || tni_shape_numel(&t->shape) != 1)
        return bad(m, "a number of the optimizer is a tensor %s", tni_shape_text(&t->shape));
    tn_tensor *one = tni_pt_tensor(&m->file, t);
    if (!one) return tni_pending();
    *x = tn_item(one);
    return TN_OK;
}

/* A group's numbers; what the file has not, from options of later versions, stays as it is. */
static tn_status read_numbers(incoming *m, int k, const value *group)
{
    const tni_pickle *p = &m->file.pickle;
    const tn_optim_type *type = m->opt->type;
    const value *decoupled = tni_pickle_get(p, group, "decoupled_weight_decay");
    if (!tni_pickle_get(p, group, m->key))
        return bad(m, "group %d has no %s: not the state of %s", k, m->key, type->name);
    double lr = NAN, base, decay = m->opt->group[k].weight_decay, x;
    if (!strncmp(type->name, "adam", 4) && type->name[4] != 'a' && decoupled &&
        decoupled->kind == TNI_PICKLE_BOOL && !decoupled->number != !type->name[4])
        return bad(m, "the state of %s, this is %s", decoupled->number ? "AdamW" : "Adam",
                   type->name);
    TNI_TRY(number_of(m, tni_pickle_get(p, group, "lr"), &lr));
    base = lr;
    TNI_TRY(number_of(m, tni_pickle_get(p, group, "initial_lr"), &base));
    TNI_TRY(number_of(m, tni_pickle_get(p, group, "weight_decay"), &decay));
    TNI_TRY(put(m, TN_F64, lr, "group.%d.lr", k));
    TNI_TRY(put(m, TN_F64, base, "group.%d.base_lr", k));
    TNI_TRY(put(m, TN_F64, decay, "group.%d.weight_decay", k));
    for (int i = 0; i < TN_OPTIM_NUMBERS; i++) {
        const tn_number_type *number = &type->number[i];
        if (!number->name) continue;
        int place;
        const value *v = tni_pickle_get(p, group, tni_pt_number(number->name, &place));
        const bool two = v && v->kind == TNI_PICKLE_TUPLE && v->n == 2;
        if (place >= 0) v = two ? tni_pickle_members(p, v) + place : NULL;
        x = m->opt->group[k].number[i];
        TNI_TRY(number_of(m, v, &x));
        const tn_dtype dtype = number->on_off ? TN_I64 : TN_F64;
        TNI_TRY(k ? put(m, dtype, x, "group.%d.%s", k, number->name)
                  : put(m, dtype, x, "%s.%s", type->name, number->name));
    }
    return TN_OK;
}

/* One parameter's states, of the values under its ID. */
static tn_status read_param(incoming *m, const tni_optim_param *param, const value *of)
{
    const tni_pickle *p = &m->file.pickle;
    const tni_pickle_pair *pairs = p->pairs.data;
    if (of->kind != TNI_PICKLE_DICT) return bad(m, "the state of %.64s is no dict", param->name);
    double step = 1; /* of those that are not counted, whether there is any is all that counts */
    int states = 0;
    TNI_TRY(number_of(m, tni_pickle_get(p, of, "step"), &step));
    if (step == 0) return TN_OK; /* Adagrad's is made before the first step */
    for (int64_t i = tni_pickle_dict_of(p, of)->first; i >= 0; i = pairs[i].next) {
        const value *key = &pairs[i].key, *v = &pairs[i].value;
        const bool number = tni_pickle_is(p, key, "step") || tni_pickle_is(p, key, "mu_product");
        if (v->kind != TNI_PICKLE_NONE && !number) {
            const tni_pickle_tensor *t = v->kind == TNI_PICKLE_TENSOR
                                             ? (tni_pickle_tensor *)p->tensors.data + v->number
                                             : NULL;
            char name[TNI_NAME_LIMIT + 1];
            const bool named = key->kind == TNI_PICKLE_STRING;
            snprintf(name, sizeof name, "%s.%.*s", param->name,
                     named ? (int)TNI_MIN(key->n, 64U) : 0,
                     (const char *)p->bytes + (named ? key->number : 0));
            if (!t || t->what || !tni_file_dtype_kept(t->dtype))
                return bad(m, "%.64s is no tensor that tenon has", name);
            tn_tensor *read = tni_pt_tensor(&m->file, t);
            TNI_TRY(read ? tn_list_add(m->list, name, read) : tni_pending());
            states++;
        }
    }
    if (states == 0 && step == 1) return TN_OK;
    if (!(step >= 1 && step <= (double)TNI_MOST_STEPS))
        return bad(m, "%.64s: %g steps: want 1 and up", param->name, step);
    m->steps = TNI_MAX(m->steps, (int64_t)step);
    return put(m, TN_I64, (double)(int64_t)step, "%s.step", param->name);
}

static tn_status read_group(incoming *m, int k, const value *group)
{
    const tni_pickle *p = &m->file.pickle;
    const tni_pickle_pair *pairs = p->pairs.data;
    const value *ids = tni_pickle_get(p, group, "params");
    int n = 0;
    for (int i = 0; i < m->opt->n; i++) n += m->opt->param[i].group == k;
    const int64_t there = ids && ids->kind == TNI_PICKLE_DICT ? tni_pickle_dict_of(p, ids)->n : -1;
    if (there != n) return bad(m, "group %d has %" PRId64 " parameters, here %d", k, there, n);
    TNI_TRY(read_numbers(m, k, group));
    int64_t at = tni_pickle_dict_of(p, ids)->first;
    for (int i = 0; i < m->opt->n; i++) {
        if (m->opt->param[i].group != k) continue;
        const value *id = &pairs[at].value;
        if (id->kind != TNI_PICKLE_INT || id->number < 0 || id->number == INT64_MAX)
            return bad(m, "group %d: a parameter is not a number from 0", k);
        const value *state = tni_map_get(&m->state, (void *)(intptr_t)(id->number + 1));
        if (state) TNI_TRY(read_param(m, &m->opt->param[i], state));
        at = pairs[at].next;
    }
    return TN_OK;
}

static tn_status read_optimizer(incoming *m)
{
    const tni_pickle *p = &m->file.pickle;
    const tni_pickle_pair *pairs = p->pairs.data;
    value part;
    TNI_TRY(tni_tree_optimizer(&m->file.tree, &part));
    const value *state = tni_pickle_get(p, &part, "state"),
                *groups = tni_pickle_get(p, &part, "param_groups");
    if (state->kind != TNI_PICKLE_DICT || groups->kind != TNI_PICKLE_DICT ||
        tni_pickle_dict_of(p, groups)->n != m->opt->n_groups)
        return bad(m, "%" PRId64 " groups of parameters, here %d",
                   groups->kind == TNI_PICKLE_DICT ? tni_pickle_dict_of(p, groups)->n : 0,
                   m->opt->n_groups);
    for (int64_t i = tni_pickle_dict_of(p, state)->first; i >= 0; i = pairs[i].next)
        if (pairs[i].key.kind == TNI_PICKLE_INT && pairs[i].key.number >= 0 &&
            pairs[i].key.number < INT64_MAX &&
            tni_map_put(&m->state, (void *)(intptr_t)(pairs[i].key.number + 1),
                        (void *)&pairs[i].value) < 0)
            return tni_pending();
    int64_t at = tni_pickle_dict_of(p, groups)->first;
    for (int k = 0; k < m->opt->n_groups; k++, at = pairs[at].next)
        TNI_TRY(read_group(m, k, &pairs[at].value));
    return put(m, TN_I64, (double)m->steps, "%s.steps", m->opt->type->name);
}

tn_status tn_optim_load_pytorch(tn_optim *opt, const char *path, const char *key)
{
    if (tni_no_optim(opt)) return tni_poison(__func__, "opt");
    tni_choice choice = { .o = { .key = key } };
    incoming TN_WHEN_LEFT(end) m = { .opt = opt, .file.zip.in.fd = -1 };
    bool steps;
    TNI_TRY(tni_pt_optim_check(__func__, opt, &m.key, &steps));
    TNI_TRY(tni_pt_open(&m.file, __func__, path, &choice));
    TNI_UNRECORDED;
    m.list = tn_list_new();
    if (!m.list) return tni_pending();
    if (m.file.npz) return bad(&m, "arrays, no optimizer");
    TNI_TRY(read_optimizer(&m));
    return tn_optim_load_state_dict(opt, m.list) == TN_OK ? TN_OK : tni_in_file(__func__, path);
}
