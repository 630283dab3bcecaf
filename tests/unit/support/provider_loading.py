"""What becomes of a node's RDMA devices in a container: rdma-core's rules, on the raw labels and the raw profile.

Not written from the gate but from rdma-core (libibverbs/init.c, dynamic_driver.c) and from what the entrypoint and
`rocstack run` do. A fact that is missing or makes no sense counts as the bad case.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

OWN = "io.rocstack."


def provider_loads(labels: dict[str, str], node: dict[str, Any], place: str | None) -> bool:
    """Is every device of the image's NIC listed, with the provider at `place` linked?"""
    own = {key.removeprefix(OWN): text for key, text in labels.items() if key.startswith(OWN)}
    if own.get("nic") == "tcp":
        return True
    if own.get("nic") == "slingshot":
        return len(node.get("cxi", ())) > 0 and _slingshot(own, node)
    try:
        library = _loaded(own, node, place)
        devices = _devices(own, node)
    except (LookupError, TypeError, ValueError, RecursionError):
        return False
    low, high, release = library
    return bool(devices) and all(
        _opened(device) and low <= device["kernel_abi"] <= high and _known(own, node, device["name"], release)
        for device in devices
    )


def _slingshot(own: dict[str, str], node: dict[str, Any]) -> bool:
    """HPE's newest libfabric is mounted, with libcxi, and the loader takes both in the image."""
    found = node.get("libraries", ())
    fabrics = [each for each in found if each["driver"] == "libfabric"]
    hpe = [each for each in fabrics if each["path"].startswith("/opt/cray/")] or fabrics
    try:
        fabric = max(hpe, key=lambda each: [int(part) for part in re.findall(r"[0-9]+", each["path"])])
        assert any(each["driver"] == "cxi" for each in found)
        mounted = [fabric, *(each for each in found if each["driver"] in ("cxi", "json-c"))]
        fits = all(_version(each["glibc"]) <= _version(own["glibc"]) for each in mounted)
        wanted = own.get("nic.plugin-fabric")
        return fits and (wanted is None or _version(wanted) <= _version(fabric["fabric"]))
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError):
        return False


def _loaded(own: dict[str, str], node: dict[str, Any], place: str | None) -> tuple[int, int, str | None]:
    """The kernel ABIs of the library that dlopen finds and takes, and rdma-core's release if it is from there.

    Raises:
        LookupError, TypeError, ValueError: none, or which one it is can't be told.
    """
    rows = json.loads(own["nic.providers"])
    if not own["verbs.private-abi"].isascii():
        raise ValueError
    number = int(own["verbs.private-abi"])
    (driver,) = {row["driver"] for row in rows}  # the one that libibverbs.d names
    if not driver:
        raise ValueError
    row = rows[0]
    if len(rows) > 1:  # the entrypoint links by place
        (row,) = (each for each in rows if each.get("place") == place)
        (row,) = (each for each in rows if each.get("path") == row["path"])
        if not place or not isinstance(row["path"], str) or row.get("way") == "host":
            raise LookupError
    file = f"lib{driver}-rdmav{number}.so"
    mounted = row.get("way") == "host"
    if mounted:
        row = _mounted(own, node, driver)
    elif isinstance(row.get("path"), str) and row["path"] and posixpath.basename(row["path"]) != file:
        raise LookupError
    low, high = row["kernel_abi"]
    for each in (row["private_abi"], low, high):
        if type(each) is not int or each < 0:
            raise TypeError
    if row["private_abi"] != number:  # symbol version IBVERBS_PRIVATE_N
        raise LookupError
    vendors = row["path"].startswith("/usr/local/") if mounted else row.get("way") in ("source", "package")
    return low, high, None if vendors else str(row.get("version"))


def _known(own: dict[str, str], node: dict[str, Any], name: str, release: str | None) -> bool:
    """Does a provider of this release drive the card? A Thor2 needs what bnxt_re has since rdma-core 50."""
    if release is None:
        return True
    try:
        needs = {card: _version(text) for card, text in json.loads(own["nic.cards"]).items()}
        cards = [card["device"] for card in node["nics"] if card.get("verbs") == name]
        mine = [wants for card, wants in needs.items() if not cards or card in cards]
        return not mine or _version(re.split("[+-]", release)[0]) >= max(mine)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        return False


def _mounted(own: dict[str, str], node: dict[str, Any], driver: str) -> dict[str, Any]:
    taken = {each["private_abi"] for each in node["libraries"] if each["driver"] is None}  # by the host's libibverbs
    libraries = {
        each["path"]: each for each in node["libraries"] if each["driver"] == driver and each["private_abi"] in taken
    }
    vendors = [path for path in libraries if path.startswith("/usr/local/")]
    library: dict[str, Any] = libraries[min(vendors or libraries)]
    if _version(library["glibc"]) > _version(own["glibc"]):  # ld.so: version `GLIBC_2.42' not found
        raise LookupError
    return library


def _version(text: str) -> list[int]:
    parts = text.split(".")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError
    return [int(part) for part in parts]


def _devices(own: dict[str, str], node: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the image's NIC.

    Raises:
        LookupError: there may be more of them.
    """
    for each in node.get("unread", ()):
        top, _, below = each["what"].partition("/infiniband")
        rest = below.removeprefix("_verbs").strip("/").split("/")
        if (
            top.startswith("/sys")
            and below[:1] in ("", "/", "_")
            and (len(rest) < 2 or rest[1] in ("node_type", "ibdev"))
        ):
            raise LookupError
    found = []
    cards = {card["verbs"]: card["device"] for card in node["nics"] if card.get("verbs")}
    for device in node["verbs"]:
        known = device["driver"] or cards[device["name"]]
        mine = own["nic.modules"] if device["driver"] else own["nic.pci"]
        if known in mine.split(","):
            found.append(device)
        elif not device["driver"]:
            raise LookupError
    return found


def _opened(device: dict[str, Any]) -> bool:
    """A device that the kernel offers and that has its node; others are dropped without a word."""
    return bool(device["uverbs"]) and device["device_node"] is True and type(device["kernel_abi"]) is int
