/*
 * lines.c - see lines.h. In a shared library tenon's own functions are told apart by the object
 * that they lie in; in a program that has tenon linked statically, by the folder of their source.
 */
#include "base/lines.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/auxv.h>

_Thread_local bool tni_lines_wanted;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const void *own;           /* where the object that holds tenon lies in memory */
static const void *_Atomic above; /* and that of libtenon-trace; NULL: it was not needed yet */
static bool in_program;           /* that object is the program */
static tni_line_at line_at;
static char root[1024]; /* the folder of tenon's source, as debug information names it; "" */

static const void *object_of(const void *address, Dl_info *info)
{
    return dladdr(address, info) ? info->dli_fbase : NULL;
}

static void open_reader(void)
{
    Dl_info info;
    char why[512];
    own = object_of((const void *)(uintptr_t)tni_calls_here, &info);
    in_program = own == object_of((const void *)getauxval(AT_PHDR), &info);
    void *symbol = tni_open_module("TN_LINES_MODULE", "base/", TNI_LINES_FILE, TNI_LINES_SYMBOL,
                                   why, sizeof why);
    memcpy(&line_at, &symbol, sizeof line_at);
    if (!line_at || !line_at((const void *)(uintptr_t)open_reader, root, sizeof root)) return;
    char *end = strstr(root, "base/lines.c");
    if (end) *end = '\0';
}

void tni_calls_skip(const void *address)
{
    Dl_info info;
    atomic_store(&above, object_of(address, &info));
}

static bool is_ours(const void *address)
{
    Dl_info info;
    const void *object = object_of(address, &info);
    return object == own || (object && object == atomic_load(&above));
}

static size_t size_of(int n)
{
    return sizeof(tni_calls) + (size_t)n * sizeof(void *);
}

tni_calls *tni_calls_here(void)
{
    enum { MOST = 64 };
    void *address[MOST];
    pthread_once(&once, open_reader);
    int n = backtrace(address, MOST), first = 0;
    if (!in_program) {
        while (first < n && is_ours(address[first])) first++;
        n = first < n; /* only the program's innermost */
    }
    tni_calls *calls = tni_alloc(size_of(n));
    if (!calls) return NULL;
    calls->n = n;
    memcpy(calls->address, address + first, (size_t)n * sizeof *address);
    return calls;
}

void tni_calls_free(tni_calls *calls)
{
    if (calls) tni_free(calls, size_of(calls->n));
}

/* The source line for a return address, which lies just behind the call. */
static int look_up(const void *address, char *file, size_t size)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!line_at) return 0;
    pthread_mutex_lock(&lock);
    int line = line_at((const char *)address - 1, file, size);
    pthread_mutex_unlock(&lock);
    return line;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *tni_line_text(const tni_calls *calls)
{
    char file[1024], text[sizeof file + 32] = "";
    Dl_info info;
    for (int i = 0; i < calls->n && !text[0]; i++) {
        const char *address = calls->address[i];
        int line = look_up(address, file, sizeof file);
        if (in_program && (line == 0 || (root[0] && strncmp(file, root, strlen(root)) == 0)))
            continue;
        if (line > 0)
            snprintf(text, sizeof text, "%s:%d", last_part(file), line);
        else if (object_of(address, &info) && info.dli_fname)
            snprintf(text, sizeof text, "%.200s+%#tx", last_part(info.dli_fname),
                     address - 1 - (const char *)info.dli_fbase);
    }
    return tni_strdup_or_none(text);
}
