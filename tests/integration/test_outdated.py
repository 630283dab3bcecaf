"""`rocstack outdated` beside `rocstack lock`: what the one says is newer, the other pins. Real apt, real pip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from workspace import REPO, Workspace

from rocstack.stack import lock, stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_what_is_newer_is_what_a_lock_pins(workspace: Workspace) -> None:
    file = workspace.folder / "rocstack.lock"
    text = (REPO / "images/stacks/debian-13.lock").read_text()
    own = json.loads(text)
    for package in own["packages"]:
        if package["name"] in ("libucx0", "ucx-utils"):
            package["version"] = "1.17.0-1"
    file.write_text(json.dumps(own))
    done = workspace.run("outdated", "--json")
    assert done.code == 0, done.err
    rows = done.json["newer"]
    ucx = next(row for row in rows if row["name"] == "ucx")
    assert (ucx["kind"], ucx["locked"], ucx["packages"]) == ("component", "1.17.0-1", ["libucx0", "ucx-utils"])
    assert done.json["security_looked_up"]
    locked = workspace.run("lock", "--json")
    assert locked.code == 0, locked.err
    pinned = {change["what"]: change["found"] for change in locked.json["changes"]}
    said = {name for row in rows if row["newer"] and not row["in_base"] for name in row["packages"]}
    assert {"libucx0", "ucx-utils"} <= said
    assert said == {name for name in pinned if not name.endswith(" (wheel)")}
    assert pinned["libucx0"] == ucx["newer"]


def test_upgrade_of_a_stack_of_ones_own(workspace: Workspace) -> None:
    """zstandard two releases back: pip's newest is written to the overlay's stack, and locked."""
    mine = workspace.folder / "site/stacks/debian-13.yml"
    mine.parent.mkdir(parents=True)
    text = (REPO / "images/stacks/debian-13.yml").read_text()
    before, _, rest = text.partition("wheels:\n")
    wheels = 'wheels:\n  zstandard: "0.23.0"  # reads shards\n'
    mine.write_text(before + wheels + rest[rest.index("provided:") :])
    assert workspace.run("lock", "--overlay", "site").code == 0
    done = workspace.run("lock", "--overlay", "site", "--upgrade", "zstandard", "--json")
    assert done.code == 0, done.err
    (change,) = done.json["upgrade"]["changes"]
    assert change["name"] == "zstandard"
    assert mine.read_text() == before + wheels.replace("0.23.0", change["after"]) + rest[rest.index("provided:") :]
    own = stack.load("debian-13", Path(workspace.folder / "site"))
    made = lock.for_stack(own, workspace.folder / "rocstack.lock")
    assert made
    assert [wheel.version for wheel in made.wheels if wheel.name == "zstandard"] == [change["after"]]
