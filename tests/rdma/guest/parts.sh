#!/bin/bash
# Runs in a throw-away container of the worker image, so that everything fits its release. A tar to stdout:
#   kernel, initramfs   to start a machine with
#   root/               what the image doesn't have: sshd, Docker, slurmctld, the kernel's modules; over its files
set -euo pipefail
exec 3>&1 1>&2
here=$(dirname "$0")
work=$(mktemp -d)
cd "$work"
chmod 0755 . # apt fetches as a user of its own
mkdir -p archives/partial kernel-package ramdisk/{bin,modules,dev,proc,mnt} parts/root/usr/lib

apt-get -q update
kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
apt-get -q -y --no-install-recommends --download-only -o Dir::Cache::archives="$work/archives" \
    install openssh-server busybox-static docker.io docker-cli slurmctld
for package in archives/*.deb; do dpkg-deb -x "$package" parts/root; done
rm -rf parts/root/{etc,var,usr/share} parts/root/usr/lib/{systemd,sysusers.d,tmpfiles.d,runit-helper}

apt-get -q download "$kernel"
dpkg-deb -x "$kernel"*.deb kernel-package
version=${kernel#linux-image-}
cp "kernel-package/boot/vmlinuz-$version" parts/kernel
[ -e kernel-package/lib ] || ln -s usr/lib kernel-package/lib
depmod -b kernel-package "$version"

# closure MODULE...: these and all they depend on, in the order of loading
closure() {
    modprobe -d kernel-package -S "$version" --show-depends -a "$@" |
        sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++'
}
boot=(crc32c_generic virtio_blk ext4)
run=(virtio_net virtio_rng crc32_generic 8021q rdma_rxe ib_uverbs rdma_ucm)

# The ramdisk has nothing but busybox, and the modules to mount the root by.
busybox=parts/root/usr/bin/busybox
install -m 0755 "$busybox" ramdisk/bin/busybox
install -m 0755 "$here/ramdisk-init" ramdisk/init
for module in $(closure "${boot[@]}"); do
    name=$(basename "$module" .xz)
    "$busybox" xzcat "$module" >"ramdisk/modules/$name"
    echo "$name" >>ramdisk/modules/order
done
(cd ramdisk && find . | ../"$busybox" cpio -o -H newc | gzip -1) >parts/initramfs

# Modules that aren't needed stay out: they are 100 MB.
target=parts/root/usr/lib/modules/$version
mkdir -p "$target"
cp kernel-package/usr/lib/modules/"$version"/modules.{order,builtin,builtin.modinfo} "$target"
closure "${boot[@]}" "${run[@]}" | while read -r module; do
    install -D -m 0644 "$module" "$target/${module#*/"$version"/}"
done
ln -s usr/lib parts/root/lib
depmod -b parts/root "$version"
rm parts/root/lib

tar -C parts --owner=0 --group=0 -cf - . >&3
