"""One provider library of an image, as it is to be built: by which way, from what, for which nodes."""

from rocstack.base.words import FileName, Name, Package, Sha256, Value, Version

ROOT = "/opt/rocstack/nic"  # in the image; every place is a folder below


class ProviderSpec(Value):
    """`place` is its folder in the image; libibverbs' own folder holds a link to the one in use."""

    place: Name
    way: Name
    version: Version | None = None  # of the vendor's release
    archive: FileName | None = None  # the source, in the context under nic/<place>/
    sha256: Sha256 | None = None  # of the archive
    kernel_abi: int | None = None  # what the nodes that it is for speak
    packages: tuple[Package, ...] = ()

    @property
    def pins(self) -> tuple[str, ...]:
        """What apt is asked for: the vendor's package at exactly the release of the nodes' driver."""
        return tuple(f"{name}={self.version}*" if self.version else name for name in self.packages)
