#!/usr/bin/env bash
# The main job on the demo model: complete code, then answer a chat with a tool call. usage: demo.sh RIPTIDE
set -euo pipefail
riptide=$1
prompt='def read_config(path):
    """Read a JSON config file and return a dict."""
'
echo "== riptide run --prompt 'def read_config(path): ...' -n 64 --temperature 0"
"$riptide" run --prompt "$prompt" -n 64 --temperature 0
echo
echo "== riptide chat --tools examples/tools.json --message 'Please brew tea: kind darjeeling, cups 3.'"
"$riptide" chat --tools "$(dirname "$0")/../examples/tools.json" --temperature 0 \
  --message "Please brew tea: kind darjeeling, cups 3."
