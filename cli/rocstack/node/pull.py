"""Images of an order, pulled by digest from a registry. Standard library only.

The engine is asked through its API and not by `docker pull`: so a password is in no file and in no process list, bytes
are counted, and a connection over which nothing comes any more is noticed.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Optional, Tuple  # noqa: UP035
from urllib.parse import urlencode

from . import engine_errors, files
from .engine import EngineApi, NodeError, Row, docker, inspect_existing
from .engine_facts import image_id, room
from .fence import Fence
from .node_lock import STATE

Login = Tuple[str, str]  # noqa: UP006  (evaluated by Python 3.8)


def stored_login(host: str) -> Optional[Login]:  # noqa: UP045
    """User and password of this user's login for a registry (HOST:PORT), None where there is none.

    Raises:
        NodeError: it is in a helper that doesn't give it.
    """
    folder = os.environ.get("DOCKER_CONFIG") or os.path.join(os.path.expanduser("~"), ".docker")
    try:
        with open(os.path.join(folder, "config.json")) as file:
            config: Row = json.load(file)
    except (OSError, ValueError):
        return None
    helper = (config.get("credHelpers") or {}).get(host) or config.get("credsStore")
    if helper:
        return _ask_helper(str(helper), host)
    auths = config.get("auths") or {}
    entry = auths.get(host) or auths.get("https://" + host) or {}
    try:
        user, _, password = base64.b64decode(str(entry.get("auth") or "")).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if user and password else None


def _ask_helper(helper: str, host: str) -> Optional[Login]:  # noqa: UP045
    """As docs.docker.com/reference/cli/docker/login has it: the host on its input, JSON on its output."""
    program = shutil.which("docker-credential-" + helper)
    if not program:
        raise NodeError(f"docker-credential-{helper}, which has the login for {host}, isn't there", kind="denied")
    try:
        done = subprocess.run([program, "get"], input=host.encode(), capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        raise NodeError(f"docker-credential-{helper} gives no login for {host}", kind="denied") from None
    if done.returncode:  # it knows none for this host
        return None
    login = json.loads(done.stdout)
    return str(login["Username"]), str(login["Secret"])


CERTS = "/etc/docker/certs.d"  # the engine reads it at every pull (docs.docker.com/engine/security/certificates)
SILENCE_S = 90.0  # seconds; an engine that loads or unpacks speaks several times a second
# What must come in how many seconds, or a layer go on: an engine speaks on while its registry drips.
PACE, PACE_S = 256 << 10, 120.0
# Of a layer that came whole: a busy engine leaves out what it said in between (moby's progress is the newest alone).
HERE = ("Download complete", "Extracting", "Pull complete")
LONGEST_WAIT_S = 15.0  # seconds between attempts
# What trying again doesn't change: the kind in engine_errors, what it is called here, the likely cause.
_FINAL = {
    "full": ("disk-full", "%(root)s has too little room: %(free)s free now"),
    "certificate-time": ("certificate-time", "this node's clock is wrong, or the certificate is too old"),
    "untrusted": ("certificate",
                  "the engine doesn't trust the certificate of %(host)s: see " + CERTS + "/%(host)s/ca.crt"),
    "engine-denied": ("engine-denied",
                      "this user may not use the engine: connect as root, or set ansible_become"),
    "denied": ("denied", "%(host)s doesn't take this user and password"),
    "not-found": ("not-found", "%(host)s doesn't have this image, or no longer"),
    "plain-http": ("http", "%(host)s doesn't speak TLS"),
    "bad-name": ("reference", ""),
    "engine-old": ("engine-old", "this engine is older than 20.10 and can't unpack zstd"),
    "read-only": ("read-only", "%(root)s can't be written"),
}  # fmt: skip


@dataclass
class Pulled:
    """How an image came. `bytes` went over the wire: None where the engine doesn't say."""

    name: str
    id: str
    changed: bool = False
    attempts: int = 0
    seconds: float = 0.0
    bytes: int = 0
    layers: dict[str, str] = field(default_factory=dict)  # short digest -> pulled | existing
    retried: list[str] = field(default_factory=list)  # why

    def to_dict(self) -> Row:
        counts = {kind: list(self.layers.values()).count(kind) for kind in ("pulled", "existing")}
        return {**asdict(self), "seconds": round(self.seconds, 2), "layers": counts}


def pull(
    images: list[Row],
    registry: Row | None,
    retry_s: float = 600.0,
    sleep: Callable[[float], None] = time.sleep,
    fence: Row | None = None,
    folder: str = STATE,
) -> list[Row]:
    """Makes all images of an order be there under their names; one row each, as Pulled has it.

    Args:
        retry_s: seconds after the first failure of an image in which it is tried again.
        fence: as `Fence` takes it, with the `folder`.

    Raises:
        NodeError: an image can't be had, or is another one than it should be; as `Fence.check`.
    """
    fences = Fence(fence, folder)
    fences.announce()
    return [_pull(image, registry, retry_s, sleep, fences).to_dict() for image in images]


def _pull(image: Row, registry: Row | None, retry_s: float, sleep: Callable[[float], None], fence: Fence) -> Pulled:
    began, done = time.monotonic(), Pulled(image["name"], image["id"])
    image_id = local_id(image)
    fence.check()
    if image_id is None:
        reference = image.get("reference")
        if not reference:
            raise NodeError(f"image {done.name} isn't on this node and no registry has it", kind="not-found")
        if registry and registry.get("ca"):
            ca = os.path.join(CERTS, reference.partition("/")[0], "ca.crt")
            files.ensure([files.entry(ca, registry["ca"].encode(), 0o644)])
        _retry(retry_s, reference, registry, done, sleep, fence)
        image_id = local_id(image)
        if image_id is None:
            docker("image", "rm", reference, check=False)
            what = f"{reference} is not image {done.id}"
            raise NodeError(what, "somebody pushed another image meanwhile", "wrong-image")
        done.changed = True
    if done.name not in inspect_existing("image", image_id)[0].get("RepoTags", []):
        fence.check()
        docker("tag", image_id, done.name)
        done.changed = True
    done.seconds = time.monotonic() - began
    return done


def local_id(image: Row) -> str | None:
    """The id by which this engine knows an image of an order; None where it doesn't have it.

    An engine with the containerd store has the manifest's digest as the id, all others the configuration's.
    """
    reference = image.get("reference") or ""
    for row in inspect_existing("image", image["id"], *filter(None, [reference, image.get("name")])):
        same = image_id(row["Id"]) in (image["id"], reference.partition("@")[2])
        containerd = (row.get("GraphDriver") or {}).get("Name", "overlayfs") == "overlayfs"
        if same or (containerd and not reference and image.get("name") in row["RepoTags"]):  # it came by archive
            return str(row["Id"])
    return None


def _retry(
    retry_s: float,
    reference: str,
    registry: Row | None,
    done: Pulled,
    sleep: Callable[[float], None],
    fence: Fence,
) -> None:
    wait, deadline = 1.0, 0.0
    while True:
        done.attempts += 1
        try:
            return _attempt(reference, registry, done)
        except NodeError as failed:
            why = _explain(failed.what, reference)
            now = time.monotonic()
            deadline = deadline or now + retry_s
            left = deadline - now
            if why.kind != "network" or left <= 0:
                tries = "" if done.attempts == 1 else f" ({done.attempts} attempts)"
                raise NodeError(why.what + tries, why.cause, why.kind) from None
            if failed.what not in done.retried[-1:]:
                done.retried.append(failed.what)
            sleep(min(wait, left))
            fence.check()
            wait = min(2 * wait, LONGEST_WAIT_S)


def _attempt(reference: str, registry: Row | None, done: Pulled) -> None:
    sizes: dict[str, int] = {}
    before = set(done.layers)  # of an attempt that broke off
    pace = _Pace()
    try:
        for event in _events(reference, registry):
            if "error" in event:
                raise NodeError(str(event["error"]))
            layer, status = str(event.get("id", "")), str(event.get("status", ""))
            detail = event.get("progressDetail") or {}
            pace.count(layer, status, int(detail.get("current") or 0))
            if status in ("Downloading", "Extracting"):
                total = int(detail.get("total") or 0)
                sizes[layer] = max(total, sizes.get(layer, 0))  # less where the engine goes on after a break
            if status == "Already exists":
                done.layers.setdefault(layer, "existing")
            elif status in HERE:
                done.layers[layer] = "pulled"
    except (TimeoutError, socket.timeout):  # noqa: UP041  (not the same before Python 3.10)
        raise NodeError(f"nothing came for {SILENCE_S:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        docker("version")  # it says why it can't be reached
        raise NodeError("the engine broke off: %s" % (error or "no answer")) from None
    finally:
        came = (layer for layer, how in done.layers.items() if how == "pulled" and layer not in before)
        done.bytes += sum(sizes.get(layer, 0) for layer in came)


class _Pace:
    """What came of all layers, and when there was last enough of it."""

    def __init__(self) -> None:
        self.moved, self.came, self.counted = time.monotonic(), 0, 0  # bytes of all, and when they were enough
        self.layers: dict[str, int] = {}  # as the engine counts: of the rest anew, after a break
        self.seen: set[tuple[str, str]] = set()

    def count(self, layer: str, status: str, current: int) -> None:
        """
        Raises:
            NodeError: it is too little.
        """
        now = time.monotonic()
        if status == "Downloading":
            before = self.layers.get(layer, 0)
            self.came += current - before if current >= before else current
            self.layers[layer] = current
        unpacks = status == "Extracting"  # the engine's own work
        if unpacks or (layer, status) not in self.seen or self.came - self.counted >= PACE:
            self.seen.add((layer, status))
            self.moved, self.counted = now, self.came
        elif now - self.moved > PACE_S:
            raise NodeError(f"less than {PACE >> 10} KB came in {PACE_S:g} s")


def _events(reference: str, registry: Row | None) -> Iterator[Row]:
    """POST /images/create of the engine's API: one JSON object a line."""
    repository, _, digest = reference.partition("@")
    if not digest:
        raise NodeError(f"invalid reference {reference}: it names no digest")
    headers, host = {}, reference.partition("/")[0]
    login = (registry["user"], registry["password"]) if registry and registry.get("user") else stored_login(host)
    if login:
        account = {"username": login[0], "password": login[1], "serveraddress": host}
        headers["X-Registry-Auth"] = base64.urlsafe_b64encode(json.dumps(account).encode()).decode()
    api = EngineApi(SILENCE_S)
    try:
        api.request("POST", "/images/create?" + urlencode({"fromImage": repository, "tag": digest}), headers=headers)
        answer = api.getresponse()
        for line in answer:
            event = json.loads(line)
            yield {"error": event.get("message", line.decode())} if answer.status >= 400 else event
    finally:
        api.close()


def _explain(complaint: str, reference: str) -> NodeError:
    """An engine's complaint as a person reads it; kind `network` is worth another attempt."""
    host, text = reference.partition("/")[0], re.sub(r"\s+", " ", complaint).strip()
    kind, cause = _FINAL.get(engine_errors.kind(text, _FINAL), ("network", "%(host)s can't be reached, or breaks off"))
    facts = {"host": host, **(_disk_facts() if "%(root)s" in cause else {})}
    return NodeError(f"{reference} can't be pulled: {text}", cause % facts, kind)


def _disk_facts() -> dict[str, str]:
    root, free = room()
    return {"root": root, "free": "how much is not known" if free is None else "%.1f GB" % (free / 1e9)}
