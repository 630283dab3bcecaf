import shutil
from pathlib import Path

import pytest
import torch
from conftest import lines, ranks, run, small, state, trained

from rocstack_trainer import checkpoint, launch
from rocstack_trainer.config import Config
from rocstack_trainer.errors import CheckpointError


def config(folder: Path, steps: int, *more: str) -> Config:
    """Dropout is on, so that a resumed run must also draw the same random numbers."""
    metrics = folder.parent / f"{folder.name}.jsonl"
    fixed = (f"train.steps={steps}", "train.warmup=0", "train.min_lr=1", "model.attention_dropout=0.2")
    return small(*fixed, f"checkpoint.dir={folder}", f"output.metrics={metrics}", *more)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps on 2 ranks, a checkpoint every 4, all kept."""
    folder = tmp_path_factory.mktemp("straight") / "ckpt"
    trained(2, config(folder, 12, "checkpoint.every=4", "checkpoint.keep=9"))
    return folder


@pytest.fixture
def copy(straight: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(straight, tmp_path / "ckpt"))


def losses(folder: Path) -> dict[int, str]:
    return {line["step"]: line["loss_hex"] for line in lines(folder.parent / f"{folder.name}.jsonl")}


def test_eight_steps_and_four_more_are_bitwise_twelve(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "resumed"
    trained(2, config(folder, 8))
    assert state(folder, 8)["weights_sha256"] == state(straight, 8)["weights_sha256"]
    trained(2, config(folder, 12))
    assert losses(folder) == losses(straight)
    assert len(losses(folder)) == 12
    for name in ("weights_sha256", "files"):  # files: the optimizer's state too, byte for byte
        assert state(folder, 12)[name] == state(straight, 12)[name]


def test_a_run_without_resume_starts_at_zero(copy: Path) -> None:
    trained(2, config(copy, 2, "checkpoint.resume=false"))
    assert sorted(losses(copy)) == [1, 2]


def test_dropout_is_really_on(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    trained(2, config(folder, 2, "model.attention_dropout=0"))
    assert losses(folder)[2] != losses(straight)[2]


def test_another_number_of_ranks_can_resume(copy: Path) -> None:
    trained(1, config(copy, 14))
    assert state(copy, 14)["step"] == 14


@pytest.mark.parametrize(
    ("file", "hurt", "message"),
    [
        ("model.safetensors", lambda data: data[:1000], "model.safetensors has 1000 of"),
        ("optimizer.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "not what was written"),
        ("state.json", lambda data: data[:50], "state.json can't be read"),
        ("optimizer.safetensors", None, "optimizer.safetensors is missing"),
        ("state.json", None, "state.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(
    straight: Path, copy: Path, capfd: pytest.CaptureFixture[str], file: str, hurt, message: str
) -> None:
    path = copy / "step-00000012" / file
    path.write_bytes(hurt(path.read_bytes())) if hurt else path.unlink()
    trained(2, config(copy, 12, "checkpoint.keep=9"))
    out = capfd.readouterr().out
    assert message in out
    assert "resume: step 8 " in out
    assert sorted(losses(copy)) == [9, 10, 11, 12]
    assert checkpoint.damage(copy / "step-00000012") == ""  # replaced
    assert state(copy, 12) == state(straight, 12)


def test_an_interrupted_write_is_not_a_checkpoint(copy: Path) -> None:
    (copy / "step-00000012").rename(copy / "step-00000012.tmp")
    (copy / "step-00000012.tmp" / "state.json").unlink()
    trained(2, config(copy, 12))
    assert sorted(losses(copy)) == [9, 10, 11, 12]
    assert not list(copy.glob("*.tmp"))


def test_when_nothing_is_whole_the_run_does_not_start_over(copy: Path) -> None:
    for path in copy.glob("step-*"):
        (path / "model.safetensors").write_bytes(b"")
    assert "no checkpoint in" in str(ranks(1, run, config(copy, 12))[0])


def test_a_checkpoint_of_another_model_is_refused(copy: Path) -> None:
    (error,) = ranks(1, run, config(copy, 12, "model.intermediate_size=32"))
    assert isinstance(error, CheckpointError)
    assert "model.intermediate_size=64" in str(error)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    trained(1, config(tmp_path / "c", 9, "checkpoint.every=2", "checkpoint.keep=3"))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [f"step-0000000{n}" for n in (6, 8, 9)]


def test_a_finished_run_started_again_changes_nothing(copy: Path, straight: Path) -> None:
    before = (copy / "step-00000012" / "state.json").stat().st_mtime_ns
    trained(2, config(copy, 12))
    assert (copy / "step-00000012" / "state.json").stat().st_mtime_ns == before
    assert not (copy.parent / f"{copy.name}.jsonl").read_text()


def test_a_full_disk_fails_the_run_and_leaves_the_old_checkpoint(copy: Path) -> None:
    (error,) = ranks(1, full_disk, config(copy, 13))
    assert isinstance(error, CheckpointError)
    assert "No space left" in str(error)
    assert checkpoint.damage(copy / "step-00000012") == ""
    assert not (copy / "step-00000013").exists()


def full_disk(rank: launch.Rank, config: Config) -> int:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    checkpoint.save_file = refuse
    return run(rank, config)


def test_ranks_that_drifted_apart_are_noticed(tmp_path: Path) -> None:
    for error in ranks(2, drift, config(tmp_path / "c", 2)):
        assert isinstance(error, CheckpointError)
        assert "differ at step 2" in str(error)


def drift(rank: launch.Rank, config: Config) -> int:
    original = checkpoint.Checkpoints.save

    def save(self, step, net, optimizer):
        with torch.no_grad():
            next(net.parameters()).view(-1)[rank.rank] += 1e-6
        return original(self, step, net, optimizer)

    checkpoint.Checkpoints.save = save
    return run(rank, config)


def test_a_checkpoint_is_a_hugging_face_folder(straight: Path) -> None:
    assert ranks(1, hugging_face, straight / "step-00000012") == [state(straight, 12)["weights_sha256"]]


def hugging_face(_: launch.Rank, folder: Path) -> str:
    """In a rank, since transformers reads weights with threads, which must not be forked later."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    weights = load_file(folder / "model.safetensors")
    assert weights.keys() == dict(net.named_parameters()).keys()
    return checkpoint.sha256(net)
