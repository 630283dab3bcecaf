"""Libraries of the node that are mounted into a container: only such as are there, at the place that is read."""

from __future__ import annotations

from typing import Any

import gate_cases
import pytest

from rocstack.nic.host_libraries import host_mounts
from rocstack.node.gate import FITS, SLINGSHOT, judge
from rocstack.node.image_facts import from_labels
from rocstack.stack.resolve import ROOT


def mounts(image: str, node: str, libraries: list[dict[str, Any]] | None = None) -> list[str]:
    plain = gate_cases.plain(node)
    if libraries is not None:
        plain["libraries"] = libraries
    return [str(mount) for mount in host_mounts(from_labels("i", gate_cases.labels(image)), gate_cases.profile(plain))]


def library(path: str, driver: str, version: str | None = None) -> dict[str, Any]:
    return {"path": path, "driver": driver, "version": version}


def test_the_library_that_the_gate_judged() -> None:
    mounted = f"/usr/local/lib/libbnxt_re-rdmav34.so:{ROOT}/host/libbnxt_re-rdmav34.so:ro"
    assert mounts("broadcom host", "host 6") == [mounted]
    assert mounts("broadcom host", "host vendor and inbox") == [mounted]
    # Its name there is the one that the image's libibverbs looks for, whatever the host calls it.
    assert mounts("host with private abi 59", "host 57") == [
        f"/usr/lib64/libbnxt_re-rdmav57.so:{ROOT}/host/libbnxt_re-rdmav59.so:ro"
    ]


@pytest.mark.parametrize(
    "row", [row for row in gate_cases.rows() if row[2] == FITS], ids=lambda row: f"{row[0]}-{row[1]}"
)
def test_where_an_image_fits_all_that_is_mounted_is_there(row: gate_cases.Row) -> None:
    found = {library.path for library in gate_cases.node(row[1]).libraries}
    image, node = from_labels("i", gate_cases.labels(row[0])), gate_cases.node(row[1])
    mounted = host_mounts(image, node)
    assert {mount.source for mount in mounted} <= found
    folder = "/usr/lib/x86_64-linux-gnu" if image.nic == SLINGSHOT else ROOT
    assert all(mount.read_only and mount.target.startswith(f"{folder}/") for mount in mounted)
    taken = {provider.way for provider in image.providers} == {"host"}
    assert judge(image, node).result == FITS
    assert len(mounted) == (2 if image.nic == SLINGSHOT else taken)


@pytest.mark.parametrize(
    ("image", "node"),
    [
        ("broadcom host", "thor2 abi 6"),  # docker would make a folder of that name on the host
        ("broadcom host", "host of another driver"),
        ("broadcom 232", "host 6"),
        ("broadcom variants", "host 6"),
        ("tcp", "host 6"),
        ("slingshot", "cassini, no libraries"),
        ("no labels", "host 6"),
    ],
)
def test_nothing(image: str, node: str) -> None:
    assert mounts(image, node) == []


def test_slingshot_takes_hpes_newest_libfabric() -> None:
    """The distribution's has no cxi provider, and 1.9 is older than 1.22."""
    found = [
        library("/opt/cray/libfabric/1.9.0/lib64/libfabric.so.1.9", "libfabric", "1.9.0"),
        library("/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1.25", "libfabric", "1.22.0"),
        library("/usr/lib64/libfabric.so.1.99", "libfabric", "1.99"),
        library("/usr/lib64/libcxi.so.1.5.0", "cxi", "1.5.0"),
        library("/usr/lib64/libbnxt_re-rdmav34.so", "bnxt_re"),
        library("/usr/lib64/libibverbs.so.1", ""),
    ]
    folder = "/usr/lib/x86_64-linux-gnu"
    expected = [
        f"/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1.25:{folder}/libfabric.so.1:ro",
        f"/usr/lib64/libcxi.so.1.5.0:{folder}/libcxi.so.1:ro",
    ]
    assert mounts("slingshot", "cassini", found) == expected
    assert mounts("slingshot", "cassini", found[::-1]) == expected
    assert mounts("slingshot", "cassini", found[2:3]) == [f"/usr/lib64/libfabric.so.1.99:{folder}/libfabric.so.1:ro"]
    assert mounts("tcp", "cassini", found) == []
    nameless = [library("/usr/lib64/libcxi.so.1", "cxi"), library("/usr/lib64/libjson-c.so.3.0.1", "json-c", "3.0.1")]
    assert mounts("slingshot", "cassini", nameless) == [
        f"/usr/lib64/libcxi.so.1:{folder}/libcxi.so.1:ro",
        f"/usr/lib64/libjson-c.so.3.0.1:{folder}/libjson-c.so.3:ro",
    ]
