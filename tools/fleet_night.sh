#!/usr/bin/env bash
# The long forms of what make test asks of a fleet in minutes: a thousand kills, first tokens of conversations that move,
# 200 scrapes a second held to 2 %, ten runs of three servers. Some hours on two cores, which should be quiet.
# usage: fleet_night.sh [RIPTIDE]    build/cpu/riptide unless said
set -uo pipefail
cd "$(dirname "$0")/.."
riptide=${1:-build/cpu/riptide}
failed=0
stage() {
  local began=$SECONDS
  echo "== $*"
  "$@"
  local code=$?
  if [ $code -ne 0 ] && [ $code -ne 77 ]; then failed=1; echo "FAILED ($code): $*"; fi
  echo "   $((SECONDS - began)) s"
}
for _ in $(seq 10); do stage tools/fleet_test.py "$riptide"; done
stage tools/fleet_faults_test.py "$riptide" --long
stage tools/fleet_moves_test.py "$riptide" --long
stage tools/kv_events_test.py "$riptide" --long
tests=$(dirname "$riptide")/tests
if [ -x "$tests/test_cache" ]; then stage "$tests/test_cache" --full --gtest_filter='shared_*:prefix_share*:*kills_at*'; fi
if [ -x "$tests/test_apps" ]; then stage "$tests/test_apps" --full --gtest_filter='KvEvents*'; fi
exit $failed
