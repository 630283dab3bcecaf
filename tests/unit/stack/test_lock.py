"""The lock: what it says, and that one which doesn't fit its stack is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_run import Cli, listing
from resolved_stack import Joined

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.stack import lock, stack
from rocstack.stack.lock import Lock

SHA = "ab" * 32
WHEEL, VERSION = next(iter(stack.load("debian-13").wheels.items()))
SHIPPED = paths.images() / "stacks/debian-13.lock"


def data() -> dict[str, Any]:
    return dict(json.loads(SHIPPED.read_text()))


def test_shipped() -> None:
    found = lock.read(SHIPPED)
    assert found.stack == "debian-13"
    assert found.to_text() == SHIPPED.read_text()
    assert lock.unpinned(stack.load("debian-13"), found) == ()
    assert all(package.sha256 for package in found.packages)
    assert len({package.name for package in found.packages}) == len(found.packages)


def test_digest_is_of_everything() -> None:
    plain = lock.read(SHIPPED)
    assert plain.digest() == Lock.model_validate_json(plain.to_text()).digest()
    first, *others = plain.packages
    for change in (
        {"packages": (first.model_copy(update={"version": "9"}), *others)},
        {"packages": tuple(others)},
        {"wheels": plain.wheels[1:]},
        {"definition": SHA},
        {"base": None},
    ):
        assert plain.model_copy(update=change).digest() != plain.digest()


def test_requirements() -> None:
    wheel = lock.LockedWheel(name="torch", version="2.8.0+rocm6.4", sha256=(SHA, "cd" * 32))
    some = Lock(stack="a", definition=SHA, wheels=(wheel,))
    assert some.requirements(()) == (f"torch==2.8.0+rocm6.4 --hash=sha256:{SHA} --hash=sha256:{'cd' * 32}\n",)


@pytest.mark.parametrize(
    ("gfx", "devices"),
    [
        (("gfx942",), ["gfx942"]),
        (("gfx90a", "gfx950"), ["gfx90a", "gfx950"]),
        (("gfx1151",), ["gfx1151", "gfx115x"]),
    ],
)
def test_kernels_of_these_targets_alone(gfx: tuple[str, ...], devices: list[str]) -> None:
    every = ("gfx90a", "gfx942", "gfx950", "gfx1151", "gfx115x")
    names = ("torch", *(f"amd-torch-device-{each}" for each in every))
    wheels = tuple(lock.LockedWheel(name=name, version="1", sha256=(SHA,)) for name in names)
    (text,) = Lock(stack="a", definition=SHA, wheels=wheels).requirements(gfx)
    asked = [line.partition("==")[0] for line in text.splitlines()]
    assert asked == ["torch", *(f"amd-torch-device-{each}" for each in devices)]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"about": "other"}, True),
        ({"budget_mb": 1}, True),
        ({"facts": ()}, True),
        ({"gfx": ("gfx908",)}, True),
        ({"python": "3.12"}, False),
        ({"wheels": {}}, False),
        ({"provided": ()}, False),
        ({"base": stack.StackBase(image="debian:sid", os="debian-13")}, False),
    ],
)
def test_definition_is_what_decides_the_lock(change: dict[str, Any], same: bool) -> None:
    plain = stack.load("debian-13")
    changed = plain.model_copy(update=change)
    assert changed != plain
    assert (lock.definition_digest(changed) == lock.definition_digest(plain)) is same


def test_a_components_version_and_method_decide_the_lock() -> None:
    plain = stack.load("debian-13")
    ucx = plain.components["ucx"]
    for other in (ucx.model_copy(update={"version": "9"}), ucx.model_copy(update={"packages": ("a",)})):
        changed = plain.model_copy(update={"components": {**plain.components, "ucx": other}})
        assert lock.definition_digest(changed) != lock.definition_digest(plain)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Invalid JSON"),
        ("not JSON", "Invalid JSON"),
        ("[]", "should be an object"),
        ("{}", "stack: Field required"),
        (SHIPPED.read_text()[:-20], "Invalid JSON"),
        (json.dumps({**data(), "format": 2}), "format: Input should be 1"),
        (json.dumps({**data(), "pakages": []}), "pakages: Extra inputs are not permitted"),
        (json.dumps({**data(), "definition": "x"}), "definition: Value error, 'x' is not a sha256"),
        (json.dumps({**data(), "packages": [{"name": "a; reboot", "version": "1"}]}), "packages.0.name"),
        (json.dumps({**data(), "wheels": [{"name": "a", "version": "1\n-r /x", "sha256": []}]}), "wheels.0.version"),
        (json.dumps({**data(), "wheels": [{"name": "a", "version": "1", "sha256": ["x"]}]}), "wheels.0.sha256.0"),
        ("[" * 100_000, "Invalid JSON"),
    ],
)
def test_damaged(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "rocstack.lock"
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        lock.read(file)
    assert says in refused.value.what
    assert (refused.value.code, str(refused.value.where)) == ("bad-lock", str(file))


def test_not_utf8_and_not_there(tmp_path: Path) -> None:
    file = tmp_path / "rocstack.lock"
    file.write_bytes(b'{"stack": "\xff"}')
    with pytest.raises(BadInput, match="not UTF-8"):
        lock.read(file)
    with pytest.raises(BadInput, match="No such file"):
        lock.read(tmp_path / "none.lock")


def written(folder: Path, name: str = "rocstack.lock", **changes: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps({**data(), **changes}))
    return file


def test_which_lock_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = stack.load("debian-13")
    shipped = lock.read(SHIPPED)
    assert lock.for_stack(chosen, None) == shipped
    assert lock.for_stack(chosen, Path(lock.FILE)) == shipped  # the default name, and no such file
    own = written(tmp_path, packages=[])
    assert lock.for_stack(chosen, Path(lock.FILE)) == lock.read(own) != shipped
    with pytest.raises(BadInput, match=r"no lock file mine\.lock") as refused:
        lock.for_stack(chosen, Path("mine.lock"))
    assert refused.value.code == "no-lock"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stack": "other"}, "the lock is for stack 'other', not for 'debian-13'"),
        ({"definition": SHA}, "'debian-13' was changed after it was locked"),
        ({"definition": SHA, "wheels": []}, f"(wheel {WHEEL}: stack {VERSION}, lock none)"),
    ],
)
def test_a_lock_that_does_not_fit(changes: dict[str, Any], says: str, tmp_path: Path, cli: Cli) -> None:
    written(tmp_path, **changes)
    before = listing(tmp_path)
    for command in ("build", "render"):
        ran = cli(command, "--json")
        error = ran.json()["error"]
        assert (ran.code, error["code"], error["where"]) == (2, "lock-mismatch", "rocstack.lock")
        assert says in error["what"]
        assert error["next"].startswith("run `rocstack lock")
    assert listing(tmp_path) == before


def test_a_changed_stack_with_the_shipped_lock(tmp_path: Path, cli: Cli) -> None:
    text = (paths.images() / "stacks/debian-13.yml").read_text()
    (tmp_path / "debian-13.yml").write_text(text.replace(f'{WHEEL}: "{VERSION}"', f'{WHEEL}: "0.0.1"'))
    ran = cli("build", "--stack", "debian-13.yml", "--json")
    assert (ran.code, ran.json()["error"]["code"]) == (2, "lock-mismatch")
    assert f"(wheel {WHEEL}: stack 0.0.1, lock {VERSION})" in ran.json()["error"]["what"]


def test_no_lock_no_build(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "mine.yml").write_text((paths.images() / "stacks/debian-13.yml").read_text())
    ran = cli("build", "--stack", "mine.yml", "--frozen", "--json")
    assert (ran.code, ran.json()["error"]["code"]) == (2, "no-lock")
    ran = cli("build", "--stack", "mine.yml", "--json")  # it would make one, with the engine
    assert (ran.code, ran.json()["error"]["code"]) == (3, "no-engine")
    assert cli("render", "--stack", "mine.yml").code == 0
    assert set(listing(tmp_path)) == {"mine.yml"}


def test_drift() -> None:
    some = Lock(
        stack="a",
        definition=SHA,
        packages=tuple(lock.LockedPackage(name=n, version=v) for n, v in (("a", "1"), ("b", "1:2"), ("c", "3"))),
        wheels=(lock.LockedWheel(name="w", version="1", sha256=()), lock.LockedWheel(name="x", version="2", sha256=())),
    )
    assert lock.drift(some, {"a": "1", "b": "1:2", "new": "1"}, {"w": "1"}) == ()
    found = lock.drift(some, {"a": "1", "b": "2"}, {"w": "1.1", "x": "2"})
    assert [(d.what, d.locked, d.found) for d in found] == [("b", "1:2", "2"), ("w (wheel)", "1", "1.1")]


def test_against_the_stack(default: Joined) -> None:
    chosen = default.resolved.stack
    same = {name: choice.version for name, choice in chosen.components.items()}
    assert lock.against_stack(chosen, same) == ()
    found = lock.against_stack(chosen, {**same, "ucx": "1.19.0", "munge": same["munge"] + "+b1"})
    assert [(d.what, d.locked, d.found) for d in found] == [("ucx", same["ucx"], "1.19.0")]
