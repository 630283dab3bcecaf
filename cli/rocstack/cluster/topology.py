"""Slurm's picture of the network, topology.conf: which nodes share a switch, a dragonfly's group or a block. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rocstack.base.errors import BadInput
from rocstack.base.words import Hostlist, SlurmName, Value
from rocstack.node import hostlist

TOP = "top"  # a switch above all, where nobody names one: Slurm gives no job nodes that nothing joins


def _hostlists(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        hostlist.expand(text)
    return texts


Nodes = Annotated[
    tuple[Hostlist, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    AfterValidator(_hostlists),
]


class SwitchTopology(Value):
    """Which nodes are near each other: a job gets such ones where it can."""

    kind: Literal["tree", "dragonfly", "block"] = "tree"  # what a switch is: that, a dragonfly's group, or a block
    switches: Annotated[dict[SlurmName, Nodes], Field(min_length=1)]  # of each its nodes, or the switches below it

    def named(self, name: str) -> list[str]:
        return [each for text in self.switches[name] for each in hostlist.expand(text)]

    def below(self, name: str) -> list[str]:
        """The switches right below; none where nodes are. Its own name is that of the inventory's group."""
        return [each for each in self.named(name) if each in self.switches and each != name]

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        above: dict[str, str] = {}
        for name in self.switches:
            below = self.below(name)
            if not self.switches[name]:
                yield ("switches", name), "it names no node and no switch: name some, or leave it out"
            if below and len(below) != len(self.named(name)):
                yield ("switches", name), "it has switches and nodes: Slurm takes either"
            if below and self.kind == "block":
                yield ("switches", name), "blocks lie beside each other: name nodes"
            for each in below:
                if above.setdefault(each, name) != name:
                    yield ("switches", name), f"'{each}' is below '{above[each]}' already"
        for name in self.switches:
            seen, up = {name}, above.get(name)
            while up and up not in seen:
                seen.add(up)
                up = above.get(up)
            if up == name:
                yield ("switches", name), f"'{name}' is below itself"


def leaves(
    topology: SwitchTopology, nodes: Mapping[str, Sequence[str]], workers: Sequence[str]
) -> dict[str, list[str]]:
    """The workers of each switch that has nodes below it; `nodes` are those that it names.

    Raises:
        BadInput: a worker has no switch, or two.
    """
    of: dict[str, str] = {}
    for name, own in nodes.items():
        for node in own:
            if (other := of.setdefault(node, name)) != name:
                said = BadInput.of("two-switches", node=node, one=other, other=name)
                raise said.at("cluster", "topology", "switches", name)
    if lost := [node for node in workers if node not in of]:
        names = hostlist.fold(sorted(lost, key=hostlist.natural))
        raise BadInput.of("no-switch", nodes=names).at("cluster", "topology", "switches")
    return {name: list(own) for name, own in nodes.items() if own}


def text(topology: SwitchTopology, nodes: Mapping[str, Sequence[str]]) -> str:
    """`nodes` are those of each switch that has some, and at least one has."""
    first = "# Written by rocstack from rocstack.yml; the next deploy writes it again.\n"
    if topology.kind == "block":
        blocks = [f"BlockName={name} Nodes={hostlist.fold(own)}" for name, own in nodes.items()]
        return first + "\n".join([*blocks, f"BlockSizes={min(map(len, nodes.values()))}"]) + "\n"
    rows = {name: f"Nodes={hostlist.fold(own)}" for name, own in nodes.items()}
    roots = list(rows)
    waiting = [name for name in topology.switches if topology.below(name)]
    while ready := [name for name in waiting if not set(topology.below(name)) & set(waiting)]:
        for name in ready:
            waiting.remove(name)
            if joined := [each for each in topology.below(name) if each in rows]:
                rows[name] = f"Switches={','.join(joined)}"
                roots = [each for each in roots if each not in joined] + [name]
    if len(roots) > 1:
        above = TOP
        while above in rows:
            above += "-of-all"
        rows[above] = f"Switches={','.join(roots)}"
    return first + "".join(f"SwitchName={name} {row}\n" for name, row in rows.items())
