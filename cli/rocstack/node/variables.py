"""What the container was started with: ROCSTACK_GATE, ROCSTACK_DATA_SUBNETS, ROCSTACK_CONTROLLER."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from . import controller_address
from .gate_decision import OFF, REFUSE, WARN


@dataclass(frozen=True)
class Variables:
    """`wrong` names each that can't be used, and the rest is as if it were not set."""

    gate: str = REFUSE
    subnets: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


def variables(environ: Mapping[str, str]) -> Variables:
    wrong = []
    gate = environ.get("ROCSTACK_GATE") or REFUSE
    if gate not in (REFUSE, WARN, OFF):
        wrong.append(f"ROCSTACK_GATE={gate}: it is {REFUSE}, {WARN} or {OFF}")
        gate = REFUSE
    subnets = [part for part in re.split(r"[,\s]+", environ.get("ROCSTACK_DATA_SUBNETS", "")) if part]
    bad = [said for said in map(_bad_subnet, subnets) if said]
    try:
        hosts = controller_address.hosts(environ.get("ROCSTACK_CONTROLLER", ""))
    except ValueError as error:
        hosts = []
        wrong.append(f"ROCSTACK_CONTROLLER: {error}; it is HOST[:PORT], several with commas between")
    wrong += [f"ROCSTACK_DATA_SUBNETS: {said}" for said in bad]
    return Variables(gate, () if bad else tuple(subnets), tuple(hosts), tuple(wrong))


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
