"""Whether the devices that the image is for work on this node: each is tried, or why that was not possible."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .gate import candidates, unread_devices
from .image_facts import ImageFacts
from .profile import NodeProfile

IBV_QPT_RC = 2
THREADS, QUEUE_PAIRS = 8, 64
UNLISTED = "libibverbs does not list it; `IBV_SHOW_WARNINGS=1 ibv_devices` says why"


class _QpAttributes(ctypes.Structure):
    """struct ibv_qp_init_attr, with its struct ibv_qp_cap in place."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qp_context", "send_cq", "recv_cq", "srq")),
        *((name, ctypes.c_uint32) for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge")),
        ("max_inline_data", ctypes.c_uint32),
        *((name, ctypes.c_int) for name in ("qp_type", "sq_sig_all")),
    ]


class _LinkMap(ctypes.Structure):
    """struct link_map (link.h), as far as it is read."""

    _fields_ = [("l_addr", ctypes.c_void_p), ("l_name", ctypes.c_char_p)]


RTLD_DI_LINKMAP = 2


def libibverbs_file(name: str = "libibverbs.so.1") -> Path:
    """The file that the loader takes here, its links followed.

    Raises:
        OSError: it can't be loaded.
    """
    library = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    found = ctypes.POINTER(_LinkMap)()
    if dlinfo(library._handle, RTLD_DI_LINKMAP, ctypes.byref(found)) or not found:
        raise OSError(f"the loader does not say where {name} is")
    return Path(os.path.realpath(os.fsdecode(found.contents.l_name)))


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
    errors: Mapping[str, int] = field(default_factory=dict)  # the kernel's answer -> how often

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
        check = DeviceCheck(name, wanted=threads * each)
        with ExitStack() as ends:

            def make(what: str, step: str, end: str, *arguments: object) -> Any:
                thing = getattr(self.lib, step)(*arguments)
                if thing:
                    ends.callback(getattr(self.lib, end), thing)
                else:
                    check.failed = f"{what}: {os.strerror(ctypes.get_errno())}"
                return thing

            context = make("it can't be opened", "ibv_open_device", "ibv_close_device", device)
            pd = context and make("no protection domain", "ibv_alloc_pd", "ibv_dealloc_pd", context)
            cq = pd and make("no completion queue", "ibv_create_cq", "ibv_destroy_cq", context, 16, None, None, 0)
            if cq:
                self._pairs(check, pd, cq, threads, each)
        return check

    def _pairs(self, check: DeviceCheck, pd: int, cq: int, threads: int, each: int) -> None:
        start = threading.Barrier(threads)

        def work(_: int) -> list[tuple[int | None, str]]:
            start.wait()
            made = []
            for _ in range(each):
                attributes = _QpAttributes(None, cq, cq, None, 1, 1, 1, 1, 0, IBV_QPT_RC, 0)
                pair = self.lib.ibv_create_qp(pd, ctypes.byref(attributes))
                made.append((pair, os.strerror(ctypes.get_errno())))
            return made

        with ThreadPoolExecutor(threads) as pool:
            made = [row for rows in pool.map(work, range(threads)) for row in rows]
        pairs = [pair for pair, _ in made if pair]
        for pair in pairs:
            self.lib.ibv_destroy_qp(pair)
        check.queue_pairs = len(pairs)
        check.errors = Counter(answer for pair, answer in made if not pair)
        if not pairs:
            check.failed = f"no queue pair: {', '.join(check.errors)}"


@dataclass(frozen=True)
class RdmaCheck:
    """`works` is None where nothing could be tried; `lines` are sentences, one a device."""

    works: bool | None
    lines: tuple[str, ...] = ()


def check_rdma(image: ImageFacts, node: NodeProfile, *, many: bool = False) -> RdmaCheck:
    """Exactly the node's devices of the image's NIC, as the kernel names them: one that libibverbs doesn't list has
    failed, and others (a card for management) don't count. `many`: several queue pairs from several threads."""
    unseen = unread_devices(node)
    names = [device.name for devices in candidates(image, node) for device in devices]
    if not image.providers:
        why = f"there is no provider library to try: the image is built for {image.nic or 'no NIC'}"
    elif node.virtual:
        why = f"virtual {node.virtual}: its devices can't be opened, none was tried"
    elif unseen:
        why = f"there may be RDMA devices that could not be read: {unseen}"
    elif not names:
        why = f"no device of a {image.nic} NIC to try"
    else:
        return check_devices(names, many=many)
    return RdmaCheck(None, (why,))


def check_devices(names: list[str] | None = None, *, many: bool = False) -> RdmaCheck:
    """Without `names` every device that libibverbs lists."""
    try:
        proofs = LibVerbs().prove(names, threads=THREADS if many else 1, each=QUEUE_PAIRS if many else 1)
    except OSError as error:
        return RdmaCheck(False, (f"libibverbs can't be loaded: {error}",))
    if not proofs:
        return RdmaCheck(None, ("libibverbs lists no device; `IBV_SHOW_WARNINGS=1 ibv_devices` says why",))
    return RdmaCheck(all(proof.ok for proof in proofs), tuple(proof.sentence for proof in proofs))
