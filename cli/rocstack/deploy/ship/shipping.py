"""How images get to the nodes of one deploy, and how each came there.

The control image and the service's always go as an archive over ssh; the worker image does where no registry may be."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from docker import DockerClient

from rocstack.base.errors import CheckFailed
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
from rocstack.deploy.plan import services
from rocstack.deploy.plan.plan import Shipped
from rocstack.deploy.plan.prepare import PreparedDeploy
from rocstack.deploy.ship import by_rack, by_registry
from rocstack.edge.locks import ClusterLock
from rocstack.registry.image_archive import ImageArchive
from rocstack.registry.layers import in_place
from rocstack.registry.local_image import LocalImage
from rocstack.registry.publish import PackedLayers
from rocstack.registry.registry_http import PushStopped
from rocstack.registry.send_archive import LoadedImage, LoadTarget, load


@dataclass(frozen=True)
class ShippingResult:
    """`image` names what nodes can pull; `failed` is node -> why."""

    image: Image
    rows: tuple[Shipped, ...]
    failed: Mapping[str, str]
    published: Mapping[str, Any]


@dataclass(frozen=True)
class Shipping:
    """`client` is the engine that has the images, None where there is none; `folder` keeps what layers became."""

    client: DockerClient | None
    folder: Path

    def load_control(
        self, prepared: PreparedDeploy, names: Sequence[str], node_runs: NodeRuns, events: DeployEvents
    ) -> dict[str, str]:
        """The control image to the control node and to those that run a rack's registry: registries run from it.
        Why it doesn't reach a node, by node.

        Raises:
            CheckFailed: it doesn't reach the control node. Missing: this machine doesn't have it.
        """
        return self._load("control", prepared, names, node_runs, events)

    def load_service(
        self, prepared: PreparedDeploy, names: Sequence[str], node_runs: NodeRuns, events: DeployEvents
    ) -> None:
        """The service's image to the control node.

        Raises:
            CheckFailed, Missing: as `load_control`.
        """
        self._load("service", prepared, names, node_runs, events)

    def _load(
        self, role: str, prepared: PreparedDeploy, names: Sequence[str], node_runs: NodeRuns, events: DeployEvents
    ) -> dict[str, str]:
        rows = self._archives(prepared, prepared.images[role], names, node_runs.held, events)
        failed = {row.node: row.error for row in rows if row.error}
        control = prepared.request.inventory.control.name
        if control in failed:
            raise CheckFailed.of("control-image", control=control, role=role, why=failed[control])
        return failed

    def ship(
        self,
        prepared: PreparedDeploy,
        lacking: Sequence[str],
        node_runs: NodeRuns,
        events: DeployEvents,
        start_control: Callable[[], None],
    ) -> ShippingResult:
        """The worker image to the nodes that lack it; a node that fails is no reason for the others to wait.

        `start_control` brings the control image to the control node and starts its services. Meanwhile layers are
        packed. The image goes to the registry as soon as that answers, and to the nodes, while the others still start.

        Raises:
            CheckFailed, Missing: nobody gets it, or as `start_control`.
        """
        image, desired = prepared.images["worker"], prepared.desired
        assert desired is not None
        method, reason = desired.ship_method(lacking)
        events.say(f"shipping to {len(lacking)} nodes by {method}: {reason}")
        if method == "archive":
            start_control()
            rows = self._archives(prepared, image, lacking, node_runs.held, events)
            shipped = tuple(Shipped(each.node, each.seconds, each.bytes, each.attempts) for each in rows)
            failed = {each.node: each.error for each in rows if each.error}
            return ShippingResult(replace(image, reference=None), shipped, failed, {"method": "archive"})
        packed, started = PackedLayers(self.folder / "layers"), threading.Event()
        before = prepared.facts(desired.inventory.control.name).container(services.STORE)
        known_before = desired.has_registry and before is not None
        # The connection ends before the thread is waited for: a request may be silent for minutes.
        with ThreadPoolExecutor(1) as pool, by_registry.repository(prepared, desired) as target:

            def unless_stopped() -> None:
                if target.stop.is_set():
                    raise PushStopped

            def publish_and_pull() -> ShippingResult:
                published = by_registry.bring(target, prepared, image, self.client, packed, node_runs, events, started)
                ready = image.at(published.reference)
                hosts = dict.fromkeys(lacking, by_registry.home(desired))
                runs = replace(node_runs, watch=unless_stopped)
                if method == "rack" or known_before:
                    # Racks' registries run from the control image; one that ran before knows the accounts of before.
                    started.wait()
                    unless_stopped()
                if method == "rack":
                    hosts = by_rack.fill(prepared, ready, lacking, runs, events)
                sources = {name: by_registry.account(desired, host, name) for name, host in hosts.items()}
                pulled, failed = by_registry.pull(prepared, ready, sources, runs)
                fields = published.model_dump(mode="json", exclude={"layers"})
                return ShippingResult(ready, pulled, failed, {**fields, "method": method, "sources": hosts})

            shipping = pool.submit(publish_and_pull)
            try:
                start_control()
                started.set()
                return shipping.result()
            except BaseException:
                target.stop.set()
                started.set()
                raise

    def _archives(
        self,
        prepared: PreparedDeploy,
        image: Image,
        names: Sequence[str],
        held: ClusterLock | None,
        events: DeployEvents,
    ) -> list[LoadedImage]:
        """An image to nodes as one archive over ssh, without the layers that a node has; a node that fails is a result.

        Raises:
            CheckFailed, Missing: the engine here does not give the image; the lock is lost.
        """
        if not names:
            return []
        if self.client is None:
            raise by_registry.not_here(image)

        def progress(node: str, done: int, total: int) -> None:
            if held:
                held.check()
            events.step(node, f"receiving the {image.role} image, {done / 1e6:.0f} of {total / 1e6:.0f} MB")

        source = LocalImage.find(self.client, image.id)
        targets = []
        for name in names:
            host, facts = prepared.gathered.ssh_hosts[name], prepared.facts(name)
            shell = [*host.program, "-T", host.address] if host.program else ["sh", "-c"]
            # containerd's store asks for all layers
            known = () if facts.engine.store == "containerd" else facts.images
            layers = in_place(source.diff_ids, (each.layers for each in known))
            words = ["docker", "load", "--quiet"]
            words = held.guarded(host.python, words) if held else words
            targets.append(LoadTarget(name, shell, (*host.become, "docker"), layers, (*host.become, *words)))
            events.step(name, f"waiting while the {image.role} image is packed")
        everywhere = frozenset.intersection(*(target.have for target in targets))
        with (
            source,
            ImageArchive.make(source, image.name_on_node, have=everywhere) as archive,
        ):
            rows = load(archive, targets, progress=progress)
        for row in rows:
            if not row.error:
                sent = f"{row.bytes / 1e6:.1f} MB sent, {row.seconds:.1f} s"
                events.end(row.node, f"has the {image.role} image ({sent})")
        return rows
