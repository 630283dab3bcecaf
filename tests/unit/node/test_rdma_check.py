"""The trial of RDMA devices: which are tried, and what counts as working. libibverbs is a stand-in of the same shape;
tests/rdma has the real one."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from typing import Any

import pytest

from rocstack.node import rdma_check
from rocstack.node.rdma_check import QUEUE_PAIRS, THREADS, UNLISTED, LibVerbs


class Library:
    """Device `name` gives up at the step of the same name in `broken`."""

    def __init__(self, names: Sequence[str], broken: dict[str, str] | None = None, lost: int = 0) -> None:
        self.names, self.broken, self.lost = list(names), broken or {}, lost
        self.opened: list[str] = []
        self.open_things = 0

    def ibv_get_device_list(self, count: Any) -> list[str]:
        count._obj.value = len(self.names)
        return self.names

    def ibv_free_device_list(self, devices: list[str]) -> None:
        assert devices is self.names

    def ibv_get_device_name(self, device: str) -> bytes:
        return device.encode()

    def _make(self, step: str, device: int) -> int | None:
        """What is made of a device is the device's number, from 1."""
        if self.broken.get(self.names[device - 1]) == step:
            ctypes.set_errno(errno.EINVAL)
            return None
        self.open_things += 1
        return device

    def _end(self, thing: int) -> int:
        self.open_things -= 1
        return 0

    def ibv_open_device(self, device: str) -> int | None:
        self.opened.append(device)
        return self._make("open", self.names.index(device) + 1)

    def ibv_alloc_pd(self, context: int) -> int | None:
        return self._make("pd", context)

    def ibv_create_cq(self, context: int, *_: object) -> int | None:
        return self._make("cq", context)

    def ibv_create_qp(self, pd: int, _: object) -> int | None:
        if self.lost:
            self.lost -= 1
            ctypes.set_errno(errno.ENOMEM)
            return None
        return self._make("qp", pd)

    ibv_close_device = ibv_dealloc_pd = ibv_destroy_cq = ibv_destroy_qp = _end


def verbs(library: Library) -> LibVerbs:
    made = object.__new__(LibVerbs)
    made.lib = library  # type: ignore[assignment]
    return made


def test_exactly_the_named_devices_are_tried() -> None:
    library = Library(["mlx5_bond_0", "bnxt_re1", "bnxt_re0"], {"mlx5_bond_0": "open"})
    proofs = verbs(library).prove(["bnxt_re0", "bnxt_re1", "bnxt_re2"])
    assert [(proof.device, proof.ok) for proof in proofs] == [
        ("bnxt_re0", True), ("bnxt_re1", True), ("bnxt_re2", False),
    ]  # fmt: skip
    assert proofs[2].sentence == f"bnxt_re2: {UNLISTED}"
    assert library.opened == ["bnxt_re0", "bnxt_re1"]
    assert library.open_things == 0


def test_without_names_all_are_tried() -> None:
    proofs = verbs(Library(["mlx5_0", "bnxt_re0"], {"mlx5_0": "open"})).prove()
    assert [proof.sentence for proof in proofs] == [
        "mlx5_0: it can't be opened: Invalid argument",
        "bnxt_re0: device, PD, CQ and 1 queue pair work",
    ]
    assert verbs(Library([])).prove() == []


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("pd", "no protection domain: Invalid argument"),
        ("cq", "no completion queue: Invalid argument"),
        ("qp", "no queue pair: Invalid argument"),
    ],
)
def test_the_first_step_that_fails_is_said(step: str, says: str) -> None:
    library = Library(["a"], {"a": step})
    (proof,) = verbs(library).prove(["a"])
    assert (proof.ok, proof.sentence) == (False, f"a: {says}")
    assert library.open_things == 0


def test_some_lost_queue_pairs_are_counted() -> None:
    library = Library(["a"], lost=33)
    (proof,) = verbs(library).prove(["a"], threads=THREADS, each=QUEUE_PAIRS)
    assert (proof.ok, proof.sentence) == (False, "a: 479 of 512 queue pairs: Cannot allocate memory (33 times)")
    assert library.open_things == 0


def test_the_trial_needs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_check, "LibVerbs", lambda: verbs(Library(["a", "b"], {"b": "pd"})))
    assert rdma_check.check_devices(["a"]).works is True
    assert rdma_check.check_devices(["a", "b"]).works is False
    assert rdma_check.check_devices(["a", "c"]).works is False
    assert rdma_check.check_devices().works is False
    monkeypatch.setattr(rdma_check, "LibVerbs", lambda: verbs(Library([])))
    assert rdma_check.check_devices().works is None


def test_without_libibverbs_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_check, "LibVerbs", lambda: LibVerbs("libibverbs.so.none"))
    assert rdma_check.check_devices(["a"]).works is False
    assert "libibverbs can't be loaded" in rdma_check.check_devices(["a"]).lines[0]
