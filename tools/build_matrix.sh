#!/usr/bin/env bash
# Builds everything four times, in build/matrix: g++ and clang++, each in unity groups and each source alone, and fails on
# any warning. Alone, a source must include what it uses; a group must have no name twice. For a nightly run: an hour on
# two cores. usage: build_matrix.sh [COMPILER-UNITY...]   (g++-10 g++-0 clang++-10 clang++-0)
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- g++-10 clang++-10 g++-0 clang++-0
failed=0
for kind in "$@"; do
  compiler=${kind%-*} unity=${kind##*-} build=build/matrix/$kind
  # Alone, only the front end is of interest. A build type of its own: what Release says would come behind.
  level=-O1
  [ "$unity" -gt 0 ] || level=-O0
  mkdir -p "$build"
  began=$SECONDS
  {
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Matrix -DCMAKE_CXX_COMPILER="$compiler" -DRIPTIDE_UNITY="$unity" \
      -DRIPTIDE_TESTS=ON -DRIPTIDE_BENCH=ON "-DCMAKE_CXX_FLAGS_MATRIX=$level" && cmake --build "$build" -- -k 0
  } >"$build/log" 2>&1
  status=$?
  warnings=$(grep -c 'warning:' "$build/log")
  if [ $status -eq 0 ] && [ "$warnings" -eq 0 ]; then
    echo "$kind: ok, $((SECONDS - began)) s"
  else
    echo "$kind: FAILED (exit $status, $warnings warnings), $((SECONDS - began)) s; see $build/log"
    grep -E 'warning:|error:' "$build/log" | head -20
    failed=1
  fi
done
exit $failed
