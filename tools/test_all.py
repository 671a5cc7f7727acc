#!/usr/bin/env python3
"""Everything that CI runs, cheapest first. Ends with the stages' times, what was skipped and why, what failed, and the line
`N passed, N failed, N skipped`.

A stage passes or fails as a whole. What it could not check it says in lines `skipped: WHY`; each is counted, and a stage
that could check nothing at all exits with 77 and counts as skipped, not as passed.

usage: test_all.py [--only WORD]    only stages whose names contain WORD (and what they need is built already)
"""
import argparse
import collections
import concurrent.futures
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
# Under AddressSanitizer: speculation with the small models only, no crowds, no distributions, no sums in double over long
# contexts, none of two types where one goes the same way through memory. They take minutes there, and the optimised
# tests have them.
LONG_TESTS = """All/Speculation*/demo_* All/SpeculationCrowd* All/RowsTest*/demo_* AdaptiveWidth/*never_slower*
All/DraftRoundsTest.the_device_accepts* All/DraftRoundsTest.chains_and_trees*/dflash_*
All/DraftRoundsTest.chains_and_trees*/qwen35_moe All/DraftRoundsTest.an_answer_ends*/dflash_[sz]*
EngineLaw.in_a_crowd* EngineLaw.ten_thousand* EngineDflash.in_a_crowd* EngineCompression.whoever*
EngineConstraint.a_hundred_schemas* EngineHybrid.a_drafter_in_the_dialect* scheduler.random_scenarios*
All/HybridLoop*/bf16 All/HybridLoop.a_device_that_runs_ahead*/q4_k_m All/HybridAhead*/bf16
MasksAside.drafts* MasksAside.found_by* MasksAside.the_engines_thread*
AnswerTest.sampled_answers* FormedDraw.drafts* FormedDraw.answers_in_a_crowd* FormedDraw.a_session* FormedDraw.a_lone*
SampledDrafts.* SessionTest.sampled_answers* Sampler.draws_follow* SampleMask.masked_logits_are_impossible_in_a_large*
JsonSchemaConformance.published* laguna_stream.*every_truncation qwen_stream.*every_truncation *_stream.time_is_linear*
JinjaLimits.work_is_counted*
window_mass.stays_within* attention.stays_within* attention.long_contexts* attention.heads_of_256*
attention.a_long_context_cut* attention.tree_rows* block_attention.stays_within* block_attention.long_contexts*
sparse_attention.stays_within* gated_attention.adding_its_projection* DraftMatmul.a_row_has*
DecodeKquantF16.groups_have* DecodeKquantF16.feed_forward* KquantF16Bound.* gated_attention.sigmoid_attention* AbHybrid.*
ServerWire.drafts_change* ServerConstraint.an_answer_may_last*""".split()


class Run:
    def __init__(self, only: str):
        self.only = only
        self.passed = 0
        self.failures = []
        self.skips = collections.Counter()
        self.times = []
        self.began = time.monotonic()

    def tell(self, name: str, word: str, seconds: float) -> None:
        self.times.append((seconds, name))
        print(f"{name:<38} {word:<8} {seconds:4.0f} s", flush=True)

    def stage(self, name: str, *command: str, show: str = "") -> bool:
        """One check that passes, fails or is skipped as a whole. Lines that match `show` are printed."""
        return self.only not in name or self.account(name, *self.watch(command), show)

    def stages(self, checks: list[tuple[str, ...]]) -> None:
        """Checks that need one core each, two at a time."""
        checks = [check for check in checks if self.only in check[0]]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for check, seen in zip(checks, pool.map(lambda check: self.watch(check[1:]), checks)):
                self.account(check[0], *seen)

    @staticmethod
    def watch(command: tuple[str, ...]) -> tuple[int, list[str], float]:
        """Exit status, lines printed and seconds of a command."""
        began = time.monotonic()
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT).returncode
            log.seek(0)
            return code, log.read().splitlines(), time.monotonic() - began

    def account(self, name: str, code: int, lines: list[str], seconds: float, show: str = "") -> bool:
        reasons = [match.group(1) for line in lines if (match := re.match(r"\s*skipped:? (.*)", line))]
        if code == SKIPPED:
            self.tell(name, "skipped", seconds)
            reasons = reasons or [name]
        elif code == 0:
            self.passed += 1
            self.tell(name, "ok", seconds)
        else:
            self.failures.append(": ".join([name, *[line[7:] for line in lines if line.startswith("FAILED ")][:3]]))
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
        counts = json.loads(text) if text else {"passed": 0, "failures": ["no tally"], "skips": {}}
        self.passed += counts["passed"]
        self.failures += [f"{name}: {failure}" for failure in counts["failures"]]
        self.skips.update(counts["skips"])
        self.tell(name, "FAILED" if counts["failures"] else "ok", time.monotonic() - began)

    def close(self) -> int:
        print("== times")
        for seconds, name in sorted(self.times, reverse=True)[:12]:
            print(f"{seconds:8.0f} s  {name}")
        print(f"{time.monotonic() - self.began:8.0f} s  in all")
        if self.skips:
            print("== skipped")
            for reason, count in self.skips.most_common():
                print(f"{count:8d}  {reason}")
        if self.failures:
            print("== failed")
            print("\n".join(f"{'':8}  {failure}" for failure in self.failures))
        print(f"{self.passed} passed, {len(self.failures)} failed, {sum(self.skips.values())} skipped")
        return 1 if self.failures else 0


def fetch_packages() -> list[subprocess.Popen]:
    """npm's packages for clients and agents, while the compilers work."""
    if shutil.which("npm") is None:
        return []
    commands = [["tests/clients/run.sh", "--fetch"], ["tests/page/run.sh", "--fetch"], ["tests/clients/agents.py", "--fetch", "--install", "600"]]
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
    for check in ("layers", "names", "docs"):
        run.stage(f"{check}: the check can fail", f"tools/check_{check}.py", "--self-test")
        run.stage(check, f"tools/check_{check}.py")
    run.stage("traces of kernels: the check can fail", "tools/check_trace.py", "--self-test")
    run.stage("the simulated fleet: cases that are known", "tools/fleet_sim.py", "--check")
    run.stage("the picture of the layers", "tools/draw_layers.py", "--check")
    run.stage("the page of the API: the check can fail", "tools/api_reference.py", "--self-test")
    run.stage("the page of the API", "tools/api_reference.py", "--check")
    run.stage("configure", "cmake", "--preset", "test")
    run.stage("build, no warnings", "tools/build_clean.sh", "test")
    run.stage("build: where its time went", "tools/build_times.py", "build/cpu", show=".")
    run.unit_tests("unit tests, optimised", "build/cpu")
    riptide = "build/cpu/riptide"
    run.stages([("command line", "tools/cli_test.py", riptide), ("packages", "tools/packages_test.sh", "build/cpu")])
    run.stages([("command line, its edges", "tools/cli_edges_test.py", riptide),
                ("models from a hub, and the terminal", "tools/hub_test.py", riptide)])
    run.stage("the chat on a terminal", "tools/chat_test.py", riptide, show="to the first prompt")
    run.stage("an installed program", "tools/install_test.sh", "build/cpu")
    run.stage("commands round a server", "tools/serve_test.py", riptide)
    run.stage("three servers as a fleet", "tools/fleet_test.py", riptide)
    run.stage("K/V in Redis and S3", "tools/shared_cache_test.py", riptide)
    run.stage("what a fleet bears", "tools/fleet_faults_test.py", riptide, show="hit share|kill|beside|a request of one")
    run.stage("K/V events over ZeroMQ", "tools/kv_events_test.py", riptide, show="decoding beside")
    run.stage("replies against the API's schemas", "tools/api_schema_test.py", riptide)
    run.stage("streams that last", "tools/soak.py", "build/cpu/tests/script_server", "--seconds", "20")
    for process in fetching:
        process.wait()
    run.stage("clients from npm", "tests/clients/run.sh", riptide, *filter(None, [os.environ.get("RIPTIDE_CLIENTS")]))
    run.stage("the page is what web/ builds", "tests/page/run.sh", "bundle", show="compressed")
    run.stage("the page in a browser", "tests/page/run.sh", "browser", riptide, "build/cpu/tests/script_server", show="tok/s|tests of the page")
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
    run.stages([(f"fuzz {target}, {seconds} s", "tools/fuzz.sh", target, seconds) for target in FUZZ_TARGETS])
    return run.close()


if __name__ == "__main__":
    sys.exit(main())
