/*
 * missing.h - included first in every file that is compiled for a browser: what glibc has and musl,
 * emscripten's C library, has not.
 */
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h> /* sys/random.h uses size_t without it */
#include <sys/random.h>

/* They fail, and who asked has another way. */
#define dlopen(file, mode) NULL
#define dlsym(object, name) NULL
#define dlerror() "is not for a browser"
#define getrandom(to, size, flags) ((ssize_t)-1)
#define sched_getaffinity(process, size, set) (-1)

/* clang-format off */
#define PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP { { { PTHREAD_MUTEX_RECURSIVE } } }
/* clang-format on */

/* Only what joins other processes asks for it, and there are none. */
static inline int on_exit(void (*f)(int status, void *user), void *user)
{
    (void)f, (void)user;
    return 0;
}
