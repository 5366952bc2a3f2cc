/* trace.c - beginning and ending an account. */
#include "base/lines.h"
#include "ext/trace/record.h"

tn_status tni_trace_may_begin(const char *f, const tn_module *model)
{
    if (tni_host_refused(f, "watches a step", "it outside of the captured step")) return TN_E_STATE;
    if (tn_get_anomaly() != TN_ANOMALY_OFF)
        return tni_error(TN_E_STATE, "%s: anomaly mode is on: want tn_set_anomaly(TN_ANOMALY_OFF)",
                         f);
    /* places and lines alone may be on: the recorder does their work */
    bool places = tn_set_places(false), lines = tn_set_lines(false), watched = tni_watched();
    tn_set_places(places);
    tn_set_lines(lines);
    if (watched)
        return tni_error(TN_E_STATE,
                         "%s: this thread is watched already: want one trace or report at a time",
                         f);
    return model ? tni_module_check(f, model) : TN_OK;
}

static tn_status add_module(tn_module *m, const char *path, void *user)
{
    tn_trace *tr = user;
    tni_log_module *noted = tni_record_new_module(tr, path, m->type->name);
    if (noted) tni_record_put(tr, &tr->modules, m, noted);
    return tr->failed;
}

enum { PICTURE_ROOM = 400000 }; /* numbers of all pictures: about 1.3 MB of a page */

tn_trace *tni_trace_start(tn_trace_options o, bool late)
{
    tn_trace *tr = tni_calloc(sizeof *tr);
    tni_calls_skip((const void *)(uintptr_t)tni_trace_start); /* lines are the program's */
    if (!tr) return NULL;
    *tr = (tn_trace){ .late = late, .mode = true, .values = o.values ? o.values : 64 };
    tr->names.names = true;
    tr->log.arena.failed = &tr->failed;
    if (!late && tr->values > 0)
        tr->pictures = (tni_pictures){ .room = PICTURE_ROOM, .arena = &tr->log.arena };
    if (o.model) tr->model = tn_module_keep(o.model);
    if (o.opt) tr->opt = tni_optim_keep(o.opt);
    const char *title = o.title ? o.title : o.model ? o.model->type->name : "";
    tr->log.title = tni_arena_text(&tr->log.arena, title);
    if (o.model) tni_record_ok(tr, tni_walk(o.model, TNI_ONCE, add_module, NULL, tr));
    tni_record_open(tr);
    if (tr->failed != TN_OK) {
        tn_trace_free(tr);
        return NULL;
    }
    tni_record_forward(&tr->watcher);
    tni_record_backward(&tr->watcher);
    tni_record_steps(&tr->watcher);
    tr->running = true;
    tni_watch(&tr->watcher);
    tr->lines = tn_set_lines(o.lines || tn_lines());
    return tr;
}

tn_trace *tn_trace_begin(tn_trace_options options)
{
    tn_status status = tni_trace_may_begin("tn_trace_begin", options.model);
    return status == TN_OK ? tni_trace_start(options, false) : NULL;
}

/* Leaves nothing of the recorder but the account. */
static void stop(tn_trace *tr)
{
    tni_saved_error error;
    tni_error_save(&error);
    if (tr->running && tni_watching == &tr->watcher) {
        tni_watch(NULL);
        tn_set_lines(tr->lines);
        tn_set_places(tn_places()); /* they may be on by themselves */
    }
    tr->running = false;
    while (tr->pass) tni_record_pass_end(tr);
    tni_record_drop(tr);
    tni_map *map[] = { &tr->known, &tr->names, &tr->storages, &tr->modules, &tr->pictures.known };
    for (size_t i = 0; i < sizeof map / sizeof *map; i++) tni_map_free(map[i]);
    if (tr->model) tn_module_drop(tr->model);
    if (tr->opt) tn_optim_free(tr->opt);
    tr->model = NULL;
    tr->opt = NULL;
    tni_error_restore(&error);
}

tn_status tni_trace_stop(tn_trace *tr)
{
    {
        TNI_RECORDER(open, &tr->watcher);
        if (open) tni_record_close(open);
    }
    stop(tr);
    return tr->failed;
}

tn_status tn_trace_end(tn_trace *tr)
{
    static const char f[] = "tn_trace_end";
    if (!tr) return tni_poison(f, "trace");
    if (!tr->running) return tni_error(TN_E_STATE, "%s: the trace has ended already", f);
    if (tni_watching != &tr->watcher)
        return tni_error(TN_E_STATE, "%s: it was begun in another thread: want it ended there", f);
    if (tr->pass && tr->failed == TN_OK)
        return tni_error(TN_E_STATE, "%s: a backward is running: want it ended after that", f);
    tn_status failed = tni_trace_stop(tr);
    if (failed == TN_OK) return TN_OK;
    return tni_error(failed, "%s: the account was cut short: out of memory", f);
}

void tn_trace_free(tn_trace *tr)
{
    if (!tr) return;
    stop(tr);
    tni_log_free(&tr->log);
    tni_free(tr, sizeof *tr);
}

tn_status tni_trace_writable(const char *function, const FILE *file, const tn_trace *tr)
{
    if (!file) return tni_null(function, "the file", "an open one");
    if (!tr) return tni_poison(function, "trace");
    if (!tr->running) return TN_OK;
    return tni_error(TN_E_STATE, "%s: the trace has not ended: want tn_trace_end first", function);
}
