"""Doctor: known faults of this machine, of nodes or in a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rocstack.base.errors import BadInput
from rocstack.steps.options import Flag

if TYPE_CHECKING:
    from rocstack.doctor.logscan import LogReport
    from rocstack.doctor.nodes import NodeReport


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    inventory: Annotated[
        str | None,
        Flag(
            "Ansible inventory: examine its nodes. `-` reads a log from standard input.",
            metavar="INVENTORY",
            argument=True,
        ),
    ] = None
    log: Annotated[str | None, Flag("Examine this log instead; `-` is standard input.")] = None
    profiles: Annotated[Path | None, Flag("Examine saved node profiles (from `rocstack probe --out`).")] = None


def doctor(options: DoctorOptions = DoctorOptions()) -> LogReport | NodeReport:
    """Looks for known faults. Finding none does not mean that all is well.

    Raises:
        BadInput: two sources; a file or inventory that can't be read.
        Missing, CheckFailed: Ansible is missing, or could not run at all.
    """
    from rocstack.base import finding_texts
    from rocstack.doctor import logfile, logscan, nodes

    sources = (("INVENTORY", options.inventory), ("--log", options.log), ("--profiles", options.profiles))
    names = [name for name, value in sources if value]
    if len(names) > 1:
        raise BadInput(f"{' and '.join(names)} can't be combined", code="one-source", next_step="run it once for each")
    table = finding_texts.table()
    if options.log:
        with logfile.opened(options.log) as read:
            return logscan.scan(logfile.pieces(read), table)
    from rocstack.probe import profiles, recordings

    if options.profiles:
        return nodes.examine(profiles.read_profiles(options.profiles), table)
    if options.inventory:
        found = recordings.record_inventory(Path(options.inventory))
        failed = {failure.node: failure.reason for failure in found.failures}
        return nodes.examine(recordings.profiles(found.recordings), table, failed)
    return nodes.examine([recordings.probe_host()], table)
