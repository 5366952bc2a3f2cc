/* A program without tenon that opens it while it runs, trains a step on each of three threads,
 * fails on each of twenty, and closes it. usage: plugin LIBRARY */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenon/tenon.h>

static void *library;

/* The library's function of this name, with the type that the header gives it. */
#define OF(name) ((__typeof__(&name))find(#name))

static void *find(const char *name)
{
    void *address = dlsym(library, name);
    if (!address) fprintf(stderr, "%s\n", dlerror()), exit(1);
    return address;
}

static void want(int ok, const char *what)
{
    if (!ok) fprintf(stderr, "%s: %s\n", what, OF(tn_error)()), exit(1);
}

/* y = x W^T of ones, mean over all: the gradient of each weight is 1 / outputs. */
static void *step(void *unused)
{
    tn_scope scope = OF(tn_scope_begin)();
    tn_shape shape = { .rank = 2, .size = { 1 << 14, 64 } }; /* enough for the helpers */
    tn_module *m = OF(tn_linear_new)(64, 64, (tn_linear_options){ .no_bias = true });
    tn_optim *sgd = OF(tn_sgd)(OF(tn_parameters)(m), (tn_sgd_options){ .lr = 64 });
    tn_tensor *x = OF(tn_ones)(shape);
    double before = OF(tn_item)(OF(tn_mean_all)(OF(tn_forward)(m, x)));
    want(OF(tn_backward)(OF(tn_mean_all)(OF(tn_forward)(m, x))) == TN_OK, "tn_backward");
    want(OF(tn_optim_step)(sgd) == TN_OK, "tn_optim_step");
    double after = OF(tn_item)(OF(tn_mean_all)(OF(tn_forward)(m, x)));
    want(before - after > 63.99 && before - after < 64.01, "the step");
    OF(tn_optim_free)(sgd);
    OF(tn_module_drop)(m);
    OF(tn_scope_end)(scope);
    return unused;
}

static pthread_barrier_t all;

/* Each thread has its own message while all of them have one; a thread begins without. */
static void *fail(void *number)
{
    char text[64];
    want(strcmp(OF(tn_error)(), "") == 0, "the message of a new thread");
    OF(tn_fail)(TN_E_SHAPE, "thread %d", *(int *)number);
    pthread_barrier_wait(&all);
    snprintf(text, sizeof text, "thread %d", *(int *)number);
    want(strcmp(OF(tn_error)(), text) == 0, text);
    return NULL;
}

/* Ends after the library was closed. */
static void *linger(void *unused)
{
    OF(tn_fail)(TN_E_SHAPE, "a message to be freed");
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
    return unused;
}

int main(int argc, char **argv)
{
    enum { STEPS = 3, FAIL = 20 };
    pthread_t thread[FAIL];
    int number[FAIL];

    library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage"), exit(1);
    step(NULL);
    for (int i = 0; i < STEPS; i++) pthread_create(&thread[i], NULL, step, NULL);
    for (int i = 0; i < STEPS; i++) pthread_join(thread[i], NULL);
    pthread_barrier_init(&all, NULL, FAIL);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < FAIL; i++)
            number[i] = i, pthread_create(&thread[i], NULL, fail, &number[i]);
        for (int i = 0; i < FAIL; i++) pthread_join(thread[i], NULL);
    }
    want(OF(tn_live_tensors)() == 0, "tensors are left");
    pthread_barrier_destroy(&all);
    pthread_barrier_init(&all, NULL, 2);
    pthread_create(thread, NULL, linger, NULL);
    pthread_barrier_wait(&all);
    dlclose(library);
    pthread_barrier_wait(&all);
    pthread_join(thread[0], NULL);
    puts("a plugin: opened, trained, closed");
    return 0;
}
