#!/usr/bin/env bash
# clang-tidy with the checks of .clang-tidy over the program's sources, in the groups that the build compiles.
# usage: tools/tidy.sh [BUILD_FOLDER]      the folder of a configured build; left out: build/cpu
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cpu}
[ -f "$build/compile_commands.json" ] || { echo "$build: not configured; cmake --preset test makes build/cpu" >&2; exit 66; }
find "$build/groups" -path '*/riptide_*' -name '*.cpp' | sort |
    xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --extra-arg=-Wno-everything
