"""Which image of the service a rollback or a resumed deploy takes: the settings say whether there is one at all."""

from __future__ import annotations

import pytest

from rocstack.base.errors import BadInput
from rocstack.deploy.read import journal
from rocstack.deploy.read.journal import Deploy, Journal, JournalImages
from rocstack.steps import deploy as steps


def ident(name: str) -> str:
    return f"sha256:{name:0>64}"


def after(*releases: tuple[str, str]) -> Journal:
    """`releases` are worker and service; the last one is what runs."""
    now = Journal()
    for worker, service in releases:
        own = {"service_id": ident(service)} if service else {}
        images = JournalImages(worker_id=ident(worker), control_id=ident("c"), **own)
        deploy = Deploy(id="a", who="me@here", started="2026-11-20T20:00:00Z", images=images)
        now = now.begin(deploy).finish(journal.now())
    return now


def chosen(served: bool, now: Journal) -> tuple[str, ...]:
    images = steps._earlier(lambda text: None, served, now)
    ids = [images[role].id if role in images else "" for role in ("worker", "service")]
    return tuple(name.removeprefix("sha256:").lstrip("0") for name in ids)


@pytest.mark.parametrize(
    ("served", "releases", "expected"),
    [
        (True, [("a", "d"), ("b", "e")], ("a", "d")),
        (True, [("a", "d"), ("a", "e")], ("a", "d")),
        (True, [("a", ""), ("b", "e")], ("a", "e")),
        (False, [("a", "d"), ("b", "e")], ("a", "")),
        (False, [("a", "d"), ("b", "d"), ("b", "")], ("a", "")),
    ],
)
def test_a_rollback(served: bool, releases: list[tuple[str, str]], expected: tuple[str, str]) -> None:
    assert chosen(served, after(*releases)) == expected


def test_there_is_none_to_go_back_to() -> None:
    with pytest.raises(BadInput, match="no release of this cluster has an image for it"):
        chosen(True, after(("a", ""), ("b", "")))
    with pytest.raises(BadInput, match="no release to go back to"):
        chosen(False, after(("a", "d"), ("a", "e")))


def test_what_was_interrupted_goes_on_with_its_own() -> None:
    images = JournalImages(worker_id=ident("a"), control_id=ident("c"), service_id=ident("d"))
    now = Journal().begin(Deploy(id="a", who="me@here", started="2026-11-20T20:00:00Z", images=images))
    assert steps._resumed(True, now)["service"].id == ident("d")
    assert "service" not in steps._resumed(False, now)
