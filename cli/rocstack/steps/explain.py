"""Which stacks there are, why a combination is allowed or refused, and whether an image fits nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rocstack.base.errors import BadInput, Missing
from rocstack.steps.options import (
    Flag,
    Gfx,
    Methods,
    Note,
    Overlay,
    ProbeInventory,
    Profiles,
    StackOptions,
    ignore,
    settings,
)

if TYPE_CHECKING:
    from rocstack.node.gate import GateVerdict
    from rocstack.stack.component import NicProfile
    from rocstack.stack.rules import RuleVerdict
    from rocstack.stack.stack import Stack, StackFact


@dataclass(frozen=True, kw_only=True)
class StacksOptions:
    overlay: Overlay = None


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
    from rocstack.stack import component, stack
    from rocstack.stack import overlay as overlays

    folder = settings(options).overlay_folder()
    overlays.load(folder)  # refuses a folder that is not there
    files = component.library("nic", folder).files.values()
    return Stacks(
        tuple(stack.load(name, folder) for name in stack.names(folder)),
        tuple(component.validate_head(file, component.NicProfile) for file in files),
    )


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(StackOptions):
    gfx: Gfx = None
    driver: Annotated[str, Flag("amdgpu driver version of the nodes: 6.10.5 or 30.20.1.")] = ""
    methods: Methods = ()
    image: Annotated[str | None, Flag("Say whether this image fits the nodes instead.")] = None
    profiles: Profiles = None
    inventory: ProbeInventory = None


@dataclass(frozen=True)
class Explanation:
    """The verdict of every rule, and what they judged."""

    verdicts: tuple[RuleVerdict, ...]
    facts: dict[str, Any]
    stack_facts: tuple[StackFact, ...] = ()

    @property
    def ok(self) -> bool:
        return not any(verdict.state == "broken" for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"allowed": self.ok, "facts": self.facts, "verdicts": verdicts}


@dataclass(frozen=True)
class ImageFit:
    """The gate's verdict on an image for every node."""

    image: str
    verdicts: tuple[GateVerdict, ...]

    @property
    def ok(self) -> bool:
        from rocstack.node.gate import FITS

        return all(verdict.result == FITS for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        rows = [{"node": v.node, "virtual": v.virtual, "result": v.result, "says": v.sentence} for v in self.verdicts]
        return {"image": self.image, "fits": self.ok, "nodes": rows}


def explain(options: ExplainOptions = ExplainOptions(), note: Note = ignore) -> Explanation | ImageFit:
    """Why a combination is allowed or refused, rule by rule; with `image`, why it fits each node or doesn't.

    Raises:
        BadInput: something is wrong with stack, NIC, overlay or profiles; a control image.
        Missing: no such image on this host.
        CheckFailed: a node could not be read.
    """
    from rocstack.stack import rules
    from rocstack.steps.image_plan import join

    if options.image:
        return _fit(options.image, options.profiles, options.inventory, note)
    if options.profiles or options.inventory:
        raise BadInput(
            "--profiles and --inventory need an image to judge", code="no-image", next_step="name it with --image"
        )
    value = join(settings(options), gfx=options.gfx, methods=options.methods).resolved
    facts = value.facts() | ({"driver": options.driver} if options.driver else {})
    return Explanation(tuple(rules.judge(rules.load(), facts)), facts, value.stack.facts)


def _fit(reference: str, profiles: Path | None, inventory: Path | None, note: Note) -> ImageFit:
    from rocstack.edge import engine
    from rocstack.node.gate import judge
    from rocstack.node.image_facts import from_labels
    from rocstack.steps.image_plan import nodes_of

    local = engine.find_image(engine.connect(), reference)
    if local is None:
        raise Missing(f"no image {reference} on this host", code="no-image", next_step="build it with `rocstack build`")
    image = from_labels(reference, local.labels or {})
    if image.role == "control":
        raise BadInput(
            f"{reference} is a control image: it needs no NIC", code="no-node", next_step="name the worker image"
        )
    nodes = nodes_of(profiles, inventory, image.modules, image.pci, note)
    return ImageFit(reference, tuple(judge(image, node) for node in nodes))
