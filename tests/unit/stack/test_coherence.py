"""Stacks that were copied from another one, with a field that was forgotten: each is refused in its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_run import Cli

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.stack import coherence, stack

UBUNTU, DEBIAN, AMD_DEBIAN = "rocm-7.2-ubuntu-24.04", "debian-13", "rocm-7.2-debian-13"
ROCM_10 = "rocm-10.0-debian-13"


def text(name: str) -> str:
    return (paths.images() / f"stacks/{name}.yml").read_text()


# What is changed in which stack, and what is said of which field.
GRAPHICS = """uri: https://repo.radeon.com/graphics/7.2.3/ubuntu
    suite: noble
    key: https://repo.radeon.com/rocm/rocm.gpg.key
    origin: repo.radeon.com"""
OTHER = """uri: https://example.org/apt
    suite: noble
    key: https://example.org/key
    origin: example.org"""
LEFT = {
    "image of another release": (UBUNTU, "image: ubuntu:24.04", "image: ubuntu:22.04", "is ubuntu-22.04, and base.os"),
    "image by its suite": (DEBIAN, "image: debian:trixie-slim", "image: debian:bookworm-slim", "is debian-12, and"),
    "image of a vendor": (
        UBUNTU,
        "image: ubuntu:24.04",
        "image: rocm/pytorch:rocm7.2_ubuntu22.04_py3.10",
        "is ubuntu-22.04, and base.os says ubuntu-24.04",
    ),
    "bootstrap suite": (UBUNTU, "suite: noble, components", "suite: jammy, components", "'jammy' is ubuntu-22.04"),
    "bootstrap distribution": (UBUNTU, "distribution: ubuntu", "distribution: debian", "it is 'debian', and"),
    "repository's suite": (UBUNTU, "    suite: noble", "    suite: jammy", "'jammy' is of ubuntu-22.04"),
    "AMD's suite for Debian": (AMD_DEBIAN, "    suite: noble", "    suite: jammy", "; debian-13 is 'noble'"),
    "another's suite for Debian": (AMD_DEBIAN, GRAPHICS, OTHER,
                                   "'noble' is of ubuntu-24.04; debian-13 is 'trixie'"),
    "repository's ROCm": (UBUNTU, "rocm/apt/7.2.3", "rocm/apt/6.4.3", "it has ROCm 6.4.3, and components"),
    "graphics' ROCm": (UBUNTU, "graphics/7.2.3", "graphics/7.1.1", "it has ROCm 7.1.1, and comp"),
    "wheel's ROCm": (UBUNTU, "2.11.0+rocm7.2", "2.11.0+rocm6.4", "it has wheels for ROCm 7.2, and the"),
    "wheel's index": (UBUNTU, "whl/rocm7.2", "whl/rocm6.4", "it has wheels for ROCm 6.4, and the"),
    "version in a URL": (UBUNTU, "v1.20.1/ucx-1.20.1.tar", "v1.20.0/ucx-1.20.0.tar", "is of 1.20.0, and the"),
    "version beside a URL": (UBUNTU, 'source, version: "25.11.8"', 'source, version: "25.05.1"',
                             "'slurm-25.11.8.tar.bz2' is of 25.11.8, and the version says 25.05.1"),
    "version of the system": (UBUNTU, 'apt, version: "24.04"', 'apt, version: "22.04"',
                              "it is 22.04, and base.os says ubuntu-24.04"),
    "Python": (DEBIAN, 'python: "3.13"', 'python: "3.12"', "it is 3.12; the Python of debian-13 is 3.13"),
    "Python of a path": (DEBIAN, "/usr/local/lib/python3.13/dist-packages/pyarrow/*.pxd",
                         "/usr/local/lib/python3.12/dist-packages/pyarrow/*.pxd", "is of Python 3.12, and the stack's"),
    "archive of another release": (UBUNTU, "archive: TransferBench-rocm-7.2.3", "archive: TransferBench-rocm-6.4.1",
                                   "'TransferBench-rocm-6.4.1.tar.gz' is of 6.4.1"),
    "trainer of another rocstack": (UBUNTU, 'own, version: "0.1.0"', 'own, version: "9.9.9"', "trainer is 0.1.0"),
    "driver of another age": (UBUNTU, "driver: 30.30.x 30.20.x", "driver: 5.7.x 30.20.x", "5.7.x doesn't go with ROCm"),
    "folder of AMD's packages": (ROCM_10, "packages/debian13", "packages/ubuntu2404", "for ubuntu-24.04, and base.os"),
    "wheel's ROCm 10": (ROCM_10, "2.13.0+rocm10.0.0", "2.13.0+rocm10.1.0", "is for ROCm 10.1, and components.rocm"),
    "driver before ROCm 10": (ROCM_10, "driver: 31.50.x", "driver: 6.4.x", "6.4.x doesn't go with ROCm 10.0.0"),
    "component misspelt": (UBUNTU, "  rccl: {method", "  rcll: {method", "no component 'rcll': did you mean 'rccl'"),
    "another one misspelt": (UBUNTU, "  ucx:\n", "  ucxx:\n", "no component 'ucxx': did you mean 'ucx'"),
    "OS misspelt": (DEBIAN, "os: debian-13", "os: debain-13", "did you mean 'debian-13'"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_a_field_that_was_forgotten(case: str, tmp_path: Path) -> None:
    name, old, new, says = LEFT[case]
    content = text(name)
    assert old in content
    file = tmp_path / "mine.yml"
    file.write_text(content.replace(old, new, 1))
    with pytest.raises(BadInput) as error:
        stack.load(str(file))
    line = content[: content.index(old)].count("\n") + 1
    assert says in error.value.what
    assert error.value.where
    assert abs((error.value.where.line or 0) - line) <= 1  # a version's is that of its URL
    assert error.value.next_step


def test_every_command_that_reads_a_stack_compares_its_fields(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(text(DEBIAN).replace('python: "3.13"', 'python: "3.12"'))
    (tmp_path / "rocstack.yml").write_text(f"stack: {file}\nnic: tcp\n")
    for command in ("render", "explain", "build", "lock", "config --check"):
        ran = cli(*command.split(), "--json", cwd=tmp_path)
        assert ran.code == 2, command
        assert "the Python of debian-13 is 3.13" in ran.out, command


@pytest.mark.parametrize("name", sorted(path.stem for path in (paths.images() / "stacks").glob("*.yml")))
def test_ours_contradict_nothing(name: str) -> None:
    assert list(coherence.problems(stack.load(name))) == []


def test_a_mirror_of_amds_repository_has_amds_suite(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(text(AMD_DEBIAN).replace("https://repo.radeon.com/", "https://mirror.example.org/amd/"))
    assert stack.load(str(file)).repositories[0].suite == "noble"


def test_a_release_that_is_not_known_is_not_judged(tmp_path: Path) -> None:
    content = text(DEBIAN).replace("os: debian-13", "os: ubuntu-24.10").replace("debian:trixie-slim", "ubuntu:24.10")
    (tmp_path / "mine.yml").write_text(content.replace('python: "3.13"', 'python: "3.12"'))
    assert stack.load(str(tmp_path / "mine.yml")).base.os == "ubuntu-24.10"


def test_names_of_packages_and_python_of_an_older_release_are_rules(tmp_path: Path, cli: Cli) -> None:
    """ROCm 7.0 on Ubuntu 22.04: AMD has it, and the names of our packages are those of 24.04."""
    content = text(UBUNTU)
    for old, new in (("24.04", "22.04"), ("noble", "jammy"), ("7.2.3", "7.0.2"), ("rocm7.2", "rocm7.0"),
                     ("2.11.0+", "2.10.0+"), ("2.27.7", "2.26.6"), ('python: "3.12"', 'python: "3.10"'),
                     ("python3.12", "python3.10")):  # fmt: skip
        content = content.replace(old, new)
    file = tmp_path / "mine.yml"
    file.write_text(content)
    said = cli("explain", "--stack", str(file)).out
    assert "broken os-packages: packages.absent is " in said
    assert "librdmacm1t64" in said
    assert "broken trainer-python: python 3.10 is outside >=3.11" in said
    ran = cli("render", "--stack", str(file), "--json")
    assert (ran.code, ran.json()["error"]["code"]) == (2, "rule-broken")


def test_a_broken_rule_has_the_line_of_its_fact(tmp_path: Path, cli: Cli) -> None:
    content = text(UBUNTU).replace('rccl: {method: amd, version: "2.27.7"}', 'rccl: {method: amd, version: "2.22.3"}')
    file = tmp_path / "mine.yml"
    file.write_text(content)
    line = content[: content.index("2.22.3")].count("\n") + 1
    for command in ("render", "lock"):
        error = cli(command, "--stack", str(file), "--rehearsal" if command == "render" else "--json", "--json").json()
        assert (error["error"]["code"], error["error"]["where"]) == ("rule-broken", f"{file}:{line}")
