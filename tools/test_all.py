#!/usr/bin/env python3
"""Everything that CI runs, cheapest first. Ends with the stages' times, what was skipped and why, and the line
`N passed, N failed, N skipped`.

A stage passes or fails as a whole. What it could not check it says in lines `skipped: WHY`; each is counted, and a stage
that could check nothing at all exits with 77 and counts as skipped, not as passed.

usage: test_all.py [--only WORD]    only stages whose names contain WORD (and what they need is built already)
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUZZ_TARGETS = """gguf safetensors tokenizer jinja laguna_stream qwen_stream tool_arguments constraint schema http body
history""".split()
SKIPPED = 77
# Under AddressSanitizer: guesses with the small models only, no crowds, and no distributions. They take minutes there,
# and the optimised tests have them.
LONG_TESTS = """All/Speculation*/demo_* All/SpeculationCrowd* SampledGuesses.* EngineLaw.in_a_crowd* EngineDflash.in_a_crowd*
EngineConstraint.a_hundred_schemas* FormedDraw.guesses* FormedDraw.answers_in_a_crowd* FormedDraw.a_session*
scheduler.random_scenarios* SessionTest.sampled_answers* Sampler.draws_follow* All/DraftRoundsTest.the_device_accepts*
All/DraftRoundsTest.chains_and_trees*/dflash_* EngineLaw.ten_thousand* FormedDraw.a_lone*
SampleMask.masked_logits_are_impossible_in_a_large* EngineCompression.whoever*
All/HybridLoop.a_device_that_runs_ahead*/q4_k_m window_mass.stays_within* attention.long_contexts*""".split()


class Run:
    def __init__(self, only: str):
        self.only = only
        self.passed = self.failed = 0
        self.skips = collections.Counter()
        self.times = []
        self.log = ROOT / "build/stage.log"
        self.log.parent.mkdir(exist_ok=True)

    def tell(self, name: str, word: str, seconds: float) -> None:
        self.times.append((seconds, name))
        print(f"{name:<38} {word:<8} {seconds:4.0f} s", flush=True)

    def stage(self, name: str, *command: str, show: str = "") -> bool:
        """One check that passes, fails or is skipped as a whole. Lines that match `show` are printed."""
        if self.only not in name:
            return True
        began = time.monotonic()
        with open(self.log, "w+", encoding="utf-8", errors="replace") as log:
            code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT).returncode
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        reasons = [match.group(1) for line in lines if (match := re.match(r"\s*skipped:? (.*)", line))]
        seconds = time.monotonic() - began
        if code == SKIPPED:
            self.tell(name, "skipped", seconds)
            reasons = reasons or [name]
        elif code == 0:
            self.passed += 1
            self.tell(name, "ok", seconds)
        else:
            self.failed += 1
            self.tell(name, "FAILED", seconds)
            print("\n".join(lines[-60:]), flush=True)
        for reason in reasons:
            self.skip(reason)
        for line in lines:
            if show and re.search(show, line):
                print(f"    {line.strip()}")
        return code == 0

    def skip(self, reason: str, count: int = 1) -> None:
        self.skips[reason] += count
        print(f"    skipped: {reason}", flush=True)

    def unit_tests(self, name: str, build: str, leave_out: list[str] = ()) -> None:
        """Every test_* of a build, each test counted."""
        if self.only not in name:
            return
        print(f"== {name}", flush=True)
        began = time.monotonic()
        with tempfile.NamedTemporaryFile("r", suffix=".json") as tally:
            environment = dict(os.environ)
            if leave_out:
                environment["GTEST_FILTER"] = "-" + ":".join(leave_out)
            subprocess.run(["tools/run_tests.py", build, "--tally", tally.name], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
            text = tally.read()
        counts = json.loads(text) if text else {"passed": 0, "failed": 1, "skips": {}}
        self.passed += counts["passed"]
        self.failed += counts["failed"]
        self.skips.update(counts["skips"])
        self.tell(name, "ok" if counts["failed"] == 0 else "FAILED", time.monotonic() - began)

    def close(self) -> int:
        print("== times")
        for seconds, name in sorted(self.times, reverse=True)[:12]:
            print(f"{seconds:8.0f} s  {name}")
        print(f"{sum(seconds for seconds, _ in self.times):8.0f} s  in all")
        if self.skips:
            print("== skipped")
            for reason, count in self.skips.most_common():
                print(f"{count:8d}  {reason}")
        print(f"{self.passed} passed, {self.failed} failed, {sum(self.skips.values())} skipped")
        return 1 if self.failed else 0


def fetch_packages() -> list[subprocess.Popen]:
    """npm's packages for clients and agents, while the compilers work."""
    if shutil.which("npm") is None:
        return []
    commands = [["tests/clients/run.sh", "--fetch"], ["tests/clients/agents.py", "--fetch", "--install", "600"]]
    return [subprocess.Popen(["nice", *command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             start_new_session=True) for command in commands]


def has_cuda() -> bool:
    return shutil.which("nvcc") is not None or os.access("/usr/local/cuda/bin/nvcc", os.X_OK)


def main() -> int:
    parser = argparse.ArgumentParser(description="Everything that CI runs")
    parser.add_argument("--only", default="", metavar="WORD", help="only stages whose names contain it")
    run = Run(parser.parse_args().only)
    fetching = fetch_packages() if not run.only else []
    try:
        return stages(run, fetching)
    finally:
        for process in fetching:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def stages(run: Run, fetching: list[subprocess.Popen]) -> int:
    for check in ("layers", "names"):
        run.stage(f"{check}: the check can fail", f"tools/check_{check}.py", "--self-test")
        run.stage(check, f"tools/check_{check}.py")
    run.stage("configure", "cmake", "--preset", "test")
    run.stage("build, no warnings", "tools/build_clean.sh", "test")
    run.stage("build: where its time went", "tools/build_times.py", "build/cpu", show=".")
    run.unit_tests("unit tests, optimised", "build/cpu")
    riptide = "build/cpu/riptide"
    run.stage("command line", "tools/cli_test.py", riptide)
    run.stage("command line, its edges", "tools/cli_edges_test.py", riptide)
    run.stage("an installed program", "tools/install_test.sh", "build/cpu")
    run.stage("models from a hub, and the terminal", "tools/hub_test.py", riptide)
    run.stage("commands round a server", "tools/serve_test.py", riptide)
    run.stage("streams that last", "tools/soak.py", "build/cpu/tests/script_server", "--seconds", "20")
    for process in fetching:
        process.wait()
    run.stage("clients from npm", "tests/clients/run.sh", riptide, *filter(None, [os.environ.get("RIPTIDE_CLIENTS")]))
    run.stage("coding agents from npm", "tests/clients/agents.py", riptide, "build/cpu/tests/script_server", "--install", "240",
              *(["--agents", os.environ["RIPTIDE_AGENTS"]] if "RIPTIDE_AGENTS" in os.environ else []), show="turn 2|agents,")
    if has_cuda():
        # The objects are those of the build above; new are the kernels, and the tests that call them directly.
        run.stage("build cuda (sm_90a), no warnings", "tools/build_clean.sh", "test", "riptide_gpu", "test_ops_gpu")
        run.stage("cuda: loads behind the wait", "tools/check_pdl_order.py", "build/cpu")
    else:
        run.skip("build cuda: no nvcc here (the CUDA toolkit is not in Debian)")
    run.stage("configure asan", "cmake", "--preset", "asan")
    run.stage("build asan and fuzzers, no warnings", "tools/build_clean.sh", "asan")
    run.unit_tests("unit tests, ASan and UBSan", "build/asan", LONG_TESTS)
    # A look at the corpus and a little more: tools/fuzz.sh takes as long as you like.
    seconds = os.environ.get("FUZZ_SECONDS", "12")
    for target in FUZZ_TARGETS:
        run.stage(f"fuzz {target}, {seconds} s", "tools/fuzz.sh", target, seconds)
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
