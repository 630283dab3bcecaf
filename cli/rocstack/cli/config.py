"""`rocstack config`: every setting, its value and where it came from."""

import os
from pathlib import Path

import typer

from rocstack.cli import options
from rocstack.cli.ui import print_json, table


def register(app: typer.Typer) -> None:
    options.add(app, "config", config, "ROCSTACK_NIC=broadcom rocstack config")


def config(json: options.Json = False) -> None:
    """Show each setting, its value and where it came from (flag > variable > rocstack.yml > default)."""
    from rocstack.settings.settings import Settings, load

    chosen, values = load({}, os.environ, Path.cwd())
    texts = {name: info.description or "" for name, info in Settings.model_fields.items()}
    if json:
        print_json(
            {
                item.name: {"value": _plain(item.value), "source": item.source, "about": texts[item.name]}
                for item in values
            }
        )
        return
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


def _plain(value: object) -> object:
    from pydantic import BaseModel

    return value.model_dump() if isinstance(value, BaseModel) else value
