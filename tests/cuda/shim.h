/*
 * shim.h - the controls that tests/cuda/host exports from its module (cuda_host.h, forced.cpp).
 * With a real GPU they do not exist: shim() is false, and tests that need them are skipped by name.
 */
#ifndef TENON_TESTS_CUDA_SHIM_H
#define TENON_TESTS_CUDA_SHIM_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "common.h"

static struct {
    long long (*calls)(void), (*blocks)(void), (*waits)(void), (*launches)(void), (*graphs)(void);
    long long (*calls_of)(const char *function);
    void (*fail_call)(long long n);
    void (*break_call)(long long n); /* as fail_call, and every call after it fails too */
    /* the call that failed on request (a launch: its kernel); "": none */
    const char *(*failed)(void);
    void (*memory)(size_t bytes);
    void (*fault)(const char *text);
    void (*fail_with)(long long n, int error); /* as fail_call, with this error of the runtime */
    void (*stale)(void);        /* this thread's last error is that of a foreign call */
    void (*other_device)(void); /* makes another device this thread's current one */
} host;

/* Looks up a function of the module in TN_CUDA_MODULE; false: it has none of that name. */
static inline bool module_function(const char *name, void *to)
{
    const char *path = getenv("TN_CUDA_MODULE");
    void *module = path && tn_cuda_available() ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *symbol = module ? dlsym(module, name) : NULL;
    memcpy(to, &symbol, sizeof symbol);
    if (module) dlclose(module); /* the library holds it */
    return symbol != NULL;
}

static inline bool shim(void)
{
    return module_function("cuda_host_calls", &host.calls) &&
           module_function("cuda_host_calls_of", &host.calls_of) &&
           module_function("cuda_host_blocks", &host.blocks) &&
           module_function("cuda_host_waits", &host.waits) &&
           module_function("cuda_host_launches", &host.launches) &&
           module_function("cuda_host_graphs", &host.graphs) &&
           module_function("cuda_host_fail", &host.fail_call) &&
           module_function("cuda_host_break", &host.break_call) &&
           module_function("cuda_host_failed", &host.failed) &&
           module_function("cuda_host_memory", &host.memory) &&
           module_function("cuda_host_fault", &host.fault) &&
           module_function("cuda_host_fail_with", &host.fail_with) &&
           module_function("cuda_host_stale", &host.stale) &&
           module_function("cuda_host_other_device", &host.other_device);
}

/* Whether tests that control the shim can run, asked in test_suite() or at a test's start; if not,
 * says that they are skipped. */
static inline bool shim_for(const char *tests)
{
    bool there = shim();
    if (!there) printf("left out, they steer the shim of the CUDA runtime: %s\n", tests);
    return there;
}

#endif
