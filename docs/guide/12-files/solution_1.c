/*
 * All that a run is made of goes into its checkpoint.
 */
#include <tenon/tenon.h>

typedef struct run {
    tn_module *model;
    tn_optim *opt;
    tn_scheduler *schedule;
    tn_generator *batches;
} run;

static tn_checkpoint all_of(run *r)
{
    return (tn_checkpoint){ .model = r->model,
                            .optimizer = r->opt,
                            .scheduler = r->schedule,
                            .generators = &r->batches,
                            .n_generators = 1 };
}

tn_status save(run *r, const char *path, int64_t step)
{
    tn_checkpoint c = all_of(r);
    c.step = step;
    return tn_checkpoint_save(&c, path);
}

tn_status load(run *r, const char *path, int64_t *step)
{
    tn_checkpoint c = all_of(r);
    tn_status status = tn_checkpoint_load(&c, path);
    *step = c.step;
    return status;
}
