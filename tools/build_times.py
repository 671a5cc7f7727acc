#!/usr/bin/env python3
"""Where the time of a build went, from Ninja's log: by folder of the sources, and the slowest steps.

usage: build_times.py [BUILD_DIR] [--top N] [--json]

Times are of the last run of each step, by the clock, so two at a time take longer each than one alone. Steps that a
compiler cache answered count with what the answer took.
"""
import argparse
import collections
import json
import pathlib
import re
import sys


def read_log(path: pathlib.Path) -> dict[str, float]:
    """Seconds of the last run of each step, by its output. A step with several outputs counts once."""
    steps, seen = {}, {}
    for line in path.read_text().splitlines():
        fields = line.split("\t")
        if line.startswith("#") or len(fields) != 5:
            continue
        start, end, _, output, command = fields
        steps.pop(seen.get((start, command), None), None)
        seen[(start, command)] = output
        steps[output] = (int(end) - int(start)) / 1000
    return steps


def name_of(output: str) -> tuple[str, str]:
    """("src/text", "src/text group 3") of an output of Ninja."""
    unity = re.search(r"groups/([\w-]+)/group_(\d+)", output)
    if unity:
        folder = re.sub(r"^riptide_", "src/", re.sub(r"^tests_", "tests/", unity.group(1)))
        return folder, f"{folder} group {unity.group(2)}"
    source = re.search(r"\.dir/(.*)\.o$", output)
    if not source:
        return "linking", output
    path = source.group(1)
    if not path.startswith("src/"):
        path = output.split("/CMakeFiles/")[0] + "/" + path.split("__/")[-1]
    return str(pathlib.PurePosixPath(path).parent), path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", nargs="?", default="build/cpu", type=pathlib.Path)
    parser.add_argument("--top", type=int, default=10, help="slowest steps to show (10)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    log = options.build / ".ninja_log"
    if not log.is_file():
        print(f"{log}: not there; expected the folder of a build by Ninja", file=sys.stderr)
        return 66
    steps = read_log(log)
    folders, counts, named = collections.Counter(), collections.Counter(), {}
    for output, seconds in steps.items():
        folder, name = name_of(output)
        folders[folder] += seconds
        counts[folder] += 1
        named[name] = seconds
    slowest = sorted(named.items(), key=lambda item: -item[1])[:options.top]
    if options.json:
        print(json.dumps({"seconds": sum(steps.values()), "folders": dict(folders.most_common()), "slowest": dict(slowest)}))
        return 0
    print(f"{options.build}: {len(steps)} steps, {sum(steps.values()):.0f} s")
    for folder, seconds in folders.most_common():
        print(f"  {folder:<24} {counts[folder]:4d} steps {seconds:7.1f} s")
    print("slowest:")
    for name, seconds in slowest:
        print(f"  {seconds:7.1f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
