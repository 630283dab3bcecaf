"""`rocstack config` and `init`: the settings, and commented files to start from."""

import os
from pathlib import Path
from typing import Annotated

from rocstack.base import paths
from rocstack.cli.command import Answer, command
from rocstack.cli.ui import out, table
from rocstack.steps.options import Flag


@command("ROCSTACK_NIC=broadcom rocstack config")
def config(
    check: Annotated[bool, Flag("Check settings, cluster, inventory, stack and overlay; no node is needed.")] = False,
) -> Answer:
    """Show each setting, its value and where it came from (flag > variable > rocstack.yml > default)."""
    from pydantic import BaseModel

    from rocstack.settings.settings import Settings, load

    chosen, values = load({}, os.environ, Path.cwd())
    if check:
        from rocstack.steps import check as steps

        result = steps.check(chosen)
        yield result
        out.say(f"in order: {', '.join(result.checked)}")
        for warning in result.warnings:
            out.say(f"note: {warning}")
        if result.absent:
            out.say(f"not there: {', '.join(result.absent)}")
        return
    texts = {name: info.description or "" for name, info in Settings.model_fields.items()}
    yield {
        name: {"value": value.model_dump() if isinstance(value, BaseModel) else value, "source": source, "about": about}
        for name, value, source, about in ((each.name, each.value, each.source, texts[each.name]) for each in values)
    }
    rows = [(f.name, f.value, f.source, texts[f.name]) for f in values if f.name != "cluster"]
    cluster = next(f for f in values if f.name == "cluster")
    for key, value in chosen.cluster.model_dump(exclude_none=True).items():
        is_set = key in chosen.cluster.model_fields_set
        rows.append((f"cluster.{key}", _short(value), cluster.source if is_set else "default", ""))
    table(("SETTING", "VALUE", "FROM", "ABOUT"), rows)


def _short(value: object) -> str:
    """A mapping on one line, as YAML would have it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(_short, value))}]" if isinstance(value, tuple) else str(value)


@command("rocstack init")
def init(folder: Annotated[Path, Flag("Folder to write the files to.", argument=True)] = Path(".")) -> Answer:
    """Write a commented rocstack.yml and inventory.yml; existing files stay as they are."""
    files = {"rocstack.yml": settings_text(), "inventory.yml": example("inventory")}
    folder.mkdir(parents=True, exist_ok=True)
    written = [name for name in files if not os.path.lexists(folder / name)]  # nothing is written where a link leads
    for name in written:
        (folder / name).write_text(files[name])
    yield {"written": written, "kept": [name for name in files if name not in written]}
    for name in files:
        out.say(f"{'wrote' if name in written else 'kept'} {folder / name}")
    out.print("next: rocstack build")


def example(name: str) -> str:
    """A file of templates/init. Uncommented, the cluster's is what the defaults are, but for users, accounts and
    reservations, which are examples."""
    return (paths.templates() / f"init/{name}.yml").read_text(encoding="utf-8")


def settings_text() -> str:
    """Every setting with its description and default, commented out."""
    from pydantic import BaseModel

    from rocstack.settings.settings import Settings

    lines = [
        "# Settings of rocstack. A flag or a ROCSTACK_* variable wins over this file; `rocstack config` shows all.",
        "",
    ]
    for name, info in Settings.model_fields.items():
        default = info.default
        if name == "cluster":
            commented = "".join(f"#{line}\n" for line in example("cluster").splitlines())
            lines += [f"# {info.description}; an example, see docs/cluster.md", commented]
            continue
        text = default.model_dump_json() if isinstance(default, BaseModel) else {None: "null", "": '""'}.get(default)
        lines += [f"# {info.description}", f"#{name}: {default if text is None else text}", ""]
    return "\n".join(lines)
