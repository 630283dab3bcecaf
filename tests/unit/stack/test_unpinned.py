"""What a build may start from: sources and wheels that the stack or the lock pins, in an order that can be built."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.image import pinning, render
from rocstack.settings.site import Site
from rocstack.stack import component, lock, overlay, resolve, stack
from rocstack.steps import build as steps
from rocstack.steps.options import LockOptions

COMPONENTS = component.library("components")
NICS = component.library("nic")
SHA, NEW = "ab" * 32, "cd" * 32
AMD = "rocm-7.2-ubuntu-24.04"


def resolved(chosen: stack.Stack) -> resolve.Resolved:
    return resolve.resolve(chosen, "tcp", COMPONENTS, NICS, overlay.Overlay())


def a_lock(chosen: stack.Stack, **fields: Any) -> lock.Lock:
    return lock.Lock(stack=chosen.name, definition=lock.definition_digest(chosen), **fields)


def test_amd_stacks_wait_for_a_lock() -> None:
    chosen = stack.load(AMD)
    assert lock.for_stack(chosen, None) is None
    missing = lock.unpinned(chosen, None)
    keys = {"the key of repository rocm", "the key of repository graphics"}
    assert set(missing) == {"slurm", "rccl-tests", "torch", *chosen.wheels, *keys}
    with pytest.raises(BadInput, match="repository graphics, slurm, rccl-tests, torch") as error:
        render.require_lock(resolved(chosen), None)
    assert error.value.code == "no-lock"
    assert AMD in (error.value.next_step or "")


def test_a_lock_pins_archives_and_wheels() -> None:
    chosen = stack.load(AMD)
    sources = tuple(
        lock.LockedSource(component=name, version="1", url=chosen.components[name].url, sha256=SHA)
        for name in ("slurm", "rccl-tests")
    )
    index = chosen.components["pytorch"].index
    wheels = tuple(
        lock.LockedWheel(name=n, version="1", sha256=(SHA,), index=index if n == "torch" else None)
        for n in ("torch", *chosen.wheels)
    )
    keys = tuple(lock.LockedKey(repository=each.name, url=each.key, sha256=SHA) for each in chosen.repositories)
    full = a_lock(chosen, sources=sources, wheels=wheels, keys=keys)
    assert lock.unpinned(chosen, full) == ()
    assert lock.unpinned(chosen, full.model_copy(update={"wheels": wheels[1:]})) == ("torch",)
    strange = wheels[0].model_copy(update={"index": None})
    assert lock.unpinned(chosen, full.model_copy(update={"wheels": (strange, *wheels[1:])})) == ("torch",)
    assert lock.unpinned(chosen, full.model_copy(update={"sources": sources[1:]})) == ("slurm",)
    for wrong in ((), (keys[0].model_copy(update={"url": "https://example.org/key"}), *keys[1:])):
        left = lock.unpinned(chosen, full.model_copy(update={"keys": wrong}))
        assert "the key of repository rocm" in left
        with pytest.raises(BadInput, match="no lock with the sha256 of the key of repository rocm"):
            render.require_lock(resolved(chosen), full.model_copy(update={"keys": wrong}))
    context = render.render(resolved(chosen), full, COMPONENTS, NICS)
    dockerfile = context.files["Dockerfile"].data.decode()
    assert f"/slurm-25.11.8.tar.bz2 {SHA} /src" in dockerfile
    assert f"/rocm.gpg.key {SHA} " in dockerfile
    others, torch = (context.files[f"wheels/{number}.txt"].data.decode().splitlines() for number in (0, 1))
    assert torch == [f"--index-url {index}", f"torch==1 --hash=sha256:{SHA}"]
    assert len(others) == len(chosen.wheels)
    assert not any("index" in line or line.startswith("torch") for line in others)


@pytest.mark.parametrize("where", ["own", "shipped", "own, key said by the stack", "own, damaged", "own, without keys"])
def test_another_key_is_not_locked(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the changes of a week's packages nobody would see it."""
    chosen = stack.load(AMD)
    keys = tuple(lock.LockedKey(repository=each.name, url=each.key, sha256=SHA) for each in chosen.repositories)
    before, now = (a_lock(chosen, keys=(keys[0].model_copy(update={"sha256": sum}), *keys[1:])) for sum in (SHA, NEW))
    if where == "own, without keys":
        before = a_lock(chosen)
    if where == "own, key said by the stack":
        own = chosen.repositories[0].model_copy(update={"key_sha256": NEW})
        chosen = chosen.model_copy(update={"repositories": (own, *chosen.repositories[1:])})
    shipped, file = tmp_path / "shipped", tmp_path / "own"
    text = "{" if where == "own, damaged" else before.to_text()
    (shipped if where == "shipped" else file).write_text(text)
    monkeypatch.setattr(steps, "join", lambda *_, **__: SimpleNamespace(resolved=resolved(chosen)))
    monkeypatch.setattr(steps, "shipped", lambda _: shipped)
    monkeypatch.setattr(steps.engine, "connect", lambda: None)
    monkeypatch.setattr(steps.bases, "ensure", lambda *_: None)
    monkeypatch.setattr(steps.pinning, "make", lambda *_: now)
    options = LockOptions(stack=AMD, to=file)
    if where not in ("own", "shipped"):
        assert steps.lock(options).lock == now
        assert lock.read(file) == now
        return
    with pytest.raises(
        CheckFailed, match=f"repository rocm is another than in the lock: {NEW}, locked {SHA}"
    ) as refused:
        steps.lock(options)
    assert refused.value.code == "other-key"
    assert file.read_text() == text if where == "own" else not file.exists()


def test_the_stacks_key_is_above_the_locks() -> None:
    repository = stack.load(AMD).repositories[0]
    key = lock.LockedKey(repository=repository.name, url=repository.key, sha256=SHA)
    own = repository.model_copy(update={"key_sha256": "cd" * 32})
    locked = a_lock(stack.load(AMD), keys=(key,))
    assert [lock.key_sha256(each, locked) for each in (repository, own)] == [SHA, "cd" * 32]
    assert [lock.key_sha256(each, None) for each in (repository, own)] == [None, "cd" * 32]


def test_an_archive_without_sha256_renders_and_does_not_build() -> None:
    """`fetch-source` refuses `-` for an archive."""
    dockerfile = render.render(resolved(stack.load(AMD)), None, COMPONENTS, NICS).files["Dockerfile"].data.decode()
    assert "/slurm-25.11.8.tar.bz2 - /src" in dockerfile


def test_the_stacks_sha256_is_above_the_locks() -> None:
    choice = stack.ComponentChoice(method="source", version="1", url="https://example.org/a.tar", sha256="cd" * 32)
    chosen = stack.load(AMD)
    other = a_lock(chosen, sources=(lock.LockedSource(component="ucx", version="1", url=choice.url, sha256=SHA),))
    assert lock.source_sha256("ucx", choice, other) == "cd" * 32
    assert lock.source_sha256("ucx", choice.model_copy(update={"sha256": None}), other) == SHA
    assert lock.source_sha256("pmix", choice.model_copy(update={"sha256": None}), other) is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"method": "source", "version": "1"}, "needs either"),
        ({"method": "source", "version": "1", "source": "a", "url": "https://example.org/a"}, "needs either"),
        ({"method": "apt", "version": "1", "sha256": SHA}, "'sha256' is of a source"),
        ({"method": "source", "version": "1", "url": "https://example.org/$(id)"}, "plain http"),
        ({"method": "apt", "version": "1", "packages": ("a b",)}, "package name"),
    ],
)
def test_bad_choices(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        stack.ComponentChoice.model_validate(choice)


def test_debian_13_offers_gpu_aware_openmpi() -> None:
    chosen = stack.load("debian-13")
    other = chosen.with_methods({"openmpi": "source"})
    assert other.components["openmpi"].source == "openmpi"
    assert "python3-mpi4py" in resolved(other).part("openmpi").packages.worker_packages
    assert {n: c for n, c in other.components.items() if n != "openmpi"} == {
        n: c for n, c in chosen.components.items() if n != "openmpi"
    }
    assert other.with_methods({"openmpi": "source"}) == other
    assert chosen.with_methods({"openmpi": "apt"}) == chosen
    assert other.with_methods({"openmpi": "apt"}) == chosen
    # One lock serves both, so the shipped one is found for either.
    assert lock.definition_digest(chosen) == lock.definition_digest(other)
    assert lock.for_stack(other, None) == lock.for_stack(chosen, None) is not None


@pytest.mark.parametrize(
    ("methods", "code", "hint"),
    [
        ({"openmpy": "source"}, "unknown-component", "did you mean 'openmpi'"),
        ({"openmpi": "sauce"}, "unknown-method", "did you mean 'source'"),
        ({"ucx": "source"}, "unknown-method", "known: apt"),
    ],
)
def test_no_such_alternative(methods: dict[str, str], code: str, hint: str) -> None:
    with pytest.raises(BadInput, match=hint) as error:
        stack.load("debian-13").with_methods(methods)
    assert error.value.code == code


@pytest.mark.parametrize("name", list(stack.names()))
def test_build_order_puts_needs_first(name: str) -> None:
    value = resolved(stack.load(name))
    order = [part.name for part in value.build_order()]
    assert sorted(order) == sorted(part.name for part in value.parts)
    for part in value.parts:
        assert all(order.index(need) < order.index(part.name) for need in part.needs)


@pytest.mark.parametrize("name", list(stack.names()))
def test_stages_are_copied_from_only_after_they_are_defined(name: str) -> None:
    dockerfile = render.render(resolved(stack.load(name)), None, COMPONENTS, NICS).files["Dockerfile"].data.decode()
    defined: set[str] = set()
    for line in dockerfile.splitlines():
        words = line.split()
        if words[:1] == ["FROM"] and "AS" in words:
            defined.add(words[words.index("AS") + 1])
        for word in words:
            if word.startswith("--from="):
                assert word.removeprefix("--from=") in defined, line


def test_the_lock_asks_with_the_builds_own_package_sources() -> None:
    """Repositories, mirror and certificates are set up as in a build, and the site's secrets are not on a command
    line."""
    text = pinning.script(resolved(stack.load(AMD)), Site(env={"http_proxy": "http://me:secret@proxy"}))
    lines = text.splitlines()
    repository = next(i for i, line in enumerate(lines) if line.startswith("/run/rocstack/build/apt-repository rocm"))
    update = next(i for i, line in enumerate(lines) if line.startswith("/run/rocstack/build/apt-update --source"))
    resolving = next(i for i, line in enumerate(lines) if "-s install" in line and "rocm-core" in line)
    assert repository < update < resolving
    assert "/rocm.gpg.key first-use " in lines[repository]
    assert "http_proxy=http://me:secret@proxy" in lines
    assert "fetch https://download.schedmd.com/slurm/slurm-25.11.8.tar.bz2 /tmp/archive" in text
    assert "fetch https://github.com/openucx" not in text  # its sha256 is the stack's: nothing to download


def test_locked_sources_are_read_back() -> None:
    value = resolved(stack.load("debian-13").with_methods({"openmpi": "source"}))
    answer = f"bash=5\n---\nPackage: bash\nVersion: 5\nSHA256: {SHA}\n--- sources\nopenmpi openmpi {SHA}\n"
    assert pinning.parse_sources(answer, value) == (
        lock.LockedSource(component="openmpi", version="5.0.7", package="openmpi", sha256=SHA),
    )
    assert [(p.name, p.sha256) for p in pinning.parse_packages(answer)] == [("bash", SHA)]
