# Sourced by the scripts that run the examples: a text and a set of images of our own, and counting checks.
# shellcheck shell=bash

# A text for the transformer: example_text >FILE
example_text() {
    local i
    for i in $(seq 400); do
        echo "And the $i sons of the house went up, and the river was as wide as $((i * 7)) hills."
    done
}

# Images and labels for batchnorm: example_images FOLDER N [SEED]. Bytes of a fixed sequence, N images in
# both halves.
example_images() {
    local half n4 count=$2
    mkdir -p "$1"
    n4=$(printf '\\x%02x' 0 0 $((count / 256)) $((count % 256)))
    for half in train t10k; do
        { printf '\0\0\x08\x03%b\0\0\0\x1c\0\0\0\x1c' "$n4"
          LC_ALL=C awk -v n=$((count * 784)) -v x="${3-0}" 'BEGIN { for (i = 0; i < n; i++) {
              x = (x * 1103 + 12345) % 65521; printf "%c", 32 + x % 95 } }'
        } | gzip -1 >"$1/$half-images-idx3-ubyte.gz"
        { printf '\0\0\x08\x01%b' "$n4"
          LC_ALL=C awk -v n="$count" 'BEGIN { for (i = 0; i < n; i++) printf "%c", i * 7 % 9 + 1 }'
        } | gzip -1 >"$1/$half-labels-idx1-ubyte.gz"
    done
}

# Sourced with a scratch folder in $dir.
checks=0 failures=0
check() { # TITLE COMMAND...
    checks=$((checks + 1))
    if "${@:2}" >"$dir/out" 2>&1; then return; fi
    failures=$((failures + 1))
    echo "FAILED: $1: ${*:2}"
    sed 's/^/    /' "$dir/out" | tail -n 15
}
same() { # prints both
    echo "$1 and $2"
    [ -n "$1" ] && [ "$1" = "$2" ]
}
verdict() { # the last line of a script
    echo "100%: Checks: $checks, Failures: $failures, Errors: 0"
    [ $failures -eq 0 ]
}
