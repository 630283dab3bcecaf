"""Whether the devices that the image is for work on this node: each is tried, or why that was not possible."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from .gate import candidates, unread_devices
from .image_facts import ImageFacts
from .profile import NodeProfile

IBV_QPT_RC = 2
THREADS, QUEUE_PAIRS = 8, 64
UNLISTED = "libibverbs does not list it; `IBV_SHOW_WARNINGS=1 ibv_devices` says why"


class _QpAttributes(ctypes.Structure):
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
    errors = []
    for name in names:
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            errors.append(str(error))
    return errors


@dataclass
class DeviceCheck:
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
    def sentence(self) -> str:
        if self.failed:
            return f"{self.device}: {self.failed}"
        if self.queue_pairs < self.wanted:
            why = ", ".join(f"{text} ({count} times)" for text, count in self.errors.items())
            return f"{self.device}: {self.queue_pairs} of {self.wanted} queue pairs: {why}"
        return f"{self.device}: device, PD, CQ and {self.wanted} queue pair{'s' if self.wanted > 1 else ''} work"


class LibVerbs:
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
            ("ibv_create_qp", pointer, [pointer, ctypes.POINTER(_QpAttributes)]),
            ("ibv_destroy_qp", number, [pointer]),
        ):
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments

    def prove(self, names: Sequence[str] | None = None, *, threads: int = 1, each: int = 1) -> list[DeviceCheck]:
        """The devices called `names`, else every one that libibverbs lists; `threads` x `each` queue pairs at once."""
        count = ctypes.c_int()
        devices = self.lib.ibv_get_device_list(ctypes.byref(count))
        try:
            listed = {self.lib.ibv_get_device_name(devices[i]).decode(): devices[i] for i in range(count.value)}
            chosen = listed if names is None else names
            return [
                self._device(name, listed[name], threads, each) if name in listed else DeviceCheck(name, UNLISTED)
                for name in chosen
            ]
        finally:
            if devices:
                self.lib.ibv_free_device_list(devices)

    def _device(self, name: str, device: int, threads: int, each: int) -> DeviceCheck:
        context = self.lib.ibv_open_device(device)
        if not context:
            return DeviceCheck(name, _failed("it can't be opened"))
        try:
            pd = self.lib.ibv_alloc_pd(context)
            if not pd:
                return DeviceCheck(name, _failed("no protection domain"))
            try:
                return self._pairs(name, context, pd, threads, each)
            finally:
                self.lib.ibv_dealloc_pd(pd)
        finally:
            self.lib.ibv_close_device(context)

    def _pairs(self, name: str, context: int, pd: int, threads: int, each: int) -> DeviceCheck:
        proof = DeviceCheck(name, wanted=threads * each)
        pairs: list[int] = []
        guard = threading.Lock()
        gate = threading.Barrier(threads)
        queue = self.lib.ibv_create_cq(context, 16, None, None, 0)
        if not queue:
            proof.failed = _failed("no completion queue")
            return proof

        def work() -> None:
            gate.wait()
            for _ in range(each):
                attr = _QpAttributes(None, queue, queue, None, 1, 1, 1, 1, 0, IBV_QPT_RC, 0)
                pair = self.lib.ibv_create_qp(pd, ctypes.byref(attr))
                answer = os.strerror(ctypes.get_errno())
                with guard:
                    if pair:
                        pairs.append(pair)
                    else:
                        proof.errors[answer] = proof.errors.get(answer, 0) + 1

        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        proof.queue_pairs = len(pairs)
        for pair in pairs:
            self.lib.ibv_destroy_qp(pair)
        self.lib.ibv_destroy_cq(queue)
        if not pairs:
            proof.failed = f"no queue pair: {', '.join(proof.errors)}"
        return proof


def _failed(what: str) -> str:
    return f"{what}: {os.strerror(ctypes.get_errno())}"


@dataclass(frozen=True)
class RdmaCheck:
    """`works` is None where nothing could be tried; `lines` are sentences, one a device."""

    works: bool | None
    lines: tuple[str, ...] = ()


def check_rdma(image: ImageFacts, node: NodeProfile, *, many: bool = False) -> RdmaCheck:
    """Exactly the node's devices of the image's NIC, as the kernel names them: one that libibverbs doesn't list has
    failed, and others (a card for management) don't count. `many`: several queue pairs from several threads."""
    if not image.providers:
        return RdmaCheck(
            None, (f"there is no provider library to try: the image is built for {image.nic or 'no NIC'}",)
        )
    if node.virtual:
        return RdmaCheck(None, (f"virtual {node.virtual}: its devices can't be opened, none was tried",))
    unseen = unread_devices(node)
    if unseen:
        return RdmaCheck(None, (f"there may be RDMA devices that could not be read: {unseen}",))
    names = [device.name for devices in candidates(image, node) for device in devices]
    if not names:
        return RdmaCheck(None, (f"no device of a {image.nic} NIC to try",))
    return check_devices(names, many=many)


def check_devices(names: list[str] | None = None, *, many: bool = False) -> RdmaCheck:
    """Without `names` every device that libibverbs lists."""
    try:
        proofs = LibVerbs().prove(names, threads=THREADS if many else 1, each=QUEUE_PAIRS if many else 1)
    except OSError as error:
        return RdmaCheck(False, (f"libibverbs can't be loaded: {error}",))
    if not proofs:
        return RdmaCheck(None, ("libibverbs lists no device; `IBV_SHOW_WARNINGS=1 ibv_devices` says why",))
    return RdmaCheck(all(proof.ok for proof in proofs), tuple(proof.sentence for proof in proofs))
