"""Doctor: known faults of this machine, of nodes, of a job or in logs."""

from pathlib import Path

from rocstack.base import finding_texts
from rocstack.base.errors import BadInput, did_you_mean
from rocstack.base.finding_texts import Table
from rocstack.deploy.read import inventory_text
from rocstack.doctor import logfile, logscan, nodes
from rocstack.doctor.logscan import LogReport
from rocstack.doctor.nodes import NodeReport
from rocstack.probe import profiles, recordings
from rocstack.steps import doctor_logs
from rocstack.steps.doctor_logs import Logs
from rocstack.steps.options import DoctorOptions, inventory_path, settings


def doctor(options: DoctorOptions = DoctorOptions()) -> LogReport | NodeReport:
    """Looks for known faults. Finding none does not mean that all is well.

    Raises:
        BadInput: two sources; a file, folder, job or inventory that can't be read.
        Missing, CheckFailed: Ansible is missing, or could not run at all; ssh doesn't get through.
    """
    sources = (("INVENTORY", options.inventory), ("--log", options.log), ("--profiles", options.profiles))
    names = [name for name, value in sources if value]
    names += ["--job"] if options.job and (names or options.node) and names != ["INVENTORY"] else []
    names += ["--node"] if options.node and (options.log or options.job) else []
    if len(names) > 1:
        raise BadInput.of("several-to-examine", names=" and ".join(names))
    table = finding_texts.table()
    inventory = Path(options.inventory) if options.inventory else None
    if options.job:
        return _logs(doctor_logs.of_job(options.job, inventory), table)
    if options.log:
        return _log(options.log, table)
    if options.profiles:
        known = profiles.read_profiles(options.profiles)
        chosen = [each for each in known if options.node in (None, each.name)]
        if options.node and not chosen:
            hint = did_you_mean(options.node, [each.name for each in known]) or "no such node"
            raise BadInput.of("node-not-in-inventory", node=options.node, path=options.profiles, hint=hint)
        return nodes.examine(chosen, table)
    if options.node:
        return _node(inventory_path(settings(), inventory), options.node, table)
    if inventory:
        inventory_text.refuse_lost(inventory)
        found = recordings.record_inventory(inventory)
        failed = {failure.node: failure.reason for failure in found.failures}
        return nodes.examine(recordings.profiles(found.recordings), table, failed)
    return nodes.examine([recordings.probe_host()], table)


def _log(name: str, table: Table) -> LogReport:
    if name != "-" and Path(name).is_dir():
        return _logs(doctor_logs.of_folder(Path(name)), table)
    with logfile.opened(name) as read:
        return logscan.scan(logfile.pieces(read), table)


def _logs(logs: Logs, table: Table) -> LogReport:
    """
    Raises:
        BadInput: none of them could be read.
    """
    report = logscan.scan_files(logs.files, table)
    if not report.bytes and logs.skipped:
        raise BadInput.of("no-log-readable", why="; ".join(list(logs.skipped.values())[:3]))
    return report.model_copy(update={"skipped": logs.skipped})


def _node(inventory: Path, node: str, table: Table) -> NodeReport:
    """What can be read of it; a node that isn't reached has no logs either."""
    logs = doctor_logs.of_node(inventory, node)
    found = recordings.record_inventory(inventory, limit=[node])
    failed = {failure.node: failure.reason for failure in found.failures}
    report = nodes.examine(recordings.profiles(found.recordings), table, failed)
    return report if failed else report.with_logs(node, logscan.scan_files(logs.files, table), logs.skipped)
