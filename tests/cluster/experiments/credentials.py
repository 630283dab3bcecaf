"""A MUNGE credential of every worker is decoded at the control node, and one of the control node at every worker.

They travel in command lines, which jobs' users read, and Slurm takes one without a payload for any message of who made
it. So an ordinary user makes them, and nobody else can decode them."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from itertools import zip_longest
from typing import Any

from rocstack.deploy.plan import services

# Of an empty credential: those of all workers become words of one command line, of which an argument holds 128 KiB.
CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/=]{1,400}:")
AT_ONCE = 200  # credentials in one command line
UNMUNGE = "timeout 5 unmunge --output=/dev/null"  # not the payload: who made it could write another's status there
TRIES = 2
# Installed only, and not started, it is in nobody's way.
HOST = f"""command -v munge >/dev/null && [ -S /run/munge/munge.socket.2 ] || {{ echo absent; exit; }}
credential=$(timeout 5 munge -n 2>&1) || {{ echo "$credential"; exit 1; }}
printf %s "$credential" | docker exec -i {services.WORKER} {UNMUNGE} 2>&1"""


def run(cluster: Any) -> dict[str, Any]:
    """Worker -> {"here": of the control node's credential, "there": of its own at the control node, "host": of its
    host's, or None where no MUNGE runs there}."""
    of_control, why = _made(cluster.slurm)
    user = shlex.quote(cluster.slurm.user)
    line = shlex.quote(f"{_decode([of_control])}; timeout 5 munge -n --restrict-uid={user}")
    outputs = cluster.in_workers(
        f'exec setpriv --reuid={user} --regid="$(id -g {user})" --clear-groups sh -c {line}', seconds=30
    )
    parts = {name: done.stdout.partition("\n") for name, done in outputs.items()}
    texts = {name: text.strip() for name, (_, _, text) in parts.items()}
    names = sorted(name for name, text in texts.items() if CREDENTIAL.fullmatch(text))
    there = {name: read(f"it made no credential, but {len(text)} characters") for name, text in texts.items() if text}
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        decoded = cluster.slurm.run("sh", "-c", _decode([texts[name] for name in some])).stdout.splitlines()
        there |= {name: read(_plain(text)) for name, text in zip_longest(some, decoded[: len(some)], fillvalue="")}
    hosts = cluster.everywhere(HOST, cluster.workers)
    return {
        name: {
            "here": read((_plain(parts[name][0]) if of_control else why) or done.stderr),
            "there": there.get(name, read(done.stderr)),
            "host": None if hosts[name].stdout.strip() == "absent" else read(hosts[name].stdout + hosts[name].stderr),
        }
        for name, done in outputs.items()
    }


def _made(slurm: Any) -> tuple[str, str]:
    """The control node's credential; else nothing, and why. All workers are judged by it, so it is asked for again."""
    for _ in range(TRIES):
        done = slurm.run("timeout", "5", "munge", "-n", f"--restrict-uid={slurm.user}")
        if CREDENTIAL.fullmatch(done.stdout.strip()):
            return done.stdout.strip(), ""
    message = (done.stderr or done.stdout).strip() or "it said nothing"
    return "", f"none was made (exit code {done.rc}): {message}"


def _decode(credentials: list[str]) -> str:
    """A command line that says of each what unmunge printed: a line in base64."""
    words = " ".join(map(shlex.quote, credentials)) or "''"
    return f'for each in {words}; do printf %s "$each" | {UNMUNGE} 2>&1 | base64 --wrap=0; echo; done'


def _plain(line: str) -> str:
    try:
        return base64.b64decode(line, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""


def read(text: str) -> dict[str, Any]:
    """What unmunge printed: its status (0 is good; None: none), and when the credential was made and decoded, each by
    the clock of where that was, in seconds since the epoch."""
    status = re.search(r"^STATUS:\s+.*\((\d+)\)", text, re.MULTILINE)
    times = dict(re.findall(r"^(ENCODE|DECODE)_TIME:.*\((\d+)\)", text, re.MULTILINE))
    return {
        "status": int(status[1]) if status else None,
        "encoded": int(times["ENCODE"]) if "ENCODE" in times else None,
        "decoded": int(times["DECODE"]) if "DECODE" in times else None,
        "said": re.sub("[0-9a-f]{64}", services.WORKER, text.strip())[:300],
    }
