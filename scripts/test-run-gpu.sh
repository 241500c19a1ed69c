#!/usr/bin/env bash
# Checks run-gpu.sh with a pack of stand-ins: what it counts, what it names, and when it fails. Needs no GPU; .ci/run runs it.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT

mkdir -p "$pack/stage/tests"
cat >"$pack/stage/tests/gpu" <<'STAND_IN'
#!/usr/bin/env bash
echo "arguments: $* cases: ${KILN_TEST_CASES:-} kernels: ${KILN_KERNEL_DIR:-}" >&2
echo "test ops::add ... ok"
case ${STAND_IN:-} in
    crash) kill -SEGV $$ ;;
    hang) sleep 30 ;;
    none) echo "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.00s"; exit 0 ;;
    fail)
        printf '%s\n' "test ops::mul ... FAILED" "" "failures:" "" "---- ops::mul stdout ----" "    a line of its output" "" \
            "failures:" "    ops::mul" "" "test result: FAILED. 1 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out"
        exit 101
        ;;
esac
echo "test ops::mul ... ok"
echo "test result: ok. 2 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s"
STAND_IN
cat >"$pack/stage/kiln-bench" <<'STAND_IN'
#!/usr/bin/env bash
[[ $1 != --device || -z ${NO_GPU:-} ]] || { echo "no GPU here" >&2; exit 1; }
echo "bench: $*"
STAND_IN
printf '#!/bin/sh\necho "digits: $*"\nexit "${DIGITS_EXIT:-0}"\n' >"$pack/stage/digits"
cat >"$pack/compute-sanitizer" <<'STAND_IN'
#!/usr/bin/env bash
# Options come before the program: those with a value in a word of its own take two.
code=0
while [[ $1 == --* ]]; do
    case $1 in
        --error-exitcode) code=$2; shift 2 ;;
        *=*) shift ;;
        *) shift 2 ;;
    esac
done
"$@"
echo "========= ERROR SUMMARY: ${SANITIZER_ERRORS:-0} errors"
[[ ${SANITIZER_ERRORS:-0} == 0 ]] || exit "$code"
STAND_IN
chmod +x "$pack"/stage/tests/gpu "$pack"/stage/kiln-bench "$pack"/stage/digits "$pack/compute-sanitizer"
tar -C "$pack/stage" -czf "$pack/binaries.tar.gz" tests kiln-bench digits
cp "$scripts/run-gpu.sh" "$pack/run.sh"
export PATH=$pack:$PATH
unset KILN_TEST_CASES KILN_KERNEL_DIR

# EXIT-CODE 'ARGUMENTS' TEXT...: the run ends with that code, and each text is in its output or in the test log.
expect() {
    local code=$1 arguments=$2 rc=0 output text
    shift 2
    rm -rf "$pack/logs"
    # shellcheck disable=SC2086 # arguments are words
    output=$("$pack/run.sh" $arguments 2>&1) || rc=$?
    output+=$'\n'$(cat "$pack/logs/tests-gpu.log" 2>/dev/null || true)
    for text in "exit code $code" "$@"; do
        if [[ "$output"$'\n'"exit code $rc" != *"$text"* ]]; then
            printf 'run-gpu.sh %s: expected "%s" in\n%s\nexit code %s\n' "$arguments" "$text" "$output" "$rc" >&2
            exit 1
        fi
    done
    if compgen -G "$pack/run.*/" >/dev/null; then
        echo "run-gpu.sh $arguments: the unpacked files were left behind" >&2
        exit 1
    fi
}

expect 0 "" "GPU summary: 2 passed, 0 failed"
expect 0 "--filter add --filter mul --threads 3" "arguments: add mul --test-threads 3"
expect 0 "--kernels $pack" "kernels: $pack"
STAND_IN=fail expect 1 "" "failed: gpu: ops::mul" "GPU summary: 1 passed, 1 failed"
STAND_IN=crash expect 1 "" "failed: gpu: ended early, exit code 139" "GPU summary: 1 passed, 1 failed"
STAND_IN=hang expect 1 "--timeout 1" "failed: gpu: ended after 1 s" "GPU summary: 1 passed, 1 failed"
STAND_IN=none expect 1 "--filter zzz" "no test ran (filter: zzz)" "GPU summary: 0 passed, 1 failed"
NO_GPU=1 expect 1 "" "no GPU here" "GPU summary: 0 passed, 1 failed"
expect 0 "--sanitizer memcheck" "cases: 2" "--test-threads 1" "GPU summary: 2 passed, 0 failed"
SANITIZER_ERRORS=4 expect 1 "--sanitizer racecheck" "ERROR SUMMARY: 4 errors" "GPU summary: 2 passed, 1 failed"
expect 0 "--bench add,sum --digits -- --epochs 2" "bench: add sum" "digits: --device cuda:0 --epochs 2" "GPU summary: 0 passed, 0 failed"
DIGITS_EXIT=3 expect 1 "--digits --tests" "failed: digits: exit code 3" "GPU summary: 2 passed, 1 failed"
expect 2 "--nonsense" "unknown argument --nonsense"
expect 0 "--help" "usage: gpu-pack/run.sh"
echo "run-gpu.sh behaves as it should"
