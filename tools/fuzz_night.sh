#!/usr/bin/env bash
# Fuzzes targets in the optimised build, some thousand executions a second a process and no sanitizer (docs/results/fuzz.md).
# usage: fuzz_night.sh SECONDS SEED TARGET:PROCESSES...     e.g. fuzz_night.sh 3600 1 schema:6 tool_arguments:1 history:1
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -lt 3 ]; then sed -n '3s/^# //p' "$0"; exit 2; fi
build=${BUILD:-build/cpu} seconds=$1 seed=$2
shift 2
names=("${@%:*}")
cmake --build "$build" --target $(printf 'fuzz_%s_fast ' "${names[@]}")
for target in "$@"; do
  name=${target%:*}
  for _ in $(seq "${target#*:}"); do
    "$build/tests/fuzz/fuzz_${name}_fast" "$seconds" "$seed" "tests/fuzz/corpus/$name" &
    seed=$((seed + 1))
  done
done
failed=0
for job in $(jobs -p); do wait "$job" || failed=1; done
exit $failed
