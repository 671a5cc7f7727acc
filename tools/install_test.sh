#!/usr/bin/env bash
# Installs a build into a folder of its own: the program there answers, says the version that CHANGELOG.md speaks of, and
# its man page has every command. usage: install_test.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$1" --prefix "$work" >/dev/null
riptide=$work/bin/riptide
version=$(sed -n 's/^## \([0-9.]*\).*/\1/p' CHANGELOG.md | head -1)
[ "$("$riptide" --version)" = "riptide $version" ] || { echo "$("$riptide" --version); CHANGELOG.md says $version"; exit 1; }
[ -n "$("$riptide" run --prompt 'def add(a, b):' -n 8 2>"$work/log")" ] || { cat "$work/log"; exit 1; }
bash -n "$work/share/bash-completion/completions/riptide"
commands=$("$riptide" --help | sed -n '/^Subcommands/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ "$(wc -w <<<"$commands")" -gt 10 ] || { echo "no commands in --help"; exit 1; }
for command in $commands; do
  grep -q "^\.SH riptide $command\$" "$work/share/man/man1/riptide.1" || { echo "no $command in the man page"; exit 1; }
done
[ "$(grep -c '^\.SH riptide ' "$work/share/man/man1/riptide.1")" -eq "$(wc -w <<<"$commands")" ]
for file in lib/systemd/system/riptide.service share/doc/riptide/LICENSE share/doc/riptide/NOTICE; do [ -s "$work/$file" ]; done
