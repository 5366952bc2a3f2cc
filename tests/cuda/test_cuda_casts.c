/*
 * test_cuda_casts.c - casts between f32 and bf16 or f16 on the CUDA device: the CPU's bits for
 * every short number, for every border between two of them and the floats beside it, NaN payloads,
 * subnormals, infinities; for lengths and places in memory that the wide accesses do not divide.
 *
 * Seen to fail: the elements behind the last whole sixteen bytes one too far; wide accesses at any
 * address; NaN as a number, halves rounded up, in the CUDA module alone.
 */
#include <stdlib.h>

#include "common.h"
#include "tensor/internal.h"
#include "tensor/math.h"

static const tni_backend *cpu, *gpu;
static const tn_dtype shorts[] = { TN_BF16, TN_F16 };

static void choose(void)
{
    cpu = tni_backend_for(tn_cpu());
    gpu = tni_backend_for(tn_cuda(0));
    ck_assert_msg(gpu != NULL, "%s", tn_error());
}

enum { GUARD = 64 }; /* bytes behind the result that must stay */

/* n elements of x cast on both devices, which begin x_lead and y_lead elements into their
 * memory. */
static void check(tn_dtype to, tn_dtype from, const void *x, int64_t n, int64_t x_lead,
                  int64_t y_lead)
{
    size_t nx = (size_t)n * tn_dtype_size(from), ny = (size_t)n * tn_dtype_size(to);
    size_t skip_x = (size_t)x_lead * tn_dtype_size(from),
           skip_y = (size_t)y_lead * tn_dtype_size(to);
    char *expected = malloc(skip_y + ny + GUARD), *got = malloc(skip_y + ny + GUARD);
    memset(expected, 0x5a, skip_y + ny + GUARD);
    void *dx;
    assert_ok(gpu->alloc(skip_x + nx, &dx));
    void *dy;
    assert_ok(gpu->alloc(skip_y + ny + GUARD, &dy));
    assert_ok(gpu->upload((char *)dx + skip_x, x, nx));
    assert_ok(gpu->upload(dy, expected, skip_y + ny + GUARD));
    tni_array a = { (void *)(uintptr_t)x, from, 1, { n }, { 1 } };
    tni_array y = { expected + skip_y, to, 1, { n }, { 1 } };
    assert_ok(cpu->copy(&(tni_copy){ .y = y, .x = a }));
    a.data = (char *)dx + skip_x;
    y.data = (char *)dy + skip_y;
    assert_ok(gpu->copy(&(tni_copy){ .y = y, .x = a }));
    assert_ok(gpu->download(got, dy, skip_y + ny + GUARD));
    for (size_t i = 0; i < skip_y + ny + GUARD; i++)
        if (got[i] != expected[i])
            ck_abort_msg("%s to %s, %" PRId64 " elements after %" PRId64 " and %" PRId64
                         ": byte %zu is %02x, not %02x",
                         tn_dtype_name(from), tn_dtype_name(to), n, x_lead, y_lead, i - skip_y,
                         (uint8_t)got[i], (uint8_t)expected[i]);
    gpu->free(dx, skip_x + nx);
    gpu->free(dy, skip_y + ny + GUARD);
    free(expected);
    free(got);
}

/* All 65536 numbers, NaNs of every payload among them. */
START_TEST(every_short_number)
{
    uint16_t *x = malloc(65536 * sizeof *x);
    choose();
    for (int i = 0; i < 65536; i++) x[i] = (uint16_t)i;
    check(TN_F32, shorts[_i], x, 65536, 0, 0);
    check(shorts[1 - _i], shorts[_i], x, 65536, 0, 0);
    free(x);
}
END_TEST

/* Of each short number: itself as a float, halfway to the next, and the floats beside these two. */
START_TEST(every_border)
{
    enum { EACH = 6 };
    uint32_t *x = malloc(65536 * EACH * sizeof *x);
    choose();
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i, next = (uint16_t)(i + 1);
        float v = _i ? tn_from_f16(h) : tn_from_bf16(h);
        float w = _i ? tn_from_f16(next) : tn_from_bf16(next);
        uint32_t here = tn_bits_f32(v), middle = tn_bits_f32((float)(((double)v + (double)w) / 2));
        uint32_t *to = x + i * EACH;
        to[0] = here, to[1] = here - 1, to[2] = here + 1;
        to[3] = middle, to[4] = middle - 1, to[5] = middle + 1;
    }
    check(shorts[_i], TN_F32, x, 65536 * EACH, 0, 0);
    free(x);
}
END_TEST

/* Floats of any bits: NaNs with payloads above and below what a short one holds, signs, subnormals,
 * numbers out of range. */
START_TEST(floats_of_any_bits)
{
    enum { N = 1 << 17 };
    uint32_t *x = malloc(N * sizeof *x);
    uint32_t state = 2463534242u;
    choose();
    for (int i = 0; i < N; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        uint32_t sign = state & 0x80000000u;
        x[i] = i % 4 == 0   ? state
               : i % 4 == 1 ? 0x7f800000u | sign | (state & (0x7fffffu >> (i / 4 % 23)))
               : i % 4 == 2 ? sign | (state & (0x7fffffu >> (i / 4 % 23)))
                            : sign | ((state % (50u << 23)) + (95u << 23)); /* around f16's range */
    }
    check(shorts[_i], TN_F32, x, N, 0, 0);
    free(x);
}
END_TEST

START_TEST(lengths_and_places)
{
    static const int64_t lengths[] = { 0, 1, 7, 8, 9, 15, 16, 17, 33, 2047, 2048, 2055, 600007 };
    float *x = malloc(600007 * sizeof *x);
    uint16_t *h = malloc(600007 * sizeof *h);
    choose();
    for (int i = 0; i < 600007; i++) {
        x[i] = (float)(i % 1000) / 7;
        h[i] = tn_to_f16(x[i]);
    }
    for (int n = 0; n < 13; n++)
        for (int lead = 0; lead < 9; lead += n == 12 ? 8 : 1)
            for (int other = 0; other < 9; other += 4) {
                check(shorts[_i], TN_F32, x, lengths[n], lead, other);
                check(TN_F32, shorts[_i], h, lengths[n], other, lead);
            }
    free(x);
    free(h);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_casts");
    TCase *t = test_case(suite, "casts");
    tcase_add_loop_test(t, every_short_number, 0, 2);
    tcase_add_loop_test(t, every_border, 0, 2);
    tcase_add_loop_test(t, floats_of_any_bits, 0, 2);
    tcase_add_loop_test(t, lengths_and_places, 0, 2);
    return suite;
}
