"""`rocstack size --compile` for real: MaxText's image is built (3 GB of packages and wheels), unless
ROCSTACK_MAXTEXT_IMAGE names one, and compiles for GPUs that aren't there. Set ROCSTACK_SOURCES to a folder with
roctracer's archive, where its project isn't reached."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from workspace import Workspace, engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def image(prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its smoke test has found machine code for gfx942 in a compiled step, or there would be none."""
    if given := os.environ.get("ROCSTACK_MAXTEXT_IMAGE"):
        return given
    own = {name: value for name, value in os.environ.items() if name == "ROCSTACK_SOURCES"}
    workspace = Workspace(tmp_path_factory.mktemp("maxtext"), prefix, env=own, made=made)
    arguments = ["--stack", "maxtext-rocm-7.2", "--nic", "tcp", "--role", "worker"]
    done = workspace.run("build", "--json", *arguments, timeout=5400)
    assert done.code == 0, done.err + done.failures()
    return f"{prefix}/worker:maxtext-rocm-7.2-tcp"


@pytest.fixture
def here(prefix: str, made: set[str], tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, prefix, made=made)


def sized(workspace: Workspace, image: str, *words: str) -> dict[str, object]:
    done = workspace.run("size", *words, "--compile", "--image", image, "--json", timeout=1800)
    assert done.code == 0, done.err
    found = done.json["compiled"]
    assert isinstance(found, dict)
    return found


SHARDED = ("--tp", "1", "--pp", "1", "--micro-batch", "1", "--recompute", "layers")


def test_the_compiler_and_the_formula_agree(image: str, here: Workspace) -> None:
    """Llama 3.1 8B on 64 MI300X, sharded over all: arguments to a hundredth, and 6.5 GB of temporaries at most."""
    found = sized(here, image, "llama-3.1-8b", "--nodes", "8", "--shard", "64", "--accumulate", "1", *SHARDED)
    memory = found["memory"]
    assert isinstance(memory, dict)
    assert memory["arguments"] == pytest.approx(memory["formula"]["arguments"], rel=0.01)
    assert memory["temporaries"] < 6.5e9
    wires = found["collectives"]
    assert isinstance(wires, list)
    gathered = sum(each["bytes"] for each in wires if each["kind"] == "all-gather" and each["where"] == "fabric")
    assert gathered == pytest.approx(2 * 2 * 8.03e9, rel=0.15)


def test_other_gpus_and_what_the_compiler_refuses(image: str, here: Workspace) -> None:
    found = sized(here, image, "llama-3.1-8b", "--gpu", "mi250x", "--nodes", "1", "--shard", "8", *SHARDED)
    assert not found["refused"]
    tied = here.run(
        "size", "llama-3.1-8b", "--nodes", "3", "--pp", "3", "--compile", "--image", image, "--json", timeout=600
    )
    assert tied.code == 2
    assert "uneven-stages" in tied.out + tied.err


def test_a_search_compiles_its_layouts_in_one_container(image: str, here: Workspace) -> None:
    """A tiny Llama on 8 GPUs, whole or in shards, kept or computed again; the second time nothing is compiled."""
    config = {
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 1024, "max_position_embeddings": 512,
    }  # fmt: skip
    (here.folder / "config.json").write_text(json.dumps(config))
    words = ["size", "./config.json", "--nodes", "1", "--tp", "1", "--pp", "1", "--micro-batch", "1", "--batch", "8"]
    words += ["--compile", "--search", "--image", image, "--json"]
    done = here.run(*words, timeout=1800)
    assert done.code == 0, done.err
    layouts = done.json["search"]["layouts"]
    assert {(each["layout"]["shard"], each["layout"]["recompute"]) for each in layouts} == {
        (1, False), (1, True), (8, False), (8, True)
    }  # fmt: skip
    assert all(each["fits"] and each["compiled"]["collectives"] for each in layouts)
    times = [sum(each["time"]["seconds"].values()) for each in layouts]
    assert times == sorted(times)
    assert (here.folder / done.json["search"]["picture"]).is_file()
    again = here.run(*words, timeout=120)
    assert [each["compiled"]["memory"] for each in again.json["search"]["layouts"]] == [
        each["compiled"]["memory"] for each in layouts
    ]


def test_ctrl_c_ends_the_container(image: str, here: Workspace) -> None:
    with here.start("size", "llama-3.1-70b", "--nodes", "4", "--compile", "--image", image) as running:
        name = f"rocstack-size-{running.pid}"
        for _ in range(600):
            if engine("ps", "--quiet", "--filter", f"name={name}").stdout:
                break
            time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert not engine("ps", "--all", "--quiet", "--filter", f"name={name}").stdout
