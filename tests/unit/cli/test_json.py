"""What --json prints: one document with its schema's version, whatever the command and however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_run import Cli

from rocstack.cli.main import app

ROOT = Path(__file__).resolve().parents[3]
EVIDENCE = ROOT / "tests/unit/data/verify/evidence.json"
NEEDS = {"backup": ["inventory.yml", "file"], "restore": ["inventory.yml", "file"]}  # arguments that must be there
NEEDS |= {f"local {name}": ["n1"] for name in ("reboot", "cut", "heal")}
WORKS = (
    ("init",),
    ("probe",),
    ("probe", "--env", "--nic", "broadcom"),
    ("doctor",),
    ("render",),
    ("render", "--to", "context"),
    ("stacks",),
    ("explain",),
    ("run", "--print", "--gpus", "none"),
    ("config",),
    ("local", "models"),
    ("verify", "--list"),
    ("size", "llama-3.1-8b"),
    ("size", "llama-3.1-405b", "--nodes", "1"),
    ("verify", "--evidence", str(EVIDENCE), "--report", "report"),
)


def leaves(group: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from leaves(command, (*above, name))
        else:
            yield (*above, name), command


def with_json() -> list[tuple[str, ...]]:
    root = typer.main.get_command(app)
    return [names for names, command in leaves(root) if any("--json" in param.opts for param in command.params)]


def check(document: Any) -> None:
    assert isinstance(document, dict)
    assert document["schema"] >= 1


@pytest.mark.parametrize("names", with_json(), ids=" ".join)
def test_every_command(names: tuple[str, ...], cli: Cli) -> None:
    """In an empty folder without an engine: most of them end with an error, which is a document too."""
    ran = cli(*names, *NEEDS.get(" ".join(names), []), "--json")
    check(ran.json())
    check(cli(*names, "--jsn", "--json").json())


@pytest.mark.parametrize("args", WORKS, ids=" ".join)
def test_what_works_without_an_engine(args: tuple[str, ...], cli: Cli) -> None:
    ran = cli(*args, "--json")
    assert ran.code in (0, 1), ran.err
    check(ran.json())
    assert "error" not in ran.json()


def test_all_of_them_are_tried() -> None:
    assert {("build",), ("deploy",), ("status",), ("local", "up")} <= set(with_json())
    assert len(with_json()) > 20


def test_a_defect_of_ours_is_a_document_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("string indices")

    monkeypatch.setattr("rocstack.settings.settings.load", broken)
    ran = cli("config", "--json")
    assert ran.code == 1
    assert ran.json()["error"]["what"] == "TypeError: string indices"
    assert ran.json()["error"]["next"]
