/**
 * tenon/optimizers.h - more optimizers, each a tn_optim_type (optim_type.h) as a user could write
 * it. Their numbers are named below, with what they are where not set; maximize is 0:
 *
 *     tn_optim *opt = tn_lion(tn_parameters(model), (tn_optim_options){
 *         .weight_decay = 0.5, .set = { { "beta2", 0.98 } } });
 *
 * What holds for all is in optim.h: errors, state, ownership. All take tn_optim_options.
 */
#ifndef TENON_OPTIMIZERS_H
#define TENON_OPTIMIZERS_H

#include <tenon/optim.h>

TN_BEGIN_C_

/** Lion: p -= lr sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g; decay decoupled.
 *  Half of Adam's state, and a rate of a third to a tenth of Adam's. lr 1e-4, beta1 0.9, beta2
 *  0.99, maximize. State: exp_avg. Chen et al., Symbolic discovery ... (2023), algorithm 2 */
TN_API tn_optim *tn_lion(const tn_list *parameters, tn_optim_options o);

/** Adamax: Adam with u = max(beta2 u, |g| + eps) in place of the root. lr 2e-3, beta1 0.9, beta2
 *  0.999, eps 1e-8, maximize. State: exp_avg, exp_inf. Kingma and Ba (2015), algorithm 2 */
TN_API tn_optim *tn_adamax(const tn_list *parameters, tn_optim_options o);

/** NAdam: Adam with Nesterov's momentum, mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2). Where a
 *  schedule moves beta1, the product of the mu is that of the present one. lr 2e-3, beta1 0.9,
 *  beta2 0.999, eps 1e-8, momentum_decay 4e-3, decoupled_weight_decay 0, maximize. State: exp_avg,
 *  exp_avg_sq. Dozat (2016), algorithm 2 */
TN_API tn_optim *tn_nadam(const tn_list *parameters, tn_optim_options o);

/** RAdam: Adam, rectified while v is an average of few squares. lr 1e-3, and otherwise as NAdam,
 *  without momentum_decay. Liu et al. (2020), algorithm 2 */
TN_API tn_optim *tn_radam(const tn_list *parameters, tn_optim_options o);

/** Adafactor: rate max(eps2, rms p) min(lr, 1 / sqrt(t)); of two axes and more, the squares are
 *  kept as means of rows and of columns; an update whose rms is above d is scaled to it; decay
 *  decoupled. lr 1e-2, beta2_decay 0.8 (PyTorch: -0.8), eps1 0 (the dtype's epsilon), eps2 1e-3, d
 *  1 (at least 1), maximize. State: row_var, col_var, or variance. Not in captured steps. Shazeer
 *  and Stern (2018), algorithms 4 and 5 */
TN_API tn_optim *tn_adafactor(const tn_list *parameters, tn_optim_options o);

/** How Muon's rate goes with a matrix of r rows and c columns: sqrt(max(1, r / c)); 0.2
 *  sqrt(max(r, c)), for rates of AdamW; sqrt(r / c). */
typedef enum tn_muon_rate { TN_MUON_ORIGINAL, TN_MUON_MATCH_ADAMW, TN_MUON_UNCLAMPED } tn_muon_rate;
/** Muon: p moves along momentum's orthogonal factor, which is computed in bf16; decay decoupled
 *  (PyTorch: 0.1). For weights of hidden layers: the rest goes to another optimizer. lr 1e-3,
 *  momentum 0.95, nesterov 1, rate TN_MUON_ORIGINAL, eps 1e-7, ns_steps 5 (of Newton and Schulz,
 *  below 100) with ns_a 3.4445, ns_b -4.775, ns_c 2.0315. State: momentum_buffer. Not in captured
 *  steps. Errors: a parameter that has not two axes. Jordan et al., Muon (2024) */
TN_API tn_optim *tn_muon(const tn_list *parameters, tn_optim_options o);

/* ---- with a closure -------------------------------------------------------------------------- */

/** Clears gradients, computes the loss and its gradients; returns the loss, NULL if that fails. */
typedef tn_tensor *(*tn_closure)(void *user);
/** Calls closure, then tn_optim_step. Returns the loss of that call, without history, in the
 *  current scope. Recording is on in the closure. Errors: NULL: those of both; opt or closure NULL.
 *  PyTorch: opt.step(closure) */
TN_API tn_tensor *tn_optim_step_with(tn_optim *opt, tn_closure closure, void *user);

/** L-BFGS: minimizes the loss of a whole batch, along an inverse Hessian made of the last
 *  history_size changes of the gradient. A step of tn_optim_step_with is up to max_iter iterations,
 *  in which closure is called up to max_eval times (by a line search once more), at other
 *  parameters; buffers and random numbers move in each, anomaly mode and traces see the first. On
 *  several ranks it must return their mean loss. lr 1, max_iter 20, max_eval 0 (5/4 of max_iter),
 *  tolerance_grad 1e-7, tolerance_change 1e-9, history_size 100 (to 1000), line_search 0 (1: strong
 *  Wolfe), maximize. State, 2 history_size + 2 times the parameters, in a step three times that:
 *  vectors, scalars. Errors: decay; another group; a step captured, sharded or scaled, or of other
 *  parameters than the one before. Nocedal and Wright (2006), 7.4, 3.5, 3.6. PyTorch: LBFGS */
TN_API tn_optim *tn_lbfgs(const tn_list *parameters, tn_optim_options o);

TN_END_C_

#endif
