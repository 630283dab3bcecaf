"""What was read off the cluster, by name, as plain JSON values: checks judge it and never fetch anything themselves.

So a run can be judged again from its file, without the cluster: `rocstack verify --evidence FILE`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocstack.verify.result import NOT_RECORDED


class NotRecorded(LookupError):
    """The file that is replayed hasn't this."""


class Evidence:
    """`given`: what is replayed; then nothing is fetched."""

    def __init__(self, given: dict[str, Any] | None = None) -> None:
        self.replayed = given is not None
        self._known: dict[str, Any] = dict(given or {})
        self._failed: dict[str, Exception] = {}

    def take(self, name: str, fetch: Callable[[], Any]) -> Any:
        """The value called `name`, fetched once.

        Raises:
            NotRecorded: a file is replayed that hasn't it.
            Exception: what `fetch` raises, to everybody who asks.
        """
        if name in self._failed:
            raise self._failed[name]
        if name not in self._known:
            if self.replayed:
                raise NotRecorded(f"{NOT_RECORDED}: {name}")
            try:
                self._known[name] = json.loads(json.dumps(fetch()))  # as it will be read back
            except Exception as error:
                self._failed[name] = error
                raise
        return self._known[name]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._known, indent=1) + "\n", encoding="utf-8")
