from copy import copy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstack_trainer.config import Data
from rocstack_trainer.data import samples as data_module
from rocstack_trainer.data import shards
from rocstack_trainer.data.samples import Samples, permute, synthetic
from rocstack_trainer.errors import ConfigError


def samples(tmp_path, n: int, batch: int, seed: int = 1) -> Samples:
    """`n` samples of 4 tokens; sample i starts with token 4 i."""
    path = tmp_path / "tokens.bin"
    np.arange(n * 4 + 1, dtype=np.uint16).tofile(path)
    return Samples(Data(path=str(path), seq_len=4), batch, seed, vocab_size=1 << 16)


ANY = Samples(Data(), 1, 1, 256)


def numbered(n: int, batch: int) -> Samples:
    """`n` samples, of which only the numbers matter."""
    data = copy(ANY)
    data.n, data.batch = n, batch
    return data


def test_permute_is_a_permutation_for_any_size() -> None:
    for n in [*range(1, 70), 127, 128, 129, 1000, 4097]:
        for seed, epoch in ((0, 0), (1, 0), (1, 1), (2**31, 99)):
            assert sorted(permute(np.arange(n), n, seed, epoch)) == list(range(n)), (n, seed, epoch)


def test_permute_of_a_part_is_a_part_of_permute() -> None:
    whole = permute(np.arange(1000), 1000, 3, 4)
    assert (permute(np.arange(1000)[5::7], 1000, 3, 4) == whole[5::7]).all()


def test_epochs_and_seeds_are_in_different_orders_and_shuffled_well() -> None:
    n = 10_000
    orders = [permute(np.arange(n), n, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    orders.append(np.arange(n))
    for i, a in enumerate(orders):
        for b in orders[:i]:
            assert (a == b).sum() < 20  # expected 1 of 10,000
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.05


def test_each_epoch_has_every_sample_once_for_any_number_of_ranks(tmp_path) -> None:
    for world in (1, 2, 3, 4, 5, 7, 8):
        for per_rank in (1, 3):
            for n in (1, 5, 23, 24, 97):
                batch = world * per_rank
                data = samples(tmp_path, n, batch, seed=world)
                steps = -(-3 * n // batch)
                stream = np.full(steps * batch, -1)
                for step in range(steps):
                    for rank in range(world):
                        ids = data.ids(step, rank, world)
                        assert len(ids) == per_rank
                        places = np.arange(step * batch, (step + 1) * batch)
                        stream[places[places % world == rank]] = ids
                for epoch in range(3):
                    assert sorted(stream[epoch * n : (epoch + 1) * n]) == list(range(n)), (world, n, epoch)


examples = settings(max_examples=60, deadline=None, database=None)  # the machine may be busy or read-only
WORLD = st.sampled_from([1, 2, 3, 4, 6, 12])
Life = list[tuple[int, int]]  # of each run: how many ranks it had, and the steps until it was killed


@examples
@given(
    n=st.integers(1, 60),
    per_rank=st.integers(1, 2),
    groups=st.integers(1, 3),
    every=st.integers(1, 4),
    life=st.lists(st.tuples(st.tuples(WORLD, WORLD, WORLD), st.integers(0, 9)), min_size=1, max_size=6),
)
def test_no_sample_twice_or_never_whatever_is_killed(
    n: int, per_rank: int, groups: int, every: int, life: list[tuple[tuple[int, ...], int]]
) -> None:
    """Groups of any sizes, and runs with other ones, go on from the last checkpoint; steps after it don't count. The
    weights have seen each sample of an epoch once, and of the last epoch none twice."""
    batch = 12 * per_rank * groups
    data = numbered(n, batch)
    seen: list[np.ndarray] = []  # by step
    for worlds, steps in life:
        for step in range(len(seen), len(seen) + steps):
            stream = np.full(batch, -1)
            for g, r in [(group, rank) for group in range(groups) for rank in range(worlds[group])]:
                part = data.ids(step, r, worlds[g], g, groups)
                assert len(part) == batch // groups // worlds[g]
                places = np.arange(batch) // (batch // groups) == g  # the order of the stream, to cut it into epochs
                stream[places & (np.arange(step * batch, (step + 1) * batch) % worlds[g] == r)] = part
            seen.append(stream)
        del seen[len(seen) // every * every :]  # killed
    stream = np.concatenate(seen) if seen else np.empty(0)
    for start in range(0, len(stream), n):
        epoch = stream[start : start + n]
        assert len(np.unique(epoch)) == len(epoch)
        assert len(epoch) < n or sorted(epoch) == list(range(n))


@examples
@given(n=st.integers(1, 60), life=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), max_size=6))
def test_another_batch_goes_on_where_the_last_one_was(n: int, life: Life) -> None:
    """So do other numbers of DiLoCo groups, which are another batch of the stream."""
    step = position = 0
    seen = []
    for batch, steps in life:
        data = numbered(n, batch)
        data.go_on(step, position)
        seen += [data.ids(step + i, 0, 1) for i in range(steps)]
        step += steps
        position = data.position(step)
    stream = np.concatenate([*seen, np.empty(0, np.int64)])
    assert len(stream) == position == sum(batch * steps for batch, steps in life)
    assert (stream == numbered(n, len(stream) or 1).ids(0, 0, 1)[: len(stream)]).all()


def test_the_same_samples_are_known_wherever_they_are(tmp_path) -> None:
    (tmp_path / "copy").mkdir()
    one = samples(tmp_path, 97, 4).identity()
    assert one == samples(tmp_path / "copy", 97, 8).identity()
    others = [samples(tmp_path, 96, 4), samples(tmp_path, 97, 4, seed=2), ANY]
    assert len({one, *(other.identity() for other in others)}) == 4


def test_targets_follow_the_inputs(tmp_path) -> None:
    inputs, targets, _ = samples(tmp_path, 10, 2).load(np.array([3, 9]), "cpu")
    assert inputs.tolist() == [[12, 13, 14, 15], [36, 37, 38, 39]]
    assert targets.tolist() == [[13, 14, 15, 16], [37, 38, 39, 40]]


def test_uint32_tokens(tmp_path) -> None:
    path = tmp_path / "t.bin"
    np.array([70_000, 1, 2, 3, 4], dtype="<u4").tofile(path)
    data = Samples(Data(path=str(path), dtype="uint32", seq_len=4), 1, 1, vocab_size=100_000)
    assert data.load(np.array([0]), "cpu")[0].tolist() == [[70_000, 1, 2, 3]]


def test_synthetic_bytes_depend_on_the_seed_only() -> None:
    assert (synthetic(5) == synthetic(5)).all()
    assert not (synthetic(5)[:1000] == synthetic(6)[:1000]).all()
    assert synthetic(5).max() < 256
    assert len(synthetic(5)) > 10**6


def test_a_token_outside_the_vocabulary_is_named_with_its_sample(tmp_path) -> None:
    data = samples(tmp_path, 10, 2)
    data.vocab_size = 20
    data.load(np.array([3]), "cpu")
    with pytest.raises(ConfigError, match=r"sample 9 has token 40, the model knows 20\n.*data.dtype"):
        data.load(np.array([3, 9]), "cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"abc", "3 bytes"), (b"", "empty"), (b"abcd", "2 tokens, too few")],
)
def test_a_useless_file_is_refused(tmp_path, content: bytes | None, message: str) -> None:
    path = tmp_path / "t.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Samples(Data(path=str(path), seq_len=4), 1, 1, 256)


def write(folder: Path, **tokens: int | list[int]) -> None:
    """Files of so many tokens, or of these."""
    folder.mkdir(exist_ok=True)
    for name, values in tokens.items():
        np.array(range(values) if isinstance(values, int) else values, dtype="<u2").tofile(folder / f"{name}.bin")


def test_several_files_are_one_stream_and_no_sample_crosses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_module, "OPEN_FILES", 1)
    write(tmp_path / "d", a=9, b=3, c=[*range(100, 105)], e=[*range(200, 212)])
    for path in ("d", "d/*.bin", "d/[a-e].bin"):
        samples = Samples(Data(path=str(tmp_path / path), seq_len=4), 1, 1, 256)
        inputs, targets, _ = samples.load(np.arange(samples.n), "cpu")
        assert inputs[:, 0].tolist() == [0, 4, 100, 200, 204]  # b is too short for one, the tails are left out
        assert (targets == inputs + 1).all()


@pytest.mark.parametrize(
    ("names", "path", "message"),
    [
        (["x-00000-of-00003.bin", "x-00002-of-00003.bin"], "d", "d/x-00001-of-00003.bin is missing: 2 of 3 shards"),
        (["x-1-of-2.bin"], "d/*", "d/x-2-of-2.bin is missing|d/x-0-of-2.bin is missing"),
        (["x-00000-of-00002-0a1f.parquet"], "d", "d/x-00001-of-00002.parquet is missing: 1 of 2"),
        (["a.bin", "b.parquet"], "d", "a.bin, b.parquet: they must be all .bin, .parquet, .jsonl or .arrow"),
        (["a.npy"], "d/a.npy", "a.npy: they must be all .bin, .parquet, .jsonl or .arrow"),
        (["a.npy"], "d", "no .bin, .parquet, .jsonl or .arrow file in it"),
        (["train.bin", "val.bin"], "d", r"several splits: train, val\n  choose one, as in --data.path='.*/train\*'"),
        (["tokens.bin"], "d/token.bin", "No such file or folder: did you mean .*/d/tokens.bin?"),
        (["a.bin"], "d/*.parquet", "no file has such a name"),
        (["a.bin"], "e", "No such file or folder"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(
    tmp_path: Path, names: list[str], path: str, message: str
) -> None:
    (tmp_path / "d").mkdir()
    for name in names:
        (tmp_path / "d" / name).write_bytes(b"1234")
    with pytest.raises(ConfigError, match=message):
        shards.find(str(tmp_path / path))


@pytest.mark.parametrize("first", [0, 1])
def test_all_shards_of_two_sets_are_found_in_order(tmp_path: Path, first: int) -> None:
    names = [f"{s}-{i + first:05}-of-00011.bin" for s in ("x", "y") for i in range(11)]
    for name in (*reversed(names), ".hidden.bin", "notes.txt"):
        (tmp_path / name).write_bytes(b"1234")
    assert [file.name for file in shards.find(str(tmp_path))] == names
    assert [file.name for file in shards.find(f"{tmp_path}/x-0000[3-5]*")] == names[3 - first : 6 - first]
    (tmp_path / names[7]).unlink()
    assert shards.find(f"{tmp_path}/{names[3]}") == [tmp_path / names[3]]  # one alone is meant alone


def test_an_empty_shard_is_named_and_one_cut_in_a_token(tmp_path: Path) -> None:
    write(tmp_path / "d", a=9, b=0)
    with pytest.raises(ConfigError, match=r"d/b\.bin: the token file is empty"):
        Samples(Data(path=str(tmp_path / "d"), seq_len=4), 1, 1, 256)
    (tmp_path / "d/b.bin").write_bytes(b"123")
    with pytest.raises(ConfigError, match=r"d/b\.bin: 3 bytes are no whole number of uint16 tokens"):
        Samples(Data(path=str(tmp_path / "d"), seq_len=4), 1, 1, 256)
