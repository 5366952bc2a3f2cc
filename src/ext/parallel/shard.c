/*
 * shard.c - an optimizer's state sharded over ranks; Rajbhandari et al., ZeRO (2020), sec. 5.1.
 *
 * Whole parameters are sharded: the largest first, each to the rank that holds fewest bytes so far.
 * A rank has state for those that it holds, and steps only those. All ranks have the same gradients
 * (data_parallel.c), so the new values are what each of them would have computed.
 *
 * A step begins with a few bytes from each rank: whether it is ready, and hashes of its parameters,
 * rates and gradients. So all ranks step, or none does. Then each steps its own parameters, and the
 * new values go round: the parameters of a rank form one row of bytes, and a message brings every
 * rank the next piece of every row. Memory is there before the step begins: then only MPI can fail.
 */
#include "autograd/op.h"
#include "ext/parallel/data_parallel.h"
#include "optim/optim.h"

static const char step_function[] = "tn_optim_step";

/* What a rank says of itself before anything is sent: numbers that must be the same on all. */
typedef struct tni_shard_word {
    int64_t status;
    uint64_t layout;  /* over type, switches, parameters: names, sizes, holders, groups */
    uint64_t numbers; /* over rates and such, and counts of steps */
    uint64_t taking;  /* over which parameters the step updates */
} tni_shard_word;

typedef struct tni_shard {
    tni_optim_shards base;  /* first */
    tn_optim *opt;          /* which drops this when it is freed */
    tn_data_parallel *p;    /* NULL: it was freed */
    struct tni_shard *next; /* of p's */
    int64_t *load;          /* of each rank: bytes of the parameters that it holds */
    tni_shard_word *word;   /* of each */
    tn_tensor **dense;      /* of each parameter, in a step: a copy if it is not dense, or NULL */
    size_t dense_capacity;
    size_t most, piece; /* most bytes that a rank sends in a step; bytes per message */
    char *block;        /* a piece from this rank, then one from each: (1 + size) piece */
    size_t block_room;
} tni_shard;

/* ---- sharding -------------------------------------------------------------------------------- */

typedef struct card {
    int param;
    bool trained; /* frozen ones may never have state: they come last */
    int64_t nbytes;
} card;

static int by_size(const void *a, const void *b)
{
    const card *x = a, *y = b;
    if (x->trained != y->trained) return x->trained ? -1 : 1;
    if (x->nbytes != y->nbytes) return x->nbytes > y->nbytes ? -1 : 1;
    return x->param - y->param;
}

/* Values are packed and sent by the host. */
static tn_status check_device(const char *function, const tni_optim_param *param)
{
    if (param->tensor->storage->device.type == TN_CPU) return TN_OK;
    return tni_error(TN_E_DEVICE,
                     "%s: %s is on a GPU: want all parameters on the CPU, where alone state is "
                     "dealt over ranks",
                     function, param->name);
}

/* Whether p averages the gradients of all parameters, and all are on the CPU. */
static tn_status check_params(const char *function, const tn_data_parallel *p,
                              const tni_optim_param *param, int n)
{
    for (int i = 0; i < n; i++) {
        const tn_tensor *t = param[i].tensor;
        if (!t->gm || t->gm->sync != &p->sync)
            return tni_error(TN_E_STATE,
                             "%s: %s is no parameter of the model of this tn_data_parallel: want "
                             "gradients averaged over the ranks",
                             function, param[i].name);
        TNI_TRY(check_device(function, &param[i]));
    }
    return TN_OK;
}

static tn_status shard_all(const char *function, tni_shard *s, const tn_data_parallel *p,
                           tni_optim_param *param, int n)
{
    TNI_TRY(check_params(function, p, param, n));
    TNI_ITEMS(card, cards, n);
    if (!cards) return TN_E_NOMEM;
    for (int i = 0; i < n; i++) {
        const tn_tensor *t = param[i].tensor;
        cards[i] = (card){ i, t->requires_grad, (int64_t)tni_bytes_of(t) };
    }
    tni_sort(cards, (size_t)n, sizeof *cards, by_size);
    for (int i = 0; i < n; i++) {
        int least = 0;
        for (int r = 1; r < tn_parallel_size(); r++)
            if (s->load[r] < s->load[least]) least = r;
        s->load[least] += cards[i].nbytes;
        param[cards[i].param].holder = least;
    }
    return TN_OK;
}

static tn_status freed(const char *function)
{
    return tni_error(TN_E_STATE,
                     "%s: the state is dealt over ranks, and their tn_data_parallel was freed: "
                     "want tn_data_parallel_shard with another one",
                     function);
}

static tn_status shard(tni_optim_shards *base, tni_optim_param *param, int n)
{
    static const char f[] = "tn_optim_add_group";
    tni_shard *s = (tni_shard *)base;
    return s->p ? shard_all(f, s, s->p, param, n) : freed(f);
}

/* ---- whether all ranks are about to do the same ---------------------------------------------- */

static void describe(const tni_shard *s, tni_shard_word *word)
{
    const tn_optim *opt = s->opt;
    const char *type = opt->type->name;
    word->layout = tni_hash(TNI_NO_HASH, type, strlen(type) + 1);
    for (int k = 0; k < opt->n_groups; k++)
        for (int i = 0; i < TN_OPTIM_NUMBERS; i++)
            if (opt->type->number[i].on_off)
                word->layout = tni_hash(word->layout, &opt->group[k].number[i], sizeof(double));
    word->numbers = tni_hash(TNI_NO_HASH, &opt->steps, sizeof opt->steps);
    word->numbers = tni_hash(word->numbers, opt->group, (size_t)opt->n_groups * sizeof *opt->group);
    word->taking = TNI_NO_HASH;
    for (const tni_optim_param *p = opt->param; p < opt->param + opt->n; p++) {
        int64_t layout[] = { (int64_t)tni_bytes_of(p->tensor), p->tensor->dtype, p->holder,
                             p->group };
        bool skipped = tni_optim_skips(p);
        word->layout = tni_hash(word->layout, p->name, strlen(p->name) + 1);
        word->layout = tni_hash(word->layout, layout, sizeof layout);
        word->numbers = tni_hash(word->numbers, &p->step, sizeof p->step);
        word->taking = tni_hash(word->taking, &skipped, sizeof skipped);
    }
}

/* This rank is ready, or has failed with status: returns the same on all ranks, TN_OK if all have
 * the same words. stepping: compares gradients too. */
static tn_status shard_agree(const char *function, tni_shard *s, tn_status status, bool stepping)
{
    tni_shard_word own = { .status = status };
    tni_mpi_group group = s->p->group;
    bool failed = false;
    describe(s, &own);
    if (!stepping) own.taking = 0;
    TNI_TRY(TNI_MPI(function, gather, group, &own, sizeof own, s->word));
    for (int r = 0; r < tn_parallel_size(); r++) failed |= s->word[r].status != TN_OK;
    if (failed) return tni_agree(function, group, status);
    for (int r = 1; r < tn_parallel_size() && status == TN_OK; r++) {
        const tni_shard_word *first = &s->word[0], *other = &s->word[r];
        const char *what = first->layout != other->layout
                               ? "another type, other switches or parameters"
                           : first->numbers != other->numbers ? "other rates, numbers or steps"
                           : first->taking != other->taking   ? "gradients of other parameters"
                                                              : NULL;
        if (what)
            status = tni_error(TN_E_STATE,
                               "%s: on rank %d the optimizer has %s than on rank 0: want the same",
                               function, r, what);
    }
    return status;
}

/* ---- before a step --------------------------------------------------------------------------- */

/* Room for copies of the parameters that are not dense; they live until the step ends. */
static tn_status make_dense(tni_shard *s)
{
    const tn_optim *opt = s->opt;
    size_t n = (size_t)opt->n;
    if (!tni_room(&s->dense, &s->dense_capacity, 0, n, sizeof *s->dense)) return TN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = opt->param[i].tensor;
        s->dense[i] = NULL;
        if (tni_optim_skips(&opt->param[i])) continue;
        TNI_TRY(check_device(step_function, &opt->param[i])); /* moved since */
        if (tni_is_dense(t)) continue;
        s->dense[i] = tn_empty_as(t->shape, t->dtype, tn_cpu());
        if (!s->dense[i]) return tni_pending();
    }
    return TN_OK;
}

static tn_status make_block(tni_shard *s)
{
    enum { PIECE = 4 << 20, BLOCK = 64 << 20, LEAST = 1 << 16 };
    size_t size = (size_t)tn_parallel_size();
    s->most = 0;
    for (size_t r = 0; r < size; r++) {
        size_t nbytes = 0;
        for (const tni_optim_param *p = s->opt->param; p < s->opt->param + s->opt->n; p++)
            if ((size_t)p->holder == r && !tni_optim_skips(p)) nbytes += tni_bytes_of(p->tensor);
        s->most = TNI_MAX(s->most, nbytes);
    }
    if (s->most == 0) return TN_OK;
    s->piece = TNI_MAX(TNI_MIN((size_t)PIECE, BLOCK / size), LEAST);
    s->piece = TNI_MIN(s->piece, s->most);
    size_t nbytes = (1 + size) * s->piece;
    if (!tni_room(&s->block, &s->block_room, 0, nbytes, 1)) return TN_E_NOMEM;
    memset(s->block, 0, nbytes); /* rows end at different places */
    return TN_OK;
}

static tn_status begin(tni_optim_shards *base, tn_status status)
{
    tni_shard *s = (tni_shard *)base;
    if (!s->p) return freed(step_function);
    TNI_TRY(tni_usable(step_function, s->p));
    if (status == TN_OK && s->p->sync.off)
        status = tni_error(TN_E_STATE,
                           "%s: gradients are not averaged (tn_data_parallel_set_sync is off): "
                           "want it on, and a backward, before a step of shared state",
                           step_function);
    if (status == TN_OK) status = make_dense(s);
    if (status == TN_OK) status = make_block(s);
    status = shard_agree(step_function, s, status, true);
    if (status != TN_OK) tni_room_free(&s->block, &s->block_room, 1);
    return status;
}

/* ---- after it: the new values go round ------------------------------------------------------- */

/* Copies bytes `from` to `end` of a rank's row to a piece, or back; fewer where the row ends. */
static void copy_row(const tni_shard *s, int rank, char *piece, size_t from, size_t end, bool to)
{
    size_t at = 0; /* of the parameter in the row */
    for (int i = 0; i < s->opt->n && at < end; i++) {
        const tni_optim_param *p = &s->opt->param[i];
        if (p->holder != rank || tni_optim_skips(p)) continue;
        size_t nbytes = tni_bytes_of(p->tensor), first = TNI_MAX(at, from);
        size_t last = TNI_MIN(at + nbytes, end);
        if (first < last) {
            char *value = (char *)tni_data(s->dense[i] ? s->dense[i] : p->tensor) + first - at;
            char *there = piece + first - from;
            memcpy(to ? there : value, to ? value : there, last - first);
        }
        at += nbytes;
    }
}

static tn_status exchange(tni_shard *s)
{
    int size = tn_parallel_size(), own = s->base.own;
    for (size_t done = 0; done < s->most; done += s->piece) {
        size_t end = TNI_MIN(done + s->piece, s->most), n = end - done;
        char *all = s->block + s->piece;
        copy_row(s, own, s->block, done, end, true);
        TNI_TRY(TNI_MPI(step_function, gather, s->p->group, s->block, n, all));
        for (int r = 0; r < size; r++)
            if (r != own) copy_row(s, r, all + (size_t)r * n, done, end, false);
    }
    return TN_OK;
}

/* Copies between the parameters of this rank, or of the others, and their dense copies. */
static tn_status copy_strided(tni_shard *s, bool own)
{
    for (int i = 0; i < s->opt->n; i++) {
        const tni_optim_param *p = &s->opt->param[i];
        if (!s->dense[i] || (p->holder == s->base.own) != own) continue;
        tni_array value = tni_array_of(p->tensor), dense = tni_array_of(s->dense[i]);
        TNI_TRY(
            tni_copy_last(tni_backend_of(p->tensor), own ? &dense : &value, own ? &value : &dense));
    }
    return TN_OK;
}

static tn_status end(tni_optim_shards *base)
{
    tni_shard *s = (tni_shard *)base;
    tn_status status = copy_strided(s, true);
    if (status == TN_OK) status = exchange(s);
    if (status == TN_OK) status = copy_strided(s, false);
    tni_room_free(&s->block, &s->block_room, 1);
    return status;
}

/* ---- making one ------------------------------------------------------------------------------ */

static void drop(tni_optim_shards *base)
{
    tni_shard *s = (tni_shard *)base;
    size_t size = (size_t)tn_parallel_size();
    tni_shard **at = s->p ? &s->p->shards : NULL;
    while (at && *at && *at != s) at = &(*at)->next;
    if (at && *at) *at = s->next;
    tni_room_free(&s->block, &s->block_room, 1);
    tni_free(s->load, size * sizeof *s->load);
    tni_free(s->word, size * sizeof *s->word);
    tni_room_free(&s->dense, &s->dense_capacity, sizeof *s->dense);
    tni_free(s, sizeof *s);
}

void tni_shards_detach(tn_data_parallel *p)
{
    while (p->shards) {
        tni_shard *s = p->shards;
        p->shards = s->next;
        s->p = NULL;
    }
}

/* A new one that belongs to no tn_data_parallel yet. */
static tn_status make(const char *function, tn_data_parallel *p, tn_optim *opt, tni_shard **made)
{
    size_t size = (size_t)tn_parallel_size();
    tni_shard *s = *made = tni_calloc(sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->base = (tni_optim_shards){
        .own = tn_parallel_rank(), .shard = shard, .begin = begin, .end = end, .drop = drop
    };
    s->opt = opt;
    s->load = tni_calloc_n(size, sizeof *s->load);
    s->word = tni_calloc_n(size, sizeof *s->word);
    return s->load && s->word ? shard_all(function, s, p, opt->param, opt->n) : TN_E_NOMEM;
}

/* What this rank does alone. *made: new, or kept by opt since its tn_data_parallel was freed. */
static tn_status prepare(const char *function, tn_data_parallel *p, tn_optim *opt, tni_shard **made)
{
    if (!p || !opt) return tni_poison(function, p ? "opt" : "p");
    tni_shard *s = (tni_shard *)opt->shards;
    if (s && s->p)
        return tni_error(TN_E_STATE, "%s: its state is dealt already: want it once", function);
    if (opt->type->together)
        return tni_error(TN_E_STATE,
                         "%s: %s updates all parameters together: want one that goes by parameter",
                         function, tni_optim_label(opt->type));
    if (!s) return make(function, p, opt, made);
    *made = s;
    return check_params(function, p, opt->param, opt->n);
}

tn_status tn_data_parallel_shard(tn_data_parallel *p, tn_optim *opt)
{
    tni_shard *s = NULL;
    if (!tni_ranks()) return p && opt ? TN_OK : tni_poison(__func__, p ? "opt" : "p");
    /* the group of all ranks, not p's: a rank may have no p */
    tn_status status = tni_agree(__func__, tni_ranks_group(), prepare(__func__, p, opt, &s));
    if (status == TN_OK) {
        s->p = p;
        status = shard_agree(__func__, s, status, false);
    }
    if (status == TN_OK) {
        s->next = p->shards;
        p->shards = s;
        opt->shards = &s->base;
        tni_optim_release(opt);
    } else if (s) {
        s->p = NULL;
        if (!opt->shards) drop(&s->base);
    }
    return status;
}

/* ---- the state of all ranks on rank 0, for a file -------------------------------------------- */

/* Rank 0 first makes room for all of it, and the ranks agree that nobody lacks memory. Then each
 * parameter's state goes from its rank straight into its place, one message for each tensor. No
 * rank but rank 0 needs more memory than before, and a file is begun only when everything is there.
 */

/* Whether p has state number k, and another rank than rank 0 holds it; and its form. */
static bool travels(const tn_optim *opt, const tni_optim_param *p, int k, tni_form *form)
{
    return tni_optim_form(opt, p, k, form) && p->step > 0 && p->holder != 0;
}

/* Makes own state ready to be sent in its form (tni_optim_form); on rank 0 room for the others'. */
static tn_status make_ready(tn_optim *opt)
{
    for (tni_optim_param *p = opt->param; p < opt->param + opt->n; p++) {
        if (!tni_optim_elsewhere(opt, p) && p->step > 0) TNI_TRY(tni_optim_ready(opt, p));
        for (int k = 0; k < TN_OPTIM_STATES; k++) {
            tni_form form;
            if (!travels(opt, p, k, &form) || opt->shards->own != 0) continue;
            tn_tensor *t = tn_empty_as(form.shape, form.dtype, tn_cpu());
            if (!t) return tni_pending();
            p->state[k] = tn_keep(t);
        }
    }
    return TN_OK;
}

static tn_status gather(const char *function, tni_shard *s)
{
    tn_optim *opt = s->opt;
    tni_optim_release(opt);
    TNI_TRY(shard_agree(function, s, make_ready(opt), false));
    for (const tni_optim_param *p = opt->param; p < opt->param + opt->n; p++) {
        bool ours = s->base.own == 0 || s->base.own == p->holder;
        for (int k = 0; k < TN_OPTIM_STATES; k++) {
            tni_form form;
            if (!travels(opt, p, k, &form)) continue;
            size_t nbytes = (size_t)tni_shape_numel(&form.shape) * tn_dtype_size(form.dtype);
            void *data = ours ? tni_data(p->state[k]) : NULL; /* all ranks make the call */
            TNI_TRY(TNI_MPI(function, move, s->p->group, data, nbytes, p->holder, 0));
        }
    }
    s->base.whole = s->base.own == 0;
    return TN_OK;
}

tn_status tn_data_parallel_gather(tn_data_parallel *p)
{
    static const char f[] = "tn_data_parallel_gather";
    if (!p) return tni_poison(f, "p");
    TNI_TRY(tni_usable(f, p));
    TNI_UNRECORDED;
    for (tni_shard *s = p->shards; s; s = s->next)
        if (gather(f, s) != TN_OK) return tn_data_parallel_release(p), tni_pending();
    return TN_OK;
}

void tn_data_parallel_release(tn_data_parallel *p)
{
    if (!p) tni_poison("tn_data_parallel_release", "p");
    for (tni_shard *s = p ? p->shards : NULL; s; s = s->next) tni_optim_release(s->opt);
}
