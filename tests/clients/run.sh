#!/usr/bin/env bash
# The real clients from npm against the demo model: a two-turn tool loop each, and one that hears K/V events; then Ajv judges what schemas' grammars let
# through: those that zod writes, and published ones ($RIPTIDE_CONFORMANCE, ../shared/conformance, or what the build has
# unpacked).
# usage: run.sh RIPTIDE [NODE_MODULES]      run.sh --fetch: only brings the packages
# The packages are those of NODE_MODULES, of this folder, or what npm brings into build/clients. Says "skipped" and exits
# with 77 where it cannot, or where there is no node. The clients use nothing but loopback.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: clients from npm: $1"; exit 77; }
modules=${2:-$here/node_modules}
command -v node >/dev/null || skip "there is no node"
if [ ! -d "$modules/openai" ] && [ $# -lt 2 ] && command -v npm >/dev/null; then  # they install where there is a registry
  modules=$here/../../build/clients/node_modules
  cmp -s "$here/package.json" "$modules/../package.json" || rm -rf "$modules"  # other packages than last time
  mkdir -p "$modules/.." && cp "$here/package.json" "$modules/../"
  [ -d "$modules/openai" ] || (cd "$modules/.." && timeout 150 npm install --no-fund --no-audit --loglevel error --fetch-retries 1 --fetch-timeout 30000) ||
    { rm -rf "$modules"; skip "the packages cannot be fetched"; }
fi
for package in openai ollama @anthropic-ai/sdk ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic ajv ajv-draft-04 ajv-formats zod; do
  [ -d "$modules/$package" ] || skip "$package is not installed (npm install in tests/clients)"
done
[ "$1" != --fetch ] || exit 0
riptide=$(realpath "$1")
work=$(mktemp -d)
trap 'kill "$server" "$vectors" $told 2>/dev/null; wait "$server" "$vectors" $told 2>/dev/null; rm -rf "$work"' EXIT
told=
"$riptide" serve --port 0 --ctx 4096 --device cpu 2>"$work/log" &
server=$!
"$riptide" serve "$here/../fixtures/qwen3_embed" --port 0 --device cpu 2>"$work/vectors.log" &
vectors=$!
port_in() {  # of the server that writes this log, once it is ready
  for _ in $(seq 600); do
    port=$(sed -n 's|^ready.*http://127.0.0.1:\([0-9]*\)/v1.*|\1|p' "$1")
    [ -z "$port" ] || { echo "$port"; return; }
    sleep 0.1
  done
  cat "$1" >&2; return 1
}
port=$(port_in "$work/log")
vectors_port=$(port_in "$work/vectors.log")
cp "$here/clients.mjs" "$here/kv_events.mjs" "$here/schemas.mjs" "$work/"
ln -s "$(realpath "$modules")" "$work/node_modules"
walks=$(dirname "$riptide")/tests/schema_walks
for folder in "${RIPTIDE_CONFORMANCE:-}" "$here/../../../shared/conformance" "$(dirname "$riptide")/conformance"; do
  [ ! -d "$folder/schemas" ] || break
done
schemas=("$folder"/schemas/*.jsonl.gz)
cd "$work"
timeout 120 node clients.mjs "http://127.0.0.1:$port" "http://127.0.0.1:$vectors_port"
if "$riptide" serve --device cpu --kv-events x 2>&1 </dev/null | grep -q 'built without libzmq'; then
  echo "skipped: K/V events in JavaScript: riptide was built without libzmq"
elif [ ! -d node_modules/zeromq ] || [ ! -d node_modules/@msgpack/msgpack ]; then
  echo "skipped: K/V events in JavaScript: zeromq and @msgpack/msgpack are not installed"
else
  "$riptide" serve --port 0 --ctx 4096 --device cpu --kv-events "ipc://$work/events" --kv-events-replay "ipc://$work/replay" 2>"$work/told" &
  told=$!
  timeout 60 node kv_events.mjs "http://127.0.0.1:$(port_in "$work/told")" "ipc://$work/events" "ipc://$work/replay"
fi
if [ -x "$walks" ]; then
  node schemas.mjs "$walks" 20
  [ ! -e "${schemas[0]}" ] || node schemas.mjs "$walks" 5 "${schemas[@]}"
fi
