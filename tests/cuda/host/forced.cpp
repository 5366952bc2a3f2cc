/*
 * forced.cpp - calls that fail because a test asks for it, and counts of all calls by name.
 *
 * TN_CUDA_FAIL=n in the environment makes the n-th call fail, TN_CUDA_FAIL_SHOW=1 says so on
 * stderr, TN_CUDA_FAILED=file gets the name of each function and each launched kernel that failed
 * on request, once.
 */
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "internal.h"

namespace cuda_host {

static long long asked()
{
    const char *text = std::getenv("TN_CUDA_FAIL");
    return text ? std::atoll(text) : 0;
}

static long long calls, fail_at = asked();
static bool breaks;      /* the failing call breaks the device, for good */
static cudaError_t with; /* what the call that fails says; cudaSuccess: its own error */
static std::map<std::string, long long> calls_of;
static std::string failed_name;

static void note(const char *function)
{
    static std::set<std::string> seen;
    const char *path = std::getenv("TN_CUDA_FAILED");

    if (!path || !seen.insert(function).second) return;
    std::FILE *file = std::fopen(path, "a");
    if (!file) return;
    std::fprintf(file, "%s\n", function);
    std::fclose(file);
}

bool fails(const char *function, const char *kernel)
{
    calls++;
    calls_of[function]++;
    if (calls != fail_at) {
        if (is_lost()) note(function);
        return is_lost();
    }
    fail_at = 0;
    failed_name = kernel ? kernel : function;
    note(function);
    if (kernel) note(kernel);
    if (std::getenv("TN_CUDA_FAIL_SHOW")) {
        std::fprintf(stderr, "cuda_host: call %lld, %s, fails as asked\n", calls,
                     failed_name.c_str());
    }
    if (breaks) set_fault("the device broke as asked", true);
    return true;
}

cudaError_t forced_error()
{
    cudaError_t error = fail_at ? cudaSuccess : with;
    if (error != cudaSuccess) with = cudaSuccess;
    return error;
}

} /* namespace cuda_host */

/* ---- for tests ------------------------------------------------------------------------------- */

#define EXPORTED extern "C" __attribute__((visibility("default")))

typedef std::lock_guard<std::recursive_mutex> guard;

EXPORTED long long cuda_host_calls(void)
{
    return cuda_host::calls;
}

/* Of one function; launches are "launch". */
EXPORTED long long cuda_host_calls_of(const char *function)
{
    guard hold(cuda_host::lock);
    return cuda_host::calls_of[function];
}

static void fail_later(long long n, bool breaks)
{
    guard hold(cuda_host::lock);
    cuda_host::fail_at = n > 0 ? cuda_host::calls + n : 0;
    cuda_host::breaks = breaks;
    cuda_host::with = cudaSuccess;
    cuda_host::failed_name.clear();
}

EXPORTED void cuda_host_fail(long long n)
{
    fail_later(n, false);
}

/* Call number n from now, of the runtime, fails with this error. */
EXPORTED void cuda_host_fail_with(long long n, int error)
{
    guard hold(cuda_host::lock);
    fail_later(n, false);
    cuda_host::with = static_cast<cudaError_t>(error);
}

/* Call number n from now finds the device broken: it fails, and so does every call after it. */
EXPORTED void cuda_host_break(long long n)
{
    fail_later(n, true);
}

/* The function that failed on request since the last cuda_host_fail or cuda_host_break (a launch:
 * its kernel); "": none. */
EXPORTED const char *cuda_host_failed(void)
{
    return cuda_host::failed_name.c_str();
}
