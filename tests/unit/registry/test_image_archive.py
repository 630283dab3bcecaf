"""The archive as a tar, and its way to nodes that are shell commands here."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import zstandard
from docker import DockerClient
from saved_image import CONFIG, DIFF_IDS, LOWER, UPPER, engine, modern

from rocstack.edge import stalls
from rocstack.registry.image_archive import ImageArchive, _full
from rocstack.registry.layers import sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import ZSTD_LAYER
from rocstack.registry.send_archive import LoadTarget, load

NAME = "rocstack/worker:deployed-x"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[ImageArchive]:
    client = cast(DockerClient, engine(modern()))
    with (
        LocalImage(client, "x", tuple(DIFF_IDS), _engine_id="sha256:x") as image,
        ImageArchive.make(image, NAME, folder=tmp_path) as archive,
    ):
        yield archive
    assert not list(tmp_path.glob("rocstack-archive-*"))


def files(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_both_readers_find_the_image(archive: ImageArchive) -> None:
    found = files(b"".join(archive.stream()))
    (legacy,) = json.loads(found["manifest.json"])
    assert found[legacy["Config"]] == CONFIG
    assert legacy["RepoTags"] == [NAME]
    unpack = zstandard.ZstdDecompressor()
    assert [unpack.decompressobj().decompress(found[path]) for path in legacy["Layers"]] == [LOWER, UPPER]

    (entry,) = json.loads(found["index.json"])["manifests"]
    manifest = json.loads(found["blobs/sha256/" + entry["digest"][7:]])
    assert entry["digest"] == archive.digest
    assert manifest["config"]["digest"] == archive.id == sha256(CONFIG)
    assert ["blobs/sha256/" + layer["digest"][7:] for layer in manifest["layers"]] == legacy["Layers"]
    assert {layer["mediaType"] for layer in manifest["layers"]} == {ZSTD_LAYER}
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/" + NAME
    assert all(sha256(data)[7:] == path[13:] for path, data in found.items() if path.startswith("blobs/"))


def test_what_a_node_has_is_left_out(archive: ImageArchive) -> None:
    found = files(b"".join(archive.stream({DIFF_IDS[0]})))
    (legacy,) = json.loads(found["manifest.json"])
    assert legacy["Layers"][0] not in found
    assert legacy["Layers"][1] in found
    assert "index.json" not in found  # its reader would miss the layer
    assert archive.size({DIFF_IDS[0]}) < 200 < archive.size()


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("a:1", "docker.io/library/a:1"),
        ("rocstack/worker:1", "docker.io/rocstack/worker:1"),
        ("10.0.0.11:5000/w:1", "10.0.0.11:5000/w:1"),
        ("localhost/w:1", "localhost/w:1"),
    ],
)
def test_full_names(name: str, full: str) -> None:
    assert _full(name) == full


def node(folder: Path, name: str, docker: str) -> LoadTarget:
    """A shell in which `docker` is a script: $NODE is its folder."""
    home = folder / name
    home.mkdir()
    script = home / "docker"
    script.write_text(f"#!/bin/sh\nNODE={home}\necho run >>$NODE/calls\n{docker}")
    script.chmod(0o755)
    return LoadTarget(name, ["sh", "-c"], engine=(str(script),))


LOADS = 'case $1 in load) cat >"$NODE/got";; image) echo {id};; esac'


def test_nodes_get_it_and_say_its_id(archive: ImageArchive, tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    targets = [node(tmp_path, name, LOADS.format(id=archive.id)) for name in ("n1", "n2", "n3")]
    done = load(archive, targets, at_once=2, progress=lambda name, at, total: seen.update({name: at}))
    whole = b"".join(archive.stream())
    assert [(one.node, one.error, one.bytes, one.attempts) for one in done] == [
        (name, None, len(whole), 1) for name in ("n1", "n2", "n3")
    ]
    assert (tmp_path / "n2/got").read_bytes() == whole
    assert set(seen.values()) == {archive.size()}


def test_one_node_fails_and_the_others_go_on(archive: ImageArchive, tmp_path: Path) -> None:
    waits: list[float] = []
    good = node(tmp_path, "good", LOADS.format(id=archive.id))
    full = node(tmp_path, "full", "head -c 100 >/dev/null; echo no space left on device >&2; exit 1")
    other = node(tmp_path, "other", LOADS.format(id="sha256:" + "0" * 64))
    gone = LoadTarget("gone", ["/nonexistent/ssh"])
    found = {one.node: one for one in load(archive, [good, full, other, gone], attempts=2, sleep=waits.append)}
    assert found["good"].error is None
    assert found["full"].error == "exit 1: no space left on device"
    assert found["full"].attempts == 2
    assert "this machine sha256:" in (found["other"].error or "")
    assert "/nonexistent/ssh" in (found["gone"].error or "")
    assert waits == [2, 2, 2]


def test_a_node_that_had_less_than_was_thought_gets_everything(archive: ImageArchive, tmp_path: Path) -> None:
    script = f'case $1 in load) cat >"$NODE/got"; grep -q index.json "$NODE/got";; image) echo {archive.id};; esac'
    target = node(tmp_path, "n1", script)
    target = LoadTarget("n1", target.shell, target.engine, frozenset({DIFF_IDS[0]}))
    (done,) = load(archive, [target], sleep=lambda seconds: None)
    assert (done.error, done.attempts) == (None, 2)
    assert (tmp_path / "n1/got").read_bytes() == b"".join(archive.stream())


def test_a_failure_is_told_though_there_is_no_more_to_send(archive: ImageArchive, tmp_path: Path) -> None:
    """All nodes had the lower layer, so it was never packed."""
    part = replace(archive, blobs={DIFF_IDS[1]: archive.blobs[DIFF_IDS[1]]})
    target = node(tmp_path, "n1", "cat >/dev/null; echo no space left on device >&2; exit 1")
    target = LoadTarget("n1", target.shell, target.engine, frozenset({DIFF_IDS[0]}))
    (done,) = load(part, [target], attempts=2, sleep=lambda seconds: None)
    assert done.error == "exit 1: no space left on device"


def test_an_engine_that_freezes_is_a_failure_of_its_node_alone(
    archive: ImageArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "SILENCE_S", 0.5)
    good = node(tmp_path, "good", LOADS.format(id=archive.id))
    freezes = node(tmp_path, "n2", 'echo $$ >>$NODE/pids; case $1 in load) cat >"$NODE/got";; esac; kill -STOP $$')
    try:
        found = {one.node: one for one in load(archive, [freezes, good], attempts=1)}
    finally:
        for pid in (tmp_path / "n2/pids").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    assert found["good"].error is None
    assert "the engine doesn't answer" in (found["n2"].error or "")
