/*
 * group.c - the run: whether there are several processes, opening and ending MPI, plain calls.
 *
 * mpirun and its like tell a process the number of ranks in its environment.
 *
 * A rank that ends the program with a status other than 0 ends the others too (MPI_Abort): they
 * would wait for it for ever. That happens at exit, through on_exit, the only way to learn the
 * status. A forked child is not a rank and ends nothing.
 */
#include <unistd.h>

#include "ext/parallel/group.h"
#include "tensor/random.h"

static const tni_mpi *mpi;
static tni_mpi_group world;
static pid_t process;

const tni_mpi *tni_ranks(void)
{
    return mpi;
}

bool tni_ranks_here(void)
{
    return mpi && getpid() == process;
}

tni_mpi_group tni_ranks_group(void)
{
    return world;
}

tn_status tni_ranks_status(const char *function, const char *reason)
{
    if (!reason) return TN_OK;
    return tni_error(TN_E_BACKEND, "%s: rank %d of %d: %s", function, mpi->rank, mpi->size, reason);
}

/* ---- beginning and end ----------------------------------------------------------------------- */

/* How many processes were started together, and the variable that says so; 1 without one. */
static long processes(const char **name)
{
    static const char *const variable[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                            "SLURM_STEP_NUM_TASKS" };
    /* srun also starts unrelated programs, but those without PMIx */
    size_t n = getenv("PMIX_RANK") ? 3 : 2;
    for (size_t i = 0; i < n; i++) {
        const char *text = getenv(*name = variable[i]);
        if (text) return strtol(text, NULL, 10);
    }
    return 1;
}

static void at_end(int status, void *unused)
{
    (void)unused;
    if (!tni_ranks_here()) return;
    if (status == 0) {
        mpi->finalize();
        return;
    }
    fflush(NULL); /* MPI_Abort ends the process before exit does it */
    mpi->end_all(status);
}

tn_status tn_parallel_begin(void)
{
    char why[1024];
    const char *name;
    tni_mpi_open open = NULL;
    long n = processes(&name);
    if (mpi || n < 2) return TN_OK;
    void *symbol = tni_open_module("TN_MPI_MODULE", "ext/parallel/", TNI_MPI_FILE, TNI_MPI_SYMBOL,
                                   why, sizeof why);
    memcpy(&open, &symbol, sizeof open);
    const tni_mpi *opened = open ? open(TNI_MPI_ID, why, sizeof why) : NULL;
    if (!opened)
        return tni_error(TN_E_BACKEND,
                         "%s: %ld processes were started together, and tenon's module for MPI, %s, "
                         "%s: want it built with Open MPI, and beside the library or where "
                         "TN_MPI_MODULE says",
                         __func__, n, TNI_MPI_FILE, why);
    if (opened->size != n) /* mpirun belongs to another MPI: each process would be its own run */
        return tni_error(TN_E_BACKEND,
                         "%s: %s is %ld, and MPI (%s) has %d processes: want the mpirun of that "
                         "MPI",
                         __func__, name, n, opened->version, opened->size);
    const char *reason = opened->group_new(&world);
    if (reason) return tni_error(TN_E_BACKEND, "%s: %s", __func__, reason);
    process = getpid();
    mpi = opened; /* before at_end can run */
    if (on_exit(at_end, NULL) == 0) return TN_OK;
    mpi = NULL;
    return tni_error(TN_E_NOMEM, "%s: out of memory", __func__);
}

#define ANSWERS(name, field, alone)                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return mpi ? mpi->field : alone;                                                           \
    }
ANSWERS(tn_parallel_rank, rank, 0)
ANSWERS(tn_parallel_local_rank, local_rank, 0)
ANSWERS(tn_parallel_size, size, 1)

/* ---- calls over all ranks -------------------------------------------------------------------- */

tn_status tn_parallel_barrier(void)
{
    return mpi ? TNI_MPI("tn_parallel_barrier", barrier, world) : TN_OK;
}

tn_status tni_ranks_copy(const char *function, tni_mpi_group group, tn_status status, tn_tensor *t,
                         int from)
{
    const size_t nbytes = tni_bytes_of(t);
    TNI_ITEMS(char, own, 2 * TNI_MAX(nbytes, 1));
    if (status == TN_OK) status = own ? tn_copy_out(t, own, nbytes, t->dtype) : TN_E_NOMEM;
    TNI_TRY(tni_agree(function, group, status));
    char *theirs = memcpy(own + nbytes, own, nbytes);
    status = TNI_MPI(function, broadcast, group, theirs, nbytes, from);
    /* equal bits are not written: version and graphs that read the tensor stay valid */
    if (status == TN_OK && memcmp(own, theirs, nbytes) != 0)
        TN_NO_GRAD status = tn_copy_in(t, theirs, nbytes, t->dtype);
    return tni_agree(function, group, status);
}

/* Whether rank `from` has a tensor of t's shape and dtype; called by all. */
static tn_status same_kind(const char *function, const tn_tensor *t, int from)
{
    int64_t own[2 + TN_MAX_RANK] = { t->dtype, t->shape.rank }, theirs[2 + TN_MAX_RANK];
    for (int i = 0; i < t->shape.rank; i++) own[2 + i] = t->shape.size[i];
    memcpy(theirs, own, sizeof own);
    TNI_TRY(TNI_MPI(function, broadcast, world, theirs, sizeof theirs, from));
    if (memcmp(own, theirs, sizeof own) == 0) return TN_OK;
    return tni_error(TN_E_SHAPE, "%s: %s of %s: want the shape and dtype of rank %d", function,
                     tni_text(t), tn_dtype_name(t->dtype), from);
}

tn_status tn_parallel_broadcast(tn_tensor *t, int from)
{
    if (tni_absent(t)) return tni_poison(__func__, "t");
    if (from < 0 || from >= tn_parallel_size())
        return tni_error(TN_E_INDEX, "%s: rank %d: want one of 0 to %d", __func__, from,
                         tn_parallel_size() - 1);
    return mpi ? tni_ranks_copy(__func__, world, same_kind(__func__, t, from), t, from) : TN_OK;
}

/* data has room for n + 1 numbers: the last one says whether a rank has failed before, with bytes
 * of 1, a positive number in every dtype. All succeed, or all fail. */
static tn_status sum_in(const char *function, tn_tensor *t, void *data, size_t n)
{
    size_t size = tn_dtype_size(t->dtype);
    unsigned char *failed = (unsigned char *)data + n * size;
    tn_status status = tn_copy_out(t, data, n * size, t->dtype);
    memset(failed, status != TN_OK, size);
    TNI_TRY(TNI_MPI(function, sum, world, data, n + 1, t->dtype));
    if (memcmp(failed, (uint64_t[]){ 0 }, size) != 0) return tni_agree(function, world, status);
    return tn_copy_in(t, data, n * size, t->dtype);
}

enum { FEW = 2048 };

/* The sum on the CPU. Few numbers are summed in one message and without allocating: batch norm over
 * all ranks waits for such sums in every layer. */
static tn_status sum_here(const char *function, tn_tensor *t)
{
    uint64_t few[FEW + 1]; /* of any dtype */
    size_t n = (size_t)tni_shape_numel(&t->shape), nbytes = (n + 1) * tn_dtype_size(t->dtype);
    if (n <= FEW) return sum_in(function, t, few, n);
    TNI_ITEMS(char, data, nbytes);
    TNI_TRY(tni_agree(function, world, data ? TN_OK : TN_E_NOMEM));
    return sum_in(function, t, data, n);
}

/* The sum on a GPU: over NCCL, in a copy there. The first one makes the connection. For many
 * numbers the ranks first agree that all have memory; for few the host doesn't wait. */
static tn_status sum_there(const char *function, tn_tensor *t)
{
    static tni_wire wire;
    bool is_new = !wire.line;
    tni_mpi_request request;
    tn_device device = t->storage->device;
    TNI_SCOPED;
    tn_tensor *copy = tn_empty_as(t->shape, t->dtype, device);
    tn_status status = copy ? tn_copy_(copy, t) : tni_pending();
    if (is_new && status == TN_OK) status = tni_wire_new(function, device, &world, &wire);
    if (is_new || tni_shape_numel(&t->shape) > FEW) status = tni_agree(function, world, status);
    if (is_new && status == TN_OK) status = tni_wire_join(function, &wire);
    if (is_new && status != TN_OK) tni_wire_free(&wire);
    TNI_TRY(status);
    TNI_TRY(tni_wire_sum(function, &wire, copy, copy, &request));
    TNI_TRY(tni_wire_wait(function, &wire, &request));
    return tn_copy_(t, copy);
}

static tn_status reduce(const char *function, tn_tensor *t, bool mean)
{
    if (tni_absent(t)) return tni_poison(function, "t");
    if (t->dtype != TN_F32 && t->dtype != TN_F64 && (mean || t->dtype != TN_I64))
        return tni_error(TN_E_DTYPE, "%s: %s of %s: want f32%s", function, tni_text(t),
                         tn_dtype_name(t->dtype), mean ? " or f64" : ", f64 or i64");
    if (!mpi) return TN_OK;
    TN_NO_GRAD
    {
        TNI_TRY((t->storage->device.type == TN_CPU ? sum_here : sum_there)(function, t));
        if (mean) TNI_TRY(tn_mul_scalar_(t, 1.0 / mpi->size));
    }
    return TN_OK;
}

tn_status tn_parallel_sum_(tn_tensor *t)
{
    return reduce("tn_parallel_sum_", t, false);
}

tn_status tn_parallel_mean_(tn_tensor *t)
{
    return reduce("tn_parallel_mean_", t, true);
}

/* The masks' seed is rank 0's plus the rank: a checkpoint of rank 0's is enough for all masks. */
tn_status tn_parallel_share_random(void)
{
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    uint64_t seed, offset;
    if (!mpi) return TN_OK;
    tn_generator_get_state(tn_default_generator(), state);
    TNI_TRY(TNI_MPI(__func__, broadcast, world, state, sizeof state, 0));
    TNI_TRY(tn_generator_set_state(tn_default_generator(), state));
    tni_philox_get(&seed, &offset);
    tni_philox_set(seed + (uint64_t)mpi->rank, offset);
    return TN_OK;
}
