#!/usr/bin/env bash
# Installs the Debian packages that building and testing need. Does nothing, quickly, where they are all there.
set -euo pipefail
packages=(g++ cmake ninja-build ccache libboost1.81-dev libboost-json1.81-dev libfmt-dev libpcre2-dev libcli11-dev libgtest-dev libbenchmark-dev
          libssl-dev libcurl4-openssl-dev haproxy
          clang libclang-rt-14-dev python3)
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
