/*
 * html.c - accounts as one self-contained HTML page: no network, no framework.
 *
 * The page itself, with its style and scripts, is in page/ and compiled in. Here its gaps are
 * filled: the title, the tables for readers without scripts, and for the scripts the accounts as
 * tn_trace_json writes them, compressed.
 */
#include <math.h>
#include <stdlib.h>
#include <zlib.h>

#include "ext/trace/json.h"

enum { ROWS = 400 }; /* rows of a ledger in the static tables; the JSON has all */

static void put_byte(void *file, unsigned char c)
{
    if (c == '<')
        fputs("&lt;", file);
    else if (c == '&')
        fputs("&amp;", file);
    else
        fputc(c, file);
}

/* Text in an element. */
static void put_text(FILE *file, const char *text)
{
    tni_escape(file, text, put_byte);
}

static void put_titles(FILE *file, tn_trace *const *traces, int n)
{
    for (int i = 0; i < n; i++) {
        const char *title = traces[i]->log.title;
        if (i) fputs(" | ", file);
        put_text(file, *title ? title : "a training step");
    }
}

/* ---- the tables ------------------------------------------------------------------------------ */

/* "-" where it is not known */
static void put_cell(FILE *file, bool known, double x)
{
    if (!known)
        fputs("<td>-</td>", file);
    else if (isnan(x))
        fputs("<td>NaN</td>", file);
    else
        fprintf(file, "<td>%.4g</td>", x);
}

static void put_losses(FILE *file, const tni_log *log)
{
    fputs("<table><caption>Losses</caption><tr><th>step</th><th>loss</th><th>mode</th>"
          "<th>ops</th></tr>\n",
          file);
    for (size_t i = 0; i < log->n_steps; i++) {
        const tni_log_step *s = &log->steps[i];
        fprintf(file, "<tr><td>%zu</td>", i + 1);
        put_cell(file, s->loss_known, s->loss);
        fprintf(file, "<td>%s</td><td>%zu</td></tr>\n", s->training ? "training" : "eval",
                s->n_nodes);
    }
    fputs("</table>\n", file);
}

static void put_row(FILE *file, const tni_log *log, const tni_log_entry *e)
{
    static const char *const kind[] = { "", "parameter", "buffer", "data" };
    static const char *const held[] = { "-", "held", "not held", "refused" };
    const tni_log_tensor *t = &log->tensors[e->tensor];
    fputs("<tr><td>", file);
    put_text(file, t->name);
    fprintf(file, "</td><td>%s</td><td>%s</td><td>%s</td>", kind[t->kind],
            t->persistent ? "yes" : "no", held[t->held]);
    const tni_numbers *const moment[] = { &e->grad, &e->start, &e->forward, &e->step };
    for (int i = 0; i < 4; i++) /* the value of one number, else the norm */
        put_cell(file, moment[i]->known, moment[i]->n == 1 ? moment[i]->mean : moment[i]->norm);
    fprintf(file, "<td>%s</td></tr>\n", tni_moved_phrase(e->moved).s);
}

static void put_ledger(FILE *file, const tni_log *log, size_t k)
{
    const tni_log_step *s = &log->steps[k];
    size_t n = s->n_ledger < ROWS ? s->n_ledger : ROWS;
    if (!n) return;
    fprintf(file,
            "<table><caption>State ledger of step %zu: values of single numbers, norms of the "
            "rest</caption><tr><th>name</th><th>kind</th><th>in the file</th><th>optimizer</th>"
            "<th>gradient</th><th>start</th><th>after forward</th><th>after the step</th>"
            "<th>moved</th></tr>\n",
            k + 1);
    for (size_t i = 0; i < n; i++) put_row(file, log, &s->ledger[i]);
    if (n < s->n_ledger)
        fprintf(file, "<tr><td colspan=\"9\">and %zu more</td></tr>\n", s->n_ledger - n);
    fputs("</table>\n", file);
}

/* The part for reading without scripts: losses, findings, and the ledgers of the first and last
 * step. */
static void put_static(FILE *file, tn_trace *const *traces, int n)
{
    for (int i = 0; i < n; i++) {
        const tni_log *log = &traces[i]->log;
        fputs("<h2>", file);
        put_titles(file, &traces[i], 1);
        fprintf(file,
                "</h2>\n<p>An account of %zu training step%s: what forward computed, what backward "
                "sent where, what the optimizer moved. With scripts on, this page plays "
                "it.</p>\n",
                log->n_steps, log->n_steps == 1 ? "" : "s");
        put_losses(file, log);
        for (size_t k = 0; k < log->n_steps; k++)
            for (size_t j = 0; j < log->steps[k].n_findings; j++) {
                fprintf(file, "<p><b>%s</b> ", log->steps[k].findings[j].kind);
                put_text(file, log->steps[k].findings[j].text);
                fputs("</p>\n", file);
            }
        if (log->n_steps) put_ledger(file, log, 0);
        if (log->n_steps > 1) put_ledger(file, log, log->n_steps - 1);
    }
}

/* ---- the page -------------------------------------------------------------------------------- */

static void put_base64(FILE *file, const unsigned char *data, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        size_t left = TNI_MIN(n - i, (size_t)3);
        uint32_t three = 0;
        for (size_t k = 0; k < 3; k++) three = three << 8 | (k < left ? data[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            fputc(k <= left ? digit[three >> (18 - 6 * k) & 63] : '=', file);
    }
}

/* The accounts as a list of JSON, compressed. False: out of memory. */
static bool put_traces(FILE *file, tn_trace *const *traces, int n)
{
    char *json = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&json, &size);
    for (int i = 0; to && i < n; i++) {
        fputc(i ? ',' : '[', to);
        tni_put_account(to, &traces[i]->log);
    }
    if (to) fputc(']', to);
    bool ok = to && !ferror(to);
    ok = to && fclose(to) == 0 && ok;
    uLongf room = compressBound(size), packed = room;
    Bytef *block = ok ? tni_alloc(room) : NULL;
    ok = block && compress(block, &packed, (const Bytef *)json, size) == Z_OK;
    if (ok) put_base64(file, block, packed);
    if (block) tni_free(block, room);
    free(json);
    return ok;
}

tn_status tn_trace_html(FILE *file, tn_trace *const *traces, int n)
{
    static const char f[] = "tn_trace_html";
    TNI_C_NUMBERS;
    if (!traces) return tni_poison(f, "traces");
    if (n < 1) return tni_error(TN_E_INVALID, "%s: %d traces: want at least one", f, n);
    for (int i = 0; i < n; i++) {
        tn_status status = tni_trace_writable(f, file, traces[i]);
        if (status != TN_OK) return status;
    }
    for (const char *at = (const char *)tni_page;;) {
        size_t plain = strcspn(at, "\1\2\3");
        fwrite(at, 1, plain, file);
        at += plain;
        if (!*at) break;
        if (*at == '\1')
            put_titles(file, traces, n);
        else if (*at == '\2')
            put_static(file, traces, n);
        else if (!put_traces(file, traces, n))
            return tni_error(TN_E_NOMEM, "%s: out of memory", f);
        at++;
    }
    return tni_trace_written(f, file);
}
