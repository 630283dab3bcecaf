"""RCCL's network plugin of an image, as it is to be built: which release, from which source."""

from rocstack.base.words import FileName, Name, Package, Sha256, Value, Version


class PluginSource(Value):
    """An archive in the context, under nic/plugin/."""

    archive: FileName
    sha256: Sha256


class PluginSpec(Value):
    name: Name  # aws-ofi-nccl
    version: Version
    library: FileName  # librccl-net.so, in /opt/rocstack/nic/plugin/
    source: PluginSource
    beside: PluginSource | None = None  # what it is compiled with
    packages: tuple[Package, ...] = ()
