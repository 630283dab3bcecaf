"""A connection to a store (PyTorch's TCPStore), whose failures say who and where."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from rocstack_trainer.errors import ConfigError, PeerLostError
from rocstack_trainer.ranks import secret

if TYPE_CHECKING:
    from torch.distributed import Store

LISTENING = "ROCSTACK_TRAINER_STORE_FD"  # a socket that rank 0 takes over as its store's
ANYWHERE = ("::", "0.0.0.0")
ENDING = (signal.SIGTERM, signal.SIGINT)


def address(text: str) -> tuple[str, int]:
    """Raises ConfigError unless `text` is HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"parallel.store={text} is not HOST:PORT")
    return host.strip("[]"), int(port)


def host(name: str, port: int, timeout_s: float, doors: Iterable[str] = ()) -> Store:
    """Rank 0's own store, for the ranks of one start, at the first of `doors` that is an address of this machine.

    Raises:
        PeerLostError: the port is taken.
    """
    try:
        listening = listen(port, doors)
    except OSError as error:
        raise PeerLostError(f"port {port} of {name}: {error.strerror}\n  set MASTER_PORT to a free one") from None
    return _serve(name, listening, timeout_s)


def listen(port: int, doors: Iterable[str] = ()) -> socket.socket:
    """The socket that the program which started this one already has, or a new one: at the first of `doors` that is an
    address of this machine, at all interfaces if none is. Raises OSError."""
    if given := os.environ.get(LISTENING):
        return socket.socket(fileno=int(given))
    for door in doors:
        try:
            return socket.create_server((door, port), backlog=1024)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    family = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
    return socket.create_server(("", port), backlog=1024, **family)


def _serve(name: str, listening: socket.socket, timeout_s: float) -> Store:
    """A store in this process, which takes over the socket. `name` is where it reaches itself, if that is anywhere."""
    from torch.distributed import TCPStore

    own, port = listening.getsockname()[:2]
    # With libuv a request costs the same with two thousand ranks as with two. Debian's PyTorch is built without.
    for libuv in (True, False):
        descriptor = os.dup(listening.fileno())
        try:
            store = TCPStore(
                name if own in ANYWHERE else own,
                port,
                is_master=True,
                wait_for_workers=False,  # `meet` does, and says who is missing
                timeout=timedelta(seconds=timeout_s),
                master_listen_fd=descriptor,
                use_libuv=libuv,
            )
            break
        except RuntimeError:
            if not libuv:
                raise
            with suppress(OSError):  # it hasn't taken it over: whoever came after the store's end would wait here
                os.close(descriptor)
    listening.close()
    return _corner(store)


def serve(port: int, host: str = "") -> int:
    """Prints `store: HOST:PORT` and serves until SIGTERM or Ctrl-C. Port 0 takes a free one. It listens at `host`, a
    name or address of this machine; at all interfaces without.

    Whoever reaches the port can end the store: it belongs in the cluster's own network.

    Returns:
        The exit code 0.

    Raises:
        ConfigError: the port is taken, this user may not listen on it, or `host` is another machine.
    """
    # Before the store's thread starts, which inherits it: then no handler runs, and sigwait gets them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        listening = listen(port, [host] if host else [])
        if host and listening.getsockname()[0] in ANYWHERE:
            raise ConfigError(f"--store {host}:{port}: this machine doesn't have that address")
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "ports go up to 65535"
        raise ConfigError(f"--store {port}: {why}\n  `ss -ltnp` says who listens there; 0 takes a free port") from None
    port = listening.getsockname()[1]
    store = _serve("127.0.0.1", listening, 300)
    print(f"store: {host or socket.gethostname()}:{port}", flush=True)
    signal.sigwait(ENDING)
    del store
    return 0


def connect(host: str, port: int, patience_s: float, timeout_s: float, who: str, hint: str) -> Store:
    """A store that another process has. `timeout_s` is how long its answers may take from then on.

    Raises:
        PeerLostError: nobody listens there after `patience_s`, or it isn't a store.
    """
    from torch.distributed import TCPStore

    def open_() -> None:
        try:
            opened.append(TCPStore(host, port, is_master=False, wait_for_workers=False, use_libuv=False))
        except RuntimeError as error:
            opened.append(error)

    _knock(host, port, patience_s, who, hint)
    opened: list[Store | RuntimeError] = []
    thread = threading.Thread(target=open_, daemon=True)  # TCPStore waits for ever for the first answer
    thread.start()
    thread.join(patience_s)
    store = opened[0] if opened else None
    if store is None or isinstance(store, RuntimeError):
        why = "another program answers there" if store else f"no answer in {patience_s:.0f} s"
        raise PeerLostError(f"{who} at {host}:{port} is no store: {why}\n  {hint}")
    store.set_timeout(timedelta(seconds=timeout_s))
    return _corner(store)


def _corner(store: Store) -> Store:
    """TCPStore lets everybody in, and in PyTorch 2.6 tells nobody which keys there are: who doesn't know the name of
    this corner can't read or change what is in it."""
    from torch.distributed import PrefixStore

    return PrefixStore(name, store) if (name := secret.corner()) else store


def _knock(host: str, port: int, patience_s: float, who: str, hint: str) -> None:
    """Waits until somebody listens: PyTorch's own attempts end in pages of warnings."""
    began, told = time.monotonic(), False
    while True:
        left = began + patience_s - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(left, 0.1)).close()
            return
        except socket.gaierror as error:
            why = f"nobody knows this host here ({error.strerror})"
            raise PeerLostError(f"{who} should be at {host}:{port}: {why}\n  {hint}") from None
        except OSError as error:
            why = error.strerror or "no answer"
        if left <= 0:
            raise PeerLostError(f"{who} can't be reached at {host}:{port} for {patience_s:.0f} s: {why}\n  {hint}")
        if not told and time.monotonic() > began + 5:
            told = True
            print(f"waiting for {who} at {host}:{port}: {why}", file=sys.stderr, flush=True)
        time.sleep(0.1)


def first_line(error: RuntimeError) -> str:
    return (str(error).splitlines() or [""])[0]
