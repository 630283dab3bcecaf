#!/usr/bin/env bash
# What the soft-RoCE machines need on this one: an emulator, a maker of file systems and an ssh client.
set -euo pipefail
# shellcheck source=cli/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../cli/setup.sh"

packages=(qemu-system-x86 e2fsprogs openssh-client)
[ "$(id -u)" = 0 ] || packages+=(fakeroot) # the image's files keep their owners

TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
! type -P qemu-system-x86_64 mke2fs ssh fakeroot >/dev/null || exit 0
require_distro "qemu is" "install ${packages[*]} by hand"
apt_install "${packages[@]}"
