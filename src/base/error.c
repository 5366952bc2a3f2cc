/*
 * error.c - status and message, set where a failure begins. They go to a buffer that the thread has
 * already, so no memory is needed (texts.c). With TN_TRAP=1 it aborts there, for a debugger.
 */
#include <signal.h>

#include "base/host.h"
#include "base/base.h"

enum { SIZE = sizeof((tni_texts *)NULL)->message };

static _Thread_local tn_status pending;

_Thread_local void (*tni_error_context)(char *buffer, size_t size);
_Thread_local uint64_t tni_error_count;
TNI_THREAD const char *tni_op_running;

static char *buffer(void)
{
    tni_texts *mine = tni_texts_mine();
    return mine ? mine->message : NULL;
}

static void trap(void)
{
    const char *wanted = getenv("TN_TRAP");
    if (wanted && wanted[0] == '1') raise(SIGABRT);
}

/* "weight weight [2,2]", a tensor's role and its name, becomes "weight [2,2]". */
static void say_roles_once(char *text)
{
    for (char *at = text; (at = strstr(at, " ["));) {
        char *name = at;
        while (name > text && name[-1] != ' ') name--;
        size_t n = (size_t)(at - name);
        char *role = (size_t)(name - text) > n ? name - n - 1 : name;
        bool word = role == text || role[-1] == ' ';
        if (role < name && n > 0 && word && memcmp(role, name, n) == 0) {
            memmove(role, name, strlen(name) + 1);
            at = role;
        } else {
            at++;
        }
    }
}

void tni_disarm(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if ((*c < ' ' && *c != '\n') || *c == 0x7f)
            *c = '?';
        else if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) /* the same in UTF-8, of two bytes */
            c[0] = c[1] = '?';
}

static void set(tn_status status, const char *format, va_list args)
{
    TNI_C_NUMBERS;
    char *message = buffer();
    if (message) {
        vsnprintf(message, SIZE, format, args);
        say_roles_once(message);
        tni_disarm(message);
        size_t n = strlen(message);
        if (tni_error_context) tni_error_context(message + n, SIZE - n);
    }
    pending = status;
    tni_error_count++;
    trap();
}

tn_status tni_error(tn_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set(status, format, args);
    va_end(args);
    return status;
}

void *tn_fail(tn_status status, const char *format, ...)
{
    if (!format) return tni_poisoned("tn_fail", "format");
    va_list args;
    va_start(args, format);
    set(status == TN_OK ? TN_E_INVALID : status, format, args);
    va_end(args);
    return NULL;
}

tn_status tni_error_prefix(const char *format, ...)
{
    char was[SIZE], *message = buffer();
    va_list args;
    if (!message) return pending;
    memcpy(was, message, sizeof was);
    va_start(args, format);
    vsnprintf(message, SIZE, format, args);
    va_end(args);
    tni_text_add(message, SIZE, "%s", was);
    return pending;
}

void tni_error_reword(const char *from, const char *to)
{
    char rest[SIZE], *message = buffer(), *at = message ? strstr(message, from) : NULL;
    if (!at || pending == TN_OK) return;
    memcpy(rest, at + strlen(from), strlen(at + strlen(from)) + 1);
    snprintf(at, SIZE - (size_t)(at - message), "%s%s", to, rest);
}

tn_status tni_missing(const char *format, ...)
{
    va_list args;
    if (pending != TN_OK) return pending;
    va_start(args, format);
    set(TN_E_INVALID, format, args);
    va_end(args);
    return pending;
}

static void note_pending(const char *function, const char *argument, const char *want)
{
    char *message = buffer();
    if (message && !strstr(message, " is NULL while this error"))
        tni_text_add(message, SIZE, "; %s: %s is NULL while this error is pending%s", function,
                     argument, want);
}

tn_status tni_poison(const char *function, const char *argument)
{
    if (pending != TN_OK) note_pending(function, argument, "");
    return tni_missing("%s: %s is NULL: want one that is there", function, argument);
}

tn_tensor *tni_option_tensor(const char *function, const char *field, tn_tensor *t)
{
    if (t) return t;
    if (pending == TN_OK) return TN_NONE;
    note_pending(function, field,
                 ": want TN_NONE for none, or tn_error_clear for an error that was dealt with");
    return NULL;
}

void tni_error_save(tni_saved_error *to)
{
    to->status = pending;
    snprintf(to->message, sizeof to->message, "%s", tn_error());
}

void tni_error_restore(const tni_saved_error *from)
{
    tn_error_clear();
    pending = from->status;
    char *message = from->message[0] ? buffer() : NULL;
    if (message) memcpy(message, from->message, strlen(from->message) + 1);
}

const char *tn_error(void)
{
    const tni_texts *mine = tni_texts_now();
    if (mine) return mine->message;
    return pending == TN_OK ? "" : "out of memory: there is none for this thread's message";
}

tn_status tn_error_status(void)
{
    return pending;
}

void tn_error_clear(void)
{
    if (tni_texts_now()) tni_texts_mine()->message[0] = '\0';
    pending = TN_OK;
}

#define NAME(status) [status] = #status

const char *tn_status_name(tn_status status)
{
    static const char *const names[] = {
        NAME(TN_OK),       NAME(TN_E_INVALID), NAME(TN_E_SHAPE),  NAME(TN_E_DTYPE),
        NAME(TN_E_DEVICE), NAME(TN_E_INDEX),   NAME(TN_E_NAME),   NAME(TN_E_STATE),
        NAME(TN_E_NOMEM),  NAME(TN_E_IO),      NAME(TN_E_FORMAT), NAME(TN_E_UNSUPPORTED),
        NAME(TN_E_BACKEND)
    };
    if ((int)status < 0 || (size_t)status >= sizeof names / sizeof *names) return "unknown status";
    return names[status];
}
