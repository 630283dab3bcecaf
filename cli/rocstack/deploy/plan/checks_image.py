"""Whether the images fit a node and each other: rules as scope.py says, texts in images/findings/deploy-image.yml."""

from collections import Counter
from collections.abc import Iterator
from functools import cache, partial

from rocstack.base.levels import HARDWARE
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.plan.scope import CLUSTER_RULES, NODE_RULES, Scope, Values, cluster_rule, node_rule
from rocstack.deploy.read.facts import NodeFacts
from rocstack.doctor.diagnosis import gate_values
from rocstack.nic.ways import with_card_needs
from rocstack.node.gate import FRAMEWORKS, UNFIT, UNKNOWN, judge
from rocstack.stack import coherence, gpus, rules

IN_TREE = "in-tree"
INTERFACE = "sign-in"  # what is new in a service image: templates/components/service.j2
CONTROL = "2"  # what a control image takes from a deploy: templates/components/registry.j2


def _judged(result: str, node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if scope.is_worker(node) and scope.gate != "off":
        verdict = judge(with_card_needs(scope.images["worker"].facts, scope.nics), node.profile)
        if verdict.result == result:
            yield gate_values(verdict) | _softer(scope.gate == "warn")


def _softer(yes: object) -> Values:
    return {"level": "warning"} if yes else {}


NODE_RULES |= {"nic-unfit": partial(_judged, UNFIT), "nic-unknown": partial(_judged, UNKNOWN)}


@cache
def _matrix() -> tuple[rules.Rule, ...]:
    return tuple(rule for rule in rules.load() if "driver" in rule.need)


def _rocm(image: Image) -> str:
    """The image's ROCm where it is AMD's own: a distribution's mixes releases, and AMD's table is silent on it."""
    return image.label("component.rocm") if image.label("rocm.method") in ("", *coherence.OF_AMD) else ""


@node_rule
def driver_rocm(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    rocm, release = _rocm(scope.images["worker"]), gpus.driver_release(node.profile.amdgpu)
    if scope.is_worker(node) and rocm and release:
        for verdict in rules.judge(_matrix(), {"rocm": rocm, "rocm.method": "amd", "driver": release}):
            if verdict.state == "broken":
                values: Values = {"driver": node.profile.amdgpu, "rocm": rocm, "reason": verdict.rule.cause}
                yield values | _softer(node.profile.virtual)


@node_rule
def driver_in_tree(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    rocm = _rocm(scope.images["worker"])
    if scope.is_worker(node) and node.profile.amdgpu == IN_TREE and rocm:
        yield {"rocm": rocm}


def _rehearses(node: NodeFacts, scope: Scope) -> bool:
    """Is it a rehearsal that the image can't use the GPUs? On a real node only if the person says so once more."""
    return bool(scope.images["worker"].facts.rehearsal and (scope.rehearsal or node.profile.virtual))


@node_rule
def framework_without_rocm(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    image = scope.images["worker"].facts
    without = image.framework and not image.framework_rocm
    if scope.is_worker(node) and node.profile.gpus and without and not _rehearses(node, scope):
        yield {"framework": FRAMEWORKS.get(str(image.framework), image.framework)} | _softer(node.profile.virtual)


@node_rule
def gfx_missing(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    targets = {target for target in scope.images["worker"].label("gfx").split(",") if target}
    odd = Counter(gpu.gfx for gpu in node.profile.gpus if gpu.gfx and gpu.gfx not in targets)
    if scope.is_worker(node) and targets and odd and not _rehearses(node, scope):
        gpus = ", ".join(f"{count} × {gfx}" for gfx, count in odd.items())
        values: Values = {"gpus": gpus, "gfx": ", ".join(odd), "targets": ", ".join(sorted(targets))}
        yield values | _softer(node.profile.virtual)  # nothing computes there


@cluster_rule
def slurm_newer(scope: Scope) -> Iterator[Values]:
    worker, control = scope.images["worker"].slurm, scope.images["control"].slurm
    mine, theirs = rules.upstream(worker), rules.upstream(control)
    if mine and theirs and mine.release[:2] > theirs.release[:2]:
        yield {"worker": worker, "control": control}


def _controller(upgrade: bool, scope: Scope) -> Iterator[Values]:
    """Slurm's version on the control node, as the last deploy left it, where the wanted image has another release."""
    now = scope.control.state.slurm if scope.control and scope.control.state else ""
    wanted = scope.images["control"].slurm
    before, after = rules.upstream(now), rules.upstream(wanted)
    if before and after:
        was, will = before.release[:2], after.release[:2]
        if (will > was) if upgrade else (will < was):
            yield {"now": now, "wanted": wanted, "inventory": scope.inventory.path}


CLUSTER_RULES |= {"slurm-older": partial(_controller, False), "slurm-upgrade": partial(_controller, True)}


@cluster_rule
def images_differ(scope: Scope) -> Iterator[Values]:
    worker, control = scope.images["worker"].label("stack"), scope.images["control"].label("stack")
    if worker and control and worker != control:
        yield {"worker": worker, "control": control}


@cluster_rule
def control_older(scope: Scope) -> Iterator[Values]:
    """Its services would not start, or refuse every pull, after their predecessors are gone."""
    image = scope.images["control"]
    if image.label("control") != CONTROL:
        yield {"image": image.name}


@cluster_rule
def service_older(scope: Scope) -> Iterator[Values]:
    """A service doesn't start with a setting that it doesn't know."""
    image, new = scope.images.get("service"), ("servers", "oidc", "otlp")
    asked = [name for name in new if getattr(scope.service, name, None)]
    if image and asked and image.label("interface") != INTERFACE:
        yield {"image": image.name, "settings": ", ".join(f"`{name}`" for name in asked)}


@cluster_rule
def trust_replaced(scope: Scope) -> Iterator[Values]:
    """Whoever deploys without the cluster's keys, or with others, would take away what the others rely on."""
    before = scope.control.state.trust if scope.control and scope.control.state else ()
    if before and not {*before} & {*scope.trust} and not {*before} <= {*scope.replaces}:
        yield {"before": ", ".join(before[:4])[:400], "now": ", ".join(scope.trust) or "no key"}


@cluster_rule
def not_verified(scope: Scope) -> Iterator[Values]:
    level_required = scope.require
    virtual = all(node.profile.virtual for node in scope.nodes)

    def unproved(level: int | None) -> bool:
        return level is not None and not any(each.holds(level, virtual) for each in scope.proved)

    if level_required is None or not unproved(level_required):
        return
    best = max(scope.proved, key=lambda each: (each.holds(each.level, virtual), each.level), default=None)
    simple = virtual or level_required < HARDWARE
    where = "virtual nodes (`rocstack local up`)" if simple else "a test cluster with such nodes"
    values = {"required": level_required, "passed": best.text if best else "none", "where": where}
    yield values | _softer(not (scope.insist or unproved(scope.level)))
