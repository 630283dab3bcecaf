"""Copies an image from one registry into another with skopeo out of the control image, and checks what arrived.
Standard library only."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
import time

from . import files
from .engine import CommandOutput, NodeError, Row, docker

CERTS = "/etc/docker/certs.d"  # skopeo reads it too: containers-certs.d(5)
MEMORY = "/dev/shm"  # a password doesn't reach a disk where there is one
PREFIX = "rocstack-copy-"
MOUNT = "/run/rocstack"
COPY_S, INSPECT_S = 7200.0, 120.0
ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"


def copy_image(copy: Row, logins: list[Row], image: str) -> Row:
    """
    Args:
        copy: "source" and "target" (HOST:PORT/PATH), "digest", and the "tag" that it gets there.
        logins: "host", "user", "password" and "ca" (PEM) of both registries. Without a CA the one that this node's
            engine has for the host counts, or skopeo's own.
        image: id of the control image on this node.

    Returns: "changed" and "seconds".

    Raises:
        NodeError: it is not there afterwards, byte by byte and with zstd layers.
    """
    began, reference = time.monotonic(), f"docker://{copy['target']}@{copy['digest']}"
    base = MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir()
    files.sweep(base, PREFIX, {os.geteuid()})  # of copies that were killed
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=base)
    handle = os.open(folder, os.O_RDONLY)
    try:
        files.hold(handle)
        _write(folder, logins)
        present = _skopeo(folder, image, INSPECT_S, "inspect", "--raw", reference)
        changed = bool(present.code)
        if changed:
            source, target = f"docker://{copy['source']}@{copy['digest']}", f"docker://{copy['target']}:{copy['tag']}"
            options = ("--all", "--preserve-digests", "--retry-times=3")
            copied = _skopeo(folder, image, COPY_S, "copy", "--quiet", *options, source, target)
            if copied.code:
                raise NodeError(f"{copy['source']} can't be copied to {copy['target']}: {_last(copied)}", kind="mirror")
            present = _skopeo(folder, image, INSPECT_S, "inspect", "--raw", reference)
        _check(copy, present)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
    return {"changed": changed, "seconds": round(time.monotonic() - began, 2)}


def _write(folder: str, logins: list[Row]) -> None:
    auths = {}
    for login in logins:
        host = login["host"]
        if login.get("user"):
            pair = f"{login['user']}:{login['password']}"
            auths[host] = {"auth": base64.b64encode(pair.encode()).decode()}
        known, to = os.path.join(CERTS, host), os.path.join(folder, "certs.d", host)
        if login.get("ca"):
            os.makedirs(to)
            with open(os.path.join(to, "ca.crt"), "w") as file:
                file.write(login["ca"])
        elif os.path.isdir(known):
            shutil.copytree(known, to)
    os.makedirs(os.path.join(folder, "certs.d"), exist_ok=True)
    descriptor = os.open(os.path.join(folder, "auth.json"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"auths": auths}, file)


def _skopeo(folder: str, image: str, seconds: float, command: str, *words: str) -> CommandOutput:
    return docker(
        "run", "--rm", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=host",
        f"--volume={folder}:{MOUNT}:ro", f"--volume={folder}/certs.d:{CERTS}:ro",
        "--entrypoint=skopeo", image, command, f"--authfile={MOUNT}/auth.json", *words,
        check=False, seconds=seconds,
    )  # fmt: skip


def _check(copy: Row, present: CommandOutput) -> None:
    target, short = copy["target"], copy["digest"][:19]
    if present.code:
        cause = "its registry does not keep what it is given, or doesn't answer"
        raise NodeError(f"{target} has not got {short}: {_last(present)}", cause, "mirror")
    data = present.out.encode()
    if "sha256:" + hashlib.sha256(data).hexdigest() != copy["digest"]:
        raise NodeError(f"{target} has other bytes under {short}", kind="mirror")
    kinds = {layer["mediaType"] for layer in json.loads(data).get("layers", [])}
    if kinds != {ZSTD}:
        raise NodeError(f"{target} holds layers of type {', '.join(sorted(kinds))}, not zstd", kind="mirror")


def _last(output: CommandOutput) -> str:
    """The engine's and skopeo's words end with the reason."""
    lines = [line for line in output.err.strip().splitlines() if line.strip()]
    text = lines[-1].partition("msg=")[2].strip('"') or lines[-1] if lines else f"exit status {output.code}"
    return text[-300:]
