/*
 * Going on after a stop. save and load are given a run: a model, an optimizer with momentum, a
 * schedule, and a generator of the run's own for its batches. So far the file holds the model
 * alone, and a resumed run drifts away from one that never stopped. Put in what is missing.
 */
#include <tenon/tenon.h>

typedef struct run {
    tn_module *model;
    tn_optim *opt;
    tn_scheduler *schedule;
    tn_generator *batches;
} run;

tn_status save(run *r, const char *path, int64_t step)
{
    tn_checkpoint c = { .model = r->model, .step = step }; /* your code here */
    return tn_checkpoint_save(&c, path);
}

tn_status load(run *r, const char *path, int64_t *step)
{
    tn_checkpoint c = { .model = r->model }; /* and here */
    tn_status status = tn_checkpoint_load(&c, path);
    *step = c.step;
    return status;
}
