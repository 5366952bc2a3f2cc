/* page.c - the first steps of a training, told, as a page (--html). */
#include "common.h"

#include <errno.h>
#include <string.h>

void ex_page_begin(ex_page *p, const char *path, int64_t steps, tn_module *model,
                   tn_optim *optimizer)
{
    *p = (ex_page){ .path = path, .left = steps };
    if (!path || steps < 1 || tn_parallel_rank() > 0) return;
    p->file = fopen(path, "w");
    if (!p->file) ex_refuse("--html %s: %s", path, strerror(errno));
    p->trace = tn_trace_begin((tn_trace_options){
        .model = model, .opt = optimizer, .title = ex_program(), .lines = true });
    ex_check_ptr(p->trace);
}

void ex_page_step(ex_page *p)
{
    if (p->trace && --p->left == 0) ex_page_end(p);
}

void ex_page_end(ex_page *p)
{
    if (!p->trace) return;
    tn_status status = tn_trace_end(p->trace);
    if (status == TN_OK) status = tn_trace_html(p->file, &p->trace, 1);
    bool closed = fclose(p->file) == 0;
    if (status != TN_OK || !closed)
        ex_complain("--html %s: %s", p->path, status != TN_OK ? tn_error() : strerror(errno));
    if (status != TN_OK) tn_error_clear();
    tn_trace_free(p->trace);
    p->trace = NULL;
}
