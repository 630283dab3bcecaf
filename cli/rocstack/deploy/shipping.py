"""How images reach the nodes of one deploy: which way, the registry on the control node or the site's, archives."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocstack.deploy import ssh
from rocstack.deploy.facts import NodeFacts
from rocstack.deploy.hands import Hands
from rocstack.deploy.outcome import Shipped, of_services
from rocstack.deploy.prepare import Prepared
from rocstack.deploy.ssh import Reach
from rocstack.deploy.wanted import USER
from rocstack.deploy.wanted_image import WantedImage
from rocstack.deploy.watch import Watch
from rocstack.errors import CheckFailed, Missing
from rocstack.remote import HostRun
from rocstack.ship import cost
from rocstack.ship.archive import Archive
from rocstack.ship.layers import Image
from rocstack.ship.load import Loaded, Target, load
from rocstack.ship.publish import Memory, Published, publish
from rocstack.ship.repository import Repository
from rocstack.ship.wire import Login, Wire, docker_login
from rocstack.tags import parse_registry

if TYPE_CHECKING:
    import docker

PACKED = 0.4  # zstd's size of an image's, as far as nobody has packed it yet (measured: 0.37 to 0.44)
LINK = 10.0  # Gbit/s, where no network card says its speed


@dataclass(frozen=True)
class Came:
    """What shipping came to. `image` names what nodes can pull; `failed` is node -> why."""

    image: WantedImage
    rows: tuple[Shipped, ...]
    failed: Mapping[str, str]
    published: Mapping[str, Any]


@dataclass(frozen=True)
class Shipping:
    """`client` is the engine that has the images, None where there is none; `folder` keeps what layers became."""

    client: docker.DockerClient | None
    folder: Path

    def load_control(self, image: WantedImage, node: str, reach: Reach, facts: NodeFacts, watch: Watch) -> None:
        """The control image, by ssh: the registry runs from it.

        Raises:
            CheckFailed: it can't be loaded there. Missing: nobody here has it.
        """
        watch.step(node, "sending the control image")
        rows = self._archives(image, {node: (reach, facts)}, watch)
        if rows[0].error:
            raise CheckFailed(
                f"the control image doesn't reach {node}: {rows[0].error}",
                code="control-image",
                next_step="see the space and the engine there (`docker info`), then deploy again",
            )
        watch.end(node, f"has the control image ({rows[0].bytes / 1e6:.0f} MB sent)")

    def choose(self, prepared: Prepared, lacking: Collection[str]) -> cost.Choice:
        """The quickest way by the number of nodes and the link, or the one that the person named."""
        wish, image = prepared.request.cluster.ship, prepared.images["worker"]
        size = image.size or 1
        job = cost.Job(max(len(lacking), 1), PACKED * size, size, wish.link_gbps or link(prepared))
        racks = prepared.request.inventory.racks
        found = cost.choose(job, cost.Options(registry=wish.method != "archive", mirrors=len(racks)))
        if wish.method == "auto":
            return found
        return cost.Choice(wish.method, "cluster.ship.method says so", found.times)

    def ship(self, prepared: Prepared, lacking: Sequence[str], hands: Hands, watch: Watch) -> Came:
        """The worker image to the nodes that lack it; a node that fails is no reason for the others to wait.

        Raises:
            CheckFailed, Missing: nobody gets it.
        """
        image = prepared.images["worker"]
        choice = self.choose(prepared, lacking)
        watch.say(f"shipping to {len(lacking)} nodes by {choice.method}: {choice.why}")
        if choice.method == "archive":
            nodes = {name: (prepared.gathered.reaches[name], prepared.facts(name)) for name in lacking}
            loaded = self._archives(image, nodes, watch)
            rows = tuple(Shipped(each.node, each.seconds, each.bytes, each.attempts) for each in loaded)
            return Came(image, rows, {each.node: each.error for each in loaded if each.error}, {"method": "archive"})
        published = self._publish(prepared, image, watch)
        ready = image.at(published.reference)
        ready_orders = prepared.with_images({**prepared.images, "worker": ready}).orders
        pulls = {name: of_services(ready_orders[name], ("worker",)) for name in lacking}
        runs = hands.run("ship.yml", pulls)
        return Came(
            ready,
            tuple(filter(None, (_row(run) for run in runs.values()))),
            {name: run.reason for name, run in runs.items() if run.state != "ok"},
            {**published.model_dump(mode="json", exclude={"layers", "skipped"}), "method": choice.method},
        )

    def _publish(self, prepared: Prepared, image: WantedImage, watch: Watch) -> Published:
        control = prepared.request.inventory.control.name
        began, seen = time.monotonic(), dict[str, tuple[int, int]]()

        def progress(layer: str, done: int, total: int) -> None:
            seen[layer] = (done, total)
            sent, of = (sum(pair[at] for pair in seen.values()) / 1e6 for at in (0, 1))
            watch.step(control, f"packing and sending layers to the registry, {sent:.0f} of {of:.0f} MB")

        if self.client is None:
            raise _nobody(image)
        watch.step(control, "comparing layers with the registry")
        with Image.find(self.client, image.id) as source, self._repository(prepared) as repository:
            memory = Memory(self.folder / "layers")
            found = publish(source, repository, _tag(image), memory=memory, progress=progress)
        seconds = time.monotonic() - began
        watch.end(control, f"registry has {found.reference.rpartition('@')[2][:19]} ({_sent(found)}, {seconds:.1f} s)")
        return found

    @contextmanager
    def _repository(self, prepared: Prepared) -> Iterator[Repository]:
        ship, wanted = prepared.request.cluster.ship, prepared.wanted
        assert wanted is not None
        if ship.registry:
            target = parse_registry(ship.registry)
            wire = Wire(target.host, login=docker_login(target.host))
            yield Repository(wire, target.repository("worker").partition("/")[2], attempts=ship.attempts)
            wire.close()
            return
        reach = prepared.gathered.reaches[prepared.request.inventory.control.name]
        with tempfile.TemporaryDirectory(prefix="rocstack-") as folder:
            ca = Path(folder) / "ca.pem"
            ca.write_text(prepared.keys.registry_ca)
            with ssh.tunnel(reach, "127.0.0.1", ship.port) as tunnel:
                wire = Wire(
                    wanted.registry_address,
                    login=Login(USER, prepared.keys.registry_password),
                    ca=ca,
                    connect_to=(tunnel.address, tunnel.port),
                )
                yield Repository(wire, "rocstack-worker", attempts=ship.attempts)
                wire.close()

    def _archives(self, image: WantedImage, nodes: Mapping[str, tuple[Reach, NodeFacts]], watch: Watch) -> list[Loaded]:
        def progress(node: str, done: int, total: int) -> None:
            watch.step(node, f"receiving {image.role} image, {done / 1e6:.0f} of {total / 1e6:.0f} MB")

        if self.client is None:
            raise _nobody(image)
        there = {name: _layers(facts) for name, (_, facts) in nodes.items()}
        everywhere = frozenset.intersection(*there.values())
        targets = [
            Target(name, _shell(reach), (*reach.become, "docker"), there[name]) for name, (reach, _) in nodes.items()
        ]
        with (
            Image.find(self.client, image.id) as source,
            Archive.make(source, image.on_node.name, have=everywhere) as archive,
        ):
            return load(archive, targets, progress=progress)


def _layers(facts: NodeFacts) -> frozenset[str]:
    """That the node's engine needs not be sent; containerd's store asks for all of them."""
    if facts.engine.store == "containerd":
        return frozenset()
    return frozenset(layer for image in facts.images for layer in image.layers)


def _shell(reach: Reach) -> list[str]:
    """To which a line for the shell there is added."""
    return [*reach.program, "-T", reach.address] if reach.program else ["sh", "-c"]


def _tag(image: WantedImage) -> str:
    return image.id.removeprefix("sha256:")[:16]


def _row(run: HostRun) -> Shipped | None:
    if run.state != "ok":
        return None
    images = run.results["Pull"]["images"]
    pulled = [each for each in images if each["changed"]] or images
    seconds, attempts = sum(each["seconds"] for each in pulled), max(each["attempts"] for each in pulled)
    count = sum(each["bytes"] or 0 for each in pulled)
    return Shipped(run.host, seconds, count, attempts)


def _sent(found: Published) -> str:
    return f"{found.bytes_sent / 1e6:.1f} of {found.bytes_total / 1e6:.0f} MB sent"


def _nobody(image: WantedImage) -> Missing:
    return Missing(
        f"nobody here has the {image.role} image {image.id[7:19]}",
        code="no-image",
        cause="it was built on another machine, and not all nodes have it yet",
        next_step="deploy from the machine that built it, or build it here",
    )


def link(prepared: Prepared) -> float:
    """The control node's link, Gbit/s: the fastest card that is up."""
    control = prepared.facts(prepared.request.inventory.control.name)
    speeds = [netdev.speed for netdev in control.profile.netdevs if netdev.speed and netdev.state == "up"]
    return max(speeds, default=LINK * 1000) / 1000


def with_rack(image: WantedImage, registry: str) -> WantedImage:
    """The same image at a rack's mirror."""
    path = (image.reference or "").partition("/")[2]
    return replace(image, reference=f"{registry}/{path}")
