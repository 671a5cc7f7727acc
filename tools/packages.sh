#!/usr/bin/env bash
# Makes the packages of a finished build: a Debian package, a tar that runs on any x86-64 Linux with glibc 2.36 or newer (all
# other libraries are in it), and SHA256SUMS. With MINISIGN_KEY (a secret key's file without a password) the list is signed.
# usage: packages.sh BUILD OUT       e.g. packages.sh build/cpu dist; packages.sh build/cuda dist for riptide-cuda
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -ne 2 ]; then sed -n '4s/^# //p' "$0"; exit 2; fi
build=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
name=$(sed -n 's/^set(CPACK_PACKAGE_NAME "\(.*\)")$/\1/p' "$build/CPackConfig.cmake")
version=$(sed -n 's/^set(CPACK_PACKAGE_VERSION "\(.*\)")$/\1/p' "$build/CPackConfig.cmake")
(cd "$work" && cpack --config "$build/CPackConfig.cmake" -G DEB >"$work/log") || { cat "$work/log"; exit 1; }
mv "$work"/*.deb "$out/"

folder=$name-$version-linux-$(uname -m)
stage=$work/$folder
cmake --install "$build" --strip --prefix "$stage" >/dev/null
cmake --install "$build" --strip --component bundle --prefix "$stage" >/dev/null
licences=$stage/share/doc/riptide/libraries
mkdir -p "$licences"
for library in "$stage"/lib/riptide/*; do
  file=$(basename "$library")
  package=$(dpkg-query -S "*/$file" | head -1 | cut -d: -f1)
  cp -n "/usr/share/doc/$package/copyright" "$licences/$package"
done
tar -C "$work" --owner 0 --group 0 --sort name -czf "$out/$folder.tar.gz" "$folder"

cd "$out"
sha256sum ./*.deb ./*.tar.gz | sed 's|\./||' >SHA256SUMS
[ -z "${MINISIGN_KEY:-}" ] || minisign -S -s "$MINISIGN_KEY" -m SHA256SUMS >/dev/null </dev/null
ls -l "$out"
