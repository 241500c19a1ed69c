#!/usr/bin/env python3
"""Applies deliberate faults (tests/mutations/, docs/mutations.md) one after another and runs the tests that need no GPU.

usage: scripts/mutation-check.py [NN...]       all of them, if none is named; one line each: the tests that fail, or NOT CAUGHT

A fault in a kernel needs no build: the tests on the emulated device take the kernels from a folder. Any other fault goes
into the working tree, which must be clean, and is taken out again. The tests that are likely to notice come first; the whole
of them run only when those pass.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTATE = [sys.executable, str(ROOT / "scripts/mutate.py")]
# Filters of the tests that come first, by the name of the file with the fault.
FIRST = {
    "elementwise": ["elementwise::", "logic::", "index::slice_assign"],
    "reduce": ["reduce::reduce"],
    "softmax": ["reduce::softmax"],
    "layer_norm": ["reduce::layer_norm"],
    "cumulative": ["reduce::cumulative"],
    "gather": ["index::indexed"],
    "scatter": ["index::indexed", "conv::embedding"],
    "pool": ["conv::pool"],
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


def main(numbers):
    env = dict(os.environ, RUST_BACKTRACE="0")
    numbers = numbers or sorted(path.name[:2] for path in ROOT.glob("tests/mutations/*.txt"))
    missed = []
    unchanged = build()
    if not unchanged:
        sys.exit("the working tree does not compile")
    for number in numbers:
        files = [Path(name) for name in re.findall(r"^file: (\S+)", fault_file(number).read_text(), re.M)]
        first = sorted({f for file in files for f in FIRST.get(file.stem, [])})
        if all(file.suffix in (".cu", ".cuh") for file in files):
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run(MUTATE + ["apply", number, "--to", folder], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
                failed = emulated(unchanged[1], first, dict(env, KILN_KERNEL_DIR=folder))
        else:
            subprocess.run(MUTATE + ["apply", number], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            try:
                mutated = build()
                if not mutated:
                    failed = ["does not compile"]
                else:
                    failed = run_tests([mutated[0]], env) or emulated(mutated[1], first, env)
            finally:
                subprocess.run(MUTATE + ["revert", number], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        print(number, ", ".join(failed[:3]) + more or "NOT CAUGHT", flush=True)
        if not failed:
            missed.append(number)
    rest = f"; not caught: {', '.join(missed)}" if missed else ""
    print(f"{len(numbers) - len(missed)} of {len(numbers)} caught{rest}")


if __name__ == "__main__":
    main(sys.argv[1:])
