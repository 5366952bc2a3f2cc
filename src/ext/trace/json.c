/*
 * json.c - an account as JSON: written straight to the file, item by item.
 */
#include "installed.h"
#include "ext/trace/json.h"

/* ---- values ---------------------------------------------------------------------------------- */

static void put_value(const tni_out *o, const char *name, const tni_numbers *v)
{
    fprintf(o->file, ",\"%s\":", name);
    tni_put_numbers(o, v);
}

static void put_tensor(const tni_out *o, int tensor)
{
    fprintf(o->file, "\"t%d\"", tensor);
}

static void put_id(const tni_out *o, int id)
{
    if (id < 0)
        fprintf(o->file, "null");
    else
        fprintf(o->file, "%d", id);
}

static const char *boolean(bool b)
{
    return b ? "true" : "false";
}

/* Writes the separator before item i of a list. */
static void next(const tni_out *o, size_t i)
{
    fprintf(o->file, i ? ",\n" : "\n");
}

static void put_shape(const tni_out *o, const tn_shape *s)
{
    fputc('[', o->file);
    for (int i = 0; i < s->rank; i++) fprintf(o->file, "%s%" PRId64, i ? "," : "", s->size[i]);
    fputc(']', o->file);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void put_tensors(const tni_out *o)
{
    static const char *const kind[] = { "op", "parameter", "buffer", "tensor" };
    static const char *const held[] = { "null", "\"held\"", "\"not held\"", "\"refused\"" };
    for (size_t i = 0; i < o->log->n_tensors; i++) {
        const tni_log_tensor *t = &o->log->tensors[i];
        next(o, i);
        fprintf(o->file, "  {\"id\":\"t%zu\",\"name\":", i);
        tni_put_text(o, t->name);
        fprintf(o->file, ",\"kind\":\"%s\",\"dtype\":\"%s\",\"shape\":", kind[t->kind],
                tn_dtype_name(t->dtype));
        put_shape(o, &t->shape);
        fprintf(o->file, ",\"module\":");
        tni_put_text(o, t->module);
        fprintf(o->file,
                ",\"registered\":%s,\"requires_grad\":%s,\"persistent\":%s,\"optimizer\":%s}",
                boolean(t->registered), boolean(t->requires_grad), boolean(t->persistent),
                held[t->held]);
    }
}

static void put_modules(const tni_out *o)
{
    for (size_t i = 0; i < o->log->n_modules; i++) {
        next(o, i);
        fprintf(o->file, "  {\"path\":");
        tni_put_text(o, o->log->modules[i].path);
        fprintf(o->file, ",\"type\":");
        tni_put_text(o, o->log->modules[i].type);
        fputc('}', o->file);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

static void put_call(const tni_out *o, size_t i)
{
    const tni_log_call *c = &o->step->calls[i];
    const tni_log_module *m = &o->log->modules[c->module];
    fprintf(o->file, "    {\"id\":%zu,\"module\":", i);
    tni_put_text(o, m->path);
    fprintf(o->file, ",\"type\":");
    tni_put_text(o, m->type);
    fprintf(o->file, ",\"time\":%d,\"outer\":", c->time);
    put_id(o, c->outer);
    fprintf(o->file, ",\"writes\":[");
    for (size_t k = 0; k < c->n_writes; k++) {
        if (k) fputc(',', o->file);
        put_tensor(o, c->writes[k]);
    }
    fprintf(o->file, "]}");
}

/* Shape, dtype, and whether a gradient flows. A page leaves out what most tensors have. */
static void put_kind(const tni_out *o, const tn_shape *shape, tn_dtype dtype, bool gradient)
{
    fprintf(o->file, "\"shape\":");
    put_shape(o, shape);
    if (!o->pack || dtype != TN_F32) fprintf(o->file, ",\"dtype\":\"%s\"", tn_dtype_name(dtype));
    if (!o->pack || !gradient) fprintf(o->file, ",\"gradient\":%s", boolean(gradient));
}

static void put_in(const tni_out *o, const tni_log_op *op, const tni_log_node *n, int i)
{
    const tni_log_in *in = &n->in[i];
    char name[32];
    if (in->node < 0 && in->tensor < 0) {
        fprintf(o->file, "null");
        return;
    }
    fprintf(o->file, "{\"name\":");
    tni_put_text(o, tni_log_name(op, i, n->n_in, name, sizeof name));
    fprintf(o->file, ",\"from\":");
    if (in->node >= 0)
        put_id(o, in->node);
    else
        put_tensor(o, in->tensor);
    fputc(',', o->file);
    if (!o->pack || in->output) fprintf(o->file, "\"output\":%d,", in->output);
    put_kind(o, &in->shape, in->dtype, in->gradient);
    if (in->value.known) put_value(o, "value", &in->value);
    fputc('}', o->file);
}

static void put_saved(const tni_out *o, const tni_log_op *op, const tni_log_node *n, int k)
{
    const tni_log_saved *kept = &n->kept[k];
    char name[32] = "y";
    bool again = kept->what == TNI_SAVED_RECOMPUTED;
    if (kept->what == TNI_SAVED_IN || again)
        tni_log_name(op, kept->index, n->n_in, name, sizeof name);
    if (kept->what == TNI_SAVED_EXTRA) snprintf(name, sizeof name, "saved %d", kept->index);
    fprintf(o->file, "%s{\"what\":", k ? "," : "");
    tni_put_text(o, name);
    fprintf(o->file, ",\"bytes\":%zu%s}", kept->bytes, again ? ",\"again\":true" : "");
}

static void put_node(const tni_out *o, size_t k)
{
    const tni_log_node *n = &o->step->nodes[k];
    const tni_log_op *op = &o->log->ops[n->op];
    fprintf(o->file, "    {\"id\":%zu,\"op\":", k);
    tni_put_text(o, op->name);
    fprintf(o->file, ",\"formula\":");
    tni_put_text(o, op->formula);
    fprintf(o->file, ",\"gradient\":");
    tni_put_text(o, op->gradient);
    fprintf(o->file, ",\"call\":");
    put_id(o, n->call);
    fprintf(o->file, ",\"line\":");
    if (n->line)
        tni_put_text(o, n->line);
    else
        fprintf(o->file, "null");
    fprintf(o->file, ",\n     \"in\":[");
    for (int i = 0; i < n->n_in; i++) {
        if (i) fputc(',', o->file);
        put_in(o, op, n, i);
    }
    fprintf(o->file, "],\n     \"out\":[");
    for (int i = 0; i < n->n_out; i++) {
        fprintf(o->file, "%s{", i ? "," : "");
        put_kind(o, &n->out[i].shape, n->out[i].dtype, n->out[i].gradient);
        put_value(o, "value", &n->out[i].value);
        fputc('}', o->file);
    }
    fprintf(o->file, "],\n     \"kept\":[");
    for (int i = 0; i < n->n_kept; i++) put_saved(o, op, n, i);
    fprintf(o->file, "]}");
}

/* ---- backward -------------------------------------------------------------------------------- */

/* ,"hooks":[...]; nothing if there are none */
static void put_hooks(const tni_out *o, int pass, int node, int output, int tensor)
{
    bool any = false;
    for (size_t k = 0; k < o->step->n_hooks; k++) {
        const tni_log_hook *h = &o->step->hooks[k];
        if (h->pass != pass || h->node != node || h->output != output || h->tensor != tensor)
            continue;
        fprintf(o->file, "%s{\"number\":%d,\"of\":%d", any ? "," : ",\"hooks\":[", h->number,
                h->of);
        any = true;
        put_value(o, "before", &h->before);
        put_value(o, "after", &h->after);
        fputc('}', o->file);
    }
    if (any) fputc(']', o->file);
}

static void put_incoming(const tni_out *o, const tni_log_back *b)
{
    bool any = false;
    for (int i = 0; i < b->n_out; i++) {
        if (!b->incoming[i].known) continue;
        fprintf(o->file, "%s{\"output\":%d", any ? "," : "", i);
        any = true;
        put_value(o, "value", &b->incoming[i]);
        fprintf(o->file, ",\"sum\":[");
        bool more = false;
        for (size_t k = 0; k < b->n_adds; k++) {
            if (b->adds[k].output != i) continue;
            fprintf(o->file, "%s{\"from\":", more ? "," : "");
            more = true;
            put_id(o, b->adds[k].node);
            fprintf(o->file, ",\"in\":%d}", b->adds[k].in);
        }
        fputc(']', o->file);
        put_hooks(o, b->pass, b->node, i, -1);
        fputc('}', o->file);
    }
}

static void put_shares(const tni_out *o, const tni_log_back *b)
{
    const tni_log_node *n = &o->step->nodes[b->node];
    for (size_t i = 0; i < b->n_shares; i++) {
        const tni_log_share *s = &b->shares[i];
        const tni_log_in *in = &n->in[s->in];
        fprintf(o->file, "%s{\"in\":%d,\"to\":", i ? "," : "", s->in);
        if (in->node >= 0)
            put_id(o, in->node);
        else
            put_tensor(o, in->tensor);
        put_value(o, "value", &s->value);
        if (s->reduced) {
            fprintf(o->file, ",\"reduced_from\":");
            put_shape(o, &s->from);
        }
        if (s->part && s->part == s->of) put_hooks(o, b->pass, -1, 0, in->tensor);
        fputc('}', o->file);
    }
}

static void put_accumulated(const tni_out *o, const tni_log_back *b)
{
    bool any = false;
    for (size_t i = 0; i < b->n_shares; i++) {
        const tni_log_share *s = &b->shares[i];
        if (!s->part || !o->step->passes[b->pass].accumulates) continue;
        fprintf(o->file, "%s{\"in\":%d,\"tensor\":", any ? "," : "", s->in);
        any = true;
        put_tensor(o, o->step->nodes[b->node].in[s->in].tensor);
        put_value(o, "before", &s->before);
        put_value(o, "after", &s->after);
        fprintf(o->file, ",\"part\":%d,\"of\":%d}", s->part, s->of);
    }
}

static void put_finding(const tni_out *o, const tni_log_finding *f)
{
    fprintf(o->file, "{\"kind\":\"%s\",\"node\":", f->kind);
    put_id(o, f->node);
    fprintf(o->file, ",\"text\":");
    tni_put_text(o, f->text);
    fputc('}', o->file);
}

static void put_back(const tni_out *o, size_t k)
{
    const tni_log_back *b = &o->step->backs[k];
    fprintf(o->file, "    {\"node\":%d,\"pass\":%d,\"incoming\":[", b->node, b->pass + 1);
    put_incoming(o, b);
    fprintf(o->file, "],\n     \"shares\":[");
    put_shares(o, b);
    fprintf(o->file, "],\n     \"accumulated\":[");
    put_accumulated(o, b);
    fprintf(o->file, "],\"freed\":%zu,\"kept\":%zu,\"finding\":", b->freed, b->kept);
    if (b->finding < 0)
        fprintf(o->file, "null");
    else
        put_finding(o, &o->step->findings[b->finding]);
    fputc('}', o->file);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void put_update(const tni_out *o, size_t i)
{
    const tni_log_update *u = &o->step->updates[i];
    fprintf(o->file, "    {\"tensor\":");
    put_tensor(o, u->tensor);
    put_value(o, "before", &u->before);
    put_value(o, "after", &u->after);
    put_value(o, "gradient", &u->gradient);
    fputc('}', o->file);
}

static void put_entry(const tni_out *o, size_t i)
{
    char moved[TNI_MOVED_TEXT];
    const tni_log_entry *e = &o->step->ledger[i];
    fprintf(o->file, "    {\"tensor\":");
    put_tensor(o, e->tensor);
    put_value(o, "start", &e->start);
    put_value(o, "forward", &e->forward);
    put_value(o, "step", &e->step);
    put_value(o, "grad", &e->grad);
    fprintf(o->file, ",\"moved\":");
    if (e->moved & TNI_MOVED_UNKNOWN)
        fprintf(o->file, "null}");
    else
        fprintf(o->file, "\"%s\"}", tni_moved_text(e->moved, moved, sizeof moved));
}

static void put_one_finding(const tni_out *o, size_t i)
{
    fprintf(o->file, "    ");
    put_finding(o, &o->step->findings[i]);
}

/* ,"averaged":[...]; nothing if there are none */
static void put_averages(const tni_out *o, int pass)
{
    bool any = false;
    for (size_t k = 0; k < o->step->n_averages; k++) {
        const tni_log_average *a = &o->step->averages[k];
        if (a->pass != pass) continue;
        fprintf(o->file, "%s{\"tensor\":", any ? "," : ",\"averaged\":[");
        any = true;
        put_tensor(o, a->tensor);
        fprintf(o->file, ",\"ranks\":%d", a->ranks);
        put_value(o, "before", &a->before);
        put_value(o, "after", &a->after);
        fputc('}', o->file);
    }
    if (any) fputc(']', o->file);
}

static void put_pass(const tni_out *o, size_t i)
{
    const tni_log_pass *p = &o->step->passes[i];
    fprintf(o->file, "    {\"pass\":%zu,\"root\":", i + 1);
    put_id(o, p->root);
    fprintf(o->file, ",\"accumulates\":%s,\"nodes\":%zu,\"error\":", boolean(p->accumulates),
            p->n_nodes);
    if (p->error)
        tni_put_text(o, p->error);
    else
        fprintf(o->file, "null");
    put_averages(o, (int)i);
    fputc('}', o->file);
}

static void put_list(const tni_out *o, const char *name, size_t n,
                     void (*put)(const tni_out *, size_t))
{
    fprintf(o->file, ",\n   \"%s\":[", name);
    for (size_t i = 0; i < n; i++) {
        next(o, i);
        put(o, i);
    }
    fputc(']', o->file);
}

static void put_step(tni_out *o, size_t k)
{
    const tni_log_step *s = o->step = &o->log->steps[k];
    next(o, k);
    fprintf(o->file, "  {\"step\":%zu,\"training\":%s,\"loss\":", k + 1, boolean(s->training));
    if (s->loss_known)
        tni_put_number(o, s->loss);
    else
        fprintf(o->file, "null");
    fprintf(o->file, ",\"root\":");
    put_id(o, s->root);
    put_list(o, "calls", s->n_calls, put_call);
    put_list(o, "nodes", s->n_nodes, put_node);
    put_list(o, "passes", s->n_passes, put_pass);
    put_list(o, "backward", s->n_backs, put_back);
    if (s->stepped)
        put_list(o, "updates", s->n_updates, put_update);
    else
        fprintf(o->file, ",\n   \"updates\":null");
    put_list(o, "ledger", s->n_ledger, put_entry);
    put_list(o, "findings", s->n_findings, put_one_finding);
    fputc('}', o->file);
}

void tni_put_account(const tni_out *to, const tni_log *log)
{
    tni_out o = { to->file, log, NULL, to->pack };
    fprintf(o.file, "{\"tenon_trace\":1,\"title\":");
    tni_put_text(&o, log->title);
    fprintf(o.file, ",\"tenon\":");
    tni_put_text(&o, TNI_VERSION);
    fprintf(o.file, ",\n \"modules\":[");
    put_modules(&o);
    fprintf(o.file, "],\n \"tensors\":[");
    put_tensors(&o);
    fprintf(o.file, "],\n \"steps\":[");
    for (size_t k = 0; k < log->n_steps; k++) put_step(&o, k);
    fprintf(o.file, "]}\n");
}

tn_status tn_trace_json(FILE *file, const tn_trace *trace)
{
    TNI_C_NUMBERS;
    tn_status status = tni_trace_writable("tn_trace_json", file, trace);
    if (status != TN_OK) return status;
    tni_put_account(&(tni_out){ .file = file }, &trace->log);
    return tni_trace_written("tn_trace_json", file);
}
