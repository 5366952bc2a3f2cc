/*
 * call_site.c - see call_site.h. A call site is made when the first node is recorded in it, and
 * shared by all of them. Nothing here keeps a handle with history, so a graph never holds itself.
 */
#include "autograd/call_site.h"
#include "base/lines.h"

_Thread_local tni_call_site *(*tni_call_site_here)(void);

static _Thread_local bool on;

static tni_call_site *here(void)
{
    return tni_call_site_here ? tni_call_site_here() : NULL;
}

tn_status tni_call_site_now(tni_call_site **site)
{
    uint64_t errors = tni_error_count;
    *site = here();
    return tni_error_count != errors ? tni_pending() : TN_OK;
}

tni_call_site *tni_call_site_new(tni_call_site *outer, const void *module, const char *path,
                                 const char *type)
{
    tni_call_site *p = tni_calloc(sizeof *p);
    if (!p) return NULL;
    p->refs = 1;
    p->module = module;
    p->path = tni_strdup(path);
    p->type = tni_strdup(type);
    p->outer = outer;
    if (outer) atomic_fetch_add_explicit(&outer->refs, 1, memory_order_relaxed);
    if (p->path && p->type) return p;
    tni_call_site_drop(p);
    return NULL;
}

void tni_call_site_drop(tni_call_site *p)
{
    while (p && tni_last(&p->refs)) {
        tni_call_site *outer = p->outer;
        tni_strfree(p->path);
        tni_strfree(p->type);
        for (size_t i = 0; i < p->n_written; i++) tn_drop(p->written[i]);
        tni_room_free(&p->written, &p->capacity, sizeof *p->written);
        tni_free(p, sizeof *p);
        p = outer;
    }
}

static size_t origin_size(int n_in)
{
    return sizeof(tni_origin) + (size_t)n_in * sizeof(tn_tensor *);
}

void tni_origin_free(tni_origin *o)
{
    for (int i = 0; i < o->n_in; i++) tn_drop(o->in[i]);
    tni_call_site_drop(o->site);
    if (o->line) tni_strfree(o->line);
    tni_calls_free(o->calls);
    tni_free(o, origin_size(o->n_in));
}

tn_status tni_call_site_node(tni_watcher *self, const tni_call *c)
{
    (void)self;
    tni_node *node = NULL;
    for (int i = 0; i < c->n_out && !node; i++) node = c->out[i]->node;
    if (!c->recorded || !node || node->origin) return TN_OK;
    tni_call_site *site;
    TNI_TRY(tni_call_site_now(&site));
    int n_in = on ? c->n_in : 0;
    if (!site && !n_in && !tni_lines_wanted) return TN_OK;
    tni_origin *o = tni_calloc(origin_size(n_in));
    if (!o) return TN_E_NOMEM;
    o->n_in = n_in;
    o->site = site;
    if (site) atomic_fetch_add_explicit(&site->refs, 1, memory_order_relaxed);
    node->origin = o;
    if (tni_lines_wanted && !(o->calls = tni_calls_here())) return TN_E_NOMEM;
    for (int i = 0; i < n_in; i++) {
        if (c->in[i]->requires_grad || tni_none(c->in[i])) continue;
        if (!(o->in[i] = tni_alias_raw(c->in[i]))) return TN_E_NOMEM;
    }
    return TN_OK;
}

/* The write itself cannot fail here: without memory it stays unknown. */
void tni_call_site_write(tni_watcher *self, const tn_tensor *t)
{
    (void)self;
    if (!on || !atomic_load_explicit(&t->storage->buffer_marks, memory_order_relaxed)) return;
    tni_saved_error before;
    tni_error_save(&before);
    tni_call_site *p = here();
    for (size_t i = 0; p && i < p->n_written; i++)
        if (p->written[i]->storage == t->storage) p = NULL;
    tn_tensor *alias = p ? tni_alias_raw(t) : NULL;
    if (alias && tni_room(&p->written, &p->capacity, p->n_written, 1, sizeof *p->written))
        p->written[p->n_written++] = alias;
    else
        tn_drop(alias);
    tni_error_restore(&before);
}

const char *tni_call_site_text(const tni_node *node)
{
    const tni_call_site *p = node->origin ? node->origin->site : NULL;
    tni_texts *mine = p ? tni_texts_mine() : NULL;
    if (!mine) return "";
    snprintf(mine->place, sizeof mine->place, " (in %s%s%s)", p->path, p->path[0] ? ": " : "",
             p->type);
    return mine->place;
}

const char *tni_call_site_line(const tni_node *node)
{
    tni_origin *o = node->origin;
    char *line = o ? atomic_load(&o->line) : NULL;
    if (line || !o || !o->calls) return line ? line : "";
    char *text = tni_line_text(o->calls);
    if (text && atomic_compare_exchange_strong(&o->line, &line, text)) return text;
    if (text) tni_strfree(text); /* another thread was faster */
    return line ? line : "";
}

#define SWITCH(tn_name, tn_set_name, wanted)                                                       \
    bool tn_name(void)                                                                             \
    {                                                                                              \
        return wanted;                                                                             \
    }                                                                                              \
    bool tn_set_name(bool now)                                                                     \
    {                                                                                              \
        bool was = wanted;                                                                         \
        wanted = now;                                                                              \
        tni_watch_places(on || tni_lines_wanted);                                                  \
        return was;                                                                                \
    }
SWITCH(tn_places, tn_set_places, on)
SWITCH(tn_lines, tn_set_lines, tni_lines_wanted)
