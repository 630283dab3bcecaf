"""Tries for real whether RDMA works here: open device, PD, CQ, QP; and many queue pairs from several threads.

Through the image's own libibverbs, whose exported functions and `struct ibv_qp_init_attr` have been the same since
1.1 (libibverbs/verbs.h). 33 to 66 of 512 queue pairs fail with the bnxt_re provider of rdma-core 39 and 50
(ROCm/MAD pull request 200).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

IBV_QPT_RC = 2
THREADS, EACH = 8, 64
UNLISTED = "libibverbs does not list it; `IBV_SHOW_WARNINGS=1 ibv_devices` says why"


class _Attr(ctypes.Structure):
    """struct ibv_qp_init_attr, with its struct ibv_qp_cap in place."""

    _fields_ = [
        ("qp_context", ctypes.c_void_p),
        ("send_cq", ctypes.c_void_p),
        ("recv_cq", ctypes.c_void_p),
        ("srq", ctypes.c_void_p),
        ("max_send_wr", ctypes.c_uint32),
        ("max_recv_wr", ctypes.c_uint32),
        ("max_send_sge", ctypes.c_uint32),
        ("max_recv_sge", ctypes.c_uint32),
        ("max_inline_data", ctypes.c_uint32),
        ("qp_type", ctypes.c_int),
        ("sq_sig_all", ctypes.c_int),
    ]


def unloadable(names: Sequence[str]) -> list[str]:
    """Why the loader takes some of these shared libraries not, in its own words."""
    said = []
    for name in names:
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            said.append(str(error))
    return said


@dataclass
class Proof:
    """One device: `failed` names the first step that did not work, with the kernel's answer."""

    device: str
    failed: str | None = None
    queue_pairs: int = 0  # that could be made, of `wanted`
    wanted: int = 0
    errors: dict[str, int] = field(default_factory=dict)  # the kernel's answer -> how often

    @property
    def ok(self) -> bool:
        return self.failed is None and self.queue_pairs == self.wanted

    @property
    def says(self) -> str:
        if self.failed:
            return f"{self.device}: {self.failed}"
        if self.queue_pairs < self.wanted:
            why = ", ".join(f"{text} ({count} times)" for text, count in self.errors.items())
            return f"{self.device}: {self.queue_pairs} of {self.wanted} queue pairs: {why}"
        return f"{self.device}: device, PD, CQ and {self.wanted} queue pair{'s' if self.wanted > 1 else ''} work"


class Verbs:
    """libibverbs as it is loaded here."""

    def __init__(self, library: str = "libibverbs.so.1") -> None:
        self.lib = ctypes.CDLL(library, use_errno=True)
        pointer, number = ctypes.c_void_p, ctypes.c_int
        for name, result, arguments in (
            ("ibv_get_device_list", ctypes.POINTER(pointer), [ctypes.POINTER(number)]),
            ("ibv_free_device_list", None, [ctypes.POINTER(pointer)]),
            ("ibv_get_device_name", ctypes.c_char_p, [pointer]),
            ("ibv_open_device", pointer, [pointer]),
            ("ibv_close_device", number, [pointer]),
            ("ibv_alloc_pd", pointer, [pointer]),
            ("ibv_dealloc_pd", number, [pointer]),
            ("ibv_create_cq", pointer, [pointer, number, pointer, pointer, number]),
            ("ibv_destroy_cq", number, [pointer]),
            ("ibv_create_qp", pointer, [pointer, ctypes.POINTER(_Attr)]),
            ("ibv_destroy_qp", number, [pointer]),
        ):
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments

    def prove(self, names: Sequence[str] | None = None, *, threads: int = 1, each: int = 1) -> list[Proof]:
        """The devices called `names`, else every one that libibverbs lists; `threads` x `each` queue pairs at once."""
        count = ctypes.c_int()
        devices = self.lib.ibv_get_device_list(ctypes.byref(count))
        try:
            listed = {self.lib.ibv_get_device_name(devices[i]).decode(): devices[i] for i in range(count.value)}
            wanted = listed if names is None else names
            return [
                self._device(name, listed[name], threads, each) if name in listed else Proof(name, UNLISTED)
                for name in wanted
            ]
        finally:
            if devices:
                self.lib.ibv_free_device_list(devices)

    def _device(self, name: str, device: int, threads: int, each: int) -> Proof:
        context = self.lib.ibv_open_device(device)
        if not context:
            return Proof(name, _failed("it can't be opened"))
        try:
            pd = self.lib.ibv_alloc_pd(context)
            if not pd:
                return Proof(name, _failed("no protection domain"))
            try:
                return self._pairs(name, context, pd, threads, each)
            finally:
                self.lib.ibv_dealloc_pd(pd)
        finally:
            self.lib.ibv_close_device(context)

    def _pairs(self, name: str, context: int, pd: int, threads: int, each: int) -> Proof:
        proof = Proof(name, wanted=threads * each)
        made: list[int] = []
        guard = threading.Lock()
        gate = threading.Barrier(threads)
        queue = self.lib.ibv_create_cq(context, 16, None, None, 0)
        if not queue:
            proof.failed = _failed("no completion queue")
            return proof

        def work() -> None:
            gate.wait()
            for _ in range(each):
                attr = _Attr(None, queue, queue, None, 1, 1, 1, 1, 0, IBV_QPT_RC, 0)
                pair = self.lib.ibv_create_qp(pd, ctypes.byref(attr))
                answer = os.strerror(ctypes.get_errno())
                with guard:
                    if pair:
                        made.append(pair)
                    else:
                        proof.errors[answer] = proof.errors.get(answer, 0) + 1

        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        proof.queue_pairs = len(made)
        for pair in made:
            self.lib.ibv_destroy_qp(pair)
        self.lib.ibv_destroy_cq(queue)
        if not made:
            proof.failed = f"no queue pair: {', '.join(proof.errors)}"
        return proof


def _failed(what: str) -> str:
    return f"{what}: {os.strerror(ctypes.get_errno())}"
