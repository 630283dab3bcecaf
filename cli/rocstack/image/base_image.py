"""The base image: from the registry, or by mmdebstrap where no registry answers."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Literal

import docker
import docker.errors
import requests.exceptions

from rocstack.base import image_names
from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.base.words import Value
from rocstack.edge.engine import find_image
from rocstack.image.build_failure import of_index
from rocstack.image.context import EPOCH
from rocstack.settings.settings import Settings
from rocstack.stack.stack import Stack

How = Literal["registry", "mmdebstrap", "given"]


class BaseImage(Value):
    """What the build starts from. `digest` is the registry's, or the engine's image id for a local one."""

    reference: str
    digest: str
    how: How


def local_name(stack: Stack, settings: Settings) -> str:
    """The name of a base made here; it holds a hash of all that goes into making one."""
    own = stack.base.model_dump(exclude={"suites", "check_valid_until"})  # they come into play on top of it
    inputs = [own, stack.exclude, settings.apt_mirror]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    return image_names.local_name(settings.image_prefix, "base", f"{stack.base.os}-{digest}")


def ensure(client: docker.DockerClient, stack: Stack, settings: Settings, say: Callable[[str], None]) -> BaseImage:
    """Makes the base available to the engine; cheap when it is there.

    Raises:
        Missing: no registry answers and mmdebstrap is not installed.
        CheckFailed: mmdebstrap failed.
    """
    if not stack.base.check_valid_until:
        say(f"{stack.name} takes package indexes past their Valid-Until: a mirror may stand still, or replay old ones")
    if settings.base_image:
        return given(client, settings.base_image)
    made = local_name(stack, settings)
    if settings.base != "mmdebstrap":
        if find_image(client, stack.base.image):
            return _found(client, stack.base.image, "registry")
        if settings.base == "auto" and find_image(client, made):
            return _found(client, made, "mmdebstrap")
        try:
            say(f"pulling {stack.base.image}")
            return _found(client, stack.base.image, "registry", pull=True)
        except Missing as error:
            if settings.base == "registry" or stack.base.bootstrap is None:
                raise
            say(f"{error.cause}; making the base with mmdebstrap instead")
    if not find_image(client, made):
        bootstrap(stack, settings, made)
    return _found(client, made, "mmdebstrap")


def given(client: docker.DockerClient, reference: str) -> BaseImage:
    """The user's own base image, pulled if it is not here.

    Raises:
        Missing: it is nowhere.
    """
    return _found(client, reference, "given", pull=True)


def _found(client: docker.DockerClient, reference: str, how: How, pull: bool = False) -> BaseImage:
    image = find_image(client, reference)
    if image is None and pull:
        try:
            image = client.images.pull(reference)
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            reason = " ".join(str(getattr(error, "explanation", None) or error).split())[:200]
            raise Missing.of("no-base", image=reference, reason=reason) from None
    assert image is not None
    digests = image.attrs.get("RepoDigests") or []
    digest = digests[0].split("@")[1] if digests else str(image.id)
    return BaseImage(reference=reference, digest=digest, how=how)


def bootstrap(stack: Stack, settings: Settings, reference: str) -> None:
    """Makes a minimal base with mmdebstrap and imports it. About 15 s and 120 MB."""
    spec = stack.base.bootstrap
    if spec is None:
        raise BadInput.of("no-bootstrap", stack=stack.name)
    if shutil.which("mmdebstrap") is None:
        raise Missing.of("no-mmdebstrap")
    partial = f"{reference}-partial-{os.getpid()}"
    command = ["mmdebstrap", "--variant=minbase", "--include=ca-certificates", "--quiet"]
    command += ["--keyring=/usr/share/keyrings/debian-archive-keyring.gpg"] if spec.distribution == "debian" else []
    command += [f"--components={','.join(spec.components)}"]
    command += [f"--dpkgopt=path-exclude={glob}" for glob in stack.exclude if glob.startswith("/usr/share")]
    command += [] if stack.base.check_valid_until else ['--aptopt=Acquire::Check-Valid-Until "false"']
    # The image's own rules are written at build time; mmdebstrap's copies of them would shadow later changes.
    hook = 'rm -f "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap" "$1/etc/apt/apt.conf.d/99mmdebstrap"'
    command += [f"--customize-hook={hook}", spec.suite, "-"]
    command += [settings.apt_mirror] if settings.apt_mirror else []
    # A folder of its own: a killed run leaves nothing half-imported, docker import takes a whole tar or none.
    dated = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}  # the same packages make the same base
    maker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dated)
    taker = ["docker", "import", "-", partial]
    importer = subprocess.Popen(taker, stdin=maker.stdout, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert maker.stdout is not None
    assert maker.stderr is not None
    maker.stdout.close()
    try:
        errors = maker.stderr.read() + importer.communicate()[1]
        maker.wait()
    except BaseException:
        for process in (maker, importer):
            process.terminate()
            process.wait()
        raise
    made = not (maker.returncode or importer.returncode)
    if made:
        subprocess.run(["docker", "tag", partial, reference], check=True)
    subprocess.run(["docker", "rmi", partial], capture_output=True, check=False)
    if not made:
        lines = errors.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        if unread := of_index(lines):
            error, cause, next_step = unread
            raise CheckFailed.of("index-unread", error=error, cause=cause, next=next_step)
        raise CheckFailed.of("base-failed", last=lines[-1], before="\n".join(lines[-6:-1]))
