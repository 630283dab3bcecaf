"""Slurm's state and accounting database into a file on this machine, and back."""

import os
import re
import shlex
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.text import last_line
from rocstack.container import privileges
from rocstack.deploy.plan import services
from rocstack.edge import files, stalls
from rocstack.edge.locks import ClusterLock
from rocstack.edge.ssh import SshHost
from rocstack.node import cluster_lock

PIECE = 1 << 20
PACKED = 1 << 10  # bytes, which unpack to 32 MiB at most: the control node may have made it to fill our memory
HEALTHY_WITHIN = 120  # seconds
STOPS_WITHIN = 60
NODE_WITHIN = 60.0  # seconds for whoever is at work on the control node
UNHEALTHY = 4  # the exit status where all is restored, and the controller isn't healthy
# One command, which goes on there to its end whatever becomes of us: the controller runs again in any case, and only
# what was restored has jobs that can't run any more.
_RESTORE = f"""
name={services.CONTROL}
image=$(docker container inspect --format '{{{{.Image}}}}' $name) || exit 3
service=$(docker ps --quiet --filter name=^{services.API}$)
trap 'docker start $name $service >/dev/null' EXIT
[ -z "$service" ] || docker stop "$service" >/dev/null || exit 3
docker stop --time {STOPS_WITHIN} $name >/dev/null || exit 3
docker run --rm --interactive --pull=never --network=none {shlex.join((*privileges.LEAST, *privileges.SERVICE))} \\
    --volumes-from $name --entrypoint rocstack-restore "$image" >/dev/null || exit
trap - EXIT
docker start $name $service >/dev/null || exit {UNHEALTHY}
end=$(($(date +%s) + {HEALTHY_WITHIN}))
until said=$(docker exec $name rocstack-health 2>&1); do
    [ "$(date +%s)" -lt $end ] || {{ echo "$said" >&2; exit {UNHEALTHY}; }}
    sleep 0.5
done
jobs=$(docker exec $name squeue --noheader --states=RUNNING --format=%A) || exit {UNHEALTHY}
[ -z "$jobs" ] || docker exec $name scancel --state=RUNNING $jobs || exit {UNHEALTHY}
echo "$jobs"
"""


@dataclass(frozen=True)
class BackupInfo:
    """What a backup is of. `time` is UTC, `size` bytes."""

    cluster: str
    slurm: str
    time: str
    size: int


def backup(ssh_host: SshHost, file: Path) -> BackupInfo:
    """Of the running cluster. The file is there as a whole or not at all, and for this user only.

    Raises:
        BadInput: the file is there already.
        CheckFailed: it can't be made.
        OSError: it can't be written.
    """
    if os.path.lexists(file):
        raise BadInput.of("backup-exists", file=file)
    with files.writing(file, private=True) as out:
        line = ssh_host.argv(["docker", "exec", services.CONTROL, "rocstack-backup"], options=["-T"])
        code, why = _run(ssh_host, line, out, data=True)
        if code:
            raise CheckFailed.of("backup-failed", host=ssh_host.host, why=why)
        return about(Path(out.name))


def restore(ssh_host: SshHost, file: Path, held: ClusterLock) -> list[int]:
    """The controller is stopped for it, and healthy again in the end. Jobs that ran when the backup was made can't run
    any more, and are cancelled: which. `held` is the cluster's lock.

    Raises:
        CheckFailed: the lock is lost; the backup was refused, or the controller doesn't come back.
    """
    held.check()
    with file.open("rb") as data, tempfile.TemporaryFile() as out:
        command = held.guarded(ssh_host.python, ["sh", "-c", _RESTORE], alone_within=NODE_WITHIN)
        line = ssh_host.argv(command, options=["-T"])
        code, why = _run(ssh_host, line, out, iter(lambda: data.read(PIECE), b""))
        out.seek(0)
        jobs = out.read()
    if code == cluster_lock.REFUSED:
        raise CheckFailed.of("lock-lost", why=why, work=held.spec.work, resume=held.spec.resume)
    if code == UNHEALTHY:
        why = f"everything is restored, but the controller isn't healthy: {why}"
        raise CheckFailed.of("restored-unhealthy", host=ssh_host.host, why=why)
    if code:
        raise CheckFailed.of("restore-failed", host=ssh_host.host, why=why)
    return sorted({int(word) for word in jobs.split() if re.fullmatch(rb"[0-9]{1,10}", word)})


def _run(
    ssh_host: SshHost, line: list[str], out: IO[bytes], feed: Iterable[bytes] = (), data: bool = False
) -> tuple[int, str]:
    """Its exit status and last complaint; one that stands still has failed."""
    ask = ssh_host.argv(["docker", "version"], options=["-T"])
    with tempfile.TemporaryFile() as err:
        try:
            code = stalls.run(line, ask, out, err, feed=feed, reads_within=NODE_WITHIN + STOPS_WITHIN, data=data)
        except stalls.Stalled as stalled:
            return 1, str(stalled)
        return code, last_line(stalls.tail(err))


def about(file: Path) -> BackupInfo:
    """Reads all of it, so that what is cut off or damaged is known before anything is changed.

    Raises:
        BadInput: it is no backup, or not a whole one.
        OSError: it can't be read.
    """
    import zstandard

    try:
        unzip = zstandard.ZstdDecompressor().decompressobj()
        with file.open("rb") as raw:
            while piece := raw.read(PACKED):
                unzip.decompress(piece)
                if unzip.eof:
                    break
        if not unzip.eof:
            raise ValueError("it is cut off")
        with file.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as data:
            first = tarfile.TarInfo.frombuf(data.read(tarfile.BLOCKSIZE), "utf-8", "replace")
            if first.name != "about" or not first.isreg():
                raise ValueError("it doesn't begin like one")
            text = data.read(min(max(first.size, 0), 4096)).decode()
    except (zstandard.ZstdError, tarfile.TarError, ValueError) as error:
        raise BadInput.of("bad-backup", file, why=error) from None
    output = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    if output.get("format") != "1" or not {"cluster", "slurm", "time"} <= set(output):
        raise BadInput.of("bad-backup", file, why="its format is unknown, or its description is missing")
    return BackupInfo(output["cluster"], output["slurm"], output["time"], file.stat().st_size)
