"""Layers of a local image: an engine's folder and archives made here, as engines write them."""

from __future__ import annotations

import base64
import gzip
import http.server
import io
import json
import socketserver
import tarfile
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
import pytest
from saved_image import CONFIG, DIFF_IDS, LOWER, UPPER, compressed, engine, listing, modern, old

from rocstack.base.errors import CheckFailed, Missing
from rocstack.registry.docker_save import SavedImage
from rocstack.registry.layers import BLOCK, GraphStore, UnreadableLayer, chain_ids, in_place, sha256
from rocstack.registry.local_image import LocalImage

SECRET = b"of this machine alone"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def split(data: bytes, files: Path) -> bytes:
    """What tar-split notes of a tar, whose files go to a folder."""
    lines, at = list[dict[str, Any]](), 0

    def raw(end: int) -> None:
        lines.append({"type": 2, "payload": base64.b64encode(data[at:end]).decode(), "position": len(lines)})

    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            raw(member.offset_data)
            name = member.name.encode("utf-8", "surrogateescape")
            named = {"name_raw": base64.b64encode(name).decode()} if b"\xff" in name else {"name": member.name}
            content = data[member.offset_data : member.offset_data + member.size]
            if content:
                path = Path(str(files)) / member.name
                write(path, content)
                lines.append({"type": 1, **named, "size": member.size, "payload": "", "position": len(lines)})
            at = member.offset_data + member.size
    raw(len(data))
    return gzip.compress("\n".join(map(json.dumps, lines)).encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An engine's folder with the image."""
    write(tmp_path / "image/overlay2/imagedb/content/sha256" / sha256(CONFIG)[7:], CONFIG)
    for number, (chain, data) in enumerate(zip(chain_ids(DIFF_IDS), (LOWER, UPPER), strict=True)):
        layer = tmp_path / "image/overlay2/layerdb/sha256" / chain[7:]
        write(layer / "cache-id", f"cache{number}".encode())
        write(layer / "size", b"2000703")
        write(layer / "tar-split.json.gz", split(data, tmp_path / f"overlay2/cache{number}/diff"))
    return tmp_path


def find(root: Path) -> GraphStore:
    found = GraphStore.find(root, sha256(CONFIG))
    assert found
    return found


def test_only_layers_on_the_same_ones_are_in_place() -> None:
    """An update changed what lies below `c`, which the node has on `b`: its engine asks for it once more."""
    there = [["a", "b", "c"], ["z"]]
    assert in_place(["a", "b", "c", "d"], there) == {"a", "b", "c"}
    assert in_place(["a", "x", "c"], there) == {"a"}
    assert in_place(["a", "b", "a"], there) == {"b"}  # one of both places isn't known
    assert in_place(["a"], []) == set()


def test_chain_ids_are_those_of_the_specification() -> None:
    first, second = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    assert chain_ids([]) == []
    assert chain_ids([first, second]) == [first, sha256(f"{first} {second}".encode())]


def test_a_layer_is_put_together_to_the_byte(root: Path) -> None:
    store = find(root)
    assert b"".join(store.open(DIFF_IDS[0])) == LOWER
    assert b"".join(store.open(DIFF_IDS[1])) == UPPER
    assert max(len(block) for block in store.open(DIFF_IDS[0])) < 2 * BLOCK
    assert store.config == CONFIG


def test_a_changed_file_is_found_out(root: Path) -> None:
    file = root / "overlay2/cache0/diff/etc/a"
    file.write_bytes(b"b" * 700)
    with pytest.raises(UnreadableLayer, match="reads as"):
        list(find(root).open(DIFF_IDS[0]))


@pytest.mark.parametrize("name", ["etc/out/a", "etc/../../../../secret/a", "etc/out"])
def test_no_byte_is_read_behind_a_link_or_outside(root: Path, name: str) -> None:
    """A base image could have this machine's files sent: the sum is known only after the last byte."""
    write(root / "secret/a", SECRET)
    (root / "overlay2/cache0/diff/etc/out").symlink_to(root / ("secret/a" if name == "etc/out" else "secret"))
    recipe = next(root.glob(f"image/overlay2/layerdb/sha256/{chain_ids(DIFF_IDS)[0][7:]}/tar-split.json.gz"))
    entry = {"type": 1, "name": name, "size": len(SECRET), "payload": "", "position": 0}
    recipe.write_bytes(gzip.compress(json.dumps(entry).encode()))
    with suppress(UnreadableLayer, OSError):
        for piece in find(root)._pieces(DIFF_IDS[0]):
            assert SECRET not in piece


@pytest.mark.parametrize("gone", ["imagedb", "layerdb", "overlay2/cache1/diff"])
def test_a_folder_that_lacks_something_is_none(root: Path, gone: str) -> None:
    path = root / gone if "/" in gone else root / "image/overlay2" / gone
    path.rename(root / "away")
    assert GraphStore.find(root, sha256(CONFIG)) is None


def test_another_image_under_that_id_is_none(root: Path) -> None:
    write(root / "image/overlay2/imagedb/content/sha256" / sha256(CONFIG)[7:], CONFIG + b" ")
    assert GraphStore.find(root, sha256(CONFIG)) is None


@pytest.mark.parametrize("layout", [modern, compressed, old])
def test_every_layout_of_docker_save_gives_the_layers(
    layout: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    saved = SavedImage.make(engine(layout()), "sha256:x", DIFF_IDS)
    assert saved.config == CONFIG
    assert [b"".join(saved.open(diff_id)) for diff_id in DIFF_IDS] == [LOWER, UPPER]
    saved.close()
    assert not list(tmp_path.iterdir())


def test_old_engines_link_equal_layers() -> None:
    files = old()
    files.pop("f1/layer.tar")
    diff_ids = [DIFF_IDS[0]] * 2
    files["c.json"] = json.dumps({"rootfs": {"diff_ids": diff_ids}}).encode()
    saved = SavedImage.make(engine(files, ("f1/layer.tar", "../f0/layer.tar")), "sha256:x", diff_ids)
    assert b"".join(saved.open(DIFF_IDS[0])) == LOWER
    saved.close()


def test_only_the_layers_that_are_asked_for_are_kept() -> None:
    saved = SavedImage.make(engine(modern()), "sha256:x", DIFF_IDS, only=[DIFF_IDS[1]])
    assert set(saved.files) == {DIFF_IDS[1]}
    with pytest.raises(UnreadableLayer):
        list(saved.open(DIFF_IDS[0]))
    saved.close()


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"manifest.json": b"[]"},
        {**modern(), "manifest.json": b"{"},
        {**modern(), "manifest.json": b"[" * 100_000},
        {**modern(), "manifest.json": b'[{"Config": 5, "Layers": [5]}]'},
        {**modern(), "manifest.json": b'["x"]'},
        {**modern(), **listing("c.json", []), "c.json": b"[]"},
        {**modern(), **listing("../../etc/passwd", [])},
        {"../out": b"x"},
        {**modern(), **listing("c.json", []), "c.json": b'{"rootfs": {"diff_ids": ["sha256:other"]}}'},
    ],
)
def test_an_archive_that_is_none_leaves_nothing(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CheckFailed) as caught:
        SavedImage.make(engine(files), "sha256:x", DIFF_IDS)
    assert caught.value.code == "damaged-image"
    assert not list(tmp_path.iterdir())


def test_no_room_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(Missing, match="no room") as caught:
        SavedImage.make(engine(modern()), "sha256:x", DIFF_IDS)
    assert "TMPDIR" in (caught.value.next_step or "")


def test_a_damaged_folder_falls_back_to_docker_save(root: Path) -> None:
    (root / "overlay2/cache0/diff/etc/a").write_bytes(b"b" * 700)
    with LocalImage(engine(modern()), "x", tuple(DIFF_IDS), _engine_id="sha256:x", _source=find(root)) as image:
        assert image._saved is None
        with pytest.raises(UnreadableLayer):
            list(image.open(DIFF_IDS[0]))
        assert b"".join(image.open(DIFF_IDS[0])) == LOWER
        assert image._saved
        assert image.config == CONFIG


@pytest.mark.parametrize("begins", [False, True])
def test_an_engine_that_freezes_while_it_saves_is_a_failure(tmp_path: Path, begins: bool) -> None:
    over = threading.Event()
    info = tarfile.TarInfo("blobs/sha256/" + 64 * "c")
    info.size = 1 << 24

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if begins:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(info.tobuf() + bytes(1 << 16))
            over.wait(60)

        def address_string(self) -> str:
            return "a socket"

        def log_message(self, *_: object) -> None: ...

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with tempfile.TemporaryDirectory() as folder, Server(f"{folder}/s", Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = docker.DockerClient(base_url=f"unix://{folder}/s", timeout=1, version="1.43")
        with pytest.raises(Missing, match="could not save") as error:
            SavedImage.make(client, "sha256:" + 64 * "a", DIFF_IDS)
        over.set()
        server.shutdown()
    assert "timed out" in str(error.value.cause)
