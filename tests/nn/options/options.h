/*
 * options.h - a row for each field of an options struct: a function hashes what the options do
 * (values, names of state, rates ...). Zero must give the same hash as the documented default,
 * another value another hash, a bad one is refused and named.
 */
#ifndef TENON_TESTS_OPTIONS_H
#define TENON_TESTS_OPTIONS_H

#include <stddef.h>

#include "nn/boxes.h"
#include "files.h"

typedef struct option_row {
    const char *owner, *field;
    char kind; /* d: double, i: int64_t, b: bool */
    size_t at, size;
    double zero, other;  /* what zero means (NAN: refused); another value */
    double bad;          /* what is refused */
    const char *refusal; /* in the message; NULL: no value is bad */
    uint64_t (*see)(const void *options);
    const void *base; /* the other fields */
    void (*custom)(void);
    const char *file, *test; /* of tests/, which shows it instead */
} option_row;

#define ROW(kind, type, field, at, zero, other, bad, refusal, see, ...)                            \
    {                                                                                              \
#type, #field, kind, at, sizeof(type), zero, other, bad, refusal, see,                     \
            &(const type){ __VA_ARGS__ }, NULL, NULL, NULL                                         \
    }
#define REAL(type, field, ...) ROW('d', type, field, offsetof(type, field), __VA_ARGS__)
#define INT(type, field, ...) ROW('i', type, field, offsetof(type, field), __VA_ARGS__)
/* the second element of an int64_t [2] */
#define INT1(type, field, ...) ROW('i', type, field, offsetof(type, field) + 8, __VA_ARGS__)
#define FLAG(type, field, see, ...)                                                                \
    ROW('b', type, field, offsetof(type, field), 0, 1, NAN, NULL, see, __VA_ARGS__)
#define SHOWN_BY(type, member, in, name)                                                           \
    {                                                                                              \
        .owner = #type, .field = #member, .file = in, .test = "START_TEST(" name ")"               \
    }
#define CUSTOM(type, member, f)                                                                    \
    {                                                                                              \
        .owner = #type, .field = #member, .custom = f                                              \
    }

/* What options o of this type show; 0 if they are refused. */
#define SEE(name, type, shown)                                                                     \
    static uint64_t name(const void *options)                                                      \
    {                                                                                              \
        const type o = *(const type *)options;                                                     \
        return (shown);                                                                            \
    }

typedef struct option_rows {
    const option_row *row;
    int n;
} option_rows;
extern const option_rows options_of_layers, options_of_optimizers, options_of_others;

static inline uint64_t mix(uint64_t h, uint64_t value)
{
    return (h ^ value) * 1099511628211u;
}

/* 0 for a tensor that was refused. */
static inline uint64_t see_tensor(const tn_tensor *t)
{
    return t ? mix(1, tn_hash(t)) : 0;
}

static inline tn_tensor *input(tn_shape shape)
{
    return random_as(shape, -0.2, 0.3, 11, TN_F32);
}

#endif
