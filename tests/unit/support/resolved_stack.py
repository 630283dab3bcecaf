"""A stack resolved with a NIC profile and an overlay, and the Dockerfile that comes of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.image import render
from rocstack.image.context import BuildContext
from rocstack.stack import component, overlay, resolve, stack
from rocstack.stack.lock import Lock, for_stack


@dataclass(frozen=True)
class Joined:
    """A stack, a NIC profile and an overlay, resolved."""

    resolved: resolve.Resolved
    components: component.TemplateLibrary
    nics: component.TemplateLibrary
    lock: Lock | None

    def render(self) -> BuildContext:
        return render.render(self.resolved, self.lock, self.components, self.nics)

    def dockerfile(self) -> str:
        return self.render().files["Dockerfile"].data.decode()


def join(name: str = "debian-13", nic: str = "tcp", folder: Path | None = None, **changes: Any) -> Joined:
    """`changes` go to the stack: its fields, already of the models' types."""
    layer = overlay.load(folder)
    components, nics = component.library("components", folder), component.library("nic", folder)
    chosen = stack.load(name, folder)
    lock = None if changes else for_stack(chosen, None)
    resolved = resolve.resolve(chosen.model_copy(update=changes), nic, components, nics, layer)
    return Joined(resolved, components, nics, lock)


def instructions(dockerfile: str) -> list[str]:
    """Logical lines at instruction positions: comments, continuations and heredocs taken out."""
    out, end, going = [], None, False
    for line in dockerfile.splitlines():
        if end:
            end = None if line == end else end
        elif not line.strip() or line.startswith("#"):
            continue
        else:
            if not going:
                out.append(line)
            opening = re.search(r"<<-?['\"]?(\w+)['\"]?$", line)
            end = opening[1] if opening else None
            going = line.endswith("\\")
    assert end is None
    assert not going
    return out
