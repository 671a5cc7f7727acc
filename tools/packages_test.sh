#!/usr/bin/env bash
# Makes the packages of a build (tools/packages.sh) and tries each as its user would: install.sh with a list that is signed,
# not signed, or does not fit; the tar, the Debian package and the image of contrib/Containerfile in a clean root of Debian
# 12, where debootstrap can make one.
# usage: packages_test.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
work=$(mktemp -d)
cleanup() {
  jobs -p | xargs -r kill
  for folder in proc dev; do mountpoint -q "$work/root/$folder" && umount -l "$work/root/$folder"; done
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fault() { echo "FAILED: $*"; exit 1; }
as_root=1
[ "$(id -u)" -eq 0 ] || as_root=

signed=1
if ! command -v minisign >/dev/null; then
  signed=
  echo "skipped: packages: signatures: there is no minisign"
else
  minisign -G -W -p "$work/key.pub" -s "$work/key" >/dev/null
  minisign -G -W -p "$work/other.pub" -s "$work/other" >/dev/null
  export MINISIGN_KEY=$work/key
fi
tools/packages.sh "$build" "$work/dist" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
tar=$(ls "$work"/dist/*.tar.gz)
version=$(sed -n 's/^## \([0-9.]*\).*/\1/p' CHANGELOG.md | head -1)
[ "$(stat -c %s "$tar")" -lt 60000000 ] || fault "$(basename "$tar") has $(stat -c %s "$tar") bytes"

answers() { # COMMAND that ends in run, and perhaps a model
  [ -n "$("$@" --prompt 'def add(a, b):' -n 8 2>"$work/log")" ] || { cat "$work/log"; fault "$* does not answer"; }
}
install() { sh contrib/install.sh --prefix "$work/home" "$@" >"$work/said" 2>&1; }
refused() { # WHAT IS SAID, then install.sh's arguments
  local said=$1
  shift
  rm -rf "$work/home"
  ! install "$@" || fault "install.sh $* installs"
  grep -q "$said" "$work/said" || fault "install.sh $*: $(cat "$work/said"), expected: $said"
  [ ! -e "$work/home" ] || fault "install.sh $* leaves $(ls "$work/home")"
}
key=(--key "$([ -z "$signed" ] || sed -n 2p "$work/key.pub")")
[ -n "$signed" ] || key=()
install "${key[@]}" "$work/dist" || fault "$(cat "$work/said")"
[ "$("$work/home/bin/riptide" --version)" = "riptide $version" ] || fault "another version is installed"
answers "$work/home/bin/riptide" run
if [ -n "$signed" ]; then refused "not signed with that key" --key "$(sed -n 2p "$work/other.pub")" "$work/dist"; fi
refused "SHA256SUMS: not there" "$work"
refused "lists no riptide-cuda" --cuda "$work/dist"
refused "unknown flag" --prefx x "$work/dist"
cp -r "$work/dist" "$work/cut"
truncate -s -1 "$work/cut/$(basename "$tar")"
refused "its SHA-256 is" "${key[@]}" "$work/cut"
rm -rf "$work/cut" "$work/home"

skip() { echo "skipped: packages in a clean root of Debian: $1"; exit 0; }
[ -n "$as_root" ] || skip "only root can make one"
command -v debootstrap >/dev/null || skip "there is no debootstrap"
mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] *\)\?\([^ ]*\) .*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
  /etc/apt/sources.list.d/*.sources 2>/dev/null | grep -v security | head -1) || true
debootstrap --variant=minbase --include=ca-certificates bookworm "$work/root" "${mirror:-http://deb.debian.org/debian}" >"$work/log" 2>&1 ||
  skip "debootstrap says: $(tail -1 "$work/log")"
# contrib/Containerfile, on this root in place of a registry's image.
if command -v buildah >/dev/null; then
  export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
  image() { buildah --root "$work/images" --runroot "$work/run" "$@"; }
  {
    base=$(image from scratch) && image add "$base" "$work/root" / && image commit "$base" debian:12-slim &&
      image bud -t riptide -f contrib/Containerfile "$work/dist" && box=$(image from localhost/riptide)
  } >"$work/log" 2>&1 || { cat "$work/log"; fault "contrib/Containerfile makes no image"; }
  answers image run "$box" -- riptide run
  [ "$(image run "$box" -- sh -c 'id -un; touch /models/x && echo written')" = "$(printf 'riptide\nwritten')" ] ||
    fault "the image runs as root, or cannot write to /models"
else
  echo "skipped: packages: the image of contrib/Containerfile: there is no buildah"
fi
mount --bind /dev "$work/root/dev" && mount -t proc proc "$work/root/proc" || skip "/proc cannot be mounted"
enter=(chroot "$work/root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive)
inside() { "${enter[@]}" "$@"; }

mkdir "$work/root/opt/tar"
tar -xzf "$tar" -C "$work/root/opt/tar" --strip-components 1
! inside sh -c 'ls /usr/lib/x86_64-linux-gnu/libfmt.so* /usr/lib/x86_64-linux-gnu/libboost_json.so*' >/dev/null 2>&1 ||
  fault "the clean root is not clean"
answers inside /opt/tar/bin/riptide run
# A hub that nobody serves: libcurl is there and says so in a sentence.
inside /opt/tar/bin/riptide pull a/b --endpoint http://127.0.0.1:1 >"$work/log" 2>&1 && fault "pull from nowhere works"
grep -qi "127.0.0.1" "$work/log" || fault "pull in the clean root: $(cat "$work/log")"

cp "$work"/dist/*.deb "$work/root/tmp/"
cp /etc/apt/apt.conf.d/*prox* "$work/root/etc/apt/apt.conf.d/" 2>/dev/null || true
inside sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends /tmp/riptide*.deb' >"$work/log" 2>&1 || {
  cat "$work/log"; fault "apt does not install the package"; }
answers inside riptide run
[ "$(inside riptide --version)" = "riptide $version" ] || fault "the package has another version"
inside test -s /usr/share/man/man1/riptide.1.gz -o -s /usr/share/man/man1/riptide.1 || fault "the package has no man page"
inside test -s /usr/lib/systemd/system/riptide.service -o -s /lib/systemd/system/riptide.service || fault "the package has no systemd unit"

# A stranger's first minutes there: a model from a hub (the demo model, on loopback), an answer, the page.
hub=$work/hub model=models/demo/laguna-demo.gguf
mkdir -p "$hub/api/models/owner/name/tree" "$hub/owner/name/resolve/main"
cp $model "$hub/owner/name/resolve/main/demo-Q4_K_M.gguf"
printf '[{"type":"file","path":"%s","size":134,"oid":"%040d","lfs":{"oid":"%s","size":%d}}]' demo-Q4_K_M.gguf 0 \
  "$(sha256sum $model | cut -d' ' -f1)" "$(stat -c %s $model)" >"$hub/api/models/owner/name/tree/main"
port_in() { timeout 20 sh -c 'until grep -m1 -oE "$1" "$2" | head -1 | grep -oE "[0-9]+$"; do sleep 0.1; done' - "$1" "$2"; }
python3 -u -m http.server 0 --bind 127.0.0.1 --directory "$hub" >"$work/hub.log" 2>&1 &
inside riptide pull owner/name --endpoint "http://127.0.0.1:$(port_in 'port [0-9]+' "$work/hub.log")" >"$work/log" 2>&1 || {
  cat "$work/log"; fault "pull from a hub on loopback in the clean root"; }
answers inside riptide run owner/name
"${enter[@]}" riptide serve owner/name --port 0 >"$work/log" 2>&1 &
curl -s -H 'Accept: text/html' "http://127.0.0.1:$(port_in '127.0.0.1:[0-9]+' "$work/log")/" | grep '<div id="app">' >/dev/null || {
  cat "$work/log"; fault "the page in the clean root"; }
