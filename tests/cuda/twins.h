/*
 * twins.h - a slot on the CPU and on the GPU: the same array twice, one call for both sides.
 */
#ifndef TENON_TESTS_CUDA_TWINS_H
#define TENON_TESTS_CUDA_TWINS_H

#include <stdlib.h>

#include "common.h"
#include "tensor/internal.h"

enum { CPU, GPU, SIDES };
enum { SIZES = 6 };

extern const tni_backend *kernels[SIDES];
extern tn_dtype dtype; /* of the reals */
extern const int64_t sizes[SIZES];

/* Kernels of both sides; f32, or f64 for odd variants. */
void choose(int variant);
double uniform(void); /* [-2, 2), the same in every run */

/* One array twice; block: where its memory begins, which ends with the last element. */
typedef struct twin {
    tni_array at[SIDES];
    char *block[SIDES];
    size_t nbytes;
} twin;

extern twin none; /* data NULL on both sides */

/* rank sizes, row-major, lead elements before the first; filled with random numbers of [-2, 2). */
twin *make_as(tn_dtype of, int64_t lead, int rank, const int64_t *size);
/* clang-format off */
#define SIZES_OF(...) (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / 8), (int64_t[]){ __VA_ARGS__ }
#define make(...) make_as(dtype, 0, SIZES_OF(__VA_ARGS__))
#define make_after(lead, ...) make_as(dtype, lead, SIZES_OF(__VA_ARGS__))
/* clang-format on */
/* i64 of 0 .. below - 1 */
twin *make_ids(int64_t below, int rank, const int64_t *size);
void free_twins(void); /* all that were made */

int64_t count(const twin *t);
double value(const void *data, tn_dtype of, int64_t i);
void set(void *data, tn_dtype of, int64_t i, double v);
/* The CPU's bytes to the GPU. */
void upload(const twin *t);
/* The GPU's bytes, in memory to be freed. */
char *held(const twin *t);
/* The GPU's within its dtype's tolerance of the CPU's (scale: the size of a sum's terms), or bit
 * for bit. */
void check_near(const twin *t, double scale, const char *what);
void check_equal(const twin *t, const char *what);

int runs_of(const twin *t);
/* Runs a slot on both sides, and again on the GPU (ten times in all where that is cheap), where it
 * must leave the same bits in `out`, which is first reset. A(t) is t on the side that runs. */
#define A(t) (&(t)->at[side])
#define BOTH(out, slot, ...)                                                                       \
    do {                                                                                           \
        char *before_ = held(out), *first_ = NULL;                                                 \
        for (int run_ = 0; run_ <= runs_of(out); run_++) {                                         \
            int side = run_ ? GPU : CPU;                                                           \
            if (run_ > 1)                                                                          \
                ck_assert_int_eq(kernels[GPU]->upload((out)->block[GPU], before_, (out)->nbytes),  \
                                 TN_OK);                                                           \
            ck_assert_msg(kernels[side]->slot(__VA_ARGS__) == TN_OK, "%s: %s", #slot, tn_error()); \
            char *bytes_ = side == GPU ? held(out) : NULL;                                         \
            if (run_ == 1) {                                                                       \
                first_ = bytes_;                                                                   \
                continue;                                                                          \
            }                                                                                      \
            if (bytes_)                                                                            \
                ck_assert_msg(!memcmp(first_, bytes_, (out)->nbytes), "%s: other bits in run %d",  \
                              #slot, run_);                                                        \
            free(bytes_);                                                                          \
        }                                                                                          \
        free(before_);                                                                             \
        free(first_);                                                                              \
    } while (0)

#endif
