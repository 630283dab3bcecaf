"""Names of a release in a registry."""

from __future__ import annotations

from datetime import date

import pytest

from rocstack.base.errors import BadInput
from rocstack.base.image_names import (
    RegistryAddress,
    content_tag,
    parse_by_digest,
    parse_registry,
    release_tags,
    week_tag,
)


@pytest.mark.parametrize(
    ("text", "host", "prefix"),
    [
        ("registry.example", "registry.example", ""),
        ("registry.example:5000/", "registry.example:5000", ""),
        ("localhost/a", "localhost", "a"),
        ("head:5000/ml/team_a/x--y", "head:5000", "ml/team_a/x--y"),
        ("127.0.0.1:5066", "127.0.0.1:5066", ""),
        ("[fd00::1]:5000/a", "[fd00::1]:5000", "a"),
        ("RegistryAddress.Example/a", "RegistryAddress.Example", "a"),
    ],
)
def test_registry(text: str, host: str, prefix: str) -> None:
    found = parse_registry(text)
    assert found == RegistryAddress(host, prefix)
    assert found.repository("worker") == text.rstrip("/") + "/rocstack-worker"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("https://registry.example/a", "without http"),
        ("ada:secret@registry.example", "a name or password does not belong here"),
        ("registry.example/a:latest", "it ends in a tag"),
        ("registry.example/Team", "only the host may have capital letters"),
        ("team/project", "'team' has neither a dot nor a port"),
        ("registry.example:0", "does not read as"),
        ("registry.example:70000", "does not read as"),
        ("registry.example/a//b", "does not read as"),
        ("registry.example/a b", "does not read as"),
        ("registry.example/../b", "does not read as"),
        (".example", "does not read as"),
        ("-x.example", "does not read as"),
        ("", "does not read as"),
        ("registry.example\n", "does not read as"),
    ],
)
def test_bad_registry(text: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint) as caught:
        parse_registry(text)
    assert caught.value.exit_code == 2
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("day", "tag"),
    [
        (date(2026, 11, 20), "2026.47"),
        (date(2026, 1, 1), "2026.01"),
        (date(2027, 1, 3), "2026.53"),
        (date(2025, 12, 29), "2026.01"),
    ],
)
def test_week_tag(day: date, tag: str) -> None:
    assert week_tag(day) == tag


def test_content_tag() -> None:
    digest = "0123456789abcdef" * 4
    assert content_tag(digest) == content_tag(f"sha256:{digest}") == "c-0123456789abcdef"
    for bad in ("", digest[:-1], digest.upper(), digest + "\n"):
        with pytest.raises(ValueError, match="is not a sha256"):
            content_tag(bad)


def test_only_the_default_pair_gets_the_bare_release() -> None:
    default = ("debian-13", "tcp")
    assert release_tags("debian-13", "tcp", "2026.47", default=default) == (
        "debian-13-tcp-2026.47",
        "2026.47",
    )
    assert release_tags("debian-13", "broadcom", "2026.47", default=default) == ("debian-13-broadcom-2026.47",)
    assert release_tags("rocm-7.2", "tcp", "rc1", default=default) == ("rocm-7.2-tcp-rc1",)


@pytest.mark.parametrize(
    ("stack", "release"), [("s" * 120, "2026.47"), ("a", "-x"), ("a", "a b"), ("a", ""), ("a", "x:y")]
)
def test_what_can_not_be_a_tag(stack: str, release: str) -> None:
    with pytest.raises(BadInput, match="is not a valid tag"):
        release_tags(stack, "tcp", release, default=("a", "b"))


def test_an_image_is_named_by_digest() -> None:
    digest = f"sha256:{'a' * 64}"
    assert parse_by_digest(f"r.example:5000/hpc/x@{digest}") == ("r.example:5000", "hpc/x", digest)
    for wrong in ("x", f"x@{digest}", "r.example/x:tag", f"r.example/x@{digest[:-1]}", f"r.example/x:t@{digest}", ""):
        with pytest.raises(BadInput) as error:
            parse_by_digest(wrong)
        assert error.value.code == "no-digest"
