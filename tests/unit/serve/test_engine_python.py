"""What the engine runs in: the folder where somebody calls `rocstack serve`, which may have been sent."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocstack.base import paths
from rocstack.serve.engine import Engine
from rocstack.serve.settings import ServeSettings


def test_pythons_that_the_engine_starts_take_nothing_from_the_working_folder(tmp_path: Path) -> None:
    """vLLM looks at a model's class in `python -m vllm.model_executor.models.registry`."""
    (tmp_path / "json").mkdir()
    (tmp_path / "json/__init__.py").write_text("open('ran', 'w')\n")
    settings = ServeSettings(model="/models/tiny", state="/tmp")
    env = Engine.environment(SimpleNamespace(_settings=settings, _key="x"))  # type: ignore[arg-type]
    child = [sys.executable, "-m", "json.tool", os.devnull]
    subprocess.run(child, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["rootfs/common/usr/local/bin/rocstack-versions", "vllm/vllm"])
def test_programs_of_the_image_take_nothing_from_the_working_folder(name: str, tmp_path: Path) -> None:
    (scripts := tmp_path / "versions.d").mkdir()
    (scripts / "torch").write_text(f"{sys.executable} -c 'import json; print(json.__name__)'\n")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -m json.tool {os.devnull}\n")
    python.chmod(0o755)
    (work := tmp_path / "sent").mkdir()
    (work / "json.py").write_text("open('ran', 'w')\n")
    script = (paths.images() / name).read_text().replace("/usr/local/lib/rocstack/versions.d", str(scripts))
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    subprocess.run(["bash", "-c", script], cwd=work, env=env, capture_output=True, check=False)
    assert not (work / "ran").exists()
