/**
 * tenon/tenon.h - everything: include this one.
 *
 * A name says what a function is about. Functions about tensors or models, and those that PyTorch
 * has as functions too, have PyTorch's names: tn_add, tn_backward, tn_train, tn_clip_grad_norm. All
 * others begin with their subject, which is their first argument or what they make: tn_list_get,
 * tn_optim_step. Kinds of modules and schedules are subjects too: tn_plateau_step.
 *   _new     makes one, modules too: tn_layer_norm is the op, tn_layer_norm_new the layer.
 *            Optimizers (tn_sgd), schedules (tn_cosine_lr) and tn_sequential have PyTorch's names
 *            instead; tn_text_load, tn_idx_load and tn_tokenizer_load read files
 *   _begin   makes what watches or lasts until its _end: tn_trace_begin, tn_scope_begin
 *   _free    frees what has one owner. _keep and _drop count references, of modules and tensors:
 *            tn_module_drop, tn_drop. tn_checkpoint_unlock ends what tn_checkpoint_lock began
 *   _set_    tn_optim_set_lr sets what tn_optim_lr reads. Modes and properties of tensors are set
 *            by tn_set_X and read by tn_X, or by tn_get_X where tn_X is a type
 *   _with    the same with options; _from: from an array; _of: of a tensor, where tn_X is a type;
 *            _scalar: with a number; a final _: in place
 *
 * Threads may call anything at once on objects that they do not share. They may share:
 *   Tensors     that all of them only read, in ops, tn_item or tn_data. Any thread may keep or drop
 *               references. A result ends with the scope of the thread that made it; a thread that
 *               needs it for longer takes a reference of its own (tn_keep). Recording an op, like
 *               tn_backward, writes to leaves that require grad: train a model on one thread
 *   Modules     in eval mode, called under TN_NO_GRAD in each thread, if their forward writes
 *               nothing and nobody changes them meanwhile (tn_train, moving, loading, hooks)
 *   Generators  and tokenizers, which have locks; the order of draws depends on how threads run
 *   Nothing     else: lists, optimizers, loaders, captures are for one thread at a time
 * Each thread has its own scopes, error message and modes (grad mode, autocast, anomaly mode,
 * default dtype), and starts with the same defaults as a program. The allocator, the number of
 * threads, limits of files, TF32 and the default generator belong to the whole process.
 */
#ifndef TENON_TENON_H
#define TENON_TENON_H

/* the core */
#include <tenon/error.h>
#include <tenon/tensor.h>
#include <tenon/ops.h>
#include <tenon/indexing.h>
#include <tenon/losses.h>
#include <tenon/spatial.h>
#include <tenon/autograd.h>
#include <tenon/custom.h>
#include <tenon/recompute.h>
#include <tenon/derivatives.h>
#include <tenon/module.h>
#include <tenon/layers.h>
#include <tenon/micro_batches.h>
#include <tenon/init.h>
#include <tenon/optim_type.h>
#include <tenon/optim.h>
#include <tenon/io.h>
#include <tenon/optimizers.h> /* from here on the ring around it */
#include <tenon/data.h>
#include <tenon/images.h>
#include <tenon/metrics.h>
#include <tenon/tensorboard.h>
#include <tenon/diagnose.h>
#include <tenon/graph.h>
#include <tenon/capture.h>
#include <tenon/parallel.h>
#include <tenon/trace.h> /* a library of its own: -ltenon-trace */
#include <tenon/lm.h>    /* another, with the three below: -ltenon-lm */
#include <tenon/tokenizer.h>
#include <tenon/generate.h>
#include <tenon/lora.h>
#endif
