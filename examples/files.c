/*
 * files.c - the files of a run: which ones are refused before it begins, where its checkpoints are,
 * which options they record; see training.h
 */
#include "training.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

/* ---- which files are refused ----------------------------------------------------------------- */

/* The end of an error's message, after the function and the path. */
static const char *reason(void)
{
    const char *colon = strrchr(tn_error(), ':');
    return colon ? colon + 2 : tn_error();
}

static bool is_folder(const char *path)
{
    struct stat st;
    return path[strlen(path) - 1] == '/' || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

static tn_file_lock *locks[16];
static int n_locks;

static void give_locks(void)
{
    while (n_locks > 0) tn_checkpoint_unlock(locks[--n_locks]);
}

/* A file can be locked if the library could replace it, and only once. */
static tn_status take_lock(const char *path)
{
    tn_status status = tn_checkpoint_lock(path, &locks[n_locks]);
    n_locks += status == TN_OK;
    return status;
}

/* Refuses a file that could not be written when the work is done. */
static void check_file(const ex_option *o, const char *path)
{
    struct stat st, other;
    char longest[PATH_MAX + 16];
    bool there = stat(path, &st) == 0, regular = there && S_ISREG(st.st_mode);
    bool replaced = o->traits & EX_REPLACED;
    snprintf(longest, sizeof longest, there ? "%s" : "%s.tmp-1234567-0", path);
    if (is_folder(path) || (replaced && (there ? !regular : lstat(path, &other) == 0)))
        ex_refuse("--%s %s: want a regular file, or a name that is free", o->name, path);
    if (!replaced && there && access(path, W_OK) != 0)
        ex_refuse("--%s %s: %s", o->name, path, strerror(errno));
    if (there && !regular) return; /* a terminal takes several */
    for (ex_option *p = NULL; (p = ex_next(p, EX_READ));)
        if (*(char **)p->value && !stat(*(char **)p->value, &other) && regular &&
            st.st_ino == other.st_ino && st.st_dev == other.st_dev &&
            (o->value != &ex.checkpoint || p->value != &ex.resume))
            ex_refuse("--%s %s: it is the file of --%s too", o->name, path, p->name);
    tn_status status = take_lock(longest);
    if (status == TN_E_STATE) ex_refuse("--%s %s: named twice, or %s", o->name, path, tn_error());
    if (status == TN_E_IO && (replaced || !there))
        ex_refuse("--%s %s: %s", o->name, path, reason());
}

static void check_files(void)
{
    const char *end = ex.save ? strrchr(ex.save, '.') : NULL;
    atexit(give_locks);
    for (ex_option *o = NULL; (o = ex_next(o, EX_WRITTEN | EX_REPLACED));)
        if (*(char **)o->value && !(ex.in_folder && o->value == &ex.checkpoint))
            check_file(o, *(char **)o->value);
    give_locks();
    if (end && (!strcmp(end, ".pt") || !strcmp(end, ".pth")))
        ex_refuse("--save %s: a PyTorch file has no place for settings: want .safetensors",
                  ex.save);
}

/* ---- the place of checkpoints ---------------------------------------------------------------- */

/* --resume DIR/ becomes the newest whole file there; prints which newer ones are damaged. */
static void find_newest(void)
{
    static char newest[PATH_MAX];
    tn_metadata bad = { 0 };
    ex_check(tn_checkpoint_latest_report(ex.resume, ex_program, newest, sizeof newest, &bad));
    for (int i = 0; i < bad.n; i++)
        fprintf(stderr, "%s: passed by, for it is damaged: %s: %s\n", ex_program, bad.key[i],
                bad.value[i]);
    ex.resume = newest;
}

/* Where a resumed run saves without --checkpoint: the place it was resumed from; the folder, for a
 * numbered file. */
static const char *place_of_resume(const char *resume)
{
    static char folder[PATH_MAX];
    const char *slash = strrchr(resume, '/'), *file = slash ? slash + 1 : resume;
    size_t n = strlen(ex_program);
    int end = 0;
    if (!strncmp(file, ex_program, n)) sscanf(file + n, "-%*[0-9].safetensors%n", &end);
    if (end == 0 || file[n + (size_t)end]) return resume;
    snprintf(folder, sizeof folder, "%.*s", (int)(file - resume), resume);
    return slash ? folder : "./";
}

/* Locks the place of checkpoints: two runs would replace each other's. Without a place, or if a
 * resumed run may only read there, it is the first free one of PROGRAM.ckpt, PROGRAM-2.ckpt ...: no
 * file is replaced that nobody named. A file system without locks is no obstacle. */
static void take_place(void)
{
    static char path[256];
    struct stat st;
    tn_status status = ex.place ? take_lock(ex.place) : TN_E_IO;
    if (status == TN_E_STATE || (status == TN_E_IO && ex.checkpoint))
        ex_refuse("--checkpoint %s: %s", ex.place, tn_error());
    if (status == TN_E_IO) status = TN_E_STATE;
    for (int i = 1; status == TN_E_STATE; i++) {
        snprintf(path, sizeof path, i < 2 ? "%s.ckpt" : "%s-%d.ckpt", ex_program, i);
        ex.place = path;
        status = take_lock(path);
        if (status == TN_E_STATE || lstat(path, &st) != 0) continue;
        give_locks();
        status = TN_E_STATE;
    }
    ex.lost = status == TN_E_IO;
    if (ex.lost && ex.stop_after > 0)
        ex_refuse("--stop-after %d: no checkpoint can be written here: %s", ex.stop_after,
                  reason());
    tn_error_clear();
}

/* A new run may not begin in a folder with another run's checkpoints: the newest would be taken for
 * its own. */
static void open_folder(void)
{
    char newest[PATH_MAX];
    if (mkdir(ex.place, 0777) != 0 && errno != EEXIST)
        ex_refuse("--checkpoint %s: %s", ex.place, strerror(errno));
    if (!ex.resume && !tn_checkpoint_latest(ex.place, ex_program, newest, sizeof newest))
        ex_refuse("--checkpoint %s: %s is there already: want --resume %s, or another folder",
                  ex.place, newest, ex.place);
    tn_error_clear(); /* a folder without checkpoints is right */
}

void ex_prepare(void)
{
    const char *resume = ex.resume;
    ex_check(tn_parallel_begin());
    bool first = tn_parallel_rank() == 0;
    if (ex.load && resume) ex_refuse("--resume and --load: want one of them");
    if (ex.load && tn_checkpoint_peek(ex.load, NULL, NULL) == TN_OK)
        ex_refuse("--load %s: it is a checkpoint of a run, not a file of weights: want --resume %s",
                  ex.load, ex.load);
    if (ex.html && ex.capture)
        ex_refuse("--html and --capture: no page of a step recorded as a graph: want one of them");
    if (ex.capture && tn_parallel_size() > 1)
        ex_refuse("--capture: %d processes exchange gradients in each step: want it left out",
                  tn_parallel_size());
    if (resume && is_folder(resume)) find_newest();
    ex.place = ex.checkpoint ? ex.checkpoint : resume ? place_of_resume(resume) : NULL;
    ex.in_folder = ex.place && is_folder(ex.place);
    if (ex_given("keep") && !ex.in_folder)
        ex_refuse("--keep %d: checkpoints go to one file: want --checkpoint DIR/", ex.keep);
    if (!ex.checkpoint && !ex_given("keep")) ex.keep = 0; /* nobody asked to remove any */
    if (!first) {
        ex.quiet = true;
        ex.print_hash = ex.memory = false;
        ex.save = ex.checkpoint = ex.log = ex.plot = ex.html = NULL;
    }
    ex.where = ex_device(ex.device);
    check_files();
    if (first && ex.in_folder) open_folder();
    if (first) take_place();
    if (ex.threads > 0) ex_check(tn_set_num_threads(ex.threads));
}

/* ---- notes: values of options in files ------------------------------------------------------- */

/* Notes of all options with any of these traits; valid until the next call. */
static tn_metadata notes_of(unsigned traits)
{
    enum { MOST = 48 };
    static char text[MOST][PATH_MAX];
    static const char *key[MOST] = { "model" }, *value[MOST] = { text[0] };
    int n = 1;
    snprintf(text[0], sizeof text[0], "tenon %s", ex_program);
    for (ex_option *o = NULL; (o = ex_next(o, traits)) && n < MOST; n++) {
        snprintf(text[n], sizeof text[n], "%s", ex_value(o));
        key[n] = o->name;
        value[n] = text[n];
    }
    return (tn_metadata){ .n = n, .key = key, .value = value };
}

void ex_adopt(void)
{
    const char *file = ex.resume ? ex.resume : ex.load;
    int64_t step = 0;
    tn_metadata notes = { 0 };
    if (ex.resume)
        ex_check(tn_checkpoint_peek(file, &notes, &step));
    else if (ex.load)
        ex_check_ptr(ex.weights = tn_load_tensors(file, &notes));
    ex.step = (int)step;
    for (ex_option *o = NULL; file && (o = ex_next(o, ex.resume ? EX_MODEL | EX_RUN : EX_MODEL));) {
        char own[PATH_MAX];
        const char *noted = tn_metadata_get(&notes, o->name);
        bool given = o->traits & EX_GIVEN;
        if (given && o->traits & EX_FREE) continue;
        snprintf(own, sizeof own, "%s", ex_value(o));
        if (!noted || !ex_read(o, noted))
            ex_refuse("%s does not say its %s: it was not saved by %s", file, o->name, ex_program);
        if (given && strcmp(own, ex_value(o)) != 0)
            ex_refuse("--%s %s conflicts with %s, which was made with --%s %s", o->name, own, file,
                      o->name, noted);
    }
}

/* ---- weights and checkpoints ----------------------------------------------------------------- */

tn_checkpoint ex_checkpoint(void)
{
    static tn_checkpoint_part scaling = { .name = "scaler" };
    tn_checkpoint c = { .model = ex.model, .optimizer = ex.optimizer, .scheduler = ex.schedule };
    scaling.scaler = ex.scaler;
    c.loader = ex.loader;
    c.n_parts = ex.scaler != NULL;
    if (ex.scaler) c.parts = &scaling;
    c.step = ex.step;
    return c;
}

bool ex_written(tn_status status, const char *what)
{
    if (status != TN_OK && status != TN_E_IO && status != TN_E_NOMEM) ex_check(status);
    if (status != TN_OK && tn_parallel_rank() == 0) ex_complain("%s: %s", what, tn_error());
    tn_error_clear();
    return status == TN_OK;
}

bool ex_save_checkpoint(void)
{
    char what[64];
    bool first = tn_parallel_rank() == 0;
    tn_checkpoint c = ex_checkpoint();
    tn_status status = ex.shard ? tn_data_parallel_gather(ex.shared) : TN_OK;
    c.metadata = notes_of(EX_MODEL | EX_RUN);
    if (first && status == TN_OK)
        status = ex.in_folder ? tn_checkpoint_save_numbered(&c, ex.place, ex_program, ex.keep)
                              : tn_checkpoint_save(&c, ex.place);
    if (ex.shard) tn_data_parallel_release(ex.shared);
    snprintf(what, sizeof what, "checkpoint after step %d", ex.step);
    return ex_written(status, what) && first;
}

/* If that fails, a trained run is saved in a checkpoint. */
void ex_save_weights(void)
{
    tn_metadata notes = notes_of(EX_MODEL);
    tn_save_options o = { .metadata = &notes };
    bool saved = !ex.save || ex_written(tn_save_with(ex.model, ex.save, o), "--save");
    if (saved) ex_say("saved %s", ex.save);
    if (!ex_any(!saved) || !ex.trained) return;
    if ((ex_any(ex.checkpoint) || ex_save_checkpoint()) && tn_parallel_rank() == 0)
        fprintf(stderr, "the weights are in a checkpoint: --resume %s --save FILE\n", ex.place);
}
