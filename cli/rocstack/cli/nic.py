"""Which nodes an image must fit, and how its NIC provider gets in: decided and shown before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rocstack.cli.ui import err, say, table
from rocstack.errors import BadInput, CheckFailed

if TYPE_CHECKING:
    from rocstack.component import Nic
    from rocstack.nic.ways import Plan
    from rocstack.node.profile import NodeProfile
    from rocstack.settings import Settings
    from rocstack.stack import Stack


@dataclass
class Decision:
    """Made once, when the NIC profile and the stack are known; kept for the build and its gate."""

    chosen: Settings
    way: str | None = None
    variants: bool = False
    profiles: Path | None = None
    inventory: Path | None = None
    nodes: tuple[NodeProfile, ...] = ()
    plan: Plan | None = field(default=None)

    def __call__(self, nic: Nic, stack: Stack) -> Plan:
        """
        Raises:
            BadInput: what `rocstack.nic.ways.plan` and `rocstack.nic.plugin_source.read` refuse; wrong profiles or
                inventory.
        """
        from rocstack.nic import bundle, rdma_core, ways
        from rocstack.nic.need import needs

        self.nodes = nodes(self.profiles, self.inventory, only=nic)
        source = Path(self.chosen.nic_source) if self.chosen.nic_source else None

        def releases() -> tuple[bundle.Release, ...]:
            if source:
                return bundle.find(source)
            return bundle.find_usual(skipped=lambda error: say(f"left out: {error.where or ''} {error.what}"))

        offer = ways.Offer(
            releases,
            lambda: rdma_core.read(source),
            accept=self.chosen.nic_accept or None,
            repository=self.chosen.nic_repository is not None,
            versions={name: choice.version for name, choice in stack.components.items()},
        )
        self.plan = ways.plan(nic, needs(nic, self.nodes), offer, way=self.way, variants=self.variants)
        if not offer.repository and any(provider.way == "package" for provider in self.plan.providers):
            raise BadInput(
                "way 'package' needs the vendor's apt repository, and no setting names it",
                code="no-repository",
                next_step="set nic_repository in rocstack.yml (name, uri, suite, key, origin)",
            )
        if self.chosen.nic_plugin:
            from rocstack.nic import plugin_source

            given = plugin_source.read(nic, Path(self.chosen.nic_plugin), offer.versions)
            archives = {**self.plan.archives, **given.archives}
            self.plan = replace(self.plan, plugin=given.plugin, archives=archives)
        return self.plan

    def show(self, nic: str) -> None:
        """What will be built for whom; nothing where there is no choice to make."""
        plan = self.plan
        if plan is None or nic == "tcp":
            return
        table(
            ("PROVIDER", "VERSION", "KERNEL ABI", "NODES", "WHY"),
            [
                (
                    row.way,
                    row.version or "the distribution's",
                    "" if row.kernel_abi is None else str(row.kernel_abi),
                    _nodes_shown(row.nodes, self.nodes),
                    row.why,
                )
                for row in plan.rows
            ],
            on=err,
        )
        if plan.plugin:
            say(f"RCCL's plugin: {plan.plugin.name} {plan.plugin.version}, compiled in the image")
        for note in plan.notes:
            say(note)


def nodes(profiles: Path | None, inventory: Path | None, only: Nic | None = None) -> tuple[NodeProfile, ...]:
    """The nodes that a worker image is judged by: of a file, of an inventory, or this machine; with `only`, this
    machine counts if it has that NIC.

    Raises:
        BadInput: both are given; wrong profiles or inventory.
        CheckFailed: a node of the inventory could not be read.
    """
    from rocstack.nic.need import devices, judged
    from rocstack.profiles import read_profiles

    if profiles and inventory:
        raise BadInput("--profiles and --inventory: one at a time", code="one-source", next_step="give one")
    if profiles:
        return judged(read_profiles(profiles))
    if inventory:
        return judged(_probed(inventory))
    if only and not (only.modules and Path("/sys/class/infiniband").is_dir()):
        return ()
    from rocstack.probe import probe_host

    here = probe_host()
    return (here,) if only is None or devices(only, here) else ()


def _probed(inventory: Path) -> tuple[NodeProfile, ...]:
    from rocstack.probe import probe_inventory

    say(f"probing the nodes of {inventory}")
    found = probe_inventory(inventory)
    if found.failures:
        first = found.failures[0]
        raise CheckFailed(
            f"{first.node} is {first.state}: {first.reason}" + _more(len(found.failures) - 1),
            code="nodes-unread",
            next_step="an image is built for nodes that are known; take the node out of the inventory, or mend it",
        )
    return found.profiles


def _more(count: int) -> str:
    return f" (and {count} more)" if count else ""


def _nodes_shown(names: tuple[str, ...], nodes: tuple[NodeProfile, ...]) -> str:
    virtual = {node.name for node in nodes if node.virtual}
    shown = [f"{name} (virtual)" if name in virtual else name for name in names[:6]]
    return ", ".join(shown) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
