/*
 * save_driver.c - one save or one load, for crash_sweep.sh to break.
 *
 * usage: save_driver save|load KIND PATH SEED
 *   save   writes the state that SEED stands for. Exit status 0: done; 1: refused, with the message
 *   load   reads it into another model. 0: it is that state bit for bit; 1: refused, with the
 *          message, and the model is unchanged; 3: anything else
 *   KIND   weights (by the path's suffix: safetensors or PyTorch's); checkpoint, of step SEED;
 *          numbered: PATH is a folder, of which the two newest checkpoints are kept
 *
 * The part to be broken lies between two calls of access() on names that do not exist.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tenon/tenon.h>

#define BEGINS "/the-call-begins"
#define ENDS "/the-call-has-ended"

static tn_module *model;
static tn_optim *optimizer;

/* Several tensors of several pages, ties and buffers. */
static void make(unsigned long seed)
{
    tn_manual_seed(seed);
    model = tn_sequential(tn_linear_new(48, 48, (tn_linear_options){ 0 }),
                          tn_batch_norm1d_new(48, (tn_batch_norm_options){ 0 }),
                          tn_linear_new(48, 48, (tn_linear_options){ 0 }));
    TN_CHECK_PTR(model);
    TN_CHECK(tn_module_set(model, "2.weight", tn_get_parameter(model, "0.weight")));
    optimizer = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 0.01 });
    TN_CHECK_PTR(optimizer);
}

static void drop(void)
{
    tn_optim_free(optimizer);
    tn_module_drop(model);
}

static unsigned long long hash(void)
{
    tn_list *list = tn_state_dict(model, "");
    unsigned long long h = 0;
    TN_CHECK_PTR(list);
    for (int i = 0; i < list->n; i++) h = h * 31 + tn_hash(list->entry[i].tensor);
    return h;
}

static tn_status run(bool save, const char *kind, const char *path, unsigned long seed,
                     int64_t *step)
{
    tn_checkpoint c = { .model = model, .optimizer = optimizer, .step = (int64_t)seed };
    tn_status status = TN_E_INVALID;
    if (!strcmp(kind, "weights")) {
        status = save ? tn_save(model, path) : tn_load(model, path);
    } else if (!strcmp(kind, "checkpoint")) {
        if (!save) c.step = 0;
        status = save ? tn_checkpoint_save(&c, path) : tn_checkpoint_load(&c, path);
        *step = c.step;
    } else if (!strcmp(kind, "numbered") && save) {
        status = tn_checkpoint_save_numbered(&c, path, "run", 2);
    } else if (!strcmp(kind, "numbered")) {
        char newest[4096];
        status = tn_checkpoint_latest(path, "run", newest, sizeof newest);
        if (status == TN_OK) status = tn_checkpoint_load(&c, newest);
        *step = c.step;
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: save_driver save|load KIND PATH SEED\n");
        return 2;
    }
    alarm(20); /* a call that never ends is a failure too */
    bool save = !strcmp(argv[1], "save");
    unsigned long seed = strtoul(argv[4], NULL, 10);
    int64_t step = 0;
    tn_scope scope = tn_scope_begin();
    make(seed);
    unsigned long long wanted = hash();
    if (!save) {
        drop();
        make(seed + 1000);
    }
    unsigned long long before = hash();
    access(BEGINS, F_OK);
    tn_status status = run(save, argv[2], argv[3], seed, &step);
    access(ENDS, F_OK);
    if (status != TN_OK) fprintf(stderr, "%s: %s\n", tn_status_name(status), tn_error());
    unsigned long long after = hash();
    if (!save && status == TN_OK && !strcmp(argv[2], "numbered") && step < (int64_t)seed) {
        drop(); /* where a file cannot be read, an older one is taken */
        make((unsigned long)step);
        wanted = hash();
        seed = (unsigned long)step;
    }
    bool right = save || status != TN_OK ? after == before : after == wanted;
    if (!save && status == TN_OK && strcmp(argv[2], "weights"))
        right = right && step == (int64_t)seed;
    drop();
    tn_scope_end(scope);
    return !right ? 3 : status == TN_OK ? 0 : 1;
}
