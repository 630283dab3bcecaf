import numpy as np
import pytest

from rocstack_trainer.config import Data
from rocstack_trainer.data import Samples, permute, synthetic
from rocstack_trainer.errors import ConfigError


def samples(tmp_path, n: int, batch: int, seed: int = 1) -> Samples:
    """`n` samples of 4 tokens; sample i starts with token 4 i."""
    path = tmp_path / "tokens.bin"
    np.arange(n * 4 + 1, dtype=np.uint16).tofile(path)
    return Samples(Data(path=str(path), seq_len=4), batch, seed, vocab_size=1 << 16)


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


def test_ranks_may_come_and_go_between_runs(tmp_path) -> None:
    """One training on 2, then 3, then 1 ranks: each step has the same samples, whoever takes them."""
    data = samples(tmp_path, 60, batch=6)
    for step in range(20):
        world = (2, 3, 1)[step // 7]
        seen = np.concatenate([data.ids(step, rank, world) for rank in range(world)])
        assert sorted(seen) == sorted(data.ids(step, 0, 1))
    epoch = np.concatenate([data.ids(step, rank, 2) for step in range(10) for rank in range(2)])
    assert sorted(epoch) == list(range(60))


def test_targets_follow_the_inputs(tmp_path) -> None:
    inputs, targets = samples(tmp_path, 10, 2).load(np.array([3, 9]), "cpu")
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
