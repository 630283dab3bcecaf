"""Whether whoever asked for a change still has the cluster's lock. A run that lost it (a laptop that slept) may still
send its orders; each carries the number of its lock, and a node refuses those of a number that is not the newest it
knows. Standard library only."""

from __future__ import annotations

import os

from . import cluster_lock, files
from .engine import NodeError, Row


class Fence:
    """`order` is {"number", "who"}, empty for a run without the lock: `down --force` without the control node. `folder`
    has the node's state."""

    def __init__(self, order: Row | None, folder: str) -> None:
        self._order = order or {}
        self._folder = folder
        self._path = os.path.join(folder, cluster_lock.FENCE)

    def announce(self) -> None:
        """From now on this node refuses older numbers; a run of one that is at work here stops at its next step.

        Raises:
            NodeError: as `check`; the number can't be stored.
        """
        if self._order:
            with files.explained(self._path, "written"):
                files.make_folder(self._folder)
                self._refuse(cluster_lock.announce(self._path, self._order))

    def check(self) -> None:
        """Before each step that changes something.

        Raises:
            NodeError: this node knows a newer number.
        """
        if self._order:
            with files.explained(self._path, "read"):
                self._refuse(cluster_lock.newest(self._path))

    def _refuse(self, known: Row) -> None:
        what, cause = cluster_lock.refusal(self._path, self._order, known)
        if what:
            raise NodeError(what, cause, "fenced")
