/*
 * mpi.c - the module libtenon-mpi.so: tni_mpi over an MPI library. It is a shared module of its
 * own, so that a program that runs alone never maps one.
 *
 * MPI's errors are returned, not fatal (MPI_ERRORS_RETURN), so that the library above can put them
 * into words. Counts of MPI are ints: larger blocks go in pieces. No call blocks inside of MPI:
 * operations are begun, and mpi_wait.c waits for them with a limit in time. Source: MPI: A
 * Message-Passing Interface Standard, version 3.1, chapters 5 (collectives), 8.3 (errors), 12.4
 * (threads).
 */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "parallel/mpi_module.h"
#include "parallel/mpi_wait.h"

_Static_assert(sizeof(MPI_Comm) <= sizeof(uint64_t), "a group holds a communicator");
_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request holds one of MPI's");

static MPI_Comm comm_of(tni_mpi_group group)
{
    MPI_Comm comm;
    memcpy(&comm, &group.word, sizeof comm);
    return comm;
}

static MPI_Request request_of(const tni_mpi_request *request)
{
    MPI_Request r;
    memcpy(&r, &request->word, sizeof r);
    return r;
}

static MPI_Datatype type_of(tn_dtype dtype)
{
    return dtype == TN_F32 ? MPI_FLOAT : dtype == TN_F64 ? MPI_DOUBLE : MPI_INT64_T;
}

/* Waits for an operation that was begun with this code. */
static const char *finish(const char *what, int code, MPI_Request *request)
{
    return code == MPI_SUCCESS ? tni_mpi_wait(what, request) : tni_mpi_reason(code);
}

static const char *barrier_of(MPI_Comm comm, const char *what)
{
    MPI_Request r;
    const char *why = tni_mpi_count();
    return why ? why : finish(what, MPI_Ibarrier(comm, &r), &r);
}

/* MPI_Comm_dup blocks, but not for long once all ranks are there. */
static const char *group_new(tni_mpi_group *group)
{
    MPI_Comm comm;
    const char *why = barrier_of(MPI_COMM_WORLD, "for a new group");
    if (why) return why;
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) memcpy(&group->word, &comm, sizeof comm);
    return tni_mpi_reason(code);
}

static const char *group_free(tni_mpi_group *group)
{
    MPI_Comm comm = comm_of(*group);
    return tni_mpi_reason(MPI_Comm_free(&comm));
}

static const char *sum_begin(tni_mpi_group group, void *data, size_t n, tn_dtype dtype,
                             tni_mpi_request *request)
{
    MPI_Request r;
    if (n > INT_MAX) return "more than 2^31 - 1 numbers in one message";
    const char *why = tni_mpi_count();
    if (why) return why;
    int code =
        MPI_Iallreduce(MPI_IN_PLACE, data, (int)n, type_of(dtype), MPI_SUM, comm_of(group), &r);
    if (code == MPI_SUCCESS) memcpy(&request->word, &r, sizeof r);
    return tni_mpi_reason(code);
}

static const char *wait(tni_mpi_request *request)
{
    MPI_Request r = request_of(request);
    const char *why = tni_mpi_wait("in a sum", &r);
    memcpy(&request->word, &r, sizeof r);
    return why;
}

static const char *sum(tni_mpi_group group, void *data, size_t n, tn_dtype dtype)
{
    char *at = data;
    const char *why = NULL;
    while (n && !why) {
        size_t piece = n < 1 << 28 ? n : 1 << 28;
        tni_mpi_request request = { 0 };
        why = sum_begin(group, at, piece, dtype, &request);
        if (!why) why = wait(&request);
        at += piece * (dtype == TN_F32 ? 4 : 8);
        n -= piece;
    }
    return why;
}

/* A request that is done becomes MPI_REQUEST_NULL, which may be tested and waited for again. */
static const char *test(tni_mpi_request *request, bool *done)
{
    MPI_Request r = request_of(request);
    int flag = 0;
    int code = MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
    memcpy(&request->word, &r, sizeof r);
    *done = flag != 0;
    return tni_mpi_reason(code);
}

static const char *broadcast(tni_mpi_group group, void *data, size_t nbytes, int from)
{
    char *at = data;
    const char *why = NULL;
    while (nbytes && !why) {
        int piece = nbytes < 1 << 30 ? (int)nbytes : 1 << 30;
        MPI_Request r;
        why = tni_mpi_count();
        if (!why)
            why = finish("in a broadcast",
                         MPI_Ibcast(at, piece, MPI_BYTE, from, comm_of(group), &r), &r);
        at += piece;
        nbytes -= (size_t)piece;
    }
    return why;
}

static const char *gather(tni_mpi_group group, const void *data, size_t nbytes, void *all)
{
    int n = (int)nbytes;
    MPI_Request r;
    if (nbytes > INT_MAX) return "more than 2^31 - 1 bytes from a rank";
    const char *why = tni_mpi_count();
    if (why) return why;
    return finish("in an exchange",
                  MPI_Iallgather(data, n, MPI_BYTE, all, n, MPI_BYTE, comm_of(group), &r), &r);
}

static const char *barrier(tni_mpi_group group)
{
    return barrier_of(comm_of(group), "at a barrier");
}

static void finalize(void)
{
    tni_mpi_wait_end();
    MPI_Finalize();
}

static void end_all(int status)
{
    MPI_Abort(MPI_COMM_WORLD, status);
}

/* ---- opening --------------------------------------------------------------------------------- */

TN_API const tni_mpi *tenon_mpi_open(const char *id, char *why, size_t size);

static int start(tni_mpi *table)
{
    int given = MPI_THREAD_SINGLE, started = 0;
    int code = MPI_Initialized(&started);
    if (code == MPI_SUCCESS && !started)
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, &table->rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, &table->size);
    return code;
}

const tni_mpi *tenon_mpi_open(const char *id, char *why, size_t size)
{
    static char version[MPI_MAX_LIBRARY_VERSION_STRING];
    static tni_mpi table = { .version = version,
                             .group_new = group_new,
                             .group_free = group_free,
                             .sum = sum,
                             .sum_begin = sum_begin,
                             .wait = wait,
                             .test = test,
                             .broadcast = broadcast,
                             .gather = gather,
                             .barrier = barrier,
                             .finalize = finalize,
                             .abort = end_all };
    if (strcmp(id, TNI_MPI_ID) != 0) {
        snprintf(why, size, "it was built for %s: want %s", TNI_MPI_ID, id);
        return NULL;
    }
    int n = 0;
    const char *reason = tni_mpi_reason(start(&table));
    if (!reason) reason = tni_mpi_wait_open(table.rank, table.size);
    if (reason) {
        snprintf(why, size, "did not start: %s", reason);
        return NULL;
    }
    if (MPI_Get_library_version(version, &n) != MPI_SUCCESS) version[0] = '\0';
    version[strcspn(version, ",\n")] = '\0';
    return &table;
}
