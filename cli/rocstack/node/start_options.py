"""What the container was started with: ROCSTACK_GATE, ROCSTACK_DATA_SUBNETS, ROCSTACK_CONTROLLER."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .names import resolve
from .start_gate import OFF, REFUSE, WARN

RESOLVE_TIMEOUT_S = 2.0  # seconds for all names together: a dead DNS server costs 10 to 20
_HOST_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,252})(?::[0-9]{1,5})?")
_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?")


def controller_hosts(text: str) -> list[str]:
    """Names and IP addresses, without ports.

    Raises:
        ValueError: a part that is neither.
    """
    return [_controller_host(part.strip()) for part in text.split(",")] if text else []


def _controller_host(part: str) -> str:
    match = _BRACKETS.fullmatch(part)
    bare = match[1] if match else part
    if _literal(bare):
        return bare
    named = None if match else _HOST_NAME.fullmatch(part)
    if not named:
        raise ValueError(f"'{part}' is no HOST[:PORT]")
    return named[1]


def resolve_first(names: Sequence[str]) -> str | None:
    """The address of the first that has one; each is asked for once, all at the same time."""
    addresses = resolve((name for name in names if not _literal(name)), RESOLVE_TIMEOUT_S)
    for name in names:
        if name not in addresses:
            return name
        if found := addresses[name]:
            return min(found, key=lambda address: ":" in address).partition("%")[0]  # IPv4 first, as Slurm has it
    return None


def _literal(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class StartOptions:
    """`wrong` names each that can't be used, and the rest is as if it were not set."""

    gate: str = REFUSE
    subnets: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


def read_options(environ: Mapping[str, str]) -> StartOptions:
    wrong = []
    gate = environ.get("ROCSTACK_GATE") or REFUSE
    if gate not in (REFUSE, WARN, OFF):
        wrong.append(f"ROCSTACK_GATE={gate}: it is {REFUSE}, {WARN} or {OFF}")
        gate = REFUSE
    subnets = [part for part in re.split(r"[,\s]+", environ.get("ROCSTACK_DATA_SUBNETS", "")) if part]
    bad = [complaint for complaint in map(_bad_subnet, subnets) if complaint]
    try:
        hosts = controller_hosts(environ.get("ROCSTACK_CONTROLLER", ""))
    except ValueError as error:
        hosts = []
        wrong.append(f"ROCSTACK_CONTROLLER: {error}; it is HOST[:PORT], several with commas between")
    wrong += [f"ROCSTACK_DATA_SUBNETS: {complaint}" for complaint in bad]
    return StartOptions(gate, () if bad else tuple(subnets), tuple(hosts), tuple(wrong))


def _bad_subnet(text: str) -> str:
    """A network with host bits is more likely a slip in its length than meant."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f"'{text}' is no network such as 10.1.0.0/16"
    meant = text.partition("/")[0]
    if ipaddress.ip_address(meant) != network.network_address:
        return f"{text} has bits set behind the prefix: the network that holds it is {network}"
    return ""
