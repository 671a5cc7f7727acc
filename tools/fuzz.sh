#!/usr/bin/env bash
# Fuzzes one target for some seconds from its committed corpus. usage: fuzz.sh TARGET SECONDS [RUNS]
# Shipped code, ASan + UBSan + leak check, 2 GiB of memory and 25 s an input at most. New inputs stay in build/asan/found.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1 seconds=$2 runs=${3:--1}
found=build/asan/found/$target
mkdir -p "$found"
build/asan/tests/fuzz/fuzz_"$target" -max_total_time="$seconds" -runs="$runs" -timeout=25 -rss_limit_mb=2048 -max_len=65536 \
  -print_final_stats=1 -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$target"
