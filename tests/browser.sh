#!/usr/bin/env bash
# A browser for the tests of the report's page, which are skipped where there is none.
set -euo pipefail
# shellcheck source=cli/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../cli/setup.sh"

programs=(chromium chromium-browser google-chrome chrome chromium-headless-shell) # the test looks for the same

without() {
  say "$1: the tests that need a browser will be skipped"
  exit 0
}

[ -z "$(type -P "${programs[@]}")" ] || exit 0
[[ $DISTRO == debian-* ]] || without "no browser is here, and for '$DISTRO' no package of one is known"
(as_root true) 2>/dev/null || without "no browser is here, and installing one needs root"
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
package=chromium-headless-shell # 60 MB, a third of chromium
quietly as_root "${APT[@]}" update || true
apt-cache show "$package" >/dev/null 2>&1 || package=chromium
(apt_install "$package") || without "apt could not install $package"
