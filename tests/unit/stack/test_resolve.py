"""Stack, NIC and overlay joined into one value, and what doesn't join."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from cli_run import Cli
from resolved_stack import Joined, join

from rocstack.base.document import Document
from rocstack.base.errors import BadInput
from rocstack.stack import component, overlay, resolve, stack
from rocstack.stack.component import ROLES
from rocstack.stack.resolve import ProviderSpec

NAMES = stack.names()
PLAIN = Path(__file__).parents[1] / "data/stacks/plain.yml"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nic", component.library("nic").files)
def test_every_package_is_installed_once_in_each_role(name: str, nic: str) -> None:
    resolved = join(name, nic).resolved
    shared = resolved.shared_packages()
    for role in ROLES:
        installed = [*shared, *(p for layer in resolved.stack.layers for p in resolved.layer_packages(layer, role))]
        wanted = {
            package
            for part in resolved.parts
            if part.reaches(role)
            for package in (*part.packages.packages, *getattr(part.packages, f"{role}_packages"))
        }
        assert set(installed) == wanted
        for layer in resolved.stack.layers:
            packages = resolved.layer_packages(layer, role)
            assert len(set(packages)) == len(packages)


@pytest.mark.parametrize("gfx", [("gfx90a",), ("gfx942",), ("gfx950",), ("gfx90a", "gfx942", "gfx950")])
def test_packages_of_a_target_and_a_release(gfx: tuple[str, ...]) -> None:
    resolved = join("rocm-10.0-debian-13", gfx=gfx).resolved
    assert resolved.part("rccl").packages.worker_packages == tuple(f"amdrocm-rccl10.0-{each}" for each in gfx)
    assert resolved.part("rccl").packages.builder_packages == ("amdrocm-rccl-dev10.0",)
    assert "amdrocm-runtime10.0" in resolved.part("rocm").packages.worker_packages


def test_rocm_10_has_its_folder_and_no_rocm_smi() -> None:
    joined = join("rocm-10.0-debian-13")
    text = joined.dockerfile()
    for part in (
        "--with-rocm=/opt/rocm/core-10.0 ",
        "\nROCM_PATH=/opt/rocm/core-10.0 /opt/rocm/core-10.0/bin/hipcc ",
        "/opt/rocm/core-10.0/bin/{rocminfo,amd-smi} /usr/local/bin",
    ):
        assert part in text
    assert "slurmd" in joined.resolved.part("slurm").packages.worker_packages
    files = "".join(file.data.decode() for path, file in joined.render().files.items() if path.startswith("smoke/"))
    assert not [each for each in ("rsmi", "rocm-smi", "rocm_smi") if each in text + files]


def test_a_package_that_the_method_lacks(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    own = stack.names()["rocm-10.0-debian-13"].read_text()
    file.write_text(own.replace("without: [slurm-wlm-rsmi-plugin]", "without: [slurm-wlm-rsmi-plugim]"))
    with pytest.raises(BadInput, match="did you mean 'slurm-wlm-rsmi-plugin'") as error:
        join(str(file))
    assert error.value.code == "override-unmatched"


def test_parts_are_in_layer_order(default: Joined) -> None:
    placed = [name for layer in default.resolved.stack.layers for name in layer]
    assert [part.name for part in default.resolved.parts] == placed
    assert not default.resolved.has("fio")
    with pytest.raises(StopIteration):
        default.resolved.part("fio")


def test_excludes_of_stack_and_components(default: Joined) -> None:
    exclude = default.resolved.exclude
    assert exclude[: len(default.resolved.stack.exclude)] == default.resolved.stack.exclude
    assert "/usr/lib/x86_64-linux-gnu/libtorch-test*" in exclude  # the component's own
    assert len(set(exclude)) == len(exclude)


def test_digest(default: Joined) -> None:
    assert default.resolved.digest() == join().resolved.digest()
    assert default.resolved.digest() != join(nic="mellanox").resolved.digest()
    assert default.resolved.digest() != join(gfx=("gfx906",)).resolved.digest()


def test_without_a_plan_the_first_way_is_taken(default: Joined) -> None:
    assert default.resolved.ways == "inbox"
    assert [provider.place for provider in default.resolved.providers] == ["inbox"]


def test_providers_bring_their_packages_and_name_their_ways(default: Joined) -> None:
    inbox = ProviderSpec(place="abi-1", way="inbox")
    vendor = ProviderSpec(place="abi-7", way="package", version="235.2.86.0", packages=("bnxt-rocelib",))
    found = default.resolved.model_copy(update={"providers": (inbox, vendor)})
    assert found.ways == "inbox+package"
    assert found.nic_packages() == ("bnxt-rocelib=235.2.86.0*",)


@pytest.mark.parametrize(
    ("changes", "at", "code", "says"),
    [
        (
            {"slurm": None, "slrum": {"method": "apt", "version": "1"}},
            "components.slrum",
            "unknown-component",
            "no component 'slrum': did you mean 'slurm'?",
        ),
        (
            {"rccl": {"method": "source", "version": "1", "source": "rccl"}},
            "components.rccl.method",
            "unknown-method",
            "component 'rccl' has no method 'source'; it has ",
        ),
        (
            {"munge": None},
            "components.slurm",
            "need-unmet",
            "component 'slurm' needs 'munge', which stack 'mine' does not have",
        ),
    ],
)
def test_refused_with_the_stacks_line(
    changes: dict[str, object], at: str, code: str, says: str, tmp_path: Path, cli: Cli
) -> None:
    data = yaml.safe_load(PLAIN.read_text())
    for name, choice in changes.items():
        data["components"].pop(name, None)
        data["layers"] = [[each for each in layer if each != name] for layer in data["layers"]]
        if choice is not None:
            data["components"][name] = choice
            data["layers"][0].append(name)
    file = tmp_path / "mine.yml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    doc: Document = stack.read(str(file))
    ran = cli("render", "--stack", str(file), "--json")
    error = ran.json()["error"]
    assert says in error["what"]
    assert (ran.code, error["code"]) == (2, code)
    assert error["where"] == str(doc.where(tuple(at.split("."))))


def test_an_override_of_a_component_that_the_stack_lacks(tmp_path: Path) -> None:
    file = tmp_path / "components/ucx.j2"
    file.parent.mkdir()
    file.write_text("{% block smoke %}x{% endblock %}")
    own = component.library("components", tmp_path)
    bare = stack.load("debian-13")
    some = {name: choice for name, choice in bare.components.items() if name in ("system", "munge")}
    small = bare.model_copy(update={"components": some, "layers": (("system", "munge"),), "alternatives": {}})
    with pytest.raises(BadInput, match=r"'ucx\.j2' overrides nothing") as refused:
        resolve.resolve(small, "tcp", own, component.library("nic"), overlay.Overlay())
    assert (refused.value.code, str(refused.value.where)) == ("override-unmatched", f"{file}:1")
    resolve.resolve(small, "tcp", component.library("components"), component.library("nic"), overlay.Overlay())
