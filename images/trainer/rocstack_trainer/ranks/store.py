"""`rocstack-train --store [HOST:]PORT`: a store in a process of its own, which outlives every rank."""

from __future__ import annotations

import signal
import socket

from rocstack_trainer.errors import ConfigError
from rocstack_trainer.ranks import connect

ENDING = (signal.SIGTERM, signal.SIGINT)


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
        listening = connect.listen(port, [host] if host else [])
        if host and listening.getsockname()[0] in connect.ANYWHERE:
            raise ConfigError(f"--store {host}:{port}: this machine doesn't have that address")
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "ports go up to 65535"
        raise ConfigError(f"--store {port}: {why}\n  `ss -ltnp` says who listens there; 0 takes a free port") from None
    port = listening.getsockname()[1]
    store = connect.serve("127.0.0.1", listening, 300)
    print(f"store: {host or socket.gethostname()}:{port}", flush=True)
    signal.sigwait(ENDING)
    del store
    return 0
