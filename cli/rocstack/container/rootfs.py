"""An image's files as one tree for runtimes that take no layers: enroot and pyxis start one from a squashfs file.

What an image says beside its files, enroot reads from files of its own: /etc/rc, /etc/environment and /etc/fstab
(github.com/NVIDIA/enroot, src/docker.sh, docker::configure).
"""

import io
import shlex
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from rocstack.base.tar_stream import Pieces, open_tar

SHELL = ("/bin/bash",)
_LEFT_OUT = (".dockerenv",)  # the engine's own mark


def start_files(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Path in the tree -> content. `config` is what `docker inspect` has as Config."""
    folder = shlex.quote(str(config.get("WorkingDir") or "/"))
    start = shlex.join(_words(config.get("Entrypoint")))
    otherwise = shlex.join(_words(config.get("Cmd")) or SHELL)
    lines = [
        f"mkdir -p {folder} 2>/dev/null",
        f"cd {folder} && unset OLDPWD || exit 1",
        "[ ! -s /etc/rc.local ] || . /etc/rc.local",
        f"[ $# -gt 0 ] || set -- {otherwise}",
        f'exec {start} "$@"' if start else 'exec "$@"',
    ]
    # One variable a line is all that the file can hold.
    variables = [each for each in _words(config.get("Env")) if "=" in each and "\n" not in each]
    return {
        "etc/environment": "".join(f"{each}\n" for each in variables).encode(),
        "etc/fstab": b"",
        "etc/rc": "".join(f"{line}\n" for line in lines).encode(),
        "etc/rc.local": b"",
    }


def _words(value: Any) -> Sequence[str]:
    return [str(each) for each in value or ()]


def copy_tree(exported: Iterable[bytes], to: IO[bytes], config: Mapping[str, Any], time: int) -> int:
    """Copies the tar of `docker export`, which comes in pieces, with `start_files` in it, of `time` (seconds since
    1970). Device files are the runtime's to make. Returns the bytes of all files.

    Raises:
        tarfile.TarError, OSError: it can't be read or written.
    """
    own, size = start_files(config), 0
    with open_tar(Pieces(exported)) as source, tarfile.open(fileobj=to, mode="w|") as target:
        for member in source:
            path = member.name.removeprefix("./")
            if path in own or path in _LEFT_OUT or path.startswith("dev/"):
                continue
            size += member.size
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
        for path, data in own.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode, member.mtime = len(data), 0o644, time
            target.addfile(member, io.BytesIO(data))
    return size
