"""What a deploy tells while it works; the command line shows it."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Called from several threads."""

    def say(self, text: str) -> None:
        """Of the cluster as a whole."""

    def step(self, node: str, text: str) -> None:
        """What a node is about to do or doing."""

    def end(self, node: str, text: str, *, ok: bool = True) -> None:
        """What came of it."""

    def rest(self) -> None:
        """No node does anything now; what comes next counts anew."""


class Silent:
    """For those who want only the result."""

    def say(self, text: str) -> None: ...

    def step(self, node: str, text: str) -> None: ...

    def end(self, node: str, text: str, *, ok: bool = True) -> None: ...

    def rest(self) -> None: ...
