"""Bytes between group leaders: a TCP connection for each pair, made anew for each exchange.

Not a c10d process group: exchanges are minutes to hours apart, over networks that forget idle connections, and when
a group dies in the middle of one, the others have to stop waiting and start over without it.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from rocstack_trainer.ranks import secret

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
CHECK_S = 0.1
STRANGERS = 64  # connections that came and haven't greeted; the oldest goes first
Address = tuple[str, int]
Buffers = Sequence[memoryview]


class Broken(Exception):
    """An exchange came to nothing: who was lost, or why it was given up. `peers` are those that didn't answer."""

    def __init__(self, why: str, peers: Iterable[str] = ()) -> None:
        super().__init__(why)
        self.peers = set(peers)


class Link:
    """One connection, with what is still to be sent and what is still to come: first of all a greeting. Until then
    it is not `known`. `peer` is whom this side connected to, or who has greeted."""

    def __init__(self, sock: socket.socket, peer: str = "", out: Buffers = ()) -> None:
        sock.setblocking(False)
        self.sock, self.peer, self.known, self.greeting = sock, peer, False, bytearray(32)
        self.out, self.into = deque(out), deque([memoryview(self.greeting)])

    def wants(self) -> int:
        """Which events of the socket it waits for; 0: it is done."""
        for queue in (self.out, self.into):
            while queue and not queue[0].nbytes:
                queue.popleft()
        return (WRITE if self.out else 0) | (READ if self.into else 0)

    def move(self, events: int) -> int:
        """Sends and receives what goes without waiting. Returns the bytes sent."""
        if events & READ:
            came = self.sock.recv_into(self.into[0])
            if not came:
                raise ConnectionResetError("it closed the connection")
            self.into[0] = self.into[0][came:]
        if not events & WRITE:
            return 0
        sent = self.sock.send(self.out[0])
        self.out[0] = self.out[0][sent:]
        return sent


class Mesh:
    """One leader's end of all exchanges. `address` is where the others reach it; `sent` counts bytes."""

    def __init__(self, host: str, port: int = 0, connect_s: float = 60) -> None:
        """Connections that aren't made after `connect_s` are given up. Raises OSError: `port` is taken."""
        self.connect_s = connect_s
        self.listening = socket.create_server((host, port), backlog=128)
        self.listening.setblocking(False)
        self.address: Address = self.listening.getsockname()[:2]
        self.sent = 0

    def swap(
        self,
        token: str,
        me: str,
        peers: Mapping[str, Address],
        out: Mapping[str, Buffers],
        into: Mapping[str, Buffers],
        patience_s: float,
        check: Callable[[], None],
    ) -> None:
        """Sends out[peer] to each peer and fills into[peer] from it; both sides know the sizes.

        Of two, the one with the smaller name connects and greets, and the other one greets back; then come the data. A
        greeting is a digest of the run's secret, `token` and both names: who is from another exchange, or from
        elsewhere, gets nothing, isn't listened to, and can't make this one wait. `check` is called every CHECK_S.

        Raises:
            Broken: a connection ended, or all that greeted stood still for `patience_s`, or `check` raised it.
        """
        expected = {bytes(_greeting(token, peer, me)): peer for peer in peers}
        strangers: deque[Link] = deque()
        missing = set(peers)
        with selectors.DefaultSelector() as selector:
            selector.register(self.listening, READ)
            try:
                callees = {peer: address for peer, address in peers.items() if me < peer}
                for peer, sock in _connected(callees, min(patience_s, self.connect_s)).items():
                    link = Link(sock, peer, [_greeting(token, me, peer)])
                    selector.register(sock, link.wants(), link)
                moved = checked = time.monotonic()
                while missing:
                    for key, events in selector.select(0.05):
                        if key.data is None:
                            with suppress(OSError):  # whoever it was, it is gone
                                strangers.append(link := Link(self.listening.accept()[0]))
                                selector.register(link.sock, READ, link)
                            continue
                        link = key.data
                        try:
                            self.sent += link.move(events)
                        except BlockingIOError:
                            continue
                        except OSError as error:
                            if link.peer:
                                raise Broken(f"{link.peer}: {error}") from None
                            link.into.clear()
                        if not link.known and not link.wants() & READ:
                            who = expected.pop(bytes(link.greeting), "")
                            if not link.peer:
                                strangers.remove(link)
                            elif who != link.peer:
                                raise Broken(f"{link.peer}: another program answers there, or it has another secret")
                            if who:
                                link.out.extend([] if link.peer else [_greeting(token, me, who)])
                                link.known, link.peer = True, who
                                link.out.extend(out[who])
                                link.into.extend(into[who])
                        moved = time.monotonic() if link.known else moved
                        if wants := link.wants():
                            selector.modify(link.sock, wants, link)
                        else:
                            selector.unregister(link.sock)
                            link.sock.close()
                            missing.discard(link.peer)
                    while len(strangers) > STRANGERS:
                        selector.unregister((oldest := strangers.popleft()).sock)
                        oldest.sock.close()
                    now = time.monotonic()
                    if now - checked > CHECK_S:
                        check()
                        checked = now
                    if now - moved > patience_s:
                        why = f"{', '.join(sorted(missing))}: nothing came or went for {patience_s:.0f} s"
                        raise Broken(why, [peer for peer in missing if me < peer])  # who calls this one may just pause
            finally:
                for key in list(selector.get_map().values()):
                    if key.data:
                        key.data.sock.close()


def _connected(peers: Mapping[str, Address], patience_s: float) -> dict[str, socket.socket]:
    """A connection to each. Raises Broken with all that could not be reached."""
    found: dict[str, socket.socket] = {}
    faults: dict[str, str] = {}

    def connect(peer: str) -> None:
        try:
            found[peer] = socket.create_connection(peers[peer], timeout=patience_s)
        except OSError as error:
            faults[peer] = f"{peer} at {peers[peer][0]}:{peers[peer][1]}: {error}"

    with ThreadPoolExecutor(max_workers=32) as pool:  # side by side: each may take all of its patience
        list(pool.map(connect, peers))
    if faults:
        for sock in found.values():
            sock.close()
        raise Broken("; ".join(faults.values()), faults)
    return found


def _greeting(token: str, sender: str, receiver: str) -> memoryview:
    return memoryview(secret.digest(f"greeting {token} {sender} {receiver}"))
