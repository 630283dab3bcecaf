"""overlay.yml: what a line of it does, and that a line (or a file) that does nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resolved_stack import join

from rocstack.base.errors import BadInput, Where
from rocstack.stack import overlay
from rocstack.stack.overlay import OverlayChange


def written(folder: Path, text: str) -> Path:
    (folder / "overlay.yml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "component", "name", "op", "packages"),
    [
        ("slurm_packages_append: [a, b]", "slurm", "packages", "append", ("a", "b")),
        ("slurm_worker_packages_remove: [a]", "slurm", "worker_packages", "remove", ("a",)),
        ("ucx_builder_packages_override: []", "ucx", "builder_packages", "override", ()),
        ("my_tool_control_packages_append: [g++]", "my-tool", "control_packages", "append", ("g++",)),
    ],
)
def test_read(text: str, component: str, name: str, op: str, packages: tuple[str, ...], tmp_path: Path) -> None:
    (change,) = overlay.load(written(tmp_path, text)).changes
    assert (change.component, change.list, change.op, change.packages) == (component, name, op, packages)


def test_nothing_to_read(tmp_path: Path) -> None:
    assert overlay.load(None) == overlay.Overlay()
    assert overlay.load(tmp_path) == overlay.Overlay(tmp_path)
    assert overlay.load(written(tmp_path, "# later\n")).changes == ()


@pytest.mark.parametrize(
    ("text", "line", "code", "says"),
    [
        ("slurm_package_append: [a]", 1, "override-unmatched", "unknown override 'slurm_package_append'"),
        ("slurm_packages_apend: [a]", 1, "override-unmatched", "unknown override"),
        ("\n\nslurm: [a]", 3, "override-unmatched", "unknown override"),
        ("_packages_append: [a]", 1, "override-unmatched", "unknown override"),
        ("1: [a]", 1, "override-unmatched", "unknown override '1'"),
        ("slurm_packages_append: a", 1, "bad-value", "must be a list of packages"),
        ("slurm_packages_append:", 1, "bad-value", "must be a list of packages"),
        ("slurm_packages_append: {a: b}", 1, "bad-value", "must be a list of packages"),
        ("slurm_packages_append:\n  - a\n  - b; reboot\n", 3, "bad-value", "'b; reboot' is not a package name"),
        ("slurm_packages_append:\n  - a\n  - 1\n", 3, "bad-value", "must be text: write it in quotes"),
        ("slurm_packages_append:\n  - a\n  - EOS\n", 3, "bad-value", "'EOS' is not a package name"),
        ("slurm_packages_append: [a]\nslurm_packages_append: [b]", 2, "duplicate-key", "appears twice"),
        ("slurm_packages_append: [a", 1, "bad-yaml", "not valid YAML"),
    ],
)
def test_refused(text: str, line: int, code: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        overlay.load(written(tmp_path, text))
    assert says in refused.value.what
    assert (refused.value.code, str(refused.value.where)) == (code, f"{tmp_path}/overlay.yml:{line}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "slurm_wroker_packages_append: [a]",
            "'slurm_wroker_packages_append': did you mean 'slurm_worker_packages",
        ),
        ("ucx_bulder_packages_append: [a]", "did you mean 'ucx_builder_packages_append'?"),
        ("slrum_packages_append: [a]", "no component 'slrum' in this stack: did you mean 'slurm'?"),
        ("fio_packages_append: [a]", "no component 'fio' in this stack: known: "),
        ("slurm_packages_remove: [slurm-clients]", "not in slurm's packages: did you mean 'slurm-client'?"),
        ("slurm_packages_remove: [slurmd]", "'slurmd' is not in slurm's packages"),
        ("ucx_control_packages_append: [a]", "ucx is not part of the control image"),
    ],
)
def test_what_matches_nothing_in_the_stack_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        join(folder=written(tmp_path, "# first line\n" + text))
    assert says in refused.value.what
    assert (refused.value.code, str(refused.value.where)) == ("override-unmatched", f"{tmp_path}/overlay.yml:2")


def test_lines_work_in_order(tmp_path: Path) -> None:
    text = "munge_packages_append: [zzz, munge]\nmunge_packages_remove: [munge]\nrdma_worker_packages_override: [a]\n"
    resolved = join(folder=written(tmp_path, text)).resolved
    assert resolved.part("munge").packages.packages == ("zzz",)
    assert resolved.part("rdma").packages.worker_packages == ("a",)
    assert resolved.part("slurm") == join().resolved.part("slurm")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("overlay.yaml", "did you mean 'overlay.yml'?"),
        ("overlays.yml", "did you mean 'overlay.yml'?"),
        ("component/ucx.j2", "did you mean 'components'?"),
        ("nics/mine.j2", "did you mean 'nic'"),
        ("stack/mine.yml", "did you mean 'stacks'?"),
        ("components/ucx.jinja", "files in components/ end in .j2"),
        ("components/ucx", "files in components/ end in .j2"),
        ("stacks/mine.yaml", "files in stacks/ end in .yml"),
    ],
)
def test_misspelt_files(path: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    with pytest.raises(BadInput) as refused:
        overlay.load(tmp_path)
    assert "is never read" in refused.value.what
    assert says in refused.value.what
    assert refused.value.code == "override-unmatched"


@pytest.mark.parametrize("path", ["README.md", "LICENSE", ".git/config", "components/README.md", "components/.keep"])
def test_files_that_are_clearly_not_ours(path: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    overlay.load(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none", written(tmp_path, "") / "overlay.yml"):
        with pytest.raises(BadInput, match="no overlay folder") as refused:
            overlay.load(path)
        assert refused.value.code == "no-overlay"


LISTS = st.lists(st.sampled_from([f"p{n}" for n in range(8)]), unique=True).map(tuple)


def change(op: str, packages: tuple[str, ...]) -> OverlayChange:
    return OverlayChange("ucx", "packages", op, packages, Where("overlay.yml", 1))


@given(LISTS, LISTS)
def test_append_and_remove(current: tuple[str, ...], packages: tuple[str, ...]) -> None:
    more = change("append", packages).apply(current)
    assert more[: len(current)] == current
    assert set(more) == {*current, *packages}
    assert len(set(more)) == len(more)
    new = tuple(p for p in packages if p not in current)
    assert change("remove", new).apply(more) == current
    assert change("override", packages).apply(current) == packages
    if set(packages) - set(current):
        with pytest.raises(BadInput):
            change("remove", packages).apply(current)
