/* numbers.c - numbers read, written, drawn, and kept where a wrong access is seen (numbers.h). */
#include "numbers.h"

#include <sys/mman.h>
#include <unistd.h>

void number_set(void *data, tn_dtype dtype, int64_t i, double v)
{
    switch (dtype) {
    case TN_F32: ((float *)data)[i] = (float)v; break;
    case TN_F64: ((double *)data)[i] = v; break;
    case TN_BF16: ((uint16_t *)data)[i] = tn_to_bf16((float)v); break;
    case TN_F16: ((uint16_t *)data)[i] = tn_to_f16((float)v); break;
    case TN_I64: ((int64_t *)data)[i] = (int64_t)v; break;
    case TN_I32: ((int32_t *)data)[i] = (int32_t)v; break;
    case TN_U8: ((uint8_t *)data)[i] = (uint8_t)(int64_t)v; break;
    case TN_BOOL: ((uint8_t *)data)[i] = v != 0.0; break;
    }
}

uint64_t number_seed = 1;

double number_in(double low, double high)
{
    number_seed ^= number_seed >> 12;
    number_seed ^= number_seed << 25;
    number_seed ^= number_seed >> 27;
    double part = (double)((number_seed * UINT64_C(2685821657736338717)) >> 11) * 0x1p-53;
    return low + (high - low) * part;
}

static struct {
    char *start, *p;
    size_t size;
} blocks[64];
static int n_blocks;

void *guarded(int64_t n, size_t item)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)n * item;
    size_t size = (bytes + page - 1) / page * page + 2 * page;
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(start != MAP_FAILED && n_blocks < (int)(sizeof blocks / sizeof *blocks));
    ck_assert_int_eq(mprotect(start + size - page, page, PROT_NONE), 0);
    blocks[n_blocks].start = start, blocks[n_blocks].size = size;
    return blocks[n_blocks++].p = start + size - page - bytes;
}

void guarded_free(int left)
{
    while (n_blocks > left) {
        n_blocks--;
        for (char *p = blocks[n_blocks].start; p < blocks[n_blocks].p; p++)
            if (*p) ck_abort_msg("written before the beginning of a block");
        munmap(blocks[n_blocks].start, blocks[n_blocks].size);
    }
}

int guarded_made(void)
{
    return n_blocks;
}
