"""A folder of the user's own for compiled code, in a /tmp that everybody may write to."""

import os
import stat
from pathlib import Path

import pytest

from rocstack.node import own_folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(own_folder, "SHARED", str(tmp_path))
    return tmp_path


def cache(env: dict[str, str]) -> Path:
    (line,) = own_folder.lines(env)
    return Path(line.removeprefix("export TORCHINDUCTOR_CACHE_DIR="))


def test_compiled_code_lies_in_a_folder_that_nobody_else_can_enter(shared: Path) -> None:
    found = cache({})
    assert found.parent == shared / f"rocstack-{os.getuid()}"
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    assert cache({}) == found, "what one job compiled is there for the next"


@pytest.mark.parametrize("squat", ["a folder of another user's", "a link", "a file", "open to all"])
def test_a_name_that_somebody_else_has_taken_isnt_used(
    shared: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, squat: str
) -> None:
    """Or her job would run what that user put there as compiled code."""
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
    found = cache({})
    assert found.parent.name.startswith(f"{taken.name}-")
    assert found.parent.parent == shared
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


def test_what_the_job_set_itself_stays_and_another_nodes_folder_doesnt(shared: Path) -> None:
    assert own_folder.lines({"TORCHINDUCTOR_CACHE_DIR": "/shared/cache"}) == []
    assert own_folder.lines({"TMPDIR": "/scratch/alice"}) == []
    of_script = f"{shared}/rocstack-{os.getuid()}-abcdefgh/torchinductor"
    for env in ({}, {"TMPDIR": "/scratch/alice"}):
        own = cache({"TORCHINDUCTOR_CACHE_DIR": of_script, **env})
        assert own.parent == shared / f"rocstack-{os.getuid()}", "wherever the script has its other files"
    assert own_folder.lines({"TORCHINDUCTOR_CACHE_DIR": f"{shared}/rocstack-{os.getuid()}1/cache"}) == []
