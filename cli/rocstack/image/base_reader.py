"""Reads a base image. Programs of the image run as nobody, without network, capabilities or a file to write, for some
seconds; first it is looked for what makes any run useless."""

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import docker
import docker.errors
from docker.models.containers import Container

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.base.tar_stream import Pieces, open_tar
from rocstack.container import privileges
from rocstack.edge.engine import find_image
from rocstack.nic import elf
from rocstack.node.image_facts import LABEL_PREFIX
from rocstack.stack import base_reading
from rocstack.stack.base_reading import BaseReading, BaseStart, FoundVerbs

PYTHON = "/usr/bin/python3"
LIMITS = ("--network=none", "--read-only", "--user=65534:65534", "--pids-limit=64", "--memory=1g")
QUIET = ("--no-healthcheck", "--log-driver=none")
SECONDS = 60
MOST = 1 << 20  # bytes of what it prints, and of a library that is read here
OTHERS = ("dnf", "microdnf", "yum", "zypper", "apk", "pacman")
# Bounded: a base may have a library for which a search would take hours.
_PATTERN = re.compile(rb"(/[A-Za-z0-9/._+-]{1,200})/lib%s-(rdmav\d{1,4})\.so")


def read(client: docker.DockerClient, reference: str, driver: str | None) -> BaseReading:
    """What is in the image; `driver` is libibverbs' name of the NIC's provider.

    Raises:
        BadInput: no rocstack image can be built on it, or it can't be read.
    """
    reading = look(client, reference, driver)
    if reading is None:
        raise BadInput.of("base-without-python", image=reference, python=PYTHON)
    return reading


def look(client: docker.DockerClient, reference: str, driver: str | None) -> BaseReading | None:
    """The same; None where no Python could tell what is in it.

    Raises:
        BadInput: no rocstack image can be built on it, or it can't be read.
    """
    image = find_image(client, reference)
    assert image is not None
    config = image.attrs.get("Config") or {}
    machine = str(image.attrs.get("Architecture"))
    if machine != "amd64":
        raise BadInput.of("base-machine", image=reference, machine=machine)
    if any(label.startswith(LABEL_PREFIX) for label in config.get("Labels") or {}):
        raise BadInput.of("base-ours", image=reference)
    if config.get("OnBuild"):
        raise BadInput.of("base-onbuild", image=reference)
    with _created(client, reference) as container:
        _refuse_unusable(container, reference)
        if not _has(container, PYTHON):
            return None
        said = _run(str(container.id), reference)
        start = {"entrypoint": config.get("Entrypoint"), "cmd": config.get("Cmd"), "shell": config.get("Shell")}
        start |= {"user": config.get("User") or ""}
        try:
            own = BaseStart.model_validate(start, strict=False)
        except ValueError:
            raise BadInput.of(
                "base-unreadable", image=reference, problem="its Entrypoint, Cmd, User or Shell"
            ) from None
        reading = base_reading.parse(said, reference, start=own)
        if reading.verbs is None:
            return reading
        library = _file(container, reading.verbs.path)
        verbs = FoundVerbs(**{**reading.verbs.model_dump(), "private_abi": _abi(library, provider=False)})
        found = _PATTERN.search(library or b"")
        drivers = {}
        if driver and found:
            provider = _file(container, f"{found[1].decode()}/lib{driver}-{found[2].decode()}.so")
            drivers = {} if provider is None else {driver: _abi(provider, provider=True)}
    return reading.model_copy(update={"verbs": verbs, "drivers": drivers})


@contextlib.contextmanager
def _created(client: docker.DockerClient, reference: str) -> Iterator[Container]:
    script = (paths.images() / "check" / "read_base.py").read_text()
    flags = (*privileges.LEAST, *LIMITS, *QUIET, f"--entrypoint={PYTHON}")
    command = ["docker", "create", "--pull=never", *flags, reference, "-I", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        problem = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BadInput.of("base-unreadable", image=reference, problem=problem[:200])
    container = client.containers.get(done.stdout.strip())
    try:
        yield container
    finally:
        container.remove(force=True, v=True)


def _refuse_unusable(container: Container, reference: str) -> None:
    """What can be told without running anything of it."""
    if not _has(container, "/lib64/ld-linux-x86-64.so.2"):
        found = "musl instead of glibc" if _has(container, "/lib/ld-musl-x86_64.so.1") else "no glibc"
        raise BadInput.of("base-without-glibc", image=reference, found=found)
    if not (_has(container, "/usr/bin/apt-get") and _has(container, "/usr/bin/dpkg")):
        other = next((name for name in OTHERS if _has(container, f"/usr/bin/{name}")), None)
        found = f"{other}, not apt" if other else "no package manager"
        raise BadInput.of("base-without-apt", image=reference, found=found)


def _archive(container: Container, path: str) -> tuple[Any, dict[str, Any]] | None:
    """A path of the image as a stream of tar and what the engine says of it; None where there is nothing."""
    try:
        return container.get_archive(path)  # type: ignore[return-value]
    except docker.errors.NotFound:
        return None


def _has(container: Container, path: str) -> bool:
    found = _archive(container, path)
    if found:
        found[0].close()
    return found is not None


def _file(container: Container, path: str) -> bytes | None:
    """A regular file of the image, a link followed once; None where there is none, or it is too large."""
    found = _archive(container, path)
    if found and found[1].get("linkTarget"):
        found[0].close()
        found = _archive(container, str(found[1]["linkTarget"]))
    if found is None:
        return None
    with contextlib.closing(found[0]) as chunks:
        if int(found[1]["size"]) > MOST:
            return None
        data = bytearray()
        for chunk in chunks:  # of a folder it is all that is in it
            data += chunk
            if len(data) > 2 * MOST:
                return None
        with open_tar(Pieces([data])) as tar:
            member = tar.next()
            file = tar.extractfile(member) if member and member.isreg() else None
            return file.read(MOST) if file else None


def _abi(data: bytes | None, *, provider: bool) -> int | None:
    try:
        return (elf.read_provider if provider else elf.read_libibverbs)(data or b"").private_abi
    except ValueError:
        return None


def _run(ident: str, reference: str) -> str:
    """The last line that it prints; one that prints without end is stopped."""
    command = ["docker", "start", "--attach", ident]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        out = process.stdout.read(MOST + 1)
        ended = timer.is_alive() and len(out) <= MOST
        timer.cancel()
        if not ended:
            process.kill()
    if not ended:
        problem = f"no end of what its Python prints, in {SECONDS} s or {MOST >> 20} MB"
        raise BadInput.of("base-unreadable", image=reference, problem=problem)
    last = (out.decode("utf-8", "replace").strip().splitlines() or ["it prints nothing"])[-1]
    if process.returncode != 0:
        problem = re.sub(r"[^ -~]", "?", last)[:200]
        raise BadInput.of("base-unreadable", image=reference, problem=problem)
    return last
