#!/usr/bin/env python3
"""Runs the test_* binaries of a build folder, prints what failed and what was skipped for which reason, and ends with a
line `N passed, N failed, N skipped`.

usage: run_tests.py BUILD_DIR [--only NAME,NAME] [--tally FILE] [--timeout SECONDS]

--tally writes the counts to FILE (JSON: passed, failed, skips by reason) and leaves the closing line to whoever sums up.
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


def run(binary: pathlib.Path, timeout: int) -> dict:
    started = time.time()
    environment = dict(os.environ, UBSAN_OPTIONS="print_stacktrace=1", ASAN_OPTIONS="detect_stack_use_after_return=1")
    try:
        done = subprocess.run([str(binary), "--gtest_brief=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, env=environment)
        text, code = done.stdout.decode("utf-8", "replace"), done.returncode
    except subprocess.TimeoutExpired as expired:
        text, code = (expired.stdout or b"").decode("utf-8", "replace") + f"\ntimed out after {timeout} s", 124
    result = {"passed": 0, "failed": 0, "skipped": 0}
    result["passed"] = len(re.findall(r"^\[       OK \]", text, re.M))
    result["failed"] = len(set(re.findall(r"^\[  FAILED  \] (\S+)(?:,.*)? \(\d+ ms\)", text, re.M)))
    result["skipped"] = len(re.findall(r"^\[  SKIPPED \] .* \(\d+ ms\)", text, re.M))
    reasons = [re.sub(r"/\S+", "FILE", reason.strip()) for reason in re.findall(r": Skipped\n(.*)", text)]
    result["skips"] = collections.Counter(reasons[: result["skipped"]])
    result["skips"].update(["for no stated reason"] * (result["skipped"] - len(reasons)))
    if code != 0 and result["failed"] == 0:
        result["failed"] = 1  # crashed or timed out before gtest could say so
    if result["passed"] + result["failed"] + result["skipped"] == 0:
        result["failed"] = 1  # a binary that ran no test is a failure
    return {"name": binary.name, "seconds": time.time() - started, "text": text, "code": code, **result}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tally", type=pathlib.Path)
    parser.add_argument("--timeout", type=int, default=2700)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    binaries = sorted(p for p in (options.build / "tests").glob("test_*") if p.is_file() and os.access(p, os.X_OK))
    # test_NAME_gpu has the tests of test_NAME again, for a GPU: it is run where it is named.
    binaries = [p for p in binaries if (p.name.removeprefix("test_") in wanted if wanted else not p.name.endswith("_gpu"))]
    total = {"passed": 0, "failed": 0, "skipped": 0}
    skips = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda p: run(p, options.timeout), binaries):
            print(f"{result['name']:<14} {result['passed']:4d} passed {result['failed']:3d} failed "
                  f"{result['skipped']:3d} skipped  {result['seconds']:6.1f} s", flush=True)
            if result["failed"]:
                lines = result["text"].splitlines()
                print("\n".join(lines[-120:]), flush=True)
            for reason, count in result["skips"].most_common():
                print(f"    {count:4d} skipped: {reason}", flush=True)
            skips.update(result["skips"])
            for key in total:
                total[key] += result[key]
    if not binaries:
        print(f"no test binaries in {options.build}/tests")
        total["failed"] += 1
    if options.tally:
        options.tally.write_text(json.dumps({"passed": total["passed"], "failed": total["failed"], "skips": skips}))
    else:
        print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
