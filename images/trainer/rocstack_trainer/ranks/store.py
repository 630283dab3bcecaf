"""`rocstack-train --store PORT`: a store in a process of its own, which outlives every rank."""

from __future__ import annotations

import os
import signal
import socket

from rocstack_trainer.errors import ConfigError
from rocstack_trainer.ranks.connect import LISTENING

ENDING = (signal.SIGTERM, signal.SIGINT)


def serve(port: int) -> int:
    """Prints `store: HOST:PORT` and serves until SIGTERM or Ctrl-C. Port 0 takes a free one.

    Whoever reaches the port can read and change what is in it: it belongs in the cluster's own network.

    Returns:
        The exit code 0.

    Raises:
        ConfigError: the port is taken, or this user may not listen on it.
    """
    from torch.distributed import TCPStore

    # Before the store's thread starts, which inherits it: then no handler runs, and sigwait gets them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with _listen(port) as listening:
        port = listening.getsockname()[1]
        # It closes the socket by itself, hence a copy.
        fd = os.dup(listening.fileno())
        store = TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd, use_libuv=False
        )
    print(f"store: {socket.gethostname()}:{port}", flush=True)
    signal.sigwait(ENDING)
    del store
    return 0


def _listen(port: int) -> socket.socket:
    """The socket that the program which started this one already has, or a new one."""
    if given := os.environ.get(LISTENING):
        return socket.socket(fileno=int(given))
    try:
        return socket.create_server(("0.0.0.0", port), backlog=1024)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "ports go up to 65535"
        raise ConfigError(f"--store {port}: {why}\n  `ss -ltnp` says who listens there; 0 takes a free port") from None
