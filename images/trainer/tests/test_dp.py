import pytest
import torch
import torch.distributed as dist
from conftest import grouped, ranks, small

from rocstack_trainer import dp, launch, model
from rocstack_trainer.config import Config
from rocstack_trainer.data import Samples
from rocstack_trainer.train import forward_backward


def gradient(rank: launch.Rank, config: Config) -> torch.Tensor:
    """The whole gradient of step 3 as one vector."""
    net = model.build(config.model, rank, config.train.seed)
    dp.broadcast(net.parameters())
    data = Samples(config.data, config.train.batch, config.train.seed, config.model.vocab_size)
    gradients = dp.gradients(config.parallel, net.parameters())
    micro = config.train.micro_batch or config.train.batch // rank.world
    for step in (2, 3):  # the second step must not see the first one's gradient
        forward_backward(net, gradients, data, data.ids(step, rank.rank, rank.world), micro, config, rank)
        gradients.finish()
    return torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()])


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.fixture(scope="module")
def one_rank() -> torch.Tensor:
    (grad,) = ranks(1, grouped, gradient, small("train.batch=12", "parallel.algorithm=naive"))
    assert grad.norm() > 0.1
    return grad


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("kind", ["naive", "flat"])
def test_n_ranks_have_the_gradient_of_one(one_rank: torch.Tensor, world: int, kind: str) -> None:
    config = small("train.batch=12", f"parallel.algorithm={kind}", "parallel.bucket_mb=0.02")
    found = ranks(world, grouped, gradient, config)
    assert all(torch.equal(grad, found[0]) for grad in found)
    assert relative(found[0], one_rank) <= 1e-6


@pytest.mark.parametrize("world", [1, 2])
def test_accumulated_micro_batches_have_the_gradient_of_the_whole(one_rank: torch.Tensor, world: int) -> None:
    found = ranks(world, grouped, gradient, small("train.batch=12", "train.micro_batch=2"))
    assert relative(found[0], one_rank) <= 1e-6


@pytest.mark.parametrize("bucket_mb", [0.001, 0.02, 25])
@pytest.mark.parametrize("tied", ["true", "false"])
def test_bucketed_is_bitwise_naive(bucket_mb: float, tied: str) -> None:
    """On 2 ranks, where a sum has only one order."""
    both = [
        ranks(2, grouped, gradient, small(*common, f"parallel.algorithm={kind}"))[0]
        for common in [(f"parallel.bucket_mb={bucket_mb}", f"model.tie_word_embeddings={tied}", "train.micro_batch=1")]
        for kind in ("naive", "flat")
    ]
    assert torch.equal(*both)


def overlap(rank: launch.Rank) -> tuple[int, int]:
    """How many buckets there are, and how many were already on their way when backward ended."""
    net = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
    gradients = dp.BucketedGradients(net.parameters(), 300)
    gradients.zero()
    gradients.backward(net(torch.ones(1, 8)).sum(), last=False)
    assert gradients.sent == 0, "a micro-batch before the last one communicated"
    gradients.backward(net(torch.ones(1, 8)).sum(), last=True)
    sent = gradients.sent
    gradients.finish()
    return len(gradients.buckets), sent


def test_buckets_are_sent_during_backward() -> None:
    for buckets, sent in ranks(2, grouped, overlap):
        assert buckets == sent == 4


def unused(rank: launch.Rank) -> list[list[float]]:
    """Rank 0 uses both parameters, rank 1 only the first."""
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
    gradients = dp.BucketedGradients([a, b], 1)
    gradients.zero()
    gradients.backward(a.sum() + (b.sum() if rank.rank == 0 else 0), last=True)
    gradients.finish()
    return [a.grad.tolist(), b.grad.tolist()]


def test_a_parameter_without_gradient_on_one_rank_does_not_hang_the_others() -> None:
    assert ranks(2, grouped, unused) == [[[2.0, 2.0], [1.0, 1.0, 1.0]]] * 2


def replaced(rank: launch.Rank) -> None:
    a = torch.nn.Parameter(torch.ones(2))
    gradients = dp.BucketedGradients([a], 100)
    a.grad = None
    gradients.backward(a.sum(), last=True)
    gradients.finish()


def test_a_gradient_outside_its_bucket_is_an_error_not_a_wrong_sum() -> None:
    (error,) = ranks(1, grouped, replaced)
    assert "zero()" in str(error)


def broadcasted(rank: launch.Rank) -> list[torch.Tensor]:
    mine = [torch.full((3, 2), rank.rank + 1.0), torch.tensor(rank.rank), torch.full((50,), rank.rank + 2.0)]
    dp.broadcast(mine, chunk_bytes=40)
    dist.barrier()
    return mine


def test_broadcast_gives_everybody_rank_0s_tensors() -> None:
    for mine in ranks(3, grouped, broadcasted):
        assert torch.equal(mine[0], torch.full((3, 2), 1.0))
        assert mine[1].item() == 0
        assert torch.equal(mine[2], torch.full((50,), 2.0))


def test_pack_keeps_order_limit_and_type() -> None:
    tensors = [torch.zeros(n, dtype=kind) for n, kind in ((4, torch.float32), (4, torch.float32), (9, torch.float32))]
    tensors.append(torch.zeros(1, dtype=torch.int64))
    groups = list(dp.pack(tensors, 32))
    assert [[t.numel() for t in group] for group in groups] == [[4, 4], [9], [1]]
    assert list(dp.pack([], 32)) == []
