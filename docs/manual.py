"""Man pages from the command line's own texts: rocstack(1), and rocstack-COMMAND(1) for each command and each group of
commands, such as `release`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Pairs = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class ManCommand:
    """One command, by its whole name such as `local up`. Texts are plain."""

    name: str
    summary: str
    usage: str  # what stands behind the name
    text: str
    options: tuple[tuple[str, str], ...]
    exits: str = ""
    example: str = ""

    @property
    def page(self) -> str:
        return f"rocstack-{self.name.replace(' ', '-')}"


def escape(text: str) -> str:
    """Text that troff prints as it is: no escapes, hyphens that can be copied, no line that is a request."""
    text = re.sub(r"\s+", " ", text).strip().replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def _head(page: str) -> str:
    """Without date and version, so that a page changes with its text alone."""
    return f'.TH {escape(page.upper())} 1 "" "rocstack" "User Commands"\n'


def _section(title: str, body: str) -> str:
    return f".SH {title}\n{body}" if body else ""


def _tagged(pairs: Pairs) -> str:
    return "".join(f".TP\n\\fB{escape(head)}\\fR\n{escape(text)}\n" for head, text in pairs)


def _example(line: str) -> str:
    return f".nf\n{escape(line)}\n.fi\n" if line else ""


def _also(pages: Iterable[str]) -> str:
    return ",\n".join(f"\\fB{escape(page)}\\fR(1)" for page in pages) + "\n"


def of_command(command: ManCommand, neighbours: Iterable[str], parts: Iterable[ManCommand] = ()) -> str:
    """The page of one command, or of a group that consists of `parts`."""
    words = command.name.split()
    usage = f"\\fBrocstack {escape(' '.join(words))}\\fR {escape(command.usage)}\n"
    return (
        _head(command.page)
        + _section("NAME", f"{escape(command.page)} \\- {escape(command.summary)}\n")
        + _section("SYNOPSIS", usage)
        + _section("DESCRIPTION", escape(command.text) + "\n")
        + _section("OPTIONS", _tagged(command.options))
        + _section("COMMANDS", _tagged((each.name, each.summary) for each in parts))
        + _section("EXIT STATUS", escape(command.exits) + "\n" if command.exits else "")
        + _section("EXAMPLE", _example(command.example))
        + _section("SEE ALSO", _also(["rocstack", *neighbours]))
    )


def of_root(
    text: str, options: Pairs, commands: Iterable[ManCommand], groups: Iterable[ManCommand], exits: Pairs, files: Pairs
) -> str:
    """rocstack(1)."""
    known = tuple(commands)
    about = "turn a list of AMD GPU servers into a Slurm cluster for multi-node training"
    environment = (
        ("ROCSTACK_NAME", "Sets a setting, such as ROCSTACK_STACK. `rocstack config` lists them, with their values."),
    )
    return (
        _head("rocstack")
        + _section("NAME", f"rocstack \\- {escape(about)}\n")
        + _section("SYNOPSIS", "\\fBrocstack\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]...\n")
        + _section("DESCRIPTION", escape(text) + "\n")
        + _section("OPTIONS", _tagged(options))
        + _section("COMMANDS", _tagged((command.name, command.summary) for command in known))
        + _section("ENVIRONMENT", _tagged(environment))
        + _section("FILES", _tagged(files))
        + _section("EXIT STATUS", _tagged(exits))
        + _section("SEE ALSO", _also(sorted(command.page for command in (*known, *groups))))
    )


def pages(
    text: str,
    options: Pairs,
    commands: tuple[ManCommand, ...],
    groups: tuple[ManCommand, ...],
    exits: Pairs,
    files: Pairs,
) -> Mapping[str, str]:
    """File name -> page."""
    out = {"rocstack.1": of_root(text, options, commands, groups, exits, files)}
    for each in groups:
        parts = [command for command in commands if command.name.startswith(f"{each.name} ")]
        out[f"{each.page}.1"] = of_command(each, [part.page for part in parts], parts)
    for command in commands:
        group = command.name.partition(" ")[0]
        near = [c.page for c in commands if c is not command and " " in c.name and c.name.partition(" ")[0] == group]
        out[f"{command.page}.1"] = of_command(command, near)
    return out
