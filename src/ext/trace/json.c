/*
 * json.c - an account as JSON: written straight to the file, item by item.
 */
#include "installed.h"
#include "ext/trace/words.h"

/* ---- tensors --------------------------------------------------------------------------------- */

static void put_tensors(const tni_words *o)
{
    static const char *const kind[] = { "op", "parameter", "buffer", "tensor" };
    static const char *const held[] = { "null", "\"held\"", "\"not held\"", "\"refused\"" };
    for (size_t i = 0; i < o->log->n_tensors; i++) {
        const tni_log_tensor *t = &o->log->tensors[i];
        tni_write(o,
                  "%n  {'id':%t,'name':%s,'kind':'%w','dtype':'%w','shape':%h,'module':%s,"
                  "'registered':%b,'requires_grad':%b,'persistent':%b,'role':'%w','optimizer':%w}",
                  i, (int)i, t->name, kind[t->kind], tn_dtype_name(t->dtype), &t->shape, t->module,
                  t->registered, t->requires_grad, t->persistent, tn_role_name(t->role),
                  held[t->held]);
    }
}

static void put_modules(const tni_words *o)
{
    const tni_log_module *m = o->log->modules;
    for (size_t i = 0; i < o->log->n_modules; i++)
        tni_write(o, "%n  {'path':%s,'type':%s}", i, m[i].path, m[i].type);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void put_call(const tni_words *o, size_t i)
{
    const tni_log_call *c = &o->step->calls[i];
    const tni_log_module *m = &o->log->modules[c->module];
    tni_write(o, "{'id':%z,'module':%s,'type':%s,'time':%d,'outer':%i,'writes':[", i, m->path,
              m->type, c->time, c->outer);
    for (size_t k = 0; k < c->n_writes; k++) tni_write(o, "%,%t", k, c->writes[k]);
    tni_write(o, "]}");
}

static void put_kind(const tni_words *o, const tn_shape *shape, tn_dtype dtype, bool gradient)
{
    tni_write(o, "'shape':%h,'dtype':'%w','gradient':%b", shape, tn_dtype_name(dtype), gradient);
}

/* The op or tensor that an input is. */
static void put_source(const tni_words *o, const tni_log_in *in)
{
    tni_write(o, in->node >= 0 ? "%d" : "%t", in->node >= 0 ? in->node : in->tensor);
}

static void put_in(const tni_words *o, const tni_log_op *op, const tni_log_node *n, int i)
{
    const tni_log_in *in = &n->in[i];
    if (in->node < 0 && in->tensor < 0) {
        tni_write(o, "null");
        return;
    }
    tni_write(o, "{'name':%s,'from':", tni_log_name(op, i, n->n_in).s);
    put_source(o, in);
    tni_write(o, ",'output':%d,", in->output);
    put_kind(o, &in->shape, in->dtype, in->gradient);
    tni_write(o, in->value.known ? ",'value':%v}" : "}", &in->value);
}

static void put_saved(const tni_words *o, const tni_log_op *op, const tni_log_node *n, size_t k)
{
    const tni_log_saved *kept = &n->kept[k];
    bool again = kept->what == TNI_SAVED_RECOMPUTED;
    tni_write(o, "%,{'what':%s,'bytes':%z%w}", k, tni_log_kept(op, n, kept).s, kept->bytes,
              again ? ",\"again\":true" : "");
}

static void put_node(const tni_words *o, size_t k)
{
    const tni_log_node *n = &o->step->nodes[k];
    const tni_log_op *op = &o->log->ops[n->op];
    tni_write(o, "{'id':%z,'op':%s,'formula':%s,'gradient':%s,'call':%i,'line':%s,\n     'in':[", k,
              op->name, op->formula, op->gradient, n->call, n->line);
    for (int i = 0; i < n->n_in; i++) {
        tni_write(o, "%,", (size_t)i);
        put_in(o, op, n, i);
    }
    tni_write(o, "],\n     'out':[");
    for (int i = 0; i < n->n_out; i++) {
        tni_write(o, "%,{", (size_t)i);
        put_kind(o, &n->out[i].shape, n->out[i].dtype, n->out[i].gradient);
        tni_write(o, ",'value':%v}", &n->out[i].value);
    }
    tni_write(o, "],\n     'kept':[");
    for (size_t i = 0; i < n->n_kept; i++) put_saved(o, op, n, i);
    tni_write(o, "]}");
}

/* ---- backward -------------------------------------------------------------------------------- */

/* ,"hooks":[...]; nothing if there are none */
static void put_hooks(const tni_words *o, int pass, int node, int output, int tensor)
{
    bool any = false;
    for (size_t k = 0; k < o->step->n_hooks; k++) {
        const tni_log_hook *h = &o->step->hooks[k];
        if (h->pass != pass || h->node != node || h->output != output || h->tensor != tensor)
            continue;
        tni_write(o, any ? "," : ",'hooks':[");
        tni_write(o, "{'number':%d,'of':%d,'before':%v,'after':%v}", h->number, h->of, &h->before,
                  &h->after);
        any = true;
    }
    if (any) tni_write(o, "]");
}

static void put_add(const tni_words *o, const tni_log_add *a, size_t before)
{
    const tni_log_share *share = tni_log_added(o->step, a);
    tni_write(o, "%,{'from':%i,'in':%d}", before, share ? o->step->backs[a->back].node : -1,
              share ? share->in : 0);
}

static void put_incoming(const tni_words *o, const tni_log_back *b)
{
    size_t said = 0;
    for (int i = 0; i < b->n_out; i++) {
        size_t added = 0;
        if (!b->incoming[i].known) continue;
        tni_write(o, "%,{'output':%d,'value':%v,'sum':[", said++, i, &b->incoming[i]);
        for (size_t k = 0; k < b->n_adds; k++)
            if (b->adds[k].output == i) put_add(o, &b->adds[k], added++);
        tni_write(o, "]");
        put_hooks(o, b->pass, b->node, i, -1);
        tni_write(o, "}");
    }
}

static void put_shares(const tni_words *o, const tni_log_back *b)
{
    for (size_t i = 0; i < b->n_shares; i++) {
        const tni_log_share *s = &b->shares[i];
        tni_write(o, "%,{'in':%d,'to':", i, s->in);
        put_source(o, &o->step->nodes[b->node].in[s->in]);
        tni_write(o, s->reduced ? ",'value':%v,'reduced_from':%h" : ",'value':%v", &s->value,
                  &s->from);
        if (s->part && s->part == s->of) put_hooks(o, b->pass, -1, 0, s->leaf);
        tni_write(o, "}");
    }
}

static void put_accumulated(const tni_words *o, const tni_log_back *b)
{
    size_t said = 0;
    for (size_t i = 0; i < b->n_shares; i++) {
        const tni_log_share *s = &b->shares[i];
        if (!s->part || !o->step->passes[b->pass].accumulates) continue;
        tni_write(o, "%,{'in':%d,'tensor':%t,'before':%v,'after':%v,'part':%d,'of':%d}", said++,
                  s->in, s->leaf, &s->before, &s->after, s->part, s->of);
    }
}

static void put_finding(const tni_words *o, size_t i)
{
    const tni_log_finding *f = &o->step->findings[i];
    tni_write(o, "{'kind':'%w','node':%i,'text':%s}", f->kind, f->node, f->text);
}

static void put_back(const tni_words *o, size_t k)
{
    const tni_log_back *b = &o->step->backs[k];
    tni_write(o, "{'node':%d,'pass':%d,'incoming':[", b->node, b->pass + 1);
    put_incoming(o, b);
    tni_write(o, "],\n     'shares':[");
    put_shares(o, b);
    tni_write(o, "],\n     'accumulated':[");
    put_accumulated(o, b);
    tni_write(o, "],'freed':%z,'kept':%z,'finding':", b->freed, b->kept);
    if (b->finding < 0)
        tni_write(o, "null");
    else
        put_finding(o, (size_t)b->finding);
    tni_write(o, "}");
}

/* ---- the step -------------------------------------------------------------------------------- */

static void put_update(const tni_words *o, size_t i)
{
    const tni_log_update *u = &o->step->updates[i];
    tni_write(o, "{'tensor':%t,'before':%v,'after':%v,'gradient':%v}", u->tensor, &u->before,
              &u->after, &u->gradient);
}

static void put_entry(const tni_words *o, size_t i)
{
    const tni_log_entry *e = &o->step->ledger[i];
    tni_write(o, "{'tensor':%t,'start':%v,'forward':%v,'step':%v,'grad':%v,'moved':", e->tensor,
              &e->start, &e->forward, &e->step, &e->grad);
    tni_write(o, e->moved & TNI_MOVED_UNKNOWN ? "null}" : "'%w'}", tni_moved_phrase(e->moved).s);
}

static void put_pass(const tni_words *o, size_t i)
{
    const tni_log_pass *p = &o->step->passes[i];
    bool any = false;
    tni_write(o, "{'pass':%z,'root':%i,'accumulates':%b,'nodes':%z,'error':%s", i + 1, p->root,
              p->accumulates, p->n_nodes, p->error);
    for (size_t k = 0; k < o->step->n_averages; k++) {
        const tni_log_average *a = &o->step->averages[k];
        if (a->pass != (int)i) continue;
        tni_write(o, any ? "," : ",'averaged':[");
        tni_write(o, "{'tensor':%t,'ranks':%d,'before':%v,'after':%v}", a->tensor, a->ranks,
                  &a->before, &a->after);
        any = true;
    }
    tni_write(o, any ? "]}" : "}");
}

static void put_list(const tni_words *o, const char *name, size_t n,
                     void (*put)(const tni_words *, size_t))
{
    tni_write(o, ",\n   '%w':[", name);
    for (size_t i = 0; i < n; i++) {
        tni_write(o, "%n    ", i);
        put(o, i);
    }
    tni_write(o, "]");
}

static void put_step(tni_words *o, size_t k)
{
    const tni_log_step *s = o->step = &o->log->steps[k];
    tni_write(o, "%n  {'step':%z,'training':%b,'loss':", k, k + 1, s->training);
    tni_write(o, s->loss_known ? "%g" : "null", s->loss);
    tni_write(o, ",'root':%i", s->root);
    put_list(o, "calls", s->n_calls, put_call);
    put_list(o, "nodes", s->n_nodes, put_node);
    put_list(o, "passes", s->n_passes, put_pass);
    put_list(o, "backward", s->n_backs, put_back);
    if (s->stepped)
        put_list(o, "updates", s->n_updates, put_update);
    else
        tni_write(o, ",\n   'updates':null");
    put_list(o, "ledger", s->n_ledger, put_entry);
    put_list(o, "findings", s->n_findings, put_finding);
    tni_write(o, "}");
}

void tni_put_account(FILE *file, const tni_log *log)
{
    tni_words o = { file, log, NULL };
    tni_write(&o, "{'tenon_trace':1,'title':%s,'tenon':%s,\n 'modules':[", log->title, TNI_VERSION);
    put_modules(&o);
    tni_write(&o, "],\n 'tensors':[");
    put_tensors(&o);
    tni_write(&o, "],\n 'steps':[");
    for (size_t k = 0; k < log->n_steps; k++) put_step(&o, k);
    tni_write(&o, "]}\n");
}

tn_status tn_trace_json(FILE *file, const tn_trace *trace)
{
    TNI_C_NUMBERS;
    tn_status status = tni_trace_writable("tn_trace_json", file, trace);
    if (status != TN_OK) return status;
    tni_put_account(file, &trace->log);
    return tni_trace_written("tn_trace_json", file);
}
