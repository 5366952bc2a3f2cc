/*
 * generator.c - generator objects: the default one, the caller's, their state as bytes.
 *
 * A generator holds an MT19937 for values and a seed and counter for Philox 4x32-10, the
 * counter-based one behind dropout masks (its rounds are in philox.h, for the kernels). Each has
 * its own lock.
 */
#include "tensor/random.h"

#define DEFAULT_SEED UINT64_C(67280421310721) /* PyTorch's */

static tn_generator standard = { .lock = &tni_locks[TNI_LOCK_RANDOM] };
static pthread_once_t standard_once = PTHREAD_ONCE_INIT;

static void seed_locked(tn_generator *g, uint64_t seed)
{
    tni_mt_seed(&g->now.mt, (uint32_t)seed);
    g->now.seed = seed;
    g->now.has_normal = false;
    g->now.normal = 0.0;
    g->now.philox_seed = seed;
    g->now.philox_offset = 0;
}

static void seed_standard(void)
{
    seed_locked(&standard, DEFAULT_SEED);
}

void tni_generator_lock(const tn_generator *g)
{
    pthread_mutex_lock(g->lock);
}

void tni_generator_unlock(const tn_generator *g)
{
    pthread_mutex_unlock(g->lock);
}

tn_generator *tn_default_generator(void)
{
    pthread_once(&standard_once, seed_standard);
    return &standard;
}

void tn_manual_seed(uint64_t seed)
{
    tn_generator_seed(tn_default_generator(), seed);
}

tn_generator *tn_generator_new(uint64_t seed)
{
    tn_generator *g = tni_alloc(sizeof *g);
    if (!g) return NULL;
    pthread_mutex_init(&g->own, NULL);
    g->lock = &g->own;
    seed_locked(g, seed);
    return g;
}

void tn_generator_free(tn_generator *g)
{
    if (!g || g == &standard) return;
    pthread_mutex_destroy(&g->own);
    tni_free(g, sizeof *g);
}

void tn_generator_seed(tn_generator *g, uint64_t seed)
{
    if (!g) {
        tni_poison("tn_generator_seed", "g");
        return;
    }
    if (tni_host_refused("tn_generator_seed", "seeds a generator",
                         "it seeded before tn_capture_run"))
        return;
    tni_generator_lock(g);
    seed_locked(g, seed);
    tni_generator_unlock(g);
}

uint32_t tn_generator_u32(tn_generator *g)
{
    if (!g) {
        tni_poison("tn_generator_u32", "g");
        return 0;
    }
    if (tni_host_refused("tn_generator_u32", "draws a number on the host",
                         "it drawn into an input of tn_capture_run"))
        return 0;
    tni_generator_lock(g);
    uint32_t word = tni_mt_next(&g->now.mt);
    tni_generator_unlock(g);
    return word;
}

void tni_generator_get(const tn_generator *g, tni_generator_state *state)
{
    tni_generator_lock(g);
    *state = g->now;
    tni_generator_unlock(g);
}

void tni_generator_put(tn_generator *g, const tni_generator_state *state)
{
    tni_generator_lock(g);
    g->now = *state;
    tni_generator_unlock(g);
}

/* ---- Philox: only who gets which counters ---------------------------------------------------- */

void tni_philox_take(uint64_t n_counters, uint64_t *seed, uint64_t *offset)
{
    tn_generator *g = tn_default_generator();
    tni_generator_lock(g);
    *seed = g->now.philox_seed;
    *offset = g->now.philox_offset;
    g->now.philox_offset += n_counters;
    tni_generator_unlock(g);
}

void tni_philox_give_back(uint64_t n_counters, uint64_t seed, uint64_t offset)
{
    tn_generator *g = tn_default_generator();
    tni_generator_lock(g);
    if (g->now.philox_seed == seed && g->now.philox_offset == offset + n_counters)
        g->now.philox_offset = offset;
    tni_generator_unlock(g);
}

void tni_philox_get(uint64_t *seed, uint64_t *offset)
{
    tni_philox_take(0, seed, offset);
}

void tni_philox_set(uint64_t seed, uint64_t offset)
{
    tn_generator *g = tn_default_generator();
    tni_generator_lock(g);
    g->now.philox_seed = seed;
    g->now.philox_offset = offset;
    tni_generator_unlock(g);
}

/* ---- state as bytes, little-endian ----------------------------------------------------------- */

/*   0  "tngen" and 3 zero bytes     8  version, u32     12  used, u32     16  has_normal, u32    20
 *      zero
 *  24  seed, u64    32  normal, f64    40  Philox seed, u64    48  Philox offset, u64    56  zero,
 *      u64
 *  64  624 words, u32 each */
static const unsigned char magic[8] = "tngen";

enum { STATE_VERSION = 1, STATE_WORDS = 64 };

_Static_assert(STATE_WORDS + 4 * TNI_MT_WORDS == TN_GENERATOR_STATE_SIZE, "the layout above");

static void put_le(unsigned char *to, uint64_t value, int nbytes)
{
    for (int i = 0; i < nbytes; i++) to[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get_le(const unsigned char *from, int nbytes)
{
    uint64_t value = 0;
    for (int i = 0; i < nbytes; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

void tn_generator_get_state(const tn_generator *g, unsigned char *bytes)
{
    if (!g || !bytes) {
        tni_poison("tn_generator_get_state", g ? "bytes" : "g");
        return;
    }
    tni_generator_state s;
    tni_generator_get(g, &s);
    memset(bytes, 0, STATE_WORDS);
    memcpy(bytes, magic, sizeof magic);
    uint64_t normal;
    memcpy(&normal, &s.normal, sizeof normal);
    put_le(bytes + 8, STATE_VERSION, 4);
    put_le(bytes + 12, s.mt.used, 4);
    put_le(bytes + 16, s.has_normal, 4);
    put_le(bytes + 24, s.seed, 8);
    put_le(bytes + 32, normal, 8);
    put_le(bytes + 40, s.philox_seed, 8);
    put_le(bytes + 48, s.philox_offset, 8);
    for (int i = 0; i < TNI_MT_WORDS; i++) put_le(bytes + STATE_WORDS + 4 * i, s.mt.word[i], 4);
}

tn_status tn_generator_set_state(tn_generator *g, const unsigned char *bytes)
{
    if (!g || !bytes) return tni_poison("tn_generator_set_state", g ? "bytes" : "g");
    if (tni_host_refused("tn_generator_set_state", "sets a generator",
                         "it set before tn_capture_run"))
        return TN_E_STATE;
    uint64_t version = get_le(bytes + 8, 4);
    uint64_t used = get_le(bytes + 12, 4);
    uint64_t has_normal = get_le(bytes + 16, 4);
    uint64_t normal = get_le(bytes + 32, 8);
    if (memcmp(bytes, magic, sizeof magic) != 0)
        return tni_error(TN_E_FORMAT,
                         "tn_generator_set_state: the bytes do not begin with \"%s\": want "
                         "what tn_generator_get_state wrote",
                         (const char *)magic);
    if (version != STATE_VERSION)
        return tni_error(TN_E_FORMAT, "tn_generator_set_state: version %d: want %d", (int)version,
                         STATE_VERSION);
    if (used > TNI_MT_WORDS || has_normal > 1)
        return tni_error(TN_E_FORMAT,
                         "tn_generator_set_state: %" PRIu64 " words used, %" PRIu64
                         " normals kept: want at "
                         "most %d and 1",
                         used, has_normal, TNI_MT_WORDS);
    tni_generator_state s;
    s.mt.used = (uint32_t)used;
    s.has_normal = has_normal != 0;
    memcpy(&s.normal, &normal, sizeof normal);
    s.seed = get_le(bytes + 24, 8);
    s.philox_seed = get_le(bytes + 40, 8);
    s.philox_offset = get_le(bytes + 48, 8);
    for (int i = 0; i < TNI_MT_WORDS; i++)
        s.mt.word[i] = (uint32_t)get_le(bytes + STATE_WORDS + 4 * i, 4);
    tni_generator_put(g, &s);
    return TN_OK;
}
