"""release.yml: what is wrong in it is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocstack.base.errors import BadInput
from rocstack.release.plan import ReleaseFile, newest, tags

GOOD = """\
registry: registry.example.com:5000/hpc
keys: [release.key]
images:
  - stack: debian-13
    nic: tcp
    default: true
  - stack: rocm-7.2-debian-13
    nic: broadcom
    name: rocm7.2-broadcom
    nic_source: drivers
    nic_releases: ["235.1.160.0", "231.0.162.0"]
"""


def load(folder: Path, text: str) -> ReleaseFile:
    file = folder / "release.yml"
    file.write_text(text)
    return ReleaseFile.load(file)


def test_tags_are_by_variant_and_release(tmp_path: Path) -> None:
    file = load(tmp_path, GOOD)
    one, two = file.plan.images
    assert tags(one, "2026.47") == ("debian-13-tcp-2026.47", "2026.47")
    assert tags(two, "2026.47") == ("rocm7.2-broadcom-2026.47",)
    assert file.path_of("drivers") == tmp_path / "drivers"
    assert str(file.path_of("/srv/drivers")) == "/srv/drivers"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("nic: broadcom", "nick: broadcom", 8, "did you mean 'nic'?"),
        ("registry: registry", "registries: registry", 1, "did you mean 'registry'?"),
        ("registry.example.com:5000/hpc", "https://registry.example.com", 1, "without http"),
        ("name: rocm7.2-broadcom", "name: debian-13-tcp", 7, "give it a `name`"),
        ("    nic_source: drivers\n", "", 10, "needs `nic_source`"),
        ("    nic_source: drivers\n", "    nic_source: drivers\n    default: true\n", 11, "only one entry"),
        ("default: true", "default: yes please", 6, "true or false"),
        ("default: true", "roles: [worker, server]", 6, "'server' is not one of"),
        ("default: true", "roles: [worker, worker]", 6, "names a role twice"),
        ("default: true", "roles: []", 6, "it is empty"),
        ('"231.0.162.0"', "231.0", 11, "in quotes"),
        ("name: rocm7.2-broadcom", "name: a b", 9, "not a tag"),
        ("nic_source: drivers", "nic_source: https://example.com/a.zip", 10, "needs `nic_sha256`"),
        ("nic_source: drivers", f"nic_source: drivers\n    nic_sha256: '{'a' * 64}'", 11, "at an address"),
    ],
)
def test_what_is_wrong_has_its_line(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    with pytest.raises(BadInput) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert caught.value.where
    assert (caught.value.where.line, words in caught.value.what) == (line, True), caught.value.what


def test_without_a_file_or_images(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        ReleaseFile.load(tmp_path / "release.yml")
    assert caught.value.code == "no-release-file"
    with pytest.raises(BadInput):
        load(tmp_path, "images: []\n")


def test_the_last_week_is_found_among_tags() -> None:
    assert newest(["2026.09", "latest", "stable", "2025.52", "2026.10", "sha256-00.sig", "2026.1"]) == "2026.10"
    assert newest(["rc1"]) is None
