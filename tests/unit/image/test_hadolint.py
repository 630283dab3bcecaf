"""Stacks for their NICs render to Dockerfiles and scripts that the linters have nothing against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from linters import hadolint, scripts, shellcheck

from rocstack.image import context, render
from rocstack.stack import component, overlay, resolve, stack

COMPONENTS = component.library("components")
NICS = component.library("nic")

# Of the stacks as shipped, and with every component from source that can be.
SOURCES = {
    "munge": {"method": "source", "version": "0.5.16", "source": "munge"},
    "slurm": {"method": "source", "version": "24.11.5", "source": "slurm-wlm"},
    "ucx": {"method": "source", "version": "1.18.1", "source": "ucx"},
    "pmix": {"method": "source", "version": "5.0.7", "url": "https://example.org/pmix-5.0.7.tar.bz2"},
    "openmpi": {"method": "source", "version": "5.0.7", "source": "openmpi"},
}


def rendered(name: str, nic: str, *, sources: bool = False) -> context.BuildContext:
    chosen = stack.load(name)
    if sources:
        own = chosen.model_dump()["components"]
        components = own | {part: choice for part, choice in SOURCES.items() if part in own}
        chosen = stack.Stack.model_validate({**chosen.model_dump(), "components": components})
    resolved = resolve.resolve(chosen, nic, COMPONENTS, NICS, overlay.Overlay())
    return render.render(resolved, None, COMPONENTS, NICS)


def cases() -> Iterator[tuple[str, str, bool]]:
    """Every NIC on a Debian and on an Ubuntu, every stack with one NIC and the next: hadolint takes a second for each,
    and a NIC's part is the same in all stacks of a distribution."""
    nics = list(NICS.files)
    for number, name in enumerate(stack.names()):
        every = name in ("debian-13", "rocm-7.2-ubuntu-24.04")
        yield from ((name, nic, False) for nic in (nics if every else [nics[number % len(nics)]]))
        yield name, nics[(number + 1) % len(nics)], True


@pytest.mark.parametrize(("name", "nic", "sources"), cases())
def test_dockerfile_is_clean(name: str, nic: str, sources: bool, tmp_path: Path) -> None:
    assert hadolint(rendered(name, nic, sources=sources).files["Dockerfile"].data, tmp_path) == []


@pytest.mark.parametrize("sources", [False, True], ids=["as-shipped", "from-source"])
@pytest.mark.parametrize("name", list(stack.names()))
def test_scripts_in_it_are_clean(name: str, sources: bool, tmp_path: Path) -> None:
    found = scripts(rendered(name, "mellanox", sources=sources).files["Dockerfile"].data.decode())
    assert len(found) >= 5
    assert [hit for script in found for hit in shellcheck(script, tmp_path)] == []


@pytest.mark.parametrize("name", list(stack.names()))
def test_smoke_scripts_are_clean(name: str, tmp_path: Path) -> None:
    files = {path: file for path, file in rendered(name, "mellanox").files.items() if path.startswith("smoke/")}
    assert len(files) > 3
    for path, file in files.items():
        assert shellcheck("set -euo pipefail\n" + file.data.decode(), tmp_path) == [], path


@pytest.mark.parametrize("role", component.FURTHER)
def test_further_images_are_clean(role: component.Role, tmp_path: Path) -> None:
    chosen = stack.load(stack.HOME).for_role(role)
    resolved = resolve.resolve(chosen, "tcp", COMPONENTS, NICS, overlay.Overlay())
    files = render.render(resolved, None, COMPONENTS, NICS).files
    assert hadolint(files["Dockerfile"].data, tmp_path) == []
    texts = scripts(files["Dockerfile"].data.decode())
    texts += ["set -euo pipefail\n" + file.data.decode() for path, file in files.items() if path.startswith("smoke/")]
    assert len(texts) >= 8
    assert [hit for text in texts for hit in shellcheck(text, tmp_path)] == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("FROM debian\nRUN true\n", "DL3006"),
        ("FROM a:1\nRUN <<'EOS'\ntrue\nEOS\nRUN true\n", "DL1000"),  # hadolint wants an empty line after a heredoc
        ("FROM a:1 AS x\nCOPY --from=later /a /a\nFROM a:1 AS later\nRUN true\n", "DL3022"),
    ],
)
def test_the_linter_still_bites(text: str, code: str, tmp_path: Path) -> None:
    assert any(code in hit for hit in hadolint(text.encode(), tmp_path))


def test_shellcheck_still_bites(tmp_path: Path) -> None:
    (script,) = scripts("RUN <<'EOS'\nrm $1/*\nEOS\n")
    assert any("SC2086" in hit for hit in shellcheck(script, tmp_path))
