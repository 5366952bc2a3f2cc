/*
 * Chapter 12: weights in files, and training that is stopped and goes on as if it had not been.
 */
#include <inttypes.h>
#include <tenon/tenon.h>

typedef struct run {
    tn_module *model;
    tn_optim *opt;
    tn_scheduler *schedule;
} run;

static run run_new(uint64_t seed)
{
    run r;
    tn_manual_seed(seed);
    r.model = tn_sequential(tn_linear_new(2, 16, (tn_linear_options){ 0 }),
                            tn_batch_norm1d_new(16, (tn_batch_norm_options){ 0 }), tn_relu_new(),
                            tn_dropout_new(0.1), tn_linear_new(16, 1, (tn_linear_options){ 0 }));
    TN_CHECK_PTR(r.model);
    r.opt = tn_adam(tn_parameters(r.model), (tn_adam_options){ .lr = 0.01 });
    r.schedule = tn_cosine_lr(r.opt, 40, 0);
    TN_CHECK_PTR(r.schedule);
    return r;
}

static void run_free(run *r)
{
    tn_scheduler_free(r->schedule), tn_optim_free(r->opt), tn_module_drop(r->model);
}

/* Steps first .. last - 1, each on a batch of random numbers: a model of x1 x2. */
static void train(run *r, int first, int last)
{
    for (int step = first; step < last; step++) TN_SCOPE
        {
            tn_tensor *x = tn_randn(TN_SHAPE(32, 2)), *y = tn_prod(x, TN_AXES(1), true);
            tn_tensor *loss = tn_mse_loss(tn_forward(r->model, x), y, TN_MEAN);
            TN_CHECK(tn_optim_zero_grad(r->opt));
            TN_CHECK(tn_backward(loss));
            TN_CHECK(tn_optim_step(r->opt));
            TN_CHECK(tn_scheduler_step(r->schedule));
        }
}

static uint64_t hash_of(tn_module *m)
{
    uint64_t hash = 0;
    TN_SCOPE
    {
        tn_list *state = tn_state_dict(m, "");
        for (int i = 0; i < state->n; i++) hash = hash * 31 + tn_hash(state->entry[i].tensor);
    }
    return hash;
}

int main(void)
{
    tn_scope scope = tn_scope_begin();

    /* 40 steps; after 20 of them everything goes into a file. */
    run a = run_new(1);
    train(&a, 0, 20);
    tn_checkpoint c = { .model = a.model, .optimizer = a.opt, .scheduler = a.schedule, .step = 20 };
    TN_CHECK(tn_checkpoint_save(&c, "run.safetensors"));
    train(&a, 20, 40);

    /* Another model, from other numbers, takes over what is in the file. */
    run b = run_new(2);
    tn_checkpoint d = { .model = b.model, .optimizer = b.opt, .scheduler = b.schedule };
    TN_CHECK(tn_checkpoint_load(&d, "run.safetensors"));
    printf("goes on at step %" PRId64 ", learning rate %.4f\n", d.step, tn_optim_lr(b.opt, 0));
    train(&b, (int)d.step, 40);
    printf("every bit as without a stop: %d\n", hash_of(a.model) == hash_of(b.model));

    /* The weights alone, for using the model: parameters and persistent buffers. */
    TN_CHECK(tn_save(a.model, "net.safetensors"));
    tn_list *file = tn_load_tensors("net.safetensors", NULL);
    TN_CHECK_PTR(file);
    for (int i = 0; i < file->n; i++)
        printf("%-22s %d\n", file->entry[i].name, (int)tn_numel(file->entry[i].tensor));
    run fresh = run_new(3);
    TN_CHECK(tn_load(fresh.model, "net.safetensors"));
    printf("loaded: %d\n", hash_of(a.model) == hash_of(fresh.model));

    /* A file that does not fit changes nothing, and the message lists all that is wrong. */
    tn_module *other = tn_sequential(tn_linear_new(2, 16, (tn_linear_options){ .no_bias = true }),
                                     tn_linear_new(16, 1, (tn_linear_options){ 0 }));
    if (tn_load(other, "net.safetensors") != TN_OK) printf("%s\n", tn_error());
    tn_module_drop(other);
    run_free(&a), run_free(&b), run_free(&fresh);
    tn_scope_end(scope);
    return 0;
}
