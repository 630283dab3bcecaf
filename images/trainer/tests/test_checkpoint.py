from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import grouped, lines, ranks, small, state, trained
from transformers import LlamaConfig, LlamaForCausalLM

from rocstack_trainer.config import Config
from rocstack_trainer.errors import CheckpointError, ConfigError
from rocstack_trainer.models import fingerprint
from rocstack_trainer.rank import Rank
from rocstack_trainer.saving import checkpoint, folder
from rocstack_trainer.saving.state import State

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def config(folder: Path, *more: str) -> Config:
    return small(f"checkpoint.dir={folder}", "checkpoint.keep=9", "train.steps=12", *more)


class Run:
    """A run whose gradients are random numbers of (step, rank), rounded with error feedback, and whose outer
    momentum only rank 0 has: all that a checkpoint must bring back, and nothing slow."""

    def __init__(self, rank: Rank, config: Config, **sizes: int) -> None:
        torch.manual_seed(1)
        self.rank, self.said = rank, []
        self.checkpoints = checkpoint.Checkpoints(config, rank, self.said.append)
        net = LlamaForCausalLM(LlamaConfig(**SIZES | sizes))
        shape = sum(parameter.numel() for parameter in net.parameters())
        self.residual, self.momentum = torch.zeros(shape), torch.zeros(shape)
        self.state = State(
            net,
            torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True),
            {"momentum": self.momentum} if rank.rank == 0 else {},
            {"bucket": self.residual},
            {"codec": "int8"},
        )
        self.step = self.checkpoints.resume(self.state)

    def train(self, to: int) -> dict[str, Any]:
        self.advance(to)
        return self.end()

    def advance(self, to: int) -> None:
        while self.step < to:
            draw = torch.Generator().manual_seed(self.step * 100 + self.rank.rank)
            wanted = torch.randn(len(self.residual), generator=draw) + self.residual
            rounded = wanted.round(decimals=0)
            self.residual.copy_(wanted - rounded)
            dist.all_reduce(rounded)
            parameters = list(self.state.net.parameters())
            for parameter, part in zip(parameters, rounded.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = part.view_as(parameter)
            self.state.optimizer.step()
            self.momentum.mul_(0.9).add_(rounded)
            self.step += 1
            if self.step % 4 == 0:
                self.checkpoints.save(self.step, self.state)

    def end(self) -> dict[str, Any]:
        digest = self.checkpoints.finish(self.step, self.state)
        assert digest == fingerprint.sha256(fingerprint.weights(self.state.net))
        everything = self.state.common() | self.state.leaders()
        return {
            "all": fingerprint.sha256(everything),
            "residual": self.residual,
            "said": "\n".join(self.said),
            "notes": self.checkpoints.notes(),
        }


def go(rank: Rank, config: Config, to: int, **sizes: int) -> dict[str, Any]:
    return Run(rank, config, **sizes).train(to)


def made(world: int, config: Config, to: int, **sizes: int) -> list[dict[str, Any]]:
    results = ranks(world, grouped_go, config, to, sizes)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def grouped_go(rank: Rank, config: Config, to: int, sizes: dict[str, int]) -> dict[str, Any]:
    return grouped(rank, lambda rank: go(rank, config, to, **sizes))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """12 steps on 2 ranks, a checkpoint every 4."""
    path = tmp_path_factory.mktemp("straight") / "c"
    return path, made(2, config(path), 12)


@pytest.fixture
def copy(straight: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(straight[0], tmp_path / "c"))


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return all(
        a["all"] == b["all"] and torch.equal(a["residual"], b["residual"]) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("background", ["true", "false"])
def test_eight_steps_and_four_more_are_bitwise_twelve(straight: Any, tmp_path: Path, background: str) -> None:
    here = config(tmp_path, f"checkpoint.background={background}")
    made(2, here, 8)
    again = made(2, here, 12)
    assert same(again, straight[1])
    assert "resume: step 8 from" in again[0]["said"]
    assert again[1]["said"] == ""  # only rank 0 speaks
    assert again[0]["notes"] == again[1]["notes"] == {"codec": "int8"}
    for step in (4, 8, 12):
        then, now = state(straight[0], step), state(tmp_path, step)
        assert now["weights_sha256"] == then["weights_sha256"]
        assert {n: s for n, s in now["files"].items() if n not in ("tensors.json", ".metadata")} == {
            n: s for n, s in then["files"].items() if n not in ("tensors.json", ".metadata")
        }


@pytest.mark.parametrize("setting", ["parallel.compress=int8", "checkpoint.background=true"])
def test_a_resumed_training_is_bitwise_the_same(tmp_path: Path, setting: str) -> None:
    """Dropout is on, so that the second part must also draw the same random numbers."""
    fixed = ("train.warmup=0", "train.min_lr=1", "model.attention_dropout=0.2", setting)
    for name, parts in {"straight": [12], "resumed": [8, 12]}.items():
        for steps in parts:
            folders = (f"checkpoint.dir={tmp_path / name}", f"output.metrics={tmp_path / name}.jsonl")
            trained(2, small(f"train.steps={steps}", "checkpoint.every=4", *fixed, *folders))
    straight, resumed = (
        [line["loss_hex"] for line in lines(tmp_path / f"{name}.jsonl")] for name in ("straight", "resumed")
    )
    assert straight == resumed
    assert len(set(straight)) == 12
    assert state(tmp_path / "straight", 12)["weights_sha256"] == state(tmp_path / "resumed", 12)["weights_sha256"]


def test_a_run_without_resume_starts_at_zero(copy: Path) -> None:
    assert "resume:" not in made(2, config(copy, "checkpoint.resume=false"), 1)[0]["said"]


@pytest.mark.parametrize("world", [1, 3])
def test_other_ranks_go_on_without_what_error_feedback_owed(straight: Any, copy: Path, world: int) -> None:
    results = made(world, config(copy), 12)
    assert results[0]["all"] == straight[1][0]["all"]
    assert "error feedback starts anew" in results[0]["said"]
    assert not any(result["residual"].any() for result in results)


def test_buckets_of_another_size_start_from_zero(copy: Path) -> None:
    assert ranks(2, grouped, other_buckets, config(copy)) == [[1.0] * 7] * 2


def other_buckets(rank: Rank, config: Config) -> list[float]:
    """In a run that resumed already: its checkpoint is read once more, with other residuals."""
    here = Run(rank, config)
    here.state.per_rank = {"bucket": torch.ones(7)}
    here.checkpoints.resume(here.state)
    assert rank.rank or "error feedback starts anew" in "".join(here.said)
    return here.state.per_rank["bucket"].tolist()


@pytest.mark.parametrize(
    ("file", "hurt", "message"),
    [
        ("__1_0.distcp", lambda data: data[:1000], "__1_0.distcp has 1000 of"),
        ("__0_0.distcp", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "__0_0.distcp is not what was written"),
        ("state.json", lambda data: data[:50], "state.json can't be read"),
        ("state.json", lambda data: b"[]", "format None is another version's"),
        ("state.json", lambda data: data.replace(b'"format": 2', b'"format": 9'), "format 9 is another version's"),
        ("__1_0.distcp", None, "__1_0.distcp is missing"),
        ("tensors.json", None, "tensors.json is missing"),
        (".metadata", None, ".metadata is missing"),
        ("state.json", lambda data: data.replace(b'".metadata"', b'"../x"'), "'../x', which is no file of the folder"),
        ("state.json", None, "state.json is missing"),
    ],
)
def test_damage_is_found_and_named(copy: Path, file: str, hurt: Any, message: str) -> None:
    path = copy / "step-00000012" / file
    path.write_bytes(hurt(path.read_bytes())) if hurt else path.unlink()
    assert message in " ".join(folder.damage(path.parent, part, 2) for part in range(2))  # as two ranks look


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(straight: Any, copy: Path) -> None:
    (copy / "step-00000012" / "__1_0.distcp").write_bytes(b"")
    results = made(2, config(copy), 12)
    assert "step-00000012 skipped: __1_0.distcp has 0 of" in results[0]["said"]
    assert "resume: step 8 " in results[0]["said"]
    assert same(results, straight[1])
    assert folder.damage(copy / "step-00000012") == ""  # replaced


def test_when_nothing_is_whole_the_run_does_not_start_over(copy: Path) -> None:
    for path in copy.glob("step-*"):
        (path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole"):
        made(2, config(copy), 12)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"intermediate_size": 32}, "it has intermediate_size=64"),
        ({"num_key_value_heads": 4, "num_attention_heads": 8}, "it has head_dim=8, num_attention_heads=4, num_key"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(copy: Path, other: dict[str, int], message: str) -> None:
    for error in ranks(2, grouped_go, config(copy), 12, other):
        assert isinstance(error, CheckpointError)
        assert message in str(error)


def test_a_checkpoint_of_another_optimizer_is_refused(copy: Path) -> None:
    for error in ranks(2, grouped, no_outer, config(copy)):
        assert "2 of its tensors are others: shared.anchor (none, here float32 [1]), shared.momentum (" in str(error)


def no_outer(rank: Rank, config: Config) -> None:
    here = Run(rank, small())
    here.checkpoints = checkpoint.Checkpoints(config, rank, here.said.append)
    here.state.shared = {"anchor": torch.zeros(1)} if rank.rank == 0 else {}
    try:
        here.checkpoints.resume(here.state)
    except CheckpointError as error:
        return str(error)


def test_only_the_newest_are_kept_and_age_counts(copy: Path) -> None:
    (copy / "step-00000012" / "state.json").write_text("")  # damaged: it goes before whole ones
    made(2, config(copy, "checkpoint.keep=2"), 10)
    assert sorted(path.name for path in copy.iterdir()) == ["step-00000008", "step-00000010"]
    made(2, config(copy, "checkpoint.keep=2", "checkpoint.resume=false"), 4)
    assert sorted(path.name for path in copy.iterdir()) == ["step-00000004", "step-00000010"]
    assert "resume: step 4 " in made(2, config(copy), 4)[0]["said"]  # the newest, not the highest


def test_a_finished_run_started_again_changes_nothing(straight: Any, copy: Path) -> None:
    before = (copy / "step-00000012" / "state.json").stat().st_mtime_ns
    assert same(made(2, config(copy), 12), straight[1])
    assert (copy / "step-00000012" / "state.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("background", ["true", "false"])
def test_kill_while_writing_leaves_the_one_before(straight: Any, copy: Path, background: str) -> None:
    for step in (8, 12):
        shutil.rmtree(copy / f"step-{step:08d}")
    here = config(copy, f"checkpoint.background={background}")
    killed = ranks(2, killed_in_the_write, here)
    assert all("ended without a word" in str(result) for result in killed)
    assert (copy / "step-00000008.tmp").is_dir()
    results = made(2, here, 12)
    assert "resume: step 4 " in results[0]["said"]
    assert same(results, straight[1])
    assert not list(copy.glob("*.tmp"))


def killed_in_the_write(rank: Rank, config: Config) -> None:
    """kill -9, which no code of ours sees coming, as soon as this rank's file begins to grow."""
    file = Path(config.checkpoint.dir) / "step-00000008.tmp" / f"__{rank.rank}_0.distcp"

    def watch() -> None:
        while not file.exists():
            time.sleep(0.0005)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    grouped_go(rank, config, 12, {})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk for two checkpoints, and not three."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2500k", "none", str(path)], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs CAP_SYS_ADMIN")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("background", ["true", "false"])
def test_with_a_full_disk_training_goes_on(straight: Any, disk: Path, background: str) -> None:
    for error in ranks(2, full, config(disk, f"checkpoint.background={background}"), False):
        assert isinstance(error, CheckpointError)
        assert "the last step, 12, is not saved: " in str(error)
        assert "No space left on device" in str(error)
    assert [path.name for path in sorted(disk.glob("step*"))] == ["step-00000004"]
    assert folder.damage(disk / "step-00000004") == ""
    (disk / "ballast").unlink()
    results = ranks(2, full, config(disk, f"checkpoint.background={background}"), True)
    assert same(results, straight[1])  # step 8 was not saved, 12 was: training went on in between
    assert "step 8 is not saved: " in results[0]["said"]
    assert [path.name for path in sorted(disk.glob("step*"))] == ["step-00000004", "step-00000012"]


def full(rank: Rank, config: Config, again: bool) -> Any:
    return grouped(rank, filled, config, again)


def filled(rank: Rank, config: Config, again: bool) -> Any:
    """The disk is full from step 4 on; with `again`, until step 11."""
    here = Run(rank, config)
    ballast = Path(config.checkpoint.dir) / "ballast"
    if not again:
        here.advance(4)
        here.checkpoints.wait()
    if rank.rank == 0:
        ballast.write_bytes(b"x" * (shutil.disk_usage(ballast.parent).free - 300_000))
    dist.barrier()
    here.advance(11)
    here.checkpoints.wait()
    if again and rank.rank == 0:
        ballast.unlink()
    dist.barrier()
    return here.train(12)


def test_without_a_shared_file_system_rank_0_saves_for_all(straight: Any, tmp_path: Path) -> None:
    """Each rank is in a folder of its own, and checkpoint.dir is relative."""
    first = ranks(2, at_home, config(Path("c")), tmp_path, 8)
    assert "rank 0 saves for all, error feedback is left out" in first[0]["said"]
    assert not list((tmp_path / "1" / "c").glob("*"))
    assert {file.name for file in (tmp_path / "0" / "c" / "step-00000008").iterdir()} == {
        "__0_0.distcp",
        ".metadata",
        "tensors.json",
        "state.json",
    }
    assert state(tmp_path / "0" / "c", 8)["weights_sha256"] == state(straight[0], 8)["weights_sha256"]
    again = ranks(2, at_home, config(Path("c")), tmp_path, 8)
    assert "resume: step 8 " in again[0]["said"]
    assert "error feedback starts anew" in again[0]["said"]
    assert [result["all"] for result in again] == [result["all"] for result in first]


def at_home(rank: Rank, config: Config, folder: Path, to: int) -> dict[str, Any]:
    (home := folder / str(rank.rank)).mkdir(exist_ok=True)
    os.chdir(home)
    return grouped_go(rank, config, to, {})


def test_a_group_has_a_folder_of_its_own(tmp_path: Path) -> None:
    ranks(1, of_group_3, config(tmp_path))
    assert (tmp_path / "group-3" / "step-00000004" / "state.json").exists()


def of_group_3(rank: Rank, config: Config) -> None:
    grouped(rank, lambda rank: go(replace(rank, group=3, groups=4), config, 4))


UNUSABLE = {
    "checkpoint.dir={}/file": "checkpoint.dir: rank 0 on {host}: {}/file/.seen-",
    "checkpoint.dir={}/file/c": "checkpoint.dir: rank 0 on {host}: {}/file/c: Not a directory",
    "checkpoint.dir={}/locked": "checkpoint.dir: rank 0 on {host}: {}/locked/.seen-",
    "checkpoint.dir={}/locked/c": "checkpoint.dir: rank 0 on {host}: {}/locked/c: Permission denied",
    "checkpoint.export={}/file": "checkpoint.export: rank 0 on {host}: {}/file: Not a directory",
    "checkpoint.export={}/thesis": "checkpoint.export: rank 0 on {host}: {}/thesis has other things in it",
    "checkpoint.export={}/locked/e": "checkpoint.export: rank 0 on {host}: {}/locked/e: Permission denied",
}


def test_a_folder_that_can_not_be_used_is_refused_by_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir(mode=0o500)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    for above in (tmp_path, *tmp_path.parents[:3]):
        above.chmod(0o755)
    for errors in ranks(2, grouped, refusals, tmp_path):
        for error, message in zip(errors, UNUSABLE.values(), strict=True):
            assert error.startswith(message.format(tmp_path, host=socket.gethostname()))
    assert len(list(tmp_path.rglob("*"))) == 4


def refusals(rank: Rank, folder: Path) -> list[str]:
    if os.getuid() == 0:
        os.setuid(65534)  # root may do everything
    errors = []
    for setting in UNUSABLE:
        with pytest.raises(ConfigError) as error:
            checkpoint.Checkpoints(small(setting.format(folder)), rank, print)
        errors.append(str(error.value))
    return errors


def test_ranks_that_drifted_apart_are_noticed(tmp_path: Path) -> None:
    for error in ranks(3, grouped, drift, config(tmp_path)):
        assert isinstance(error, CheckpointError)
        assert "the weights at step 1 differ between the ranks: rank 1 on " in str(error)
    assert not list(tmp_path.iterdir())


def drift(rank: Rank, config: Config) -> None:
    here = Run(rank, config)
    with torch.no_grad():
        weight = next(here.state.net.parameters()).view(torch.int32).view(-1)[7:8]
        weight ^= rank.rank == 1  # the last bit
    here.step = 1
    here.end()


def test_the_checksum_tells_positions_and_chunks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fingerprint.CHUNK, "cpu", 4)
    net = torch.arange(10.0)
    checksum = fingerprint.checksum
    assert checksum([net]) == checksum([net.clone()])
    swaps = [net[[1, 0, *range(2, 10)]], net[[4, 1, 2, 3, 0, *range(5, 10)]], net.flip(0)]
    mixed = [torch.ones(3, dtype=torch.bool), torch.zeros(0), torch.ones(2, dtype=torch.bfloat16)]
    sums = [checksum(some) for some in ([net], *([swap] for swap in swaps), mixed, mixed[::-1])]
    assert len(set(sums)) == 6
