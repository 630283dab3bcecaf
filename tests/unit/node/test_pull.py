"""Pulling an image with an engine that plays a script."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_docker import Fake, stream

from rocstack.node import pull
from rocstack.node.engine import NodeError

DATA = Path(__file__).parents[1] / "data"
ID, DIGEST = "sha256:" + "1" * 64, "sha256:" + "2" * 64
REFERENCE = f"10.0.0.11:5000/rocstack-worker@{DIGEST}"
NAME = "rocstack/worker:111111111111"
IMAGE = {"id": ID, "name": NAME, "reference": REFERENCE}
REGISTRY = {"address": "10.0.0.11:5000", "user": "rocstack", "password": "s3cret-word", "ca": "PEM"}
ABSENT = {"out": "[]\n", "err": "Error response from daemon: No such image: x\n", "code": 1}
HAS = {"out": json.dumps([{"Id": ID, "RepoTags": [], "GraphDriver": {"Name": "overlay2"}}])}
NAMED = {"out": json.dumps([{"Id": ID, "RepoTags": [NAME], "GraphDriver": {"Name": "overlay2"}}])}
DONE = stream(
    {"status": "Pulling fs layer", "id": "a"},
    {"status": "Already exists", "id": "b"},
    {"status": "Downloading", "id": "a", "progressDetail": {"current": 10, "total": 700}},
    {"status": "Downloading", "id": "a", "progressDetail": {"current": 650, "total": 700}},
    {"status": "Download complete", "id": "a"},
    {"status": "Pull complete", "id": "a"},
)
REFUSED = stream({"errorDetail": {}, "error": "dial tcp 10.0.0.11:5000: connect: connection refused"})


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "CERTS", str(tmp_path / "certs"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def script(folder: Path, inspects: list[Any], pulls: list[Any]) -> Fake:
    ok: list[dict[str, Any]] = [{"out": ""}]
    return Fake(
        folder,
        {
            "image inspect": inspects,
            "system dial-stdio": pulls,
            "tag": ok,
            "image rm": ok,
            "version": ok,
            "info": [{"out": "/"}],
        },
    )


def test_what_is_there_is_not_pulled(tmp_path: Path) -> None:
    fake = script(tmp_path, [NAMED], [])
    [done] = pull.pull([IMAGE], REGISTRY)
    assert (done["changed"], done["attempts"]) == (False, 0)
    assert {call[0] for call in fake.calls} == {"image"}


def test_a_pull_counts_what_came_and_gives_the_name(tmp_path: Path) -> None:
    fake = script(tmp_path, [ABSENT, HAS], [DONE])
    [done] = pull.pull([IMAGE], REGISTRY)
    assert (done["changed"], done["attempts"], done["bytes"]) == (True, 1, 700)
    assert done["layers"] == {"pulled": 1, "existing": 1}
    assert ["tag", ID, NAME] in fake.calls
    assert (tmp_path / "certs/10.0.0.11:5000/ca.crt").read_text() == "PEM"
    line = fake.asked.splitlines()[0]
    assert line.startswith("POST /images/create?fromImage=10.0.0.11%3A5000%2Frocstack-worker&tag=sha256%3A222")
    header = next(line for line in fake.asked.splitlines() if line.startswith("X-Registry-Auth: "))
    login = json.loads(base64.urlsafe_b64decode(header.split()[1]))
    assert login == {"username": "rocstack", "password": "s3cret-word", "serveraddress": "10.0.0.11:5000"}
    assert "s3cret-word" not in json.dumps(fake.calls)


def test_a_busy_engine_tells_the_newest_alone(tmp_path: Path) -> None:
    def said(*events: tuple[str, int]) -> dict[str, str]:
        return stream(*({"status": each, "id": "a", "progressDetail": {"total": total}} for each, total in events))

    for answer in (
        said(("Downloading", 700), ("Extracting", 700), ("Pull complete", 0)),
        said(("Download complete", 0), ("Extracting", 700)),
        said(("Downloading", 700), ("Pull complete", 0)),
    ):
        script(tmp_path, [ABSENT, HAS], [answer])
        [done] = pull.pull([IMAGE], REGISTRY)
        assert (done["bytes"], done["layers"]) == (700, {"pulled": 1, "existing": 0})


def test_an_image_from_a_mirror_of_the_rack(tmp_path: Path) -> None:
    fake = script(tmp_path, [ABSENT, HAS], [DONE])
    pull.pull([{**IMAGE, "reference": f"rack7:5000/rocstack-worker@{DIGEST}"}], REGISTRY)
    assert "fromImage=rack7%3A5000%2Frocstack-worker" in fake.asked
    assert (tmp_path / "certs/rack7:5000/ca.crt").exists()


def test_a_registry_that_is_away_for_a_while(tmp_path: Path) -> None:
    script(tmp_path, [ABSENT, HAS], [REFUSED, REFUSED, {"out": ""}, DONE])
    waits: list[float] = []
    [done] = pull.pull([IMAGE], None, sleep=waits.append)
    assert (done["attempts"], waits) == (4, [1, 2, 4])
    assert [why[:20] for why in done["retried"]] == ["dial tcp 10.0.0.11:5", "the engine broke off"]


def test_patience_ends(tmp_path: Path) -> None:
    script(tmp_path, [ABSENT], [REFUSED])
    with pytest.raises(NodeError, match=r"connection refused$") as caught:
        pull.pull([IMAGE], None, retry_s=0, sleep=pytest.fail)
    assert caught.value.kind == "network"


def test_another_image_than_meant(tmp_path: Path) -> None:
    fake = script(
        tmp_path, [ABSENT, {"out": json.dumps([{"Id": "sha256:3", "RepoTags": [], "GraphDriver": None}])}], [DONE]
    )
    with pytest.raises(NodeError, match=f"is not image {ID}") as caught:
        pull.pull([IMAGE], None)
    assert caught.value.kind == "wrong-image"
    assert ["image", "rm", REFERENCE] in fake.calls


def test_an_engine_whose_ids_are_those_of_manifests(tmp_path: Path) -> None:
    row = {"Id": DIGEST, "RepoTags": [NAME], "GraphDriver": {"Name": "overlayfs"}}
    script(tmp_path, [{"out": json.dumps([row])}], [])
    assert pull.local_id(IMAGE) == DIGEST
    assert pull.local_id({**IMAGE, "reference": None}) == DIGEST, "it came by archive"
    assert pull.local_id({**IMAGE, "reference": None, "name": "other:1"}) is None


def test_no_registry_has_it(tmp_path: Path) -> None:
    script(tmp_path, [ABSENT], [])
    with pytest.raises(NodeError, match="isn't on this node and no registry has it"):
        pull.pull([{**IMAGE, "reference": None}], None)


@pytest.mark.parametrize(
    "case", yaml.safe_load((DATA / "pull-errors.yml").read_text()), ids=lambda case: case["says"][:60]
)
def test_reasons(tmp_path: Path, case: dict[str, Any]) -> None:
    script(tmp_path, [ABSENT], [stream({"error": case["says"]})])
    tries: list[float] = []
    with pytest.raises(NodeError) as caught:
        pull.pull([IMAGE], REGISTRY, retry_s=0 if case["kind"] == "network" else 60, sleep=tries.append)
    failed = caught.value
    assert (failed.kind, tries) == (case["kind"], [])
    assert "\n" not in failed.what + failed.cause
    assert case["says"] in failed.what
    assert "s3cret-word" not in failed.what + failed.cause


class Clock:
    """Moves a second with each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(pull.time, "monotonic", self)

    def __call__(self) -> float:
        self.now += 1
        return self.now


def downloading(layer: str, counts: range, size: int = 1 << 30) -> list[dict[str, Any]]:
    return [
        {"status": "Downloading", "id": layer, "progressDetail": {"current": each, "total": size}} for each in counts
    ]


def came(events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> str:
    Clock(monkeypatch)
    monkeypatch.setattr(pull, "_events", lambda reference, registry: iter(events))
    try:
        pull._attempt(REFERENCE, REGISTRY, pull.Pulled("a", ID))
    except NodeError as failed:
        return failed.what
    return ""


def test_a_layer_that_goes_on_after_a_break_is_counted_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    first, rest = range(0, 1 << 30, 64 << 20), range(0, 400 << 20, 1 << 20)
    assert came([*downloading("a", first), *downloading("a", rest)], monkeypatch) == ""


def test_a_registry_that_drips_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine speaks on: a limit of silence never ended it."""
    slow = "less than 256 KB came in 120 s"
    assert came(downloading("a", range(1000)), monkeypatch) == slow
    both = [
        each for pair in zip(downloading("a", range(500)), downloading("b", range(500)), strict=True) for each in pair
    ]
    assert came(both, monkeypatch) == slow
    stuck = [{"status": "Waiting", "id": "a"}] * 200
    assert came(stuck, monkeypatch) == slow
    back = downloading("a", range(0, 1 << 18, 1 << 11)) * 9  # the same bytes again and again
    assert came(back, monkeypatch) == slow


def test_a_slow_registry_and_a_busy_engine_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert came(downloading("a", range(0, 4 << 20, 3000)), monkeypatch) == ""
    assert came([{"status": "Extracting", "id": "a"}] * 900, monkeypatch) == ""
    many = [event for each in range(300) for event in ({"status": "Pulling fs layer", "id": str(each)},
                                                       {"status": "Pull complete", "id": str(each)})]  # fmt: skip
    assert came(many, monkeypatch) == ""
