"""What a virtual node says of itself, and what is said where an engine starts none."""

from __future__ import annotations

import threading
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import docker.errors
import pytest

from rocstack.base.errors import CheckFailed
from rocstack.virtual import access, model, node
from rocstack.virtual.cluster_layout import LABEL, ClusterRequest

SAYS = {"node": "n1", "address": "10.213.7.11", "model": "m", "gpus": "8", "nics": "7", "faults": "a\nb"}
LABELS = {f"{LABEL}.{key}": value for key, value in SAYS.items()}


def container(status: str = "running", code: int = 0, said: str = "") -> Any:
    made = MagicMock(status=status, labels=LABELS)
    made.exec_run.return_value = SimpleNamespace(exit_code=code, output=said.encode())
    return made


@pytest.mark.parametrize(
    ("docker_does", "said"),
    [
        ("echo 26.1.5", "26.1.5"),
        ("exit 1", ""),
        # An engine that comes while the node looks for it.
        ('[ -e "$0.seen" ] && echo 26.1.5 && exit; touch "$0.seen"; exit 1', "26.1.5"),
    ],
)
def test_a_node_says_the_version_of_its_engine(
    docker_does: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, docker=docker_does, ssh='for last; do :; done; exec sh -c "$last"')
    assert access.engine_version(tmp_path, "n1", 0.2, threading.Event()) == said


def test_a_node_that_lets_nobody_in_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, ssh="exit 255")
    assert access.engine_version(tmp_path, "n1", 0, threading.Event()) is None
    stop = threading.Event()
    stop.set()
    assert access.engine_version(tmp_path, "n1", 3600, stop) is None, "nobody waits any more"


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("said", "reachable", "well"), [(None, False, False), ("", True, False), ("26.1.5", True, True)]
)
def test_a_node_without_its_engine_is_not_well(said: str | None, reachable: bool, well: bool) -> None:
    state = node.state(container(), said)
    assert (state.reachable, state.well, state.engine) == (reachable, well, said or "")
    assert (state.gpus, state.nics, state.faults) == (8, 7, ("a", "b"))


@pytest.mark.parametrize(
    ("status", "called"), [("exited", "start"), ("created", "start"), ("paused", "unpause"), ("running", "exec_run")]
)
def test_a_node_is_woken_from_whatever_it_is(status: str, called: str) -> None:
    found = container(status)
    found.reload.side_effect = lambda: setattr(found, "status", "running")
    node.wake(found, IPv4Network("10.213.7.0/24"))
    assert getattr(found, called).called


@pytest.mark.parametrize(
    ("found", "says"), [(container("exited"), "it is exited"), (container(code=2, said="no such device\n"), "no such")]
)
def test_what_cannot_be_cut_is_said(found: Any, says: str) -> None:
    with pytest.raises(CheckFailed) as error:
        node.cut(found)
    assert error.value.code == "node-silent"
    assert says in error.value.what


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (400, "privileged mode is incompatible with user namespaces", "no-privileged"),
        (403, "authorization denied by plugin", "no-privileged"),
        (500, "no space left on device", None),
    ],
)
def test_an_engine_without_privileged_containers_is_explained(
    status: int, text: str, code: str | None, tmp_path: Path
) -> None:
    refusal = docker.errors.APIError(text, SimpleNamespace(status_code=status), text)  # type: ignore[arg-type]
    client = MagicMock()
    client.info.return_value = {"MemTotal": 2 << 30}
    client.containers.create.side_effect = refusal
    (machine,) = ClusterRequest(model.load("mi300x-thor2"), 1).machines(IPv4Network("10.213.7.0/24"))
    with pytest.raises(CheckFailed if code else docker.errors.APIError) as error:
        node.make(client, machine, tmp_path, "image", "net", "0a1b2c3d", "digest")
    assert getattr(error.value, "code", None) == code
    assert client.volumes.create.call_args.kwargs["labels"] == {LABEL: "0a1b2c3d", f"{LABEL}.node": "n1"}
