/* live.c - see live.h. */
#include "live.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model.h"

enum { TEXT = 1 << 16, BATCH = 1024, SAMPLE = 4096 };
typedef enum part { IDLE, FORWARD, BACKWARD } part; /* what of a step was last */

static struct live {
    live_data data;
    unsigned char *bytes; /* of digits or a text */
    int n_bytes;
    live_layer layer[LIVE_LAYERS]; /* as the lines say, until build */
    int layers;
    bool tied;
    live_model model;
    tn_list *start; /* copies of all slots at build; in the scope of the model */
    tn_optim *opt;
    char optimizer[16];
    double seed, rate, decay, clip, warmup, batch, factor, norm;
    int step;
    bool eval, judge_train, spare_norms;
    tn_generator *draws; /* of batches, so that no layer's numbers shift them */
    int64_t *order; /* of the examples in an epoch, `ordered` of them; at: the next one's place */
    int at, ordered;
    part part;
    tn_scope built, stage; /* what lives as long as the model; as long as a step's tensors */
    bool has_built, has_stage;
    tn_tensor *y, *loss;
    double seconds, score[4]; /* test loss, accuracy, train loss, accuracy */
    double last_loss;
    char refusal[1024];
    float *values;
    int count;
} live = { .optimizer = "sgd",
           .rate = 0.1,
           .batch = 32,
           .seed = 1,
           .last_loss = NAN,
           .score = { NAN, NAN, NAN, NAN } };

static char text[TEXT];

static const char *say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

/* What the library said; "" if nothing went wrong. */
static const char *said(tn_status status)
{
    if (status == TN_OK) return "";
    const char *message = say("%s", tn_error());
    tn_error_clear();
    return message;
}

/* ---- the model ------------------------------------------------------------------------------- */

static void end_stage(void)
{
    if (live.has_stage) tn_scope_end(live.stage);
    live.has_stage = false, live.part = IDLE;
    live.y = live.loss = live.model.in = NULL;
    memset(live.model.act, 0, sizeof live.model.act);
}

static void drop(void)
{
    end_stage();
    tn_optim_free(live.opt);
    live_model_free(&live.model);
    if (live.has_built) tn_scope_end(live.built);
    live.has_built = false, live.opt = NULL, live.start = NULL;
}

static bool is_matrix(const tn_entry *e, void *wanted)
{
    return (tn_rank(e->tensor) > 1) == *(const bool *)wanted;
}

/* An optimizer of the kind asked for. */
static tn_optim *optimizer_of(const tn_list *p, double decay)
{
    const char *kind = live.optimizer;
    const double lr = live.rate;
    tn_adam_options adam = { .lr = lr, .weight_decay = decay, .use_lr = true };
    tn_rmsprop_options rmsprop = { .lr = lr, .weight_decay = decay, .use_lr = true };
    tn_sgd_options sgd = { .lr = lr, .weight_decay = decay, .use_lr = true };
    if (strcmp(kind, "momentum") == 0) sgd.momentum = 0.9;
    return strcmp(kind, "adam") == 0      ? tn_adam(p, adam)
           : strcmp(kind, "adamw") == 0   ? tn_adamw(p, adam)
           : strcmp(kind, "rmsprop") == 0 ? tn_rmsprop(p, rmsprop)
                                          : tn_sgd(p, sgd);
}

static tn_optim *new_optimizer(void)
{
    bool yes = true, no = false;
    tn_list *all = tn_parameters(live.model.net);
    if (!live.spare_norms) return optimizer_of(all, live.decay);
    tn_optim *opt = optimizer_of(tn_list_filter(all, is_matrix, &yes), live.decay);
    tn_list *vectors = tn_list_filter(all, is_matrix, &no);
    if (opt && vectors->n > 0 &&
        tn_optim_add_group(opt, vectors, (tn_group_options){ .weight_decay = 0 }) != TN_OK) {
        tn_optim_free(opt);
        return NULL;
    }
    return opt;
}

static const char *renew_optimizer(void)
{
    tn_optim *next = NULL;
    if (!live.model.net) return "";
    end_stage();
    TN_SCOPE next = new_optimizer();
    if (!next) return said(tn_error_status());
    tn_optim_free(live.opt), live.opt = next;
    return "";
}

static const char *build(void)
{
    if (live.data.classes == 0) return "build: want data before";
    drop();
    tn_manual_seed((uint64_t)live.seed);
    if (!live.draws) live.draws = tn_generator_new(1);
    tn_generator_seed(live.draws, (uint64_t)live.seed);
    live.built = tn_scope_begin(), live.has_built = true;
    const char *wrong =
        live_model_make(&live.model, live.layer, live.layers, &live.data, live.tied);
    if (wrong) {
        say("%s", wrong);
        tn_error_clear();
        drop();
        return text;
    }
    tn_train(live.model.net, !live.eval);
    tn_list *slots = tn_state_dict(live.model.net, "");
    live.start = tn_list_new();
    for (int i = 0; i < slots->n; i++)
        if (tn_list_add(live.start, slots->entry[i].name,
                        tn_clone(tn_detach(slots->entry[i].tensor))) != TN_OK)
            return said(tn_error_status());
    live.seconds = live.factor = live.step = live.at = live.ordered = 0;
    live.last_loss = live.norm = NAN;
    for (int i = 0; i < 4; i++) live.score[i] = NAN;
    return renew_optimizer();
}

/* ---- examples -------------------------------------------------------------------------------- */

/* Where the next batch of training examples is: an epoch in an order that is drawn. */
static bool next_examples(int64_t *at, int n)
{
    const int most = live.data.n_train;
    for (int i = 0; i < n && live.data.kind == LIVE_TEXT; i++)
        at[i] = tn_generator_u32(live.draws) % (unsigned)(most - LIVE_LENGTH - 1);
    for (int i = 0; i < n && live.data.kind != LIVE_TEXT; i++) {
        if (live.at >= live.ordered) { /* points may have come since */
            int64_t *order = realloc(live.order, (size_t)most * sizeof *order);
            if (!order) return false;
            live.order = order;
            tn_generator_permutation(live.draws, most, order);
            live.ordered = most, live.at = 0;
        }
        at[i] = live.order[live.at++];
    }
    return true;
}

static tn_tensor *loss_of(tn_tensor *out, tn_tensor *y)
{
    if (!out) return NULL;
    if (tn_dtype_of(y) == TN_F32) return tn_bce_with_logits(out, y, TN_NONE, TN_MEAN);
    return tn_cross_entropy(tn_reshape(out, TN_SHAPE(-1, live.data.classes)), y);
}

static double accuracy_of(tn_tensor *out, tn_tensor *y)
{
    const bool two = tn_dtype_of(y) == TN_F32;
    tn_tensor *x = tn_detach(out), *half = tn_full_like(y, 0.5);
    if (!two) x = tn_argmax(tn_reshape(x, TN_SHAPE(-1, live.data.classes)), 1, false);
    tn_tensor *right = two ? tn_eq(tn_gt_scalar(x, 0), tn_gt(y, half)) : tn_eq(x, y);
    return tn_item(tn_mean(tn_to_dtype(right, TN_F32), NULL, 0, false));
}

/* The model's output for x in the mode of judging, without recording; all is as before after it:
 * activations that are shown, buffers, random numbers. In the current scope. */
static tn_tensor *call_apart(tn_tensor *x)
{
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    tn_tensor *kept[LIVE_LAYERS], *in = live.model.in, *out = NULL;
    if (!x || !live.model.net) return NULL;
    memcpy(kept, live.model.act, sizeof kept);
    tn_generator_get_state(tn_default_generator(), state);
    tn_train(live.model.net, live.judge_train);
    TN_NO_GRAD
    {
        tn_list *buffers = tn_buffers(live.model.net), *was = tn_list_new();
        tn_status status = TN_OK;
        for (int i = 0; i < buffers->n && live.judge_train && status == TN_OK; i++)
            status = tn_list_add(was, buffers->entry[i].name, tn_clone(buffers->entry[i].tensor));
        out = status == TN_OK ? live_model_call(&live.model, x, false) : NULL;
        for (int i = 0; i < was->n && status == TN_OK; i++)
            status = tn_copy_(buffers->entry[i].tensor, was->entry[i].tensor);
    }
    tn_train(live.model.net, !live.eval);
    memcpy(live.model.act, kept, sizeof kept);
    live.model.in = in;
    return tn_generator_set_state(tn_default_generator(), state) == TN_OK ? out : NULL;
}

static tn_tensor *probabilities(tn_tensor *x)
{
    tn_tensor *out = call_apart(x);
    return live.data.kind == LIVE_POINTS ? tn_sigmoid(out) : tn_softmax(out, -1);
}

/* Loss and accuracy of at most n of the examples [from, to), spread over them. */
static tn_status judge(int from, int to, int most, double *loss, double *accuracy)
{
    int64_t at[BATCH];
    const int margin = live.data.kind == LIVE_TEXT ? LIVE_LENGTH : 0, room = to - margin - from;
    const int n = (int)fmin(fmin(most, BATCH), margin ? room / margin : room);
    tn_status status = TN_OK;
    *loss = *accuracy = NAN;
    for (int i = 0; i < n; i++) at[i] = from + (int64_t)i * room / n;
    if (n > 0) TN_SCOPE
        {
            tn_tensor *y, *out = call_apart(live_data_batch(&live.data, at, n, &y)),
                          *l = loss_of(out, y);
            status = l ? TN_OK : tn_error_status();
            if (l) *loss = tn_item(l), *accuracy = accuracy_of(out, y);
        }
    return status;
}

static const char *evaluate(int most)
{
    if (!live.model.net) return "evaluate: want build before";
    tn_status status = judge(live.data.n_train, live.data.n, most, &live.score[0], &live.score[1]);
    if (status == TN_OK) status = judge(0, live.data.n_train, most, &live.score[2], &live.score[3]);
    return said(status);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static const char *forward(bool retain)
{
    int64_t at[BATCH];
    if (!live.opt) return "forward: want build before";
    if (live.data.n_train < 1) return "forward: want points before";
    end_stage();
    live.stage = tn_scope_begin(), live.has_stage = true;
    const int n = (int)live.batch;
    tn_tensor *x = next_examples(at, n) ? live_data_batch(&live.data, at, n, &live.y) : NULL;
    live.loss = loss_of(live_model_call(&live.model, x, retain), live.y);
    if (!live.loss) {
        const char *wrong = said(tn_error_status());
        end_stage();
        return wrong;
    }
    if (retain) live.last_loss = tn_item(live.loss);
    live.part = FORWARD;
    return "";
}

/* Before clipping. Where nothing is clipped it is computed when it is asked for. */
static double grad_norm(double clip)
{
    TN_SCOPE
    {
        tn_list *p = live.model.net ? tn_parameters(live.model.net) : NULL;
        if (p && p->n > 0 && isnan(live.norm)) live.norm = tn_clip_grad_norm(p, clip, 2, false);
    }
    return live.norm;
}

static const char *backward(void)
{
    if (live.part != FORWARD) return "backward: want forward before";
    tn_status status = tn_optim_zero_grad(live.opt);
    if (status == TN_OK) status = tn_backward(live.loss);
    if (status != TN_OK) return said(status);
    live.factor = 1, live.norm = NAN;
    if (live.clip > 0) {
        const double before = grad_norm(live.clip);
        live.norm = NAN;
        live.factor = before > 0 ? grad_norm(INFINITY) / before : 1;
        live.norm = before;
    }
    live.part = BACKWARD;
    return "";
}

static const char *update(void)
{
    const double rate =
        live.rate * (live.warmup > 0 ? fmin(1, (live.step + 1.0) / live.warmup) : 1);
    if (live.part != BACKWARD) return "update: want backward before";
    tn_status status = TN_OK;
    if (tn_optim_lr(live.opt, 0) != rate) status = tn_optim_set_lr(live.opt, -1, rate);
    if (status == TN_OK) status = tn_optim_step(live.opt);
    live.part = IDLE;
    if (status == TN_OK) live.step++;
    return said(status);
}

static const char *steps(int n)
{
    const clock_t from = clock();
    const char *wrong = "";
    for (int i = 0; i < n && !*wrong; i++) /* gradients are looked at after the last one */
        if (!*(wrong = forward(i == n - 1)) && !*(wrong = backward())) wrong = update();
    live.seconds += (double)(clock() - from) / CLOCKS_PER_SEC;
    return wrong;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static tn_tensor *slot(const char *name)
{
    tn_list *all = live.model.net ? tn_state_dict(live.model.net, "") : NULL;
    return all && tn_list_has(all, name) ? tn_list_get(all, name) : NULL;
}

static const char *give(const char *name)
{
    if (!live.model.net) return "give: want build before";
    TN_SCOPE
    {
        tn_tensor *t = slot(name);
        tn_list *one = tn_list_new();
        tn_status added = t ? tn_list_add(one, name, t) : TN_E_INVALID;
        tn_optim *opt = added == TN_OK ? optimizer_of(one, 0) : NULL;
        const char *words = opt ? "" : t ? tn_error() : "there is no slot of this name";
        snprintf(live.refusal, sizeof live.refusal, "%s", words);
        tn_error_clear();
        tn_optim_free(opt);
    }
    return "";
}

/* to: NAME VALUE, NAME INDEX VALUE, or another slot's NAME. */
static const char *set_slot(const char *name, const char *index, const char *value,
                            const char *other)
{
    const char *wrong = "want a slot of f32, an index in it, and one of its shape to copy";
    end_stage();
    TN_SCOPE TN_NO_GRAD
    {
        tn_tensor *t = slot(name), *from = other ? slot(other) : NULL;
        const int64_t i = index ? atoll(index) : 0;
        if (t && tn_dtype_of(t) == TN_F32 && i >= 0 && i < tn_numel(t) && (!other || from)) {
            t = tn_detach(t);
            if (index) t = tn_slice(tn_reshape(t, TN_SHAPE(-1)), 0, i, i + 1, 1);
            wrong = said(other ? tn_copy_(t, from) : tn_fill_(t, atof(value)));
        }
    }
    return wrong;
}

static const char *add_layer(const char *kind, const char *number, const char *flag)
{
    if (live.layers + 1 >= LIVE_LAYERS) return "layer: too many";
    live_layer *l = &live.layer[live.layers++];
    *l = (live_layer){ .number = atof(number), .no_bias = strcmp(flag, "nobias") == 0 };
    snprintf(l->kind, sizeof l->kind, "%.15s", kind);
    return "";
}

static const char *freeze(int l, bool on)
{
    if (!live.model.net || l < 0 || l >= live.model.n) return "freeze: want the number of a layer";
    tn_module *layer = tn_module_child(live.model.net, l);
    return said(on ? tn_module_freeze(layer) : tn_module_thaw(layer));
}

static const char *use_data(const char *name, double noise)
{
    const char *wrong = NULL;
    tn_manual_seed((uint64_t)live.seed);
    TN_SCOPE wrong = live_data_make(&live.data, name, noise, live.bytes, live.n_bytes);
    if (wrong) return wrong;
    drop();
    live.at = live.ordered = 0;
    return "";
}

static const char *use_optimizer(const char *kind, const char *rate, const char *decay)
{
    static const char *const known[] = { "sgd", "momentum", "adam", "adamw", "rmsprop" };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(kind, known[i]) == 0) {
            snprintf(live.optimizer, sizeof live.optimizer, "%.15s", kind);
            if (*rate) live.rate = atof(rate);
            if (*decay) live.decay = atof(decay);
            return renew_optimizer();
        }
    return "optimizer: want sgd, momentum, adam, adamw or rmsprop";
}

/* Lines of a number or a word alone; NULL: none of them. */
static const char *set(const char *word, const char *value)
{
    const struct {
        const char *name;
        double *to;
    } numbers[] = {
        { "seed", &live.seed },   { "rate", &live.rate },     { "clip", &live.clip },
        { "decay", &live.decay }, { "warmup", &live.warmup }, { "batch", &live.batch }
    };
    const struct {
        const char *name, *on;
        bool *to;
    } switches[] = { { "mode", "eval", &live.eval },
                     { "judge", "train", &live.judge_train },
                     { "no_decay_on_norms", "on", &live.spare_norms } };
    if (strcmp(word, "batch") == 0 && (atoi(value) < 1 || atoi(value) > BATCH))
        return "batch: want 1 to 1024";
    for (int i = 0; i < 6; i++)
        if (strcmp(word, numbers[i].name) == 0) {
            *numbers[i].to = atof(value);
            const int group = live.spare_norms ? 0 : -1;
            return i != 3 || !live.opt
                       ? ""
                       : said(tn_optim_set_weight_decay(live.opt, group, live.decay));
        }
    for (int i = 0; i < 3; i++)
        if (strcmp(word, switches[i].name) == 0) {
            *switches[i].to = strcmp(value, switches[i].on) == 0;
            if (i == 0 && live.model.net) return said(tn_train(live.model.net, !live.eval));
            return i == 2 ? renew_optimizer() : "";
        }
    return NULL;
}

const char *live_do(const char *line)
{
    char word[5][64] = { "", "", "", "", "" };
    const int n =
        sscanf(line, "%63s %63s %63s %63s %63s", word[0], word[1], word[2], word[3], word[4]);
    const char *w = word[0], *a = word[1], *b = word[2], *c = word[3], *done;
    if (n < 1) return "";
    if (strcmp(w, "data") == 0) return use_data(a, atof(b));
    if (strcmp(w, "point") == 0)
        return (done = live_data_point(&live.data, atof(a), atof(b), atoi(c))) ? done : "";
    if (strcmp(w, "model") == 0) return live.layers = live.tied = 0, "";
    if (strcmp(w, "tie") == 0) return live.tied = true, "";
    if (strcmp(w, "layer") == 0) return add_layer(a, b, c);
    if (strcmp(w, "build") == 0) return build();
    if (strcmp(w, "optimizer") == 0) return use_optimizer(a, b, c);
    if (strcmp(w, "freeze") == 0) return freeze(atoi(a), strcmp(b, "on") == 0);
    if (strcmp(w, "step") == 0) return steps(n > 1 ? atoi(a) : 1);
    if (strcmp(w, "forward") == 0) return forward(true);
    if (strcmp(w, "backward") == 0) return backward();
    if (strcmp(w, "update") == 0) return update();
    if (strcmp(w, "evaluate") == 0) return evaluate(n > 1 ? atoi(a) : BATCH);
    if (strcmp(w, "give") == 0) return give(a);
    if (strcmp(w, "weight") == 0) return set_slot(a, b, c, NULL);
    if (strcmp(w, "fill") == 0) return set_slot(a, NULL, b, NULL);
    if (strcmp(w, "copy") == 0) return set_slot(a, NULL, NULL, b);
    done = n == 2 ? set(w, a) : NULL;
    return done ? done : say("\"%s\": there is no such line (see live.h)", line);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Its norm, mean, std or max, or the share of its zeros; NaN: there is none. */
static double measure(tn_tensor *t, const char *what)
{
    tn_tensor *x = t && !tn_is_none(t) ? tn_to_dtype(tn_detach(t), TN_F64) : NULL;
    if (!x) return NAN;
    if (strcmp(what, "zeros") == 0) x = tn_to_dtype(tn_eq_scalar(x, 0), TN_F64);
    return tn_item(strcmp(what, "norm") == 0  ? tn_norm(x, 2, NULL, 0, false)
                   : strcmp(what, "std") == 0 ? tn_std(x, NULL, 0, 0, false)
                   : strcmp(what, "max") == 0 ? tn_max_all(x)
                                              : tn_mean(x, NULL, 0, false));
}

static double of_slot(const char *what, const char *name)
{
    double x = NAN;
    TN_SCOPE TN_NO_GRAD
    {
        tn_tensor *t = slot(name);
        if (strcmp(what, "norm") == 0 || strcmp(what, "mean") == 0 || strcmp(what, "max") == 0)
            x = measure(t, what);
        else if (t && strcmp(what, "grad") == 0)
            x = measure(tn_grad(t), "norm");
        else if (t && strcmp(what, "moved") == 0 && live.start && tn_list_has(live.start, name))
            x = measure(tn_sub(tn_to_dtype(tn_detach(t), TN_F64),
                               tn_to_dtype(tn_list_get(live.start, name), TN_F64)),
                        "norm");
        tn_error_clear();
    }
    return x;
}

/* The numbers of a tensor as f32, in live.values. */
static const float *give_values(tn_tensor *t)
{
    tn_tensor *f = t && !tn_is_none(t) ? tn_contiguous(tn_to_dtype(tn_detach(t), TN_F32)) : NULL;
    int64_t n = f ? tn_numel(f) : 0;
    float *room = n > 0 && n < (1 << 24) ? realloc(live.values, (size_t)n * sizeof *room) : NULL;
    tn_error_clear();
    if (!room) return NULL;
    memcpy(room, tn_data(f), (size_t)n * sizeof *room);
    live.values = room, live.count = (int)n;
    return room;
}

static tn_tensor *act(int l)
{
    return l == -1 ? live.model.in : l >= 0 && l < live.model.n ? live.model.act[l] : NULL;
}

double live_number(const char *what)
{
    const struct {
        const char *name;
        double value;
        /* clang-format off */
    } known[] = {
        { "step", live.step }, { "loss", live.last_loss }, { "seconds", live.seconds },
        { "rate", live.opt ? tn_optim_lr(live.opt, 0) : live.rate }, { "batch", live.batch },
        { "clip_factor", live.factor }, { "classes", live.data.classes },
        { "test_loss", live.score[0] }, { "test_accuracy", live.score[1] },
        { "train_loss", live.score[2] }, { "train_accuracy", live.score[3] },
        /* clang-format on */
    };
    char word[3][64] = { "", "", "" };
    double of_layer = NAN;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(what, known[i].name) == 0) return known[i].value;
    int n = sscanf(what, "%63s %63s %63s", word[0], word[1], word[2]);
    if (n == 3 && strcmp(word[0], "act") == 0)
        TN_SCOPE TN_NO_GRAD of_layer = measure(act(atoi(word[1])), word[2]);
    if (n == 3) return of_layer;
    if (n == 2) return of_slot(word[0], word[1]);
    if (strcmp(what, "grad_norm") == 0) return grad_norm(INFINITY);
    const bool counts = strcmp(what, "parameters") == 0 && live.model.net;
    return counts ? (double)tn_count_parameters(live.model.net, false) : NAN;
}

/* ---- values ---------------------------------------------------------------------------------- */

static tn_tensor *surface(int n)
{
    if (n < 2 || n > 200 || live.data.kind != LIVE_POINTS) return NULL;
    tn_tensor *x = tn_zeros(TN_SHAPE(n * n, 2));
    float *p = x ? tn_data_mut(x) : NULL;
    for (int i = 0; p && i < n * n; i++) {
        p[2 * i] = (float)(2.4 * (i % n) / (n - 1) - 1.2);
        p[2 * i + 1] = (float)(1.2 - 2.4 * (i / n) / (n - 1));
    }
    return probabilities(x);
}

static tn_tensor *drawn(const char *numbers)
{
    float v[64] = { 0 };
    for (int i = 0; i < 64; i++) {
        char *end;
        v[i] = strtof(numbers, &end) / 16;
        numbers = end;
    }
    return live.data.kind == LIVE_DIGITS ? probabilities(tn_from_floats(v, TN_SHAPE(1, 1, 8, 8)))
                                         : NULL;
}

/* Statistics of a channel over all else of what batch norm l saw. */
static tn_tensor *of_batch(int l, bool variance)
{
    tn_tensor *x = l >= 0 && l < live.model.n ? act(l - 1) : NULL;
    if (!x || strcmp(live.model.layer[l].kind, "batch_norm") != 0) return NULL;
    const int axes[] = { 0, 2, 3 };
    const int n = tn_rank(x) == 4 ? 3 : 1;
    return variance ? tn_var(tn_detach(x), axes, n, 1, false)
                    : tn_mean(tn_detach(x), axes, n, false);
}

static tn_tensor *points(bool train, bool classes)
{
    const live_data *d = &live.data;
    if (d->kind != LIVE_POINTS || d->n < 1) return NULL;
    return tn_slice(classes ? d->y : d->x, 0, train ? 0 : d->n_train, train ? d->n_train : d->n, 1);
}

/* Of the next character after a text's last ones. */
static tn_tensor *next_letter(const char *after)
{
    int64_t ids[LIVE_LENGTH], n = (int64_t)strlen(after);
    const char *last = after + (n > LIVE_LENGTH ? n - LIVE_LENGTH : 0);
    if (live.data.kind != LIVE_TEXT) return NULL;
    for (n = 0; last[n]; n++)
        for (ids[n] = live.data.classes - 1; ids[n] > 0 && live.data.letter[ids[n]] != last[n];)
            ids[n]--;
    tn_tensor *p = n > 0 ? probabilities(tn_from_data(ids, TN_SHAPE(1, n), TN_I64)) : NULL;
    return p ? tn_select(tn_select(p, 0, 0), 0, n - 1) : NULL;
}

static tn_tensor *find_values(const char *what)
{
    char word[3][64] = { "", "", "" };
    sscanf(what, "%63s %63s %63s", word[0], word[1], word[2]);
    const char *w = word[0], *a = word[1];
    tn_tensor *t;
    if (strcmp(w, "surface") == 0) return surface(atoi(a));
    if (strcmp(w, "draw") == 0) return drawn(what + 4);
    if (strncmp(what, "next ", 5) == 0) return next_letter(what + 5);
    if (strcmp(w, "attention") == 0) return live_attention(&live.model, atoi(a), atoi(word[2]));
    if (strcmp(w, "batch_mean") == 0) return of_batch(atoi(a), false);
    if (strcmp(w, "batch_var") == 0) return of_batch(atoi(a), true);
    if (strncmp(w, "train_", 6) == 0 || strncmp(w, "test_", 5) == 0)
        return points(w[1] == 'r', w[strlen(w) - 1] == 'y');
    if (strcmp(w, "act") == 0) return act(atoi(a));
    if (strcmp(w, "act_grad") == 0) return (t = act(atoi(a))) ? tn_grad(t) : NULL;
    if (strcmp(w, "grad") == 0) return (t = slot(a)) ? tn_grad(t) : NULL;
    return strcmp(w, "slot") == 0 ? slot(a) : NULL;
}

const float *live_values(const char *what)
{
    const float *found = NULL;
    live.count = 0;
    TN_SCOPE TN_NO_GRAD found = give_values(find_values(what));
    tn_error_clear();
    return found;
}

int live_count(void)
{
    return live.count;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void put_shape(FILE *to, const tn_tensor *t)
{
    fprintf(to, "\"shape\": [");
    for (int i = 0; t && i < tn_rank(t); i++)
        fprintf(to, "%s%lld", i ? ", " : "", (long long)tn_size(t, i));
    fputc(']', to);
}

static void put_slots(FILE *to, const tn_list *list, const char *comma)
{
    for (int i = 0; i < list->n; i++, comma = ", ") {
        const tn_entry *e = &list->entry[i];
        fprintf(to, "%s{\"name\": \"%s\", ", comma, e->name);
        put_shape(to, e->tensor);
        fprintf(to, ", \"kind\": \"%s\", \"role\": \"%s\", \"trained\": %s, \"layer\": %d}",
                e->kind == TN_PARAMETER ? "parameter" : "buffer", tn_role_name(e->role),
                tn_requires_grad(e->tensor) ? "true" : "false", atoi(e->name));
    }
}

static const char *describe(void)
{
    FILE *to = fmemopen(text, TEXT, "w");
    if (!to) return "";
    fprintf(to, "{\"layers\": [");
    for (int i = 0; live.model.net && i < live.model.n; i++) {
        fprintf(to, "%s{\"kind\": \"%s\", \"name\": \"%d\", \"frozen\": %s, ", i ? ", " : "",
                live.model.layer[i].kind, i,
                tn_module_frozen(tn_module_child(live.model.net, i)) ? "true" : "false");
        put_shape(to, live.model.act[i]);
        fputc('}', to);
    }
    fprintf(to, "], \"slots\": [");
    if (live.model.net) {
        tn_walk_options all = { .keep_duplicates = true };
        const tn_list *parameters = tn_parameters_with(live.model.net, all);
        put_slots(to, parameters, "");
        put_slots(to, tn_buffers_with(live.model.net, all), parameters->n ? ", " : "");
    }
    fprintf(to, "]}");
    fclose(to);
    return text;
}

/* The text goes on after its training part: n characters, each drawn from what the model says. */
static const char *write_text(int n)
{
    const int length = LIVE_LENGTH;
    if (live.data.kind != LIVE_TEXT || !live.model.net) return "";
    n = n < 0 ? 0 : n > SAMPLE ? SAMPLE : n;
    const int64_t *ids = (const int64_t *)tn_data(live.data.x) + live.data.n_train;
    for (int i = 0; i < length; i++) text[i] = live.data.letter[ids[i]];
    for (int i = length; i < length + n; i++) TN_SCOPE
        {
            text[i] = '\0';
            tn_tensor *p = next_letter(text + i - length),
                      *next = p ? tn_multinomial(p, 1, true) : NULL;
            text[i] = live.data.letter[next ? *(const int64_t *)tn_data(next) : 0];
        }
    text[length + n] = '\0';
    tn_error_clear();
    return text + length;
}

const char *live_text(const char *what)
{
    const char *found = "";
    if (strcmp(what, "refusal") == 0) return live.refusal;
    if (strcmp(what, "alphabet") == 0) return say("%.*s", live.data.classes, live.data.letter);
    if (strncmp(what, "sample ", 7) == 0) return write_text(atoi(what + 7));
    if (strcmp(what, "model") == 0) TN_SCOPE found = describe();
    return found;
}

void *live_room(int n)
{
    unsigned char *room = n > 0 ? realloc(live.bytes, (size_t)n) : NULL;
    if (!room) return NULL;
    live.bytes = room, live.n_bytes = n;
    return room;
}
