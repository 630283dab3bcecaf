"""Names of hosts, as this node resolves them. Standard library only."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable


def resolve(names: Iterable[str], seconds: float) -> dict[str, list[str]]:
    """Name -> IPv4 and IPv6 addresses, none where nobody knows it. A name server that is silent costs `seconds`."""
    addresses: dict[str, list[str]] = {name: [] for name in names}

    def ask(name: str) -> None:
        try:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        addresses[name] = [str(row[4][0]) for row in rows]

    # Not a pool, which waits for its threads when the program ends.
    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in addresses]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(addresses)
