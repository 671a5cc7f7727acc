#!/usr/bin/env bash
# Tests, memory checks and speed on an NVIDIA GPU; leaves a report.
# usage: gpu_suite.sh [--bin FOLDER] [--out FOLDER] [--model FILE.gguf] [--steps LIST] [--groups REGEX] [--minutes N] [--jobs N] [--kv TYPE]
#   --bin      riptide, test_* and bench_* of a CUDA build (build/cuda, built if it is not there)
#   --out      report.txt, and one log for each command (build/gpu_report)
#   --model    for the bench; left out: a full-size Laguna XS.2 with random weights in /dev/shm (20 GB)
#   --steps    of tests,models,shared,trace,portable,memcheck,racecheck,errors,ops,kv,bench,profile,serve;
#              left out: all but kv, profile, serve
#   --groups   only the commands of these steps whose names match, e.g. 'decode|router'
#   --minutes  for everything (8): what does not fit is reported as left out
#   --kv       K/V type of bench, profile and serve (f16)
#   --jobs     sanitizer commands that run side by side (12: racecheck keeps one or two cores busy for each)
# Exits 1 if something failed; tests that did not end under a sanitizer have not failed, and are reported.
set -uo pipefail
cd "$(dirname "$0")/.."
command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
bin=build/cuda out=build/gpu_report model="" steps=tests,models,shared,trace,portable,memcheck,racecheck,errors,ops,bench
groups=. minutes=8 jobs=12 kv=f16
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 ;; --out) out=$2 ;; --model) model=$2 ;; --steps) steps=$2 ;; --groups) groups=$2 ;;
    --minutes) minutes=$2 ;; --jobs) jobs=$2 ;; --kv) kv=$2 ;;
    *) echo "gpu_suite.sh: unknown option $1" >&2; exit 64 ;;
  esac
  shift 2
done
if [ ! -x "$bin/riptide" ]; then
  cmake --preset cuda -DRIPTIDE_TESTS=ON -DRIPTIDE_BENCH=ON && cmake --build --preset cuda || exit 1
fi
mkdir -p "$out"
report=$out/report.txt
end=$((SECONDS + minutes * 60))
say() { echo "$@" | tee -a "$report"; }
has() { [[ ",$steps," == *",$1,"* ]]; }
binary() { for at in "$bin/$1" "$bin/tests/$1" "$bin/bench/$1"; do [ -x "$at" ] && echo "$at" && return; done; echo "$1-is-not-in-$bin"; }

# run NAME LIMIT COMMAND...: output to NAME.log, one line in the report. LIMIT seconds, or what is left.
run() {
  local name=$1 limit=$2 began=$SECONDS rc counts
  shift 2
  [[ $name =~ $groups ]] || return 0
  [ $((end - SECONDS)) -lt "$limit" ] && limit=$((end - SECONDS))
  if [ "$limit" -lt 5 ]; then say "LEFT    $name: no time"; return 0; fi
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  rc=$?
  counts=$(grep -oE '^\[  (PASSED|FAILED|SKIPPED) ?\] [0-9]+ tests?|^(mem|race)check .*' "$out/$name.log" | tr '\n' ' ')
  case $rc in
    0) say "ok      $name  $((SECONDS - began)) s  $counts" ;;
    124 | 137) say "TIME    $name  not done after $limit s  $counts"
      [[ $name == sanitizer_* ]] || echo "$name" >>"$out/failed" ;;
    *) say "FAILED  $name  $((SECONDS - began)) s, exit $rc  $counts"
      echo "$name" >>"$out/failed"
      tail -n 30 "$out/$name.log" ;;
  esac
}
# A failure that must be a sentence: its exit code, and words of the sentence.
refused() {
  local name=$1 code=$2 words=$3 rc
  shift 3
  [[ $name =~ $groups ]] || return 0
  timeout 60 "$@" >"$out/$name.log" 2>&1
  rc=$?
  if [ $rc -eq "$code" ] && grep -q "$words" "$out/$name.log"; then say "ok      $name  $(tail -n 1 "$out/$name.log")"
  else say "FAILED  $name: exit $rc, expected $code and \"$words\""; tail -n 5 "$out/$name.log"; echo "$name" >>"$out/failed"; fi
}
sanitize() { # TOOL NAME BINARY FILTER
  local expected=()
  [ "$1" = racecheck ] && expected=(--group 25 --expected scripts/racecheck.times)  # another run's --times
  run "sanitizer_$1_$2" 600 scripts/gpu_sanitize.py "$(binary "$3")" --tool "$1" --filter "$4" --jobs "$jobs" "${expected[@]}" \
    --seconds $((end - SECONDS - 10)) --times "$out/sanitizer_$1_$2.times" --logs "$out/sanitizer" \
    -- --brief --multiprocessors 16
  [ -f "$out/sanitizer_$1_$2.log" ] && cat "$out/sanitizer_$1_$2.log" >>"$report"
}

: >"$report"
rm -f "$out/failed"
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), $(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"

# NAME SHARES: the tests of one program, in as many processes at a time.
shared_out() {
  local i
  for ((i = 0; i < $2; ++i)); do
    run "$1.$i" 600 env GTEST_TOTAL_SHARDS="$2" GTEST_SHARD_INDEX=$i "$(binary "$1")" --device cuda &
  done
}
if has tests; then
  run test_base 60 "$(binary test_base)"
  for name in test_quant test_apps test_cache; do shared_out $name 1; done
  shared_out test_ops 3
  shared_out test_engine 6
fi
has models && shared_out test_models 3
wait
# Replayed chains of kernels while other processes use the GPU: what clusters and early launches rely on is slow then.
if has shared; then
  run shared_gpu 100 bash -c 'end=$((SECONDS + 60)); for i in {1..14}; do
      (while [ $SECONDS -lt $end ]; do "$0" --device cuda --gtest_filter="*replays*" >"$1.$i" 2>&1 || { cat "$1.$i"; exit 1; }; done) &
      all+=($!)
    done; for one in "${all[@]}"; do wait "$one" || failed=1; done; exit "${failed:-0}"' "$(binary test_ops)" "$out/shared_gpu"
fi
# The kernels that ran for 1 to 4,096 rows of full-size models, and those that the plans name. (Of sequences that decode
# together a row can see all pages, as far as a launch knows.)
if has trace; then
  chip=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  rows=1,2,4,8,16,64,256
  for model in laguna-xs.2:q4_k_m qwen3.5-27b:q4_k_m qwen3.5-0.8b:bf16; do
    how=(--random-weights "$model" --kv f8_e4m3 --gen 4 --repeat 1 --profile --json)
    run "trace_${model%:*}" 200 bash -c 'set -e; out=$1 name=$2 rows=$3 chip=$4; shift 4
      '"$bin"'/riptide bench "$@" --prompt 4096 --depth 300 --batch $rows >$out/$name.ran.json
      '"$bin"'/riptide bench "$@" --prompt 4096 --depth 300 --verify-rows ${rows#1,} >$out/$name.verified.json
      '"$bin"'/riptide kernels "${@:1:4}" --keys 8192 --rows $rows,4096 --chip $chip --json >$out/$name.planned.json
      '"$bin"'/riptide kernels "${@:1:4}" --keys 512 --rows $rows,4096 --chip $chip --json --together >$out/$name.together.json
      tools/check_trace.py $out/$name.planned.json $out/$name.ran.json
      tools/check_trace.py $out/$name.together.json $out/$name.verified.json' trace "$out" "trace_${model%:*}" $rows "$chip" "${how[@]}"
    tail -n 5 "$out/trace_${model%:*}.log" >>"$report"
  done
fi
if has portable; then
  for name in quant ops cache engine models; do run "portable_$name" 240 "$(binary "test_$name")" --device cuda --portable; done
fi

# Every op test under memcheck and racecheck, in few sizes and on few multiprocessors (racecheck's cost goes by CTAs), and
# small models.
for tool in memcheck racecheck; do
  has $tool || continue
  sanitize $tool ops test_ops '*'
  sanitize $tool engine test_engine 'SampleCuda.*:SampleMask.*:*GpuSession*laguna_xs2'
  sanitize $tool models test_models '*greedy*:*Rounded*xs2'
  [ $tool = memcheck ] || continue
  sanitize $tool quant test_quant 'WeightStoreGpu.*'
  sanitize $tool cache test_cache 'kv_transfer*:prefix_cache.evicted*'
done

if has errors; then  # exit codes are those of ErrorKind (base/error.h)
  demo=models/demo/laguna-demo.gguf
  refused no_gpu 69 'no GPU' env CUDA_VISIBLE_DEVICES= "$bin/riptide" run "$demo" --device cuda -p x -n 4
  refused which_gpu 64 'GPU 99 was asked for' "$bin/riptide" run "$demo" --device cuda --gpu 99 -p x -n 4
  refused budget_for_weights 69 'of the budget of' "$bin/riptide" run "$demo" --device cuda --memory-budget 4MB -p x -n 4
  refused budget_for_the_rest 69 'GiB of GPU memory are free after' "$bin/riptide" run "$demo" --device cuda --memory-budget 100MB -p x -n 4
fi
has ops && run bench_cache_restore 120 "$(binary bench_cache_restore)" --device cuda
has ops && for b in "$bin"/bench_gpu_* "$bin"/bench/bench_gpu_*; do [ -x "$b" ] && run "$(basename "$b")" 120 "$b"; done
has kv && run kv_quality 240 scripts/kv_quality.sh --bin "$bin/riptide" --device cuda && cat "$out/kv_quality.log" >>"$report"
if has bench || has profile || has serve; then
  if [ -z "$model" ]; then
    model=/dev/shm/laguna-xs.2-q4_k_m-random.gguf
    [ -f "$model" ] || run synth 300 "$bin/riptide" synth "$model" --shape laguna-xs.2 --type q4_k_m
  fi
  cat "$model" >/dev/null
  has bench && run bench 240 "$bin/riptide" bench "$model" --device cuda --kv "$kv" --frontier --gen 256 --repeat 3
  has profile && run profile 120 "$bin/riptide" bench "$model" --device cuda --kv "$kv" --prompt 512,4096 --depth 128,4096,32768 --gen 128 --repeat 3 --profile
  has serve && run serve_decode 200 "$bin/riptide" bench "$model" --device cuda --kv "$kv" --serve --prompt 2048 --batch 8,32,128
  has serve && run serve_beside 120 "$bin/riptide" bench "$model" --device cuda --kv "$kv" --serve --prompt 2048 --beside 8,32768
  has serve && run serve_agent 120 "$bin/riptide" bench "$model" --device cuda --kv "$kv" --serve --agent 30,60000
  for log in bench profile serve_decode serve_beside serve_agent; do [ -f "$out/$log.log" ] && cat "$out/$log.log" >>"$report"; done
fi
say "$((SECONDS / 60)) min $((SECONDS % 60)) s; $(cat "$out/failed" 2>/dev/null | wc -l) failed"
[ ! -s "$out/failed" ]
