"""A lock of the person's is read under a trust policy only as a key of the policy signed it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_run import Cli

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.settings.settings import Settings, TrustPolicy, load
from rocstack.stack import stack
from rocstack.steps.trust_policy import history_signer, trusted_lock
from rocstack.trust import files
from rocstack.trust.keys import SigningKey
from rocstack.trust.verification import Untrusted

OURS, THEIRS = (SigningKey.generate(name) for name in ("ours", "theirs"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder whose policy trusts our key, with a lock that nobody signed."""
    (tmp_path / "ours.pub").write_bytes(OURS.public.pem)
    (tmp_path / "rocstack.yml").write_text("trust:\n  keys: [ours.pub]\n")
    lock = tmp_path / "rocstack.lock"
    lock.write_bytes((paths.images() / "stacks/debian-13.lock").read_bytes())
    return lock


def render(cli: Cli) -> tuple[int, str]:
    done = cli("render", "--nic", "tcp", "--stack", "debian-13", "--to", "context")
    return done.code, done.err


def test_signed_by_our_key(cli: Cli, site: Path) -> None:
    files.sign(site, OURS)
    assert render(cli)[0] == 0


def test_nobody_signed_it(cli: Cli, site: Path) -> None:
    code, said = render(cli)
    assert code == 1
    assert "error file-unsigned (rocstack.lock): " in said
    assert not (site.parent / "context").exists()


def test_changed_or_of_another(cli: Cli, site: Path) -> None:
    files.sign(site, THEIRS)
    assert "error file-untrusted (rocstack.lock): " in render(cli)[1]
    files.sign(site, OURS)
    site.write_text(site.read_text() + "\n")
    assert "error file-untrusted (rocstack.lock): " in render(cli)[1]


def test_the_bytes_that_are_verified_are_those_that_are_used(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts another lock there, and the signed one back before the next read."""
    files.sign(site, OURS)
    signed = site.read_bytes()
    left = [signed.replace(b'"bash"', b'"evil"')]
    assert left != [signed]
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        return real(path) if path != site else left.pop() if left else signed

    monkeypatch.setattr(Path, "read_bytes", read)
    monkeypatch.setattr(Path, "read_text", lambda path, **_: read(path).decode())
    chosen = Settings(trust=TrustPolicy(keys=(str(site.parent / "ours.pub"),)))
    with pytest.raises(Untrusted):
        trusted_lock(stack.load("debian-13"), site, chosen)


def test_what_nobody_signed_is_not_even_parsed(cli: Cli, site: Path) -> None:
    site.write_text("{")
    assert "error file-unsigned (rocstack.lock): " in render(cli)[1]


def test_the_lock_that_ships_with_rocstack_needs_none(cli: Cli, site: Path) -> None:
    site.unlink()
    assert render(cli)[0] == 0


def test_without_keys_nothing_is_asked(cli: Cli, site: Path) -> None:
    (site.parent / "rocstack.yml").unlink()
    assert render(cli)[0] == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("gone.key",), "no-key"),
        (("rocstack.yml", "--password-file", "password"), "open-key"),
        (("rocstack.yml",), "no-password"),
    ],
)
def test_a_key_that_cannot_be_used_is_said_before_the_work(
    cli: Cli, site: Path, words: tuple[str, ...], code: str
) -> None:
    (site.parent / "password").touch(mode=0o600)
    (site.parent / "password").write_text("x")
    done = cli("lock", "--sign", *words)
    assert done.code == 2
    assert f"error {code}" in done.err


def test_who_signs_the_history_is_among_those_whose_lines_count(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = site.parent
    monkeypatch.chdir(folder)
    for name, text in (("theirs.key", THEIRS.encrypted(b"secret")), ("password", "secret\n")):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)
    policy = "trust:\n  keys: [ours.pub]\n  sign: theirs.key\n  password_file: password\n"
    (folder / "rocstack.yml").write_text(policy)
    with pytest.raises(BadInput, match="none of those whose lines"):
        history_signer(load({}, {}, folder)[0])
