"""New keys in place of old ones in rocstack-secrets.yml. Both are in it from before the first node gets a new key until
the last one has: so whatever is interrupted, running it again goes on with the same keys."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.plan import secrets
from rocstack.deploy.plan.secrets import HEADER, NAMES, NEXT, Secrets
from rocstack.edge import files

ROTATED = ("munge_key", "jwt_key", "database_password", "registry_password")
_NOTE = (
    f"# A rotation is under way: `{NEXT}` takes the place of the keys above when `rocstack rotate-keys` has ended.\n"
)


@dataclass(frozen=True)
class Rotation:
    """`begun`: the new keys are in the file already, and maybe on nodes."""

    path: Path
    old: Secrets
    new: Secrets
    begun: bool

    def check(self, there: Mapping[str, str]) -> None:
        """`there` are the fingerprints that the cluster has: of old or new keys.

        Raises:
            BadInput: it is another cluster's.
        """
        old, new = self.old.fingerprints(), self.new.fingerprints()
        if other := ", ".join(name for name in NAMES if there.get(name, old[name]) not in (old[name], new[name])):
            raise BadInput.of("other-secrets", self.path, file=self.path, names=other)

    def begin(self) -> None:
        """Writes the new keys beside the old ones; does nothing where they are.

        Raises:
            CheckFailed: somebody else changed the file, or it can't be written.
        """
        if not self.begun:
            coming = "".join(f"  {secrets.line(name, getattr(self.new, name))}" for name in ROTATED)
            self._write(f"{_all(self.path, self.old)}{_NOTE}{NEXT}:\n{coming}")

    def finish(self) -> None:
        """The old keys go.

        Raises:
            CheckFailed: as `begin`.
        """
        self._write(_all(self.path, self.new))

    def _write(self, text: str) -> None:
        path = self.path.resolve()
        if load(path).old != self.old:
            raise CheckFailed.of("secrets-changed", file=path)
        try:
            files.write(path, text, private=True)
        except OSError as error:
            raise CheckFailed.of("no-secrets-file", file=path, why=error.strerror) from None


def load(path: Path) -> Rotation:
    """The rotation that is under way, or a new one. Writes nothing.

    Raises:
        BadInput: as `secrets.read`; the file is encrypted, or lacks keys.
    """
    values, encrypted = secrets.stored(path)
    coming = values.pop(NEXT, None)
    if encrypted:
        raise BadInput.of("rotation-encrypted", path, file=path)
    if set(values) != set(NAMES) or (coming is not None and set(coming) != set(ROTATED)):
        raise BadInput.of("rotation-nothing", path, file=path)
    old = Secrets(**values)
    new = coming if coming is not None else {name: secrets.NEW[name]() for name in ROTATED}
    return Rotation(path, old, replace(old, **new), coming is not None)


def _all(path: Path, values: Secrets) -> str:
    lines = "".join(secrets.line(name, getattr(values, name)) for name in NAMES)
    return HEADER.format(name=path.name) + lines
