"""`rocstack config`: every setting, its value and where it came from."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from rocstack.cli import options
from rocstack.cli.ui import print_json, table


def register(app: typer.Typer) -> None:
    app.command("config", epilog="Example: ROCSTACK_NIC=broadcom rocstack config")(config)


def config(json: options.Json = False) -> None:
    """Show each setting, its value and where it came from (flag > variable > rocstack.yml > default)."""
    from rocstack.settings import Settings, load

    _, found = load({}, os.environ, Path.cwd())
    texts = {name: info.description or "" for name, info in Settings.model_fields.items()}
    if json:
        print_json(
            {
                item.name: {"value": _plain(item.value), "source": item.source, "about": texts[item.name]}
                for item in found
            }
        )
        return
    table(("SETTING", "VALUE", "FROM", "ABOUT"), [(f.name, f.value, f.source, texts[f.name]) for f in found])


def _plain(value: object) -> object:
    from pydantic import BaseModel

    return value.model_dump() if isinstance(value, BaseModel) else value
