#!/usr/bin/env bash
# The real clients from npm against the demo model: a two-turn tool loop each. usage: run.sh RIPTIDE [NODE_MODULES]
# Says "skipped" where node or the packages are not there; `npm install` in this folder (or RIPTIDE_CLIENTS, another
# folder with node_modules) brings them. Nothing but loopback is used.
set -euo pipefail
riptide=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
modules=${2:-$here/node_modules}
command -v node >/dev/null || { echo "skipped: there is no node"; exit 0; }
for package in openai @anthropic-ai/sdk ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic zod; do
  [ -d "$modules/$package" ] || { echo "skipped: $package is not installed (npm install in tests/clients)"; exit 0; }
done
work=$(mktemp -d)
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; rm -rf "$work"' EXIT
"$riptide" serve --port 0 --ctx 4096 --device cpu 2>"$work/log" &
server=$!
port=
for _ in $(seq 600); do
  port=$(sed -n 's|^ready.*http://127.0.0.1:\([0-9]*\)/v1.*|\1|p' "$work/log")
  [ -n "$port" ] && break
  sleep 0.1
done
[ -n "$port" ] || { cat "$work/log"; exit 1; }
cp "$here/clients.mjs" "$work/"
ln -s "$(realpath "$modules")" "$work/node_modules"
cd "$work" && timeout 120 node clients.mjs "http://127.0.0.1:$port"
