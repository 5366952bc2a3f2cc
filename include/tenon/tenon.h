/**
 * tenon/tenon.h - everything: include this one.
 *
 * Names say whom a function is about. Most are about a tensor, a model or what is a function in
 * PyTorch too, and are called as there: tn_add, tn_backward, tn_train, tn_clip_grad_norm. All
 * others begin with their subject, which is their first argument or what they make: tn_list_get,
 * tn_optim_step. Kinds of modules and schedules are subjects too: tn_batchnorm_momentum,
 * tn_plateau_step.
 *   _new     makes one; modules too, as tn_linear is the op and tn_linear_new the layer. PyTorch's
 *            names have optimizers (tn_sgd), schedules (tn_cosine_lr) and tn_sequential;
 *            tn_text_load reads a file
 *   _free    ends what has one owner. _keep and _drop count references, of modules and of tensors:
 *            tn_module_drop, tn_drop. What tn_checkpoint_lock locks, tn_checkpoint_unlock ends
 *   _set_    tn_optim_set_lr sets what tn_optim_lr reads; modes, and what a tensor has, are set by
 *            tn_set_X and read by tn_X, or by tn_get_X where tn_X is a type
 *   _with    the same with options; _of from an array; _scalar with a number; _ alone in place
 *
 * Threads may call anything at once on objects that they do not share. What they may share:
 *   Tensors     that all of them only read, in ops, tn_item or tn_data. References are counted from
 *               any thread. A result goes with the scopes of the thread that made it, so another
 *               that needs it for longer takes its own (tn_keep). Recording an op writes to leaves
 *               that require a gradient, as tn_backward does: a model trains on one thread
 *   Modules     in eval mode, called under TN_NO_GRAD in each thread, if their forward writes
 *               nothing and nobody changes them meanwhile (tn_train, moving, loading, hooks)
 *   Generators  which have a lock; the order of their draws is then the threads'
 *   Nothing     else: lists, optimizers, loaders, captures are for one thread at a time
 * Of its own each thread has scopes, the error message, and the modes: grad mode, autocast, anomaly
 * mode, default dtype; it starts as a program does. The allocator, the number of threads, limits of
 * files, TF32 and the default generator are the whole process's.
 */
#ifndef TENON_TENON_H
#define TENON_TENON_H

#include <tenon/error.h>
#include <tenon/tensor.h>
#include <tenon/ops.h>
#include <tenon/autograd.h>
#include <tenon/nn.h>
#include <tenon/optim.h>
#include <tenon/capture.h>
#include <tenon/io.h>

#endif
