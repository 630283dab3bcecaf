import itertools
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import grouped, maker, ranks, relative, small
from oracles import NaiveGradients, RingMaker

from rocstack_trainer.config import Config
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.errors import PeerLostError
from rocstack_trainer.gradients import buckets, flat
from rocstack_trainer.gradients.collectives import Collective
from rocstack_trainer.gradients.topology import plan
from rocstack_trainer.models import model
from rocstack_trainer.rank import Rank
from rocstack_trainer.train import Ahead, forward_backward


def made(kind: str, config: Config, rank: Rank, net: torch.nn.Module) -> buckets.Gradients:
    if kind == "naive":
        return NaiveGradients(net.parameters())
    if kind == "ring":
        return buckets.Buckets(net.parameters(), int(config.parallel.bucket_mb * 2**20), RingMaker())
    return buckets.make(config.parallel, plan(config.parallel, rank, 0), rank, net.parameters())


def gradient(rank: Rank, config: Config, kind: str = "") -> torch.Tensor:
    """The whole gradient of step 3 as one vector."""
    net = model.build(config.model, rank, config.train.seed)
    flat.broadcast(net.parameters())
    data = Samples(config.data, config.train.batch, config.train.seed, config.model.vocab_size)
    gradients = made(kind, config, rank, net)
    for step in (2, 3):  # the second step must not see the first one's gradient
        learned = config.train.batch * data.seq_len
        forward_backward(net, gradients, Ahead(data, config, rank)(step), learned, config, rank)
        gradients.finish()
    gradients.close()
    return torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()])


def nodes_of_two(rank: Rank, config: Config) -> torch.Tensor:
    return grouped(replace(rank, local_world=2, local_rank=rank.rank % 2), gradient, config)


@pytest.fixture(scope="module")
def one_rank() -> torch.Tensor:
    (grad,) = ranks(1, grouped, gradient, small("train.batch=12"))
    assert grad.norm() > 0.1
    return grad


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("kind", ["naive", "flat", "ring"])
def test_n_ranks_have_the_gradient_of_one(one_rank: torch.Tensor, world: int, kind: str) -> None:
    found = ranks(world, grouped, gradient, small("train.batch=12", "parallel.bucket_mb=0.02"), kind)
    assert all(torch.equal(grad, found[0]) for grad in found)
    assert relative(found[0], one_rank) <= 1e-6


@pytest.mark.parametrize(("codec", "tolerance"), [("none", 1e-6), ("bf16", 0.005), ("int8+zstd", 0.05)])
def test_two_nodes_of_two_ranks_have_the_gradient_of_one(one_rank: torch.Tensor, codec: str, tolerance: float) -> None:
    config = small("train.batch=12", f"parallel.compress={codec}", "parallel.algorithm=hierarchical")
    found = ranks(4, nodes_of_two, config)
    assert all(torch.equal(grad, found[0]) for grad in found)
    assert relative(found[0], one_rank) <= tolerance
    assert codec == "none" or relative(found[0], one_rank) > 1e-4, "nothing was compressed"


@pytest.mark.parametrize("world", [1, 2])
def test_accumulated_micro_batches_have_the_gradient_of_the_whole(one_rank: torch.Tensor, world: int) -> None:
    found = ranks(world, grouped, gradient, small("train.batch=12", "train.micro_batch=2"))
    assert relative(found[0], one_rank) <= 1e-6


@pytest.mark.parametrize("bucket_mb", [0.001, 0.02, 25])
@pytest.mark.parametrize("tied", ["true", "false"])
def test_bucketed_is_bitwise_naive(bucket_mb: float, tied: str) -> None:
    """On 2 ranks, where a sum has only one order."""
    common = (f"parallel.bucket_mb={bucket_mb}", f"model.tie_word_embeddings={tied}", "train.micro_batch=1")
    naive, *others = [ranks(2, grouped, gradient, small(*common), kind)[0] for kind in ("naive", "flat", "ring")]
    assert all(torch.equal(naive, other) for other in others)


def overlap(rank: Rank, codec: str) -> tuple[int, int, int]:
    """How many buckets there are, how many were on their way when backward ended, and the bytes sent."""
    net = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
    gradients = buckets.Buckets(net.parameters(), 300, maker(rank, codec=codec))
    gradients.zero()
    gradients.backward(net(torch.ones(1, 8)).sum(), last=False)
    assert gradients.started == gradients.sent == 0, "a micro-batch before the last one communicated"
    gradients.backward(net(torch.ones(1, 8)).sum(), last=True)
    started = gradients.started
    gradients.finish()
    return len(gradients.buckets), started, gradients.sent


@pytest.mark.parametrize(("codec", "value_bytes"), [("none", 4), ("bf16", 2)])
def test_buckets_are_sent_during_backward(codec: str, value_bytes: int) -> None:
    assert ranks(2, grouped, overlap, codec) == [(4, 4, 4 * (64 + 8) * value_bytes)] * 2


def test_the_next_bucket_is_encoded_while_one_is_on_the_wire() -> None:
    ready = threading.Event()

    class First(Collective):
        def __call__(self, flat: torch.Tensor) -> None:
            assert ready.wait(60)

    class Second(First):
        def prepare(self, flat: torch.Tensor) -> None:
            ready.set()

    line = buckets.Line(torch.device("cpu"))
    for wait in [line.start(each, torch.zeros(1)) for each in (First(), Second())]:
        wait()


def unused(rank: Rank, codec: str) -> list[list[list[float]]]:
    """Step 1 uses both parameters, step 2 on rank 0 both, on rank 1 the first only; b is in a bucket of its own."""
    a, b, frozen = (torch.nn.Parameter(torch.ones(n)) for n in (2, 3, 4))
    frozen.requires_grad = False
    gradients, found = buckets.Buckets([a, b, frozen], 1, maker(rank, codec=codec)), []
    for step in (1, 2):
        gradients.zero()
        gradients.backward(a.sum() + (b.sum() if rank.rank == 0 or step == 1 else 0), last=True)
        gradients.finish()
        found.append([a.grad.tolist(), b.grad.tolist()])
    return found


@pytest.mark.parametrize("codec", ["none", "int8+zstd"])
def test_a_parameter_without_gradient_on_one_rank_does_not_hang_the_others(codec: str) -> None:
    once = [[2.0, 2.0], [2.0, 2.0, 2.0]], [[2.0, 2.0], [1.0, 1.0, 1.0]]
    for found in ranks(2, grouped, unused, codec):
        for got, expected in zip(itertools.chain(*found), itertools.chain(*once), strict=True):
            assert got == pytest.approx(expected, abs=0.02)


def only_the_first_micro_batch(rank: Rank) -> list[float]:
    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    gradients = buckets.Buckets([a, b], 1, maker(rank))
    gradients.zero()
    gradients.backward(a.sum() + b.sum(), last=False)
    gradients.backward(a.sum(), last=True)
    gradients.finish()
    return [*a.grad.tolist(), *b.grad.tolist()]


def test_a_parameter_of_an_earlier_micro_batch_only_keeps_its_gradient() -> None:
    assert ranks(2, grouped, only_the_first_micro_batch) == [[4.0, 4.0, 2.0, 2.0]] * 2


def zeroed_by_the_optimizer(rank: Rank) -> list[float]:
    a = torch.nn.Parameter(torch.ones(2))
    gradients, optimizer = buckets.Buckets([a], 100, maker(rank)), torch.optim.SGD([a], lr=0.0)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        gradients.backward(a.sum(), last=True)
        gradients.finish()
    return a.grad.tolist()


def test_the_optimizers_own_zero_grad_does_as_well() -> None:
    assert ranks(2, grouped, zeroed_by_the_optimizer) == [[2.0, 2.0]] * 2


def residuals(rank: Rank) -> dict[str, Any]:
    net = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(2)])
    gradients = buckets.Buckets(net.parameters(), 300, maker(rank, codec="int8"))
    gradients.zero()
    gradients.backward(net(torch.randn(1, 8, generator=torch.Generator().manual_seed(rank.rank))).sum(), last=True)
    gradients.finish()
    return {name: (len(tensor), bool(tensor.any())) for name, tensor in gradients.residuals().items()}


def test_residuals_have_names_and_are_this_ranks() -> None:
    assert ranks(2, grouped, residuals) == [{"bucket0.chunk0": (72, True), "bucket1.chunk0": (72, True)}] * 2
    names = {f"bucket{b}.{name}" for b in range(2) for name in ("chunk0", "chunk1", "chunk2", "owner")}
    assert all(found.keys() == names for found in ranks(3, grouped, residuals))


def lost_peer(rank: Rank) -> None:
    a = torch.nn.Parameter(torch.ones(1 << 20))
    gradients = buckets.Buckets([a], 1 << 30, maker(rank, codec="int8"))
    if rank.rank == 1:
        raise SystemExit
    gradients.backward(a.sum(), last=True)
    gradients.finish()


def test_a_lost_peer_is_an_error_here_not_in_a_thread() -> None:
    (error, _) = ranks(2, grouped, lost_peer)
    assert isinstance(error, PeerLostError)


def broadcasted(rank: Rank) -> list[torch.Tensor]:
    mine = [torch.full((3, 2), rank.rank + 1.0), torch.tensor(rank.rank), torch.full((50,), rank.rank + 2.0)]
    flat.broadcast(mine, chunk_bytes=40)
    return mine


def test_broadcast_gives_everybody_rank_0s_tensors() -> None:
    for mine in ranks(3, grouped, broadcasted):
        assert torch.equal(mine[0], torch.full((3, 2), 1.0))
        assert mine[1].item() == 0
        assert torch.equal(mine[2], torch.full((50,), 2.0))


def test_pack_keeps_order_limit_and_type() -> None:
    tensors = [torch.zeros(n, dtype=kind) for n, kind in ((4, torch.float32), (4, torch.float32), (9, torch.float32))]
    tensors.append(torch.zeros(1, dtype=torch.int64))
    groups = list(flat.pack(tensors, 32))
    assert [[t.numel() for t in group] for group in groups] == [[4, 4], [9], [1]]
    assert list(flat.pack([], 32)) == []
