#!/usr/bin/env bash
# What each K/V type costs the demo model at the context it was trained for (8,192): a Markdown table on stdout.
# usage: kv_quality.sh [--bin RIPTIDE] [--device cpu|cuda] [--texts N] [--windows N] [--types LIST] [--work FOLDER]
#   --bin      the program (build/cuda/riptide or build/cpu/riptide)
#   --texts    long texts of about 7,600 tokens, each with five facts at five depths and a question about each (8)
#   --windows  windows of 8,192 tokens of Python to score (6)
#   --types    beside f16, the reference
#   --work     where the inputs are written (a temporary folder)
# The text is this repository's Python, which the model has not seen; the questions are drawn with a fixed seed.
set -euo pipefail
cd "$(dirname "$0")/.."
device=cpu texts=8 windows=6 types=f32,bf16,f8_e4m3,q8_0,q8_0/q4_0,q4_0/q8_0,q4_0,tq3_0 work="" bin=""
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 ;; --device) device=$2 ;; --texts) texts=$2 ;; --windows) windows=$2 ;; --types) types=$2 ;;
    --work) work=$2 ;;
    *) echo "kv_quality.sh: unknown option $1" >&2; exit 64 ;;
  esac
  shift 2
done
[ -n "$bin" ] || { bin=build/cpu/riptide; [ "$device" = cpu ] || bin=build/cuda/riptide; }
if [ -z "$work" ]; then work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; fi
mkdir -p "$work"
python3 scripts/kv_inputs.py --riptide "$bin" --out "$work" --texts "$texts" --windows "$windows"
"$bin" ppl --device "$device" --text "$work/text.py" --window 8192 --needles "$work/needles.json" --kv-types "$types"
