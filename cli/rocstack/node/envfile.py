"""fabric.env as text. Two readers, two forms: a shell needs quotes around a value with a space (`AWS Libfabric`),
`docker run --env-file` and Slurm's task prolog take quotes as part of the value.

Where all values are plain words both forms are the same. systemd's EnvironmentFile reads the shell's.
"""

from __future__ import annotations

import re
import shlex

from .fabric import Fabric

PATH = "/etc/rocstack/fabric.env"
_BARE = re.compile(r"[A-Za-z0-9_.,:/=@%^+-]*")


def render_env(fabric: Fabric, *, shell: bool = True) -> str:
    """The file's text: what is to know as comments, then each variable under its reason."""
    head = [f"Environment of {fabric.node}'s fabric for NIC profile {fabric.nic}, computed from the node's profile."]
    if fabric.virtual:
        head.append(f"Virtual node, model {fabric.virtual}: the hardware is simulated.")
    head += [f"GPU {link.gpu}: {link.nic} ({link.via})" for link in fabric.affinity]
    head += [f"{port.name} is left out: {port.why}" for port in fabric.excluded if not port.matters]
    head += [f"Note: {note}" for note in fabric.notes]
    head += [f"WARNING: {warning}" for warning in fabric.warnings]
    text = [_comment(line) for line in head]
    for line in fabric.lines:
        value = shlex.quote(line.value) if shell and not _BARE.fullmatch(line.value) else line.value
        text += ["", _comment(line.reason + (f" [{line.source}]" if line.source else "")), f"{line.name}={value}"]
    return "\n".join(text) + "\n"


def parse_env(text: str) -> dict[str, str]:
    """The variables of the shell's form.

    Raises:
        ValueError: a line that is neither a comment nor one variable.
    """
    env = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        words = shlex.split(line)
        name, equals, value = words[0].partition("=")
        if len(words) != 1 or not equals:
            raise ValueError(f"line {number} is no variable: {line}")
        env[name] = value
    return env


def _comment(text: str) -> str:
    """One line of comment, whatever a node's names hold."""
    return "# " + "".join(letter if letter.isprintable() else "?" for letter in text)
