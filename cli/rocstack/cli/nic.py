"""Which nodes an image must fit, and how its NIC provider gets in: decided and shown before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rocstack.cli.ui import err, say, table
from rocstack.errors import BadInput

if TYPE_CHECKING:
    from rocstack.component import Nic
    from rocstack.nic.provider import Provider
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

    def __call__(self, nic: Nic, stack: Stack) -> tuple[Provider, ...]:
        """
        Raises:
            BadInput: what `rocstack.nic.ways.plan` refuses; wrong profiles or inventory.
        """
        from rocstack.nic import bundle, rdma_core, ways
        from rocstack.nic.need import needs

        self.nodes = self._nodes(nic)
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
        return self.plan.providers

    def _nodes(self, nic: Nic) -> tuple[NodeProfile, ...]:
        from rocstack.nic.need import devices, judged

        if self.profiles and self.inventory:
            raise BadInput("--profiles and --inventory exclude each other", code="bad-hosts", next_step="give one")
        if self.profiles:
            from rocstack.profiles import read_profiles

            return judged(read_profiles(self.profiles))
        if self.inventory:
            from rocstack.cli.probe import probed

            return judged(probed(self.inventory))
        if not nic.modules or not Path("/sys/class/infiniband").is_dir():
            return ()
        from rocstack.probe import probe_host

        here = probe_host()
        return (here,) if devices(nic, here) else ()

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
        for note in plan.notes:
            say(note)


def _nodes_shown(names: tuple[str, ...], nodes: tuple[NodeProfile, ...]) -> str:
    virtual = {node.name for node in nodes if node.virtual}
    shown = [f"{name} (virtual)" if name in virtual else name for name in names[:6]]
    return ", ".join(shown) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
