"""What the ways of a NIC's provider become in the Dockerfile and its context."""

from __future__ import annotations

import json

import pytest
from resolved_stack import join

from rocstack.image import render
from rocstack.image.context import BuildContext
from rocstack.stack.resolve import ProviderSpec

SOURCE = ProviderSpec(
    place="source", way="source", version="232.0.164.5", archive="libbnxt_re-232.0.164.5.tar.gz", sha256="a" * 64
)
INBOX = ProviderSpec(place="inbox", way="inbox")


def made(*providers: ProviderSpec, nic: str = "broadcom") -> BuildContext:
    joined = join(nic=nic)
    value = joined.resolved.model_copy(update={"providers": providers})
    archives = {f"nic/{each.place}/{each.archive}": b"tarball" for each in providers if each.archive}
    return render.render(value, joined.lock, joined.components, joined.nics, archives)


def text(context: BuildContext) -> str:
    return context.files["Dockerfile"].data.decode()


def test_inbox_adds_nothing() -> None:
    found = text(made(INBOX))
    assert "AS nic-" not in found
    assert "provider-install" not in found
    assert not [path for path in made(INBOX).files if path.startswith("nic/")]


def test_source_is_built_apart_and_without_network() -> None:
    context = made(SOURCE)
    assert context.files["nic/source/libbnxt_re-232.0.164.5.tar.gz"].data == b"tarball"
    stage = text(context).split("AS nic-source\n")[1].split("\nFROM ")[0]
    install, build = (part for part in stage.split("RUN ")[1:])
    assert "libibverbs-dev" in install
    assert "--network=none" in build
    steps = [
        "sha256sum --check",
        "sh autogen.sh",
        "./configure --sysconfdir=/etc",
        "make -j",
        "make install DESTDIR=/made",
    ]
    assert [build.index(step) for step in steps] == sorted(build.index(step) for step in steps)
    assert "unset PREFIX" in build
    worker = text(context).split("AS worker-base\n")[1].split("\nFROM ")[0]
    assert "from=nic-source,source=/out,target=/run/rocstack/nic/source" in worker
    assert "provider-install bnxt_re source:source\n" in worker
    control = text(context).split("AS control-base\n")[1]
    assert "provider-install" not in control


def test_variants_lie_side_by_side() -> None:
    vendor = SOURCE.model_copy(update={"place": "abi-6", "kernel_abi": 6})
    inbox = INBOX.model_copy(update={"place": "abi-1", "kernel_abi": 1})
    context = made(inbox, vendor)
    assert "provider-install bnxt_re abi-1:inbox abi-6:source\n" in text(context)
    smoke = context.files["smoke/worker/90-nic.sh"].data.decode()
    assert "check/provider bnxt_re abi-1:inbox 14e4:1750,14e4:1751,14e4:1752,14e4:1760 1 " in smoke
    assert "check/provider bnxt_re abi-6:source 14e4:1750,14e4:1751,14e4:1752,14e4:1760 6 " in smoke
    facts = json.loads(context.files["facts/worker.json"].data)
    assert facts["identity"]["way"] == "inbox+source"
    assert [row["place"] for row in facts["nic"]["providers"]] == ["abi-1", "abi-6"]
    assert "nic" not in json.loads(context.files["facts/control.json"].data)


def test_package_is_pinned_to_the_drivers_release() -> None:
    provider = ProviderSpec(place="package", way="package", version="235.2.86.0", packages=("bnxt-rocelib",))
    assert "    bnxt-rocelib=235.2.86.0*\n" in text(made(provider))


@pytest.mark.parametrize("nic", ["broadcom", "ainic"])
def test_newer_rdma_core_lies_beside_the_distributions(nic: str) -> None:
    provider = ProviderSpec(
        place="newer", way="newer", version="63.0", archive="rdma-core-63.0.tar.gz", sha256="b" * 64
    )
    found = text(made(provider, nic=nic))
    assert "-DCMAKE_INSTALL_PREFIX=/opt/rdma-core" in found
    assert "echo /opt/rdma-core/lib >/etc/ld.so.conf.d/rdma-core.conf" in found
    assert "provider-install" not in found


@pytest.mark.parametrize("nic", ["broadcom", "mellanox", "ainic"])
def test_the_hosts_library_is_awaited(nic: str) -> None:
    context = made(ProviderSpec(place="host", way="host"), nic=nic)
    assert " host:host\n" in text(context)
    assert context.files["smoke/worker/90-nic.sh"].data.decode().count("skip ") == 1
