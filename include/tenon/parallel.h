/**
 * tenon/parallel.h - data parallel training: one program, started several times by mpirun, each
 * process with its own part of every batch.
 *
 *     TN_CHECK(tn_parallel_begin());
 *     ... the same model, optimizer and data in every process ...
 *     tn_data_parallel *shared = tn_data_parallel_new(model, (tn_data_parallel_options){ 0 });
 *     ... the loop of any other program: each rank computes the loss of its part of the batch,
 *     tn_backward averages the gradients, tn_optim_step is the same on all ranks ...
 *     tn_data_parallel_free(shared);
 *
 * A process is a rank: 0 to size - 1. A program that was not started by mpirun is rank 0 of 1:
 * every call here then returns at once, and no MPI library is opened. The ranks' models are all on
 * CPUs, or each on a GPU of its own: then NCCL carries the gradients.
 *
 * All ranks call the same functions of this header in the same order, and tn_backward on the model
 * equally often: each of them waits for the others. One thread makes these calls.
 *
 * Failures  a rank that ends with a status other than 0, or is killed, ends the others. One that
 *           ends with status 0 while others wait for it, and one that is stuck for longer than
 *           TN_PARALLEL_TIMEOUT seconds (1,800; 0: no limit), are an error of the calls that wait,
 *           TN_E_BACKEND, with the rank. Every later call fails too: end the program
 */
#ifndef TENON_PARALLEL_H
#define TENON_PARALLEL_H

#include <tenon/optim.h>

TN_BEGIN_C_

/* ---- the run --------------------------------------------------------------------------------- */

/**
 * Joins the run: before everything else, in every rank. A second call, or one alone, does nothing.
 *
 * Module   libtenon-mpi.so, built where Open MPI is found; TN_MPI_MODULE names another file
 * End      exit with status 0, or the return of main, waits for this rank's sums on a GPU and for
 *          the other ranks; with another status it ends them
 * Errors   TN_E_BACKEND: several processes were started together, and MPI could not be opened, or
 *          knows of another number of them than the environment (an mpirun of another MPI)
 */
TN_API TN_MUST_USE tn_status tn_parallel_begin(void);
TN_API int tn_parallel_rank(void); /* of this process; 0 alone */
TN_API int tn_parallel_size(void); /* how many ranks; 1 alone */
/** The number of this process among those on its host, from 0: for its GPU, as in
 *  tn_cuda(tn_parallel_local_rank() % tn_cuda_device_count()). 0 alone. */
TN_API int tn_parallel_local_rank(void);
/** Returns when all ranks have called it. */
TN_API TN_MUST_USE tn_status tn_parallel_barrier(void);
/** t becomes rank `from`'s. In place. Errors, on all ranks: TN_E_SHAPE: the shape or dtype of t is
 *  not the same on all; no memory on one of them. */
TN_API TN_MUST_USE tn_status tn_parallel_broadcast(tn_tensor *t, int from);
/** t becomes the sum over all ranks: f32, f64 or i64, the same shape on all, on the CPU of all or
 *  on a GPU of all. In place; not recorded. On a GPU, sums of at most 2,048 numbers, after the
 *  first, fail only on a rank without memory, and the others wait for it: end the program. */
TN_API TN_MUST_USE tn_status tn_parallel_sum_(tn_tensor *t);
/** The same divided by the number of ranks: f32 or f64. */
TN_API TN_MUST_USE tn_status tn_parallel_mean_(tn_tensor *t);
/**
 * One status for all ranks, after something that each of them did, or one alone: TN_OK, or the
 * first failure, with its rank. Without it, ranks would wait for one that has given up.
 *
 *     tn_status saved = tn_parallel_rank() == 0 ? tn_checkpoint_save(&c, path) : TN_OK;
 *     TN_CHECK(tn_parallel_agree(saved));
 */
TN_API TN_MUST_USE tn_status tn_parallel_agree(tn_status status);
/** Compares what should be the same on all ranks, as a text or a flag, by a number of 64 bits: no
 *  rank waits for the data of another. what names it in the message. Alone: TN_OK. Errors, on all
 *  ranks: TN_E_STATE with the first rank whose data are not rank 0's. */
TN_API TN_MUST_USE tn_status tn_parallel_same(const char *what, const void *data, size_t nbytes);
/**
 * The default generator gets rank 0's state, except that dropout has masks of its own on each rank.
 * Numbers drawn from then on are the same on all ranks, as long as they draw equally many.
 *
 * Call it   after tn_manual_seed, and after a checkpoint was loaded: rank 0's state, in the
 *           checkpoint, is enough to go on with the same masks on every rank
 */
TN_API TN_MUST_USE tn_status tn_parallel_share_random(void);

/* ---- a model that all ranks train ------------------------------------------------------------ */

/** What becomes of a model's persistent buffers at the end of each averaging backward. */
typedef enum tn_buffer_rule {
    TN_BUFFERS_FIRST, /* rank 0's, as in PyTorch */
    /* the mean of floating ones; rank 0's of integers, bools, counters and directions */
    TN_BUFFERS_MEAN,
    TN_BUFFERS_OWN /* nothing: each rank keeps its own */
} tn_buffer_rule;

/* zero fields: buckets of 25 MiB, TN_BUFFERS_FIRST, messages in f32 */
typedef struct tn_data_parallel_options {
    int64_t bucket_bytes;   /* gradients that are sent together, as they are sent */
    tn_buffer_rule buffers; /* of all persistent buffers; tn_data_parallel_set_buffers: of some */
    tn_dtype messages;      /* TN_BF16: gradients are rounded, and half the bytes are sent */
} tn_data_parallel_options;

/**
 * A model whose gradients tn_backward averages over the ranks.
 *
 * Start     parameters and persistent buffers become rank 0's; constants (module.h) must be so
 * Backward  gradients leave in buckets, the last registered parameters first, while backward still
 *           runs; f32 sums (f64 of f64 parameters), divided by the number of ranks. When
 *           tn_backward returns, every rank has the same gradients, bit for bit. What was
 *           accumulated before (tn_data_parallel_set_sync) is part of the average
 * Messages  TN_BF16: the gradients g of the ranks are rounded to bf16, summed in f32, and the sum
 *           is rounded: an error of about 2^-8 (mean of |g| + |mean of g|) at most. Between GPUs
 *           NCCL rounds each addition. Gradients of f64 parameters are sent as f64
 * GPUs      libtenon-nccl.so, built where NCCL is found; TN_NCCL_MODULE names another file. Small
 *           things, buffers among them, go over the CPU and MPI. Not inside a captured step
 * Unused    a parameter without a gradient on one rank counts as 0 there; without one on all, its
 *           gradient stays TN_NONE: see tn_data_parallel_unused
 * Buffers   persistent ones as the rule says; others, and constants, are each rank's own. Extra
 *           state is not sent
 * Not sent  what tn_gradients returns. A loss that reads none of the parameters is no averaging
 *           backward: no rank may have one where others do not
 * Errors    NULL, on all ranks: a model that differs from rank 0's, with the rank and the first
 *           parameter or buffer whose name, shape, dtype or requires_grad differs; options other
 *           than rank 0's; no parameters; a parameter that another handle averages (not alone);
 *           some tensors on a GPU and some not; TN_E_BACKEND: NCCL cannot be opened, or two ranks
 *           are on one GPU; bucket_bytes negative; messages in another dtype; no memory.
 *           tn_backward, on all ranks: frozen parameters, buffers, their rules, or dtypes among
 *           f32, bf16 and f16 were changed since on some ranks only (the same change on all is
 *           allowed); parameters were added, replaced, reshaped, moved, or cast to or from f64:
 *           make it again, on all.
 *           Any other failure of tn_backward on one rank (no memory, a failing hook) fails it on
 *           all, with that rank's number; no gradient has changed, and all can go on. But not in a
 *           pass through a BatchNorm over all ranks, whose sums the others wait for, nor where a
 *           rank begins no pass (tn_backward(NULL), a loss without history, a lost GPU): end the
 *           program
 * Owner     yours: tn_data_parallel_free, in the thread that made it. It keeps the model
 * Source    Li et al., PyTorch Distributed (2020), sec. 3.2: buckets, overlap, unused parameters
 */
typedef struct tn_data_parallel tn_data_parallel;
/** Makes one; all ranks together. */
TN_API tn_data_parallel *tn_data_parallel_new(tn_module *model, tn_data_parallel_options o);
TN_API void tn_data_parallel_free(tn_data_parallel *p); /* all ranks; NULL is ignored */
/** Whether the next passes average; returns the setting before (false for NULL). Off, gradients
 *  accumulate on each rank, nothing is sent, and buffers are each rank's own: for all but the last
 *  part of a batch that is computed in parts. */
TN_API bool tn_data_parallel_set_sync(tn_data_parallel *p, bool on);
TN_API bool tn_data_parallel_sync(const tn_data_parallel *p); /* the setting now */
/** Another rule for the buffers whose full names begin with prefix: "bn1." for those of bn1. Where
 *  several fit, the last one set counts. The same on all ranks. */
TN_API TN_MUST_USE tn_status tn_data_parallel_set_buffers(tn_data_parallel *p, const char *prefix,
                                                          tn_buffer_rule rule);
/** The rule for a buffer's full name; TN_BUFFERS_FIRST for NULL. */
TN_API tn_buffer_rule tn_data_parallel_buffers(const tn_data_parallel *p, const char *name);
/** The parameters that require grad and had no gradient on a rank after the last averaging
 *  backward; rank -1: on none. Any rank may ask about any. Alone: those that have none now. Owner:
 *  current scope. Errors: TN_E_INDEX: no such rank; TN_E_STATE: of several ranks, before the first
 *  averaging backward, or after one that failed. */
TN_API tn_list *tn_data_parallel_unused(const tn_data_parallel *p, int rank);
/**
 * Sets whether every BatchNorm1d, 2d and 3d of the tree m computes its batch statistics, in
 * training, over the x of all ranks, forward and backward: together they then compute what one
 * process computes from the whole batch. running_var moves towards the variance unbiased over all
 * ranks. on false: each rank's own x again. Names, parameters and buffers stay; alone it changes
 * nothing.
 *
 * Ranks    all of them call such a layer equally often, in the same order, and run backward through
 *          it; their x may have different numbers of rows. Forward makes three sums, of the number
 *          of values and twice of C numbers; backward two of C numbers. On GPUs, where the ranks'
 *          graphs differ, they may wait for each other without end
 * Kept     by clones; not by tn_freeze_batch_norm and tn_thaw_batch_norm, nor in files
 * Errors   no such layer in m. In forward: one value per channel in all ranks together
 * Source   Ioffe and Szegedy (2015), algorithm 1, over the union of the ranks' batches
 */
TN_API TN_MUST_USE tn_status tn_batch_norm_set_sync(tn_module *m, bool on);
TN_OLD_NAME_(tn_batchnorm_set_sync, tn_batch_norm_set_sync);
/** Whether one BatchNorm layer does; false and a message for any other module. */
TN_API bool tn_batch_norm_sync(const tn_module *m);
TN_OLD_NAME_(tn_batchnorm_sync, tn_batch_norm_sync);
/** Whether all ranks hold the same bits: parameters, and persistent buffers that are not each
 *  rank's own. Errors: TN_E_STATE, on all ranks, with the first tensor and rank that differ from
 *  rank 0. */
TN_API TN_MUST_USE tn_status tn_data_parallel_check(const tn_data_parallel *p);

/* ---- an optimizer's state, a part of it on each rank ----------------------------------------- */

/**
 * Deals the state of opt over the ranks, as ZeRO's stage 1 does: each parameter has its state on
 * one rank, which alone updates it and sends the others the new values, in tn_optim_step. So a rank
 * holds about 1/n of the state, and the parameters are, bit for bit, those of an optimizer whose
 * state is not dealt. All parameters of opt are the model's, and on the CPU.
 *
 * Dealt     whole parameters, of opt and of later groups: the largest first, each to the rank that
 *           holds fewest bytes. State that opt has is kept where it belongs. A checkpoint that is
 *           loaded later is read for the rank's own part only
 * Step      tn_optim_step, also within tn_scaler_step, is a call of all ranks together. Errors are
 *           the same on all, and then nothing has changed: those of one rank; other parameters,
 *           rates, steps, or parameters with gradients than rank 0's; tn_data_parallel_set_sync is
 *           off; p was freed
 * Save      tn_optim_state_dict and all that saves want tn_data_parallel_gather before, once a step
 *           was taken
 * Alone     does nothing
 * Errors    on all ranks; nothing has changed: TN_E_STATE: a parameter that p does not average;
 *           dealt already; an optimizer that differs from rank 0's. TN_E_DEVICE: parameters on a
 *           GPU. Out of memory
 * Source    Rajbhandari et al., ZeRO (2020), sec. 5.1
 */
TN_API TN_MUST_USE tn_status tn_data_parallel_shard(tn_data_parallel *p, tn_optim *opt);
/**
 * Brings the state of all optimizers that were dealt over p's ranks to rank 0, which alone can
 * then save them, in the files of any other run. All ranks call it:
 *
 *     TN_CHECK(tn_data_parallel_gather(p));
 *     tn_status saved = tn_parallel_rank() == 0 ? tn_checkpoint_save(&c, path) : TN_OK;
 *     tn_data_parallel_release(p);
 *     TN_CHECK(tn_parallel_agree(saved));
 *
 * Lasts     until tn_data_parallel_release, or the optimizer's next step or load: rank 0 needs the
 *           memory for the whole state as long
 * Errors    on all ranks, and nothing was gathered: out of memory on rank 0; steps that differ
 */
TN_API TN_MUST_USE tn_status tn_data_parallel_gather(tn_data_parallel *p);
/** Frees what tn_data_parallel_gather brought; each rank keeps its own part. */
TN_API void tn_data_parallel_release(tn_data_parallel *p);

TN_END_C_
#endif
