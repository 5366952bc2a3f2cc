/*
 * mpi.c - the module libtenon-mpi.so: tni_mpi over an MPI library. It is a shared module of its
 * own, so that a program that runs alone never maps one.
 *
 * MPI's errors are returned, not fatal (MPI_ERRORS_RETURN), so that the library above can put them
 * into words. MPI's counts are ints: larger blocks go in pieces. Source: MPI: A Message-Passing
 * Interface Standard, version 3.1, chapters 5 (collectives), 8.3 (errors), 12.4 (threads).
 *
 * Waiting: MPI itself waits without end for a rank that is stuck, stopped, behind a broken network,
 * or gone on to another call. So every operation is begun without blocking, and a loop asks whether
 * it is done. A rank that has waited for longer than TN_PARALLEL_TIMEOUT seconds sends a question
 * to all others; a waiting rank looks for questions, and answers where it is. The message names
 * ranks that do not answer. If all answer, they wait in different calls, and it says in which.
 * A rank whose program ends tells all others, with the number of operations that it has begun. All
 * ranks begin equally many in each call of the library, so a rank that waits in a later operation
 * knows at once that nobody will come. Only time in which this process runs counts.
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
 * they leave in the order of the sums: on one, all ranks would have to mix both in the same way.
 */
#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext/parallel/mpi_module.h"
#include "tensor/math.h"

#define LOOK 0.05 /* seconds: how often a waiting rank looks for notes */
#define GRACE 2.  /* how long it waits for answers */

enum {
    TIMEOUT = 1800, /* seconds, the default; PyTorch's with gloo */
    NAMED = 6       /* ranks in a message; any more are only counted */
};

enum kind { ASKS = 1, ANSWERS, HAS_ENDED };

/* What ranks tell each other beside the operations. */
typedef struct note {
    int64_t kind, begun;
    char what[32]; /* the operation in which the sender waits */
} note;

typedef struct peer {
    MPI_Request request; /* of out */
    note out, in;        /* the last one each way */
    bool told;           /* of our end */
} peer;

static tni_mpi table; /* rank, size and version are known when it is opened */

static struct {
    MPI_Comm comm; /* of the notes */
    long timeout;  /* seconds; 0: none */
    int64_t begun; /* operations */
    bool ended;    /* the program of this rank */
    peer *peer;
    bool lost; /* an operation of this rank will never be done: text says why */
    char text[512];
} run;

/* MPI's words for a code; NULL for success. */
static const char *words_of(int code)
{
    static char text[MPI_MAX_ERROR_STRING + 1]; /* one thread at a time calls MPI */
    int n = 0;
    if (code == MPI_SUCCESS) return NULL;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d of MPI", code);
    return text;
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* False: an older note is still on its way. */
static bool send_note(int to, enum kind kind, const char *what)
{
    peer *p = &run.peer[to];
    int done = 0;
    if (MPI_Test(&p->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return false;
    p->out = (note){ .kind = kind, .begun = run.begun };
    snprintf(p->out.what, sizeof p->out.what, "%s", what);
    return MPI_Isend(&p->out, sizeof p->out, MPI_BYTE, to, 0, run.comm, &p->request) == MPI_SUCCESS;
}

/* Tells all ranks that do not know yet that this one ends. */
static void tell_end(const char *what)
{
    for (int r = 0; r < table.size; r++)
        if (r != table.rank && !run.peer[r].told) run.peer[r].told = send_note(r, HAS_ENDED, what);
}

/* Reads all notes that have arrived, and answers. */
static void read_notes(const char *what)
{
    for (int here = 1; here;) {
        MPI_Status from;
        note n;
        if (MPI_Iprobe(MPI_ANY_SOURCE, 0, run.comm, &here, &from) != MPI_SUCCESS || !here ||
            MPI_Recv(&n, sizeof n, MPI_BYTE, from.MPI_SOURCE, 0, run.comm, MPI_STATUS_IGNORE) !=
                MPI_SUCCESS)
            return;
        n.what[sizeof n.what - 1] = '\0';
        run.peer[from.MPI_SOURCE].in = n; /* a question tells as much as an answer */
        if (n.kind == ASKS) send_note(from.MPI_SOURCE, run.ended ? HAS_ENDED : ANSWERS, what);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* "rank 1", "rank 1, rank 2 and 5 more": those that have not answered; their number. */
static int list_silent(char *text, size_t size)
{
    int n = 0;
    size_t at = 0;
    for (int r = 0; r < table.size; r++)
        if (r != table.rank && run.peer[r].in.kind == 0 && n++ < NAMED)
            at += (size_t)snprintf(text + at, size - at, "%srank %d", n > 1 ? ", " : "", r);
    if (n > NAMED) snprintf(text + at, size - at, " and %d more", n - NAMED);
    return n;
}

/* Where this rank waits, and the first few ranks that wait elsewhere. */
static void list_places(char *text, size_t size, const char *what)
{
    size_t at = (size_t)snprintf(text, size, "this rank %s", what);
    int named = 0;
    for (int r = 0; r < table.size && named < NAMED && at < size; r++) {
        const note *n = &run.peer[r].in;
        char away[48] = "";
        if (r == table.rank || (n->begun == run.begun && strcmp(n->what, what) == 0)) continue;
        long further = (long)(n->begun - run.begun);
        if (further)
            snprintf(away, sizeof away, " (%ld call%s %s)", labs(further),
                     labs(further) == 1 ? "" : "s", further < 0 ? "before" : "after");
        at += (size_t)snprintf(text + at, size - at, ", rank %d %s%s", r, n->what, away);
        named++;
    }
}

static const char *say_late(const char *what)
{
    char list[384];
    if (list_silent(list, sizeof list)) {
        snprintf(run.text, sizeof run.text,
                 "waited %s for %ld s (TN_PARALLEL_TIMEOUT), without an answer from %s: stuck, "
                 "stopped, busy or out of reach",
                 what, run.timeout, list);
    } else {
        list_places(list, sizeof list, what);
        snprintf(run.text, sizeof run.text,
                 "all ranks have waited for each other for %ld s (TN_PARALLEL_TIMEOUT), %s: want "
                 "the same calls on all",
                 run.timeout, list);
    }
    run.lost = true;
    return run.text;
}

static const char *say_ended(const char *what)
{
    for (int r = 0; r < table.size; r++) {
        const note *n = &run.peer[r].in;
        if (r == table.rank || n->kind != HAS_ENDED || n->begun >= run.begun) continue;
        snprintf(run.text, sizeof run.text,
                 "rank %d has ended its program, and this rank waits for it %s: want the same "
                 "calls on all",
                 r, what);
        run.lost = true;
        return run.text;
    }
    return NULL;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Why there is nothing left to wait for; NULL: keep waiting. *asked: when it asked, or -1. */
static const char *look_around(const char *what, double waited, double *asked)
{
    if (run.ended) tell_end(what);
    read_notes(what);
    const char *ended = run.ended ? NULL : say_ended(what);
    if (ended || run.timeout == 0 || waited < (double)run.timeout) return ended;
    for (int r = 0; r < table.size && *asked < 0; r++) {
        run.peer[r].in.kind = 0;
        if (r != table.rank) send_note(r, ASKS, what);
    }
    if (*asked < 0) *asked = waited;
    return waited < *asked + GRACE ? NULL : say_late(what);
}

/* Counts an operation of all ranks that is to begin: NULL, or why this rank must not begin it. */
static const char *count(void)
{
    run.begun++;
    return run.lost ? run.text : NULL;
}

/* Waits for an operation; what: "in a sum". NULL, or the reason for a failure. If that names ranks,
 * the operation is still on its way, and every later call fails too. */
static const char *wait_for(const char *what, MPI_Request *request)
{
    double waited = 0, asked = -1, looked = 0;
    if (run.lost) return run.text;
    for (int done = 0;;) {
        int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || done) return words_of(code);
        double now = MPI_Wtime();
        if (looked == 0) looked = now;
        if (now - looked < LOOK) continue;
        waited += now - looked < 1 ? now - looked : 1; /* longer: this process did not run */
        looked = now;
        const char *why = look_around(what, waited, &asked);
        if (why) return why;
    }
}

/* Returns when all ranks have called it, or ends them all, and prints why: no call is left to. */
static void wait_end(void)
{
    static const char what[] = "at the program's end";
    MPI_Request request;
    const char *why = run.lost ? run.text : NULL;
    run.ended = true;
    if (!why) tell_end(what);
    if (!why) why = words_of(MPI_Ibarrier(run.comm, &request));
    if (!why) why = wait_for(what, &request);
    if (!why) return;
    fprintf(stderr, "tenon: rank %d of %d: %s\n", table.rank, table.size, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* NULL, or why it failed: text that stays. */
static const char *wait_open(void)
{
    const char *text = getenv("TN_PARALLEL_TIMEOUT");
    char *end = NULL;
    run.timeout = text ? strtol(text, &end, 10) : TIMEOUT;
    if (text && (end == text || *end || run.timeout < 0 || run.timeout > INT32_MAX)) {
        snprintf(run.text, sizeof run.text,
                 "TN_PARALLEL_TIMEOUT is '%.40s': want a whole number of seconds, 0 for no limit",
                 text);
        return run.text;
    }
    run.peer = calloc((size_t)table.size, sizeof *run.peer); /* lives as long as the process */
    if (!run.peer) return "out of memory";
    for (int r = 0; r < table.size; r++) run.peer[r].request = MPI_REQUEST_NULL;
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &run.comm);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(run.comm, MPI_ERRORS_RETURN);
    return words_of(code);
}

/* ---- operations ------------------------------------------------------------------------------ */

_Static_assert(sizeof(MPI_Comm) <= sizeof(uint64_t), "a group holds a communicator");
_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request holds one of MPI's");

static MPI_Comm comm_in(uint64_t word)
{
    MPI_Comm comm;
    memcpy(&comm, &word, sizeof comm);
    return comm;
}

static MPI_Datatype type_of(tn_dtype dtype)
{
    return dtype == TN_F32 ? MPI_FLOAT : dtype == TN_F64 ? MPI_DOUBLE : MPI_INT64_T;
}

/* Waits for an operation that was begun with this code. */
static const char *finish(const char *what, int code, MPI_Request *request)
{
    return code == MPI_SUCCESS ? wait_for(what, request) : words_of(code);
}

static const char *barrier_of(MPI_Comm comm, const char *what)
{
    MPI_Request r;
    const char *why = count();
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
    return words_of(code);
}

static const char *group_free(tni_mpi_group *group)
{
    MPI_Comm comm = comm_in(group->word), second = comm_in(group->second);
    int code = MPI_Comm_free(&comm);
    if (code == MPI_SUCCESS) code = MPI_Comm_free(&second);
    return words_of(code);
}

/* ---- sums that go on while the program computes ---------------------------------------------- */

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
    const char *why = count();
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
    return words_of(code);
}

static const char *wait(tni_mpi_request *request)
{
    MPI_Request r;
    memcpy(&r, &request->word, sizeof r);
    const char *why = wait_for("in a sum", &r);
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
    const char *why = count();
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
    MPI_Request r;
    memcpy(&r, &request->word, sizeof r);
    int flag = 0, code = MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && flag) code = follow(request, &r);
    memcpy(&request->word, &r, sizeof r);
    return words_of(code);
}

static const char *gather(tni_mpi_group group, const void *data, size_t nbytes, void *all)
{
    int n = (int)nbytes;
    MPI_Request r;
    if (nbytes > INT_MAX) return "more than 2^31 - 1 bytes from a rank";
    const char *why = count();
    if (why) return why;
    return finish("in an exchange",
                  MPI_Iallgather(data, n, MPI_BYTE, all, n, MPI_BYTE, comm_in(group.word), &r), &r);
}

/* All ranks count it, even those with nothing to do. to: -1: all. */
static const char *move(tni_mpi_group group, void *data, size_t nbytes, int from, int to)
{
    MPI_Comm comm = comm_in(group.word);
    bool all = to < 0, busy = all || table.rank == from || table.rank == to;
    const char *why = count();
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
    wait_end();
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
    int given = MPI_THREAD_SINGLE, started = 0, code = MPI_Initialized(&started);
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
    const char *reason = chosen ? words_of(start()) : "out of memory";
    if (!reason) reason = wait_open();
    if (reason) {
        snprintf(why, size, "did not start: %s", reason);
        return NULL;
    }
    if (MPI_Get_library_version(version, &n) != MPI_SUCCESS) version[0] = '\0';
    version[strcspn(version, ",\n")] = '\0';
    table.version = version;
    return &table;
}
