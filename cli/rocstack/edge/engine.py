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
BUILDX = "install the package docker-buildx (Debian 13, Ubuntu) or docker-buildx-plugin (Docker's own)"
INSTALL = "in a checkout, run `make setup`; elsewhere, install docker.io and docker-buildx"


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
        text = str(error)
        host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        if "PermissionError" in text or "Permission denied" in text:
            raise Missing(
                f"no permission to use the container engine at {host}",
                code="no-permission",
                cause="the socket belongs to root and the group 'docker'",
                next_step="`sudo usermod -aG docker $USER` and log in again, or run with sudo",
            ) from None
        raise Missing(
            f"no container engine answers at {host}",
            code="no-engine",
            cause="it is not installed, or not running",
            next_step=INSTALL,
        ) from None


def require_buildx() -> None:
    """
    Raises:
        Missing: no docker command, or no buildx in it.
    """
    if shutil.which("docker") is None:
        raise Missing("the command 'docker' is not installed", code="no-engine", next_step=INSTALL)
    done = subprocess.run(["docker", "buildx", "version"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(
            "docker has no buildx",
            code="no-buildx",
            cause="some distributions package it separately, and older ones not at all",
            next_step=BUILDX,
        )
    version = re.search(r"(?:^| )v?(\d+)\.(\d+)", done.stdout)
    if version and (int(version[1]), int(version[2])) < OLDEST_BUILDX:
        raise Missing(
            f"buildx {version[1]}.{version[2]} is too old: {OLDEST_BUILDX[0]}.{OLDEST_BUILDX[1]} or newer is needed",
            code="old-buildx",
            cause="older versions lack `--progress rawjson`, which rocstack reads",
            next_step=BUILDX,
        )


def require_version(client: docker.DockerClient) -> None:
    """
    Raises:
        Missing: an engine whose builder does not know heredocs.
    """
    version = str(client.version().get("Version", ""))
    major = re.match(r"(\d+)\.", version)
    if major and int(major[1]) < OLDEST_ENGINE:
        raise Missing(
            f"container engine {version} is too old: {OLDEST_ENGINE} or newer is needed",
            code="old-engine",
            cause="its builder does not know the instructions that rocstack's Dockerfiles use",
            next_step="install docker.io from Debian 13, Ubuntu 22.04 or newer, or Docker's own packages",
        )


def require_disk(client: docker.DockerClient, need_mb: int) -> None:
    """Checks the free space of the engine's own folder, where it is on this machine.

    Raises:
        Missing: less than `need_mb` (10^6 bytes) is free.
    """
    root = str(client.info().get("DockerRootDir", ""))
    if not os.path.isdir(root):
        return
    free_mb = shutil.disk_usage(root).free // 1_000_000
    if free_mb < need_mb:
        raise Missing(
            f"{free_mb / 1000:.1f} GB are free in {root}; a first build of this stack needs about "
            f"{need_mb / 1000:.1f} GB",
            code="disk-full",
            next_step="check `docker system df`; free old build cache with `docker builder prune`",
        )


def is_rootless(client: docker.DockerClient) -> bool:
    """Is root in its containers the person who started it?"""
    return any("rootless" in option for option in client.info().get("SecurityOptions") or ())


def find_image(client: docker.DockerClient, reference: str) -> Any | None:
    """The local image, or None."""
    try:
        return client.images.get(reference)
    except docker.errors.ImageNotFound:
        return None
