"""Adapters in a registry: what is there is found, fetched once it is asked for, and believed in nothing."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fake_registry
import httpx
import pytest
import tiny_adapters as tiny
from fake_registry import Handler, Store
from pushed_adapter import FILES, push
from pydantic import ValidationError
from test_gateway import bearer, gateway, until, written

from rocstack.base import pace
from rocstack.base.errors import BadInput, CheckFailed
from rocstack.serve import adapter_repository, settings
from rocstack.serve.adapter_repository import AdapterRepository
from rocstack.serve.base_model import read_base
from rocstack.serve.gateway import Gateway
from rocstack.serve.paced_transport import PacedTransport
from rocstack.serve.registry import FolderRegistry, Registered
from rocstack.serve.settings import AdapterSource, RepositorySource
from rocstack.serve.sources import AdapterSources
from rocstack.serve.staging import Staging

PATH = "adapters/tiny-llama"


@pytest.fixture
def store() -> Iterator[Store]:
    with fake_registry.serving() as store:
        yield store


def repository(store: Store, **more: Any) -> AdapterRepository:
    return AdapterRepository(RepositorySource(repository=f"http://{store.host}/{PATH}", **more), 1 << 20)


def pushed(store: Store, folder: Path, *tags: str, **change: Any) -> None:
    with httpx.Client(base_url=f"http://{store.host}", auth=("ada", store.password or "")) as client:
        for number, tag in enumerate(tags):
            if not (place := folder / tag).exists():
                tiny.adapter(place, "tiny-llama", seed=number)
            push(client, PATH, tag, place, **change)


def one(store: Store, tag: str = "poet") -> Registered:
    return Registered(tag, None, f"http://{store.host}/{PATH}", (tag,))


def read(here: AdapterRepository, adapter: Registered) -> tuple[bytes, bytes, str]:
    with here.opened(adapter) as files:
        return os.pread(files.config, 1 << 20, 0), os.pread(files.weights, 1 << 20, 0), files.stamp


def test_each_tag_is_an_adapter_and_its_files_are_those_that_were_pushed(store: Store, tmp_path: Path) -> None:
    here = repository(store)
    assert here.rescan() == 0, "nothing was pushed yet"
    pushed(store, tmp_path, "poet", "clerk", "_no.adapters.name")
    assert here.rescan() == 2
    assert here.names == {"poet", "clerk"}
    found = here.find("poet")
    assert found == one(store)
    assert here.find("none") is None
    config, weights, stamp = read(here, found)
    assert (config, weights) == tuple((tmp_path / "poet" / name).read_bytes() for name in FILES)
    assert here.stamp(found) == stamp != here.stamp(one(store, "clerk"))


def test_a_list_in_pages(store: Store, tmp_path: Path) -> None:
    pushed(store, tmp_path, "a", "b", "c")

    def paged(handler: Handler) -> bool:
        if "/tags/list" not in handler.path:
            return False
        last = handler.path.partition("last=")[2]
        tag = {"": "a", "a": "b", "b": "c"}[last]
        link = {} if tag == "c" else {"Link": f'</v2/{PATH}/tags/list?last={tag}>; rel="next"'}
        handler.answer(200, json.dumps({"tags": [tag]}).encode(), **link)
        return True

    store.faults.append(paged)
    here = repository(store)
    assert here.rescan() == 3
    store.faults[0] = lambda handler: (
        handler.answer(200, b'{"tags": ["x"]}', Link='<http://[::1]/>; rel="next"') or True
    )
    with pytest.raises(CheckFailed, match="elsewhere"):
        here.rescan()
    assert here.names == {"a", "b", "c"}, "what was known stays"


@pytest.mark.parametrize(("login", "way"), [("ada:secret", "password"), ("ada:secret", "token"), ("ada:no", "token")])
def test_it_signs_in_as_registries_ask(store: Store, tmp_path: Path, login: str, way: str) -> None:
    pushed(store, tmp_path, "poet")
    store.password, store.token = "secret", "a-token" if way == "token" else None
    file = tmp_path / "login"
    file.write_text(f"{login}\n")
    here = repository(store, login=str(file))
    if login.endswith("no"):
        with pytest.raises(CheckFailed, match="HTTP 401"):
            here.rescan()
        return
    assert here.rescan() == 1
    assert read(here, one(store))[0]
    with pytest.raises(CheckFailed, match="HTTP 401"):
        repository(store).rescan()


def test_what_came_is_not_what_its_digest_says(store: Store, tmp_path: Path) -> None:
    pushed(store, tmp_path, "poet")
    for key, data in store.blobs.items():
        store.blobs[key] = data[:-1] + b"x"
    with pytest.raises(BadInput, match="digest"):
        read(repository(store), one(store))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": 5 << 30}, "MiB"),
        ({"size": 1}, "digest"),
        ({"size": -1}, "no file of this title"),
        ({"size": True}, "no file of this title"),
        ({"digest": "sha256:../../../../etc/passwd"}, "no file of this title"),
        ({"annotations": {"org.opencontainers.image.title": "../adapter_config.json"}}, "no file of this title"),
        ({"annotations": {"org.opencontainers.image.title": "adapter_model.bin"}}, "adapter_config.json"),
        ({"annotations": "x"}, "no file of this title"),
    ],
)
def test_a_manifest_is_data(store: Store, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    pushed(store, tmp_path, "poet")
    kind, raw = store.manifests[PATH, "poet"]
    manifest = json.loads(raw)
    for layer in manifest["layers"]:
        layer |= change
    store.manifests[PATH, "poet"] = (kind, json.dumps(manifest).encode())
    with pytest.raises(BadInput, match=says):
        read(repository(store), one(store))


def test_pickled_weights_are_not_even_fetched(store: Store, tmp_path: Path) -> None:
    tiny.adapter(tmp_path / "poet", "tiny-llama")
    (tmp_path / "poet/adapter_model.safetensors").rename(tmp_path / "poet/adapter_model.bin")
    pushed(store, tmp_path, "poet", names=("adapter_config.json", "adapter_model.bin"))
    with pytest.raises(BadInput) as refused:
        read(repository(store), one(store))
    assert refused.value.code == "adapter-pickled"
    assert not store.count("GET .*/blobs/")


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b"[" * 100_000])
def test_a_list_that_is_none(store: Store, body: bytes) -> None:
    store.faults.append(lambda handler: handler.answer(200, body) or True)
    with pytest.raises(CheckFailed, match="no JSON"):
        repository(store).rescan()


@pytest.mark.parametrize("body", [b'{"tags": 5}', b'{"tags": [5, {}, "../x", ""]}', b'{"tags": null}', b"{}"])
def test_a_list_of_nothing(store: Store, body: bytes) -> None:
    store.faults.append(lambda handler: handler.answer(200, body) or True)
    assert repository(store).rescan() == 0


def test_an_answer_without_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_repository, "LONGEST", 1000)
    store.faults.append(lambda handler: handler.answer(200, b" " * 5000) or True)
    with pytest.raises(CheckFailed, match="more than"):
        repository(store).rescan()


def test_while_it_is_away_what_was_seen_goes_on(store: Store, tmp_path: Path) -> None:
    said: list[str] = []
    tiny.adapter(tmp_path / "shared/poet", "tiny-llama", seed=7)
    pushed(store, tmp_path, "poet", "clerk")
    here = repository(store)
    folders = FolderRegistry((AdapterSource(folder=str(tmp_path / "shared")),))
    all_ = AdapterSources(folders, [here], said.append)
    assert all_.rescan() == 3
    mine = all_.find("ann", "poet")
    assert mine
    assert mine.root == str(tmp_path / "shared"), "a folder's goes first"
    clerk = all_.find("ann", "clerk")
    assert clerk == one(store, "clerk")
    stamp = all_.stamp(clerk)
    store.faults.append(lambda handler: handler.hang_up() or True)
    assert [all_.rescan(), all_.rescan()] == [3, 3]
    assert len(said) == 1, "said once"
    assert all_.stamp(clerk) == stamp
    assert all_.has(clerk)
    assert [each.name for each in all_.visible("ann")] == ["clerk", "poet"]
    with pytest.raises(CheckFailed, match="doesn't answer"), all_.opened(clerk):
        pass
    with pytest.raises(CheckFailed, match="doesn't answer"):
        here.stamp(one(store))


def test_one_that_is_silent_is_waited_for_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_repository, "REST_S", 3600.0)
    pushed(store, tmp_path, "poet")
    here = repository(store)
    stamp = here.stamp(one(store))
    store.faults.append(lambda handler: handler.hang_up() or True)
    assert here.stamp(one(store)) == stamp
    asked = len(store.requests)
    assert [here.stamp(one(store)) for _ in range(3)] == [stamp] * 3
    assert len(store.requests) == asked, "nobody asks"
    store.faults.clear()
    here._until = 0.0
    assert here.rescan() == 1


def test_a_list_that_goes_on_for_ever_is_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_repository, "LIST_S", -1.0)
    with pytest.raises(CheckFailed, match="TimeoutError"):
        repository(store).rescan()
    assert not store.requests


def dripping(part: str) -> Callable[[Handler], bool]:
    """A byte now and then, of the head or of the body."""

    def fault(handler: Handler) -> bool:
        handler.close_connection = True
        with suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"X-A: " if part == "head" else b"\r\n"))
            for _ in range(200):
                handler.wfile.write(b" ")
                time.sleep(0.05)
        return True

    return fault


@pytest.mark.parametrize("part", ["head", "body"])
def test_one_that_drips_is_left(store: Store, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PACE_S", 0.3)
    store.faults.append(dripping(part))
    here = repository(store)
    with pytest.raises(CheckFailed, match="ReadTimeout"):
        here.rescan()
    here._until = 0.0
    with pytest.raises(CheckFailed, match="ReadTimeout"):
        here.stamp(one(store))


def test_one_that_says_to_go_on_for_ever_is_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any pace."""
    monkeypatch.setattr(pace, "PACE_S", 0.3)

    def fault(handler: Handler) -> bool:
        handler.close_connection = True
        with suppress(OSError):
            for _ in range(10):
                handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 12_000)
                time.sleep(0.1)
            handler.answer(200, b'{"tags": []}')
        return True

    store.faults.append(fault)
    with pytest.raises(CheckFailed, match="ReadTimeout"):
        repository(store).rescan()


def test_one_that_is_slow_holds_up_no_other(store: Store, tmp_path: Path) -> None:
    """Not even where as many of its adapters are asked for as there are threads."""
    tags = [f"a{number}" for number in range(80)]
    pushed(store, tmp_path / "there", "a0")
    store.manifests |= {(PATH, tag): store.manifests[PATH, "a0"] for tag in tags}
    tiny.adapter(tmp_path / "folder/own", "tiny-llama")
    source = {"folder": str(tmp_path / "folder")}
    path = written(tmp_path, repositories=[{"repository": f"http://{store.host}/{PATH}"}], sources=[source])
    go = threading.Event()

    async def ask() -> None:
        here = Gateway(settings.load(path), str)
        assert here.registry.rescan() == 81
        store.faults.append(lambda handler: not go.wait())
        slow = [asyncio.ensure_future(here.staged(here.find("ann", tag))) for tag in tags]
        await asyncio.sleep(0)
        try:
            assert (await here.staged(here.find("ann", "own"))).folder.is_dir()
            assert not any(each.done() for each in slow)
        finally:
            go.set()
            await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(ask())


def test_a_challenge_is_read_in_one_go(store: Store) -> None:
    """Not from each of its letters to its end: nothing else runs meanwhile."""
    store.faults.append(lambda handler: handler.answer(401, WWW_Authenticate="Bearer " + "x" * 60_000) or True)
    with pytest.raises(CheckFailed, match="HTTP 401"):
        repository(store).rescan()
    words = 'Bearer realm="https://r.example/token",service="r.example",scope="repository:a:pull"'
    assert [name for name, _ in adapter_repository._WORD.findall(words)] == ["realm", "service", "scope"]
    assert adapter_repository._WORD.search("x" * 40 + '="y"') is None


def test_by_tls_nothing_is_followed_to_where_there_is_none(store: Store) -> None:
    trust = ssl.create_default_context()
    for alone in (False, True):
        with httpx.Client(transport=PacedTransport(trust, https_alone=alone)) as client:
            if not alone:
                assert client.get(f"http://{store.host}/v2/").status_code == 200
                continue
            with pytest.raises(httpx.UnsupportedProtocol):
                client.get(f"http://{store.host}/v2/")


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"WWW_Authenticate": 'Bearer realm="https://a\tb/"'}),
        (401, {"WWW_Authenticate": f'Bearer realm="https://{"a" * 70}.example/"'}),
        (200, {"Link": '<http://[>; rel="next"'}),
        (307, {"Location": "http://["}),
    ],
)
def test_an_address_that_is_none(store: Store, answer: tuple[int, dict[str, str]]) -> None:
    code, headers = answer
    store.faults.append(lambda handler: handler.answer(code, b'{"tags": []}', **headers) or True)
    with pytest.raises(CheckFailed, match="doesn't answer as it should"):
        repository(store).rescan()


def test_only_what_has_a_digest_may_lie_elsewhere(store: Store, tmp_path: Path) -> None:
    pushed(store, tmp_path, "poet")
    elsewhere = store.host.replace("127.0.0.1", "localhost")

    def moved(what: str) -> None:
        def fault(handler: Handler) -> bool:
            if what not in handler.path or "moved" in handler.path:
                return False
            handler.answer(307, Location=f"http://{elsewhere}{handler.path}?moved")
            return True

        store.faults[:] = [fault]

    moved("/blobs/")
    assert read(repository(store), one(store))[0]
    assert store.count("moved") == 2
    moved("/tags/")
    with pytest.raises(CheckFailed, match="HTTP 307"):
        repository(store).rescan()
    moved("/manifests/")
    with pytest.raises(CheckFailed, match="HTTP 307"):
        repository(store).stamp(one(store))
    assert store.count("moved") == 2


def test_a_disk_without_room(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed(store, tmp_path, "poet")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", 0))
    with pytest.raises(CheckFailed) as refused:
        read(repository(store), one(store))
    assert refused.value.code == "adapter-not-copied"


def test_an_adapter_is_checked_as_one_of_a_folder(store: Store, tmp_path: Path) -> None:
    pushed(store, tmp_path, "poet")
    tiny.adapter(tmp_path / "wide", "tiny-llama", rank=16)
    pushed(store, tmp_path, "wide")
    base = read_base(tiny.base(tmp_path / "tiny-llama"))
    here = repository(store)
    staging = Staging(tmp_path / "state", base, here.opened, rank=8, most_bytes=1 << 20)
    staged = staging.stage(one(store))
    assert (staged.folder / FILES[1]).read_bytes() == (tmp_path / "poet" / FILES[1]).read_bytes()
    with pytest.raises(BadInput, match="rank"):
        staging.stage(one(store, "wide"))


def test_through_a_gateway(store: Store, tmp_path: Path) -> None:
    """It is asked for by its name, a new version answers, and one that is gone is gone."""
    pushed(store, tmp_path / "here", "bard")
    place = {"repository": f"http://{store.host}/{PATH}"}
    with gateway(tmp_path, repositories=[place], rescan_s=0.1) as running:
        first = running.ask("bard").json()["choices"][0]["message"]["content"]
        assert "bard" in [each["id"] for each in running.client.get("/v1/models", headers=bearer("ann")).json()["data"]]
        assert store.count("GET .*/blobs/") == 2
        assert running.ask("bard").status_code == 200
        assert store.count("GET .*/blobs/") == 2, "it is fetched once"
        tiny.adapter(tmp_path / "new/bard", "tiny-llama", seed=5)
        pushed(store, tmp_path / "new", "bard")
        until(lambda: running.ask("bard").json()["choices"][0]["message"]["content"] != first)
        store.manifests = {key: each for key, each in store.manifests.items() if key[1] != "bard"}
        until(lambda: running.ask("bard").status_code == 404)


def test_who_asks_at_once_waits_for_one_copy(store: Store, tmp_path: Path) -> None:
    """Also where the first of them goes away, or it can't be had."""
    pushed(store, tmp_path / "here", "bard")
    place = {"repository": f"http://{store.host}/{PATH}"}

    async def ask() -> None:
        here = Gateway(settings.load(written(tmp_path, repositories=[place])), str)
        assert here.registry.rescan()
        bard = here.find("ann", "bard")
        first, *others = (asyncio.ensure_future(here.staged(bard)) for _ in range(8))
        await asyncio.sleep(0)
        first.cancel()
        assert len({each.folder for each in await asyncio.gather(*others)}) == 1
        assert store.count("GET .*/blobs/") == 2
        store.manifests.clear()
        found = await asyncio.gather(*(here.staged(bard) for _ in range(8)), return_exceptions=True)
        assert {type(each) for each in found} == {BadInput}
        await asyncio.sleep(0)
        assert not here._looking

    asyncio.run(ask())


@pytest.mark.parametrize(
    "url",
    ["http://example.com/a", "https://example.com", "https://example.com/", "https://example.com/A/b", "ftp://x/a",
     "https://example.com/a:tag", "https://u:p@example.com/a", "https://example.com/a/../b"],
)  # fmt: skip
def test_what_is_no_repository(url: str) -> None:
    with pytest.raises(ValidationError):
        RepositorySource(repository=url)


def test_files_that_are_not_there(store: Store, tmp_path: Path) -> None:
    for more in ({"login": str(tmp_path / "none")}, {"ca": str(tmp_path / "none")}):
        with pytest.raises(BadInput) as refused:
            repository(store, **more)
        assert refused.value.code == "repository-file"
