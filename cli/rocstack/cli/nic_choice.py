"""Which nodes an image must fit, and how its NIC provider gets in: decided and shown before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rocstack.base.errors import BadInput, CheckFailed, RocstackError
from rocstack.cli.ui import err, say, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocstack.nic.ways import ProviderPlan
    from rocstack.node.profile import NodeProfile
    from rocstack.settings.settings import Settings
    from rocstack.stack.component import NicProfile
    from rocstack.stack.stack import Stack


@dataclass
class NicDecision:
    """Made once, when the NIC profile and the stack are known; kept for the build and its gate."""

    chosen: Settings
    way: str | None = None
    variants: bool = False
    profiles: Path | None = None
    inventory: Path | None = None
    nodes: tuple[NodeProfile, ...] = ()
    plan: ProviderPlan | None = field(default=None)

    def __call__(self, nic: NicProfile, stack: Stack) -> ProviderPlan:
        """
        Raises:
            BadInput: what `rocstack.nic.ways.plan` and `rocstack.nic.plugin_source.read` refuse; wrong profiles or
                inventory.
        """
        from rocstack.nic import rdma_core, vendor_release, ways
        from rocstack.nic.needs import needs

        overlay = self.chosen.overlay_folder()
        self.nodes = nodes(self.profiles, self.inventory, nic.modules, nic.pci, overlay=overlay, here=False)
        source = Path(self.chosen.nic_source) if self.chosen.nic_source else None

        @cache
        def releases() -> tuple[vendor_release.VendorRelease, ...]:
            def left_out(error: RocstackError) -> None:
                say(f"left out: {error.where or ''} {error.what}")

            return vendor_release.find(source, left_out) if source else vendor_release.find_usual(skipped=left_out)

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
        self._refuse_unfit(nic, self.plan)
        if self.chosen.nic_plugin:
            from rocstack.nic import plugin_source

            given = plugin_source.read(nic, Path(self.chosen.nic_plugin), offer.versions)
            archives = {**self.plan.archives, **given.archives}
            self.plan = replace(self.plan, plugin=given.plugin, archives=archives)
        return self.plan

    def _refuse_unfit(self, nic: NicProfile, plan: ProviderPlan) -> None:
        """
        Raises:
            CheckFailed: what will be built can't fit a node.
        """
        if not self.nodes:
            return
        from rocstack.nic.planned_image import planned
        from rocstack.node.gate import UNFIT, judge

        verdicts = [judge(planned(nic, plan), node) for node in self.nodes]
        unfit = [verdict for verdict in verdicts if verdict.result == UNFIT]
        if unfit:
            raise CheckFailed(
                f"the image would not fit {unfit[0].says}{_more(len(unfit) - 1)}",
                code="unfit",
                cause="; ".join(verdict.says for verdict in unfit[1:4]) or None,
                next_step="nothing was built; build for these nodes' NIC and driver, or leave them out",
            )

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
        used = any(provider.archive or provider.version for provider in plan.providers)
        for name, value in (("--nic-source", self.chosen.nic_source), ("--nic-accept", self.chosen.nic_accept)):
            if value and not used:
                say(f"{name} is not used: no provider is built from a release of the vendor's")


def nodes(
    profiles: Path | None,
    inventory: Path | None,
    modules: Sequence[str],
    pci: Sequence[str],
    *,
    overlay: Path | None = None,
    here: bool = True,
) -> tuple[NodeProfile, ...]:
    """The nodes that a worker image of a NIC with these kernel modules and cards is judged by: of a file, of an
    inventory, or this machine. Without `here` this machine counts if it has such cards.

    Raises:
        BadInput: both are given; wrong profiles or inventory; none of the nodes is a worker.
        CheckFailed: a node of the inventory could not be read.
    """
    from rocstack.nic.needs import is_worker

    if profiles and inventory:
        raise BadInput("--profiles and --inventory: one at a time", code="one-source", next_step="give one")
    if not (profiles or inventory):
        if not here and not any(Path(f"/sys/module/{name}").is_dir() for name in modules):
            return ()
        from rocstack.probe.recordings import probe_host

        own = probe_host(overlay=overlay)
        return (own,) if here or is_worker(replace(own, gpus=()), modules, pci) else ()
    from rocstack.probe.profiles import read_profiles

    found = read_profiles(profiles) if profiles else _probed(Path(str(inventory)), overlay)
    workers = tuple(node for node in found if is_worker(node, modules, pci))
    others = [node.name for node in found if node not in workers]
    if not workers:
        raise BadInput(
            f"none of {', '.join(others[:6])}{_more(len(others) - 6)} has a GPU or such a NIC",
            code="no-node",
            cause="an image is judged by nodes that can run it",
            next_step="`rocstack probe` shows what the nodes have",
        )
    if others:
        say(f"not judged, for lack of GPUs and such a NIC: {', '.join(others[:6])}{_more(len(others) - 6)}")
    return workers


def _probed(inventory: Path, overlay: Path | None) -> tuple[NodeProfile, ...]:
    from rocstack.probe.recordings import probe_inventory

    say(f"probing the nodes of {inventory}")
    found = probe_inventory(inventory, overlay=overlay)
    if found.failures:
        first = found.failures[0]
        raise CheckFailed(
            f"{first.node} is {first.state}: {first.reason}" + _more(len(found.failures) - 1),
            code="nodes-unread",
            next_step="an image is built for nodes that are known; take the node out of the inventory, or mend it",
        )
    return found.profiles


def _more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""


def _nodes_shown(names: tuple[str, ...], nodes: tuple[NodeProfile, ...]) -> str:
    virtual = {node.name for node in nodes if node.virtual}
    shown = [f"{name} (virtual)" if name in virtual else name for name in names[:6]]
    return ", ".join(shown) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
