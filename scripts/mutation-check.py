#!/usr/bin/env python3
"""Applies deliberate faults (tests/mutations/, docs/mutations.md) one after another and runs the tests that need no GPU.

usage: scripts/mutation-check.py [--emulated PATH] [--jobs N] [NN...]
       all faults, if none is named; one line each: the tests that fail, or NOT CAUGHT
       --emulated PATH  the test binary, built before: nothing is built, and only faults in kernels are tried
       --jobs N         that many faults in kernels at the same time

A fault in a kernel needs no build: the tests on the emulated device take the kernels from a folder. Any other fault goes
into the working tree, which must be clean, and is taken out again. The tests that are likely to notice come first; the whole
of them run only when those pass.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTATE = [sys.executable, str(ROOT / "scripts/mutate.py")]
# Filters of the tests that come first, by the name of the file with the fault.
FIRST = {
    "elementwise": ["elementwise::", "logic::", "index::slice_assign"],
    "reduce": ["reduce::reduce", "rules::"],
    "softmax": ["reduce::softmax"],
    "layer_norm": ["reduce::layer_norm"],
    "cumulative": ["reduce::cumulative"],
    "gather": ["index::indexed"],
    "scatter": ["index::indexed", "conv::embedding"],
    "pool": ["conv::pool", "conv::adaptive"],
    "im2col": ["conv::conv"],
    "int_matmul": ["matmul::int_matmul"],
    "random": ["random::"],
    "prelude": ["reduce::reduce", "index::cast"],
    "math": ["elementwise::", "rules::"],
    "layout": ["index::", "elementwise::"],
    "matmul": ["matmul::", "whole_device::precision"],
    "data": ["aliasing::", "whole_device::"],
    "segments": ["whole_device::", "models::"],
    "tensor": ["aliasing::", "whole_device::"],
}
FAILED = re.compile(r"^test (\S+) \.\.\. FAILED$", re.M)
BUILD = ["cargo", "test", "--workspace", "--lib", "--test", "emulated", "--no-run", "--message-format=json"]


def fault_file(number):
    (path,) = ROOT.glob(f"tests/mutations/{number}-*.txt")
    return path


def run_tests(command, env):
    """Names of the tests that failed; [] if all passed."""
    done = subprocess.run(command, cwd=ROOT / "backend" if "kiln_backend" in command[0] else ROOT, env=env, capture_output=True, text=True, timeout=1800)
    failed = FAILED.findall(done.stdout)
    if done.returncode == 0:
        return []
    return failed or [f"exit code {done.returncode}"]


def build():
    """The backend's unit tests and the tests on the emulated device, or None if the tree does not compile."""
    done = subprocess.run(BUILD, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return None
    messages = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    found = {m["target"]["name"]: m["executable"] for m in messages if m.get("executable")}
    return found["kiln_backend"], found["emulated"]


def emulated(binary, first, env):
    for filters in (first, []):
        failed = run_tests([binary, *filters, "--test-threads", "2"], env)
        if failed:
            return failed
    return []


def report(number, failed):
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    print(number, ", ".join(failed[:3]) + more or "NOT CAUGHT", flush=True)
    return bool(failed)


def in_kernel(binary, number, first, env):
    with tempfile.TemporaryDirectory() as folder:
        apply = MUTATE + ["apply", number, "--to", folder]
        subprocess.run(apply, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return report(number, emulated(binary, first, dict(env, KILN_KERNEL_DIR=folder)))


def elsewhere(number, first, env):
    subprocess.run(MUTATE + ["apply", number], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    try:
        mutated = build()
        if not mutated:
            return report(number, ["does not compile"])
        return report(number, run_tests([mutated[0]], env) or emulated(mutated[1], first, env))
    finally:
        subprocess.run(MUTATE + ["revert", number], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulated")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("numbers", nargs="*")
    options = parser.parse_args()
    env = dict(os.environ, RUST_BACKTRACE="0")
    numbers = options.numbers or sorted(path.name[:2] for path in ROOT.glob("tests/mutations/*.txt"))
    files = {n: [Path(f) for f in re.findall(r"^file: (\S+)", fault_file(n).read_text(), re.M)] for n in numbers}
    first = {n: sorted({f for file in files[n] for f in FIRST.get(file.stem, [])}) for n in numbers}
    kernels = [n for n in numbers if all(file.suffix in (".cu", ".cuh") for file in files[n])]
    others = [] if options.emulated else [n for n in numbers if n not in kernels]
    binary = options.emulated and str(Path(options.emulated).resolve())
    if not binary:
        unchanged = build() or sys.exit("the working tree does not compile")
        binary = unchanged[1]
    with ThreadPoolExecutor(options.jobs) as pool:
        caught = list(pool.map(lambda n: in_kernel(binary, n, first[n], env), kernels))
    caught += [elsewhere(n, first[n], env) for n in others]
    missed = [n for n, hit in zip(kernels + others, caught) if not hit]
    rest = f"; not caught: {', '.join(missed)}" if missed else ""
    print(f"{sum(caught)} of {len(caught)} caught{rest}")


if __name__ == "__main__":
    main()
