"""`rocstack outdated` and `rocstack lock --upgrade`: pip asks an index on this machine, apt's answer is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wheel_index import add_wheel, served

from rocstack.base import paths
from rocstack.base.errors import BadInput, CheckFailed
from rocstack.image import newest, pinning
from rocstack.image.base_image import BaseImage
from rocstack.stack import lock, stack
from rocstack.stack.newer import AptNews, NewerPackage
from rocstack.steps import build, outdated
from rocstack.steps.options import LockOptions, OutdatedOptions

START = BaseImage(reference="base", digest="sha256:1", how="mmdebstrap")
UCX = NewerPackage(name="libucx0", locked="1.18.1+ds-2", newer="1.19.0-1", security=True)
WHEELS = (
    ("transformers", "5.23.0", ["safetensors<0.9"]),
    ("transformers", "5.24.0", ["safetensors<0.9"]),
    ("safetensors", "0.8.0", []),
    ("safetensors", "0.8.5", []),
    ("safetensors", "0.9.0", []),
)


class World:
    def __init__(self, overlay: Path) -> None:
        self.overlay = overlay
        self.news = AptNews(newer=(UCX,), knows_security=True)

    @property
    def stack(self) -> Path:
        return self.overlay / "stacks/debian-13.yml"

    def options(self) -> dict[str, Any]:
        return {"overlay": str(self.overlay), "stack": "debian-13"}

    def write(self) -> None:
        """Stack and lock as they were the week before."""
        own = stack.load("debian-13", self.overlay)
        wheels = tuple(lock.LockedWheel(name=n, version=v, sha256=("ab" * 32,)) for n, v in own.wheels.items())
        packages = (lock.LockedPackage(name="libucx0", version="1.18.1+ds-2"),)
        made = lock.Lock(stack=own.name, definition=lock.definition_digest(own), wheels=wheels, packages=packages)
        Path(lock.FILE).write_text(made.to_text())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    overlay = tmp_path / "overlay"
    (overlay / "stacks").mkdir(parents=True)
    text = (paths.images() / "stacks/debian-13.yml").read_text()
    before, _, rest = text.partition("\nwheels:\n")
    before = re.sub(r"\n *wheels: \{.*\}", "", before) + "\n"  # those of the service, which the index here hasn't
    wheels = 'wheels:\n  transformers: "5.23.0" # of the trainer\n  safetensors: "0.8.0"\n'
    made = World(overlay)
    made.stack.write_text(before + wheels + rest[rest.index("provided:") :])
    made.write()
    for name, version, needs in WHEELS:
        add_wheel(tmp_path / "index", name, version, needs)
    monkeypatch.setattr(outdated.engine, "connect", lambda: None)
    monkeypatch.setattr(outdated.bases, "ensure", lambda *_: START)
    monkeypatch.setattr(newest, "ask_apt", lambda *_: made.news)
    monkeypatch.setattr(pinning, "ask_apt", lambda *_: "libucx0=1.19.0-1\n---\n--- sources\n--- keys\n")
    with served(tmp_path) as address:
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/index")
        yield made


def test_outdated(world: World) -> None:
    found = outdated.outdated(OutdatedOptions(**world.options()))
    rows = [(row.name, row.locked, row.newer, row.security) for row in found.rows]
    assert rows == [
        ("ucx", "1.18.1+ds-2", "1.19.0-1", True),
        ("safetensors", "0.8.0", "0.9.0", False),
        ("transformers", "5.23.0", "5.24.0", False),
    ]
    assert found.to_dict()["security_looked_up"] is True


def test_an_index_that_does_not_answer_is_not_looked_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/index")
    monkeypatch.setenv("PIP_RETRIES", "0")
    found = outdated.outdated(OutdatedOptions(**world.options()))
    unseen = {row.name: row for row in found.rows if row.newer is None}
    assert unseen.keys() == {"safetensors", "transformers", "other wheels"}
    assert {row.rules for row in unseen.values()} == {"not looked up"}


def test_upgrade_takes_what_goes_together_and_says_why_not_more(world: World) -> None:
    before = world.stack.read_text()
    made = build.lock(LockOptions(upgrade=True, **world.options()))
    assert made.upgrade
    assert [(each.name, each.before, each.after) for each in made.upgrade.changes] == [
        ("ucx", "1.18.1", "1.19.0"),
        ("safetensors", "0.8.0", "0.8.5"),
        ("transformers", "5.23.0", "5.24.0"),
    ]
    (refused,) = made.upgrade.refused
    assert (refused.name, refused.after) == ("safetensors", "0.9.0")
    assert refused.refused == "transformers 5.24.0 needs safetensors <0.9"
    text = before.replace("1.18.1", "1.19.0").replace("5.23.0", "5.24.0").replace("0.8.0", "0.8.5")
    assert world.stack.read_text() == text  # comments, too
    assert "# of the trainer" in text
    own = stack.load("debian-13", world.overlay)
    assert lock.for_stack(own, Path(lock.FILE)) == made.lock
    assert {wheel.name: wheel.version for wheel in made.lock.wheels}["transformers"] == "5.24.0"


def test_a_second_upgrade_changes_nothing(world: World) -> None:
    build.lock(LockOptions(upgrade=True, **world.options()))
    world.news = AptNews(knows_security=True)
    before = world.stack.read_text(), Path(lock.FILE).read_text()
    made = build.lock(LockOptions(upgrade=True, **world.options()))
    assert made.upgrade
    assert made.upgrade.changes == ()
    assert (world.stack.read_text(), Path(lock.FILE).read_text()) == before


def test_one_component_alone(world: World) -> None:
    made = build.lock(LockOptions(upgrade=True, only=("transformers",), **world.options()))
    assert made.upgrade
    assert [each.name for each in made.upgrade.changes] == ["transformers"]
    assert '"0.8.0"' in world.stack.read_text()


def test_what_apt_has_and_a_rule_refuses_is_not_pinned(world: World) -> None:
    """openmpi 5 of a distribution whose PMIx went back; an index has no other version."""
    pmix = NewerPackage(name="libpmix2t64", locked="5.0.7-1", newer="4.1.2-1")
    world.news = AptNews(newer=(pmix,))
    packages = (lock.LockedPackage(name="libpmix2t64", version="5.0.7-1"),)
    own = lock.read(Path(lock.FILE)).model_copy(update={"packages": packages})
    Path(lock.FILE).write_text(own.to_text())
    before = world.stack.read_text(), Path(lock.FILE).read_text()
    with pytest.raises(CheckFailed, match="openmpi-pmix") as refused:
        build.lock(LockOptions(upgrade=True, **world.options()))
    assert refused.value.code == "apt-breaks-rule"
    assert (world.stack.read_text(), Path(lock.FILE).read_text()) == before


def test_a_shipped_stack_is_copied_to_the_overlay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = world.stack.read_text()
    world.stack.unlink()
    ours = world.overlay.parent / "ours"
    for folder in ("images", "templates"):
        (ours / folder).parent.mkdir(exist_ok=True)
        (ours / folder).symlink_to(paths.data_root() / folder)
    (ours / "images").unlink()
    (ours / "images").mkdir()
    for each in paths.images().iterdir():
        (ours / "images" / each.name).symlink_to(each)
    (ours / "images/stacks").unlink()
    (ours / "images/stacks").mkdir()
    (ours / "images/stacks/debian-13.yml").write_text(mine)
    monkeypatch.setattr(paths, "data_root", lambda: ours)
    monkeypatch.setattr(paths, "packaged", lambda: True)
    with pytest.raises(BadInput) as refused:
        build.lock(LockOptions(upgrade=True, stack="debian-13"))
    assert "comes with rocstack" in refused.value.what
    build.lock(LockOptions(upgrade=True, **world.options()))
    assert '"5.24.0"' in world.stack.read_text()
    assert (ours / "images/stacks/debian-13.yml").read_text() == mine


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"only": ("ucx",)}, "only-with-upgrade"),
        ({"only": ("uxc",), "upgrade": True}, "unknown-component"),
    ],
)
def test_wrong_input_is_refused_first(world: World, options: dict[str, Any], code: str) -> None:
    with pytest.raises(BadInput) as refused:
        build.lock(LockOptions(**options, **world.options()))
    assert refused.value.code == code


def test_without_a_lock(world: World) -> None:
    Path(lock.FILE).unlink()
    with pytest.raises(BadInput) as refused:
        outdated.outdated(OutdatedOptions(stack="rocm-7.2-ubuntu-24.04"))
    assert refused.value.code == "no-lock"
