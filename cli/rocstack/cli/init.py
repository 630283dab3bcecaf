"""`rocstack init`: commented files to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import out, print_json

INVENTORY = """\
# An ordinary Ansible inventory. One control node; it may be a worker too.
all:
  vars:
    ansible_user: root
  children:
    control:
      hosts:
        head:
          ansible_host: 192.0.2.10
    workers:
      hosts:
        node[01:04]:
"""


def register(app: typer.Typer) -> None:
    app.command("init", epilog="Example: rocstack init")(init)


def init(
    folder: Annotated[Path, typer.Argument(help="Where the files go.")] = Path("."),
    json: options.Json = False,
) -> None:
    """Write a commented rocstack.yml and inventory.yml; files that exist are left alone."""
    files = {"rocstack.yml": settings_text(), "inventory.yml": INVENTORY}
    folder.mkdir(parents=True, exist_ok=True)
    written = [name for name in files if not (folder / name).exists()]
    for name in written:
        (folder / name).write_text(files[name])
    if json:
        print_json({"written": written, "kept": [name for name in files if name not in written]})
        return
    for name in files:
        out.print(f"{'wrote' if name in written else 'kept'} {folder / name}", markup=False)
    out.print("next: rocstack build")


def settings_text() -> str:
    """Every setting with its description and default, commented out."""
    from pydantic import BaseModel

    from rocstack.settings import Settings

    lines = [
        "# Settings of rocstack. A flag or a ROCSTACK_* variable wins over this file; `rocstack config` shows all.",
        "",
    ]
    for name, info in Settings.model_fields.items():
        default = info.default
        shown = (
            {None: "null", "": '""'}.get(default, default)
            if not isinstance(default, BaseModel)
            else default.model_dump_json()
        )
        lines += [f"# {info.description}", f"#{name}: {shown}", ""]
    return "\n".join(lines)
