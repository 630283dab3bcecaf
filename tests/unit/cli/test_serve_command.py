"""`rocstack serve`: what is checked before anything starts, and what would start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_adapters as tiny
from cli_run import Cli


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny.adapter(tmp_path / "adapters/poet", "tiny")
    return tiny.base(tmp_path / "tiny")


def test_what_would_run(cli: Cli, model: Path, tmp_path: Path) -> None:
    words = ("--adapters", "adapters", "--print", "--json", "--nic", "tcp")
    ran = cli("serve", "tiny", *words, "--", "--max-model-len=512")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert said["adapters"] == 1
    assert said["settings"]["sources"] == [{"folder": str(tmp_path / "adapters")}]
    assert said["settings"]["engine"] == {"arguments": ["--max-model-len=512"]}
    assert said["args"][-2:] == ["rocstack-serve", str(tmp_path / ".rocstack/serve/tiny.json")]
    assert f"--volume={model}:{model}:ro" in said["args"]
    assert "rocstack/worker:vllm-cpu-tcp" in said["args"]
    assert not (tmp_path / ".rocstack").exists()


def test_on_this_machine(cli: Cli, model: Path) -> None:
    ran = cli("serve", "tiny", "--here", "--print", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["args"][1:3] == ["-m", "rocstack.serve"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nowhere"], "no-such-folder"),
        (["adapters"], "no-base-model"),
        (["tiny", "--adapters", "nowhere"], "no-such-folder"),
        (["tiny", "--tokens", "nowhere"], "no-file"),
        (["tiny", "--listen", "0.0.0.0:80"], "serve-settings"),
        (["tiny", "--listen", "nonsense"], "serve-settings"),
        (["tiny", "--max-rank", "7"], "serve-settings"),
        (["tiny", "--", "--port=1"], "engine-argument"),
    ],
)
def test_what_is_refused(cli: Cli, model: Path, words: list[str], code: str) -> None:
    ran = cli("serve", "--print", "--json", "--here", *words)
    assert ran.code == 2
    assert json.loads(ran.out or ran.err)["error"]["code"] == code


def test_without_vllm(cli: Cli, model: Path) -> None:
    ran = cli("serve", "tiny", "--here", "--json", env={"PATH": "/nonexistent"})
    assert ran.code == 3
    assert json.loads(ran.out or ran.err)["error"]["code"] in ("no-vllm", "no-serve-extra")
