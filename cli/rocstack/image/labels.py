"""The labels of an image: all that `deploy` needs to judge it. Pure."""

import hashlib
import json
from typing import Any

from rocstack.base import __version__
from rocstack.image.base_image import BaseImage
from rocstack.stack.component import Role
from rocstack.stack.lock import Lock
from rocstack.stack.resolve import Resolved

OCI = "org.opencontainers.image."
OWN = "io.rocstack."


def content_digest(context_digest: str, base: BaseImage, manifest: dict[str, Any], rehearsal: str = "") -> str:
    """sha256 of everything that decides what the image is: the rendered context, the base, the package and wheel
    versions in it, and a rehearsal image's mark."""
    inputs = [
        context_digest,
        base.digest,
        manifest["packages"],
        manifest["wheels"],
        *([rehearsal] if rehearsal else []),
    ]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def labels(
    resolved: Resolved,
    role: Role,
    base: BaseImage,
    lock: Lock | None,
    manifest: dict[str, Any],
    content: str,
    drifted: int = 0,
    rehearsal: str = "",
) -> dict[str, str]:
    """OCI annotations and io.rocstack.*; values that don't apply are left out. `rehearsal`: what the image lacks for
    the GPUs of the nodes that it is built for."""
    out = {
        OCI + "title": f"rocstack {resolved.called(role)} {resolved.stack.name} {resolved.nic.name}",
        OCI + "description": str(resolved.stack.about),
        OCI + "version": __version__,
        OCI + "base.name": base.reference,
        OCI + "base.digest": base.digest,
        OWN + "version": __version__,
        OWN + "stack": resolved.stack.name,
        OWN + "role": resolved.called(role),
        OWN + "nic": resolved.nic.name,
        OWN + "nic.way": resolved.ways,
        **({OWN + "gfx": ",".join(resolved.stack.gfx)} if resolved.stack.gfx else {}),
        OWN + "base.how": base.how,
        OWN + "base.digest": base.digest,
        OWN + "content": content,
    }
    name, rocm = resolved.framework
    if role == "worker" and name:
        out[OWN + "framework"] = name
        out |= {OWN + "framework.rocm": rocm} if rocm else {}
    if rehearsal:
        out[OWN + "rehearsal"] = rehearsal
    method = resolved.facts().get("rocm.method")
    if method and role == "worker":
        out[OWN + "rocm.method"] = method  # AMD's table speaks of AMD's own packages
    if resolved.reading and resolved.reading.hip:
        out[OWN + "torch.hip"] = resolved.reading.hip
    if lock:
        out[OWN + "lock"] = lock.digest()
        out[OWN + "lock.drift"] = str(drifted)  # how many versions differ from the lock
    measured = manifest["facts"]  # in the image: glibc, ABIs, the provider's sha256
    out |= {OWN + key: value for key, value in measured.items()}
    out |= {f"{OWN}component.{component}": version for component, version in manifest["versions"].items()}
    return dict(sorted(out.items()))
