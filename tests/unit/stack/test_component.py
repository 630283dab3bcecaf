"""Component and NIC files: head, body, and the line numbers of both; the user's files over ours."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.stack import blocks, component
from rocstack.stack.component import (
    Component,
    NicProfile,
    library,
    read_template,
    refuse_bad_heads,
    validate_head,
)

Kind = Literal["components", "nic"]
NEW = """\
---
about: fio, the storage benchmark
methods:
  apt:
    worker_packages: [fio]
---
{% block version %}
fio --version
{% endblock %}
{% block smoke %}
ok "fio starts"
{% endblock %}
"""
INBOX = "about: x\nways: {inbox: {}}\n"


def write(folder: Path, name: str, text: str, kind: str = "components") -> Path:
    file = folder / kind / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(("kind", "model"), [("components", Component), ("nic", NicProfile)])
def test_shipped(kind: Kind, model: type[Component]) -> None:
    files = library(kind)
    assert files.files
    assert not files.overrides
    for name, file in files.files.items():
        assert validate_head(file, model).name == name
        lines = file.path.read_text().splitlines()
        assert file.body.splitlines() == lines[file.body_line - 1 :]
        assert lines[file.body_line - 2] == "---"
    env = blocks.environment(blocks.sources(files))
    blocks.check_blocks(env, files, [f"{kind}/{name}.j2" for name in files.files])


def test_needs_of_shipped_components_exist() -> None:
    files = library("components")
    heads = [validate_head(file, Component) for file in files.files.values()]
    assert {need for head in heads for need in head.needs} <= set(files.files)


def test_head_and_body(tmp_path: Path) -> None:
    file = read_template(write(tmp_path, "fio.j2", NEW))
    assert (file.name, file.label, file.body_line) == ("fio", "components/fio.j2", 7)
    assert file.body.startswith("{% block version %}")
    assert file.head.lines[("methods", "apt", "worker_packages")] == 5
    head = validate_head(file, Component)
    assert head.methods["apt"].worker_packages == ("fio",)
    assert head.roles == ("worker",)


@pytest.mark.parametrize("text", ["{% block smoke %}x{% endblock %}", "", "\n---\na: b\n---\n", "--- \n"])
def test_without_a_head(text: str, tmp_path: Path) -> None:
    file = read_template(write(tmp_path, "fio.j2", text))
    assert (file.head.data, file.body, file.body_line) == ({}, text, 1)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("---\nabout: x\n", 1, "no closing '---'"),
        ("---\nabout: x\n--\n", 1, "no closing '---'"),
        ("---\nabout: [x\n---\nbody\n", 2, "not valid YAML"),
        ("---\n# comment\nabout: x\nabout: y\n---\n", 4, "appears twice"),
        ("---\nabout: x\nmethod:\n  apt: {}\n---\n", 3, "did you mean 'methods'"),
        ("---\nabout: x\nmethods:\n  apt:\n    package: [a]\n---\n", 5, "did you mean 'packages'"),
        ("---\nabout: x\nmethods:\n  atp: {}\n---\n", 4, "'atp' is not one of apt, amd, amdrocm, source"),
        (
            "---\nabout: x\nmethods: {}\nroles: [worker, controller]\n---\n",
            4,
            "'controller' is not one of worker, control",
        ),
        ("---\nabout: x\nmethods:\n  apt:\n    packages:\n      - a\n      - b;reboot\n---\n", 7, "not a package name"),
        ("---\nabout: x\nmethods: {}\nneeds: [A]\n---\n", 4, "is not a name"),
        ("---\nabout: x\nmethods: {}\nname: y\n---\n", 4, "the file's own name"),
    ],
)
def test_refused_with_its_line(text: str, line: int, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, "mine.j2", text)
    with pytest.raises(BadInput) as refused:
        validate_head(read_template(path), Component)
    assert says in refused.value.what
    assert str(refused.value.where) == f"{path}:{line}"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("about: x\nways: {}\n", 3, "it is empty"),
        ("about: x\nway: {}\n", 3, "did you mean 'ways'"),
        ("about: x\nways: {inbox: {package: [a]}}\n", 3, "did you mean 'packages'"),
        ("about: x\nways: {inbox: {}}\nprovider: x'; reboot\n", 4, "is not the name of a driver"),
        (INBOX + "env:\n  - {name: A, value: $(reboot), why: x, source: y}\n", 5, "is not a plain value"),
        (INBOX + "env:\n  - {name: a-b, value: c, why: x, source: y}\n", 5, "is not an environment variable's name"),
        ("about: x\nways: {source: {relase: driver}}\n", 3, "did you mean 'release'"),
        ("about: x\nways: {about: {archvie: release}}\n", 3, "did you mean 'archive'"),
        ("about: x\nways: {a: {kernel_abi: 6-1}}\n", 3, "'6-1' ends before it begins: write 1-6"),
        (INBOX + 'pci: ["14e4:1760"]\ncards: {"14e4:1761": {rdma_core: "50", source: y}}\n', 5, "mean '14e4:1760'"),
        (
            INBOX
            + "env:\n  - {name: A, value: b, why: x, source: y}\n" * 1
            + "  - {name: A, value: c, why: x, source: y, when: rocm}\n",
            6,
            "A is set above already",
        ),
        (INBOX + "env: [{name: A, value: 1, why: x, source: y}]\n", 4, "write it in quotes"),
    ],
)
def test_nic_refused_with_its_line(text: str, line: int, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, "mine.j2", f"---\n{text}---\n", "nic")
    with pytest.raises(BadInput) as refused:
        validate_head(read_template(path), NicProfile)
    assert says in refused.value.what
    assert str(refused.value.where) == f"{path}:{line}"


def test_a_name_that_no_file_should_have(tmp_path: Path) -> None:
    path = write(tmp_path, "My Component.j2", NEW)
    with pytest.raises(BadInput, match="'My Component' is not a name") as refused:
        validate_head(read_template(path), Component)
    assert refused.value.where
    assert refused.value.where.path == str(path)


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "mine.j2"
    path.write_bytes(b"---\nabout: \xff\n---\n")
    with pytest.raises(BadInput) as refused:
        read_template(path)
    assert (refused.value.code, str(refused.value.where)) == ("not-utf8", f"{path}:2")


def test_windows_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path, "fio.j2", NEW)
    path.write_bytes(NEW.replace("\n", "\r\n").encode())
    assert read_template(path).body == NEW.partition("]\n---\n")[2]


def test_own_files_add_replace_and_override(tmp_path: Path) -> None:
    write(tmp_path, "fio.j2", NEW)
    write(tmp_path, "ucx.j2", NEW)
    write(tmp_path, "rccl.j2", "{% block smoke %}x{% endblock %}")
    ours, both = library("components"), library("components", tmp_path)
    assert set(both.files) == {*ours.files, "fio"}
    assert set(both.overrides) == {"rccl"}
    assert both.files["ucx"].path.parent == tmp_path / "components"
    assert both.files["rccl"] == ours.files["rccl"]
    assert set(blocks.own_files(both)) == {"components/fio.j2", "components/ucx.j2", "overlay/components/rccl.j2"}
    assert blocks.own_files(ours) == {}
    assert blocks.shown("components/rccl.j2", both) == "templates/components/rccl.j2"
    assert blocks.shown("components/ucx.j2", both) == str(tmp_path / "components/ucx.j2")


def test_an_override_of_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "slrum.j2", "{% block smoke %}x{% endblock %}")
    with pytest.raises(BadInput, match="did you mean 'slurm'") as refused:
        library("components", tmp_path)
    assert (refused.value.code, str(refused.value.where)) == ("override-unmatched", f"{path}:1")


@pytest.mark.parametrize(
    ("kind", "name", "says", "code"),
    [
        ("components", "slrum", "no component 'slrum': did you mean 'slurm'?", "unknown-component"),
        ("nic", "melanox", "no NIC profile 'melanox': did you mean 'mellanox'?", "unknown-nic"),
        ("nic", "zzz", "no NIC profile 'zzz': known: ainic, broadcom", "unknown-nic"),
    ],
)
def test_unknown(kind: Kind, name: str, says: str, code: str) -> None:
    with pytest.raises(BadInput) as refused:
        library(kind).get(name)
    assert says in refused.value.what
    assert refused.value.code == code


def test_every_template_is_used() -> None:
    """A file that no stack and no NIC profile leads to would never be rendered by these tests."""
    from rocstack.stack import stack

    used = {name for each in stack.names() for name in stack.load(each).every_component}
    assert used == set(component.library("components").files)
    assert {path.name for path in paths.templates().iterdir() if path.is_file()} == {
        "Dockerfile.j2",
        "From.j2",
        "macros.j2",
    }


def test_a_wrong_head_that_nothing_takes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "fio.j2", "---\nabout: fio\nmethodes: {}\n---\n", "components")
    with pytest.raises(BadInput, match="did you mean 'methods'") as refused:
        refuse_bad_heads(tmp_path, library("components", tmp_path), library("nic", tmp_path))
    assert str(refused.value.where) == f"{path}:3"
