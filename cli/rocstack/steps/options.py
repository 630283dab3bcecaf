"""Options that several steps share, and the settings behind them. The command line makes its flags from these."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rocstack.base.errors import BadInput

if TYPE_CHECKING:
    from rocstack.settings.settings import Settings

Note = Callable[[str], None]  # takes a sentence about what happens at the moment
# Options that are settings as well.
_SETTINGS = (
    *("stack", "nic", "overlay", "nic_source", "nic_accept", "nic_plugin"),
    *("base", "base_image", "push", "tag", "ca_bundle"),
)
LOCK = Path("rocstack.lock")


def ignore(text: str) -> None:
    """A Note that nobody reads."""


@dataclass(frozen=True)
class Flag:
    """An option's help, and how the command line spells it where that is not the field's name."""

    help: str
    names: tuple[str, ...] = ()
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    argument: bool = False  # it is given without a flag
    hidden: bool = False
    show_default: bool = True


Stack = Annotated[
    str | None, Flag("Stack to use: a name from `rocstack stacks`, or a .yml file; default: the setting `stack`.")
]
Nic = Annotated[str | None, Flag("NIC profile: tcp, mellanox, broadcom, ...; default: the setting `nic`.")]
Overlay = Annotated[str | None, Flag("Folder with your own changes (overlay.yml, components/, nic/, stacks/).")]
Gfx = Annotated[str | None, Flag("GPU targets to build for instead of the stack's: gfx942,gfx950.")]
Methods = Annotated[
    tuple[str, ...],
    Flag("Get a component another way that the stack offers: openmpi=source.", ("--with",), "COMPONENT=METHOD"),
]
Profiles = Annotated[Path | None, Flag("Node profiles (from `rocstack probe --out`) that the image must fit.")]
ProbeInventory = Annotated[Path | None, Flag("Inventory to probe: the image must fit its nodes.")]
BaseImage = Annotated[str | None, Flag("Base image to use instead of the stack's.")]
LockFile = Annotated[Path, Flag("Lock file.", ("--lock",))]
Inventory = Annotated[
    Path | None,
    Flag("Ansible inventory with the groups control and workers; default: the setting `inventory`.", argument=True),
]
Forks = Annotated[
    int | None, Flag("Nodes to work on at a time; default: the setting `cluster.ship.forks`.", least=1, most=1024)
]


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Which stack and NIC profile. What is None comes from ROCSTACK_*, rocstack.yml or the default."""

    nic: Nic = None
    stack: Stack = None
    overlay: Overlay = None


@dataclass(frozen=True, kw_only=True)
class ImageOptions(StackOptions):
    """What goes into an image, and which nodes it must fit."""

    gfx: Gfx = None
    way: Annotated[
        str | None,
        Flag("How the NIC's provider gets into the image: inbox, source, ...; default: what the nodes need."),
    ] = None
    methods: Methods = ()
    profiles: Profiles = None
    inventory: ProbeInventory = None
    nic_source: Annotated[
        str | None,
        Flag("Vendor bundle or library source (folder, .zip, .tar.gz), or rdma-core's for `--way newer`."),
    ] = None
    nic_accept: Annotated[
        str | None, Flag("Use this release even if it differs from the host driver's: 235.1.160.0.")
    ] = None
    nic_plugin: Annotated[
        str | None, Flag("Source of RCCL's network plugin (aws-ofi-nccl-VERSION.tar.gz), to compile in the image.")
    ] = None
    nic_variants: Annotated[
        bool, Flag("Put one provider per kernel ABI of the nodes into the image.", ("--nic-variants",))
    ] = False
    base_image: BaseImage = None
    lock: LockFile = LOCK


def settings(options: object = None, **values: Any) -> Settings:
    """The settings of the current folder; an option of the same name wins over them.

    Raises:
        BadInput: an unknown or wrong setting.
    """
    from rocstack.settings.settings import load

    flags = {name: getattr(options, name) for name in _SETTINGS if hasattr(options, name)} | values
    return load(flags, os.environ, Path.cwd())[0]


def inventory_path(chosen: Settings, path: Path | None) -> Path:
    """The cluster's inventory.

    Raises:
        BadInput: it isn't there.
    """
    file = path or Path(chosen.inventory).expanduser()
    if file.exists():
        return file
    virtual = Path(chosen.out) / "local/inventory.yml"
    raise BadInput(
        f"no inventory {file}",
        code="no-inventory",
        next_step=f"give the one of this folder's virtual nodes, {virtual}, or set `inventory: {virtual}`"
        if virtual.exists() and not path
        else "`rocstack init` writes one to start from",
    )


def duration(option: str, text: str, example: str = "such as 30s, 5m or 2h") -> float:
    """Seconds of `30s`, `5m`, `2h`.

    Raises:
        BadInput: it is no duration.
    """
    from rocstack.cluster.operation import seconds

    whole = seconds(text) if re.fullmatch(r"[1-9][0-9]{0,5}[smhd]", text) else None
    if whole is None:
        raise BadInput(f"{option} {text}: not a duration", code="bad-value", next_step=example)
    return whole
