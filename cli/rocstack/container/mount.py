"""A folder or file of the host inside the container: `SRC[:DST[:ro]]`."""

import posixpath
from collections.abc import Iterable
from pathlib import Path

from rocstack.base.errors import BadInput
from rocstack.base.words import Value


class Mount(Value):
    """`source` on the host, `target` in the container; both absolute."""

    source: str
    target: str
    read_only: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


def parse_mount(text: str, *, base: Path, home: Path | None = None) -> Mount:
    """Reads `SRC[:DST[:ro|rw]]`.

    SRC may be relative to `base` or start with `~/`; DST is the same path if left out.

    Raises:
        BadInput: too many parts, no source, or a target that is not absolute.
    """
    source, *rest = text.split(":")
    mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
    if not source or len(rest) > 1 or "" in rest:
        raise BadInput.of("bad-mount", text=text, why="it is not SRC[:DST[:ro]]")
    if home and (source == "~" or source.startswith("~/")):
        source = str(home) + source[1:]
    place = posixpath.normpath(posixpath.join(base.as_posix(), source))
    target = rest[0] if rest else place
    if not target.startswith("/") or posixpath.normpath(target) == "/":
        raise BadInput.of("bad-mount", text=text, why=f"the target '{target}' is not an absolute path below /")
    if not (place + target).isprintable():
        raise BadInput.of("bad-mount", text=text, why="a path holds a control character")
    return Mount(source=place, target=posixpath.normpath(target), read_only=mode == "ro")


def check_mounts(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Every source exists (for a misspelt one docker would make a folder) and no target stands twice.

    Raises:
        BadInput: otherwise.
    """
    seen: dict[str, Mount] = {}
    for mount in mounts:
        if not Path(mount.source).exists():
            raise BadInput.of("bad-mount", text=mount, why=f"there is no {mount.source} on this host")
        if mount.target in seen:
            why = f"{seen[mount.target].source} is already mounted at {mount.target}"
            raise BadInput.of("bad-mount", text=mount, why=why)
        seen[mount.target] = mount
    return tuple(seen.values())
