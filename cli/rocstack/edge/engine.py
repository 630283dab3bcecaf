"""The container engine at the edge: is it there, does it have buildx, is there room."""

import os
import re
import shutil
import subprocess
from typing import Any

import docker
import docker.errors
import requests.exceptions

from rocstack.base.errors import Missing

OLDEST_ENGINE = 23  # the first with BuildKit's heredocs without a syntax line (Docker release notes)
OLDEST_BUILDX = (0, 13)  # the first with --progress rawjson (buildx release notes)


def connect() -> docker.DockerClient:
    """A client of the engine that answers.

    Raises:
        Missing: no engine, it is not running, or this user may not use its socket.
    """
    try:
        client = docker.from_env(timeout=300)
        client.ping()
        return client
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        text, host = str(error), os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        denied = "PermissionError" in text or "Permission denied" in text
        raise Missing.of("no-engine-permission" if denied else "silent-engine", host=host) from None


def require_buildx() -> None:
    """
    Raises:
        Missing: no docker command, or no buildx in it.
    """
    if shutil.which("docker") is None:
        raise Missing.of("no-docker-command")
    done = subprocess.run(["docker", "buildx", "version"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing.of("no-buildx")
    version = re.search(r"(?:^| )v?(\d+)\.(\d+)", done.stdout)
    if version and (int(version[1]), int(version[2])) < OLDEST_BUILDX:
        least = ".".join(map(str, OLDEST_BUILDX))
        raise Missing.of("old-buildx", version=f"{version[1]}.{version[2]}", least=least)


def require_version(client: docker.DockerClient) -> None:
    """
    Raises:
        Missing: an engine whose builder does not know heredocs.
    """
    version = str(client.version().get("Version", ""))
    major = re.match(r"(\d+)\.", version)
    if major and int(major[1]) < OLDEST_ENGINE:
        raise Missing.of("old-engine", version=version, least=OLDEST_ENGINE)


def require_disk(client: docker.DockerClient, need_mb: int) -> None:
    """Checks the free space of the engine's own folder, where it is on this machine.

    Raises:
        Missing: less than `need_mb` (10^6 bytes) is free.
    """
    root = str(client.info().get("DockerRootDir", ""))
    if not os.path.isdir(root):
        return
    free_mb = shutil.disk_usage(root).free // 10**6
    if free_mb < need_mb:
        raise Missing.of("engine-disk-full", free=free_mb / 1000, root=root, need=need_mb / 1000)


def is_rootless(client: docker.DockerClient) -> bool:
    """Is root in its containers the person who started it?"""
    return any("rootless" in option for option in client.info().get("SecurityOptions") or ())


def find_image(client: docker.DockerClient, reference: str) -> Any | None:
    """The local image, or None."""
    try:
        return client.images.get(reference)
    except docker.errors.ImageNotFound:
        return None
