/* prepare.c - a run before its first step; see training.h */
#include "training.h"

#include <fnmatch.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The end of the library's message, after the function and the path. */
#define REASON (strrchr(tn_error(), ':') + 2)

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
static void check_file(const ex_option *o)
{
    struct stat st, other;
    char longest[PATH_MAX + 16];
    const char *path = *(char **)o->value;
    if (!path || (ex.in_folder && o->value == &ex.checkpoint)) return;
    bool there = stat(path, &st) == 0, regular = there && S_ISREG(st.st_mode);
    bool replaced = o->traits & EX_REPLACED;
    snprintf(longest, sizeof longest, there ? "%s" : "%s.tmp-1234567-0", path);
    if (is_folder(path) || (replaced && !regular && lstat(path, &other) == 0))
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
    if (status == TN_E_IO && (replaced || !there)) ex_refuse("--%s %s: %s", o->name, path, REASON);
}

/* --resume DIR/ becomes the newest whole file there; prints which newer ones are damaged. Without
 * --checkpoint a resumed run saves where it came from: the folder, for a numbered file. */
static void find_place(void)
{
    static char text[PATH_MAX];
    char numbered[64];
    tn_metadata bad = { 0 };
    ex.place = ex.checkpoint ? ex.checkpoint : ex.resume;
    if (ex.resume && is_folder(ex.resume)) {
        ex_check(tn_checkpoint_latest_report(ex.resume, ex_program, text, sizeof text, &bad));
        ex.resume = text;
    } else if (ex.resume && !ex.checkpoint) {
        snprintf(numbered, sizeof numbered, "?(*/)%s-+([0-9]).safetensors", ex_program);
        snprintf(text, sizeof text, "%s", ex.resume);
        if (fnmatch(numbered, ex.resume, FNM_EXTMATCH) == 0) ex.place = dirname(text);
    }
    for (int i = 0; i < bad.n; i++)
        fprintf(stderr, "%s: passed by, for it is damaged: %s: %s\n", ex_program, bad.key[i],
                bad.value[i]);
    ex.in_folder = ex.place && is_folder(ex.place);
}

/* Locks the place of checkpoints: two runs would replace each other's. Without a place, or if a
 * resumed run may only read there, it is the first free one of PROGRAM.ckpt, PROGRAM-2.ckpt ...: no
 * file is replaced that nobody named. A file system without locks is no obstacle. A new run may not
 * begin in a folder with another run's checkpoints: the newest would be taken for its own. */
static void take_place(void)
{
    static char path[PATH_MAX];
    struct stat st;
    if (ex.in_folder && mkdir(ex.place, 0777) != 0 && errno != EEXIST)
        ex_refuse("--checkpoint %s: %s", ex.place, strerror(errno));
    if (ex.in_folder && !ex.resume &&
        tn_checkpoint_latest(ex.place, ex_program, path, sizeof path) == TN_OK)
        ex_refuse("--checkpoint %s: %s is there already: want --resume %s, or another folder",
                  ex.place, path, ex.place);
    tn_status status = ex.place ? take_lock(ex.place) : TN_E_IO;
    if (status == TN_E_STATE || (status == TN_E_IO && ex.checkpoint))
        ex_refuse("--checkpoint %s: %s", ex.place, tn_error());
    if (status == TN_E_IO) status = TN_E_STATE;
    for (int i = 1; status == TN_E_STATE; i++) {
        snprintf(path, sizeof path, i < 2 ? "%s.ckpt" : "%s-%d.ckpt", ex_program, i);
        ex.place = path;
        status = take_lock(path);
        if (status != TN_E_IO && lstat(path, &st) == 0) status = TN_E_STATE;
        if (status == TN_E_STATE) give_locks();
    }
    ex.lost = status == TN_E_IO;
    if (ex.lost && ex.stop_after > 0)
        ex_refuse("--stop-after %d: no checkpoint can be written here: %s", ex.stop_after, REASON);
    tn_error_clear();
}

/* Options' values and the step, from the file of --resume or --load. */
static void adopt(void)
{
    const char *file = ex.resume ? ex.resume : ex.load;
    tn_metadata notes = { 0 };
    tn_status peeked = file ? tn_checkpoint_peek(file, &notes, &ex.state.step) : TN_OK;
    if (ex.load && peeked == TN_OK)
        ex_refuse("--load %s: it is a checkpoint of a run, not a file of weights: want --resume %s",
                  file, file);
    if (ex.load) ex_check_ptr(tn_load_tensors(file, &notes));
    if (ex.resume) ex_check(peeked);
    ex.step = (int)ex.state.step;
    for (ex_option *o = NULL; file && (o = ex_next(o, ex.resume ? EX_MODEL | EX_RUN : EX_MODEL));) {
        const char *noted = tn_metadata_get(&notes, o->name);
        bool given = o->traits & EX_GIVEN;
        if (o->traits & ((given ? EX_FREE : 0) | (noted ? 0 : EX_LATER))) continue;
        if (noted && given && strcmp(noted, ex_value(o)) != 0)
            ex_refuse("--%s %s conflicts with %s, which was made with --%s %s", o->name,
                      ex_value(o), file, o->name, noted);
        if (!noted || !ex_read(o, noted))
            ex_refuse("%s does not say its %s: it was not saved by %s", file, o->name, ex_program);
    }
}

uint64_t ex_hash(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ b[i]) * 0x100000001b3u;
    return hash;
}

uint64_t ex_hash_list(const tn_list *list)
{
    uint64_t hash = EX_HASH;
    ex_check_ptr(list);
    for (int i = 0; i < list->n; i++) {
        uint64_t h = tn_hash(list->entry[i].tensor);
        hash = ex_hash(hash, list->entry[i].name, strlen(list->entry[i].name) + 1);
        hash = ex_hash(hash, &h, sizeof h);
    }
    return hash;
}

/* Refuses settings that differ between processes: some would wait for others that have ended, and
 * optimizers' state is not sent. Of a text file the bytes are compared, not the path. */
static void share(void)
{
    int size = tn_parallel_size();
    if (ex.resume && size > 1) {
        uint64_t hash = ex_hash_list(tn_load_tensors(ex.resume, NULL));
        ex_check(tn_parallel_same("--resume", &hash, sizeof hash));
    }
    ex_check(tn_parallel_same("--shard", &ex.shard, sizeof ex.shard));
    for (ex_option *o = NULL; (o = ex_next(o, EX_MODEL | EX_RUN));)
        if (!(o->traits & EX_READ))
            ex_check(tn_parallel_same(o->name, ex_value(o), strlen(ex_value(o))));
    if (ex.batch % size != 0)
        ex_refuse("--batch %d: %d processes share it: want a multiple of %d", ex.batch, size, size);
    ex_check_ptr(ex.shared = tn_data_parallel_new(ex.state.model, (tn_data_parallel_options){ 0 }));
    if (ex.shard) ex_check(tn_data_parallel_shard(ex.shared, ex.state.optimizer));
}

void ex_prepare(void)
{
    ex_check(tn_parallel_begin());
    bool first = tn_parallel_rank() == 0;
    if (ex.load && ex.resume) ex_refuse("--resume and --load: want one of them");
    if (first && ex.save && fnmatch("*.@(pt|pth)", ex.save, FNM_EXTMATCH) == 0)
        ex_refuse("--save %s: a PyTorch file has no place for settings: want .safetensors",
                  ex.save);
    if (ex.html && ex.capture)
        ex_refuse("--html and --capture: no page of a step recorded as a graph: want one of them");
    if (ex.capture && tn_parallel_size() > 1)
        ex_refuse("--capture: %d processes exchange gradients in each step: want it left out",
                  tn_parallel_size());
    find_place();
    if (ex_given("keep") && !ex.in_folder)
        ex_refuse("--keep %d: checkpoints go to one file: want --checkpoint DIR/", ex.keep);
    if (!ex.checkpoint && !ex_given("keep")) ex.keep = 0; /* nobody asked to remove any */
    if (!first) {
        ex.quiet = true;
        ex.print_hash = ex.memory = false;
        ex.save = ex.checkpoint = ex.log = ex.plot = ex.html = ex.board = NULL;
    }
    ex.where = ex_device(ex.device);
    adopt(); /* it may name a file that is read */
    atexit(give_locks);
    for (ex_option *o = NULL; (o = ex_next(o, EX_WRITTEN | EX_REPLACED));) check_file(o);
    give_locks();
    if (first) take_place();
    if (ex.threads > 0) ex_check(tn_set_num_threads(ex.threads));
}

/* Returns whether bf16 was chosen for its speed. */
static bool decide_precision(void)
{
    static tn_checkpoint_part scaling = { .name = "scaler" };
    bool automatic = !strcmp(ex.precision, "auto");
    bool chosen = automatic && tn_bf16_is_fast(ex.where);
    if (automatic) ex.precision = chosen ? "bf16" : "f32";
    bool tf32 = !strcmp(ex.precision, "tf32"), f16 = !strcmp(ex.precision, "f16");
    ex.dtype = f16 ? TN_F16 : !strcmp(ex.precision, "bf16") ? TN_BF16 : TN_F32;
    if (ex.dtype == TN_F32 && !tf32 && strcmp(ex.precision, "f32") != 0)
        ex_refuse("--precision %s: want f32, tf32, bf16, f16 or auto", ex.precision);
    if (tf32 && ex.where.type != TN_CUDA) ex_refuse("--precision tf32: want --device cuda with it");
    if (tf32) ex_check(tn_set_tf32(true)); /* f32 with rounded operands */
    if (f16 && ex.capture)
        ex_refuse("--capture: --precision f16 looks at the gradients: want f32, tf32 or bf16");
    ex_check_ptr(ex.scaler = tn_scaler_new((tn_scaler_options){ .disabled = !f16 }));
    scaling.scaler = ex.scaler;
    if (f16) ex.state.parts = &scaling, ex.state.n_parts = 1;
    return chosen;
}

/* Version, device, settings and the model. */
static void print_head(bool chosen)
{
    tn_cuda_properties gpu = { .name = "" };
    int column = 0;
    if (ex.where.type == TN_CUDA) ex_check(tn_cuda_get_properties(ex.where.index, &gpu));
    printf("tenon %s, ", tn_version_string());
    if (tn_parallel_size() > 1) printf("%d processes of ", tn_parallel_size());
    printf("%d threads, %s%s%s\n", tn_num_threads(), ex.device, *gpu.name ? ": " : "", gpu.name);
    for (ex_option *o = NULL; (o = ex_next(o, EX_MODEL | EX_RUN));) {
        if (o->traits & EX_READ || !o->help) continue;
        if (column > 80) column = printf("\n") - 1;
        column += printf("%s%s %s", column ? ", " : "", o->name, ex_value(o));
    }
    printf("\n");
    if (chosen)
        printf("This device multiplies bf16, which is faster: --precision f32 for none of it.\n");
    ex_flush();
    if (ferror(stdout)) exit(ex_end()); /* before any work */
    ex_check(tn_module_summary(stdout, ex.state.model));
}

void ex_start(void)
{
    bool chosen = decide_precision();
    if (!ex.quiet) print_head(chosen);
    if (ex.load) ex_check(tn_load(ex.state.model, ex.load));
    share();
    /* after --shard, of which each process reads its own part */
    if (ex.resume) ex_check(tn_checkpoint_load(&ex.state, ex.resume));
    ex_check(tn_parallel_share_random());
    if (ex.resume)
        ex_say(ex.step < ex.total ? "going on after step %d"
                                  : "step %d was the last; a larger number of them goes on",
               ex.step);
}
