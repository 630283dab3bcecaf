"""Commands to a node's engine, by a stand-in for its program."""

from pathlib import Path

import pytest

from rocstack.node import engine
from rocstack.node.engine_errors import NOT_STARTED


def program(folder: Path, complaint: str, failures: int) -> Path:
    """A `docker` that fails so many times; gives the file to which each call adds a line."""
    calls, docker = folder / "calls", folder / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$@" >>{calls}\nread -r given\n'
        f'[ "$(wc -l <{calls})" -gt {failures} ] && echo "$given" && exit\necho "{complaint}" >&2\nexit 126\n'
    )
    docker.chmod(0o755)
    return calls


@pytest.mark.parametrize(
    ("complaint", "failures", "calls", "code"),
    [
        (f"OCI runtime exec failed: exec failed: {NOT_STARTED}: read init-p: connection reset by peer", 2, 3, 0),
        (f"OCI runtime exec failed: exec failed: {NOT_STARTED}: EOF", 9, 4, 126),
        ("OCI runtime exec failed: exec failed: unable to start container process: exec: no such file", 1, 1, 126),
    ],
    ids=["never started", "never started, ever", "another failure"],
)
def test_what_was_never_started_is_tried_again(
    complaint: str, failures: int, calls: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = program(tmp_path, complaint, failures)
    monkeypatch.setattr(engine, "_docker_path", lambda: str(tmp_path / "docker"))
    output = engine.docker("exec", "worker", "cat", stdin="text\n", check=False)
    assert (output.code, len(noted.read_text().splitlines())) == (code, calls)
    assert output.out == ("" if code else "text\n")
