"""A folder of checkpoints `step-00000008`: which are there, which are whole, and how one comes to be at once.

Each has the files of DCP and state.json, written last, with the size and sha256 of the others. Until then its
name ends in .tmp.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import shutil
import stat
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from rocstack_trainer.errors import ConfigError
from rocstack_trainer.ranks.peers import Peers

FORMAT = 2
OWN_MODE, OTHERS_WRITE = 0o755, stat.S_IWGRP | stat.S_IWOTH  # whatever the umask is
SEEN_WITHIN_S = 1.0  # how long a new file on a shared file system may take to show on another node
Sums = dict[str, tuple[int, str]]  # file name: size in bytes, sha256; from JSON, a list of the two


def shared(folder: Path, peers: Peers, where: str) -> bool:
    """Is the folder, which is made if it isn't there, the same one for all? A file that rank 0 makes tells.

    Raises:
        ConfigError: it can't be written to; on all ranks.
    """

    def make() -> str:
        for path in reversed((folder, *folder.parents)):
            if not path.exists():
                with suppress(FileExistsError):  # another group was faster; a file is said below, and better
                    path.mkdir(mode=OWN_MODE)
        (file := folder / f".seen-{uuid.uuid4().hex}").touch()
        return str(file)

    def seen() -> bool:
        deadline = time.monotonic() + SEEN_WITHIN_S
        while not os.path.exists(file) and time.monotonic() < deadline:
            time.sleep(0.05)
        return os.path.exists(file)

    file = peers.first(make, where, ConfigError)
    all_see = all(peers.agree(seen))
    peers.first(lambda: os.unlink(file))
    return all_see


def private(path: Path) -> None:
    """Raises ConfigError if others can change what is here: the run that resumes from it would read whatever they like.
    In a folder like /tmp they can't: its sticky bit leaves to each what is theirs."""
    about = path.stat()
    mode = stat.filemode(about.st_mode)
    if about.st_uid not in (0, os.geteuid()):
        fault, then = f"it belongs to user {about.st_uid}, not to you", "take another checkpoint.dir"
    elif about.st_mode & OTHERS_WRITE and not (mode[0] == "d" and about.st_mode & stat.S_ISVTX):
        fault, then = f"others can write to it ({mode})", f"chmod -R go-w {shlex.quote(str(path))}"
    else:
        return
    raise ConfigError(f"{path}: {fault}: nothing is resumed from there\n  {then}")


def check_groups(run: Path, groups: int) -> None:
    """Raises ConfigError if there are checkpoints in `run` that a run of so many groups can't have."""
    there = {path.parents[1] for kind in ("", "group-*/") for path in run.glob(f"{kind}step-*/state.json")}
    if there - ({run / f"group-{number}" for number in range(groups)} if groups > 1 else {run}):
        found = "a run without groups" if run in there else "one with " + ", ".join(sorted(p.name for p in there))
        raise ConfigError(
            f"checkpoint.dir: {run} has {found}, here diloco.groups={groups}\n"
            "  take another folder, or begin anew there with checkpoint.resume=false"
        )


def about(path: Path) -> dict[str, Any]:
    """state.json. Raises OSError or ValueError."""
    return dict(json.loads((path / "state.json").read_text(encoding="utf-8")))


def newest_first(folder: Path) -> list[Path]:
    """All of them; one whose age can't be read comes first, so that it is looked at."""
    return sorted(_all(folder), key=lambda path: (_written(path, math.inf), path.name), reverse=True)


def damage(path: Path, part: int = 0, parts: int = 1) -> str:
    """Why this checkpoint can't be used; empty if it can. Reads every byte of one of `parts` shares of its files.

    Raises:
        ConfigError: others can write there.
    """
    try:
        for entry in (path, path / "state.json"):
            private(entry)
        if (number := about(path).get("format")) != FORMAT:
            return f"format {number} is another version's, this one knows {FORMAT}"
        for name, (size, digest) in sorted(about(path)["files"].items())[part::parts]:
            if name != os.path.basename(name):
                return f"state.json names {name!r:.80}, which is no file of the folder"
            private(path / name)
            if (path / name).stat().st_size != size:
                return f"{name} has {(path / name).stat().st_size} of {size} bytes"
            if sums([path / name])[name] != (size, digest):
                return f"{name} is not what was written (sha256)"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"{Path(error.filename or path).name} can't be read: {error.strerror}"
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"state.json can't be read: {error}"
    return ""


def sums(files: list[Path]) -> Sums:
    found = {}
    for file in files:
        with file.open("rb") as stream:
            found[file.name] = (file.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())
    return found


def begin(tmp: Path) -> None:
    """Makes the folder to write into. What a run that was killed while writing has left is removed."""
    for torn in tmp.parent.glob("step-*.tmp"):
        shutil.rmtree(torn, ignore_errors=True)
    tmp.mkdir(parents=True, mode=stat.S_IRWXU)  # until it is published nobody else has to see it, or hold a file open


def publish(tmp: Path, state: dict[str, Any], keep: int, damaged: set[Path]) -> None:
    """From here on it is a checkpoint. All but `keep` go away: damaged ones first, then by age, since a run that
    was set back makes lower steps again."""
    file = tmp / "state.json"
    file.write_text(json.dumps(state | {"format": FORMAT, "written": time.time()}, indent=1) + "\n", encoding="utf-8")
    for entry in tmp.iterdir():
        entry.chmod(stat.S_IMODE(entry.stat().st_mode) & ~OTHERS_WRITE)
    tmp.chmod(stat.S_IMODE(tmp.parent.stat().st_mode) & OWN_MODE | stat.S_IRWXU)
    for entry in (file, tmp):
        fsync(entry)
    replace(tmp, path := tmp.with_suffix(""))
    damaged.discard(path)
    oldest = sorted(_all(tmp.parent), key=lambda path: (path not in damaged, _written(path, 0)))
    for path in oldest[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def replace(new: Path, path: Path) -> None:
    """Gives the folder `new` the name `path`; one that has it already goes away."""
    old = path.with_name(f"{path.name}.old.tmp")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    new.rename(path)
    fsync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _all(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith("step-") and not path.suffix]


def _written(path: Path, unknown: float) -> float:
    try:
        return float(about(path)["written"])
    except (OSError, ValueError, KeyError, TypeError):
        return unknown
