"""IPv4 addresses moved so that nobody knows them again, and the networks they are in stay networks.

Which bit of an address changes depends on the bits before it alone (as in Crypto-PAn, Xu et al. 2002): two addresses
share as many leading bits afterwards as before. Host bits stay, so that gateways and broadcasts stay what they are.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence


def _bits(network: str) -> str:
    found = ipaddress.IPv4Network(network)
    return f"{int(found[0]):032b}"[: found.prefixlen]


# Networks that mean something by themselves: addresses neither leave nor enter them.
PRIVATE = tuple(map(_bits, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
FIXED = tuple(map(_bits, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")))  # nor change in them


def move(address: int, networks: Sequence[ipaddress.IPv4Network], chance: Callable[[str], bool]) -> int:
    """The address in its network's new place.

    `networks` are the known ones, the longest prefix first; an address outside of them counts as in a /24. `chance`
    gives the same answer for the same text, and nobody can guess which.
    """
    value = f"{address:032b}"
    length = next((n.prefixlen for n in networks if ipaddress.IPv4Address(address) in n), 24)
    moved = _moved(value[:length], chance)
    if moved == value[:length] and len(set(value[length:])) > 1:  # 10.0.0.0/8 as a whole can't be moved; its hosts can
        moved = _moved(value[:24], chance)
    return int(moved + value[len(moved) :], 2)


def _moved(bits: str, chance: Callable[[str], bool]) -> str:
    return "".join(str(int(bit) ^ _flips(bits[:at], chance)) for at, bit in enumerate(bits))


def _flips(before: str, chance: Callable[[str], bool]) -> bool:
    """Does the bit behind these change?"""
    if _on_the_way(before) or before.startswith(FIXED):
        return False
    return _on_the_way(before[:-1]) or chance(before)  # the first that may change does: no address stays what it was


def _on_the_way(before: str) -> bool:
    return any(network.startswith(before) and network != before for network in (*PRIVATE, *FIXED))
