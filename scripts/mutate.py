#!/usr/bin/env python3
"""Deliberate faults of tests/mutations/, put into the source and taken out again.

    mutate.py list                   number, kind, tags, file and name of each
    mutate.py check                  every fault still applies to the working tree
    mutate.py apply NN               edits the working tree (refuses a file with uncommitted changes)
    mutate.py apply NN --to DIR      a kernel fault only: writes the kernels with the fault to DIR, for KILN_KERNEL_DIR
    mutate.py revert NN              takes the fault out of the working tree

A fault is a file NN-name.txt: the lines `file:`, `kind:`, `tags:` and `what:`, then blocks

    <<<<
    whole lines of the file, which stand there exactly once
    ====
    what takes their place
    >>>>
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "tests" / "mutations"
KERNELS = ROOT / "backend" / "src" / "kernels"
KINDS = {"kernel", "layout", "ops", "allocator"}
TAGS = {"boundary", "past-2^31", "race", "stale", "numerics", "none"}


class Bad(Exception):
    """A fault that cannot be read, applied or reverted."""


class Fault:
    def __init__(self, path):
        match = re.fullmatch(r"(\d\d)-([a-z0-9-]+)\.txt", path.name)
        if not match:
            raise Bad(f"{path.name}: not named NN-name.txt")
        self.number, self.name = match.groups()
        self.blocks = []
        fields, place = {}, None
        for at, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.name}:{at}"
            if place is None and line == "<<<<":
                self.blocks.append(([], []))
                place = 0
            elif place == 0 and line == "====":
                place = 1
            elif place == 1 and line == ">>>>":
                place = None
            elif place is not None:
                self.blocks[-1][place].append(line + "\n")
            elif line.strip():
                key, colon, value = line.partition(":")
                if not colon or key in fields or key not in ("file", "kind", "tags", "what"):
                    raise Bad(f"{where}: neither a field nor a block")
                fields[key] = value.strip()
        if place is not None or not self.blocks:
            raise Bad(f"{path.name}: a block is not closed, or there is none")
        missing = {"file", "kind", "tags", "what"} - fields.keys()
        if missing:
            raise Bad(f"{path.name}: no {', '.join(sorted(missing))}")
        self.blocks = [("".join(old), "".join(new)) for old, new in self.blocks]
        self.file, self.kind, self.what = fields["file"], fields["kind"], fields["what"]
        self.tags = [tag.strip() for tag in fields["tags"].split(",")]
        if self.kind not in KINDS or not set(self.tags) <= TAGS:
            raise Bad(f"{path.name}: unknown kind or tag")

    @property
    def path(self):
        return ROOT / self.file

    def applied_to(self, text):
        """`text` with the fault."""
        spans = []
        for old, new in self.blocks:
            # At the beginning of a line only; `old` ends with one.
            starts = [m.start() for m in re.finditer("(?m)^" + re.escape(old), text)] if old else []
            if len(starts) != 1:
                first = old.splitlines()[0].strip() if old else ""
                raise Bad(f"{self.number}: {self.file} has {len(starts)} places like: {first}")
            if old == new:
                raise Bad(f"{self.number}: a block changes nothing")
            spans.append((starts[0], starts[0] + len(old), new))
        spans.sort()
        if any(a[1] > b[0] for a, b in zip(spans, spans[1:])):
            raise Bad(f"{self.number}: blocks overlap")
        for start, end, new in reversed(spans):
            text = text[:start] + new + text[end:]
        return text


def faults():
    found = [Fault(path) for path in sorted(FAULTS.glob("*.txt"))]
    numbers = [fault.number for fault in found]
    if numbers != [f"{n:02}" for n in range(1, len(found) + 1)]:
        raise Bad("the numbers are not 01, 02, ...")
    return found


def fault(number):
    for one in faults():
        if int(one.number) == int(number):
            return one
    raise Bad(f"there is no fault {number}")


def git(*arguments):
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    if done.returncode != 0:
        raise Bad(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def command_list():
    for one in faults():
        print(f"{one.number}  {one.kind:9}  {','.join(one.tags):18}  {one.file}  {one.name}")


def command_check():
    failed = 0
    all_of_them = faults()
    for one in all_of_them:
        try:
            one.applied_to(one.path.read_text())
        except (Bad, OSError) as error:
            failed += 1
            print(error, file=sys.stderr)
    print(f"{len(all_of_them) - failed} of {len(all_of_them)} faults apply")
    return 1 if failed else 0


def command_apply(number, to):
    one = fault(number)
    if to is None:
        if git("status", "--porcelain", "--", one.file).strip():
            raise Bad(f"{one.file} has uncommitted changes")
        one.path.write_text(one.applied_to(one.path.read_text()))
        print(f"{one.number} is in {one.file}: {one.what}")
        return
    if one.kind != "kernel" or not one.path.is_relative_to(KERNELS):
        raise Bad(f"{one.number} is not in a kernel: --to would have no effect")
    target = Path(to).resolve()
    if target == KERNELS or target.is_relative_to(KERNELS):
        raise Bad("DIR is the source itself")
    # Kiln takes every kernel from KILN_KERNEL_DIR, so the others go there too.
    for source in sorted(KERNELS.rglob("*.cu*")):
        text = source.read_text()
        if source == one.path:
            text = one.applied_to(text)
        copy = target / source.relative_to(KERNELS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    print(f"{one.number} is in {target / one.path.relative_to(KERNELS)}: {one.what}")


def command_revert(number):
    one = fault(number)
    committed = git("show", f"HEAD:{one.file}")
    now = one.path.read_text()
    if now == committed:
        print(f"{one.file} is as it was committed")
        return
    if now != one.applied_to(committed):
        raise Bad(f"{one.file} has other changes than fault {one.number}")
    one.path.write_text(committed)
    print(f"{one.number} is out of {one.file}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    commands.add_parser("check")
    apply = commands.add_parser("apply")
    apply.add_argument("number", type=int, metavar="NN")
    apply.add_argument("--to", metavar="DIR")
    revert = commands.add_parser("revert")
    revert.add_argument("number", type=int, metavar="NN")
    arguments = parser.parse_args()
    try:
        if arguments.command == "list":
            return command_list()
        if arguments.command == "check":
            return command_check()
        if arguments.command == "apply":
            return command_apply(arguments.number, arguments.to)
        return command_revert(arguments.number)
    except Bad as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
