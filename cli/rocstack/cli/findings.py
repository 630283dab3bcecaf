"""How findings and errors are shown, by every command alike: a heading, then what there is to know below it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocstack.cli.ui import State, Terminal, err, escape, out, print_json

if TYPE_CHECKING:
    from rocstack.base.errors import RocstackError
    from rocstack.base.findings import Finding

COLOUR = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def show(finding: Finding, where: str = "", seen: Iterable[str] = (), *, label: str = "", on: Terminal = out) -> None:
    """`where` is the place or the nodes, `seen` what was seen there, `label` a word that replaces the level.

    error port-down (1 of 3 nodes: n3): bnxt_re2 port 1 (DOWN, Disabled) not active
      cause   cable, transceiver, ...
      next    ...
      source  ...
    """
    word = label or finding.level
    rest = f" {finding.code}{f' ({where})' if where else ''}: {finding.what}"
    first, *more = _wrapped(word + rest, 2, on)
    on.print(f"[{COLOUR[finding.level]}]{word}[/]{escape(first.removeprefix(word))}")
    for line in more:
        on.print(escape(f"  {line}"))
    for text in seen:
        paragraph("seen", text, on)
    for name in ("cause", "next", "source"):
        if text := getattr(finding, name):
            paragraph(name, text, on)


def paragraph(label: str, text: str, on: Terminal = out) -> None:
    """A label and its text."""
    for index, line in enumerate(_wrapped(text, 10, on)):
        on.print(escape(f"  {label if index == 0 else '':<8}{line}"))


def _wrapped(text: str, indent: int, on: Terminal) -> list[str]:
    """Lines as wide as the terminal; one line without one, for those who grep."""
    width = max(on.width, 40) if on.is_terminal else 1 << 20
    return textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False) or [""]


def print_error(error: RocstackError) -> None:
    """As a finding with the place of what is wrong; as JSON when the command was asked for JSON."""
    if State.json:
        print_json({"error": error.to_dict()})
    else:
        show(error.finding, str(error.where or ""), on=err)
