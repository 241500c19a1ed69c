#!/usr/bin/env bash
# Runs what scripts/pack-gpu.sh packed, on a machine with an NVIDIA GPU: no Rust, no CUDA toolkit needed.
#
# usage: gpu-pack/run.sh [STEP...] [OPTION...] [-- DIGITS-ARGUMENT...]
# steps, in this order; --tests if none is named
#   --tests            the test binaries
#   --group GROUP      the test binaries as GROUP says; may be repeated. A group that takes longer than its budget is ended
#                      and has failed; at its end come its cases, by operation family and kind of dtype
#                        quick      few cases of each property, in dtypes that differ in how they are handled: 120 s
#                        full       all tests, at least 40000 cases: 480 s
#                        large      tensors of more than 2^31 elements, one test at a time, up to 60 GB of device memory: 540 s
#                        sanitizer  one case of each property under memcheck, then under racecheck: 270 s each
#   --bench [NAMES]    kiln-bench, a table of device times; NAMES: prefixes, separated by commas
#   --compare [NAMES]  the same operations against PyTorch, in turn (needs python3 with torch); writes compare.json
#   --digits           trains examples/digits on cuda:0; arguments after -- go to it
# options
#   --filter TEXT      only tests whose name contains TEXT; may be repeated
#   --seed N           the seed of the inputs (KILN_TEST_SEED)
#   --threads N        test threads (default: the test binaries' own)
#   --sanitizer TOOL   tests under compute-sanitizer: memcheck, racecheck, initcheck or synccheck; one thread and, unless
#                      KILN_TEST_CASES is set, 2 cases a property
#   --timeout SECONDS  a binary that takes longer is ended and has failed (default 3600)
#   --kernels DIR      take .cu files from DIR instead of the embedded ones: for development only
#   --logs DIR         where the output goes (default: logs/ beside this script)
#
# KILN_TEST_CASES, where set, is the number of cases of each property in every group. KILN_CUDA_PATH is respected; without
# it, the CUDA libraries of python3's packages come first, where there are any.
# The last lines are a summary: tests that passed, and tests, binaries and steps that failed. The exit code is 0 only if
# something ran and all of it passed; no usable GPU is a failure.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Groups: cases of each property, and the budgets in seconds. The budgets hold on 16 cores, compiled kernels included.
quick_cases=3 full_cases=25 sanitizer_cases=1
# Random programs: each brings kernels to compile, and none has gradients.
quick_programs=5 full_programs=100
# Dtypes that load, compute and combine as another one does.
quick_skips=(--skip ::f64 --skip ::f16 --skip ::i8 --skip ::i16 --skip ::u16 --skip ::u32 --skip ::u64)
quick_s=120 full_s=480 large_s=540 sanitizer_s=270
# What the cases of a full run have to be: see case-report.sh.
full_requires=(--require 40000 --per-class 100 --views 40 --gradients 30 --edge 10)
# Every kernel family in the dtypes that differ in how they load, compute or combine.
memcheck_filters=(::f32 ::bf16 ::u8 ::i64 ::bool creation random:: aliasing::)
racecheck_filters=(::f32 ::bf16 ::i32 ::bool random::)

steps=() groups=() filters=() digits_args=()
bench_names= compare_names= sanitizer= threads= timeout_s=3600 logs=$here/logs

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
}
fail_usage() {
    echo "run.sh: $1 (--help lists the options)" >&2
    exit 2
}

while (($#)); do
    case $1 in
        --tests | --digits) steps+=("${1#--}") ;;
        --bench | --compare)
            steps+=("${1#--}")
            if (($# > 1)) && [[ $2 != -* ]]; then
                if [[ $1 == --bench ]]; then bench_names=$2; else compare_names=$2; fi
                shift
            fi
            ;;
        --group | --filter | --seed | --threads | --sanitizer | --timeout | --kernels | --logs)
            (($# > 1)) || fail_usage "$1 needs a value"
            case $1 in
                --group)
                    [[ $2 =~ ^(quick|full|large|sanitizer)$ ]] || fail_usage "there is no group $2"
                    groups+=("$2")
                    ;;
                --filter) filters+=("$2") ;;
                --seed)
                    [[ $2 =~ ^[0-9]+$ ]] || fail_usage "--seed takes a whole number"
                    export KILN_TEST_SEED=$2
                    ;;
                --threads) threads=$2 ;;
                --sanitizer) sanitizer=$2 ;;
                --timeout) timeout_s=$2 ;;
                --kernels)
                    KILN_KERNEL_DIR=$(cd "$2" 2>/dev/null && pwd) || fail_usage "there is no folder $2"
                    export KILN_KERNEL_DIR
                    ;;
                --logs) logs=$2 ;;
            esac
            shift
            ;;
        -h | --help) usage; exit 0 ;;
        --)
            shift
            digits_args=("$@")
            break
            ;;
        *) fail_usage "unknown argument $1" ;;
    esac
    shift
done
((${#steps[@]} + ${#groups[@]})) || steps=(tests)
[[ -z $sanitizer ]] || ((${#groups[@]} == 0)) || fail_usage "--sanitizer is for --tests; the group is --group sanitizer"
[[ $threads =~ ^[0-9]*$ && $timeout_s =~ ^[0-9]+$ ]] || fail_usage "--threads and --timeout take whole numbers"
wanted() { [[ " ${steps[*]} " == *" $1 "* ]]; }

work=
clean_up() { [[ -z $work ]] || rm -rf "$work"; }
trap clean_up EXIT
trap 'exit 130' INT TERM
work=$(mktemp -d "$here/run.XXXXXX" 2>/dev/null || mktemp -d) || exit 1
mkdir -p "$logs" && logs=$(cd "$logs" && pwd) || exit 1
tar -xzf "$here/binaries.tar.gz" -C "$work" || exit 1
commit=$(cat "$here/commit" 2>/dev/null || echo unknown)

# The kernel cache is new each time, so that what is tested is compiled here.
export KILN_CACHE_DIR=$work/cache
# The compile gate's limits are those of one release of nvcc, and are compared where that is installed: in CI.
export NVCC=/none

if [[ -z ${KILN_CUDA_PATH:-} ]] &&
    packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null); then
    # A toolkit's unversioned libcublasLt.so on the loader's path would be found before the packages' versioned one; with
    # this link both names lead to the packages' file, which is also the one that PyTorch uses.
    mkdir -p "$work/links"
    [[ ! -e $packages/cu13/lib/libcublasLt.so.13 ]] ||
        ln -s "$packages/cu13/lib/libcublasLt.so.13" "$work/links/libcublasLt.so"
    export LD_LIBRARY_PATH=$work/links:$packages/cu13/lib:$packages/cudnn/lib:$packages/nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

passed=0 failed=0 steps_done=0
report=() # lines of the summary
broken=() # tests, binaries and steps that failed

finish() {
    echo
    ((${#report[@]} == 0)) || printf '%s\n' "${report[@]}"
    ((${#broken[@]} == 0)) || printf 'failed: %s\n' "${broken[@]}"
    echo "commit $commit; logs in $logs"
    echo "GPU summary: $passed passed, $failed failed"
    ((failed == 0 && passed + steps_done > 0))
    exit
}

one_failed() { # what, why
    failed=$((failed + 1))
    broken+=("$1: $2")
}

if ! device=$("$work/kiln-bench" --device 2>&1); then
    echo "no usable GPU: $device" >&2
    one_failed "device" "no usable GPU"
    finish
fi
echo "$device"

# The words that run a program under compute-sanitizer.
under_sanitizer=()
use_sanitizer() { # tool
    local path
    path=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [[ -z $path ]]; then
        one_failed "compute-sanitizer" "not found in PATH or /usr/local/cuda/bin"
        return 1
    fi
    # Calls that fail are errors of the program only if the program says so: some tests provoke them. Some binaries never
    # touch the device.
    under_sanitizer=("$path" --tool "$1" --error-exitcode 99 --require-cuda-init=no)
    [[ $1 != memcheck ]] || under_sanitizer+=(--report-api-errors no)
}

run_tests() { # binary, label of the pass or nothing, seconds, argument...
    local binary=$1 label=$2 limit_s=$3 name log rc line p=0 f=0 i=0 whole=no names wrapper=()
    shift 3
    name=${label:+$label-}$(basename "$binary")
    log=$logs/${label:-tests}-$(basename "$binary").log
    ! command -v timeout >/dev/null || wrapper+=(timeout --kill-after=20 "$limit_s")
    wrapper+=("${under_sanitizer[@]+"${under_sanitizer[@]}"}")
    echo "running tests: $name"
    # Both streams: what a test prints before it takes the process down is the only trace of it.
    (cd "$work" && "${wrapper[@]+"${wrapper[@]}"}" "$binary" "$@") >"$log" 2>&1
    rc=$?
    if line=$(grep -E '^test result: ' "$log" | tail -n 1) && [[ -n $line ]]; then
        whole=yes
        p=$(sed -E 's/.* ([0-9]+) passed.*/\1/' <<<"$line")
        f=$(sed -E 's/.* ([0-9]+) failed.*/\1/' <<<"$line")
        i=$(sed -E 's/.* ([0-9]+) ignored.*/\1/' <<<"$line")
    else
        p=$(grep -cE '^test .* \.\.\. ok$' "$log")
        f=$(grep -cE '^test .* \.\.\. FAILED$' "$log")
    fi
    passed=$((passed + p)) failed=$((failed + f))
    # The last of the lists that libtest prints; when it never got there, the lines as they came.
    if [[ $whole == yes ]] && ((f > 0)); then
        names=$(awk '/^failures:$/ { names = "" } /^    [^ ]/ { names = names substr($0, 5) "\n" } END { printf "%s", names }' "$log")
    else
        names=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log")
    fi
    while read -r line; do
        [[ -z $line ]] || broken+=("$name: $line")
    done <<<"$names"
    report+=("$(printf '%-28s %5d passed %4d failed %4d ignored' "$name" "$p" "$f" "$i")")
    if [[ $whole == no ]]; then
        case $rc in
            124 | 137)
                ended=yes
                one_failed "$name" "ended after $limit_s s"
                ;;
            *) one_failed "$name" "ended early, exit code $rc" ;;
        esac
    elif ((rc != 0 && f == 0)); then
        line=$(grep -E '(ERROR|RACECHECK) SUMMARY' "$log" | tail -n 1)
        one_failed "$name" "exit code $rc ${line#=========}"
    fi
    if ((rc != 0)); then
        tail -n 40 "$log" | cut -c1-300 | sed 's/^/    | /'
    fi
}

run_step() { # name, command...
    local name=$1 rc
    shift
    echo "running $name"
    "$@" 2>"$logs/$name.err" | tee "$logs/$name.log"
    rc=${PIPESTATUS[0]}
    if ((rc == 0)); then
        steps_done=$((steps_done + 1))
        report+=("$name: done")
    else
        tail -n 40 "$logs/$name.err" | cut -c1-300 | sed 's/^/    | /'
        one_failed "$name" "exit code $rc"
    fi
}

# Every binary, with the arguments; together they have a budget.
run_pass() { # label or nothing, budget in seconds, argument...
    local label=$1 budget_s=$2 start=$SECONDS ran=$((passed + failed)) left_s binary ended=
    shift 2
    for binary in "$work"/tests/*; do
        left_s=$((budget_s - (SECONDS - start)))
        # Without a label each binary has the whole time.
        [[ -n $label ]] || left_s=$budget_s
        if ((left_s < 1)); then
            one_failed "$label-$(basename "$binary")" "not started: the budget of $budget_s s is used up"
            continue
        fi
        run_tests "$binary" "$label" "$left_s" "$@"
    done
    if ((passed + failed == ran)); then
        one_failed "${label:-tests}" "no test ran${filters[*]+ (filter: ${filters[*]})}"
    fi
    [[ -n $label ]] || return 0
    report+=("$label: $((SECONDS - start)) s of $budget_s s")
    # Where a binary was ended, that has been said.
    if [[ -z $ended ]] && ((SECONDS - start > budget_s)); then
        one_failed "$label" "took $((SECONDS - start)) s, more than its $budget_s s"
    fi
}

# A pass of a group: with its own kernel cache, so that its time is what it takes on a fresh machine, and with a report.
run_group_pass() { # label, cases, budget in seconds, argument...
    local label=$1 cases=$2 budget_s=$3 file=$logs/cases-$1.tsv requires=()
    shift 3
    rm -f "$file"
    echo "group $label: ${KILN_TEST_CASES:-$cases} cases of each property, seed ${KILN_TEST_SEED:-1}"
    KILN_CACHE_DIR=$work/cache-${label%%-*} KILN_TEST_REPORT=$file KILN_TEST_CASES=${KILN_TEST_CASES:-$cases} \
        run_pass "$label" "$budget_s" "$@"
    [[ $label != full || -n ${filters[*]} ]] || requires=("${full_requires[@]}")
    if [[ -s $file || ${#requires[@]} != 0 ]]; then
        [[ -e $file ]] || : >"$file"
        bash "$here/case-report.sh" "${requires[@]+"${requires[@]}"}" "$file" ||
            one_failed "$label" "the cases are not what they have to be"
    fi
}

run_group() { # group
    local own=("${filters[@]+"${filters[@]}"}") threads_args=()
    [[ -z $threads ]] || threads_args=(--test-threads "$threads")
    case $1 in
        quick)
            ((${#own[@]})) || own=("${quick_skips[@]}")
            KILN_PROGRAMS=${KILN_PROGRAMS:-$quick_programs} \
                run_group_pass quick "$quick_cases" "$quick_s" "${own[@]}" "${threads_args[@]+"${threads_args[@]}"}"
            ;;
        full)
            KILN_PROGRAMS=${KILN_PROGRAMS:-$full_programs} \
                run_group_pass full "$full_cases" "$full_s" "${own[@]+"${own[@]}"}" \
                "${threads_args[@]+"${threads_args[@]}"}"
            ;;
        large)
            ((${#own[@]})) || own=(large::)
            run_group_pass large 1 "$large_s" --ignored "${own[@]}" --test-threads 1
            ;;
        sanitizer)
            [[ -n $threads ]] || threads_args=(--test-threads 1)
            # Each tensor is an allocation of the driver's, so that the tool knows where it ends.
            ((${#filters[@]})) || own=("${memcheck_filters[@]}")
            use_sanitizer memcheck || return 0
            KILN_ALLOCATOR=exact \
                run_group_pass sanitizer-memcheck "$sanitizer_cases" "$sanitizer_s" "${own[@]}" "${threads_args[@]}"
            ((${#filters[@]})) || own=("${racecheck_filters[@]}")
            use_sanitizer racecheck || return 0
            run_group_pass sanitizer-racecheck "$sanitizer_cases" "$sanitizer_s" "${own[@]}" "${threads_args[@]}"
            under_sanitizer=()
            ;;
    esac
}

if wanted tests; then
    test_args=()
    [[ -z $threads ]] || test_args+=(--test-threads "$threads")
    if [[ -n $sanitizer ]]; then
        use_sanitizer "$sanitizer" || finish
        export KILN_TEST_CASES=${KILN_TEST_CASES:-2}
        [[ -n $threads ]] || test_args+=(--test-threads 1)
    fi
    run_pass "" "$timeout_s" "${filters[@]+"${filters[@]}"}" "${test_args[@]+"${test_args[@]}"}"
fi
for group in "${groups[@]+"${groups[@]}"}"; do
    run_group "$group"
done
if wanted bench; then
    IFS=, read -r -a names <<<"$bench_names"
    run_step bench "$work/kiln-bench" "${names[@]+"${names[@]}"}"
fi
if wanted compare; then
    run_step compare python3 "$here/compare.py" --bench "$work/kiln-bench" --json "$logs/compare.json" \
        --commit "$commit" "$compare_names"
fi
if wanted digits; then
    run_step digits env -C "$work" "$work/digits" --device cuda:0 "${digits_args[@]+"${digits_args[@]}"}"
fi
finish
