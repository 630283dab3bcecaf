"""What sets up rocstack on a machine that has nothing of it: its Python, and the wheels of the lock."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from rocstack.base import __version__, paths
from rocstack.base.errors import CheckFailed, Missing
from rocstack.base.text import last_line
from rocstack.bundle.relocatable import RelocatablePython, copy_python, wheel_glibc
from rocstack.bundle.write import BundlePart

PYTHON, REQUIREMENTS, WHEELS = "python.tar.gz", "requirements.txt", "wheels/"
LOCK = "requirements.lock"
EPOCH = (2020, 2, 2, 0, 0, 0)  # of all files in a wheel, as hatchling has it
_LOCKED = re.compile(r"(?m)^([A-Za-z0-9._-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$")


def is_kit(path: str) -> bool:
    name = path.removeprefix(WHEELS)
    return path in (PYTHON, REQUIREMENTS) or (path.startswith(WHEELS) and name.endswith(".whl") and "/" not in name)


@dataclass(frozen=True)
class LockedWheels:
    """A requirement's line and its hashes, by canonical name."""

    lines: Mapping[str, str]
    versions: Mapping[str, str]
    hashes: Mapping[str, frozenset[str]]

    @classmethod
    def parse(cls, text: str) -> LockedWheels:
        found = [(canonicalize_name(name), version, rest) for name, version, rest in _LOCKED.findall(text)]
        return cls(
            {name: f"{name}=={version}{rest}" for name, version, rest in found},
            {name: version for name, version, _ in found},
            {name: frozenset(re.findall(r"sha256:([0-9a-f]{64})", rest)) for name, _, rest in found},
        )


@dataclass(frozen=True)
class RocstackKit:
    """`parts` by path."""

    parts: Mapping[str, BundlePart]
    python: RelocatablePython
    glibc: tuple[int, int]

    @property
    def size(self) -> int:
        return sum(part.member.size for part in self.parts.values())


def make_kit(folder: Path, say: Callable[[str], None]) -> RocstackKit:
    """`folder` keeps the wheels for the next time.

    Raises:
        Missing: a wheel can't be had, or this Python can't be copied.
        CheckFailed: something isn't in the lock, or rocstack's own wheel can't be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    locked = LockedWheels.parse(_lock())
    names = sorted(needed_names("rocstack"))
    if unlocked := [name for name in names if name not in locked.lines]:
        raise CheckFailed.of("bundle-not-locked", name=unlocked[0])
    files = [*_wheels(locked, names, folder / "wheels", say), _own_wheel(folder / "own")]
    say("copying this machine's Python")
    python = copy_python()
    own = hashlib.sha256(files[-1].read_bytes()).hexdigest()
    text = "\n".join([*(locked.lines[name] for name in names), f"rocstack=={__version__} --hash=sha256:{own}", ""])
    parts = [BundlePart.from_file(WHEELS + file.name, file) for file in files]
    parts += [BundlePart.of(PYTHON, python.archive), BundlePart.of(REQUIREMENTS, text.encode())]
    glibc = max(python.glibc, *(wheel_glibc(file.name) for file in files))
    return RocstackKit({part.member.path: part for part in parts}, python, glibc)


def needed_names(name: str) -> set[str]:
    """Canonical names of what a distribution here needs, and what that needs."""
    found: set[str] = set()
    due = [(name, frozenset[str]())]
    while due:
        one, extras = due.pop()
        try:
            texts = metadata.requires(one) or []
        except metadata.PackageNotFoundError:
            raise CheckFailed.of("bundle-not-locked", name=one) from None
        for wanted in map(Requirement, texts):
            given = [{"extra": extra} for extra in (*extras, "")]
            if wanted.marker and not any(wanted.marker.evaluate(each) for each in given):
                continue
            if (inner := canonicalize_name(wanted.name)) not in found or wanted.extras:
                found.add(inner)
                due.append((inner, frozenset(wanted.extras)))
    return found


def _lock() -> str:
    file = paths.data_root() / LOCK
    try:
        return file.read_text()
    except OSError as error:
        raise Missing.of("bundle-no-lock", file=file, why=error.strerror or error) from None


def _wheels(locked: LockedWheels, names: list[str], folder: Path, say: Callable[[str], None]) -> list[Path]:
    """The locked wheels for this machine's kind. What is in the folder already isn't asked for again."""
    folder.mkdir(exist_ok=True)
    there = dict(_present(locked, folder))
    lacking = [name for name in names if name not in there]
    if lacking:
        say(f"fetching {len(lacking)} wheels of rocstack's lock")
        wanted = folder / "wanted.txt"
        wanted.write_text("".join(f"{locked.lines[name]}\n" for name in lacking))
        command = ["download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
        done = _pip(command, os.environ)
        wanted.unlink()
        there = dict(_present(locked, folder))
        if done.returncode or any(name not in there for name in names):
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Missing.of("bundle-no-wheels", folder=folder, why=errors[-1] if errors else last_line(done.stderr))
    return [there[name] for name in names]


def _pip(words: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Not in the working folder, which may have been sent: pip asks programs for their versions, and rustup's rustc is
    whatever a file there says."""
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env, cwd="/", check=False
    )


def _present(locked: LockedWheels, folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(file.name)
        if str(version) == locked.versions.get(name):
            with file.open("rb") as source:
                summed = hashlib.file_digest(source, "sha256").hexdigest()
            if summed in locked.hashes[name]:
                yield name, file


def _own_wheel(folder: Path) -> Path:
    """rocstack's own: of the checkout, or put together again from what a wheel of it installed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    dist = metadata.distribution("rocstack")
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return _put_together(dist, folder)
    command = ["wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(paths.data_root())]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = _pip(command, env)
    made = list(folder.glob("rocstack-*.whl"))
    if done.returncode or len(made) != 1:
        raise CheckFailed.of("bundle-no-own-wheel", why=last_line(done.stderr))
    return made[0]


def _put_together(dist: metadata.Distribution, folder: Path) -> Path:
    """A wheel of what one installed, with the same files in it."""
    contents, programs = dict[str, bytes](), set[str]()
    about = f"rocstack-{dist.version}.dist-info"
    for file in dist.files or ():
        if name := _in_wheel(file.as_posix(), about):
            place = Path(str(file.locate()))
            contents[name] = place.read_bytes()
            programs |= {name} if os.access(place, os.X_OK) else set()
    if f"{about}/METADATA" not in contents:
        raise CheckFailed.of("bundle-no-own-wheel", why="it isn't installed from a wheel")
    sums = {name: _urlsafe(hashlib.sha256(data).digest()) for name, data in contents.items()}
    rows = [f"{name},sha256={summed},{len(contents[name])}" for name, summed in sorted(sums.items())]
    contents[f"{about}/RECORD"] = "\n".join([*rows, f"{about}/RECORD,,", ""]).encode()
    made = folder / f"rocstack-{dist.version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in sorted(contents.items(), key=lambda pair: (".dist-info/" in pair[0], pair[0])):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name in programs else 0o100644) << 16
            wheel.writestr(entry, data)
    return made


def _in_wheel(name: str, about: str) -> str | None:
    """What an installed file is called in its wheel; None for what pip made."""
    if (name.startswith("rocstack/") and "__pycache__" not in name) or re.fullmatch(
        rf"{re.escape(about)}/(METADATA|WHEEL|entry_points\.txt|licenses/.+)", name
    ):
        return name
    shared = re.fullmatch(r"(?:\.\./)+(share/.+)", name)
    return f"{about.removesuffix('.dist-info')}.data/data/{shared[1]}" if shared else None


def _urlsafe(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
