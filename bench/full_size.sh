#!/usr/bin/env bash
# Speed and memory of full-size Laguna XS.2 with random weights on this machine's CPU.
# usage: full_size.sh RIPTIDE FOLDER [THREADS]      FOLDER needs 21 GB; prints a table, and the machine it was measured on.
set -euo pipefail
riptide=$1 folder=$2 threads=${3:-0}
model=$folder/laguna-xs.2-q4_k_m-random.gguf
echo "machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores, $(date -u +%F)"
[ -f "$model" ] || "$riptide" synth "$model" --shape laguna-xs.2 --type q4_k_m --threads "$threads"
"$riptide" inspect "$model" | sed -n '2p;/^types/,$p'
cat "$model" >/dev/null  # into the page cache, so that the disk is not what is measured
"$riptide" bench "$model" --prompt 512,2048 --depth 0,4096 --gen 64 --repeat 3 --kv f16 --threads "$threads"
python3 - "$riptide" "$model" "$threads" <<'P'
import json, resource, subprocess, sys, tempfile
ids = tempfile.NamedTemporaryFile("w", suffix=".json")
json.dump([2] + [1000 + 37 * i % 90000 for i in range(63)], ids)
ids.flush()
out = subprocess.run([sys.argv[1], "run", sys.argv[2], "--tokens", ids.name, "-n", "64", "--temperature", "0", "--json", "--kv", "f16", "--threads", sys.argv[3]],
                     capture_output=True, check=True)
facts = json.loads(out.stdout)
print(f"run: {facts['prompt_tokens']} + {facts['completion_tokens']} tokens, prefill {facts['prefill_tok_s']:.1f}, decode {facts['decode_tok_s']:.1f} tok/s, "
      f"{100 * facts['bandwidth_share']:.0f} % of {facts['measured_bandwidth_gb_s']:.0f} GB/s, hash {facts['logits_hash']}")
print(f"largest resident size: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20:.2f} GiB")
P
