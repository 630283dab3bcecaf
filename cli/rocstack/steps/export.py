"""Export: an image as a file or folder for sites whose jobs don't run in the engine's containers."""

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import DockerException
from requests.exceptions import RequestException

from rocstack.base.errors import BadInput, CheckFailed, Missing, hinted
from rocstack.base.text import last_line
from rocstack.container.rootfs import copy_tree
from rocstack.edge import engine, files
from rocstack.image.build_report import with_built_stack
from rocstack.registry.image_layout import write_layout
from rocstack.registry.local_image import LocalImage
from rocstack.stack.component import ROLES
from rocstack.steps.job_options import ExportOptions
from rocstack.steps.options import Note, ignore, settings

SQUASHFS, OCI, SIF = "squashfs", "oci", "sif"
FORMATS = (SQUASHFS, OCI, SIF)
SUFFIXES = {SQUASHFS: ".sqsh", OCI: "", SIF: ".sif"}
PACK = "mksquashfs"
BUILDERS = ("apptainer", "singularity")
FLAGS = (
    "-tar",
    "-noappend",
    "-comp",
    "zstd",
    "-Xcompression-level",
    "3",
    "-all-root",
    "-root-mode",
    "0755",
    "-no-progress",
    "-quiet",
)


@dataclass(frozen=True)
class Exported:
    """`size` are the bytes that were written, `content` those of the image's files."""

    image: str
    format: str
    path: Path
    size: int
    content: int

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


def export(options: ExportOptions = ExportOptions(), note: Note = ignore) -> Exported:
    """Writes an image of this machine's engine as a squashfs file, an OCI layout, or by Apptainer as a SIF file.

    Raises:
        BadInput: no such role or format; something is there already, or no file can be made there; no such image.
        Missing: no engine; no mksquashfs or Apptainer; too little room.
        CheckFailed: the engine can't give the image, or Apptainer fails.
    """
    chosen = with_built_stack(settings(options))
    if options.role not in ROLES:
        raise BadInput.of("unknown-role", role=options.role, hint=f": known: {', '.join(ROLES)}")
    if options.format not in FORMATS:
        raise BadInput.of("unknown-format", format=options.format, hint=hinted(options.format, FORMATS))
    reference = options.image or chosen.image_name(options.role)
    path = options.out or Path(_file_name(reference) + SUFFIXES[options.format])
    if path.exists() or path.is_symlink():
        raise BadInput.of("export-exists", path=path)
    if not path.absolute().parent.is_dir():
        raise BadInput.of("no-parent", folder=path.parent)
    if options.format == SQUASHFS and not shutil.which(PACK):
        raise Missing.of("no-mksquashfs")
    if options.format == SIF and not any(map(shutil.which, BUILDERS)):
        raise Missing.of("no-apptainer")
    client = engine.connect()
    if options.image is None and engine.find_image(client, reference) is None:
        raise Missing.of("not-built-here", reference=reference, stack=chosen.stack, nic=chosen.nic)
    note(f"writing {reference} to {path}")
    try:
        with LocalImage.find(client, reference) as image:
            write = {SQUASHFS: _squashfs, OCI: _layout, SIF: _sif}[options.format]
            return write(client, image, reference, path, note)
    except OSError as error:
        raise Missing.of("export-unwritable", path=path, why=error.strerror or error) from None


def _file_name(reference: str) -> str:
    """As enroot calls what it imports: without a registry's and a repository's separators."""
    return reference.replace("/", "+").replace(":", "+").replace("@", "+")


def _squashfs(client: DockerClient, image: LocalImage, reference: str, path: Path, note: Note) -> Exported:
    about = json.loads(image.config)
    created = datetime.fromisoformat(about.get("created") or "1970-01-01T00:00:00Z")
    with files.writing(path) as file, _exported(client, reference) as pieces:
        with subprocess.Popen(
            [PACK, "-", file.name, *FLAGS], stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as target:
            assert target.stdin
            assert target.stderr
            why = ""
            try:
                content = copy_tree(pieces, target.stdin, about.get("config") or {}, int(created.timestamp()))
                target.stdin.close()
            except (tarfile.TarError, BrokenPipeError, RequestException, DockerException) as error:
                why = str(error)
                target.kill()
                with suppress(BrokenPipeError):  # what is left in its buffer, which leaving the block would send again
                    target.stdin.close()
            said = last_line(target.stderr.read().decode(errors="replace"))
        if why or target.returncode:
            raise CheckFailed.of("export-failed", reference=reference, path=path, why=said or why)
        size = Path(file.name).stat().st_size
    return Exported(reference, SQUASHFS, path, size, content)


@contextmanager
def _exported(client: DockerClient, reference: str) -> Iterator[Iterator[bytes]]:
    """The tar of a container that never runs: only that of a container can be had."""
    container = client.containers.create(reference, ["true"], labels={"io.rocstack.export": "true"})
    try:
        yield iter(container.export())  # type: ignore[arg-type]  # docker's stubs say str; it gives bytes
    finally:
        container.remove(force=True)


def _layout(client: DockerClient, image: LocalImage, reference: str, path: Path, note: Note) -> Exported:
    files.sweep(path)
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=files.prefix(path)) as folder:
        own = Path(folder) / path.name
        names = client.images.get(reference).tags
        tag = reference if reference in names else next(iter(names), None)
        content = write_layout(image, own, tag, note)
        size = sum(each.stat().st_size for each in own.rglob("*") if each.is_file())
        own.rename(path)
    return Exported(reference, OCI, path, size, content)


def _sif(client: DockerClient, image: LocalImage, reference: str, path: Path, note: Note) -> Exported:
    files.sweep(path)
    builder = next(filter(shutil.which, BUILDERS))
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=files.prefix(path)) as folder:
        content = write_layout(image, Path(folder) / "layout", None, note)
        line = [builder, "build", path.name, "oci:layout:latest"]  # a path of its own may have a colon
        done = subprocess.run(line, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        made = Path(folder) / path.name
        if done.returncode or not made.is_file():
            why = last_line(done.stderr.decode(errors="replace")) or f"{builder} ended with {done.returncode}"
            raise CheckFailed.of("sif-failed", reference=reference, path=path, builder=builder, why=why)
        size = made.stat().st_size
        made.rename(path)
    return Exported(reference, SIF, path, size, content)
