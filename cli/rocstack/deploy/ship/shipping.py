"""How images reach the nodes of one deploy: which way, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocstack.base.errors import CheckFailed
from rocstack.deploy.nodes.image import DesiredImage
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
from rocstack.deploy.plan.outcome import Shipped
from rocstack.deploy.plan.prepare import Prepared
from rocstack.deploy.ship import by_archive, by_rack, by_registry
from rocstack.registry.publish import PackedLayers
from rocstack.registry.send_archive import LoadedImage

if TYPE_CHECKING:
    import docker


@dataclass(frozen=True)
class Came:
    """What shipping came to. `image` names what nodes can pull; `failed` is node -> why."""

    image: DesiredImage
    rows: tuple[Shipped, ...]
    failed: Mapping[str, str]
    published: Mapping[str, Any]


@dataclass(frozen=True)
class Shipping:
    """`client` is the engine that has the images, None where there is none; `folder` keeps what layers became."""

    client: docker.DockerClient | None
    folder: Path

    def load_control(self, prepared: Prepared, names: Sequence[str], events: DeployEvents) -> dict[str, str]:
        """The control image to the control node and to those that run a rack's registry: registries run from it.
        Why it doesn't reach a node, by node.

        Raises:
            CheckFailed: it doesn't reach the control node. Missing: nobody here has it.
        """
        rows = self._archives(prepared, prepared.images["control"], names, events)
        failed = {row.node: row.error for row in rows if row.error}
        control = prepared.request.inventory.control.name
        if control in failed:
            raise CheckFailed(
                f"the control image doesn't reach {control}: {failed[control]}",
                code="control-image",
                next_step="see the space and the engine there (`docker info`), then deploy again",
            )
        return failed

    def ship(self, prepared: Prepared, lacking: Sequence[str], node_runs: NodeRuns, events: DeployEvents) -> Came:
        """The worker image to the nodes that lack it; a node that fails is no reason for the others to wait.

        Raises:
            CheckFailed, Missing: nobody gets it.
        """
        image, desired = prepared.images["worker"], prepared.desired
        assert desired is not None
        method, reason = desired.ship_method(lacking)
        events.say(f"shipping to {len(lacking)} nodes by {method}: {reason}")
        if method == "archive":
            rows = self._archives(prepared, image, lacking, events)
            came = tuple(Shipped(each.node, each.seconds, each.bytes, each.attempts) for each in rows)
            return Came(image, came, {each.node: each.error for each in rows if each.error}, {"method": "archive"})
        published = by_registry.bring(prepared, image, self.client, PackedLayers(self.folder / "layers"), events)
        ready = image.at(published.reference)
        hosts = dict.fromkeys(lacking, by_registry.home(desired))
        if method == "rack":
            hosts = by_rack.fill(prepared, ready, lacking, node_runs, events)
        sources = {name: by_registry.account(desired, host) for name, host in hosts.items()}
        pulled, failed = by_registry.pull(prepared, ready, sources, node_runs)
        said = published.model_dump(mode="json", exclude={"layers", "skipped"})
        used = {name: source.address for name, source in sources.items()}
        return Came(ready, pulled, failed, {**said, "method": method, "sources": used})

    def _archives(
        self, prepared: Prepared, image: DesiredImage, names: Sequence[str], events: DeployEvents
    ) -> list[LoadedImage]:
        if not names:
            return []
        if self.client is None:
            raise by_registry.nobody(image)
        nodes = {name: (prepared.gathered.ssh_hosts[name], prepared.facts(name)) for name in names}
        return by_archive.send(self.client, image, nodes, events)
