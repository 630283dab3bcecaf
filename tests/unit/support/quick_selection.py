"""What `make test-quick` runs: each test once, by the first case of its table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Item(Protocol):
    nodeid: str

    def get_closest_marker(self, name: str) -> object: ...


AnItem = TypeVar("AnItem", bound=Item)


def quick(items: Iterable[AnItem]) -> list[AnItem]:
    first: dict[str, AnItem] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            first.setdefault(item.nodeid.partition("[")[0], item)
    return list(first.values())
