"""A released image is built again from its own signed provenance, and compared with the one in the registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from released import Releases, entry, releases
from workspace import STACK, Built, Workspace, inspect

from rocstack.trust import attached

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NOWHERE = "http://127.0.0.1:9"  # the discard port, where nothing listens


@pytest.fixture(scope="module")
def place(base: str, prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    """A release of both images."""
    folder = tmp_path_factory.mktemp("rebuild")
    (folder / "work").mkdir()
    here = Workspace(folder / "work", prefix, made=made)
    with releases(base, Built(here, here.build()), here, folder) as place:
        place.write(entry(default=True))
        place.must("--tag", "w1")
        yield place


def reference(place: Releases, role: str = "control") -> str:
    images = json.loads((place.here.folder / ".rocstack/release/release.json").read_text())["images"]
    (found,) = (f"{image['repository']}@{image['digest']}" for image in images if image["role"] == role)
    return found


@pytest.mark.parametrize("role", ["control", "worker"])
def test_every_layer_is_built_again_as_it_was(place: Releases, role: str) -> None:
    before = inspect(place.here.reference(role))["Id"]
    done = place.here.run("rebuild", reference(place, role), "--stack", f"{STACK}.yml", "--json")
    assert done.code == 0, done.err + done.out
    found = done.json
    place.here.made.add(found["rebuilt"])
    assert (found["ok"], found["same_inputs"], found["same_base"]) == (True, True, True)
    assert [layer["found"] for layer in found["differ"] if layer["found"]] == []
    assert found["signers"] == [place.public.fingerprint]
    reports = [json.loads(file.read_text()) for file in place.here.folder.glob(".rocstack/rebuild/*/*/report.json")]
    (image,) = (image for report in reports for image in report["images"] if image["role"] == role)
    own = ("base", "shared", "worker-below", f"{role}-base", f"smoke-{role}", f"check-{role}")
    assert not [
        step
        for step in image["steps"]
        if step["stage"] in own and step["cached"] and not step["step"].startswith(("FROM", "COPY"))
    ]
    assert inspect(image["reference"])["Id"] == found["rebuilt"] != before
    assert inspect(place.here.reference(role))["Id"] == before


def test_from_kept_packages_where_no_mirror_answers(place: Releases) -> None:
    here = place.here
    kept = here.run("lock", "--stack", f"{STACK}.yml", "--to", "again.lock", "--keep-packages", "kept")
    assert kept.code == 0, kept.err
    nowhere = {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "PIP_INDEX_URL": f"{NOWHERE}/simple"}
    away = here.with_env(**nowhere, ROCSTACK_ATTEMPTS="1")
    done = away.run("rebuild", reference(place), "--stack", f"{STACK}.yml", "--packages", "kept", "--json")
    assert done.code == 0, done.err + done.out
    here.made.add(done.json["rebuilt"])
    assert (done.json["ok"], done.json["same_inputs"]) == (True, True)
    alone = away.run("rebuild", reference(place), "--stack", f"{STACK}.yml", "--json")
    assert alone.code != 0, "a mirror answered"


def test_what_differs_is_named_with_its_cause(place: Releases) -> None:
    overlay = place.here.folder / "overlay"
    overlay.mkdir()
    (overlay / "overlay.yml").write_text("system_control_packages_append: [tree]\n")
    words = ("rebuild", reference(place), "--stack", f"{STACK}.yml", "--overlay", str(overlay))
    done = place.here.run(*words, "--json")
    assert done.code == 1, done.err
    found = done.json
    place.here.made.add(found["rebuilt"])
    assert (found["ok"], found["same_inputs"], found["same_base"]) == (False, False, True)
    every = {each["path"]: each for layer in found["differ"] for each in layer["found"]}
    assert every["usr/bin/tree"]["how"] == "only in the second"
    assert every["usr/bin/tree"]["cause"].startswith("tree: not there -> ")
    assert every["etc/rocstack/manifest.json"]["differs"] == ["content"]
    assert every["var/lib/dpkg/status"]["cause"] == "dpkg's database"
    assert [path for path, each in every.items() if each["cause"] == "other" and "tree" not in path] == []


def test_nothing_is_built_of_what_nobody_signed(place: Releases, tmp_path: Path) -> None:
    image = reference(place)
    other = tmp_path / "other.key"
    assert place.run("keygen", str(other), "--password-file", "password").code == 0
    for words, code, status in (
        ((image, "--key", str(other.with_suffix(".pub"))), "unknown-signer", 1),
        ((image.partition("@")[0] + ":w1",), "no-digest", 2),
        ((f"{image[:-64]}{'0' * 64}",), "image-absent", 1),
    ):
        done = place.here.run("rebuild", *words, "--json")
        assert (done.code, done.json["error"]["code"]) == (status, code), done.err
        assert "building" not in done.err
    with place.restored():
        folder = place.tag_folder("control", attached.tag(image.partition("@")[2], "att"))
        place.with_storage(lambda: place.inside(f"rm -r {folder}"))
        done = place.here.run("rebuild", image, "--json")
        assert (done.code, done.json["error"]["code"]) == (1, "attestation-absent"), done.err
        assert "building" not in done.err


def test_another_stack_is_refused_before_it_is_built(place: Releases) -> None:
    done = place.here.run("rebuild", reference(place), "--stack", "rocm-7.2-debian", "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "lock-mismatch"), done.err
    assert "building" not in done.err
