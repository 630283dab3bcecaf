"""The compiler's answer, from an image with MaxText: the edge of `rocstack size --compile`."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress

from rocstack.base.errors import BadInput, CheckFailed, Missing
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
NOBODY = 65534


def compile(sized: Sized, image: str | None) -> Compiled:
    """
    Raises:
        BadInput: MaxText has no such model or layout.
        Missing: no engine, or no image with MaxText.
        CheckFailed: the image's program gave no answer.
    """
    if sized.rank:
        raise BadInput.of("lora-not-compiled")
    gfx, units = next(
        (gfx, model.units)
        for gfx, target in targets().items()
        for name, model in target.gpus.items()
        if name == sized.hardware.gpu
    )
    asked = maxtext.request(sized.shape, sized.layout, sized.hardware, sized.sequence, gfx, units)
    return compiled.read(_run(image or _image(), json.dumps(asked).encode()), sized, asked["attention"])


def _image() -> str:
    """The newest one of the stack, for whichever NIC."""
    found = engine.connect().images.list(filters={"label": f"{OWN}stack={STACK}"})
    images = sorted((each for each in found if each.tags), key=lambda each: str(each.attrs.get("Created")))
    if not images:
        raise Missing.of("no-maxtext-image", stack=STACK)
    return str(images[-1].tags[0])


def _run(image: str, asked: bytes) -> bytes:
    """The program's answer. Its container has no network and no GPU, and doesn't outlive this call."""
    name = f"rocstack-size-{os.getpid()}"
    line = [
        "docker", "run", "--rm", "--interactive", f"--name={name}", "--pull=never", "--network=none", "--read-only",
        "--no-healthcheck", "--tmpfs=/tmp:mode=1777", f"--user={NOBODY}:{NOBODY}", "--env=HOME=/tmp",
        f"--memory={MEMORY}", "--env=PYTHONPATH=/opt/maxtext/lib", "--env=PYTHONDONTWRITEBYTECODE=1", *privileges.LEAST,
        "--entrypoint=python3", image, PROGRAM,
    ]  # fmt: skip
    try:
        done = ssh.captured(line, SECONDS, asked)
    except FileNotFoundError:
        raise Missing.of("no-docker-command") from None
    except subprocess.TimeoutExpired:
        raise CheckFailed.of("compiler-is-slow", minutes=SECONDS // 60) from None
    except ssh.Endless as error:
        raise CheckFailed.of("compiler-says-nonsense", why=error) from None
    finally:
        with suppress(OSError):
            subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        said = visible(lines[-1][:300]) if lines else "nothing"
        raise CheckFailed.of("compiler-ended", code=done.returncode, memory=MEMORY, said=said)
    return done.stdout
