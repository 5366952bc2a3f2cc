#!/usr/bin/env bash
# The programs of examples/models train as the same networks in PyTorch do: each loss of 20 steps is within 1e-4,
# relative, of tests/golden/models.txt (make_models.py). And they refuse what is no number of steps.
# usage: tests/examples/models_check.sh PROGRAM...
#
# Seen to fail: resnet18.c without tn_optim_zero_grad (0.37 away), mobilenetv2.c with relu for relu6 (0.07), unet.c with
# the channels of skip and x exchanged (0.08), dcgan.c without tn_detach (an error), ctc.c with 10 as the blank (0.27),
# seq2seq.c with attention scaled by 1 / sqrt(C) (0.05), a loss that is printed as nan.
set -euo pipefail
golden=$(cd "$(dirname "${BASH_SOURCE[0]}")/../golden" && pwd)/models.txt

failures=0
for program; do
    name=${program##*/}
    "$program" | awk -v name="$name" '
        NR == FNR {
            if (split($1, is, "/") == 2 && is[1] == name)
                for (step = 1; step < NF; step++) { want[is[2], step] = $(step + 1); wanted++ }
            next
        }
        $1 == "step" {
            for (i = 3; i < NF; i += 2) {
                far = ($i, $2) in want && $(i + 1) ~ /^[0-9.]+$/ ? ($(i + 1) - want[$i, $2]) / want[$i, $2] : 9
                if (far < 0) far = -far
                if (far > most) most = far
                if (!(far <= 1e-4)) print "step " $2 ": " $i " " $(i + 1) ", PyTorch has " want[$i, $2]
                seen++
            }
        }
        END {
            printf "%s: %d losses of %d, the farthest from PyTorch by %.1e\n", name, seen, wanted, most
            exit !(wanted >= 20 && seen == wanted && most <= 1e-4)
        }' "$golden" - || failures=$((failures + 1))
    for wrong in 0 -1 '3 4'; do
        status=0
        # shellcheck disable=SC2086
        "$program" $wrong 2>/dev/null || status=$?
        [ $status = 2 ] || { echo "$name $wrong: ended with $status, not 2"; failures=$((failures + 1)); }
    done
done
echo "$# programs, $failures failures"
[ $failures = 0 ] && [ $# = 6 ]
