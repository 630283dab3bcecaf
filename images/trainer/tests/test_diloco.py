"""The outer optimizer, in groups of real ranks that train a real (small) network."""

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Group, small

from rocstack_trainer.config import Config
from rocstack_trainer.errors import NonFiniteError, PeerLostError
from rocstack_trainer.groups import leader as waiting
from rocstack_trainer.groups.diloco import Outer
from rocstack_trainer.rank import Rank

SIZE = 8 * 16 + 16 + 16 * 1 + 1


def config(groups: int, steps: int, h: int, *more: str) -> Config:
    fixed = (f"diloco.groups={groups}", f"diloco.inner_steps={h}", f"train.steps={steps}", "diloco.beat_s=0.1")
    return small(*fixed, "diloco.lost_after_s=2", *more)


PLAIN = ("diloco.outer_lr=1", "diloco.outer_momentum=0", "diloco.compress=none")


def network() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def loss(net: torch.nn.Module, group: int, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10000 * group + 100 * rank + step)
    inputs = torch.randn(4, 8, generator=generator)
    return (net(inputs) - inputs.sin().sum(1, keepdim=True)).square().mean()


def weights(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def make(kind: str, net: torch.nn.Module) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.1)
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def inner_step(net: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: Rank, step: int) -> None:
    """Data parallel within the group."""
    optimizer.zero_grad()
    (loss(net, rank.group, rank.rank, step) / rank.world).backward()
    if rank.world > 1:
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()


def train(rank: Rank, store: Any, config: Config, kind: str, until: int = 0, saved: Any = None) -> dict[str, Any]:
    """Trains to step `until` (or the end). `saved` is what an earlier one returned, and goes on from there."""
    net, said = network(), []
    optimizer = make(kind, net)
    outer = Outer(config, rank, store, net, said.append)
    step = 0
    if saved:
        mine = saved[rank.group][rank.rank]
        net.load_state_dict(mine["net"])
        optimizer.load_state_dict(mine["optimizer"])
        for name, tensor in outer.tensors().items():
            tensor.copy_(mine["outer"][name])
        step = mine["step"]
    step = outer.join(step)
    sent = []
    while step < (until or config.train.steps):
        inner_step(net, optimizer, rank, step)
        step = outer.sync(step + 1)
        sent.append(outer.sent)
    outer.close()
    return {
        "net": net.state_dict(),
        "weights": weights(net),
        "optimizer": optimizer.state_dict(),
        "outer": outer.tensors(),
        "notes": outer.notes(),
        "step": step,
        "sent": sent,
        "said": said,
    }


def trained(address: str, world: int, config: Config, kind: str, *more: Any) -> list[list[dict[str, Any]]]:
    """Of each group, of each rank."""
    count = config.diloco.groups
    groups = [Group(address, g, count, world, train, config, kind, *more) for g in range(count)]
    return [group.results() for group in groups]


def reference(rank: Rank, store: Any, steps: int, kind: str, groups: int) -> torch.Tensor:
    """Plain steps with the mean gradient of all groups. In a process of its own: after autograd ran nobody may fork."""
    net = network()
    optimizer = make(kind, net)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss(net, group, 0, step) for group in range(groups)) / groups).backward()
        optimizer.step()
    return weights(net)


def test_one_inner_step_is_data_parallel_training(store) -> None:
    """theta - (theta - lr g) rounds, hence not bitwise."""
    found = trained(store[0], 1, config(3, 8, 1, *PLAIN), "sgd")
    (plain,) = Group(store[0], 0, 1, 1, reference, 8, "sgd", 3).results()
    assert all(torch.equal(group[0]["weights"], found[0][0]["weights"]) for group in found)
    torch.testing.assert_close(found[0][0]["weights"], plain, rtol=1e-6, atol=1e-6)


def test_one_group_with_a_plain_outer_step_is_no_outer_step(store) -> None:
    settings = config(1, 21, 7, *PLAIN, "diloco.always=true")
    (plain,) = Group(store[0], 0, 1, 1, reference, 21, "adamw", 1).results()
    ((found,),) = trained(store[0], 1, settings, "adamw")
    torch.testing.assert_close(found["weights"], plain, rtol=1e-6, atol=1e-6)
    assert found["sent"] == [0] * 21


def outer_alone(rank: Rank, store: Any, settings: Config, deltas: torch.Tensor) -> torch.Tensor:
    net = torch.nn.Linear(50, 1, bias=False)
    torch.nn.init.ones_(net.weight)
    outer = Outer(settings, rank, store, net, print)
    outer.join(0)
    for step, delta in enumerate(deltas, 1):
        with torch.no_grad():
            net.weight.sub_(delta)
        outer.sync(step)
    return weights(net)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_the_outer_optimizer_is_torchs_nesterov_sgd(store, momentum: float) -> None:
    deltas = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    settings = config(1, 6, 1, "diloco.always=true", f"diloco.outer_momentum={momentum}")
    (found,) = Group(store[0], 0, 1, 1, outer_alone, settings, deltas).results()
    theta = torch.nn.Parameter(torch.ones(50))
    sgd = torch.optim.SGD([theta], lr=0.7, momentum=momentum, nesterov=momentum > 0)
    for delta in deltas:
        theta.grad = theta.data - (theta.data - delta)
        sgd.step()
    assert torch.equal(found, theta.data)


@pytest.mark.parametrize("compress", ["none", "int8+zstd"])
def test_groups_of_several_ranks(store, compress: str) -> None:
    """2 groups x 2 ranks: all have the same weights, and between outer steps nothing goes from group to group."""
    settings = config(2, 13, 5, f"diloco.compress={compress}")  # the last outer step is after 3 inner steps
    found = trained(store[0], 2, settings, "adamw")
    every = [rank["weights"] for group in found for rank in group]
    assert all(torch.equal(one, every[0]) for one in every)
    assert not torch.equal(every[0], weights(network()))
    for leader, other in found:
        sent = leader["sent"]
        assert sent[:4] == [0] * 4
        assert sent[4] == sent[8] < sent[9] == sent[11] < sent[12]
        assert sent[4] <= 4 * SIZE + 32
        assert other["sent"] == [0] * 13
        assert leader["notes"] == {"owes": False, "anchor_step": 13, "groups": 2}
        assert torch.equal(leader["outer"]["outer.anchor"], every[0])
        assert other["outer"] == {}
    if compress == "none":
        assert [group[0]["sent"][4] for group in found] == [4 * SIZE + 32] * 2  # each greets the other
    residuals = [group[0]["outer"]["outer.residual"] for group in found]
    assert all(bool(residual.any()) == (compress != "none") for residual in residuals)


def test_a_restart_is_bitwise(store) -> None:
    """At an outer step, and between two; 2 groups x 2 ranks with lossy messages."""
    settings = config(2, 20, 5, "diloco.compress=int8")
    straight = trained(store[0], 2, settings, "adamw")
    for stop in (10, 13):
        first = trained(store[0], 2, settings, "adamw", stop)
        assert [rank["step"] for group in first for rank in group] == [stop] * 4
        again = trained(store[0], 2, settings, "adamw", 0, first)
        for group in range(2):
            for name, tensor in straight[group][0]["outer"].items():
                assert torch.equal(tensor, again[group][0]["outer"][name]), name
            for rank in range(2):
                assert torch.equal(straight[group][rank]["weights"], again[group][rank]["weights"])


def bad(rank: Rank, store: Any, settings: Config) -> Any:
    net = network()
    outer = Outer(settings, rank, store, net, print)
    step = outer.join(0)
    while step < settings.train.steps:
        if rank.group == 1 and step == 3:
            with torch.no_grad():
                next(net.parameters())[0, 0] = torch.nan
        try:
            step = outer.sync(step + 1)
        except Exception:
            outer.close()
            raise
    outer.close()
    return weights(net)


def test_weights_that_are_not_finite_are_not_sent(store) -> None:
    settings = config(2, 8, 4)
    groups = [Group(store[0], g, 2, 2, bad, settings) for g in range(2)]
    good, (leader, other) = (group.results() for group in groups)
    assert isinstance(leader, NonFiniteError)
    assert isinstance(other, PeerLostError)
    assert "rank 0 of this group" in str(other)
    assert all(weight.isfinite().all() for weight in good)  # the other group went on alone


def late(rank: Rank, store: Any, settings: Config) -> float:
    waiting.TELL_S = 0.3
    outer = Outer(settings, rank, store, network(), print)
    outer.join(0)
    if rank.group == 1:
        time.sleep(3)
    began = time.monotonic()
    outer.sync(1)
    outer.close()
    return time.monotonic() - began


def test_a_group_waits_for_others_longer_than_a_collective_may_take(store) -> None:
    settings = config(2, 1, 1)
    groups = [Group(store[0], g, 2, 2, late, settings, timeout_s=1.5) for g in range(2)]
    waited, punctual = (group.results() for group in groups)
    assert all(seconds > 2 for seconds in waited)
    assert max(punctual) < min(waited)
