/*
 * bench_finetune - a training step of a language model (lm.h): forward, backward, AdamW.
 *
 * --context N       tokens of a row, 1,024 by default; --batch N rows, 1 by default
 * --lora N          adapters of rank N beside every q_proj and v_proj; the rest is frozen, and in
 *                   bf16 with --precision bf16; else weights are f32, products as --precision says
 * --weights FOLDER  where the model is written for the twin
 *
 * Twin: torch_finetune.py
 */
#include "lm.h"

#include <tenon/lora.h>

static int64_t rows, context, vocab;

static tn_tensor *loss(tn_module *model, tn_tensor *x, tn_tensor *y)
{
    tn_tensor *hidden = tn_forward(tn_module_child(model, 0), x); /* [B, T, d] */
    tn_tensor *head = tn_get_parameter(tn_module_child(model, 1), "weight");
    return tn_linear_cross_entropy(hidden, head, TN_NONE, y);
}

static void batch(int64_t step, tn_tensor **x, tn_tensor **y)
{
    bench_texts(step, rows, context, vocab, x, y);
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(
        argc, argv, (bench_flags){ .config = "smollm2", .context = 1024, .steps = 3, .warmup = 2 });
    char workload[64];
    snprintf(workload, sizeof workload, "%s_%s", f.lora ? "lora" : "lm", f.config);
    rows = f.batch ? f.batch : 1, context = f.context;
    tn_scope program = tn_scope_begin();
    tn_module *model = bench_lm(&f, f.lora ? f.dtype : TN_F32, &vocab);
    if (f.lora)
        TN_CHECK(tn_lora(model, "*.q_proj,*.v_proj",
                         (tn_lora_options){ .rank = f.lora, .alpha = 2 * (double)f.lora }));
    f.weights = NULL; /* written already, as a folder */
    tn_optim *opt = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 2e-4 });
    TN_CHECK_PTR(opt);
    bench_task task = { .name = bench_name(&f, workload),
                        .unit = "tokens",
                        .per_step = rows * context,
                        .model = model,
                        .optimizer = opt,
                        .dtype = f.dtype,
                        .loss = loss,
                        .batch = batch };
    bench_run(&task, &f);
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_scope_end(program);
    return 0;
}
