"""`rocstack doctor`: what is wrong with this machine, these nodes or this log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rocstack.base.findings import LEVELS
from rocstack.base.text import count, listed
from rocstack.cli.command import Answer, command
from rocstack.cli.ui import out, paragraph, show_finding
from rocstack.steps.options import DoctorOptions

if TYPE_CHECKING:
    from rocstack.doctor.diagnosis import Diagnosis
    from rocstack.doctor.logscan import LogReport
    from rocstack.doctor.nodes import NodeReport


@command("rocstack doctor --log slurm-42.out")
def doctor(choice: DoctorOptions) -> Answer:
    """Find known faults of this machine, of an inventory's nodes, of a job or in logs: cause and next step.

    Finding none does not mean that all is well.
    """
    from rocstack.doctor.logscan import LogReport
    from rocstack.steps.doctor import doctor as step

    if choice.inventory == "-":
        choice = replace(choice, inventory=None, log=choice.log or "-")
    report = step(choice)
    yield report
    looked_at = _show_log(report, choice) if isinstance(report, LogReport) else _show_nodes(report)
    known = any(finding.level != "note" for finding in report.findings)
    levels = [finding.level for finding in report.findings]
    found = ", ".join(count(levels.count(level), level) for level in LEVELS if level in levels)
    out.print()
    out.say(found if known else f"nothing known was found {looked_at}")


def _show_log(report: LogReport, choice: DoctorOptions) -> str:
    lines = count(report.lines, "line")
    name = f"job {choice.job}" if choice.job else choice.log
    files = count(len(report.files), "file") if len(report.files) > 1 else ", ".join(report.files)
    used = ", ".join(f"{kind} ({number} processes)" if number else kind for kind, number in report.transports.items())
    where = "standard input" if name == "-" else name
    where = f"{where} ({files})" if files else where
    out.say(f"{where}: {lines}" + (f"; RCCL's transport: {used}" if used else ""))
    if report.skipped:
        out.say(f"skipped, no logs: {listed(report.skipped, 8)}")
    for finding in report.findings:
        _show(finding, _place(finding))
    return f"in {lines}"


def _show_nodes(report: NodeReport) -> str:
    names = listed(report.nodes, 8)
    out.say(f"examined: {names}")
    for model in sorted(set(report.virtual.values())):
        of_model = [name for name, own in report.virtual.items() if own == model]
        out.say(f"virtual, no real hardware ({model}): {listed(of_model, 8)}")
    if report.software:
        devices = (f"{node}: {listed(names)}" for node, names in report.software.items())
        out.say(f"RDMA in software, no card: {listed(devices, 8)}")
    for finding in report.findings:
        share = f"{len(finding.nodes)} of {len(report.nodes)} nodes: {listed(finding.nodes, 8)}"
        _show(finding, _place(finding) if finding.line else share if len(report.nodes) > 1 else "")
    for node, what in report.unread.items():
        out.print()
        unread = f"{len(what)} things could not be read, so they are not judged: {listed(what)}"
        paragraph("unread", f"{node}: {unread}")
    logs = [f"{count(lines, 'line')} of {name}" for name, lines in report.logs.items()]
    return f"on {names}" + (f", nor in {listed(logs)}" if logs else "")


def _place(finding: Diagnosis) -> str:
    parts = [] if finding.line is None else [f"{finding.file} line {finding.line}".lstrip()]
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
    show_finding(finding, where, finding.seen if finding.line or differ else ())
