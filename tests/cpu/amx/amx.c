/*
 * amx.c - AMX for processors that have none, so that what we do with tiles is tested on them: a
 * library to be preloaded. A tile instruction that the processor does not know raises SIGILL; the
 * handler decodes it and does its work, and that of those that follow at once: a signal costs more
 * than they do. The bf16 instructions alone.
 *
 * A program may ask for the tiles by arch_prctl, which goes through glibc's syscall(), which is
 * replaced here.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18
 * ("Programming with Intel AMX"), and volume 2: LDTILECFG, STTILECFG, TILELOADD, TILELOADDT1,
 * TILESTORED, TILEZERO, TILERELEASE, TDPBF16PS.
 *
 * A processor that has AMX multiplies itself (choice.h): this library then asks the system for the
 * tiles' registers and does nothing else. AMX_EMULATED=1 in the environment has it emulate there,
 * too: nobody asks, so that every use of a tile's contents raises SIGILL; tiles are configured
 * without, so the configuration is taken from the state that the system saved for the signal.
 *
 * With AMX_COUNTS=FILE in the environment a line of counts is appended to FILE when the program
 * ends: "tdpbf16ps N tileload N tilestore N config N".
 */
#include <cpuid.h>
#include <dlfcn.h>
#include <immintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "choice.h"

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

typedef struct config { /* as in memory: LDTILECFG's 64 bytes */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config;

_Static_assert(sizeof(config) == 64, "the size of a tile configuration");

static _Thread_local config configured;
static _Thread_local unsigned char tile[TILES][ROWS][ROW_BYTES];

enum { PRODUCTS, LOADS, STORES, CONFIGS, COUNTS };
static atomic_ullong counted[COUNTS];
static bool native;

/* Products of tiles that were emulated. */
__attribute__((visibility("default"))) unsigned long long amx_emulated(void)
{
    return counted[PRODUCTS];
}

/* What an emulator must not go past: where the processor would raise another fault. */
static void refuse(const char *why)
{
    char text[128];
    int n = snprintf(text, sizeof text, "amx.c: %s\n", why);
    if (write(2, text, (size_t)n) != n) _exit(98);
    _exit(99);
}

/* ---- one instruction ------------------------------------------------------------------------- */

/* Numbers of registers as in instructions, in the order of the saved ones. */
static const int saved[16] = { REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                               REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                               REG_R12, REG_R13, REG_R14, REG_R15 };

typedef struct instruction {
    int opcode, prefix; /* prefix: 0 none, 1 66, 2 F3, 3 F2 */
    int reg, rm, second;
    bool memory, sib;
    unsigned char *address;
    int64_t stride; /* of a tile's rows: the index register, scaled */
    int bytes;      /* its length */
} instruction;

/* An instruction with a three-byte VEX prefix in the map 0F38. */
static bool decode(const unsigned char *at, const greg_t *r, instruction *i)
{
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2) return false;
    int r_high = at[1] & 0x80 ? 0 : 8, x_high = at[1] & 0x40 ? 0 : 8, b_high = at[1] & 0x20 ? 0 : 8;
    int mod = at[4] >> 6, low = at[4] & 7;
    *i = (instruction){ .opcode = at[3],
                        .prefix = at[2] & 3,
                        .second = ~(at[2] >> 3) & 15,
                        .reg = (at[4] >> 3 & 7) | r_high,
                        .rm = low | b_high,
                        .memory = mod != 3,
                        .sib = mod != 3 && low == 4,
                        .bytes = 5 };
    if (!i->memory) return true;
    int64_t base = 0;
    if (i->sib) {
        int sib = at[i->bytes++], index = (sib >> 3 & 7) | x_high;
        if (index != 4) i->stride = (int64_t)((uint64_t)r[saved[index]] << (sib >> 6));
        low = sib & 7;
    }
    bool no_base = mod == 0 && low == 5;
    if (!no_base) base = r[saved[low | b_high]];
    int displacement = mod == 1 ? 1 : mod == 2 || no_base ? 4 : 0;
    if (displacement == 1) base += (signed char)at[i->bytes];
    if (displacement == 4) {
        int32_t wide;
        memcpy(&wide, at + i->bytes, 4);
        base += wide;
    }
    i->bytes += displacement;
    if (no_base && !i->sib) base += (int64_t)(uintptr_t)at + i->bytes; /* RIP of the next one */
    i->address = (unsigned char *)(uintptr_t)base;
    return true;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static void configure(const config *wanted)
{
    if (wanted->palette > 1) refuse("a palette other than 0 and 1");
    if (wanted->start_row) refuse("a tile load that starts anew within a tile");
    for (int t = 0; t < TILES; t++)
        if (wanted->rows[t] > ROWS || wanted->row_bytes[t] > ROW_BYTES)
            refuse("a tile of more than 16 rows of 64 bytes");
    configured = *wanted;
    memset(tile, 0, sizeof tile);
    counted[CONFIGS]++;
}

/* The processor's own configuration, where it has one: the system saves the registers before the
 * handler, as XSAVE does, says in a word of its own which (volume 1, chapter 13, and Linux's
 * _fpx_sw_bytes), and a second word which of them are not as at first. */
static void configure_from(const unsigned char *state)
{
    enum { SYSTEM = 464, MAGIC = 0x46505853, KINDS = SYSTEM + 8, CHANGED = 512, TILE_CONFIG = 17 };
    uint32_t magic;
    uint64_t kinds, changed;
    unsigned size, offset, c, d;
    memcpy(&magic, state + SYSTEM, sizeof magic);
    memcpy(&kinds, state + KINDS, sizeof kinds);
    if (magic != MAGIC || !(kinds >> TILE_CONFIG & 1)) return;
    memcpy(&changed, state + CHANGED, sizeof changed);
    __cpuid_count(0xd, TILE_CONFIG, size, offset, c, d);
    config now = { 0 };
    if (changed >> TILE_CONFIG & 1) memcpy(&now, state + offset, sizeof now);
    if (memcmp(&now, &configured, sizeof now) != 0) configure(&now);
}

static int usable(int t)
{
    if (!configured.palette || t >= TILES || !configured.rows[t] || !configured.row_bytes[t])
        refuse("a tile that is not configured");
    return t;
}

static void load(const instruction *i)
{
    int t = usable(i->reg);
    memset(tile[t], 0, sizeof tile[t]);
    for (int row = 0; row < configured.rows[t]; row++)
        memcpy(tile[t][row], i->address + row * i->stride, configured.row_bytes[t]);
    counted[LOADS]++;
}

static void store(const instruction *i)
{
    int t = usable(i->reg);
    for (int row = 0; row < configured.rows[t]; row++)
        memcpy(i->address + row * i->stride, tile[t][row], configured.row_bytes[t]);
    counted[STORES]++;
}

/* The even and the odd bf16 of a row of a tile as f32, denormals as 0. */
static void widen(const unsigned char *row, float *even, float *odd)
{
    for (int k = 0; k < ROWS; k++) {
        uint32_t pair, low, high;
        memcpy(&pair, row + 4 * k, 4);
        low = pair << 16 & (pair & 0x7f80 ? 0xffff0000 : 0x80000000);
        high = pair & (pair & 0x7f800000 ? 0xffff0000 : 0x80000000);
        memcpy(even + k, &low, 4);
        memcpy(odd + k, &high, 4);
    }
}

/* TDPBF16PS: C[m,n] += sum over k of A[m,2k] B[k,2n] + A[m,2k+1] B[k,2n+1], even and odd products
 * in sums of their own. All 16 columns are computed, as a vector; n are kept. */
static __attribute__((noinline)) void multiply_flushing(const instruction *i)
{
    int c = usable(i->reg), a = usable(i->rm), b = usable(i->second);
    int m = configured.rows[c], n = configured.row_bytes[c] / 4, k = configured.row_bytes[a] / 4;
    float even_b[ROWS][ROWS], odd_b[ROWS][ROWS], even_a[ROWS], odd_a[ROWS];
    if (configured.rows[a] != m || configured.rows[b] != k || configured.row_bytes[b] != 4 * n)
        refuse("tdpbf16ps of tiles whose sizes do not fit");
    for (int j = 0; j < k; j++) widen(tile[b][j], even_b[j], odd_b[j]);
    for (int row = 0; row < m; row++) {
        float even[ROWS] = { 0 }, odd[ROWS] = { 0 }, sum[ROWS];
        widen(tile[a][row], even_a, odd_a);
        for (int j = 0; j < k; j++)
            for (int col = 0; col < ROWS; col++) {
                even[col] = __builtin_fmaf(even_a[j], even_b[j][col], even[col]);
                odd[col] = __builtin_fmaf(odd_a[j], odd_b[j][col], odd[col]);
            }
        memcpy(sum, tile[c][row], sizeof sum);
        for (int col = 0; col < ROWS; col++) sum[col] += even[col] + odd[col];
        memset(tile[c][row], 0, ROW_BYTES);
        memcpy(tile[c][row], sum, (size_t)n * 4);
    }
    for (int row = m; row < ROWS; row++) memset(tile[c][row], 0, ROW_BYTES);
    counted[PRODUCTS]++;
}

/* To nearest even, and denormal results are 0, whatever the program has set. */
static void multiply(const instruction *i)
{
    enum { NO_EXCEPTIONS_FLUSHED = 0x9fc0 };
    unsigned before = _mm_getcsr();
    _mm_setcsr(NO_EXCEPTIONS_FLUSHED);
    multiply_flushing(i);
    _mm_setcsr(before);
}

static bool run(const instruction *i)
{
    enum { NONE, P66, PF3, PF2 };
    int what = i->opcode << 4 | i->prefix << 1 | i->memory;
    switch (what) {
    case 0x49 << 4 | NONE << 1 | 1: configure((const config *)i->address); return true;
    case 0x49 << 4 | P66 << 1 | 1: memcpy(i->address, &configured, sizeof configured); return true;
    case 0x49 << 4 | NONE << 1 | 0: configured = (config){ 0 }; return true;
    case 0x49 << 4 | PF2 << 1 | 0: memset(tile[usable(i->reg)], 0, sizeof tile[0]); return true;
    case 0x4b << 4 | PF2 << 1 | 1:
    case 0x4b << 4 | P66 << 1 | 1: load(i); return i->sib;
    case 0x4b << 4 | PF3 << 1 | 1: store(i); return i->sib;
    case 0x5c << 4 | PF3 << 1 | 0: multiply(i); return true;
    default: return false;
    }
}

/* Whether it has to do with the configuration: a processor with AMX does that itself. */
static bool configures(const instruction *i)
{
    return i->opcode == 0x49 && i->prefix < 2;
}

/* ---- the way in ------------------------------------------------------------------------------ */

static void on_illegal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    instruction i;
    configure_from((const unsigned char *)((ucontext_t *)context)->uc_mcontext.fpregs);
    if (!decode((const unsigned char *)(uintptr_t)r[REG_RIP], r, &i) || !run(&i))
        refuse("an instruction that neither this processor nor this file knows");
    do r[REG_RIP] += i.bytes;
    while (decode((const unsigned char *)(uintptr_t)r[REG_RIP], r, &i) && !configures(&i) &&
           run(&i));
}

/* The permission to use tiles (Documentation/arch/x86/xstate.rst of Linux): 17 and 18 are the bits
 * of their state. */
__attribute__((visibility("default"))) long syscall(long number, ...)
{
    enum { GET_SUPPORTED = 0x1021, GET = 0x1022 };
    static long (*next)(long, ...);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    va_list list;
    long a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (native || number != SYS_arch_prctl || a[0] < GET_SUPPORTED || a[0] > REQUEST)
        return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (a[0] != REQUEST) *(uint64_t *)(uintptr_t)a[1] = 1u << 17 | 1u << 18 | 0xe7;
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    native = true; /* so that it is the system that answers */
    native = amx_is_native(getenv("AMX_EMULATED"), amx_processor(), amx_request);
    if (native) return;
    struct sigaction action = { .sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigaction(SIGILL, &action, NULL);
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("AMX_COUNTS");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "tdpbf16ps %llu tileload %llu tilestore %llu config %llu\n", counted[PRODUCTS],
            counted[LOADS], counted[STORES], counted[CONFIGS]);
    fclose(f);
}
