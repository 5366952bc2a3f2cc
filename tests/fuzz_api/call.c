/* call.c - one call, and the checks after it. */
#include "call.h"

#include <fenv.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../scarce.h"
#include "draw.h"
#include "pool.h"

_Thread_local report findings;

/* ---- saying what was called ------------------------------------------------------------------ */

static void say_tensor(FILE *f, const tn_tensor *t)
{
    if (!t || tn_is_none(t)) {
        fputs(t ? "none" : "NULL", f);
        return;
    }
    fprintf(f, "%s[", tn_dtype_name(tn_dtype_of(t)));
    for (int i = 0; i < tn_rank(t); i++) fprintf(f, "%s%" PRId64, i ? ", " : "", tn_size(t, i));
    fprintf(f, "]%s%s%s", tn_requires_grad(t) ? " grad" : "", tn_is_leaf(t) ? "" : " made",
            tn_is_contiguous(t) ? "" : " strided");
}
static void say_tensors(FILE *f, tn_tensor **t, int n)
{
    if (!t) fputs("NULL", f);
    fputc('{', f);
    for (int i = 0; t && i < n && n < 8; i++) {
        if (i) fputs(", ", f);
        say_tensor(f, t[i]);
    }
    fputc('}', f);
}
static void say_shape(FILE *f, tn_shape s)
{
    fprintf(f, "shape %d(", s.rank);
    for (int i = 0; i < s.rank && i < TN_MAX_RANK; i++)
        fprintf(f, "%s%" PRId64, i ? ", " : "", s.size[i]);
    fputc(')', f);
}
static void say_module(FILE *f, const tn_module *m)
{
    fputs(!m ? "NULL" : m == TN_NO_MODULE ? "no module" : m->type->name ? m->type->name : "?", f);
}

static void say_argument(FILE *f, const slot *s, kind k)
{
    switch (k) {
/* clang-format off */
#define KIND(name, type, when)                                                                     \
    case K_##name: {                                                                               \
        type v = s->v.name;                                                                        \
        (void)v;                                                                                   \
        const void *p = &v;                                                                        \
        switch (_Generic(v, tn_tensor *: 1, tn_tensor **: 2, tn_shape: 3, tn_module *: 4, int: 5,  \
                         int64_t: 6, double: 7, bool: 8, const char *: 9, uint64_t: 6, tn_dtype: 5, \
                         tn_list *: 10, default: _Generic(v, void *: 0, default: 0))) {            \
        case 1: say_tensor(f, *(tn_tensor *const *)p); break;                                      \
        case 2: say_tensors(f, *(tn_tensor **const *)p, s->have); break;                           \
        case 3: say_shape(f, *(const tn_shape *)p); break;                                         \
        case 4: say_module(f, *(tn_module *const *)p); break;                                      \
        case 5: fprintf(f, "%d", *(const int *)p); break;                                          \
        case 6: fprintf(f, "%" PRId64, *(const int64_t *)p); break;                                \
        case 7: fprintf(f, "%g", *(const double *)p); break;                                       \
        case 8: fputs(*(const bool *)p ? "true" : "false", f); break;                              \
        case 9:                                                                                    \
            fprintf(f, *(const char *const *)p ? "\"%.80s\"" : "NULL%.0s",                         \
                    *(const char *const *)p ? *(const char *const *)p : "");                       \
            break;                                                                                 \
        case 10:                                                                                   \
            fprintf(f, *(tn_list *const *)p ? "list of %d" : "NULL",                               \
                    *(tn_list *const *)p ? (*(tn_list *const *)p)->n : 0);                         \
            break;                                                                                 \
        default:                                                                                   \
            fputs(sizeof v == sizeof(void *) && !*(void *const *)p ? "NULL" : "...", f);           \
        }                                                                                          \
        break;                                                                                     \
    }
#include "kinds.def"
#undef KIND
    default: break;
    }
}
/* clang-format on */

static void say_call(world *w, FILE *f)
{
    fprintf(f, "%s(", w->row->name);
    for (int i = 0; i < w->row->n; i++) {
        if (i) fputs(", ", f);
        say_argument(f, &w->slot[i], w->row->kinds[i]);
    }
    fputc(')', f);
}

void finding(world *w, const char *format, ...)
{
    static _Thread_local int times[1024];
    int at = w->row ? (int)(w->row - rows) : 1023;
    if (!format) abort();
    findings.found++;
    if (findings.total) ++*findings.total;
    w->broken = true;
    if (times[at]++ >= 3 && !w->verbose) return;
    va_list list;
    va_start(list, format);
    FILE *f = findings.file ? findings.file : stderr;
    fprintf(f, "%" PRIu64 ":%" PRIu64 " call %" PRId64 ": ", findings.seed, findings.sequence,
            w->calls);
    if (w->row) say_call(w, f);
    fputs(": ", f);
    vfprintf(f, format, list);
    fputc('\n', f);
    fflush(f);
    va_end(list);
}

/* ---- what must hold -------------------------------------------------------------------------- */

static bool one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0) return true;
    return false;
}

/* These run other functions, which set the message; and what those did before stays done. */
static const char *const runs_others[] = { "tn_forward",
                                           "tn_optim_step_with",
                                           "tn_call",
                                           "tn_backward",
                                           "tn_backward_from",
                                           "tn_gradients",
                                           "tn_gradcheck",
                                           "tn_vjp",
                                           "tn_jvp",
                                           "tn_jacobian",
                                           "tn_hessian",
                                           "tn_hvp",
                                           "tn_module_gradcheck",
                                           "tn_check_state",
                                           "tn_profile",
                                           "tn_multihead_attention_forward",
                                           "tn_encoder_layer_forward",
                                           "tn_encoder_forward",
                                           "tn_decoder_layer_forward",
                                           "tn_decoder_forward",
                                           "tn_recurrent_forward",
                                           "tn_capture_run",
                                           "tn_explain_training",
                                           "tn_measure_statistics",
                                           "tn_explain",
                                           "tn_scope_return",
                                           "tn_module_apply",
                                           "tn_named_modules",
                                           "tn_graph_visit",
                                           "tn_apply",
                                           "tn_apply_n",
                                           "tn_module_new",
                                           "tn_module_done",
                                           NULL };

static bool failed(const world *w)
{
    switch (w->row->gives) {
    case G_status: return w->result.status != TN_OK;
    case G_count: return w->result.n == -1 || w->result.n == TN_NO_SIZE;
    case G_number: return isnan(w->result.real) && tn_error_status() != TN_OK;
    case G_found:
    case G_plain:
    case G_moody:
    case G_moody_text:
    case G_nothing:
    case G_scope:
    case G_default_generator: return false;
    default: return w->result.object == NULL;
    }
}

/* Messages from inside the call: of memory, of a kernel, of another public function, of a hook. */
static bool of_what_it_called(const char *message)
{
    return strstr(message, "out of memory") || strstr(message, "on the CPU: want") ||
           strstr(message, "a tensor of shape") || strstr(message, "tn_") ||
           strstr(message, " hook ");
}

/* So much that the library need not request any; or of a call before, in which a trace ran. */
static bool other_shortage(const char *message)
{
    const char *at = strstr(message, "out of memory: want ");
    return at ? strtoull(at + 20, NULL, 10) > 1ull << 40 : strstr(message, "was cut short") != NULL;
}

static void check_failure(world *w, bool refused, uint64_t before)
{
    const char *message = tn_error();
    tn_status status = tn_error_status();
    w->failed_calls++;
    bool others = one_of(w->row->name, runs_others);
    if (message[0] == '\0' && !others) finding(w, "failed without a message");
    if (w->row->gives == G_status && w->result.status != status && message[0])
        finding(w, "returned %s, the message says %s: %s", tn_status_name(w->result.status),
                tn_status_name(status), message);
    if (message[0] && !others && !strstr(message, w->row->name) && !of_what_it_called(message))
        finding(w, "the message does not name it: %s", message);
    /* a call that fails anyway may give its own reason */
    if (refused && status != TN_E_NOMEM && !others && w->ought)
        finding(w, "out of memory, but says %s: %s", tn_status_name(status), message);
    if (w->alone && !refused && status == TN_E_NOMEM && !others && !other_shortage(message))
        finding(w, "memory was there, but says: %s", message);
    if (!others && hash_arguments(w, w->row) != before)
        finding(w, "changed something, and failed: %s", message);
}

/* ---- one call -------------------------------------------------------------------------------- */

static void arm(refusal r)
{
    if (r.of_malloc && malloc_left) {
        malloc_for_good = r.for_good;
        *malloc_left = r.after;
    } else {
        memory.for_good = r.for_good;
        memory.left = r.after;
    }
}

/* Puts results from arguments, and other effects of the call, into the pools. */
static void harvest(world *w, bool was_failure)
{
    for (int i = 0; i < w->row->n; i++) {
        slot *s = &w->slot[i];
        kind k = w->row->kinds[i];
        if ((k == K_outs || k == K_out) && s->v.outs) {
            int64_t n = s->have;
            if (w->row->gives == G_count && w->result.n >= 0 && w->result.n < n &&
                strcmp(w->row->name, "tn_loader_next"))
                n = w->result.n;
            for (int64_t j = 0; j < n && !was_failure && s->v.outs[j]; j++) {
                w->digest = mix(w->digest, hash_tensor(s->v.outs[j]));
                pool_tensor(w, s->v.outs[j]);
            }
        } else if (k == K_closing) {
            for (int at = 0; at < w->scopes; at++)
                if (w->scope[at].depth == s->v.closing.depth &&
                    w->scope[at].serial == s->v.closing.serial) {
                    close_scopes(w, at);
                    break;
                }
        } else if (k == K_lock_out && s->v.lock_out && *s->v.lock_out) {
            int at = (int)below(w, FEW);
            if (w->lock[at]) tn_checkpoint_unlock(w->lock[at]);
            w->lock[at] = *s->v.lock_out;
        } else if (k == K_given_schedulers && s->why) { /* those beyond the count */
            tn_scheduler *const *a = s->why;
            int n = s->v.given_schedulers ? w->slot[i + 1].v.count : 0;
            for (int j = n < 0 ? 0 : n; j < s->have; j++) tn_scheduler_free(a[j]);
        }
    }
    if (w->row->gives == G_count && is_hook_id(w->row->name) && !was_failure)
        w->hook[below(w, HOOKS)] = w->result.n;
}

/* References that the call will consume. */
static void hand_over(world *w)
{
    for (int i = 0; i < w->row->n; i++) {
        slot *s = &w->slot[i];
        if (w->row->kinds[i] == K_given_modules && s->v.given_modules)
            for (int j = 0; j < s->have && j < w->slot[i + 1].v.count; j++)
                tn_module_keep(s->v.given_modules[j]);
    }
}

bool traps; /* set before threads start */

/* SIGFPE ends the child. */
static void trap(bool on)
{
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__i386__))
    const int which = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
    if (!traps) return;
    feclearexcept(FE_ALL_EXCEPT);
    if (on)
        feenableexcept(which);
    else
        fedisableexcept(which);
#else
    (void)on;
#endif
}

bool call_row(world *w, const row *r, refusal refusal)
{
    w->row = r;
    w->drawn = w->ways = 0;
    draw_arguments(w, r);
    hand_over(w);
    uint64_t before = hash_arguments(w, r);
    int64_t refused_before = memory.refused + malloc_refused;
    if (w->verbose) {
        fprintf(stderr, "%" PRId64 ": ", w->calls);
        say_call(w, stderr);
        fputc('\n', stderr);
    }
    w->result.object = NULL;
    tn_error_clear();
    if (w->alone) arm(refusal);
    trap(true);
    r->call(w, w->slot);
    trap(false);
    refusal.after = -1;
    if (w->alone) arm(refusal);
    bool refused = memory.refused + malloc_refused > refused_before;
    w->calls++;

    bool failure = failed(w);
    if (w->verbose && failure) fprintf(stderr, "    %s\n", tn_error());
    if (failure)
        check_failure(w, refused && w->alone, before);
    else if (tn_error_status() != TN_OK && r->gives < G_found && !one_of(r->name, runs_others))
        finding(w, "did not fail, but left the message: %s", tn_error());
    harvest(w, failure);
    if (!failure) pool_result(w);
    w->digest = mix(w->digest, failure);
    if (w->verbose) fprintf(stderr, "    %016llx\n", (unsigned long long)w->digest);
    drop_evicted(w);
    while (w->n_scratch > 0) free(w->scratch[--w->n_scratch]);
    return refused;
}

/* ---- a sequence ------------------------------------------------------------------------------ */

/* State of the process, not of a thread. */
static const char *const for_one_thread[] = { "tn_manual_seed",
                                              "tn_set_num_threads",
                                              "tn_set_allocator",
                                              "tn_set_file_limits",
                                              "tn_checkpoint_load",
                                              "tn_from_memory",
                                              NULL };
/* These wait for a disk, or do much work: called less often. */
static bool rare(world *w, const row *r)
{
    static const char *const slow[] = { "tn_save",
                                        "tn_load",
                                        "tn_checkpoint",
                                        "tn_plot",
                                        "tn_text",
                                        "tn_explain",
                                        "tn_graph_dot",
                                        "tn_module_summary",
                                        "tn_print",
                                        "tn_fprint",
                                        "tn_gradcheck",
                                        "tn_memory_trim",
                                        "tn_module_gradcheck",
                                        "tn_trace",
                                        "tn_check_state",
                                        "tn_profile",
                                        NULL };
    for (int i = 0; slow[i]; i++)
        if (strncmp(r->name, slow[i], strlen(slow[i])) == 0) return below(w, 8) > 0;
    return false;
}

void run_sequence(world *w, uint64_t seed, int n)
{
    begin_sequence(w, seed);
    if (w->verbose) fprintf(stderr, "---- a sequence\n");
    for (int i = 0; i < n && !w->broken; i++) {
        const row *r = &rows[below(w, n_rows)];
        if (rare(w, r) || (!w->alone && one_of(r->name, for_one_thread))) continue;
        refusal refusal = { -1, false, false };
        w->mode = below(w, 2) ? SOUND : WILD;
        if (w->refusing && below(w, 12) == 0)
            refusal = (struct refusal){ below(w, below(w, 2) ? 4 : 40), below(w, 2),
                                        malloc_left && tn_num_threads() == 1 && below(w, 2) };
        call_row(w, r, refusal);
    }
    uint64_t digest = w->digest;
    end_sequence(w);
    w->digest = digest;
    if (w->alone) check_nothing_left(w);
}

void check_nothing_left(world *w)
{
    w->row = NULL;
    tn_memory_trim();
    if (tn_live_tensors() != 0) finding(w, "%" PRId64 " tensors are left", tn_live_tensors());
    if (tn_memory().in_use != 0) finding(w, "%" PRId64 " bytes are left", tn_memory().in_use);
    if (memory.in_use != 0)
        finding(w, "%" PRId64 " bytes of the allocator are left", memory.in_use);
}
