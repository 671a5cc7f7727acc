#!/usr/bin/env bash
# Builds a preset, or only the targets named behind it, and fails on any compiler warning.
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
rm -f "$log"
exit "$status"
