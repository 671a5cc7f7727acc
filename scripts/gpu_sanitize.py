#!/usr/bin/env python3
"""Runs every test of a test binary on a GPU under one tool of compute-sanitizer, each test in a process of its own.

A test that the tool slows down beyond --limit is reported as such and is no failure: what was not seen is listed by name.
Exits 1 if the tool found something or a test failed. Prints one line for each test that is not clean, then a summary.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import os
import re
import subprocess
import sys
import time


def tests_of(binary, gtest_filter):
    """Names as --gtest_filter takes them."""
    listing = subprocess.run([binary, f"--gtest_filter={gtest_filter}", "--gtest_list_tests"], check=True, text=True,
                             capture_output=True).stdout
    names, suite = [], None
    for line in listing.splitlines():
        text = line.split("#")[0].rstrip()
        if re.fullmatch(r"\S+\.", text):
            suite = text
        elif re.fullmatch(r"  \S+", text) and suite:
            names.append(suite + text.strip())
    return names


def verdict(output, code):
    """(clean | skipped | found | failed, the line that says so)."""
    found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", output)
    line = found.group(0) if found else f"exit {code}, no summary"
    if re.search(r"\[  SKIPPED \]", output) and "[  FAILED  ]" not in output:
        reason = re.search(r"Skipped\n(.*)", output)
        return "skipped", reason.group(1).strip() if reason else ""
    if found and re.search(r"SUMMARY: 0 (?:errors|hazards)", line) and code == 0:
        return "clean", line
    if "[  FAILED  ]" in output and found and re.search(r"SUMMARY: 0 ", line):
        return "failed", line
    return "found", line


def run(tool, binary, name, limit, arguments, logs):
    began = time.monotonic()
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", binary, "--device",
               "cuda", f"--gtest_filter={name}", *arguments]
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=limit, errors="replace")
        output = done.stdout + done.stderr
        kind, line = verdict(output, done.returncode)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        hazards = "hazard" in output.lower() or "Invalid" in output
        kind, line = ("found", "found before its limit") if hazards else ("limit", f"not done after {limit:.0f} s")
    if logs and kind not in ("clean", "skipped"):
        with open(os.path.join(logs, f"{tool}_{re.sub('[^A-Za-z0-9_.-]', '_', name)}.log"), "w") as log:
            log.write(output)
    return name, kind, line, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="test_ops, test_models, ... of a CUDA build")
    parser.add_argument("--tool", choices=["memcheck", "racecheck", "synccheck", "initcheck"], required=True)
    parser.add_argument("--filter", default="*", help="as --gtest_filter")
    parser.add_argument("--leave-out", default="", help="patterns, by colons: tests that run no kernels of interest")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--limit", type=float, default=120, help="seconds for one test")
    parser.add_argument("--seconds", type=float, default=480, help="for everything: later tests are left out")
    parser.add_argument("--logs", default="", help="folder for the output of tests that are not clean")
    parser.epilog = "Arguments behind -- go to the test binary: -- --portable"
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:cut])
    arguments = sys.argv[cut + 1:]
    if options.logs:
        os.makedirs(options.logs, exist_ok=True)

    end = time.monotonic() + options.seconds
    left_out = options.leave_out.split(":")
    names = [name for name in tests_of(options.binary, options.filter)
             if not any(fnmatch.fnmatch(name, pattern) for pattern in left_out)]
    counts, times = collections.Counter(), []

    def one(name):
        limit = min(options.limit, end - time.monotonic())
        if limit < 2:
            return name, "left out", "no time left", 0.0
        return run(options.tool, options.binary, name, limit, arguments, options.logs)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, kind, line, seconds in pool.map(one, names):
            counts[kind] += 1
            times.append((seconds, name))
            if kind not in ("clean", "skipped"):
                print(f"{kind:8} {name}  {seconds:.0f} s  {line}", flush=True)
    print("slowest: " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(times, reverse=True)[:12]))
    print(f"{options.tool} {os.path.basename(options.binary)}: {len(names)} tests, " +
          ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    sys.exit(1 if counts["found"] or counts["failed"] else 0)


if __name__ == "__main__":
    main()
