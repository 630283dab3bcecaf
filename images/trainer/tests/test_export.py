from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ranks, run, small, start, trained

from rocstack_trainer.errors import ConfigError
from rocstack_trainer.saving import export

IDS = torch.arange(60).reshape(4, 15)
TOKENIZER = {"tokenizer.json": "{}", "special_tokens_map.json": "{}", "merges.txt": "a b\n"}


def in_a_rank(function: Any, *args: Any) -> Any:
    """transformers reads weights with threads: the test process, which forks, mustn't."""
    (result,) = ranks(1, lambda _: function(*args))
    assert not isinstance(result, BaseException), result
    return result


def logits(folder: Path) -> torch.Tensor:
    """As anybody would, without this package."""
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert net.dtype == torch.float32
    assert net.config.use_cache
    with torch.no_grad():
        return net(IDS).logits


def make(folder: Path) -> torch.Tensor:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, **sizes)).save_pretrained(folder)
    for name, text in TOKENIZER.items():
        (folder / name).write_text(text)
    (folder / "notes.md").write_text("not ours to copy")
    return logits(folder)


@pytest.fixture
def source(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    return tmp_path / "source", in_a_rank(make, tmp_path / "source")


def test_what_comes_in_goes_out_bitwise(source: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trained(2, small("train.steps=0", f"model.path={source[0]}", f"checkpoint.export={out}"))
    assert torch.equal(in_a_rank(logits, out), source[1])
    assert {name: (out / name).read_text() for name in TOKENIZER} == TOKENIZER
    assert not (out / "notes.md").exists()
    assert json.loads((out / "rocstack-train.json").read_text())["from"] == str(source[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_trained_model_replaces_the_last_export(source: Any, tmp_path: Path) -> None:
    settings = [f"model.path={source[0]}", f"checkpoint.export={tmp_path / 'out'}", f"checkpoint.dir={tmp_path / 'c'}"]
    for steps in (2, 4):
        trained(2, small(f"train.steps={steps}", *settings))
        about = json.loads((tmp_path / "out" / "rocstack-train.json").read_text())
        saved = json.loads((tmp_path / "c" / f"step-{steps:08d}" / "state.json").read_text())
        assert (about["step"], about["weights_sha256"]) == (steps, saved["weights_sha256"])
    assert not torch.equal(in_a_rank(logits, tmp_path / "out"), source[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "out", "source"]


def test_the_source_is_not_replaced(source: Any) -> None:
    before = sorted(source[0].iterdir())
    for error in ranks(2, run, small(f"model.path={source[0]}", f"checkpoint.export={source[0]}")):
        assert isinstance(error, ConfigError)
        assert "has other things in it: name a new folder" in str(error)
    assert sorted(source[0].iterdir()) == before


def test_a_person_sees_nothing_but_what_the_trainer_says(tmp_path: Path) -> None:
    settings = [f"--{what}={tmp_path / what}" for what in ("checkpoint.dir", "checkpoint.export")]
    process = start("--steps=2", "--checkpoint.every=1", "--checkpoint.background=true", *settings)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    said = [line.partition(" in /")[0] for line in out.splitlines() if ": " in line]
    assert [line for line in said if line.startswith("checkpoint: ")] == ["checkpoint: step 1", "checkpoint: step 2"]


def test_nobody_can_put_links_where_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody makes the folder beside it first, and it can't be removed, as in /tmp."""
    (there := tmp_path / "out.tmp").mkdir()
    (there / "rocstack.json").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("mine")
    monkeypatch.setattr(export.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(FileExistsError):
        export.check(small(f"checkpoint.export={tmp_path / 'out'}"))
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes others' links")
def test_a_file_of_ours_is_not_lent_by_the_link_of_another(source: Any, tmp_path: Path) -> None:
    """Whose model it is may read the export, and what is kept beside the data."""
    (private := tmp_path / "private.jsonl").write_text('{"text": "mine"}\n')
    for link in (source[0] / "tokenizer.key", tmp_path / "data.jsonl"):
        link.symlink_to(private)
    exports = f"model.path={source[0]}", f"checkpoint.export={tmp_path / 'out'}"
    export.check(small(*exports))  # of links of our own
    for link in (source[0] / "tokenizer.key", tmp_path / "data.jsonl"):
        os.chown(link, 4321, -1, follow_symlinks=False)
    for asked in (exports, [f"data.path={tmp_path / 'data.jsonl'}"]):
        (error,) = ranks(1, run, small("train.steps=0", *asked))
        assert isinstance(error, ConfigError), error
        assert "user 4321 made the link" in str(error)
        assert "to a file of yours: it is not read" in str(error)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "rocstack-tokens").exists()
