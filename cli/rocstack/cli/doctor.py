"""`rocstack doctor`: what is wrong with this machine, these nodes or this log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from rocstack.base.findings import LEVELS, FindingLevel
from rocstack.cli import findings, options
from rocstack.cli.ui import escape, out, print_json
from rocstack.steps.doctor import DoctorOptions

if TYPE_CHECKING:
    from rocstack.doctor.diagnosis import Diagnosis
    from rocstack.doctor.logscan import LogReport
    from rocstack.doctor.nodes import NodeReport


def register(app: typer.Typer) -> None:
    options.add(app, "doctor", doctor, "rocstack doctor --log slurm-42.out")


def doctor(choice: DoctorOptions, json: options.Json = False) -> None:
    """Find known faults of this machine, of an inventory's nodes or in a log: cause and next step.

    Finding none does not mean that all is well.
    """
    from rocstack.doctor.logscan import LogReport
    from rocstack.steps.doctor import doctor as step

    if choice.inventory == "-":
        choice = replace(choice, inventory=None, log=choice.log or "-")
    report = step(choice)
    if json:
        print_json(report.to_dict())
    elif isinstance(report, LogReport):
        _show_log(report, str(choice.log))
    else:
        _show_nodes(report)
    raise typer.Exit(0 if report.ok else 1)


def _show_log(report: LogReport, name: str) -> None:
    used = ", ".join(f"{kind} ({count} processes)" if count else kind for kind, count in report.transports.items())
    where = "standard input" if name == "-" else name
    out.print(escape(f"{where}: {_lines(report)}" + (f"; RCCL's transport: {used}" if used else "")))
    for finding in report.findings:
        _show(finding, _place(finding))
    known = [finding for finding in report.findings if finding.level != "note"]
    _sum_up(report.findings, f"nothing known found in {_lines(report)}" if not known else "")


def _show_nodes(report: NodeReport) -> None:
    from rocstack.base.text import listed

    out.print(escape(f"examined: {listed(report.nodes, 8)}"))
    for model in sorted(set(report.virtual.values())):
        names = [name for name, own in report.virtual.items() if own == model]
        out.print(escape(f"virtual, no real hardware ({model}): {listed(names, 8)}"))
    if report.software:
        devices = (f"{node}: {listed(names)}" for node, names in report.software.items())
        out.print(escape(f"RDMA in software, no card: {listed(devices, 8)}"))
    for finding in report.findings:
        share = f"{len(finding.nodes)} of {len(report.nodes)} nodes: {listed(finding.nodes, 8)}"
        _show(finding, share if len(report.nodes) > 1 else "")
    for node, what in report.unread.items():
        out.print()
        findings.paragraph(
            "unread", f"{node}: {len(what)} things could not be read, so they are not judged: {listed(what)}"
        )
    known = [finding for finding in report.findings if finding.level != "note"]
    _sum_up(report.findings, f"nothing known found on {listed(report.nodes, 8)}" if not known else "")


def _lines(report: LogReport) -> str:
    return f"{report.lines} line{'s' * (report.lines != 1)}"


def _place(finding: Diagnosis) -> str:
    parts = [] if finding.line is None else [f"line {finding.line}"]
    if finding.count > 1:
        parts.append(f"{finding.count} times" if finding.line else f"{finding.count} processes")
    if finding.nodes:
        parts.append("on " + " ".join(finding.nodes[:8]) + (" ..." if len(finding.nodes) > 8 else ""))
    if finding.ranks:
        ranks = " ".join(map(str, finding.ranks[:8])) + (" ..." if len(finding.ranks) > 8 else "")
        parts.append(f"rank{'s' * (len(finding.ranks) > 1)} {ranks}")
    return ", ".join(parts)


def _show(finding: Diagnosis, where: str) -> None:
    differ = finding.line is None and len(finding.seen) > 1  # then each names the nodes that show it
    out.print()
    findings.show(finding, where, finding.seen if finding.line or differ else ())


def _sum_up(findings: tuple[Diagnosis, ...], nothing: str) -> None:
    def count(level: FindingLevel) -> str:
        number = sum(finding.level == level for finding in findings)
        return f"{number} {level}{'s' * (number != 1)}" if number else ""

    out.print()
    out.print(escape(nothing or ", ".join(filter(None, map(count, LEVELS)))))
