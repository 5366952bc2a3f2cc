#!/usr/bin/env bash
# oneDNN 2.5 to 2.6.3: the weight gradient of a dilated convolution in bf16 is wrong on processors with AMX.
#
# That 2.6.3 is wrong was known from convolutions compared with plain loops. Guess, before other versions were run: the
# fault is mended from 3.0 on. That was so; that 2.5.0 has it already was not foreseen.
# Seen on 2026-11-28 (Intel Xeon, family 6, model 207, with AMX): 2.5.0, 2.6.0 and 2.6.3 choose the kernel
# jit:avx512_core_amx_bf16 and get 13,798 of 17,280 elements wrong, by up to 649 where the largest right one is 532.
# Inputs are whole numbers from -2 to 2, so every sum is exact in f32 and any difference is an error. 3.0.0 and 3.2.0
# choose brgconv_bwd_w:avx512_core_amx and are right everywhere. With the instruction set capped below AMX
# (ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16) all five are right. There is no error and no warning in any of them.
#
# Versions: onednn-cpu-gomp 2022.0.2, 2022.2.1, 2023.0.0, 2023.2.0 from PyPI (2.5.0, 2.6.0, 3.0.0, 3.2.0), and
# libdnnl2 2.6.3-1 of Debian 12. Needs g++, pip, unzip, apt-get and a processor with AMX; without one it says so and ends with 77.
set -euo pipefail
grep -qw amx_bf16 /proc/cpuinfo || { echo 'skipped: this processor has no AMX'; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat >conv.cpp <<'CPP'
#include <cmath>
#include <cstdio>
#include <dnnl.hpp>
#include <vector>
using namespace dnnl;
using dims = memory::dims;
using type = memory::data_type;
using tag = memory::format_tag;
enum { N = 4, C = 40, O = 48, H = 32, K = 3, P = 2, D = 2 }; // images, channels, outputs, side, kernel, padding, dilation

static std::vector<float> draw(size_t n)
{
    static unsigned state = 1;
    std::vector<float> v(n);
    for (float &x : v) x = float(int((state = state * 1664525u + 1013904223u) >> 16) % 5 - 2);
    return v;
}

static float right(const float *x, const float *dy, int o, int c, int a, int b)
{
    float sum = 0;
    for (int n = 0; n < N; n++)
        for (int i = 0; i < H; i++)
            for (int j = 0; j < H; j++) {
                int u = i - P + a * D, v = j - P + b * D;
                if (u >= 0 && u < H && v >= 0 && v < H)
                    sum += x[((n * C + c) * H + u) * H + v] * dy[((n * O + o) * H + i) * H + j];
            }
    return sum;
}

int main()
{
    std::vector<float> x = draw(N * C * H * H), dy = draw(N * O * H * H), dw(O * C * K * K);
    engine cpu(engine::kind::cpu, 0);
    stream queue(cpu);
    dims images{ N, C, H, H }, outputs{ N, O, H, H }, weights{ O, C, K, K }, one{ 1, 1 }, gap{ D - 1, D - 1 }, pad{ P, P };
    memory::desc xd(images, type::bf16, tag::any), yd(outputs, type::bf16, tag::any), wd(weights, type::bf16, tag::any),
        dwd(weights, type::f32, tag::any);
    auto direct = algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
    convolution_forward::primitive_desc f(cpu, prop_kind::forward_training, direct, xd, wd, yd, one, gap, pad, pad);
    convolution_backward_weights::primitive_desc b(cpu, direct, xd, dwd, yd, one, gap, pad, pad, f);
#else
    convolution_forward::primitive_desc f({ prop_kind::forward_training, direct, xd, wd, yd, one, gap, pad, pad }, cpu);
    convolution_backward_weights::primitive_desc b({ direct, xd, dwd, yd, one, gap, pad, pad }, cpu, f);
#endif
    auto moved = [&](memory from, memory to) {
        reorder(from, to).execute(queue, from, to);
        queue.wait();
        return to;
    };
    memory mx = moved(memory({ images, type::f32, tag::nchw }, cpu, x.data()), memory(b.src_desc(), cpu));
    memory my = moved(memory({ outputs, type::f32, tag::nchw }, cpu, dy.data()), memory(b.diff_dst_desc(), cpu));
    memory mw(b.diff_weights_desc(), cpu);
    convolution_backward_weights(b).execute(
        queue, { { DNNL_ARG_SRC, mx }, { DNNL_ARG_DIFF_DST, my }, { DNNL_ARG_DIFF_WEIGHTS, mw } });
    queue.wait();
    moved(mw, memory({ weights, type::f32, tag::oihw }, cpu, dw.data()));

    int wrong = 0, at = 0;
    float most = 0, largest = 0;
    for (int o = 0; o < O; o++)
        for (int c = 0; c < C; c++)
            for (int k = 0; k < K * K; k++, at++) {
                float want = right(x.data(), dy.data(), o, c, k / K, k % K);
                wrong += dw[at] != want;
                most = std::fmax(most, std::fabs(dw[at] - want));
                largest = std::fmax(largest, std::fabs(want));
            }
    auto v = dnnl_version();
    printf("%d.%d.%d %s: %d of %d wrong, by up to %g; the largest right one is %g\n", v->major, v->minor, v->patch,
        b.impl_info_str(), wrong, at, most, largest);
    return wrong > 0;
}
CPP

failed=0
try() { # VERSION VERDICT HEADERS LIBRARIES
    local verdict=right
    g++ -O1 -I"$3" -o conv conv.cpp -L"$4" -Wl,-rpath,"$4" -l:"$(basename "$(ls "$4"/libdnnl.so.?)")"
    ./conv || verdict=wrong
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 ./conv || { echo "$1: wrong without AMX, too: that is new" && failed=1; }
    [ $verdict = "$2" ] || { echo "$1: $verdict, was $2" && failed=1; }
}
for pair in 2022.0.2:wrong 2022.2.1:wrong 2023.0.0:right 2023.2.0:right; do
    version=${pair%:*}
    for package in onednn-cpu-gomp onednn-devel-cpu-gomp; do
        pip download -q --no-deps -d "$version" "$package==$version"
    done
    for wheel in "$version"/*.whl; do unzip -qo "$wheel" -d "$version"; done
    try "$version" "${pair#*:}" "$(dirname "$(find "$PWD/$version" -path '*include/dnnl.hpp')")" \
        "$(dirname "$(find "$PWD/$version" -name libdnnl.so)")"
done
apt-get -qq download libdnnl2=2.6.3-1 libdnnl-dev=2.6.3-1 2>/dev/null
for package in ./*.deb; do dpkg -x "$package" debian; done
try 'Debian 2.6.3' wrong "$PWD/debian/usr/include" "$PWD/debian/usr/lib/x86_64-linux-gnu"
[ $failed = 0 ] && echo 'as before'
exit $failed
