"""The registry that a deploy publishes in, the control node's or the site's; and nodes that pull from registries."""

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from docker import DockerClient

from rocstack.base.errors import CheckFailed, Missing
from rocstack.base.image_names import id_tag, parse_registry, repository_name
from rocstack.deploy.nodes.answers import PullAnswer
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.node_spec import RegistrySpec
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
from rocstack.deploy.plan.desired import USER, DesiredCluster
from rocstack.deploy.plan.plan import Shipped
from rocstack.deploy.plan.prepare import PreparedDeploy
from rocstack.deploy.read.facts import push_port
from rocstack.edge import ssh
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import is_of
from rocstack.registry.pack_ahead import PackedAhead
from rocstack.registry.publish import PackedLayers, Published, publish
from rocstack.registry.registry_http import PushStopped, RegistryHttp, RegistryLogin, TransientFailure, docker_login
from rocstack.registry.repository import Repository

PAUSE_S = 0.3  # seconds between two looks at a registry that starts


def home(desired: DesiredCluster) -> str:
    """HOST:PORT of the registry in which is published, as nodes write it."""
    ship = desired.cluster.ship
    return parse_registry(ship.registry).host if ship.registry else desired.registry_address


def account(desired: DesiredCluster, host: str, node: str) -> RegistrySpec:
    """Who a node is at a registry: at ours, itself. At the site's it is who it says itself, or this machine's user.

    Raises:
        Missing: this machine has no login that it could pass on.
    """
    ours = {mirror.registry: mirror.node for mirror in desired.mirrors if mirror.node}
    if desired.has_registry:
        ours[desired.registry_address] = desired.inventory.control.name
    if host in ours:
        return RegistrySpec(host, node, desired.keys.pull_password(node, ours[host]), desired.keys.registry_ca)
    if not desired.cluster.ship.registry_login:
        return RegistrySpec(host)
    login = docker_login(host)
    if login is None or not login.user:  # a token of this machine's helper is no account that a node could use
        raise Missing.of("no-login-to-pass-on", host=host)
    return RegistrySpec(host, login.user, login.password)


@contextmanager
def repository(prepared: PreparedDeploy, desired: DesiredCluster) -> Iterator[Repository]:
    """As this machine reaches it: the control node's through ssh, which also passes jump hosts."""
    ship = desired.cluster.ship
    with ExitStack() as stack:
        if ship.registry:
            target = parse_registry(ship.registry)
            path, http = target.path("worker"), RegistryHttp(target.host, login=docker_login(target.host))
        else:
            ca = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rocstack-"))) / "ca.pem"
            ca.write_text(desired.keys.registry_ca)
            ssh_host = prepared.gathered.ssh_hosts[desired.inventory.control.name]
            end = stack.enter_context(ssh.tunnel(ssh_host, "127.0.0.1", push_port(ship.port)))
            login = RegistryLogin(USER, desired.keys.registry_password)
            path = repository_name("worker")
            http = RegistryHttp(desired.registry_address, login=login, ca=ca, connect_to=end)
        stack.callback(http.close)
        yield Repository(http, path, attempts=ship.attempts)


def bring(
    target: Repository,
    prepared: PreparedDeploy,
    image: Image,
    client: DockerClient | None,
    packed_layers: PackedLayers,
    node_runs: NodeRuns,
    events: DeployEvents,
    started: threading.Event,
) -> Published:
    """Publishes the image; nothing is sent where the registry has it. It may be silent until `started` is set: the
    layers of an image that was in no registry yet are packed meanwhile.

    Raises:
        CheckFailed, Missing: as `publish`; neither this machine nor the registry has the image.
    """
    desired = prepared.desired
    assert desired is not None
    control = desired.inventory.control.name
    began, seen = time.monotonic(), dict[str, tuple[int, int]]()

    def progress(layer: str, done: int, total: int) -> None:
        if node_runs.held:
            node_runs.held.check()
        seen[layer] = (done, total)
        pairs = list(seen.values())  # at once: layers are sent by several threads
        sent, of = (sum(pair[at] for pair in pairs) / 1e6 for at in (0, 1))
        events.step(control, f"packing and sending layers to the registry, {sent:.0f} of {of:.0f} MB")

    def work() -> Published:
        with ExitStack() as stack:
            source = stack.enter_context(LocalImage.find(client, image.id)) if client and not image.reference else None
            ahead = stack.enter_context(PackedAhead.start(source)) if source and not _answers(target) else None
            _await(target, started)
            digest = (image.reference or "").partition("@")[2]
            data = target.manifest(digest) if digest else None
            # Under the digest that it was deployed with before: a deploy that goes on needs no image here.
            if data is not None and is_of(data, image.id):
                return Published.of(target, data)
            if client is None:
                raise not_here(image)
            source = source or stack.enter_context(LocalImage.find(client, image.id))
            return publish(
                source, target, id_tag(image.id), packed_layers=packed_layers, ahead=ahead, progress=progress
            )

    events.step(control, "packing layers until the registry answers")
    try:
        published = work()
    except Missing as error:
        if error.code != "registry-unreachable" or desired.cluster.ship.registry:
            raise
        raise CheckFailed.of("no-pushes", control=control, port=push_port(desired.cluster.ship.port)) from None
    seconds = time.monotonic() - began
    sent = f"{published.bytes_sent / 1e6:.1f} of {published.bytes_total / 1e6:.0f} MB sent"
    events.end(control, f"registry has {published.reference.rpartition('@')[2][:19]} ({sent}, {seconds:.1f} s)")
    return published


def _await(target: Repository, started: threading.Event) -> None:
    """Until it answers, or has been started and must.

    Raises:
        PushStopped: something else failed meanwhile.
    """
    while not started.is_set() and not _answers(target):
        started.wait(PAUSE_S)
    if target.stop.is_set():
        raise PushStopped


def _answers(target: Repository) -> bool:
    try:
        target.http.request("GET", "v2/", good=(200,))
    except (TransientFailure, CheckFailed, Missing):
        return False
    return True


def pull(
    prepared: PreparedDeploy, image: Image, sources: Mapping[str, RegistrySpec], node_runs: NodeRuns
) -> tuple[tuple[Shipped, ...], dict[str, str]]:
    """Nodes pull `image`, each from its source: how it came to each, and why it didn't."""
    path, node_specs = (image.reference or "").partition("/")[2], {}
    for host in {source.address for source in sources.values()}:
        images = {**prepared.images, "worker": image.at(f"{host}/{path}")}  # in the same repository of that registry
        at = prepared.with_images(images).node_specs
        for name, source in sources.items():
            if source.address == host:
                node_specs[name] = replace(at[name].part(("worker",)), registry=source)
    rows, failed = [], {}
    for name, run in node_runs.run("ship.yml", node_specs).items():
        answer = run.answer("Pull", PullAnswer)
        if run.state != "ok":
            failed[name] = run.reason
        elif answer:
            pulled = [each for each in answer.images if each.changed] or answer.images
            seconds, attempts = sum(each.seconds for each in pulled), max((each.attempts for each in pulled), default=0)
            rows.append(Shipped(run.node, seconds, sum(each.bytes or 0 for each in pulled), attempts))
    return tuple(rows), failed


def not_here(image: Image) -> Missing:
    return Missing.of("image-elsewhere", role=image.role, id=image.id[7:19])
