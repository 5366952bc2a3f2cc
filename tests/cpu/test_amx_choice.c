/*
 * test_amx_choice.c - the choice between this processor's tiles and emulated ones, which the tests
 * of AMX's kernels rest on. It is run twice with amx/amx.c preloaded: as it chooses by itself, and
 * with AMX_EMULATED=1.
 *
 * Seen to fail: with the configuration not taken from the signal's state, or the environment not
 * asked, on a processor with AMX; with the system not asked.
 */
#include <dlfcn.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "amx/choice.h"
#include "common.h"

static int asked;

static long gives(void)
{
    asked++;
    return 0;
}

static long refuses(void)
{
    asked++;
    return -1;
}

START_TEST(native_where_processor_and_system_are_willing)
{
    const unsigned both = AMX_BF16 | AMX_TILE;
    ck_assert(amx_is_native(NULL, both, gives));
    ck_assert(!amx_is_native(NULL, both, refuses));
    ck_assert_int_eq(asked, 2);
    ck_assert(!amx_is_native("1", both, gives));
    ck_assert(!amx_is_native(NULL, AMX_TILE, gives));
    ck_assert(!amx_is_native(NULL, AMX_BF16, gives));
    ck_assert(!amx_is_native(NULL, 0, gives));
    ck_assert_int_eq(asked, 2);
}
END_TEST

/* Rows and bytes differ from tile to tile; a second configuration follows the first. */
static void multiply_tiles(int m, int n, int k)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } sizes = { 1,
                0,
                { 0 },
                { (uint16_t)(4 * n), (uint16_t)(4 * k), (uint16_t)(4 * n) },
                { (uint8_t)m, (uint8_t)m, (uint8_t)k } };
    uint16_t a[16][32] = { 0 }, b[16][32] = { 0 };
    float c[16][16] = { 0 };
    for (int i = 0; i < m; i++)
        for (int j = 0; j < 2 * k; j++) a[i][j] = (uint16_t)(0x3f80 + 0x80 * ((i + j) % 3));
    for (int i = 0; i < k; i++)
        for (int j = 0; j < 2 * n; j++) b[i][j] = (uint16_t)(0x3f80 + 0x80 * ((i + 2 * j) % 3));
    _tile_loadconfig(&sizes);
    _tile_zero(0);
    _tile_loadd(1, a, 64);
    _tile_loadd(2, b, 64);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, c, 64);
    _tile_release();
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float sum = 0;
            for (int s = 0; s < 2 * k && i < m && j < n; s++)
                sum += (float)(1 << (i + s) % 3) * (float)(1 << (s / 2 + 2 * (2 * j + s % 2)) % 3);
            ck_assert_msg(c[i][j] == sum, "[%d, %d]: got %g, want %g", i, j, (double)c[i][j],
                          (double)sum);
        }
}

/* The kernel's list of features is the independent word on processor and system. */
static bool tiles_are_here(void)
{
    char line[8192] = "";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f) && strncmp(line, "flags", 5) != 0) continue;
    if (f) fclose(f);
    return strstr(line, " amx_bf16") != NULL;
}

START_TEST(tiles_multiply_either_way)
{
    unsigned long long (*emulated)(void) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "amx_emulated");
    ck_assert_msg(symbol != NULL, "amx.c is not preloaded");
    memcpy(&emulated, &symbol, sizeof emulated);
    bool native = tiles_are_here() && !getenv("AMX_EMULATED");
    multiply_tiles(16, 16, 16);
    multiply_tiles(5, 7, 3);
    multiply_tiles(16, 16, 16);
    ck_assert_uint_eq(emulated(), native ? 0 : 3);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("amx_choice");
    TCase *t = test_case(suite, "choice");
    tcase_add_test(t, native_where_processor_and_system_are_willing);
    tcase_add_test(t, tiles_multiply_either_way);
    return suite;
}
