"""The labels of an image: what a node's kernel and driver can be judged by, with no more than text in them."""

from __future__ import annotations

from typing import Any

import pytest
from resolved_stack import Joined, join

from rocstack.base import __version__
from rocstack.image.base_image import BaseImage
from rocstack.image.labels import content_digest, labels

BASE = BaseImage(reference="debian:trixie-slim", digest="sha256:" + "1" * 64, how="registry")
MANIFEST: dict[str, Any] = {
    "packages": {"a": "1"},
    "wheels": {"w": "2"},
    "versions": {"ucx": "1.18.1", "slurm": "24.11.5"},
    "facts": {"verbs.private-abi": "34", "nic.provider": "/usr/lib/x.so"},
}


@pytest.mark.parametrize("role", ["worker", "control"])
def test_labels(role: Any, default: Joined) -> None:
    found = labels(default.resolved, role, BASE, default.lock, MANIFEST, "c" * 64, 3)
    assert default.lock
    own = {key.removeprefix("io.rocstack."): value for key, value in found.items() if key.startswith("io.rocstack.")}
    assert own == {
        "version": __version__,
        "stack": "debian-13",
        "role": role,
        "nic": "tcp",
        "nic.way": "inbox",
        "gfx": ",".join(default.resolved.stack.gfx),
        "base.how": "registry",
        "base.digest": BASE.digest,
        "content": "c" * 64,
        "lock": default.lock.digest(),
        "lock.drift": "3",
        "verbs.private-abi": "34",
        "nic.provider": "/usr/lib/x.so",
        "component.ucx": "1.18.1",
        "component.slurm": "24.11.5",
        **({"rocm.method": "apt", "framework": "pytorch"} if role == "worker" else {}),
    }
    oci = {key.removeprefix("org.opencontainers.image."): value for key, value in found.items() if key not in own}
    assert oci["base.name"] == "debian:trixie-slim"
    assert oci["base.digest"] == BASE.digest
    assert oci["title"] == f"rocstack {role} debian-13 tcp"
    assert list(found) == sorted(found)
    assert all(isinstance(value, str) and value and "\n" not in value for value in found.values())


def test_the_framework_and_the_mark_of_a_rehearsal() -> None:
    resolved = join("rocm-7.2-ubuntu-24.04").resolved
    found = labels(resolved, "worker", BASE, None, MANIFEST, "c", 0, "no code for gfx1201")
    assert (found["io.rocstack.framework"], found["io.rocstack.framework.rocm"]) == ("pytorch", "7.2")
    assert found["io.rocstack.rehearsal"] == "no code for gfx1201"
    assert content_digest("x", BASE, MANIFEST, "no code for gfx1201") != content_digest("x", BASE, MANIFEST)


def test_without_a_lock_no_label_speaks_of_one() -> None:
    found = labels(join(nic="broadcom").resolved, "worker", BASE, None, MANIFEST, "c", 0)
    assert "io.rocstack.nic.kernel-abi" not in found  # only what was measured in the image
    assert not [key for key in found if key.startswith("io.rocstack.lock")]


def test_content_is_what_decides_the_image() -> None:
    plain = content_digest("x", BASE, MANIFEST)
    assert plain == content_digest("x", BASE, {**MANIFEST, "versions": {}, "facts": {}, "packages": {"a": "1"}})
    reordered = {**MANIFEST, "packages": dict(reversed({"b": "2", "a": "1"}.items()))}
    assert content_digest("x", BASE, reordered) == content_digest(
        "x", BASE, {**MANIFEST, "packages": {"a": "1", "b": "2"}}
    )
    others = [
        content_digest("y", BASE, MANIFEST),
        content_digest("x", BASE.model_copy(update={"digest": "sha256:2"}), MANIFEST),
        content_digest("x", BASE, {**MANIFEST, "packages": {"a": "2"}}),
        content_digest("x", BASE, {**MANIFEST, "wheels": {}}),
    ]
    assert len({plain, *others}) == 5
