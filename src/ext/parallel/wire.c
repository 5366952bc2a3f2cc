/*
 * wire.c - sums that go on while the program computes (group.h). The module for NCCL is opened when
 * the first wire for a GPU is made. MPI distributes the key with which the ranks connect.
 */
#include "ext/parallel/group.h"
#include "tensor/cuda_module.h"

static const tni_nccl *nccl;

/* When a process ends, its GPU drops its sums, and the other ranks would wait for them for ever.
 * Registered after CUDA has been opened, so called before CUDA ends. */
static void at_end(int status, void *unused)
{
    (void)unused;
    if (status == 0 && tni_ranks_here()) nccl->finish();
}

static tn_status open_nccl(const char *function)
{
    char why[512];
    tni_nccl_open open = NULL;
    if (nccl) return TN_OK;
    void *symbol =
        tni_open_module("TN_NCCL_MODULE", "cuda/", TNI_NCCL_FILE, TNI_NCCL_SYMBOL, why, sizeof why);
    memcpy(&open, &symbol, sizeof open);
    const tni_nccl *opened = open ? open(TNI_NCCL_ID, why, sizeof why) : NULL;
    if (!opened)
        return tni_error(TN_E_BACKEND,
                         "%s: several ranks train on GPUs, and tenon's module for NCCL, %s, %s",
                         function, TNI_NCCL_FILE, why);
    if (on_exit(at_end, NULL) != 0) return tni_error(TN_E_NOMEM, "%s: out of memory", function);
    nccl = opened;
    return TN_OK;
}

/* A failure that tni_agree will report to all ranks, with this rank's number. */
static tn_status connecting(const char *function, const char *reason)
{
    return reason ? tni_error(TN_E_BACKEND, "%s: %s", function, reason) : TN_OK;
}

tn_status tni_wire_new(const char *function, tn_device device, tni_mpi_group *group, tni_wire *w)
{
    void *stream;
    *w = (tni_wire){ .group = group };
    if (device.type == TN_CPU) return TN_OK;
    TNI_TRY(open_nccl(function));
    TNI_TRY(tni_cuda_stream_of(device, &stream));
    return connecting(function, nccl->line_new(device.index, stream, &w->line));
}

tn_status tni_wire_join(const char *function, tni_wire *w)
{
    char key[TNI_NCCL_KEY] = { 0 };
    const tni_mpi *mpi = tni_ranks();
    tn_status status = TN_OK;
    if (!w->line) return TN_OK;
    if (mpi->rank == 0) status = connecting(function, nccl->key_new(key));
    status = tni_agree(function, *w->group, status);
    if (status == TN_OK) status = TNI_MPI(function, broadcast, *w->group, key, sizeof key, 0);
    if (status == TN_OK)
        status = connecting(function, nccl->line_join(w->line, key, mpi->rank, mpi->size));
    return tni_agree(function, *w->group, status);
}

void tni_wire_free(tni_wire *w)
{
    if (w->line) nccl->line_free(w->line);
    w->line = NULL;
}

tn_status tni_wire_ready(const tni_wire *w, tn_device device)
{
    void *stream;
    return w->line ? tni_cuda_stream_of(device, &stream) : TN_OK;
}

tn_status tni_wire_sum(const char *function, tni_wire *w, tn_tensor *data, tn_tensor *scratch,
                       tni_mpi_request *request)
{
    size_t n = (size_t)tni_shape_numel(&data->shape);
    if (!w->line)
        return TNI_MPI(function, sum_begin, w->group, tni_data(data), tni_data(scratch), n,
                       data->dtype, request);
    return tni_ranks_status(function, nccl->sum_begin(w->line, tni_data(data), n, data->dtype));
}

tn_status tni_wire_test(const char *function, const tni_wire *w, tni_mpi_request *request)
{
    return w->line ? TN_OK : TNI_MPI(function, test, request);
}

tn_status tni_wire_wait(const char *function, const tni_wire *w, tni_mpi_request *request)
{
    return tni_ranks_status(function, w->line ? nccl->wait(w->line) : tni_ranks()->wait(request));
}
