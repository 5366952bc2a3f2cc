/*
 * process.c - an example as a process: its standard descriptors, signals, complaints and exit
 * status; see common.h
 */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static const char *program = "example";
static bool complained;
static int stdout_error; /* of the first write that failed */

void ex_begin(const char *path)
{
    const char *slash = strrchr(path, '/');
    program = slash ? slash + 1 : path;
    /* The next file opened would get the number of a closed descriptor, and our output. The
     * stand-in for standard output accepts no bytes, so the loss is noticed, as it should be. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        if (open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) < 0) exit(1);
    }
    signal(SIGXFSZ, SIG_IGN); /* a file at its size limit then gives an error, like a full disk */
}

const char *ex_program(void)
{
    return program;
}

/* ---- messages -------------------------------------------------------------------------------- */

static void message(const char *format, va_list args)
{
    ex_progress_clear();
    ex_flush();
    fprintf(stderr, "%s: ", program);
    if (tn_parallel_size() > 1) fprintf(stderr, "rank %d: ", tn_parallel_rank());
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
}

void ex_complain(const char *format, ...)
{
    complained = true;
    va_list args;
    va_start(args, format);
    message(format, args);
    va_end(args);
}

void ex_refuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    message(format, args);
    va_end(args);
    exit(2);
}

void ex_check(tn_status status)
{
    if (status == TN_OK) return;
    ex_complain("%s", tn_error());
    exit(1);
}

void ex_check_ptr(const void *pointer)
{
    if (!pointer) ex_check(tn_error_status() != TN_OK ? tn_error_status() : TN_E_INVALID);
}

void ex_flush(void)
{
    if (fflush(stdout) != 0 && stdout_error == 0) stdout_error = errno;
}

static void check_output(void)
{
    ex_flush();
    if (!ferror(stdout) || ex_signal() == SIGPIPE) return;
    ex_complain("standard output: %s", strerror(stdout_error ? stdout_error : EIO));
}

void ex_need_output(void)
{
    check_output();
    if (ferror(stdout)) exit(1);
}

int ex_end(void)
{
    check_output();
    if (complained) return 1;
    return ex_signal() ? 128 + ex_signal() : 0;
}

/* ---- leaving early --------------------------------------------------------------------------- */

static const int caught[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE };
static atomic_int signal_seen;

/* Records the first signal. The second has its default effect, once this has returned. Two may
 * arrive in two threads at once: one of them is the second. A broken pipe signals at every line:
 * that counts once. */
static void note_signal(int number)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&signal_seen, &none, number) || number == SIGPIPE) return;
    signal(number, SIG_DFL);
    raise(number);
}

void ex_catch_signals(void)
{
    struct sigaction action = { .sa_handler = note_signal, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    struct sigaction before;
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        bool ours = caught[i] == SIGINT || caught[i] == SIGTERM;
        sigaction(caught[i], NULL, &before);
        if (ours || before.sa_handler != SIG_IGN) sigaction(caught[i], &action, NULL); /* nohup */
    }
}

void ex_let_signals(void)
{
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        struct sigaction now;
        sigaction(caught[i], NULL, &now);
        if (now.sa_handler == note_signal && ex_signal() == 0) signal(caught[i], SIG_DFL);
    }
}

int ex_signal(void)
{
    return signal_seen;
}
