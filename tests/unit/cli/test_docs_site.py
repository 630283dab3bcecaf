"""The documentation as a site and as man pages; the version and its tag; whose works rocstack brings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rocstack.base import __version__

ROOT = Path(__file__).resolve().parents[3]
MAN = sorted((ROOT / "docs/man").glob("*.1"))
ENV = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}


def mkdocs(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    return subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = mkdocs(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {file.stem for file in (ROOT / "docs").glob("*.md")} | {"SECURITY", "CONTRIBUTING", "CHANGELOG"}
    assert {file.stem for file in site.glob("*.html")} - {"404"} == pages
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert {each["location"].partition(".html")[0] for each in found} == pages


def test_no_page_asks_another_host(site: Path) -> None:
    """What a browser loads by itself; a person may follow a link."""
    asked = re.compile(r"""(?:src|<link[^>]*href)=["']?((?:https?:)?//[^"'> ]+)|url\(["']?((?:https?:)?//[^)]+)""")
    for file in [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]:
        assert asked.findall(file.read_text()) == [], file
    assert not list(site.rglob("*.woff*"))
    assert not any('class="mermaid"' in file.read_text() for file in site.glob("*.html")), "its code comes from a CDN"


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    links = ("lock-and-rules.md#no-such-part", "no-such.md", "/build.md")
    for name in ("mkdocs.yml", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs/index.md").open("a") as page:
        page.writelines(f"\n[here]({link})\n" for link in links)
    done = mkdocs(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    faults = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert [link for link in links if not any(f"'{link}'" in line for line in faults)] == [], done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: str(path.stem))
def test_lists_are_lists_in_both(path: Path) -> None:
    """What belongs to an item of a list stands four deep where an empty line is before it."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\n\n( {1,3}\S.*)", text) == []


@pytest.mark.skipif(not shutil.which("man"), reason="no man on this machine")
def test_man_pages_have_no_warnings() -> None:
    assert len(MAN) > 30
    for page in MAN:
        command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)]
        env = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), page


def test_a_man_page_says_what_help_says() -> None:
    text = (ROOT / "docs/man/rocstack-lock.1").read_text()
    for wanted in ("\\-\\-upgrade", "COMPONENT", ".SH EXIT STATUS", "rocstack lock \\-\\-stack debian\\-13"):
        assert wanted in text
    root = (ROOT / "docs/man/rocstack.1").read_text()
    assert all(f"\\fB{page.stem.replace('-', chr(92) + '-')}\\fR(1)" in root for page in MAN if page.stem != "rocstack")


def test_whose_works_are_brought_along() -> None:
    notice = (ROOT / "NOTICE").read_text()
    folders = ("images", "templates", "playbooks", "cli/rocstack", "tests/cluster")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix not in (".pyc", ".lock")]
    named = [
        str(file.relative_to(ROOT))
        for file in files
        if file.is_file() and re.search(r"\bCopyright\b", file.read_text(errors="replace"))
    ]
    assert named
    assert [name for name in named if name not in notice] == []
    assert "Apache License" in (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize(
    ("tag", "section", "says"),
    [
        (None, "", ""),
        (f"v{__version__}", f"## {__version__} - 2026-11-26\n", ""),
        (f"v{__version__}", "## Unreleased\n", "CHANGELOG.md has no section"),
        ("v99.0", f"## {__version__} - 2026-11-26\n", f"__init__.py says {__version__}"),
        ("weekly", "", ""),
    ],
)
def test_a_tag_is_the_version(tag: str | None, section: str, says: str, tmp_path: Path) -> None:
    for name in (".ci/version", "cli/rocstack/base/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(section)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(tmp_path)]
    if tag:
        for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "a"], ["tag", tag]):
            subprocess.run([*git, *words], check=True)
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    done = subprocess.run([tmp_path / ".ci/version"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is not bool(says), done.stderr
    assert says in done.stderr
    assert done.stdout == ("" if says else f"{__version__}\n")
