#!/usr/bin/env bash
# Installs the Debian packages that the program needs to be built; with --tests also what testing it needs. Does nothing,
# quickly, where they are all there.
set -euo pipefail
packages=(g++ cmake ninja-build libboost1.81-dev libboost-json1.81-dev libfmt-dev libpcre2-dev libcli11-dev libssl-dev libcurl4-openssl-dev
  libedit-dev)
if [ "${1:-}" = --tests ]; then
  packages+=(ccache mold libgtest-dev libbenchmark-dev haproxy clang libclang-rt-14-dev openssl python3 python3-jsonschema)
fi
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
