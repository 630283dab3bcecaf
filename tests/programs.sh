#!/usr/bin/env bash
# Programs without which tests are skipped: a browser for the report's page, and mksquashfs.
set -euo pipefail
# shellcheck source=cli/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../cli/setup.sh"

browsers=(chromium chromium-browser google-chrome chrome chromium-headless-shell) # the test looks for the same

# get WHAT PACKAGE [OTHER]: OTHER where apt knows no PACKAGE
get() {
  local what=$1 package=$2
  without() { say "$1: the tests that need $what will be skipped"; }
  [[ $DISTRO == debian-* ]] || { without "this machine lacks $what, and for '$DISTRO' no package is known" && return; }
  (as_root true) 2>/dev/null || { without "this machine lacks $what, and to install it needs root" && return; }
  quietly as_root "${APT[@]}" update || true
  apt-cache show "$package" >/dev/null 2>&1 || package=${3:-$package}
  (apt_install "$package") || without "apt could not install $package"
}

TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
[ -n "$(type -P "${browsers[@]}")" ] || get "a browser" chromium-headless-shell chromium # 60 MB, a third of chromium
[ -n "$(type -P mksquashfs)" ] || get "mksquashfs" squashfs-tools
