#!/usr/bin/env bash
# Compiles the README's program exactly as shown, with the README's own command, and runs it: in a folder with
# a space in its name.
# usage: tests/readme_check.sh BUILD-FOLDER
#
# Seen to fail: tn_item renamed to tn_value in the README's program; a command that does not quote $PWD.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The Nth fenced block of a language.
block() {
    awk -v fence="\`\`\`$1" -v wanted="$2" '
        $0 == fence && !inside { inside = 1; n++; next }
        $0 == "```" && inside { inside = 0; next }
        inside && n == wanted' "$root/README.md"
}

# The fenced block of C with a line that holds TEXT.
block_with() {
    awk -v text="$1" '
        $0 == "```c" { inside = 1; kept = ""; found = 0; next }
        $0 == "```" && inside { if (found) { printf "%s", kept; exit } inside = 0; next }
        inside { kept = kept $0 "\n"; if (index($0, text)) found = 1 }' "$root/README.md"
}

cd "$work"
mkdir 'a folder' && cd 'a folder'
ln -s "$build" build
ln -s "$root/include" include
against=(-Iinclude -Lbuild/src -ltenon -Wl,-rpath,"$PWD/build/src")
block c 1 >mine.c
block sh 1 >compile.sh
[ -s mine.c ] && [ -s compile.sh ]
grep -q '^cc mine.c' compile.sh
export CFLAGS=
bash -eu compile.sh
./mine >log
cat log
# The loss falls: the last line's is below a quarter of the first one's.
awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(NR == 4 && last < first / 4) }' log
[ -s net.safetensors ]

# The lines of "Reading values" compile too, warnings being errors.
{
    echo '#include <tenon/tenon.h>'
    echo 'double reading(tn_tensor *x, tn_tensor *loss)'
    echo '{'
    block c 2
    echo '    return loss_now + corner + data[0] + copy[0];'
    echo '}'
} >reading.c
cc -std=c11 -Wall -Wextra -Werror -c reading.c -o reading.o -Iinclude

# The loop of "On an NVIDIA GPU" runs wherever the program does.
{
    echo '#include <tenon/tenon.h>'
    cat <<'END'
int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_randn(TN_SHAPE(6, 4)), *y = tn_randint(0, 3, TN_SHAPE(6));
    tn_module *model = tn_linear_new(4, 3, (tn_linear_options){ 0 });
    TN_CHECK_PTR(model);
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 0.5 });
END
    block_with tn_cuda_available
    cat <<'END'
    tn_optim_free(opt), tn_module_drop(model);
    tn_scope_end(scope);
    return 0;
}
END
} >gpu.c
cc -std=c11 -Wall -Wextra -Werror gpu.c -o gpu "${against[@]}"
./gpu >log
cat log
awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(NR == 10 && last < first) }' log

# The captured step, here on the CPU.
{
    echo '#include <tenon/tenon.h>'
    block_with tn_capture_run
    cat <<'END'
int main(void)
{
    tn_scope scope = tn_scope_begin();
    run r = { .model = tn_linear_new(4, 3, (tn_linear_options){ 0 }) };
    TN_CHECK_PTR(r.model);
    r.opt = tn_sgd(tn_parameters(r.model), (tn_sgd_options){ .lr = 0.5 });
    r.schedule = tn_exponential_lr(r.opt, 0.9);
    tn_capture *c = tn_capture_new(step, &r, tn_cpu());
    tn_tensor *x = tn_randn(TN_SHAPE(6, 4)), *y = tn_randint(0, 3, TN_SHAPE(6));
    double first = train(c, &r, x, y), last = first;
    for (int i = 0; i < 50; i++) last = train(c, &r, x, y);
    printf("captured: %g, %g\n", first, last);
    tn_capture_free(c), tn_scheduler_free(r.schedule), tn_optim_free(r.opt), tn_module_drop(r.model);
    tn_scope_end(scope);
    return !(last < first);
}
END
} >captured.c
cc -std=c11 -Wall -Wextra -Werror captured.c -o captured "${against[@]}"
./captured
