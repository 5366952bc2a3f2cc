/*
 * resample.cu - planes whose rows and columns are sums of others by taps (tni_resample). A thread
 * computes one element, in the order of the taps.
 *
 * The taps come from the host. A step that is captured takes them along as arguments of kernels:
 * what an upload reads would be gone when the step runs again.
 */
#include <cstring>

#include "cuda/capture.h"
#include "cuda/rows.h"

enum { BLOCK = 256 };

struct parcel {
    char bytes[3072];
};

static __global__ void unpack(char *to, parcel from, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from.bytes[i];
}

static tn_status send(char *to, const char *from, size_t nbytes)
{
    if (!tni_cuda_capturing()) return tni_cuda_upload(to, from, nbytes);
    for (size_t at = 0; at < nbytes; at += sizeof(parcel)) {
        parcel part;
        int n = static_cast<int>(nbytes - at < sizeof part ? nbytes - at : sizeof part);
        std::memcpy(part.bytes, from + at, static_cast<size_t>(n));
        if (tn_status failed = TN_LAUNCH(unpack, 1, BLOCK, 0, to + at, part, n)) return failed;
    }
    return TN_OK;
}

template <typename R, typename D>
static __global__ void __launch_bounds__(BLOCK)
    resample(R *__restrict__ y, const R *__restrict__ x, typename D::index n, D height, D width,
             int64_t plane, tni_taps rows, tni_taps columns)
{
    typedef typename D::index I;
    const R *down = static_cast<const R *>(rows.weight);
    const R *across = static_cast<const R *>(columns.weight);
    for (I at = blockIdx.x * (I)BLOCK + threadIdx.x; at < n; at += gridDim.x * (I)BLOCK) {
        I line = width.divide(at), j = width.rest(at, line);
        I image = height.divide(line), i = height.rest(line, image);
        R total = 0;
        for (int r = rows.first[i]; r < rows.first[i + 1]; r++) {
            const R *from = x + image * plane + rows.at[r] * rows.step;
            R sum = 0;
            if (columns.n == 0) sum = from[j];
            for (int c = columns.n ? columns.first[j] : 0,
                     end = columns.n ? columns.first[j + 1] : 0;
                 c < end; c++)
                sum += across[c] * from[columns.at[c]];
            total += down[r] * sum;
        }
        y[at] = total;
    }
}

/* The same taps, their table being at `to`. */
static tni_taps moved(tni_taps t, const void *table, const char *to)
{
    const char *from = static_cast<const char *>(table);
    if (t.n == 0) return t;
    t.first =
        reinterpret_cast<const int32_t *>(to + (reinterpret_cast<const char *>(t.first) - from));
    t.at = reinterpret_cast<const int32_t *>(to + (reinterpret_cast<const char *>(t.at) - from));
    t.weight = to + (static_cast<const char *>(t.weight) - from);
    return t;
}

template <typename R> static tn_status run(const tni_resample *a, const char *table)
{
    int64_t n = a->y.size[0] * a->y.size[1] * a->y.size[2];
    tni_taps rows = moved(a->rows, a->table, table), columns = moved(a->columns, a->table, table);
    return BY_DIVISOR(n, TN_LAUNCH((resample<R, D>), tni_cuda_blocks(n, BLOCK, 65535), BLOCK, 0,
                                   (R *)a->y.data, (const R *)a->x.data,
                                   static_cast<typename D::index>(n), D(a->y.size[1]),
                                   D(a->y.size[2]), a->x.size[1], rows, columns));
}

tn_status tni_cuda_resample(const tni_resample *a)
{
    tni_cuda_scratch table;
    if (a->y.size[0] * a->y.size[1] * a->y.size[2] == 0) return TN_OK;
    if (tn_status failed = table.borrow(a->table_bytes)) return failed;
    if (tn_status failed =
            send(table.as<char>(), static_cast<const char *>(a->table), a->table_bytes))
        return failed;
    return TN_REAL(a->x.dtype, run<R>(a, table.as<const char>()));
}
