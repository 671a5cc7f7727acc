#!/usr/bin/env python3
"""Runs the tests of a test binary on a GPU under one tool of compute-sanitizer.

A process runs some tests, one after the other; its output is read as it comes, so that each test has a result of its own:
clean, skipped, found (the tool reported something), failed, or limit: not done within --limit seconds, which is no failure,
but is listed by name. The tests behind one that was stopped go on in another process. Prints one line for each test that is
not clean, with the first reports of the tool, then a summary. Exits 1 if the tool found something or a test failed.
"""
import argparse
import collections
import fnmatch
import os
import queue
import re
import signal
import subprocess
import sys
import threading
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


class Result:
    def __init__(self, name):
        self.name, self.kind, self.seconds, self.reports = name, "limit", 0.0, []


def times_of(path):
    """Of a file of --times: {name: (seconds, kind)}."""
    with open(path) as file:
        rows = [re.match(r" *([\d.]+) (.{8,}?) +(\S+)$", line) for line in file]
    return {row[3]: (float(row[1]), row[2].strip()) for row in rows if row}


REPORT = re.compile(r"^========= (?:(?:Error|Warning): Race reported .*|    ?and (?:Read|Write) access .*|Invalid .*|"
                    r"Uninitialized .*|Barrier error .*|Program hit .*|    Address .*|    at .*|Internal Sanitizer Error.*)")


class Worker:
    """Takes groups of tests and runs each in a process."""

    def __init__(self, options, arguments, end):
        self.options, self.arguments, self.end = options, arguments, end

    def run(self, names):
        """Results of the tests that began, and the names of those that did not."""
        # Left alone, every racecheck takes threads for all cores of the host.
        own = ["--racecheck-num-workers", "1"] if self.options.tool == "racecheck" else []
        command = ["compute-sanitizer", "--tool", self.options.tool, "--error-exitcode", "9", "--print-limit", "20",
                   *own, *self.options.tool_arguments.split(), self.options.binary, "--device", "cuda",
                   f"--gtest_filter={':'.join(names)}", *self.arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", start_new_session=True)
        lines = queue.Queue()

        def read():
            for line in process.stdout:
                lines.put((time.monotonic(), line.rstrip("\n")))
            lines.put((time.monotonic(), None))

        threading.Thread(target=read, daemon=True).start()
        began, current, results, log, stopped = time.monotonic(), None, [], [], False
        while True:
            limit = min(began + self.options.limit, self.end)
            try:
                now, line = lines.get(timeout=max(0.05, limit - time.monotonic()))
            except queue.Empty:
                stopped = True
                os.killpg(process.pid, signal.SIGKILL)  # the tool and what it runs
                break
            if line is None:
                break
            log.append(line)
            if match := re.match(r"\[ RUN      \] (\S+)", line):
                current, began = Result(match[1]), now
                results.append(current)
            elif (match := re.match(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+)", line)) and current and match[2] == current.name:
                # The tool may speak of the test's last kernels only now: what comes before the next test is this one's.
                current.kind = {"OK": "clean", "FAILED": "failed", "SKIPPED": "skipped"}[match[1]]
                current.seconds, began = now - began, now
            elif current and REPORT.match(line):
                current.reports.append(re.sub(r"^=+ +", "", line))
        process.wait()
        if current and current.kind == "limit":
            current.seconds = time.monotonic() - began
            if not stopped:
                current.kind = "failed"  # the process ended in the middle of it
                current.reports += log[-5:]
        for result in results:
            if result.reports and result.kind != "failed":
                result.kind = "found" if result.kind != "limit" else "found, limit"
        begun = {result.name for result in results}
        rest = [name for name in names if name not in begun]
        if not results and not stopped:
            results, rest = [Result(names[0])], names[1:]
            results[0].kind, results[0].reports = "failed", log[-5:]
        if self.options.logs and any(result.kind not in ("clean", "skipped") for result in results):
            name = re.sub("[^A-Za-z0-9_.-]", "_", results[-1].name)
            with open(os.path.join(self.options.logs, f"{self.options.tool}_{name}.log"), "w") as file:
                file.write("\n".join(log) + "\n")
        return results, rest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="test_ops, test_models, ... of a CUDA build")
    parser.add_argument("--tool", choices=["memcheck", "racecheck", "synccheck", "initcheck"], required=True)
    parser.add_argument("--tool-arguments", default="", help="for compute-sanitizer")
    parser.add_argument("--filter", default="*", help="as --gtest_filter")
    parser.add_argument("--leave-out", default="", help="patterns, by colons: tests that run no kernels of interest")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--group", type=float, default=12, help="expected seconds of a process of several tests")
    parser.add_argument("--expected", nargs="*", default=[], help="files of --times: longest first")
    parser.add_argument("--last", nargs="*", default=[], help="files of --times: what was clean there comes last")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one test")
    parser.add_argument("--seconds", type=float, default=480, help="for everything: later tests are left out")
    parser.add_argument("--times", default="", help="file for the seconds of each test")
    parser.add_argument("--logs", default="", help="folder for the output of processes with tests that are not clean")
    parser.epilog = "Arguments behind -- go to the test binary: -- --brief --multiprocessors 16"
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:cut])
    if options.logs:
        os.makedirs(options.logs, exist_ok=True)
    end = time.monotonic() + options.seconds
    left_out = options.leave_out.split(":")
    names = [name for name in tests_of(options.binary, options.filter)
             if not any(fnmatch.fnmatch(name, pattern) for pattern in left_out)]
    expected = collections.defaultdict(lambda: options.group / 4)
    for path in options.expected:
        for name, (seconds, kind) in times_of(path).items():
            if kind != "left out":
                expected[name] = seconds if kind in ("clean", "skipped") else max(40, 2 * seconds)
    last = {name for path in options.last for name, (_, kind) in times_of(path).items() if kind in ("clean", "skipped")}
    names.sort(key=lambda name: (name in last, -expected[name]))

    pending, lock, results = collections.deque(names), threading.Lock(), []
    worker = Worker(options, sys.argv[cut + 1:], end)

    def work():
        while end - time.monotonic() > 3:
            with lock:
                group, sum_of = [], 0.0
                while pending and (not group or sum_of + expected[pending[0]] <= options.group):
                    sum_of += expected[pending[0]]
                    group.append(pending.popleft())
            if not group:
                return
            done, rest = worker.run(group)
            with lock:
                results.extend(done)
                pending.extendleft(reversed(rest))

    threads = [threading.Thread(target=work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in pending:
        results.append(Result(name))
        results[-1].kind = "left out"
    counts = collections.Counter(result.kind for result in results)
    for result in sorted(results, key=lambda result: (result.kind, result.name)):
        if result.kind not in ("clean", "skipped"):
            print(f"{result.kind:8} {result.name}  {result.seconds:.0f} s, {len(result.reports)} lines of reports")
            for line in list(dict.fromkeys(result.reports))[:6]:
                print(f"         {line[:300]}")
    if options.times:
        with open(options.times, "w") as file:
            for result in sorted(results, key=lambda result: result.seconds):
                file.write(f"{result.seconds:8.2f} {result.kind:8} {result.name}\n")
    slowest = sorted(results, key=lambda result: result.seconds, reverse=True)[:12]
    print("slowest: " + ", ".join(f"{result.name} {result.seconds:.0f} s" for result in slowest))
    print(f"{options.tool} {os.path.basename(options.binary)}: {len(names)} tests, " +
          ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    sys.exit(1 if any(kind.startswith(("found", "failed")) for kind in counts) else 0)


if __name__ == "__main__":
    main()
