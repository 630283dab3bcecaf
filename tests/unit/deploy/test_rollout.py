"""An update in waves: whatever fails, whenever it is interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from rocstack.cluster.operation import RolloutSettings, how_many
from rocstack.deploy.work.rolling import RolloutState

NODES = st.integers(0, 60).map(lambda n: tuple(f"n{i}" for i in range(1, n + 1)))
SHARES = st.one_of(st.integers(0, 70), st.integers(0, 100).map(lambda n: f"{n}%"))
WAVES = st.fixed_dictionaries({"canary": SHARES, "wave": SHARES})


def begin(
    nodes: Iterable[str], groups: Mapping[str, str] | None = None, failures: int | str = 1, **how: int | str
) -> RolloutState:
    """Also with amounts that the settings refuse."""
    whole = {**RolloutSettings().model_dump(), "failures": failures, **how}
    return RolloutState.begin(nodes, RolloutSettings.model_construct(None, **whole), groups or {})


@given(NODES, WAVES, st.randoms(use_true_random=False))
def test_every_node_once_and_the_canary_first(
    nodes: tuple[str, ...], how: dict[str, int | str], chance: object
) -> None:
    groups = {node: chance.choice("abc") for node in nodes}
    waves = begin(nodes, groups, **how).waves
    assert sorted(node for wave in waves for node in wave) == sorted(nodes)
    assert all(waves)
    first = min(how_many(how["canary"], len(nodes)), len(nodes))
    if first:
        assert len(waves[0]) == first
    most = max(1, how_many(how["wave"], len(nodes)))
    assert all(len(wave) <= most for wave in waves[bool(first) :])


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 12))
def test_a_wave_takes_of_each_rack_its_part(racks: int, size: int, wave: int) -> None:
    groups = {f"r{rack}n{n}": f"r{rack}" for rack in range(racks) for n in range(size)}
    for each in begin(groups, groups, canary=0, wave=wave).waves:
        taken = Counter(groups[node] for node in each)
        counts = [taken[f"r{rack}"] for rack in range(racks)]
        assert max(counts) - min(counts) <= 1


def play(rollout: RolloutState, bad: set[str]) -> tuple[RolloutState, list[tuple[str, ...]]]:
    waves = []
    while wave := rollout.next():
        assert not set(wave) & (rollout.done | rollout.failed)
        waves.append(wave)
        rollout = rollout.note(done=set(wave) - bad, failed=set(wave) & bad)
    return rollout, waves


@given(NODES, WAVES, SHARES, st.data())
def test_failures_stay_within_the_budget_and_one_wave(
    nodes: tuple[str, ...], how: dict[str, int | str], budget: int | str, data: st.DataObject
) -> None:
    bad = set(data.draw(st.lists(st.sampled_from(nodes)))) if nodes else set()
    begun = begin(nodes, failures=budget, **how)
    ended, waves = play(begun, bad)
    last = len(waves[-1]) if waves else 0
    assert len(ended.failed) <= how_many(budget, len(nodes)) + last
    assert ended.done | ended.failed | set(ended.untouched) == set(nodes)
    assert bool(ended.stopped) == bool(ended.untouched)
    assert ended.failed <= bad
    if not bad:
        assert ended.done == set(nodes)
    if begun.canary and set(begun.waves[0]) & bad:
        assert len(waves) == 1


def test_why_it_stopped() -> None:
    nodes = tuple(f"n{i}" for i in range(1, 9))
    ended, _ = play(begin(nodes, wave=2, failures=1), {"n2", "n3"})
    assert ended.stopped == "2 nodes failed, 1 may"
    assert ended.untouched == nodes[3:]
    ended, _ = play(begin(nodes, failures="100%"), {"n1"})
    assert ended.stopped == "the canary failed: n1"
