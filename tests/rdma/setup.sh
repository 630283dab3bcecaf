#!/usr/bin/env bash
# What the soft-RoCE machines need on this one: an emulator, a maker of file systems and an ssh client.
set -euo pipefail
# shellcheck source=cli/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../cli/setup.sh"

programs=(qemu-system-x86_64 mke2fs ssh)
packages=(qemu-system-x86 e2fsprogs openssh-client)
if [ "$(id -u)" != 0 ]; then # the image's files keep their owners
  programs+=(fakeroot)
  packages+=(fakeroot)
fi
! type -P "${programs[@]}" >/dev/null || exit 0
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
require_distro "qemu is" "install ${packages[*]} by hand"
apt_install "${packages[@]}"
