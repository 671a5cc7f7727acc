#!/usr/bin/env bash
# Four ways to compile everything, in build/matrix: g++ and clang++, each in unity groups and each source alone; fails on
# any warning. Alone, a source must include what it uses, which the front end tells; a group must have no name twice, and
# is built. For a nightly run: the better part of an hour on two cores.
# usage: build_matrix.sh [COMPILER-UNITY...]   (g++-10 g++-0 clang++-10 clang++-0)
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- g++-10 clang++-10 g++-0 clang++-0

# Each of Ninja's compile commands, without an object; stdin: nothing.
alone() {
  python3 - "$1/compile_commands.json" <<'PYTHON'
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys

def check(entry):
    command = shlex.split(entry["command"])
    out = command.index("-o")
    run = subprocess.run(command[:out] + command[out + 2:] + ["-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True)
    return run.returncode, run.stderr

entries = [e for e in json.load(open(sys.argv[1])) if e["file"].endswith(".cpp")]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    failed = 0
    for status, said in pool.map(check, entries):
        print(said, end="")
        failed += status != 0
print(f"{len(entries)} sources, {failed} failed")
sys.exit(failed != 0)
PYTHON
}

failed=0
for kind in "$@"; do
  compiler=${kind%-*} unity=${kind##*-} build=build/matrix/$kind
  mkdir -p "$build"
  began=$SECONDS
  {
    # A build type of its own: what Release says would come behind.
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Matrix -DCMAKE_CXX_COMPILER="$compiler" -DRIPTIDE_UNITY="$unity" \
      -DRIPTIDE_TESTS=ON -DRIPTIDE_BENCH=ON -DCMAKE_CXX_FLAGS_MATRIX=-O1 &&
      if [ "$unity" -gt 0 ]; then cmake --build "$build" -- -k 0; else alone "$build"; fi
  } >"$build/log" 2>&1
  status=$?
  warnings=$(grep -c 'warning:' "$build/log")
  if [ $status -eq 0 ] && [ "$warnings" -eq 0 ]; then
    echo "$kind: ok, $((SECONDS - began)) s: $(tail -1 "$build/log")"
  else
    echo "$kind: FAILED (exit $status, $warnings warnings), $((SECONDS - began)) s; see $build/log"
    grep -E 'warning:|error:' "$build/log" | head -20
    failed=1
  fi
done
exit $failed
