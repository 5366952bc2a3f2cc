/*
 * pick.c - the parts of arguments, one number or pointer at a time: sound, or one of the odd values
 * that users pass by mistake.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "draw.h"
#include "pool.h"

uint64_t chance(world *w) /* splitmix64 */
{
    uint64_t z = w->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t below(world *w, int64_t n)
{
    return n > 0 ? (int64_t)(chance(w) % (uint64_t)n) : 0;
}

/* Which odd value this part takes; -1: none, it is sound. */
static int odd(world *w, int ways)
{
    if (w->mode == WILD) return below(w, 5) == 0 ? (int)below(w, ways) : -1;
    if (w->mode == SWEEP && w->drawn++ == w->cut) {
        w->ways = ways;
        return w->way < ways ? w->way : -1;
    }
    return -1;
}

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

int64_t pick_long(world *w, int64_t low, int64_t high)
{
    static const int64_t values[] = { 0,
                                      -1,
                                      1,
                                      2,
                                      -2,
                                      7,
                                      -100,
                                      1000,
                                      INT32_MAX,
                                      INT32_MIN,
                                      1LL << 31,
                                      1LL << 32,
                                      1LL << 40,
                                      1LL << 61,
                                      1LL << 62,
                                      6148914691236517206,
                                      INT64_MAX,
                                      INT64_MIN,
                                      INT64_MAX - 1 };
    int way = odd(w, COUNT(values));
    return way >= 0 ? values[way] : low + below(w, high - low + 1);
}

int pick_int(world *w, int low, int high)
{
    static const int values[] = { 0,   -1,      1,       2,       -2,         8,
                                  9,   -9,      1000,    INT_MAX, INT_MIN,    INT_MAX - 1,
                                  100, 1 << 30, 1 << 16, -100,    INT_MIN + 1 };
    int way = odd(w, COUNT(values));
    return way >= 0 ? values[way] : low + (int)below(w, (int64_t)high - low + 1);
}

double pick_real(world *w, double low, double high)
{
    static const double values[] = {
        0,     -0.0, -1,   1,     NAN,  INFINITY, -INFINITY, 1e308, -1e308,       1e-310,
        1e-45, 2,    -0.5, 65505, 1e39, 9.3e18,   -9.3e18,   0.1,   4294967296.0, 1e10
    };
    int way = odd(w, COUNT(values));
    /* steps of 1/64: the same on every machine, whatever it keeps more digits in */
    return way >= 0 ? values[way] : low + (high - low) * (double)below(w, 65) / 64;
}

bool pick_bool(world *w)
{
    return below(w, 2);
}

int pick_enum(world *w, int n)
{
    int values[] = { -1, n, 99, 0, INT_MAX };
    int way = odd(w, COUNT(values));
    return way >= 0 ? values[way] : (int)below(w, n);
}

void *pick_pointer(world *w, void *sound)
{
    return odd(w, 1) >= 0 ? NULL : sound;
}

const char *pick_text(world *w, const char *sound)
{
    static const char long_text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    static const char *const values[] = { NULL,       "",     ".",    "a.b.c",    "forward",
                                          "training", "%s%n", "...",  "\xff\xfe", long_text,
                                          "0",        "pt",   "a\nb", "tenon.",   "\"\\" };
    int way = odd(w, COUNT(values));
    return way >= 0 ? values[way] : sound;
}

tn_shape pick_shape(world *w)
{
    static const tn_shape odd_shapes[] = {
        { 0, { 0 } },
        { 1, { 0 } },
        { 3, { 2, 0, 3 } },
        { 8, { 1, 2, 1, 1, 2, 1, 1, 2 } },
        { 12, { 1, 1, 1, 1, 1, 1, 1, 1 } },
        { -1, { 0 } },
        { 9, { 1, 1, 1, 1, 1, 1, 1, 1 } },
        { INT_MAX, { 1 } },
        { INT_MIN, { 1 } },
        { 2, { 2, 1LL << 62 } },
        { 2, { 3, 6148914691236517206 } },
        { 2, { 1LL << 32, 1LL << 32 } },
        { 3, { 0, 1LL << 62, 1LL << 62 } },
        { 1, { INT64_MAX } },
        { 1, { -1 } },
        { 2, { INT64_MIN, 2 } },
        { 2, { -1, -1 } },
        { 1, { 1LL << 28 } },
    };
    int way = odd(w, COUNT(odd_shapes));
    if (way >= 0) return odd_shapes[way];
    tn_shape shape = { (int)below(w, 4), { 0 } };
    for (int i = 0; i < shape.rank; i++) shape.size[i] = pick_long(w, 1, 4);
    return shape;
}

/* One of the many tensors that a call does not expect. */
static tn_tensor *odd_tensor(world *w, int way)
{
    static const tn_shape shapes[] = { { 0, { 0 } },          { 1, { 0 } },
                                       { 2, { 0, 3 } },       { 4, { 2, 0, 4, 4 } },
                                       { 4, { 0, 2, 4, 4 } }, { 8, { 1, 2, 1, 1, 2, 1, 1, 2 } },
                                       { 1, { 1 } },          { 3, { 2, 3, 2 } } };
    if (way == 0) return NULL;
    if (way == 1) return TN_NONE;
    way -= 2;
    if (way < COUNT(shapes)) return make_tensor(w, shapes[way], TN_F32, PLAIN);
    way -= COUNT(shapes);
    if (way < 8) return make_tensor(w, TN_SHAPE(2, 3), (tn_dtype)way, PLAIN);
    way -= 8;
    if (way < LAYOUTS) return make_tensor(w, TN_SHAPE(2, 3), TN_F32, way);
    way -= LAYOUTS;
    if (way == 0) return tn_full(TN_SHAPE(2, 3), NAN);
    if (way == 1) return make_leaf(w, TN_SHAPE(2, 3), TN_F32);
    if (way == 2) return make_tensor(w, TN_SHAPE(70, 300), TN_F32, PLAIN);
    return any_tensor(w);
}
enum { ODD_TENSORS = 2 + 8 + 8 + LAYOUTS + 4 };

tn_tensor *pick_tensor(world *w, tn_tensor *sound)
{
    int way = odd(w, ODD_TENSORS);
    return way >= 0 ? odd_tensor(w, way) : sound;
}

int pick_count(world *w, int have, bool there)
{
    static const int values[] = { 0, -1, INT_MIN, -100, 1, INT_MAX, 1 << 30, 2 };
    int way = odd(w, COUNT(values));
    if (way < 0) return have;
    return there && values[way] > have ? have : values[way];
}

void *scratch(world *w, size_t size)
{
    if (w->n_scratch == SCRATCH) abort();
    void *memory = calloc(1, size ? size : 1);
    if (!memory) abort();
    return w->scratch[w->n_scratch++] = memory;
}
