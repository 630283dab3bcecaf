"""The compiler's answer, from an image with MaxText: the edge of `rocstack size --compile`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rocstack.base.errors import CheckFailed, Missing
from rocstack.base.text import visible
from rocstack.container import privileges
from rocstack.edge import engine, ssh
from rocstack.image.labels import OWN
from rocstack.size import compiled, maxtext
from rocstack.size.compiled import Compiled
from rocstack.size.sizing import Sized
from rocstack.stack.gpus import targets

STACK = "maxtext-rocm-7.2"
PROGRAM = "/usr/local/lib/rocstack/maxtext/compile.py"
SECONDS = 1800  # at most; a large step takes half a minute on two cores
MEMORY = "16g"
AT_ONCE, SECONDS_EACH, BYTES_EACH = (
    2,
    120,
    7 << 30,
)  # of many steps: bounds of each, of the processor's time and of memory
NOBODY = 65534


def compile(sized: Sized, image: str | None) -> Compiled:
    """
    Raises:
        BadInput: MaxText has no such model or layout.
        Missing: no engine, or no image with MaxText.
        CheckFailed: the image's program gave no answer.
    """
    asked = request(sized)
    return compiled.read(_run(image or newest_image(), json.dumps(asked).encode()), sized, asked["attention"])


def request(sized: Sized) -> dict[str, Any]:
    """What the image's program is asked.

    Raises:
        BadInput: MaxText has no such model or layout.
    """
    gfx, units = next(
        (gfx, model.units)
        for gfx, target in targets().items()
        for name, model in target.gpus.items()
        if name == sized.hardware.gpu
    )
    return maxtext.request(sized.shape, sized.layout, sized.hardware, sized.sequence, gfx, units)


def newest_image() -> str:
    """The newest one of the stack, for whichever NIC."""
    found = engine.connect().images.list(filters={"label": f"{OWN}stack={STACK}"})
    images = sorted((each for each in found if each.tags), key=lambda each: str(each.attrs.get("Created")))
    if not images:
        raise Missing.of("no-maxtext-image", stack=STACK)
    return str(images[-1].tags[0])


def identity(image: str) -> str:
    """
    Raises:
        Missing: no engine, or no such image is here.
    """
    try:
        done = ssh.captured(["docker", "image", "inspect", "--format={{.Id}}", "--", image], 60)
    except FileNotFoundError:
        raise Missing.of("no-docker-command") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise Missing.of("no-such-compiler-image", image=visible(image), why=visible((lines or ["nothing"])[-1][:300]))
    return done.stdout.decode(errors="replace").strip()


def _run(image: str, asked: bytes) -> bytes:
    """The program's answer."""
    with _container(image) as line:
        try:
            done = ssh.captured(line, SECONDS, asked)
        except subprocess.TimeoutExpired:
            raise CheckFailed.of("compiler-is-slow", minutes=SECONDS // 60) from None
        except ssh.Endless as error:
            raise CheckFailed.of("compiler-says-nonsense", why=error) from None
    if done.returncode:
        raise _ended(done.returncode, done.stderr.decode(errors="replace"))
    return done.stdout


def answers(image: str, requests: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Those of many steps, as they are found. All are compiled in one container, which has its imports once.

    Raises:
        Missing: no engine.
        CheckFailed: the program ended, or took too long; what it has given until then holds.
    """
    asked = {"steps": requests, "at_once": AT_ONCE, "seconds": SECONDS_EACH, "bytes": BYTES_EACH}
    with _container(image) as line:
        program = ssh.Program(line)
        try:
            with program.within(SECONDS + 5 * SECONDS_EACH * len(requests)):
                with suppress(BrokenPipeError):
                    program.stdin.write(json.dumps(asked).encode())
                program.stdin.close()
                while (answer := program.line(compiled.LONGEST)).endswith(b"\n"):
                    yield answer
        finally:
            program.end()
        if program.returncode:
            raise _ended(program.returncode, program.complaints())
        if answer:
            why = f"a line of more than {compiled.LONGEST >> 20} MB, or without an end"
            raise CheckFailed.of("compiler-says-nonsense", why=why)


@contextmanager
def _container(image: str) -> Iterator[list[str]]:
    """The command line that starts it. It has no network and no GPU, and doesn't outlive this block."""
    name = f"rocstack-size-{os.getpid()}"
    line = [
        "docker", "run", "--rm", "--interactive", f"--name={name}", "--pull=never", "--network=none", "--read-only",
        "--no-healthcheck", "--tmpfs=/tmp:mode=1777", f"--user={NOBODY}:{NOBODY}", "--env=HOME=/tmp",
        f"--memory={MEMORY}", "--env=PYTHONPATH=/opt/maxtext/lib", "--env=PYTHONDONTWRITEBYTECODE=1", *privileges.LEAST,
        "--entrypoint=python3", image, PROGRAM,
    ]  # fmt: skip
    try:
        yield line
    except FileNotFoundError:
        raise Missing.of("no-docker-command") from None
    finally:
        with suppress(OSError):
            subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)


def _ended(code: int, complaints: str) -> CheckFailed:
    lines = [line for line in complaints.splitlines() if line.strip()]
    said = visible(lines[-1][:300]) if lines else "nothing"
    return CheckFailed.of("compiler-ended", code=code, memory=MEMORY, said=said)
