#!/usr/bin/env bash
# tn_set_lines: a program with debug information, linked with the shared library and with the static one, names the lines
# that called its ops, and under TN_DEBUG=1 those that made and ended a tensor that is used too late; without that
# information it names addresses.
# usage: tests/house/lines_check.sh BUILD-FOLDER
# Seen to fail: the frames of the library not left out (src/base/lines.c), no text of a line (src/base/dead.c).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
export TN_LINES_MODULE=$build/src/base/libtenon-lines.so
[ -e "$TN_LINES_MODULE" ] || { echo 'skipped: built without libdw, so there are no source lines' && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat >net.c <<'END'
#include <tenon/tenon.h>

static int print(const tn_graph_node *n, void *user)
{
    (void)user;
    if (n->kind == TN_GRAPH_OP) printf("%s %s\n", n->name, n->line);
    return 0;
}

int main(void)
{
    tn_scope s = tn_scope_begin();
    tn_module *model = tn_sequential(tn_linear_new(4, 8, (tn_linear_options){ 0 }), tn_relu_new());
    tn_set_lines(true);
    tn_tensor *y = tn_forward(model, tn_ones(TN_SHAPE(2, 4)));
    tn_tensor *scaled = tn_mul_scalar(y, 2);
    tn_set_lines(false);
    tn_tensor *loss = tn_mean(scaled, NULL, 0, false);
    TN_CHECK(tn_graph_visit(loss, print, NULL, (tn_graph_options){ 0 }));
    tn_module_drop(model), tn_scope_end(s);
    return 0;
}
END
cat >wanted <<'END'
mean 
mul_scalar net.c:16
relu net.c:15
linear net.c:15
END

passed=0 failed=0
check() { # WHAT COMMAND...
    if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "$1: wrong"; fi
}
cat >late.c <<'END'
#include <tenon/tenon.h>

int main(void)
{
    tn_set_lines(true);
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_ones(TN_SHAPE(7));
    tn_scope_end(s);
    if (!tn_neg(x)) puts(tn_error());
    return 0;
}
END

prints_lines() { "$@" | diff wanted -; }
names_both() { TN_DEBUG=1 "$@" 2>&1 | grep -q '; made at late.c:7; gone at late.c:8$'; }
prints_addresses() { [ "$("$@" | grep -cE '^[a-z_]+ plain\+0x[0-9a-f]+$')" = 3 ]; }

shared=(-I"$root/include" -L"$build/src" -ltenon "-Wl,-rpath,$build/src")
cc -std=c11 -Wall -Wextra -Werror -O2 -g net.c -o net "${shared[@]}"
cc -std=c11 -Wall -Wextra -Werror -O2 -g late.c -o late "${shared[@]}"
cc -std=c11 -Wall -Wextra -Werror -O2 net.c -o plain "${shared[@]}"
check 'with debug information' prints_lines ./net
check 'a tensor used after its end' names_both ./late
check 'without debug information' prints_addresses ./plain
archive=$build/src/libtenon.a
if [ -e "$archive" ]; then
    read -ra libraries <<<"$(pkg-config --libs openblas zlib) -lm -ldl -lpthread"
    cc -std=c11 -Wall -Wextra -Werror -O2 -g net.c -o static -I"$root/include" "$archive" \
        "${libraries[@]}"
    cc -std=c11 -Wall -Wextra -Werror -O2 -g late.c -o late-static -I"$root/include" "$archive" "${libraries[@]}"
    check 'linked statically' prints_lines ./static
    check 'linked statically, a tensor used after its end' names_both ./late-static
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
