"""What apt says inside the base image, and pip's report, as locked packages and wheels; of real runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from resolved_stack import join

from rocstack.image import pinning

WHEELS = json.loads((Path(__file__).parents[1] / "data/pip/transformers.json").read_text())  # pip's report, shortened
RECORDED = (Path(__file__).parents[1] / "data/apt/munge.txt").read_text()


def test_packages() -> None:
    found = {package.name: package for package in pinning.parse_packages(RECORDED)}
    assert list(found) == sorted(found)
    assert len(found) == 11
    assert found["munge"].version == "0.5.16-1.1~deb13u1"
    assert found["munge"].sha256 == "2e26ea38f9128984d258b0f4b8e0603db7848be92629c36409563b7fae8a0e73"
    assert found["zlib1g"].version == "1:1.3.dfsg+really1.3.1-1+deb13u1"
    assert found["libstdc++6"].sha256 == "ab1fa05837aa7a92aae748fd07a18a35f7d18bb4a71c4724fe2bbf0e32089de0"
    assert all(package.sha256 for package in found.values())


def test_what_apt_would_install_stands_above_what_the_base_has() -> None:
    text = f"a=2\na=1\nb=1\n---\nPackage: a\nVersion: 2\nSHA256: {'ab' * 32}\n--- sources\n"
    assert [(p.name, p.version, p.sha256) for p in pinning.parse_packages(text)] == [
        ("a", "2", "ab" * 32),
        ("b", "1", None),
    ]


def test_the_sum_is_of_the_same_version() -> None:
    text = f"a=2\n---\nPackage: a\nVersion: 1\nSHA256: {'ab' * 32}\n"
    assert pinning.parse_packages(text)[0].sha256 is None


@pytest.mark.parametrize("text", ["", "---\n", "---\n--- sources\n"])
def test_nothing(text: str) -> None:
    assert pinning.parse_packages(text) == ()


@pytest.mark.parametrize("nic", ["tcp", "broadcom"])
def test_asked_for(nic: str) -> None:
    joined = join(nic=nic)
    wanted = pinning.packages(joined.resolved)
    assert len(set(wanted)) == len(wanted)
    assert {"slurmd", "slurmctld", "munge", "tini"} <= set(wanted)
    facts = [json.loads(joined.render().files[f"facts/{role}.json"].data) for role in ("worker", "control")]
    assert set(wanted) == {package for fact in facts for packages in fact["packages"].values() for package in packages}


def test_wheels() -> None:
    found = pinning.parse_report(WHEELS, provided=("numpy", "pyyaml"))
    assert [(wheel.name, wheel.version) for wheel in found] == [
        ("huggingface-hub", "2.4.0"),
        ("pydantic-core", "2.50.4"),
        ("safetensors", "0.8.0"),
        ("transformers", "5.23.0"),
        ("typing-extensions", "4.16.0"),
    ]
    assert found[3].sha256 == ("018e82fd07490ad5bb58414f65e31576033dc7f36bed10c574843f69b90991bf",)


def test_provided_names_are_the_normal_ones() -> None:
    everything = {wheel.name for wheel in pinning.parse_report(WHEELS, provided=())}
    assert {"pyyaml", "numpy", "typing-extensions"} <= everything
    assert len(everything) == len(WHEELS["install"])


def test_local_versions() -> None:
    item = json.loads(json.dumps(WHEELS["install"][0]))
    item["metadata"] = {"name": "torch", "version": "2.8.0+rocm6.4"}
    (torch,) = pinning.parse_report({"install": [item]}, ())
    assert torch.version == "2.8.0+rocm6.4"
    assert pinning.parse_report({"install": []}, ()) == ()
