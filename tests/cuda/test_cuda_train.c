/*
 * test_cuda_train.c - training with the CUDA device: both models of the examples and every
 * optimizer beside the CPU, moving, files, random numbers; a step waits for nothing, leaks nothing,
 * and gives the same bits in any order of threads. The loop of the examples
 * (examples/training.c): a step's loss is read when the next step is on its way, and the log has
 * every step's.
 *
 * Seen to fail: in optim.cu the decay of AdamW added to the gradient; a cudaStreamSynchronize in
 * the upload (a step waited); in device.cu a borrowed block not returned (blocks grew); in
 * training.c read_loss() at the end of one_step (each loss was read at its own step), end_log()
 * without read_loss() (the log of a program that ends on an error lacks its last step).
 */
#include <sys/wait.h>
#include <unistd.h>

#include "../../examples/training.h"
#include "shim.h"
#include "files.h"
#include "models.h"

/* ---- beside the CPU -------------------------------------------------------------------------- */

/* Parameters and buffers of two modules. */
static void assert_same_state(tn_module *gpu, tn_module *cpu, double rtol, double atol)
{
    tn_list *a = tn_state_dict(gpu, NULL);
    tn_list *e = tn_state_dict(cpu, NULL);
    ck_assert(a && e && a->n == e->n);
    for (int i = 0; i < a->n; i++) {
        const char *text = difference(a->entry[i].tensor, e->entry[i].tensor, rtol, atol);
        ck_assert_msg(!text, "%s: %s", a->entry[i].name, text);
        ck_assert_int_eq(tn_device_of(a->entry[i].tensor).type, TN_CUDA);
    }
}

static tn_module *copy_on_gpu(tn_module *cpu)
{
    tn_module *gpu = tn_module_clone(cpu);
    assert_made(gpu);
    assert_ok(tn_module_to(gpu, tn_cuda(0)));
    return gpu;
}

static void train_both(tn_module *cpu, bool images, tn_dtype dtype, int steps)
{
    double bound = dtype == TN_F64 ? 1e-10 : 1e-4;
    assert_made(cpu);
    assert_ok(tn_module_to_dtype(cpu, dtype));
    tn_module *gpu = copy_on_gpu(cpu);
    tn_sgd_options o = { .lr = 0.05, .momentum = 0.9 };
    tn_optim *on_cpu = tn_sgd(tn_parameters(cpu), o);
    tn_optim *on_gpu = tn_sgd(tn_parameters(gpu), o);
    for (int step = 0; step < steps; step++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *x, *y;
        if (images)
            synthetic_images(step, dtype, &x, &y);
        else
            random_text(3, &x, &y);
        double e = train_step(cpu, on_cpu, x, y);
        double a = train_step(gpu, on_gpu, tn_to(x, tn_cuda(0)), tn_to(y, tn_cuda(0)));
        ck_assert_msg(fabs(a - e) <= bound * fabs(e), "step %d: loss %.12g, not %.12g", step, a, e);
        tn_scope_end(scope);
    }
    assert_same_state(gpu, cpu, bound, bound);
    tn_optim_free(on_cpu);
    tn_optim_free(on_gpu);
    tn_module_drop(cpu);
    tn_module_drop(gpu);
}

START_TEST(transformer)
{
    train_both(transformer_new(), false, _i ? TN_F64 : TN_F32, 4);
}
END_TEST

START_TEST(cnn)
{
    train_both(cnn_new(), true, _i ? TN_F64 : TN_F32, 2);
}
END_TEST

/* ---- optimizers ------------------------------------------------------------------------------ */

static tn_optim *optimizer_of(int i, const tn_list *p)
{
    static const tn_sgd_options sgd[] = {
        { .lr = 0.1 },
        { .lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01 },
        { .lr = 0.1, .momentum = 0.9, .nesterov = true },
        { .lr = 0.1, .maximize = true },
    };
    static const tn_adam_options adam[] = {
        { .lr = 0.01 },
        { .lr = 0.01, .weight_decay = 0.1, .amsgrad = true },
        { .lr = 0.01, .beta1 = 0, .beta2 = 0.9, .use_betas = true, .maximize = true },
    };
    static const tn_rmsprop_options rmsprop[] = {
        { .lr = 0.01 },
        { .lr = 0.01, .momentum = 0.9, .weight_decay = 0.01, .centered = true },
        { .lr = 0.01, .maximize = true },
    };
    static const tn_adagrad_options adagrad[] = {
        { .lr = 0.01 },
        { .lr = 0.01, .lr_decay = 0.1, .weight_decay = 0.01, .initial_accumulator = 0.2 },
        { .lr = 0.01, .maximize = true },
    };
    if (i < 4) return tn_sgd(p, sgd[i]);
    if (i < 7) return tn_adam(p, adam[i - 4]);
    if (i < 10) return tn_adamw(p, adam[i - 7]);
    if (i < 13) return tn_rmsprop(p, rmsprop[i - 10]);
    if (i < 16) return tn_adagrad(p, adagrad[i - 13]);
    static tn_optim *(*const types[])(
        const tn_list *p, tn_optim_options o) = { tn_adamax, tn_nadam, tn_radam, tn_adafactor };
    return types[i - 16](p, (tn_optim_options){ .lr = 0.01, .weight_decay = 0.1 });
}
enum { OPTIMIZERS = 20 };

static tn_module *mlp(tn_dtype dtype)
{
    tn_module *m = tn_sequential(tn_linear_new(7, 33, (tn_linear_options){ 0 }), tn_tanh_new(),
                                 tn_linear_new(33, 5, (tn_linear_options){ 0 }));
    assert_made(m);
    assert_ok(tn_module_to_dtype(m, dtype));
    return m;
}

/* A step with clipped gradients: their norm before. */
static double clipped_step(tn_module *m, tn_optim *optimizer, tn_tensor *x)
{
    tn_tensor *loss = tn_mean(tn_square(tn_forward(m, x)), NULL, 0, false);
    assert_ok(tn_optim_zero_grad(optimizer));
    assert_ok(tn_backward(loss));
    double norm = tn_clip_grad_norm(tn_parameters(m), 0.1, 2, true);
    assert_ok(tn_optim_step(optimizer));
    return norm;
}

START_TEST(every_optimizer)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };
    static const double bounds[] = { 1e-4, 1e-11, 0x1p-5, 0x1p-8 };
    for (int k = 0; k < (_i < 4 ? 4 : 3); k++) { /* squares of these gradients are 0 in f16 */
        tn_dtype dtype = dtypes[k];
        double bound = bounds[k];
        tn_module *cpu = mlp(dtype);
        tn_module *gpu = copy_on_gpu(cpu);
        tn_optim *on_cpu = optimizer_of(_i, tn_parameters(cpu));
        tn_optim *on_gpu = optimizer_of(_i, tn_parameters(gpu));
        ck_assert(on_cpu && on_gpu);
        for (int step = 0; step < 5; step++) {
            tn_tensor *x = random_as(TN_SHAPE(9, 7), -1, 1, (uint64_t)step + 1, dtype);
            double e = clipped_step(cpu, on_cpu, x);
            double a = clipped_step(gpu, on_gpu, tn_to(x, tn_cuda(0)));
            ck_assert_msg(fabs(a - e) <= bound * e, "norm %.12g, not %.12g", a, e);
        }
        assert_same_state(gpu, cpu, bound, bound);
        /* to the CPU with its state, and on */
        assert_ok(tn_module_to(gpu, tn_cpu()));
        tn_tensor *x = random_as(TN_SHAPE(9, 7), -1, 1, 77, dtype);
        clipped_step(cpu, on_cpu, x);
        clipped_step(gpu, on_gpu, x);
        assert_ok(tn_module_to(gpu, tn_cuda(0)));
        assert_same_state(gpu, cpu, bound, bound);
        tn_optim_free(on_cpu);
        tn_optim_free(on_gpu);
        tn_module_drop(cpu);
        tn_module_drop(gpu);
    }
}
END_TEST

static void formula_f32(int64_t n, float *p, const float *g, float *const *state,
                        const tn_optim_numbers *o)
{
    (void)state;
    for (int64_t i = 0; i < n; i++) p[i] -= (float)o->lr * g[i];
}
static void formula_f64(int64_t n, double *p, const double *g, double *const *state,
                        const tn_optim_numbers *o)
{
    (void)state;
    for (int64_t i = 0; i < n; i++) p[i] -= o->lr * g[i];
}
static tn_status to_the_cpu(tn_optim_part *part, int n)
{
    (void)n;
    part->new_p = tn_sub(tn_to(part->p, tn_cpu()), tn_to(part->g, tn_cpu()));
    return TN_OK;
}

/* A user's formula is for the CPU, and an update's results stay on the parameter's device. */
START_TEST(types_on_the_wrong_device)
{
    static const tn_optim_type types[] = {
        { .name = "mine", .formula_f32 = formula_f32, .formula_f64 = formula_f64 },
        { .name = "mine", .update = to_the_cpu }
    };
    tn_module *cpu = mlp(TN_F32), *m = copy_on_gpu(cpu);
    tn_module_drop(cpu);
    tn_optim *opt = tn_optim_new(&types[_i], tn_parameters(m), (tn_optim_options){ .lr = 0.1 });
    assert_made(opt);
    tn_tensor *x = tn_to(random_as(TN_SHAPE(9, 7), -1, 1, 1, TN_F32), tn_cuda(0));
    assert_ok(tn_backward(tn_mean(tn_square(tn_forward(m, x)), NULL, 0, false)));
    const uint64_t was = tn_hash(tn_get_parameter(m, "0.weight"));
    assert_fails(tn_optim_step(opt), TN_E_DEVICE,
                 _i ? "on another device" : "has only a formula, which is for the CPU");
    ck_assert(tn_hash(tn_get_parameter(m, "0.weight")) == was);
    tn_optim_free(opt);
    tn_module_drop(m);
}
END_TEST

/* ---- moving, files, random numbers ----------------------------------------------------------- */

START_TEST(there_and_back)
{
    tn_module *m = cnn_new();
    assert_made(m);
    uint64_t before = state_hash(m);
    tn_tensor *weight = tn_get_parameter(m, "fc1.weight");
    assert_ok(tn_module_to(m, tn_cuda(0)));
    ck_assert(state_hash(m) == before && tn_device_of(weight).type == TN_CUDA);
    assert_ok(tn_module_to_dtype(m, TN_F64));
    assert_ok(tn_module_to_dtype(m, TN_F32));
    assert_ok(tn_module_to(m, tn_cpu()));
    ck_assert(state_hash(m) == before && tn_device_of(weight).type == TN_CPU);
    tn_module_drop(m);
}
END_TEST

START_TEST(files)
{
    tn_module *m = cnn_new();
    tn_module *other = cnn_new();
    ck_assert(m && other);
    assert_ok(tn_module_to(m, tn_cuda(0)));
    uint64_t bits = state_hash(m);
    ck_assert(state_hash(other) != bits);
    assert_ok(tn_save(m, in_folder("a.safetensors")));
    assert_ok(tn_load(other, in_folder("a.safetensors")));
    ck_assert(state_hash(other) == bits);
    tn_module *third = cnn_new();
    assert_ok(tn_module_to(third, tn_cuda(0)));
    assert_ok(tn_load(third, in_folder("a.safetensors")));
    ck_assert(state_hash(third) == bits);
    ck_assert_int_eq(tn_device_of(tn_get_parameter(third, "fc1.weight")).type, TN_CUDA);
    tn_module_drop(m);
    tn_module_drop(other);
    tn_module_drop(third);
}
END_TEST

static tn_module *with_dropout(void)
{
    tn_module *m =
        tn_sequential(tn_linear_new(7, 33, (tn_linear_options){ 0 }), tn_dropout_new(0.3),
                      tn_linear_new(33, 5, (tn_linear_options){ 0 }));
    assert_made(m);
    assert_ok(tn_module_to(m, tn_cuda(0)));
    return m;
}

static void steps(tn_module *m, tn_optim *optimizer, int from, int to)
{
    for (int i = from; i < to; i++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *x = random_as(TN_SHAPE(9, 7), -1, 1, (uint64_t)i + 1, TN_F32);
        clipped_step(m, optimizer, tn_to(x, tn_cuda(0)));
        tn_scope_end(scope);
    }
}

/* Six steps, and three steps, a checkpoint, another process' objects, three more: the same bits. */
START_TEST(resume)
{
    tn_manual_seed(8);
    tn_module *m = with_dropout();
    tn_optim *opt = tn_adamw(tn_parameters(m), (tn_adamw_options){ .lr = 0.01 });
    steps(m, opt, 0, 3);
    tn_checkpoint c = { .model = m, .optimizer = opt, .step = 3 };
    assert_ok(tn_checkpoint_save(&c, in_folder("c.safetensors")));
    steps(m, opt, 3, 6);
    uint64_t bits = state_hash(m);
    tn_optim_free(opt);
    tn_module_drop(m);
    tn_manual_seed(1);
    m = with_dropout();
    opt = tn_adamw(tn_parameters(m), (tn_adamw_options){ .lr = 0.5 });
    c = (tn_checkpoint){ .model = m, .optimizer = opt };
    assert_ok(tn_checkpoint_load(&c, in_folder("c.safetensors")));
    steps(m, opt, (int)c.step, 6);
    ck_assert(state_hash(m) == bits);
    tn_optim_free(opt);
    tn_module_drop(m);
}
END_TEST

START_TEST(masks_equal_the_cpus)
{
    for (int64_t n = 1; n < 3000; n = n * 3 + 1) {
        tn_tensor *x = random_as(TN_SHAPE(n), 1, 2, 5, _i ? TN_F64 : TN_F32);
        tn_manual_seed(31);
        tn_tensor *a = tn_mul(tn_dropout(x, 0.4, true), tn_dropout(x, 0.7, true));
        tn_manual_seed(31);
        x = tn_to(x, tn_cuda(0));
        tn_tensor *b = tn_mul(tn_dropout(x, 0.4, true), tn_dropout(x, 0.7, true));
        ck_assert(tn_hash(a) == tn_hash(b));
    }
    /* values drawn into memory on the device are the CPU's too */
    tn_tensor *a = tn_zeros(TN_SHAPE(100));
    tn_tensor *b = tn_to(a, tn_cuda(0));
    tn_manual_seed(31);
    assert_ok(tn_uniform_(a, -1, 1));
    tn_manual_seed(31);
    assert_ok(tn_uniform_(b, -1, 1));
    ck_assert(tn_hash(a) == tn_hash(b));
}
END_TEST

/* ---- a step ---------------------------------------------------------------------------------- */

static void plain_step(tn_module *m, tn_optim *optimizer, tn_tensor *x, tn_tensor *y)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *loss = tn_cross_entropy(tn_forward(m, x), y);
    assert_ok(tn_optim_zero_grad(optimizer));
    assert_ok(tn_backward(loss));
    assert_ok(tn_optim_step(optimizer));
    tn_scope_end(scope);
}

typedef struct run {
    tn_module *model;
    tn_optim *optimizer;
    tn_tensor *x, *y;
} run;

static run run_new(bool images)
{
    tn_manual_seed(4);
    run r;
    r.model = images ? cnn_new() : transformer_new();
    assert_made(r.model);
    if (images)
        synthetic_images(0, TN_F32, &r.x, &r.y);
    else
        random_text(2, &r.x, &r.y);
    assert_ok(tn_module_to(r.model, tn_cuda(0)));
    r.x = tn_to(r.x, tn_cuda(0));
    r.y = tn_to(r.y, tn_cuda(0));
    r.optimizer = tn_adamw(tn_parameters(r.model), (tn_adamw_options){ .lr = 1e-3 });
    assert_made(r.optimizer);
    return r;
}

static void run_free(run *r)
{
    tn_optim_free(r->optimizer);
    tn_module_drop(r->model);
}

START_TEST(a_step_waits_for_nothing)
{
    run r = run_new(_i);
    for (int i = 0; i < 2; i++) plain_step(r.model, r.optimizer, r.x, r.y);
    long long waits = host.waits();
    long long blocks = host.blocks();
    tn_cuda_memory_stats memory = tn_cuda_memory();
    for (int i = 0; i < 4; i++) plain_step(r.model, r.optimizer, r.x, r.y);
    ck_assert_int_eq(host.waits() - waits, 0);
    ck_assert_int_eq(host.blocks() - blocks, 0);
    ck_assert_int_eq(tn_cuda_memory().in_use - memory.in_use, 0);
    run_free(&r);
}
END_TEST

/* Each time one launch later: threads that ran first to last then run last to first. */
START_TEST(the_same_bits)
{
    uint64_t bits = 0;
    for (int round = 0; round < 4; round++) {
        run r = run_new(_i);
        for (int i = 0; i < round; i++)
            assert_made(tn_add_scalar(tn_to(tn_ones(TN_SHAPE(5)), tn_cuda(0)), 1));
        for (int i = 0; i < 2; i++) plain_step(r.model, r.optimizer, r.x, r.y);
        uint64_t now = state_hash(r.model);
        if (round == 0) bits = now;
        ck_assert_msg(now == bits, "round %d has other bits", round);
        run_free(&r);
    }
}
END_TEST

/* ---- the loop of the examples ---------------------------------------------------------------- */

enum { STEPS = 199 };

struct ex_run ex;
static int64_t points[STEPS + 1]; /* of the curve, before each step */
static double means;              /* of the losses between evaluations: their sum */
static bool fails;                /* the optimizer's step, at the end of the log */

static void next(tn_tensor **in)
{
    in[0] = in[1] = NULL;
}

/* The loss of step n is 1 / n. */
static tn_tensor *learn(int n, tn_tensor *const *in, void *user)
{
    (void)user, (void)n, (void)in;
    points[ex.step] = ex.curve[0].n;
    if (fails && ex.step == 33) ex_check(tn_optim_step(NULL));
    return tn_to(tn_scalar(1.0 / (double)(ex.step + 1)), tn_cuda(0));
}

static double evaluate(double mean)
{
    means += mean;
    return ex.step;
}

/* A run with a constant rate of 0.5, which stops after some steps of many. */
static void train(const char *log, int steps, int total, int every)
{
    ex = (struct ex_run){ EX_DEFAULTS,         .quiet = true,  .log = log,     .where = tn_cuda(0),
                          .total = total,      .batch = 1,     .per_step = 1,  .every = every,
                          .stop_after = steps, .next = next,   .learn = learn, .evaluate = evaluate,
                          .value = "value",    .unit = "steps" };
    ex.place = in_folder("stopped");
    ex.state.model = tn_linear_new(1, 1, (tn_linear_options){ 0 });
    ex.state.optimizer = tn_sgd(tn_parameters(ex.state.model), (tn_sgd_options){ .lr = 0.5 });
    ex.state.scheduler = tn_step_lr(ex.state.optimizer, 1000000, 0.5);
    ck_assert(ex.state.scheduler != NULL);
    assert_ok(tn_cuda_synchronize());
    ex_train();
}

static void assert_log(const char *path, int steps, int every)
{
    char line[128], wanted[128];
    FILE *file = fopen(path, "r");
    ck_assert(file && fgets(line, sizeof line, file));
    ck_assert_str_eq(line, "step,loss,lr,value\n");
    for (int step = 1; step <= steps; step++) {
        int n = snprintf(wanted, sizeof wanted, "%d,%.6f,0.5,", step, (double)(1.0f / (float)step));
        if (every && step % every == 0 && step < steps)
            n += snprintf(wanted + n, sizeof wanted - (size_t)n, "%d.000000", step);
        snprintf(wanted + n, sizeof wanted - (size_t)n, "\n");
        ck_assert_msg(fgets(line, sizeof line, file) != NULL, "the log ends before step %d", step);
        ck_assert_str_eq(line, wanted);
    }
    ck_assert(!fgets(line, sizeof line, file));
    fclose(file);
}

/* A curve of less than 200 steps has a point for each loss that was read. */
START_TEST(losses_are_read_a_step_later)
{
    train(in_folder("log.csv"), STEPS - 1, STEPS, 0);
    for (int step = 1; step < STEPS - 1; step++) ck_assert_int_eq(points[step], step - 1);
    ck_assert_int_eq(ex.curve[0].n, STEPS - 1);
    assert_log(ex.log, STEPS - 1, 0);
    ex_free();
}
END_TEST

/* The means of the losses between evaluations; what these return stands in the log. */
START_TEST(evaluations)
{
    double sum = 0;
    means = 0;
    train(in_folder("log.csv"), STEPS, 100 * STEPS, 10);
    for (int step = 1; step <= STEPS / 10 * 10; step++) sum += (double)(1.0f / (float)step) / 10;
    ck_assert(means - sum < 1e-12 && sum - means < 1e-12);
    ck_assert_int_eq(ex.curve[1].n, STEPS / 10);
    assert_log(ex.log, STEPS, 10);
    ex_free();
}
END_TEST

/* A curve of about 200 points, each the mean of its steps. */
START_TEST(curve)
{
    train(NULL, STEPS, 400, 0);
    ck_assert_int_eq(ex.curve[0].n, STEPS / 2);
    for (int i = 0; i < ex.curve[0].n; i++) {
        double first = (double)(1.0f / (float)(2 * i + 1)),
               second = (double)(1.0f / (float)(2 * i + 2));
        ck_assert(ex.curve[0].x[i] == (double)(2 * i + 2));
        ck_assert(ex.curve[0].y[i] == (first + second) / 2);
    }
    ex_free();
}
END_TEST

/* The program ends in the middle of a step: the log has the losses of the steps before. */
START_TEST(an_error_keeps_the_log)
{
    const char *path = in_folder("log.csv");
    if (!shim_for(__func__)) return; /* a real device does not survive a fork */
    pid_t child = fork();
    if (child == 0) {
        fails = true;
        train(path, STEPS, 100, 0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %x", (unsigned)status);
    assert_log(path, 33, 0);
}
END_TEST

/* ---- where a step's time goes ---------------------------------------------------------------- */

static tn_status one_step(void *user)
{
    tn_module *m = user;
    tn_tensor *x = tn_full_as(TN_SHAPE(256, 256), 1, TN_F32, tn_cuda(0)); /* 256 KiB */
    tn_tensor *y = tn_forward(m, x);
    tn_status status = tn_backward(tn_sum_all(tn_square(y)));
    return status == TN_OK ? tn_module_zero_grad(m) : status;
}

START_TEST(profiled)
{
    char text[8000] = "";
    tn_module *m = tn_linear_new(256, 256, (tn_linear_options){ .no_bias = true });
    assert_ok(tn_module_to(m, tn_cuda(0)));
    FILE *file = tmpfile();
    assert_ok(tn_profile(one_step, m, (tn_profile_options){ .steps = 1, .file = file }));
    rewind(file);
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, file), 0);
    fclose(file);
    tn_module_drop(m);
    double peak = 0, made = 0;
    const char *memory = strstr(text, "memory at the peak of a step: ");
    ck_assert_ptr_nonnull(memory);
    ck_assert_int_eq(sscanf(memory, "memory at the peak of a step: %lf MiB, %lf", &peak, &made), 2);
    ck_assert_msg(made >= 0.75 && peak >= made + 0.25, "%s", text); /* beside it the weight */
    ck_assert_ptr_nonnull(strstr(memory, " 0.25 MiB by linear in Linear\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nlinear, backward "));
}
END_TEST

/* ---- metrics --------------------------------------------------------------------------------- */

enum { ROWS = 37, CLASSES = 5 };

/* What a kind of metric counts, on the CPU: the same in each batch but for the seed. */
static void metric_batch(tn_metric_kind kind, uint64_t seed, tn_tensor **x, tn_tensor **y)
{
    *x = random_as(TN_SHAPE(ROWS, CLASSES), -1, 1, seed, TN_F32);
    *y = tn_to_dtype(random_as(TN_SHAPE(ROWS), 0, CLASSES - 0.01, seed + 9, TN_F32), TN_I64);
    if (kind == TN_AUC) *x = tn_select(*x, 1, 0), *y = tn_gt_scalar(*y, 2);
    if (kind == TN_RUNNING_MEAN) *y = tn_abs(*x);
    if (kind > TN_AUC && kind < TN_PERPLEXITY) *y = tn_square(*x);
}

static tn_module *metric_new(int kind)
{
    static const tn_metric_options o[TN_RUNNING_MEAN + 1] = { [TN_ACCURACY] = { .top_k = 2 },
                                                              [TN_CONFUSION] = { .classes =
                                                                                     CLASSES },
                                                              [TN_AUC] = { .rows = 99 } };
    return owned(tn_metric_new((tn_metric_kind)kind, o[kind]));
}

/* A first batch is counted on the CPU, a second one on the GPU, without waiting. */
START_TEST(metrics_beside_the_cpu)
{
    tn_module *cpu = metric_new(_i), *gpu = metric_new(_i);
    tn_tensor *x, *y;
    const bool counted = shim();
    for (int part = 0; part < 2; part++) {
        metric_batch((tn_metric_kind)_i, (uint64_t)part + 1, &x, &y);
        assert_ok(tn_metric_update(cpu, x, y));
        if (part == 1) {
            assert_fails(tn_metric_update(gpu, x, tn_to(y, tn_cuda(0))), TN_E_DEVICE,
                         "want one device");
            x = tn_to(x, tn_cuda(0)), y = tn_to(y, tn_cuda(0));
        }
        const long long waits = counted ? host.waits() : 0;
        assert_ok(tn_metric_update(gpu, x, y));
        if (counted) ck_assert_int_eq(host.waits() - waits, 0);
        assert_ok(tn_module_to(gpu, tn_cuda(0)));
    }
    assert_close(tn_to(tn_get_buffer(gpu, "sums"), tn_cpu()), tn_get_buffer(cpu, "sums"), 1e-6, 0);
    const double there = tn_metric_value(gpu), here = tn_metric_value(cpu);
    ck_assert_msg(fabs(there - here) <= 1e-6, "%.17g, not %.17g: %s", there, here, tn_error());
    if (_i == TN_CONFUSION)
        assert_close(tn_to(tn_confusion_scores(gpu), tn_cpu()), tn_confusion_scores(cpu), 0, 0);
    assert_ok(tn_metric_reset(gpu));
    ck_assert(isnan(tn_metric_value(gpu)));
    ck_assert_int_eq(tn_error_status(), TN_OK);
}
END_TEST

START_TEST(a_bad_target_is_found_where_the_host_waits)
{
    tn_module *m = metric_new(TN_CONFUSION);
    assert_ok(tn_module_to(m, tn_cuda(0)));
    tn_tensor *x = tn_to(tn_ones(TN_SHAPE(2, CLASSES)), tn_cuda(0));
    tn_tensor *y = tn_to(tn_from_ints((int64_t[]){ 0, CLASSES }, TN_SHAPE(2)), tn_cuda(0));
    assert_ok(tn_metric_update(m, x, y));
    ck_assert(isnan(tn_metric_value(m)));
    assert_error(TN_E_INDEX, "index 5 at position 1: want 0..4");
    assert_ok(tn_metric_reset(m));
    assert_ok(tn_metric_update(m, x, tn_zeros_like(y)));
    ck_assert(tn_metric_value(m) == 1);
}
END_TEST

static tn_tensor *count_in_step(int n, tn_tensor *const *in, void *user)
{
    (void)n;
    return tn_metric_update(user, in[0], in[1]) == TN_OK ? tn_sum_all(in[0]) : NULL;
}

START_TEST(metrics_in_a_captured_step)
{
    tn_module *cpu = metric_new(_i), *gpu = metric_new(_i);
    assert_ok(tn_module_to(gpu, tn_cuda(0)));
    tn_capture *c = owned(tn_capture_new(count_in_step, gpu, tn_cuda(0)));
    for (uint64_t run = 0; run < (_i == TN_AUC ? 2 : 4); run++) {
        tn_tensor *in[2];
        metric_batch((tn_metric_kind)_i, run, &in[0], &in[1]);
        assert_ok(tn_metric_update(cpu, in[0], in[1]));
        assert_made(tn_capture_run(c, 2, in));
    }
    assert_close(tn_to(tn_get_buffer(gpu, "sums"), tn_cpu()), tn_get_buffer(cpu, "sums"), 1e-6, 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_train");
    TCase *t = test_case(suite, "beside the CPU");
    tcase_add_loop_test(t, transformer, 0, 2);
    tcase_add_loop_test(t, cnn, 0, 2);
    tcase_add_loop_test(t, every_optimizer, 0, OPTIMIZERS);
    tcase_add_loop_test(t, types_on_the_wrong_device, 0, 2);
    t = file_case(suite, "moving");
    add_tests(t, there_and_back, files, resume);
    tcase_add_loop_test(t, masks_equal_the_cpus, 0, 2);
    t = test_case(suite, "steps");
    if (shim_for("a_step_waits_for_nothing"))
        tcase_add_loop_test(t, a_step_waits_for_nothing, 0, 2);
    tcase_add_loop_test(t, the_same_bits, 0, 2);
    t = test_case(suite, "metrics");
    tcase_add_loop_test(t, metrics_beside_the_cpu, 0, TN_RUNNING_MEAN + 1);
    tcase_add_loop_test(t, metrics_in_a_captured_step, 0, TN_RUNNING_MEAN + 1);
    tcase_add_test(t, a_bad_target_is_found_where_the_host_waits);
    t = test_case(suite, "profile");
    tcase_add_test(t, profiled);
    t = file_case(suite, "losses");
    add_tests(t, losses_are_read_a_step_later, evaluations, curve, an_error_keeps_the_log);
    return suite;
}
