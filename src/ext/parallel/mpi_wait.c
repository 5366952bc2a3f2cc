/*
 * mpi_wait.c - waiting for other ranks, without waiting for ever.
 *
 * MPI itself waits without end for a rank that is stuck, stopped, behind a broken network, or gone
 * on to another call. So every operation is begun without blocking, and a loop asks whether it is
 * done. A rank that has waited for longer than TN_PARALLEL_TIMEOUT seconds sends a question to all
 * others; a waiting rank looks for questions, and answers where it is. The message names ranks that
 * do not answer. If all answer, they wait in different calls, and it says in which.
 *
 * A rank whose program ends tells all others, with the number of operations that it has begun. All
 * ranks begin equally many in each call of the library, so a rank that waits in a later operation
 * knows at once that nobody will come.
 *
 * Time counts only while this process runs: after a pause of the whole run nobody is late.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext/parallel/mpi_wait.h"

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

static struct {
    MPI_Comm comm; /* of the notes */
    int rank, size;
    long timeout;  /* seconds; 0: none */
    int64_t begun; /* operations */
    bool ended;    /* the program of this rank */
    peer *peer;
    bool lost; /* an operation of this rank will never be done: text says why */
    char text[512];
} run;

const char *tni_mpi_reason(int code)
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
    for (int r = 0; r < run.size; r++)
        if (r != run.rank && !run.peer[r].told) run.peer[r].told = send_note(r, HAS_ENDED, what);
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
    for (int r = 0; r < run.size; r++)
        if (r != run.rank && run.peer[r].in.kind == 0 && n++ < NAMED)
            at += (size_t)snprintf(text + at, size - at, "%srank %d", n > 1 ? ", " : "", r);
    if (n > NAMED) snprintf(text + at, size - at, " and %d more", n - NAMED);
    return n;
}

/* Where this rank waits, and the first few ranks that wait elsewhere. */
static void list_places(char *text, size_t size, const char *what)
{
    size_t at = (size_t)snprintf(text, size, "this rank %s", what);
    int named = 0;
    for (int r = 0; r < run.size && named < NAMED && at < size; r++) {
        const note *n = &run.peer[r].in;
        char away[48] = "";
        if (r == run.rank || (n->begun == run.begun && strcmp(n->what, what) == 0)) continue;
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
    for (int r = 0; r < run.size; r++) {
        const note *n = &run.peer[r].in;
        if (r == run.rank || n->kind != HAS_ENDED || n->begun >= run.begun) continue;
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
    for (int r = 0; r < run.size && *asked < 0; r++) {
        run.peer[r].in.kind = 0;
        if (r != run.rank) send_note(r, ASKS, what);
    }
    if (*asked < 0) *asked = waited;
    return waited < *asked + GRACE ? NULL : say_late(what);
}

const char *tni_mpi_count(void)
{
    run.begun++;
    return run.lost ? run.text : NULL;
}

const char *tni_mpi_wait(const char *what, MPI_Request *request)
{
    double waited = 0, asked = -1, looked = 0;
    if (run.lost) return run.text;
    for (int done = 0;;) {
        int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || done) return tni_mpi_reason(code);
        double now = MPI_Wtime();
        if (looked == 0) looked = now;
        if (now - looked < LOOK) continue;
        waited += now - looked < 1 ? now - looked : 1; /* longer: this process did not run */
        looked = now;
        const char *why = look_around(what, waited, &asked);
        if (why) return why;
    }
}

/* No call is left that could return an error: prints the reason. */
void tni_mpi_wait_end(void)
{
    static const char what[] = "at the program's end";
    MPI_Request request;
    const char *why = run.lost ? run.text : NULL;
    run.ended = true;
    if (!why) tell_end(what);
    if (!why) why = tni_mpi_reason(MPI_Ibarrier(run.comm, &request));
    if (!why) why = tni_mpi_wait(what, &request);
    if (!why) return;
    fprintf(stderr, "tenon: rank %d of %d: %s\n", run.rank, run.size, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

const char *tni_mpi_wait_open(int rank, int size)
{
    const char *text = getenv("TN_PARALLEL_TIMEOUT");
    char *end = NULL;
    run.rank = rank;
    run.size = size;
    run.timeout = text ? strtol(text, &end, 10) : TIMEOUT;
    if (text && (end == text || *end || run.timeout < 0 || run.timeout > INT32_MAX)) {
        snprintf(run.text, sizeof run.text,
                 "TN_PARALLEL_TIMEOUT is '%.40s': want a whole number of seconds, 0 for no limit",
                 text);
        return run.text;
    }
    run.peer = calloc((size_t)size, sizeof *run.peer); /* lives as long as the process */
    if (!run.peer) return "out of memory";
    for (int r = 0; r < size; r++) run.peer[r].request = MPI_REQUEST_NULL;
    int code = MPI_Comm_dup(MPI_COMM_WORLD, &run.comm);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(run.comm, MPI_ERRORS_RETURN);
    return tni_mpi_reason(code);
}
