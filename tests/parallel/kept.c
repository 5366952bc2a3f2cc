/*
 * parallel_kept.c - in the programs of several ranks, where they are built with a sanitizer: a
 * library that has been opened stays open. Open MPI closes its parts when it ends; what they leave
 * behind is reported later, when a suppression (parallel_leaks.supp) could no longer tell
 * that it is theirs.
 */
#include <dlfcn.h>

int dlclose(void *library)
{
    (void)library;
    return 0;
}
