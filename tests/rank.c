/* rank.c - see rank.h. */
#include "rank.h"

#include <string.h>

#include "scarce.h"

int rank_main(int argc, char **argv, rank_program program)
{
    const rank_mode *mode = NULL;
    for (size_t i = 0; argc > 1 && i < program.n; i++) {
        const rank_mode *m = &program.modes[i];
        if (strcmp(argv[1], m->name) == 0 && argc - 2 == m->arguments) mode = m;
    }
    if (!mode) {
        fprintf(stderr, "%s: unknown mode\n", argv[0]);
        return 2;
    }
    if (program.scarce && strcmp(mode->name, program.scarce) == 0)
        TN_CHECK(tn_set_allocator(&scarce_allocator));
    TN_CHECK(tn_parallel_begin());
    if (program.begun) program.begun();
    tn_scope scope = tn_scope_begin();
    mode->run(argv + 2);
    tn_scope_end(scope);
    EXPECT(tn_live_tensors() == 0);
    return 0;
}
