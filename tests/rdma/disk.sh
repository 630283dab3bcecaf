#!/usr/bin/env bash
# disk.sh CONTAINER PARTS MACHINE DISK: a file system of the container's files, PARTS over them, and MACHINE as /machine.
# Needs root or fakeroot, because files keep their owners.
set -euo pipefail
root=$(mktemp -d -p "$(dirname "$4")")
trap 'rm -rf "$root"' EXIT
docker export "$1" | tar -C "$root" -x --exclude='dev/*' --exclude=.dockerenv
tar -C "$root" -x --strip-components=2 --keep-directory-symlink -f "$2" ./root
cp -r "$3" "$root/machine"
cp "$3/hosts" "$root/etc/hosts"
cp "$3/ssh_config" "$root/etc/ssh/ssh_config.d/machine.conf"
truncate -s 6G "$4"
mke2fs -q -t ext4 -O ^has_journal,^metadata_csum -E lazy_itable_init=1 -d "$root" "$4"
