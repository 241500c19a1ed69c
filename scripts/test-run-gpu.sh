#!/usr/bin/env bash
# Checks run-gpu.sh and case-report.sh with a pack of stand-ins: what they count, what they name, and when they fail. Needs
# no GPU; .ci/run runs it.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT

mkdir -p "$pack/stage/tests"
cat >"$pack/stage/tests/gpu" <<'STAND_IN'
#!/usr/bin/env bash
echo "arguments: $* cases: ${KILN_TEST_CASES:-} kernels: ${KILN_KERNEL_DIR:-}" \
    "seed: ${KILN_TEST_SEED:-} allocator: ${KILN_ALLOCATOR:-} cache: ${KILN_CACHE_DIR##*/}" >&2
if [[ -n ${KILN_TEST_REPORT:-} && -n ${CASES:-} ]]; then
    printf '%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n' matmul f32 "$CASES" $((CASES / 2)) $((CASES / 2)) $((CASES / 4)) 0 7 \
        matmul f16 "$CASES" $((CASES / 2)) $((CASES / 2)) $((CASES / 4)) $((CASES / 10)) 7 >>"$KILN_TEST_REPORT"
fi
echo "test ops::add ... ok"
case ${STAND_IN:-} in
    crash) kill -SEGV $$ ;;
    hang) sleep 30 ;;
    slow) sleep 2 ;;
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
cp "$pack/stage/tests/gpu" "$pack/stage/tests/more"
chmod +x "$pack"/stage/tests/* "$pack"/stage/kiln-bench "$pack"/stage/digits "$pack/compute-sanitizer"
tar -C "$pack/stage" -czf "$pack/binaries.tar.gz" tests kiln-bench digits
cp "$scripts/case-report.sh" "$pack"
pack_runner() { # budget of every group in seconds
    sed "s/^quick_s=.*/quick_s=$1 full_s=$1 large_s=$1 sanitizer_s=$1/" "$scripts/run-gpu.sh" >"$pack/run.sh"
    chmod +x "$pack/run.sh"
}
pack_runner 60
export PATH=$pack:$PATH
unset KILN_TEST_CASES KILN_KERNEL_DIR KILN_TEST_SEED KILN_TEST_REPORT KILN_ALLOCATOR

# EXIT-CODE 'ARGUMENTS' TEXT...: the run ends with that code, and each text is in its output or in a test log; one that
# begins with ! is not.
expect() {
    local code=$1 arguments=$2 rc=0 output text
    shift 2
    rm -rf "$pack/logs"
    # shellcheck disable=SC2086 # arguments are words
    output=$("$pack/run.sh" $arguments 2>&1) || rc=$?
    output+=$'\n'$(cat "$pack"/logs/*-gpu.log 2>/dev/null || true)
    for text in "exit code $code" "$@"; do
        if [[ $text == !* && $output == *"${text#!}"* ]] ||
            [[ $text != !* && "$output"$'\n'"exit code $rc" != *"$text"* ]]; then
            printf 'run-gpu.sh %s: expected "%s" in\n%s\nexit code %s\n' "$arguments" "$text" "$output" "$rc" >&2
            exit 1
        fi
    done
    if compgen -G "$pack/run.*/" >/dev/null; then
        echo "run-gpu.sh $arguments: the unpacked files were left behind" >&2
        exit 1
    fi
}

expect 0 "" "GPU summary: 4 passed, 0 failed"
expect 0 "--filter add --filter mul --threads 3" "arguments: add mul --test-threads 3"
expect 0 "--kernels $pack" "kernels: $pack"
STAND_IN=fail expect 1 "" "failed: gpu: ops::mul" "GPU summary: 2 passed, 2 failed"
STAND_IN=crash expect 1 "" "failed: gpu: ended early, exit code 139" "GPU summary: 2 passed, 2 failed"
STAND_IN=hang expect 1 "--timeout 1" "failed: gpu: ended after 1 s" "GPU summary: 2 passed, 2 failed"
STAND_IN=none expect 1 "--filter zzz" "no test ran (filter: zzz)" "GPU summary: 0 passed, 1 failed"
NO_GPU=1 expect 1 "" "no GPU here" "GPU summary: 0 passed, 1 failed"
expect 0 "--sanitizer memcheck" "cases: 2" "--test-threads 1" "GPU summary: 4 passed, 0 failed"
SANITIZER_ERRORS=4 expect 1 "--sanitizer racecheck" "ERROR SUMMARY: 4 errors" "GPU summary: 4 passed, 2 failed"
expect 0 "--bench add,sum --digits -- --epochs 2" "bench: add sum" "digits: --device cuda:0 --epochs 2" "GPU summary: 0 passed, 0 failed"
DIGITS_EXIT=3 expect 1 "--digits --tests" "failed: digits: exit code 3" "GPU summary: 4 passed, 1 failed"
# Groups: what the binaries are given, budgets, reports.
expect 0 "--group quick" "cases: 3" "cache: cache-quick" "quick-gpu " "quick-more " "quick: " "GPU summary: 4 passed, 0 failed"
expect 0 "--group quick --filter add --threads 3 --seed 9" "arguments: add --test-threads 3" "seed: 9" "seed 9"
expect 0 "--group large --threads 8" "arguments: --ignored large:: --test-threads 1 " "GPU summary: 4 passed, 0 failed"
expect 0 "--group sanitizer" "arguments: ::f32 ::bf16" "--test-threads 1 cases: 1" "allocator: exact" \
    "sanitizer-memcheck-gpu" "sanitizer-racecheck-more" "GPU summary: 8 passed, 0 failed"
SANITIZER_ERRORS=4 expect 1 "--group sanitizer" "failed: sanitizer-memcheck-gpu: exit code 99  ERROR SUMMARY: 4 errors" \
    "GPU summary: 8 passed, 4 failed"
expect 0 "--group quick --group large --tests" "running tests: gpu" "quick-gpu " "large-gpu " "GPU summary: 12 passed, 0 failed"
KILN_TEST_CASES=11 expect 0 "--group quick" "11 cases of each property" "cases: 11"
STAND_IN=none expect 1 "--group large" "failed: large: no test ran"
CASES=300 expect 0 "--group quick" "matmul         600       600      1200" "1200 cases, seed 7: 50.0% with views"
CASES=300 expect 1 "--group full" "missing: 1200 cases, not 40000" "failed: full: the cases are not what they have to be"
expect 1 "--group full" "missing: 0 cases, not 40000" "!missing: 0.0% of the cases with special" "GPU summary: 4 passed, 1 failed"
expect 0 "--group full --filter add" "!missing" "GPU summary: 4 passed, 0 failed"
CASES=11000 expect 0 "--group full" "cases: 25" "44000 cases, seed 7" "!missing" "GPU summary: 4 passed, 0 failed"
pack_runner 1
STAND_IN=hang expect 1 "--group quick" "failed: quick-gpu: ended after 1 s" \
    "failed: quick-more: not started: the budget of 1 s is used up" "GPU summary: 1 passed, 2 failed"
pack_runner 3
STAND_IN=slow expect 1 "--group quick" "failed: quick-more: ended after 1 s" "!failed: quick-gpu" "GPU summary: 3 passed, 1 failed"
pack_runner 60
expect 2 "--group slow" "there is no group slow"
expect 2 "--group quick --sanitizer memcheck" "--sanitizer is for --tests"
expect 2 "--seed x" "--seed takes a whole number"
expect 2 "--nonsense" "unknown argument --nonsense"
expect 0 "--help" "usage: gpu-pack/run.sh"

# EXIT-CODE 'ARGUMENTS' TEXT...: the same for case-report.sh on the file that ends the arguments.
report() {
    local code=$1 arguments=$2 rc=0 output text
    shift 2
    # shellcheck disable=SC2086 # arguments are words
    output=$("$scripts/case-report.sh" $arguments 2>&1) || rc=$?
    for text in "$@" "exit code $code"; do
        if [[ $text == !* && $output == *"${text#!}"* ]] ||
            [[ $text != !* && "$output"$'\n'"exit code $rc" != *"$text"* ]]; then
            printf 'case-report.sh %s: expected "%s" in\n%s\nexit code %s\n' "$arguments" "$text" "$output" "$rc" >&2
            exit 1
        fi
    done
}

cases=$pack/cases.tsv
# The names of families may have spaces; runs of other seeds are added.
printf '%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n' \
    "views and copies" float 150 100 60 30 15 1 "views and copies" int 50 25 0 10 5 1 \
    reduce float 200 75 140 20 0 1 "views and copies" int 60 20 0 0 0 2 >"$cases"
report 0 "$cases" "views and copies       150       110       260" "reduce                 200         -       200" \
    "all                    350       110       460" \
    "460 cases, seed 1, 2: 47.8% with views, 43.5% with gradients, 13.0% with empty or odd sizes, 4.3% with special values"
report 0 "--require 460 --per-class 100 --views 47 --gradients 43 --edge 13 --special 4 $cases" "!missing"
report 1 "--require 461 $cases" "missing: 460 cases, not 461"
report 1 "--per-class 120 $cases" "missing: 110 cases of views and copies, int, not 120" "!of reduce"
report 1 "--views 48 --gradients 44 --edge 14 --special 5 $cases" "missing: 47.8% of the cases with views, not 48%" \
    "missing: 43.5% of the cases with gradients" "missing: 13.0% of the cases with empty" "missing: 4.3% of the cases with special"
printf 'half a line\tfloat\n' >>"$cases"
report 1 "$cases" "missing: line 5 has 2 fields"
: >"$cases"
report 0 "$cases" "0 cases, seed -"
report 1 "--require 1 --views 1 $cases" "missing: 0 cases, not 1" "missing: 0.0% of the cases with views"
report 2 "$pack/nowhere" "cannot read"
report 2 "--views many $cases" "--views takes a whole number"
report 0 "--help" "usage: scripts/case-report.sh"
echo "run-gpu.sh and case-report.sh behave as they should"
