"""The first build of a stack that needs a lock and has none makes it; nothing is built here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.base import paths
from rocstack.base.errors import BadInput, CheckFailed
from rocstack.image.base_image import BaseImage
from rocstack.stack import lock, stack
from rocstack.stack.resolve import Resolved
from rocstack.steps import build as steps
from rocstack.steps.options import BuildOptions, RenderOptions
from rocstack.trust.keys import SigningKey

SHA = "ab" * 32
AMD = "rocm-7.2-ubuntu-24.04"
START = BaseImage(reference="ubuntu:24.04", digest=f"sha256:{SHA}", how="registry")


class Notes(steps.BuildEvents):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def whole(value: Resolved) -> lock.Lock:
    """A lock as the world would give it."""
    own = value.stack
    indexes = {lock.wheel_of(n): c.index for n, c in own.components.items() if c.method == "wheel"}
    archives = [(part.name, archive) for part in value.parts for archive in part.choice.archives]
    return lock.Lock(
        stack=own.name,
        definition=lock.definition_digest(own),
        packages=(lock.LockedPackage(name="bash", version="5"),),
        wheels=tuple(
            lock.LockedWheel(name=name, version="1", sha256=(SHA,), index=indexes.get(name))
            for name in (*indexes, *own.wheels)
        ),
        sources=tuple(
            lock.LockedSource(component=name, version="1", url=each.url, sha256=each.sha256 or SHA)
            for name, each in archives
        ),
        keys=tuple(lock.LockedKey(repository=each.name, url=each.key, sha256=SHA) for each in own.repositories),
    )


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Resolved]:
    """Each stack that a lock was made of. Engine, network and the build itself are left out."""
    monkeypatch.chdir(tmp_path)
    out: list[Resolved] = []

    def make(value: Resolved, start: BaseImage, site: Any) -> lock.Lock:
        assert start == START
        out.append(value)
        return whole(value)

    monkeypatch.setattr(steps, "_engine", lambda: None)
    monkeypatch.setattr(steps.engine, "find_image", lambda *_: object())
    monkeypatch.setattr(steps.bases, "ensure", lambda *_: START)
    monkeypatch.setattr(steps.pinning, "make", make)
    monkeypatch.setattr(steps, "_run", lambda options, events, plan, *_: SimpleNamespace(ok=True, plan=plan))
    return out


def test_the_first_build_makes_the_lock_and_says_so(made: list[Resolved], tmp_path: Path) -> None:
    notes = Notes()
    report: Any = steps.build(BuildOptions(stack=AMD, nic="tcp"), notes)
    file = tmp_path / lock.FILE
    assert lock.read(file) == report.plan.lock == whole(made[0])
    assert lock.unpinned(stack.load(AMD), report.plan.lock) == ()
    first, second, *keys = notes.texts
    assert first == f"stack {AMD} has no lock yet: making rocstack.lock, as `rocstack lock` does"
    assert second.startswith("rocstack.lock: 1 packages, ")
    assert second.endswith("later builds use it, commit it")
    assert [key.split(" is trusted")[0] for key in keys] == [
        "the key of repository rocm",
        "the key of repository graphics",
    ]
    assert all(key.endswith(f"sha256 {SHA}") for key in keys)
    before, again = file.read_text(), Notes()
    steps.build(BuildOptions(stack=AMD, nic="tcp", frozen=True), again)
    assert (len(made), again.texts, file.read_text()) == (1, [], before)


def test_it_is_the_lock_of_rocstack_lock(made: list[Resolved], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever GPU targets, ways and nodes this build is for: the next build's may be others."""
    monkeypatch.setattr(steps.engine, "connect", lambda: None)
    steps.build(BuildOptions(stack=AMD, nic="broadcom", gfx="gfx942", way="inbox"))
    steps.lock(steps.LockOptions(stack=AMD, nic="broadcom", to=tmp_path / "other.lock"))
    assert made[0] == made[1]
    assert (tmp_path / lock.FILE).read_text() == (tmp_path / "other.lock").read_text()


def test_a_stack_that_needs_none_is_built_without(made: list[Resolved], tmp_path: Path) -> None:
    steps.build(BuildOptions(stack="debian-13"))  # its own is shipped
    assert (made, list(tmp_path.iterdir())) == ([], [])


def test_frozen_makes_no_lock(made: list[Resolved], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="which --frozen compares with") as refused:
        steps.build(BuildOptions(stack=AMD, frozen=True))
    assert (refused.value.code, made, list(tmp_path.iterdir())) == ("no-lock", [], [])


def test_kept_packages_make_no_lock(made: list[Resolved], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mirror has moved on since: what it has now is not what was kept."""
    (tmp_path / "kept/mirror").mkdir(parents=True)
    monkeypatch.setattr(steps.bases, "ensure", lambda *_: pytest.fail("something was asked"))
    with pytest.raises(BadInput) as refused:
        steps.build(BuildOptions(stack=AMD, packages=tmp_path / "kept"))
    assert (refused.value.code, made, (tmp_path / lock.FILE).exists()) == ("no-lock", [], False)


def test_a_trust_policy_is_not_passed_by_deleting_the_lock(
    made: list[Resolved], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ours.pub").write_bytes(SigningKey.generate("ours").public.pem)
    (tmp_path / "rocstack.yml").write_text("trust:\n  keys: [ours.pub]\n")
    monkeypatch.setattr(steps.bases, "ensure", lambda *_: pytest.fail("something was asked"))
    with pytest.raises(BadInput) as refused:
        steps.build(BuildOptions(stack=AMD))
    assert (refused.value.code, made, (tmp_path / lock.FILE).exists()) == ("no-lock", [], False)
    assert "--sign KEY" in (refused.value.next_step or "")


def test_a_signature_goes_with_a_word(made: list[Resolved], tmp_path: Path) -> None:
    """It was of a lock that is not there any more."""
    (tmp_path / f"{lock.FILE}.sig").touch()
    notes = Notes()
    steps.build(BuildOptions(stack=AMD), notes)
    assert not (tmp_path / f"{lock.FILE}.sig").exists()
    assert any(text.startswith("rocstack.lock.sig is removed") for text in notes.texts)


def test_the_signature_of_the_same_lock_stays(
    made: list[Resolved], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(steps.engine, "connect", lambda: None)
    file, signature, notes = tmp_path / "mine.lock", tmp_path / "mine.lock.sig", list[str]()
    steps.lock(steps.LockOptions(stack=AMD, to=file), notes.append)
    signature.write_text("signed")
    steps.lock(steps.LockOptions(stack=AMD, to=file), notes.append)
    assert (signature.read_text(), notes) == ("signed", [])
    file.write_text(file.read_text() + "\n")
    steps.lock(steps.LockOptions(stack=AMD, to=file), notes.append)
    assert not signature.exists()
    assert [note.partition(":")[0] for note in notes] == [f"{signature} is removed"]


def test_a_further_image_has_its_part_in_the_one_lock(made: list[Resolved], tmp_path: Path) -> None:
    """It takes no lock's place: one made before the stack had such an image stays, and the build is refused."""
    (tmp_path / "mine.yml").write_text((paths.images() / "stacks/debian-13.yml").read_text())
    file = tmp_path / lock.FILE
    report: Any = steps.build(BuildOptions(stack="mine.yml", role="service"))
    own = lock.read(file)
    assert report.plan.lock == own.further["service"]
    steps.build(BuildOptions(stack="mine.yml", frozen=True))
    assert (len(made), lock.unpinned(stack.load("mine.yml"), own)) == (2, ())

    before = own.model_copy(update={"further": {}}).to_text()
    file.write_text(before)
    with pytest.raises(BadInput) as refused:
        steps.build(BuildOptions(stack="mine.yml", role="service"))
    assert (refused.value.code, file.read_text(), len(made)) == ("no-lock", before, 2)


def test_render_makes_none(made: list[Resolved], tmp_path: Path) -> None:
    from rocstack.steps import explain

    assert "FROM " in explain.render(RenderOptions(stack=AMD)).dockerfile
    assert (made, list(tmp_path.iterdir())) == ([], [])


def test_a_damaged_or_other_lock_is_refused_as_before(made: list[Resolved], tmp_path: Path) -> None:
    file = tmp_path / lock.FILE
    for text, code in (("{", "bad-lock"), (whole_of("debian-13").to_text(), "lock-mismatch")):
        file.write_text(text)
        with pytest.raises(BadInput) as refused:
            steps.build(BuildOptions(stack=AMD))
        assert (refused.value.code, file.read_text(), made) == (code, text, [])


def whole_of(name: str) -> lock.Lock:
    own = stack.load(name)
    return lock.Lock(stack=own.name, definition=lock.definition_digest(own))


def test_a_lock_that_cannot_be_made_builds_nothing(
    made: list[Resolved], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: Any) -> lock.Lock:
        raise CheckFailed.of("packages-unresolved", error="E: Unable to locate package rocm-core")

    monkeypatch.setattr(steps.pinning, "make", fails)
    monkeypatch.setattr(steps, "_run", lambda *_: pytest.fail("it was built"))
    with pytest.raises(CheckFailed, match="Unable to locate package rocm-core"):
        steps.build(BuildOptions(stack=AMD))
    assert list(tmp_path.iterdir()) == []


def test_sources_of_a_folder_are_pinned(made: list[Resolved], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Missing and wrong archives are refused before a lock is made; the others are pinned as they are."""
    folder = tmp_path / "archives"
    folder.mkdir()
    options = BuildOptions(stack=AMD, sources=str(folder))
    with pytest.raises(BadInput) as refused:
        steps.build(options)
    assert (refused.value.code, made) == ("no-source", [])
    own = stack.load(AMD)
    for choice in own.components.values():
        for archive in choice.archives:
            (folder / archive.file).write_bytes(b"\x1f\x8b")
    with pytest.raises(BadInput) as refused:
        steps.build(options)
    assert (refused.value.code, made) == ("other-source", [])
    monkeypatch.setattr(steps.sources, "check", lambda *_: ())
    steps.build(options)
    assert all(archive.sha256 for part in made[0].parts for archive in part.choice.archives)
