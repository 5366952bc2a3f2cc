/*
 * json.c - an account as JSON: written straight to the file, item by item, from templates. A number
 * has nine digits, more than an f32 has; of a tensor in a page, which shows four, seven.
 */
#include "installed.h"
#include "ext/trace/words.h"

/* ---- templates ------------------------------------------------------------------------------- */

static void put_byte(void *file, unsigned char c)
{
    if (c == '"' || c == '\\')
        fprintf(file, "\\%c", c);
    else if (c < ' ' || c == '<')
        fprintf(file, "\\u%04x", c);
    else
        fputc(c, file);
}

static void put_text(FILE *file, const char *text)
{
    fputs(text ? "\"" : "null", file);
    if (!text) return;
    tni_escape(file, text, put_byte);
    fputc('"', file);
}

static void put_rounded(FILE *file, double x, int digits)
{
    if (isfinite(x))
        fprintf(file, "%.*g", digits, x);
    else
        fprintf(file, isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"");
}

static void put_numbers(FILE *o, const tni_numbers *v);
static void put_hooks(FILE *o, const tni_log_hooks *hooks);

static void put_item(FILE *file, char code, va_list *args)
{
    const tni_log_in *in;
    const int *id;
    switch (code) {
    case 'i': fprintf(file, "%d", va_arg(*args, int)); break;
    case 'z': fprintf(file, "%zu", va_arg(*args, size_t)); break;
    case 'l': fprintf(file, "%" PRId64, va_arg(*args, int64_t)); break;
    case 'x': fprintf(file, "\"%016" PRIx64 "\"", va_arg(*args, uint64_t)); break;
    case 'g': put_rounded(file, va_arg(*args, double), 9); break;
    case 'b': fputs(va_arg(*args, int) ? "true" : "false", file); break;
    case 'w': fputs(va_arg(*args, const char *), file); break;
    case 's': put_text(file, va_arg(*args, const char *)); break;
    case 'v': put_numbers(file, va_arg(*args, const tni_numbers *)); break;
    case 'h': fputs(tni_shape_text(va_arg(*args, const tn_shape *)), file); break;
    case 't': fprintf(file, "\"t%d\"", va_arg(*args, const tni_log_tensor *)->id); break;
    case 'n':
        id = va_arg(*args, const void *);
        fprintf(file, id ? "%d" : "null", id ? *id : 0);
        break;
    case 'f':
        in = va_arg(*args, const tni_log_in *);
        fprintf(file, in->node ? "%d" : "\"t%d\"", in->node ? in->node->id : in->tensor->id);
        break;
    case 'k': put_hooks(file, va_arg(*args, const tni_log_hooks *)); break;
    case ',': fputs(va_arg(*args, size_t) ? "," : "", file); break;
    }
}

/* Writes a template, in which ' stands for " and % for the next argument:
 *
 *     i int    z size_t    l int64_t    x uint64_t as a string    g double    b bool
 *     w text as it is      s text as a string; NULL: null         t id of a tensor
 *     n id of a node or call, its first field; NULL: null         v numbers    h shape
 *     f what an input comes from, the id of an op or tensor       k hooks, a field if there are any
 *     , size_t: a comma unless it is 0 */
static void write_form(FILE *o, const char *form, ...)
{
    va_list args;
    va_start(args, form);
    for (const char *c = form; *c; c++)
        if (*c == '%')
            put_item(o, *++c, &args);
        else
            fputc(*c == '\'' ? '"' : *c, o);
    va_end(args);
}

/* Of an account that this thread writes for a page: the numbers in it, with their places from 1. */
static TNI_THREAD struct {
    bool on;
    size_t n;
    tni_map known;
} page;

/* Three digits are enough to look at. */
static void put_picture(FILE *o, const tni_picture *p)
{
    int64_t n = TNI_MAX(p->slices, (int64_t)1) * p->rows * p->columns;
    write_form(o, ",'picture':{'size':[%l,%l,%l],'every':[%l,%l],'values':", p->slices, p->rows,
               p->columns, p->down, p->across);
    for (int64_t i = 0; i < n; i++) {
        fputc(i ? ',' : '[', o);
        put_rounded(o, (double)p->value[i], p->slices ? 3 : 9);
    }
    fputs("]}", o);
}

static void put_numbers(FILE *o, const tni_numbers *v)
{
    if (!v->known) {
        fputs("null", o);
        return;
    }
    if (page.on) {
        const void *key = (const void *)(((uintptr_t)v->hash ^ (uintptr_t)v->picture) | 1);
        size_t place = (size_t)(uintptr_t)tni_map_get(&page.known, key);
        if (place) {
            write_form(o, "{'same':%z}", place - 1);
            return;
        }
        tni_map_put(&page.known, key, (void *)(uintptr_t)++page.n); /* no memory: written in full */
    }
    write_form(o, "{'norm':%g,'min':%g,'max':%g,'mean':%g,'zeros':%l,'nan':%l,'inf':%l,'hash':%x",
               v->norm, v->min, v->max, v->mean, v->zeros, v->nan, v->inf, v->hash);
    for (int64_t i = 0; v->value && i < v->n; i++) {
        fputs(i ? "," : ",\"values\":[", o);
        put_rounded(o, v->value[i], page.on && v->n > 1 ? 7 : 9);
    }
    if (v->value) fputc(']', o);
    if (page.on && v->picture) put_picture(o, v->picture);
    fputc('}', o);
}

/* A list of the account or of a step, so far to the right: each item on a line of its own. */
static void put_list(FILE *o, const char *indent, const char *name, size_t n, const void *items,
                     void (*put)(FILE *o, const void *item))
{
    const void *const *item = items;
    write_form(o, ",\n%w'%w':[", indent, name);
    for (size_t i = 0; i < n; i++) {
        write_form(o, "%,\n%w ", i, indent);
        put(o, item[i]);
    }
    write_form(o, "]");
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void put_tensor(FILE *o, const void *item)
{
    static const char *const kind[] = { "op", "parameter", "buffer", "tensor" };
    static const char *const held[] = { NULL, "held", "not held", "refused" };
    const tni_log_tensor *t = item;
    write_form(o,
               "{'id':%t,'name':%s,'kind':'%w','dtype':'%w','shape':%h,'module':%s,"
               "'registered':%b,'requires_grad':%b,'persistent':%b,'role':'%w','optimizer':%s}",
               t, t->name, kind[t->kind], tn_dtype_name(t->dtype), &t->shape, t->module,
               t->registered, t->requires_grad, t->persistent, tn_role_name(t->role),
               held[t->held]);
}

static void put_module(FILE *o, const void *item)
{
    const tni_log_module *m = item;
    write_form(o, "{'path':%s,'type':%s}", m->path, m->type);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void put_call(FILE *o, const void *item)
{
    const tni_log_call *c = item;
    write_form(o, "{'id':%i,'module':%s,'type':%s,'time':%i,'outer':%n,'writes':[", c->id,
               c->module->path, c->module->type, c->time, c->outer);
    for (size_t k = 0; k < c->n_writes; k++) write_form(o, "%,%t", k, c->writes[k]);
    write_form(o, "]}");
}

static void put_in(FILE *o, const tni_log_node *n, int i)
{
    const tni_log_in *in = &n->in[i];
    if (!in->node && !in->tensor) {
        write_form(o, "null");
        return;
    }
    write_form(o, "{'name':%s,'from':%f,'output':%i,'shape':%h,'dtype':'%w','gradient':%b",
               tni_log_name(n, i).s, in, in->output, &in->shape, tn_dtype_name(in->dtype),
               in->gradient);
    write_form(o, in->value.known ? ",'value':%v}" : "}", &in->value);
}

static void put_node(FILE *o, const void *item)
{
    const tni_log_node *n = item;
    write_form(o, "{'id':%i,'op':%s,'formula':%s,'gradient':%s,'call':%n,'line':%s,\n     'in':[",
               n->id, n->op->name, n->op->formula, n->op->gradient, n->call, n->line);
    for (int i = 0; i < n->n_in; i++) {
        write_form(o, "%,", (size_t)i);
        put_in(o, n, i);
    }
    write_form(o, "]");
    if (page.on && n->constants)
        write_form(o, ",'constants':%s,'numbers':[%g,%g]", n->constants, n->constant[0],
                   n->constant[1]);
    write_form(o, ",\n     'out':[");
    for (int i = 0; i < n->n_out; i++)
        write_form(o, "%,{'shape':%h,'dtype':'%w','gradient':%b,'value':%v}", (size_t)i,
                   &n->out[i].shape, tn_dtype_name(n->out[i].dtype), n->out[i].gradient,
                   &n->out[i].value);
    write_form(o, "],\n     'kept':[");
    for (size_t k = 0; k < n->n_kept; k++)
        write_form(o, "%,{'what':%s,'bytes':%z%w}", k, tni_log_kept(n, &n->kept[k]).s,
                   n->kept[k].bytes,
                   n->kept[k].what == TNI_SAVED_RECOMPUTED ? ",\"again\":true" : "");
    write_form(o, "]}");
}

/* ---- backward -------------------------------------------------------------------------------- */

static void put_hooks(FILE *o, const tni_log_hooks *hooks)
{
    for (size_t k = 0; k < hooks->n_hook; k++) {
        const tni_log_hook *h = &hooks->hook[k];
        write_form(o, "%w{'number':%i,'of':%i,'before':%v,'after':%v}", k ? "," : ",\"hooks\":[",
                   h->number, h->of, &h->before, &h->after);
    }
    if (hooks->n_hook) write_form(o, "]");
}

static void put_incoming(FILE *o, const tni_log_back *b)
{
    size_t said = 0;
    for (int i = 0; i < b->node->n_out; i++) {
        const tni_log_arrival *in = &b->incoming[i];
        if (!in->value.known) continue;
        write_form(o, "%,{'output':%i,'value':%v,'sum':[", said++, i, &in->value);
        for (size_t k = 0; k < in->n_adds; k++)
            write_form(o, "%,{'from':%n,'in':%i}", k, in->adds[k] ? in->adds[k]->back->node : NULL,
                       in->adds[k] ? in->adds[k]->in : 0);
        write_form(o, "]%k}", &in->hooks);
    }
}

static void put_shares(FILE *o, const tni_log_back *b)
{
    for (size_t i = 0; i < b->n_shares; i++) {
        const tni_log_share *s = &b->shares[i];
        write_form(o, "%,{'in':%i,'to':%f,'value':%v", i, s->in, &b->node->in[s->in], &s->value);
        if (s->reduced) write_form(o, ",'reduced_from':%h", &s->from);
        write_form(o, "%k}", &s->hooks);
    }
}

/* NULL: none */
static void put_finding(FILE *o, const void *item)
{
    const tni_log_finding *f = item;
    if (f)
        write_form(o, "{'kind':'%w','node':%i,'text':%s}", f->kind, f->node->id, f->text);
    else
        write_form(o, "null");
}

static void put_back(FILE *o, const void *item)
{
    const tni_log_back *b = item;
    write_form(o, "{'node':%i,'pass':%i,'incoming':[", b->node->id, b->pass->number);
    put_incoming(o, b);
    write_form(o, "],\n     'shares':[");
    put_shares(o, b);
    write_form(o, "],\n     'accumulated':[");
    for (size_t i = 0, said = 0; b->pass->accumulates && i < b->n_shares; i++) {
        const tni_log_share *s = &b->shares[i];
        if (!s->leaf) continue;
        write_form(o, "%,{'in':%i,'tensor':%t,'before':%v,'after':%v,'part':%i,'of':%i}", said++,
                   s->in, s->leaf, &s->before, &s->after, s->part, s->of);
    }
    write_form(o, "],'freed':%z,'kept':%z,'finding':", b->freed, b->kept);
    put_finding(o, b->finding);
    write_form(o, "}");
}

/* ---- the step -------------------------------------------------------------------------------- */

static void put_update(FILE *o, const void *item)
{
    const tni_log_update *u = item;
    write_form(o, "{'tensor':%t,'before':%v,'after':%v,'gradient':%v}", u->tensor, &u->before,
               &u->after, &u->gradient);
}

static void put_entry(FILE *o, const void *item)
{
    const tni_log_entry *e = item;
    tni_phrase moved = tni_moved_phrase(e->moved);
    write_form(o, "{'tensor':%t,'start':%v,'forward':%v,'step':%v,'grad':%v,'moved':%s}", e->tensor,
               &e->start, &e->forward, &e->step, &e->grad,
               e->moved & TNI_MOVED_UNKNOWN ? NULL : moved.s);
}

static void put_pass(FILE *o, const void *item)
{
    const tni_log_pass *p = item;
    write_form(o, "{'pass':%i,'root':%n,'accumulates':%b,'nodes':%z,'error':%s", p->number, p->root,
               p->accumulates, p->n_nodes, p->error);
    for (size_t k = 0; k < p->n_averages; k++) {
        const tni_log_average *a = &p->averages[k];
        write_form(o, "%w{'tensor':%t,'ranks':%i,'before':%v,'after':%v}",
                   k ? "," : ",\"averaged\":[", a->tensor, a->ranks, &a->before, &a->after);
    }
    write_form(o, p->n_averages ? "]}" : "}");
}

static void put_step(FILE *o, const tni_log_step *s, size_t k)
{
    static const char in[] = "   ";
    write_form(o, "%,\n  {'step':%z,'training':%b,'loss':", k, k + 1, s->training);
    write_form(o, s->loss_known ? "%g" : "null", s->loss);
    write_form(o, ",'root':%n", s->root);
    put_list(o, in, "calls", s->n_calls, s->calls, put_call);
    put_list(o, in, "nodes", s->n_nodes, s->nodes, put_node);
    put_list(o, in, "passes", s->n_passes, s->passes, put_pass);
    put_list(o, in, "backward", s->n_backs, s->backs, put_back);
    if (s->clip.known)
        write_form(o, ",\n   'clip':{'norm':%g,'limit':%g,'factor':%g}", s->clip.norm,
                   s->clip.limit, s->clip.factor);
    if (s->stepped)
        put_list(o, in, "updates", s->n_updates, s->updates, put_update);
    else
        write_form(o, ",\n   'updates':null");
    put_list(o, in, "ledger", s->n_ledger, s->ledger, put_entry);
    put_list(o, in, "findings", s->n_findings, s->findings, put_finding);
    write_form(o, "}");
}

void tni_put_account(FILE *o, const tni_log *log, bool for_page)
{
    page.on = for_page;
    page.n = 0;
    write_form(o, "{'tenon_trace':1,'title':%s,'tenon':%s", log->title, TNI_VERSION);
    put_list(o, " ", "modules", log->n_modules, log->modules, put_module);
    put_list(o, " ", "tensors", log->n_tensors, log->tensors, put_tensor);
    write_form(o, ",\n 'steps':[");
    for (size_t k = 0; k < log->n_steps; k++) put_step(o, &log->steps[k], k);
    write_form(o, "]}\n");
    tni_map_free(&page.known);
}

tn_status tn_trace_json(FILE *file, const tn_trace *trace)
{
    TNI_C_NUMBERS;
    TNI_TRY(tni_trace_writable("tn_trace_json", file, trace));
    tni_put_account(file, &trace->log, false);
    return tni_stream_written("tn_trace_json", file);
}
