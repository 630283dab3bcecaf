"""The build context: every file BuildKit gets, as one value."""

import difflib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rocstack.base.errors import BadInput

EPOCH = 1577836800  # 2020-01-01: the time of change of what a build makes, so that two builds make the same


@dataclass(frozen=True)
class ContextFile:
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class BuildContext:
    """Path -> file; for generated text the template line of every line, and for packages the line that asks."""

    files: dict[str, ContextFile]
    origins: dict[str, list[str]] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """sha256 over every path, mode and content."""
        total = hashlib.sha256()
        for path, file in sorted(self.files.items()):
            total.update(f"{path}\0{file.mode:o}\0{len(file.data)}\0".encode())
            total.update(file.data)
        return total.hexdigest()

    def origin(self, path: str, line: int) -> str | None:
        """`template:line` of a generated line (from 1)."""
        lines = self.origins.get(path, [])
        return lines[line - 1] or None if 0 < line <= len(lines) else None

    def write(self, folder: Path) -> None:
        """Makes `folder` hold exactly this context; on any error the old folder is still whole, and nothing else
        is left behind.

        Raises:
            BadInput: a path leads out of the folder.
        """
        for path in self.files:
            if path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
                raise BadInput.of("context-path", path=path)
        folder = folder.resolve()
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        fresh, old = beside / "new", beside / "old"
        try:
            for path, file in self.files.items():
                target = fresh / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.data)
                target.chmod(file.mode)
                # BuildKit asks for a file again only if its size or time is another; a layer has no nanoseconds.
                part = int.from_bytes(hashlib.sha256(file.data).digest()[:8]) % 1_000_000_000
                os.utime(target, ns=(EPOCH * 10**9 + part,) * 2)
            for made in (fresh, *(p for p in fresh.rglob("*") if p.is_dir())):
                made.chmod(0o755)  # COPY gives an image's folders these modes, whatever the umask here is
                os.utime(made, (EPOCH, EPOCH))
            if folder.exists():
                folder.rename(old)
            fresh.rename(folder)
        except BaseException:
            if old.exists() and not folder.exists():
                old.rename(folder)
            raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def tree(folder: Path, prefix: str) -> dict[str, ContextFile]:
    """The files below `folder` as they lie below `prefix` in a context; hidden ones are left out."""
    files = {}
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in inner.parts):
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            files[f"{prefix}/{inner}"] = ContextFile(path.read_bytes(), mode)
    return files


def is_ours(folder: Path) -> bool:
    """Whether `folder` was written by `Context.write`: only then may it be replaced."""
    dockerfile = folder / "Dockerfile"
    return dockerfile.is_file() and b"rendered by rocstack" in dockerfile.read_bytes()[:300]


def read(folder: Path) -> BuildContext:
    """A context that was written before; empty when the folder is not there."""
    files = {
        str(path.relative_to(folder)): ContextFile(path.read_bytes(), path.stat().st_mode & 0o777)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return BuildContext(files)


def diff(old: BuildContext, new: BuildContext) -> str:
    """A unified diff of two contexts; empty when they are the same."""
    out: list[str] = []
    for path in sorted({*old.files, *new.files}):
        a, b = old.files.get(path), new.files.get(path)
        if a == b:
            continue
        if a and b and a.data == b.data:
            out.append(f"mode of {path}: {a.mode:o} -> {b.mode:o}\n")
            continue
        names = (f"last build/{path}" if a else "/dev/null", f"now/{path}" if b else "/dev/null")
        before, after = (file.data.decode("utf-8", "replace") if file else "" for file in (a, b))
        out += difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), *names)
    return "".join(line if line.endswith("\n") else line + "\n" for line in out)
