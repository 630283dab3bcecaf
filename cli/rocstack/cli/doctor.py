"""`rocstack doctor`: what is wrong with this machine, these nodes or this log."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.base.errors import BadInput
from rocstack.cli import options
from rocstack.cli.ui import escape, out, print_json

if TYPE_CHECKING:
    from rocstack.doctor.diagnosis import Finding, Level
    from rocstack.doctor.logscan import LogReport
    from rocstack.doctor.nodes import NodeReport

_COLOUR = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog="Example: rocstack doctor --log slurm-42.out")(doctor)


def doctor(
    inventory: Annotated[
        str | None,
        typer.Argument(
            help="Ansible inventory: examine its nodes; `-` reads a log from standard input.", metavar="INVENTORY"
        ),
    ] = None,
    log: Annotated[str | None, typer.Option(help="Examine a log instead; `-` is standard input.")] = None,
    profiles: Annotated[Path | None, typer.Option(help="Examine saved node profiles (`rocstack probe --out`).")] = None,
    json: options.Json = False,
) -> None:
    """Say what is wrong with this machine, the nodes of an inventory, or a log: cause and next step.

    Looks for known texts and states; finding none of them does not mean that all is well.
    """
    if inventory == "-":
        inventory, log = None, log or "-"
    given = [name for name, value in (("INVENTORY", inventory), ("--log", log), ("--profiles", profiles)) if value]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)}: one at a time", code="one-source", next_step="run it once for each")
    if log:
        of_log = _of_log(log)
        _answer(of_log, json, lambda: _show_log(of_log, log))
    else:
        of_nodes = _of_nodes(inventory, profiles)
        _answer(of_nodes, json, lambda: _show_nodes(of_nodes))


def _answer(report: LogReport | NodeReport, json: bool, show: Callable[[], None]) -> None:
    failed = any(finding.level == "error" for finding in report.findings)
    if json:
        print_json({"ok": not failed, **report.model_dump()})
    else:
        show()
    raise typer.Exit(1 if failed else 0)


def _of_log(name: str) -> LogReport:
    from rocstack.doctor import diagnosis, logfile, logscan

    with logfile.opened(name) as stream:
        return logscan.scan(logfile.pieces(stream), diagnosis.load())


def _of_nodes(inventory: str | None, profiles: Path | None) -> NodeReport:
    from rocstack.doctor import diagnosis
    from rocstack.doctor import nodes as core
    from rocstack.probe import profiles as files
    from rocstack.probe import recordings

    table = diagnosis.load()
    if profiles:
        return core.examine(files.read_profiles(profiles), table)
    if inventory:
        found = recordings.probe_inventory(Path(inventory))
        return core.examine(found.profiles, table, {failure.node: failure.reason for failure in found.failures})
    return core.examine([recordings.probe_host()], table)


def _show_log(report: LogReport, name: str) -> None:
    used = ", ".join(f"{kind} ({count} processes)" if count else kind for kind, count in report.transports.items())
    where = "standard input" if name == "-" else name
    out.print(escape(f"{where}: {_lines(report)}" + (f"; RCCL's transport: {used}" if used else "")))
    for finding in report.findings:
        _show(finding, _place(finding))
    known = [finding for finding in report.findings if finding.level != "note"]
    _sum_up(report.findings, f"nothing known found in {_lines(report)}" if not known else "")


def _show_nodes(report: NodeReport) -> None:
    from rocstack.doctor.diagnosis import few

    out.print(escape(f"examined: {few(report.nodes, 8)}"))
    for model in sorted(set(report.virtual.values())):
        names = [name for name, own in report.virtual.items() if own == model]
        out.print(escape(f"virtual, no real hardware ({model}): {few(names, 8)}"))
    if report.software:
        devices = (f"{node}: {few(names)}" for node, names in report.software.items())
        out.print(escape(f"RDMA in software, no card: {few(devices, 8)}"))
    for finding in report.findings:
        share = f"{len(finding.nodes)} of {len(report.nodes)} nodes: {few(finding.nodes, 8)}"
        _show(finding, share if len(report.nodes) > 1 else "")
    for node, what in report.unread.items():
        out.print()
        _paragraph("unread", f"{node}: {len(what)} things could not be read, so nothing is said of them: {few(what)}")
    known = [finding for finding in report.findings if finding.level != "note"]
    _sum_up(report.findings, f"nothing known found on {few(report.nodes, 8)}" if not known else "")


def _lines(report: LogReport) -> str:
    return f"{report.lines} line{'s' * (report.lines != 1)}"


def _place(finding: Finding) -> str:
    parts = [] if finding.line is None else [f"line {finding.line}"]
    if finding.count > 1:
        parts.append(f"{finding.count} times" if finding.line else f"{finding.count} processes")
    if finding.nodes:
        parts.append("on " + " ".join(finding.nodes[:8]) + (" ..." if len(finding.nodes) > 8 else ""))
    if finding.ranks:
        ranks = " ".join(map(str, finding.ranks[:8])) + (" ..." if len(finding.ranks) > 8 else "")
        parts.append(f"rank{'s' * (len(finding.ranks) > 1)} {ranks}")
    return ", ".join(parts)


def _show(finding: Finding, place: str) -> None:
    from rocstack.doctor.diagnosis import few

    colour = _COLOUR[finding.level]
    out.print()
    out.print(f"[{colour}]{finding.level}[/] {finding.id}" + (escape(f" ({place})") if place else ""))
    differ = finding.line is None and len(finding.seen) > 1  # then each says which nodes show it, unless all do
    for text in finding.seen if differ else (finding.means,):
        _paragraph("what", text.removeprefix(f"{few(finding.nodes)}: ") if differ else text)
    for line in finding.seen if finding.line else ():
        _paragraph("seen", line)
    for label in ("cause", "next", "source"):
        _paragraph(label, getattr(finding, label))


def _paragraph(label: str, text: str) -> None:
    """A label and its text: wrapped under itself on a terminal, one line without one, for those who grep."""
    width = max(out.width, 40) if out.is_terminal else 1 << 20
    lines = textwrap.wrap(text, width - 10, break_long_words=False, break_on_hyphens=False) or [""]
    for index, line in enumerate(lines):
        out.print(escape(f"  {label if index == 0 else '':<8}{line}"))


def _sum_up(findings: tuple[Finding, ...], nothing: str) -> None:
    from rocstack.doctor.diagnosis import LEVELS

    def count(level: Level) -> str:
        number = sum(finding.level == level for finding in findings)
        return f"{number} {level}{'s' * (number != 1)}" if number else ""

    out.print()
    out.print(escape(nothing or ", ".join(filter(None, map(count, LEVELS)))))
