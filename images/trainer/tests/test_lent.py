"""Somebody's link to a file of ours isn't followed, wherever on the way it is, and whatever becomes of it meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rocstack_trainer import lent
from rocstack_trainer.data import tables
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.models import pretrained

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes others' links")
STRANGER = 4321


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A file of ours."""
    (folder := tmp_path / "private").mkdir()
    (file := folder / "mine.jsonl").write_text('{"text": "mine"}\n')
    return file


def linked(path: Path, target: Path | str, owner: int = STRANGER) -> Path:
    path.symlink_to(target)
    os.chown(path, owner, -1, follow_symlinks=False)
    return path


def test_links_of_ours_are_followed(private: Path, tmp_path: Path) -> None:
    path = linked(tmp_path / "b", linked(tmp_path / "a", "private", 0).name, 0) / ".." / "b" / private.name
    assert lent.not_lent(path) == path
    with lent.opened(path) as source:
        assert source.read_bytes() == private.read_bytes()


def test_a_file_of_theirs_may_be_linked(private: Path, tmp_path: Path) -> None:
    os.chown(private, STRANGER, -1)
    with lent.opened(linked(tmp_path / "link", private)) as source:
        assert source.read_bytes() == private.read_bytes()


@pytest.mark.parametrize("way", ["file", "folder", "behind ours"])
def test_a_link_of_theirs_is_found_on_the_way(private: Path, tmp_path: Path, way: str) -> None:
    """`data.path=DIR/**/*.jsonl` goes through links to folders."""
    path = linked(tmp_path / "link", private.parent if way == "folder" else private)
    path = path / private.name if way == "folder" else path
    path = linked(tmp_path / "ours", path, 0) if way == "behind ours" else path
    for look in (lent.not_lent, lambda path: lent.opened(path).__enter__()):
        with pytest.raises(ConfigError, match=f"user {STRANGER} made the link .*/link to a file of yours"):
            look(path)


def test_a_file_that_becomes_a_link_is_not_read(private: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """It was a link when it was opened, and is a file again when it is looked at."""
    link, looked = linked(tmp_path / "data.jsonl", private), lent._place

    def swapped(path: Path) -> Path:
        link.unlink()
        link.write_text('{"text": "theirs"}\n')
        return looked(path)

    monkeypatch.setattr(lent, "_place", swapped)
    with pytest.raises(ConfigError, match="became another file"), tables.opened(link):
        pass


def test_links_end(private: Path, tmp_path: Path) -> None:
    for number in range(lent.MOST + 1):
        linked(tmp_path / f"{number + 1}", tmp_path / f"{number}" if number else private, 0)
    with pytest.raises(OSError, match="symbolic links"):
        lent._place(tmp_path / f"{lent.MOST + 1}")


@pytest.mark.parametrize("name", ["../private/model.safetensors", "/private/model.safetensors", 5])
def test_weights_are_files_of_the_models_folder(name: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(ConfigError, match="which is no file of the folder"):
        pretrained.files(tmp_path)


def test_weights_of_ours_are_not_lent(private: Path, tmp_path: Path) -> None:
    linked(tmp_path / "model.safetensors", private)
    with pytest.raises(ConfigError, match="to a file of yours"):
        pretrained.files(tmp_path)
