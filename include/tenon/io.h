/**
 * tenon/io.h - files: weights (safetensors), checkpoints.
 */
#ifndef TENON_IO_H
#define TENON_IO_H

#include <tenon/optim.h>

TN_BEGIN_C_

/* ---- weights: files that PyTorch and the Hugging Face tools read directly -------------------- */

/** Strings beside the tensors: keys and values, in order. */
typedef struct tn_metadata {
    int n;                     /* how many pairs; if 0, key and value may be NULL */
    const char **key, **value; /* n of each */
} tn_metadata;

/**
 * Saves tn_state_dict(m), with format = pt in the metadata, for PyTorch's tools. A tensor with
 * several names is stored once, under the first of them in alphabetical order, as the reference's
 * save_model does; tenon.ties in the metadata lists the others. The metadata also holds the state
 * versions of modules, where they are not 1.
 *
 * A path that ends in .pt or .pth is written for torch.load instead, as
 * torch.save(model.state_dict()) does: ties share a storage under all their names, versions stand
 * in _metadata, and there is no place for strings. One that ends in .npz is written as numpy.savez
 * does: ties in full under all their names, no strings, no versions, no bf16.
 *
 * Errors   TN_E_IO with path and reason: the old file, if any, is then unchanged and no temporary
 *          stays
 * The file appears whole or not at all: temporary in the same folder, fsync, rename, fsync of the
 * folder. A symbolic link is followed; only regular files are replaced. Owner, group, permissions
 * are those of the old file, as far as the system allows: a group that cannot be kept gets no more
 * rights than all others. Set-id bits, access lists and other hard links are not kept.
 * Source   the safetensors format; for .pt the ZIP format and Python's pickle; Pillai et al.
 *          (2014) on replacing files
 */
TN_API TN_MUST_USE tn_status tn_save(tn_module *m, const char *path);
/**
 * Loads into m: strict, all or nothing (tn_load_state_dict). The file's first bytes decide what it
 * is: safetensors; what torch.load(path, weights_only=True) reads, of any PyTorch; a TorchScript
 * archive; an .npz of NumPy's; the JSON index of several such files, which lie beside it.
 * Above 64 MiB values are read straight into tensors on the CPU. Before the first is written, all
 * that is wanted was read once, checksums included, and compared. If the file is cut or breaks
 * after that, TN_E_IO says that m is half loaded, with NaN where it failed; old values are put back
 * where load post-hooks, extra state or a GPU have them kept.
 *
 * Of a checkpoint the option key of tn_load_with picks a part, by the keys to it, joined by dots:
 * "model", "ema.shadow", "model" in a checkpoint of tenon's, "constants" in a TorchScript archive;
 * "*": all of it, each tensor by its path. Without a key the only dict of tensors in a PyTorch file
 * is taken, which the report says; if there are several, the error lists them.
 */
TN_API TN_MUST_USE tn_status tn_load(tn_module *m, const char *path);

/** zero fields: as tn_save */
typedef struct tn_save_options {
    bool every_key; /* tied tensors under every name, for a plain load_state_dict */
    /* more strings; NULL: none. A .pt file has no place for them. Keys are UTF-8, each used once;
     * format and keys that begin with tenon. are the library's own */
    const tn_metadata *metadata;
} tn_save_options;
/** tn_save with options: every name of a tied tensor, strings of your own. */
TN_API TN_MUST_USE tn_status tn_save_with(tn_module *m, const char *path, tn_save_options o);
/** tn_load with options; report may be NULL. */
TN_API TN_MUST_USE tn_status tn_load_with(tn_module *m, const char *path, tn_load_options o,
                                          tn_load_report *report);

/** What readers accept, and writers write, in the whole process; zero fields: 16 MiB, 65,536. At
 *  most 100,000,000 of each; reading needs up to 25 times a header's size, 150 times a pickle's. */
typedef struct tn_file_limits {
    int64_t header_bytes; /* of a safetensors header; of the pickle in a .pt file; of an index */
    int64_t tensors;      /* ties included; and of modules with a state version */
    /* size of a compressed file's contents. 0: 256 MiB, or 64 times the file if that is more */
    int64_t inflated_bytes;
} tn_file_limits;
/** Sets all three. Errors: a negative number, or one above its maximum. */
TN_API TN_MUST_USE tn_status tn_set_file_limits(tn_file_limits limits);
/** The limits now, with defaults filled in (inflated_bytes 0: depends on the file). */
TN_API tn_file_limits tn_get_file_limits(void);
/** Any list of tensors, with metadata (NULL: none). Ties are written under every name. */
TN_API TN_MUST_USE tn_status tn_save_tensors(const tn_list *list, const tn_metadata *metadata,
                                             const char *path);
/**
 * All tensors of a file of tn_load's kinds, on the CPU, in the order of its header; then its ties,
 * each with the same tensor. Ties are those of tenon.ties or, in a file that tenon wrote before it,
 * the pairs whose key is no tensor's name and whose value is one. The list records state versions
 * and roles; metadata (may be NULL) gets all other pairs. Values may be NaN or infinite. From a
 * PyTorch file: in the order of the dict, as views of its storages; metadata gets the numbers,
 * strings, short lists in it, by path, as Python prints them ("epoch": "41"); nothing is executed.
 *
 * Errors   TN_E_IO; TN_E_FORMAT: path, and what is wrong: nothing is trusted unchecked
 * Owner    list and strings: current scope. The tensors are copies: the file may be replaced at
 *          once
 * Limits   tn_set_file_limits; names of 1 to 1,024 bytes, 8 axes
 */
TN_API tn_list *tn_load_tensors(const char *path, tn_metadata *metadata);
/** The same with options of files, from key on; report (may be NULL): how many were loaded, left
 *  out, which part was taken. PyTorch: torch.load(path, weights_only=True). */
TN_API tn_list *tn_load_tensors_with(const char *path, tn_load_options o, tn_metadata *metadata,
                                     tn_load_report *report);
/** The value for a key; NULL, without a message, if there is none. A linear search over the
 *  pairs. */
TN_API const char *tn_metadata_get(const tn_metadata *metadata, const char *key);

/**
 * Loads the state of PyTorch's optimizer of the same kind (sgd, adam, adamw, rmsprop, adagrad,
 * adamax, nadam, radam), so that training begun there goes on here: rates, decays, numbers, steps
 * and moments, by the order of the parameters, all or nothing.
 *
 * path     what torch.save(optimizer.state_dict(), path) wrote, or a checkpoint with that in it
 * key      of the state in a checkpoint, as for tn_load; NULL: the only one there
 * Errors   TN_E_FORMAT; TN_E_NAME, TN_E_SHAPE: groups, shapes or states other than this one's
 */
TN_API TN_MUST_USE tn_status tn_optim_load_pytorch(tn_optim *opt, const char *path,
                                                   const char *key);
/** Writes what PyTorch's optimizer.load_state_dict(torch.load(path)) takes. Errors: another kind of
 *  optimizer; a switch that PyTorch has not (eps_hat); those of tn_save. */
TN_API TN_MUST_USE tn_status tn_optim_save_pytorch(tn_optim *opt, const char *path);

/* ---- checkpoints: everything that training needs to go on bit for bit ------------------------ */

/** Something else that belongs to a run, under a name of its own: an averaged model, a second
 *  optimizer, a gradient scaler. Exactly one of the four is given. */
typedef struct tn_checkpoint_part {
    const char *name;        /* 1 to 64 bytes, no dot; not model, optim, sched, loader, rng, step */
    tn_module *module;       /* one of these, the others NULL */
    tn_optim *optimizer;     /* or this */
    tn_scheduler *scheduler; /* or this */
    tn_scaler *scaler;       /* or this */
} tn_checkpoint_part;

/** What belongs to a run. NULL fields are left out; on loading, a part that is NULL here and
 *  present in the file is ignored, a part that is given here and missing there is an error. The
 *  library's default generator is always included. So are the gradients that no step has used yet,
 *  as between the parts of a batch: loading brings them back, and every other gradient of these
 *  parameters is then TN_NONE. In TN_MICRO_BATCHES, so is what the parts made of buffers. */
typedef struct tn_checkpoint {
    tn_module *model;                /* its parameters and persistent buffers */
    tn_optim *optimizer;             /* its state and numbers; from both: waiting gradients */
    tn_scheduler *scheduler;         /* its step and rates */
    struct tn_loader *loader;        /* its epoch, its position, its seed */
    tn_generator *const *generators; /* the program's own, in a fixed order: n_generators of them */
    int n_generators;                /* 0: none; generators is then NULL */
    const tn_checkpoint_part *parts; /* n_parts of them */
    int n_parts;                     /* 0: none; parts is then NULL */
    /* save parameters that hold NaN or infinity: refused otherwise, by name */
    bool allow_nonfinite;
    int64_t step;         /* saved, and set on load */
    tn_metadata metadata; /* the caller's own settings: saved; on load: filled, current scope */
} tn_checkpoint;

/** Saves to one file, replaced as tn_save replaces: after any failure the old one is unchanged.
 *  Metadata keys that begin with "tenon." are the library's own. Errors, among those of tn_save:
 *  waiting gradients that are one rank's alone (tn_data_parallel_set_sync off). */
TN_API TN_MUST_USE tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path);
/** Loads all or nothing, as tn_load: neither c nor the generator changes if any part does not fit
 *  or any byte of the file differs from what was written (a checksum is compared). */
TN_API TN_MUST_USE tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path);
/** Only the metadata and the step, to build the model from: current scope. Either may be NULL. */
TN_API TN_MUST_USE tn_status tn_checkpoint_peek(const char *path, tn_metadata *metadata,
                                                int64_t *step);

/**
 * Saves to FOLDER/NAME-STEP.safetensors, where STEP is c->step with at least 8 digits; then removes
 * the oldest such files until `keep` are left, this one included (0: all stay).
 *
 * Removes only files with exactly this form and a lower step, and temporaries of killed writers;
 * files of a higher step stay. A folder that does not exist is made, with those around it.
 *
 * Errors   as tn_checkpoint_save, and then nothing is removed; name empty, with a /, or above 128
 *          bytes; step or keep negative; TN_E_IO: an older file could not be removed (the new one
 *          is in place)
 */
TN_API TN_MUST_USE tn_status tn_checkpoint_save_numbered(const tn_checkpoint *c, const char *folder,
                                                         const char *name, int keep);
/**
 * The path of the whole file of that form with the highest step: header, ranges, size and checksum
 * are verified, and a file that fails is skipped for the next older one.
 *
 * path     receives it, at most size bytes with the end; unchanged on failure
 * Errors   TN_E_NAME: no such file yet, or no such folder; TN_E_FORMAT: there are some, but none
 *          is whole: the message says what is wrong with the newest; TN_E_IO: the folder cannot be
 *          read, or this process has no file descriptor left
 */
TN_API TN_MUST_USE tn_status tn_checkpoint_latest(const char *folder, const char *name, char *path,
                                                  size_t size);
/** The same, and which newer files were skipped: path and reason of each, the newest first (NULL:
 *  not wanted; current scope). Report them before resuming: the work that those files held is
 *  lost. */
TN_API TN_MUST_USE tn_status tn_checkpoint_latest_report(const char *folder, const char *name,
                                                         char *path, size_t size,
                                                         tn_metadata *skipped);

/** A lock that lets one run alone write to a checkpoint file or folder. */
typedef struct tn_file_lock tn_file_lock;
/**
 * Locks a checkpoint file, which need not exist yet, or a folder of numbered ones, until
 * tn_checkpoint_unlock or the end of the process. Saving doesn't check it: take the lock before the
 * first save.
 *
 * The lock is a small file, PATH.lock or FOLDER/.tenon.lock, with symbolic links resolved. The lock
 * file of a killed run locks nobody out. Two hard links to one file count as two files.
 *
 * lock     receives it; unchanged on failure
 * Errors   TN_E_STATE: another run holds it, or this one already: the message names the process;
 *          TN_E_IO: the file cannot be made (folder missing or not writable); TN_E_UNSUPPORTED: a
 *          file system without locks
 * Range    runs on one machine. On NFS the lock holds between machines where the server keeps locks
 *          (Linux passes them on); mounted with nolock or local_lock it holds on one machine
 * fork     a child shares its parent's lock, which lasts until the parent unlocks or both have
 *          ended
 * Owner    yours, tn_checkpoint_unlock. NULL there does nothing
 */
TN_API TN_MUST_USE tn_status tn_checkpoint_lock(const char *path, tn_file_lock **lock);
/** Gives the lock back. */
TN_API void tn_checkpoint_unlock(tn_file_lock *lock);

TN_END_C_

#include <tenon/data.h>  /* for one release: the loader, texts and IDX files stood here */
#include <tenon/trace.h> /* and so did tn_plot_svg */

#endif
