"""First light: every step once on the real nodes, and one file of all that was seen, without what names the site; and
what rocstack concludes from such a file later."""

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rocstack.base import __version__, finding_texts
from rocstack.base.errors import BadInput, RocstackError
from rocstack.base.text import count
from rocstack.cluster.settings import VERIFY
from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.plan import secrets as keys
from rocstack.deploy.read import inventory as inventories
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.state import service_target
from rocstack.doctor import nodes as examined
from rocstack.edge import locks, ssh
from rocstack.node.profile import NodeProfile
from rocstack.node.recording import Recording
from rocstack.probe import profiles, recordings
from rocstack.probe.redact import NAME, Redaction
from rocstack.steps import build as builds
from rocstack.steps import deploy as deploys
from rocstack.steps import verify as verifies
from rocstack.steps.build import BuildEvents
from rocstack.steps.options import (
    BuildOptions,
    DeployOptions,
    FirstLightOptions,
    ReplayOptions,
    VerifyOptions,
    inventory_path,
    settings,
)
from rocstack.steps.probe import write_recordings
from rocstack.verify import evidence, result
from rocstack.verify import first_light as light_files
from rocstack.verify.first_light import FirstLight, Node, Replayed, State, Step
from rocstack.verify.recorder import without
from rocstack.verify.suite import OnEvent

STEPS = ("probe", "build", "deploy", "verify", "rccl-tests", "training")
RCCL = ("rccl-collectives", "collective-performance")  # checks that run rccl-tests, the first of them nothing else
TRAINING_S = 900.0  # that the training run may take
# A model whose gradients are worth a GPU's time; on CPUs the preset as it is.
LARGER = (
    "--model.hidden_size=1024", "--model.intermediate_size=4096", "--model.num_hidden_layers=12",
    "--model.num_attention_heads=16", "--model.num_key_value_heads=16", "--data.seq_len=512",
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """What shows the progress: of each step that takes long, and `ended` of each when it is over."""

    build: Callable[[], AbstractContextManager[BuildEvents]] = lambda: nullcontext(BuildEvents())
    deploy: Callable[[], AbstractContextManager[DeployEvents]] = lambda: nullcontext(DeployEvents())
    verify: Callable[[], AbstractContextManager[OnEvent]] = lambda: nullcontext(lambda event: None)
    begun: Callable[[str], None] = lambda name: None
    ended: Callable[[Step], None] = lambda step: None


@dataclass(frozen=True)
class FirstLightResult:
    """`light` is as the file has it: nodes are called node-1, node-2 ..."""

    file: Path
    light: FirstLight

    @property
    def ok(self) -> bool:
        return self.light.ok

    def to_dict(self) -> dict[str, Any]:
        steps = [step.model_dump(include={"name", "state", "seconds", "why"}) for step in self.light.steps]
        return {"file": str(self.file), "ok": self.ok, "virtual": self.light.virtual, "steps": steps}


def first_light(options: FirstLightOptions = FirstLightOptions(), shown: Shown = Shown()) -> FirstLightResult:
    """Probe, build, deploy, verify, rccl-tests and training on the nodes of an inventory. A step that fails doesn't end
    it: those that don't need its result go on. The file is written after each step, so an interrupt leaves what there
    is.

    Raises:
        BadInput: the inventory is wrong; the file can't be written, or is there already.
    """
    chosen = settings(options)
    path = inventory_path(chosen, options.inventory)
    to = options.out
    if not to.absolute().parent.is_dir():
        raise BadInput.of("no-parent", to, folder=to.absolute().parent)
    if to.exists():
        raise BadInput.of("first-light-exists", to)
    run = _Run(options, inventories.load(path), Path(chosen.out) / "first-light", shown)
    run.write()
    run.do("probe", run.probe)
    run.do("build", run.build, "probe")
    run.do("deploy", run.deploy, "build")
    run.do("verify", run.verify, "deploy")
    run.do("rccl-tests", run.rccl_tests, "verify")
    run.do("training", run.training, "deploy")
    return FirstLightResult(to, run.light)


def replay(options: ReplayOptions, on_event: OnEvent = lambda event: None) -> Replayed:
    """Judges the recordings of a file again; with `out` also writes them there as rocstack's other files.

    Raises:
        BadInput: no such file, or none of `first-light`; the folder isn't empty.
    """
    folder = options.out
    if folder and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise BadInput.of("record-not-empty", folder, folder=folder)
    light = light_files.read(options.file)
    if folder:
        light_files.unpack(light, folder, write_recordings)
    return light_files.judge(light, settings(options).overlay_folder(), on_event)


class _Skipped(Exception):
    pass


@dataclass
class _Done:
    """How a step ended; `why` it failed, if it did."""

    why: str = ""
    said: Any = None
    log: str = ""
    usable: bool = True  # by the steps that need it


@dataclass
class _Run:
    """`usable`: the steps whose result others can go on with."""

    options: FirstLightOptions
    inventory: Inventory
    folder: Path
    shown: Shown
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    usable: set[str] = field(default_factory=set)
    read: recordings.Recorded = field(default_factory=lambda: recordings.Recorded(()))
    profiles: tuple[NodeProfile, ...] = ()
    verified: result.Run | None = None

    def __post_init__(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.light = FirstLight(schema=light_files.SCHEMA, rocstack=__version__, when=now)

    def know(self) -> Redaction:
        """What names the site, as far as it is known by now: a deploy makes keys."""
        own = self.read.hostnames
        names = [(each.name, each.host, each.address, own.get(each.name, "")) for each in self.inventory.nodes]
        return Redaction(self.key, self.read.recordings, names, _words(self.inventory))

    def write(self) -> None:
        light_files.write(self.options.out, self.light)

    def do(self, name: str, work: Callable[[], _Done], *needs: str) -> None:
        lacking = next((need for need in needs if need not in self.usable), "")
        self.shown.begun(name)
        began, done, state = time.monotonic(), _Done(), "interrupted"
        try:
            if lacking:
                raise _Skipped(f"it needs what {lacking} should have given")
            done = work()
            state = "failed" if done.why else "done"
            self.usable |= {name} if done.usable else set()
        except _Skipped as why:
            state, done = "skipped", _Done(str(why))
            self.usable |= set() if lacking else {name}
        except RocstackError as error:
            state, done = "failed", _Done(error.what, error.to_dict())
        except Exception as error:  # a defect here is worth as much to whoever gets the file
            state, done = "failed", _Done(f"{type(error).__name__}: {error}")
        finally:
            self._ended(name, state, time.monotonic() - began, done)

    def _ended(self, name: str, state: State | str, seconds: float, done: _Done) -> None:
        redaction = self.know()
        said = redaction.said
        step = Step(
            name=name,
            state=state,  # type: ignore[arg-type]
            seconds=round(seconds, 1),
            why=said(done.why)[-light_files.LOG :],
            said=redaction.value(json.loads(json.dumps(done.said, default=str))),
            log=said(done.log[-light_files.LOG :])[-light_files.LOG :],
        )
        self.light = self.light.model_copy(update={"steps": (*self.light.steps, step)})
        self.write()
        self.shown.ended(step.model_copy(update={"why": done.why}))

    def probe(self) -> _Done:
        """With the trees that real tools read: a recording can become a virtual node."""
        read = self.read = recordings.record_inventory(self.inventory.path, tree=True)
        redaction, words = self.know(), _words(self.inventory)
        overlay = settings(self.options).overlay_folder()
        self.profiles = recordings.profiles(read.recordings, overlay)
        masked = [_without_words(redaction.recording(each), words) for each in read.recordings]
        nodes = tuple(Node(recording=each, traits=light_files.conclusions(each, overlay)) for each in masked)
        self.light = self.light.model_copy(update={"nodes": nodes})
        lost = {failure.node: failure.reason for failure in read.failures}
        report = examined.examine(self.profiles, finding_texts.table(), lost)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.profiles:
            profiles.write_profiles(self.folder / "nodes.json", self.profiles)
        why = "; ".join(f"{name}: {reason}" for name, reason in lost.items())
        return _Done(why, report.to_dict(), usable=bool(self.profiles))

    def build(self) -> _Done:
        if self.options.image:
            raise _Skipped("--image names one")
        which = {name: getattr(self.options, name) for name in ("nic", "stack", "overlay", "nic_source")}
        with self.shown.build() as events:
            report = builds.build(BuildOptions(profiles=self.folder / "nodes.json", **which), events)
        failed = [f"{image.role}: {image.failure.error}" for image in report.images if image.failure]
        return _Done("; ".join(failed), report.to_dict(), usable=report.ok)

    def deploy(self) -> _Done:
        """Of a deploy that failed on some nodes the others are there to be verified."""
        names = ("inventory", "image", "control_image", "nic", "stack", "overlay")
        log = deploys.log_file()
        try:
            with self.shown.deploy() as events:
                outcome = deploys.deploy(DeployOptions(**{name: getattr(self.options, name) for name in names}), events)
        except RocstackError as error:
            return _Done(error.what, error.to_dict(), _tail(log), usable=False)
        failed = [f"{name}: {reason}" for name, reason in outcome.failed.items()]
        unreached = "" if outcome.ok else "not all nodes were reached"
        why = "; ".join(filter(None, [*failed, outcome.stopped])) or unreached
        return _Done(why, outcome.to_dict(), _tail(log), usable=bool(outcome.ready))

    def verify(self) -> _Done:
        report = verifies.report_folder(VerifyOptions())
        asked = VerifyOptions(inventory=self.options.inventory, level=self.options.level, report=report)
        try:
            with self.shown.verify() as on_event:
                verified = verifies.verify(asked, on_event)
        finally:
            self._take(report)
        self.verified = verified.run
        bad = [each.check.name for each in verified.run.results if each.state in result.BAD]
        why = f"failed: {', '.join(bad)}" if bad else "" if verified.ok else "nothing was proved"
        return _Done(why, {"stored": verified.stored, "problem": verified.problem}, _tail(report / result.LOG))

    def _take(self, report: Path) -> None:
        """What there is of a run: also of one that was interrupted."""
        found, redaction = {}, self.know()
        for name, file in (("evidence", evidence.FILE), ("report", result.REPORT)):
            if (report / file).exists():
                found[name] = redaction.value(json.loads((report / file).read_text(encoding="utf-8")))
        self.light = self.light.model_copy(update=found)

    def rccl_tests(self) -> _Done:
        """Part of verify: their output is in its evidence."""
        checks = {each.check.name: each for each in (self.verified.results if self.verified else ())}
        if RCCL[0] not in checks:
            raise _Skipped(f"they are part of level 2, and verify ran to level {self.options.level}")
        if checks[RCCL[0]].state == "skipped":
            raise _Skipped(checks[RCCL[0]].why or "no node could run them")
        ran = [checks[name] for name in RCCL if name in checks]
        bad = "; ".join(f"{each.check.name}: {each.why}" for each in ran if each.state in result.BAD)
        return _Done(bad, {each.check.name: each.state for each in ran})

    def training(self) -> _Done:
        """The trainer on all workers that were probed, with every GPU that works; where nodes have none, on two CPUs
        each. Skipped where the image has no trainer, or the nodes have GPUs and its PyTorch has no ROCm."""
        workers = {host.name for host in self.inventory.workers}
        gpus = [_gpus(node) for node in self.profiles if node.name in workers]
        if not gpus:
            raise _Skipped("no worker was read")
        each = min(gpus)
        lacks = without(self.verified.labels) if self.verified else {}
        if why := lacks.get("part:trainer"):
            raise _Skipped(why)
        if each and (why := lacks.get("framework:pytorch")):
            raise _Skipped(f"{why}: the trainer doesn't run on these GPUs")
        ranks = each or 2
        srun = [
            f"--partition={VERIFY}",
            "--chdir=/",
            f"--nodes={len(gpus)}",
            f"--ntasks-per-node={ranks}",
            "--time=10",
            "--immediate=120",
        ]
        words = ["rocstack-train", "--config", "tiny", "--steps", "20", f"--train.batch={8 * ranks * len(gpus)}"]
        if each:
            srun += [f"--gpus-per-node={each}"]
            words += LARGER
        target = service_target.target(self.inventory.path, self.inventory.control.name)
        inside = ["env", "NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,NET", "srun", *srun, *words]
        # As the suite's own user: root's ranks would be root's on every worker, and whoever reaches their ports meets
        # them.
        user = ["--user", VERIFY, "--workdir", "/", "--env", f"HOME=/home/{VERIFY}"]
        line = ["docker", "exec", *user, target.container, "sh", "-c", 'exec "$@" 2>&1', "sh", *inside]
        code, out, said = ssh.output(target.ssh_host, line, 4 * light_files.LOG, TRAINING_S)
        where = f"{count(len(gpus), 'node')}, {ranks} {'GPU' if each else 'CPU'} ranks each"
        last = (out.strip() or said).splitlines()[-1:]
        return _Done("".join(last) if code else "", {"on": where, "command": inside}, out)


def _gpus(node: NodeProfile) -> int:
    return 0 if node.virtual else sum(gpu.kfd_node is not None for gpu in node.gpus)


def _tail(file: Path) -> str:
    return file.read_text(errors="replace")[-light_files.LOG :] if file.exists() else ""


def _without_words(recording: Recording, words: Mapping[str, str]) -> Recording:
    """Without libraries that have such a word in them: of one that was compiled at the site, the folder's name."""
    known = [word.encode() for word in words if len(word) > 8]
    kept = {path: data for path, data in recording.blobs.items() if not any(word in data for word in known)}
    lost = dict.fromkeys(recording.blobs.keys() - kept.keys(), "left out: it names the site")
    if not lost:
        return recording
    return Recording(**{**_fields(recording), "blobs": kept, "unread": {**recording.unread, **lost}})


def _fields(recording: Recording) -> dict[str, Any]:
    return {name: value for name, value in vars(recording).items() if not name.startswith("_")}


def _words(inventory: Inventory) -> dict[str, str]:
    """What names the site and its people, as far as this machine knows: from the inventory, the settings, the keys."""
    chosen = settings()
    user, _, host = locks.operator().partition("@")
    words = {user: "user", host: "host", str(Path.home()): "/home/user", str(Path.cwd()): "/folder"}
    words |= {str(inventory.path.absolute().parent): "/folder"}
    words |= dict.fromkeys((*chosen.cluster.users, *chosen.cluster.accounts), "account")
    texts = [chosen.push or ""]
    for node in inventory.nodes:
        for name, value in node.variables.items():
            if "pass" in name:
                words[str(value)] = "masked"
            elif "user" in name:
                words[str(value)] = "user"
            elif isinstance(value, str):
                texts.append(value)
    if inventory.path.is_file():
        texts.append(inventory.path.read_text(errors="replace"))
    names = {name for text in texts for name in NAME.findall(text)} - {Path(inventory.path).name}
    words |= dict.fromkeys(names, "host")
    kept = keys.beside(inventory.path)
    if kept.is_file():
        words |= dict.fromkeys(re.findall(r"[A-Za-z0-9+/=_-]{16,}", kept.read_text(errors="replace")), "masked")
    return {word: to for word, to in words.items() if len(word) > 1 and word not in ("/", "/root")}
