"""Which stack suits the nodes: one with code for their GPUs, a training framework that uses them, and their driver and
operating system. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.text import listed
from rocstack.node.gate import FRAMEWORKS, gpu_lacks
from rocstack.node.image_facts import ImageFacts
from rocstack.node.profile import NodeProfile
from rocstack.stack import gpus, rules
from rocstack.stack.stack import Stack


@dataclass(frozen=True)
class NodesNeed:
    """What the nodes ask of a stack; each maps it to the nodes that have it."""

    targets: dict[str, tuple[str, ...]]
    drivers: dict[str, tuple[str, ...]]  # versions of the kernel module
    systems: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, nodes: Iterable[NodeProfile]) -> "NodesNeed":
        """Of those that have GPUs; a GPU that no driver drives is known by its PCI id."""
        need = cls({}, {}, {})
        for node in nodes:
            targets = {gpu.gfx or gpus.target_of(gpu.device) for gpu in node.gpus} - {None}
            found = ((need.targets, targets), (need.drivers, {node.amdgpu}), (need.systems, {node.system.os}))
            for names, values in found if targets else ():
                names |= {value: (*names.get(value, ()), node.name) for value in sorted(filter(None, values))}
        return need


@dataclass(frozen=True)
class StackFit:
    """A stack beside the nodes. `lacks`: why it can't be used there."""

    stack: Stack
    need: NodesNeed
    lacks: tuple[str, ...] = ()

    @cached_property
    def rank(self) -> tuple[int, bool, tuple[int, ...]]:
        """The best is the greatest: the nodes' own system, their driver's own ROCm, the newer ROCm."""
        rocm = self._rocm_series
        return self._system, bool(rocm) and {rocm} == {*self._drivers_rocm}, _numbers(rocm)

    @property
    def _system(self) -> int:
        """2: the nodes' system, 1: another release of their distribution."""
        mine, theirs = self.stack.base.os, self.need.systems
        same = {mine} == {*theirs}, {mine.partition("-")[0]} == {name.partition("-")[0] for name in theirs}
        return sum(same)

    @property
    def _rocm_series(self) -> str:
        rocm = self.stack.components.get("rocm")
        return ".".join(rocm.version.split(".")[:2]) if rocm else ""

    @property
    def _drivers_rocm(self) -> list[str | None]:
        return [gpus.driver_rocm(gpus.driver_release(module)) for module in self.need.drivers]

    @property
    def contents(self) -> str:
        """What tells it from others, in a few words."""
        rocm = self.stack.components.get("rocm")
        parts = [str(self.stack.base.os), f"ROCm {rocm.version}" if rocm else "", framework(self.stack)]
        return ", ".join(filter(None, parts))

    @property
    def why(self) -> str:
        """In a sentence."""
        system, driver, _ = self.rank
        rocm = self.stack.components.get("rocm")
        parts = [f"code for {', '.join(self.need.targets)}"]
        if rocm:
            parts.append(f"ROCm {rocm.version}{f', as the driver {listed(self.need.drivers)} has it' * driver}")
        parts += [framework(self.stack)] * bool(framework(self.stack))
        parts.append(f"the nodes' {self.stack.base.os}" if system == 2 else str(self.stack.base.os))
        return f"stack {self.stack.name} for these nodes: {'; '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        return {"stack": self.stack.name, "lacks": list(self.lacks), "contents": self.contents}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def framework(stack: Stack) -> str:
    """PyTorch 2.11.0+rocm7.2; empty for a stack without one."""
    choice = stack.components.get(stack.framework)
    if choice is None:
        return ""
    return f"{FRAMEWORKS[stack.framework]} {choice.version}{'' if stack.framework_rocm else ' (no ROCm)'}"


def image_facts(stack: Stack) -> ImageFacts:
    """The stack's image, as far as its GPUs are concerned."""
    trains = stack.framework if stack.framework in stack.components else None
    return ImageFacts(stack.name, gfx=stack.gfx, framework=trains, framework_rocm=stack.framework_rocm)


def fit(stack: Stack, need: NodesNeed, gfx: tuple[str, ...] = ()) -> StackFit:
    """With `gfx` for these targets, else for its own, or the nodes' where it can be built for them."""
    stack = stack.with_gfx(gfx) if gfx else stack.for_targets(need.targets)
    lacks = [*gpu_lacks(image_facts(stack), need.targets), *_without_code(stack)]
    rocm = stack.components.get("rocm")
    for module, names in need.drivers.items() if rocm else ():
        release = gpus.driver_release(module)
        facts = {"rocm": rocm.version, "rocm.method": rocm.method, "driver": release} if release and rocm else {}
        if any(v.state == "broken" and "driver" in v.rule.need for v in rules.judge(rules.load(), facts)):
            lacks.append(f"no support for the driver {module} of {listed(names)}")
    return StackFit(stack, need, tuple(lacks))


def _without_code(stack: Stack) -> list[str]:
    """Of the targets that it is built for, those that a component of it is known to have no code for."""
    facts = {name: part.version for name, part in stack.components.items()}
    facts |= {f"{name}.method": part.method for name, part in stack.components.items()}
    known = tuple(rule for rule in rules.load() if "gfx" in rule.need)
    lacking = [gfx for gfx in stack.gfx if any(v.refuses for v in rules.judge(known, {**facts, "gfx": [gfx]}))]
    return [f"libraries without code for {', '.join(lacking)}"] if lacking else []


def choose(fits: Sequence[StackFit]) -> tuple[StackFit, str]:
    """The stack for the nodes, and why it is this one.

    Raises:
        CheckFailed: none can be used there.
        BadInput: several suit them equally.
    """
    # One on somebody's image is chosen by name: what that has is only known once it is read.
    fits = [each for each in fits if not each.stack.on_components]
    usable = sorted((each for each in fits if not each.lacks), key=lambda each: each.rank, reverse=True)
    if not usable:
        shown = "; ".join(f"{each.stack.name} has {' and '.join(each.lacks)}" for each in fits)
        targets = ", ".join(fits[0].need.targets) if fits else ""
        raise CheckFailed.of("no-stack-fits", targets=targets, shown=shown)
    best = usable[0]
    equal = [each for each in usable if each.rank == best.rank]
    if len(equal) > 1:
        shown = "; ".join(f"{each.stack.name} ({each.contents})" for each in equal)
        raise BadInput.of("several-stacks", count=len(equal), shown=shown, name=equal[0].stack.name)
    others = [each.stack.name for each in usable[1:]]
    return best, best.why + (f". {listed(others)} would do, too: choose it with --stack" if others else "")


def refuse_unusable(chosen: StackFit, others: Sequence[StackFit]) -> None:
    """
    Raises:
        CheckFailed: the stack can't be used on the nodes; names those that can.
    """
    if chosen.lacks:
        usable = [each.stack.name for each in others if not each.lacks and each.stack.name != chosen.stack.name]
        own = [",".join(each.stack.gfx) for each in others if not each.lacks and each.stack.name == chosen.stack.name]
        ways = [f"--gfx {gfx}" for gfx in own] + [f"--stack {' or '.join(usable)}"] * bool(usable)
        step = f"build with {', or '.join(ways)}" if ways else "`rocstack stacks` lists the stacks"
        nodes = listed(dict.fromkeys(name for names in chosen.need.targets.values() for name in names))
        lacks = " and ".join(chosen.lacks)
        raise CheckFailed.of("stack-unusable", stack=chosen.stack.name, lacks=lacks, nodes=nodes, step=step)
