"""Pairs of a chosen and a rejected answer: from files to batches, DPO's loss by its formula, and whole runs."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from chats import COMPARED, MARKED, jsonl, pairs, talk, tokenizer
from conftest import lines, needs_fsdp, ranks, run, small, state, trained
from torch.nn.functional import log_softmax
from transformers import LlamaConfig, LlamaForCausalLM

from rocstack_trainer import loss
from rocstack_trainer.data import documents, tokens
from rocstack_trainer.data.documents import Pairs
from rocstack_trainer.data.samples import IGNORED
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.rank import Rank

ALONE = Rank(device="cpu", backend="gloo")
DPO = ("data.layout=pairs", "lora.rank=4", "data.seq_len=64", "model.max_position_embeddings=128")


def samples(path: Path, words: Path, said: list[str]) -> Pairs:
    asked = small(*DPO, f"data.path={path}", f"data.tokenizer={words}")
    found = documents.samples(tokens.prepare(asked, ALONE, 260, said.append), 4, 1, 260)
    assert isinstance(found, Pairs)
    return found


def read(data: Pairs, words: Path) -> list[list[tuple[str, str]]]:
    """Of each pair what both rows say, but for what fills them up, and what is learned of it."""
    from transformers import AutoTokenizer

    speak, found = AutoTokenizer.from_pretrained(words), []
    for i in range(data.n):
        batch = data.load(np.array([i]), "cpu")
        both = zip(batch.ids, batch.targets, strict=True)
        found.append([(speak.decode(ids).rstrip("!"), speak.decode(to[to != IGNORED])) for ids, to in both])
    return found


def messages(*said: str) -> list[dict[str, str]]:
    return list(talk(*said)["messages"])


GOOD, BAD = messages("hi", "yes"), messages("hi", "no")
ROWS: list[dict[str, Any]] = [
    {"chosen": GOOD, "rejected": BAD},
    {"chosen": messages("hi", ""), "rejected": None},
    {"chosen": messages("a" * 80, "yes"), "rejected": BAD},
    {"chosen": messages("a", "b", "c", "d"), "rejected": messages("a", "b", "c", "e")},
]
SAID = [
    [("<|user|>hi<|end|><|assistant|>yes", "yes<|end|>"), ("<|user|>hi<|end|><|assistant|>no", "no<|end|>")],
    [
        (f"<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>{last}", f"b<|end|>{last}<|end|>")
        for last in "de"
    ],
]


@pytest.mark.parametrize("template", [COMPARED, MARKED], ids=["compared", "marked"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "prompt"])
def test_a_row_is_two_conversations(tmp_path: Path, kind: str, template: str) -> None:
    rows, words, said = ROWS, tokenizer(tmp_path / "t", template), []
    if kind == "prompt":
        split = [(row["chosen"], row["rejected"]) for row in rows]
        rows = [{"prompt": a[:-1], "chosen": a[-1:], "rejected": b and b[-1:]} for a, b in split]
    path = tmp_path / "d" / f"a.{kind}"
    if kind == "parquet":
        path.parent.mkdir()
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path = jsonl(path.with_suffix(".jsonl"), rows)
    data = samples(path, words, said)
    assert read(data, words) == SAID
    assert data.counts(np.arange(2)) == (8 + 7 + 11 + 11, 2)
    assert "1 of 3 pairs are longer than data.seq_len=64: left out" in data.notes[0]
    assert "2 conversations without an answer skipped" in said[-1]


def test_a_file_without_both_columns(tmp_path: Path) -> None:
    words = tokenizer(tmp_path / "t")
    for rows in ([{"chosen": GOOD}], [{"chosen": GOOD, "rejected": "no"}], [talk("hi", "yes")]):
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        with pytest.raises(ConfigError, match="conversations named chosen and rejected"):
            samples(jsonl(tmp_path / "d/a.jsonl", rows), words, [])


def test_settings_that_do_not_go_with_pairs() -> None:
    with pytest.raises(ConfigError, match=r"set lora\.rank"):
        small("data.layout=pairs")
    with pytest.raises(ConfigError, match="in chosen and rejected"):
        small(*DPO, "data.column=chosen")


def formula(_rank: Rank, piece: int) -> None:
    from peft import LoraConfig, get_peft_model

    loss.PIECE_BYTES = piece
    torch.manual_seed(1)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    base = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    net = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0))
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    ids, targets = torch.randint(50, (2, 6, 20))
    targets[torch.rand(6, 20) < 0.5] = IGNORED

    def said() -> torch.Tensor:
        each = log_softmax(net(input_ids=ids).logits, -1).gather(2, targets.clamp(min=0)[..., None])[..., 0]
        return (each * (targets != IGNORED)).sum(1)

    with torch.no_grad(), net.disable_adapter():
        before = said()
    ratio = said() - before
    expected = -torch.log(torch.sigmoid(0.3 * (ratio[0::2] - ratio[1::2]))).sum()
    expected.backward()
    wanted = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad(set_to_none=True)
    found = loss.preferred(net, {"input_ids": ids}, targets, 0.3)
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    got = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    assert got.keys() == wanted.keys() != set()
    for name, grad in got.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("piece", [1 << 28, 4000], ids=["whole", "in-pieces"])
def test_the_loss_is_dpos(piece: int) -> None:
    """In a process of its own: who has run autograd must not be forked."""
    assert ranks(1, formula, piece) == [None]


def losses(folder: Path, name: str, world: int, *more: str) -> list[dict[str, Any]]:
    words = tokenizer(folder / "t")
    path = jsonl(folder / "d/a.jsonl", pairs(40))
    metrics = folder / f"{name}.jsonl"
    asked = (*DPO, f"data.path={path}", f"data.tokenizer={words}", "model.vocab_size=260", "data.seq_len=128")
    asked += ("train.steps=8", "train.lr=1e-2", "parallel.compress=none", f"output.metrics={metrics}")
    trained(world, small(*asked, *more), timeout_s=120)
    return lines(metrics)


def test_it_learns_and_goes_on_to_the_bit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    held = jsonl(tmp_path / "e/a.jsonl", pairs(10, 1))
    more = ("checkpoint.every=4", f"checkpoint.dir={tmp_path / 'ck'}", f"data.eval={held}")
    whole = losses(tmp_path, "whole", 2, *more)
    said = capfd.readouterr().out
    assert "pairs to tell apart" in said
    assert "perplexity" not in said
    assert whole[0]["loss"] == pytest.approx(math.log(2)), "the adapters begin as nothing"
    assert whole[-1]["loss"] < 0.6
    assert whole[-1]["eval_loss"] < 0.69
    assert whole[-1]["perplexity"] is None
    ended = state(tmp_path / "ck", 8)["weights_sha256"]
    shutil.rmtree(tmp_path / "ck/step-00000008")
    assert [each["loss"] for each in losses(tmp_path, "again", 2, *more)] == [each["loss"] for each in whole[4:]]
    assert state(tmp_path / "ck", 8)["weights_sha256"] == ended


@pytest.mark.parametrize(
    "more",
    [
        ("train.micro_batch=1",),
        ("train.recompute=layers",),
        pytest.param(("parallel.shard=2",), marks=needs_fsdp),
        pytest.param(("parallel.shard=2", "train.recompute=layers", "train.micro_batch=1"), marks=needs_fsdp),
    ],
)
def test_it_learns_the_same_however_it_is_laid_out(tmp_path: Path, more: tuple[str, ...]) -> None:
    one, two = losses(tmp_path, "one", 1), losses(tmp_path, "two", 2, *more)
    assert [each["loss"] for each in two] == [pytest.approx(each["loss"], rel=1e-3) for each in one]
    assert len({each["loss"] for each in one}) == 8


def test_bf16_has_gradients(tmp_path: Path) -> None:
    """Autocast must not keep weights that the reference cast without a gradient."""
    half, full = losses(tmp_path, "half", 1, "train.precision=bf16"), losses(tmp_path, "full", 1)
    assert half[-1]["loss"] == pytest.approx(full[-1]["loss"], rel=0.05)


@pytest.mark.parametrize(("first", "said"), [("hi", "no conversation with an answer"), ("a" * 80, "set it higher")])
def test_a_run_without_a_pair_is_refused(tmp_path: Path, first: str, said: str) -> None:
    last = ["yes"] if len(first) > 64 else []
    path = jsonl(tmp_path / "d/a.jsonl", [{"chosen": messages(first, *last), "rejected": messages(first, *last)}])
    words = tokenizer(tmp_path / "t")
    (error,) = ranks(1, run, small(*DPO, f"data.path={path}", f"data.tokenizer={words}", "model.vocab_size=260"))
    assert isinstance(error, ConfigError)
    assert said in str(error)
