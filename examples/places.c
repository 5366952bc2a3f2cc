/*
 * places.c - the files of a run: which are refused before it begins, where its checkpoints are read
 * and written; see training.h
 */
#include "training.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

/* ---- whether a file can be written ----------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat st;
    size_t n = strlen(path);
    return (n > 0 && path[n - 1] == '/') || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

/* Opens it briefly, and removes the file if this creates it. */
static const char *try_open(const char *path, int flags, bool remove)
{
    int fd = open(path, flags | O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd < 0) return strerror(errno);
    close(fd);
    if (remove) unlink(path);
    return NULL;
}

/* Why a file cannot be replaced as the library does it, by a temporary in the same folder. NULL: it
 * can, as far as is known before there is anything to write. */
static const char *why_not_replaced(const char *path)
{
    char real[PATH_MAX];
    struct stat st;
    if (realpath(path, real)) {
        if (stat(real, &st) != 0) return strerror(errno);
        if (S_ISDIR(st.st_mode)) return "it is a folder";
        if (!S_ISREG(st.st_mode)) return "it is not a regular file";
    } else {
        if (errno != ENOENT || strlen(path) >= sizeof real) return strerror(errno);
        if (lstat(path, &st) == 0) return "it is a symbolic link to nothing";
        strcpy(real, path);
    }
    char temp[PATH_MAX + 48];
    snprintf(temp, sizeof temp, "%s.tmp-%ld-0", real, (long)getpid());
    return try_open(temp, O_EXCL, true);
}

/* Why a file cannot be written from its beginning or at its end. */
static const char *why_not_written(const char *path)
{
    struct stat st;
    bool there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode)) return "it is a folder";
    if (there && !S_ISREG(st.st_mode)) /* opening and closing would end a pipe */
        return access(path, W_OK) ? strerror(errno) : NULL;
    return try_open(path, O_APPEND, !there);
}

/* ---- what does not go together --------------------------------------------------------------- */

typedef struct target {
    const char *option, *path;
    const char *(*why_not)(const char *path); /* NULL: it is only read */
} target;

/* Where path leads: for a file that does not exist, its folder and its name. */
static bool resolve(const char *path, char real[PATH_MAX + NAME_MAX + 2])
{
    const char *slash = strrchr(path, '/');
    if (realpath(path, real)) return true;
    char folder[PATH_MAX];
    if (strlen(path) >= sizeof folder) return false;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 2,
             slash ? path : "./");
    if (!realpath(folder, real)) return false;
    size_t n = strlen(real);
    snprintf(real + n, NAME_MAX + 2, "/%s", slash ? slash + 1 : path);
    return true;
}

static bool same_file(const char *a, const char *b)
{
    struct stat st;
    if (stat(a, &st) == 0 && !S_ISREG(st.st_mode)) return false; /* a terminal takes both */
    char x[PATH_MAX + NAME_MAX + 2], y[PATH_MAX + NAME_MAX + 2];
    return resolve(a, x) && resolve(b, y) && !strcmp(x, y);
}

static void check_targets(const target *t, int n)
{
    for (int i = 0; i < n; i++) {
        const char *why = t[i].path && t[i].why_not ? t[i].why_not(t[i].path) : NULL;
        if (why) ex_refuse("--%s %s: %s", t[i].option, t[i].path, why);
        for (int k = 0; k < i; k++) {
            bool written = t[i].why_not || t[k].why_not;
            if (!t[i].path || !t[k].path || !written || !same_file(t[i].path, t[k].path)) continue;
            ex_refuse("--%s %s: it is the file of --%s too: want another one", t[i].option,
                      t[i].path, t[k].option);
        }
    }
}

/* Checks now everything that would otherwise fail when the work is done. */
static void check_files(const ex_settings *s, const ex_options *options)
{
    const char *end = s->save ? strrchr(s->save, '.') : NULL;
    if (end && (!strcmp(end, ".pt") || !strcmp(end, ".pth"))) {
        ex_refuse("--save %s: a PyTorch file has no place for the settings beside the weights: "
                  "want a .safetensors file",
                  s->save);
    }
    const char *file = s->in_folder ? NULL : s->place; /* which may replace the one resumed from */
    bool itself = !s->resume || (file && same_file(file, s->resume_file));
    const target t[] = {
        { "text", ex_text(options, "text"), NULL },
        { "resume", itself ? NULL : s->resume_file, NULL },
        { "checkpoint", file, why_not_replaced },
        { "save", s->save, why_not_replaced },
        { "log", s->log, why_not_written },
        { "plot", s->plot, why_not_replaced },
        { "html", s->html, why_not_written },
    };
    check_targets(t, sizeof t / sizeof *t);
}

/* ---- where checkpoints come from ------------------------------------------------------------- */

/* The newest whole one; also prints, even if quiet, which newer ones are damaged. */
static void find_newest(ex_settings *s)
{
    tn_scope scope = tn_scope_begin();
    tn_metadata skipped = { 0 };
    ex_check(tn_checkpoint_latest_report(s->resume, ex_program(), s->resume_file,
                                         sizeof s->resume_file, &skipped));
    for (int i = 0; i < skipped.n; i++) {
        fprintf(stderr, "%s: passed by, for it is damaged: %s: %s\n", ex_program(), skipped.key[i],
                skipped.value[i]);
    }
    tn_scope_end(scope);
}

static void find_resume_file(ex_settings *s)
{
    if (strlen(s->resume) >= sizeof s->resume_file)
        ex_refuse("--resume: a path of %zu bytes: %s", strlen(s->resume), strerror(ENAMETOOLONG));
    if (is_folder(s->resume))
        find_newest(s);
    else
        snprintf(s->resume_file, sizeof s->resume_file, "%s", s->resume);
}

static void check_load(const ex_settings *s)
{
    tn_scope scope = tn_scope_begin();
    if (s->resume) ex_refuse("--resume and --load: want one of them");
    tn_metadata metadata;
    int64_t step;
    if (tn_checkpoint_peek(s->load, &metadata, &step) == TN_OK) {
        ex_refuse("--load %s: it is a checkpoint of a run, not a file of weights: want --resume %s",
                  s->load, s->load);
    }
    tn_error_clear(); /* other errors are reported when it is read */
    tn_scope_end(scope);
}

/* ---- where they go to ------------------------------------------------------------------------ */

/* Where a resumed run saves without --checkpoint: to the place it was resumed from; for a numbered
 * file that is its folder. */
static const char *place_of_resume(ex_settings *s)
{
    const char *slash = strrchr(s->resume, '/'), *file = slash ? slash + 1 : s->resume;
    size_t n = strlen(ex_program());
    int end = 0;
    if (!strncmp(file, ex_program(), n)) sscanf(file + n, "-%*[0-9].safetensors%n", &end);
    if (end == 0 || file[n + (size_t)end]) return s->resume;
    snprintf(s->default_place, sizeof s->default_place, "%.*s", (int)(file - s->resume), s->resume);
    return slash ? s->default_place : "./";
}

/* Why a checkpoint cannot be written to a place; NULL: it can. */
static const char *why_not_saved(const char *place)
{
    if (!is_folder(place)) return why_not_replaced(place);
    char first[PATH_MAX + 256];
    snprintf(first, sizeof first, "%s/%s-%08d.safetensors", place, ex_program(), 0);
    return why_not_replaced(first);
}

static tn_file_lock *lock;

static void give_lock(void)
{
    tn_checkpoint_unlock(lock);
    lock = NULL;
}

/* Two runs with one place would replace each other's checkpoints. False: another run has it. On a
 * file system without locks the user must take care. */
static bool take_lock(const char *place)
{
    if (tn_checkpoint_lock(place, &lock) == TN_OK)
        atexit(give_lock);
    else if (tn_error_status() == TN_E_STATE)
        return false;
    tn_error_clear();
    return true;
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* PROGRAM.ckpt, or PROGRAM-2.ckpt ...: a run without a given place never replaces a file. */
static void default_place(char *path, size_t size, int i)
{
    snprintf(path, size, i < 2 ? "%s.ckpt" : "%s-%d.ckpt", ex_program(), i);
}

static void take_default_place(ex_settings *s)
{
    for (int i = 1; i < 10000; i++) {
        default_place(s->default_place, sizeof s->default_place, i);
        if (exists(s->default_place) || !take_lock(s->default_place)) continue;
        if (!exists(s->default_place)) break; /* checked under the lock */
        give_lock();
    }
    tn_error_clear(); /* about runs that hold earlier names */
    s->place = s->default_place;
    s->in_folder = false;
}

const char *ex_why_no_place(const ex_settings *s)
{
    char path[256];
    default_place(path, sizeof path, 10000);
    return s->place ? NULL : why_not_replaced(path);
}

/* A new run may not begin in a folder with another run's checkpoints. */
static void open_folder(const ex_settings *s)
{
    if (mkdir(s->place, 0777) != 0 && errno != EEXIST)
        ex_refuse("--checkpoint %s: %s", s->place, strerror(errno));
    if (why_not_saved(s->place))
        ex_refuse("--checkpoint %s: %s", s->place, why_not_saved(s->place));
    char newest[sizeof s->resume_file];
    if (!s->resume &&
        tn_checkpoint_latest(s->place, ex_program(), newest, sizeof newest) == TN_OK) {
        ex_refuse("--checkpoint %s: %s is there already: want --resume %s, or another folder",
                  s->place, newest, s->place);
    }
    tn_error_clear(); /* a folder without checkpoints is right */
}

/* Of several processes rank 0 alone prints and writes. */
static void join(ex_settings *s)
{
    ex_check(tn_parallel_begin());
    if (tn_parallel_rank() == 0) return;
    s->quiet = true;
    s->print_hash = s->memory = false;
    s->save = s->checkpoint = s->log = s->plot = NULL;
}

void ex_settle(ex_settings *s, const ex_options *options)
{
    join(s);
    if (s->load) check_load(s);
    if (s->resume) find_resume_file(s);
    bool writes = tn_parallel_rank() == 0;
    s->place = s->checkpoint ? s->checkpoint : s->resume && writes ? place_of_resume(s) : NULL;
    /* only read */
    if (!s->checkpoint && s->place && why_not_saved(s->place)) s->place = NULL;
    if (!s->checkpoint && !ex_given(options, "keep")) s->keep = 0; /* nobody asked to remove any */
    s->in_folder = s->place && is_folder(s->place);
    if (ex_given(options, "keep") && !s->in_folder && writes) {
        ex_refuse("--keep %" PRId64 ": checkpoints go to the file %s%s: want --checkpoint %s/",
                  s->keep, s->place ? s->place : ex_program(), s->place ? "" : ".ckpt",
                  s->checkpoint ? s->checkpoint : "DIR");
    }
    if (s->stop_after > 0 && writes && ex_why_no_place(s)) {
        ex_refuse("--stop-after %" PRId64 ": no checkpoint can be written here: %s: want "
                  "--checkpoint PATH",
                  s->stop_after, ex_why_no_place(s));
    }
    s->where = ex_device(s->device);
    if (s->capture && tn_parallel_size() > 1)
        ex_refuse("--capture: %d processes exchange gradients in each step: want it left out",
                  tn_parallel_size());
    s->chosen = !strcmp(s->precision, "auto");
    if (s->chosen) s->precision = tn_bf16_is_fast(s->where) ? "bf16" : "f32";
    if (s->html && s->capture)
        ex_refuse(
            "--html and --capture: a step recorded as a graph cannot be told: want one of them");
    check_files(s, options);
    if (s->in_folder) open_folder(s);
    if (s->place && !take_lock(s->place)) ex_refuse("%s", tn_error());
    if (s->threads > 0) ex_check(tn_set_num_threads((int)s->threads));
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Brings the whole state of the optimizer to rank 0; false, on all, if it has no memory for it. */
static bool gather(const ex_settings *s, int64_t step)
{
    tn_status status = s->dealt ? tn_data_parallel_gather(s->dealt) : TN_OK;
    if (status != TN_E_NOMEM) {
        ex_check(status);
        return true;
    }
    if (tn_parallel_rank() == 0)
        ex_complain("checkpoint after step %" PRId64 ": %s", step, tn_error());
    tn_error_clear();
    return false;
}

static bool save(ex_settings *s, const tn_checkpoint *c)
{
    if (!s->place) take_default_place(s);
    tn_status status = s->in_folder
                           ? tn_checkpoint_save_numbered(c, s->place, ex_program(), (int)s->keep)
                           : tn_checkpoint_save(c, s->place);
    if (status != TN_E_IO && status != TN_E_NOMEM) {
        ex_check(status);
        return true;
    }
    ex_complain("checkpoint after step %" PRId64 ": %s", c->step, tn_error());
    tn_error_clear();
    return false;
}

bool ex_checkpoint(ex_settings *s, const tn_checkpoint *c)
{
    bool saved = gather(s, c->step) && tn_parallel_rank() == 0 && save(s, c);
    if (s->dealt) tn_data_parallel_release(s->dealt);
    return saved;
}

void ex_say_checkpoint(const ex_settings *s, int64_t step)
{
    if (s->quiet) return;
    ex_flush();
    fprintf(ex_signal() ? stderr : stdout, /* Ctrl-C also ends a reader of our output */
            "checkpoint after step %" PRId64 "; go on with --resume %s\n", step, s->place);
}

bool ex_saved(const ex_settings *s, tn_status status)
{
    if (status == TN_OK) {
        if (!s->quiet) printf("saved %s\n", s->save);
        ex_flush(); /* a reader waiting for the weights need not wait for the rest */
        return true;
    }
    ex_complain("--save %s: %s", s->save, tn_error());
    tn_error_clear();
    return false;
}

void ex_say_rescued(const ex_settings *s)
{
    if (tn_parallel_rank() > 0) return;
    fprintf(stderr, "the weights are in a checkpoint: --resume %s --save FILE\n", s->place);
}

void ex_say_resumed(const ex_settings *s, int64_t step, int64_t total, const char *flag)
{
    if (!s->resume || s->quiet) return;
    if (step < total)
        printf("going on after step %" PRId64 "\n", step);
    else
        printf("step %" PRId64 " was the last; a larger %s goes on\n", step, flag);
}
