"""Whole runs of DiLoCo groups: what a second start finds, and what stops a group that waits for others."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from conftest import Ranks, lines, ranks, run, small, state, store_process, trained, wait_for

from rocstack_trainer import train
from rocstack_trainer.config import Config
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.errors import CheckpointError, ConfigError, PeerLostError
from rocstack_trainer.rank import Rank, split
from rocstack_trainer.saving import folder as folders


def config(folder: Path, *more: str) -> Config:
    """Outer steps of two groups are at 5 and 10, the last one."""
    diloco = ("diloco.groups=2", "diloco.inner_steps=5", "diloco.beat_s=0.1", "diloco.lost_after_s=2")
    fixed = ("train.steps=10", "checkpoint.every=5", "diloco.compress=int8", "parallel.algorithm=flat")
    return small(*diloco, *fixed, "parallel.compress=none", f"checkpoint.dir={folder}", *more)


def group(rank: Rank, config: Config, held: int = -1, until: Path = Path()) -> int:
    """Is held before step `held` until there is a file."""
    original = train.optimizer.set_rate

    def set_rate(optimizer, settings, step):
        if step == held:
            wait_for(until.exists)
        return original(optimizer, settings, step)

    train.optimizer.set_rate = set_rate
    return run(split(rank, config.diloco), config)


def both(address: str, folder: Path, *more: str, hold: tuple = ()) -> list[Ranks]:
    """Group 0 has two ranks, group 1 has one."""
    of = [config(folder, f"parallel.store={address}", f"diloco.group={g}", *more) for g in range(2)]
    return [Ranks(2, group, of[0]), Ranks(1, group, of[1], *hold)]


def results(groups: list[Ranks]) -> list:
    return [result for each in groups for result in each.results(lost="it hangs")]


def digests(folder: Path) -> list[str]:
    return [state(folder / f"group-{number}", 10)["weights_sha256"] for number in range(2)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "c"
    with store_process() as (address, _):
        assert results(both(address, folder)) == [0, 0, 0]
    assert len(set(digests(folder))) == 1
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "c"))


@pytest.mark.parametrize("missed", [0, 1])
def test_a_finished_group_takes_along_one_that_missed_the_end(store, finished, copy, capfd, missed) -> None:
    shutil.rmtree(copy / f"group-{missed}" / "step-00000010")
    assert results(both(store[0], copy, "parallel.timeout_s=60")) == [0, 0, 0]
    assert f"joined at step 10, with the weights of group {1 - missed}" in capfd.readouterr().out
    assert digests(copy) == digests(finished)


def seeing(rank: Rank, config: Config, log: Path) -> int:
    """Writes down which samples the real loop takes."""
    original = Samples.load

    def load(self, ids, device):
        with log.open("a") as file:
            print(json.dumps(ids.tolist()), file=file)
        return original(self, ids, device)

    Samples.load = load
    return run(split(rank, config.diloco), config)


def test_groups_of_unequal_size_see_each_sample_once(store, tmp_path) -> None:
    of = [config(tmp_path / "c", f"parallel.store={store[0]}", f"diloco.group={g}") for g in range(2)]
    groups = [Ranks(3 - world, seeing, of[world - 1], tmp_path / "log") for world in (1, 2)]
    assert results(groups) == [0, 0, 0]
    ids = [number for each in lines(tmp_path / "log") for number in each]
    assert len(ids) == len(set(ids)) == 10 * 2 * 4  # steps, groups, samples


@pytest.mark.parametrize("other", ["train.batch=2", "data.seq_len=8", "train.seed=2"])
def test_groups_with_other_samples_are_refused(store, tmp_path, other) -> None:
    where = f"parallel.store={store[0]}"
    of = [config(tmp_path / "c", where, f"diloco.group={g}", *([other] if g else [])) for g in range(2)]
    for error in results([Ranks(1, group, each) for each in of]):
        assert isinstance(error, ConfigError)
        assert "has other settings" in str(error)


def test_who_joins_counts_samples_as_the_others_do(store, tmp_path, capfd) -> None:
    """After a change of the batch the stream has an offset, which a group without a checkpoint can't know."""
    folder = tmp_path / "c"
    assert results(both(store[0], folder, "train.steps=5")) == [0, 0, 0]
    shutil.rmtree(folder / "group-1")
    assert results(both(store[0], folder, "train.batch=2")) == [0, 0, 0]
    assert "joined at step 5, with the weights of group 0" in capfd.readouterr().out
    positions = {state(folder / f"group-{number}", 10)["notes"]["position"] for number in range(2)}
    assert positions == {5 * 2 * 4 + 5 * 2 * 2}


def test_groups_that_have_finished_meet_and_end(store, copy) -> None:
    assert results(both(store[0], copy)) == [0, 0, 0]


def test_a_finished_group_that_meets_nobody_is_no_success(store, copy) -> None:
    alone = config(copy, f"parallel.store={store[0]}", "diloco.group=1", "parallel.timeout_s=1")
    (error,) = ranks(1, group, alone)
    assert isinstance(error, PeerLostError)
    assert "group 0 of 2 didn't come" in str(error)


@pytest.mark.parametrize("saved", [True, False])
def test_a_stop_signal_ends_waiting_for_groups_that_do_not_come(store, tmp_path, capfd, saved) -> None:
    more = () if saved else ("checkpoint.dir=", "checkpoint.every=0")
    alone = Ranks(2, group, config(tmp_path / "c", f"parallel.store={store[0]}", "diloco.group=0", *more))
    time.sleep(3)
    alone.signal(signal.SIGTERM)
    assert alone.results(10) == [0 if saved else 143] * 2
    assert "step 0: waits for the other groups no longer" in capfd.readouterr().out


@pytest.mark.parametrize("due", [5, 10])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_outer_step_that_a_stop_signal_prevented_is_made_at_the_next_start(
    store, finished, tmp_path, capfd, due, rank
) -> None:
    """Group 0 waits, and one of its ranks is told to stop; so is then group 1, a step before the outer one or at it."""
    folder, metrics, free = tmp_path / "c", tmp_path / "m.jsonl", tmp_path / "free"
    exported = f"checkpoint.export={tmp_path / 'model'}"
    waiting, behind = both(store[0], folder, f"output.metrics={metrics}", exported, hold=(due - 3 + rank, free))
    wait_for(lambda: len(lines(metrics)) >= due - 1)
    time.sleep(1)
    pid, _ = waiting.children[rank]
    os.kill(pid, signal.SIGTERM)
    assert waiting.results(20) == [0, 0]
    behind.signal(signal.SIGTERM)
    free.touch()
    assert behind.results(20) == [0]
    said = capfd.readouterr().out
    assert f"step {due}: waits for the other groups no longer; the outer step is made at the next start" in said
    assert f"at step {due}: run it again to go on" in said
    assert state(folder / "group-0", due)["notes"]["owes"]
    assert state(folder / "group-1", due - 1 + rank)["notes"]["anchor_step"] == due - 5
    assert not (tmp_path / "model").exists()
    assert results(both(store[0], folder, exported)) == [0, 0, 0]
    assert digests(folder) == digests(finished)
    assert (tmp_path / "model").exists()


def test_checkpoints_of_other_groups_are_not_passed_over(store, finished, copy, tmp_path) -> None:
    plain, two = tmp_path / "plain", (f"parallel.store={store[0]}", "diloco.group=0")
    trained(1, small("train.steps=1", f"checkpoint.dir={plain}"))
    assert "has a run without groups, here diloco.groups=2" in refused(config(plain, *two))
    assert "has one with group-0, group-1, here diloco.groups=1" in refused(small(f"checkpoint.dir={copy}"))
    for number in (1, 0):
        (copy / f"group-{number}").rename(copy / f"group-{number + 1}")
    assert "has one with group-1, group-2, here diloco.groups=2" in refused(config(copy, *two))
    trained(1, small("train.steps=1", f"checkpoint.dir={copy}", "checkpoint.resume=false"))
    trained(1, small("train.steps=1", f"checkpoint.dir={copy}"))
    folders.check_groups(finished, 3)  # a group more may join


def refused(config: Config) -> str:
    (error,) = ranks(1, group, config)
    assert isinstance(error, ConfigError), error
    return str(error)


def test_a_run_without_diloco_does_not_go_on_from_one_with(tmp_path) -> None:
    where = ("diloco.inner_steps=1", f"checkpoint.dir={tmp_path / 'c'}")
    trained(1, small("train.steps=1", "diloco.always=true", *where))
    (error,) = ranks(1, run, small("train.steps=2", *where))
    assert isinstance(error, CheckpointError)
    assert "it was saved with DiLoCo" in str(error)
