"""Conversations and other documents: from files to batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from chats import COMPARED, END, FORGETFUL, MARKED, conversations, jsonl, talk, tokenizer
from conftest import lines, ranks, run, small, trained
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from rocstack_trainer import train
from rocstack_trainer.data import documents, tokens
from rocstack_trainer.data.documents import pack
from rocstack_trainer.data.samples import IGNORED, Samples
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.models import model
from rocstack_trainer.rank import Rank

ALONE = Rank(device="cpu", backend="gloo")
LONG = "model.max_position_embeddings=512"
TALKS = [talk("hi", "yes"), talk("be brief", "ok", "really?", "yes really", role="system"), talk("a" * 30, "no")]


def samples(path: Path, words: Path, *overrides: str, said: list[str] | None = None) -> Samples:
    asked = (f"data.path={path}", f"data.tokenizer={words}", "data.seq_len=64", LONG, *overrides)
    data = tokens.prepare(small(*asked), ALONE, 260, (said if said is not None else []).append)
    return documents.samples(data, 4, 1, 260)


def refused(path: Path, words: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        samples(path, words, *overrides)
    return str(error.value)


def read(data: Samples, words: Path) -> list[tuple[str, str]]:
    """Of each sample what goes in, and what is learned."""
    from transformers import AutoTokenizer

    speak, found = AutoTokenizer.from_pretrained(words), []
    for i in range(data.n):
        batch = data.load(np.array([i]), "cpu")
        size = data.counts(np.array([i]))[0]
        learned = batch.targets[0][batch.targets[0] != IGNORED]
        found.append((speak.decode(batch.ids[0, :size]), speak.decode(learned)))
    return found


@pytest.mark.parametrize("template", [COMPARED, MARKED], ids=["compared", "marked"])
def test_only_answers_are_learned(tmp_path: Path, template: str) -> None:
    words = tokenizer(tmp_path / "t", template)
    assert read(samples(jsonl(tmp_path / "d/a.jsonl", TALKS), words), words) == [
        ("<|user|>hi<|end|><|assistant|>yes", "yes<|end|>"),
        (
            "<|system|>be brief<|end|><|assistant|>ok<|end|><|user|>really?<|end|><|assistant|>yes really",
            "ok<|end|>yes really<|end|>",
        ),
        ("<|user|>" + "a" * 30 + "<|end|><|assistant|>no", "no<|end|>"),
    ]


def write_arrow(folder: Path, rows: list[Any]) -> Path:
    """As datasets' save_to_disk does: streams, and JSON beside them."""
    folder.mkdir()
    table = pa.Table.from_pylist(rows)
    for i in range(2):
        with (
            pa.OSFile(str(folder / f"data-0000{i}-of-00002.arrow"), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table.slice(i * 2, 2), max_chunksize=1)
    (folder / "cache-1234.arrow").write_bytes(b"not a part of it")
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_every_kind_of_file_gives_the_same_samples(tmp_path: Path) -> None:
    words, rows = tokenizer(tmp_path / "t"), TALKS
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    kinds = [jsonl(tmp_path / "a.jsonl", rows), tmp_path / "a.parquet", write_arrow(tmp_path / "arrow", rows)]
    found = [read(samples(path, words), words) for path in kinds]
    assert len(found[0]) == 3
    assert found == [found[0]] * 3


def test_a_folder_with_splits_says_so(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert f"choose one, as in --data.path={tmp_path}/train" in refused(tmp_path, tokenizer(tmp_path / "t"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"messages": [', ":2: no JSON: "),
        ("[" * 200_000, ":2: no JSON: "),
        ("[1]", ":2: no JSON object"),
        ('{"messages": "hello"}', ":2: messages is no list"),
        (json.dumps(talk("hi", "yes", role="robot")), ":2: the chat template refuses it: unknown role robot"),
        ('{"messages": [{"content": "hi"}]}', ":2: a message has no role"),
        (json.dumps({"messages": [{"role": "assistant", "content": "hi"}]}), ":2: it begins with an answer"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = jsonl(tmp_path / "d/a.jsonl", TALKS[:1])
    path.write_text(path.read_text() + text + "\n")
    assert refused(path, tokenizer(tmp_path / "t")).startswith(f"{path}{message}")
    assert not list(tmp_path.glob("d/rocstack-tokens/*/*"))


def test_what_can_not_be_trained_on_is_refused_before_it_starts(tmp_path: Path) -> None:
    path, words = jsonl(tmp_path / "a.jsonl", TALKS), tokenizer(tmp_path / "t")
    assert "the tokenizer has no chat template\n" in refused(path, tokenizer(tmp_path / "bare", None))
    assert "set data.tokenizer" in refused(path, Path())[:200]
    assert "use padded or packed" in refused(path, words, "data.layout=stream")
    mute = jsonl(tmp_path / "mute.jsonl", [talk("hi"), talk("hello")])
    assert refused(mute, words).startswith(f"{mute}: no conversation with an answer")
    assert "no answer begins within data.seq_len=4" in refused(path, words, "data.seq_len=4")
    np.arange(99, dtype="<u2").tofile(tmp_path / "t.bin")
    assert "token files don't say where a document begins" in refused(tmp_path / "t.bin", words, "data.layout=packed")
    forgetful = tokenizer(tmp_path / "f", FORGETFUL)
    assert "which of it is an answer can't be told\n  mark the answers" in refused(path, forgetful)
    (tmp_path / "mine.jinja").write_text(MARKED)
    assert samples(path, forgetful, f"data.chat_template={tmp_path}/mine.jinja").n == 3


def test_conversations_without_an_answer_and_long_ones_are_counted(tmp_path: Path) -> None:
    words, said = tokenizer(tmp_path / "t"), []
    path = jsonl(tmp_path / "a.jsonl", [talk("c", "d" * 90), *TALKS, talk("hi"), talk("b" * 90, "late")])
    data = samples(path, words, said=said)
    assert said[1:] == ["tokens: 1 conversations without an answer skipped"]
    less = "1 of them have no answer before that and are left out"
    assert data.notes == [f"data: 2 conversations are longer than data.seq_len=64: cut; {less}"]
    assert data.n == 4
    assert read(data, words)[0] == ("<|user|>c<|end|><|assistant|>" + "d" * 60, "d" * 61)


def test_files_too_short_for_a_sample_are_told(tmp_path: Path) -> None:
    for name, size in (("a", 9), ("b", 3), ("c", 4)):
        np.arange(size, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    data = Samples(small(f"data.path={tmp_path}", "data.seq_len=4").data, 1, 1, 256)
    assert data.notes == [
        f"data: 2 of 3 files are shorter than a sample of 5 tokens: left out, such as {tmp_path}/b.bin"
    ]


# Packing


@hypothesis(max_examples=60, deadline=None, database=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_packing_loses_nothing_and_never_overflows(sizes: list[int]) -> None:
    rows = pack(np.array(sizes), 20)
    assert sorted(i for row in rows for i in row) == list(range(len(sizes)))
    sums = [sum(sizes[i] for i in row) for row in rows]
    assert max(sums) <= 20
    assert len(rows) <= 1 or sum(sums) > 20 * len(rows) / 2  # no two rows would fit into one


def test_packed_and_padded_have_the_same_documents(tmp_path: Path) -> None:
    words = tokenizer(tmp_path / "t")
    path = jsonl(tmp_path / "a.jsonl", conversations(40))
    padded = samples(path, words, "data.seq_len=128")
    packed = samples(path, words, "data.seq_len=128", "data.layout=packed")
    assert packed.n < padded.n
    assert packed.notes[0].startswith(f"data: {padded.n} documents in {packed.n} samples, ")
    assert packed.counts(np.arange(packed.n)) == padded.counts(np.arange(padded.n))
    batch = packed.load(np.arange(packed.n), "cpu")
    assert ((batch.positions[:, 1:] == 0) | (batch.positions[:, 1:] == batch.positions[:, :-1] + 1)).all()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3_text", "gpt2"])
def test_no_document_sees_another(tmp_path: Path, kind: str, attention: str) -> None:
    words = tokenizer(tmp_path / "t")
    path = jsonl(tmp_path / "a.jsonl", conversations(12))
    packed = samples(path, words, "data.seq_len=192", "data.layout=packed")
    config = replace(small().model, type=kind, vocab_size=260, max_position_embeddings=192)
    net = model.build(config, ALONE, 1).eval()
    net.set_attn_implementation(attention)
    batch = packed.load(np.arange(packed.n), "cpu")
    with torch.no_grad():
        together = net(**batch.inputs).logits
        for row in range(packed.n):
            starts = (batch.positions[row] == 0).nonzero().flatten().tolist()
            assert len(starts) > 2
            for start, stop in zip(starts, [*starts[1:], len(batch.ids[row])], strict=True):
                alone = net(input_ids=batch.ids[row : row + 1, start:stop]).logits[0]
                assert torch.allclose(together[row, start:stop], alone, atol=1e-5, rtol=1e-5)
    model.keeps_documents_apart(net)


def test_a_model_that_looks_across_documents_is_refused() -> None:
    net = model.build(small().model, ALONE, 1)
    forward = net.forward
    net.forward = lambda input_ids, position_ids=None: forward(input_ids=input_ids)
    with pytest.raises(ConfigError, match=r"data.layout=packed: llama .* padded"):
        model.keeps_documents_apart(net)


def test_text_is_cut_or_packed_by_document(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"text": "abc"}, {"text": "d" * 10}, {"text": ""}])
    config = small(f"data.path={path}", "data.seq_len=4", "data.layout=padded")
    data = documents.samples(tokens.prepare(config, ALONE, 256, print), 1, 1, 256)
    batches = [data.load(np.array([i]), "cpu") for i in range(data.n)]
    assert sorted(bytes(batch.ids[0].tolist()).rstrip(b"\0") for batch in batches) == [b"abc", b"dd", b"dddd", b"dddd"]
    assert sum((batch.targets != IGNORED).sum().item() for batch in batches) == 3 + 10
    stream = documents.samples(
        tokens.prepare(small(f"data.path={path}", "data.seq_len=4"), ALONE, 256, print), 1, 1, 256
    )
    assert type(stream) is Samples


# Training


def test_every_answer_token_weighs_the_same_on_any_ranks(tmp_path: Path) -> None:
    """The rate is 0: each step measures new conversations, of very different lengths, with the same weights."""
    words, path = tokenizer(tmp_path / "t"), jsonl(tmp_path / "a.jsonl", conversations(30))
    data = (f"data.path={path}", f"data.tokenizer={words}", "model.vocab_size=260", "data.seq_len=64")
    found = {}
    for world, micro, layout in (
        (1, 0, "padded"),
        (1, 1, "padded"),
        (2, 0, "padded"),
        (4, 0, "padded"),
        (2, 1, "packed"),
    ):
        metrics = tmp_path / f"{world}-{micro}-{layout}.jsonl"
        asked = ("train.lr=0", "train.steps=3", f"train.micro_batch={micro}", f"output.metrics={metrics}")
        config = small(*asked, *data, f"data.layout={layout}", "parallel.compress=none")
        trained(world, config)
        found[world, micro, layout] = [(line["loss"], line["grad_norm"]) for line in lines(metrics)]
    whole = found.pop((1, 0, "padded"))
    assert len({loss for loss, _ in whole}) == 3
    packed = found.pop((2, 1, "packed"))
    for each in found.values():
        assert each == [pytest.approx(step, rel=2e-6) for step in whole]
    assert [step for step, _ in packed] != [step for step, _ in whole]  # other samples


def by_hand(rank: Rank, config: Any) -> list[float]:
    """The mean over the answer tokens of each step's conversations, each alone in a batch."""
    data = documents.samples(tokens.prepare(config, rank, 260, print), 4, 1, 260)
    net, found = train.model.build(config.model, rank, 1, print), []
    for step in range(config.train.steps):
        total = count = 0.0
        for sample in data.ids(step, 0, 1):
            ids, targets, _ = data.load(np.array([sample]), "cpu")
            kept = targets[0] != IGNORED
            losses = torch.nn.functional.cross_entropy(net(input_ids=ids).logits[0][kept], targets[0][kept])
            total, count = total + losses.item() * int(kept.sum()), count + int(kept.sum())
        found.append(total / count)
    return found


def test_the_loss_is_the_mean_over_answer_tokens(tmp_path: Path) -> None:
    from conftest import grouped

    words, path = tokenizer(tmp_path / "t"), jsonl(tmp_path / "a.jsonl", conversations(30))
    metrics = tmp_path / "m.jsonl"
    data = (f"data.path={path}", f"data.tokenizer={words}", "model.vocab_size=260", "data.seq_len=64")
    config = small("train.lr=0", "train.steps=2", *data, f"output.metrics={metrics}")
    trained(2, config)
    (wanted,) = ranks(1, grouped, by_hand, config)
    assert [line["loss"] for line in lines(metrics)] == [pytest.approx(loss, rel=1e-5) for loss in wanted]


def test_the_template_ends_an_answer(tmp_path: Path) -> None:
    words = tokenizer(tmp_path / "t")
    batch = samples(jsonl(tmp_path / "a.jsonl", TALKS[:1]), words).load(np.array([0]), "cpu")
    assert batch.targets[0][batch.targets[0] != IGNORED].tolist()[-1] == END


def test_a_refusal_comes_from_every_rank(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [talk("hi", "yes", role="robot")])
    for error in ranks(
        2, run, small(f"data.path={path}", f"data.tokenizer={tokenizer(tmp_path / 't')}", "model.vocab_size=260")
    ):
        assert isinstance(error, ConfigError)
        assert error.everywhere
        assert "unknown role robot" in str(error)
