/* progress.c - one line that is redrawn on a terminal, plain lines elsewhere; see common.h */
#include "common.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/ioctl.h>

double ex_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int ex_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

void ex_progress_begin(ex_progress *p, int64_t first, int64_t total, int64_t per_step,
                       const char *unit, bool quiet)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    *p = (ex_progress){ .unit = unit,
                        .total = total,
                        .per_step = per_step,
                        .first = first,
                        .shown = first,
                        .quiet = quiet };
    p->tty = isatty(STDOUT_FILENO) && !(term && !strcmp(term, "dumb"));
    p->color = p->tty && !(no_color && *no_color);
    p->began = ex_seconds();
    p->shown_at = p->began;
}

static bool on_line; /* of the program's terminal */

void ex_progress_clear(void)
{
    if (!on_line) return;
    printf("\r\033[K");
    on_line = false;
}

static void time_text(double seconds, char *text, size_t size)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, size, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(text, size, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

/* One line of the same shape each time: the most wanted first, then a bar. What leaves no room for
 * ten cells of it is left out. */
static void draw(ex_progress *p, int64_t step, double rate, double lr, const char *left)
{
    enum { LEAST = 10, MOST = 40, FRAME = 4 };
    char part[5][64];
    int width = ex_width() - 1, used = 0;
    int digits = snprintf(NULL, 0, "%" PRId64, p->total);
    const char *bold = p->color ? "\033[1m" : "", *plain = p->color ? "\033[0m" : "";
    snprintf(part[0], sizeof part[0], "step %*" PRId64 "/%" PRId64, digits, step, p->total);
    snprintf(part[1], sizeof part[1], "loss %.4f", p->loss / (double)p->losses);
    snprintf(part[2], sizeof part[2], "%5s left", left);
    snprintf(part[3], sizeof part[3], "%6.0f %s/s", rate, p->unit);
    snprintf(part[4], sizeof part[4], "lr %.2e", lr);
    printf("\r");
    for (int i = 0; i < 5; i++) {
        int length = (int)strlen(part[i]) + (i ? 2 : 0);
        if (used + length + (i > 1 ? FRAME + LEAST : 0) > width) break;
        printf("%s%s%s%s", i ? "  " : "", i == 1 ? bold : "", part[i], i == 1 ? plain : "");
        used += length;
    }
    int cells = width - used - FRAME < MOST ? width - used - FRAME : MOST;
    if (cells >= LEAST) {
        int full = (int)((double)cells * (double)step / (double)p->total);
        printf("  [%.*s%.*s]", full, "########################################", cells - full,
               "........................................");
    }
    printf("\033[K");
    on_line = true;
}

bool ex_progress_due(const ex_progress *p, int64_t step)
{
    int64_t every = p->total / 25 > 0 ? p->total / 25 : 1;
    if (p->quiet) return false;
    if (step == p->total) return true;
    if (p->tty) return ex_seconds() - p->shown_at >= 0.1;
    return step % every == 0 || step == p->first + 1;
}

void ex_progress_loss(ex_progress *p, double loss)
{
    p->loss += loss;
    p->losses++;
}

void ex_progress_show(ex_progress *p, int64_t step, double lr)
{
    double now = ex_seconds();
    double seconds = now - p->shown_at, all = now - p->began - p->paused;
    double rate = seconds > 0 ? (double)((step - p->shown) * p->per_step) / seconds : 0;
    char left[32];
    time_text(all / (double)(step - p->first) * (double)(p->total - step), left, sizeof left);
    if (p->tty) {
        draw(p, step, rate, lr, left);
    } else {
        printf("step %" PRId64 "/%" PRId64 "  loss %.4f  %.0f %s/s  lr %.2e  %s left\n", step,
               p->total, p->loss / (double)p->losses, rate, p->unit, lr, left);
    }
    ex_flush();
    p->shown = step;
    p->shown_at = now;
    p->loss = 0;
    p->losses = 0;
}

void ex_say(ex_progress *p, const char *format, ...)
{
    if (p->quiet) return;
    ex_progress_clear();
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    ex_flush();
}

void ex_progress_pause(ex_progress *p)
{
    p->paused -= ex_seconds();
    p->shown_at -= ex_seconds();
}

void ex_progress_resume(ex_progress *p)
{
    p->paused += ex_seconds();
    p->shown_at += ex_seconds();
}

double ex_progress_end(ex_progress *p, int64_t step)
{
    ex_progress_clear();
    double seconds = ex_seconds() - p->began - p->paused;
    return seconds > 0 ? (double)((step - p->first) * p->per_step) / seconds : 0;
}
