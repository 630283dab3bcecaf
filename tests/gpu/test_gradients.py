"""What carries gradients, on tensors of the device: codecs, pinned copies, streams, buckets; and PyTorch's DDP as the
judge."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from conftest import DEVICE
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from rocstack_trainer import all_reduce_check, optimizer
from rocstack_trainer.config import Train
from rocstack_trainer.gradients import compress, flat, team
from rocstack_trainer.gradients.buckets import Buckets, Gradients, Line
from rocstack_trainer.gradients.collectives import Bf16, Collective, Compressed, Flat, Maker
from rocstack_trainer.gradients.compress import CODECS
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.models import fingerprint
from rocstack_trainer.precision import autocast
from rocstack_trainer.rank import Rank

# Values of a block and levels on either side of 0.
INTEGERS = {"int8": (1024, 127), "int8+zstd": (4096, 127)}
INTEGERS |= {"int5+zstd": (1024, 15), "int4+zstd": (1024, 7), "int3+zstd": (1024, 3)}
VALUES: dict[str, Callable[[], Tensor]] = {
    "one value": lambda: torch.tensor([-3.7]),
    "zeros": lambda: torch.zeros(5000),
    "one outlier": lambda: torch.randn(4096).index_fill_(0, torch.tensor(77), 1e6),
    "not a whole block": lambda: torch.randn(4097),
    "many sizes": lambda: torch.randn(300_001) * torch.logspace(-20, 20, 300_001),
    "a large layer": lambda: torch.randn(16_000_000),
}


def busy() -> None:
    """Keeps the current stream at work for some ms, so that who doesn't wait for it reads what was before."""
    side = 64 if DEVICE == "cpu" else 4096
    matrix = torch.randn(side, side, device=DEVICE) / math.sqrt(side)
    for _ in range(32):
        matrix = matrix @ matrix
        matrix /= matrix.norm()


def error_allowed(name: str, values: Tensor) -> Tensor:
    """Of each value, in float64: half of bf16's last bit, or half of its block's scale."""
    wide = values.double()
    if name == "none":
        return torch.zeros_like(wide)
    if name == "bf16":
        return wide.abs() * 2**-8 + 2.0**-134
    block, levels = INTEGERS[name]
    scales = [(part.abs().max() / levels).clamp(min=2.0**-126) * 0.5001 for part in wide.split(block)]
    return torch.stack(scales).repeat_interleave(block)[: len(wide)]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("kind", VALUES)
def test_codecs_lose_no_more_than_they_say(name: str, kind: str) -> None:
    values = VALUES[kind]()
    there, codec = values.to(DEVICE), CODECS[name]
    data = codec.encode(there)
    assert data.device.type == DEVICE
    found, twice = torch.full_like(there, math.nan), there.clone()
    codec.decode(data, found)
    assert ((found.cpu().double() - values.double()).abs() <= error_allowed(name, values)).all()
    codec.add_to(data, twice)
    torch.testing.assert_close(twice, there + found, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", CODECS)
def test_a_message_of_the_device_is_read_on_a_cpu(name: str) -> None:
    """Groups of DiLoCo encode on CPUs, ranks on GPUs; a message means the same to both."""
    values = torch.randn(10_000)
    there, here = torch.empty(10_000, device=DEVICE), torch.empty(10_000)
    data = CODECS[name].encode(values.to(DEVICE))
    CODECS[name].decode(data, there)
    CODECS[name].decode(data.cpu(), here)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", [name for name in CODECS if name != "none"])
def test_error_feedback_loses_nothing_over_the_steps(name: str) -> None:
    values = torch.randn(20_000, device=DEVICE)
    residual, total, found = (torch.zeros_like(values) for _ in range(3))
    steps = 50
    for _ in range(steps):
        CODECS[name].decode(CODECS[name].encode(values, residual), found)
        total += found
    assert residual.device.type == DEVICE
    owed = (total + residual - steps * values).abs().max()
    assert owed <= 1e-3 * values.abs().max(), "what was sent and what is owed make up the whole"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_arrives_as_such(bad: float) -> None:
    values = torch.randn(3000, device=DEVICE)
    values[1500] = bad
    for codec in CODECS.values():
        found = torch.zeros_like(values)
        codec.decode(codec.encode(values), found)
        assert not found[1500].isfinite()


def test_pinned_copies_wait_for_what_is_under_way() -> None:
    """DiLoCo's anchor is in pinned memory of the host: it must see finished weights, and give whole ones back."""
    numel = 4_000_000
    pinned = torch.zeros(numel, pin_memory=DEVICE != "cpu")
    parameters = [torch.zeros(numel // 4, device=DEVICE) for _ in range(4)]
    for value in (1.0, 2.0, 3.0):
        busy()
        for parameter in parameters:
            parameter.fill_(value)
        flat.gather(parameters, pinned)
        assert pinned.min() == pinned.max() == value
        pinned.mul_(-1)
        busy()
        flat.scatter(pinned, parameters)
        pinned.zero_()  # the copy must not read this
        assert all((parameter == -value).all() for parameter in parameters)


class Slow(Collective):
    """Doubles, late."""

    def __call__(self, flat: Tensor) -> None:
        busy()
        flat.mul_(2)


def test_the_line_waits_for_backward_and_the_optimizer_for_the_line() -> None:
    line = Line(torch.device(DEVICE))
    buckets = [torch.zeros(1_000_000, device=DEVICE) for _ in range(4)]
    for step in range(1, 6):
        waits = []
        for number, bucket in enumerate(buckets):
            busy()
            bucket.fill_(step + number)  # by the current stream: the line's must not be early
            waits.append(line.start(Slow(), bucket))
        for wait in waits:
            wait()
        sums = [bucket.clone() for bucket in buckets]  # by the current stream: it must not be early either
        for number, total in enumerate(sums):
            assert (total == 2 * (step + number)).all(), f"step {step}, bucket {number}"
    line.pool.shutdown()


def test_what_fails_on_the_line_is_raised_where_it_is_waited_for() -> None:
    class Fails(Collective):
        def __call__(self, flat: Tensor) -> None:
            raise ValueError("a message is damaged")

    line = Line(torch.device(DEVICE))
    wait = line.start(Fails(), torch.zeros(8, device=DEVICE))
    with pytest.raises(ValueError, match="damaged"):
        wait()
    line.pool.shutdown()


def net() -> torch.nn.Module:
    """Two layers share a weight, and one takes no part: backward meets all kinds of parameters."""
    layers = [torch.nn.Embedding(64, 48), *(torch.nn.Linear(48, 48) for _ in range(4)), torch.nn.Linear(48, 64)]
    made = torch.nn.Sequential(*layers)
    made[-1].weight = made[0].weight
    return made.to(DEVICE)


def backward(model: torch.nn.Module, gradients: Gradients | None = None, precision: str = "fp32") -> Tensor:
    """The gradient of two micro-batches."""
    tokens = torch.randint(64, (2, 32), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    if gradients:
        gradients.zero()
    for last, part in enumerate(tokens):
        with autocast(precision, DEVICE):
            loss = torch.nn.functional.cross_entropy(model(part).float(), part.roll(1)) / 2
        gradients.backward(loss, last=bool(last)) if gradients else loss.backward()
    if gradients:
        gradients.finish()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]).clone()


def of_plan(algorithm: str, parameters: list[torch.nn.Parameter], rank: Rank) -> Gradients:
    if algorithm == "alone":
        return Gradients(parameters)
    if algorithm == "line":
        return Buckets(parameters, 12_000, OnTheLine)
    return Buckets(parameters, 12_000, Maker(Plan(algorithm, "none", [[0]], "", ""), rank, 60))


class OnTheLine(Collective):
    """The backend's sum, as one of our own collectives: those run on the line and in its stream."""

    def __init__(self, numel: int) -> None:
        self.inner = Flat(team.everybody())

    def __call__(self, flat: Tensor) -> None:
        self.inner(flat)


@pytest.mark.parametrize("algorithm", ["alone", "flat", "line"])
def test_gradients_are_those_of_ddp(rank: Rank, algorithm: str) -> None:
    """Buckets by the backend's own all-reduce (flat), and over our own line and stream."""
    ours = net()
    theirs = DistributedDataParallel(copy.deepcopy(ours), device_ids=None if DEVICE == "cpu" else [0])
    gradients = of_plan(algorithm, list(ours.parameters()), rank)
    for _ in range(3):  # a later step must not see an earlier one's gradient
        theirs.zero_grad()
        torch.testing.assert_close(backward(ours, gradients), backward(theirs), rtol=1e-5, atol=1e-7)
    gradients.close()


def test_bf16_computes_in_bf16_and_keeps_weights_in_fp32(rank: Rank) -> None:
    exact, rounded = net(), net()
    rounded.load_state_dict(exact.state_dict())
    one = backward(exact, of_plan("alone", list(exact.parameters()), rank))
    other = backward(rounded, of_plan("flat", list(rounded.parameters()), rank), "bf16")
    assert {parameter.grad.dtype for parameter in rounded.parameters()} == {torch.float32}
    apart = float((one - other).norm() / one.norm())
    assert 1e-5 < apart < 0.05, "bf16 has 8 bits: neither the same nor far off"


def test_our_collectives_in_a_group_of_one(rank: Rank) -> None:
    """The sum of one rank is what it has, but for the codec's rounding, once as a part and once in the sum."""
    values = torch.randn(100_003, device=DEVICE)
    every = team.everybody()
    for name in CODECS:
        found = values.clone()
        Compressed(every, CODECS[name], len(values), rank.device)(found)
        apart = (found - values).cpu().double().abs()
        assert (apart <= 2 * error_allowed(name, values.cpu())).all(), name
    for exact, tolerance in ((Flat(every), 0.0), (Bf16(every), 2**-8)):
        found = values.clone()
        exact(found)
        torch.testing.assert_close(found, values, rtol=tolerance, atol=0)


def test_the_backend_adds_up(rank: Rank) -> None:
    values = torch.arange(1 << 20, device=DEVICE, dtype=torch.float32)
    kept = values.clone()
    team.everybody().all_reduce(values).wait()
    assert torch.equal(values, kept)
    assert all_reduce_check.SIZES[-1] == len(values)
    share = torch.zeros_like(values)
    team.everybody().all_gather(share, team.everybody().reduce_scatter(values))
    assert torch.equal(share, kept)


def test_checksums_and_weights_are_those_of_a_cpu() -> None:
    model = net()
    here = copy.deepcopy(model).cpu()
    both = [fingerprint.sha256(fingerprint.weights(each)) for each in (model, here)]
    assert both[0] == both[1]
    before = fingerprint.checksum(fingerprint.weights(model).values())
    with torch.no_grad():
        model[2].bias[7] = torch.nextafter(model[2].bias[7], torch.tensor(math.inf, device=DEVICE))
    assert fingerprint.checksum(fingerprint.weights(model).values()) != before, "one bit is another"


def test_the_optimizer_does_what_it_does_on_a_cpu() -> None:
    model = net()
    here = copy.deepcopy(model).cpu()
    settings = Train(steps=20)
    pairs = [(each, optimizer.make(each, settings)) for each in (model, here)]
    for step in range(20):
        for each, adam in pairs:
            draw = torch.Generator().manual_seed(step)
            for parameter in each.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=draw).to(parameter.device)
            optimizer.set_rate(adam, settings, step)
            adam.step()
    for one, other in zip(model.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-6)


def test_runs_of_blocks_are_whole_on_a_device() -> None:
    """A CPU goes through a vector in runs that stay in its cache, a GPU in one; the message is the same."""
    values = torch.randn(compress.RUN + 1030)
    codec = CODECS["int8"]
    found = [torch.empty(len(values)) for _ in range(2)]
    codec.decode(codec.encode(values), found[0])
    codec.decode(codec.encode(values.to(DEVICE)).cpu(), found[1])
    assert float((found[0] - found[1]).norm() / values.norm()) < 1e-3
