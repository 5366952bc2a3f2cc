/* rank.c - see rank.h. */
#include "rank.h"

#include <math.h>

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
    if (mode->plain)
        mode->plain();
    else
        mode->run(argv + 2);
    tn_scope_end(scope);
    EXPECT(tn_live_tensors() == 0);
    return 0;
}

bool last_rank(void)
{
    return tn_parallel_rank() == tn_parallel_size() - 1;
}

const char *on_last_rank(const char *what)
{
    static char text[2][128];
    static int turn;
    turn = !turn;
    snprintf(text[turn], sizeof text[turn], "on rank %d %s", tn_parallel_size() - 1, what);
    return text[turn];
}

double tensor_difference(tn_tensor *a, tn_tensor *b)
{
    return tn_item(tn_max_all(tn_abs(tn_sub(tn_to_dtype(a, TN_F64), tn_to_dtype(b, TN_F64)))));
}

tn_tensor *data_rows(int64_t first, int64_t n, int64_t step)
{
    double *value = malloc((size_t)(n * WIDTH) * sizeof *value);
    EXPECT(value != NULL);
    for (int64_t i = 0; i < n * WIDTH; i++)
        value[i] = sin(1.7 * (double)(first * WIDTH + i) + 0.3 * (double)step);
    tn_tensor *t = tn_from_data(value, TN_SHAPE(n, WIDTH), TN_F64);
    free(value);
    return t;
}

tn_tensor *data_classes(int64_t first, int64_t n, int64_t step)
{
    int64_t value[ROWS];
    EXPECT(n <= ROWS);
    for (int64_t i = 0; i < n; i++) value[i] = ((first + i) * (step + 2)) % CLASSES;
    return tn_from_ints(value, TN_SHAPE(n));
}

tn_data_parallel *shared(tn_module *m, tn_data_parallel_options o)
{
    tn_data_parallel *p = tn_data_parallel_new(m, o);
    TN_CHECK_PTR(p);
    return p;
}

void shared_free(tn_data_parallel *p, tn_module *m)
{
    tn_data_parallel_free(p);
    tn_module_drop(m);
}

tn_module *branches_new(void)
{
    tn_module *m = tn_module_dict_new();
    for (int i = 0; i < 3; i++) {
        tn_module *child = tn_linear_new(WIDTH, CLASSES, (tn_linear_options){ .no_bias = true });
        TN_CHECK(tn_register_module(m, (const char *[]){ "all", "one", "none" }[i], NULL, child));
    }
    return m;
}

tn_tensor *branches_forward(tn_module *m, tn_tensor *x)
{
    tn_tensor *y = tn_forward(tn_get_submodule(m, "all"), x);
    return tn_parallel_rank() ? y : tn_add(y, tn_forward(tn_get_submodule(m, "one"), x));
}
