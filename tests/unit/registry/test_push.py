"""Pushing to a registry in this process: which tags are compared, made and moved, and in what order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker import DockerClient
from fake_registry import Handler, Store, failing, serving
from memory_image import BASE, NAME, TOP, Layers, repository

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.image.build_report import BuildReport, ImageReport
from rocstack.registry.layers import sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import INDEX, MANIFEST, as_json, media_type
from rocstack.registry.publish import PackedLayers
from rocstack.registry.push import push, push_images
from rocstack.registry.registry_http import RegistryLogin
from rocstack.settings.settings import Settings

CONTENT = "c-0123456789abcdef"
TAGS = ("debian-13-tcp-2026.47", "2026.47")


@pytest.fixture
def store() -> Iterator[Store]:
    with serving() as store:
        yield store


def publish(store: Store, source: Layers | None = None, **options: Any) -> tuple[str, list[str], list[float]]:
    """The digest, what was said without the repository's name, and the pauses."""
    said: list[str] = []
    slept: list[float] = []
    more = {key: options.pop(key) for key in ("move_tags", "siblings", "packed_layers") if key in options}
    target = repository(store, sleep=slept.append, on_retry=said.append, **options)
    done = push((source or Layers(BASE)).image(), target, CONTENT, TAGS, said.append, **more)
    return done, [text.replace(f"{store.host}/{NAME}:", "") for text in said], slept


def digest(store: Store, tag: str) -> str:
    return sha256(store.manifests[NAME, tag][1])


def taken(store: Store, tag: str = TAGS[1]) -> str:
    """Another image's manifest under a tag."""
    store.manifests[NAME, tag] = (
        MANIFEST,
        b'{"mediaType":"%s","config":{"digest":"x"},"layers":[]}' % MANIFEST.encode(),
    )
    return digest(store, tag)


def manifests(store: Store) -> list[str]:
    """The requests for manifests: the verb, and the tag."""
    return [f"{r.split()[0]} {r.rpartition('/')[2]}" for r in store.requests if "/manifests/" in r]


def test_content_first_then_all_tags_are_compared_then_named(store: Store) -> None:
    done, said, slept = publish(store)
    compared = [f"GET {tag}" for tag in TAGS]
    named = [f"{verb} {tag}" for tag in TAGS for verb in ("PUT", "GET")]
    first = f"GET {CONTENT}"
    assert manifests(store) == [first, *compared, first, f"PUT {CONTENT}", first, *compared, *named]
    assert {digest(store, tag) for tag in (CONTENT, *TAGS)} == {done}
    assert said == [f"pushing {CONTENT}", *(f"{tag} is {done}" for tag in (CONTENT, *TAGS))]
    assert slept == []


def test_second_push_sends_nothing(store: Store) -> None:
    first = publish(store)[0]
    store.requests.clear()
    done, said, _ = publish(store)
    assert {request.split()[0] for request in store.requests} == {"GET"}
    assert done == first
    assert said == [f"{CONTENT} is there already: {first}", *(f"{tag} is there already" for tag in TAGS)]


def test_taken_tag_stops_before_anything_is_sent(store: Store) -> None:
    theirs = taken(store)
    with pytest.raises(CheckFailed, match=r"2026\.47 is") as caught:
        publish(store)
    assert caught.value.code == "tag-exists"
    assert theirs in caught.value.what
    assert store.blobs == {}
    assert list(store.manifests) == [(NAME, TAGS[1])]


def test_taken_tag_is_moved_when_asked(store: Store) -> None:
    theirs = taken(store)
    done, said, _ = publish(store, move_tags=True)
    assert digest(store, TAGS[1]) == done
    assert [text for text in said if "moves" in text] == [f"{TAGS[1]} moves from {theirs} to {done}"]


def edited(store: Store, **changes: Any) -> bytes:
    """This image's own manifest with changes, alone under the content tag."""
    publish(store)
    data = as_json({**json.loads(store.manifests[NAME, CONTENT][1]), **changes})
    store.manifests.clear()
    store.manifests[NAME, CONTENT] = (media_type(data), data)
    store.requests.clear()
    return data


DOCKER = "application/vnd.docker.distribution.manifest.v2+json"


def test_the_same_image_is_not_sent_again(store: Store) -> None:
    """Nor packed again, where this machine knows what it packed."""
    packed_layers = PackedLayers(None)
    done = publish(store, packed_layers=packed_layers)[0]
    for known, read in ((packed_layers, []), (None, [sha256(BASE)])):
        for tag in TAGS:
            del store.manifests[NAME, tag]
        source = Layers(BASE)
        store.requests.clear()
        assert publish(store, source, packed_layers=known)[0] == done
        assert {digest(store, tag) for tag in TAGS} == {done}
        assert (source.read, store.count("/blobs/")) == (read, 0)


EVIL = b"a stranger's layer"


@pytest.mark.parametrize("tag", [CONTENT, "zzz"])
@pytest.mark.parametrize("place", [NAME, "rocstack-control"])
def test_no_layer_of_somebody_else_gets_in(store: Store, tag: str, place: str) -> None:
    """A manifest of this image, with another blob in the place of a layer: by every byte as ours, but for that one."""
    own = publish(store)[0]
    manifest = json.loads(store.manifests[NAME, CONTENT][1])
    layers = [{**manifest["layers"][0], "digest": sha256(EVIL), "size": len(EVIL)}]
    config = store.blobs[NAME, manifest["config"]["digest"]]
    store.manifests.clear()
    store.blobs |= {(place, sha256(EVIL)): EVIL, (place, sha256(config)): config}
    store.manifests[place, tag] = (MANIFEST, as_json({**manifest, "layers": layers}))
    done, said, _ = publish(store, siblings=("rocstack-control",))
    assert done == own
    assert {digest(store, each) for each in (CONTENT, *TAGS)} == {own}
    assert ("is another image" in "".join(said)) == ((tag, place) == (CONTENT, NAME))


def test_another_tag_lends_layers_as_this_machine_packs_them(store: Store) -> None:
    publish(store, Layers(BASE, TOP))
    for tag in TAGS:
        del store.manifests[NAME, tag]
    store.requests.clear()
    source = Layers(BASE)
    publish(store, source, move_tags=True)
    assert source.read == [sha256(BASE)]
    assert not [request for request in store.requests if request.startswith("PATCH")]


THEIRS = {"mediaType": MANIFEST, "digest": "sha256:" + "e" * 64, "size": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"config": THEIRS},
        {"mediaType": INDEX},
        {"mediaType": DOCKER},
        {"manifests": [THEIRS]},  # who reads it as an index gets another image
        {"Config": THEIRS},  # some parsers take any case, and the last
        {"subject": THEIRS},
        {"annotations": {"a": "b"}},
        "gzip",
        "size as a float",
        "spaces",
        "twice",
        {"layers": []},
        {"layers": None},
        {"config": None},
        {"config": []},
    ],
)
def test_no_tag_gets_what_somebody_else_put_under_the_content_tag(store: Store, changes: dict[str, Any] | str) -> None:
    data = edited(store, **(changes if isinstance(changes, dict) else {}))
    if changes == "twice":
        data = data.replace(b"{", b'{"config": ' + json.dumps(THEIRS).encode() + b", ", 1)
    elif changes == "gzip":  # which no deploy takes
        data = data.replace(b"tar+zstd", b"tar+gzip", 1)
    elif changes == "size as a float":
        data = re.sub(rb'"size":(\d+)', rb'"size":\1.0', data, count=1)
    elif isinstance(changes, str):
        data += b" "
    store.manifests[NAME, CONTENT] = (store.manifests[NAME, CONTENT][0], data)
    theirs = sha256(data)
    done, said, _ = publish(store)
    assert {digest(store, tag) for tag in (CONTENT, *TAGS)} == {done}
    assert done != theirs
    assert json.loads(store.manifests[NAME, TAGS[0]][1])["config"]["digest"] == sha256(Layers(BASE).config)
    assert f"{CONTENT} is another image, {theirs}: it gets the one that was built here" in said


def test_bytes_under_the_content_tag_that_are_no_manifest(store: Store) -> None:
    store.manifests[NAME, CONTENT] = (MANIFEST, b"<html>")
    done = publish(store)[0]
    assert {digest(store, tag) for tag in (CONTENT, *TAGS)} == {done}


def test_another_image_of_the_same_content_moves_no_taken_tag(store: Store) -> None:
    theirs = publish(store)[0]
    with pytest.raises(CheckFailed) as caught:
        publish(store, Layers(TOP))
    assert caught.value.code == "tag-exists"
    assert {digest(store, tag) for tag in (CONTENT, *TAGS)} == {theirs}
    done = publish(store, Layers(TOP), move_tags=True)[0]
    assert {digest(store, tag) for tag in (CONTENT, *TAGS)} == {done} != {theirs}


def test_media_type_that_a_manifest_leaves_out() -> None:
    assert media_type(b'{"manifests":[]}') == INDEX
    assert media_type(b'{"layers":[]}') == MANIFEST


def test_transient_failures_are_waited_out(store: Store) -> None:
    store.faults += [failing(503, "GET", 2), failing(502, "PUT", 1)]
    done, said, slept = publish(store, attempts=3)
    assert {digest(store, tag) for tag in (CONTENT, *TAGS)} == {done}
    assert slept == [2, 4, 2]
    assert "attempt 2 of 3 in 2 s" in said[0]


def test_transient_failure_that_stays(store: Store) -> None:
    store.faults.append(failing(503, "GET", 99))
    with pytest.raises(CheckFailed, match=r"can't answer requests now \(3 attempts\)"):
        publish(store, attempts=3)
    assert manifests(store) == [f"GET {CONTENT}"] * 3


@pytest.mark.parametrize("code", [401, 403])
def test_denied_lookup_of_what_may_not_exist_yet_is_left_to_the_push(store: Store, code: int) -> None:
    store.faults.append(failing(code, "GET", 2))
    assert publish(store)[0] == digest(store, TAGS[1])
    source = Layers(TOP)
    store.manifests.clear()
    store.faults[:] = [failing(code, "GET", 99), failing(code, "POST", 99)]
    with pytest.raises(Missing, match="denies access") as caught:
        publish(store, source)
    assert caught.value.next_step is not None
    assert f"docker login {store.host}`" in caught.value.next_step
    assert source.read == [], "no layer is packed for a registry that refuses"


def test_an_upload_that_cannot_be_cancelled_stops_no_push(store: Store) -> None:
    def fault(handler: Handler) -> bool:
        if handler.command == "DELETE":
            handler.hang_up()
            return True
        return False

    store.faults.append(fault)
    assert publish(store)[0] == digest(store, TAGS[1])
    assert store.count("^DELETE") == 1


def test_denied_lookup_of_a_tag_is_never_taken_for_a_free_name(store: Store) -> None:
    def fault(handler: Handler) -> bool:
        if handler.command == "GET" and handler.path.endswith(TAGS[0]):
            handler.answer(403)
            return True
        return False

    taken(store, TAGS[0])
    store.faults.append(fault)
    with pytest.raises(Missing, match="denies access"):
        publish(store, move_tags=True)


def test_registry_that_answers_with_another_digest(store: Store) -> None:
    def fault(handler: Handler) -> bool:
        if handler.command == "GET" and (NAME, TAGS[0]) in store.manifests:
            taken(store, TAGS[0])
        return False

    store.faults.append(fault)
    with pytest.raises(CheckFailed, match=r"different manifest debian-13-tcp-2026\.47 than was sent") as caught:
        publish(store)
    assert caught.value.code == "digest-differs"


def engine() -> DockerClient:
    def get(name: str) -> Any:
        return SimpleNamespace(labels={"io.rocstack.content": "ab" * 32})

    return cast(DockerClient, SimpleNamespace(images=SimpleNamespace(get=get), info=dict))


def report(*roles: str) -> BuildReport:
    images = [
        ImageReport(role=role, reference=f"rocstack/{role}:x", status="built", seconds=0, log="") for role in roles
    ]
    return BuildReport.model_construct(stack="debian-13", nic="tcp", images=tuple(images))


def test_every_image_of_a_report_is_pushed_and_layers_are_sent_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the login of `docker login`, over http, which a loopback address may speak."""
    sources = {"rocstack/worker:x": Layers(BASE, TOP), "rocstack/control:x": Layers(BASE)}
    monkeypatch.setattr(LocalImage, "find", lambda client, name: sources[name].image())
    monkeypatch.setattr(
        "rocstack.registry.registry_http.docker_login",
        lambda host: RegistryLogin("ada", "s3cret") if host == store.host else None,
    )
    store.password = "s3cret"
    said: list[str] = []
    settings = Settings(push=f"{store.host}/hpc", tag="2026.47", out=str(tmp_path))
    done = push_images(engine(), report("worker", "control"), settings, move_tags=False, say=said.append)
    for image in done.images:
        name = f"hpc/rocstack-{image.role}"
        expected = {f"{store.host}/{name}:{tag}" for tag in (f"c-{'ab' * 8}", "2026.47", "debian-13-tcp-2026.47")}
        assert set(image.pushed) == expected
        assert set(image.pushed.values()) == {sha256(store.manifests[name, "2026.47"][1])}
    assert sources["rocstack/control:x"].read == [], "the worker's repository has this layer"
    assert "s3cret" not in " ".join((*said, *store.requests))


def test_no_local_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rocstack.registry.local_image.find_image", lambda client, name: None)
    settings = Settings(push="127.0.0.1:9", tag="x", out=str(tmp_path))
    with pytest.raises(BadInput, match="there is no image 'rocstack/worker:x'"):
        push_images(engine(), report("worker"), settings, move_tags=False, say=print)
