"""Codecs against what arithmetic in float64 says, and error feedback against the true mean."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rocstack_trainer.gradients import compress
from rocstack_trainer.gradients.compress import CODECS, Codec, Int8, Zstd

BLOCK = 8  # in property tests, so that short vectors have several blocks and runs
LEVELS = {"int8": 127, "int8+zstd": 127, "int5+zstd": 15, "int4+zstd": 7, "int3+zstd": 3}
BLOCKS = {"int8": 1024, "int8+zstd": 4096, "int5+zstd": 1024, "int4+zstd": 1024, "int3+zstd": 1024}
SMALL = CODECS | {
    name: Int8(BLOCK, levels) if name == "int8" else Zstd(Int8(BLOCK, levels)) for name, levels in LEVELS.items()
}
HALF = 0.5001  # of a scale: the largest error of rounding to nearest, with fp32's own
VALUES = st.lists(st.floats(width=32), max_size=5 * BLOCK)
FINITE = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=5 * BLOCK)
STEPS = st.integers(0, 3 * BLOCK).flatmap(
    lambda numel: st.lists(st.lists(st.floats(width=32), min_size=numel, max_size=numel), min_size=1, max_size=3)
)
TENSOR = {
    "nothing": lambda: torch.zeros(0),
    "one value": lambda: torch.tensor([-3.7]),
    "zeros": lambda: torch.zeros(5000),
    "denormals": lambda: torch.randn(5000) * 1e-41,
    "smallest": lambda: torch.full((3,), 2.0**-149),
    "largest": lambda: torch.tensor([3.4028234e38, -3.4028234e38, 1.0]),
    "one outlier": lambda: torch.randn(4096).index_fill_(0, torch.tensor(77), 1e6),
    "not a whole block": lambda: torch.randn(4097),
    "extremes": lambda: torch.randn(3 * 1024).sign() * 5,
    "several runs": lambda: torch.randn(2 * compress.RUN + 1030) * torch.logspace(-20, 20, 2 * compress.RUN + 1030),
}


@pytest.fixture(autouse=True, scope="module")
def same_numbers() -> None:
    torch.manual_seed(1)


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "RUN", 2 * BLOCK)


def decoded(kind: Codec, data: Tensor, numel: int) -> Tensor:
    out = torch.full((numel,), math.nan, device=data.device)
    kind.decode(data, out)
    return out


def bound(name: str, values: Tensor, block: int) -> Tensor:
    """The largest error allowed for each value, in float64; NaN where the message can't have a finite value."""
    values = values.double()
    if name == "none":
        return torch.where(values.isfinite(), 0.0, math.nan)
    if name == "bf16":  # 8 significant bits, to nearest; far enough above the largest bf16 it is infinite
        largest = torch.finfo(torch.bfloat16).max * (1 + 2**-9)
        return torch.where(values.abs() < largest, values.abs() * 2**-8 + 2.0**-134, math.nan)
    parts = values.split(block)
    scales = torch.stack([(part.abs().max() / LEVELS[name]).clamp(min=2.0**-126) for part in parts])
    allowed = torch.where(scales.isfinite(), scales * HALF, math.nan)
    return allowed.repeat_interleave(torch.tensor([len(part) for part in parts]))


def check(found: Tensor, name: str, values: Tensor, block: int) -> None:
    if not len(values):
        return
    allowed = bound(name, values, block)
    assert torch.equal(found.isfinite(), allowed.isfinite())
    if name in LEVELS:
        assert torch.equal(found.isnan(), allowed.isnan())  # never infinity, the whole block
    error = (found.double() - values.double()).abs()
    assert (error <= allowed)[allowed.isfinite()].all()


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=300, deadline=None)
@given(values=VALUES)
def test_any_vector_comes_back_within_half_a_scale_or_as_not_finite(name: str, values: list[float]) -> None:
    kind = SMALL[name]
    flat = torch.tensor(values, dtype=torch.float32)
    before = flat.clone()
    data = kind.encode(flat)
    assert (data.dtype, data.shape, data.is_contiguous()) == (torch.uint8, (len(data),), True)
    assert kind.size(len(flat)) in (len(data), None)
    assert torch.equal(flat.view(torch.int32), before.view(torch.int32))
    check(decoded(kind, data, len(flat)), name, flat, BLOCK)


@pytest.mark.parametrize("case", TENSOR)
@pytest.mark.parametrize("name", CODECS)
def test_hard_vectors(name: str, case: str) -> None:
    flat, kind = TENSOR[case](), CODECS[name]
    data = kind.encode(flat)
    back = decoded(kind, data, len(flat))
    check(back, name, flat, BLOCKS.get(name, 1024))
    if case == "zeros":
        assert not back.any()
    if case == "extremes":  # no 128, which would wrap
        assert torch.allclose(back, flat, rtol=1e-6 if name in LEVELS else 0, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CODECS)
def test_the_receiver_sees_what_is_not_finite(name: str, bad: float) -> None:
    """In its block only for int8, and in the sum over ranks for all."""
    flat = torch.randn(20_000)
    flat[9000] = bad
    total = torch.zeros(20_000)
    for part in (flat, torch.randn(20_000)):
        CODECS[name].add_to(CODECS[name].encode(part), total)
    wrong = (~total.isfinite()).nonzero().squeeze(1).tolist()
    block = BLOCKS.get(name, 1)
    assert wrong == list(range(9000 // block * block, 9000 // block * block + block))


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=100, deadline=None)
@given(values=FINITE, offset=st.integers(0, 3))
def test_adding_is_decoding(name: str, values: list[float], offset: int) -> None:
    """Also of a message at any place in a receive buffer."""
    kind = SMALL[name]
    flat = torch.tensor(values, dtype=torch.float32)
    message = kind.encode(flat)
    buffer = torch.full((offset + len(message) + 1,), 255, dtype=torch.uint8)
    data = buffer[offset : offset + len(message)].copy_(message)
    plain = decoded(kind, message, len(flat))
    assert torch.equal(decoded(kind, data, len(flat)), plain)
    total = torch.full_like(flat, 2.0)
    kind.add_to(data, total)
    expected = 2 + plain.double()
    assert torch.allclose(total.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CODECS)
def test_a_message_is_not_the_vector_it_was_made_of(name: str) -> None:
    """Which is zeroed for the next step while the message may still be on its way."""
    flat = torch.randn(5000)
    data = CODECS[name].encode(flat)
    before, back = data.clone(), decoded(CODECS[name], data, 5000)
    flat.zero_()
    back.zero_()
    assert torch.equal(data, before)


@pytest.mark.parametrize("name", LEVELS)
def test_sums_do_not_wrap(name: str) -> None:
    """127 + 127 is -2 in int8."""
    total, flat = torch.zeros(3000), torch.full((3000,), 127.0)
    for _ in range(8):
        CODECS[name].add_to(CODECS[name].encode(flat), total)
    assert torch.allclose(total, 8 * flat, rtol=1e-6)


@pytest.mark.parametrize("name", CODECS)
def test_messages_of_another_length_or_damaged_are_refused(name: str) -> None:
    kind = CODECS[name]
    data = kind.encode(torch.randn(5000))
    noise = torch.arange(len(data)).to(torch.uint8)
    cases = [(data, 4999), (data, 5001), (data[:-1], 5000), (data[:20], 5000), (data[:0], 5000)]
    for wrong, numel in cases if kind.size(0) is not None else [*cases, (data, 4000), (noise, 5000)]:
        with pytest.raises(ValueError, match=r"message (has|of) \d+ bytes"):
            decoded(kind, wrong, numel)
        with pytest.raises(ValueError, match=r"message (has|of) \d+ bytes"):
            kind.add_to(wrong, torch.zeros(numel))


def test_the_size_of_incompressible_messages_is_bounded() -> None:
    kind = CODECS["int8+zstd"]
    for numel in (1, 100, 5000, 300_000):
        flat = torch.rand(numel) * 2 - 1  # even: all bytes equally often
        assert 0.95 * numel < len(kind.encode(flat)) <= 1.01 * kind.inner.size(numel) + 64


def test_ratios() -> None:
    """On a heavy-tailed vector, as gradients are (Student's t, 3 degrees of freedom, scaled block by block)."""
    t = np.random.default_rng(1).standard_t(3, 1 << 20) * np.repeat(np.logspace(-6, 0, 64), 1 << 14)
    flat = torch.from_numpy(t.astype(np.float32))
    ratio = {name: flat.nbytes / len(CODECS[name].encode(flat)) for name in CODECS}
    assert (ratio["none"], ratio["bf16"]) == (1, 2)
    assert 3.98 < ratio["int8"] < 4
    assert 5 < ratio["int8+zstd"] < 8
    assert 9 < ratio["int5+zstd"] < 12
    assert 12 < ratio["int4+zstd"] < 18
    assert 18 < ratio["int3+zstd"] < 30


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_message_and_residual_make_the_whole(name: str, steps: list[list[float]]) -> None:
    """Nothing is lost in a finite block; a block that isn't finite doesn't poison the next message."""
    kind, residual = SMALL[name], torch.zeros(len(steps[0]))
    for values in steps:
        flat, before = torch.tensor(values, dtype=torch.float32), residual.clone()
        data = kind.encode(flat, residual)
        whole = flat + before
        back = decoded(kind, data, len(flat))
        check(back, name, whole, BLOCK)
        assert torch.equal(data, kind.encode(whole))
        finite, lost = back.isfinite(), residual
        assert lost.isfinite().all()
        assert not lost[~finite].any()
        rest = (whole.double() - back.double() - lost.double()).abs()[finite]
        assert (rest <= whole.double().abs()[finite] * 2**-23 + 2.0**-149).all()


def messages(name: str, gradient: Callable[[int], Tensor], steps: int, residual: Tensor | None) -> list[Tensor]:
    kind = CODECS[name]
    out = []
    for step in range(steps):
        flat = gradient(step)
        out.append(kind.encode(flat, residual))
    return out


def mean_error(name: str, flat: Tensor, steps: int, residual: Tensor | None) -> float:
    mean = torch.zeros_like(flat)
    for data in messages(name, lambda _: flat, steps, residual):
        CODECS[name].add_to(data, mean)
    return float((mean / steps - flat).norm() / flat.norm())


FIRST = {"bf16": 0.0018, "int8": 0.008, "int8+zstd": 0.009, "int5+zstd": 0.065, "int4+zstd": 0.14}
FIRST["int3+zstd"] = 0.33


@pytest.mark.parametrize(("name", "first"), FIRST.items())
def test_the_mean_over_t_steps_is_off_by_1_over_t(name: str, first: float) -> None:
    flat = torch.randn(20_000)
    once = mean_error(name, flat, 1, torch.zeros(20_000))
    assert first / 1.5 < once < first * 1.5
    assert mean_error(name, flat, 100, None) == pytest.approx(once, rel=1e-3)  # without, it stays
    for steps in (10, 100):
        assert mean_error(name, flat, steps, torch.zeros(20_000)) < 1.5 * once / steps


@pytest.mark.parametrize(("name", "block"), BLOCKS.items())
def test_the_residual_stays_below_a_scale(name: str, block: int) -> None:
    """It doesn't grow with the steps: each message takes all of the one before with it."""
    residual, largest, norms = torch.zeros(8192), torch.zeros(8192 // block), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        flat = torch.randn(8192, generator=generator)
        largest = torch.maximum(largest, flat.view(-1, block).abs().amax(1))
        CODECS[name].encode(flat, residual)
        assert (residual.view(-1, block).abs().amax(1) <= largest / (2 * LEVELS[name] - 1) * 1.01).all()
        norms.append(float(residual.norm() / flat.norm()))
    assert sum(norms[-50:]) < 1.1 * sum(norms[:50])


@pytest.mark.parametrize("name", CODECS)
def test_a_saved_residual_goes_on_bitwise(name: str) -> None:
    drawn = torch.randn(12, 10_000)
    straight = messages(name, drawn.__getitem__, 12, torch.zeros(10_000))
    first, second = torch.zeros(10_000), torch.zeros(10_000)
    messages(name, drawn.__getitem__, 8, first)
    second.copy_(first)
    resumed = messages(name, lambda step: drawn[step + 8], 4, second)
    assert all(map(torch.equal, straight[8:], resumed))
    forgotten = messages(name, lambda step: drawn[step + 8], 4, torch.zeros(10_000))
    assert name == "none" or not torch.equal(forgotten[0], straight[8])


@pytest.mark.parametrize("numel", [0, 1, 1024, 5000])
@pytest.mark.parametrize("name", ["none", "bf16", "int8"])
def test_nothing_waits_for_values(name: str, numel: int) -> None:
    """Off the CPU all blocks are one run, and no value is looked at: a GPU's queue never runs empty for it."""
    flat, kind = torch.empty(numel, device="meta"), CODECS[name]
    data = kind.encode(flat, torch.zeros(numel, device="meta"))
    assert (data.device.type, data.dtype, data.shape) == ("meta", torch.uint8, (kind.size(numel),))
    kind.decode(data, flat)
    kind.add_to(data, flat)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", CODECS)
def test_a_gpu_makes_the_same_messages(name: str) -> None:
    kind = CODECS[name]
    for case in TENSOR.values():
        flat = case()
        here, there = kind.encode(flat), kind.encode(flat.cuda())
        assert there.device.type == "cuda"
        assert torch.equal(there.cpu(), here)
        assert torch.equal(decoded(kind, there, len(flat)).cpu(), decoded(kind, here, len(flat)))
