"""The options of the steps, and the settings behind them. The command line makes its flags from these, so that no
`--help` loads what a step does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rocstack.base.errors import BadInput

if TYPE_CHECKING:
    from rocstack.settings.settings import Settings

Note = Callable[[str], None]  # takes a sentence about what happens at the moment
# Options that are settings as well.
_SETTINGS = (
    *("stack", "nic", "overlay", "nic_source", "nic_accept", "nic_plugin"),
    *("base", "base_image", "sources", "push", "tag", "ca_bundle", "rehearsal"),
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
    completes: str = ""  # what the shell proposes, where that is not of the field's name


Packages = Annotated[
    Path | None,
    Flag(
        "Take packages and wheels from this folder, which --keep-packages made, instead of mirrors.", metavar="FOLDER"
    ),
]
KeepPackages = Annotated[
    Path | None,
    Flag(
        "Keep the packages and wheels in this folder, so that --packages can build from them later.", metavar="FOLDER"
    ),
]
ClusterInventory = Annotated[
    Path | None, Flag("The cluster's inventory; default: the setting `inventory`.", ("--inventory",), "FILE")
]
Stack = Annotated[
    str | None, Flag("Stack to use: a name from `rocstack stacks`, or a .yml file; default: the setting `stack`.")
]
Nic = Annotated[str | None, Flag("NIC profile: tcp, mellanox, broadcom, ...; default: the setting `nic`.")]
Overlay = Annotated[str | None, Flag("Folder of your own changes (overlay.yml, components/, nic/, recipes/, stacks/).")]
Gfx = Annotated[str | None, Flag("GPU targets to build for instead of the stack's: gfx942,gfx950.")]
Methods = Annotated[
    tuple[str, ...],
    Flag(
        "Get a component another way that the stack offers: openmpi=source.",
        ("--with",),
        "COMPONENT=METHOD",
        completes="method",
    ),
]
Rehearsal = Annotated[
    bool, Flag("Allow an image that can't use the nodes' GPUs, and mark it; default: the setting `rehearsal`.")
]
Profiles = Annotated[Path | None, Flag("Node profiles (from `rocstack probe --out`) that the image must fit.")]
ProbeInventory = Annotated[Path | None, Flag("Inventory to probe: the image must fit its nodes.")]
DrainTimeout = Annotated[
    str | None, Flag("How long jobs may take to end: 30m, 4h, infinite; default: the setting `cluster.rollout`.")
]
Requeue = Annotated[bool, Flag("Requeue running jobs instead of waiting for them.")]
Sources = Annotated[
    str | None, Flag("Take upstream archives from this folder, by file name and sha256, instead of downloading them.")
]
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
    nic_releases: Annotated[
        tuple[str, ...],
        Flag(
            "Build for this release of the vendor's driver, in --nic-source; may be repeated.",
            ("--nic-release",),
            "VERSION",
        ),
    ] = ()
    nic_variants: Annotated[bool, Flag("Put one provider per kernel ABI of the nodes into the image.")] = False
    base_image: Annotated[str | None, Flag("Base image to use instead of the stack's.")] = None
    rehearsal: Rehearsal = False
    lock: Annotated[Path, Flag("Lock file.")] = LOCK


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    inventory: Annotated[
        Path | None, Flag("Ansible inventory; default: this host.", metavar="INVENTORY", argument=True)
    ] = None
    out: Annotated[Path | None, Flag("Write the node profiles to this file.")] = None
    record: Annotated[
        Path | None, Flag("Write what was read, with names and addresses masked, to this new or empty folder.")
    ] = None
    replay: Annotated[Path | None, Flag("Probe recordings instead of nodes: a file of --record, or its folder.")] = None
    forks: Annotated[int, Flag("Nodes to probe at a time.", least=1, most=500)] = 64
    root: Annotated[str | None, Flag("Root of another file system instead of this host's.", hidden=True)] = None
    overlay: Overlay = None


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    inventory: Annotated[
        str | None,
        Flag(
            "Ansible inventory: examine its nodes. `-` reads a log from standard input.",
            metavar="INVENTORY",
            argument=True,
        ),
    ] = None
    log: Annotated[
        str | None, Flag("Examine this log, or all logs of a folder, instead; `-` is standard input.", metavar="PATH")
    ] = None
    job: Annotated[
        str | None, Flag("Examine what this job wrote: of the inventory's Slurm, or of this machine's.", metavar="ID")
    ] = None
    node: Annotated[
        str | None, Flag("Examine this node of the inventory alone, with its kernel's and its worker's log.")
    ] = None
    profiles: Annotated[Path | None, Flag("Examine saved node profiles (from `rocstack probe --out`).")] = None


@dataclass(frozen=True, kw_only=True)
class StacksOptions:
    overlay: Overlay = None


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(StackOptions):
    gfx: Gfx = None
    driver: Annotated[str, Flag("amdgpu driver version of the nodes: 6.10.5 or 30.20.1.")] = ""
    methods: Methods = ()
    image: Annotated[str | None, Flag("Say whether this image fits the nodes instead.")] = None
    profiles: Profiles = None
    inventory: ProbeInventory = None


@dataclass(frozen=True, kw_only=True)
class BuildOptions(ImageOptions):
    role: Annotated[
        str, Flag("Build only this role: worker, control or service; default: those that the cluster needs.")
    ] = ""
    base: Annotated[str | None, Flag("Where the base comes from: auto, registry or mmdebstrap.")] = None
    sources: Sources = None
    packages: Packages = None
    keep_packages: KeepPackages = None
    from_image: Annotated[
        str | None,
        Flag("Put only the NIC's layer, the gate's labels and the fabric's environment on this image.", ("--from",)),
    ] = None
    frozen: Annotated[bool, Flag("Fail if the distribution's versions differ from the lock.")] = False
    refresh: Annotated[bool, Flag("Fetch the package index again (it is kept for a week).")] = False
    no_cache: Annotated[bool, Flag("Rebuild every step.")] = False
    push: Annotated[
        str | None, Flag("Push to this registry when all images are built: registry.example.com:5000/hpc.")
    ] = None
    tag: Annotated[str | None, Flag("Release tag; default: ISO year and week, such as 2026.47.")] = None
    move_tags: Annotated[bool, Flag("Move tags that exist to the new images.")] = False
    ca_bundle: Annotated[str | None, Flag("CA bundle (PEM) of the company's proxy.")] = None


@dataclass(frozen=True, kw_only=True)
class RenderOptions(ImageOptions):
    to: Annotated[Path | None, Flag("Write the whole context to this folder.")] = None
    diff: Annotated[bool, Flag("Show what changed since the last build of this stack and NIC.")] = False


@dataclass(frozen=True, kw_only=True)
class LockOptions(StackOptions):
    methods: Methods = ()
    sources: Sources = None
    keep_packages: KeepPackages = None
    to: Annotated[Path, Flag("File to write the lock to.")] = LOCK
    sign: Annotated[
        Path | None,
        Flag("Private key to sign the lock with: writes FILE.sig, which openssl and cosign check.", metavar="KEY"),
    ] = None
    password_file: Annotated[Path | None, Flag("File with the password of that key; default: it is asked for.")] = None
    upgrade: Annotated[
        bool, Flag("First raise the versions in the stack's file to the newest that the rules and pip allow.")
    ] = False
    only: Annotated[
        tuple[str, ...],
        Flag(
            "With --upgrade: these components or wheels alone.",
            metavar="COMPONENT",
            argument=True,
            completes="component",
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class OutdatedOptions(StackOptions):
    methods: Methods = ()
    lock: Annotated[Path, Flag("Lock to compare with.")] = LOCK


@dataclass(frozen=True, kw_only=True)
class DeployOptions(StackOptions):
    """What is None comes from the settings; the rollout's from `cluster.rollout` there."""

    inventory: Inventory = None
    resume: Annotated[bool, Flag("Continue the deploy that was interrupted, with its images.")] = False
    image: Annotated[str | None, Flag("Worker image to deploy; default: the one built here for --stack and --nic.")] = (
        None
    )
    control_image: Annotated[str | None, Flag("Control image that belongs to --image.")] = None
    service_image: Annotated[
        str | None, Flag("Service image, where `cluster.service` is on; default: the one built here.")
    ] = None
    canary: Annotated[int | None, Flag("Nodes to update before all others.", least=0)] = None
    wave: Annotated[str | None, Flag("Nodes to update at once: a number, or 25%.")] = None
    drain_timeout: DrainTimeout = None
    requeue: Requeue = False
    failures: Annotated[str | None, Flag("Nodes that may fail before the update stops: a number, or 10%.")] = None
    method: Annotated[str | None, Flag("How images get to the nodes: auto, registry, archive or rack.")] = None
    rehearsal: Rehearsal = False
    require: Annotated[
        int | None, Flag("Refuse images that `rocstack verify` hasn't proved to this level.", least=0, most=4)
    ] = None
    forks: Forks = None


@dataclass(frozen=True, kw_only=True)
class RollbackOptions:
    inventory: Inventory = None
    drain_timeout: DrainTimeout = None
    requeue: Requeue = False
    forks: Forks = None
    overlay: Overlay = None


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    inventory: Inventory = None
    overlay: Overlay = None


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    inventory: Inventory = None
    level: Annotated[
        int | None,
        Flag(
            "Highest level to test: 0 image, 1 cluster, 2 GPUs and fabric, 3 performance, 4 soak; default: 3, with "
            "--watch 1.",
            least=0,
            most=4,
            show_default=False,
        ),
    ] = None
    only: Annotated[str | None, Flag("Run only checks whose name matches: munge, 'mpi-*'.", metavar="PATTERN")] = None
    report: Annotated[Path | None, Flag("Folder to write the report to; default: a new one for each run.")] = None
    user: Annotated[str, Flag("Slurm user to run the jobs as; default: rocstack-verify, which deploy creates.")] = ""
    wait: Annotated[str, Flag("Time that a job may wait in the queue: 5m, 2h.")] = "5m"
    evidence: Annotated[Path | None, Flag("Judge an earlier run's evidence.json again, without the cluster.")] = None


@dataclass(frozen=True, kw_only=True)
class FirstLightOptions(StackOptions):
    inventory: Inventory = None
    nic_source: Annotated[str | None, Flag("Vendor bundle or library source, as `rocstack build` takes it.")] = None
    image: Annotated[str | None, Flag("Worker image to deploy; then nothing is built.")] = None
    control_image: Annotated[str | None, Flag("Control image that belongs to --image.")] = None
    level: Annotated[int, Flag("Highest level to verify: 0 to 4.", least=0, most=4)] = 3
    out: Annotated[Path, Flag("File to write.")] = Path("first-light.json.gz")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    file: Annotated[Path, Flag("File that `rocstack first-light` wrote.", argument=True)]
    out: Annotated[
        Path | None, Flag("Also unpack it to this new or empty folder: recordings, evidence, what each step said.")
    ] = None
    overlay: Overlay = None


def settings(options: object = None, **values: Any) -> Settings:
    """The settings of the current folder; an option of the same name wins over them.

    Raises:
        BadInput: an unknown or wrong setting; a link leads out of the folder `out`.
    """
    from rocstack.settings.settings import load

    given = {name: getattr(options, name) for name in _SETTINGS if hasattr(options, name)} | values
    flags = {name: value for name, value in given.items() if value is not False}  # no flag takes a setting back
    chosen = load(flags, os.environ, Path.cwd())[0]
    out = Path(chosen.out).absolute()
    if Path.cwd() in out.parents:
        _refuse_links(out)
    return chosen


@cache
def _refuse_links(out: Path) -> None:
    """The working folder may be copied, by git for example: a stranger's link in it could lead to files of the
    person's, in whose place contexts and logs would be written."""
    from rocstack.edge import files

    if not Path(os.path.realpath(out)).is_relative_to(Path.cwd()):  # `resolve` fails at links in a ring
        raise BadInput.of("out-leads-out", out, out=Path.cwd())
    if link := files.leads_out(out):
        raise BadInput.of("out-leads-out", link, out=out)


def inventory_path(chosen: Settings, path: Path | None) -> Path:
    """The cluster's inventory.

    Raises:
        BadInput: it isn't there.
    """
    file = path or Path(chosen.inventory).expanduser()
    if file.exists():
        return file
    virtual = Path(chosen.out) / "local/inventory.yml"
    if virtual.exists() and not path:
        raise BadInput.of("only-virtual-inventory", file=file, virtual=virtual)
    raise BadInput.of("no-inventory", inventory=file)


def duration(option: str, text: str, example: str = "such as 30s, 5m or 2h") -> float:
    """Seconds of `30s`, `5m`, `2h`.

    Raises:
        BadInput: it is no duration.
    """
    from rocstack.cluster.operation import seconds

    whole = seconds(text) if re.fullmatch(r"[1-9][0-9]{0,5}[smhd]", text) else None
    if whole is None:
        raise BadInput.of("no-duration", option=option, text=text, example=example)
    return whole
