"""Whether the images fit a node and each other: rules as scope.py says, texts in images/findings/deploy-image.yml."""

from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from rocstack.base.levels import HARDWARE
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.plan.scope import CLUSTER_RULES, NODE_RULES, Scope, Values, cluster_rule, node_rule
from rocstack.deploy.read.facts import NodeFacts
from rocstack.doctor.diagnosis import gate_values
from rocstack.node.gate import UNFIT, UNKNOWN, judge
from rocstack.node.image_facts import LABEL_PREFIX
from rocstack.stack import rules

IN_TREE = "in-tree"


def _of_worker(node: NodeFacts, scope: Scope) -> Image | None:
    return scope.images.get("worker") if scope.is_worker(node) else None


def _judged(result: str, node: NodeFacts, scope: Scope) -> Iterator[Values]:
    image = _of_worker(node, scope)
    if image is None or scope.gate == "off":
        return
    verdict = judge(image.facts, node.profile)
    if verdict.result == result:
        yield gate_values(verdict) | _softer(scope.gate == "warn")


def _softer(yes: bool) -> Values:
    return {"level": "warning"} if yes else {}


NODE_RULES |= {"nic-unfit": partial(_judged, UNFIT), "nic-unknown": partial(_judged, UNKNOWN)}


@cache
def _matrix() -> tuple[rules.Rule, ...]:
    return tuple(rule for rule in rules.load() if "driver" in rule.need)


def _rocm(image: Image) -> str:
    """The image's ROCm where it is AMD's own: a distribution's mixes releases, and AMD's table is silent on it."""
    method = image.labels.get(f"{LABEL_PREFIX}rocm.method", "amd")
    return image.labels.get(f"{LABEL_PREFIX}component.rocm", "") if method == "amd" else ""


@node_rule
def driver_rocm(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    image, driver = _of_worker(node, scope), node.profile.amdgpu
    if image is None or not _rocm(image) or not driver or driver == IN_TREE:
        return
    facts: dict[str, Any] = {"rocm": _rocm(image), "rocm.method": "amd", "driver": driver}
    for verdict in rules.judge(_matrix(), facts):
        if verdict.state == "broken":
            values = {"driver": driver, "rocm": facts["rocm"], "reason": verdict.rule.cause}
            yield values | _softer(bool(node.profile.virtual))


@node_rule
def driver_in_tree(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    image = _of_worker(node, scope)
    if image is not None and node.profile.amdgpu == IN_TREE and _rocm(image):
        yield {"rocm": _rocm(image)}


@node_rule
def gfx_missing(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    image = _of_worker(node, scope)
    targets = {target for target in (image.labels.get(f"{LABEL_PREFIX}gfx", "") if image else "").split(",") if target}
    odd = Counter(gpu.gfx for gpu in node.profile.gpus if gpu.gfx and gpu.gfx not in targets)
    if targets and odd:
        gpus = ", ".join(f"{count} × {gfx}" for gfx, count in odd.items())
        values = {"gpus": gpus, "gfx": ", ".join(odd), "targets": ", ".join(sorted(targets))}
        yield values | _softer(bool(node.profile.virtual))  # nothing computes there


def _labels(scope: Scope, key: str) -> tuple[str, str]:
    values = {role: image.labels.get(LABEL_PREFIX + key, "") for role, image in scope.images.items()}
    return values.get("worker", ""), values.get("control", "")


@cluster_rule
def slurm_newer(scope: Scope) -> Iterator[Values]:
    worker, control = _labels(scope, "component.slurm")
    mine, theirs = rules.upstream(worker), rules.upstream(control)
    if mine and theirs and mine.release[:2] > theirs.release[:2]:
        yield {"worker": worker, "control": control}


def _controller(upgrade: bool, scope: Scope) -> Iterator[Values]:
    """Slurm's version on the control node, as the last deploy left it, where the wanted image has another release."""
    image = scope.images.get("control")
    now = scope.control.state.slurm if scope.control and scope.control.state else ""
    before, after = rules.upstream(now), rules.upstream(image.slurm if image else "")
    if image is None or before is None or after is None:
        return
    was, will = before.release[:2], after.release[:2]
    if (will > was) if upgrade else (will < was):
        yield {"now": now, "wanted": image.slurm, "inventory": scope.inventory.path}


CLUSTER_RULES |= {"slurm-older": partial(_controller, False), "slurm-upgrade": partial(_controller, True)}


@cluster_rule
def images_differ(scope: Scope) -> Iterator[Values]:
    worker, control = _labels(scope, "stack")
    if worker and control and worker != control:
        yield {"worker": worker, "control": control}


@cluster_rule
def not_verified(scope: Scope) -> Iterator[Values]:
    level_required = scope.require
    virtual = all(node.profile.virtual for node in scope.nodes)
    if level_required is None or any(each.holds(level_required, virtual) for each in scope.proved):
        return
    best = max(scope.proved, key=lambda each: (each.holds(each.level, virtual), each.level), default=None)
    simple = virtual or level_required < HARDWARE
    where = "virtual nodes (`rocstack local up`)" if simple else "a test cluster with such nodes"
    values = {"required": level_required, "passed": best.text if best else "none", "where": where}
    yield values | _softer(not scope.insist)
