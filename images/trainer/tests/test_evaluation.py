import math
from pathlib import Path

import pytest
import torch
from chats import conversations, jsonl, tokenizer
from conftest import grouped, lines, ranks, run, small, state, trained
from torch.nn.functional import cross_entropy

from rocstack_trainer.config import Config
from rocstack_trainer.data import documents, tokens
from rocstack_trainer.data.samples import IGNORED
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.models import model
from rocstack_trainer.rank import Rank
from rocstack_trainer.report import curves


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    words = tokenizer(tmp_path / "t")
    path, held_out = (jsonl(tmp_path / name, conversations(n, n)) for name, n in (("a.jsonl", 30), ("b.jsonl", 21)))
    names = [f"data.path={path}", f"data.eval={held_out}", f"data.tokenizer={words}", f"output.metrics={tmp_path}/m"]
    return [*names, "model.vocab_size=260", "data.seq_len=64", "train.steps=2", "model.attention_dropout=0.5"]


def by_hand(rank: Rank, config: Config) -> float:
    """Over the whole file, a conversation at a time."""
    held_out = small(f"data.path={config.data.eval}", f"data.tokenizer={config.data.tokenizer}", "data.seq_len=64")
    data = documents.samples(tokens.prepare(held_out, rank, 260, print), 1, 1, 260)
    net = model.build(config.model, rank, 1, print).eval()
    losses = []
    for sample in range(data.n):
        ids, targets, _ = data.load([sample], "cpu")
        kept = targets[0] != IGNORED
        losses.append(cross_entropy(net(input_ids=ids).logits[0][kept], targets[0][kept], reduction="none").double())
    return torch.cat(losses).mean().item()


def test_it_is_exact_on_any_number_of_ranks(asked: list[str], tmp_path: Path) -> None:
    """21 conversations in batches of 2 or 8: some ranks have none in the last round. The weights don't move."""
    (wanted,) = ranks(1, grouped, by_hand, small(*asked))
    found = {}
    for world, micro in ((1, 2), (2, 2), (4, 1), (2, 0)):
        (tmp_path / "m").unlink(missing_ok=True)
        trained(world, small(*asked, f"train.micro_batch={micro}", "train.lr=0", "train.eval_every=1"))
        losses = {line["eval_loss"] for line in lines(tmp_path / "m")}
        assert len(losses) == 1  # of every step; dropout is off
        found[world, micro] = losses.pop()
        assert found[world, micro] == pytest.approx(wanted, rel=1e-6)
    assert found[1, 2].hex() == found[2, 2].hex()


def test_it_is_told_and_changes_nothing(asked: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def go(name: str, *more: str) -> str:
        trained(2, small(*asked, "train.steps=4", f"checkpoint.dir={tmp_path / name}", *more))
        return str(state(tmp_path / name, 4)["weights_sha256"])

    weights = go("some", "train.eval_every=3")
    steps = lines(tmp_path / "m")
    assert [bool(step["eval_loss"]) for step in steps] == [False, False, True, True]
    assert steps[-1]["perplexity"] == pytest.approx(math.exp(steps[-1]["eval_loss"]))
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("eval: ")]
    last = f"loss {steps[-1]['eval_loss']:.4f}, perplexity {steps[-1]['perplexity']:.6g}"
    assert said[-2] == f"eval: step 4, {last}"
    assert said[-1].endswith(f" -> {last}")
    picture = curves.svg({"": steps})
    assert "dashed: of the evaluation" in picture
    assert 'class="line second"' in picture
    assert weights == go("none", "data.eval=")


def test_a_set_that_can_not_be_used_is_refused_before_training(asked: list[str], tmp_path: Path) -> None:
    for error in ranks(2, run, small(*asked, f"data.eval={tmp_path}/nowhere")):
        assert isinstance(error, ConfigError)
        assert f"data.eval: {tmp_path}/nowhere: No such file" in str(error)
    with pytest.raises(ConfigError, match=r"needs data\.eval"):
        small("train.eval_every=3")
