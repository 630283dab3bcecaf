"""What `docker login` left on this node. Standard library only."""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import subprocess
from typing import Optional, Tuple  # noqa: UP035

from .engine import Failed, Row

Login = Tuple[str, str]  # noqa: UP006  (evaluated by Python 3.8)


def own(host: str) -> Optional[Login]:  # noqa: UP045
    """User and password of this user's login for a registry (HOST:PORT), None where there is none.

    Raises:
        Failed: it is in a helper that doesn't give it.
    """
    folder = os.environ.get("DOCKER_CONFIG") or os.path.join(os.path.expanduser("~"), ".docker")
    try:
        with open(os.path.join(folder, "config.json")) as file:
            config: Row = json.load(file)
    except (OSError, ValueError):
        return None
    helper = (config.get("credHelpers") or {}).get(host) or config.get("credsStore")
    if helper:
        return _ask(str(helper), host)
    auths = config.get("auths") or {}
    entry = auths.get(host) or auths.get("https://" + host) or {}
    try:
        user, _, password = base64.b64decode(str(entry.get("auth") or "")).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if user and password else None


def _ask(helper: str, host: str) -> Optional[Login]:  # noqa: UP045
    """As docs.docker.com/reference/cli/docker/login has it: the host on its input, JSON on its output."""
    program = shutil.which("docker-credential-" + helper)
    if not program:
        raise Failed(f"docker-credential-{helper}, which has the login for {host}, isn't there", kind="denied")
    try:
        done = subprocess.run([program, "get"], input=host.encode(), capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        raise Failed(f"docker-credential-{helper} gives no login for {host}", kind="denied") from None
    if done.returncode:  # it knows none for this host
        return None
    found = json.loads(done.stdout)
    return str(found["Username"]), str(found["Secret"])
