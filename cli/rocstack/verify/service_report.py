"""Brings the report of a run to the control node, where the service shows it: the last whole one of each level."""

from pathlib import Path

from rocstack.base.errors import RocstackError
from rocstack.base.text import last_line
from rocstack.cluster.service import REPORT_MIB, REPORTS, SERVICE_UID, report_name
from rocstack.deploy.plan.services import SERVICE_SETTINGS
from rocstack.edge import ssh
from rocstack.verify.result import Run

SHOWN = "the service's page shows this report"
_NO_SERVICE, _CUT = 3, 4
# Its arguments: the service's settings, the folder, the file's name and size, and the service's group, which alone may
# read it. A connection that breaks leaves the report that was there.
_PUT = f"""\
[ -e "$1" ] || exit {_NO_SERVICE}
umask 077
mkdir -p "$2" && chgrp "$5" "$2" && chmod 0750 "$2" && new=$(mktemp "$2/.new-XXXXXX") || exit
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$new" || exit
[ "$(wc -c <"$new")" -eq "$4" ] || exit {_CUT}
chgrp "$5" "$new" && chmod 0640 "$new" && mv -f "$new" "$2/$3"
"""


def give(run: Run, inventory: Path) -> str:
    """A sentence about what the service shows; empty where the cluster has no service, or the run tells too little: it
    was interrupted, only some checks were asked for, or all workers were busy. It never fails the run."""
    if not run.complete or run.only or (run.busy and not run.failed):
        return ""
    text = run.dumps()
    size = len(text.encode())
    if size > REPORT_MIB << 20:
        return f"the service doesn't show this report: it has {-(-size >> 20)} MB, and {REPORT_MIB} are the most"
    words = (SERVICE_SETTINGS, REPORTS, report_name(run.level), str(size), str(SERVICE_UID))
    try:
        ssh_host = ssh.ssh_hosts(inventory, [run.control])[run.control]
        done = ssh.run(ssh_host, ["sh", "-c", _PUT, "sh", *words], text=text)
    except (RocstackError, OSError) as error:
        why = error.what if isinstance(error, RocstackError) else str(error)
        return f"the service doesn't show this report: {why}"
    if done.returncode in (0, _NO_SERVICE):
        return "" if done.returncode else SHOWN
    why = "the connection broke" if done.returncode == _CUT else last_line(done.stderr)
    return f"the service doesn't show this report: {why or f'exit status {done.returncode}'}"
