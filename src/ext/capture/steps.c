/*
 * steps.c - optimizers in a captured step: which tensors each of its steps updates, and the
 * numbers that change from run to run.
 */
#include "ext/capture/capture.h"

static tni_storage *storage_of(const tn_tensor *t)
{
    return t ? t->storage : NULL;
}

static void release(tni_captured_step *s)
{
    tni_free(s->tensor, (size_t)s->n * sizeof *s->tensor);
    tni_free(s->param, (size_t)s->n * sizeof *s->param);
    tni_free(s->required, (size_t)s->n_params * sizeof *s->required);
    tn_optim_free(s->opt);
}

static bool make(tni_captured_step *s, tn_optim *opt, int n)
{
    *s = (tni_captured_step){
        .opt = tni_optim_keep(opt), .before = opt->steps, .n = n, .n_params = opt->n
    };
    s->tensor = tni_alloc_n((size_t)n, sizeof *s->tensor);
    s->param = tni_alloc_n((size_t)n, sizeof *s->param);
    s->required = tni_alloc_n((size_t)opt->n, sizeof *s->required);
    if (s->tensor && s->param && s->required) return true;
    release(s);
    return false;
}

/* The parameters that take part, in order: with a gradient, not frozen (step.c). */
static void describe(tni_captured_step *s)
{
    int k = 0;
    for (int i = 0; i < s->opt->n; i++) {
        const tni_optim_param *p = &s->opt->param[i];
        s->required[i] = p->tensor->requires_grad;
        if (tni_optim_skips(p) || k == s->n) continue;
        s->tensor[k] = s->opt->call[k];
        tni_captured_param *was = &s->param[k];
        *was = (tni_captured_param){ .index = i,
                                     .storage = p->tensor->storage,
                                     .numbers = *s->tensor[k].numbers };
        s->tensor[k++].numbers = &was->numbers;
        for (int slot = 0; slot < TN_OPTIM_STATES; slot++)
            was->state[slot] = storage_of(p->state[slot]);
    }
}

tn_status tni_capture_note(tni_notes *notes, tn_optim *opt, int n)
{
    tn_capture *c = notes->owner;
    if (!tni_notes_room(notes, &c->steps, &c->step_capacity, c->n_steps, sizeof *c->steps))
        return TN_E_NOMEM;
    if (!make(&c->steps[c->n_steps], opt, n)) return tni_pending();
    describe(&c->steps[c->n_steps++]);
    return TN_OK;
}

static tn_status check(const tni_captured_step *s)
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
            return tni_stale("%s was %s since the step was captured: want a new capture",
                             s->opt->param[i].name, s->required[i] ? "frozen" : "thawed");
    for (int k = 0; k < s->n; k++) {
        const tni_captured_param *was = &s->param[k];
        const tni_optim_param *p = &s->opt->param[was->index];
        if (p->tensor->storage != was->storage)
            return tni_stale("%s was moved, cast or replaced since the step was captured: want a "
                             "new capture",
                             p->name);
        for (int slot = 0; slot < TN_OPTIM_STATES; slot++)
            if (storage_of(p->state[slot]) != was->state[slot])
                return tni_stale("the optimizer's state of %s was loaded or replaced since the "
                                 "step was captured: want a new capture",
                                 p->name);
    }
    return TN_OK;
}

tn_status tni_capture_check_steps(const tn_capture *c)
{
    for (size_t i = 0; i < c->n_steps; i++) TNI_TRY(check(&c->steps[i]));
    return TN_OK;
}

void tni_capture_count(tn_capture *c, bool back)
{
    int section = 0;
    for (size_t i = 0; i < c->n_steps; i++) {
        tni_captured_step *s = &c->steps[i];
        for (int k = 0; k < s->n && !back; k++) /* as tn_optim_step would use them now */
            s->param[k].numbers = tni_optim_numbers_of(s->opt, &s->opt->param[s->param[k].index]);
        if (!back && s->n > 0) c->graphs->optim(c->graph, section++, s->tensor, s->n);
        for (int k = 0; k < s->n; k++) s->opt->param[s->param[k].index].step += back ? -1 : 1;
        s->opt->steps += back ? -1 : 1;
    }
}

/* The first call noted holds the counts from before the capture. */
void tni_capture_uncount(tn_capture *c)
{
    for (size_t i = c->n_steps; i-- > 0;) {
        tni_captured_step *s = &c->steps[i];
        for (int k = 0; k < s->n; k++)
            s->opt->param[s->param[k].index].step = s->param[k].numbers.step - 1;
        s->opt->steps = s->before;
    }
}

void tni_capture_drop_steps(tn_capture *c)
{
    for (size_t i = 0; i < c->n_steps; i++) release(&c->steps[i]);
    tni_room_free(&c->steps, &c->step_capacity, sizeof *c->steps);
    c->n_steps = 0;
}
