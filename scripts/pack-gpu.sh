#!/usr/bin/env bash
# Builds the tests that need a GPU, kiln-bench and the digits example, and packs them into gpu-pack/ (ignored by git)
# together with run.sh, which runs them on a GPU machine that needs no Rust.
#
# usage: scripts/pack-gpu.sh        then, on the GPU machine: gpu-pack/run.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

max_bytes=$((48 << 20))
pack=gpu-pack
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

# KIND NAME PATH of every executable that the cargo command of the arguments makes.
executables() {
    cargo "$@" --message-format=json-render-diagnostics |
        sed -n 's/.*"target":{"kind":\["\([a-z-]*\)"\].*"name":"\([^"]*\)","src_path".*"executable":"\([^"]*\)".*/\1 \2 \3/p'
}

# One set of packages and features for all three, so that they share what they are built from.
packages=(-p kiln -p kiln-backend --features gpu)
{
    executables test --release "${packages[@]}" --no-run --lib --test gpu --test gpu_digits
    executables bench "${packages[@]}" --no-run --bench kiln-bench
    executables build --release "${packages[@]}" --example digits
} >"$stage/list"

mkdir -p "$stage/tests"
while read -r kind name path; do
    case $kind in
        lib | test) target=tests/$name ;;
        bench | example) target=$name ;;
        *) continue ;; # what the tests above built along the way
    esac
    strip --strip-all -o "$stage/$target" "$path"
done <"$stage/list"

for needed in tests/gpu kiln-bench digits; do
    [[ -x $stage/$needed ]] || { echo "pack-gpu.sh: cargo made no executable for $needed" >&2; exit 1; }
done

commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[[ -z $(git status --porcelain 2>/dev/null) ]] || commit+=-dirty
rm -rf "$pack"
mkdir -p "$pack"
tar -C "$stage" -cf - tests kiln-bench digits | gzip -9 >"$pack/binaries.tar.gz"
cp scripts/run-gpu.sh "$pack/run.sh"
cp scripts/case-report.sh benches/compare.py "$pack"
chmod +x "$pack/run.sh" "$pack/case-report.sh" "$pack/compare.py"
printf '%s\n' "$commit" >"$pack/commit"

bytes=$(du -sb "$pack" | cut -f1)
printf 'gpu-pack: %d test binaries, kiln-bench, digits; %d KiB; commit %s\n' \
    "$(find "$stage/tests" -type f | wc -l)" "$((bytes >> 10))" "$commit"
if ((bytes > max_bytes)); then
    echo "pack-gpu.sh: the pack is larger than $((max_bytes >> 20)) MiB" >&2
    exit 1
fi
