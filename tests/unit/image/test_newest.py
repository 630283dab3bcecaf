"""What apt and pip say of newer versions, parsed; of a real run against a lock of the week before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import docker.errors
import pytest
from resolved_stack import join

from rocstack.image import newest, pinning
from rocstack.settings.site import Site
from rocstack.stack import lock, stack

RECORDED = (Path(__file__).parents[1] / "data/apt/outdated.txt").read_text()
TABLE = """libx1:
  Installed: 1-1
  Candidate: 1-4
  Version table:
     1-4 500
        500 http://deb.example.org/debian trixie/main amd64 Packages
     1-3 500
        500 http://security.example.org/debian-security trixie-security/main amd64 Packages
 *** 1-1 100
        100 /var/lib/dpkg/status
"""


def said(
    newer: str, policy: str = TABLE, suites: str = " trixie-security/\n", gone: str = "", sources: str = ""
) -> str:
    return f"{newer}--- gone\n{gone}--- suites\n{suites}--- policy\n{policy}--- sources\n{sources}"


def test_a_real_run() -> None:
    news = newest.parse(RECORDED)
    assert [(each.name, each.locked, each.newer) for each in news.newer if "zstd" in each.name] == [
        ("libzstd1", "1.5.7+dfsg-1", "1.5.7+dfsg-1+deb13u1"),
        ("zstd", "1.5.7+dfsg-1", "1.5.7+dfsg-1+deb13u1"),
    ]
    assert len(news.newer) == 6
    assert all(each.security and not each.in_base for each in news.newer)
    assert news.knows_security
    assert news.sources == {"openmpi": "5.0.7-1"}
    assert news.gone == ()


@pytest.mark.parametrize(
    ("locked", "security"),
    [
        ("1-1", True),  # the fix lies between, and the new version came by a point release
        ("1-2", True),  # no index has it any more
        ("1-3", False),  # it is the fix
    ],
)
def test_a_fix(locked: str, security: bool) -> None:
    (package,) = newest.parse(said(f"libx1 {locked} 1-4 base\n")).newer
    assert package.security is security
    assert package.in_base


def test_without_a_security_suite_nothing_is_called_fixed() -> None:
    news = newest.parse(said("libx1 1-1 1-4 -\n", TABLE.replace("trixie-security", "trixie"), suites=""))
    assert not news.knows_security
    assert not news.newer[0].security


def test_gone_and_unknown() -> None:
    news = newest.parse(said("", "", gone="liba\nlibb\n", sources="openmpi 5.0.8-1\nnosuch \n"))
    assert news.gone == ("liba", "libb")
    assert news.sources == {"openmpi": "5.0.8-1"}


def test_the_script_asks_as_a_lock_does() -> None:
    value = join().resolved
    own = lock.Lock(
        stack="debian-13", definition="0" * 64, packages=(lock.LockedPackage(name="libucx0", version="1.18.0"),)
    )
    text = newest.script(value, own, Site())
    assert text.startswith("\n".join(pinning.preparation(value, Site())))
    assert "\nlibucx0 1.18.0\n" in text
    assert "{{" not in text


@pytest.mark.parametrize(
    ("code", "out", "err", "answer"),
    [
        (0, "x (2)\nAvailable versions: 2, 1.0.post1, 1\n  INSTALLED: 1\n", "", ("2", "1.0.post1", "1")),
        (1, "", "ERROR: No matching distribution found for x\n", "ERROR: No matching distribution found for x"),
        (
            1,
            "",
            "WARNING: connection broken by X\nERROR: No such",
            "the default index doesn't answer",
        ),
        (1, "", "", "pip said nothing"),
        (0, "", "", "pip said nothing"),
    ],
)
def test_versions(
    monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str, answer: str | tuple[str, ...]
) -> None:
    """A failed look-up is a sentence: never an empty list, which would mean that nothing is newer."""
    monkeypatch.setattr(pinning, "run_pip", lambda *_: SimpleNamespace(returncode=code, stdout=out, stderr=err))
    found = newest.versions(stack.load("debian-13"), Site())
    assert found.keys() == stack.load("debian-13").wheels.keys()
    for each in found.values():
        assert each == answer


class Registry:
    def __init__(self, digest: str | None) -> None:
        self.digest = digest
        self.images = self

    def get_registry_data(self, image: str) -> SimpleNamespace:
        if self.digest is None:
            raise docker.errors.APIError("no such\nhost")
        return SimpleNamespace(id=self.digest)


@pytest.mark.parametrize(("digest", "says"), [("sha256:1", []), ("sha256:2", ["no rule"]), (None, ["not looked up"])])
def test_base(digest: str | None, says: list[str]) -> None:
    base = lock.LockedBase(image="debian:trixie-slim", how="registry", digest="sha256:1")
    own = lock.Lock(stack="debian-13", definition="0" * 64, base=base)
    rows = newest.of_base(Registry(digest), own)  # type: ignore[arg-type]
    assert [row.rules for row in rows] == says
    made = own.model_copy(update={"base": base.model_copy(update={"how": "mmdebstrap"})})
    assert newest.of_base(Registry(digest), made) == []  # type: ignore[arg-type]
