/*
 * row_text.h - the loops of pointwise rows for one type T, included by each file that has a T.
 *
 * Define before: T; FORMULA(kind, name), the function of formulas.h; NUMBER(x), a parameter as T;
 * ROWS(table), the table's name. Dense operands and repeated ones (stride 0) have their own loops,
 * which vectorise. omp simd is correct here: element i depends only on elements i, even if y is an
 * operand.
 */
#define SIMD _Pragma("omp simd")
#define UNUSED(x) (void)(x)

/* parameters: a constant 0, 1 or 2 */
#define TAKE_PARAMETERS(parameters)                                                                \
    const T p = (parameters) > 0 ? NUMBER(pp[0]) : (T)0;                                           \
    const T q = (parameters) > 1 ? NUMBER(pp[1]) : (T)0;                                           \
    UNUSED(pp)

#define ROW_ARGUMENTS                                                                              \
    int64_t n, void *yy, int64_t ys, const void *aa, int64_t as, const void *bb, int64_t bs,       \
        const void *cc, int64_t cs, const double *pp

#define UNARY_ROW_TO(OUT, name, parameters)                                                        \
    static void u_##name(ROW_ARGUMENTS)                                                            \
    {                                                                                              \
        OUT *y = yy;                                                                               \
        const T *a = aa;                                                                           \
        TAKE_PARAMETERS(parameters);                                                               \
        UNUSED(bb), UNUSED(bs), UNUSED(cc), UNUSED(cs);                                            \
        if (ys == 1 && as == 1) {                                                                  \
            SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(u, name)(a[i], p, q);         \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                y[i * ys] = (OUT)FORMULA(u, name)(a[i * as], p, q);                                \
            }                                                                                      \
        }                                                                                          \
    }

#define BINARY_ROW_TO(OUT, name, parameters)                                                       \
    static void b_##name(ROW_ARGUMENTS)                                                            \
    {                                                                                              \
        OUT *y = yy;                                                                               \
        const T *a = aa, *b = bb;                                                                  \
        TAKE_PARAMETERS(parameters);                                                               \
        UNUSED(cc), UNUSED(cs);                                                                    \
        if (ys == 1 && as == 1 && bs == 1) {                                                       \
            SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(b, name)(a[i], b[i], p, q);   \
        } else if (ys == 1 && as == 1 && bs == 0) {                                                \
            const T b0 = n > 0 ? b[0] : (T)0;                                                      \
            SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(b, name)(a[i], b0, p, q);     \
        } else if (ys == 1 && as == 0 && bs == 1) {                                                \
            const T a0 = n > 0 ? a[0] : (T)0;                                                      \
            SIMD for (int64_t i = 0; i < n; i++) y[i] = (OUT)FORMULA(b, name)(a0, b[i], p, q);     \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                y[i * ys] = (OUT)FORMULA(b, name)(a[i * as], b[i * bs], p, q);                     \
            }                                                                                      \
        }                                                                                          \
    }

#define TERNARY_ROW_TO(OUT, name, parameters)                                                      \
    static void t_##name(ROW_ARGUMENTS)                                                            \
    {                                                                                              \
        OUT *y = yy;                                                                               \
        const T *a = aa, *b = bb, *c = cc;                                                         \
        TAKE_PARAMETERS(parameters);                                                               \
        if (ys == 1 && as == 1 && bs == 1 && cs == 1) {                                            \
            SIMD for (int64_t i = 0; i < n; i++) {                                                 \
                y[i] = (OUT)FORMULA(t, name)(a[i], b[i], c[i], p, q);                              \
            }                                                                                      \
        } else if (ys == 1 && as == 0 && bs == 1 && cs == 0) {                                     \
            const T a0 = n > 0 ? a[0] : (T)0, c0 = n > 0 ? c[0] : (T)0;                            \
            SIMD for (int64_t i = 0; i < n; i++) {                                                 \
                y[i] = (OUT)FORMULA(t, name)(a0, b[i], c0, p, q);                                  \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                y[i * ys] = (OUT)FORMULA(t, name)(a[i * as], b[i * bs], c[i * cs], p, q);          \
            }                                                                                      \
        }                                                                                          \
    }

#define UNARY_ROW(name, parameters, cost, formula) UNARY_ROW_TO(T, name, parameters)
#define UNARY_TEST(name, parameters, cost, formula) UNARY_ROW_TO(uint8_t, name, parameters)
#define BINARY_ROW(name, parameters, cost, formula) BINARY_ROW_TO(T, name, parameters)
#define BINARY_TEST(name, parameters, cost, formula) BINARY_ROW_TO(uint8_t, name, parameters)
#define TERNARY_ROW(name, parameters, cost, formula) TERNARY_ROW_TO(T, name, parameters)

#define UNARY_ENTRY(name, parameters, cost, formula) [TNI_U_##name] = u_##name,
#define BINARY_ENTRY(name, parameters, cost, formula) [TNI_B_##name] = b_##name,
#define TERNARY_ENTRY(name, parameters, cost, formula) [TNI_T_##name] = t_##name,
