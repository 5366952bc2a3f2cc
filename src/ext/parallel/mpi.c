/*
 * mpi.c - the module libtenon-mpi.so: tni_mpi over an MPI library. It is a shared module of its
 * own, so that a program that runs alone never maps one.
 *
 * MPI's errors are returned, not fatal (MPI_ERRORS_RETURN), so that the library above can put them
 * into words. MPI's counts are ints: larger blocks go in pieces. No call blocks inside MPI:
 * operations are begun, and mpi_wait.c waits for them with a time limit. Source: MPI: A
 * Message-Passing Interface Standard, version 3.1, chapters 5 (collectives), 8.3 (errors), 12.4
 * (threads).
 *
 * Sums: Open MPI 4.1 uses a tree of whole messages for every sum in place: 2 log2(n) times the data
 * over n ranks, one message after the other. So a setting made before it starts asks it to halve
 * and double (Rabenseifner's algorithm: Thakur, Rabenseifner and Gropp, 2005, sec. 4.5), which
 * sends the data twice, however many ranks there are. Fewer numbers than ranks cannot be halved;
 * those of tn_parallel_sum_ keep the tree.
 *
 * A sum in bf16 is two messages, as many bytes together as MPI's own sums send over a ring. Rank r
 * of n gets the r-th of n pieces from every rank (all to all), adds them in f32, rounds, and sends
 * the result to all (gather). So the numbers are rounded where they leave and where they return,
 * however many ranks there are: sums that are rounded at every addition lose all that is below
 * 2^-9 of what has been added up. The second messages have a communicator of their own, on which
 * they leave in the order of the sums: on one, MPI would want them between the same first messages
 * on all ranks.
 */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext/parallel/mpi_module.h"
#include "ext/parallel/mpi_wait.h"
#include "tensor/math.h"

_Static_assert(sizeof(MPI_Comm) <= sizeof(uint64_t), "a group holds a communicator");
_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request holds one of MPI's");

static MPI_Comm comm_in(uint64_t word)
{
    MPI_Comm comm;
    memcpy(&comm, &word, sizeof comm);
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

static int comm_new(uint64_t *word)
{
    MPI_Comm comm;
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) memcpy(word, &comm, sizeof comm);
    return code;
}

/* MPI_Comm_dup blocks, but not for long once all ranks are there. */
static const char *group_new(tni_mpi_group *group)
{
    *group = (tni_mpi_group){ 0 };
    const char *why = barrier_of(MPI_COMM_WORLD, "for a new group");
    if (why) return why;
    int code = comm_new(&group->word);
    if (code == MPI_SUCCESS) code = comm_new(&group->second);
    return tni_mpi_reason(code);
}

static const char *group_free(tni_mpi_group *group)
{
    MPI_Comm comm = comm_in(group->word), second = comm_in(group->second);
    int code = MPI_Comm_free(&comm);
    if (code == MPI_SUCCESS) code = MPI_Comm_free(&second);
    return tni_mpi_reason(code);
}

/* ---- sums that go on while the program computes ---------------------------------------------- */

static tni_mpi table; /* rank, size and version are known when it is opened */

/* to[i] = the sum over r, in rank order, of the i-th number in rank r's piece. */
static void add_pieces(uint16_t *to, const uint16_t *from, size_t piece)
{
    enum { CHUNK = 512 };
    float sum[CHUNK];
    for (size_t at = 0; at < piece; at += CHUNK) {
        size_t n = piece - at < CHUNK ? piece - at : CHUNK;
        for (size_t i = 0; i < n; i++) sum[i] = tn_from_bf16(from[at + i]);
        for (int r = 1; r < table.size; r++) {
            const uint16_t *theirs = from + (size_t)r * piece + at;
            for (size_t i = 0; i < n; i++) sum[i] += tn_from_bf16(theirs[i]);
        }
        for (size_t i = 0; i < n; i++) to[at + i] = tn_to_bf16(sum[i]);
    }
}

/* Sends the second message if the first has arrived and those of earlier sums have left. */
static int follow(tni_mpi_request *request, MPI_Request *r)
{
    tni_mpi_group *group = request->group;
    if (!group || group->followed != request->number) return MPI_SUCCESS;
    const size_t piece = request->n / (size_t)table.size;
    add_pieces(request->data + (size_t)table.rank * piece, request->scratch, piece);
    group->followed++;
    request->group = NULL;
    return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, request->data, (int)piece,
                          MPI_UINT16_T, comm_in(group->second), r);
}

static const char *sum_begin(tni_mpi_group *group, void *data, void *scratch, size_t n,
                             tn_dtype dtype, tni_mpi_request *request)
{
    MPI_Request r;
    *request = (tni_mpi_request){ 0 };
    if (n > INT_MAX) return "more than 2^31 - 1 numbers in one message";
    const char *why = tni_mpi_count();
    if (why) return why;
    const bool half = dtype == TN_BF16;    /* the first of two messages */
    const int piece = (int)n / table.size; /* a rank's */
    if (half)
        *request = (tni_mpi_request){
            .group = group, .data = data, .scratch = scratch, .n = n, .number = group->begun++
        };
    int code = half ? MPI_Ialltoall(data, piece, MPI_UINT16_T, scratch, piece, MPI_UINT16_T,
                                    comm_in(group->word), &r)
                    : MPI_Iallreduce(MPI_IN_PLACE, data, (int)n, type_of(dtype), MPI_SUM,
                                     comm_in(group->word), &r);
    if (code == MPI_SUCCESS) memcpy(&request->word, &r, sizeof r);
    return tni_mpi_reason(code);
}

static const char *wait(tni_mpi_request *request)
{
    MPI_Request r = request_of(request);
    const char *why = tni_mpi_wait("in a sum", &r);
    if (!why && request->group) {
        int code = follow(request, &r);
        if (code == MPI_SUCCESS && request->group) return "sums that are waited for out of order";
        why = finish("in a sum", code, &r);
    }
    memcpy(&request->word, &r, sizeof r);
    return why;
}

/* Up the tree to rank 0, and down again. */
static const char *sum_few(tni_mpi_group group, void *data, int n, tn_dtype dtype)
{
    MPI_Comm comm = comm_in(group.word);
    MPI_Datatype type = type_of(dtype);
    MPI_Request r;
    const void *from = table.rank == 0 ? MPI_IN_PLACE : data;
    const char *why = tni_mpi_count();
    if (!why) why = finish("in a sum", MPI_Ireduce(from, data, n, type, MPI_SUM, 0, comm, &r), &r);
    return why ? why : finish("in a sum", MPI_Ibcast(data, n, type, 0, comm, &r), &r);
}

static const char *sum(tni_mpi_group group, void *data, size_t n, tn_dtype dtype)
{
    char *at = data;
    const char *why = NULL;
    if (n && n < (size_t)table.size) return sum_few(group, data, (int)n, dtype);
    while (n && !why) {
        size_t piece = n < 1 << 28 ? n : 1 << 28;
        tni_mpi_request request = { 0 };
        why = sum_begin(&group, at, NULL, piece, dtype, &request);
        if (!why) why = wait(&request);
        at += piece * (dtype == TN_F32 ? 4 : 8);
        n -= piece;
    }
    return why;
}

/* A request that is done becomes MPI_REQUEST_NULL, which may be tested and waited for again. */
static const char *test(tni_mpi_request *request)
{
    MPI_Request r = request_of(request);
    int flag = 0;
    int code = MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && flag) code = follow(request, &r);
    memcpy(&request->word, &r, sizeof r);
    return tni_mpi_reason(code);
}

static const char *gather(tni_mpi_group group, const void *data, size_t nbytes, void *all)
{
    int n = (int)nbytes;
    MPI_Request r;
    if (nbytes > INT_MAX) return "more than 2^31 - 1 bytes from a rank";
    const char *why = tni_mpi_count();
    if (why) return why;
    return finish("in an exchange",
                  MPI_Iallgather(data, n, MPI_BYTE, all, n, MPI_BYTE, comm_in(group.word), &r), &r);
}

/* All ranks count it, even those with nothing to do. to: -1: all. */
static const char *move(tni_mpi_group group, void *data, size_t nbytes, int from, int to)
{
    MPI_Comm comm = comm_in(group.word);
    bool all = to < 0, busy = all || table.rank == from || table.rank == to;
    const char *why = tni_mpi_count();
    for (char *at = data; nbytes && !why && busy;) {
        int piece = nbytes < 1 << 30 ? (int)nbytes : 1 << 30;
        MPI_Request r;
        int code = all                  ? MPI_Ibcast(at, piece, MPI_BYTE, from, comm, &r)
                   : table.rank == from ? MPI_Isend(at, piece, MPI_BYTE, to, 0, comm, &r)
                                        : MPI_Irecv(at, piece, MPI_BYTE, from, 0, comm, &r);
        why = finish(all ? "in a broadcast" : "in a transfer", code, &r);
        at += piece;
        nbytes -= (size_t)piece;
    }
    return why;
}

static const char *broadcast(tni_mpi_group group, void *data, size_t nbytes, int from)
{
    return move(group, data, nbytes, from, -1);
}

static const char *barrier(tni_mpi_group group)
{
    return barrier_of(comm_in(group.word), "at a barrier");
}

/* Whether the program has ended MPI itself, as a program that began it does. */
static bool is_over(void)
{
    int over = 0;
    return MPI_Finalized(&over) == MPI_SUCCESS && over;
}

static void finalize(void)
{
    if (is_over()) return;
    tni_mpi_wait_end();
    MPI_Finalize();
}

static void end_all(int status)
{
    if (!is_over()) MPI_Abort(MPI_COMM_WORLD, status);
}

/* ---- opening --------------------------------------------------------------------------------- */

TN_API const tni_mpi *tenon_mpi_open(const char *id, char *why, size_t size);

static tni_mpi table = { "",   0,    0,         0,      group_new, group_free, sum,      sum_begin,
                         wait, test, broadcast, gather, move,      barrier,    finalize, end_all };

static int start(void)
{
    MPI_Comm here; /* the ranks that share this one's memory */
    int given = MPI_THREAD_SINGLE, started = 0;
    int code = MPI_Initialized(&started);
    if (code == MPI_SUCCESS && !started)
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, &table.rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, &table.size);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(here, &table.local_rank);
    return code == MPI_SUCCESS ? MPI_Comm_free(&here) : code;
}

const tni_mpi *tenon_mpi_open(const char *id, char *why, size_t size)
{
    static char version[MPI_MAX_LIBRARY_VERSION_STRING];
    if (strcmp(id, TNI_MPI_ID) != 0) {
        snprintf(why, size, "it was built for %s: want %s", TNI_MPI_ID, id);
        return NULL;
    }
    int n = 0;
    /* A setting that Open MPI reads when it starts; others ignore it. The user's choice stays. */
    bool chosen = setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "3", 0) == 0;
    const char *reason = chosen ? tni_mpi_reason(start()) : "out of memory";
    if (!reason) reason = tni_mpi_wait_open(table.rank, table.size);
    if (reason) {
        snprintf(why, size, "did not start: %s", reason);
        return NULL;
    }
    if (MPI_Get_library_version(version, &n) != MPI_SUCCESS) version[0] = '\0';
    version[strcspn(version, ",\n")] = '\0';
    table.version = version;
    return &table;
}
