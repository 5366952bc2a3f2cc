/*
 * random.cpp - cuRAND's host functions: number i is a hash (splitmix64) of seed and offset + i.
 */
#include "curand.h"

#include "internal.h"

struct cuda_host_random {
    unsigned long long seed, offset;
};

#define CALL                                                                                       \
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);                                   \
    if (cuda_host::fails(__func__)) return CURAND_STATUS_LAUNCH_FAILURE

static uint64_t hash(unsigned long long seed, unsigned long long i)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + i;

    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* (0, 1] */
static double uniform(unsigned long long seed, unsigned long long i)
{
    return (static_cast<double>(hash(seed, i) >> 40) + 1.0) * 0x1p-24;
}

template <class T, class F>
static curandStatus_t generate(curandGenerator_t g, T *to, size_t n, F value)
{
    unsigned long long seed = g->seed;
    unsigned long long offset = g->offset;

    if (cuda_host::captured(nullptr)) {
        cuda_host::refuse_in_capture("cuRAND");
        return CURAND_STATUS_LAUNCH_FAILURE;
    }
    g->offset += n;
    cuda_host::enqueue([=]() {
        for (size_t i = 0; i < n; i++) to[i] = static_cast<T>(value(seed, offset + i));
    });
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandCreateGenerator(curandGenerator_t *generator, curandRngType_t type)
{
    CALL;
    (void)type;
    *generator = new cuda_host_random();
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandDestroyGenerator(curandGenerator_t generator)
{
    CALL;
    delete generator;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream)
{
    CALL;
    (void)generator;
    (void)stream;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator,
                                                  unsigned long long seed)
{
    CALL;
    generator->seed = seed;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator, unsigned long long offset)
{
    CALL;
    generator->offset = offset;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetGeneratorOrdering(curandGenerator_t generator, curandOrdering_t order)
{
    CALL;
    (void)generator;
    (void)order;
    return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandGenerate(curandGenerator_t generator, unsigned *to, size_t n)
{
    CALL;
    return generate(generator, to, n, [](unsigned long long s, unsigned long long i) {
        return static_cast<unsigned>(hash(s, i) >> 32);
    });
}

curandStatus_t curandGenerateUniform(curandGenerator_t generator, float *to, size_t n)
{
    CALL;
    return generate(generator, to, n, uniform);
}

curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double *to, size_t n)
{
    CALL;
    return generate(generator, to, n, uniform);
}

/* Box and Muller (1958), from numbers 2 i and 2 i + 1 of another stream. */
static double normal(unsigned long long seed, unsigned long long i)
{
    double r = std::sqrt(-2.0 * std::log(uniform(~seed, 2 * i)));
    return r * std::cos(6.28318530717958647692 * uniform(~seed, 2 * i + 1));
}

template <class T>
static curandStatus_t normals(curandGenerator_t generator, T *to, size_t n, T mean, T deviation)
{
    if (n % 2) return CURAND_STATUS_LENGTH_NOT_MULTIPLE;
    return generate(generator, to, n, [=](unsigned long long s, unsigned long long i) {
        return mean + deviation * static_cast<T>(normal(s, i));
    });
}

curandStatus_t curandGenerateNormal(curandGenerator_t generator, float *to, size_t n, float mean,
                                    float deviation)
{
    CALL;
    return normals(generator, to, n, mean, deviation);
}

curandStatus_t curandGenerateNormalDouble(curandGenerator_t generator, double *to, size_t n,
                                          double mean, double deviation)
{
    CALL;
    return normals(generator, to, n, mean, deviation);
}
