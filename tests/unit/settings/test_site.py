"""What this site's network needs: found in settings and in what every client is told; none of it in clear text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstack.image.buildkit import BuildkitRequest
from rocstack.settings.settings import Settings
from rocstack.settings.site import Site, of


def test_nothing() -> None:
    assert of(Settings(), {}) == Site()
    assert Site().env_file() == ""


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"http_proxy": "http://p"}, {"http_proxy": "http://p", "HTTP_PROXY": "http://p"}),
        ({"HTTPS_PROXY": "http://p"}, {"https_proxy": "http://p", "HTTPS_PROXY": "http://p"}),
        ({"no_proxy": "a", "NO_PROXY": "b"}, {"no_proxy": "a", "NO_PROXY": "a"}),
        ({"http_proxy": ""}, {}),
        ({"PIP_INDEX_URL": "https://i"}, {"PIP_INDEX_URL": "https://i"}),
        ({"PIP_INDEX_URL": "file:///opt/wheels"}, {}),
        ({"PIP_TARGET": "/x", "AWS_SECRET_ACCESS_KEY": "y", "PATH": "z"}, {}),
    ],
)
def test_environment(env: dict[str, str], expected: dict[str, str]) -> None:
    assert of(Settings(), env).env == expected


def test_settings_win() -> None:
    chosen = Settings(pip_index="https://mine.example/simple", apt_mirror="http://mirror.example")
    assert of(chosen, {"PIP_INDEX_URL": "https://theirs.example"}).env == {
        "PIP_INDEX_URL": "https://mine.example/simple",
        "ROCSTACK_MIRROR": "http://mirror.example",
    }


def test_ca_bundle(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine.pem", tmp_path / "theirs.pem"
    for file in (mine, theirs):
        file.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    env = {"PIP_CERT": str(tmp_path / "gone.pem"), "SSL_CERT_FILE": str(theirs)}
    assert of(Settings(), env).ca == str(theirs)
    assert of(Settings(ca_bundle=str(mine)), env).ca == str(mine)
    assert of(Settings(), {"SSL_CERT_FILE": str(tmp_path)}).ca is None


@pytest.mark.parametrize("text", ["machine a password b\n", "{}-----BEGIN RSA PRIVATE KEY-----\n"])
def test_builds_get_certificates_and_no_other_file(tmp_path: Path, text: str) -> None:
    """A rocstack.yml that was copied could name a key, and its overlay's steps read what builds get."""
    file = tmp_path / "mine"
    file.write_text(text.format("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"))
    with pytest.raises(ValueError, match="certificates"):
        Settings(ca_bundle=str(file))


def test_a_bundle_that_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "mine").write_text("x")

    def refused(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(ValueError, match="can't be read: Permission denied"):
        Settings(ca_bundle=str(file))


LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["A", "B"]), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))
    )
)
def test_the_shell_reads_back_what_was_written(env: dict[str, str]) -> None:
    script = 'set -a; eval "$SITE"; printf "%s\\0%s\\0" "${A-unset}" "${B-unset}"'
    ran = subprocess.run(
        ["bash", "-c", script],
        env={"SITE": Site(env=env).env_file(), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    assert ran.stdout.decode().split("\0")[:2] == [env.get("A", "unset"), env.get("B", "unset")]


def test_no_secret_on_the_command_line(tmp_path: Path) -> None:
    site = Site(env={"https_proxy": "http://user:s3cret@proxy.example"}, ca="/etc/ca.pem")
    request = BuildkitRequest(tmp_path, "worker", "2026.47", site, tags=("a:b",), labels={"x": "y z"})
    for command in (request.command(), request.shown()):
        assert "s3cret" not in " ".join(command)
        assert "id=site-env,env=ROCSTACK_SITE_ENV" in command
        assert "id=site-ca,src=/etc/ca.pem" in command
    bare = BuildkitRequest(tmp_path, "worker", "2026.47", Site()).command()
    assert "--secret" not in bare
    assert bare[-1] == str(tmp_path)
