#!/usr/bin/env bash
# What each mix costs the demo model, with and without an importance matrix: a Markdown table on stdout.
# usage: quant_quality.sh [--bin RIPTIDE] [--model GGUF] [--windows N] [--mixes LIST] [--work FOLDER]
#   --model    what is quantised, and the reference (the demo model)
#   --windows  windows of 512 tokens that are scored (32)
#   --work     where the files are written (a temporary folder)
# Both texts are this repository's Python, which the model has not seen: 64 windows of python/ for the matrix, the rest
# for the scores.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=build/cpu/riptide model=models/demo/laguna-demo.gguf windows=32 work=""
mixes="q2_k iq2_s q3_k_m iq3_s iq3_m iq4_xs iq4_nl q4_k_s"
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 ;; --model) model=$2 ;; --windows) windows=$2 ;; --mixes) mixes=${2//,/ } ;; --work) work=$2 ;;
    *) echo "quant_quality.sh: unknown option $1" >&2; exit 64 ;;
  esac
  shift 2
done
if [ -z "$work" ]; then work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; fi
mkdir -p "$work"
find python -name '*.py' | sort | xargs cat > "$work/calibration.py"
find scripts tools bench -name '*.py' | sort | xargs cat > "$work/all.py"
head -c $((windows * 1500)) "$work/all.py" > "$work/text.py"
"$bin" imatrix "$model" -f "$work/calibration.py" -o "$work/imatrix.gguf" --windows 64 >&2
files=""
for mix in $mixes; do
  "$bin" quantize "$model" "$work/$mix.gguf" --type "$mix" >&2
  "$bin" quantize "$model" "$work/$mix+imatrix.gguf" --type "$mix" --imatrix "$work/imatrix.gguf" >&2
  files="$files,$work/$mix.gguf,$work/$mix+imatrix.gguf"
done
"$bin" ppl "$model" --device cpu --text "$work/text.py" --window 512 --files "${files#,}"
