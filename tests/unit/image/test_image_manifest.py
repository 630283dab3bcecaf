"""The manifest of an image that was built on a stranger's base: a manifest, or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker import DockerClient
from resolved_stack import Joined

from rocstack.image import image_manifest
from rocstack.image.base_image import BaseImage
from rocstack.image.build import Build
from rocstack.image.build_progress import BuildProgress
from rocstack.image.buildkit import Buildkit, BuildkitRequest
from rocstack.image.context import BuildContext, ContextFile
from rocstack.settings.settings import Settings
from rocstack.settings.site import Site

GOOD: dict[str, Any] = {
    "versions": {"rocm": "7.2"},
    "facts": {"glibc": "2.41"},
    "size": {"bytes": 1, "components": {"base": 1}, "largest_packages": {"a": 1}, "largest_files": {}},
    "smoke": {"rocm": {"ok": ["x"], "skipped": []}},
    "packages": {},
    "wheels": {},
}


def folder(path: Path) -> None:
    (path / "manifest.json/x").mkdir(parents=True)


def link(path: Path) -> None:
    (path / "elsewhere").write_text(json.dumps(GOOD))
    (path / "manifest.json").symlink_to("elsewhere")


def pipe(path: Path) -> None:
    os.mkfifo(path / "manifest.json")


def text(data: object) -> Any:
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    return lambda path: (path / "manifest.json").write_bytes(content)


HOSTILE = {
    "nothing": lambda path: None,
    "a folder": folder,
    "a link": link,
    "a pipe": pipe,
    "empty": text(b""),
    "deep": text(b"[" * 100_000),
    "no text": text(b"\xff\xfe{"),
    "a list": text([]),
    "no sizes": text({**GOOD, "size": 3}),
    "a version that is none": text({**GOOD, "versions": {"rocm": ["7"]}}),
    "large": text(b" " * (image_manifest.LARGEST + 1)),
}


def test_a_manifest(tmp_path: Path) -> None:
    text(GOOD)(tmp_path)
    assert image_manifest.read(tmp_path) == GOOD


@pytest.mark.parametrize("name", HOSTILE)
def test_what_stands_in_its_place_is_refused(name: str, tmp_path: Path) -> None:
    HOSTILE[name](tmp_path)
    with pytest.raises(ValueError):  # noqa: PT011
        image_manifest.read(tmp_path)


class Builder(Buildkit):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def run(self, request: BuildkitRequest, on_event: Any) -> tuple[int, BuildProgress]:
        assert request.dest is not None
        request.dest.mkdir(parents=True)
        self.make(request.dest)
        return 0, BuildProgress()


@pytest.mark.parametrize("name", ["nothing", "a folder", "no sizes"])
def test_the_build_fails_and_says_why(name: str, default: Joined, tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    text(GOOD)(tmp_path / "worker")  # of the last build
    build = Build(
        client=cast(DockerClient, SimpleNamespace()), resolved=default.resolved, lock=None,
            context=BuildContext({"Dockerfile": ContextFile(b"")}),
        base=BaseImage(reference="a", digest="b", how="given"), settings=Settings(), site=Site(), folder=tmp_path,
        roles=("worker",), _builder=Builder(HOSTILE[name]),
    )  # fmt: skip
    (image,) = build.run().images
    assert image.status == "failed"
    assert image.failure
    assert image.failure.error.startswith("the image's manifest can't be read: ")
