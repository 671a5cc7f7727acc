#!/usr/bin/env bash
# Installs the Debian packages that the program needs to be built; with --tests also what testing it needs. Does nothing,
# quickly, where they are all there.
set -euo pipefail
packages=(g++ cmake ninja-build libboost1.81-dev libboost-json1.81-dev libfmt-dev libpcre2-dev libcli11-dev libssl-dev libcurl4-openssl-dev
  libedit-dev)
optional=()
if [ "${1:-}" = --tests ]; then
  packages+=(ccache mold libgtest-dev libbenchmark-dev haproxy clang libclang-rt-14-dev openssl python3 python3-jsonschema
    dpkg-dev file minisign debootstrap)
  optional=(chromium fonts-dejavu-core                # for the page; without them its test says that it is skipped
    libzmq3-dev python3-zmq python3-msgpack           # for K/V events; likewise
    libhiredis-dev redis-server                       # for K/V in Redis; likewise
    prometheus                                        # and promtool, for the metrics; likewise
    iproute2 python3-yaml)                            # for a fleet in network namespaces, and its values; likewise
fi
missing() {
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "$package"
  done
}
mapfile -t needed < <(missing "${packages[@]}")
mapfile -t wanted < <(missing "${optional[@]}")
[ $((${#needed[@]} + ${#wanted[@]})) -eq 0 ] && exit 0
echo "installing: ${needed[*]} ${wanted[*]}"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
install() { "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
[ ${#needed[@]} -eq 0 ] || install "${needed[@]}"
[ ${#wanted[@]} -eq 0 ] || install "${wanted[@]}" || echo "cannot be installed, and not needed to build: ${wanted[*]}"
