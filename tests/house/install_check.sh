#!/usr/bin/env bash
# Builds the library alone, static and shared, in folders with a space, installs it below prefixes with a space,
# compiles the README's program with the command of docs/install.md and runs it without any environment; then removes
# it.
# usage: tests/house/install_check.sh     (minutes: it compiles the library twice, unless there is ccache: its folders are
#        beside build/, so that what was compiled there is found)
#
# Seen to fail: without the rpath in tenon.pc "error while loading shared libraries"; with meson's own libdir on a
# Debian without dpkg-dev "Package tenon was not found"; -Ddefault_library=static and shared were not configured.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work" "$root/build to install "*' EXIT
passed=0
good() {
    passed=$((passed + 1))
    echo "ok: $1"
}
bare() { env -i PATH=/usr/local/bin:/usr/bin:/bin "$@"; }

# The Nth fenced block of a language in FILE.
block() { # LANGUAGE N FILE
    awk -v fence="\`\`\`$1" -v wanted="$2" '
        $0 == fence && !inside { inside = 1; n++; next }
        $0 == "```" && inside { inside = 0; next }
        inside && n == wanted' "$root/$3"
}
block c 1 README.md >"$work/mine.c"
line=$(block sh 1 docs/install.md)
[[ $line == 'cc mine.c -o mine $(PKG_CONFIG_PATH='*'pkg-config --cflags --libs tenon)' ]]

# The library's message about an invalid CUDA module: where it looked. A driver it wants first: an empty one will do.
mkdir "$work/driver"
echo | cc -xc - -shared -fPIC -o "$work/driver/libcuda.so.1"
cat >"$work/why.c" <<'END'
#include <tenon/tenon.h>
int main(void)
{
    puts(tn_cuda_why());
    return tn_cuda_available();
}
END

# A program in its own folder, by that line with another prefix; eval, as that has a space.
program() { # NAME PREFIX [PACKAGE]
    (cd "$work" && bare PKG_CONFIG_PATH="$2/lib/pkgconfig" bash -euc \
        "eval cc $1.c -o $1 \"\$(pkg-config --cflags --libs ${3:-tenon})\"")
}

# A program that tells a step.
cat >"$work/told.c" <<'END'
#include <tenon/tenon.h>
int main(void)
{
    tn_scope s = tn_scope_begin();
    tn_tensor *w = tn_ones(TN_SHAPE(2));
    TN_CHECK(tn_set_requires_grad(w, true));
    TN_CHECK(tn_explain(stdout, tn_sum(tn_square(w), NULL, 0, false), (tn_explain_options){ 0 }));
    tn_scope_end(s);
    return 0;
}
END

# A program that knows language models.
cat >"$work/models.c" <<'END'
#include <tenon/tenon.h>
int main(void)
{
    if (!tn_tokenizer_load("none") && !tn_lm_load("none", (tn_lm_options){ 0 })) puts(tn_error());
    return 0;
}
END

for kind in shared static; do
    CXX=false meson setup "$work/tests $kind" "$root" -Ddefault_library=$kind -Dcuda=disabled >"$work/said"
    good "$kind: the tests are configured"
    build="$root/build to install $kind" prefix="$work/my prefix $kind"
    meson setup "$build" "$root" --buildtype=release --prefix="$prefix" -Ddefault_library=$kind -Dcuda=disabled \
        -Dtests=disabled -Dexamples=disabled -Dbench=disabled
    meson install -C "$build" --quiet
    good "$kind: installed"
    program mine "$prefix"
    (cd "$work" && bare ./mine)
    good "$kind: the README's program"
    program told "$prefix" tenon-trace
    (cd "$work" && bare ./told >said) && grep -q square "$work/said"
    good "$kind: a program that traces"
    program models "$prefix" tenon-lm
    (cd "$work" && bare ./models >said) && grep -q tn_lm_load "$work/said"
    good "$kind: a program with language models"
    bare "$prefix/bin/tenon" info >"$work/said" && grep -q '^version: ' "$work/said"
    [ -e "$prefix/share/man/man1/tenon.1" ] && [ -e "$prefix/share/bash-completion/completions/tenon" ]
    good "$kind: the command line"
    echo | cc -xc - -shared -fPIC -o "$prefix/lib/libtenon-cuda.so"
    program why "$prefix"
    bare LD_LIBRARY_PATH="$work/driver" "$work/why" | tee "$work/said"
    grep -q 'the CUDA module has no function' "$work/said"
    good "$kind: the CUDA module is looked for where the library was installed"
    rm "$prefix/lib/libtenon-cuda.so"
    if [ $kind = shared ] && command -v cmake >/dev/null; then
        { echo 'cmake_minimum_required(VERSION 3.18)' && echo 'project(mine C)' && echo 'add_executable(mine mine.c)'
          block cmake 1 docs/install.md; } >"$work/CMakeLists.txt"
        bare cmake -S "$work" -B "$work/cmake" "-DCMAKE_PREFIX_PATH=$prefix" >"$work/said"
        bare cmake --build "$work/cmake"
        (cd "$work" && bare cmake/mine)
        good 'CMake'
    fi
    ninja -C "$build" uninstall
    [ -z "$(find "$prefix" ! -type d)" ]
    good "$kind: removed"
done

# Configured as a subproject of a program built by meson.
mkdir -p "$work/super/subprojects"
ln -s "$root" "$work/super/subprojects/tenon"
cp "$work/mine.c" "$work/super"
echo "project('mine', 'c')
executable('mine', 'mine.c', dependencies: dependency('tenon', fallback: 'tenon'))
executable('told', 'mine.c', dependencies: dependency('tenon-trace', fallback: 'tenon'))" >"$work/super/meson.build"
bare meson setup "$work/super/build" "$work/super" -Dtenon:cuda=disabled
good 'a subproject'
# The project is meson's default, to debug; the last -O of each kernel's command is -O3 all the same.
kernels=$(grep '"command".*/cpu/\(real\|isa\)/' "$work/super/build/compile_commands.json")
[ "$(grep -c . <<<"$kernels")" -gt 100 ] && grep -q -- '-O0' <<<"$kernels"
[ -z "$(sed 's/.*\(-O[0-9sg]\).*/\1/' <<<"$kernels" | grep -v -- -O3)" ]
good 'a subproject: its kernels are optimised'
echo "$passed passed, 0 failed"
