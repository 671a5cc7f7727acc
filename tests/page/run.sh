#!/usr/bin/env bash
# The page of `riptide serve`: is the committed one what web/ builds, and does it work in a browser?
# usage: run.sh bundle                            src/server/page against a fresh build
#        run.sh browser RIPTIDE SCRIPT_SERVER [--shots FOLDER]    Debian's chromium; pictures for docs/img
#        run.sh write                             builds it anew, into src/server/page
#        run.sh --fetch                           only brings the packages
# Packages come from npm into build/page. Says "skipped" and exits with 77 where they cannot be had, or there is no chromium.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$root/build/page
skip() { echo "skipped: the page for browsers: $1"; exit 77; }
command -v node >/dev/null && command -v npm >/dev/null || skip "there is no node or npm"
mkdir -p "$work"
if ! cmp -s "$root/web/package-lock.json" "$work/installed"; then
  rm -rf "$work/node_modules" "$work/installed"
  cp "$root"/web/package.json "$root"/web/package-lock.json "$root"/web/.npmrc "$work/"
  (cd "$work" && timeout 240 npm ci --loglevel error --fetch-retries 1 --fetch-timeout 30000) || skip "npm cannot fetch the packages"
  cp "$root/web/package-lock.json" "$work/installed"
fi
build() {  # into the folder $1
  rm -rf "$work/src" && cp -r "$root/web/src" "$root/web/index.html" "$root/web/vite.config.js" "$work/"
  (cd "$work" && RIPTIDE_PAGE_OUT=$1 npx --no-install vite build --logLevel warn)
}
case "$1" in
  --fetch) ;;
  write) build "$root/src/server/page" ;;
  bundle)
    build "$work/out"
    for file in page.html LICENSES.txt; do
      cmp "$work/out/$file" "$root/src/server/page/$file" ||
        { echo "src/server/page/$file is not what web/ builds: run tests/page/run.sh write"; exit 1; }
    done
    most=409600
    size=$(gzip -9 -c "$work/out/page.html" | wc -c)
    echo "page.html: $(wc -c <"$work/out/page.html") bytes, $size compressed"
    [ "$size" -le "$most" ] || { echo "expected at most $most compressed"; exit 1; }
    ! grep -q '"resolved"' "$root/web/package-lock.json" || { echo "web/package-lock.json names hosts: see web/.npmrc"; exit 1; } ;;
  browser)
    command -v chromium >/dev/null || skip "there is no chromium (tools/setup.sh --tests installs it)"
    cp "$here"/*.mjs "$work/"
    node "$work/page_test.mjs" "$(realpath "$2")" "$(realpath "$3")" "$root/models/demo/laguna-demo.gguf" "${@:4}" ;;
  *) echo "run.sh: '$1' is none of bundle, browser, write, --fetch"; exit 64 ;;
esac
