/*
 * html.c - accounts as one self-contained HTML page: no network, no framework.
 *
 * The page itself, with its style and scripts, is in page/ and compiled in. Here its gaps are
 * filled: the title, the tables for readers without scripts, and for the scripts the accounts as
 * tn_trace_json writes them, compressed.
 */
#include <zlib.h>

#include "ext/trace/words.h"

enum { ROWS = 400 }; /* rows of a ledger in the static tables; the JSON has all */

static void put_titles(FILE *file, tn_trace *const *traces, int n)
{
    for (int i = 0; i < n; i++) {
        const char *title = traces[i]->log.title;
        if (i) fputs(" | ", file);
        tni_put_markup(file, *title ? title : "a training step");
    }
}

/* ---- the tables ------------------------------------------------------------------------------ */

static void put_ledger(FILE *file, const tni_log *log, size_t k)
{
    tni_words w = { file, &log->steps[k] };
    size_t all = w.step->n_ledger, n = TNI_MIN(all, (size_t)ROWS);
    if (!n) return;
    fprintf(file,
            "<table><caption>State ledger of step %zu: values of single numbers, norms of the "
            "rest, before forward, after it and after the step</caption>\n",
            k + 1);
    for (size_t i = 0; i <= n; i++) {
        fputs("<tr>", file);
        for (int c = 0; c < TNI_LEDGER_COLUMNS; c++) {
            fputs(i ? "<td>" : "<th>", file);
            tni_put_markup(file, tni_ledger_cell(&w, i, c).s);
            fputs(i ? "</td>" : "</th>", file);
        }
        fputs("</tr>\n", file);
    }
    if (n < all)
        fprintf(file, "<tr><td colspan=\"%d\">and %zu more</td></tr>\n", TNI_LEDGER_COLUMNS,
                all - n);
    fputs("</table>\n", file);
}

/* For reading without scripts: losses, findings, and the ledgers of the first and last step. */
static void put_static(FILE *file, tn_trace *const *traces, int n)
{
    for (int i = 0; i < n; i++) {
        const tni_log *log = &traces[i]->log;
        fputs("<h2>", file);
        put_titles(file, &traces[i], 1);
        fprintf(file,
                "</h2>\n<p>An account of %zu training step%s: what forward computed, what backward "
                "sent where, what the optimizer moved. With scripts on, this page plays it.</p>\n"
                "<table><caption>Losses</caption><tr><th>step</th><th>loss</th><th>mode</th>"
                "<th>ops</th></tr>\n",
                log->n_steps, log->n_steps == 1 ? "" : "s");
        for (size_t k = 0; k < log->n_steps; k++) {
            const tni_log_step *s = &log->steps[k];
            tni_numbers loss = { .known = s->loss_known, .n = 1, .mean = s->loss };
            fprintf(file, "<tr><td>%zu</td><td>%s</td><td>%s</td><td>%zu</td></tr>\n", k + 1,
                    tni_amount_phrase(&loss).s, s->training ? "training" : "eval", s->n_nodes);
        }
        fputs("</table>\n", file);
        for (size_t k = 0; k < log->n_steps; k++)
            for (size_t j = 0; j < log->steps[k].n_findings; j++) {
                fprintf(file, "<p><b>%s</b> ", log->steps[k].findings[j]->kind);
                tni_put_markup(file, log->steps[k].findings[j]->text);
                fputs("</p>\n", file);
            }
        if (log->n_steps) put_ledger(file, log, 0);
        if (log->n_steps > 1) put_ledger(file, log, log->n_steps - 1);
    }
}

/* ---- the page -------------------------------------------------------------------------------- */

/* The accounts as a list of JSON, compressed, in base64. False: out of memory. */
static bool put_traces(FILE *file, tn_trace *const *traces, int n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *json = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&json, &size);
    for (int i = 0; to && i < n; i++) {
        fputc(i ? ',' : '[', to);
        tni_put_account(to, &traces[i]->log, true);
    }
    if (to) fputc(']', to);
    bool ok = to && !ferror(to);
    ok = to && fclose(to) == 0 && ok;
    uLongf room = compressBound(size), packed = room;
    Bytef *block = ok ? tni_alloc(room) : NULL;
    ok = block && compress(block, &packed, (const Bytef *)json, size) == Z_OK;
    for (size_t i = 0; ok && i < packed; i += 3) {
        size_t left = TNI_MIN(packed - i, (size_t)3);
        uint32_t three = 0;
        for (size_t k = 0; k < 3; k++) three = three << 8 | (k < left ? block[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            fputc(k <= left ? digit[three >> (18 - 6 * k) & 63] : '=', file);
    }
    if (block) tni_free(block, room);
    free(json);
    return ok;
}

tn_status tn_trace_html(FILE *file, tn_trace *const *traces, int n)
{
    TNI_C_NUMBERS;
    if (!traces) return tni_poison(__func__, "traces");
    if (n < 1) return tni_error(TN_E_INVALID, "%s: %d traces: want at least one", __func__, n);
    for (int i = 0; i < n; i++) TNI_TRY(tni_trace_writable(__func__, file, traces[i]));
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
            return tni_error(TN_E_NOMEM, "%s: out of memory", __func__);
        at++;
    }
    return tni_stream_written(__func__, file);
}
