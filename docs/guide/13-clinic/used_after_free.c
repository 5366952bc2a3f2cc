/*
 * Mistake: a tensor is used after its scope has ended. That memory holds anything by then; with
 * TN_DEBUG=1 in the environment the use is an error, which says where the tensor ended.
 */
#define _POSIX_C_SOURCE 200112L
#include <stdlib.h>
#include <unistd.h>

#include "clinic.h"

int main(int argc, char **argv)
{
    (void)argc;
    if (!getenv("TN_DEBUG")) { /* which is read when the program starts */
        setenv("TN_DEBUG", "1", 1);
        execv("/proc/self/exe", argv);
    }
    tn_scope scope = tn_scope_begin();
    tn_tensor *mean = NULL, *kept = NULL;
    batch b = points(64, 1);
    TN_SCOPE
    {
        mean = tn_mean(b.x, TN_AXES(0), true);
        kept = tn_keep(tn_mean(b.x, TN_AXES(0), true)); /* the cure */
    }
    if (!tn_sub(b.x, mean)) printf("diagnosis: %s\n", tn_error());
    tn_error_clear();
    TN_CHECK_PTR(tn_sub(b.x, kept));
    printf("kept: no error\n");
    tn_drop(kept);
    tn_scope_end(scope);
    return 0;
}
