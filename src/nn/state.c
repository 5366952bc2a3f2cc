/*
 * state.c - loading a state: everything is compared and staged before the first byte moves.
 *
 * What is compared is the list tn_state_dict gives, name by name. A slot that files of an older
 * state_version lack (BatchNorm's counter, version 2) is supplied as 0 for a list that is older, or
 * that does not say how old it is.
 */
#include "nn/module.h"

/* Text that is cut with "..." where its room ends. */
typedef struct line {
    char text[640];
    size_t n;
    int count;
} line;

static void add_text(line *l, const char *separator, const char *format, ...) TN_PRINTF(3, 4);

static void add_text(line *l, const char *separator, const char *format, ...)
{
    const size_t room = sizeof l->text - 4; /* "..." always fits */
    va_list args;
    if (l->count++ && l->n < room)
        l->n += (size_t)snprintf(l->text + l->n, room - l->n, "%s", separator);
    if (l->n >= room) return;
    va_start(args, format);
    l->n += (size_t)vsnprintf(l->text + l->n, room - l->n, format, args);
    va_end(args);
    if (l->n >= room) strcat(l->text, "...");
}

/* One copy to be made: into target, from source (TN_NONE: zero). */
typedef struct step {
    tn_tensor *target, *source;
} step;

typedef struct plan {
    tn_load_options options;
    step *steps;
    int n;
    int loaded;
    line missing, unexpected, mismatched, wrong_dtype, cast;
} plan;

static tni_slot *slot_of(const tn_entry *e)
{
    const char *dot = strrchr(e->name, '.');
    const char *name = dot ? dot + 1 : e->name;
    return tni_slot_find(e->owner, name, strlen(name));
}

/* Equal shapes; a single value also from a one-element axis. Source: PyTorch 2.x */
static bool shape_fits(const tn_tensor *target, const tn_tensor *source)
{
    if (tni_shape_equal(&target->shape, &source->shape)) return true;
    return target->shape.rank == 0 && source->shape.rank == 1 && source->shape.size[0] == 1;
}

/* Compares one entry of the model with what the list has for it. */
static void compare(plan *p, const tn_entry *e, tn_tensor *source)
{
    tn_tensor *t = e->tensor;
    if (!shape_fits(t, source)) {
        add_text(&p->mismatched, "\n", "  size mismatch for %s: the list has %s, the model %s",
                 e->name, tni_shape_text(&source->shape), tni_shape_text(&t->shape));
        return;
    }
    if (t->dtype != source->dtype) {
        bool floats = tn_dtype_is_float(t->dtype) && tn_dtype_is_float(source->dtype);
        if (!floats || !p->options.cast) {
            add_text(&p->wrong_dtype, "\n",
                     "  dtype mismatch for %s: the list has %s, the model %s%s", e->name,
                     tn_dtype_name(source->dtype), tn_dtype_name(t->dtype),
                     floats ? " (the option cast converts)" : "");
            return;
        }
        add_text(&p->cast, ", ", "%s (%s to %s)", e->name, tn_dtype_name(source->dtype),
                 tn_dtype_name(t->dtype));
    }
    p->steps[p->n++] = (step){ t, source };
    p->loaded++;
}

static void compare_all(plan *p, const tn_list *model, const tn_list *state)
{
    for (int i = 0; i < model->n; i++) {
        const tn_entry *e = &model->entry[i];
        const tn_entry *from = tni_list_find(state, e->name);
        if (from)
            compare(p, e, from->tensor);
        else if (slot_of(e)->since > tni_list_version(state))
            p->steps[p->n++] = (step){ e->tensor, TN_NONE };
        else
            add_text(&p->missing, ", ", "\"%s\"", e->name);
    }
    for (int i = 0; i < state->n; i++)
        if (!tni_list_find(model, state->entry[i].name))
            add_text(&p->unexpected, ", ", "\"%s\"", state->entry[i].name);
}

static tn_status verdict(const plan *p, const tn_module *m)
{
    bool strict = !p->options.non_strict;
    const line *missing = &p->missing, *unexpected = &p->unexpected, *shapes = &p->mismatched;
    bool names = strict && (missing->count || unexpected->count);
    bool sizes = shapes->count && !p->options.skip_mismatched;
    if (!names && !sizes && !p->wrong_dtype.count) return TN_OK;
    return tni_error(
        names   ? TN_E_NAME
        : sizes ? TN_E_SHAPE
                : TN_E_DTYPE,
        "tn_load_state_dict: %s: the list does not fit, nothing was changed%s%s%s%s%s%s%s%s",
        m->type->name, strict && missing->count ? "\n  missing: " : "", strict ? missing->text : "",
        strict && unexpected->count ? "\n  unexpected: " : "", strict ? unexpected->text : "",
        sizes ? "\n" : "", sizes ? shapes->text : "", p->wrong_dtype.count ? "\n" : "",
        p->wrong_dtype.text);
}

static void fill_report(const plan *p, tn_load_report *r)
{
    size_t n = 0;
    const struct {
        const char *title;
        const line *line;
    } part[] = {
        { "missing: ", &p->missing },
        { "unexpected: ", &p->unexpected },
        { "mismatched:\n", &p->mismatched },
        { "cast: ", &p->cast },
    };
    *r = (tn_load_report){ .loaded = p->loaded,
                           .missing = p->missing.count,
                           .unexpected = p->unexpected.count,
                           .mismatched = p->mismatched.count,
                           .cast = p->cast.count };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (!part[i].line->count || n >= sizeof r->text - 1) continue;
        n += (size_t)snprintf(r->text + n, sizeof r->text - n, "%s%s\n", part[i].title,
                              part[i].line->text);
    }
}

/* The source as the target's dtype, shape and device, in memory that no copy will write to. */
static tn_tensor *staged(const step *s, const tni_map *written)
{
    tn_tensor *y = tn_to_dtype(s->source, s->target->dtype);
    y = tn_to(y, s->target->storage->device);
    if (y && y->shape.rank != s->target->shape.rank) y = tn_reshape(y, s->target->shape);
    if (y && y != s->target && tni_map_get(written, y->storage)) y = tn_clone(y);
    return y;
}

static tn_status stage_all(plan *p)
{
    tni_map written = { 0 };
    tn_status status = TN_OK;
    for (int i = 0; i < p->n && status == TN_OK; i++)
        if (tni_map_put(&written, p->steps[i].target->storage, p) < 0) status = TN_E_NOMEM;
    for (int i = 0; i < p->n && status == TN_OK; i++) {
        step *s = &p->steps[i];
        if (tni_none(s->source)) continue;
        s->source = staged(s, &written);
        if (!s->source) status = tni_pending();
    }
    tni_map_free(&written);
    return status;
}

static tn_status copy_all(const plan *p)
{
    for (int i = 0; i < p->n; i++) {
        const step *s = &p->steps[i];
        tn_status status = TN_OK;
        if (tni_none(s->source))
            status = tn_zero_(s->target);
        else if (s->source != s->target)
            status = tn_copy_(s->target, s->source);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status load(tn_module *m, const tn_list *state, plan *p, tn_load_report *report)
{
    tn_list *model = tn_state_dict(m, "");
    if (!model) return tni_pending();
    size_t nbytes = TNI_MAX((size_t)model->n, 1) * sizeof(step);
    p->steps = tni_alloc(nbytes);
    if (!p->steps) return TN_E_NOMEM;
    compare_all(p, model, state);
    tn_status status = verdict(p, m);
    if (status == TN_OK) status = stage_all(p);
    if (status == TN_OK) status = copy_all(p);
    if (status != TN_OK) p->loaded = 0;
    if (report) fill_report(p, report);
    tni_free(p->steps, nbytes);
    return status;
}

tn_status tn_load_state_dict(tn_module *m, const tn_list *state, tn_load_options o,
                             tn_load_report *report)
{
    tn_status status = tni_module_check("tn_load_state_dict", m);
    if (status != TN_OK) return status;
    if (!state) return tni_poison("tn_load_state_dict", "the list");
    plan *p = tni_calloc(sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->options = o;
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD {
        status = scope.depth < 0 ? TN_E_NOMEM : load(m, state, p, report);
    }
    tn_scope_end(scope);
    tni_free(p, sizeof *p);
    return status;
}
