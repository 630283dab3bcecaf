"""The plugin of RCCL and AINIC's ways: which archives are taken, what they become in the Dockerfile, what the fabric's
environment says of them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from linters import hadolint, scripts, shellcheck
from resolved_stack import Joined, join

from rocstack.base.errors import BadInput
from rocstack.image import render
from rocstack.image.context import BuildContext
from rocstack.image.node_package import settings
from rocstack.nic import plugin_source, ways
from rocstack.nic.ways import Need
from rocstack.node.fabric import Fabric, fabric
from rocstack.node.profile import NodeProfile
from rocstack.stack import component
from rocstack.stack.resolve import PluginSpec, ProviderSpec

NICS = component.library("nic")
OFI = {"RELEASENOTES.md": "# Release notes\n\n# Supported\n\n# v1.19.2 (2026-05)\n\n# v1.19.0\n", "autogen.sh": "",
       "include/nccl_ofi_rocm.h": ""}  # fmt: skip
ANP = {"Makefile": "", "src/net_ib.cc": ""}
ROCM_7_1 = {"rocm": "7.1.1", "rccl": "2.27.7"}
ROCM_7_2 = {"rocm": "7.2.3", "rccl": "2.27.7"}


def nic(name: str) -> component.NicProfile:
    return component.validate_head(NICS.get(name), component.NicProfile)


def pack(path: Path, files: dict[str, str], top: str | None = None) -> Path:
    """An archive of `files` in one folder, named like the archive."""
    top = path.name.removesuffix(".tar.gz") if top is None else top
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def ofi(folder: Path, version: str = "1.19.2", **files: str | None) -> Path:
    wanted = {name: text for name, text in {**OFI, **files}.items() if text is not None}
    return pack(folder / f"aws-ofi-nccl-{version}.tar.gz", wanted)


def anp(folder: Path, version: str = "1.3.0", rocm: str | None = "7.1.1") -> Path:
    if rocm:
        pack(folder / f"rccl-rocm-{rocm}.tar.gz", {"src/nccl.h.in": ""})
    return pack(folder / f"amd-anp-{version}.tar.gz", ANP)


def test_the_plugin_of_slingshot(tmp_path: Path) -> None:
    plugin, archives = plugin_source.read(nic("slingshot"), ofi(tmp_path), {"rocm": "6.1.2"})
    assert (plugin.name, plugin.version, plugin.beside) == ("aws-ofi-nccl", "1.19.2", None)
    assert list(archives) == ["nic/plugin/aws-ofi-nccl-1.19.2.tar.gz"]


def test_the_plugin_of_ainic_comes_with_rccl(tmp_path: Path) -> None:
    plugin, archives = plugin_source.read(nic("ainic"), anp(tmp_path), ROCM_7_1)
    assert plugin.beside
    assert plugin.beside.archive == "rccl-rocm-7.1.1.tar.gz"
    assert list(archives) == ["nic/plugin/amd-anp-1.3.0.tar.gz", "nic/plugin/rccl-rocm-7.1.1.tar.gz"]
    assert plugin_source.read(nic("ainic"), anp(tmp_path, "1.2.0", "7.0.2"), {"rocm": "7.0.2"})


def refused(name: str, path: Path, versions: dict[str, str] = ROCM_7_1) -> BadInput:
    with pytest.raises(BadInput) as caught:
        plugin_source.read(nic(name), path, versions)
    return caught.value


@pytest.mark.parametrize(
    ("versions", "code", "says"),
    [
        (ROCM_7_2, "plugin-not-needed", "inside RCCL"),
        ({"rocm": "7.2.1"}, "plugin-not-needed", "inside RCCL"),
        ({"rocm": "7.0.2"}, "plugin-unfit", "amd-anp 1.3.0 is not known to fit"),
        ({"rocm": "7.2.0"}, "plugin-unfit", "amd-anp 1.3.0 is not known to fit"),
        ({"rocm": "6.4.1"}, "plugin-unfit", "amd-anp 1.3.0 is not known to fit"),
        ({}, "plugin-unfit", "amd-anp 1.3.0 is not known to fit"),
        ({"rocm": "7.1.0"}, "no-file", "no rccl-rocm-7.1.0.tar.gz next to"),
    ],
)
def test_ainic_s_plugin_is_for_some_releases(versions: dict[str, str], code: str, says: str, tmp_path: Path) -> None:
    error = refused("ainic", anp(tmp_path), versions)
    assert (error.code, says in error.what) == (code, True), error.what


def test_an_unknown_release_is_named_with_the_known(tmp_path: Path) -> None:
    error = refused("ainic", anp(tmp_path, "1.4.0"))
    assert error.code == "plugin-unfit"
    assert "1.3.0 for rocm>=7.1, rocm<7.2" in (error.cause or "")


@pytest.mark.parametrize("name", ["tcp", "broadcom", "mellanox"])
def test_other_nics_take_none(name: str, tmp_path: Path) -> None:
    assert refused(name, ofi(tmp_path)).code == "no-plugin"


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (lambda at: at / "aws-ofi-nccl-1.19.2.tar.gz", "no-file", "file named aws-ofi-nccl-VERSION"),
        (lambda at: pack(at / "other-1.0.tar.gz", OFI), "no-plugin", "file named aws-ofi-nccl-VERSION"),
        (lambda at: pack(at / "aws-ofi-nccl-v1.19.2.tar.gz", OFI), "no-plugin", "file named aws-ofi-nccl-VERSION"),
        (lambda at: ofi(at, "1.19.0"), "wrong-release", "its RELEASENOTES.md is of 1.19.2"),
        (lambda at: ofi(at, **{"RELEASENOTES.md": "news"}), "wrong-release", "its RELEASENOTES.md is of no version"),
        (lambda at: ofi(at, **{"RELEASENOTES.md": None}), "wrong-release", "its RELEASENOTES.md is of no version"),
        (lambda at: ofi(at, **{"include/nccl_ofi_rocm.h": None}), "wrong-release", "it has no include/nccl_ofi_rocm.h"),
        (lambda at: pack(at / "aws-ofi-nccl-1.19.2.tar.gz", OFI, "top"), "wrong-release", "it holds 'top/"),
        (lambda at: pack(at / "aws-ofi-nccl-1.19.2.tar.gz", OFI, "../x"), "hostile-archive", "outside"),
    ],
)
def test_what_is_no_plugin_is_refused(make: Any, code: str, says: str, tmp_path: Path) -> None:
    error = refused("slingshot", make(tmp_path))
    assert (error.code, says in error.what) == (code, True), error.what


def test_a_cut_off_archive_is_refused(tmp_path: Path) -> None:
    whole = ofi(tmp_path)
    whole.write_bytes(whole.read_bytes()[:-40])
    assert refused("slingshot", whole).code == "bad-archive"


def made(joined: Joined, plugin: PluginSpec, archives: dict[str, bytes]) -> BuildContext:
    value = joined.resolved.model_copy(update={"plugin": plugin})
    return render.render(value, joined.lock, joined.components, joined.nics, archives)


def stage(context: BuildContext, name: str) -> str:
    return context.files["Dockerfile"].data.decode().split(f"AS {name}\n")[1].split("\nFROM ")[0]


@pytest.mark.parametrize(
    ("stack", "rocm", "libdir"),
    [
        ("debian-13", "--with-rocm=/usr ", "LDFLAGS=-L/usr/lib/x86_64-linux-gnu "),
        ("rocm-7.2-ubuntu-24.04", "--with-rocm=/opt/rocm ", "LDFLAGS=-L/opt/rocm/lib "),
    ],
)
def test_slingshot_s_plugin_is_built_apart_and_without_network(
    stack: str, rocm: str, libdir: str, tmp_path: Path
) -> None:
    plugin, archives = plugin_source.read(nic("slingshot"), ofi(tmp_path), ROCM_7_2)
    context = made(join(stack, nic="slingshot"), plugin, archives)
    install, build = stage(context, "nic-plugin").split("RUN ")[1:]
    assert "libfabric-dev" in install
    assert "--network=none" in build
    assert plugin.source.sha256 in build
    assert rocm in build
    assert libdir in build
    assert "--disable-platform-aws" in build
    worker = stage(context, "worker-base")
    assert "from=nic-plugin,source=/out,target=/run/rocstack/nic/plugin" in worker
    assert "cp -a /run/rocstack/nic/plugin/. /opt/rocstack/nic/plugin/" in worker
    assert "libhwloc15" in worker
    assert "nic-plugin" not in stage(context, "control-base")
    assert (
        "check/plugin /opt/rocstack/nic/plugin/librccl-net.so"
        in context.files["smoke/worker/91-plugin.sh"].data.decode()
    )
    facts = json.loads(context.files["facts/worker.json"].data)
    assert facts["nic"]["plugin"] == {"name": "aws-ofi-nccl", "version": "1.19.2", "library": "librccl-net.so"}


@pytest.mark.parametrize("name", ["slingshot", "ainic"])
def test_the_linters_have_nothing_against_it(name: str, tmp_path: Path) -> None:
    plugin, archives = plugin_source.read(nic(name), (ofi if name == "slingshot" else anp)(tmp_path), ROCM_7_1)
    context = made(join("rocm-7.2-ubuntu-24.04", nic=name), plugin, archives)
    text = context.files["Dockerfile"].data
    smoke = context.files["smoke/worker/91-plugin.sh"].data.decode()
    assert hadolint(text, tmp_path) == []
    assert [
        hit for script in (*scripts(text.decode()), f"set -eu\n{smoke}") for hit in shellcheck(script, tmp_path)
    ] == []


def test_without_a_plugin_nothing_is_built() -> None:
    context = join(nic="slingshot").render()
    text = context.files["Dockerfile"].data.decode()
    assert "nic-plugin" not in text
    assert "libfabric1" in text
    assert "smoke/worker/91-plugin.sh" not in context.files


def test_ainic_s_plugin_is_built_with_rccl_s_source(tmp_path: Path) -> None:
    plugin, archives = plugin_source.read(nic("ainic"), anp(tmp_path), ROCM_7_1)
    assert plugin.beside
    build = stage(made(join("rocm-7.2-ubuntu-24.04", nic="ainic"), plugin, archives), "nic-plugin")
    assert build.index(plugin.beside.sha256) < build.index(plugin.source.sha256)
    assert 'make -j"$(nproc)" RCCL_HOME=/rccl ROCM_PATH=/opt/rocm\n' in build
    assert "-o /out/librccl-anp.so" in build


# AINIC's provider


@pytest.mark.parametrize(
    ("rdma", "abi", "way", "repository"),
    [
        ("61.0", 1, "inbox", False),
        ("63.0", 1, "inbox", True),
        ("56.1", 1, "package", True),  # Debian 13
        ("50.0", 1, "package", True),  # Ubuntu 24.04
        ("61.0", 4, "package", True),  # the vendor's driver
    ],
)
def test_ainic_s_way(rdma: str, abi: int, way: str, repository: bool) -> None:
    offer = ways.Offer(tuple, lambda: pytest.fail("not asked"), "54.0-149", repository, {"rdma": rdma})
    plan = ways.plan(nic("ainic"), [Need(abi, "25.11.1.001", ("n1",))], offer)
    assert [provider.way for provider in plan.providers] == [way]
    if way == "package":
        assert plan.providers[0].pins == ("libionic1=54.0-149*",)


def test_without_the_vendor_s_repository_ainic_has_no_way_on_debian_13() -> None:
    offer = ways.Offer(tuple, lambda: pytest.fail("not asked"), versions={"rdma": "56.1"})
    with pytest.raises(BadInput) as caught:
        ways.plan(nic("ainic"), [Need(1, "54.0-149", ("n1",))], offer)
    assert caught.value.code == "no-provider"
    assert "nic_repository" in (caught.value.next_step or "")


@pytest.mark.parametrize("stack", ["debian-13", "rocm-7.2-ubuntu-24.04", "rocm-6.4-ubuntu-24.04"])
def test_ainic_s_ways_in_the_dockerfile(stack: str, tmp_path: Path) -> None:
    joined = join(stack, nic="ainic")

    def dockerfile(provider: ProviderSpec) -> str:
        value = joined.resolved.model_copy(update={"providers": (provider,)})
        archives = {f"nic/{provider.place}/{provider.archive}": b""} if provider.archive else {}
        context = render.render(value, joined.lock, joined.components, joined.nics, archives)
        text = context.files["Dockerfile"].data
        assert hadolint(text, tmp_path) == []
        return text.decode()

    package = dockerfile(ProviderSpec(place="package", way="package", version="54.0-149", packages=("libionic1",)))
    assert "libionic1=54.0-149*" in package
    assert "provider-install ionic package:package:libionic1\n" in package
    newer = dockerfile(
        ProviderSpec(place="newer", way="newer", version="63.0", archive="rdma-core-63.0.tar.gz", sha256="a" * 64)
    )
    assert "cmake -GNinja" in newer
    assert "cp -a /run/rocstack/nic/newer/opt/rdma-core /opt/" in newer
    assert "provider-install" not in newer
    assert "provider-install" not in dockerfile(ProviderSpec(place="inbox", way="inbox"))


# The environment


def env(name: str, **versions: str) -> Fabric:
    return fabric(NodeProfile(1, "n1"), settings(nic(name)), versions=versions)


@pytest.mark.parametrize(
    ("name", "versions", "library", "warned"),
    [
        ("slingshot", {"rocm": "7.2.3", "rccl": "2.27.7"}, None, True),
        ("slingshot", {"rccl": "2.27.7", "plugin": "1.19.2"}, "/opt/rocstack/nic/plugin/librccl-net.so", False),
        ("slingshot", {"rccl": "2.13.4", "plugin": "1.19.2"}, None, False),
        ("slingshot", {}, None, False),
        ("ainic", {"rocm": "7.2.3"}, "none", False),
        ("ainic", {"rocm": "7.1.1"}, None, True),
        ("ainic", {"rocm": "7.1.1", "plugin": "1.3.0"}, "/opt/rocstack/nic/plugin/librccl-anp.so", False),
        ("broadcom", {"rocm": "7.1.1"}, None, False),
    ],
)  # fmt: skip
def test_rccl_is_told_of_it(name: str, versions: dict[str, str], library: str | None, warned: bool) -> None:
    found = env(name, **versions)
    assert found.env.get("NCCL_NET_PLUGIN") == library
    assert any("RCCL's plugin" in warning for warning in found.warnings) is warned


def test_rccl_s_own_transport_goes_by_the_version_of_rocm() -> None:
    assert env("ainic", rocm="7.2.3").env["RCCL_AINIC_ROCE"] == "1"
    assert "RCCL_AINIC_ROCE" not in env("ainic", rocm="7.1.1", plugin="1.3.0").env
