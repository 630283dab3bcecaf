"""The image of node containers: the stack's base and what a freshly installed server has. Kept by content."""

import hashlib
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker

from rocstack.base import image_names, paths
from rocstack.base.errors import CheckFailed
from rocstack.edge.engine import find_image
from rocstack.image import base_image
from rocstack.image.buildkit import Buildkit, BuildkitRequest
from rocstack.image.context import BuildContext, ContextFile
from rocstack.settings import site
from rocstack.settings.settings import Settings
from rocstack.stack.stack import Stack

LABEL = "io.rocstack.node"
_HELPERS = ("site", "apt-update", "apt-install", "apt-clean")
Report = Callable[[str], None]


def context(base_reference: str, check_valid_until: bool = True) -> BuildContext:
    images = paths.images()
    old_indexes = "" if check_valid_until else "RUN touch /etc/apt/no-valid-until\n"
    dockerfile = f"FROM {base_reference} AS node\n{old_indexes}" + (images / "node/Dockerfile.steps").read_text()
    helpers = {f"build/{name}": ContextFile((images / "build" / name).read_bytes(), 0o755) for name in _HELPERS}
    own = {name: ContextFile((images / "node" / name).read_bytes(), 0o755) for name in ("start", "devices")}
    return BuildContext({"Dockerfile": ContextFile(dockerfile.encode()), **own, **helpers})


def ensure(client: docker.DockerClient, stack: Stack, settings: Settings, folder: Path, report: Report) -> str:
    """The image's name; builds it where it is not there yet. `folder` takes the context.

    Raises:
        CheckFailed: a package could not be installed.
        Missing: no base image.
    """
    start = base_image.ensure(client, stack, settings, report)
    made = context(start.reference, stack.base.check_valid_until)
    key = hashlib.sha256(f"{made.digest()}{start.digest}".encode()).hexdigest()[:12]
    name = image_names.local_name(settings.image_prefix, "node", f"{stack.base.os}-{key}")
    if find_image(client, name):
        return name
    report(f"building the image of virtual nodes, {name}")
    made.write(folder)
    request = BuildkitRequest(folder, "node", "node", site.of(settings), tags=(name,), labels={LABEL: stack.base.os})
    builder = Buildkit()
    with ThreadPoolExecutor(1) as pool:
        try:
            _, _, failure = pool.submit(builder.retried, request, made, settings.attempts, report).result()
        except BaseException:
            builder.stop()
            raise
    if failure:
        step = failure.next_step or f"see the whole output with `{shlex.join(request.shown())}`"
        raise CheckFailed.of("node-image-failed", error=failure.error, cause=failure.cause, step=step)
    return name
