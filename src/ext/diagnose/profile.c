/*
 * profile.c - where the time and the memory of a step go.
 *
 * A watcher of the thread that runs the step. Its events cut the time into laps: each is that of
 * the op, node or optimizer that was at work, so all of them together are the time of the steps.
 * What the profile does between two laps is a part of its own. Memory has a step that is not timed.
 */
#include <tenon/diagnose.h>

#include "autograd/call_site.h"
#include "autograd/notify.h"
#include "ext/diagnose/arena.h"
#include "ext/diagnose/stream.h"
#include "io/json.h"
#include "nn/module.h"
#include "optim/optim.h"

typedef enum kind { OTHER, FORWARD, BACKWARD, IN_PLACE } kind;
static const char *const words[] = { "", "", ", backward", ", in place" };

enum { BETWEEN, ENGINE, HOOKS, ITSELF, FIXED }; /* the parts that every profile has */

/* An op in a module; `blocks.0` and `blocks.1` are one module, `blocks.*`. */
typedef struct part {
    char *op, *module; /* "blocks.*: Block"; "" outside of all */
    kind kind;
    double calls, seconds, flops, bytes;
    double backward;       /* of a sum over a module: seconds */
    int64_t live, at_peak; /* bytes of storages that it made */
} part;

typedef struct lap {
    int64_t part;
    double from, to;
} lap;

typedef struct profile {
    tni_watcher watcher;
    tn_profile_options o;
    tni_arena arena;
    part *parts;
    lap *laps; /* of the last step, if somebody wants them */
    int64_t
        *around; /* the parts whose work is interrupted, the innermost last; a block of its own */
    size_t n_parts, n_laps, depth, capacity;
    tni_map made;               /* storages -> 1 + the part that made them */
    int64_t at_work, live;      /* a part; bytes of what was made in this step */
    int64_t peak, made_at_peak; /* bytes in use, and live then */
    double since, wall;         /* when the lap began; seconds of the timed steps */
    bool keeps_laps, adds_up, on_gpu;
    tn_status failed;
} profile;

static const char f[] = "tn_profile";

static double now(void)
{
    return 1e-9 * (double)tni_nanoseconds();
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* The module of a call: its path with a star for each number, and its type. */
static void name_module(const tni_call_site *site, char *text, size_t size)
{
    size_t n = 0;
    for (const char *c = site->path; *c && n < TNI_NAME_LIMIT; n++) {
        size_t digits = strspn(c, "0123456789");
        bool number =
            digits && (c == site->path || c[-1] == '.') && (!c[digits] || c[digits] == '.');
        text[n] = number ? '*' : *c;
        c += number ? digits : 1;
    }
    snprintf(text + n, size - n, "%s%s", n ? ": " : "", site->type);
}

/* site: NULL: outside of all modules. */
static int64_t part_of(profile *p, const char *op, kind kind, const tni_call_site *site)
{
    char module[TNI_NAME_LIMIT + 128] = "";
    if (site) name_module(site, module, sizeof module);
    if (strncmp(op, "tn_", 3) == 0) op += 3;
    for (size_t i = 0; i < p->n_parts; i++) {
        const part *q = &p->parts[i];
        if (q->kind == kind && strcmp(q->op, op) == 0 && strcmp(q->module, module) == 0)
            return (int64_t)i;
    }
    char *own_op = tni_arena_text(&p->arena, op), *own = tni_arena_text(&p->arena, module);
    part *to = own_op && own ? tni_arena_more(&p->arena, &p->parts, &p->n_parts, sizeof *to) : NULL;
    if (!to) return BETWEEN;
    *to = (part){ .op = own_op, .module = own, .kind = kind };
    return (int64_t)p->n_parts - 1;
}

/* ---- laps ------------------------------------------------------------------------------------ */

static void enter(profile *p, int64_t whose)
{
    if (tni_room(&p->around, &p->capacity, p->depth, 1, sizeof *p->around))
        p->around[p->depth++] = p->at_work;
    else
        p->failed = TN_E_NOMEM;
    p->at_work = whose;
}

static void leave(profile *p)
{
    p->at_work = p->depth ? p->around[--p->depth] : BETWEEN;
}

/* The time since the last lap was that of what is at work. */
static void end_lap(profile *p)
{
    const int64_t whose = p->at_work;
    if (p->on_gpu && tn_cuda_synchronize() != TN_OK) p->failed = tni_pending();
    double t = now();
    p->parts[whose].seconds += t - p->since;
    if (p->keeps_laps && p->adds_up) {
        p->laps[p->n_laps - 1].to = t;
    } else if (p->keeps_laps) {
        lap *to = tni_arena_more(&p->arena, &p->laps, &p->n_laps, sizeof *to);
        if (to) *to = (lap){ whose, p->since, t };
    }
    p->since = t, p->adds_up = false;
    if (p->parts[whose].kind == IN_PLACE) leave(p);
}

/* The time since the last lap was the profile's own. */
static void go_on(profile *p)
{
    double t = now();
    p->parts[ITSELF].seconds += t - p->since;
    p->since = t;
}

/* ---- work ------------------------------------------------------------------------------------ */

static double bytes_of(const tn_shape *shape, tn_dtype dtype)
{
    return (double)tni_shape_numel(shape) * (double)tn_dtype_size(dtype);
}

/* Its forward makes the products of backward, too. */
static bool makes_gradients(const char *op)
{
    return strcmp(op, "linear_cross_entropy") == 0;
}

static bool is_attention(const char *op)
{
    return strcmp(op, "scaled_dot_product_attention") == 0;
}

/* Multiplications and additions of a product or convolution from the shapes of its operands, 0 for
 * other ops; of attention without regard to masks. */
static double flops_of(const char *op, const tn_shape *a, const tn_shape *b, const tn_shape *y)
{
    const double x = (double)tni_shape_numel(a), out = (double)tni_shape_numel(y);
    const int rank = a->rank - 1;
    if (strcmp(op, "linear") == 0 || strcmp(op, "matmul") == 0)
        return rank < 0 ? 0 : 2 * out * (double)a->size[rank];
    if (makes_gradients(op)) return 2 * x * (double)b->size[0];
    if (is_attention(op)) return b->rank < 2 ? 0 : 2 * (x + out) * (double)b->size[b->rank - 2];
    if (strncmp(op, "conv", 4) != 0 || b->rank < 1 || b->size[0] == 0) return 0;
    double taps = (double)tni_shape_numel(b) / (double)b->size[0];
    return 2 * taps * (strncmp(op, "conv_t", 6) == 0 ? x : out);
}

static void count(profile *p, double flops, double bytes)
{
    part *q = &p->parts[p->at_work];
    q->calls++;
    q->flops += flops;
    q->bytes += bytes;
}

/* ---- events ---------------------------------------------------------------------------------- */

static tn_status starts(tni_watcher *self, const char *op)
{
    profile *p = (profile *)self;
    tni_call_site *site;
    end_lap(p);
    if (!tni_op_running) p->depth = 0, p->at_work = BETWEEN; /* also where an op has failed */
    tn_status status = tni_call_site_now(&site);
    if (status == TN_OK) enter(p, part_of(p, op, FORWARD, site));
    go_on(p);
    return status;
}

static tn_status applied(tni_watcher *self, const tni_call *c)
{
    profile *p = (profile *)self;
    p->on_gpu |= c->device.type == TN_CUDA;
    end_lap(p);
    double bytes = 0;
    for (int i = 0; i < c->n_in && !c->op->view; i++)
        bytes += tni_none(c->in[i]) ? 0 : bytes_of(&c->in[i]->shape, c->in[i]->dtype);
    for (int i = 0; i < c->n_out && !c->op->view; i++)
        bytes += bytes_of(&c->out[i]->shape, c->out[i]->dtype);
    double flops = 0;
    if (c->n_in > 1 && c->n_out > 0 && !tni_none(c->in[1])) {
        flops = flops_of(c->op->name, &c->in[0]->shape, &c->in[1]->shape, &c->out[0]->shape);
        if (makes_gradients(c->op->name) && c->recorded)
            flops *= 1 + c->in[0]->requires_grad + c->in[1]->requires_grad;
    }
    count(p, flops, bytes);
    leave(p);
    tn_status status = tni_call_site_node(self, c);
    go_on(p);
    return status;
}

static tn_status changes(tni_watcher *self, const char *function, const tn_tensor *target,
                         const tn_tensor *source)
{
    profile *p = (profile *)self;
    tni_call_site *site;
    end_lap(p);
    tn_status status = tni_call_site_now(&site);
    if (status == TN_OK) enter(p, part_of(p, function, IN_PLACE, site));
    double bytes = tni_none(source) ? 0 : bytes_of(&source->shape, source->dtype);
    if (status == TN_OK) count(p, 0, bytes + bytes_of(&target->shape, target->dtype));
    go_on(p);
    return status;
}

/* An in-place function has written its target: it ends. */
static void writes(tni_watcher *self, const tn_tensor *t)
{
    profile *p = (profile *)self;
    if (p->parts[p->at_work].kind == IN_PLACE) end_lap(p);
    tni_call_site_write(self, t);
}

static void begins(tni_watcher *self, const struct tni_engine_pass *pass)
{
    (void)pass;
    end_lap((profile *)self);
    enter((profile *)self, ENGINE);
}

static void ends(tni_watcher *self, const struct tni_engine_pass *pass, tn_status status)
{
    (void)pass, (void)status;
    end_lap((profile *)self);
    leave((profile *)self);
}

static tn_status arrived(tni_watcher *self, const tni_node *node)
{
    profile *p = (profile *)self;
    end_lap(p); /* what it gave was added to the others */
    p->at_work = part_of(p, node->op->name, BACKWARD, node->origin ? node->origin->site : NULL);
    go_on(p);
    return p->failed;
}

static tn_status differentiated(tni_watcher *self, const tni_node *node, const tni_grad *g)
{
    profile *p = (profile *)self;
    end_lap(p);
    double bytes = 0, flops = 0;
    const unsigned reads = tni_reads(node->op, g->n_in, g->need); /* 0: dx may be dy as it is */
    for (int i = 0; i < g->n_in && reads; i++)
        bytes += (g->need[i] + (i < 16 && reads & TNI_X(i) && !g->in[i].absent)) *
                 bytes_of(&g->in[i].shape, g->in[i].dtype);
    for (int i = 0; i < g->n_out && reads; i++)
        bytes += bytes_of(&g->out[i].shape, g->out[i].dtype);
    if (g->n_in > 1 && g->in[1].shape.rank > 0 && !makes_gradients(node->op->name)) {
        flops = flops_of(node->op->name, &g->in[0].shape, &g->in[1].shape, &g->out[0].shape);
        /* attention's first product again, and two for each of the forward's two */
        flops *= is_attention(node->op->name) ? 2.5 : g->need[0] + g->need[1];
    }
    count(p, flops, bytes);
    p->adds_up = p->n_laps > 0; /* what follows, until a node arrives, is still its work */
    go_on(p);
    return p->failed;
}

static void hooked(tni_watcher *self, const tni_hooked *h, const tn_tensor *gradient)
{
    (void)gradient;
    profile *p = (profile *)self;
    end_lap(p);
    if (h->number == 0) enter(p, HOOKS);
    if (h->number == h->of) leave(p);
}

static void stepped(tni_watcher *self, tn_optim *opt)
{
    (void)opt;
    profile *p = (profile *)self;
    if (tni_watch_suspended) return;
    end_lap(p);
    count(p, 0, 0);
    leave(p);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void storage_made(tni_watcher *self, tni_storage *s);

static void gone(tni_storage *s)
{
    bool looked = tni_watching && tni_watching->storage_made == storage_made;
    profile *p = looked ? (profile *)tni_watching : NULL;
    const uintptr_t by = p ? (uintptr_t)tni_map_get(&p->made, s) : 0;
    if (by == 0) return; /* not made in this step */
    p->parts[by - 1].live -= (int64_t)s->nbytes;
    p->live -= (int64_t)s->nbytes;
    tni_map_remove(&p->made, s);
}

static void storage_made(tni_watcher *self, tni_storage *s)
{
    profile *p = (profile *)self;
    p->on_gpu |= s->device.type == TN_CUDA;
    if (tni_map_put(&p->made, s, (void *)(uintptr_t)(p->at_work + 1)) < 0) p->failed = TN_E_NOMEM;
    s->gone = gone;
    p->parts[p->at_work].live += (int64_t)s->nbytes;
    p->live += (int64_t)s->nbytes;
    const int64_t in_use = tn_memory().in_use + (p->on_gpu ? tn_cuda_memory().in_use : 0);
    if (in_use <= p->peak) return;
    p->peak = in_use, p->made_at_peak = p->live;
    for (size_t i = 0; i < p->n_parts; i++) p->parts[i].at_peak = p->parts[i].live;
}

/* ---- what is printed ------------------------------------------------------------------------- */

static int longest_first(const void *a, const void *b)
{
    const double x = ((const part *)a)->seconds, y = ((const part *)b)->seconds;
    return (x < y) - (x > y);
}

static int largest_first(const void *a, const void *b)
{
    const int64_t x = ((const part *)a)->at_peak, y = ((const part *)b)->at_peak;
    return (x < y) - (x > y);
}

/* Adds up parts of one op (by_op) or of one module, in *sum; returns how many there are. */
static size_t summed(const profile *p, bool by_op, part *sum)
{
    size_t n = 0;
    for (const part *q = p->parts; q < p->parts + p->n_parts; q++) {
        size_t k = 0;
        if (!by_op && !q->module[0]) continue;
        while (k < n && (by_op ? sum[k].kind != q->kind || strcmp(sum[k].op, q->op) != 0
                               : strcmp(sum[k].module, q->module) != 0))
            k++;
        if (k == n) sum[n++] = (part){ .op = q->op, .kind = q->kind, .module = q->module };
        sum[k].calls += q->calls;
        sum[k].seconds += q->seconds;
        sum[k].backward += q->kind == BACKWARD ? q->seconds : 0;
        sum[k].flops += q->flops;
        sum[k].bytes += q->bytes;
    }
    qsort(sum, n, sizeof *sum, longest_first);
    return n;
}

/* "  12.34", or blanks where there is nothing to say. */
static void cell(FILE *file, double x)
{
    if (x > 0)
        fprintf(file, " %9.*f", x < 100 ? 2 : 0, x);
    else
        fprintf(file, " %9s", "");
}

/* "linear, backward" */
static tni_phrase name_of(const part *q)
{
    return tni_phrase_of("%s%s", q->op, words[q->kind]);
}

static tn_status print(const profile *p)
{
    FILE *file = p->o.file;
    TNI_ITEMS(part, sum, p->n_parts);
    if (!sum) return TN_E_NOMEM;
    const size_t rows = (size_t)p->o.rows;
    const double steps = p->o.steps, all = p->wall;
    double total = 0;
    for (size_t i = 0; i < p->n_parts; i++) total += p->parts[i].seconds;
    fprintf(file, "%-44s %9s %9s %9s %9s %9s\n", "of a step", "calls", "ms", "%", "GFLOP/s",
            "GB/s");
    size_t n = summed(p, true, sum);
    for (size_t i = 0; i < n && i < rows; i++) {
        const part *q = &sum[i];
        fprintf(file, "%-44s", name_of(q).s);
        cell(file, q->calls / steps);
        cell(file, q->seconds / steps * 1e3);
        cell(file, q->seconds / all * 100);
        cell(file, q->flops / q->seconds * 1e-9);
        cell(file, q->bytes / q->seconds * 1e-9);
        fprintf(file, "\n");
    }
    double rest = 0;
    for (size_t i = rows; i < n; i++) rest += sum[i].seconds;
    if (n > rows) fprintf(file, "%zu more%*s%9.2f\n", n - rows, 46, "", rest / steps * 1e3);
    fprintf(file, "%-44s %9s %9.2f %9.2f\n\n", "together, of the time on the clock", "",
            total / steps * 1e3, total / all * 100);
    n = summed(p, false, sum);
    if (n) fprintf(file, "%-54s %9s %9s %9s\n", "in modules", "ms", "%", "backward");
    for (size_t i = 0; i < n && i < rows; i++) {
        fprintf(file, "%-54s", sum[i].module);
        cell(file, sum[i].seconds / steps * 1e3);
        cell(file, sum[i].seconds / all * 100);
        cell(file, sum[i].backward / steps * 1e3);
        fprintf(file, "\n");
    }
    const double mib = 1.0 / (1 << 20);
    fprintf(file,
            "%smemory at the peak of a step: %.2f MiB, %.2f of it in tensors made in the step\n",
            n ? "\n" : "", (double)p->peak * mib, (double)p->made_at_peak * mib);
    memcpy(sum, p->parts, p->n_parts * sizeof *sum);
    qsort(sum, p->n_parts, sizeof *sum, largest_first);
    for (size_t i = 0; i < p->n_parts && i < rows && sum[i].at_peak > 0; i++)
        fprintf(file, "%11.2f MiB by %s%s%s%s\n", (double)sum[i].at_peak * mib, sum[i].op,
                words[sum[i].kind], sum[i].module[0] ? " in " : "", sum[i].module);
    return tni_stream_written(f, file);
}

static void add_text(tni_bytes *b, const char *text)
{
    if (!tni_json_add(b, text)) tni_bytes_printf(b, "\"not UTF-8\"");
}

static tn_status print_laps(const profile *p)
{
    tni_bytes b = { 0 };
    tni_bytes_printf(&b, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (size_t i = 0; i < p->n_laps; i++) {
        const lap *l = &p->laps[i];
        const part *q = &p->parts[l->part];
        tni_bytes_printf(&b, "%s\n{\"name\":", i ? "," : "");
        add_text(&b, name_of(q).s);
        tni_bytes_printf(&b, ",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f,",
                         (l->from - p->laps[0].from) * 1e6, (l->to - l->from) * 1e6);
        tni_bytes_printf(&b, "\"args\":{\"module\":");
        add_text(&b, q->module);
        tni_bytes_printf(&b, "}}");
    }
    tni_bytes_printf(&b, "\n]}\n");
    return tni_stream_put(f, p->o.events, TN_OK, &b);
}

/* ---- the function ---------------------------------------------------------------------------- */

static tn_status run(profile *p, tn_profile_step step, void *user)
{
    const uint64_t errors = tni_error_count;
    TN_SCOPE TNI_TRY(tni_user_status(f, "step", step(user), errors));
    return p->failed;
}

static tn_status measure(profile *p, tn_profile_step step, void *user)
{
    TNI_TRY(run(p, step, user));
    p->since = now(), p->watcher.storage_made = storage_made;
    tni_watch(&p->watcher);
    tn_status status = run(p, step, user);
    p->watcher.storage_made = NULL;
    for (part *q = p->parts; q < p->parts + p->n_parts; q++)
        q->calls = q->seconds = q->flops = q->bytes = 0;
    for (int i = 0; i < p->o.steps && status == TN_OK; i++) {
        double from = p->since = now();
        p->keeps_laps = p->o.events && i == p->o.steps - 1;
        p->depth = 0, p->at_work = BETWEEN;
        status = run(p, step, user);
        end_lap(p);
        p->wall += p->since - from;
    }
    return status;
}

tn_status tn_profile(tn_profile_step step, void *user, tn_profile_options o)
{
    TNI_C_NUMBERS;
    TNI_SCOPES_STAY;
    if (!step) return tni_error(TN_E_INVALID, "%s: step is NULL: want a function that runs one", f);
    if (o.steps < 0 || o.rows < 0)
        return tni_error(TN_E_INVALID, "%s: %d steps, %d rows: want 0 or more", f, o.steps, o.rows);
    if (tni_host_refused(f, "measures a step", "it outside of the captured step"))
        return TN_E_STATE;
    profile p = { .o = o, .arena.failed = &p.failed };
    p.watcher = (tni_watcher){ .only_times = true, .starts = starts, .applied = applied };
    p.watcher.changes = changes, p.watcher.writes = writes;
    p.watcher.begins = begins, p.watcher.ends = ends, p.watcher.arrived = arrived;
    p.watcher.differentiated = differentiated, p.watcher.hooked = hooked;
    p.watcher.stepped = stepped;
    if (!o.steps) p.o.steps = 3;
    if (!o.rows) p.o.rows = 20;
    static const char *const fixed[FIXED] = { "between the ops", "the pass of backward",
                                              "hooks of gradients", "the profile itself" };
    for (int i = 0; i < FIXED; i++) part_of(&p, fixed[i], OTHER, NULL);
    tni_watcher *outer = tni_watch(NULL);
    tn_status status = p.failed == TN_OK ? measure(&p, step, user) : p.failed;
    tni_watch(outer);
    if (status == TN_OK && o.file) status = print(&p);
    if (status == TN_OK && o.events) status = print_laps(&p);
    tni_arena_free(&p.arena);
    tni_room_free(&p.around, &p.capacity, sizeof *p.around);
    tni_map_free(&p.made);
    return status;
}
