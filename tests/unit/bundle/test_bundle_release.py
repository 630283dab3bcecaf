"""What is in a bundle: somebody who knows its form and writes bundle.json anew is refused by signatures and digests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundled import KEY, TinySite, edited, members, tiny_site
from tiny_release import LAYERS, image, packed

from rocstack.base.errors import CheckFailed, RocstackError
from rocstack.bundle.check import blob_path, check
from rocstack.bundle.file import BundleFile, read_record
from rocstack.bundle.into_registry import into_registry
from rocstack.bundle.layout import NAME, BundleLayout
from rocstack.bundle.needed import BundleBlobs
from rocstack.registry.layers import sha256
from rocstack.registry.oci import media_type, parse_manifest
from rocstack.release.plan import LATEST
from rocstack.release.record import ReleaseRecord
from rocstack.trust import attached
from rocstack.trust.keys import SigningKey

Contents = dict[str, bytes]


@pytest.fixture
def site() -> Iterator[TinySite]:
    with tiny_site() as site:
        site.publish()
        yield site


@pytest.fixture
def bundle(site: TinySite, tmp_path: Path) -> Path:
    path = tmp_path / "site.bundle"
    site.bundle(path)
    return path


def refused(path: Path, *keys: SigningKey) -> RocstackError:
    with pytest.raises(RocstackError) as caught, BundleFile.open(path) as opened:
        check(opened, [key.public for key in keys])
    return caught.value


def layout_of(contents: Contents) -> BundleLayout:
    return BundleLayout.parse("x", contents["index.json"], lambda digest: contents.get(blob_path(digest)))


def release_of(contents: Contents) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(contents["release.json"])
    return found


def named(contents: Contents, names: dict[str, str]) -> None:
    """Writes index.json anew, and drops blobs that nothing refers to any more."""
    layout = BundleLayout("x", names, lambda digest: contents.get(blob_path(digest)))
    contents["index.json"] = layout.index()
    wanted = {blob_path(blob.digest) for blob in layout.blobs(names.values())}
    for name in [name for name in contents if name.startswith("blobs/") and name not in wanted]:
        del contents[name]


def put(contents: Contents, data: bytes) -> str:
    contents[blob_path(sha256(data))] = data
    return sha256(data)


def without(kind: str) -> Callable[[Contents], None]:
    def change(contents: Contents) -> None:
        digest = release_of(contents)["images"][0]["digest"]
        names = dict(layout_of(contents).names)
        del names[f"rocstack-worker:{attached.tag(digest, kind)}"]  # type: ignore[arg-type]
        named(contents, names)

    return change


def another_image(contents: Contents) -> None:
    """In the place of the worker, with release.json and its list as they were."""
    config, data, (content,) = image([b"x" * 10_240], "2026-11-20T08:00:00Z")
    for each in (config, content):
        put(contents, each)
    names = dict(layout_of(contents).names)
    old = names["rocstack-worker:2026.47"]
    named(contents, {name: put(contents, data) if digest == old else digest for name, digest in names.items()})


def another_list(contents: Contents) -> None:
    """release.json says something else, and so does what lists it; nobody signed that."""
    release = release_of(contents)
    release["created"] = "2027-01-01T00:00:00Z"
    text = (json.dumps(release, indent=1) + "\n").encode()
    names = dict(layout_of(contents).names)
    old = names["rocstack-release:2026.47"]
    listing = json.loads(contents[blob_path(old)])
    listing["layers"][0] |= {"digest": put(contents, text), "size": len(text)}
    contents["release.json"] = text
    record = json.loads(contents["bundle.json"])
    contents["bundle.json"] = json.dumps({**record, "created": release["created"]}).encode()
    names["rocstack-release:2026.47"] = put(contents, json.dumps(listing).encode())
    named(contents, names)


def another_layer(contents: Contents) -> None:
    """A manifest that names another layer, in the place of the image's; its signature stays."""
    names = dict(layout_of(contents).names)
    old = names["rocstack-control:2026.47"]
    parsed = json.loads(contents[blob_path(old)])
    content, blob = packed(b"y" * 10_240)
    parsed["layers"][-1] = blob.descriptor
    put(contents, content)
    new = put(contents, json.dumps(parsed, separators=(",", ":")).encode())
    named(contents, {name: new if digest == old else digest for name, digest in names.items()})


def more_named(contents: Contents) -> None:
    config, data, (content,) = image([b"x" * 10_240], "2026-11-20T08:00:00Z")
    for each in (config, content, data):
        put(contents, each)
    names = dict(layout_of(contents).names) | {"rocstack-worker:evil": sha256(data)}
    named(contents, names)


def swapped_tags(contents: Contents) -> None:
    names = dict(layout_of(contents).names)
    worker, control = names["rocstack-worker:2026.47"], names["rocstack-control:2026.47"]
    named(contents, names | {"rocstack-worker:2026.47": control, "rocstack-control:2026.47": worker})


def annotated(contents: Contents) -> None:
    index = json.loads(contents["index.json"])
    index["manifests"][0]["annotations"]["x"] = "y"
    assert NAME in index["manifests"][0]["annotations"]
    contents["index.json"] = json.dumps(index).encode()


def no_layer(contents: Contents) -> None:
    release = release_of(contents)
    _, layers = parse_manifest(contents[blob_path(release["images"][0]["digest"])])
    del contents[blob_path(layers[0].digest)]


CHANGED: dict[str, tuple[str, Callable[[Contents], object]]] = {
    "the signature gone": ("image-unsigned", without("sig")),
    "the attestations gone": ("attestation-absent", without("att")),
    "another image in its place": ("image-absent", another_image),
    "another layer in its place": ("image-absent", another_layer),
    "another release.json alone": ("bundle-incoherent", lambda c: c.update({"release.json": b"{}"})),
    "another list": ("image-unsigned", another_list),
    "another lock": ("bundle-incoherent", lambda c: c.update({"locks/debian-13-tcp.lock": b"{}"})),
    "no lock": ("bundle-incoherent", lambda c: c.pop("locks/debian-13-tcp.lock")),
    "no release.json": ("bundle-incoherent", lambda c: c.pop("release.json")),
    "a layer gone": ("bundle-incoherent", no_layer),
    "a blob that nothing names": ("bundle-unlisted", lambda c: put(c, b"hello")),
    "a file more": ("bundle-unlisted", lambda c: c.update({"notes.txt": b"hello"})),
    "an image more": ("bundle-unlisted", more_named),
    "tags swapped": ("bundle-incoherent", swapped_tags),
    "an annotation more": ("bundle-incoherent", annotated),
    "another version of the layout": ("bundle-incoherent", lambda c: c.update({"oci-layout": b"{}"})),
}


@pytest.mark.parametrize("case", CHANGED)
def test_what_somebody_changed_is_refused_by_name(bundle: Path, case: str) -> None:
    code, change = CHANGED[case]
    edited(bundle, change)
    assert refused(bundle, KEY).code == code


def test_another_key_proves_nothing(bundle: Path) -> None:
    assert refused(bundle, SigningKey.generate()).code == "unknown-signer"


def test_without_keys_only_digests_are_compared(bundle: Path) -> None:
    with BundleFile.open(bundle) as opened:
        assert check(opened, []).proved.signers == ()
    edited(bundle, no_layer)
    assert refused(bundle).code == "bundle-incoherent"


def test_for_another_architecture(site: TinySite, tmp_path: Path) -> None:
    site.publish("2026.48", architecture="s390x")
    with pytest.raises(CheckFailed) as caught:
        site.bundle(tmp_path / "x.bundle")
    assert caught.value.code == "bundle-other-machine"
    with pytest.raises(CheckFailed) as caught, BundleFile.open(_bundle(site, tmp_path, "2026.47")) as opened:
        check(opened, [KEY.public], machine=lambda: "s390x")
    assert caught.value.code == "bundle-other-machine"


def _bundle(site: TinySite, folder: Path, tag: str) -> Path:
    site.bundle(folder / tag, tag)
    return folder / tag


# Into a registry


def fill(site: TinySite, path: Path, *earlier: Path, downgrade: bool = False) -> Any:
    with BundleFile.open(path) as opened:
        checked = check(opened, [KEY.public])
        held = [BundleFile.open(each) for each in earlier]
        files = [each.__enter__() for each in held]
        try:
            blobs = BundleBlobs(checked, files)
            return into_registry(site.site("there"), checked, blobs, downgrade=downgrade, note=lambda text: None)
        finally:
            for each in held:
                each.__exit__(None, None, None)


def test_a_filled_registry_is_one_of_releases(site: TinySite, bundle: Path) -> None:
    filled = fill(site, bundle)
    assert {each.reference.rpartition("/")[2] for each in filled} == {
        "rocstack-worker", "rocstack-control", "rocstack-release",
    }  # fmt: skip
    found = site.site("there")
    release = found.listed("2026.47").release
    assert isinstance(release, ReleaseRecord)
    assert [each.error for each in found.verified(release, whole=True)] == [None, None]
    assert found.listed(LATEST).release == release


def test_a_second_time_nothing_is_sent(site: TinySite, bundle: Path) -> None:
    fill(site, bundle)
    before = len(site.store.requests)
    assert [(each.bytes_sent, each.tags) for each in fill(site, bundle)] == [(0, ()), (0, ()), (0, ())]
    assert not [each for each in site.store.requests[before:] if each.startswith("PUT")]


def test_what_is_gone_comes_back(site: TinySite, bundle: Path) -> None:
    fill(site, bundle)
    gone = next(key for key in site.store.manifests if key[0].startswith("there") and key[1].endswith(".sig"))
    del site.store.manifests[gone]
    fill(site, bundle)
    assert gone in site.store.manifests


def test_an_older_release_needs_a_word(site: TinySite, bundle: Path, tmp_path: Path) -> None:
    site.publish("2026.48", created="2026-11-27T08:00:00Z")
    fill(site, _bundle(site, tmp_path, "2026.48"))
    before = dict(site.store.manifests)
    with pytest.raises(CheckFailed) as caught:
        fill(site, bundle)
    assert caught.value.code == "bundle-older"
    assert site.store.manifests == before
    fill(site, bundle, downgrade=True)
    assert site.site("there").listed(LATEST).release.tag == "2026.47"


def test_a_taken_tag_is_not_moved(site: TinySite, bundle: Path, tmp_path: Path) -> None:
    fill(site, bundle)
    site.publish("2026.47", created="2026-11-27T08:00:00Z", layers={"worker": ("other",)})
    other = _bundle(site, tmp_path, "2026.47")
    with pytest.raises(CheckFailed) as caught:
        fill(site, other)
    assert caught.value.code == "bundle-tag-taken"


# Deltas

NEXT = {"worker": ("base", "rocm", "trainer-2"), "control": LAYERS["control"]}


@pytest.fixture
def delta(site: TinySite, bundle: Path, tmp_path: Path) -> Path:
    site.publish("2026.48", NEXT, created="2026-11-27T08:00:00Z")
    site.bundle(tmp_path / "delta.bundle", earlier=read_record(bundle))
    return tmp_path / "delta.bundle"


def test_a_delta_has_the_layers_alone_that_are_new(delta: Path) -> None:
    record = read_record(delta)
    layers = [data for data in members(delta).values() if data.startswith(b"\x28\xb5\x2f\xfd")]
    assert (len(layers), record.since, len(record.absent)) == (1, "2026.47", 3 + 3)
    assert b"SINCE=2026.47\n" in members(delta)["install"]


def test_a_delta_goes_where_the_earlier_one_was(site: TinySite, bundle: Path, delta: Path) -> None:
    fill(site, bundle)
    fill(site, delta)
    found = site.site("there")
    assert all(each.error is None for each in found.verified(found.listed("2026.48").release, whole=True))


def test_elsewhere_it_says_which_file_it_needs(site: TinySite, bundle: Path, delta: Path) -> None:
    before = dict(site.store.blobs)
    with pytest.raises(CheckFailed) as caught:
        fill(site, delta)
    assert caught.value.code == "bundle-needs"
    assert "3 layers" in caught.value.what
    assert "2026.47" in str(caught.value.next_step)
    assert site.store.blobs == before
    fill(site, delta, bundle)
    found = site.site("there")
    assert all(each.error is None for each in found.verified(found.listed("2026.48").release, whole=True))


def test_a_delta_to_a_delta_leaves_out_what_both_have(site: TinySite, delta: Path, tmp_path: Path) -> None:
    site.publish("2026.49", {**NEXT, "worker": ("base", "rocm", "trainer-3")}, created="2026-12-04T08:00:00Z")
    site.bundle(tmp_path / "third.bundle", earlier=read_record(delta))
    record = read_record(tmp_path / "third.bundle")
    layers = [data for data in members(tmp_path / "third.bundle").values() if data.startswith(b"\x28\xb5\x2f\xfd")]
    assert (len(layers), record.since, len(record.absent)) == (1, "2026.48", 3 + 3)


def test_media_types_are_those_of_the_manifests(bundle: Path) -> None:
    contents = members(bundle)
    for each in json.loads(contents["index.json"])["manifests"]:
        assert each["mediaType"] == media_type(contents[blob_path(each["digest"])])


def test_a_manifest_is_read_once_under_however_many_names() -> None:
    """Before a signature is looked at, a stranger's index may name a large one thousands of times."""
    reads: list[str] = []

    def read(digest: str) -> bytes:
        reads.append(digest)
        return b'{"schemaVersion": 2, "config": {}, "layers": []}'

    names = {f"rocstack-worker:{number}": "sha256:" + "a" * 64 for number in range(50)}
    BundleLayout("x", names, read).index()
    assert len(reads) == 1
