"""What runs inside the image: the entrypoint's gate and environment, Slurm's prologs, the proof by trial.

rocstack-node start [--daemons]   judge, choose the provider, compute fabric.env; prints the file's path
rocstack-node gate                 0 the image fits this node, 1 it doesn't, 2 that is not known
rocstack-node env [--task]         the environment with its reasons; --task: as Slurm's TaskProlog prints it
rocstack-node prove [--many]       open device, PD, CQ, QP; --many: 8 threads x 64 queue pairs
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from .collect import collect
from .envfile import PATH, render_env
from .fabric import Fabric, fabric
from .gate import FITS, LIBRARIES, SLINGSHOT, UNFIT, UNKNOWN, Finding, Verdict, judge
from .image import MANIFEST, Image, Provider, from_manifest
from .nic_settings import NicSettings
from .nics import NicKind
from .profile import NodeProfile, Unread
from .prove import EACH, THREADS, Verbs, unloadable
from .read import parse
from .recording import Recording
from .slingshot import NAMES

NICS = Path(__file__).resolve().parents[2] / "nics.json"
LIBRARIES_FOLDER = Path("/usr/lib")
PLUGIN_FOLDER = Path("/opt/rocstack/nic/plugin")
CODES = {FITS: 0, UNFIT: 1, UNKNOWN: 2}


def main(arguments: list[str]) -> int:
    command, *options = arguments or ["help"]
    if command not in ("start", "gate", "env", "prove"):
        print(__doc__)
        return 0 if command in ("help", "--help", "-h") else 2
    if command == "prove":
        return prove(many="--many" in options)
    if command == "env" and "--task" in options:
        return task()
    image, manifest = read_image()
    node = read_node()
    verdict = judged(image, node)
    if command == "gate":
        print(f"{verdict.result}: {verdict.says}")
        return CODES[verdict.result]
    computed = environment(node, image, manifest, os.environ)
    if command == "env":
        print(render_env(computed), end="")
        return 0
    return start(image, node, verdict, computed, daemons="--daemons" in options)


def read_image() -> tuple[Image, Mapping[str, object]]:
    manifest = json.loads(Path(MANIFEST).read_text())
    return from_manifest("this image", manifest), manifest


def read_nics() -> list[NicSettings]:
    return [NicSettings.from_dict(row) for row in json.loads(NICS.read_text())]


def read_node() -> NodeProfile:
    kinds = [NicKind(name=each.nic, pci=each.pci, modules=each.modules, provider=each.provider) for each in read_nics()]
    node = parse(Recording.from_dict(collect("/", run=False, libraries=False)), kinds)
    return replace(node, unread=(*node.unread, Unread(LIBRARIES, "the image has its own")))


def judged(image: Image, node: NodeProfile) -> Verdict:
    """The gate's word. It can't read Slingshot's libraries here, but they can be loaded: those that were mounted."""
    verdict = judge(image, node)
    if image.nic != SLINGSHOT or not node.cxi or verdict.result != UNKNOWN:
        return verdict
    plugins = [str(path) for path in sorted(PLUGIN_FOLDER.glob("*.so"))]
    wrong = unloadable([NAMES["cxi"], NAMES["libfabric"], *plugins])
    finding = Finding(FITS, f"{verdict.findings[0].says}, and the host's libfabric loads")
    if wrong:
        finding = Finding(UNFIT, "; ".join(wrong), "start it with `rocstack run`, which mounts the host's libfabric")
    return replace(verdict, result=finding.result, findings=(finding,))


def environment(node: NodeProfile, image: Image, manifest: Mapping[str, object], environ: Mapping[str, str]) -> Fabric:
    """What the container was started with wins."""
    nic = next(each for each in read_nics() if each.nic == (image.nic or "tcp"))
    versions = manifest.get("versions")
    subnets = [part for part in re.split(r"[,\s]+", environ.get("ROCSTACK_DATA_SUBNETS", "")) if part]

    def compute(overrides: Mapping[str, str | None]) -> Fabric:
        return fabric(
            node,
            nic,
            control_address=_address(environ.get("ROCSTACK_CONTROLLER", "")),
            data_subnets=subnets,
            versions=dict(versions) if isinstance(versions, dict) else {},
            overrides=overrides,
        )

    mine = {name: environ[name] for name in compute({}).env if name in environ}
    return compute(mine)


def _address(controller: str) -> str | None:
    host = re.sub(r":\d+$", "", controller)
    try:
        return socket.gethostbyname(host) if host else None
    except OSError:
        return None


def start(image: Image, node: NodeProfile, verdict: Verdict, computed: Fabric, *, daemons: bool) -> int:
    """Says what it finds on standard error. Daemons don't start on a node that the image doesn't fit: jobs would
    run over TCP without an error. A command runs in any case."""
    gate = os.environ.get("ROCSTACK_GATE", "refuse")
    said = verdict.result == FITS and not daemons
    if not said and gate != "off":
        print(f"rocstack: {verdict.result}: {verdict.says}", file=sys.stderr)
    by_name = choose(image, verdict.place) if verdict.place else ""
    print(write_env(render_env(computed) + by_name))
    for warning in computed.warnings if daemons else ():
        print(f"rocstack: warning: {warning}", file=sys.stderr)
    if not daemons or gate != "refuse":
        return 0
    if verdict.result == UNFIT:
        return 1
    return prove(many=False) if image.providers and not node.virtual else 0


def choose(image: Image, place: str) -> str:
    """Lets libibverbs' own folder link to the node's provider, where the image holds several. A user who may not do
    that gets a line for the environment that names it: libibverbs takes those first."""
    provider = next(each for each in image.providers if each.place == place)
    if len(image.providers) < 2 or not provider.path:
        return ""
    by_name = ""
    for folder in LIBRARIES_FOLDER.glob("*/libibverbs"):
        own = folder / Path(provider.path).name
        if own.is_symlink() and os.readlink(str(own)) != provider.path:
            fresh = own.with_name(own.name + ".new")
            try:
                fresh.symlink_to(provider.path)
                fresh.replace(own)
            except OSError:
                by_name = f"\nRDMAV_DRIVERS={provider.path.rpartition('-rdmav')[0]}\n"
    print(f"rocstack: {_named(provider)} for this node", file=sys.stderr)
    return by_name


def _named(provider: Provider) -> str:
    bounds = provider.kernel_abi or ("?", "?")
    return f"{provider.driver} {provider.version or provider.way} (kernel ABI {bounds[0]}-{bounds[1]})"


def write_env(text: str) -> str:
    """The file that was written: in its own place, or where this user may write."""
    try:
        Path(PATH).write_text(text)
        return PATH
    except OSError:
        handle, path = tempfile.mkstemp(prefix="fabric-", suffix=".env")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return path


def task() -> int:
    """Slurm's TaskProlog: `export NAME=value` lines; what the job set itself stays."""
    from .envfile import parse_env

    for name, value in parse_env(Path(PATH).read_text()).items():
        if name not in os.environ:
            print(f"export {name}={value}")
    return 0


def prove(*, many: bool) -> int:
    """0 where every device works; 1 where one doesn't or there is none."""
    try:
        proofs = Verbs().prove(threads=THREADS if many else 1, each=EACH if many else 1)
    except OSError as error:
        print(f"rocstack: libibverbs can't be loaded: {error}", file=sys.stderr)
        return 1
    for proof in proofs:
        print(f"rocstack: {proof.says}", file=sys.stderr)
    if not proofs:
        print("rocstack: libibverbs lists no device; IBV_SHOW_WARNINGS=1 ibv_devices says why", file=sys.stderr)
    return 0 if proofs and all(proof.ok for proof in proofs) else 1
