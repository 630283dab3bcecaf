"""What needs no engine: which stacks there are, why a combination is allowed or refused, whether an image fits nodes;
and an image's context, without building it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, Missing
from rocstack.image import context
from rocstack.image.build_report import last_base
from rocstack.image.context import BuildContext
from rocstack.nic.ways import with_card_needs
from rocstack.node.gate import FITS, GateVerdict, gpu_lacks, judge
from rocstack.node.image_facts import from_labels
from rocstack.node.profile import NodeProfile
from rocstack.stack import choice, component, gpus, rules, stack
from rocstack.stack import overlay as overlays
from rocstack.stack.choice import StackFit
from rocstack.stack.component import NicProfile
from rocstack.stack.gpus import GpuTarget
from rocstack.stack.rules import RuleVerdict
from rocstack.stack.stack import Stack
from rocstack.steps.image_plan import fits_of, gfx_for, join, nodes_of, plan_image
from rocstack.steps.options import ExplainOptions, Note, RenderOptions, StacksOptions, ignore, settings


@dataclass(frozen=True)
class Rendered:
    """A build context; `changes` is a unified diff to the last build's, if that was asked for."""

    context: BuildContext
    folder: Path | None = None
    changes: str | None = None

    @property
    def dockerfile(self) -> str:
        return self.context.files["Dockerfile"].data.decode()

    def to_dict(self) -> dict[str, Any]:
        files = self.context.files
        if self.changes is not None:
            return {"changed": bool(self.changes), "diff": self.changes}
        if self.folder:
            return {"folder": str(self.folder), "digest": self.context.digest(), "files": sorted(files)}
        texts = {name: file.data.decode("utf-8", "replace") for name, file in files.items()}
        return {"digest": self.context.digest(), "files": texts}


def render(options: RenderOptions = RenderOptions(), note: Note = ignore) -> Rendered:
    """The Dockerfile and its context. Builds nothing and needs no engine; the same input gives the same bytes.

    Raises:
        BadInput: as `build`; there is no earlier build to compare with; the folder holds something else.
    """
    chosen = settings(options)
    plan = plan_image(options, chosen, note, base=chosen.base_image or None)
    if options.diff and not chosen.base_image and (base := last_base(plan.folder)):
        plan = replace(plan, resolved=plan.resolved.model_copy(update={"base": base}))
    result = plan.render()
    if options.diff:
        last = context.read(plan.folder / "context")
        if not last.files:
            raise BadInput.of("no-build", plan.folder)
        return Rendered(result, changes=context.diff(last, result))
    if to := options.to:
        if to.exists() and not (to.is_dir() and (not any(to.iterdir()) or context.is_ours(to))):
            raise BadInput.of("context-not-empty", to, folder=to)
        result.write(to)
    return Rendered(result, to)


@dataclass(frozen=True)
class Stacks:
    stacks: tuple[Stack, ...]
    nics: tuple[NicProfile, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "stacks": [each.model_dump() for each in self.stacks],
            "nics": [each.model_dump() for each in self.nics],
        }


def stacks(options: StacksOptions = StacksOptions()) -> Stacks:
    """The stacks and NIC profiles, with those of the overlay.

    Raises:
        BadInput: the overlay isn't there; a stack or NIC file is wrong.
    """
    folder = settings(options).overlay_folder()
    overlays.load(folder)  # refuses a folder that is not there
    return Stacks(
        tuple(stack.load(name, folder) for name in stack.names(folder)),
        component.nic_profiles(folder),
    )


@dataclass(frozen=True)
class Explanation:
    """The verdict of every rule, and what they judged. With nodes: every stack beside them, which one is for them and
    why, or why it can't be used there."""

    stack: Stack
    verdicts: tuple[RuleVerdict, ...]
    facts: dict[str, Any]
    fits: tuple[StackFit, ...] = ()
    why: str = ""
    lacks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.lacks or any(verdict.refuses for verdict in self.verdicts))

    @property
    def targets(self) -> dict[str, GpuTarget]:
        """Of the stack."""
        return {gfx: gpus.targets()[gfx] for gfx in self.stack.gfx}

    def to_dict(self) -> dict[str, Any]:
        return {
            "allowed": self.ok,
            "stack": self.stack.name,
            "facts": self.facts,
            "targets": {gfx: target.model_dump() for gfx, target in self.targets.items()},
            "stacks": [each.to_dict() for each in self.fits],
            "why": self.why,
            "lacks": list(self.lacks),
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
        }


@dataclass(frozen=True)
class ImageFit:
    """The gate's verdict on an image for every node; `lacks`: why their GPUs can't train with it."""

    image: str
    verdicts: tuple[GateVerdict, ...]
    lacks: tuple[str, ...] = ()
    code: tuple[tuple[str, tuple[str, ...]], ...] = ()  # library -> targets, as its labels say

    @property
    def ok(self) -> bool:
        return not self.lacks and all(verdict.result == FITS for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        rows = [{"node": v.node, "virtual": v.virtual, "result": v.result, "says": v.sentence} for v in self.verdicts]
        code = {library: list(targets) for library, targets in self.code}
        return {"image": self.image, "fits": self.ok, "lacks": list(self.lacks), "code": code, "nodes": rows}


def explain(options: ExplainOptions = ExplainOptions(), note: Note = ignore) -> Explanation | ImageFit:
    """Why a combination is allowed or refused, rule by rule; with `image`, why it fits each node or doesn't.

    Raises:
        BadInput: something is wrong with stack, NIC, overlay or profiles; a control image.
        Missing: no such image on this host.
        CheckFailed: a node could not be read.
    """
    if options.image:
        return _fit(options.image, options, note)
    chosen, why = settings(options), ""
    nodes, fits = tuple[NodeProfile, ...](), tuple[StackFit, ...]()
    folder = chosen.overlay_folder()
    if options.profiles or options.inventory:
        nic = component.validate_head(component.library("nic", folder).get(chosen.nic), NicProfile)
        nodes = nodes_of(options.profiles, options.inventory, nic.modules, nic.pci, note)
        fits = fits_of(nodes, folder, options.gfx)
        if fits and "stack" not in chosen.model_fields_set:
            best, why = choice.choose(fits)
            chosen = chosen.model_copy(update={"stack": best.stack.name})
    gfx = options.gfx or (gfx_for(chosen, nodes, note) if nodes else None)
    value = join(chosen, gfx=gfx, methods=options.methods).resolved
    need = choice.NodesNeed.of(nodes)
    modules = {options.driver} if options.driver else {*need.drivers}
    driver = gpus.driver_release(next(iter(modules))) or options.driver if len(modules) == 1 else None
    facts = value.facts() | ({"driver": driver} if driver else {})
    verdicts = tuple(rules.judge(rules.load(), facts))
    return Explanation(value.stack, verdicts, facts, fits, why, choice.fit(value.stack, need, value.stack.gfx).lacks)


def _fit(reference: str, options: ExplainOptions, note: Note) -> ImageFit:
    from rocstack.edge import engine  # only this asks it

    local = engine.find_image(engine.connect(), reference)
    if local is None:
        raise Missing.of("not-built", reference=reference)
    nics = component.nic_profiles(settings(options).overlay_folder())
    image = with_card_needs(from_labels(reference, local.labels or {}), nics)
    if image.role == "control":
        raise BadInput.of("not-a-worker", reference=reference)
    nodes = nodes_of(options.profiles, options.inventory, image.modules, image.pci, note)
    lacks = gpu_lacks(image, choice.NodesNeed.of(nodes).targets)
    return ImageFit(reference, tuple(judge(image, node) for node in nodes), lacks, image.code)
