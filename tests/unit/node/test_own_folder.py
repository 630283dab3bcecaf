"""A folder of the user's own for temporary files, in a /tmp that everybody may write to."""

import os
import stat
from pathlib import Path

import pytest

from rocstack.node import own_folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(own_folder, "SHARED", str(tmp_path))
    return tmp_path


def temporary(env: dict[str, str]) -> Path:
    (line,) = own_folder.lines(env)
    return Path(line.removeprefix("export TMPDIR="))


def test_temporary_files_lie_in_a_folder_that_nobody_else_can_enter(shared: Path) -> None:
    found = temporary({})
    assert found == shared / f"rocstack-{os.getuid()}"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert temporary({}) == found, "what one job compiled is there for the next"


@pytest.mark.parametrize("squat", ["a folder of another user's", "a link", "a file", "open to all"])
def test_a_name_that_somebody_else_has_taken_isnt_used(
    shared: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, squat: str
) -> None:
    """Or her job would run what that user put there, as compiled code."""
    taken = shared / f"rocstack-{os.getuid() + 1}"
    if squat == "a folder of another user's":
        taken.mkdir(0o777)
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    elif squat == "a link":
        taken = shared / f"rocstack-{os.getuid()}"
        taken.symlink_to(tmp_path_factory.mktemp("elsewhere"))
    elif squat == "a file":
        taken = shared / f"rocstack-{os.getuid()}"
        taken.touch()
    else:
        taken = shared / f"rocstack-{os.getuid()}"
        taken.mkdir()
        taken.chmod(0o777)
    found = temporary({})
    assert found.name.startswith(f"{taken.name}-")
    assert found.parent == shared
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_what_the_job_set_itself_stays_and_another_nodes_folder_doesnt(shared: Path) -> None:
    own = shared / f"rocstack-{os.getuid()}"
    assert own_folder.lines({"TMPDIR": "/scratch/alice"}) == []
    for given in ("", f"{shared}", f"{shared}/", f"{own}", f"{own}-abcdefgh"):
        assert temporary({"TMPDIR": given}) == own


def test_what_a_batch_script_made_in_it_can_be_made_on_other_nodes(shared: Path) -> None:
    """`export TMPDIR=$(mktemp -d)`: Slurm makes that folder on each node, but not the one above."""
    own = shared / f"rocstack-{os.getuid()}"
    assert own_folder.lines({"TMPDIR": f"{own}/tmp.abc"}) == []
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.chmod(0o777)
    assert temporary({"TMPDIR": f"{own}/tmp.abc"}).name.startswith(f"{own.name}-"), "somebody else's: not in there"
