#!/bin/sh
# Installs Riptide from a release: a folder or an address that holds SHA256SUMS, SHA256SUMS.minisig and the tar.
#   install.sh [--prefix DIR] [--key PUBLIC_KEY] [--cuda] FROM
# --prefix  where to (~/.local)          --key  minisign's public key: the list must be signed with it
# --cuda    the program for an NVIDIA GPU
# Nothing is unpacked unless its SHA-256 is in the list. Without --key the list itself is believed, as it came.
set -eu
say() { echo "install.sh: $*" >&2; }
die() { say "$*"; exit 1; }
prefix=$HOME/.local key= name=riptide from=
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=${2:?--prefix wants a folder}; shift ;;
    --key) key=${2:?--key wants a public key}; shift ;;
    --cuda) name=riptide-cuda ;;
    -h | --help) sed -n '2,6s/^# //p' "$0"; exit 0 ;;
    -*) die "unknown flag $1; --help tells the known ones" ;;
    *) [ -z "$from" ] || die "one place to install from, found $from and $1"; from=$1 ;;
  esac
  shift
done
[ -n "$from" ] || die "expected a folder or an address that holds SHA256SUMS; --help tells more"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch() {
  case $from in
    http://* | https://*) curl -fsSL --retry 3 -o "$work/$1" "${from%/}/$1" || die "${from%/}/$1: cannot be fetched" ;;
    *) [ -r "$from/$1" ] || die "$from/$1: not there"; cp "$from/$1" "$work/$1" ;;
  esac
}
fetch SHA256SUMS
if [ -n "$key" ]; then
  command -v minisign >/dev/null || die "--key needs minisign, which is not installed (apt install minisign)"
  fetch SHA256SUMS.minisig
  minisign -V -q -P "$key" -m "$work/SHA256SUMS" || die "SHA256SUMS is not signed with that key: nothing was installed"
else
  say "no --key: who made SHA256SUMS is not checked"
fi
tar=$(sed -n "s/^[0-9a-f]\{64\}  \($name-[0-9][0-9.]*-linux-$(uname -m)\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
[ -n "$tar" ] || die "SHA256SUMS lists no $name for $(uname -m)"
[ "$(printf '%s\n' "$tar" | wc -l)" -eq 1 ] || die "SHA256SUMS lists several: $tar"
fetch "$tar"
(cd "$work" && grep "  $tar\$" SHA256SUMS | sha256sum -c --quiet >/dev/null 2>&1) ||
  die "$tar: its SHA-256 is $(sha256sum "$work/$tar" | cut -c1-64), not the one in SHA256SUMS: nothing was installed"
mkdir "$work/new"
tar -xzf "$work/$tar" -C "$work/new" --strip-components 1
said=$("$work/new/bin/riptide" --version 2>&1) || die "the program does not start here (it wants glibc 2.36 or newer): $said"
mkdir -p "$prefix"
cp -R "$work/new/." "$prefix/"
say "$said is in $prefix/bin"
case :$PATH: in *:"$prefix/bin":*) ;; *) say "$prefix/bin is not in PATH: add it" ;; esac
