#!/usr/bin/env python3
"""Fails if the kernels of two builds differ: for changes that only move or rename sources.

Compares the PTX that builds keep, kernel by kernel, without what names where a line came from: the same PTX and the same
compiler give the same machine code, registers and constants. Names go without what the compiler puts into those of
anonymous namespaces (a hash of the file's path, and its name).

usage: compare_kernels.py OLD NEW [RENAMES]     build folders (those with ptx/)

RENAMES: lines "old new", or "FILE.cu old new" for symbols of one file: OLD is read as if it bore the new names.
"""
import collections
import hashlib
import pathlib
import re
import sys

OWN = re.compile(r"(\d+)(_GLOBAL__N__|_INTERNAL_)")  # mangled: the length comes first
HASH = re.compile(r"_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(?:_\d+)?")
LABEL = re.compile(r"\$L__(\w*?)\d+(_\d+)?")
START = re.compile(r"^(?:\.(?:visible|weak)\s+)*\.(?:entry|func)\b")


def without_own(line: str) -> str:
    while match := OWN.search(line):
        line = line[:match.start()] + "OWN" + line[match.end(1) + int(match.group(1)):]
    return line


class Renames:
    """Renamed symbols as PTX has them: a mangled name follows its length."""
    def __init__(self, path: str | None) -> None:
        lines = [line.split() for line in pathlib.Path(path).read_text().splitlines()] if path else []
        self.general = {line[0]: line[1] for line in lines if len(line) == 2}
        self.of_file = collections.defaultdict(dict)
        for line in lines:
            if len(line) == 3:
                self.of_file[pathlib.Path(line[0]).stem][line[1]] = line[2]

    def of(self, path: pathlib.Path) -> dict[str, str]:
        return self.general | self.of_file.get(path.stem, {})


def renamed(line: str, table: dict[str, str], names: re.Pattern) -> str:
    def one(match: re.Match) -> str:
        size, name = match.groups()
        if not size:
            return table[name]
        return f"{len(table[name])}{table[name]}" if int(size) == len(name) else match[0]
    return names.sub(one, line)


def kernels(path: pathlib.Path, renames: Renames) -> list[tuple[str, str]]:
    found, name, body, table = [], "", [], renames.of(path)
    names = re.compile(rf"(\d*)(?<![A-Za-z_])({'|'.join(sorted(table, key=len, reverse=True))})(?![a-z0-9])")
    for line in path.read_text().splitlines():
        line = re.sub(r"//.*", "", line).strip()
        if not line or line.startswith((".loc", ".file")):
            continue
        line = LABEL.sub(r"$L\1\2", HASH.sub("_own", without_own(line)))
        if table:
            line = renamed(line, table, names)
        if START.match(line):
            name, body = line.rstrip("( "), []
        if name:
            body.append(line)
        if line == "}" and name:
            found.append((name, hashlib.sha256("\n".join(body).encode()).hexdigest()))
            name = ""
    return found


def build(folder: str, renames: Renames) -> collections.Counter:
    """How often each (name, digest) is there: templates may be compiled in several files."""
    return collections.Counter(item for path in sorted((pathlib.Path(folder) / "ptx").glob("*.ptx"))
                               for item in kernels(path, renames))


def main() -> int:
    if len(sys.argv) not in (3, 4):
        print(__doc__)
        return 2
    renames = Renames(sys.argv[3] if len(sys.argv) == 4 else None)
    old, new = build(sys.argv[1], renames), build(sys.argv[2], Renames(None))
    for sign, left in (("-", old - new), ("+", new - old)):
        for (name, digest), count in sorted(left.items()):
            print(f"{sign} {digest[:8]} {count} x {name}")
    if not new:
        print(f"no kernels in {sys.argv[2]}/ptx")
        return 1
    print(f"{len(new)} kernels, {'all the same' if old == new else 'not the same'}")
    return 0 if old == new else 1


if __name__ == "__main__":
    sys.exit(main())
