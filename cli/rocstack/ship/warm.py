"""Fills the racks' registries before the nodes ask them. Pure, but for `check`.

Each mirror fetches for itself, from the control node or from a mirror that has the image: what runs on the control
node would send every copy through it. A mirror that is filled on demand protects nobody: while its first fetch
lasts, it hands every further request on (measured: 4.3 copies left the control node for 4 nodes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocstack.errors import CheckFailed
from rocstack.ship.oci import require_zstd
from rocstack.ship.repository import Repository

AUTH = "/run/rocstack/auth.json"


@dataclass(frozen=True)
class Copy:
    """One image's way from registry to registry (HOST:PORT), on the host of the second."""

    source: str
    target: str


def plan(control: str, mirrors: Sequence[str]) -> list[list[Copy]]:
    """Waves of copies that run at once: in each, everyone who has the image serves one who doesn't."""
    have, left, waves = [control], list(mirrors), list[list[Copy]]()
    while left:
        wave = [Copy(source, target) for source, target in zip(have, left, strict=False)]
        waves.append(wave)
        have += [copy.target for copy in wave]
        left = left[len(wave) :]
    return waves


def command(copy: Copy, repository: str, digest: str, tag: str, *, image: str, auth: str) -> list[str]:
    """What fills a mirror, run on its host: skopeo out of the control image.

    `auth` is a file there with the logins of both registries (as `docker login` writes it), mode 0600; the registries'
    certificates are those that the host's engine knows.
    """
    return [
        *("docker", "run", "--rm", "--network=host", f"--volume={auth}:{AUTH}:ro"),
        *("--volume=/etc/docker/certs.d:/etc/docker/certs.d:ro", "--entrypoint=skopeo", image),
        *("copy", "--all", "--preserve-digests", "--retry-times=3", f"--authfile={AUTH}"),
        f"docker://{copy.source}/{repository}@{digest}",
        f"docker://{copy.target}/{repository}:{tag}",
    ]


def check(mirror: Repository, digest: str) -> None:
    """
    Raises:
        CheckFailed: the mirror has not got this very image, with zstd layers.
    """
    data = mirror.manifest(digest)
    if data is None:
        raise CheckFailed(
            f"{mirror.reference} has not got {digest[:19]}",
            code="mirror-empty",
            cause="the copy failed, or its registry does not keep what it is given",
            next_step="see the registry's log on that host; run again: what has arrived is not sent twice",
        )
    require_zstd(data, mirror.reference)
