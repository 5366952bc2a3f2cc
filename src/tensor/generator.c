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

enum { STATE_VERSION = 1 };

/* As they lie in memory: other hosts are refused (io/safetensors.c). */
typedef struct state_bytes {
    char magic[8];
    uint32_t version, used, has_normal, zero;
    uint64_t seed;
    double normal;
    uint64_t philox_seed, philox_offset, zeros;
    uint32_t word[TNI_MT_WORDS];
} state_bytes;

_Static_assert(sizeof(state_bytes) == TN_GENERATOR_STATE_SIZE, "no gaps in the layout above");

static const char magic[8] = "tngen";

void tn_generator_get_state(const tn_generator *g, unsigned char *bytes)
{
    if (!g || !bytes) {
        tni_poison("tn_generator_get_state", g ? "bytes" : "g");
        return;
    }
    tni_generator_state s;
    tni_generator_get(g, &s);
    state_bytes b = { .version = STATE_VERSION,
                      .used = s.mt.used,
                      .has_normal = s.has_normal,
                      .seed = s.seed,
                      .normal = s.normal,
                      .philox_seed = s.philox_seed,
                      .philox_offset = s.philox_offset };
    memcpy(b.magic, magic, sizeof magic);
    memcpy(b.word, s.mt.word, sizeof b.word);
    memcpy(bytes, &b, sizeof b);
}

tn_status tn_generator_set_state(tn_generator *g, const unsigned char *bytes)
{
    if (!g || !bytes) return tni_poison("tn_generator_set_state", g ? "bytes" : "g");
    if (tni_host_refused("tn_generator_set_state", "sets a generator",
                         "it set before tn_capture_run"))
        return TN_E_STATE;
    state_bytes b;
    memcpy(&b, bytes, sizeof b);
    if (memcmp(b.magic, magic, sizeof magic) != 0)
        return tni_error(TN_E_FORMAT,
                         "tn_generator_set_state: the bytes do not begin with \"%s\": want "
                         "what tn_generator_get_state wrote",
                         magic);
    if (b.version != STATE_VERSION)
        return tni_error(TN_E_FORMAT, "tn_generator_set_state: version %d: want %d", (int)b.version,
                         STATE_VERSION);
    if (b.used > TNI_MT_WORDS || b.has_normal > 1)
        return tni_error(TN_E_FORMAT,
                         "tn_generator_set_state: %" PRIu32 " words used, %" PRIu32
                         " normals kept: want at most %d and 1",
                         b.used, b.has_normal, TNI_MT_WORDS);
    tni_generator_state s = { .mt.used = b.used,
                              .seed = b.seed,
                              .has_normal = b.has_normal,
                              .normal = b.normal,
                              .philox_seed = b.philox_seed,
                              .philox_offset = b.philox_offset };
    memcpy(s.mt.word, b.word, sizeof b.word);
    tni_generator_put(g, &s);
    return TN_OK;
}
