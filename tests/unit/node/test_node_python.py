"""The package runs on Python 3.8, which nodes still have: every case gives the same profile there."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import recorded_nodes

from rocstack.node import recording
from rocstack.node.parse import parse

IN_OLD = """
import dataclasses, importlib, json, pkgutil, sys
import rocstack.node
for module in pkgutil.iter_modules(rocstack.node.__path__):
    importlib.import_module("rocstack.node." + module.name)
from rocstack.node.collect import collect
from rocstack.node.parse import parse
from rocstack.node.recording import Recording
parse(Recording.from_dict(collect()))
cases = json.load(sys.stdin)
json.dump({name: dataclasses.asdict(parse(Recording.from_dict(case))) for name, case in cases.items()}, sys.stdout)
"""


SILENT = """
from rocstack.node import pull
pull.SILENCE_S = 0.2
done = pull.Pulled("a", "b")
try:
    pull._attempt("host/name@sha256:" + 64 * "0", None, done)
except pull.NodeError as failed:
    print(failed.what)
"""


@pytest.fixture
def old_python() -> str:
    found = shutil.which("python3.8")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip("no python3.8 here")
    return found


def test_every_case_in_python_3_8(old_python: str) -> None:
    cases = {name: recorded_nodes.recording(name) for name in recorded_nodes.names()}
    done = subprocess.run(
        [old_python, "-B", "-c", IN_OLD],
        input=json.dumps({name: case.to_dict() for name, case in cases.items()}),
        env={"PYTHONPATH": str(Path(recording.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = {name: asdict(parse(case)) for name, case in cases.items()}
    assert json.loads(done.stdout) == json.loads(json.dumps(expected))


def test_an_engine_that_falls_silent(old_python: str, tmp_path: Path) -> None:
    """Before Python 3.10 a socket's timeout is no TimeoutError."""
    engine = tmp_path / "docker"
    engine.write_text("#!/bin/sh\n[ $1 = version ] || exec sleep 60\n")
    engine.chmod(0o755)
    done = subprocess.run(
        [old_python, "-B", "-c", SILENT],
        env={"PYTHONPATH": str(Path(recording.__file__).parents[2]), "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == ("nothing came for 0.2 s\n", "")
