/* rows.c - a caller for every row, and the table of them. */
#include "world.h"

/* Where a function's result is stored. */
#define GIVE_tensor w->result.tensor =
#define GIVE_module w->result.module =
#define GIVE_list w->result.list =
#define GIVE_optim w->result.optim =
#define GIVE_scheduler w->result.scheduler =
#define GIVE_scaler w->result.scaler =
#define GIVE_shared w->result.shared =
#define GIVE_generator w->result.generator =
#define GIVE_default_generator w->result.generator =
#define GIVE_loader w->result.loader =
#define GIVE_capture w->result.capture =
#define GIVE_later w->result.later =
#define GIVE_trace w->result.trace =
#define GIVE_tensorboard w->result.tensorboard =
#define GIVE_corpus w->result.corpus =
#define GIVE_images w->result.images =
#define GIVE_csv w->result.csv =
#define GIVE_status w->result.status =
#define GIVE_count w->result.n = (int64_t)
#define GIVE_plain w->result.n = (int64_t)
#define GIVE_moody w->result.n = (int64_t)
#define GIVE_number w->result.real =
#define GIVE_address w->result.object =
#define GIVE_found w->result.text =
#define GIVE_moody_text w->result.text =
#define GIVE_nothing

/* An argument: the member of its kind. */
#define A(i, kind) s[i].v.kind
#define CALLER(gives, name, ...)                                                                   \
    static void call_##name(world *w, slot *s)                                                     \
    {                                                                                              \
        (void)w;                                                                                   \
        (void)s;                                                                                   \
        GIVE_##gives name(__VA_ARGS__);                                                            \
    }

#define CUSTOM(gives, name)
#define R0(gives, name)                                                                            \
    static void call_##name(world *w, slot *s)                                                     \
    {                                                                                              \
        (void)w;                                                                                   \
        (void)s;                                                                                   \
        GIVE_##gives name();                                                                       \
    }
#define R1(gives, name, a) CALLER(gives, name, A(0, a))
#define R2(gives, name, a, b) CALLER(gives, name, A(0, a), A(1, b))
#define R3(gives, name, a, b, c) CALLER(gives, name, A(0, a), A(1, b), A(2, c))
#define R4(gives, name, a, b, c, d) CALLER(gives, name, A(0, a), A(1, b), A(2, c), A(3, d))
#define R5(gives, name, a, b, c, d, e)                                                             \
    CALLER(gives, name, A(0, a), A(1, b), A(2, c), A(3, d), A(4, e))
#define R6(gives, name, a, b, c, d, e, f)                                                          \
    CALLER(gives, name, A(0, a), A(1, b), A(2, c), A(3, d), A(4, e), A(5, f))
#define R7(gives, name, a, b, c, d, e, f, g)                                                       \
    CALLER(gives, name, A(0, a), A(1, b), A(2, c), A(3, d), A(4, e), A(5, f), A(6, g))
#define R8(gives, name, a, b, c, d, e, f, g, h)                                                    \
    CALLER(gives, name, A(0, a), A(1, b), A(2, c), A(3, d), A(4, e), A(5, f), A(6, g), A(7, h))
#define R9(gives, name, a, b, c, d, e, f, g, h, i)                                                 \
    CALLER(gives, name, A(0, a), A(1, b), A(2, c), A(3, d), A(4, e), A(5, f), A(6, g), A(7, h),    \
           A(8, i))
#include "rows.def"

#define K(kind) K_##kind
#define CUSTOM(gives, name) { #name, G_##gives, 0, { 0 }, custom_##name },
#define R0(gives, name) { #name, G_##gives, 0, { 0 }, call_##name },
#define R1(gives, name, a) { #name, G_##gives, 1, { K(a) }, call_##name },
#define R2(gives, name, a, b) { #name, G_##gives, 2, { K(a), K(b) }, call_##name },
#define R3(gives, name, a, b, c) { #name, G_##gives, 3, { K(a), K(b), K(c) }, call_##name },
#define R4(gives, name, a, b, c, d)                                                                \
    { #name, G_##gives, 4, { K(a), K(b), K(c), K(d) }, call_##name },
#define R5(gives, name, a, b, c, d, e)                                                             \
    { #name, G_##gives, 5, { K(a), K(b), K(c), K(d), K(e) }, call_##name },
#define R6(gives, name, a, b, c, d, e, f)                                                          \
    { #name, G_##gives, 6, { K(a), K(b), K(c), K(d), K(e), K(f) }, call_##name },
#define R7(gives, name, a, b, c, d, e, f, g)                                                       \
    { #name, G_##gives, 7, { K(a), K(b), K(c), K(d), K(e), K(f), K(g) }, call_##name },
#define R8(gives, name, a, b, c, d, e, f, g, h)                                                    \
    { #name, G_##gives, 8, { K(a), K(b), K(c), K(d), K(e), K(f), K(g), K(h) }, call_##name },
#define R9(gives, name, a, b, c, d, e, f, g, h, i)                                                 \
    { #name, G_##gives, 9, { K(a), K(b), K(c), K(d), K(e), K(f), K(g), K(h), K(i) }, call_##name },
const row rows[] = {
#include "rows.def"
};
const int n_rows = (int)(sizeof rows / sizeof *rows);
