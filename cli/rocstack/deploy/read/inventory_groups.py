"""The groups of an inventory and the names in them: what makes it a cluster of one control node and its workers."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rocstack.base.errors import BadInput, Where, did_you_mean
from rocstack.base.text import plain
from rocstack.deploy.read.inventory_text import InventoryText
from rocstack.deploy.read.inventory_values import is_address
from rocstack.edge import complaints
from rocstack.node.recording import natural_key

CONTROL, WORKERS = "control", "workers"
# What Slurm reads as one node: slurm.conf(5), NodeName. Brackets and commas make a list of nodes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RESERVED = ("default", "all")
_OTHER_WORDS = {
    CONTROL: ("controller", "controllers", "controls", "control_node", "head", "master", "slurmctld"),
    WORKERS: ("worker", "compute", "computes", "compute_nodes", "nodes", "slurmd", "worker_nodes"),
}


def is_node_name(name: str) -> bool:
    """Whether Ansible and Slurm take it as one node's."""
    return bool(_NAME.fullmatch(name)) and name.lower() not in _RESERVED


def members(listed: Mapping[str, Any], group: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The hosts of a group and of the groups below it, each once, as people count."""
    result = dict.fromkeys(listed.get(group, {}).get("hosts", ()))
    for child in listed.get(group, {}).get("children", ()):
        if child not in above:
            result |= dict.fromkeys(members(listed, child, (*above, group)))
    yield from sorted(result, key=natural_key)


def check_groups(groups: Mapping[str, tuple[str, ...]], text: InventoryText) -> None:
    """
    Raises:
        BadInput: no worker, or not one control node; a host in no group of ours, or with a name that is no node's.
    """
    path = text.path
    control, workers = groups.get(CONTROL, ()), groups.get(WORKERS, ())
    if not groups.get("all"):
        raise complaints.script_without_hosts(path) if complaints.is_script(path) else BadInput.of("no-hosts", path)
    if not control:
        raise BadInput.of("no-control", _lacking(groups, CONTROL, text), lack=_lack(groups, CONTROL))
    if len(control) > 1:
        raise BadInput.of("several-controls", text.of(CONTROL), count=len(control), names=", ".join(control))
    if not workers:
        raise BadInput.of("no-workers", _lacking(groups, WORKERS, text), lack=_lack(groups, WORKERS))
    ours = dict.fromkeys((*control, *workers))
    for group, hosts in groups.items():
        lost = ", ".join(name for name in hosts if name not in ours)
        if lost and (meant := _meant(group)):
            raise BadInput.of("group-misspelt", text.of(group), names=lost, group=group, meant=meant)
    if idle := [name for name in groups.get("ungrouped", ()) if name not in ours]:
        raise BadInput.of("in-no-group", text.of(idle[0]), names=", ".join(idle))
    folded: dict[str, str] = {}
    for name in ours:
        other = folded.setdefault(name.lower(), name)
        if other != name:
            at = max(text.of(name), text.of(other), key=lambda where: where.line or 0)
            raise BadInput.of("node-names-alike", at, one=other, other=name)
        if is_address(name):
            raise BadInput.of("node-name-address", text.of(name), name=name)
        if re.search(r"[,;=\s]", name):
            shown = re.sub(r"=.*", "=...", name, flags=re.DOTALL)  # it may be a password
            raise BadInput.of("node-name-words", text.of(name), name=repr(shown)[1:-1])
        if not is_node_name(name):
            raise BadInput.of("bad-node-name", text.of(name), name=repr(name)[1:-1])


def _lacking(groups: Mapping[str, tuple[str, ...]], group: str, text: InventoryText) -> Where:
    """Where the group stands that may be meant."""
    return text.of(next((name for name in groups if name != group and _meant(name) == group), group))


def _lack(groups: Mapping[str, tuple[str, ...]], group: str) -> str:
    if group in groups:
        return f"the group '{group}' has no hosts"
    own = [name for name in groups if name not in ("all", "ungrouped")]
    meant = next((name for name in own if _meant(name) == group), None)
    hint = f"did you mean '{meant}'?" if meant else f"its groups are {', '.join(own)}" if own else "it has no groups"
    return f"the inventory has no group '{group}': {hint}"


def _meant(group: str) -> str | None:
    """The group of ours for which another word stands."""
    word = plain(group).replace("-", "_")
    hint = did_you_mean(word, _OTHER_WORDS)
    for ours, others in _OTHER_WORDS.items():
        if word in others or hint == f"did you mean '{ours}'?":
            return ours
    return None
