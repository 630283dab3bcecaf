"""Manifests that others wrote."""

import json

import pytest

from rocstack.registry.oci import CONFIG, INDEX, Blob, is_of, manifest, parse_manifest

CONFIGURATION = b'{"rootfs": {}}'
OURS = json.loads(manifest(CONFIGURATION, [Blob(digest="sha256:" + "a" * 64, size=7)]))
ID = OURS["config"]["digest"]


def test_the_image_of_a_manifest() -> None:
    data = json.dumps(OURS).encode()
    assert parse_manifest(data)[0] == ID
    assert is_of(data, ID)
    assert not is_of(data, "sha256:" + "b" * 64)
    assert not is_of(None, ID)


@pytest.mark.parametrize("more", [{"manifests": [], "mediaType": INDEX}, {"manifests": None}, {"fsLayers": []}])
def test_what_another_reader_takes_for_something_else_is_no_image(more: dict[str, object]) -> None:
    """An engine goes by `manifests` or the media type where we go by `config`: it would run another image."""
    data = json.dumps({**OURS, **more}).encode()
    assert not is_of(data, ID)
    with pytest.raises(ValueError, match="something else at once"):
        parse_manifest(data)


def test_an_index_names_no_image() -> None:
    assert parse_manifest(json.dumps({"mediaType": INDEX, "manifests": []}).encode()) == ("", ())
    assert not is_of(b"{", CONFIG)
