#!/usr/bin/env python3
"""Runs the test_* binaries of a build folder, prints what failed and what was skipped for which reason, and ends with a
line `N passed, N failed, N skipped`.

usage: run_tests.py BUILD_DIR [--only NAME,NAME] [--tally FILE] [--timeout SECONDS] [--slowest N]

A binary runs in pieces, two at a time; its seconds are those of its pieces together.
--tally writes them to FILE (JSON: passed, names of failures, skips by reason) and leaves the closing line to whoever sums up.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import typing

PIECE = 60


class Piece(typing.NamedTuple):
    """One process: the tests of a binary whose number modulo `pieces` is `index`."""
    binary: pathlib.Path
    index: int
    pieces: int


def pieces_of(binary: pathlib.Path) -> list[Piece]:
    """Pieces of about PIECE tests, so that no long binary is left alone on one core at the end."""
    try:
        listed = subprocess.run([str(binary), "--gtest_list_tests"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
        count = sum(line.startswith("  ") for line in listed.stdout.decode("utf-8", "replace").splitlines())
    except subprocess.TimeoutExpired:
        count = 0
    pieces = max(1, round(count / PIECE))
    return [Piece(binary, index, pieces) for index in range(pieces)]


def run(piece: Piece, timeout: int) -> dict:
    started = time.time()
    environment = dict(os.environ, UBSAN_OPTIONS="print_stacktrace=1", ASAN_OPTIONS="detect_stack_use_after_return=1")
    if piece.pieces > 1:
        environment.update(GTEST_TOTAL_SHARDS=str(piece.pieces), GTEST_SHARD_INDEX=str(piece.index))
    try:
        done = subprocess.run([str(piece.binary), "--gtest_brief=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, env=environment)
        text, code = done.stdout.decode("utf-8", "replace"), done.returncode
    except subprocess.TimeoutExpired as expired:
        text, code = (expired.stdout or b"").decode("utf-8", "replace") + f"\ntimed out after {timeout} s", 124
    result = {"passed": len(re.findall(r"^\[       OK \]", text, re.M)),
              "failures": sorted(set(re.findall(r"^\[  FAILED  \] (\S+)(?:,.*)? \(\d+ ms\)", text, re.M))),
              "skipped": len(re.findall(r"^\[  SKIPPED \] .* \(\d+ ms\)", text, re.M))}
    reasons = [re.sub(r"/\S+", "FILE", reason.strip()) for reason in re.findall(r": Skipped\n(.*)", text)]
    result["skips"] = collections.Counter(reasons[: result["skipped"]])
    result["skips"].update(["for no stated reason"] * (result["skipped"] - len(reasons)))
    began = re.findall(r"^\[ RUN      \] (\S+)", text, re.M)
    ended = result["passed"] + len(result["failures"]) + result["skipped"]
    if code != 0 and (len(began) > ended or not result["failures"]):  # before gtest could say so
        result["failures"].append(f"{piece.binary.name}, exit {code}" + (f", last begun: {began[-1]}" if began else ""))
    if result["passed"] + len(result["failures"]) + result["skipped"] == 0:
        result["failures"] = [f"{piece.binary.name}: a process that ran no test"]
    result["times"] = [(int(ms) / 1000, name) for name, ms in re.findall(r"^\[       OK \] (\S+).* \((\d+) ms\)", text, re.M)]
    return {"binary": piece.binary, "seconds": time.time() - started, "text": text, **result}


def joined(parts: list[dict]) -> dict:
    """What all pieces of one binary gave; the text is that of the pieces that failed."""
    whole = {key: sum(part[key] for part in parts) for key in ("passed", "skipped", "seconds")}
    whole["skips"] = sum((part["skips"] for part in parts), collections.Counter())
    whole["failures"] = [name for part in parts for name in part["failures"]]
    whole["text"] = "\n".join("\n".join(part["text"].splitlines()[-120:]) for part in parts if part["failures"])
    return whole


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tally", type=pathlib.Path)
    parser.add_argument("--timeout", type=int, default=2700)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--slowest", type=int, default=10, help="how many of the slowest tests are listed at the end")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    binaries = sorted(p for p in (options.build / "tests").glob("test_*") if p.is_file() and os.access(p, os.X_OK))
    # test_NAME_gpu has the tests of test_NAME again, for a GPU: it is run where it is named.
    binaries = [p for p in binaries if (p.name.removeprefix("test_") in wanted if wanted else not p.name.endswith("_gpu"))]
    # The binaries with most tests first: what is left at the end is short.
    pieces = sorted((piece for binary in binaries for piece in pieces_of(binary)), key=lambda piece: -piece.pieces)
    total = {"passed": 0, "skipped": 0}
    skips = collections.Counter()
    parts, times, failures = collections.defaultdict(list), [], []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(run, piece, options.timeout): piece for piece in pieces}
        for done in concurrent.futures.as_completed(waiting):
            piece, part = waiting[done], done.result()
            times += part["times"]
            parts[piece.binary].append(part)
            if len(parts[piece.binary]) < piece.pieces:
                continue
            whole = joined(parts[piece.binary])
            print(f"{piece.binary.name:<14} {whole['passed']:4d} passed {len(whole['failures']):3d} failed "
                  f"{whole['skipped']:3d} skipped  {whole['seconds']:6.1f} s", flush=True)
            if whole["failures"]:
                print(whole["text"], flush=True)
            for reason, count in whole["skips"].most_common():
                print(f"    {count:4d} skipped: {reason}", flush=True)
            skips.update(whole["skips"])
            failures += whole["failures"]
            for key in total:
                total[key] += whole[key]
    for seconds, name in sorted(times, reverse=True)[:options.slowest]:
        print(f"    {seconds:7.1f} s  {name}", flush=True)
    if not binaries:
        failures.append(f"no test binaries in {options.build}/tests")
        print(failures[-1])
    if options.tally:
        options.tally.write_text(json.dumps({"passed": total["passed"], "failures": failures, "skips": skips}))
    else:
        print(f"{total['passed']} passed, {len(failures)} failed, {total['skipped']} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
