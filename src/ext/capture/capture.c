/*
 * capture.c - tn_capture: a step is called, captured, and replayed.
 *
 * On a GPU the first run is a call: it makes the optimizer's state and the libraries' handles, and
 * its memory use is measured. The second captures: no kernel runs, and what the host changed (step
 * counts, gradients, the generator) is undone at once. Then it runs like all later ones: first
 * everything that can fail, then the launch, then the host's part of a step, which cannot fail.
 */
#include "ext/capture/capture.h"

/* A parameter that it updates, and where it and its state were; the notes keep these alive. */
typedef struct captured_param {
    int index; /* of the optimizer's */
    tni_storage *storage, *state[TN_OPTIM_STATES];
    tn_optim_numbers numbers; /* in the next run */
} captured_param;

/* A call of tn_optim_step in a captured step. */
typedef struct captured_step {
    tn_optim *opt;            /* one reference */
    int64_t before;           /* its step count at the capture */
    int n, n_params;          /* parameters updated; parameters that opt had */
    tni_optim_tensor *tensor; /* n: what the kernel was given */
    captured_param *param;    /* n: of each */
    bool *required;           /* n_params: requires_grad */
} captured_step;

struct tn_capture {
    tn_step step;
    void *user;
    tn_device device;
    const tni_graphs *graphs; /* NULL: runs are calls */
    int n;                    /* inputs; -1 before the first run */
    tni_meta *like;           /* n: as in the first run; rank -1: TN_NONE */
    /* n: the step's inputs, one reference each. On a GPU the capture's own */
    tn_tensor **input;
    bool warm; /* there was a run */
    tni_graph_size size;
    tni_graph *graph; /* NULL until the step is captured */
    tni_notes *notes;
    tn_tensor *result; /* one reference */
    captured_step *steps;
    size_t n_steps, step_capacity;
    uint64_t draws; /* generator counters that a run uses */
    bool recording;
    tn_dtype autocasting;
};

static const char f[] = "tn_capture_run";

/* ---- optimizers in the step: what they update, and numbers that change from run to run ------- */

static tni_storage *storage_of(const tn_tensor *t)
{
    return t ? t->storage : NULL;
}

static void release(captured_step *s)
{
    tni_free(s->tensor, (size_t)s->n * sizeof *s->tensor);
    tni_free(s->param, (size_t)s->n * sizeof *s->param);
    tni_free(s->required, (size_t)s->n_params * sizeof *s->required);
    tn_optim_free(s->opt);
}

/* The parameters that take part, in order: with a gradient, not frozen (step.c). */
static tn_status take_down(captured_step *s, tn_optim *opt, int n)
{
    *s = (captured_step){
        .opt = tni_optim_keep(opt), .before = opt->steps, .n = n, .n_params = opt->n
    };
    s->tensor = tni_alloc_n((size_t)n, sizeof *s->tensor);
    s->param = tni_alloc_n((size_t)n, sizeof *s->param);
    s->required = tni_alloc_n((size_t)opt->n, sizeof *s->required);
    if (!s->tensor || !s->param || !s->required) {
        release(s);
        return TN_E_NOMEM;
    }
    for (int i = 0, k = 0; i < opt->n; i++) {
        const tni_optim_param *p = &opt->param[i];
        s->required[i] = p->tensor->requires_grad;
        if (tni_optim_skips(p) || k == n) continue;
        s->tensor[k] = opt->call[k];
        captured_param *was = &s->param[k];
        *was = (captured_param){ .index = i, .storage = p->tensor->storage };
        was->numbers = *s->tensor[k].numbers;
        s->tensor[k++].numbers = &was->numbers;
        for (int slot = 0; slot < TN_OPTIM_STATES; slot++)
            was->state[slot] = storage_of(p->state[slot]);
    }
    return TN_OK;
}

tn_status tni_capture_note(tni_watcher *self, tn_optim *opt, int n)
{
    tni_notes *notes = (tni_notes *)self;
    tn_capture *c = notes->owner;
    if (!tni_notes_room(notes, &c->steps, &c->step_capacity, c->n_steps, sizeof *c->steps))
        return TN_E_NOMEM;
    TNI_TRY(take_down(&c->steps[c->n_steps], opt, n));
    c->n_steps++;
    return TN_OK;
}

/* Whether the optimizer still updates what it updated when the step was captured. */
static tn_status check_step(const captured_step *s)
{
    if (s->opt->n != s->n_params)
        return tni_stale("the optimizer had %d parameters when the step was captured, and has %d: "
                         "want a new capture",
                         s->n_params, s->opt->n);
    if (s->opt->hooks.n > s->opt->hooks.removed)
        return tni_stale("the optimizer has got a hook since the step was captured, which calls "
                         "none: want it removed");
    for (int i = 0; i < s->n_params; i++)
        if (s->opt->param[i].tensor->requires_grad != s->required[i])
            return tni_changed(s->opt->param[i].name, s->required[i] ? "frozen" : "thawed");
    for (const captured_param *was = s->param; was < s->param + s->n; was++) {
        const tni_optim_param *p = &s->opt->param[was->index];
        if (p->tensor->storage != was->storage)
            return tni_changed(p->name, "moved, cast or replaced");
        for (int slot = 0; slot < TN_OPTIM_STATES; slot++)
            if (storage_of(p->state[slot]) != was->state[slot])
                return tni_stale("the optimizer's state of %s was loaded or replaced since the "
                                 "step was captured: want a new capture",
                                 p->name);
    }
    return TN_OK;
}

/* Advances the step counts by one run, and tells the graph its numbers; back: undoes the count. */
static void count(tn_capture *c, bool back)
{
    int section = 0;
    for (captured_step *s = c->steps; s && s < c->steps + c->n_steps; s++) {
        for (int k = 0; k < s->n && !back; k++) /* as tn_optim_step would use them now */
            s->param[k].numbers = tni_optim_numbers_of(s->opt, &s->opt->param[s->param[k].index]);
        if (!back && s->n > 0) c->graphs->optim(c->graph, section++, s->tensor, s->n);
        for (int k = 0; k < s->n; k++) s->opt->param[s->param[k].index].step += back ? -1 : 1;
        s->opt->steps += back ? -1 : 1;
    }
}

/* Undoes what tn_optim_step counted in the capture: the first note holds the counts before it. */
static void uncount(tn_capture *c)
{
    for (size_t i = c->n_steps; i-- > 0;) {
        captured_step *s = &c->steps[i];
        for (int k = 0; k < s->n; k++)
            s->opt->param[s->param[k].index].step = s->param[k].numbers.step - 1;
        s->opt->steps = s->before;
    }
}

/* ---- a capture ------------------------------------------------------------------------------- */

tn_capture *tn_capture_new(tn_step step, void *user, tn_device device)
{
    if (!step) return tni_poisoned("tn_capture_new", "step");
    if (!tni_backend_for(device)) return NULL;
    tn_capture *c = tni_calloc(sizeof *c);
    if (!c) return NULL;
    *c = (tn_capture){
        .step = step, .user = user, .device = device, .graphs = tni_graphs_for(device), .n = -1
    };
    return c;
}

static void drop_inputs(tn_capture *c)
{
    for (int i = 0; i < c->n && c->input; i++) tn_drop(c->input[i]);
    tni_free(c->input, (size_t)(c->n + 1) * sizeof *c->input);
    tni_free(c->like, (size_t)(c->n + 1) * sizeof *c->like);
    c->input = NULL, c->like = NULL, c->n = -1;
}

/* Frees all that a capture left. A pending error stays as it is. */
static void drop_captured(tn_capture *c)
{
    tni_saved_error error;
    tni_error_save(&error);
    tn_drop(c->result);
    c->result = NULL;
    if (c->graph) c->graphs->free(c->graph);
    c->graph = NULL;
    for (size_t i = 0; i < c->n_steps; i++) release(&c->steps[i]);
    tni_room_free(&c->steps, &c->step_capacity, sizeof *c->steps);
    c->n_steps = 0;
    tni_notes_free(c->notes);
    c->notes = NULL;
    tni_error_restore(&error);
}

void tn_capture_free(tn_capture *c)
{
    if (!c) return;
    if (tni_host_refused("tn_capture_free", "frees a capture", "it called after tn_capture_run"))
        return;
    drop_captured(c);
    drop_inputs(c);
    tni_free(c, sizeof *c);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static tn_status check_input(const tn_capture *c, int i, const tn_tensor *t)
{
    if (!t) return tni_poison(f, "an input");
    if (!tni_none(t) && t->requires_grad)
        return tni_error(TN_E_STATE, "%s: input %d, %s, requires grad: want data (tn_detach)", f, i,
                         tni_text(t));
    if (c->n < 0) return TN_OK;
    const tni_meta *first = &c->like[i];
    bool absent = first->shape.rank < 0;
    if (tni_none(t) && absent) return TN_OK;
    if (tni_none(t) || absent || !tni_shape_equal(&t->shape, &first->shape) ||
        t->dtype != first->dtype)
        return tni_error(
            TN_E_SHAPE,
            "%s: input %d is %s %s, in the first run it was %s %s: want the same, or a call "
            "of the step without the capture",
            f, i, tni_text(t), tni_none(t) ? "" : tn_dtype_name(t->dtype),
            absent ? "TN_NONE" : tni_shape_text(&first->shape),
            absent ? "" : tn_dtype_name(first->dtype));
    return TN_OK;
}

static tn_status check_inputs(const tn_capture *c, int n, tn_tensor *const *inputs)
{
    if (n < 0 || (n > 0 && !inputs))
        return tni_error(TN_E_INVALID, "%s: %d inputs: want 0 or more, and their array", f, n);
    if (c->n >= 0 && n != c->n)
        return tni_error(TN_E_SHAPE, "%s: %d inputs, in the first run there were %d: want as many",
                         f, n, c->n);
    for (int i = 0; i < n; i++) TNI_TRY(check_input(c, i, inputs[i]));
    return TN_OK;
}

/* Copies into the capture's own input, of the first run; a host tensor at once, without a wait. */
static tn_status copy_input(tn_capture *c, int i, tn_tensor *from)
{
    if (!c->input[i]) {
        tn_tensor *made = tn_empty_as(from->shape, from->dtype, c->device);
        if (!made) return tni_pending();
        c->input[i] = tn_keep(made);
    }
    tn_tensor *to = c->input[i];
    if (from->storage->device.type != TN_CPU) return tn_copy_(to, from);
    from = tni_dense(from);
    if (!from) return tni_pending();
    size_t nbytes = tni_bytes_of(from);
    tni_bump_version(to);
    return tni_backend_of(to)->upload(tni_data(to), tni_data(from), nbytes);
}

/* On a CPU the step gets the caller's own inputs, moved there if necessary. */
static tn_status take_inputs(tn_capture *c, tn_tensor *const *inputs)
{
    TN_NO_GRAD
    for (int i = 0; i < c->n; i++) {
        if (tni_none(inputs[i])) {
            c->input[i] = TN_NONE;
        } else if (c->graphs) {
            TNI_TRY(copy_input(c, i, inputs[i]));
        } else {
            tn_tensor *here = tn_to(inputs[i], c->device);
            tn_drop(c->input[i]);
            c->input[i] = tn_keep(here);
            if (!here) return tni_pending();
        }
    }
    return TN_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The step's result as an alias without history; the caller owns the reference. */
static tn_tensor *call_step(tn_capture *c)
{
    TNI_SCOPED;
    uint64_t errors = tni_error_count;
    tn_tensor *y = c->step(c->n, c->input, c->user);
    if (!y && tni_error_count == errors)
        tni_error(TN_E_INVALID,
                  "%s: the step returned NULL without an error: want a tensor or TN_NONE", f);
    return y && !tni_none(y) ? tni_alias_raw(y) : y;
}

/* Run 1, and on the CPU every run; the caller owns the reference to the result, as after run. */
static tn_tensor *call(tn_capture *c, int n, tn_tensor *const *inputs)
{
    TNI_SCOPED;
    tn_tensor *y = NULL;
    tn_status status = TN_OK;
    if (!c->warm) {
        c->n = n;
        c->input = tni_calloc_n((size_t)n + 1, sizeof *c->input); /* never 0 */
        c->like = tni_calloc_n((size_t)n + 1, sizeof *c->like);
        if (!c->input || !c->like) status = TN_E_NOMEM;
    }
    for (int i = 0; status == TN_OK && !c->warm && i < n; i++)
        if (tni_none(inputs[i]))
            c->like[i].shape.rank = -1;
        else
            c->like[i] = (tni_meta){ .shape = inputs[i]->shape, .dtype = inputs[i]->dtype };
    if (status == TN_OK) status = take_inputs(c, inputs);
    if (status == TN_OK) {
        if (c->graphs) c->graphs->measure_begin(&c->size);
        y = call_step(c);
        if (c->graphs) c->graphs->measure_end(&c->size);
    }
    c->warm = c->warm || y;
    if (!c->warm) drop_inputs(c);
    for (int i = 0; i < c->n && !c->graphs; i++) { /* do not keep a batch until the next one */
        tn_drop(c->input[i]);
        c->input[i] = NULL;
    }
    return y;
}

/* ---- capturing ------------------------------------------------------------------------------- */

/* Captures the step's graph. The generator stays where it was; draws is how much the step drew. */
static tn_status capture_step(tn_capture *c)
{
    uint64_t seed, before;
    tni_philox_get(&seed, &before);
    TNI_TRY(c->graphs->begin(&c->size, before, &c->graph));
    c->result = call_step(c);
    tn_status status = c->result ? TN_OK : tni_pending();
    uint64_t after;
    tni_philox_get(&seed, &after);
    tni_philox_set(seed, before);
    c->draws = after - before;
    if (status == TN_OK && (status = c->notes->refused.status) != TN_OK)
        tni_error_restore(&c->notes->refused);
    tni_saved_error error;
    tni_error_save(&error);
    tn_status ended = c->graphs->end(c->graph, status == TN_OK);
    if (status == TN_OK) return ended;
    tni_error_restore(&error); /* the first error, whatever the ending set */
    return status;
}

static tn_status capture(tn_capture *c)
{
    c->notes = tni_notes_begin(c);
    if (!c->notes) return tni_pending();
    c->recording = tn_grad_enabled();
    c->autocasting = tni_autocasting;
    tni_autocast_forget(); /* a cast from before would never be updated */
    tn_status status = capture_step(c);
    tni_autocast_forget();
    /* Both undo what the host did, even if it succeeded: the run that follows does it. */
    tni_notes_end(c->notes);
    uncount(c);
    return status;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Whether the host would make the same decisions as in the capture. */
static tn_status check_run(const tn_capture *c)
{
    if (c->recording != tn_grad_enabled() || c->autocasting != tni_autocasting)
        return tni_stale("the step was captured with gradients %s and autocast to %s, not as it is "
                         "now: want them set in the step, or a new capture",
                         c->recording ? "on" : "off", tn_dtype_name(c->autocasting));
    TNI_TRY(tni_notes_check(c->notes));
    for (size_t i = 0; i < c->n_steps; i++) TNI_TRY(check_step(&c->steps[i]));
    return TN_OK;
}

static tn_status launch(tn_capture *c)
{
    uint64_t seed, offset;
    tni_philox_take(c->draws, &seed, &offset);
    count(c, false);
    tn_status status = c->graphs->launch(c->graph, seed, offset);
    if (status == TN_OK) {
        tni_notes_written(c->notes);
    } else {
        count(c, true);
        tni_philox_set(seed, offset);
    }
    return status;
}

static tn_tensor *run(tn_capture *c, tn_tensor *const *inputs)
{
    if (tni_watched())
        return tni_fail(TN_E_STATE,
                        "%s: tn_set_anomaly, tn_set_places, tn_profile and traces look at every op "
                        "on the way, which a captured step does not have: want none of them, or "
                        "the step without the capture",
                        f);
    TNI_SCOPED;
    const bool captured = c->graph;
    if ((!captured && capture(c) != TN_OK) || check_run(c) != TN_OK) {
        if (!captured) drop_captured(c);
        return NULL;
    }
    if (take_inputs(c, inputs) != TN_OK || launch(c) != TN_OK) return NULL;
    return tni_none(c->result) ? TN_NONE : tni_alias_raw(c->result);
}

tn_tensor *tn_capture_run(tn_capture *c, int n, tn_tensor *const *inputs)
{
    if (!c) return tni_poisoned(f, "c");
    if (tni_host_refused(f, "runs a capture", "one capture of the whole step")) return NULL;
    if (check_inputs(c, n, inputs) != TN_OK) return NULL;
    size_t guarded = tni_scope_guard();
    tn_tensor *y = c->graphs && c->warm ? run(c, inputs) : call(c, n, inputs);
    tni_scope_unguard(guarded);
    return y ? tn_scope_adopt(y) : NULL;
}
