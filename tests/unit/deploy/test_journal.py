"""The journal: what can be resumed, what one can go back to, and what no clean-up may remove."""

from __future__ import annotations

import json

import pytest

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.read import journal
from rocstack.deploy.read.journal import Deploy, Journal, JournalImages, NodeStep, VerifiedLevel


def ident(name: str) -> str:
    return f"sha256:{name:0>64}"


def deploy(name: str, *nodes: str) -> Deploy:
    images = JournalImages(worker_id=ident(name), control_id=ident("c"), worker_reference=f"r/w@{ident(name)}")
    steps = {node: NodeStep() for node in nodes or ("n1", "n2")}
    return Deploy(id=name, who="me@here", started="2026-11-20T20:00:00Z", images=images, nodes=steps)


def done(before: Journal, name: str, *, failed: str = "", verified: int | None = None) -> Journal:
    now = before.begin(deploy(name))
    for node in ("n1", "n2"):
        now = now.note(node, "failed", reason="because") if node == failed else now.note(node, "done")
    now = now.finish("2026-11-20T21:00:00Z")
    return now if verified is None else now.verified(proved(verified))


def proved(level: int) -> VerifiedLevel:
    return VerifiedLevel(level=level, when="2026-11-20T22:00:00Z", report="20261120-220000")


def target(now: Journal) -> tuple[str, str] | None:
    found = now.rollback_target()
    return (found.images.worker_id.removeprefix("sha256:").lstrip("0"), found.basis) if found else None


def test_as_text_and_back() -> None:
    now = done(done(Journal(), "a", verified=3), "b", failed="n2").begin(deploy("c")).note("n1", "shipped")
    assert journal.loads(now.dumps()) == now
    assert journal.loads(None) == journal.loads("\n") == Journal()


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"schema": 1, "x": 2}', '{"schema": "1"', '{"schema": 1, "current": 3}']
)
def test_what_is_no_journal(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        journal.loads(text)
    assert refused.value.code == "bad-journal"


def test_an_older_one_knows_of_no_verification() -> None:
    old = json.loads(done(Journal(), "a").dumps()) | {"schema": 1}
    assert journal.loads(json.dumps(old)) == done(Journal(), "a")


def test_what_was_taken_back_is_no_target() -> None:
    now = done(done(Journal(), "a"), "b", verified=1)
    assert target(done(now.verified(None), "c")) == ("b", "healthy, never verified")


@pytest.mark.parametrize(
    ("virtual", "level", "on_virtual", "holds"),
    [
        (False, 3, False, True),
        (False, 4, False, False),
        (True, 1, False, True),
        (True, 2, False, False),
        (True, 2, True, True),
    ],
)
def test_virtual_hardware_proves_nothing_of_real_one(virtual: bool, level: int, on_virtual: bool, holds: bool) -> None:
    assert proved(3).model_copy(update={"virtual": virtual}).holds(level, on_virtual) == holds


def test_a_newer_one_is_refused_whatever_is_in_it() -> None:
    with pytest.raises(CheckFailed, match="format 9") as refused:
        journal.loads(json.dumps({"schema": 9, "new": True}))
    assert refused.value.code == "journal-newer"


def test_resumable_until_every_node_was_come_to() -> None:
    now = Journal().begin(deploy("a"))
    assert now.finish("t") == now
    now = now.note("n1", "done").note("n2", "started")
    found = now.finish("t").current
    assert found is not None
    assert (found.at("done"), found.at("started"), found.at("pending")) == (("n1",), ("n2",), ())
    now = now.note("n2", "failed", reason="no health").finish("t")
    assert now.current is None
    assert not now.releases[-1].healthy
    assert now.unfinished() == now.releases[-1].images, "a node that failed is tried again"
    assert Journal().begin(deploy("a")).note("n1", "done").note("n2", "done").finish("t").unfinished() is None


def test_back_to_the_last_verified_else_the_last_healthy() -> None:
    first = done(Journal(), "a")
    assert target(Journal()) is None
    assert target(first) is None
    assert target(done(first, "b")) == ("a", "healthy, never verified")
    verified = done(done(first, "b", verified=0), "c")
    assert target(done(verified, "d")) == ("b", "verified (level 0)")
    assert target(done(done(Journal(), "a", failed="n1"), "b")) is None


def test_back_from_a_deploy_that_never_ended() -> None:
    now = done(Journal(), "a").begin(deploy("b")).note("n1", "started")
    assert target(now) == ("a", "healthy, never verified")
    assert now.kept_ids() == {*map(ident, "abc")}


def test_the_same_images_again_are_the_same_release() -> None:
    now = done(done(done(Journal(), "a"), "b", verified=3), "b")
    assert [release.images.worker_id for release in now.releases] == [ident("a"), ident("b")]
    assert now.releases[-1].verified == proved(3)
    assert target(now) == ("a", "healthy, never verified")


def test_after_a_rollback_the_present_one_is_not_its_own_target() -> None:
    now = done(done(done(Journal(), "a", verified=3), "b"), "a")
    assert now.releases[-1].verified is None
    assert target(now) == ("b", "healthy, never verified")


def test_one_that_is_given_up_is_kept_as_unhealthy_if_it_reached_a_node() -> None:
    begun = done(Journal(), "a").begin(deploy("b"))
    assert len(begun.begin(deploy("c")).releases) == 1
    given_up = begun.note("n1", "started").begin(deploy("c"))
    assert [(r.images.worker_id, r.healthy) for r in given_up.releases] == [(ident("a"), True), (ident("b"), False)]
    assert target(given_up) == ("a", "healthy, never verified")


def test_old_releases_go_but_never_the_one_to_go_back_to() -> None:
    now = Journal()
    for number in range(journal.KEPT + 5):
        now = done(now, f"{number}")
    assert len(now.releases) == journal.KEPT
    now = done(Journal(), "bad", verified=3)
    for number in range(journal.KEPT + 5):
        now = done(now, f"{number}", failed="n1")
    assert target(now) == ("bad", "verified (level 3)")


def test_a_step_needs_a_deploy() -> None:
    with pytest.raises(ValueError, match="no deploy"):
        Journal().note("n1", "done")
    with pytest.raises(ValueError, match="nothing to verify"):
        Journal().begin(deploy("a")).verified(proved(3))


@pytest.mark.parametrize("key", ["worker_id", "control_id"])
@pytest.mark.parametrize("name", ["postgres:16", f"sha256:{'../' * 22}x", "", "sha256:a", f"{'a' * 64}", "--all"])
def test_a_control_node_names_no_other_image_or_file_of_the_operators_machine(key: str, name: str) -> None:
    data = json.loads(done(Journal(), "a").dumps())
    data["releases"][0]["images"][key] = name
    with pytest.raises(BadInput) as refused:
        journal.loads(json.dumps(data))
    assert refused.value.code == "bad-journal"


def served(name: str, service: str = "") -> JournalImages:
    own = {"service_id": ident(service)} if service else {}
    return JournalImages(worker_id=ident(name), control_id=ident("c"), **own)


def deployed(before: Journal, images: JournalImages) -> Journal:
    return before.begin(deploy("d").model_copy(update={"images": images, "nodes": {}})).finish("2026-11-20T21:00:00Z")


def test_a_journal_without_a_service_is_one_that_an_older_rocstack_reads() -> None:
    plain, serves = deployed(Journal(), served("a")), deployed(Journal(), served("a", "5"))
    assert json.loads(plain.dumps())["schema"] == 3
    assert "service" not in plain.dumps()
    assert json.loads(serves.dumps())["schema"] == 4
    assert [journal.loads(each.dumps()) for each in (plain, serves)] == [plain, serves]


def test_another_service_is_another_release_of_the_same_proved_cluster() -> None:
    first = deployed(Journal(), served("a", "5")).verified(proved(2))
    now = deployed(first, served("a", "6"))
    assert [release.images.service_id for release in now.releases] == [ident("5"), ident("6")]
    assert now.releases[-1].verified == proved(2)
    assert now.kept_ids() >= {ident("5"), ident("6")}
    found = now.rollback_target()
    assert found
    assert found.images.service_id == ident("5")
    assert now.rollback_target(service=False) is None, "the nodes' images are the same"


def test_the_newest_service_that_is_known() -> None:
    now = deployed(deployed(deployed(Journal(), served("a", "5")), served("b", "6")), served("c"))
    image = now.service_image()
    assert image
    assert (image.role, image.id) == ("service", ident("6"))
    assert set(served("a", "5").by_role()) == {"worker", "control", "service"}
    assert Journal().service_image() is None
