"""What several tests share: a command's result, the files of a folder, a stack joined with its parts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.image import render
from rocstack.image.context import Context
from rocstack.stack import component, overlay, resolve, stack
from rocstack.stack.lock import Lock, for_stack


@dataclass(frozen=True)
class Ran:
    """What a command did: exit code, standard output and error."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


def listing(folder: Path) -> dict[str, bytes | None]:
    """Every path under `folder` with its content, to see that nothing was left or changed."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


@dataclass(frozen=True)
class Joined:
    """A stack, a NIC profile and an overlay, resolved."""

    resolved: resolve.Resolved
    components: component.TemplateLibrary
    nics: component.TemplateLibrary
    lock: Lock | None

    def render(self) -> Context:
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


def refusal(call: Callable[[], object]) -> BadInput | None:
    """Why `call` was refused; None where it was not."""
    try:
        call()
    except BadInput as error:
        return error
    return None


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
