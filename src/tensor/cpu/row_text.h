/*
 * row_text.h - the loops of pointwise rows for one type T, included by each file that has a T.
 *
 * Define before: T; FORMULA(kind, name), the function of formulas.h; NUMBER(x), a parameter as T.
 * Every loop vectorises. Those of all formulas are compiled for each type and instruction set:
 * one more for each costs seconds. omp simd is correct here: element i depends only on elements
 * i, even if y is an operand.
 */
#define SIMD _Pragma("omp simd")
#define UNUSED(x) (void)(x)

/* parameters: a constant 0, 1 or 2 */
#define TAKE_PARAMETERS(parameters)                                                                \
    const T p = (parameters) > 0 ? NUMBER(pp[0]) : (T)0;                                           \
    const T q = (parameters) > 1 ? NUMBER(pp[1]) : (T)0;                                           \
    UNUSED(pp)

#define ROW_ARGUMENTS                                                                              \
    int64_t n, void *yy, const void *aa, int64_t as, const void *bb, int64_t bs, const void *cc,   \
        const double *pp

#define UNARY_ROW_TO(OUT, name, parameters)                                                        \
    static void u_##name(ROW_ARGUMENTS)                                                            \
    {                                                                                              \
        OUT *y = yy;                                                                               \
        const T *a = aa;                                                                           \
        TAKE_PARAMETERS(parameters);                                                               \
        UNUSED(as), UNUSED(bb), UNUSED(bs), UNUSED(cc);                                            \
        SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(u, name)(a[i], p, q);             \
    }

#define IF_LIGHT(...) __VA_ARGS__
#define IF_HEAVY(...)
/* One operand of a light formula may be repeated. */
#define BINARY_ROW_TO(OUT, name, parameters, cost)                                                 \
    static void b_##name(ROW_ARGUMENTS)                                                            \
    {                                                                                              \
        OUT *y = yy;                                                                               \
        const T *a = aa, *b = bb;                                                                  \
        TAKE_PARAMETERS(parameters);                                                               \
        UNUSED(as), UNUSED(bs), UNUSED(cc);                                                        \
        IF_##cost(if (bs == 0) {                                                                   \
            const T b0 = n > 0 ? b[0] : (T)0;                                                      \
            SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(b, name)(a[i], b0, p, q);     \
        } else if (as == 0) {                                                                      \
            const T a0 = n > 0 ? a[0] : (T)0;                                                      \
            SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(b, name)(a0, b[i], p, q);     \
        } else)                                                                                    \
            SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(b, name)(a[i], b[i], p, q);   \
    }

/* The first and the last operand may both be repeated. */
#define TERNARY_ROW_TO(OUT, name, parameters)                                                      \
    static void t_##name(ROW_ARGUMENTS)                                                            \
    {                                                                                              \
        OUT *y = yy;                                                                               \
        const T *a = aa, *b = bb, *c = cc;                                                         \
        TAKE_PARAMETERS(parameters);                                                               \
        UNUSED(bs);                                                                                \
        if (as == 0) {                                                                             \
            const T a0 = n > 0 ? a[0] : (T)0, c0 = n > 0 ? c[0] : (T)0;                            \
            SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(t, name)(a0, b[i], c0, p, q); \
        } else                                                                                     \
            SIMD for (int64_t i = 0; i < n; i++) y[i] =                                            \
                (OUT)FORMULA(t, name)(a[i], b[i], c[i], p, q);                                     \
    }

#define UNARY_ROW(name, parameters, cost, formula) UNARY_ROW_TO(T, name, parameters)
#define UNARY_TEST(name, parameters, cost, formula) UNARY_ROW_TO(uint8_t, name, parameters)
#define BINARY_ROW(name, parameters, cost, formula) BINARY_ROW_TO(T, name, parameters, cost)
#define BINARY_TEST(name, parameters, cost, formula) BINARY_ROW_TO(uint8_t, name, parameters, cost)
#define TERNARY_ROW(name, parameters, cost, formula) TERNARY_ROW_TO(T, name, parameters)

#define UNARY_ENTRY(name, parameters, cost, formula) [TNI_U_##name] = u_##name,
#define BINARY_ENTRY(name, parameters, cost, formula) [TNI_B_##name] = b_##name,
#define TERNARY_ENTRY(name, parameters, cost, formula) [TNI_T_##name] = t_##name,
