#!/usr/bin/env bash
# Builds a preset, or only the targets named behind it, and fails on any compiler warning, and where ptxas says that it
# makes each wgmma wait for the one before: it calls that information.
set -uo pipefail
log=$(mktemp)
preset=$1
shift
cmake --build --preset "$preset" ${*:+--target "$@"} -- -k 0 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
if grep -q 'warning:' "$log"; then
  echo "the build printed warnings"
  status=1
fi
if grep -q 'wgmma.mma_async instructions are serialized' "$log"; then
  echo "ptxas waits for each wgmma of a kernel (registers, or accumulators that something else writes)"
  status=1
fi
rm -f "$log"
exit "$status"
