"""What runs inside the image: the entrypoint's gate and environment, Slurm's prologs, the proof by trial.

rocstack-node start [--daemons]       judge, choose the provider; prints the fabric's environment, and writes it
rocstack-node gate                     does the image fit this node?
rocstack-node env [--task]             the environment with its reasons; --task: as Slurm's TaskProlog prints it
rocstack-node job                      writes the secret of a job that begins, as Slurm's Prolog
rocstack-node prove [--many] [--all]   open device, PD, CQ, QP of each device that the image is for;
                                       --many: 8 threads x 64 queue pairs, --all: every device that libibverbs lists

Ends with 0 yes, 1 no, 2 not known or not understood, 3 this node could not be inspected.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from . import own_folder, rendezvous, start_gate
from .collect import collect
from .fabric import ENV_PATH, Fabric, fabric, parse_env, render_env
from .gate import FITS, LIBRARIES, SLINGSHOT, SLINGSHOT_FILES, UNFIT, UNKNOWN, GateFinding, GateVerdict, judge
from .image_facts import MANIFEST, ImageFacts, from_manifest
from .nic_settings import NicSettings
from .parse import parse
from .profile import NodeProfile, Unread
from .rdma_check import RdmaCheck, check_devices, check_rdma, unloadable
from .recording import Recording
from .start_gate import OFF, PROVED
from .start_options import RESOLVE_TIMEOUT_S, StartOptions, read_options, resolve_first

NICS = Path(__file__).resolve().parents[2] / "nics.json"
PLUGIN_FOLDER = Path("/opt/rocstack/nic/plugin")
ENV_FILES = (ENV_PATH, "/run/rocstack/fabric.env")  # the first that may be written
CODES = {FITS: 0, UNFIT: 1, UNKNOWN: 2}
UNREADABLE = 3
OPTIONS = {"start": ("--daemons",), "gate": (), "env": ("--task",), "job": (), "prove": ("--many", "--all")}


def main(arguments: list[str]) -> int:
    command, *options = arguments or ["help"]
    if command in ("help", "--help", "-h"):
        print(__doc__)
        return 0
    unknown = [option for option in options if option not in OPTIONS.get(command, options)]
    if command not in OPTIONS or unknown:
        report(f"no {f'option {unknown[0]} of {command}' if unknown else f'command {command}'}")
        print(__doc__, file=sys.stderr)
        return 2
    if command == "env" and "--task" in options:
        return task()
    if command == "job":
        return job()
    try:
        if command == "start":
            return start(daemons="--daemons" in options)
        if command == "prove":
            return prove(many="--many" in options, every="--all" in options)
        return gate() if command == "gate" else env()
    except Exception as error:  # a crash would read as "doesn't fit"
        report(f"this node could not be inspected: {type(error).__name__}: {' '.join(str(error).split())}")
        return UNREADABLE


def report(text: str) -> None:
    print(f"rocstack: {text}", file=sys.stderr)


def read_image() -> tuple[ImageFacts, Mapping[str, Any]]:
    manifest = json.loads(Path(MANIFEST).read_text())
    return from_manifest("this image", manifest), manifest


def read_nics() -> list[NicSettings]:
    return [NicSettings.from_dict(row) for row in json.loads(NICS.read_text())]


def read_node() -> NodeProfile:
    node = parse(Recording.from_dict(collect("/", run=False, libraries=False)), read_nics())
    return replace(node, unread=(*node.unread, Unread(LIBRARIES, "the image has its own")))


def read_verdict(image: ImageFacts, node: NodeProfile) -> GateVerdict:
    """The gate's word. It can't read Slingshot's libraries here, but they can be loaded: those that were mounted."""
    verdict = judge(image, node)
    if image.nic != SLINGSHOT or not node.cxi or verdict.result != UNKNOWN:
        return verdict
    plugins = [str(path) for path in sorted(PLUGIN_FOLDER.glob("*.so"))]
    wrong = unloadable([SLINGSHOT_FILES["cxi"], SLINGSHOT_FILES["libfabric"], *plugins])
    finding = GateFinding(FITS, f"{verdict.findings[0].what}, and the host's libfabric loads")
    if wrong:
        finding = GateFinding(
            UNFIT, "; ".join(wrong), "start it with `rocstack run`, which mounts the host's libfabric"
        )
    return replace(verdict, result=finding.result, findings=(finding,))


def environment(
    node: NodeProfile, image: ImageFacts, manifest: Mapping[str, Any], environ: Mapping[str, str], options: StartOptions
) -> Fabric:
    """What the container was started with wins."""
    name = image.nic or "tcp"
    nic = next((each for each in read_nics() if each.nic == name), None)
    if nic is None:
        raise LookupError(f"{NICS} has no NIC profile {name}")
    versions = manifest.get("versions")
    address = resolve_first(options.controllers)
    compute = partial(
        fabric, node, nic, control_address=address, data_subnets=options.subnets,
        versions=versions if isinstance(versions, dict) else {},
    )  # fmt: skip
    # A value of several lines can't stand in the file; it is left as it is.
    given = [key for key in compute().env if key in environ]
    computed = compute(overrides={key: environ[key] if environ[key].isprintable() else None for key in given})
    if options.controllers and not address:
        names = ", ".join(options.controllers)
        lost = f"ROCSTACK_CONTROLLER: {names} did not resolve within {RESOLVE_TIMEOUT_S:g} s"
        return replace(computed, warnings=(*computed.warnings, lost))
    return computed


def start(*, daemons: bool) -> int:
    """Prints the environment for a shell; what it finds it says on standard error. Daemons don't start on a node that
    the image doesn't fit: jobs would run over TCP without an error. A command runs in any case."""
    options = read_options(os.environ)
    for wrong in options.wrong:
        report(wrong)
    if options.wrong and daemons:
        return 2
    image, manifest = read_image()
    node = read_node()
    verdict = read_verdict(image, node)
    by_name = link_node_provider(image, verdict.place) if verdict.place else ""
    verdict = start_gate.check_loaded_files(image, verdict, os.environ)
    if options.gate != OFF and (daemons or verdict.result != FITS):
        report(f"{verdict.result}: {verdict.sentence}")
    computed = environment(node, image, manifest, os.environ, options)
    text = render_env(computed) + (f"\n{start_gate.DRIVERS_VARIABLE}={by_name}\n" if by_name else "")
    print(text, end="", flush=True)  # before the trial: a provider's own fault may end this program
    written = write_env(text)
    if not daemons:
        return 0
    for warning in computed.warnings:
        report(f"warning: {warning}")
    if not written:
        report(f"warning: none of {', '.join(ENV_FILES)} can be written: Slurm's tasks get no fabric environment")
    return decide_start(options.gate, image, node, verdict)


def decide_start(gate: str, image: ImageFacts, node: NodeProfile, verdict: GateVerdict) -> int:
    """For the daemons: 0 start, 1 don't."""
    if gate == OFF:
        decision = start_gate.GateDecision(OFF, verdict.sentence)
    else:
        check = check_rdma(image, node) if verdict.result != UNFIT else RdmaCheck(None)
        for line in check.lines if image.providers else ():
            report(line)
        decision = start_gate.decide(gate, verdict, check)
    if not start_gate.write_decision(decision) and decision.starts:
        report(
            f"warning: {start_gate.DECISION_PATH} can't be written: "
            f"rocstack-prolog does not learn that this is '{decision.word}'"
        )
    return 0 if decision.starts else 1


def link_node_provider(image: ImageFacts, prefix: str) -> str:
    """What RDMAV_DRIVERS must say, where no link can be made; the trial here goes by it too."""
    by_name = start_gate.link_provider(image, prefix)
    if by_name:
        os.environ[start_gate.DRIVERS_VARIABLE] = by_name
    if len(image.providers) > 1:
        provider = next(each for each in image.providers if each.place == prefix)
        least, most = provider.kernel_abi or ("?", "?")
        release = provider.version or provider.way
        report(f"{provider.driver} {release} (kernel ABI {least}-{most}) for this node")
    return by_name


def gate() -> int:
    """Asked again, of the node as it is now."""
    image, _ = read_image()
    verdict = start_gate.check_loaded_files(image, read_verdict(image, read_node()), {**read_env(), **os.environ})
    print(f"{verdict.result}: {verdict.sentence}")
    decision = start_gate.read_decision()
    if verdict.result == UNKNOWN and decision and decision.word == PROVED:
        print("every device was tried when the daemons started, and worked")
        return 0
    return CODES[verdict.result]


def env() -> int:
    options = read_options(os.environ)
    for wrong in options.wrong:
        report(wrong)
    image, manifest = read_image()
    print(render_env(environment(read_node(), image, manifest, os.environ, options)), end="")
    return 2 if options.wrong else 0


def prove(*, many: bool, every: bool) -> int:
    """0 where every device works; 1 where one doesn't or none could be tried."""
    check = check_devices(many=many) if every else check_rdma(read_image()[0], read_node(), many=many)
    for line in check.lines:
        report(line)
    return 0 if check.works else 1


def write_env(text: str) -> bool:
    """For Slurm's tasks and for people; a command has it from standard output."""
    return any(start_gate.write_file(path, text) for path in ENV_FILES)


def read_env() -> dict[str, str]:
    """Empty where no file was written."""
    path = next((path for path in map(Path, ENV_FILES) if path.exists()), None)
    return parse_env(path.read_text()) if path else {}


def task() -> int:
    """Slurm's TaskProlog: `export NAME=value` lines; what the job set itself stays. A task runs without them too."""
    try:
        variables = read_env()
    except (OSError, ValueError) as error:
        report(f"the fabric's environment can't be read: {error}")
        variables = {}
    else:
        if not variables:
            report(f"no fabric environment for this task: there is no {' or '.join(ENV_FILES)}")
    for name, value in variables.items():
        if name not in os.environ:
            print(f"export {name}={value}")
    try:
        for line in own_folder.lines(os.environ):
            print(line)
    except OSError as error:
        report(f"no folder of this user's own for temporary files: {error}")
    try:
        meeting = rendezvous.variables(os.environ, rendezvous.read_secret(os.environ))
    except (KeyError, IndexError, ValueError) as error:
        report(f"no rendezvous for this task: {type(error).__name__}: {error}")
        return 0
    print(*rendezvous.lines(os.environ, meeting), sep="\n")
    if warning := rendezvous.taken(os.environ, meeting):
        print(warning)
    return 0


def job() -> int:
    """Part of Slurm's Prolog. A job begins without a secret too: its tasks are given no port then."""
    try:
        rendezvous.write_secret(os.environ)
    except (OSError, ValueError) as error:
        report(f"no secret for this job: {error}")
    return 0
