"""Sends an archive to nodes over ssh, several at once, and compares what their engines have afterwards."""

import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from rocstack.base.words import Value
from rocstack.edge import stalls
from rocstack.edge.retry import Retry
from rocstack.registry.image_archive import ImageArchive

FIRST_PAUSE = 2.0  # seconds; each further one is twice as long
Progress = Callable[[str, int, int], None]  # node, bytes done, bytes in all


class LoadedImage(Value):
    """How one node got the image; `error` says why it did not."""

    node: str
    bytes: int  # sent; what was sent twice counts twice
    seconds: float
    attempts: int
    error: str | None = None


@dataclass(frozen=True)
class LoadTarget:
    """A node. `shell` is the command to which a shell line is added: ssh with its options and the host."""

    node: str
    shell: Sequence[str]
    engine: Sequence[str] = ("docker",)  # on the node, with sudo where it needs that
    have: frozenset[str] = frozenset()  # diff ids of its engine; only for the older store
    load: Sequence[str] = ()  # instead of "load" of the engine


def load(
    archive: ImageArchive,
    targets: Sequence[LoadTarget],
    *,
    at_once: int = 8,
    attempts: int = 3,
    sleep: Callable[[float], None] | None = None,
    progress: Progress = lambda node, done, total: None,
) -> list[LoadedImage]:
    """Loads the archive on every target; a node that fails is a result, not an error. Ctrl-C ends all of them."""
    senders = [_Sender(archive, target, attempts, sleep, progress) for target in targets]
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        jobs = [pool.submit(sender.run) for sender in senders]
        try:
            return [job.result() for job in jobs]
        except BaseException:
            for sender in senders:
                sender.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass
class _Sender:
    archive: ImageArchive
    target: LoadTarget
    attempts: int
    sleep: Callable[[float], None] | None
    progress: Progress
    sent: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> LoadedImage:
        started, retry = time.monotonic(), Retry(self.attempts, FIRST_PAUSE, sleep=self.sleep or self._stopped.wait)
        error = "stopped" if self._stopped.is_set() else self._once(self.target.have)
        # What was left out may be gone from the node, so it gets everything that there is.
        whole = all(diff_id in self.archive.blobs for diff_id in self.archive.diff_ids)
        while error and not retry.last and not self._stopped.is_set():
            retry.wait()
            error = self._once(frozenset() if whole else self.target.have)
        return LoadedImage(
            node=self.target.node,
            bytes=self.sent,
            seconds=round(time.monotonic() - started, 3),
            attempts=retry.attempt,
            error=error or None,
        )

    def stop(self) -> None:
        self._stopped.set()

    def _once(self, have: Collection[str]) -> str:
        """What went wrong, or nothing."""
        if any(d not in self.archive.blobs and d not in have for d in self.archive.diff_ids):
            return "the archive lacks layers that this node does not have"
        engine = shlex.join(self.target.engine)
        name = shlex.quote(self.archive.name)
        load = shlex.join(self.target.load or [*self.target.engine, "load", "--quiet"])
        line = f"{load} >&2 && {engine} image inspect --format '{{{{.Id}}}}' {name}"
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            ask = [*self.target.shell, f"{engine} version"]
            try:
                code = stalls.run(
                    [*self.target.shell, line], ask, out, err, feed=self._pieces(have), stopped=self._stopped
                )
            except (OSError, stalls.Stalled) as error:
                return str(error)
            loaded, said = (stalls.tail(each).decode("utf-8", "replace").strip() for each in (out, err))
        if code:
            return f"exit {code}: {said.splitlines()[-1] if said else 'no message'}"
        if loaded not in (self.archive.id, self.archive.digest):
            return f"the node has {loaded[:19]}, this machine {self.archive.id[:19]}"
        return ""

    def _pieces(self, have: Collection[str]) -> Iterator[bytes]:
        total, done = self.archive.size(have), 0
        self.progress(self.target.node, 0, total)
        for data in self.archive.stream(have):
            yield data
            self.sent += len(data)
            done += len(data)
            self.progress(self.target.node, min(done, total), total)
