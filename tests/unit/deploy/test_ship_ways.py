"""Which registry a node pulls from, and what happens where one can't be filled; logins that are on a node."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError
from rocstack.cluster.operation import Ship
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.nodes.answers import CopiedImage, CopyAnswer
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.node_spec import NodeSpec, RegistrySpec
from rocstack.deploy.nodes.runs import DeployEvents, NodeRun
from rocstack.deploy.plan.desired import DesiredCluster
from rocstack.deploy.read import inventory
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.ship import by_rack, by_registry
from rocstack.deploy.ship.shipping import Shipping
from rocstack.node import pull
from rocstack.node.engine import NodeError
from rocstack.registry.publish import PackedLayers
from rocstack.registry.registry_http import PushStopped, TransientFailure

DIGEST = "sha256:" + 64 * "a"
IMAGE = Image("worker", "sha256:" + 64 * "b", "w", {}, reference=f"h:5000/rocstack-worker@{DIGEST}")


def cluster(**registries: str) -> Inventory:
    """A control node h and workers; `n1="m1:5000"` is the registry of n1's rack."""
    hosts = {name: {"rocstack_rack_registry": registry} for name, registry in registries.items() if registry}
    listing = {
        "_meta": {"hostvars": {**hosts, "h": {}}},
        "all": {"children": ["control", "workers"]},
        "control": {"hosts": ["h"]},
        "workers": {"hosts": list(registries)},
    }
    return inventory.of_listing(Path("inventory.yml"), listing, lambda hosts: hosts)


def test_a_registry_on_a_node_is_ours_any_other_the_sites() -> None:
    found = cluster(n1="n1:5000", n2="n1:5000", n3="10.0.0.4", n4="mirror.example:5000").rack_registries(
        lambda host: {"n3": "10.0.0.4"}.get(host.name, host.name)
    )
    assert [(each.registry, each.node, each.port, each.serves) for each in found] == [
        ("n1:5000", "n1", 5000, ("n1", "n2")),
        ("10.0.0.4", "n3", 443, ("n3",)),
        ("mirror.example:5000", None, 5000, ("n4",)),
    ]


def test_the_control_nodes_registry_is_nobodys_mirror() -> None:
    assert cluster(n1="h:5000", n2="h:5000").rack_registries(str) == ()


def test_a_node_runs_one_registry() -> None:
    with pytest.raises(BadInput, match="n1 would run two registries, n1:5000 and n1:5001"):
        cluster(n1="n1:5000", n2="n1:5001").rack_registries(str)


@pytest.mark.parametrize(
    ("ship", "racks", "method", "reason"),
    [
        ({}, "", "registry", "the registry of the control node"),
        ({"registry": "site.example/ml"}, "", "registry", "site.example/ml"),
        ({}, "n1:5000", "rack", "the registries of 1 of their racks"),
        ({"method": "registry"}, "n1:5000", "registry", "cluster.ship.method"),
        ({"method": "archive"}, "n1:5000", "archive", "cluster.ship.method"),
        ({"method": "rack"}, "n1:5000", "rack", "cluster.ship.method"),
    ],
)
def test_racks_registries_are_used_unless_the_settings_say_otherwise(
    ship: dict[str, Any], racks: str, method: str, reason: str
) -> None:
    nodes = cluster(n1=racks, n2="")
    settings = ClusterSettings(ship=Ship.model_validate(ship))
    desired: Any = DesiredCluster(nodes, settings, None, None, {}, Gathered(()), None)  # type: ignore[arg-type]
    chosen, why = desired.ship_method(["n1", "n2"])
    assert chosen == method
    assert reason in why
    if method == "rack" and not ship:
        assert desired.ship_method(["n2"])[0] == "registry", "no node that lacks the image is in a rack with one"


@dataclass
class FakeNodeRuns:
    """Answers as nodes would; `fails` are registries that can't be filled, or nodes that don't start one."""

    fails: frozenset[str]
    copied: list[list[tuple[str, str, str]]] = field(default_factory=list)  # waves of (node, source, target)

    def run(self, playbook: str, node_specs: Mapping[str, NodeSpec]) -> dict[str, NodeRun]:
        assert playbook == "start.yml"
        return {name: NodeRun(name, "failed" if name in self.fails else "ok", "port taken") for name in node_specs}

    def send(self, playbook: str, node_specs: Mapping[str, Any]) -> dict[str, NodeRun]:
        runs, wave = {}, []
        for name, spec in node_specs.items():
            rows = []
            for each in spec["copies"]:
                source, target = (each[key].removesuffix("/rocstack-worker") for key in ("source", "target"))
                assert {row["host"] for row in spec["logins"]} >= {source, target}
                others = {row["password"] for row in spec["logins"]} - {"", f"pushes on {name}"}
                assert all(password.startswith(f"{name} pulls from ") for password in others)
                end, _, port = target.partition(":")
                if end == "127.0.0.1":  # one of ours takes pushes of its own host only, and not of the nodes' account
                    target = f"{name}:{int(port) - 1}"
                    users = {row["host"]: row["user"] for row in spec["logins"]}
                    assert (users[each["target"].partition("/")[0]], users[source]) == ("rocstack", name)
                wave.append((name, source, target))
                error = "full" if target in self.fails else ""
                rows.append(CopiedImage(target=each["target"], changed=True, seconds=1.0, error=error))
            runs[name] = NodeRun(name, "ok", "", {"Copy": CopyAnswer(copies=tuple(rows))})
        self.copied.append(wave)
        return runs


class RecordedEvents(DeployEvents):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def prepared(nodes: Inventory, **ship: object) -> Any:
    ship = Ship.model_validate(ship)
    desired = SimpleNamespace(
        inventory=nodes,
        cluster=SimpleNamespace(ship=ship),
        has_registry=not ship.registry,
        registry_address="h:5000",
        control_address="h",
        mirrors=nodes.rack_registries(str),
        keys=SimpleNamespace(
            registry_password="secret",
            pull_password=lambda node, registry: f"{node} pulls from {registry}",
            registry_ca="PEM",
            rack_password=lambda node: f"pushes on {node}",
        ),
    )
    node_specs = {host.name: NodeSpec() for host in nodes.nodes}
    return SimpleNamespace(desired=desired, node_specs=node_specs, images={"control": SimpleNamespace(id="sha256:c")})


def fill(plan: Any, node_runs: FakeNodeRuns, events: RecordedEvents | None = None) -> dict[str, str]:
    names = [host.name for host in plan.desired.inventory.workers]
    return by_rack.fill(plan, IMAGE, names, node_runs, events or RecordedEvents())  # type: ignore[arg-type]


def test_mirrors_fill_each_other_and_nodes_pull_from_theirs() -> None:
    nodes = cluster(n1="n1:5000", n2="n1:5000", n3="n3:5000", n4="n4:5000", n5="")
    node_runs = FakeNodeRuns(frozenset())
    assert fill(prepared(nodes), node_runs) == {
        "n1": "n1:5000", "n2": "n1:5000", "n3": "n3:5000", "n4": "n4:5000", "n5": "h:5000"
    }  # fmt: skip
    first, second = node_runs.copied
    assert first == [("n1", "h:5000", "n1:5000")]
    assert sorted(second) == [("n3", "h:5000", "n3:5000"), ("n4", "n1:5000", "n4:5000")]


@pytest.mark.parametrize("broken", ["n1", "n1:5000"])
def test_a_mirror_that_fails_costs_only_its_rack_the_short_way(broken: str) -> None:
    node_runs, events = FakeNodeRuns(frozenset({broken})), RecordedEvents()
    sources = fill(prepared(cluster(n1="n1:5000", n2="n1:5000", n3="n3:5000")), node_runs, events)
    assert sources == {"n1": "h:5000", "n2": "h:5000", "n3": "n3:5000"}
    assert node_runs.copied[-1] == [("n3", "h:5000", "n3:5000")], "nothing is copied from one that has nothing"
    assert events.said == [
        f"n1:5000 can't be used, n1, n2 pull from h:5000: {'full' if ':' in broken else 'port taken'}"
    ]


def test_a_mirror_on_a_node_that_is_not_fit_is_not_asked() -> None:
    plan, node_runs = prepared(cluster(n1="n1:5000", n2="n1:5000")), FakeNodeRuns(frozenset())
    del plan.node_specs["n1"]
    assert set(fill(plan, node_runs).values()) == {"h:5000"}
    assert node_runs.copied == []


def test_the_sites_mirrors_are_filled_from_the_control_node() -> None:
    node_runs = FakeNodeRuns(frozenset({"b.example"}))
    sources = fill(prepared(cluster(n1="a.example", n2="b.example")), node_runs)
    assert sources == {"n1": "a.example", "n2": "h:5000"}
    assert node_runs.copied == [[("h", "h:5000", "a.example"), ("h", "h:5000", "b.example")]]


def test_our_registries_have_our_account_the_sites_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = cluster(n1="n1:5000", n2="site.example")
    known = {"site.example": SimpleNamespace(user="ada", password="hers")}
    monkeypatch.setattr(by_registry, "docker_login", known.get)
    plain, passed_on = prepared(nodes).desired, prepared(nodes, registry="site.example/ml", registry_login=True).desired
    assert by_registry.account(plain, "n1:5000", "n2") == RegistrySpec("n1:5000", "n2", "n2 pulls from n1", "PEM")
    assert by_registry.account(plain, "h:5000", "n2") == RegistrySpec("h:5000", "n2", "n2 pulls from h", "PEM")
    assert by_registry.account(plain, "site.example", "n2") == RegistrySpec("site.example")
    assert by_registry.account(passed_on, "site.example", "n2") == RegistrySpec("site.example", "ada", "hers")
    assert by_registry.home(passed_on) == "site.example"
    with pytest.raises(Missing, match=r"no login for other\.example"):
        by_registry.account(passed_on, "other.example", "n2")


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"auths": {"r:5000": {"auth": base64.b64encode(b"ada:se:cret").decode()}}}, ("ada", "se:cret")),
        ({"auths": {"https://r:5000": {"auth": base64.b64encode(b"ada:x").decode()}}}, ("ada", "x")),
        ({"auths": {"other": {"auth": base64.b64encode(b"ada:x").decode()}}}, None),
        ({"auths": {"r:5000": {"auth": "?"}}}, None),
        ({"credHelpers": {"r:5000": "test"}}, ("ada", "kept")),
        ({"credsStore": "test"}, ("ada", "kept")),
        ({"credHelpers": {"other": "test"}}, None),
    ],
)
def test_login_of_the_node_itself(
    config: dict[str, Any], found: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\n[ "$(cat)" = r:5000 ] && echo \'{"Username": "ada", "Secret": "kept"}\'\n')
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert pull.stored_login("r:5000") == found


def test_a_helper_that_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert pull.stored_login("r:5000") is None
    (tmp_path / "config.json").write_text('{"credsStore": "gone"}')
    with pytest.raises(NodeError, match="docker-credential-gone, which has the login for r:5000"):
        pull.stored_login("r:5000")


@dataclass
class _Publisher:
    """Stands in for `by_registry.bring`: begins at once, ends when it is told to. `silent`: its registry answers
    nothing, so it ends with the connection."""

    silent: bool = False
    began: threading.Event = field(default_factory=threading.Event)
    cut: threading.Event = field(default_factory=threading.Event)
    stopped: bool = False
    was_cut: bool = False

    def __call__(self, *of: Any) -> None:
        target, started = of[0], of[-1]
        self.began.set()
        started.wait(60)
        self.was_cut = self.silent and self.cut.wait(60)
        self.stopped = target.stop.is_set()
        raise Missing.of("image-elsewhere", role="worker", id="1")

    @contextmanager
    def connect(self, *of: Any) -> Iterator[Any]:
        try:
            yield SimpleNamespace(stop=threading.Event())
        finally:
            self.cut.set()


@dataclass
class _Runs:
    watch: Any = None


def _ship(publisher: Any, monkeypatch: pytest.MonkeyPatch, start_registry: Any, before: object = None) -> None:
    """`before`: the registry's container that the control node has already."""
    monkeypatch.setattr(by_registry, "bring", publisher)
    monkeypatch.setattr(by_registry, "repository", _Publisher().connect if before else publisher.connect)
    control = SimpleNamespace(control=SimpleNamespace(name="h"))
    desired = SimpleNamespace(ship_method=lambda lacking: ("registry", "why"), has_registry=True, inventory=control)
    facts = SimpleNamespace(container=lambda name: before)
    prepared: Any = SimpleNamespace(images={"worker": IMAGE}, desired=desired, facts=lambda name: facts)
    Shipping(None, Path("unused")).ship(prepared, ["n1"], _Runs(), DeployEvents(), start_registry)  # type: ignore[arg-type]


def test_the_image_is_published_while_the_control_node_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, seen = _Publisher(), []
    with pytest.raises(Missing):
        _ship(publisher, monkeypatch, lambda: seen.append(publisher.began.wait(60)))
    assert seen == [True]
    assert not publisher.stopped


def test_nodes_pull_from_a_registry_that_ran_before_when_it_knows_their_accounts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the image, so nothing is published; the accounts of new nodes come with its restart."""
    done = threading.Event()

    class Began(Exception):
        pass

    def account(*_: object) -> None:
        raise Began(done.is_set())

    def restart() -> None:
        done.wait(0.2)
        done.set()

    monkeypatch.setattr(by_registry, "home", lambda desired: "h:5000")
    monkeypatch.setattr(by_registry, "account", account)
    published = SimpleNamespace(reference=f"h:5000/worker@sha256:{'a' * 64}")
    with pytest.raises(Began) as began:
        _ship(lambda *_: published, monkeypatch, restart, before=object())
    assert began.value.args == (True,)


@pytest.mark.parametrize("silent", [False, True])
def test_a_control_node_that_fails_ends_the_publishing(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise CheckFailed.of("control-failed", node="h", why="its disk is full")

    publisher = _Publisher(silent)
    with pytest.raises(CheckFailed, match="disk"):
        _ship(publisher, monkeypatch, fail)
    assert publisher.stopped
    assert publisher.was_cut == silent, "a registry that is silent for minutes holds nobody up"


def test_a_registry_that_starts_is_waited_for_and_one_that_has_started_must_answer() -> None:
    answers = iter([TransientFailure("refused"), CheckFailed.of("control-failed", node="h", why="eof"), None])
    asked = []

    def request(*words: str, good: Any) -> None:
        asked.append(words)
        if (answer := next(answers)) is not None:
            raise answer

    target: Any = SimpleNamespace(http=SimpleNamespace(request=request), stop=threading.Event())
    by_registry._await(target, threading.Event())
    assert len(asked) == 3
    started = threading.Event()
    started.set()
    by_registry._await(target, started)  # whatever is wrong there is told by the first real request
    assert len(asked) == 3
    target.stop.set()
    with pytest.raises(PushStopped):
        by_registry._await(target, started)


@pytest.mark.parametrize(("site", "code"), [("", "no-pushes"), ("site.example/ml", "registry-unreachable")])
def test_a_registry_of_an_older_image_takes_no_pushes(site: str, code: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise Missing.of("registry-unreachable", host="h:5000", tried="", cause="Connection refused")

    started, plan = threading.Event(), prepared(cluster(n1=""), registry=site)
    started.set()
    target: Any = SimpleNamespace(stop=threading.Event(), manifest=refuse)
    with pytest.raises(RocstackError) as caught:
        by_registry.bring(
            target, plan, IMAGE, None, PackedLayers(None), SimpleNamespace(held=None), DeployEvents(), started  # type: ignore[arg-type]
        )  # fmt: skip
    assert caught.value.code == code


def test_layers_that_begin_while_others_are_counted_end_no_deploy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads send them."""

    def publish(*_: Any, progress: Callable[[str, int, int], None], **__: Any) -> Any:
        class Counted(int):
            def __radd__(self, other: int) -> int:
                if len(begun) < 2:
                    begun.append(other)
                    progress(f"layer {len(begun)}", 0, 1)
                return other + int(self)

        begun: list[int] = []
        progress("first", Counted(1), Counted(2))
        return SimpleNamespace(reference="h/worker@sha256:1", bytes_sent=1, bytes_total=2)

    monkeypatch.setattr(by_registry, "publish", publish)
    monkeypatch.setattr(by_registry.LocalImage, "find", lambda *_: nullcontext(SimpleNamespace()))
    started, plan = threading.Event(), prepared(cluster(n1=""))
    started.set()
    target: Any = SimpleNamespace(stop=threading.Event(), http=SimpleNamespace(request=lambda *_, **__: None))
    held: Any = SimpleNamespace(held=None)
    image = replace(IMAGE, reference=None)
    client: Any = SimpleNamespace()
    brought = by_registry.bring(target, plan, image, client, PackedLayers(None), held, DeployEvents(), started)
    assert brought.bytes_total == 2
