"""All adapters of a gateway: those in folders, and those in repositories of registries, which everybody may use."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import AbstractContextManager

from rocstack.base.errors import RocstackError
from rocstack.serve import registry
from rocstack.serve.adapter_repository import AdapterRepository
from rocstack.serve.registry import FolderRegistry, OpenAdapter, Registered


class AdapterSources:
    """Folders go first."""

    def __init__(
        self, folders: FolderRegistry, repositories: Iterable[AdapterRepository], say: Callable[[str], None]
    ) -> None:
        self._folders, self._say = folders, say
        self._repositories = {each.url: each for each in repositories}
        self._silent: set[str] = set()  # those of which it was said

    def rescan(self) -> int:
        """Looks everywhere. A registry that doesn't answer has what it had.

        Raises:
            BadInput: there are more than a million.
        """
        number = self._folders.rescan()
        for url, each in self._repositories.items():
            try:
                number += each.rescan()
                self._silent.discard(url)
            except RocstackError as error:
                number += len(each.names)
                if url not in self._silent:
                    self._say(f"{url}: {error.what}")
                self._silent.add(url)
        return number

    def find(self, user: str, name: str) -> Registered | None:
        for found in (self._folders.find(user, name), *(each.find(name) for each in self._repositories.values())):
            if found:
                return found
        return None

    def visible(self, user: str) -> list[Registered]:
        listed = self._folders.visible(user)
        if not self._repositories:
            return listed
        found = {each.name: each for each in listed}
        for there in self._repositories.values():
            found |= {name: Registered(name, None, there.url, (name,)) for name in there.names - found.keys()}
        return [found[name] for name in sorted(found)]

    def has(self, adapter: Registered) -> bool:
        there = self._repositories.get(adapter.root)
        return adapter.name in there.names if there else self._folders.has(adapter)

    def threads(self, adapter: Registered) -> Executor | None:
        """Those that look for it; None: any."""
        there = self._repositories.get(adapter.root)
        return there.threads if there else None

    def opened(self, adapter: Registered) -> AbstractContextManager[OpenAdapter]:
        there = self._repositories.get(adapter.root)
        return there.opened(adapter) if there else registry.opened(adapter)

    def stamp(self, adapter: Registered) -> str:
        """What changes when the adapter's files do.

        Raises:
            BadInput: it isn't there any more, or can't be read. CheckFailed: its registry doesn't answer.
        """
        if there := self._repositories.get(adapter.root):
            return there.stamp(adapter)
        with registry.opened(adapter) as files:
            return files.stamp
