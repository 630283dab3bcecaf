"""release.json and the notes made of it."""

from __future__ import annotations

from typing import Any

import pytest
from made_runs import on, result, run

from rocstack.release.record import LARGEST, ReleasedImage, ReleaseRecord, changes, loads, notes
from rocstack.release.report import measured
from rocstack.verify.result import NodeSeen


def image(**more: Any) -> ReleasedImage:
    about: dict[str, Any] = {
        "stack": "debian-13", "nic": "tcp", "way": "inbox", "role": "worker", "variant": "debian-13-tcp",
        "repository": "registry.example/hpc/rocstack-worker", "digest": f"sha256:{'a' * 64}",
        "id": f"sha256:{'b' * 64}",
        "inputs": "c" * 64, "lock": "d" * 64, "content": "e" * 64, "size": 1_185_000_000, "compressed": 480_000_000,
        "versions": {"rocm": "6.1.2", "ucx": "1.18.1"}, "packages": {"bash": "5.2", "curl": "8.1"},
        "tags": ("debian-13-tcp-2026.47", "2026.47"),
    }  # fmt: skip
    return ReleasedImage(**{**about, **more})


def release(*images: ReleasedImage, **more: Any) -> ReleaseRecord:
    about = {
        "tag": "2026.47",
        "created": "2026-11-22T03:17:00Z",
        "rocstack": "0.1.0",
        "registry": "registry.example/hpc",
    }
    return ReleaseRecord(**{**about, **more}, images=images or (image(),))


def test_it_is_read_as_it_was_written() -> None:
    made = release(image(), image(role="control"))
    assert loads(made.dumps().encode()) == made


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{", b"[" * 100_000, b'{"tag": 1}', b"x" * (LARGEST + 1),
        release().dumps().replace('"schema_version": 1', '"schema_version": 2').encode(),
        release().dumps().replace("sha256:aaaa", "sha256:zzzz").encode(),
        release().dumps().replace('"size": 1185000000', f'"size": {"9" * 400}').encode(),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        loads(text)


def test_changes_are_those_of_versions_and_packages() -> None:
    new = image(
        digest=f"sha256:{'f' * 64}", versions={"rocm": "7.2", "ucx": "1.18.1"}, packages={"bash": "5.3", "zlib": "1"}
    )
    found = changes(release(), release(new, image(role="control", digest=f"sha256:{'0' * 64}")))
    assert found == {
        "debian-13-tcp worker": (
            "rocm: 6.1.2 -> 7.2", "bash: 5.2 -> 5.3", "curl: 8.1 -> gone", "zlib: not there -> 1",
        ),
        "debian-13-tcp control": ("new in this release",),
    }  # fmt: skip
    assert changes(release(), release()) == {"debian-13-tcp worker": ()}
    again = image(digest=f"sha256:{'f' * 64}")
    assert changes(release(), release(again)) == {"debian-13-tcp worker": ("the same versions, built again",)}


def test_notes_say_sizes_versions_changes_and_that_nothing_was_looked_up() -> None:
    text = notes(release(image(versions={"rocm": "7.2"})), release(tag="2026.46"), ["SHA256:abc"])
    assert "480 MB | 1185 MB" in text
    assert "| rocm | 7.2 |" in text
    assert "## Changes since 2026.46" in text
    assert "not looked up" in text
    assert "none" not in text.lower()
    assert "`SHA256:abc`" in text


def test_what_a_registry_said_is_no_markup_in_notes() -> None:
    text = notes(release(image(versions={"a|b": "<script>"})), None, [])
    assert "<script>" not in text
    assert "a\\|b" in text


def test_what_is_not_in_a_release_any_more_is_said() -> None:
    text = notes(release(), release(image(), image(variant="debian-13-broadcom"), tag="2026.46"), [])
    assert "debian-13-broadcom worker: not in this release any more" in text


def test_what_was_measured_is_in_the_notes() -> None:
    figures = result(
        on("n1", value=100.0, unit="GB|s"), on("n2", value=300, unit="GB|s"), on("n3", value=True), name="rccl"
    )
    real = measured(run(figures, when="2026-11-26T10:00:00Z"))
    assert "on 2026-11-26T10:00:00Z, 2 workers; level 1 is proved." in real
    assert "| rccl | 200 | 100 to 300 | GB\\|s | passed |" in real
    assert "Nothing was measured in numbers." in measured(run())
    text = notes(release(), None, [], real)
    assert text.index("## Versions") < text.index("## Measured") < text.index("## Vulnerabilities")
    seen = tuple(NodeSeen(name=name, roles=("worker",), virtual="mi300x-thor2") for name in ("n1", "n2"))
    assert "of GPUs and fabric is of emulated ones" in measured(run(figures, seen=seen))
