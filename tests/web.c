/* web.c - what Check and a test ask of the system and emscripten's C library has not. They fail. */
#include <signal.h>
#include <time.h>

int timer_create(clockid_t clock, struct sigevent *restrict event, timer_t *restrict timer)
{
    (void)clock, (void)event, (void)timer;
    return -1;
}

int timer_settime(timer_t timer, int flags, const struct itimerspec *restrict new_value,
                  struct itimerspec *restrict old_value)
{
    (void)timer, (void)flags, (void)new_value, (void)old_value;
    return -1;
}

int timer_delete(timer_t timer)
{
    (void)timer;
    return -1;
}

int sigaltstack(const stack_t *restrict stack, stack_t *restrict old)
{
    (void)stack, (void)old;
    return -1;
}
