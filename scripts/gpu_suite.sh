#!/usr/bin/env bash
# Tests, memory checks and speed on an NVIDIA GPU; leaves a report.
# usage: gpu_suite.sh [--bin FOLDER] [--out FOLDER] [--model FILE.gguf] [--steps tests,fixtures,sanitizer,ops,bench]
# FOLDER holds riptide and the test binaries of a CUDA build (default: build/cuda, built if it is not there).
# Without --model a full-size Laguna XS.2 with random weights is written to /dev/shm (20 GB) for the bench.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=build/cuda out=build/gpu_report model="" steps=tests,fixtures,sanitizer,ops,bench
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 ;; --out) out=$2 ;; --model) model=$2 ;; --steps) steps=$2 ;;
    *) echo "gpu_suite.sh: unknown option $1" >&2; exit 64 ;;
  esac
  shift 2
done
if [ ! -x "$bin/riptide" ]; then
  cmake --preset cuda -DRIPTIDE_BENCH=ON && cmake --build --preset cuda || exit 1
fi
mkdir -p "$out"
report=$out/report.txt
failed=0
say() { echo "$@" | tee -a "$report"; }
has() { [[ ",$steps," == *",$1,"* ]]; }
run() {  # run NAME COMMAND...: output to a file of its own, one line in the report
  local name=$1 started=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then say "ok      $name  $((SECONDS - started)) s"
  else say "FAILED  $name  $((SECONDS - started)) s"; tail -n 40 "$out/$name.log"; failed=1; fi
}
test_binary() { for at in "$bin/$1" "$bin/tests/$1"; do [ -x "$at" ] && echo "$at" && return; done; }

: >"$report"
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), $(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
if has tests; then
  run test_base "$(test_binary test_base)"
  run test_quant "$(test_binary test_quant)" --device cuda
  run test_ops "$(test_binary test_ops)" --device cuda
  run test_engine "$(test_binary test_engine)" --device cuda
  run test_ops_portable "$(test_binary test_ops)" --device cuda --portable
fi
has fixtures && run test_models "$(test_binary test_models)" --device cuda
if has sanitizer; then
  for group in 'elementwise*:embed*:rms_norm*:rope*:topk*:RouteSigmoid*:kv_append*' 'DecodeCuda*:Matmul.*:MoeAdd*' \
               'Prefill*:*PrefillExpand*' 'gated_attention*:decode_attention*'; do
    for tool in memcheck racecheck; do
      run "sanitizer_${tool}_${group%%[*.:]*}" compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 20 \
          "$(test_binary test_ops)" --device cuda --gtest_filter="$group"
    done
  done
fi
has ops && for b in "$bin"/bench_gpu_* "$bin"/bench/bench_gpu_*; do [ -x "$b" ] && run "$(basename "$b")" "$b"; done
if has bench; then
  if [ -z "$model" ]; then
    model=/dev/shm/laguna-xs.2-q4_k_m-random.gguf
    [ -f "$model" ] || run synth "$bin/riptide" synth "$model" --shape laguna-xs.2 --type q4_k_m
  fi
  cat "$model" >/dev/null
  run bench "$bin/riptide" bench "$model" --device cuda --prompt 512,4096,32768 --depth 128,4096,32768 --gen 256 --repeat 5
  cat "$out/bench.log" >>"$report"
fi
exit $failed
