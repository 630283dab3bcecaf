"""Doctor: known faults of this machine, of nodes or in a log."""

from pathlib import Path

from rocstack.base import finding_texts
from rocstack.base.errors import BadInput
from rocstack.doctor import logfile, logscan, nodes
from rocstack.doctor.logscan import LogReport
from rocstack.doctor.nodes import NodeReport
from rocstack.probe import profiles, recordings
from rocstack.steps.options import DoctorOptions


def doctor(options: DoctorOptions = DoctorOptions()) -> LogReport | NodeReport:
    """Looks for known faults. Finding none does not mean that all is well.

    Raises:
        BadInput: two sources; a file or inventory that can't be read.
        Missing, CheckFailed: Ansible is missing, or could not run at all.
    """
    sources = (("INVENTORY", options.inventory), ("--log", options.log), ("--profiles", options.profiles))
    names = [name for name, value in sources if value]
    if len(names) > 1:
        raise BadInput.of("several-to-examine", names=" and ".join(names))
    table = finding_texts.table()
    if options.log:
        with logfile.opened(options.log) as read:
            return logscan.scan(logfile.pieces(read), table)
    if options.profiles:
        return nodes.examine(profiles.read_profiles(options.profiles), table)
    if options.inventory:
        found = recordings.record_inventory(Path(options.inventory))
        failed = {failure.node: failure.reason for failure in found.failures}
        return nodes.examine(recordings.profiles(found.recordings), table, failed)
    return nodes.examine([recordings.probe_host()], table)
