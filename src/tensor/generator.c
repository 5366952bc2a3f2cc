/*
 * generator.c - generator objects: the default one, the caller's, their state as bytes.
 *
 * A generator holds an MT19937 for values and a seed and counter for Philox 4x32-10, the
 * counter-based one behind dropout masks (its rounds are in philox.h, for the kernels). Each has
 * its own lock.
 */
#include "tensor/random.h"

#define DEFAULT_SEED UINT64_C(67280421310721) /* PyTorch's */

static const char magic[8] = "tngen";
enum { VERSION = 1 };

static tn_generator standard = { .lock = &tni_locks[TNI_LOCK_RANDOM] };
static pthread_once_t standard_once = PTHREAD_ONCE_INIT;

static void seed_locked(tn_generator *g, uint64_t seed)
{
    g->now = (tni_generator_state){ .version = VERSION, .seed = seed, .philox_seed = seed };
    memcpy(g->now.magic, magic, sizeof magic);
    tni_mt_seed(&g->now, (uint32_t)seed);
}

static void seed_standard(void)
{
    seed_locked(&standard, DEFAULT_SEED);
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
        tni_poison(__func__, "g");
        return;
    }
    if (tni_host_refused(__func__, "seeds a generator", "it seeded before tn_capture_run")) return;
    tni_generator_lock(g);
    seed_locked(g, seed);
    tni_generator_unlock(g);
}

uint32_t tn_generator_u32(tn_generator *g)
{
    if (!g) return tni_poison("tn_generator_u32", "g"), 0;
    if (tni_host_refused("tn_generator_u32", "draws a number on the host",
                         "it drawn into an input of tn_capture_run"))
        return 0;
    tni_generator_lock(g);
    uint32_t word = tni_mt_next(&g->now);
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

void tni_philox_set(uint64_t seed, uint64_t offset)
{
    tn_generator *g = tn_default_generator();
    tni_generator_lock(g);
    g->now.philox_seed = seed;
    g->now.philox_offset = offset;
    tni_generator_unlock(g);
}

/* ---- state as bytes -------------------------------------------------------------------------- */

_Static_assert(sizeof(tni_generator_state) == TN_GENERATOR_STATE_SIZE, "no gaps in its layout");

void tn_generator_get_state(const tn_generator *g, unsigned char *bytes)
{
    if (!g || !bytes) {
        tni_poison("tn_generator_get_state", g ? "bytes" : "g");
        return;
    }
    tni_generator_lock(g);
    memcpy(bytes, &g->now, sizeof g->now);
    tni_generator_unlock(g);
}

tn_status tn_generator_set_state(tn_generator *g, const unsigned char *bytes)
{
    if (!g || !bytes) return tni_poison(__func__, g ? "bytes" : "g");
    if (tni_host_refused(__func__, "sets a generator", "it set before tn_capture_run"))
        return TN_E_STATE;
    tni_generator_state s;
    memcpy(&s, bytes, sizeof s);
    if (memcmp(s.magic, magic, sizeof magic) != 0)
        return tni_error(TN_E_FORMAT,
                         "tn_generator_set_state: the bytes do not begin with \"%s\": want "
                         "what tn_generator_get_state wrote",
                         magic);
    if (s.version != VERSION)
        return tni_error(TN_E_FORMAT, "tn_generator_set_state: version %d: want %d", (int)s.version,
                         VERSION);
    if (s.used > TNI_MT_WORDS || s.has_normal > 1)
        return tni_error(TN_E_FORMAT,
                         "tn_generator_set_state: %" PRIu32 " words used, %" PRIu32
                         " normals kept: want at most %d and 1",
                         s.used, s.has_normal, TNI_MT_WORDS);
    s.zero = 0, s.zeros = 0;
    tni_generator_put(g, &s);
    return TN_OK;
}
